"""All that survives a round, so that a resumed run goes on as if it had never been cut; and its form in a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from protosphere.server_app.feature import Feature
from protosphere.strategies.contract import State
from protosphere.wire.payloads import Payload, from_tensors, to_tensors

# Of a version in which the means of releases lay beside the downloads.
OLD_PREFIX, PREFIX = "download/-2/", "feature/encoder-means/"


@dataclass
class RoundState:
    """What the rounds know when one has ended.

    Attributes:
        last_round: the number of the last finished round.
        method: the tensors of the method's server half. constants: what that worked out once for the run. group_names:
            how it names groups of clients.
        downloads: partition -> payload of the next round; under `EVERYONE` that of all who have none of their own.
        trained: partition -> the last round whose training the server took from this client.
    """

    last_round: int = 0
    method: State = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    group_names: dict[str, int] = field(default_factory=dict)
    downloads: Mapping[int, Payload] = field(default_factory=dict)
    trained: dict[int, int] = field(default_factory=dict)


def pack(state: RoundState, features: Sequence[Feature] = ()) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """For the checkpoint: named tensors, and the rest as JSON has it."""
    tensors = {f"state/{name}": tensor for name, tensor in state.method.items()}
    for key, payload in state.downloads.items():
        tensors |= {f"download/{key}/{name}": tensor for name, tensor in to_tensors(payload).items()}
    stored: dict[str, Any] = {
        "round": state.last_round,
        "constants": dict(state.constants),
        "group_names": dict(state.group_names),
        "trained": {str(partition): number for partition, number in sorted(state.trained.items())},
    }
    for feature in features:
        if feature.stored_as:
            stored[feature.stored_as] = feature.state()
        tensors |= {f"feature/{feature.tensors_as}/{name}": tensor for name, tensor in feature.tensors().items()}
    return tensors, stored


def unpack(tensors: Mapping[str, Tensor], stored: Mapping[str, Any], features: Sequence[Feature] = ()) -> RoundState:
    """Inverse of `pack`; the features take up what is theirs."""
    state = RoundState(
        last_round=stored["round"],
        constants=stored["constants"],
        group_names=stored.get("group_names", {}),
        trained={int(partition): number for partition, number in stored["trained"].items()},
    )
    downloads: dict[int, dict[str, Tensor]] = {}
    of_features: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, local_name = name.replace(OLD_PREFIX, PREFIX, 1).partition("/")
        if kind == "state":
            state.method[local_name] = tensor
            continue
        owner, _, entry = local_name.partition("/")
        if kind == "feature":
            of_features.setdefault(owner, {})[entry] = tensor
        else:
            downloads.setdefault(int(owner), {})[entry] = tensor
    state.downloads = {key: from_tensors(entries) for key, entries in downloads.items()}
    for feature in features:
        if feature.stored_as or feature.tensors_as:
            feature.load(stored.get(feature.stored_as), of_features.get(feature.tensors_as, {}))
    return state
