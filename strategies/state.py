"""What a client's half of a method works on: the client between its rounds, a batch, a loss, a stretch of training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.wire.payloads import Payload

# A constant of the messages to a client that has joined later, of a method that counts own rounds.
ROUND_OF_JOINING = "round-of-joining"
EQUAL_WEIGHT = 0.5  # of the two that a pool joins


def own_round(constants: Mapping[str, float], round_number: int) -> int:
    """The number of a round as a client counts that joined in the round which its constants name; of one that was there
    from the start the same."""
    return round_number - int(constants.get(ROUND_OF_JOINING, 1)) + 1


@dataclass
class ClientState:
    """All that a client has besides its data; the store saves it as one.

    Attributes:
        module: the nn.Module that `Objective.build` returned; only its own objective knows more of it.
        prototypes: local prototypes p_ij with their counts, over the training rows after training.
        covariance: (d, d) float64, the discriminant's, over the same rows. None without training rows.
        constants: the numbers that the server works out once for the run; they come with every message.
        targets: what was received, as the loss uses it (scaled, masked); None before the first.
        table: the same as (vectors (K, d), present (K,)) on the device, laid out once a message.
        received: what a method keeps of a message for the training that it starts; not stored.
        features: z (n, d) and labels (n,) of the training rows after training, for the upload; gone after it.
        encoded: gives u (n, d) and labels (n,) of the training rows, for the upload of a method that `encodes`.
        pool_weight: what the shared discriminant weighs in the rule `pool`, in [0, 1]; as the last evaluation chose it.
        space: what `Objective.complete` made for the rules `encoder` and `pool`, as of the last evaluation.
        kept: further tensors that a method keeps between rounds.
        optimiser: the optimisers' tensors by phase, kept only with `optimizer-state = "persistent"`.
    """

    module: Any
    prototypes: PrototypeSet | None = None
    covariance: Tensor | None = None
    constants: Mapping[str, float] = field(default_factory=dict)
    targets: PrototypeSet | None = None
    table: tuple[Tensor, Tensor] | None = None
    received: Payload | None = None
    features: tuple[Tensor, Tensor] | None = None
    encoded: Callable[[], tuple[Tensor, Tensor]] | None = None
    pool_weight: float = EQUAL_WEIGHT
    space: Payload | None = None
    kept: dict[str, Tensor] = field(default_factory=dict)
    optimiser: dict[str, Tensor] = field(default_factory=dict)

    def forget(self) -> None:
        """Let go what is of one message alone."""
        self.features = self.received = self.encoded = None
        self.module.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class Batch:
    """inputs (b, ...) float32 as the model takes them; labels (b,) int64."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Loss:
    """A batch's loss.

    Attributes:
        total: what is minimised.
        parts: its unweighted terms by name, `cross-entropy` among them; each a scalar with its graph.
        features: z (b, d), with the graph that leads to `total`.
    """

    total: Tensor
    parts: dict[str, Tensor]
    features: Tensor


@dataclass(frozen=True)
class Phase:
    """A stretch of training.

    Attributes:
        name: for seeds, logs and the optimiser's place in the store.
        parameters: what is trained; all else stands still.
        rows: (inputs, labels) to draw batches from as the model takes them; None for the client's training rows.
        epochs: passes over them.
        optimiser: builds the optimiser; None for the settings' SGD.
        fresh: whether the optimiser starts anew each time, whatever `optimizer-state` says.
        rate: the setting that holds its learning rate, to be named where training diverges.
    """

    name: str
    parameters: list[nn.Parameter]
    rows: tuple[Tensor, Tensor] | None = None
    epochs: int = 1
    optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None
    fresh: bool = False
    rate: str = "learning-rate"
