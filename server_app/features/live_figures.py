"""Figures that go to TensorBoard, Weights & Biases and MLflow while the run goes on."""

from contextlib import AbstractContextManager

from protosphere.core.settings import Settings
from protosphere.record.live_metrics import live, refuse_missing, wanted
from protosphere.server_app.feature import Feature
from protosphere.strategies import Run


class LiveFigures(Feature):
    """Hands each line of the run to the sinks that the settings name."""

    @staticmethod
    def applies(run: Run) -> bool:
        return bool(wanted(run.settings))

    @staticmethod
    def refuse(settings: Settings) -> None:
        refuse_missing(settings)

    def during(self) -> AbstractContextManager[None]:
        return live(self.settings, self.folder)
