"""GFPL (Lu et al., 2026; arXiv 2602.21873): Gaussian mixtures per class, fused on the server, give pseudo-features for
the classifiers.

    client   z = f(x), h = Normalize(l(z)), Z = (z_1 .. z_K) a fixed simplex frame                      (Eq. 9-11)
             L = lambda 1/2 (h z_y - 1)^2 + w CE(g(z), y), w = 1                                        (Eq. 12, 13)
             in an exchange round: one mixture of at most n Gaussians per class, fitted to z by EM, is sent (Eq. 4-6)
    server   greedy complete linkage by Bhattacharyya distance, fused by moments                        (Eq. 8, Alg. 1)
    client   in the round after: r pseudo-features per class retrain l and g, f frozen; then it trains  (Eq. 14)
    predict  the classifier g, or `etf`: argmax_k h z_k

Exchange rounds are t >= t1 with t mod S_T = 0, but not the last round. In all others, no array is sent.

Departures. Algorithm 2 fits and fuses mixtures in every round from t1 on, and retrains the projection layer after every
batch in rounds divisible by S_T. Here, as in section 4.2, clients exchange mixtures once every S_T rounds, and each
retrains l and g once, before its training in the next round. A component joins a cluster in Algorithm 1 only if it is
near every member, including those that join with it (line 6 adds a whole set whose members may be far from each other).
The paper does not define the weights w_j: here they are pi. On real features, the Bhattacharyya distance, a sum over d,
is 16 to 70 between neighbours, so S_C = 1 fuses nothing: by default, it is divided by d, and S_C is 0.7. Covariances
are diagonal, like the paper's sigma. Weights are rounded to multiples of 1/(16 n), because their exact values would
reveal n_ij, which is not sent. The communication in Table 1 for CIFAR-10 follows only from d = 512 and 4 classes per
client, not from the paper's d = 128.

The exchange teaches nothing about classes that a client lacks: extractors are private, so a fused mixture describes
other clients' feature spaces. The retrained classifier classifies those pseudo-features correctly, but no real sample
of a class that the client lacks.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protosphere import method as m
from protosphere.models.heads import DualClassifierModel
from protosphere.models.optimiser import EagerSGD
from protosphere.prototypes.etf import simplex_etf
from protosphere.prototypes.fusion import fuse
from protosphere.prototypes.losses import dot_regression
from protosphere.prototypes.mixture import fit_class_mixtures, sample

RETRAIN = "retrain"
# Weights are shares of n_ij samples, and n_ij must not be revealed. With this rounding, the weights of n components are
# wrong by at most 1/16 in total.
STEPS_A_COMPONENT = 16


@m.method_settings
class GFPLSettings:
    """`gfpl.*`.

    Attributes:
        components: n, maximum number of Gaussians per class. Paper: 4.
        dual_classifier: use a second head, a fixed frame. Paper: true; Table 2: also false.
        dot_weight: lambda, weight of the second head's dot regression. Paper: 2.
        cross_entropy_weight: weight of the classifier's own term. Paper: 1; Figure 2: 0.
        threshold: S_C, threshold below which two components are fused. Paper: 1, not per dimension.
        threshold_per_dimension: divide the Bhattacharyya distance by d. Ours; paper: false.
        first_exchange: t1, round of the first exchange. Paper: 10.
        exchange_every: S_T, rounds between exchanges. Paper: 10.
        pseudo_features: r, pseudo-features per class; 0: no exchange (Table 2). Paper: 16.
        retrain_learning_rate: learning rate of the retraining's SGD. Paper: 0.01.
        retrain_momentum: momentum of the retraining's SGD. Paper: 0.5.
    """

    components: m.AtLeastOne = 4
    dual_classifier: bool = True
    dot_weight: m.NotNegative = 2.0
    cross_entropy_weight: m.NotNegative = 1.0
    threshold: m.NotNegative = 0.7
    threshold_per_dimension: bool = True
    first_exchange: m.AtLeastOne = 10
    exchange_every: m.AtLeastOne = 10
    pseudo_features: m.Count = 16
    retrain_learning_rate: m.Positive = 0.01
    retrain_momentum: m.Share = 0.5

    def __post_init__(self) -> None:
        if not self.cross_entropy_weight and not (self.dual_classifier and self.dot_weight):
            raise ValueError(
                "`gfpl.cross-entropy-weight` 0 leaves no loss without the dual classifier and its `gfpl.dot-weight`; "
                "keep one of them"
            )

    def exchanges(self, round_number: int, rounds: int) -> bool:
        """Whether mixtures are sent in this round; not in the last one, after which there is no download."""
        due = round_number >= self.first_exchange and round_number % self.exchange_every == 0
        return due and round_number < rounds and self.pseudo_features > 0


class GFPLObjective(m.Objective):
    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        """Add the second classifier; its frame is equal on all clients and never sent."""
        if not self.options[GFPLSettings].dual_classifier:
            return model
        _check_frame(self.num_classes, model.feature_dim)
        frame = simplex_etf(self.num_classes, model.feature_dim, m.derive(self.settings.seed, "gfpl", "frame"))
        return DualClassifierModel(model, frame, seed)

    def receive(self, state: m.ClientState, received: m.Payload | None, round_number: int) -> None:
        state.received = received

    def phases(self, state: m.ClientState, round_number: int) -> list[m.Phase]:
        """If mixtures were received, retraining of l and g on balanced pseudo-features; then training."""
        training = super().phases(state, round_number)
        if state.received is None:
            return training
        options, module = self.options[GFPLSettings], state.module
        device = next(module.parameters()).device
        # the process's generator is seeded for each client and round
        mixtures = m.part_of(state.received, m.MixtureSet)
        rows = sample(mixtures, options.pseudo_features, torch.default_generator, device)
        parameters = list(module.classifier.parameters())
        parameters += list(module.projection.parameters()) if options.dual_classifier else []

        def optimiser(trained: list[nn.Parameter]) -> torch.optim.Optimizer:
            return EagerSGD(trained, lr=options.retrain_learning_rate, momentum=options.retrain_momentum)

        rate = "gfpl.retrain-learning-rate"
        return [m.Phase(RETRAIN, parameters, rows, optimiser=optimiser, fresh=True, rate=rate), *training]

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        """Eq. 13; on pseudo-features, Eq. 14."""
        z = batch.inputs if phase.name == RETRAIN else self.features(state, batch.inputs)
        plain = cross_entropy(state.module.classify(z), batch.labels)
        options, prefix = self.options[GFPLSettings], f"{RETRAIN}-" if phase.name == RETRAIN else ""
        weighted = options.cross_entropy_weight * plain
        if not options.dual_classifier:
            return m.Loss(weighted, {f"{prefix}cross-entropy": plain}, z)
        dot = dot_regression(state.module.project(z), batch.labels, state.module.frame)
        parts = {f"{prefix}cross-entropy": plain, f"{prefix}dot-regression": dot}
        return m.Loss(weighted + options.dot_weight * dot, parts, z)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """In exchange rounds, one mixture per class (of a release, one Gaussian per class); else nothing."""
        options = self.options[GFPLSettings]
        if not options.exchanges(round_number, self.settings.rounds):
            return None
        if state.prototypes is not None and state.variances is not None:
            release, weights = state.prototypes, torch.ones(len(state.prototypes), dtype=state.prototypes.vectors.dtype)
            # in the prototypes' scale
            variances = self.settings.privacy_scale**2 * state.variances
            return {m.MIXTURES.name: m.MixtureSet(release.labels, release.vectors, variances, weights)}
        if state.features is None:
            return None
        seed = m.derive(torch.initial_seed(), "gfpl", "mixtures")
        mixtures = fit_class_mixtures(*state.features, options.components, seed).mixtures.to(device="cpu")
        # with few samples, a class's exact shares reveal their number
        steps = STEPS_A_COMPONENT * options.components
        return {m.MIXTURES.name: mixtures.without_counts().with_rounded_weights(steps)}

    def scores(self, state: m.ClientState, z: Tensor) -> dict[str, Tensor]:
        """`etf`: h z_k."""
        if not self.options[GFPLSettings].dual_classifier:
            return {}
        return {"etf": state.module.project(z) @ state.module.frame.T}


class GFPL(m.ServerHalf):
    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Check that the frame fits (d >= K >= 2). Warn if the run is too short to use any mixture."""
        options, settings = self.options[GFPLSettings], self.settings
        if options.dual_classifier:
            _check_frame(num_classes, dim)
        elif settings.inference == "etf":
            raise m.SettingError(
                'setting `inference` is "etf", but without `gfpl.dual-classifier` there is no frame to predict with; '
                'use "classifier".'
            )
        first = -(-options.first_exchange // options.exchange_every) * options.exchange_every
        if not exchanges(self.options) or options.exchanges(first, settings.rounds):
            return ()
        return (
            f"no mixture of this run is ever used: the first would go up in round {first} and be used in the round "
            f"after, but `rounds` is {settings.rounds}; lower `gfpl.first-exchange` or `gfpl.exchange-every`, or raise "
            "`rounds`",
        )

    def expected_parts(self, up: tuple[m.Part, ...], state: m.State, server_round: int) -> tuple[m.Part, ...]:
        return up if self._exchanges(server_round) else ()

    def download(
        self, partition: int, downloads: Mapping[int, m.Payload], state: m.State, server_round: int, trains: bool
    ) -> int | None:
        """A download for clients that train in the round after an exchange."""
        return m.EVERYONE if trains and self._exchanges(server_round - 1) else None

    def _exchanges(self, server_round: int) -> bool:
        return self.options[GFPLSettings].exchanges(server_round, self.settings.rounds)

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Algorithm 1; a class that no client uploaded keeps its mixture."""
        options = self.options[GFPLSettings]
        mixtures_by_client = {partition: m.part_of(upload, m.MixtureSet) for partition, upload in uploads.items()}
        fused = fuse(mixtures_by_client, options.threshold, options.threshold_per_dimension)
        figures = {"components_before": sum(map(len, mixtures_by_client.values())), "components_after": len(fused)}
        mixtures = m.MixtureSet(**state).updated_by(fused) if state else fused
        return m.Outcome(mixtures.fields(), {m.EVERYONE: {m.MIXTURES.name: mixtures}}, figures)


def _check_frame(num_classes: int, dim: int) -> None:
    if not 2 <= num_classes <= dim:
        raise m.SettingError(
            f"setting `gfpl.dual-classifier` is true, but its fixed frame needs from 2 to {dim} classes "
            f"(`feature-dim`), and the data have {num_classes}; "
            f"{'raise `feature-dim`, or ' if num_classes > dim else ''}set it to false."
        )


def exchanges(options: m.Options) -> bool:
    """Whether mixtures are exchanged at all: they are needed for pseudo-features only."""
    return options[GFPLSettings].pseudo_features > 0


def _choose_exchange(options: m.Options) -> m.Exchange:
    if not exchanges(options):
        return m.NOTHING
    most = options[GFPLSettings].components
    rows = f"the features of single samples: of each in a class of {most} or fewer, of an outlier in a larger one"
    about = "by its components' numbers and weights about how many samples a class has, if few"
    return m.Exchange((m.Part("mixtures", components=most),), (m.MIXTURES,), (rows, about))


def _refuse_components(options: m.Options) -> None:
    """Refuse more components under `privacy`: a release has two moments per class, which give one Gaussian."""
    if options[GFPLSettings].components != 1:
        raise m.SettingError(
            f"setting `gfpl.components` is {options[GFPLSettings].components}; under `privacy` it must be 1."
        )


METHOD = m.Method(
    server=GFPL,
    objective=GFPLObjective,
    settings={"gfpl": GFPLSettings},
    exchange=_choose_exchange,
    inference="classifier",
    rules=("local-prototypes", "classifier", "discriminant", "etf"),
    fixed_rounds=True,
    uploads_features=True,
    releases=_refuse_components,
)
