"""A run that ends before its last round: because its validation accuracy no longer rises, or because somebody said so.

It then ends like one that was asked for so many rounds: its models are evaluated, its summary and report are written.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings
from protosphere.wire.payloads import Identity

OnRound = Callable[[Mapping[str, Any]], object]  # told a line of metrics.jsonl; False ends the run
PATIENCE, ASKED = "stop-patience", "on-round"


class Stopping:
    """Looks at every line of a run.

    Attributes:
        by: why the run is to end, `stop-patience` or `on-round`; "" while it goes on.

    Args:
        rule: whose validation mean, over all clients, is to rise.
        on_round: asked after every round.
    """

    def __init__(self, settings: Settings, rule: str, on_round: OnRound | None = None):
        self.by = ""
        self._patience, self._least = settings.stop_patience, settings.stop_min_delta
        self._rule, self._ask = rule, on_round
        self._best: float | None = None
        self._in_vain = 0

    def recall(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take up the rounds of a run that is resumed. Nobody is asked again, and who ended it then may go on now."""
        for line in lines:
            self._look(line)

    def hear(self, line: Mapping[str, Any]) -> None:
        """A round is finished, and its checkpoint is written."""
        self._look(line)
        if self._ask is not None and self._ask(line) is False:
            self.by = self.by or ASKED

    def _look(self, line: Mapping[str, Any]) -> None:
        evaluation = line.get("evaluation", {})
        validation = evaluation.get("rules", {}).get(self._rule, {}).get("validation")
        # what models do before training is no best that later rounds could fail to reach
        if not self._patience or validation is None or evaluation["of_round"] == 0:
            return
        if self._best is None or validation["mean"] > self._best + self._least:
            self._best, self._in_vain = validation["mean"], 0
        else:
            self._in_vain += 1
        if self._in_vain >= self._patience:
            self.by = PATIENCE


def refuse_unmeasured(settings: Settings, identities: Mapping[int, Identity]) -> None:
    """Refuse a patience that could never end, since no client has a validation row.

    Raises:
        SettingError: names the setting.
    """
    if settings.stop_patience and not any(sum(identity.rows[1:2]) for identity in identities.values()):
        raise SettingError(
            f"setting `{PATIENCE}` is {settings.stop_patience}, but no client has a validation row by which to tell; "
            "raise `validation-share`, or set it to 0."
        )
