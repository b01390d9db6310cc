"""What a method says of its messages, and what happens to the values of their parts on the way across.

An `Exchange` says which parts go up and come down. A part's values go through a list of transforms, a sender's and a
receiver's half each:

    a method's own   rounded shares (GFPL): named by the specs of its `Exchange`
    the run's        the number format (`wire-dtype`)

The sender goes through the list from its start, the receiver from its end; `Codec.transforms` puts it together, and the
codec's fingerprint names all of it. A method that needs another one writes it here and names it in its spec."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.quantisation import QuantisationError, dequantise, quantise
from protosphere.wire.checks import CodecError, MessageError

STORED = {"float32": np.float32, "float16": np.float16}
# A part's tensors by field (of weights: by name), on the CPU; `labels` of class vectors are always among them.
Fields = dict[str, Tensor]


@dataclass(frozen=True)
class Transform:
    """One step on the way across. As it stands: nothing happens.

    Attributes:
        kind: of the parts that it is for, as `Spec.kind`.
    """

    kind: ClassVar[str] = ""

    @property
    def words(self) -> str:
        """What both ends must agree on, as a word of the codec's fingerprint."""
        raise NotImplementedError(f"{type(self).__name__} does not say what both ends must agree on")

    def send(self, fields: Fields) -> Fields:
        """The sender's half.

        Raises:
            CodecError: a value that it cannot write.
        """
        return fields

    def receive(self, fields: Fields) -> Fields:
        """The receiver's half.

        Raises:
            MessageError: a value that no sender writes.
        """
        return fields


@dataclass(frozen=True)
class RoundedShares(Transform):
    """Weights of a mixture's components in whole shares of 1/steps, so that they tell no number of rows."""

    kind = "mixtures"
    steps: int

    @property
    def words(self) -> str:
        return f"shares/{self.steps}"

    def send(self, fields: Fields) -> Fields:
        return fields | {"weights": MixtureSet(**fields).with_rounded_weights(self.steps).weights}


@dataclass(frozen=True)
class Spherical(Transform):
    """Of mixtures whose components have one variance for all dimensions: it crosses once."""

    kind = "mixtures"

    @property
    def words(self) -> str:
        return "spherical"

    def send(self, fields: Fields) -> Fields:
        return fields | {"variances": fields["variances"][:, :1]}

    def receive(self, fields: Fields) -> Fields:
        return fields | {"variances": fields["variances"].expand_as(fields["means"]).contiguous()}


@dataclass(frozen=True)
class NumberFormat(Transform):
    """Vectors (k, w) in one of `protosphere.prototypes.quantisation.FORMATS`."""

    kind = "prototypes"
    wire_dtype: str

    @property
    def words(self) -> str:
        return f"format={self.wire_dtype}"

    def send(self, fields: Fields) -> Fields:
        try:
            values = quantise(fields["vectors"], self.wire_dtype)
        except QuantisationError as error:
            whose = "" if error.row is None else f" (class {int(fields['labels'][error.row])})"
            raise CodecError(f"a prototype cannot be sent{whose}: {error}") from None
        return fields | {"vectors": values}

    def receive(self, fields: Fields) -> Fields:
        try:
            vectors = dequantise(fields["vectors"], self.wire_dtype)
        except QuantisationError as error:
            raise MessageError(str(error)) from None
        return fields | {"vectors": vectors}


@dataclass(frozen=True)
class MixtureFormat(Transform):
    """Mixtures as float32, whatever `wire-dtype`; a variance or weight too small for it becomes its smallest."""

    kind = "mixtures"

    @property
    def words(self) -> str:
        return "format=float32"

    def send(self, fields: Fields) -> Fields:
        smallest = torch.finfo(torch.float32).tiny
        values = {name: fields[name].float() for name in ("means", "variances", "weights")}
        return fields | values | {name: values[name].clamp(min=smallest) for name in ("variances", "weights")}


def sent(fields: Mapping[str, Tensor], transforms: Iterable[Transform]) -> Fields:
    """The sender's halves, from the first to the last."""
    through = dict(fields)
    for transform in transforms:
        through = transform.send(through)
    return through


def received(fields: Mapping[str, Tensor], transforms: Sequence[Transform]) -> Fields:
    """The receiver's halves, from the last to the first."""
    through = dict(fields)
    for transform in reversed(transforms):
        through = transform.receive(through)
    return through


