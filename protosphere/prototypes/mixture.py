"""Class-wise mixtures of diagonal Gaussians, fitted in one batched EM, as GFPL and FedPFT send them; pseudo-features.

All classes are fitted at once. Class centres and log-likelihoods are summed in float64; the iteration itself runs in
float64 or float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from protosphere.prototypes.class_tiles import ClassTiles, class_tiles
from protosphere.prototypes.fusion import bhattacharyya, fuse
from protosphere.prototypes.mixture_set import MixtureSet

__all__ = ["MixtureFit", "bhattacharyya", "fit_class_mixtures", "fuse", "sample", "sample_counts"]

# A class has converged when its mean log-likelihood per sample changes by less than this, as scikit-learn's `tol`.
TOLERANCE = 1e-3
MAX_ITERATIONS = 100
# What is added to each variance: a share of the class's mean variance, or this much where that is less.
RELATIVE_FLOOR = 1e-6
LEAST_FLOOR = 1e-12
# A component with less than this, summed over all samples, has lost its samples.
LEAST_HELD = 1e-6


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


def fit_class_mixtures(
    features: Tensor,
    labels: Tensor,
    components: int,
    seed: int,
    *,
    start: MixtureSet | None = None,
    spherical: bool = False,
    dtype: torch.dtype = torch.float64,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> MixtureFit:
    """For each class a mixture of at most `components` diagonal Gaussians (GFPL, Eqs. 4-6).

    features: (n, d), floating; labels: (n,) int64, at least 0. A class of n_j samples gets min(components, n_j)
    components, less only where samples coincide: a component that holds less than a millionth of one sample is left
    out. To every variance 1e-6 of the class's mean variance is added, at least 1e-12.
    seed: of the greedy k-means++ start; each class has a stream of its own, which other classes do not shift.
    start: a mixture for every class instead, with no more components than above; its rows keep their order.
    spherical: whether a component has one variance for all dimensions, the mean of those that it would have.
    dtype: of the iteration. float32 takes about half the time and memory. It tells a variance to about 1e-7 of its
    component's squared distance from the class's centre: enough for components of many samples, while those of one
    or two have variances of the floor's order, which only float64 tells exactly.
    tolerance: a class leaves the batch when its mean log-likelihood per sample changes by less.

    The result has the features' dtype, at least float32. On CUDA one value an iteration comes to the host, and sizes
    where classes leave. Raises ValueError for shapes that do not fit, features that are not finite, a start that does
    not fit the classes, and arguments out of range.
    """
    _check_arguments(features, labels, components, seed, dtype, tolerance, max_iterations)
    result_dtype = torch.promote_types(features.dtype, torch.float32)
    if not len(labels):
        nothing = replace(MixtureSet.empty(features.shape[1], result_dtype, features.device), counts=labels)
        return MixtureFit(nothing, labels, labels.bool(), labels.double())
    order = labels.argsort(stable=True)
    classes, counts = labels[order].unique_consecutive(return_counts=True)
    tiles, centres, spread = class_tiles(features.detach(), order, counts, dtype)
    _check_finite(classes, spread, dtype)
    floor = (RELATIVE_FLOOR * spread).clamp(min=LEAST_FLOOR).to(dtype)
    fit = (
        _greedy_start(tiles, classes, counts, components, seed, floor, spherical)
        if start is None
        else _convert_start(start, classes, counts, components, centres, dtype)
    )
    limits = tolerance, max_iterations
    iterations, converged, log_likelihood = _iterate(tiles, fit, counts, floor, *limits, spherical)

    mask = fit.weights * counts.unsqueeze(1) >= LEAST_HELD
    position = mask.nonzero()[:, 0]
    weights = torch.where(mask, fit.weights, 0).double()
    weights /= weights.sum(dim=1, keepdim=True)
    mixtures = MixtureSet(
        classes[position],
        (fit.means[mask] + centres[position]).to(result_dtype),
        fit.variances[mask].to(result_dtype),
        weights[mask].to(result_dtype),
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


def _check_finite(classes: Tensor, spread: Tensor, dtype: torch.dtype) -> None:
    # the dtype must be able to hold sums over samples and quotients by the floor
    bad = (~(spread < torch.finfo(dtype).max * 1e-16)).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"The features of class {int(classes[bad[0]])} are not finite, or too large to be squared; training has "
            "probably diverged, and a lower learning-rate may help."
        )


def _greedy_start(
    tiles: ClassTiles,
    classes: Tensor,
    counts: Tensor,
    components: int,
    seed: int,
    floor: Tensor,
    spherical: bool = False,
) -> _Components:
    """Greedy k-means++: an M-step on the samples that are nearest to each of min(components, n_j) chosen ones.

    A further one is drawn 2 + ⌊ln components⌋ times with chances as its squared distance to the nearest chosen one; the
    draw that lowers the sum of these the most stays, as in scikit-learn. A sample closer to a chosen one than the
    floor's standard deviation counts as coincident; if no other sample is left, a component starts without samples.
    """
    width = tiles.rows.shape[1]
    draws = _draws(classes, seed, (components, 2 + int(math.log(components)))).to(counts.device)
    first = torch.searchsorted(tiles.owner, torch.arange(len(counts), device=counts.device)) * width
    chosen_rows = first + (draws[:, 0, 0] * counts).long()
    nearest = _squared_distances(tiles, chosen_rows.unsqueeze(1), floor)[:, 0]
    held_by = torch.zeros_like(nearest, dtype=torch.int64)
    for slot in range(1, components):
        candidates = _draw(tiles, nearest, first, counts, draws[:, slot])
        distances = torch.minimum(_squared_distances(tiles, candidates, floor), nearest.unsqueeze(1))
        best = tiles.by_class(distances.double().sum(dim=2), len(counts)).argmin(dim=1)[tiles.owner]
        closer = distances.gather(1, best[:, None, None].expand(-1, 1, width))[:, 0]
        held_by.masked_fill_(closer < nearest, slot)
        nearest = closer
    shares = one_hot(held_by, components).transpose(1, 2).to(tiles.rows.dtype)
    return _m_step(tiles, shares * tiles.real.unsqueeze(1), floor, spherical)


def _squared_distances(tiles: ClassTiles, chosen: Tensor, floor: Tensor) -> Tensor:
    """Those of the samples to m rows of their class, chosen (k, m) among all tiles' rows -> (T, m, W), 0 in padding."""
    points = tiles.rows.flatten(0, 1)[chosen, : tiles.dim]
    squared = tiles.forms(-2 * points, torch.ones_like(points), (points * points).sum(dim=2))
    same = squared <= floor[tiles.owner, None, None]
    return squared.masked_fill_(same, 0).mul_(tiles.real.unsqueeze(1))


