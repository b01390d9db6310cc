"""FedProc (Mu et al., FGCS 2023): a curriculum from contrast against prototypes to cross-entropy; FedPAGR's baseline.

    client   alpha_t CE(Wz + b, y) + (1 - alpha_t) CE(z P^T / tau, y),  alpha_t = t / T, t = 0 .. T - 1
    server   P_c = mean over K_c of the clients' mean z, none longer than 1; clients use its direction
    predict  argmax of the classifier

z are unit vectors of the same consensus space as FedPAGR's. A sample whose class has no prototype gets cross-entropy
with weight 1, so without prototypes (round 1) the loss is plain cross-entropy. Under `privacy` z are directions in the
encoder's space, and the server divides a release by `privacy-scale`. T is the run's `rounds`: a resumed run
cannot change it. Under masks rows are made unit vectors again on arrival.
"""

from collections.abc import Mapping

from torch.nn.functional import cross_entropy

from protosphere.core.settings import Positive, Share
from protosphere.prototypes.aggregation import aggregate
from protosphere.prototypes.losses import prototype_contrast
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.consensus import ConsensusObjective
from protosphere.strategies.contract import (
    PROTOTYPES,
    Batch,
    ClientState,
    Loss,
    Method,
    Outcome,
    Phase,
    ServerHalf,
    State,
    as_state,
    carried_on,
    local_prototypes,
    method_settings,
    prototype_sets,
    to_everyone,
)
from protosphere.strategies.release import any_options, upload_scale
from protosphere.wire.payloads import Payload, prototypes_of


@method_settings
class FedProcSettings:
    """`fedproc.*`.

    Attributes:
        temperature: tau, of the prototype logits: 0.5.
        dropout: of the projection head.
    """

    temperature: Positive = 0.5
    dropout: Share = 0.1


class FedProcObjective(ConsensusObjective):
    """Client half."""

    options_type = FedProcSettings

    def targets(self, state: ClientState, received: Payload | None) -> PrototypeSet | None:
        """The directions of the global prototypes."""
        return None if received is None else prototypes_of(received).on_sphere()

    def loss(self, state: ClientState, batch: Batch, phase: Phase, round_number: int) -> Loss:
        """The curriculum: from the contrast alone to nearly the cross-entropy alone."""
        plain = super().loss(state, batch, phase, round_number)
        if state.table is None:
            return plain
        temperature = self.options[FedProcSettings].temperature
        contrast = prototype_contrast(plain.features, batch.labels, *state.table, temperature, reduction="none")
        cross_entropies = cross_entropy(self.logits(state, plain.features), batch.labels, reduction="none")
        alpha = (round_number - 1) / self.settings.rounds
        covered = state.table[1][batch.labels]
        total = (cross_entropies + covered * (1 - alpha) * (contrast - cross_entropies)).mean()
        mean_contrast = contrast.sum() / covered.sum().clamp(min=1)
        return Loss(total, plain.parts | {"prototype-contrast": mean_contrast}, plain.features)

    def upload(self, state: ClientState, round_number: int) -> Payload | None:
        """The local prototypes in the consensus space."""
        return local_prototypes(state)


class FedProc(ServerHalf):
    """Server half: the class-wise mean; a class that nobody reported keeps its prototype."""

    def aggregate(self, uploads: Mapping[int, Payload], state: State, server_round: int) -> Outcome:
        """The mean of what came."""
        fresh = aggregate(list(prototype_sets(self._within_sphere(uploads)).values()), "mean")
        prototypes = carried_on(state, fresh)
        return Outcome(as_state(prototypes), to_everyone(prototypes))

    def feature_norm(self, uploads: Mapping[int, Payload]) -> float | None:
        """Of what counts of the uploads."""
        return super().feature_norm(self._within_sphere(uploads))

    def _within_sphere(self, uploads: Mapping[int, Payload]) -> dict[int, Payload]:
        """Means of unit vectors, none longer than 1: with the norms that it claims, no client outweighs all others."""
        within: dict[int, Payload] = {}
        for partition, prototypes in prototype_sets(uploads).items():
            means = prototypes.vectors / upload_scale(self.settings)
            norms = means.norm(dim=1, keepdim=True)
            within[partition] = {PROTOTYPES.name: prototypes.with_vectors(means / norms.clamp(min=1))}
        return within


METHOD = Method(
    server=FedProc,
    objective=FedProcObjective,
    settings={"fedproc": FedProcSettings},
    inference="classifier",
    fixed_rounds=True,
    releases=any_options,
)