@dataclass(frozen=True)
class Spec:
    """One part of a message.

    Attributes:
        kind: "prototypes", "mixtures" or "weights".
        name: its name on the wire; "": that of its kind.
        classwise: of prototypes, whether a row has K values (outputs) instead of d (features).
        width: of prototypes, how many of the d values of a row are sent; 0 for all.
        counts: whether class counts go with it.
        components: of mixtures, the most components of a class; None for any number.
        fewest: of prototypes and mixtures, of how many samples of a class anything is sent: of more than 1 class counts
            may add up to fewer samples than the client has, and there may be no class.
        dtype: of weights, the number format in which they cross; "": the run's.
        change: whether they are a change of weights, in which a variance may be negative.
        told: of weights, what they tell of a client in words, where they are none of its model.
        transforms: what the method does to its values on the way, before the number format.
    """

    kind: str
    name: str = ""
    classwise: bool = False
    width: int = 0
    counts: bool = False
    components: int | None = 1
    fewest: int = 1
    dtype: Literal["", "float32", "float16"] = ""
    change: bool = False
    told: str = ""
    transforms: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        for transform in self.transforms:
            if transform.kind != self.kind:
                raise ValueError(
                    f"The transform {type(transform).__name__} is for {transform.kind}, the part `{self.name}` is of "
                    f"kind {self.kind}; give each part its own."
                )
        if not self.name:
            object.__setattr__(self, "name", self.kind)


PROTOTYPES = Spec("prototypes")
MIXTURES = Spec("mixtures", components=None)


@dataclass(frozen=True)
class Exchange:
    """The parts of a method's messages. Disclosure, checks, bytes and refusals follow from it.

    Attributes:
        up, down: parts from client to server and back; none for nothing.
        either: whether a message holds one of the parts instead of all; the server half says when which.
        told_counts: whether clients tell their class counts once, when they say who they are.
        discloses: what else the server can learn from the uploads, in words.
        hides_counts: whether uploads are made so that class counts stay at home: nothing else is to tell them unasked.
        once: whether a client keeps what came down, and is sent it again only when it is another.
    """

    up: tuple[Spec, ...] = (PROTOTYPES,)
    down: tuple[Spec, ...] = (PROTOTYPES,)
    discloses: tuple[str, ...] = ()
    either: bool = False
    told_counts: bool = False
    hides_counts: bool = False
    once: bool = False

    def kinds(self) -> set[str]:
        """Of all parts, both ways."""
        return {spec.kind for spec in (*self.up, *self.down)}

    @property
    def weights(self) -> bool:
        """Whether weights cross."""
        return "weights" in self.kinds()

    @property
    def pointwise(self) -> bool:
        """Whether what crosses lies in the feature space, as prototypes and mixtures do and outputs do not."""
        return not any(spec.classwise for spec in (*self.up, *self.down))

    @property
    def counts(self) -> bool:
        """Whether class counts go up."""
        return self.told_counts or any(spec.counts for spec in self.up)

    @property
    def added(self) -> str:
        """The transforms that the method adds, by direction and part, as the codec's fingerprint names them."""
        directed = [(way, spec) for way, specs in (("up", self.up), ("down", self.down)) for spec in specs]
        names_by_part = [
            (
                f"{way}.{spec.name}",
                [*([f"{spec.width}values"] if spec.width else []), *(each.words for each in spec.transforms)],
            )
            for way, spec in directed
        ]
        return " ".join(f"{part}={'+'.join(names)}" for part, names in names_by_part if names)

    def said(self, dim: int) -> list[str]:
        """What the uploads tell of a client, in words.

        Args:
            dim: d.
        """
        disclosures = []
        for spec in self.up:
            if spec.kind == "weights":
                disclosures.append(spec.told or f"the trained weights of its {spec.name}")
            elif spec.classwise:
                disclosures.append("the mean outputs of its model for its classes")
            else:
                few = f" ({spec.width} of their {dim} values)" if 0 < spec.width < dim else ""
                disclosures.append(f"{spec.kind} of its classes{few}")
        return [*disclosures, *(["its class counts"] if self.counts else []), *self.discloses]


NOTHING = Exchange((), ())
