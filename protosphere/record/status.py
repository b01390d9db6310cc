"""status.json: how far a run is, for whoever looks on while it runs."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings
from protosphere.record.folder import RunFolder


@contextmanager
def status(settings: Settings, rule: str, folder: RunFolder, flower_run: int) -> Iterator[None]:
    """Keep the folder's status.json while the run inside is on.

    It has `state` ("starting": no round is finished yet, "running", "completed", "failed"), `round` (the last finished
    one), `rounds`, `folder`, `latest` (the newest mean test accuracy by the primary rule, and of which round; None
    before there is one), `seconds` since this start, `problem` (why it failed, in a sentence), and `flower_run`, the
    number that Flower knows the run by. A process that was killed leaves it as it was; `protosphere run` writes the
    state "stopped" where a signal ended the run.
    """
    began = time.monotonic()
    content: dict[str, Any] = {
        "state": "starting",
        "round": 0,
        "rounds": settings.rounds,
        "folder": str(folder.path),
        "latest": None,
        "seconds": 0.0,
        "problem": "",
        "flower_run": str(flower_run),
    }
    # a resume that is refused leaves a folder as it was
    begun = not settings.resume

    def tell(**news: Any) -> None:
        content.update(news, seconds=time.monotonic() - began)
        folder.write_status(content)

    def hear(line: Mapping[str, Any]) -> None:
        nonlocal begun
        begun = True
        evaluation = line.get("evaluation", {})
        test = evaluation.get("rules", {}).get(rule, {}).get("test")
        news = {"latest": {"accuracy": test["mean"], "of_round": evaluation["of_round"]}} if test else {}
        # the line that ends a run is of no round
        tell(state="running", round=line["round"] - bool(line.get("final")), **news)

    if begun:
        tell()
    folder.listeners.append(hear)
    try:
        yield
    except Exception as error:
        if begun:
            with suppress(SettingError):
                tell(state="failed", problem=str(error))
        raise
    finally:
        folder.listeners.remove(hear)
    tell(state="completed")
