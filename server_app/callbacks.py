"""Callbacks of a run: they are called at its start, after each round, and at its end.

A callback derives its state from the run's lines alone, so that a resumed run behaves like one that was never
interrupted.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings

if TYPE_CHECKING:
    from protosphere.server_app.strategy import PrototypeStrategy

log = logging.getLogger("protosphere")
OnRound = Callable[[Mapping[str, Any]], object]  # takes a line of metrics.jsonl; returning False ends the run
PATIENCE = "stop-patience"


class Callback:
    """Base class; every hook is a no-op.

    Attributes:
        name: the summary names it as the reason if this callback ended the run.
    """

    name = ""

    def on_start(self, strategy: "PrototypeStrategy") -> bool:
        """The clients are known, but no message of a round has been sent. The lines of a resumed run are in its folder.
        Returning False ends the run before the next round.

        Raises:
            SettingError: the callback cannot work with this run.
        """
        return True

    def on_round(self, line: Mapping[str, Any]) -> bool:
        """A round's line and checkpoint are written. Returning False ends the run."""
        return True

    def on_end(self, completed: bool) -> None:
        """The run has ended: it was completed or interrupted."""


class EarlyStopping(Callback):
    """Ends a run when its validation accuracy (mean over all clients, by the run's rule) no longer rises."""

    name = PATIENCE

    def on_start(self, strategy: "PrototypeStrategy") -> bool:
        self._patience, self._rule = strategy.settings.stop_patience, strategy.run.inference
        self._best: float | None = None
        self._rounds_without_rise = 0
        with_validation = any(sum(identity.rows[1:2]) for identity in strategy.roster.identities.values())
        if not with_validation:
            raise SettingError(
                f"setting `{PATIENCE}` is {self._patience}, but no client has a validation sample to decide by; raise "
                "`validation-share`, or set it to 0."
            )
        goes_on = True
        for line in strategy.folder.lines(with_clients=False):
            goes_on = self.on_round(line)
        return goes_on

    def on_round(self, line: Mapping[str, Any]) -> bool:
        validation = line.get("evaluation", {}).get("rules", {}).get(self._rule, {}).get("validation")
        # the accuracy before training does not count as a best value
        if validation is not None and line["round"] > 0:
            if self._best is None or validation["mean"] > self._best:
                self._best, self._rounds_without_rise = validation["mean"], 0
            else:
                self._rounds_without_rise += 1
        return self._rounds_without_rise < self._patience


class CallOnRound(Callback):
    """Passes each line to a function; the run ends if the function returns False."""

    name = "on-round"

    def __init__(self, function: OnRound):
        self._function = function

    def on_round(self, line: Mapping[str, Any]) -> bool:
        return self._function(line) is not False


def callbacks_of(settings: Settings, on_round: OnRound | None) -> Sequence[Callback]:
    """The callbacks that the settings ask for, and the caller's own."""
    callbacks: list[Callback] = []
    if settings.stop_patience:
        callbacks.append(EarlyStopping())
    if settings.tensorboard or settings.wandb or settings.mlflow:
        # imported only if needed
        from protosphere.server_app.live_figures import trackers_of

        callbacks += trackers_of(settings)
    if on_round is not None:
        callbacks.append(CallOnRound(on_round))
    return callbacks
