"""FedPFT (Beitollahi et al., 2024; arXiv 2402.01862; a baseline of Flower): Gaussian mixtures of the features of each
class, in the space of a public encoder, and a classifier that the server trains on what it draws from them.

    client   a mixture of at most k Gaussians for each class, fitted to its z by EM, and n_kc; once
    server   n_kc draws from each; a linear head by cross-entropy on all draws: AdamW
    predict  `encoder`: argmax_c z w_c + b_c, over the classes that somebody has sent

Who is heard when: strategies/one_exchange.py. The mixtures are those of GFPL (protosphere/prototypes/mixture.py), there
of private features. The head begins anew whenever somebody new is heard, from the seed, on the draws of everybody.

A component of one sample is that sample: of a class of k samples or fewer the server gets each.

With a robust `fedpft.aggregation` each client's mixture of a class is moved to a robust centre of the class, and made
as narrow as is usual, where three clients or more have it.

Departures. `full` covariances, the paper's third kind, are not built: no message holds them. Features are unit vectors
(draws are not), where the paper has them as the encoder gives them. With these the baseline's rate of 0.0001 and its
one pass leave the head where it began, so both are ours. Its mixtures cross as float16, here as float32; it leaves out
classes of k samples or fewer, here they have fewer components (`fedpft.fewest` leaves them out). The paper's exchange
from client to client, without a server, and its differentially private one are not built.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.models.seeded import drawn
from protosphere.prototypes.aggregation import FEW, clipped, geometric_median
from protosphere.prototypes.mixture import fit_class_mixtures, sample_counts
from protosphere.strategies.encoder_space import CLASSIFIER, DISCLOSURES, linear_classifier
from protosphere.strategies.one_exchange import DOWN, RULES, FirstUploads, OneExchange, OneExchangeObjective
from protosphere.strategies.release import RULE

MOST_DRAWS = 500_000  # of all clients; of more samples each class of each client has its share
BATCH = 32  # the baseline's
LEAST_SPREAD = 1e-6  # of a mixture's variance, over all dimensions; below it is one sample's
ROUNDED = 1e-3  # how much longer than 1 what is left of unit vectors may be


@m.method_settings
class FedPFTSettings:
    """`fedpft.*`.

    Attributes:
        components: k, maximum number of Gaussians per class. Flower's baseline: 1.
        covariance: one variance per component (spherical), or per dimension (diagonal).
        epochs: server epochs over samples of the mixtures. Ours.
        learning_rate: learning rate of AdamW. Ours.
        fewest: classes with fewer samples are not sent. Paper: 1.
        aggregation: how each class's mixtures are aggregated. Paper: mean of unchanged mixtures.
    """

    components: m.AtLeastOne = 1
    covariance: Literal["spherical", "diagonal"] = "spherical"
    epochs: m.AtLeastOne = 100
    learning_rate: m.Positive = 0.03
    fewest: m.AtLeastOne = 1
    aggregation: m.ClassAggregation = "mean"


class FedPFTObjective(OneExchangeObjective):
    """Client half."""

    @property
    def fewest(self) -> int:
        return self.options[FedPFTSettings].fewest

    def summarise(self, features: Tensor, labels: Tensor, samples: int) -> m.Payload:
        """A mixture for each class, and n_kc."""
        options = self.options[FedPFTSettings]
        # the same in whichever round it is sent
        seed = m.derive(self.settings.seed, "fedpft", "mixtures")
        spherical = options.covariance == "spherical"
        fit = fit_class_mixtures(features, labels, options.components, seed, spherical=spherical)
        return {m.MIXTURES.name: fit.mixtures.to(dtype=torch.float32)}


class FedPFT(OneExchange):
    """Server half: draws, and the head."""

    def contradiction(self, partition: int, upload: m.Payload) -> str:
        """Components of more than unit vectors, or more of them than samples."""
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

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """The head of everybody who was heard so far, each once."""
        first_uploads = FirstUploads.of(m.MixtureSet, state)
        is_new = first_uploads.add(
            {partition: m.part_of(upload, m.MixtureSet) for partition, upload in uploads.items()}
        )
        figures: dict[str, int | float] = {"heard": len(first_uploads.by_client)}
        warnings = self.unheard(first_uploads.by_client, server_round)
        if not is_new:
            return m.Outcome(state, {}, figures, warnings, keeps=True)
        # a client could claim any number, and the draws of all must fit into memory
        total = sum(mixtures.count_samples() for mixtures in first_uploads.parts.values())
        share = min(1.0, MOST_DRAWS / max(total, 1))
        mixtures_by_client = first_uploads.parts
        if self.options[FedPFTSettings].aggregation != "mean":
            mixtures_by_client = bounded_mixtures(mixtures_by_client, self.options[FedPFTSettings].aggregation)
        draws = [self._draw(partition, mixtures, share) for partition, mixtures in mixtures_by_client.items()]
        features, labels = (torch.cat(parts) for parts in zip(*draws, strict=True))
        head, figures["head_loss"] = self._train_head(features, labels)
        present = torch.bincount(labels, minlength=self.num_classes) > 0
        if self.ends(server_round):
            warnings += self.unknown(present)
        weight, bias = present.unsqueeze(1) * head.weight.detach(), present * head.bias.detach()
        classifier = linear_classifier(weight, bias, present, self.settings.max_prototype_norm)
        return m.Outcome(first_uploads.as_state(), {m.EVERYONE: {CLASSIFIER: classifier}}, figures, warnings)

    def _draw(self, partition: int, mixtures: m.MixtureSet, share: float) -> tuple[Tensor, Tensor]:
        """As many features of each class as the client has samples, or a share of so many, one at least; by the same
        draws whoever else is there."""
        assert mixtures.counts is not None
        counts = (share * mixtures.counts.double()).ceil().long()
        is_first = torch.ones(len(mixtures), dtype=torch.bool)
        is_first[1:] = mixtures.labels[1:] != mixtures.labels[:-1]
        return sample_counts(mixtures, counts[is_first], m.generator(self.settings.seed, "fedpft", "draws", partition))

    def _train_head(self, features: Tensor, labels: Tensor) -> tuple[nn.Linear, float]:
        """The head, and its mean loss in the last pass."""
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
    """Mixtures of which few can move a class: of each class that three clients or more have, the mean of a client's
    mixture is moved to the class's geometric median, or clipped to a ball around it, and its variance is at most the
    median of the clients'."""
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
        # single samples do not vary, and are no measure for others
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
    width: Literal[1, "features"] = 1 if options[FedPFTSettings].covariance == "spherical" else "features"
    up = m.Part("mixtures", counts=True, components=most, fewest=fewest, width=width)
    samples = f"the features of single samples: of each in a class of {most} or fewer, of an outlier in a larger one"
    return m.Exchange((up,), (DOWN,), (samples, *DISCLOSURES), once=True)


METHOD = m.Method(
    server=FedPFT,
    objective=FedPFTObjective,
    settings={"fedpft": FedPFTSettings},
    exchange=_choose_exchange,
    inference=RULE,
    rules=RULES,
    counts_own_rounds=True,
    # the server weighs clients by their samples
    ignored_settings=lambda options: frozenset(),
)
