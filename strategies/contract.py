"""A method is two halves in one file: a ServerHalf and an Objective (client).

The server half makes the next round's downloads of a round's uploads; server_app runs the rounds around it. The
Objective tells the one training loop what is special about the method. Its defaults are plain local training with the
prototypes of section 0 of the methods page: a method overrides what its paper changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn

from protosphere.core.settings import RULES, STRICT, Settings
from protosphere.core.text import class_word
from protosphere.models.split import SplitModel
from protosphere.prototypes.losses import prototype_pull
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.wire.parts import MIXTURES as MIXTURES
from protosphere.wire.parts import NOTHING as NOTHING
from protosphere.wire.parts import PROTOTYPES as PROTOTYPES
from protosphere.wire.parts import Exchange as Exchange
from protosphere.wire.parts import Part as Part
from protosphere.wire.payloads import EVERYONE as EVERYONE
from protosphere.wire.payloads import Identity, Payload, class_vectors
from protosphere.wire.payloads import prototypes_of as prototypes_of

# A method's settings: a frozen dataclass, checked like the shared ones, with the prefix of its setting names.
method_settings = pydantic_dataclass(frozen=True, kw_only=True, config=STRICT)
T = TypeVar("T")
State = dict[str, Tensor]
# A constant of the messages to a client that has joined later, of a method that counts own rounds.
ROUND_OF_JOINING = "round-of-joining"
EQUAL_WEIGHT = 0.5  # of the two that a pool joins
# the settings that decide what a client's number of samples weighs
OF_CLAIMS = frozenset({"client-weights", "max-weight-ratio"})
# what a server tells of a round; several numbers by name are for pictures alone
Figure = float | int | str | Mapping[str, Sequence[float]] | None


def own_round(constants: Mapping[str, float], round_number: int) -> int:
    """The number of a round as a client counts that joined in the round which its constants name; of one that was there
    from the start the same."""
    return round_number - int(constants.get(ROUND_OF_JOINING, 1)) + 1


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
        encoded: gives u (n, d) and labels (n,) of the training rows, for the upload of a SpaceObjective.
        variances: of a release under `privacy`, around its prototypes (k, d), without their scale.
        pool_weight: what the shared discriminant weighs in the rule `pool`, in [0, 1]; as the last evaluation chose it.
        space: what `SpaceObjective.complete` made for the rules `encoder` and `pool`, as of the last evaluation.
        extra: further tensors that a method keeps between rounds.
        optimiser: the optimisers' tensors by phase, kept only with `optimizer-state = "persistent"`.
        parameters: how many the client's own model has, without what `build` added to it.
    """

    module: Any
    prototypes: PrototypeSet | None = None
    covariance: Tensor | None = None
    constants: Mapping[str, float] = field(default_factory=dict)
    targets: PrototypeSet | None = None
    table: tuple[Tensor, Tensor] | None = None
    received: Payload | None = None
    features: tuple[Tensor, Tensor] | None = None
    encoded: Callable[[], tuple[Tensor, Tensor]] | None = None
    variances: Tensor | None = None
    pool_weight: float = EQUAL_WEIGHT
    space: Payload | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    optimiser: dict[str, Tensor] = field(default_factory=dict)
    parameters: int = 0

    def forget(self) -> None:
        """Let go what is of one message alone."""
        self.features = self.received = self.encoded = None
        self.module.zero_grad(set_to_none=True)


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
        of_model: whether its features are those of the client's own model, of which `prototypes-from` training makes
            prototypes.
    """

    name: str
    parameters: list[nn.Parameter]
    rows: tuple[Tensor, Tensor] | None = None
    epochs: int = 1
    optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None
    fresh: bool = False
    rate: str = "learning-rate"
    of_model: bool = True


class MethodError(Exception):
    """A method is wrong; one sentence with the file's path and the line, where they are known."""

    def __init__(self, reason: str, file: str = "", line: int = 0):
        super().__init__(f"{reason.rstrip('.')} ({file}, line {line})." if file else reason)


@dataclass(frozen=True)
class Options:
    """The settings of one method, by the dataclass that checks them.

    Raises:
        MethodError: on a look at settings that the method does not have.
    """

    values: Mapping[type, Any]

    def __getitem__(self, kind: type[T]) -> T:
        if kind not in self.values:
            name = kind.__name__
            raise MethodError(
                f"one half of the method reads the settings {name}, which its Method(...) does not name: add "
                f'"{name.removesuffix("Settings").lower()}": {name} to its `settings`, with '
                f"`from {kind.__module__} import {name}`."
            )
        value: T = self.values[kind]
        return value


