"""TinyProto's class masks: which s of d coordinates of a class's prototype are sent; compression and expansion.

The masks are balanced: every dimension serves ⌊Ks/d⌋ or ⌈Ks/d⌉ of K classes. That alone attains the highest mean
pairwise Hamming distance, (2/(K(K-1))) Σ_c r_c (K - r_c) with r_c the classes that use dimension c. A local search then
raises the minimum distance (ours; the paper asks for distant masks, without a method).

Two masks at overlap o, the number of dimensions that they share, are 2(s - o) apart.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Masks = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# The budget of the search, in steps: per class, and by work, as one step costs about K s² multiplications. It counts
# steps, not seconds, because server and clients must find the same masks on machines of different speed.
STEPS_PER_CLASS = 50
WORK = 25_000_000_000
# A pair's cost triples with every shared dimension, from STEEP_BELOW below the target to STEEP_ABOVE above it.
STEEP_BELOW = 3
STEEP_ABOVE = 8


def class_masks(num_classes: int, dim: int, ones: int, seed: int) -> Tensor:
    """Balanced masks of K classes, bool (K, d), exactly s = `ones` true in each row; a pure function of its arguments.

    No two classes share a mask while C(d, s) >= K; beyond that every mask serves ⌊K/C(d,s)⌋ or ⌈K/C(d,s)⌉ classes.
    With K s <= d the supports are disjoint. The search holds all pairs' overlaps: 5 K² bytes at its peak, 0.6 GB in all
    for 10,000 classes.
    Raises ValueError unless K >= 1, d >= 1, 1 <= s <= d and 0 <= seed < 2^63.
    """
    if num_classes < 1 or dim < 1:
        raise ValueError(f"Masks were asked for {num_classes} classes in {dim} dimensions; both must be at least 1.")
    if not 1 <= ones <= dim:
        raise ValueError(f"A mask of {ones} ones in {dim} dimensions does not exist; ask for 1 to {dim} ones.")
    if not 0 <= seed < 2**63:
        raise ValueError(f"The masks' seed is {seed}; it must be at least 0 and below 2^63.")
    # RandomState, not Generator: NumPy keeps its stream the same in every version and on every platform
    rng = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32])
    return torch.from_numpy(np.ascontiguousarray(_family(num_classes, dim, ones, rng)))


def compress(vectors: Tensor, masks: Tensor) -> Tensor:
    """Eq. 8: the values of vectors (k, d) under each row's ones, in ascending dimension -> (k, s).

    masks: bool (k, d), on any device. Masks without rows do not tell s: k = 0 gives (0, 0). Raises ValueError
    for shapes that do not fit and for rows with different numbers of ones.
    """
    if vectors.ndim != 2 or vectors.shape != masks.shape:
        raise ValueError(
            f"Vectors of shape {tuple(vectors.shape)} do not fit masks of shape {tuple(masks.shape)}; "
            "both must be (k, d), one mask for each vector."
        )
    return vectors.gather(1, _support(masks.to(vectors.device)))


def expand(values: Tensor, masks: Tensor) -> Tensor:
    """Eq. 7, the structured sparse prototype: values (k, s) put where masks (k, d) have their ones, zeros elsewhere.

    -> (k, d); expand(compress(v, m), m) = v ⊙ m. masks: bool, on any device. Raises ValueError for shapes that do
    not fit and for rows with different numbers of ones.
    """
    if values.ndim != 2 or masks.ndim != 2 or len(values) != len(masks):
        raise ValueError(
            f"Values of shape {tuple(values.shape)} do not fit masks of shape {tuple(masks.shape)}; "
            "they must be (k, s) and (k, d), one mask for each row of values."
        )
    sparse = values.new_zeros(masks.shape)
    if len(values) == 0:
        return sparse
    support = _support(masks.to(values.device))
    if support.shape != values.shape:
        raise ValueError(
            f"Rows of {values.shape[1]} values do not fit masks with {support.shape[1]} ones; "
            "both ends must use the same tinyproto.sparsity-dim."
        )
    return sparse.scatter(1, support, values)


def _support(masks: Tensor) -> Tensor:
    """The dimensions of each row's ones, ascending: (k, d) -> int64 (k, s)."""
    ones = masks.sum(dim=1).unique().tolist()
    if len(ones) > 1:
        raise ValueError(f"The masks' rows have from {ones[0]} to {ones[-1]} ones; all must have equally many.")
    return masks.nonzero()[:, 1].reshape(len(masks), ones[0] if ones else 0)


