"""The discrete Gaussian, drawn exactly, with integers and the operating system's randomness.

    P[X = x] proportional to exp(-x^2 / (2 sigma^2)),  x a whole number

Algorithms 1 to 3 of Canonne, Kamath, Steinke (2020). These draws use no seed, because a server that knows it could
subtract the noise, and no floating-point numbers, whose last bits reveal the value that the noise was added to (Mironov
2012).
"""

import math
from secrets import randbelow


def draw(variance: int) -> int:
    """One draw with sigma^2 = `variance`, a positive whole number. The result has no upper bound."""
    scale = math.isqrt(variance) + 1
    while True:
        candidate = _laplace(scale)
        # accept with probability exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2)), written over t^2
        distance = abs(candidate) * scale - variance
        if _exp_minus(distance * distance, 2 * variance * scale * scale):
            return candidate


def _laplace(scale: int) -> int:
    """The discrete Laplace: P[X = x] proportional to exp(-|x| / scale)."""
    while True:
        within = randbelow(scale)
        if not _exp_minus(within, scale):
            continue
        quotient = 0
        while _exp_minus(1, 1):
            quotient += 1
        size, negative = within + scale * quotient, randbelow(2)
        # zero would occur with either sign
        if size or not negative:
            return -size if negative else size


def _exp_minus(numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator), a fraction of at least 0."""
    while numerator > denominator:
        if not _exp_minus(1, 1):
            return False
        numerator -= denominator
    # a series of draws ends at k with probability g^k / k!; the result is whether k is odd
    drawn = 1
    while randbelow(denominator * drawn) < numerator:
        drawn += 1
    return drawn % 2 == 1