def _draw(tiles: ClassTiles, nearest: Tensor, first: Tensor, counts: Tensor, draws: Tensor) -> Tensor:
    """Rows drawn with chances as their `nearest` (T, W): where a class's sum of them passes its draws (k, m) in [0, 1).

    first: (k,), each class's first row. Where all chances are 0, one of the class's rows.
    """
    totals = tiles.by_class(nearest.double().sum(dim=1), len(counts)).clamp(min=torch.finfo(torch.float64).tiny)
    shares = (nearest.double() / totals[tiles.owner].unsqueeze(1)).flatten()
    return _draw_rows(shares, first, first + counts, draws)


def _draw_rows(chances: Tensor, first: Tensor, last: Tensor, draws: Tensor) -> Tensor:
    """Of all rows' summed chances (r,) float64 a class has the stretch from its `first` row (k,) to before its `last`;
    a draw (k, m) in [0, 1) falls into the part of one of its rows -> (k, m)."""
    cumulative = torch.cat([chances.new_zeros(1), chances.cumsum(0)])
    low, high = cumulative[first].unsqueeze(1), cumulative[last].unsqueeze(1)
    rows = torch.searchsorted(cumulative[1:], low + draws * (high - low), right=True)
    return rows.clamp(first.unsqueeze(1), (last - 1).unsqueeze(1))


def _draws(classes: Tensor, seed: int, shape: tuple[int, ...]) -> Tensor:
    """Uniform draws in [0, 1) for each class, from (seed, class) alone -> (k, *shape) float64."""
    # RandomState, not Generator: NumPy keeps its stream the same in every version and on every platform
    streams = [np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32, label]) for label in classes.tolist()]
    return torch.from_numpy(np.stack([stream.random_sample(shape) for stream in streams]))


