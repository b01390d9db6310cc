"""GFPL's local prototypes: class-wise mixtures of diagonal Gaussians, fitted in one batched EM; pseudo-features.

All classes are fitted at once. A class's samples lie in tiles, rows of equal number, as a class of many samples beside
many of few would otherwise fill the batch with padding. Class centres and floors are float64, and so are sums of
log-likelihoods; the iteration itself runs in float64 or float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from prototypes.fusion import bhattacharyya, fuse
from prototypes.mixture_set import MixtureSet

__all__ = ["MixtureFit", "bhattacharyya", "fit_class_mixtures", "fuse", "sample"]

# A class has converged when its mean log-likelihood per sample changes by less than this, as scikit-learn's `tol`.
TOLERANCE = 1e-3
MAX_ITERATIONS = 100
# What is added to each variance: a share of the class's mean variance, or this much where that is less.
RELATIVE_FLOOR = 1e-6
LEAST_FLOOR = 1e-12
# A component that holds less of all samples together has lost them.
LEAST_HELD = 1e-6
# Below this the overhead of a tile outweighs its padding.
LEAST_TILE = 16


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """The fitted mixtures, and for each of `mixtures.classes()` how its fit went.

    mixtures: with counts, the samples of each class.
    iterations: (k,) int64. converged: (k,) bool, whether the change fell below the tolerance before the iterations
    were used up.
    log_likelihood: (k,) float64, the mean over the class's samples that the last E-step found. The mixture is what
    the M-step after it made, whose own is no lower, up to the floor's effect. It is -inf without an iteration.
    """

    mixtures: MixtureSet
    iterations: Tensor
    converged: Tensor
    log_likelihood: Tensor


@dataclass
class _Components:
    """n components for each of k classes, relative to the class's centre; a weight of 0 marks what does not exist."""

    weights: Tensor  # (k, n)
    means: Tensor  # (k, n, d)
    variances: Tensor  # (k, n, d)

    def of(self, classes: Tensor) -> _Components:
        return _Components(self.weights[classes], self.means[classes], self.variances[classes])

    def put(self, classes: Tensor, new: _Components) -> None:
        self.weights[classes], self.means[classes], self.variances[classes] = new.weights, new.means, new.variances


@dataclass
class _Tiles:
    """The samples of k classes in T tiles of W rows; every tile belongs to one class."""

    rows: Tensor  # (T, W, 2d): centred features and their squares, zeros where a class's last tile has no more samples
    real: Tensor  # (T, W): 1 for a sample, 0 for padding
    owner: Tensor  # (T,): the position of each tile's class

    def forms(self, linear: Tensor, square: Tensor, constant: Tensor) -> Tensor:
        """linear·x + square·x² + constant at each sample x of a class, for m forms a class -> (T, m, W).

        linear, square: (k, m, d); constant: (k, m). Padding gets the constant.
        """
        factors = torch.cat([linear, square], dim=2)[self.owner]
        # rows first: so the product is several times as fast on a CPU, and all that follows is, with samples last
        values = torch.bmm(self.rows, factors.transpose(1, 2)).transpose(1, 2).contiguous()
        return values.add_(constant[self.owner].unsqueeze(2))

    def by_class(self, values: Tensor, classes: int) -> Tensor:
        """The sums of values (T, ...) over each class's tiles -> (k, ...)."""
        return values.new_zeros(classes, *values.shape[1:]).index_add_(0, self.owner, values)

    def without(self, finished: Tensor) -> _Tiles:
        """The tiles of the classes that are not finished (k,) bool; reuses this one's memory, which is then void.

        Unfinished tiles from the end fill the places of finished ones, so what moves is what leaves, not what stays.
        """
        going = finished[self.owner]
        places = (~going).nonzero().flatten()
        left = len(places)
        holes = going[:left].nonzero().flatten()
        fillers = places[left - len(holes) :]
        self.rows[holes], self.real[holes], self.owner[holes] = (
            self.rows[fillers],
            self.real[fillers],
            self.owner[fillers],
        )
        position = (~finished).cumsum(0) - 1
        return _Tiles(self.rows[:left], self.real[:left], position[self.owner[:left]])


