"""TinyProto (Lee, Choi): sparse prototypes, scaled by their class counts; on FedProto (FP) and on FedTGP (FT).

    masks    m_j in {0, 1}^d with s ones, far apart in Hamming distance; c = C(p; m_j) in R^s crosses    (Eq. 7-8)
    client   uploads n_ij c_ij; pulls its features towards the expanded targets, on all d dimensions     (Eq. 9)
    FP       server: c_j = mean over N_j of n_ij c_ij                                                    (Eq. 10)
             client: target mu c_j, zero outside the mask                                                (Eq. 11)
    FT       server: FedTGP's contrastive training on mu n_ij c_ij, expanded                             (Appendix C)
             client: target as received
    predict  argmin_j ||z - p_ij||, with the client's own whole p_ij

Departures. The masks are the run's codec (`sparsity-dim`), which works under every method: here is the scaling alone.
So `sparsity-dim = 0` is the paper's row without sparsification, `tinyproto.scaling = false` the one without scaling.
The paper's mu (1.5e-4 on CIFAR-10, 1.5e-3 on CIFAR-100 and Tiny ImageNet) has the unit 1/images and is about 0.06 over
the mean number of images of a held class: that is what `tinyproto.mu = 0` means. Uploads are rounded to 16 significant
bits, since a product n p in full precision tells n.
"""

import logging
import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from federation.payloads import Identity
from federation.settings import SettingError
from prototypes.aggregation import aggregate
from prototypes.prototype_set import PrototypeSet
from prototypes.quantisation import to_significant_bits
from strategies.base import PrototypeStrategy
from strategies.fedtgp import FedTGP, FedTGPSettings
from strategies.method import ClientState, Method, Options, PullObjective, method_settings
from strategies.outcome import EVERYONE, Figure, Outcome, State, as_state, carried_on

MU_TIMES_MEAN_COUNT = 0.06
UPLOADED_BITS = 16  # of float32's 24: in full precision the products n p would tell n

log = logging.getLogger("protosphere")