def _family(K: int, d: int, s: int, rng: np.random.RandomState) -> Masks:
    if 2 * s > d:
        # complements are equally balanced and distant, and have fewer ones to move
        return ~_family(K, d, d - s, rng)
    if K * s <= d:
        return _from_support(rng.permutation(d)[: K * s].reshape(K, s), d)
    available = math.comb(d, s)
    if available <= K:
        # all masks together are balanced, so only the remainder must be chosen
        times, remainder = divmod(K, available)
        families = [_every_mask(d, s)] * times + [_family(remainder, d, s, rng)]
        return np.concatenate(families)[rng.permutation(K)]
    return _spread(_balance(_distinct(K, d, s, rng), rng), rng)


def _from_support(support: Integers, d: int) -> Masks:
    """support (K, s) -> (K, d)"""
    masks = np.zeros((len(support), d), dtype=bool)
    np.put_along_axis(masks, support, True, axis=1)
    return masks


def _every_mask(d: int, s: int) -> Masks:
    return _from_support(np.array(list(itertools.combinations(range(d), s)), dtype=np.int64), d)


def _distinct(K: int, d: int, s: int, rng: np.random.RandomState) -> Masks:
    """K < C(d, s) different random masks. If there are few possible masks, they are drawn from the list of all, because
    most free draws would repeat."""
    available = math.comb(d, s)
    if available <= 4 * K:
        return _every_mask(d, s)[rng.permutation(available)[:K]]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < K:
        drawn[tuple(sorted(rng.permutation(d)[:s].tolist()))] = None
    return _from_support(np.array(list(drawn), dtype=np.int64), d)


def _balance(masks: Masks, rng: np.random.RandomState) -> Masks:
    """Different masks with column counts that differ by at most one, from different masks (K, d).

    A one moves from the fullest column c to the emptiest e, in a row that has c and not e. Moving c to e maps
    different rows to different rows, and more rows have c and not e than e and not c; so the result of at least
    one such row is not in the family yet. Every move lowers Σ r_c², so the moves end.
    """
    masks = masks.copy()
    family = {row.tobytes() for row in np.packbits(masks, axis=1)}
    counts = masks.sum(axis=0)
    while counts.max() - counts.min() > 1:
        full, empty = int(counts.argmax()), int(counts.argmin())
        for row in rng.permutation(np.flatnonzero(masks[:, full] & ~masks[:, empty])):
            moved = masks[row].copy()
            moved[[full, empty]] = False, True
            key = np.packbits(moved).tobytes()
            if key not in family:
                break
        family.remove(np.packbits(masks[row]).tobytes())
        family.add(key)
        masks[row] = moved
        counts[full] -= 1
        counts[empty] += 1
    return masks


