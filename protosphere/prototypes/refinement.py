"""FedPAGR's geometric refinement (sections 3.4 and 3.5): global prototypes that agree with the clients' and are well
separated.

The agreement term is computed from one sum per class and the separation term from one Gram matrix, so the cost does not
grow with the number of clients, and no K x K x d array is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protosphere.prototypes.aggregation import aggregate
from protosphere.prototypes.prototype_set import PrototypeSet

# if the mean of a class's unit prototypes is shorter, its direction is only rounding error of float32
NO_DIRECTION = 1e-6


@dataclass(frozen=True)
class Geometry:
    """Where unit prototypes lie to the clients' and to each other.

    agreement: Σ_c Σ_{k∈K_c} (1 - p_kc·p̃_c) (Eq. 5), from 0 to twice the number of uploaded prototypes.
    separation: Σ_{c≠c'} max(0, p̃_c·p̃_c' - m) (Eq. 6) over ordered pairs, without its weight.
    largest_cosine: of two different classes; None with fewer than two.
    """

    agreement: float
    separation: float
    largest_cosine: float | None


@dataclass(frozen=True, eq=False)
class Refinement:
    """Refined prototypes: points (k, d), unit rows in the start's dtype and device; before and after the steps."""

    points: Tensor
    before: Geometry
    after: Geometry


def class_sums(sets: Sequence[PrototypeSet], num_classes: int) -> tuple[Tensor, Tensor]:
    """The sums of the clients' unit prototypes of each class, (K, d) float64, and their numbers |K_c|, (K,) int64.

    Rows are normalised here. A row of zeros has no direction and counts as not reported; a class that nobody
    reported has sum 0 and number 0. The order of the sets matters no more than rounding. Raises ValueError for no
    sets, sets that do not fit together, and a label of num_classes or more.
    """
    units = [_unit_set(prototypes) for prototypes in sets]
    means, present = aggregate(units, "mean").table(num_classes)
    counts = torch.zeros(num_classes, dtype=torch.int64, device=present.device)
    for unit_set in units:
        counts[unit_set.labels] += 1
    return means * counts.unsqueeze(1), counts


def mean_directions(sums: Tensor, counts: Tensor, previous: Tensor) -> Tensor:
    """P̄ (Eq. 3): each class's normalised mean, (k, d) in the previous prototypes' dtype and device.

    sums, counts: of `class_sums`. previous: (k, d), the prototypes of the round before. They stay for a class that
    nobody reported, and for one whose clients contradict each other so that their mean has no direction (shorter
    than 1e-6).
    """
    lengths = torch.linalg.vector_norm(sums, dim=1)
    directed = lengths > NO_DIRECTION * counts
    means = (sums / torch.where(directed, lengths, 1.0).unsqueeze(1)).to(previous)
    return torch.where(directed.to(previous.device).unsqueeze(1), means, previous)


def refinement_loss(
    prototypes: Tensor, sums: Tensor, counts: Tensor, separation_weight: float, margin: float
) -> Tensor:
    """L_server (Eq. 4): the agreement loss plus separation_weight (λ_S) times the separation loss; a scalar.

    prototypes: p̃, (k, d) unit rows. sums: (k, d), counts: (k,), of `class_sums`; a class with sum and count 0 takes
    part in separation alone. margin: m, a cosine.
    """
    return agreement(prototypes, sums, counts) + separation_weight * separation(prototypes, margin)


