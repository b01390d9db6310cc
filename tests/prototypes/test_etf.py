"""The simplex frame against its definition and against the closed form of its Gram matrix."""

import numpy as np
import pytest
import torch

from protosphere.prototypes.etf import simplex_etf


@pytest.mark.parametrize(("num_classes", "dim"), [(2, 2), (2, 7), (5, 5), (10, 50), (100, 128)])
def test_rows_have_length_one_and_equal_largest_angles(num_classes, dim):
    frame = simplex_etf(num_classes, dim, seed=3)
    assert (tuple(frame.shape), frame.dtype, frame.device.type) == ((num_classes, dim), torch.float64, "cpu")
    K = num_classes
    expected = K / (K - 1) * np.eye(K) - 1 / (K - 1)
    np.testing.assert_allclose(frame @ frame.T, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(frame.sum(dim=0), np.zeros(dim), atol=1e-14)


def test_follows_equations_9_and_10_with_a_positive_diagonal():
    K, d = 4, 6
    frame = simplex_etf(K, d, seed=11)
    random = torch.randn(d, K, generator=torch.Generator().manual_seed(11), dtype=torch.float64).numpy()
    # Gram-Schmidt gives the only Q whose R has a positive diagonal
    columns = []
    for column in random.T:
        rest = column - sum((q @ column) * q for q in columns)
        columns.append(rest / np.linalg.norm(rest))
    Q = np.stack(columns, axis=1)
    Z = np.sqrt(K / (K - 1)) * Q @ (np.eye(K) - np.ones((K, K)) / K)
    np.testing.assert_allclose(frame.numpy(), Z.T, rtol=0, atol=1e-13)
