"""What a strategy keeps of a finished round, so that a resumed run goes on as if it had never been cut; and of a run
that has come to its end."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record.metrics_lines import companions, summarise
from protosphere.record.snapshot import snapshot
from protosphere.server_app.features.download_once import Holding
from protosphere.server_app.features.outliers import Outliers
from protosphere.strategies.contract import State
from protosphere.wire.payloads import EVERYONE, Payload, from_tensors, to_tensors

if TYPE_CHECKING:
    from protosphere.server_app.rounds import PrototypeStrategy
MEANS = -2  # the key of the means of releases, which lie beside the downloads


def save(strategy: "PrototypeStrategy") -> None:
    """Write the round's checkpoint; before it, for the report, the prototypes that came and went."""
    # of this round alone: what is shown is named after it
    common = strategy.half.global_prototypes(strategy.state) if strategy.holding.made == strategy.last_round else None
    if (strategy.uploads or common is not None) and strategy.run.exchange.pointwise:
        downloads = strategy.downloads if common is None else {EVERYONE: common}
        tensors, counts = snapshot(strategy.uploads, downloads, *strategy.half.scales)
        strategy.folder.save_prototypes(tensors, {"round": strategy.last_round, **counts})
    strategy.uploads = {}
    means = {} if strategy.means is None else {MEANS: strategy.means}
    strategy.folder.save_checkpoint(pack(strategy.state, {**strategy.downloads, **means}), _meta(strategy))


def _meta(strategy: "PrototypeStrategy") -> dict[str, Any]:
    return {
        "round": strategy.last_round,
        "first_norm": strategy.first_norm,
        "outliers": strategy.outliers.as_json(),
        "constants": dict(strategy.half.constants),
        "trained": {str(partition): made_in for partition, made_in in sorted(strategy.trained.items())},
        "holding": strategy.holding.as_json(),
    }


def restore(strategy: "PrototypeStrategy", rounds: int) -> None:
    """Take up the run's checkpoint.

    Raises:
        SettingError: it cannot be read, or is of a later round than `rounds`.
    """
    tensors: dict[str, Tensor]
    tensors, meta = strategy.folder.load_checkpoint()
    strategy.last_round = meta["round"]
    strategy.folder.refuse_fewer_rounds(rounds, strategy.last_round)
    strategy.first_norm = meta["first_norm"]
    strategy.outliers = Outliers.from_json(meta["outliers"])
    strategy.half.constants = meta["constants"]
    strategy.trained = {int(partition): made_in for partition, made_in in meta["trained"].items()}
    strategy.holding = Holding.from_json(meta.get("holding", {"made": strategy.last_round}))
    strategy.state, downloads = unpack(tensors)
    means = downloads.pop(MEANS, None)
    strategy.downloads, strategy.means = downloads, means if isinstance(means, PrototypeSet) else None


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


def leave_summary(strategy: "PrototypeStrategy", rounds: int) -> None:
    """Write the outcome of a run that has come to its end, be it before its last round.

    Args:
        rounds: those that it was asked for.
    """
    identities = strategy.roster.identities.values()
    summary = summarise(
        strategy.settings,
        strategy.run.inference,
        strategy.folder.settings(),
        strategy.folder.lines(),
        len(strategy.roster.nodes),
        companions(identity.companion for identity in identities),
        strategy.stopping.by if strategy.last_round < rounds else "",
    )
    strategy.folder.write_summary(summary)
