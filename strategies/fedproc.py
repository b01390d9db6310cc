"""FedProc (Mu et al., FGCS 2023): a curriculum from a contrastive loss on prototypes to cross-entropy; a baseline of
FedPAGR.

    client   alpha_t CE(Wz + b, y) + (1 - alpha_t) CE(z P^T / tau, y),  alpha_t = t / T, t = 0 .. T - 1
    server   P_c = mean over K_c of the clients' mean z, none longer than 1; clients use its direction
    predict  argmax of the classifier

z are unit vectors in the same consensus space as FedPAGR's. A sample whose class has no prototype gets cross-entropy
with weight 1; without prototypes (round 1), the loss is plain cross-entropy. Under `privacy`, z are directions in the
encoder's space, and the server divides a release by `privacy-scale`. T is the run's `rounds`: a resumed run cannot
change it.

Departures. FedProc also averages the clients' models; here, as in FedPAGR's tables, only prototypes are exchanged, and
clients may have any architecture. The projection head is FedPAGR's, and its dropout 0.1 is ours. The server scales
means longer than 1 to length 1.
"""

from collections.abc import Mapping

from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.prototypes.losses import prototype_contrast
from protosphere.strategies.consensus import ConsensusObjective
from protosphere.strategies.release import upload_scale


@m.method_settings
class FedProcSettings:
    """`fedproc.*`.

    Attributes:
        temperature: tau, temperature of the prototype logits. Paper: 0.5.
        dropout: dropout of the projection head. Ours.
    """

    temperature: m.Positive = 0.5
    dropout: m.Share = 0.1


class FedProcObjective(ConsensusObjective):
    kind = FedProcSettings

    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        return None if received is None else m.prototypes_of(received).on_sphere()

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        """The curriculum: from the contrastive loss alone to nearly the cross-entropy alone."""
        plain = super().loss(state, batch, phase, round_number)
        if state.table is None:
            return plain
        temperature = self.options[FedProcSettings].temperature
        contrast = prototype_contrast(plain.features, batch.labels, *state.table, temperature, reduction="none")
        cross_entropies = cross_entropy(state.module.classify(plain.features), batch.labels, reduction="none")
        alpha = (round_number - 1) / self.settings.rounds
        covered = state.table[1][batch.labels]
        total = (cross_entropies + covered * (1 - alpha) * (contrast - cross_entropies)).mean()
        mean_contrast = contrast.sum() / covered.sum().clamp(min=1)
        return m.Loss(total, plain.parts | {"prototype-contrast": mean_contrast}, plain.features)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        return m.local_prototypes(state)


class FedProc(m.ServerHalf):
    """Server half: the class-wise mean; a class that no client reported keeps its prototype."""

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        fresh = m.aggregate([self._within_sphere(upload) for upload in m.prototype_sets(uploads).values()], "mean")
        prototypes = m.fill_missing_classes(state, fresh)
        return m.Outcome(m.as_state(prototypes), m.to_everyone(prototypes))

    def _within_sphere(self, prototypes: m.PrototypeSet) -> m.PrototypeSet:
        """Scale means longer than 1 to length 1, so that no client outweighs all others by the norms that it claims."""
        means = prototypes.vectors / upload_scale(self.settings)
        norms = means.norm(dim=1, keepdim=True)
        return prototypes.with_vectors(means / norms.clamp(min=1))


METHOD = m.Method(
    server=FedProc,
    objective=FedProcObjective,
    settings={"fedproc": FedProcSettings},
    inference="classifier",
    fixed_rounds=True,
    releases=m.any_options,
)
