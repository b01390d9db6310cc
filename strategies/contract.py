"""A method is one file with two halves: the server half turns a round's uploads into the next round's downloads, and
the objective defines what the method changes in the training loop that all clients share. A method overrides what its
paper changes."""

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

# A method's settings: a frozen dataclass, checked like the shared ones.
method_settings = pydantic_dataclass(frozen=True, kw_only=True, config=STRICT)
T = TypeVar("T")
State = dict[str, Tensor]
# A constant in the messages to a client that joined later, for a method that counts rounds per client.
ROUND_OF_JOINING = "round-of-joining"
EQUAL_WEIGHT = 0.5  # weight of each of the two classifiers that a pool combines
# The settings that decide the weight of a client's sample count.
OF_CLAIMS = frozenset({"client-weights", "max-weight-ratio"})
# A number that the server reports for a round; a mapping of number lists is for plots only.
Figure = float | int | str | Mapping[str, Sequence[float]] | None


def own_round(constants: Mapping[str, float], round_number: int) -> int:
    """The round number as a client counts it: a client that joined later starts with 1 in the round given by its
    constants."""
    return round_number - int(constants.get(ROUND_OF_JOINING, 1)) + 1


@dataclass
class ClientState:
    """All that a client has besides its data; the store saves it as one unit.

    Attributes:
        module: the nn.Module that `Objective.build` returned; only its objective knows its structure.
        prototypes: local prototypes p_ij with their counts, over the training samples after training.
        covariance: (d, d) float64, pooled within classes over the same samples; None without training samples.
        constants: numbers that the server computed once for the run; every message carries them.
        targets: what was received, as the loss uses it (scaled, masked); None before the first message.
        table: the targets as (vectors (K, d), present (K,)) on the device, laid out once per message.
        received: what a method keeps of a message for the training that follows; not stored.
        features: z (n, d) and labels (n,) of the training samples after training, for the upload; then cleared.
        encoded: returns u (n, d) and labels (n,) of the training samples, for the upload of a SpaceObjective.
        variances: of a release under `privacy`: around its prototypes, (k, d), unscaled.
        pool_weight: weight of the shared discriminant in the rule `pool`, in [0, 1], as last chosen by an evaluation.
        space: what `SpaceObjective.complete` made for the rules `encoder` and `pool` in the last evaluation.
        extra: further tensors that a method keeps between rounds.
        optimiser: the optimisers' tensors by phase, kept only with `optimizer-state = "persistent"`.
        parameters: number of parameters of the client's own model, without what `build` added.
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
        """Clear what belongs to a single message."""
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
        total: the quantity to minimise.
        parts: its unweighted terms by name, including `cross-entropy`; each a scalar with its graph.
        features: z (b, d), with the graph that leads to `total`.
    """

    total: Tensor
    parts: dict[str, Tensor]
    features: Tensor

    def plus(self, name: str, term: Tensor, weight: float = 1.0) -> "Loss":
        """This loss with one more weighted term."""
        return Loss(self.total + weight * term, self.parts | {name: term}, self.features)


@dataclass(frozen=True)
class Phase:
    """One phase of local training.

    Attributes:
        name: identifies the phase in seeds, logs and the stored optimiser state.
        parameters: the parameters to train; all others are fixed.
        rows: (inputs, labels) to draw batches from, as the model takes them; None for the client's training samples.
        epochs: passes over them.
        optimiser: builds the optimiser; None for SGD with the run's settings.
        fresh: whether the optimiser starts anew in each round, whatever `optimizer-state` says.
        rate: the setting of the learning rate, named in the error if training diverges.
        of_model: whether its features are the client model's, from which `prototypes-from = "training"` takes
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
    """A method is faulty; one sentence with the file's path and the line, if they are known."""

    def __init__(self, reason: str, file: str = "", line: int = 0):
        super().__init__(f"{reason.rstrip('.')} ({file}, line {line})." if file else reason)


@dataclass(frozen=True)
class Options:
    """The settings of one method, by the dataclass that checks them.

    Raises:
        MethodError: on access to settings that the method does not have.
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

    A client calls `build` once for its model. A training message calls, in this order: `targets` with what was
    received, `receive`, `targets` again, `phases`, `loss` for each batch, and `upload` after the local prototypes are
    measured. An evaluation message calls `targets`, `evaluation_state` for the rule `received`, and `scores`; it never
    calls `receive`.
    """

    def __init__(self, settings: Settings, options: Options, num_classes: int):
        self.settings = settings
        self.options = options
        self.num_classes = num_classes

    def build(self, model: SplitModel, seed: int) -> nn.Module:
        """Add heads, projections or companions to the client's private model."""
        return model

    def targets(self, state: ClientState, received: Payload | None) -> PrototypeSet | None:
        """The received prototypes as prediction and loss use them. Changes nothing: an evaluation calls it with the
        model from the last round."""
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
        """Features in the space of the prototypes: (b, ...) -> (b, d)."""
        z: Tensor = state.module.features(inputs)
        return z

    def upload(self, state: ClientState, round_number: int) -> Payload | None:
        """What leaves the client after training; nothing by default.

        Under `privacy` (`Method.releases`), the state holds only a noisy release and nothing of the model: `prototypes`
        in the encoder's space with noisy counts, and for mixtures their `variances`.
        """
        return None

    def evaluation_state(self, state: ClientState, received: Payload | None) -> ClientState:
        """The client as it would predict with what it just received, judged by the rule `received`; changes nothing."""
        return state

    def scores(self, state: ClientState, z: Tensor) -> dict[str, Tensor]:
        """Inference rules beyond the four common ones: rule -> (n, K). May include `classifier` if it is not the
        model's own."""
        return {}


