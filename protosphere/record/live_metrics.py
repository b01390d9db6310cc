"""Live figures: what metrics.jsonl gets goes to TensorBoard, Weights & Biases and MLflow, too, as it comes.

Each sink has a thread of its own, so that none holds a round up; one that fails costs a warning and is left out.
"""

import hashlib
import importlib.util
import logging
import queue
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings, shown
from protosphere.record.folder import RunFolder
from protosphere.record.sinks import SINKS, Beginning, Sink

PATIENCE = 60.0  # seconds at the end for what a sink has not taken yet
NAMES = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow"}
OF_EVALUATION = ("evaluation", "ensemble")
OF_TRAINING = ("training", "server", "bytes")
TIMES = ("round", "server")  # the others are of single clients

log = logging.getLogger("protosphere")


@dataclass(frozen=True)
class Figures:
    """Numbers by name, `group/part/...`, of one round; `after`: of the models that it left, not of the round itself."""

    round: int
    after: bool
    values: Mapping[str, float]


def figures_of(line: Mapping[str, Any]) -> list[Figures]:
    """The figures of a line of metrics.jsonl, those of single clients left out, in the order of their rounds.

    Of the line that ends a run only the accuracies, since a resumed run has another round of that number.
    """
    figures = []
    for group in OF_EVALUATION:
        if group in line:
            parts = {name: value for name, value in line[group].items() if name not in ("of_round", "rules")}
            values = _flatten(line[group].get("rules", {}) | parts, group)
            figures.append(Figures(line[group]["of_round"], True, values))
    if not line.get("final"):
        values = _flatten({group: line.get(group, {}) for group in OF_TRAINING}, "")
        values |= {f"time/{name}": line["time"][name] for name in TIMES if name in line["time"]}
        values["problems/clients"] = len(line["problems"])
        figures.append(Figures(line["round"], False, values))
    return figures


def _flatten(table: Mapping[str, Any], prefix: str) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, plain in zip(table, _tags(list(table)), strict=True):
        value = table[name]
        full = f"{prefix}/{plain}" if prefix else plain
        if isinstance(value, Mapping):
            flat |= _flatten(value, full)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[full] = value
    return flat


def _tags(names: Sequence[str]) -> list[str]:
    """A domain's name is a folder's, and not every sink takes every letter; two names stay two."""
    plain = [re.sub(r"[^\w.-]", "_", name) for name in names]
    # a digest and no number: rounds may have other names beside one
    return [
        f"{tag}-{hashlib.blake2b(name.encode(errors='replace'), digest_size=3).hexdigest()}"
        if tag != name and plain.count(tag) > 1
        else tag
        for name, tag in zip(names, plain, strict=True)
    ]


def wanted(settings: Settings) -> list[str]:
    """The sinks that the settings ask for."""
    return [name for name in SINKS if getattr(settings, name)]


def refuse_missing(settings: Settings) -> None:
    """Refuse a sink whose package is not installed here.

    Raises:
        SettingError: names the setting, and how to get the package.
    """
    for name in wanted(settings):
        spec = importlib.util.find_spec(name)
        # these programs keep files in folders of their own names, which pass for packages without an origin
        if spec is None or spec.origin is None:
            raise SettingError(
                f"setting `{name}` is {shown(getattr(settings, name))}, but {NAMES[name]}'s package cannot be imported "
                f"here; pip install 'protosphere[{name}]', or take the setting out."
            )


@contextmanager
def live(settings: Settings, folder: RunFolder) -> Iterator[None]:
    """While inside, each line that the folder gets goes to the sinks that the settings ask for.

    Raises:
        SettingError: what `refuse_missing` raises.
    """
    refuse_missing(settings)
    feeds = [_Feed(name, settings, folder) for name in wanted(settings)]
    listeners = [feed.hear for feed in feeds]
    folder.listeners.extend(listeners)
    completed = False
    try:
        yield
        completed = True
    finally:
        for listener in listeners:
            folder.listeners.remove(listener)
        for feed in feeds:
            feed.finish(completed)


class _Feed:
    """One sink and its thread, from the first line on."""

    def __init__(self, name: str, settings: Settings, folder: RunFolder):
        self._name = name
        self._settings = settings
        self._folder = folder
        self._lines: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._completed = False
        self._left_out = False
        self._thread: threading.Thread | None = None

    def hear(self, line: Mapping[str, Any]) -> None:
        """Take a line that the folder has just got."""
        if self._thread is None and not self._left_out:
            try:
                self._thread = self._begin()
            # a machine without a thread left, too, costs the run no more than a warning
            except Exception as error:
                self._left_out = True
                self._warn(f"{type(error).__name__}: {error}")
        self._lines.put(line)

    def _begin(self) -> threading.Thread:
        *before, _ = self._folder.lines()
        for line in before:
            self._lines.put(line)
        last = before[-1]["round"] if before else 0
        beginning = Beginning(self._folder.path, self._folder.settings(), last, getattr(self._settings, self._name))
        # a daemon: a server that never answers must not keep the process
        thread = threading.Thread(target=self._work, args=(beginning,), name=self._name, daemon=True)
        thread.start()
        return thread

    def finish(self, completed: bool) -> None:
        """Let the sink take what there is, and close it."""
        if self._thread is None:
            return
        self._completed = completed
        self._lines.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._warn(f"it has not taken all figures within {PATIENCE:g} s")

    def _work(self, beginning: Beginning) -> None:
        try:
            sink: Sink = SINKS[self._name](beginning)
            while (line := self._lines.get()) is not None:
                for figures in figures_of(line):
                    sink.write(figures.round, figures.after, figures.values)
            sink.close(self._completed)
        # whatever these packages may raise, ends of the process included: the run goes on without them
        except BaseException as error:
            self._warn(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")

    def _warn(self, reason: str) -> None:
        log.warning(
            "warning: %s gets no more figures of this run (%s); metrics.jsonl has all", NAMES[self._name], reason
        )
