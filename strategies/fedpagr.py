"""FedPAGR (Prasad, Khan, ACL 2026 Student Research Workshop): all architectures share a consensus space, and the server
refines its prototypes by geometry.

    client   z = Normalize(g(f(x))), a projection head g on any extractor f                              (Eq. 1)
             each round W <- P, b <- 0;  L = CE(Wz + b, y) + CE(z P^T / beta, y) + lambda_E L_ent        (Eq. 7)
             L_ent = -mean over x and c of log softmax(z P^T / beta)_c
             uploads p_kc = Normalize(mean z)                                                            (Eq. 2)
    server   Pbar_c = Normalize(mean over K_c of p_kc)                                                   (Eq. 3)
             T steps of SGD from Pbar on agreement + lambda_S separation, projected to the sphere        (Eq. 4-6)
    predict  argmax_c z . P_c                                                                            (Eq. 8)

Departures. W and b are trained within a round, as section 3.6 implies ("synchronizes all clients' decision boundaries
at the start of each round"), while Algorithm 1, line 14, updates only f and g, and line 10 has no b. A client predicts
with the P that it trained with and keeps, not with the newest one. The ensemble averages softmax(z P^T / beta); the
paper does not say which logits it uses. The paper's "beta = 0" removes the terms with beta; here that is
`fedpagr.alignment = false`. Dropout is 0.1 (the paper gives none). Clients normalise the rows of P again, because
`wire-dtype` float16 rounds them.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

from pydantic import AfterValidator, Field

from protosphere import method as m
from protosphere.prototypes.losses import entropy_spread, prototype_contrast
from protosphere.prototypes.refinement import class_sums, mean_directions, refine
from protosphere.strategies.consensus import ConsensusObjective, random_directions


def _check_temperature(value: float) -> float:
    if value <= 0:
        raise ValueError(
            "should be above 0; to remove the terms that it divides (the paper's beta = 0) set "
            "`fedpagr.alignment` to false"
        )
    return value


@m.method_settings
class FedPAGRSettings:
    """`fedpagr.*`.

    Attributes:
        temperature: beta, temperature of the prototype logits. Paper: 0.1.
        alignment: use the loss's two terms with beta; false is the paper's beta = 0.
        entropy_weight: λ_E, weight of the entropy term. Paper: 0.1.
        separation_weight: λ_S, weight of the separation term. Paper: 0.5.
        margin: m, the cosine above which two prototypes repel each other. Paper: 0.3 (CIFAR-100, Tiny ImageNet 0.1).
        steps: T, number of refinement steps. Paper: 5 (CIFAR-100, Tiny ImageNet 3).
        server_learning_rate: learning rate of the refinement's SGD. Paper: 0.01.
        server_momentum: momentum of the refinement's SGD. Paper: 0.9.
        dropout: dropout of the projection head. Ours: the paper gives none.
    """

    temperature: Annotated[float, AfterValidator(_check_temperature)] = 0.1
    alignment: bool = True
    entropy_weight: m.NotNegative = 0.1
    separation_weight: m.NotNegative = 0.5
    margin: Annotated[float, Field(ge=-1, le=1)] = 0.3
    steps: Annotated[int, Field(ge=0, lt=2**31)] = 5
    server_learning_rate: m.Positive = 0.01
    server_momentum: m.Share = 0.9
    dropout: m.Share = 0.1


class FedPAGRObjective(ConsensusObjective):
    kind = FedPAGRSettings

    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """The prototypes that the model was trained with; before its first round, the received ones."""
        if state.extra:
            return m.prototypes_of_state(state.extra)
        return None if received is None else m.prototypes_of(received).on_sphere()

    def receive(self, state: m.ClientState, received: m.Payload | None, round_number: int) -> None:
        """Classifier anchoring: W <- P, b <- 0."""
        if received is not None:
            prototypes = m.prototypes_of(received)
            state.extra = m.as_state(prototypes.on_sphere())
            state.module.anchor(prototypes)

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        """Eq. 7: L_CE + L_global + lambda_E L_ent."""
        plain = super().loss(state, batch, phase, round_number)
        options = self.options[FedPAGRSettings]
        if state.table is None or not options.alignment:
            return plain
        contrast = prototype_contrast(plain.features, batch.labels, *state.table, temperature=options.temperature)
        spread = entropy_spread(plain.features, *state.table, temperature=options.temperature)
        return plain.plus("prototype-contrast", contrast).plus("entropy-spread", spread, options.entropy_weight)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """p_kc: the normalised means."""
        if state.prototypes is None:
            return None
        return {m.PROTOTYPES.name: state.prototypes.without_counts().on_sphere()}


class FedPAGR(m.ServerHalf):
    def begin(self) -> m.Outcome:
        """Random unit vectors for all classes: round 1 has targets, and a class that is never reported keeps its
        vector."""
        return _build_outcome(random_directions(self.num_classes, self.dim, self.settings.seed, "fedpagr"))

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Eq. 3, then the refinement (Eq. 4-6)."""
        options = self.options[FedPAGRSettings]
        previous = m.prototypes_of_state(state)
        sums, counts = class_sums(list(m.prototype_sets(uploads).values()), self.num_classes)
        refined = refine(
            mean_directions(sums, counts, previous.vectors),
            sums,
            counts,
            steps=options.steps,
            learning_rate=options.server_learning_rate,
            momentum=options.server_momentum,
            separation_weight=options.separation_weight,
            margin=options.margin,
        )
        figures = {f"{name}_before": value for name, value in asdict(refined.before).items()}
        figures |= {f"{name}_after": value for name, value in asdict(refined.after).items()}
        return _build_outcome(previous.with_vectors(refined.points), figures)


def _build_outcome(prototypes: m.PrototypeSet, figures: Mapping[str, m.Figure] | None = None) -> m.Outcome:
    return m.Outcome(m.as_state(prototypes), m.to_everyone(prototypes), figures or {})


METHOD = m.Method(
    server=FedPAGR,
    objective=FedPAGRObjective,
    settings={"fedpagr": FedPAGRSettings},
    inference="global-prototypes",
    releases=m.any_options,
)
