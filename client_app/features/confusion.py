"""What a client takes the test samples of each class for, once, after the last round."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protosphere.client_app.feature import Arrival, Feature
from protosphere.strategies import Run
from protosphere.wire.confusion import RECORD, encode_counts, width
from protosphere.wire.payloads import Report


class Confusion(Feature):
    """Tells the counts where the server asks, and the client's class counts are no secret of a site."""

    name = RECORD

    @staticmethod
    def applies(run: Run) -> bool:
        return run.confusion

    @property
    def tells(self) -> bool:
        """Whether it may: of a site's own samples class counts are its own."""
        return self.client.settings.confusion == "always" or self.client.has_dealt_rows

    def discloses(self) -> Sequence[str]:
        if not self.tells:
            return ()
        return ["its confusion matrix on its test samples, which says how many it has of each class (once, at the end)"]

    def answer(self, arrival: Arrival, report: Report) -> Report:
        client, evaluation = self.client, report.evaluation
        predictions = arrival.predictions.get(client.run.inference)
        if not self.tells or predictions is None or evaluation is None:
            return report
        counts = count_confusion(client.data.test.labels, predictions, client.data.num_classes)
        return replace(report, answers={**report.answers, self.name: encode_counts(counts)})


def count_confusion(labels: Tensor, predictions: Tensor, num_classes: int) -> tuple[int, ...]:
    """Counts of (true, predicted), row by row; above MOST_CLASSES of (true, right or wrong)."""
    true, predicted, columns = labels.cpu(), predictions.cpu(), width(num_classes)
    column = predicted if columns == num_classes else (predicted != true).to(true.dtype)
    return tuple(torch.bincount(true * columns + column, minlength=num_classes * columns).tolist())
