"""What a method says of its messages, as one value: which parts go up and come down, and what they tell beside."""

from dataclasses import dataclass
from typing import Literal

from protosphere.wire.transforms import Transform


@dataclass(frozen=True)
class Spec:
    """One part of a message.

    Attributes:
        kind: "prototypes", "mixtures" or "weights".
        name: its name on the wire; "": that of its kind.
        classwise: of prototypes, whether a row has K values (outputs) instead of d (features).
        counts: whether class counts go with it.
        components: of mixtures, the most components of a class; None for any number.
        waits: whether uploads wait in files until the round has closed, and are read one at a time.
        dtype: of weights, the number format in which they cross; "": the run's.
        change: whether they are a change of weights, in which a variance may be negative.
        told: of weights, what they tell of a client in words, where they are none of its model.
        transforms: what the method does to its values on the way, before masks and number format.
    """

    kind: str
    name: str = ""
    classwise: bool = False
    counts: bool = False
    components: int | None = 1
    waits: bool = False
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
    def waits(self) -> bool:
        """Whether uploads wait in files: where any part does, all of a message do."""
        return any(spec.waits for spec in self.up)

    @property
    def added(self) -> str:
        """The transforms that the method adds, by direction and part, as the codec's fingerprint names them."""
        directed = [(way, spec) for way, specs in (("up", self.up), ("down", self.down)) for spec in specs]
        names_by_part = [
            (f"{way}.{spec.name}", [transform.words for transform in spec.transforms]) for way, spec in directed
        ]
        return " ".join(f"{part}={'+'.join(names)}" for part, names in names_by_part if names)

    def said(self, masked: str = "") -> list[str]:
        """What the uploads tell of a client, in words.

        Args:
            masked: which values of its prototypes cross, " (5 of their 12 values)" or nothing.
        """
        disclosures = []
        for spec in self.up:
            if spec.kind == "weights":
                disclosures.append(spec.told or f"the trained weights of its {spec.name}")
            elif spec.classwise:
                disclosures.append("the mean outputs of its model for its classes")
            else:
                disclosures.append(f"{spec.kind} of its classes{masked}")
        return [*disclosures, *(["its class counts"] if self.counts else []), *self.discloses]


NOTHING = Exchange((), ())
