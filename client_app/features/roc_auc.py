"""How well a client's scores order its test samples: the area under the ROC curve, each class against the rest."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protosphere.client_app.evaluate import features_of, received_scores, rule_scores
from protosphere.client_app.feature import Arrival, Feature
from protosphere.core.settings import RECEIVED
from protosphere.strategies import Run
from protosphere.wire.payloads import Report
from protosphere.wire.roc_auc import RECORD, encode_auc


class RocAuc(Feature):
    """Tells one number for each evaluation, by the run's own prediction rule."""

    name = RECORD

    @staticmethod
    def applies(run: Run) -> bool:
        return run.settings.roc_auc

    def discloses(self) -> Sequence[str]:
        return ["the area under the ROC curve of its model on its test samples"]

    def answer(self, arrival: Arrival, report: Report) -> Report:
        client = self.client
        if report.evaluation is None or not len(client.data.test):
            return report
        scores = self._scores(arrival)
        auc = None if scores is None else macro_auc(client.data.test.labels.cpu(), scores.cpu())
        # one class alone has no rest, and not every rule has scores of its own here
        return report if auc is None else replace(report, answers={**report.answers, self.name: encode_auc(auc)})

    @torch.no_grad()
    def _scores(self, arrival: Arrival) -> Tensor | None:
        """(n, K) by the run's rule."""
        client = self.client
        rule, objective, state = client.run.inference, client.objective, arrival.state
        z = features_of(objective, state, client.data.test, client.data.transform)
        scores_of = received_scores if rule == RECEIVED else rule_scores
        scores = scores_of(objective, state, z)
        for further_scores_of in arrival.further_scores:
            scores |= further_scores_of(client.data.test, z)
        return scores[rule].double().softmax(dim=1) if rule in scores else None


def macro_auc(labels: Tensor, probabilities: Tensor) -> float | None:
    """The mean over classes of the area under the ROC curve of each against the rest, as scikit-learn's
    roc_auc_score(multi_class="ovr", average="macro"): of the classes that some of the samples have and some have not;
    None where there is no such class.

    Args:
        labels: (n,). probabilities: (n, K).
    """
    areas = []
    for label in labels.unique().tolist():
        is_of_class = labels == label
        positives = int(is_of_class.sum())
        negatives = len(labels) - positives
        if not negatives:
            continue
        # a sample's rank among all, of equal scores the mean of their ranks
        _, places, counts = probabilities[:, label].unique(return_inverse=True, return_counts=True)
        ranks = (counts.cumsum(0).double() - (counts - 1).double() / 2)[places]
        areas.append(float(ranks[is_of_class].sum() - positives * (positives + 1) / 2) / (positives * negatives))
    return math.fsum(areas) / len(areas) if areas else None
