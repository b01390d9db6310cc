"""What noisy releases cost: rho of zero-concentrated differential privacy, and the (epsilon, delta) that it stands for.

    rho adds up over releases, adaptively chosen ones too                                  (Bun, Steinke 2016)
    epsilon(rho, delta) = min over alpha > 1 of
        alpha rho + ln(1 - 1/alpha) - (ln delta + ln alpha) / (alpha - 1)        (Canonne, Kamath, Steinke 2020)

It holds for the discrete Gaussian, of which the exact conversion of a continuous one says nothing.
"""

import math
from functools import lru_cache

import numpy as np

# Orders alpha - 1. A minimum over a grid only errs upwards; neighbours that differ by 0.5 % miss it by a millionth.
ORDERS = np.logspace(-6, 12, 8001)
HALVINGS = 200


def epsilon_of(rho: float, delta: float) -> float:
    """The epsilon of rho-zCDP at this delta in (0, 1); 0 of rho = 0, at least 0.

    Raises:
        ValueError: a rho below 0 or not finite, a delta outside (0, 1).
    """
    if not (0 <= rho < math.inf and 0 < delta < 1):
        raise ValueError(f"rho is {rho} and delta {delta}; they must be finite from 0 and within (0, 1).")
    if rho == 0:
        return 0.0
    alpha = 1 + ORDERS
    # ln(1 - 1/alpha) = ln((alpha - 1) / alpha), without what cancels near 1
    values = alpha * rho + np.log(ORDERS) - np.log(alpha) - (math.log(delta) + np.log(alpha)) / ORDERS
    return max(0.0, float(values.min()))


@lru_cache(maxsize=64)
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho, to the last bits, whose epsilon at this delta is no larger than `epsilon`.

    Raises:
        ValueError: an epsilon that is not above 0 or not finite, a delta outside (0, 1).
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
