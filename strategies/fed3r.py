"""Fed3R (Fanì et al., ICML 2024; arXiv 2406.01116): ridge regression on the class labels, exact over all clients, in
the space of a public encoder. AFL (He et al., CVPR 2025; arXiv 2405.16240) derives the same solution differently.

    client   G_k = sum of z z^T over its samples, (d, d),  B_k = sum of z e_y^T, (d, K); once
    server   W = (sum_k G_k + lambda I)^-1 sum_k B_k
    predict  `encoder`: argmax_c z w_c, over the classes that some client has sent

W does not depend on how the samples are partitioned: it is the ridge regression on all of them.
strategies/one_exchange.py defines which clients send when. Both sums are divided by the client's number of samples,
which keeps them below 1, and are sent as float32: the relative error of W is about 1e-7 times its condition number
(tests/strategies/test_fed3r.py).

With `fed3r.random-features` D (Fed3R-RF) it approximates kernel ridge regression: z becomes

    phi(z) = sqrt(2 / D) (cos z R, sin z R),  R (d, D / 2) from N(0, 1 / sigma^2), equal at all clients

whose inner products approximate exp(-||z - z'||^2 / (2 sigma^2)) (Rahimi and Recht, 2007).

With a robust `fed3r.aggregation`, class means and counts are sent together with G_k, and both sums use robust centres
of the means (strategies/statistics.py).

Departures. Features are unit vectors, while the paper uses the encoder's output (`encoder-radius`); the authors' lambda
therefore shrinks more. The authors' code appends a constant to the features and divides each w_c by its length, so that
no class wins by its number of samples; here, as in AFL, there is no constant, and the length stays unless
`fed3r.normalise` is true. The code has no random features: the pairs of cosine and sine, whose squares add up to 1, are
ours. The encoder is not fine-tuned afterwards (Fed3R+FT); a private model is trained instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated

import torch
from pydantic import AfterValidator
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from protosphere import method as m
from protosphere.strategies.encoder_space import (
    CLASSIFIER,
    DISCLOSURES,
    discriminant_layout,
    linear_classifier,
    linear_scores,
)
from protosphere.strategies.one_exchange import DOWN, RULES, OneExchange, OneExchangeObjective
from protosphere.strategies.release import RULE
from protosphere.strategies.statistics import (
    ROUNDING,
    Statistics,
    add_clients,
    hear,
    pool,
    refute_means,
    refute_scatter,
    state_of,
)

MEANS = m.Part("prototypes", counts=True)
SUMS = "sums"  # the part that is uploaded
GRAM, TARGETS = "gram", "targets"  # G_k / n_k, and B_k / n_k as (K, d)
ROUNDED = 1e-5  # rounding error of float32 in a trace or an eigenvalue of G_k / n_k
INVERTIBLE = 1e-5  # added to its eigenvalues when B_k / n_k is checked against it
MOST_FEATURES = 16_000  # of which a message can hold the products
EXPLAINED = 1e-2  # rounding errors of both in the share of samples that a regression explains
DISCLOSED = (
    "the sums of products of its samples' features, which of fewer samples than dimensions tell what space they span, "
    "and the sums of the features by class, which tell about how many samples of each class it has"
)


def _check_pairs(number: int) -> int:
    if number % 2 or number > MOST_FEATURES:
        raise ValueError(f"should be even, as cosines and sines come in pairs, and at most {MOST_FEATURES}")
    return number


@m.method_settings
class Fed3RSettings:
    """`fed3r.*`.

    Attributes:
        ridge: lambda, added to the eigenvalues of G. Authors' code: 0.01.
        normalise: divide each w_c by its length. AFL: false; Fed3R's authors: true.
        random_features: D, even number of random features (D^2 values go up); 0: none.
        sigma: width of the random features' kernel. Ours.
        fewest: classes with fewer samples are in neither sum. Paper: 1.
        aggregation: how each class's means are aggregated. Paper: mean.
    """

    ridge: m.Positive = 0.01
    normalise: bool = False
    random_features: Annotated[m.Count, AfterValidator(_check_pairs)] = 0
    sigma: m.Positive = 1.0
    fewest: m.AtLeastOne = 1
    aggregation: m.ClassAggregation = "mean"


def width(options: m.Options, dim: int) -> int:
    """Number of features per sample: d, or D."""
    return options[Fed3RSettings].random_features or dim


@lru_cache(maxsize=4)
def directions_of_waves(seed: int, dim: int, number: int) -> Tensor:
    """R times sigma, (d, D / 2) float64."""
    return torch.randn(dim, number // 2, generator=m.generator(seed, "fed3r", "random-features"), dtype=torch.float64)


def ridge(gram: Tensor, sums: Tensor, strength: float) -> Tensor:
    """W^T = ((G + lambda I)^-1 B)^T.

    Args:
        gram: G, (d, d) float64. sums: B^T, (K, d). strength: lambda, above 0.
    """
    values, axes = torch.linalg.eigh((gram + gram.T) / 2)
    # rounding may make an eigenvalue negative
    return ((sums @ axes) / (values.clamp(min=0) + strength)) @ axes.T


class Fed3RObjective(OneExchangeObjective):
    """Client half."""

    @property
    def fewest(self) -> int:
        return self.options[Fed3RSettings].fewest

    @staticmethod
    def layouts(options: m.Options, num_classes: int, dim: int) -> Mapping[str, m.Layout]:
        """Layouts of G_k and B_k, and of the classifier."""
        size = width(options, dim)
        up = ((GRAM, (size, size)), (TARGETS, (num_classes, size)))
        return {CLASSIFIER: discriminant_layout(num_classes, size), SUMS: up}

    def features_of(self, directions: Tensor) -> Tensor:
        """z, or the random features phi(z): (n, d) to (n, D)."""
        options = self.options[Fed3RSettings]
        if not options.random_features:
            return directions
        waves = directions_of_waves(self.settings.seed, directions.shape[1], options.random_features).to(directions)
        angles = directions @ (waves / options.sigma)
        return torch.cat([angles.cos(), angles.sin()], dim=1) * (2 / options.random_features) ** 0.5

    def summarise(self, features: Tensor, labels: Tensor, samples: int) -> m.Payload:
        """G_k and B_k, divided by n_k."""
        z, targets = self.features_of(features), one_hot(labels, self.num_classes).double()
        sums = {GRAM: z.T @ z / max(samples, 1), TARGETS: targets.T @ z / max(samples, 1)}
        upload: m.Payload = {SUMS: m.Weights({name: tensor.float() for name, tensor in sums.items()})}
        if self.options[Fed3RSettings].aggregation != "mean":
            classes, counts = labels.unique(return_counts=True)
            means = (targets.T @ z)[classes] / counts.unsqueeze(1)
            upload = {MEANS.name: m.PrototypeSet(classes, means.float(), counts), **upload}
        return upload

    def encoded_scores(self, space: m.Payload | None, directions: Tensor) -> Tensor | None:
        """z w_c."""
        return linear_scores(space, CLASSIFIER, self.features_of(directions))


class Fed3R(OneExchange):
    """Server half: the sums over all clients, and their regression."""

    objective = Fed3RObjective

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Check that random features are not combined with a robust aggregation, which works on means of d values."""
        notices = super().check(num_classes, dim)
        options = self.options[Fed3RSettings]
        if options.aggregation != "mean" and options.random_features:
            raise m.SettingError(
                f'setting `fed3r.aggregation` is "{options.aggregation}", which does not go with '
                "`fed3r.random-features`; set one of them to its default."
            )
        return notices

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
        scatter = _read_statistics(upload, float(self.identities[partition].rows[0])).scatter
        samples = max(self.identities[partition].rows[0], 1)
        return refute_means(m.prototypes_of(upload)) or refute_scatter(scatter / samples, 2 * ROUNDING)

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Compute W from all clients that have sent so far, each counted once."""
        heard, fresh = hear(uploads, state)
        figures, warnings = {"heard": len(heard)}, self.unheard(heard, server_round)
        if not fresh:
            return m.Outcome(state, {}, figures, warnings, keeps=True)
        if self.options[Fed3RSettings].aggregation != "mean":
            return self._aggregate_robustly(uploads, state, server_round)
        size = width(self.options, self.dim)
        gram = state["gram"].clone() if state else torch.zeros(size, size, dtype=torch.float64)
        sums = state["targets"].clone() if state else torch.zeros(self.num_classes, size, dtype=torch.float64)
        for partition in fresh:
            tensors, samples = m.weights_of(uploads[partition], SUMS).tensors, self.identities[partition].rows[0]
            gram += samples * tensors[GRAM].double()
            sums += samples * tensors[TARGETS].double()
        if self.ends(server_round):
            warnings += self.unknown(sums.any(dim=1))
        new_state = {"heard": torch.tensor(heard), GRAM: gram, TARGETS: sums}
        return m.Outcome(new_state, {m.EVERYONE: {CLASSIFIER: self._build_classifier(gram, sums)}}, figures, warnings)

    def _aggregate_robustly(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """The same from sums that use robust centres."""
        heard, fresh = hear(uploads, state)
        warnings = self.unheard(heard, server_round)

        def read(partition: int, upload: m.Payload) -> Statistics:
            return _read_statistics(upload, float(self.identities[partition].rows[0]))

        clients = add_clients(state, uploads, fresh, read)
        pooled = pool(clients, self.num_classes, self.dim, self.options[Fed3RSettings].aggregation)
        if self.ends(server_round):
            warnings += self.unknown(pooled.weights > 0)
        classifier = self._build_classifier(pooled.moment, pooled.sums)
        figures = {"heard": len(heard)}
        return m.Outcome(state_of(heard, clients, pooled), {m.EVERYONE: {CLASSIFIER: classifier}}, figures, warnings)

    def _build_classifier(self, gram: Tensor, sums: Tensor) -> m.Weights:
        options = self.options[Fed3RSettings]
        weight, present = ridge(gram, sums, options.ridge), sums.any(dim=1)
        if options.normalise:
            weight = normalize(weight, dim=1)
        return linear_classifier(weight, torch.zeros(self.num_classes), present, self.settings.max_prototype_norm)


def _read_statistics(upload: m.Payload, samples: float) -> Statistics:
    """m_kc, n_kc and G_k - sum_c n_kc m_kc m_kc^T.

    Args:
        samples: n_k, the divisor of G_k, which includes samples of classes with few samples. The counts are scaled down
            if their sum exceeds it.
    """
    means = m.prototypes_of(upload)
    assert means.counts is not None
    counts, vectors = means.counts.double(), means.vectors.double()
    counts = counts * min(1.0, samples / float(counts.sum())) if len(means) else counts
    gram = samples * m.weights_of(upload, SUMS).tensors[GRAM].double()
    return Statistics(means, counts, gram - vectors.T @ (counts.unsqueeze(1) * vectors))


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


METHOD = m.Method(
    server=Fed3R,
    objective=Fed3RObjective,
    settings={"fed3r": Fed3RSettings},
    exchange=_choose_exchange,
    inference=RULE,
    rules=RULES,
    counts_own_rounds=True,
    # the server weights clients by their sample counts
    ignored_settings=lambda options: frozenset(),
)