class Objective:
    """The client half of a method. The base class trains with cross-entropy alone and sends nothing.

    A client calls `build` once for its model. A training message calls, in this order, `targets` with what came,
    `receive`, `targets` once more, `phases`, `loss` with each batch, and `upload` when the local prototypes are
    measured. A message of evaluation calls `targets`, `evaluation_state` for the rule `received`, and `scores`; it
    never calls `receive`.
    """

    def __init__(self, settings: Settings, options: Options, num_classes: int):
        self.settings = settings
        self.options = options
        self.num_classes = num_classes

    def build(self, model: SplitModel, seed: int) -> nn.Module:
        """Add heads, projections, companions to the client's private model."""
        return model

    def targets(self, state: ClientState, received: Payload | None) -> PrototypeSet | None:
        """What was received, as prediction and loss measure the distance to it. Changes nothing: evaluation on
        arrival uses it with the model as the last round left it."""
        vectors = class_vectors(received)
        return vectors if isinstance(vectors, PrototypeSet) else None

    def receive(self, state: ClientState, received: Payload | None, round_number: int) -> None:
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

    def upload(self, state: ClientState, round_number: int) -> Payload | None:
        """What leaves the client after training; nothing by default.

        Under `privacy` (`Method.releases`) it is made of a state that holds a noisy release and nothing of the model:
        `prototypes` in the encoder's space with noisy counts, and for mixtures their `variances`.
        """
        return None

    def evaluation_state(self, state: ClientState, received: Payload | None) -> ClientState:
        """The client as it would predict with what has just come, judged by the rule `received`; changes nothing."""
        return state

    def scores(self, state: ClientState, z: Tensor) -> dict[str, Tensor]:
        """Prediction rules beyond the common four: rule -> (n, K). Also `classifier`, where that is another than the
        model's own."""
        return {}


class WeightsObjective(Objective):
    """Client half of a method of whose messages parts are weights."""

    def shared(self, module: nn.Module) -> Mapping[str, Weights]:
        """The parts of weights that cross, by name, as they are in the module before training: their layout is what
        messages are held against."""
        raise NotImplementedError(f"{type(self).__name__} does not say which weights cross")