class WeightsObjective(Objective):
    """Client half of a method that exchanges weights."""

    def shared(self, module: nn.Module) -> Mapping[str, Weights]:
        """The weights that are exchanged, by part name, as they are in the module before training; messages are checked
        against their layout."""
        raise NotImplementedError(f"{type(self).__name__} does not define which weights are exchanged")


class SpaceObjective(WeightsObjective):
    """Client half of a method that reads samples through a public encoder, without `privacy`.

    An evaluation calls `complete` once, `encoded_scores` for the rule `encoder`, and `pooled` for the rule `pool`.

    Attributes:
        encoder: the public encoder if the setting `encoder` names none; "" for none.
    """

    encoder = ""

    def complete(self, received: Payload | None, directions: Tensor, labels: Tensor) -> Payload | None:
        """Prepare the argument of `encoded_scores` from what was received and the client's training samples in the
        encoder's space, z^ (n, d) float64 and labels (n,); by default, only what was received."""
        return received

    def encoded_scores(self, space: Payload | None, directions: Tensor) -> Tensor | None:
        """The rule `encoder`: z^ (n, d) float64 to (n, K), minus infinity for an unknown class; None before the first
        message.

        Args:
            space: the result of `complete`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define how it scores samples in the encoder's space")

    def pooled(self, state: ClientState, z: Tensor, encoded: Tensor | None) -> Tensor | None:
        """The rule `pool`, for a method that has it, (n, K): combines the model's features z (n, d) with the scores (n,
        K) float64 of the rule `encoder` for the same samples, which are None before the first message."""
        return None


class Pulled(Objective):
    """Cross-entropy + lambda R: the prototype pull that FedProto and its successors share (methods page, section 0)."""

    def loss(self, state: ClientState, batch: Batch, phase: Phase, round_number: int) -> Loss:
        """L = CE(g(z), y) + `prototype-weight` R(z, t_y); without a target, as in the first round, there is no R."""
        plain = super().loss(state, batch, phase, round_number)
        if state.table is None:
            return plain
        pull = prototype_pull(plain.features, batch.labels, *state.table, reduction=self.settings.prototype_loss)
        return plain.plus("prototype-pull", pull, self.settings.prototype_weight)


class PullObjective(Pulled):
    """Client half that sends local prototypes and is pulled to the aggregated ones."""

    def upload(self, state: ClientState, round_number: int) -> Payload | None:
        """The local prototypes p_ij, without the counts n_ij."""
        return local_prototypes(state)


@dataclass(frozen=True)
class Outcome:
    """The result of a round's aggregation.

    Attributes:
        state: the method's tensors, kept across rounds, in checkpoints and on resume.
        downloads: partition -> payload of the next round; `EVERYONE` holds the payload of all clients without one of
            their own.
        keeps: whether downloads of the last round stay if they are not replaced.
        constants: set by `begin`: numbers computed once for the run; every message carries them.
        prototypes: the global prototypes for reports, if none are sent down as such.
        scales: factors that turn downloads, and uploads, into the targets' scale.
        figures: metrics of the round, by name.
        warnings: sentences for the person who runs it.
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
    """The server half of a method: plain values in and out. A method overrides `aggregate`, and rarely more.

    Before round 1 the server calls `check` with K and d, then `begin`. In each round it calls `download` for each
    client that trains, `expected_parts` for the uploads, `aggregate`, and `download` again for each client that is
    evaluated.

    Attributes:
        settings, options: those of the run.
        shared_settings: prefix -> settings that all methods with such a server have, besides their own.
        num_classes, dim: K and d, known from `meet` on.
        identities: partition -> identity of the client, known from `meet` on.
        notices: the sentences that `check` returned.
        constants: the constants that `begin` returned.
        group_names: the names of client groups, if the method has groups; they are kept on resume.
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
        """Take K, d and the clients' identities, and check them.

        Raises:
            SettingError: raised by `check`.
        """
        self.num_classes, self.dim, self.identities = num_classes, dim, identities
        # a user's method may return nothing
        self.notices = tuple(self.check(num_classes, dim) or ())

    def try_meeting(self, num_classes: int, dim: int, identities: Mapping[int, Identity]) -> None:
        """`meet`, for clients of which some may still be excluded: groups that it forms get no lasting name.

        Raises:
            SettingError: raised by `meet`.
        """
        names = dict(self.group_names)
        try:
            self.meet(num_classes, dim, identities)
        finally:
            self.group_names.clear()
            self.group_names.update(names)

    def class_word(self, label: int) -> str:
        """A class's name, for messages."""
        identity = next(iter(self.identities.values()), None)
        return class_word(label, identity.class_names if identity else ())

    # --- what a method overrides ----------------------------------------------------------------------

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Refuse a K, a d or clients that the method cannot work with (raise SettingError). It is called before round 1
        and whenever clients join. Returns sentences for the person who starts the run, for example about a setting that
        has no effect."""
        return ()

    def begin(self) -> Outcome:
        """The server's initial state, and the downloads of round 1; nothing by default. Its constants apply to the
        whole run."""
        return Outcome({}, {})

    def download(
        self, partition: int, downloads: Mapping[int, Payload], state: State, server_round: int, trains: bool
    ) -> int | None:
        """The key of a client's download in `downloads`: its own if present, otherwise `EVERYONE`; None to send
        nothing.

        Args:
            server_round: the round of training that the download is for.
            trains: whether the client now trains; otherwise it is evaluated in the round before.
        """
        return partition if partition in downloads else EVERYONE

    def expected_parts(self, up: tuple[Part, ...], state: State, server_round: int) -> tuple[Part, ...]:
        """The parts that this round's uploads have, out of those that may go up; all by default."""
        return up

    def aggregate(self, uploads: Mapping[int, Payload], state: State, server_round: int) -> Outcome:
        """Turn the round's uploads, by ascending partition, into the next downloads."""
        raise NotImplementedError(f"{type(self).__name__} receives uploads, but does not define `aggregate`")


