"""A warning where features collapse: the mean norm of the prototypes has fallen far below that of the beginning."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from protosphere.record.folder import RunFolder
from protosphere.server_app.feature import Aggregation, Feature
from protosphere.strategies import Run


class Collapse(Feature):
    """Remembers the mean norm of the first round with uploads."""

    stored_as = "first_norm"

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self.first_norm: float | None = None

    def aggregated(self, aggregation: Aggregation) -> Sequence[str]:
        """A sentence when the mean norm has fallen below a third of the first."""
        norm, first = aggregation.norm, self.first_norm
        if first is None:
            self.first_norm = norm
        if norm is None or first is None or norm >= first / 3:
            return ()
        return [
            f"the mean norm of the prototypes has fallen from {first:.3g} in the first round with uploads to "
            f"{norm:.3g}: the features collapse; if the loss pulls them to prototypes, lower `prototype-weight` or "
            "spread the targets"
        ]

    def state(self) -> float | None:
        return self.first_norm

    def load(self, stored: Any, tensors: Mapping[str, Tensor]) -> None:
        self.first_norm = stored