class SpaceObjective(WeightsObjective):
    """Client half of a method that reads samples through the public encoder, without `privacy`.

    An evaluation calls `complete` once, `encoded_scores` for the rule `encoder`, and `pooled` for the rule `pool`.

    Attributes:
        encoder: the public encoder that is used if the setting `encoder` names none; "" for none.
    """

    encoder = ""

    def complete(self, received: Payload | None, directions: Tensor, labels: Tensor) -> Payload | None:
        """What `encoded_scores` takes, of what has come and of the client's training samples in the encoder's space,
        z^ (n, d) float64 and labels (n,); what has come alone by default."""
        return received

    def encoded_scores(self, space: Payload | None, directions: Tensor) -> Tensor | None:
        """The rule `encoder`: z^ (n, d) float64 to (n, K), minus infinity for an unknown class; None before anything
        has come.

        Args:
            space: what `complete` gave.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores samples in the encoder's space")

    def pooled(self, state: ClientState, z: Tensor, encoded: Tensor | None) -> Tensor | None:
        """The rule `pool` of a method that has it: of the model's features z (n, d), and of what the rule `encoder`
        scores the same rows (n, K) float64, None before anything has come: (n, K)."""
        return None


class Pulled(Objective):
    """Cross-entropy + lambda R: the prototype pull that FedProto and its heirs share (methods page, section 0)."""

    def loss(self, state: ClientState, batch: Batch, phase: Phase, round_number: int) -> Loss:
        """L = CE(g(z), y) + `prototype-weight` R(z, t_y); in the first round there is no target and no R."""
        plain = super().loss(state, batch, phase, round_number)
        if state.table is None:
            return plain
        pull = prototype_pull(plain.features, batch.labels, *state.table, reduction=self.settings.prototype_loss)
        total = plain.total + self.settings.prototype_weight * pull
        return Loss(total, plain.parts | {"prototype-pull": pull}, plain.features)


class PullObjective(Pulled):
    """Pulled to what comes of the local prototypes that it sends."""

    def upload(self, state: ClientState, round_number: int) -> Payload | None:
        """The local prototypes p_ij, without the counts n_ij."""
        return local_prototypes(state)


@dataclass(frozen=True)
class Outcome:
    """What a method makes of a round's uploads.

    Attributes:
        state: its tensors, kept across rounds, in checkpoints and on resume.
        downloads: partition -> payload of the next round; under `EVERYONE` that of all who have none of their own.
        keeps: whether downloads of the last round stay that are not made anew.
        constants: of `begin`: numbers that are worked out once for the run; every message carries them.
        prototypes: what a report shows as global prototypes, where none go down as such.
        scales: what the vectors that go down, and those that came up, are multiplied by to be, or lie beside, targets.
        figures: what to record beside the round, by name.
        warnings: sentences for the person who watches.
    """

    state: State
    downloads: Mapping[int, Payload]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    keeps: bool = False
    constants: Mapping[str, float] = field(default_factory=dict)
    prototypes: PrototypeSet | None = None
    scales: tuple[float, float] = (1.0, 1.0)


class ServerHalf:
    """The server half of a method: plain values in and out. A method overrides `aggregate`, rarely more.

    Before round 1 the server calls `check` with K and d, and `begin`. A round calls `download` for each client that
    trains, `expected_parts` for what comes up, `aggregate`, and `download` once more for each client that is evaluated.

    Attributes:
        settings, options: the run's.
        shared_settings: prefix -> settings that all methods of such a server have, beside their own.
        num_classes, dim: K and d. identities: partition -> who the client said it is. notices: what `check` gave.
            constants: what `begin` gave when the run began. All known from `meet` on. group_names: what groups of
            clients are called, by what they have in common, where the method has groups; it outlasts a resume.
    """

    shared_settings: Mapping[str, type] = MappingProxyType({})
    num_classes: int
    dim: int

    def __init__(self, settings: Settings, options: Options):
        self.settings = settings
        self.options = options
        self.identities: Mapping[int, Identity] = {}
        self.notices: tuple[str, ...] = ()
        self.constants: Mapping[str, float] = {}
        self.group_names: dict[str, int] = {}

    def meet(self, num_classes: int, dim: int, identities: Mapping[int, Identity]) -> None:
        """Take what is known once the clients are, and check it.

        Raises:
            SettingError: of `check`.
        """
        self.num_classes, self.dim, self.identities = num_classes, dim, identities
        # a method of somebody's own may return nothing
        self.notices = tuple(self.check(num_classes, dim) or ())

    def try_meeting(self, num_classes: int, dim: int, identities: Mapping[int, Identity]) -> None:
        """Meet clients of whom some may have to stay outside: groups that are formed in it get no lasting name.

        Raises:
            SettingError: of `meet`.
        """
        names = dict(self.group_names)
        try:
            self.meet(num_classes, dim, identities)
        finally:
            self.group_names.clear()
            self.group_names.update(names)

    def class_word(self, label: int) -> str:
        """A class by its name, for people."""
        identity = next(iter(self.identities.values()), None)
        return class_word(label, identity.class_names if identity else ())

    # --- what a method overrides ----------------------------------------------------------------------

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Refuse, before round 1 and when clients join, a K, a d or clients that the method cannot work with (raise
        SettingError). Gives sentences for the person who starts the run, where a setting does less than its name
        says."""
        return ()

    def begin(self) -> Outcome:
        """What the server has, and sends in round 1, before anything was uploaded; nothing by default. Its constants
        are those of the whole run."""
        return Outcome({}, {})

    def download(
        self, partition: int, downloads: Mapping[int, Payload], state: State, server_round: int, trains: bool
    ) -> int | None:
        """The key of a client's download: its own where it has one, else that for everyone; None where none goes to it.

        Args:
            server_round: the round of the training that it is for. trains: whether the client is asked for that now;
                else it is evaluated in the round before.
        """
        return partition if partition in downloads else EVERYONE

    def expected_parts(self, up: tuple[Part, ...], state: State, server_round: int) -> tuple[Part, ...]:
        """Of the parts that may go up, those of which uploads of this round are made: all by default."""
        return up

    def aggregate(self, uploads: Mapping[int, Payload], state: State, server_round: int) -> Outcome:
        """From the round's uploads, by ascending partition, to the next downloads."""
        raise NotImplementedError(f"{type(self).__name__} is sent uploads, but does not aggregate them")


class CheckedServer(ServerHalf):
    """Server half of a method that checks more of an upload than its parts state."""

    def contradiction(self, partition: int, upload: Payload) -> str:
        """What no client's samples can have told, in words that go on from "upload dropped: "; "" where nothing speaks
        against it. Called for each upload when it comes, after the checks that the method's parts state."""
        return ""


