"""The state after a round, from which an interrupted run resumes exactly, and its form in a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from protosphere.strategies.contract import State
from protosphere.wire.payloads import Payload, from_tensors, to_tensors


@dataclass
class RoundState:
    """The state of the rounds after one has ended.

    Attributes:
        last_round: the number of the last finished round.
        method: the tensors of the method's server half. constants: numbers that it computed once for the run.
            group_names: its names for groups of clients.
        downloads: partition -> payload of the next round; `EVERYONE` holds the payload of all clients without one of
            their own.
        trained: partition -> the last round in which the server accepted this client's training.
        membership: how long clients have been absent, if clients may come and go (`Membership.as_json`).
        held: which download each client holds, for methods that send it once (`HeldDownloads.as_json`).
        releases: the means of private releases (`Releases.tensors`).
    """

    last_round: int = 0
    method: State = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    group_names: dict[str, int] = field(default_factory=dict)
    downloads: Mapping[int, Payload] = field(default_factory=dict)
    trained: dict[int, int] = field(default_factory=dict)
    membership: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, Any] = field(default_factory=dict)
    releases: Mapping[str, Tensor] = field(default_factory=dict)


def pack(state: RoundState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Make named tensors and JSON metadata for the checkpoint."""
    tensors = {f"state/{name}": tensor for name, tensor in state.method.items()}
    tensors |= {f"release/{name}": tensor for name, tensor in state.releases.items()}
    for key, payload in state.downloads.items():
        tensors |= {f"download/{key}/{name}": tensor for name, tensor in to_tensors(payload).items()}
    stored: dict[str, Any] = {
        "round": state.last_round,
        "constants": dict(state.constants),
        "group_names": dict(state.group_names),
        "trained": {str(partition): number for partition, number in sorted(state.trained.items())},
        "membership": dict(state.membership),
        "held": dict(state.held),
    }
    return tensors, stored


def unpack(tensors: Mapping[str, Tensor], stored: Mapping[str, Any]) -> RoundState:
    """Inverse of `pack`."""
    method: State = {}
    releases: dict[str, Tensor] = {}
    downloads: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, local_name = name.partition("/")
        if kind == "state":
            method[local_name] = tensor
        elif kind == "release":
            releases[local_name] = tensor
        else:
            key, _, entry = local_name.partition("/")
            downloads.setdefault(int(key), {})[entry] = tensor
    return RoundState(
        last_round=stored["round"],
        method=method,
        constants=stored["constants"],
        group_names=stored["group_names"],
        downloads={key: from_tensors(entries) for key, entries in downloads.items()},
        trained={int(partition): number for partition, number in stored["trained"].items()},
        membership=stored["membership"],
        held=stored["held"],
        releases=releases,
    )
