"""The values that cross the wire, as plain dataclasses; messages.py gives them their wire form.

A method may declare parts of the kinds of parts.py and nothing else: that is how "nothing but prototypes leaves a
client" can be tested for every method that promises it.
"""

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
EVERYONE = -1  # the key of a download that is the same for all
T = TypeVar("T", bound=PartValue)


def part_of(payload: Payload, kind: type[T], name: str = "") -> T:
    """One part of a payload, of the kind that its method declares.

    Args:
        name: of the part; "": the name of its kind.

    Raises:
        KeyError: there is no such part.
        TypeError: it is of another kind.
    """
    part = payload[name or kind.kind]
    if not isinstance(part, kind):
        raise TypeError(f"the part {name or kind.kind!r} is of kind {part.kind}, not {kind.kind}")
    return part


def prototypes_of(payload: Payload, name: str = "") -> PrototypeSet:
    """A payload's prototypes, as `part_of`."""
    return part_of(payload, PrototypeSet, name)


def weights_of(payload: Payload, name: str) -> Weights:
    """A payload's weights of that name, as `part_of`."""
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
        run: name of the results folder; a client's store is kept under it.
        round: the round r, from 1; an evaluation is of the model that round r left, from 0 (untrained models).
        last_trained_round: the last round whose training the server took from this client, 0 if none: a client whose
            store does not reach that far has lost it, and must not start again unnoticed.
        payload: what the method sends down, or None (round 1, or nothing aggregated yet).
        constants: numbers that the method's server half worked out once for the run, by name (TinyProto's mu).
        last: whether this evaluation is the run's last.
        made: of a method that sends `once`, the round that made the payload, which the client may have: then it is
            None; 0 where there is none.
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
    """How many of a client's test and validation rows each prediction rule got right.

    Attributes:
        rows: (test rows, validation rows).
        correct: rule -> (right on test, right on validation). A rule that a client cannot apply (no training rows,
            nothing received) is missing.
        seconds: time spent.
        auc: area under the ROC curve of the run's own rule on the test rows, the mean over classes; None where it was
            not asked for, or cannot be computed.
        confusion: counts of (true class, predicted class) of the run's own rule on the test rows, row by row; empty
            where it was not asked for. Above `MOST_CLASSES` classes counts of (true class, right or wrong).
    """

    rows: tuple[int, int]
    correct: dict[str, tuple[int, int]]
    seconds: float = 0.0
    auc: float | None = None
    confusion: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrainingFigures:
    """What a client tells about one round of training; scalars only.

    Attributes:
        rows: training rows. steps: optimiser steps.
        parts: mean over the steps of each part of the loss; `loss` is their weighted total.
        gradient_ratio: norm of the gradient on z of all that the method adds to the cross-entropy, over the
            norm of the cross-entropy's own, on the first batch; 0 where the method adds nothing.
        target_norm, prototype_norm: mean Euclidean norm of the targets and of the uploaded prototypes, or of the
            local ones where a method uploads none (0 where there are none at all, None where they were not measured).
        seconds: training, prototypes and store included.
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
        problem: one sentence for a person when training failed (a loss that is not finite, say); there is no upload
            then.
        seconds: time from the message's arrival to the reply, so that the server can tell overhead from work.
        ensemble: class probabilities of the shared test set, unchecked, in rounds that measure it.
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
    """Client to server before training: who this client is and what it will disclose.

    Attributes:
        partition, partitions: its partition id, and how many there are.
        classes: labels held in its training rows, ascending.
        class_counts: how many training rows it has of each of them, or the share of these that counts; none where the
            method does not ask.
        rows: (training, validation, test) row counts; none where they are withheld.
        discloses: what leaves this client, in words, for the roster.
        settings: digest of the settings by which both ends read a message (`Run.digest`).
        encoder: fingerprint of the public encoder that it reads samples through; "" without one.
        problem: one sentence when the client cannot take part.
        domain: the one of the data set's domains that its rows come from; "" if there is none to name.
        name: what it calls itself; "" where it does not say. A client that takes another name stays the same client.
        layouts: the layout of each part of weights that it shares, a line a tensor.
        method: digest of the file that its method came from; "" where it is one of ours.
        companion: name and size of a second model that all clients have alike; "" where the method has none.
        flower: the minor version of its Flower, as 1.42; "" in a simulation, where all have the server's.
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
        """Whether it tells neither its rows nor the classes that it holds, as under `privacy`."""
        return not self.rows

    @property
    def trains(self) -> bool:
        """Whether it has training rows; of who withholds them everybody believes it."""
        return self.withheld or self.rows[0] > 0
