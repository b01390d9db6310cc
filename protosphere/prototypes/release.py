"""A noisy release of a table: class sums of public features in exact integers, and the prototypes computed from them.

    z^   = u / ||u||, of a row's public features u (0 where u is 0 or not finite)
    a    = trunc(B z^),  B = 2^12
    v    = e_y (x) (a, B/2)                    in Z^(K x (d+1)),  ||v||^2 <= 5 B^2 / 4
    v_g  = trunc of the mean of a group's v, no longer than the longest of them
    N    = sum of v, or v_g, + noise           each value a discrete Gaussian of sigma^2 = ceil(D^2 / (2 rho))
    p_j  = (N_j[:d] / B) / n_j,  n_j = N_j[d] / (B/2)      of the classes with n_j > q * 2 sigma / B

With q the normal quantile of 1 - 0.01 / K, noise alone counts as a class in one of a hundred clients, whatever K is.
Such a class would spoil the mean over clients.

With D the largest norm of a sample's or group's contribution, N is D^2 / (2 sigma^2)-zCDP for adding or removing one
(Canonne, Kamath, Steinke 2020, the multivariate theorem). All K classes are in it, absent ones as zeros. With second
moments v = e_y (x) (a, floor(a o a / B), B/2), whose square is at most 9 B^2 / 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import torch
from torch import Tensor

from protosphere.prototypes.prototype_set import PrototypeSet

B = 2**12
HALF = B // 2
STEPS = 2**20  # steps of a sample's largest value
SPURIOUS = 0.01  # the share of clients for which an absent class passes for a present one
LARGEST_COUNT = 2**31 - 1


@dataclass(frozen=True)
class Shape:
    """The size of a release: (K, `width`) whole numbers.

    Attributes:
        num_classes, dim: K and d.
        moments: whether it contains sums of squares.
    """

    num_classes: int
    dim: int
    moments: bool = False

    @property
    def width(self) -> int:
        """Values per class: d sums, d sums of squares if there are any, and the number of samples."""
        return self.dim * (2 if self.moments else 1) + 1

    @property
    def squared_sensitivity(self) -> int:
        """D^2: the largest ||v||^2."""
        return (9 if self.moments else 5) * B * B // 4

    def variance(self, rho: float) -> int:
        """sigma^2 of the noise that makes a release rho-zCDP, in exact arithmetic.

        Raises:
            ValueError: rho is not positive.
        """
        if not 0 < rho < math.inf:
            raise ValueError(f"rho is {rho}; noise needs a finite number above 0.")
        return math.ceil(Fraction(self.squared_sensitivity) / (2 * Fraction(rho)))

    def rho(self, variance: int) -> float:
        """The rho of a release with noise of this sigma^2, rounded up."""
        return math.nextafter(self.squared_sensitivity / (2 * variance), math.inf)

    def least_count(self, variance: int) -> float:
        """The number of samples above which a class counts as present."""
        return NormalDist(sigma=2 * math.sqrt(variance) / B).inv_cdf(1 - SPURIOUS / self.num_classes)


def contributions(features: Tensor, moments: bool = False) -> Tensor:
    """The integers of each sample, without its class: (n, d) floating to (n, `width`) int64, (a, [squares,] B/2). They
    depend only on the sample's own values, to the bit, because sums of integers do not depend on the order.
    """
    values = features.double()
    values = torch.where(values.isfinite().all(dim=1, keepdim=True), values, 0.0)
    # in units of the largest value: no square overflows, and the loss is below a step of a
    largest = values.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    steps = (values / largest * STEPS).to(torch.int64)
    lengths = (steps * steps).sum(dim=1, keepdim=True).double().sqrt()
    integers = (B * steps / lengths.clamp_min(1.0)).to(torch.int64)
    # samples that rounding has made too long
    for row in ((integers * integers).sum(dim=1) > B * B).nonzero().flatten().tolist():
        while int((integers[row] ** 2).sum()) > B * B:
            longest = int(integers[row].abs().argmax())
            integers[row, longest] -= integers[row, longest].sign()
    parts = [integers, integers * integers // B] if moments else [integers]
    return torch.cat([*parts, integers.new_full((len(integers), 1), HALF)], dim=1)


def class_sums(features: Tensor, labels: Tensor, shape: Shape, groups: Tensor | None = None) -> Tensor:
    """V: (K, `width`) int64, the exact sum of the contributions of samples or groups, independent of their order.

    Args:
        features: (n, d). labels: (n,) int64; a sample of none of the K classes is excluded.
        groups: (n,) int64, equal for the samples of one unit; None: each sample is a unit.
    """
    valid = (labels >= 0) & (labels < shape.num_classes)
    rows, labels = contributions(features[valid], shape.moments), labels[valid]
    sums = torch.zeros(shape.num_classes, shape.width, dtype=torch.int64)
    if groups is None:
        return sums.index_add_(0, labels, rows)
    groups = groups[valid]
    for group in groups.unique().tolist():
        members = groups == group
        total = torch.zeros_like(sums).index_add_(0, labels[members], rows[members])
        sums += torch.div(total, int(members.sum()), rounding_mode="trunc")
    return sums


def second_moment(features: Tensor) -> Tensor:
    """The sum of a a^T / B^2 over all samples: (n, d) to (d, d) float64, exact and independent of the order."""
    integers = contributions(features)[:, :-1].double()  # float64 holds sums of products of integers up to B exactly
    return integers.T @ integers / B**2


def noisy(sums: Tensor, variance: int, draw: Callable[[int], int]) -> Tensor:
    """N: V plus one `draw(variance)` for each value."""
    noise = torch.tensor([draw(variance) for _ in range(sums.numel())], dtype=torch.int64)
    return sums + noise.reshape(sums.shape)


def finished(release: Tensor, variance: int, shape: Shape, scale: float = 1.0) -> tuple[PrototypeSet, Tensor | None]:
    """The classes of a release with their prototypes and counts, as post-processing.

    Args:
        release: N (K, `width`) int64.
        scale: the factor of the prototypes, whose norm is at most 1.

    Returns:
        The prototypes, float32, possibly of no class; with second moments also the variances of z^ (k, d) around them,
        unscaled, at least 1 / (1000 d).
    """
    counts = release[:, -1].double() / HALF
    present = (counts > shape.least_count(variance)).nonzero().flatten()
    n = counts[present].unsqueeze(1)
    means = release[present, : shape.dim].double() / B / n
    means = means / torch.linalg.vector_norm(means, dim=1, keepdim=True).clamp_min(1.0)
    class_counts = counts[present].round().clamp(1, LARGEST_COUNT).to(torch.int64)
    prototypes = PrototypeSet(present, (scale * means).float(), class_counts)
    if not shape.moments:
        return prototypes, None
    squares = release[present, shape.dim : 2 * shape.dim].double() / B / n
    return prototypes, (squares - means * means).clamp(min=1 / (1000 * shape.dim), max=1.0).float()
