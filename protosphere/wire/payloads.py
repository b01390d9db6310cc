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
    """Server to client: what one message of a round asks for.

    Attributes:
        run: the name of the run's folder, and of the client's store.
        round: the round r, from 1; an evaluation is of the model after round r, from 0 (untrained models).
        last_trained_round: the last round in which the server accepted this client's training, 0 if none. A client
            whose newest state is older has lost its state.
        payload: the method's download, or None (in round 1, or if nothing was aggregated yet).
        constants: numbers that the method's server half computed once for the run, by name (such as TinyProto's mu).
        last: whether this evaluation is the last one of the run.
        made: for a method that sends `once`, the round that made the payload; the payload is None if the client already
            has it. 0 if nothing was made yet, and for other methods.
    """

    run: str
    round: int
    payload: Payload | None = None
    last_trained_round: int = 0
    constants: Mapping[str, float] = field(default_factory=dict)
    made: int = 0
    last: bool = False


@dataclass(frozen=True)
class Evaluation:
    """The numbers of test and validation samples of a client that each inference rule predicted correctly.

    Attributes:
        rows: (test samples, validation samples).
        correct: rule -> (correct test samples, correct validation samples), for rules that the client can apply.
        auc: area under the ROC curve of the run's own rule on the test samples, averaged over classes.
        confusion: counts of the run's own rule on the test samples (record/confusion.py); empty if not requested.
    """

    rows: tuple[int, int]
    correct: dict[str, tuple[int, int]]
    seconds: float = 0.0
    auc: float | None = None
    confusion: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrainingFigures:
    """A client's metrics of one round of training; scalars only.

    Attributes:
        rows, steps: training samples, optimiser steps.
        parts: the mean over steps of each term of the loss; `loss` is their weighted total.
        gradient_ratio: the norm of the gradient of the method's own terms on z, divided by that of the cross-entropy,
            on the first batch; 0 without such terms.
        target_norm, prototype_norm: mean Euclidean norm of the targets and of the uploaded or local prototypes (0 if
            there are none, None if they were not measured).
    """

    rows: int
    steps: int
    parts: dict[str, float] = field(default_factory=dict)
    gradient_ratio: float = 0.0
    target_norm: float = 0.0
    prototype_norm: float | None = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """Client to server: the reply to a message of training, or of evaluation.

    Attributes:
        problem: one sentence if training failed; there is then no upload.
        seconds: from the message's arrival to the reply.
        ensemble: unchecked class probabilities for the shared test set, in rounds that measure it.
    """

    partition: int
    round: int
    payload: Payload | None = None
    training: TrainingFigures | None = None
    evaluation: Evaluation | None = None
    problem: str = ""
    seconds: float = 0.0
    ensemble: Array | None = None


@dataclass(frozen=True)
class Identity:
    """Client to server before training: the client's identity and what it will disclose.

    Attributes:
        partition, partitions: its partition id, and the number of partitions.
        classes: the labels of its training samples, ascending; all labels if they are withheld.
        class_counts: its training samples of each of these classes; empty if the method does not request them.
        rows: numbers of (training, validation, test) samples; empty if they are withheld.
        discloses: what this client discloses, in words, for the roster.
        settings: digest of the settings that decide how both sides read messages (`Run.digest`).
        encoder: fingerprint of its public encoder.
        problem: one sentence if the client cannot take part.
        domain, name: of its samples, and its own; a client with a new name remains the same client.
        layouts: the layouts of the weights that it exchanges, one line per tensor.
        method: digest of the file of a user's method.
        companion: name and size of a second model that all clients share.
        flower: the minor version of its Flower, such as 1.42; "" in a simulation.
    """

    partition: int
    partitions: int
    model: str = ""
    parameters: int = 0
    feature_dim: int = 0
    class_names: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()
    rows: tuple[int, ...] = (0, 0, 0)
    discloses: tuple[str, ...] = ()
    settings: str = ""
    encoder: str = ""
    problem: str = ""
    domain: str = ""
    layouts: tuple[str, ...] = ()
    method: str = ""
    companion: str = ""
    class_counts: tuple[float, ...] = ()
    name: str = field(default="", compare=False)
    flower: str = field(default="", compare=False)

    @property
    def withheld(self) -> bool:
        """Whether it withholds its sample counts and classes, as under `privacy`."""
        return not self.rows

    @property
    def trains(self) -> bool:
        """Whether it has training samples; a client that withholds its counts is assumed to have some."""
        return self.withheld or self.rows[0] > 0