def _convert_start(
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
    tiles: ClassTiles,
    fit: _Components,
    counts: Tensor,
    floor: Tensor,
    tolerance: float,
    max_iterations: int,
    spherical: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """EM from the components `fit`, which it replaces by what it finds; `tiles` are void afterwards.

    -> iterations (k,), converged (k,), mean log-likelihood (k,) of the last E-step.
    """
    iterations = torch.zeros_like(counts)
    converged = torch.zeros_like(counts, dtype=torch.bool)
    log_likelihood = torch.full_like(floor, -math.inf, dtype=torch.float64)
    batch = torch.arange(len(counts), device=counts.device)
    now = fit
    for iteration in range(1, max_iterations + 1):
        sums, shares = _e_step(tiles, now)
        now = _m_step(tiles, shares, floor[batch], spherical)
        means = sums / counts[batch]
        done = (means - log_likelihood[batch]).abs() < tolerance
        log_likelihood[batch] = means
        leaving = len(batch) if iteration == max_iterations else int(done.sum())
        if not leaving:
            continue
        fit.put(batch, now)
        iterations[batch], converged[batch] = iteration, done
        if leaving == len(batch):
            break
        tiles = tiles.without(done)
        stays = (~done).nonzero().flatten()
        batch, now = batch[stays], now.of(stays)
    return iterations, converged, log_likelihood


def _e_step(tiles: ClassTiles, now: _Components) -> tuple[Tensor, Tensor]:
    """Each class's summed log-likelihood (k,) float64, and each component's share of each sample (T, n, W), Eq. 5."""
    precisions = 1 / now.variances
    linear = now.means * precisions
    logarithms = now.variances.log().sum(dim=2) + (now.means * linear).sum(dim=2)
    constant = now.weights.log() - 0.5 * (logarithms + tiles.dim * math.log(2 * math.pi))
    joint = tiles.forms(linear, -0.5 * precisions, constant)
    largest = joint.amax(dim=1, keepdim=True)
    shares = joint.sub_(largest).exp_()
    sums = shares.sum(dim=1, keepdim=True)
    per_sample = (largest + sums.log())[:, 0].double() * tiles.real
    shares *= tiles.real.unsqueeze(1) / sums
    return tiles.by_class(per_sample.sum(dim=1), len(now.weights)), shares


def _m_step(tiles: ClassTiles, shares: Tensor, floor: Tensor, spherical: bool = False) -> _Components:
    """Eq. 6 with the diagonal of the covariance and the floor added; a component that holds nothing gets weight 0."""
    totals = tiles.by_class(shares.sum(dim=2), len(floor))
    moments = tiles.by_class(torch.bmm(shares, tiles.rows), len(floor))
    moments /= totals.clamp(min=torch.finfo(totals.dtype).tiny).unsqueeze(2)
    means, squares = moments[:, :, : tiles.dim], moments[:, :, tiles.dim :]
    variances = (squares - means * means).clamp_(min=0).add_(floor[:, None, None])
    if spherical:
        variances = variances.mean(dim=2, keepdim=True).expand_as(means).contiguous()
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
        raise ValueError(f"{per_class} pseudo-features per class were requested, but the number must be 0 or more.")
    numbers = torch.full_like(mixtures.classes(), per_class, device="cpu")
    features, labels = sample_counts(mixtures, numbers, generator)
    target = mixtures.means.device if device is None else device
    return features.to(target), labels.to(target)


def sample_counts(mixtures: MixtureSet, numbers: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws from the mixture of each class, `numbers` (k,) int64 of them, class after class, on the CPU.

    generator: on the CPU. -> features (n, d) of the mixtures' dtype, labels (n,) int64.
    """
    on_cpu = mixtures.to(device="cpu", dtype=torch.float64)
    sizes = on_cpu.components()
    last = sizes.cumsum(0)
    owner = torch.arange(len(sizes)).repeat_interleave(numbers)
    draws = torch.rand(len(owner), 1, generator=generator, dtype=torch.float64)
    rows = _draw_rows(on_cpu.weights, (last - sizes)[owner], last[owner], draws).flatten()
    noise = torch.randn(len(rows), mixtures.dim, generator=generator, dtype=torch.float64)
    features = on_cpu.means[rows] + on_cpu.variances[rows].sqrt() * noise
    return features.to(mixtures.means.dtype), on_cpu.labels[rows]
