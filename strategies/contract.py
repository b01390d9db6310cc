"""A method is two halves in one file: a Flower strategy (server) and an Objective (client).

The Objective tells the one training loop what is special about the method. Its defaults are plain local
training with the prototypes of section 0 of the methods page: a method overrides what its paper changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn
from torch.nn.functional import softmax

from federation.settings import RULES, STRICT, Settings
from federation.wire.payloads import Payload
from models.split import SplitModel
from prototypes.losses import prototype_pull
from prototypes.prototype_set import PrototypeSet

if TYPE_CHECKING:
    from strategies.rounds.flower import PrototypeStrategy

# A method's settings: a frozen dataclass, checked like the shared ones, with the prefix of its setting names.
method_settings = pydantic_dataclass(frozen=True, kw_only=True, config=STRICT)
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """The settings of one method, by the dataclass that checks them."""

    values: Mapping[type, Any]

    def __getitem__(self, kind: type[T]) -> T:
        value: T = self.values[kind]
        return value


@dataclass
class ClientState:
    """All that a client has besides its data; the store saves it as one.

    Attributes:
        module: the nn.Module that `Objective.build` returned; only its own objective knows more of it.
        prototypes: local prototypes p_ij with their counts, over the training rows after training.
        covariance: (d, d) float64, the discriminant's, over the same rows. None without training rows.
        constants: the numbers that the server works out once for the run; they come with every message.
        targets: what was received, as the loss uses it (scaled, masked); None before the first.
        table: the same as (vectors (K, d), present (K,)) on the device, laid out once a message.
        received: what a method keeps of a message for the training that it starts; not stored.
        features: z (n, d) and labels (n,) of the training rows after training, for the upload; gone after it.
        kept: further tensors that a method keeps between rounds.
        optimiser: the optimisers' tensors by phase, kept only with `optimizer-state = "persistent"`.
    """

    module: Any
    prototypes: PrototypeSet | None = None
    covariance: Tensor | None = None
    constants: Mapping[str, float] = field(default_factory=dict)
    targets: PrototypeSet | None = None
    table: tuple[Tensor, Tensor] | None = None
    received: Payload | None = None
    features: tuple[Tensor, Tensor] | None = None
    kept: dict[str, Tensor] = field(default_factory=dict)
    optimiser: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """inputs (b, ...) float32 as the model takes them; labels (b,) int64."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Loss:
    """A batch's loss.

    Attributes:
        total: what is minimised.
        parts: its unweighted terms by name, `cross-entropy` among them; each a scalar with its graph.
        features: z (b, d), with the graph that leads to `total`.
    """

    total: Tensor
    parts: dict[str, Tensor]
    features: Tensor


@dataclass(frozen=True)
class Phase:
    """A stretch of training.

    Attributes:
        name: for seeds, logs and the optimiser's place in the store.
        parameters: what is trained; all else stands still.
        rows: (inputs, labels) to draw batches from as the model takes them; None for the client's training rows.
        epochs: passes over them.
        optimiser: builds the optimiser; None for the settings' SGD.
        fresh: whether the optimiser starts anew each time, whatever `optimizer-state` says.
        rate: the setting that holds its learning rate, to be named where training diverges.
    """

    name: str
    parameters: list[nn.Parameter]
    rows: tuple[Tensor, Tensor] | None = None
    epochs: int = 1
    optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None
    fresh: bool = False
    rate: str = "learning-rate"


