"""FedPFT (Beitollahi et al., 2024; arXiv 2402.01862; a baseline of Flower): one Gaussian mixture per class in the space
of a public encoder, and a classifier that the server trains on samples drawn from them.

    client   a mixture of at most k Gaussians for each class, fitted to its z by EM, and n_kc; once
    server   n_kc draws from each; trains a linear head by cross-entropy on all draws with AdamW
    predict  `encoder`: argmax_c z w_c + b_c, over the classes that some client has sent

strategies/one_exchange.py defines which clients send when. The mixtures are those of GFPL
(protosphere/prototypes/mixture.py), which fits them to private features. The head is trained anew, from the seed and on
all draws, whenever a new client has sent. A component of one sample is that sample: the server gets every sample of a
class with k samples or fewer.

With a robust `fedpft.aggregation`, if three clients or more hold a class, each client's mixture is moved to a robust
centre of the class, and its variance is bounded by the median.

Departures. A component has one variance for all dimensions; the paper's `diag` and `full` covariances and its
serverless and differentially private exchanges are not implemented.
Features are unit vectors (draws are not), while the paper uses the encoder's output; with unit vectors, the baseline's
learning rate of 0.0001 and its single epoch leave the head at its initial state, so both values are ours. The baseline
sends mixtures as float16, here float32; it excludes classes with k samples or fewer, here they have fewer components
(`fedpft.fewest` excludes them).
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.models.seeded import drawn
from protosphere.prototypes.aggregation import FEW, clipped, geometric_median
from protosphere.prototypes.mixture import fit_class_mixtures, sample_counts
from protosphere.strategies.by_client import pack_parts, unpack_parts
from protosphere.strategies.encoder_space import CLASSIFIER, DISCLOSURES, linear_classifier
from protosphere.strategies.one_exchange import DOWN, ONE_EXCHANGE, OneExchange, OneExchangeObjective

MOST_DRAWS = 500_000  # most draws of all clients; if there are more samples, each class of each client gets its share
BATCH = 32  # the baseline's batch size
LEAST_SPREAD = 1e-6  # least total variance of a mixture; below it, a component is a single sample
ROUNDED = 1e-3  # tolerance for the length of unit vectors after rounding


@m.method_settings
class FedPFTSettings:
    """`fedpft.*`.

    Attributes:
        components: k, maximum number of Gaussians per class. Flower's baseline: 1.
        epochs: server epochs over samples of the mixtures. Ours.
        learning_rate: learning rate of AdamW. Ours.
        fewest: classes with fewer samples are not sent. Paper: 1.
        aggregation: how each class's mixtures are aggregated. Paper: mean of unchanged mixtures.
    """

    components: m.AtLeastOne = 1
    epochs: m.AtLeastOne = 100
    learning_rate: m.Positive = 0.03
    fewest: m.AtLeastOne = 1
    aggregation: m.ClassAggregation = "mean"


class FedPFTObjective(OneExchangeObjective):
    kind = FedPFTSettings

    def summarise(self, features: Tensor, labels: Tensor) -> m.Payload:
        # the same in every round
        seed = m.derive(self.settings.seed, "fedpft", "mixtures")
        z, labels = self.sent_samples(features, labels)
        fit = fit_class_mixtures(z, labels, self.options[FedPFTSettings].components, seed, spherical=True)
        return {m.MIXTURES.name: fit.mixtures.to(dtype=torch.float32)}


class FedPFT(OneExchange):
    objective = FedPFTObjective

    def contradiction(self, partition: int, upload: m.Payload) -> str:
        """Refuse components that unit vectors cannot have, or more components than samples."""
        mixtures = m.part_of(upload, m.MixtureSet)
        assert mixtures.counts is not None
        longest = float(mixtures.lengths().max()) if len(mixtures) else 0.0
        if longest > 1 + ROUNDED:
            return f"the mean square of unit vectors in a component is 1, and it holds one of {longest**2:.3g}"
        components = torch.bincount(mixtures.labels, minlength=self.num_classes)[mixtures.labels]
        if bool((components > mixtures.counts).any()):
            label = int(mixtures.labels[components > mixtures.counts][0])
            return f"it holds more components of {self.class_word(label)} than samples"
        return ""

    def learn(self, uploads: Mapping[int, m.Payload], state: m.State) -> tuple[m.Outcome, Tensor]:
        """Train the head on all clients that have sent so far."""
        fresh = {partition: m.part_of(upload, m.MixtureSet) for partition, upload in uploads.items()}
        # by ascending partition, so that the order of arrival has no effect
        by_client = dict(sorted((unpack_parts(m.MixtureSet, state) | fresh).items()))
        # a client could claim any number, and all draws must fit into memory
        total = sum(mixtures.count_samples() for mixtures in by_client.values())
        share = min(1.0, MOST_DRAWS / max(total, 1))
        # the state keeps what was sent
        robust = by_client if self.aggregation == "mean" else bounded_mixtures(by_client, self.aggregation)
        draws = [self._draw(partition, mixtures, share) for partition, mixtures in robust.items()]
        features, labels = (torch.cat(parts) for parts in zip(*draws, strict=True))
        head, loss = self._train_head(features, labels)
        present = torch.bincount(labels, minlength=self.num_classes) > 0
        weight, bias = present.unsqueeze(1) * head.weight.detach(), present * head.bias.detach()
        classifier = linear_classifier(weight, bias, present, self.settings.max_prototype_norm)
        downloads = {m.EVERYONE: {CLASSIFIER: classifier}}
        return m.Outcome(pack_parts(by_client), downloads, {"head_loss": loss}), present

    def _draw(self, partition: int, mixtures: m.MixtureSet, share: float) -> tuple[Tensor, Tensor]:
        """Draw as many features of each class as the client has samples, or a fixed share of that, at least one; a
        client's draws do not depend on other clients."""
        assert mixtures.counts is not None
        counts = (share * mixtures.counts.double()).ceil().long()
        is_first = torch.ones(len(mixtures), dtype=torch.bool)
        is_first[1:] = mixtures.labels[1:] != mixtures.labels[:-1]
        return sample_counts(mixtures, counts[is_first], m.generator(self.settings.seed, "fedpft", "draws", partition))

    def _train_head(self, features: Tensor, labels: Tensor) -> tuple[nn.Linear, float]:
        """The head, and its mean loss in the last epoch."""
        options, seed = self.options[FedPFTSettings], self.settings.seed
        head = drawn(m.derive(seed, "fedpft", "head"), lambda: nn.Linear(self.dim, self.num_classes))
        optimiser = torch.optim.AdamW(head.parameters(), lr=options.learning_rate)
        order, total = m.generator(seed, "fedpft", "batches"), torch.zeros(())
        for _ in range(options.epochs if len(labels) else 0):
            total.zero_()
            for batch in torch.randperm(len(labels), generator=order).split(BATCH):
                loss = cross_entropy(head(features[batch]), labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.detach() * len(batch)
        return head, float(total) / max(len(labels), 1)


def bounded_mixtures(by_client: Mapping[int, m.MixtureSet], how: m.ClassAggregation) -> dict[int, m.MixtureSet]:
    """Mixtures of which few clients cannot move a class. For each class that three clients or more hold, a client's
    mean is moved to the class's geometric median, or clipped to a ball around it, and its variance is at most the
    clients' median."""
    moved = {
        partition: (mixtures.means.double().clone(), mixtures.variances.double().clone())
        for partition, mixtures in by_client.items()
    }
    holders: dict[int, list[int]] = {}
    for partition, mixtures in by_client.items():
        for label in mixtures.labels.unique().tolist():
            holders.setdefault(label, []).append(partition)
    for label, partitions in holders.items():
        if len(partitions) < FEW:
            continue
        centres, spreads = [], []
        for partition in partitions:
            mixtures = by_client[partition]
            is_of_class = mixtures.labels == label
            shares, means = mixtures.weights[is_of_class].double(), mixtures.means[is_of_class].double()
            centre = shares @ means
            deviations = (means - centre).square().sum(dim=1) + mixtures.variances[is_of_class].double().sum(dim=1)
            centres.append(centre)
            spreads.append(shares @ deviations)
        points, spread = torch.stack(centres), torch.stack(spreads)
        new_points = clipped(points) if how == "clipped-mean" else geometric_median(points).expand_as(points)
        # single samples have no variance and are no measure for others
        varies = spread > LEAST_SPREAD
        usual = spread[varies].median() if bool(varies.any()) else spread.max()
        factors = (usual / spread.clamp(min=1e-300)).clamp(max=1)
        for partition, centre, new_centre, factor in zip(partitions, points, new_points, factors, strict=True):
            is_of_class = by_client[partition].labels == label
            all_means, all_variances = moved[partition]
            all_means[is_of_class] = new_centre + factor.sqrt() * (all_means[is_of_class] - centre)
            all_variances[is_of_class] = all_variances[is_of_class] * factor
    return {
        partition: replace(mixtures, means=means.to(mixtures.means.dtype), variances=variances.to(mixtures.means.dtype))
        for (partition, mixtures), (means, variances) in zip(by_client.items(), moved.values(), strict=True)
    }


def _choose_exchange(options: m.Options) -> m.Exchange:
    most, fewest = options[FedPFTSettings].components, options[FedPFTSettings].fewest
    up = m.Part("mixtures", counts=True, components=most, fewest=fewest, width=1)
    samples = f"the features of single samples: of each in a class of {most} or fewer, of an outlier in a larger one"
    return m.Exchange((up,), (DOWN,), (samples, *DISCLOSURES), once=True)


METHOD = replace(
    ONE_EXCHANGE,
    server=FedPFT,
    objective=FedPFTObjective,
    settings={"fedpft": FedPFTSettings},
    exchange=_choose_exchange,
)
