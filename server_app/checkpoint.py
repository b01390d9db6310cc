"""All that survives a round, so that a resumed run goes on as if it had never been cut; and its form in a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from protosphere.strategies.contract import State
from protosphere.wire.payloads import Payload, from_tensors, to_tensors


@dataclass
class RoundState:
    """What the rounds know when one has ended.

    Attributes:
        last_round: the number of the last finished round.
        method: the tensors of the method's server half. constants: what that worked out once for the run. group_names:
            how it names groups of clients.
        downloads: partition -> payload of the next round; under `EVERYONE` that of all who have none of their own.
        trained: partition -> the last round whose training the server took from this client.
        membership: who has gone for how long, of a run whose clients come and go (`Membership.as_json`).
        held: who has which download, of a method that sends it once (`HeldDownloads.as_json`).
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
    """For the checkpoint: named tensors, and the rest as JSON has it."""
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
