"""The privacy cost of noisy releases: rho of zero-concentrated differential privacy (zCDP), and the (epsilon, delta)
that follows from it.

rho adds up over releases, including adaptively chosen ones (Bun, Steinke 2016).

    epsilon(rho, delta) = min over alpha > 1 of
        alpha rho + ln(1 - 1/alpha) - (ln delta + ln alpha) / (alpha - 1)     (Canonne, Kamath, Steinke 2020)

This conversion holds for the discrete Gaussian, for which the exact conversion of a continuous one is not valid.
"""

import math
from functools import lru_cache

import numpy as np

# Orders alpha - 1. A minimum over a grid is never too low; with steps of 0.5 %, it is at most a millionth too high.
ORDERS = np.logspace(-6, 12, 8001)
HALVINGS = 200


def epsilon_of(rho: float, delta: float) -> float:
    """The epsilon of rho-zCDP at this delta in (0, 1), at least 0; for rho = 0 it is 0.

    Raises:
        ValueError: rho is negative or not finite, or delta is outside (0, 1).
    """
    if not (0 <= rho < math.inf and 0 < delta < 1):
        raise ValueError(f"rho is {rho} and delta {delta}; they must be finite from 0 and within (0, 1).")
    if rho == 0:
        return 0.0
    alpha = 1 + ORDERS
    # ln(1 - 1/alpha) = ln((alpha - 1) / alpha), in a form without cancellation near 1
    values = alpha * rho + np.log(ORDERS) - np.log(alpha) - (math.log(delta) + np.log(alpha)) / ORDERS
    return max(0.0, float(values.min()))


@lru_cache(maxsize=64)
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho whose epsilon at this delta is at most `epsilon`, to the last bits.

    Raises:
        ValueError: epsilon is not positive and finite, or delta is outside (0, 1).
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon}; it must be a finite number above 0.")
    low, high = 0.0, 1.0
    while epsilon_of(high, delta) <= epsilon:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
    return low
