"""The spiral against the supplement's formula and the best accuracy that its noise allows."""

import math

import numpy as np
import pytest

from protosphere.core.errors import DataError
from protosphere.data.forms.spiral import spiral


def test_without_noise_it_is_the_printed_formula():
    n = 11
    positions, arms = spiral(n, 0.0, seed=3)
    expected = []
    for k in range(6):
        for i in range(1, n + 1):
            r = 1 + (i - 1) * 9 / (n - 1)
            omega = k / 3 * math.pi + (i - 1) * k / (3 * (n - 1)) * math.pi
            expected.append((k, r * math.sin(omega), r * math.cos(omega)))
    got = sorted(zip(arms.tolist(), *positions.T.tolist(), strict=True), key=lambda row: (row[0], math.hypot(*row[1:])))
    assert np.allclose(got, expected, atol=1e-5)


def test_noise_turns_and_never_moves_outwards():
    positions, arms = spiral(500, 0.7, seed=0)
    assert positions.dtype == np.float32
    assert arms.dtype == np.int64
    assert np.bincount(arms).tolist() == [500] * 6
    for k in range(6):
        radii = np.sort(np.linalg.norm(positions[arms == k], axis=1))
        assert np.allclose(radii, np.linspace(1, 10, 500), atol=1e-5)


@pytest.mark.parametrize(("noise", "best"), [(0.2, 0.88), (1.0, 0.39)])
def test_the_best_possible_accuracy_is_the_one_known(noise, best):
    # with equal spreads the best rule is the arm with the nearest angle at that radius
    positions, arms = spiral(20_000, noise, seed=1)
    along = (np.linalg.norm(positions, axis=1) - 1) / 9
    angle = np.arctan2(positions[:, 0], positions[:, 1])
    middle = np.arange(6)[None] * np.pi / 3 * (1 + along[:, None])
    nearest = np.abs(np.angle(np.exp(1j * (angle[:, None] - middle)))).argmin(axis=1)
    assert (nearest == arms).mean() == pytest.approx(best, abs=0.01)


def test_the_seed_alone_decides_rows_are_mixed_and_one_point_is_no_arm():
    assert np.array_equal(spiral(50, 0.2, 4)[0], spiral(50, 0.2, 4)[0])
    assert not np.array_equal(spiral(50, 0.2, 4)[0], spiral(50, 0.2, 5)[0])
    assert np.bincount(spiral(100, 0.2, 0)[1][:120], minlength=6).min() > 5
    with pytest.raises(DataError, match="spiral-points is 1"):
        spiral(1, 0.2, 0)