def fit_class_mixtures(
    features: Tensor,
    labels: Tensor,
    components: int,
    seed: int,
    *,
    start: MixtureSet | None = None,
    dtype: torch.dtype = torch.float64,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> MixtureFit:
    """The local prototypes of GFPL: for each class a mixture of at most `components` diagonal Gaussians (Eqs. 4-6).

    features: (n, d), floating; labels: (n,) int64, at least 0. A class of n_j samples gets min(components, n_j)
    components, less only where samples coincide: a component that holds less than a millionth of one sample is left
    out. To every variance 1e-6 of the class's mean variance is added, at least 1e-12.
    seed: of the greedy k-means++ start; each class has a stream of its own, which other classes do not shift.
    start: a mixture for every class instead, with no more components than above; its rows keep their order.
    dtype: of the iteration. float32 is several times as fast and good to about 1e-4 of a variance; where a
    component lies far from its class's centre for its width, say a thousandfold, only float64 tells its variance.
    tolerance: a class leaves the batch when its mean log-likelihood per sample changes by less.

    The result has the features' dtype, at least float32. On CUDA one value an iteration comes to the host.
    Raises ValueError for shapes that do not fit, features that are not finite, a start that does not fit the
    classes, and arguments out of range.
    """
    _check_arguments(features, labels, components, seed, dtype, tolerance, max_iterations)
    classes, owner, counts = labels.unique(return_inverse=True, return_counts=True)
    result_dtype = torch.promote_types(features.dtype, torch.float32)
    if not len(classes):
        nothing = MixtureSet.empty(features.shape[1], result_dtype, features.device)
        return MixtureFit(nothing, counts, counts.bool(), counts.double())
    centres, spread, centred = _centred(features.detach(), owner, counts)
    _check_finite(classes, spread, dtype)
    floor = (RELATIVE_FLOOR * spread).clamp(min=LEAST_FLOOR).to(dtype)
    tiles = _tiles(centred.to(dtype), owner, counts)
    if start is None:
        found = _greedy_start(tiles, classes, counts, components, seed, floor)
    else:
        found = _given_start(start, classes, counts, components, centres, dtype)
    iterations, converged, log_likelihood = _iterate(tiles, found, counts, floor, tolerance, max_iterations)

    kept = found.weights * counts.unsqueeze(1) >= LEAST_HELD
    position = kept.nonzero()[:, 0]
    weights = torch.where(kept, found.weights, 0).double()
    weights /= weights.sum(dim=1, keepdim=True)
    mixtures = MixtureSet(
        classes[position],
        (found.means[kept] + centres[position]).to(result_dtype),
        found.variances[kept].to(result_dtype),
        weights[kept].to(result_dtype),
        counts[position],
    )
    return MixtureFit(mixtures, iterations, converged, log_likelihood)


def _check_arguments(
    features: Tensor,
    labels: Tensor,
    components: int,
    seed: int,
    dtype: torch.dtype,
    tolerance: float,
    max_iterations: int,
) -> None:
    if features.dim() != 2 or not features.is_floating_point() or labels.shape != features.shape[:1]:
        raise ValueError(
            f"Features of shape {tuple(features.shape)} and dtype {features.dtype} do not go with labels of "
            f"shape {tuple(labels.shape)}; they must be floating-point (n, d) and (n,)."
        )
    if labels.dtype != torch.int64 or (len(labels) and int(labels.min()) < 0):
        raise ValueError(f"The labels of the samples, {labels.dtype}, must be int64 and at least 0.")
    if components < 1 or max_iterations < 0 or not tolerance >= 0:
        raise ValueError(
            f"A mixture cannot be fitted with {components} components, {max_iterations} iterations and the tolerance "
            f"{tolerance}; they must be at least 1, 0 and 0."
        )
    if not 0 <= seed < 2**63:
        raise ValueError(f"The mixtures' seed is {seed}; it must be at least 0 and below 2^63.")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"Mixtures cannot be fitted in {dtype}; choose torch.float64 or torch.float32.")


