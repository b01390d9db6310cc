"""Fed3R (Fanì et al., ICML 2024; arXiv 2406.01116): ridge regression on the class labels, exact over all clients, in
the space of a public encoder. AFL (He et al., CVPR 2025; arXiv 2405.16240) derives the same solution differently.

    client   G_k = sum of z z^T over its samples, (d, d),  B_k = sum of z e_y^T, (d, K); once
    server   W = (sum_k G_k + lambda I)^-1 sum_k B_k
    predict  `encoder`: argmax_c z w_c, over the classes that some client has sent

W does not depend on how the samples are partitioned: it is the ridge regression on all of them.
strategies/one_exchange.py defines which clients send when. Both sums are divided by the client's number of samples,
which keeps them below 1, and are sent as float32: the relative error of W is about 1e-7 times its condition number
(tests/strategies/test_class_statistics.py).

With a robust `fed3r.aggregation`, class means and counts are sent together with G_k, and both sums use robust centres
of the means (strategies/statistics.py).

Departures. Features are unit vectors, while the paper uses the encoder's output (`encoder-radius`); the authors' lambda
therefore shrinks more. The authors' code appends a constant to the features and divides each w_c by its length, so that
no class wins by its number of samples; here, as in AFL, there is no constant, and the length stays. The paper's random
features (Fed3R-RF) are not implemented, and the encoder is not fine-tuned afterwards (Fed3R+FT); a private model is
trained instead.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from protosphere import method as m
from protosphere.strategies.encoder_space import CLASSIFIER, DISCLOSURES, discriminant_layout, linear_classifier
from protosphere.strategies.one_exchange import DOWN, ONE_EXCHANGE, OneExchangeObjective
from protosphere.strategies.statistics import (
    ROUNDING,
    Pooled,
    PooledServer,
    Statistics,
    refute_means,
    refute_scatter,
)

MEANS = m.Part("prototypes", counts=True)
SUMS = "sums"  # the part that is uploaded
GRAM, TARGETS = "gram", "targets"  # G_k / n_k, and B_k / n_k as (K, d)
ROUNDED = 1e-5  # rounding error of float32 in a trace or an eigenvalue of G_k / n_k
INVERTIBLE = 1e-5  # added to its eigenvalues when B_k / n_k is checked against it
EXPLAINED = 1e-2  # rounding errors of both in the share of samples that a regression explains
DISCLOSED = (
    "the sums of products of its samples' features, which of fewer samples than dimensions tell what space they span, "
    "and the sums of the features by class, which tell about how many samples of each class it has"
)


@m.method_settings
class Fed3RSettings:
    """`fed3r.*`.

    Attributes:
        ridge: lambda, added to the eigenvalues of G. Authors' code: 0.01.
        fewest: classes with fewer samples are in neither sum. Paper: 1.
        aggregation: how each class's means are aggregated. Paper: mean.
    """

    ridge: m.Positive = 0.01
    fewest: m.AtLeastOne = 1
    aggregation: m.ClassAggregation = "mean"


def ridge(gram: Tensor, sums: Tensor, strength: float) -> Tensor:
    """W^T = ((G + lambda I)^-1 B)^T.

    Args:
        gram: G, (d, d) float64. sums: B^T, (K, d). strength: lambda, above 0.
    """
    values, axes = torch.linalg.eigh((gram + gram.T) / 2)
    # rounding may make an eigenvalue negative
    return ((sums @ axes) / (values.clamp(min=0) + strength)) @ axes.T


class Fed3RObjective(OneExchangeObjective):
    kind = Fed3RSettings

    @staticmethod
    def layouts(num_classes: int, dim: int) -> Mapping[str, m.Layout]:
        """Layouts of G_k and B_k, and of the classifier."""
        up = ((GRAM, (dim, dim)), (TARGETS, (num_classes, dim)))
        return {CLASSIFIER: discriminant_layout(num_classes, dim), SUMS: up}

    def summarise(self, features: Tensor, labels: Tensor) -> m.Payload:
        """G_k and B_k, divided by n_k, the number of all samples; for a robust aggregation, also m_kc and n_kc."""
        samples = max(len(labels), 1)
        z, labels = self.sent_samples(features, labels)
        targets = one_hot(labels, self.num_classes).double()
        sums = {GRAM: z.T @ z / samples, TARGETS: targets.T @ z / samples}
        upload: m.Payload = {SUMS: m.Weights({name: tensor.float() for name, tensor in sums.items()})}
        if self.options[Fed3RSettings].aggregation != "mean":
            classes, counts = labels.unique(return_counts=True)
            means = (targets.T @ z)[classes] / counts.unsqueeze(1)
            upload = {MEANS.name: m.PrototypeSet(classes, means.float(), counts), **upload}
        return upload


class Fed3R(PooledServer):
    objective = Fed3RObjective

    def contradiction(self, partition: int, upload: m.Payload) -> str:
        """Refuse sums that no unit vectors of the client's classes can have."""
        tensors = m.weights_of(upload, SUMS).tensors
        held_classes = set(self.identities[partition].classes)
        foreign_labels = {*tensors[TARGETS].any(dim=1).nonzero().flatten().tolist()} - held_classes
        if foreign_labels:
            return f"it holds {self.class_word(min(foreign_labels))}, of which the client has no training sample"
        gram = tensors[GRAM].double()
        # vectors shorter than 1 have a trace below the number of samples
        explicable = 1.0 if self.settings.encoder_radius else float(gram.trace())
        reason = refute_sums(gram, tensors[TARGETS].double(), explicable)
        if reason or MEANS.name not in upload:
            return reason
        scatter = self.read(partition, upload).scatter / max(self.identities[partition].rows[0], 1)
        return refute_means(m.prototypes_of(upload)) or refute_scatter(scatter, 2 * ROUNDING)

    def learn(self, uploads: Mapping[int, m.Payload], state: m.State) -> tuple[m.Outcome, Tensor]:
        """Compute W from all clients that have sent so far."""
        if self.aggregation != "mean":
            return super().learn(uploads, state)
        gram = state[GRAM].clone() if state else torch.zeros(self.dim, self.dim, dtype=torch.float64)
        sums = state[TARGETS].clone() if state else torch.zeros(self.num_classes, self.dim, dtype=torch.float64)
        for partition, upload in uploads.items():
            tensors, samples = m.weights_of(upload, SUMS).tensors, self.identities[partition].rows[0]
            gram += samples * tensors[GRAM].double()
            sums += samples * tensors[TARGETS].double()
        downloads = {m.EVERYONE: self._build_classifier(gram, sums)}
        return m.Outcome({GRAM: gram, TARGETS: sums}, downloads), sums.any(dim=1)

    def read(self, partition: int, upload: m.Payload) -> Statistics:
        """m_kc, n_kc and G_k - sum_c n_kc m_kc m_kc^T.

        n_k, the divisor of G_k, includes samples of classes with few samples; the counts are scaled down if their sum
        exceeds it.
        """
        samples, means = float(self.identities[partition].rows[0]), m.prototypes_of(upload)
        assert means.counts is not None
        counts, vectors = means.counts.double(), means.vectors.double()
        counts = counts * min(1.0, samples / float(counts.sum())) if len(means) else counts
        gram = samples * m.weights_of(upload, SUMS).tensors[GRAM].double()
        return Statistics(means, counts, gram - vectors.T @ (counts.unsqueeze(1) * vectors))

    def classifier(self, pooled: Pooled) -> m.Payload:
        """The same from sums that use robust centres."""
        return self._build_classifier(pooled.moment, pooled.sums)

    def _build_classifier(self, gram: Tensor, sums: Tensor) -> m.Payload:
        weight, bias = ridge(gram, sums, self.options[Fed3RSettings].ridge), torch.zeros(self.num_classes)
        return {CLASSIFIER: linear_classifier(weight, bias, sums.any(dim=1), self.settings.max_prototype_norm)}


