"""Which clients train in a round."""

from collections.abc import Mapping

import torch

from protosphere.core.seeds import generator
from protosphere.core.settings import Settings
from protosphere.wire.payloads import Identity


def sampled(settings: Settings, identities: Mapping[int, Identity], server_round: int) -> list[int]:
    """Partition ids that train in this round: round(rho M) of the M clients with training rows, one at least.

    Drawn from the stream (seed, round, "sample"), so neither node ids nor earlier rounds matter.
    """
    candidates = [p for p, identity in sorted(identities.items()) if identity.trains]
    count = int(settings.fraction_train * len(candidates) + 0.5)
    count = min(len(candidates), max(count, 1))
    order = torch.randperm(len(candidates), generator=generator(settings.seed, "round", server_round, "sample"))
    return sorted(candidates[index] for index in order[:count].tolist())
