"""What looks on while a run goes on: a callback hears of its start, of each finished round, and of its end.

A callback reads the lines of the run and keeps nothing that these do not tell, so that a resumed run goes on as one
that was never cut.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings
from protosphere.record.folder import RunFolder
from protosphere.wire.payloads import Identity

log = logging.getLogger("protosphere")
OnRound = Callable[[Mapping[str, Any]], object]  # given a line of metrics.jsonl; False ends the run
PATIENCE = "stop-patience"


@dataclass(frozen=True)
class RunView:
    """What a callback may know of a run.

    Attributes:
        rule: the run's own inference rule. identities: partition -> who the client said it is.
    """

    settings: Settings
    rule: str
    folder: RunFolder
    identities: Mapping[int, Identity]


class Callback:
    """Base class; every hook is a no-op.

    Attributes:
        name: what the summary says ended the run, where it was this callback.
    """

    name = ""

    def on_start(self, run: RunView) -> bool:
        """The clients are known, and no message of a round is sent yet. A resumed run has its lines in the folder.
        False ends the run before a further round.

        Raises:
            SettingError: the callback cannot work with this run.
        """
        return True

    def on_round(self, line: Mapping[str, Any]) -> bool:
        """A round's line and checkpoint are written. False ends the run."""
        return True

    def on_end(self, completed: bool) -> None:
        """The run has ended: completed, or cut."""


class EarlyStopping(Callback):
    """Ends a run whose validation accuracy, the mean over all clients by the run's rule, no longer rises."""

    name = PATIENCE

    def on_start(self, run: RunView) -> bool:
        self._patience, self._rule = run.settings.stop_patience, run.rule
        self._best: float | None = None
        self._rounds_without_rise = 0
        with_validation = any(sum(identity.rows[1:2]) for identity in run.identities.values())
        if not with_validation:
            raise SettingError(
                f"setting `{PATIENCE}` is {self._patience}, but no client has a validation sample to decide by; raise "
                "`validation-share`, or set it to 0."
            )
        goes_on = True
        for line in run.folder.lines(with_clients=False):
            goes_on = self.on_round(line)
        return goes_on

    def on_round(self, line: Mapping[str, Any]) -> bool:
        validation = line.get("evaluation", {}).get("rules", {}).get(self._rule, {}).get("validation")
        # what models do before training is no best that later rounds could fail to reach
        if validation is not None and line["round"] > 0:
            if self._best is None or validation["mean"] > self._best:
                self._best, self._rounds_without_rise = validation["mean"], 0
            else:
                self._rounds_without_rise += 1
        return self._rounds_without_rise < self._patience


class CallOnRound(Callback):
    """Hands each line to a function, whose False ends the run."""

    name = "on-round"

    def __init__(self, function: OnRound):
        self._function = function

    def on_round(self, line: Mapping[str, Any]) -> bool:
        return self._function(line) is not False


def callbacks_of(settings: Settings, on_round: OnRound | None) -> Sequence[Callback]:
    """Those that a run has by its settings, and the one that its caller gave."""
    callbacks: list[Callback] = []
    if settings.stop_patience:
        callbacks.append(EarlyStopping())
    if settings.tensorboard or settings.wandb or settings.mlflow:
        # late, for it reads the settings of three packages
        from protosphere.server_app.live_figures import trackers_of

        callbacks += trackers_of(settings)
    if on_round is not None:
        callbacks.append(CallOnRound(on_round))
    return callbacks