def refute_sums(gram: Tensor, targets: Tensor, explicable: float) -> str:
    """Why G_k / n_k (d, d) and B_k^T / n_k (K, d) cannot come from vectors of length at most 1; "" if they can.

    A regression cannot explain more than all samples: sum_c b_c^T G^-1 b_c is at most the number of samples.

    Args:
        explicable: an upper bound of the share of the client's samples that are in the sums; for unit vectors, the
            trace of G / n.
    """
    trace, values = float(gram.trace()), torch.linalg.eigvalsh((gram + gram.T) / 2)
    if trace > 1 + ROUNDED:
        return f"the squared lengths of unit vectors add up to 1 per sample, and its to {trace:.3g}"
    if float((gram - gram.T).abs().max()) > ROUNDED or float(values[0]) < -ROUNDED:
        return "sums of products z z^T are symmetric and without a negative eigenvalue, and its are not"
    factor = torch.linalg.cholesky(gram + (INVERTIBLE + ROUNDED) * torch.eye(len(gram), dtype=gram.dtype))
    explained = float(torch.linalg.solve_triangular(factor, targets.T, upper=False).square().sum())
    if explained > explicable + EXPLAINED:
        times = explained / max(explicable, ROUNDED)
        return f"its sums by class are those of {times:.3g} times as many samples as its products are of"
    return ""


def _choose_exchange(options: m.Options) -> m.Exchange:
    sums = m.Part("weights", SUMS, dtype="float32", disclosure=DISCLOSED)
    settings = options[Fed3RSettings]
    if settings.aggregation == "mean":
        return m.Exchange((sums,), (DOWN,), DISCLOSURES, once=True)
    return m.Exchange((replace(MEANS, fewest=settings.fewest), sums), (DOWN,), DISCLOSURES, once=True)


METHOD = replace(
    ONE_EXCHANGE, server=Fed3R, objective=Fed3RObjective, settings={"fed3r": Fed3RSettings}, exchange=_choose_exchange
)
