"""What a strategy keeps of a finished round, so that a resumed run goes on as if it had never been cut."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from runs.snapshot import snapshot
from strategies.outcome import pack, unpack
from strategies.rounds.outliers import Outliers

if TYPE_CHECKING:
    from strategies.rounds.flower import PrototypeStrategy


def save(strategy: "PrototypeStrategy") -> None:
    """Write the round's checkpoint; before it, for the report, the prototypes that came and went."""
    if strategy.uploads:
        tensors, counts = snapshot(strategy.uploads, strategy.downloads, *strategy.scales)
        strategy.folder.save_prototypes(tensors, {"round": strategy.last_round, **counts})
        strategy.uploads = {}
    strategy.folder.save_checkpoint(pack(strategy.state, strategy.downloads), _meta(strategy))


def _meta(strategy: "PrototypeStrategy") -> dict[str, Any]:
    return {
        "round": strategy.last_round,
        "first_norm": strategy.first_norm,
        "outliers": strategy.outliers.as_json(),
        "constants": dict(strategy.constants),
        "trained": {str(partition): made_in for partition, made_in in sorted(strategy.trained.items())},
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
    strategy.constants = meta["constants"]
    strategy.trained = {int(partition): made_in for partition, made_in in meta["trained"].items()}
    strategy.state, strategy.downloads = unpack(tensors)
