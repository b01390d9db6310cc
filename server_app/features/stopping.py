"""A run that ends before its last round because its validation accuracy no longer rises (`stop-patience`).

It then ends like one that was asked for so many rounds: its models are evaluated, its summary and report are written.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.record.folder import RunFolder
from protosphere.server_app.feature import Feature, Federation
from protosphere.strategies import Run

PATIENCE = "stop-patience"


class Stopping(Feature):
    """Looks whether the validation mean of the run's rule, over all clients, still rises."""

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self._best: float | None = None
        self._rounds_without_rise = 0

    @staticmethod
    def applies(run: Run) -> bool:
        return run.settings.stop_patience > 0

    def start(self, federation: Federation) -> None:
        super().start(federation)
        with_validation = any(sum(identity.rows[1:2]) for identity in federation.identities.values())
        if not with_validation:
            raise SettingError(
                f"setting `{PATIENCE}` is {self.settings.stop_patience}, but no client has a validation sample to "
                "decide by; raise `validation-share`, or set it to 0."
            )

    def recall(self, lines: Iterable[Mapping[str, Any]]) -> None:
        for line in lines:
            self.after_round(line)

    def after_round(self, line: Mapping[str, Any]) -> None:
        evaluation = line.get("evaluation", {})
        validation = evaluation.get("rules", {}).get(self.run.inference, {}).get("validation")
        # what models do before training is no best that later rounds could fail to reach
        if validation is None or evaluation["of_round"] == 0:
            return
        if self._best is None or validation["mean"] > self._best:
            self._best, self._rounds_without_rise = validation["mean"], 0
        else:
            self._rounds_without_rise += 1
        if self._rounds_without_rise >= self.settings.stop_patience:
            self.stop_reason = PATIENCE
