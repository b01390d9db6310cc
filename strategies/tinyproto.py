"""TinyProto (Lee, Choi, 2025; arXiv 2507.04327): sparse prototypes, scaled by class counts; on FedProto and FedTGP.

    masks    m_j in {0, 1}^d with s ones, far apart in Hamming distance; c = C(p; m_j) in R^s is sent   (Eq. 7-8)
    client   uploads n_ij c_ij; pulls its features towards the expanded targets, on all d dimensions    (Eq. 5, 11)
    FP       (on FedProto, Algorithm 1)
             server: c_j = mean over N_j of n_ij c_ij                                                   (Eq. 10)
             client: target mu c_j, zero outside the mask                                               (Eq. 11)
    FT       (on FedTGP)
             server: FedTGP's contrastive training on mu n_ij c_ij, expanded                            (Appendix C)
             client: target as received, times `fedtgp.gamma`
    predict  argmin_j ||z - p_ij||, with the client's own whole p_ij                                    (Eq. 12)

Departures. R pulls each sample, while the paper's Eq. 6 and 11 sum over class means; the paper has lambda 1 and the
Euclidean distance, its release lambda 10 or 20 and the mean squared error, and our defaults are lambda 1 and the mean
squared error (`prototype-weight`, `prototype-loss`). Algorithm 1 sends the masks to the clients; here both ends draw
them from the run's seed. `tinyproto.sparsity-dim = 0` is the paper's variant without sparsification, and
`tinyproto.scaling = false` the one without scaling; FP without scaling is FedProto with masks.

Eq. 10 has the mean over N_j; the authors' code computes mu |N_j| times that mean. With it, their mu (1.5e-4 on
CIFAR-10) gives targets 0.9 times as long as the count-weighted mean prototype; with the mean, a tenth of that, which
pulls features to zero. So mu, in 1/images, is by default 0.9 (FP) and 0.6 (FT) over the mean number of images of a held
class, with the printed mean; `tinyproto.sum` is the factor |N_j|, and mu then 0.9 and 0.6 over the mean number of
images of a class. Uploads are rounded to 16 significant bits, because a product n p in full precision reveals n.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.masks import class_masks, compress, expand
from protosphere.prototypes.rounding import to_significant_bits
from protosphere.strategies.fedtgp import FedTGP, FedTGPObjective, FedTGPSettings

UPLOADED_BITS = 16  # significant bits, of float32's 24: in full precision, the products n p reveal n


@m.method_settings
class TinyProtoSettings:
    """`tinyproto.*`.

    Attributes:
        sparsity_dim: s, number of values sent per prototype; 0 or d: all. Paper: 50 of 500.
        scaling: scale prototypes by class counts.
        mu: scaling constant, per image; 0: 0.9 (FP) or 0.6 (FT), divided by the mean number of images of a held class
            (with `sum`: of a class). Paper: 1.5e-4 (CIFAR-10) or 1.5e-3, which its code uses with `sum`.
        sum: add up a class's uploads, as the authors' code does, instead of their mean (Eq. 10).
    """

    sparsity_dim: m.Count = 0
    scaling: bool = True
    mu: Annotated[float, Field(ge=0, le=1)] = 0.0
    sum: bool = False

    def __post_init__(self) -> None:
        for name, value in (("mu", self.mu), ("sum", self.sum)):
            if value and not self.scaling:
                raise ValueError(
                    f"`tinyproto.{name}` {json.dumps(value)} has no effect while `tinyproto.scaling` is false; remove "
                    "one of the two"
                )


class Masks:
    """The part of both halves that knows the masks."""

    settings: m.Settings
    options: m.Options

    def masks(self, num_classes: int) -> Tensor | None:
        """(K, d) bool; None if whole prototypes are sent."""
        dim, ones = self.settings.feature_dim, self.options[TinyProtoSettings].sparsity_dim
        return _derive_masks(num_classes, dim, ones, self.settings.seed) if 0 < ones < dim else None

    def compressed(self, prototypes: m.PrototypeSet, num_classes: int) -> m.PrototypeSet:
        """The values under the masks, (k, s) of (k, d)."""
        masks = self.masks(num_classes)
        if masks is None:
            return prototypes
        values = compress(prototypes.vectors, masks[prototypes.labels])
        # empty masks do not show their width
        return prototypes.with_vectors(values.reshape(len(prototypes), int(masks[0].sum())))

    def expanded(self, prototypes: m.PrototypeSet, num_classes: int) -> m.PrototypeSet:
        """Inverse of `compressed`, with zeros outside the masks."""
        masks = self.masks(num_classes)
        if masks is None:
            return prototypes
        return prototypes.with_vectors(expand(prototypes.vectors, masks[prototypes.labels]))


# a process has one run, or the few of a test
@lru_cache(maxsize=8)
def _derive_masks(num_classes: int, dim: int, ones: int, seed: int) -> Tensor:
    return class_masks(num_classes, dim, ones, seed)


class TinyProtoObjective(m.PullObjective, Masks):
    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """The values of n_ij p_ij under the masks; n_ij itself is never sent."""
        if state.prototypes is None:
            return None
        prototypes = state.prototypes.to(device="cpu")
        if _is_scaled(self.options):
            assert prototypes.counts is not None
            sums = prototypes.counts.unsqueeze(1) * prototypes.vectors
            prototypes = prototypes.with_vectors(to_significant_bits(sums, UPLOADED_BITS))
        return {m.PROTOTYPES.name: self.compressed(prototypes.without_counts(), self.num_classes)}

    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """The received values, with zeros outside the masks (Definition 1)."""
        if received is not None:
            received = {m.PROTOTYPES.name: self.expanded(m.prototypes_of(received), self.num_classes)}
        return super().targets(state, received)


class TinyProtoFPObjective(TinyProtoObjective):
    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """Eq. 11: the client multiplies by mu.

        Raises:
            SettingError: the server sent no mu, or an invalid one.
        """
        prototypes = super().targets(state, received)
        if prototypes is None or not _is_scaled(self.options):
            return prototypes
        mu = state.constants.get("mu")
        if mu is None or not 0 < mu <= 1:
            raise m.SettingError(
                f"the server sent the `mu` {mu} instead of a number in (0, 1]; start it with the same version and "
                "settings as this client."
            )
        return prototypes.with_vectors(mu * prototypes.vectors)


class TinyProtoFTObjective(TinyProtoObjective, FedTGPObjective):
    """Its pull is FedTGP's."""