class CheckedServer(ServerHalf):
    """Server half of a method that checks uploads beyond their parts' types, shapes and bounds."""

    def contradiction(self, partition: int, upload: Payload) -> str:
        """Why no client's samples can have produced this upload, in words that continue "upload dropped: "; "" if it is
        plausible. Called for each upload on arrival, after the checks of its parts."""
        return ""


class SparseServer(ServerHalf):
    """Server half of a method that sends less than whole vectors of the feature space."""

    def expand(self, payloads: Mapping[int, Payload]) -> Mapping[int, Payload]:
        """Expand uploads or downloads to whole vectors, for plots and for private releases."""
        raise NotImplementedError(f"{type(self).__name__} does not define its vectors in the feature space")


def contradiction(half: ServerHalf, partition: int, upload: Payload) -> str:
    """`CheckedServer.contradiction`, for any method."""
    return half.contradiction(partition, upload) if isinstance(half, CheckedServer) else ""


def whole_vectors(half: ServerHalf, payloads: Mapping[int, Payload]) -> Mapping[int, Payload]:
    """Uploads or downloads of any method as whole vectors of the feature space."""
    return half.expand(payloads) if isinstance(half, SparseServer) else payloads


@dataclass(frozen=True)
class Method:
    """One row of the registry.

    Attributes:
        server, objective: the two halves.
        settings: prefix of the setting names -> the dataclass that checks them; the server's shared settings are added.
        exchange: the parts of the messages, given the options.
        inference: the inference rule for `inference = "auto"`.
        rules: all inference rules that the method reports.
        fixed_rounds: whether a resumed run must keep its `rounds`, because the loss or the schedule depends on it.
        releases: for a method that works with a release under `privacy`: refuses options that do not.
        counts_own_rounds: whether a client that joins later counts rounds from the one in which it joined.
        reads_prototypes: whether the objective reads `state.prototypes` in training or upload. If not, clients measure
            prototypes only before evaluations.
        uploads_features: whether uploads are made of the trained model's features, which `prototypes-from` may drop.
        ignored_settings: shared settings that have no effect on the method with these options, or that it refuses to
            change; a comparison does not vary them. Class counts in uploads are always used as weights.
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
    """The local prototypes p_ij as a payload, without the counts n_ij; None if there are none."""
    return None if state.prototypes is None else {PROTOTYPES.name: state.prototypes.without_counts()}


def prototype_sets(uploads: Mapping[int, Payload]) -> dict[int, PrototypeSet]:
    """partition -> the prototypes of its upload."""
    return {partition: prototypes_of(upload) for partition, upload in uploads.items()}


def to_everyone(prototypes: PrototypeSet) -> dict[int, Payload]:
    """Downloads that send the same prototypes to all clients."""
    return {EVERYONE: {PROTOTYPES.name: prototypes}}


def scaled(prototypes: PrototypeSet | None, factor: float) -> PrototypeSet | None:
    """Prototypes with every vector multiplied by a factor; the same object for a factor of 1."""
    if prototypes is None or factor == 1:
        return prototypes
    return prototypes.with_vectors(factor * prototypes.vectors)


def as_state(prototypes: PrototypeSet) -> State:
    """A prototype set as a method's state: labels and vectors only."""
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
    """This round's prototypes, plus the earlier ones of classes that no client reported."""
    return prototypes_of_state(state).updated_by(fresh) if state else fresh
