"""How a method declares its messages: an `Exchange` names the parts of uploads and downloads, each a `Part`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from protosphere.prototypes.prototype_set import Kind

ENSEMBLE = "ensemble"  # the part of a message that does not belong to the method


@dataclass(frozen=True)
class Part:
    """One part of a message.

    Attributes:
        kind: the kind of its values: PrototypeSet, MixtureSet or Weights.
        name: its name in messages; "" for the name of its kind.
        counts: for prototypes and mixtures: whether class counts are included.
        fewest: for prototypes and mixtures: the smallest number of samples for which a class is sent.
        components: for mixtures: the largest number of components per class; None for any number.
        width: the number of values per prototype, or of variances per mixture component: d, K or a number.
        dtype: the number format of prototypes and of matrices of weights; "" for the run's `wire-dtype`.
        signed: for weights: whether a variance may be negative, as in a change of weights.
        ragged: for weights: whether tensors may be smaller than their layout; their shapes are sent with them.
        disclosure: for weights that are not those of a model: what they disclose about a client, in words.
        sums: for uploaded prototypes: whether a vector is a sum over samples, whose norm bound is multiplied by the
            client's number of samples.
        factor: for downloaded prototypes: the name of the run's constant by which clients multiply them.
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
    """The parts of a method's messages. Disclosures, checks, byte counts and refusals follow from it.

    Attributes:
        up, down: the parts from client to server and back; empty if nothing is sent.
        either: whether a message holds one of the parts instead of all; the server half decides which.
        told_counts: whether clients send their class counts once, with their identity.
        discloses: what else the server can learn from the uploads, in words.
        hides_counts: whether uploads hide class counts, so that nothing else may disclose them by default.
        once: whether clients store the download, which is sent again only after a change.
    """

    up: tuple[Part, ...] = (PROTOTYPES,)
    down: tuple[Part, ...] = (PROTOTYPES,)
    discloses: tuple[str, ...] = ()
    either: bool = False
    told_counts: bool = False
    hides_counts: bool = False
    once: bool = False

    def kinds(self) -> set[str]:
        """The kinds of all parts, in both directions."""
        return {part.kind for part in (*self.up, *self.down)}

    @property
    def weights(self) -> bool:
        """Whether weights are exchanged."""
        return "weights" in self.kinds()

    @property
    def pointwise(self) -> bool:
        """Whether no part holds outputs (K values), so that prototypes and mixtures lie in the feature space."""
        return not any(part.width == "classes" for part in (*self.up, *self.down))

    @property
    def counts(self) -> bool:
        """Whether class counts are sent to the server."""
        return self.told_counts or any(part.counts for part in self.up)

    def in_format(self, dtype: Literal["float32", "float16"]) -> "Exchange":
        """The same exchange, with the run's number format for parts without their own."""

        def formatted(parts: Sequence[Part]) -> tuple[Part, ...]:
            return tuple(replace(part, dtype=part.dtype or dtype) for part in parts)

        return replace(self, up=formatted(self.up), down=formatted(self.down))

    def list_disclosures(self, dim: int) -> list[str]:
        """What the uploads disclose about a client, in words."""
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