class TinyProto(m.SparseServer, Masks):
    """What both servers share: the masks, mu (computed once), and the factor |N_j|."""

    target: float  # mean ratio of a target's norm to that of the count-weighted mean prototype, if mu is not set

    def expand(self, payloads: Mapping[int, m.Payload]) -> dict[int, m.Payload]:
        """Prototypes in R^d, with zeros outside the masks."""
        sets = m.prototype_sets(payloads)
        return {key: {m.PROTOTYPES.name: self.expanded(sparse, self.num_classes)} for key, sparse in sets.items()}

    def compress(self, prototypes: m.PrototypeSet) -> dict[int, m.Payload]:
        """The download of all clients: the values under the masks."""
        return m.to_everyone(self.compressed(prototypes, self.num_classes))

    def begin(self) -> m.Outcome:
        """mu, from the mean number of images in the roster."""
        options = self.options[TinyProtoSettings]
        if not options.scaling:
            return super().begin()
        mu = options.mu or self.target / mean_class_count(self.identities, options.sum)
        return m.Outcome({}, {}, constants={"mu": mu})

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Refuse equal client weights: clients multiply by their counts themselves. Warn if nothing is sparse."""
        ones = self.options[TinyProtoSettings].sparsity_dim
        if ones > dim:
            raise m.SettingError(
                f"setting `tinyproto.sparsity-dim` is {ones}, but a prototype has {dim} values (`feature-dim`); lower "
                "it, or set it to 0, which sends all of them."
            )
        if _is_scaled(self.options) and self.settings.client_weights == "equal":
            raise m.SettingError(
                f'setting `client-weights` is "equal", but the clients of `{self.settings.strategy}` multiply their '
                'prototypes by their class counts; set `tinyproto.scaling` to false, or `client-weights` to "samples".'
            )
        if ones not in (0, dim):
            return ()
        return (
            f"`tinyproto.sparsity-dim` is {ones}: whole prototypes are sent, without TinyProto's masks; the paper "
            "sends 50 values of 500",
        )

    def summed(self, sets: Mapping[int, m.PrototypeSet], vectors: m.PrototypeSet) -> m.PrototypeSet:
        """Vectors of a class times |N_j|, the number of this round's uploads that hold it, if `sum` is set."""
        if not self.options[TinyProtoSettings].sum:
            return vectors
        every = torch.cat([prototypes.labels for prototypes in sets.values()])
        holders = torch.bincount(every, minlength=self.num_classes)[vectors.labels]
        return vectors.with_vectors(holders.unsqueeze(1) * vectors.vectors)


