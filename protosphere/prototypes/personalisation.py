"""PFPL's personalised prototypes: each client's own prototypes, mixed with those of similar clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from protosphere.prototypes.prototype_set import PrototypeSet, refuse_different_kinds

WEIGHTINGS = ("similarity", "distance")
EPSILON = 1e-8  # added to squared distances, so that an identical prototype has a finite weight
_BLOCK = 1 << 23  # weights per block: 64 MB


def personalise(
    sets: Mapping[int, PrototypeSet], alpha: float, weighting: str = "similarity"
) -> dict[int, PrototypeSet]:
    """Each client's personalised prototypes, of the classes that it holds (Eq. 4 of PFPL):

        P_i^(k) = α p_i^(k) + (1 − α) Σ_{m≠i} w_im p_m^(k),   Σ_m w_im = 1

    A client alone with a class gets its own prototype. All clients of a class are mixed in one product, in float64;
    beyond the sets and the result, memory grows with the clients of a class, not with their square.

    Args:
        sets: by client; all of one dimension and dtype.
        alpha: α in [0, 1]; 1 gives back what came, to the bit.
        weighting: see `mixing_weights`.

    Raises ValueError for an α out of range, an unknown weighting, and sets that do not fit together.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"The share α of a client's own prototype is {alpha}; it must lie between 0 and 1.")
    _check(sets, weighting)
    vectors = torch.cat([prototypes.vectors for prototypes in sets.values()]) if sets else torch.empty(0, 0)
    mixed = vectors.clone()
    for rows in _rows_of_classes(sets):
        class_vectors = vectors[rows].double()
        # a common offset would only cost precision; the median, because a single bad upload could shift a mean
        centre = class_vectors.median(dim=0).values
        for start, weights in _blocks(class_vectors - centre, weighting):
            block = slice(start, start + len(weights))
            other_means = weights @ (class_vectors - centre) + centre
            mixed[rows[block]] = (alpha * class_vectors[block] + (1 - alpha) * other_means).to(vectors.dtype)
    parts = mixed.split([len(prototypes) for prototypes in sets.values()])
    return {
        client: PrototypeSet(prototypes.labels, part)
        for (client, prototypes), part in zip(sets.items(), parts, strict=True)
    }


def mixing_weights(vectors: Tensor, weighting: str = "similarity", start: int = 0, stop: int | None = None) -> Tensor:
    """w_im: how much client m's prototype of a class counts for client i, for i from `start` to `stop` (all) and all m.

    With D_im = ‖p_i − p_m‖²: `similarity` is w_im ∝ 1 / (D_im + ε), so that similar prototypes have the highest weight,
    as in the paper's text; `distance` is w_im ∝ D_im, its formula as printed. If all distances are zero, the weights
    are equal.

    vectors: (n, d) floating, of n ≥ 2 clients. -> (stop − start, n) float64; rows sum to one, w_ii = 0.
    """
    rows = vectors.double()
    block = rows[start:stop]
    diagonal = torch.arange(start, start + len(block), device=rows.device)
    squares = rows.square().sum(dim=1)
    weights = torch.addmm(squares, block, rows.T, alpha=-2).add_(squares[diagonal].unsqueeze(1)).clamp_(min=0)
    if weighting == "similarity":
        weights.add_(EPSILON).reciprocal_()
    weights[torch.arange(len(block), device=rows.device), diagonal] = 0
    sums = weights.sum(dim=1, keepdim=True)
    zero_sums = sums.squeeze(1) == 0
    if bool(zero_sums.any()):
        weights[zero_sums] = 1.0
        weights[zero_sums.nonzero().flatten(), diagonal[zero_sums]] = 0
        sums = weights.sum(dim=1, keepdim=True)
    return weights.div_(sums)


def _blocks(vectors: Tensor, weighting: str) -> Iterator[tuple[int, Tensor]]:
    """The weights of a class's clients, some rows at a time, each block with the place of its first row."""
    step = max(1, _BLOCK // len(vectors))
    for start in range(0, len(vectors), step):
        yield start, mixing_weights(vectors, weighting, start, start + step)


def _rows_of_classes(sets: Mapping[int, PrototypeSet]) -> Iterator[Tensor]:
    """For each class that two clients hold at least, where its rows lie among those of all sets in a line."""
    if not sets:
        return
    labels = torch.cat([prototypes.labels for prototypes in sets.values()])
    order = labels.argsort(stable=True)
    counts = labels.unique(return_counts=True)[1]
    yield from (rows for rows in order.split(counts.tolist()) if len(rows) > 1)


def _check(sets: Mapping[int, PrototypeSet], weighting: str) -> None:
    if weighting not in WEIGHTINGS:
        raise ValueError(f"The weighting {weighting!r} is unknown; choose one of {', '.join(WEIGHTINGS)}.")
    refuse_different_kinds(sets.values(), "mixed")
