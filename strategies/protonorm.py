"""ProtoNorm (Lee, Shin, Choi, 2025; arXiv 2507.04310): prototypes spread as far apart as possible on the sphere, and
scaled up.

    server   P_j = mean over N_j of p_ij                                       (Eq. 7)
             c_j = P_j / ||P_j||, then alignment of all c_j: least logarithmic energy of K points on the unit sphere
             (Eq. 10, in place of the Thomson problem's Eq. 8; Algorithm 1, Eq. 11-14); the unit vectors are sent
    client   L = CE(g(z), y) + lambda R(z, gamma c_y)                          (Eq. 4, 15)
    predict  argmin_j ||z - p_ij||                                             (Eq. 6)

Departures. By default (`alignment = "auto"`) the alignment is the regular simplex if it fits (K <= d + 1), which is the
exact optimum, and L-BFGS to convergence otherwise. `thomson` is Algorithm 1, which stops short of the optimum: after
`iterations`, or by the paper's rule, when "10 consecutive changes of F_j fall below the threshold". `stop` force reads
that rule as the release does: the mean norm of the forces, rounded to multiples of `epsilon`, stays the same ten times.
(The release lowers its step after the first iteration, we after the tenth: runs end within about ten iterations of each
other.) A class that was not reported this round enters with its last aligned direction.

R pulls each sample, while Eq. 5 and 15 sum over class means. The paper has lambda 1 and the Euclidean distance, its
release lambda 10 and the mean squared error; our defaults are lambda 1 and the mean squared error (`prototype-weight`,
`prototype-loss`). Algorithm 2 starts with one direction per class, so that round 1 has targets: `initial-directions`
random, as in the paper's presets; by default, round 1 has none. In the release, clients of one architecture start from
different weights (`shared-init` false). gamma is 10 by default, because the paper's 100 to 400 oscillate in short runs;
the presets that reproduce tables set the paper's values.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.alignment import Alignment, align
from protosphere.prototypes.sphere import directions as unit_directions
from protosphere.strategies.consensus import random_directions

TRACE_LIMIT = 1000  # iterations whose distances are recorded


@m.method_settings
class ProtoNormSettings:
    """`protonorm.*`.

    Attributes:
        gamma: scale of the targets, in units of feature norm. Paper: 100 (CIFAR-10), 200 (CIFAR-100, Flowers-102), 400
            (Tiny ImageNet); its Table 4: 1 to 1000.
        alignment: the solver: simplex (exact, K <= d + 1), riesz (any K), thomson (the paper's), or none (means are
            only normalised).
        energy_exponent: s of the Riesz energy that `riesz` minimises; 0 is logarithmic (paper), 1 is Thomson's.
        iterations: maximum number of `thomson` steps. Release: 500.
        stop: early stopping of `thomson`; force is the paper's rule.
        epsilon: threshold of `stop`. The release compares four decimals.
        initial_directions: targets of round 1: random unit vectors (Algorithm 2) or none.
    """

    gamma: m.Positive = 10.0
    alignment: Literal["auto", "simplex", "riesz", "thomson", "none"] = "auto"
    energy_exponent: m.NotNegative = 0.0
    iterations: m.AtLeastOne = 100
    stop: Literal["none", "force", "tangential"] = "none"
    epsilon: m.Positive = 1e-4
    initial_directions: Literal["none", "random"] = "none"


class ProtoNormObjective(m.PullObjective):
    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """Eq. 15: the client, not the server, scales."""
        if received is None:
            return None
        directions = m.prototypes_of(received)
        return directions.with_vectors(self.options[ProtoNormSettings].gamma * directions.vectors)


class ProtoNorm(m.ServerHalf):
    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        if self.options[ProtoNormSettings].alignment == "simplex" and num_classes > dim + 1:
            raise m.SettingError(
                f"`protonorm.alignment` is simplex, which needs `feature-dim` of {num_classes - 1} at least for "
                f"{num_classes} classes (it is {dim}); raise it, or choose riesz."
            )
        return ()

    def begin(self) -> m.Outcome:
        """Algorithm 2, line 1."""
        if self.options[ProtoNormSettings].initial_directions == "none":
            return super().begin()
        prototypes = random_directions(self.num_classes, self.dim, self.settings.seed, "protonorm")
        return m.Outcome(m.as_state(prototypes), m.to_everyone(prototypes))

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Algorithm 1 on the directions of all classes that were ever reported."""
        fresh = m.aggregate(list(m.prototype_sets(uploads).values()), "mean")
        directions = m.fill_missing_classes(state, fresh)
        options = self.options[ProtoNormSettings]
        seed = m.derive(self.settings.seed, "round", server_round, "alignment")
        figures: Mapping[str, m.Figure] = {}
        if options.alignment == "none":
            points, directionless = _normalise(directions.vectors, seed)
        else:
            alignment = align(
                directions.vectors,
                options.alignment,
                s=options.energy_exponent,
                iterations=options.iterations,
                stop=options.stop,
                epsilon=options.epsilon,
                seed=seed,
                num_classes=self.num_classes,
                traced=server_round == 1 and options.iterations <= TRACE_LIMIT,
            )
            points, directionless, figures = alignment.points, alignment.directionless, _list_figures(alignment)
        warnings = [
            f"the prototype of {self.class_word(label)} is zero (are all its features dead?); it was replaced by a "
            "random direction"
            for label in directions.labels[list(directionless)].tolist()
        ]
        aligned = directions.with_vectors(points)
        # clients multiply the unit vectors by gamma
        scales = options.gamma, 1.0
        return m.Outcome(m.as_state(aligned), m.to_everyone(aligned), figures, warnings, scales=scales)


def _normalise(vectors: Tensor, seed: int) -> tuple[Tensor, Sequence[int]]:
    """Unit vectors, and which of them had no direction, as `align` starts."""
    points, directionless = unit_directions(vectors.double().numpy(), np.random.default_rng(seed))
    return torch.from_numpy(points).to(vectors.dtype), directionless


def _list_figures(alignment: Alignment) -> dict[str, m.Figure]:
    trace: dict[str, m.Figure] = {}
    if alignment.trace:
        # the paper's Figure 4, for the first alignment only
        columns = zip(*alignment.trace, strict=True)
        trace = {"alignment_trace": dict(zip(("min", "mean", "max"), map(list, columns), strict=True))}
    return {
        **trace,
        "alignment_solver": alignment.solver,
        "alignment_iterations": alignment.iterations,
        "alignment_ended_by": alignment.ended_by,
        "alignment_energy": alignment.energy,
        "distance_min": alignment.minimum_distance,
        "distance_mean": alignment.mean_distance,
        "distance_max": alignment.maximum_distance,
        "distance_share": alignment.share,
    }


METHOD = m.Method(
    server=ProtoNorm, objective=ProtoNormObjective, settings={"protonorm": ProtoNormSettings}, releases=m.any_options
)