class TinyProtoFP(TinyProto):
    target = 0.9

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Eq. 10: the unweighted mean of the uploads; a class that no client reported keeps its prototype. Clients
        multiply by mu (Eq. 11)."""
        mu = self.constants.get("mu", 1.0)
        sets = m.prototype_sets(self.expand(uploads))
        fresh = self.summed(sets, m.aggregate(list(sets.values()), "mean"))
        prototypes = self._shorten(m.fill_missing_classes(state, fresh))
        return m.Outcome(m.as_state(prototypes), self.compress(prototypes), self.constants, scales=(mu, mu))

    def _shorten(self, prototypes: m.PrototypeSet) -> m.PrototypeSet:
        """Shorten vectors to what clients accept. An upload may be as long as all images of its client allow, and
        clients refuse a mean that, times mu, is longer than `max-prototype-norm`."""
        if not _is_scaled(self.options):
            return prototypes
        longest = (1 - 1e-6) * self.settings.max_prototype_norm / self.constants.get("mu", 1.0)
        factors = longest / prototypes.lengths().clamp(min=longest)
        if bool((factors == 1).all()):
            return prototypes
        return prototypes.with_vectors((factors.unsqueeze(1) * prototypes.vectors).to(prototypes.vectors.dtype))


class TinyProtoFT(TinyProto, FedTGP):
    target = 0.6

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Appendix C: multiply by mu before the contrastive step, so that differences in n_ij do not distort its
        distances."""
        mu = self.constants.get("mu", 1.0)
        sets = m.prototype_sets(self.expand(uploads))
        scaled: dict[int, m.Payload] = {}
        for partition, prototypes in sets.items():
            summed = self.summed(sets, prototypes)
            scaled[partition] = {m.PROTOTYPES.name: summed.with_vectors(mu * summed.vectors)}
        outcome = super().aggregate(scaled, state, server_round)
        targets = m.prototypes_of(outcome.downloads[m.EVERYONE])
        gamma, _ = outcome.scales
        figures = {**outcome.figures, **self.constants}
        return m.Outcome(outcome.state, self.compress(targets), figures, scales=(gamma, mu))


def mean_class_count(identities: Mapping[int, m.Identity], of_all: bool) -> float:
    """n-bar: the clients' training images, capped, over the number of classes that they hold, sum n_i / sum K_i; with
    `of_all`, over the number of classes that any client holds."""
    images = sum(identity.rows[0] for identity in identities.values())
    labels = [label for identity in identities.values() for label in identity.classes]
    return images / len(set(labels) if of_all else labels)


def _is_scaled(options: m.Options) -> bool:
    return options[TinyProtoSettings].scaling


def _refuse_mu_of_rows(options: m.Options) -> None:
    """Refuse mu = 0 under `privacy`: it is computed from the clients' sample counts, which are then withheld."""
    if _is_scaled(options) and not options[TinyProtoSettings].mu:
        raise m.SettingError(
            "setting `tinyproto.mu` is 0, which means that it is computed from the clients' sample counts; under "
            "`privacy`, set it, or set `tinyproto.scaling` to false."
        )


def _ignore_settings(options: m.Options) -> frozenset[str]:
    """Scaled prototypes contain their counts, which the server cannot make equal."""
    return frozenset({"client-weights"}) if _is_scaled(options) else m.OF_CLAIMS


def _choose_exchange(options: m.Options, factor: str = "") -> m.Exchange:
    part = m.Part("prototypes", width=options[TinyProtoSettings].sparsity_dim or "features")
    if not _is_scaled(options):
        return m.Exchange((part,), (part,))
    # no n_ij p_ij is longer than n_i times its p_ij
    up, down = replace(part, sums=True), replace(part, factor=factor)
    disclosure = "by the norms of its uploads about how many samples each class has"
    return m.Exchange((up,), (down,), discloses=(disclosure,), hides_counts=True)


FP = m.Method(
    server=TinyProtoFP,
    objective=TinyProtoFPObjective,
    settings={"tinyproto": TinyProtoSettings},
    exchange=lambda options: _choose_exchange(options, factor="mu"),
    releases=_refuse_mu_of_rows,
    ignored_settings=_ignore_settings,
)
FT = m.Method(
    server=TinyProtoFT,
    objective=TinyProtoFTObjective,
    settings={"tinyproto": TinyProtoSettings, "fedtgp": FedTGPSettings},
    exchange=_choose_exchange,
    releases=_refuse_mu_of_rows,
    ignored_settings=_ignore_settings,
)
