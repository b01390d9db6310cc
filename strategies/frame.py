"""`frame`: ProtoNorm's control: targets come from the seed alone, and nothing is exchanged.

    c        K unit vectors: a regular simplex if it fits (K <= d + 1), else a minimum of the logarithmic energy
    client   L = CE(g(z), y) + lambda R(z, gamma c_y), as ProtoNorm's (Eq. 4, 15 there), the same c in every round
    predict  argmin_j ||z - p_ij||

If K <= d + 1, ProtoNorm's aligned targets are also a regular simplex, whatever the clients send: their prototypes only
rotate it. The difference between ProtoNorm and this control is what its exchange is worth. Each client computes the
targets itself, so none are sent. GFPL (Lu et al., section 4.1) had such a control first: its fixed simplex frame alone,
"w/o PFG", beats FedProto without any exchange; there features are projected onto the frame, here they are pulled to it.
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
    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet:
        """gamma c of all classes, from round 1 on."""
        settings = self.settings
        frame = seeded_frame(self.num_classes, settings.feature_dim, settings.seed)
        return frame.with_vectors(self.options[FrameSettings].gamma * frame.vectors)

    def upload(self, state: m.ClientState, round_number: int) -> None:
        """Nothing."""


# one frame per process: a deployment starts a process for each message
@lru_cache(maxsize=8)
def seeded_frame(num_classes: int, dim: int, seed: int) -> m.PrototypeSet:
    """Seeded random directions, spread over the sphere: (K, d) unit vectors.

    A simplex (K <= d + 1) is equal on all machines. For larger K, a solver finds a minimum of the energy, and machines
    with other matrix-product kernels may end at points some hundredths away.
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
