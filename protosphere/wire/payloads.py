"""The contents of messages as plain dataclasses; messages.py encodes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from flwr.app import Array

from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import ClassVectors, PartValue, PrototypeSet
from protosphere.prototypes.weights import Weights

# the parts of a message by name
Payload = Mapping[str, PartValue]
KINDS: dict[str, type[PartValue]] = {kind.kind: kind for kind in (PrototypeSet, MixtureSet, Weights)}
EVERYONE = -1  # the key of a download for all clients
T = TypeVar("T", bound=PartValue)


def part_of(payload: Payload, kind: type[T], name: str = "") -> T:
    """One part of a payload: by its name, or "" for the name of its kind. TypeError if it is of another kind."""
    part = payload[name or kind.kind]
    if not isinstance(part, kind):
        raise TypeError(f"the part {name or kind.kind!r} is of kind {part.kind}, not {kind.kind}")
    return part


def prototypes_of(payload: Payload, name: str = "") -> PrototypeSet:
    """A payload's prototypes."""
    return part_of(payload, PrototypeSet, name)


def weights_of(payload: Payload, name: str) -> Weights:
    """A payload's weights of that name."""
    return part_of(payload, Weights, name)


def class_vectors(payload: Payload | None) -> ClassVectors | None:
    """The prototypes or mixtures among the parts, if any."""
    for part in (payload or {}).values():
        if isinstance(part, ClassVectors):
            return part
    return None


def to_tensors(payload: Payload) -> dict[str, torch.Tensor]:
    """The payload's tensors by name, for checkpoints and stores: `part/<name>/<kind>/<field>`."""
    tensors: dict[str, torch.Tensor] = {}
    for name, part in payload.items():
        for field_name, tensor in part.fields().items():
            tensors[f"part/{name}/{part.kind}/{field_name}"] = tensor
    return tensors


def from_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, PartValue]:
    """Inverse of `to_tensors`."""
    fields_by_part: dict[tuple[str, str], dict[str, torch.Tensor]] = {}
    for tensor_name, tensor in tensors.items():
        _, name, kind_name, field_name = tensor_name.split("/", 3)
        fields_by_part.setdefault((name, kind_name), {})[field_name] = tensor
    return {name: KINDS[kind_name].from_fields(fields) for (name, kind_name), fields in fields_by_part.items()}


@dataclass(frozen=True)
class Instruction:
    """Server to client: what one message of a round asks for."""

    run: str  # the name of the run's folder, and of the client's store
    round: int  # r, from 1; an evaluation is of the model after round r, from 0 (untrained models)
    payload: Payload | None = None  # the method's download, if there is one
    # the last round in which the server accepted this client's training, 0 if none; a client whose newest state is
    # older has lost its state
    last_trained_round: int = 0
    # numbers that the method's server half computed once for the run, such as TinyProto's mu
    constants: Mapping[str, float] = field(default_factory=dict)
    # for a method that sends `once`: the round that made the payload, which is None if the client already has it
    made: int = 0
    last: bool = False  # whether this evaluation is the last one of the run


@dataclass(frozen=True)
class Evaluation:
    """The numbers of test and validation samples of a client that each inference rule predicted correctly."""

    rows: tuple[int, int]  # test samples, validation samples
    # rule -> correct test samples, correct validation samples; for rules that the client can apply
    correct: dict[str, tuple[int, int]]
    seconds: float = 0.0
    auc: float | None = None  # area under the ROC curve of the run's own rule, averaged over classes
    confusion: tuple[int, ...] = ()  # counts of the run's own rule (record/confusion.py), if requested


@dataclass(frozen=True)
class TrainingFigures:
    """A client's metrics of one round of training; scalars only."""

    rows: int  # training samples
    steps: int  # optimiser steps
    # the mean over steps of each term of the loss; `loss` is their weighted total
    parts: dict[str, float] = field(default_factory=dict)
    # the norm of the gradient of the method's own terms on z over that of the cross-entropy, on the first batch
    gradient_ratio: float = 0.0
    # mean Euclidean norms of the targets, and of the uploaded or local prototypes; None if they were not measured
    target_norm: float = 0.0
    prototype_norm: float | None = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """Client to server: the reply to a message of training, or of evaluation."""

    partition: int
    round: int
    payload: Payload | None = None
    training: TrainingFigures | None = None
    evaluation: Evaluation | None = None
    problem: str = ""  # one sentence if training failed; there is then no upload
    seconds: float = 0.0  # from the message's arrival to the reply
    ensemble: Array | None = None  # unchecked class probabilities for the shared test set, if requested


@dataclass(frozen=True)
class Identity:
    """Client to server before training: the client's identity and what it will disclose."""

    partition: int
    partitions: int  # how many there are
    model: str = ""
    parameters: int = 0
    feature_dim: int = 0
    class_names: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()  # the labels of its training samples, ascending; all labels if they are withheld
    rows: tuple[int, ...] = (0, 0, 0)  # training, validation and test samples; empty if they are withheld
    discloses: tuple[str, ...] = ()  # in words, for the roster
    settings: str = ""  # digest of the settings that decide how both sides read messages (`Run.digest`)
    encoder: str = ""  # fingerprint of its public encoder
    problem: str = ""  # one sentence if the client cannot take part
    domain: str = ""  # of its samples
    layouts: tuple[str, ...] = ()  # of the weights that it exchanges, one line per tensor
    method: str = ""  # digest of the file of a user's method
    companion: str = ""  # name and size of a second model that all clients share
    name: str = field(default="", compare=False)  # a client with a new name remains the same client
    flower: str = field(default="", compare=False)  # the minor version of its Flower; "" in a simulation

    @property
    def withheld(self) -> bool:
        """Whether it withholds its sample counts and classes, as under `privacy`."""
        return not self.rows

    @property
    def trains(self) -> bool:
        """Whether it has training samples; a client that withholds its counts is assumed to have some."""
        return self.withheld or self.rows[0] > 0
