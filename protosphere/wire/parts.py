"""What a method says of its messages: an `Exchange` names the parts that go up and come down, each a `Part`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from protosphere.prototypes.prototype_set import Kind

ENSEMBLE = "ensemble"  # in the arrays of a message what is none of the method's


@dataclass(frozen=True)
class Part:
    """One part of a message.

    Attributes:
        kind: of its values: PrototypeSet, MixtureSet or Weights.
        name: its name on the wire; "": that of its kind.
        counts: of prototypes and mixtures, whether class counts go with it.
        fewest: of prototypes and mixtures, of how many samples of a class anything is sent: of more than 1 class counts
            may add up to fewer samples than the client has, and there may be no class.
        components: of mixtures, the most components of a class; None for any number.
        width: of prototypes, the values of a row; of mixtures, the variances of a component: d, K or a number.
        dtype: in which prototypes, and matrices of weights, cross; "": the run's `wire-dtype`.
        signed: of weights, whether a variance may be negative, as in a change of weights.
        ragged: of weights, whether tensors may be smaller than their layout says; their shapes come with them.
        disclosure: of weights, what they tell of a client in words, where they are none of its model.
        sums: of prototypes that go up, whether a vector is a sum over samples: it may be as many times longer than
            `max-prototype-norm` as the client has samples.
        factor: of prototypes that come down, the name of the run's constant by which clients multiply them.
    """

    kind: Kind
    name: str = ""
    counts: bool = False
    fewest: int = 1
    components: int | None = 1
    width: int | Literal["features", "classes"] = "features"
    dtype: Literal["", "float32", "float16"] = ""
    signed: bool = False
    ragged: bool = False
    disclosure: str = ""
    sums: bool = False
    factor: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.kind)
        if not re.fullmatch(r"[\w-]+", self.name) or self.name == ENSEMBLE:
            raise ValueError(
                f"a part is called {self.name!r}; give it a name of letters, digits, hyphens and underscores, other "
                f"than {ENSEMBLE!r}, under which messages hold the ensemble's probabilities"
            )

    def count_values(self, num_classes: int, dim: int) -> int:
        """`width` as a number."""
        if self.width == "classes":
            return num_classes
        return dim if self.width == "features" else self.width


PROTOTYPES = Part("prototypes")
MIXTURES = Part("mixtures", components=None)


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

    up: tuple[Part, ...] = (PROTOTYPES,)
    down: tuple[Part, ...] = (PROTOTYPES,)
    discloses: tuple[str, ...] = ()
    either: bool = False
    told_counts: bool = False
    hides_counts: bool = False
    once: bool = False

    def kinds(self) -> set[str]:
        """Of all parts, both ways."""
        return {part.kind for part in (*self.up, *self.down)}

    @property
    def weights(self) -> bool:
        """Whether weights cross."""
        return "weights" in self.kinds()

    @property
    def pointwise(self) -> bool:
        """Whether what crosses lies in the feature space, as prototypes and mixtures do and outputs do not."""
        return not any(part.width == "classes" for part in (*self.up, *self.down))

    @property
    def counts(self) -> bool:
        """Whether class counts go up."""
        return self.told_counts or any(part.counts for part in self.up)

    def in_format(self, dtype: Literal["float32", "float16"]) -> "Exchange":
        """The same parts, with the run's number format where they have none of their own."""

        def formatted(parts: Sequence[Part]) -> tuple[Part, ...]:
            return tuple(replace(part, dtype=part.dtype or dtype) for part in parts)

        return replace(self, up=formatted(self.up), down=formatted(self.down))

    def list_disclosures(self, dim: int) -> list[str]:
        """What the uploads tell of a client, in words.

        Args:
            dim: d.
        """
        disclosures = []
        for part in self.up:
            if part.kind == "weights":
                disclosures.append(part.disclosure or f"the trained weights of its {part.name}")
            elif part.width == "classes":
                disclosures.append("the mean outputs of its model for its classes")
            else:
                few = f" ({part.width} of their {dim} values)" if part.width not in ("features", dim) else ""
                disclosures.append(f"{part.kind} of its classes{few if part.kind == 'prototypes' else ''}")
        if self.counts:
            disclosures.append("its class counts")
        return [*disclosures, *self.discloses]


NOTHING = Exchange((), ())
