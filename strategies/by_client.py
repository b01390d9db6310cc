"""Parts of several clients as a method's state, in few tensors whatever their number."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TypeVar

import torch

from protosphere import method as m

CLIENTS, SIZES = "clients", "sizes"  # entries of the state: each client's partition, and the rows of its part
P = TypeVar("P", bound=m.ClassVectors)


def pack_parts(by_client: Mapping[int, P]) -> m.State:
    """The parts of one client or more, in the mapping's order."""
    parts = [part.fields() for part in by_client.values()]
    state = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    sizes = torch.tensor([len(part) for part in by_client.values()], dtype=torch.int64)
    return state | {CLIENTS: torch.tensor(list(by_client), dtype=torch.int64), SIZES: sizes}


def unpack_parts(kind: type[P], state: m.State) -> dict[int, P]:
    """Inverse of `pack_parts`; other entries of the state are ignored, and one without parts gives none."""
    by_client: dict[int, P] = {}
    if CLIENTS not in state:
        return by_client
    # all parts are dataclasses, but their base is not
    names = [entry.name for entry in fields(kind) if entry.name in state]  # type: ignore[arg-type]
    start = 0
    for partition, size in zip(state[CLIENTS].tolist(), state[SIZES].tolist(), strict=True):
        rows = slice(start, start + size)
        start = rows.stop
        by_client[partition] = kind.from_fields({name: state[name][rows] for name in names})
    return by_client
