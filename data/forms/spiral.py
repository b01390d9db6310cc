"""ProtoNorm's spiral: six arms in the plane, each one class (supplement A of ProtoNorm)."""

import numpy as np

from protosphere.core.errors import DataError

NUM_CLASSES = 6
INNER_RADIUS, OUTER_RADIUS = 1.0, 10.0


def spiral(points: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points on six spiral arms and the arm of each (supplement A of ProtoNorm).

    Point i of arm k has the radius r_i, growing evenly from 1 to 10, and the angle
    ω_ki = kπ/3 + kπ/3 · (i − 1)/(points − 1) + b_ki with b ~ N(0, noise²); it lies at (r sin ω, r cos ω).

    Args:
        points: points per arm, at least 2 (the paper: 5000).
        noise: standard deviation of the angle in radians, at least 0 (printed: 1; methods.md: 0.2).
        seed: decides the noise and the order of the rows, at least 0.

    Returns:
        Positions (6 · points, 2) float32 and arms (6 · points,) int64, the rows in random order.
    """
    if points < 2:
        raise DataError(f"spiral-points is {points}, but an arm of the spiral needs at least 2 points.")
    rng = np.random.default_rng([seed, 0])
    arm = np.repeat(np.arange(NUM_CLASSES), points)
    along = np.tile(np.linspace(0.0, 1.0, points), NUM_CLASSES)
    radius = INNER_RADIUS + (OUTER_RADIUS - INNER_RADIUS) * along
    angle = arm * np.pi / 3 * (1 + along) + noise * rng.standard_normal(arm.size)
    positions = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1).astype(np.float32)
    order = rng.permutation(arm.size)
    return positions[order], arm[order].astype(np.int64)
