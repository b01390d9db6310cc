"""Rounding that hides what a value was made of."""

import numpy as np
import pytest
import torch

from protosphere.prototypes.rounding import to_significant_bits


def rows_of_many_magnitudes(low, high, k=400, w=33, seed=0):
    """Rows whose scales go from 10^low to 10^high, with values of other magnitudes, zeros and both signs in each."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.empty(k, 1, dtype=torch.float64).uniform_(low, high, generator=generator)
    spread = torch.empty(k, w, dtype=torch.float64).uniform_(-3, 0, generator=generator)
    vectors = torch.randn(k, w, dtype=torch.float64, generator=generator).clamp(-4, 4) / 4 * 10 ** (exponents + spread)
    vectors[torch.rand(k, w, generator=generator) < 0.05] = 0
    return vectors.float()


def test_significant_bits_by_hand():
    # 1.0001b: the half goes to the even neighbour, more than a half goes up
    values = torch.tensor([[1.0, 1 + 2**-4, 1 + 3 * 2**-4, 1 + 2**-4 + 2**-20, -(1 + 3 * 2**-4), 0.0, -0.0]])
    expected = [1.0, 1.0, 1 + 2**-2, 1 + 2**-3, -(1 + 2**-2), 0.0, -0.0]
    assert to_significant_bits(values, 4).tolist() == [expected]
    with pytest.raises(ValueError, match="rounded to 0 significant bits"):
        to_significant_bits(values, 0)


@pytest.mark.parametrize("bits", [1, 8, 16, 23, 24])
def test_significant_bits_are_numpys_rounding_of_mantissas(bits):
    vectors = rows_of_many_magnitudes(-30, 30)
    before = vectors.clone()
    rounded = to_significant_bits(vectors, bits)
    mantissas, exponents = np.frexp(vectors.double().numpy())
    expected = np.ldexp(np.round(mantissas * 2**bits) / 2**bits, exponents).astype(np.float32)
    np.testing.assert_array_equal(rounded.numpy(), expected)
    assert bool(((rounded - vectors).abs().double() <= vectors.abs().double() * 2.0**-bits).all())
    assert torch.equal(to_significant_bits(rounded, bits), rounded)
    assert torch.equal(vectors, before)
    assert (bits == 24) == torch.equal(rounded, vectors)
