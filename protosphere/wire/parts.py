"""How a method declares its messages: an `Exchange` names the parts of uploads and downloads, each a `Part`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from protosphere.prototypes.prototype_set import Kind

ENSEMBLE = "ensemble"  # the part of a message that does not belong to the method


@dataclass(frozen=True)
class Part:
    """One part of a message."""

    kind: Kind  #: prototypes, mixtures or weights
    name: str = ""  #: in messages; "" for the name of its kind
    # of prototypes and mixtures
    counts: bool = False  #: whether class counts are included
    fewest: int = 1  #: the smallest number of samples for which a class is sent
    components: int | None = 1  #: of mixtures, the largest number per class; None for any number
    width: int | Literal["features", "classes"] = "features"  #: values per prototype, or variances per component
    sums: bool = False  #: of an upload, whether a vector sums up samples, whose number multiplies its bound
    factor: str = ""  #: of a download, the name of the run's constant by which clients multiply it
    # of weights
    signed: bool = False  #: whether a variance may be negative, as in a change of weights
    ragged: bool = False  #: whether tensors may be smaller than their layout; their shapes are sent with them
    disclosure: str = ""  #: what they disclose about a client, if they are not those of a model
    #: the number format of prototypes and of matrices of weights; "" for the run's `wire-dtype`
    dtype: Literal["", "float32", "float16"] = ""

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
    """The parts of a method's messages. Disclosures, checks, byte counts and refusals follow from it."""

    up: tuple[Part, ...] = (PROTOTYPES,)  #: from client to server; empty if nothing is sent
    down: tuple[Part, ...] = (PROTOTYPES,)  #: from server to client
    discloses: tuple[str, ...] = ()  #: what else the server can learn from the uploads, in words
    either: bool = False  #: whether a message holds one of the parts, which the server half decides, instead of all
    hides_counts: bool = False  #: whether uploads hide class counts, so that nothing else may disclose them by default
    once: bool = False  #: whether clients store the download, which is sent again only after a change

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
        return any(part.counts for part in self.up)

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
