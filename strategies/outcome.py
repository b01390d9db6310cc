"""What a method makes of a round's uploads, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from federation.wire.payloads import Payload, from_tensors, to_tensors
from prototypes.prototype_set import PrototypeSet

State = dict[str, Tensor]
Figure = float | int | str | None
EVERYONE = -1  # the key of a download that is the same for all


@dataclass(frozen=True)
class Outcome:
    """What a method makes of a round's uploads.

    Attributes:
        state: its tensors, kept across rounds, in checkpoints and on resume.
        downloads: partition -> payload of the next round; under `EVERYONE` that of all who have none of their own.
        figures: what to record beside the round, by name.
        warnings: sentences for the person who watches.
    """

    state: State
    downloads: Mapping[int, Payload]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def pack(state: State, downloads: Mapping[int, Payload]) -> dict[str, Tensor]:
    """State and downloads as named tensors, for the checkpoint."""
    tensors = {f"state/{name}": tensor for name, tensor in state.items()}
    for key, payload in downloads.items():
        tensors |= {f"download/{key}/{name}": tensor for name, tensor in to_tensors(payload).items()}
    return tensors


def unpack(tensors: Mapping[str, Tensor]) -> tuple[State, dict[int, Payload]]:
    """Inverse of `pack`."""
    state: State = {}
    parts: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "state":
            state[rest] = tensor
        else:
            key, _, part = rest.partition("/")
            parts.setdefault(int(key), {})[part] = tensor
    return state, {key: from_tensors(found) for key, found in parts.items()}


def as_state(prototypes: PrototypeSet) -> State:
    """A prototype set as a method's state; the labels and vectors alone."""
    return {"labels": prototypes.labels, "vectors": prototypes.vectors}


def remembered(state: State) -> PrototypeSet:
    """Inverse of `as_state`."""
    return PrototypeSet(state["labels"], state["vectors"])


def carried_on(state: State, fresh: PrototypeSet) -> PrototypeSet:
    """This round's prototypes, and the remembered ones of the classes that nobody reported."""
    return remembered(state).updated_by(fresh) if state else fresh
