"""`frame`: ProtoNorm's control. Targets from the seed alone, so that nothing is exchanged.

    c        K unit vectors: a regular simplex where it fits (K <= d + 1), else a minimum of the logarithmic energy
    client   L = CE(g(z), y) + lambda R(z, gamma c_y), as ProtoNorm's (Eq. 4, 15 there), the same c in every round
    predict  argmin_j ||z - p_ij||

Where K <= d + 1 ProtoNorm's aligned targets are a regular simplex too, whatever the clients send: their prototypes
only rotate it. What ProtoNorm has above this row is what its exchange is worth. Every client works the targets out by
itself; no byte of them crosses. GFPL (Lu et al., section 4.1) had such a control first: its fixed simplex frame alone,
"w/o PFG", above FedProto with nothing exchanged; there features are projected onto it, here they are pulled to it.
"""

from functools import lru_cache

import torch

from protosphere import method as m
from protosphere.prototypes.alignment import align


@m.method_settings
class FrameSettings:
    """`frame.*`.

    Attributes:
        gamma: scale of the targets, as `protonorm.gamma`.
    """

    gamma: m.Positive = 10.0


class FrameObjective(m.PullObjective):
    """Client half: the shared prototype pull, with t = gamma c."""

    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet:
        """gamma c of all classes, from round 1 on."""
        settings = self.settings
        frame = seeded_frame(self.num_classes, settings.feature_dim, settings.seed)
        return frame.with_vectors(self.options[FrameSettings].gamma * frame.vectors)

    def upload(self, state: m.ClientState, round_number: int) -> None:
        """Nothing."""


# one a process: a deployment starts one for each message
@lru_cache(maxsize=8)
def seeded_frame(num_classes: int, dim: int, seed: int) -> m.PrototypeSet:
    """Seeded random directions, spread over the sphere: (K, d) unit rows.

    A simplex (K <= d + 1) is the same wherever it is worked out. Above that they are a minimum that a solver walks to,
    and machines with other kernels for matrix products may end at points some hundredths away.
    """
    directions = torch.randn(num_classes, dim, generator=m.generator(seed, "frame"), dtype=torch.float64)
    points = align(directions, "auto", seed=m.derive(seed, "frame", "alignment")).points
    return m.PrototypeSet(torch.arange(num_classes), points.float())


METHOD = m.Method(
    server=m.ServerHalf,
    objective=FrameObjective,
    settings={"frame": FrameSettings},
    exchange=lambda options: m.NOTHING,
    reads_prototypes=False,
)
