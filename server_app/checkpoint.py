"""The state after a round, from which an interrupted run resumes exactly, and its form in a file."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record.replies import Reply
from protosphere.strategies.contract import State
from protosphere.wire.payloads import Payload, from_tensors, to_tensors


@dataclass
class HeldDownloads:
    """Which download each client holds: a method that sends `once` sends again only after a change or a loss.

    Attributes:
        newest: the round whose uploads made the newest downloads; 0 before the first.
        round_by_partition: the round that made the client's download.
    """

    newest: int = 0
    round_by_partition: dict[int, int] = field(default_factory=dict)

    def has_newest(self, partition: int) -> bool:
        """Whether a client holds the newest download, which then need not be sent."""
        return 0 < self.newest == self.round_by_partition.get(partition)

    def note_replies(self, replies: Iterable[Reply], offered: Collection[int]) -> None:
        """A client with a valid reply holds what was offered; any other may have lost it, and gets it again.

        Args:
            offered: the partitions whose message contained or named the newest download.
        """
        for reply in replies:
            if not reply.valid:
                self.round_by_partition.pop(reply.partition, None)
            elif reply.partition in offered and self.newest:
                self.round_by_partition[reply.partition] = self.newest


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
        held_downloads: which download each client holds, for methods that send it once.
        means: under `privacy`, the mean of each class over the releases so far, which goes with each download for the
            rule `encoder`; None before the first.
    """

    last_round: int = 0
    method: State = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    group_names: dict[str, int] = field(default_factory=dict)
    downloads: Mapping[int, Payload] = field(default_factory=dict)
    trained: dict[int, int] = field(default_factory=dict)
    membership: Mapping[str, Any] = field(default_factory=dict)
    held_downloads: HeldDownloads | None = None
    means: PrototypeSet | None = None


def pack(state: RoundState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Make named tensors and JSON metadata for the checkpoint."""
    tensors = {f"state/{name}": tensor for name, tensor in state.method.items()}
    if state.means is not None:
        tensors |= {f"release/{name}": tensor for name, tensor in state.means.fields().items()}
    for key, payload in state.downloads.items():
        tensors |= {f"download/{key}/{name}": tensor for name, tensor in to_tensors(payload).items()}
    stored: dict[str, Any] = {
        "round": state.last_round,
        "constants": dict(state.constants),
        "group_names": dict(state.group_names),
        "trained": _as_json(state.trained),
        "membership": dict(state.membership),
        "held": {},
    }
    if (downloads := state.held_downloads) is not None:
        stored["held"] = {"made": downloads.newest, "held": _as_json(downloads.round_by_partition)}
    return tensors, stored


def unpack(tensors: Mapping[str, Tensor], stored: Mapping[str, Any]) -> RoundState:
    """Inverse of `pack`."""
    held_downloads = None
    if stored["held"]:
        held_downloads = HeldDownloads(stored["held"]["made"], _from_json(stored["held"]["held"]))
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
        trained=_from_json(stored["trained"]),
        membership=stored["membership"],
        held_downloads=held_downloads,
        means=PrototypeSet(**releases) if releases else None,
    )


def _as_json(rounds: Mapping[int, int]) -> dict[str, int]:
    """Rounds by partition."""
    return {str(partition): number for partition, number in sorted(rounds.items())}


def _from_json(rounds: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): number for partition, number in rounds.items()}
