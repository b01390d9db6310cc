"""The prototypes that came and went in the last round, kept in the run's folder for the report."""

from collections.abc import Sequence

from protosphere.record import snapshots
from protosphere.record.folder import RunFolder
from protosphere.server_app.feature import Aggregation, Feature
from protosphere.strategies import Run
from protosphere.strategies.contract import to_everyone


class Snapshots(Feature):
    """Writes `prototypes.safetensors` after each round that has aggregated something."""

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self._aggregation: Aggregation | None = None  # of the round, until it is written

    @staticmethod
    def applies(run: Run) -> bool:
        return run.exchange.pointwise

    def aggregated(self, aggregation: Aggregation) -> Sequence[str]:
        self._aggregation = aggregation
        return ()

    def leave(self) -> None:
        aggregation, self._aggregation = self._aggregation, None
        if aggregation is None:
            return
        half, outcome = self.federation.half, aggregation.outcome
        # of this round alone: what is shown is named after it
        prototypes = half.global_prototypes(outcome.state) if outcome.downloads else None
        downloads = aggregation.downloads if prototypes is None else to_everyone(prototypes)
        if aggregation.uploads or prototypes is not None:
            tensors, counts = snapshots.snapshot(aggregation.uploads, downloads, *half.scales)
            every = self.run.settings.keep_prototypes == "all"
            snapshots.save(self.folder.path, tensors, {"round": aggregation.round, **counts}, every)
