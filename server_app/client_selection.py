"""Which clients train in a round."""

from collections.abc import Sequence

import torch

from protosphere.core.seeds import generator
from protosphere.core.settings import Settings


def sampled(settings: Settings, candidates: Sequence[int], server_round: int) -> list[int]:
    """Partition ids that train in this round: round(rho M) of the M candidates, one at least.

    Drawn from the stream (seed, round, "sample"), so neither node ids nor earlier rounds matter.

    Args:
        candidates: the clients with training samples, in ascending order.
    """
    count = int(settings.fraction_train * len(candidates) + 0.5)
    count = min(len(candidates), max(count, 1))
    order = torch.randperm(len(candidates), generator=generator(settings.seed, "round", server_round, "sample"))
    return sorted(candidates[index] for index in order[:count].tolist())