class SparseServer(ServerHalf):
    """Server half of a method that sends less than whole vectors of the feature space."""

    def expand(self, payloads: Mapping[int, Payload]) -> Mapping[int, Payload]:
        """Uploads or downloads as whole vectors, for pictures and for what a private release tells."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its vectors are in the feature space")


def contradiction(half: ServerHalf, partition: int, upload: Payload) -> str:
    """Why an upload of any method cannot be; "" where it may be true."""
    return half.contradiction(partition, upload) if isinstance(half, CheckedServer) else ""


def whole_vectors(half: ServerHalf, payloads: Mapping[int, Payload]) -> Mapping[int, Payload]:
    """Uploads or downloads of any method as whole vectors of the feature space."""
    return half.expand(payloads) if isinstance(half, SparseServer) else payloads


@dataclass(frozen=True)
class Method:
    """One row of the registry.

    Attributes:
        server, objective: the two halves.
        settings: prefix of the setting names -> the dataclass that checks them; beside those of its kind of server.
        exchange: the parts of its messages, under these options.
        inference: the method's own rule, for `inference = "auto"`.
        rules: all rules that it reports.
        fixed_rounds: whether a resumed run must keep its `rounds`, since its loss or its schedule depends on them.
        releases: of a method whose uploads can be made of a release, what refuses options that do not go with one.
        counts_own_rounds: whether a client that joins later uploads as if the round in which it joins were its first.
        reads_prototypes: whether the objective reads `state.prototypes` while it trains or uploads. Where it does not,
            clients measure features before evaluations alone, and have no prototypes after other rounds.
        uploads_features: whether uploads are made of the trained model's features, which `prototypes-from` may drop.
        ignored_settings: shared settings that change nothing in what it computes, under these options, or that it
            refuses to see changed; a comparison does not vary them. Class counts in uploads are weighed in any case.
    """

    server: type[ServerHalf]
    objective: type[Objective]
    settings: Mapping[str, type] = field(default_factory=dict)
    exchange: Callable[[Options], Exchange] = lambda options: Exchange()
    inference: str = "local-prototypes"
    rules: tuple[str, ...] = RULES
    fixed_rounds: bool = False
    releases: Callable[[Options], None] | None = None
    counts_own_rounds: bool = False
    reads_prototypes: bool = True
    uploads_features: bool = False
    ignored_settings: Callable[[Options], frozenset[str]] = lambda options: OF_CLAIMS

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", {**self.server.shared_settings, **self.settings})


def local_prototypes(state: ClientState) -> dict[str, PrototypeSet] | None:
    """The local prototypes p_ij as a payload, without the counts n_ij; None where there are none."""
    return None if state.prototypes is None else {PROTOTYPES.name: state.prototypes.without_counts()}


def prototype_sets(uploads: Mapping[int, Payload]) -> dict[int, PrototypeSet]:
    """partition -> the prototypes of its upload."""
    return {partition: prototypes_of(upload) for partition, upload in uploads.items()}


def to_everyone(prototypes: PrototypeSet) -> dict[int, Payload]:
    """The downloads where all clients get the same prototypes."""
    return {EVERYONE: {PROTOTYPES.name: prototypes}}


def scaled(prototypes: PrototypeSet | None, factor: float) -> PrototypeSet | None:
    """Prototypes of which every vector is so many times as long; the very same with 1."""
    if prototypes is None or factor == 1:
        return prototypes
    return prototypes.with_vectors(factor * prototypes.vectors)


def as_state(prototypes: PrototypeSet) -> State:
    """A prototype set as a method's state; the labels and vectors alone."""
    return {"labels": prototypes.labels, "vectors": prototypes.vectors}


def prototypes_of_state(state: State) -> PrototypeSet:
    """Inverse of `as_state`.

    Raises:
        ValueError: the state holds no prototypes, as in the first round.
    """
    if "labels" not in state:
        raise ValueError(
            "the state holds no prototypes, as in the first round; ask `if state` first, or use fill_missing_classes"
        )
    return PrototypeSet(state["labels"], state["vectors"])


def fill_missing_classes(state: State, fresh: PrototypeSet) -> PrototypeSet:
    """This round's prototypes, and the earlier ones of the classes that nobody reported."""
    return prototypes_of_state(state).updated_by(fresh) if state else fresh