def _spread(masks: Masks, rng: np.random.RandomState) -> Masks:
    """Masks (K, d) with the same counts of rows and columns and no lower least distance; distinct ones stay distinct.

    The target for the largest overlap falls by one whenever no pair exceeds it, and the masks of that moment are
    kept. So nothing worse than the start is ever returned, nor a repeated mask, whose overlap would be s. The
    search ends with its budget, or at the overlap that no balanced masks can go below: the mean, rounded up.
    """
    K, s = len(masks), int(masks[0].sum())
    counts = masks.sum(axis=0)
    least = -(-int((counts * (counts - 1)).sum()) // (K * (K - 1)))
    steps = min(STEPS_PER_CLASS * K, WORK // (K * s * s))
    search = _Exchange(masks)
    for _ in range(steps):
        while not search.exceeding.any():
            masks = search.columns.T > 0
            if search.target == least:
                return masks
            search.aim(search.target - 1)
        rows = np.flatnonzero(search.exceeding)
        # the default dtype depends on the platform
        a = int(rows[rng.randint(len(rows), dtype=np.int64)])
        b = int((a + rng.randint(1, K, dtype=np.int64)) % K)
        search.exchange(a, b)
    return masks if search.exceeding.any() else search.columns.T > 0


class _Exchange:
    """Masks under exchanges that keep the ones of every row and column, and the pairs' overlaps.

    columns: (d, K), masks[k, c] as 0.0 or 1.0. overlaps: (K, K), zero on the diagonal. exceeding: (K,), how many
    pairs of each row exceed the target. All floats here hold integers far below 2^53 (2^24 in float32), so sums
    are exact whatever their order: neither the BLAS nor its threads can change a mask.
    """

    def __init__(self, masks: Masks) -> None:
        self.columns: Floats = np.ascontiguousarray(masks.T, dtype=np.float64)
        ones = masks.astype(np.float32)
        self.overlaps = ones @ ones.T
        np.fill_diagonal(self.overlaps, 0)
        self.most = int(masks[0].sum())
        self.aim(int(self.overlaps.max()))

    def aim(self, target: int) -> None:
        self.target = target
        self.exceeding: Integers = np.count_nonzero(self.overlaps > target, axis=1)
        # f(x) for overlaps x = -1 .. s + 1, then rises[x] = f(x) - f(x - 1) for x = 0 .. s + 1
        above = np.arange(-1, self.most + 2) - target
        cost = 3 ** np.clip(above + STEEP_BELOW, 0, STEEP_BELOW + STEEP_ABOVE)
        self.rises: Floats = np.diff(cost).astype(np.float64)

    def exchange(self, a: int, b: int) -> None:
        """Make the best exchange of rows a and b unless it costs: a gives c1 to b, which gives c2 to a.

        The cost is Σ f(overlap) over pairs of rows. With M the masks, the overlap of a and row k changes by
        M[k,c2] - M[k,c1], that of b by the opposite, that of a and b not at all. With D+(x) = f(x+1) - f(x),
        D-(x) = f(x-1) - f(x), u_k = D+(O_ak) + D-(O_bk) is what k costs when it has c2 and not c1,
        v_k = D-(O_ak) + D+(O_bk) when it has c1 and not c2, and with both or neither it costs nothing. So all
        (c1, c2) at once are (Mᵀu)[c2] + (Mᵀv)[c1] - Σ_k M[k,c1] M[k,c2] (u_k + v_k), over k other than a and b.
        """
        surplus = np.flatnonzero(self.columns[:, a] > self.columns[:, b])
        taken = np.flatnonzero(self.columns[:, b] > self.columns[:, a])
        if len(surplus) == 0:  # a step may pass through equal rows
            return
        of_a, of_b = self.overlaps[a].astype(np.int64), self.overlaps[b].astype(np.int64)
        u = self.rises[of_a + 1] - self.rises[of_b]
        v = self.rises[of_b + 1] - self.rises[of_a]
        u[[a, b]] = v[[a, b]] = 0
        from_given, from_taken = self.columns[surplus], self.columns[taken]
        both = (from_given * (u + v)) @ from_taken.T
        cost = (from_given @ v)[:, None] + (from_taken @ u)[None, :] - both
        best = int(cost.argmin())
        if cost.flat[best] <= 0:  # exchanges at no cost lead out of local minima
            self._apply(a, b, int(surplus[best // len(taken)]), int(taken[best % len(taken)]))

    def _apply(self, a: int, b: int, c1: int, c2: int) -> None:
        change = (self.columns[c2] - self.columns[c1]).astype(np.float32)
        change[[a, b]] = 0
        self.columns[[c1, c2], a] = 0, 1
        self.columns[[c1, c2], b] = 1, 0
        for row, shift in ((a, change), (b, -change)):
            before = self.overlaps[row]
            after = before + shift
            self.exceeding += (after > self.target).astype(np.int64) - (before > self.target)
            self.exceeding[row] = np.count_nonzero(after > self.target)
            self.overlaps[row] = self.overlaps[:, row] = after