class Objective:
    """The client half of a method. As it stands: cross-entropy alone, prototypes for evaluation only."""

    def __init__(self, settings: Settings, options: Options, num_classes: int):
        self.settings = settings
        self.options = options
        self.num_classes = num_classes

    def build(self, model: SplitModel, seed: int) -> nn.Module:
        """Add heads, projections, companions to the client's private model."""
        return model

    def targets(self, state: ClientState, received: Any) -> PrototypeSet | None:
        """What was received, as prediction and loss measure the distance to it. Changes nothing: evaluation on
        arrival uses it with the model as the last round left it."""
        return received if isinstance(received, PrototypeSet) else None

    def download_unit(self, constants: Mapping[str, float]) -> float:
        """What the norms of a download are measured in, from the run's constants."""
        return 1.0

    def receive(self, state: ClientState, received: Any, round_number: int) -> None:
        """Take what was received into the state, after evaluation and before training."""

    def phases(self, state: ClientState, round_number: int) -> list[Phase]:
        """One phase over all parameters by default."""
        parameters = [p for p in state.module.parameters() if p.requires_grad]
        return [Phase("train", parameters, epochs=self.settings.local_epochs)]

    def loss(self, state: ClientState, batch: Batch, phase: Phase, round_number: int) -> Loss:
        """Cross-entropy of the classifier."""
        z = self.features(state, batch.inputs)
        cross_entropy = nn.functional.cross_entropy(state.module.classify(z), batch.labels)
        return Loss(cross_entropy, {"cross-entropy": cross_entropy}, z)

    def features(self, state: ClientState, inputs: Tensor) -> Tensor:
        """The space in which prototypes live: (b, ...) -> (b, d)."""
        z: Tensor = state.module.features(inputs)
        return z

    def logits(self, state: ClientState, z: Tensor) -> Tensor:
        """The classifier's answer: (n, d) -> (n, K)."""
        logits: Tensor = state.module.classify(z)
        return logits

    def probabilities(self, state: ClientState, z: Tensor) -> Tensor | None:
        """Class probabilities for the ensemble, (n, d) -> (n, K): the softmax of the classifier. A class that a method
        cannot predict has probability 0; None where it can predict none yet."""
        return softmax(self.logits(state, z).float(), dim=1)

    def upload(self, state: ClientState, round_number: int) -> Payload | None:
        """What leaves the client after training; nothing by default."""
        return None

    def scores(self, state: ClientState, z: Tensor) -> dict[str, Tensor]:
        """Prediction rules beyond the common four: rule -> (n, K)."""
        return {}


class PullObjective(Objective):
    """Cross-entropy + lambda R: the prototype pull that FedProto and its heirs share (methods page, section 0)."""

    def loss(self, state: ClientState, batch: Batch, phase: Phase, round_number: int) -> Loss:
        """L = CE(g(z), y) + `prototype-weight` R(z, t_y); in the first round there is no target and no R."""
        plain = super().loss(state, batch, phase, round_number)
        if state.table is None:
            return plain
        pull = prototype_pull(plain.features, batch.labels, *state.table, reduction=self.settings.prototype_loss)
        total = plain.total + self.settings.prototype_weight * pull
        return Loss(total, plain.parts | {"prototype-pull": pull}, plain.features)

    def upload(self, state: ClientState, round_number: int) -> PrototypeSet | None:
        """The local prototypes p_ij, without the counts n_ij."""
        return None if state.prototypes is None else state.prototypes.without_counts()


@dataclass(frozen=True)
class Method:
    """One row of the registry.

    Attributes:
        strategy, objective: the two halves.
        settings: prefix of the setting names -> the dataclass that checks them.
        sends, receives: payload kind (federation.wire.payloads.PAYLOADS) up and down; None for nothing.
        exchanges: whether anything is sent and received at all, under these options.
        sends_counts: whether class counts go up with the prototypes, under these options.
        components: the most components of a class that a client uploads in a mixture, under these options.
        discloses: what else the server can learn from the uploads, in words, under these options.
        inference: the method's own rule, for `inference = "auto"`.
        rules: all rules that it reports.
        fixed_rounds: whether a resumed run must keep its `rounds`, since its loss or its schedule depends on them.
    """

    strategy: "type[PrototypeStrategy]"
    objective: type[Objective]
    settings: Mapping[str, type] = field(default_factory=dict)
    sends: str | None = "prototypes"
    receives: str | None = "prototypes"
    exchanges: Callable[[Options], bool] = lambda options: True
    sends_counts: Callable[[Options], bool] = lambda options: False
    components: Callable[[Options], int] = lambda options: 1
    discloses: Callable[[Options], Sequence[str]] = lambda options: ()
    inference: str = "local-prototypes"
    rules: tuple[str, ...] = RULES
    fixed_rounds: bool = False