def _centred(features: Tensor, owner: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In float64: the classes' means (k, d), their variances' means (k,), the features less their class's mean."""
    wide = features.double()
    centres = wide.new_zeros(len(counts), features.shape[1]).index_add_(0, owner, wide) / counts.unsqueeze(1)
    centred = wide - centres[owner]
    squares = wide.new_zeros(len(counts)).index_add_(0, owner, (centred * centred).sum(dim=1))
    return centres, squares / (counts * features.shape[1]), centred


def _check_finite(classes: Tensor, spread: Tensor, dtype: torch.dtype) -> None:
    # room for sums over samples and for division by the floor
    bad = (~(spread < torch.finfo(dtype).max * 1e-16)).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"The features of class {int(classes[bad[0]])} are not finite, or too large to be squared; training has "
            "probably diverged, and a lower learning-rate may help."
        )


def _tiles(centred: Tensor, owner: Tensor, counts: Tensor) -> _Tiles:
    """The centred features (n, d), sorted into tiles: those of a class one after the other, all full but its last."""
    samples, dim = centred.shape
    # the mean class size: padding then never outnumbers the samples by more than a tile
    width = min(int(counts.max()), max(LEAST_TILE, -(-samples // len(counts))))
    tiles_of = (counts + width - 1) // width
    order = owner.argsort(stable=True)
    sorted_owner = owner[order]
    before = counts.cumsum(0) - counts
    within = torch.arange(samples, device=owner.device) - before[sorted_owner]
    tile = (tiles_of.cumsum(0) - tiles_of)[sorted_owner] + within // width
    slot = within % width
    rows = centred.new_zeros(int(tiles_of.sum()), width, 2 * dim)
    rows[tile, slot, :dim] = centred[order]
    torch.mul(rows[:, :, :dim], rows[:, :, :dim], out=rows[:, :, dim:])
    real = centred.new_zeros(rows.shape[:2])
    real[tile, slot] = 1
    return _Tiles(rows, real, torch.arange(len(counts), device=owner.device).repeat_interleave(tiles_of))


def _greedy_start(
    tiles: _Tiles, classes: Tensor, counts: Tensor, components: int, seed: int, floor: Tensor
) -> _Components:
    """Greedy k-means++: an M-step on the samples that are nearest to each of min(components, n_j) chosen ones.

    A further one is drawn 2 + ⌊ln components⌋ times with chances as its squared distance to the nearest chosen one;
    the draw that lowers the sum of these the most stays, as in scikit-learn. A sample nearer to a chosen one than
    the floor's standard deviation is where that is; where no other is left, a component starts without samples.
    """
    width = tiles.rows.shape[1]
    dim = tiles.rows.shape[2] // 2
    trials = 2 + int(math.log(components))
    draws = _draws(classes, seed, (components, trials)).to(tiles.rows.device)
    first = torch.searchsorted(tiles.owner, torch.arange(len(counts), device=counts.device)) * width
    features = tiles.rows.view(-1, 2 * dim)[:, :dim]

    def distances(chosen: Tensor) -> Tensor:
        """The squared distances of the samples to the chosen rows (k, m) of their class -> (T, m, W)."""
        points = features[chosen]
        squared = tiles.forms(-2 * points, torch.ones_like(points), (points * points).sum(dim=2))
        near = squared <= floor[tiles.owner, None, None]
        return squared.masked_fill_(near, 0).mul_(tiles.real.unsqueeze(1))

    def drawn(nearest: Tensor, draws: Tensor) -> Tensor:
        """The rows at which the classes' cumulative chances pass the draws (k, m) in [0, 1) -> (k, m)."""
        totals = tiles.by_class(nearest.double().sum(dim=1), len(counts))
        shares = nearest.double() / totals.clamp(min=torch.finfo(torch.float64).tiny)[tiles.owner, None]
        cumulative = torch.cat([shares.new_zeros(1), shares.flatten().cumsum(0)])
        low = cumulative[first].unsqueeze(1)
        high = cumulative[first + counts].unsqueeze(1)
        rows = torch.searchsorted(cumulative[1:], low + draws * (high - low), right=True)
        return rows.clamp(first.unsqueeze(1), (first + counts - 1).unsqueeze(1))

    nearest = distances(first.unsqueeze(1) + (draws[:, 0, :1] * counts.unsqueeze(1)).long())[:, 0]
    held_by = torch.zeros_like(nearest, dtype=torch.int64)
    for slot in range(1, components):
        candidates = torch.minimum(distances(drawn(nearest, draws[:, slot])), nearest.unsqueeze(1))
        best = tiles.by_class(candidates.double().sum(dim=2), len(counts)).argmin(dim=1)
        closer = candidates.gather(1, best[tiles.owner][:, None, None].expand(-1, 1, width))[:, 0]
        moved = (closer < nearest) & (slot < counts)[tiles.owner].unsqueeze(1)
        held_by[moved] = slot
        nearest = torch.where(moved, closer, nearest)
    held = torch.nn.functional.one_hot(held_by, components).transpose(1, 2).to(tiles.rows.dtype)
    return _m_step(tiles, held * tiles.real.unsqueeze(1), floor)


def _draws(classes: Tensor, seed: int, shape: tuple[int, ...]) -> Tensor:
    """Uniform draws in [0, 1) for each class, from (seed, class) alone -> (k, *shape) float64."""
    # RandomState, not Generator: NumPy keeps its stream the same in every version and on every platform
    streams = [np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32, label]) for label in classes.tolist()]
    return torch.from_numpy(np.stack([stream.random_sample(shape) for stream in streams]))


def _given_start(
    start: MixtureSet, classes: Tensor, counts: Tensor, components: int, centres: Tensor, dtype: torch.dtype
) -> _Components:
    start = start.to(device=centres.device, dtype=torch.float64)
    if start.dim != centres.shape[1] or not torch.equal(start.classes(), classes):
        raise ValueError(
            f"The start has mixtures of {start.dim} dimensions for the classes {start.classes().tolist()}, the samples "
            f"are of {centres.shape[1]} dimensions and of the classes {classes.tolist()}; both must be the same."
        )
    rows_of = start.components()
    if bool((rows_of > counts.clamp(max=components)).any()):
        raise ValueError(
            f"The start has {rows_of.tolist()} components for the classes {classes.tolist()}; a class may have "
            f"at most {components} and no more than its samples, {counts.tolist()}."
        )
    owner = torch.arange(len(classes), device=centres.device).repeat_interleave(rows_of)
    slot = torch.arange(len(start), device=centres.device) - (rows_of.cumsum(0) - rows_of)[owner]
    weights = centres.new_zeros(len(classes), components)
    means = centres.new_zeros(len(classes), components, start.dim)
    variances = torch.ones_like(means)
    weights[owner, slot] = start.weights
    means[owner, slot] = start.means - centres[owner]
    variances[owner, slot] = start.variances
    return _Components(weights.to(dtype), means.to(dtype), variances.to(dtype))


def _iterate(
    tiles: _Tiles, found: _Components, counts: Tensor, floor: Tensor, tolerance: float, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """EM from the components `found`, which it replaces by what it finds; `tiles` are void afterwards.

    -> iterations (k,), converged (k,), mean log-likelihood (k,) of the last E-step.
    """
    iterations = torch.zeros_like(counts)
    converged = torch.zeros_like(counts, dtype=torch.bool)
    log_likelihood = torch.full_like(floor, -math.inf, dtype=torch.float64)
    batch = torch.arange(len(counts), device=counts.device)
    now = found
    for iteration in range(1, max_iterations + 1):
        sums, held = _e_step(tiles, now)
        now = _m_step(tiles, held, floor[batch])
        means = sums / counts[batch]
        done = (means - log_likelihood[batch]).abs() < tolerance
        log_likelihood[batch] = means
        leaving = len(batch) if iteration == max_iterations else int(done.sum())
        if not leaving:
            continue
        found.put(batch, now)
        iterations[batch], converged[batch] = iteration, done
        if leaving == len(batch):
            break
        tiles = tiles.without(done)
        stays = (~done).nonzero().flatten()
        batch, now = batch[stays], now.of(stays)
    return iterations, converged, log_likelihood


def _e_step(tiles: _Tiles, now: _Components) -> tuple[Tensor, Tensor]:
    """Each class's summed log-likelihood (k,) float64, and each component's share of each sample (T, n, W), Eq. 5."""
    precisions = 1 / now.variances
    linear = now.means * precisions
    dim = now.means.shape[2]
    logarithms = now.variances.log().sum(dim=2) + (now.means * linear).sum(dim=2)
    constant = now.weights.log() - 0.5 * (logarithms + dim * math.log(2 * math.pi))
    joint = tiles.forms(linear, -0.5 * precisions, constant)
    largest = joint.amax(dim=1, keepdim=True)
    held = joint.sub_(largest).exp_()
    sums = held.sum(dim=1, keepdim=True)
    per_sample = (largest + sums.log())[:, 0].double() * tiles.real
    held *= tiles.real.unsqueeze(1) / sums
    return tiles.by_class(per_sample.sum(dim=1), len(now.weights)), held


def _m_step(tiles: _Tiles, held: Tensor, floor: Tensor) -> _Components:
    """Eq. 6 with the diagonal of the covariance and the floor added; a component that holds nothing gets weight 0."""
    dim = tiles.rows.shape[2] // 2
    totals = tiles.by_class(held.sum(dim=2), len(floor))
    moments = tiles.by_class(torch.bmm(held, tiles.rows), len(floor))
    moments /= totals.clamp(min=torch.finfo(totals.dtype).tiny).unsqueeze(2)
    means, squares = moments[:, :, :dim], moments[:, :, dim:]
    variances = (squares - means * means).clamp_(min=0).add_(floor[:, None, None])
    return _Components(totals / totals.sum(dim=1, keepdim=True), means, variances)


def sample(
    mixtures: MixtureSet, per_class: int, generator: torch.Generator, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Balanced pseudo-features: `per_class` draws from the mixture of each class (Eq. 4 of GFPL), class after class.

    generator: on the CPU, so that every device gets the same draws. device: where the result goes, the mixtures' own
    by default. -> features (k·per_class, d) of the mixtures' dtype, labels (k·per_class,) int64, k the classes.
    Raises ValueError for a negative number of draws.
    """
    if per_class < 0:
        raise ValueError(f"{per_class} pseudo-features a class were asked for; there can be none, but not fewer.")
    on_cpu = mixtures.to(device="cpu", dtype=torch.float64)
    classes, sizes = on_cpu.classes(), on_cpu.components()
    # of all rows' cumulative weights a class has one stretch, and a draw falls into its component's part of it
    cumulative = torch.cat([torch.zeros(1, dtype=torch.float64), on_cpu.weights.cumsum(0)])
    last = sizes.cumsum(0)
    low, high = cumulative[last - sizes].unsqueeze(1), cumulative[last].unsqueeze(1)
    draws = torch.rand(len(classes), per_class, generator=generator, dtype=torch.float64)
    rows = torch.searchsorted(cumulative[1:], low + draws * (high - low), right=True)
    rows = rows.clamp((last - sizes).unsqueeze(1), (last - 1).unsqueeze(1)).flatten()
    noise = torch.randn(len(rows), mixtures.dim, generator=generator, dtype=torch.float64)
    features = on_cpu.means[rows] + on_cpu.variances[rows].sqrt() * noise
    target = mixtures.means.device if device is None else device
    return features.to(device=target, dtype=mixtures.means.dtype), on_cpu.labels[rows].to(target)