def agreement(prototypes: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """Eq. 5, Σ_c Σ_{k∈K_c} (1 - p_kc·p̃_c), as Σ_c (|K_c| - (Σ_k p_kc)·p̃_c); arguments as for `refinement_loss`."""
    return counts.sum() - (sums * prototypes).sum()


def separation(prototypes: Tensor, margin: float) -> Tensor:
    """Eq. 6, Σ_{c≠c'} max(0, p̃_c·p̃_c' - m), each pair in both orders; prototypes (k, d) unit rows; a scalar."""
    excess = torch.relu(prototypes @ prototypes.T - margin)
    return 2 * excess.triu(diagonal=1).sum()


def refine(
    start: Tensor,
    sums: Tensor,
    counts: Tensor,
    *,
    steps: int = 5,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    separation_weight: float = 0.5,
    margin: float = 0.3,
) -> Refinement:
    """T steps of SGD on L_server from P̄, rows normalised in the forward pass, then projected to the sphere.

    start: (k, d), P̄ of `mean_directions`; its rows are normalised first. sums, counts: of `class_sums`, one row a
    class of `start`. steps: T; 0 gives the start's directions. learning_rate, momentum: of an SGD that starts fresh.
    separation_weight: λ_S >= 0. margin: m, a cosine in [-1, 1].

    Computed in float64 on the CPU; the same call gives the same bits. The agreement term sums over clients, so its
    gradient grows with their number: above some 2 (1 + momentum) / learning_rate agreeing clients a class (380 with
    the paper's values) the steps overshoot, which `after` shows. Raises ValueError for settings out of range, parts
    that do not fit together, and rows of the start that are zero or not finite.
    """
    _check_settings(steps, learning_rate, momentum, separation_weight, margin)
    _check_parts(start, sums, counts)
    points = normalize(_exact(start), dim=1)
    sums, counts = _exact(sums), _exact(counts)
    before = _geometry(points, sums, counts, margin)
    free = points.clone().requires_grad_()
    velocity = torch.zeros_like(points)
    for _ in range(steps):
        with torch.enable_grad():
            loss = refinement_loss(normalize(free, dim=1), sums, counts, separation_weight, margin)
        (gradient,) = torch.autograd.grad(loss, free)
        # torch's optimiser imports the compiler when the first one is created, which takes seconds
        velocity = velocity.mul(momentum).add(gradient)
        with torch.no_grad():
            free.add_(velocity, alpha=-learning_rate)
    points = normalize(free.detach(), dim=1)
    return Refinement(points.to(start), before, _geometry(points, sums, counts, margin))


def _unit_set(prototypes: PrototypeSet) -> PrototypeSet:
    """The set's directions in float64, without counts; rows of zeros are left out."""
    vectors = prototypes.vectors.double()
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    directed = lengths > 0
    return PrototypeSet(prototypes.labels[directed], vectors[directed] / lengths[directed].unsqueeze(1))


def _exact(tensor: Tensor) -> Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float64)


def _geometry(points: Tensor, sums: Tensor, counts: Tensor, margin: float) -> Geometry:
    largest = None
    if len(points) > 1:
        largest = float((points @ points.T).fill_diagonal_(-math.inf).max())
    return Geometry(float(agreement(points, sums, counts)), float(separation(points, margin)), largest)


def _check_settings(steps: int, learning_rate: float, momentum: float, separation_weight: float, margin: float) -> None:
    if steps < 0:
        raise ValueError(f"The refinement got {steps} steps; it needs 0 or more.")
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"The refinement's learning rate is {learning_rate}; it must be a number above 0.")
    if not 0 <= momentum < 1:
        raise ValueError(f"The refinement's momentum is {momentum}; it must be at least 0 and below 1.")
    if not 0 <= separation_weight < math.inf:
        raise ValueError(f"The weight of the separation is {separation_weight}; it must be a number of at least 0.")
    if not -1 <= margin <= 1:
        raise ValueError(f"The margin of the separation is {margin}; it is a cosine and must lie in [-1, 1].")


def _check_parts(start: Tensor, sums: Tensor, counts: Tensor) -> None:
    if start.dim() != 2 or not start.is_floating_point() or sums.shape != start.shape or counts.shape != sums.shape[:1]:
        raise ValueError(
            f"Prototypes to refine of shape {tuple(start.shape)} and dtype {start.dtype} do not go with sums of shape "
            f"{tuple(sums.shape)} and counts of shape {tuple(counts.shape)}; they must be floating-point (k, d), "
            "(k, d) and (k,), one row per class."
        )
    usable = start.isfinite().all(dim=1) & sums.isfinite().all(dim=1) & start.any(dim=1)
    broken = (~usable).nonzero().flatten().tolist()
    if broken:
        raise ValueError(
            f"Row {broken[0]} of the {len(start)} prototypes to refine is zero or not finite, or its sum is not "
            "finite; a class without a direction must keep its previous prototype, and a diverged upload must be "
            "dropped before."
        )