@method_settings
class TinyProtoSettings:
    """`tinyproto.*`.

    Attributes:
        scaling: whether prototypes are scaled by their class counts.
        mu: the constant of the scaling, in 1/images; 0: 0.06 over the mean number of images of a held class. Paper:
            1.5e-4 (CIFAR-10), 1.5e-3 (CIFAR-100, Tiny ImageNet).
    """

    scaling: bool = True
    mu: Annotated[float, Field(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        if self.mu and not self.scaling:
            raise ValueError(
                f"`tinyproto.mu` {self.mu} scales nothing while `tinyproto.scaling` is false; set it to 0, or scale"
            )


class TinyProtoObjective(PullObjective):
    """Client half of both."""

    def upload(self, state: ClientState, round_number: int) -> PrototypeSet | None:
        """n_ij p_ij, and n_ij itself never: nor by the products' last digits, which are rounded away."""
        local = state.prototypes
        if local is None or local.counts is None or not _scales(self.options):
            return super().upload(state, round_number)
        scaled = local.counts.unsqueeze(1) * local.vectors
        return local.with_vectors(to_significant_bits(scaled, UPLOADED_BITS)).without_counts()


class TinyProtoFPObjective(TinyProtoObjective):
    """Client half on FedProto."""

    def targets(self, state: ClientState, received: PrototypeSet | None) -> PrototypeSet | None:
        """Eq. 11: the client multiplies by mu.

        Raises:
            SettingError: the server sent none, or one that no server works out.
        """
        if received is None or not _scales(self.options):
            return received
        mu = state.constants.get("mu")
        if mu is None or not 0 < mu <= 1:
            raise SettingError(
                f"the server sent the `mu` {mu} where a number in (0, 1] belongs; start it with the same version and "
                "settings as this client."
            )
        return received.with_vectors(mu * received.vectors)


class TinyProto(PrototypeStrategy):
    """What both servers share: mu, worked out once."""

    def derive_constants(self) -> Mapping[str, float]:
        """mu, with the mean number of images from the roster."""
        if not _scales(self.run.options):
            return {}
        return {
            "mu": self.run.options[TinyProtoSettings].mu
            or MU_TIMES_MEAN_COUNT / mean_class_count(self.roster.identities)
        }

    @property
    def scales(self) -> tuple[float, float]:
        """FT's server has multiplied by mu before it aggregated."""
        return 1.0, self.constants.get("mu", 1.0)

    def feature_norm(self, uploads: Mapping[int, PrototypeSet]) -> float | None:
        """Mean norm of p over images, sum ||n_ij p_ij|| / sum n_i: it does not depend on who was sampled."""
        if not _scales(self.run.options):
            return super().feature_norm(uploads)
        total = math.fsum(float(upload.vectors.double().norm(dim=1).sum()) for upload in uploads.values())
        return total / sum(self.roster.identities[partition].rows[0] for partition in uploads)

    def summary(self) -> None:
        """Say, too, when nothing is sparse."""
        super().summary()
        if not self.codec.masked:
            log.warning(
                "warning: `sparsity-dim` is %d: prototypes cross whole, without TinyProto's masks; the paper sends 50 "
                "values of 500",
                self.settings.sparsity_dim,
            )

    def figures(self) -> dict[str, Figure]:
        """mu, and mu times the mean number of images: the scale of the targets in units of prototypes."""
        if "mu" not in self.constants:
            return {}
        mu = self.constants["mu"]
        return {"mu": mu, "mu_times_mean_count": mu * mean_class_count(self.roster.identities)}


class TinyProtoFP(TinyProto):
    """Server half on FedProto."""

    @property
    def scales(self) -> tuple[float, float]:
        """The clients multiply by mu (Eq. 11)."""
        mu = self.constants.get("mu", 1.0)
        return mu, mu

    def aggregate(self, uploads: Mapping[int, PrototypeSet], state: State, server_round: int) -> Outcome:
        """Eq. 10: the plain mean of what came; a class that nobody reported keeps its prototype."""
        fresh = aggregate(list(uploads.values()), "mean")
        prototypes = carried_on(state, fresh)
        return Outcome(as_state(prototypes), {EVERYONE: prototypes}, self.figures())


class TinyProtoFT(TinyProto, FedTGP):
    """Server half on FedTGP."""

    def aggregate(self, uploads: Mapping[int, PrototypeSet], state: State, server_round: int) -> Outcome:
        """Appendix C: multiplied by mu before the contrastive step, lest the spread of n_ij distort its distances."""
        mu = self.constants.get("mu", 1.0)
        scaled = {partition: upload.with_vectors(mu * upload.vectors) for partition, upload in uploads.items()}
        outcome = super().aggregate(scaled, state, server_round)
        return Outcome(outcome.state, outcome.downloads, {**outcome.figures, **self.figures()})


def mean_class_count(identities: Mapping[int, Identity]) -> float:
    """n-bar: training images of all clients over the classes that they hold, sum n_i / sum K_i."""
    images = sum(identity.rows[0] for identity in identities.values())
    return images / sum(len(identity.classes) for identity in identities.values())


def _scales(options: Options) -> bool:
    return options[TinyProtoSettings].scaling


def _discloses(options: Options) -> tuple[str, ...]:
    return ("by the norms of its uploads about how many rows each class has",) if _scales(options) else ()


FP = Method(
    strategy=TinyProtoFP,
    objective=TinyProtoFPObjective,
    settings={"tinyproto": TinyProtoSettings},
    discloses=_discloses,
)
FT = Method(
    strategy=TinyProtoFT,
    objective=TinyProtoObjective,
    settings={"tinyproto": TinyProtoSettings, "fedtgp": FedTGPSettings},
    discloses=_discloses,
)
