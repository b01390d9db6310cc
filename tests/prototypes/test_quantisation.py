"""The number formats against NumPy, and what they refuse."""

import numpy as np
import pytest
import torch

from protosphere.prototypes.quantisation import FORMATS, QuantisationError, dequantise, quantise, to_significant_bits


def rows_of_many_magnitudes(low, high, k=400, w=33, seed=0):
    """Rows whose scales go from 10^low to 10^high, with values of other magnitudes, zeros and both signs in each."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.empty(k, 1, dtype=torch.float64).uniform_(low, high, generator=generator)
    spread = torch.empty(k, w, dtype=torch.float64).uniform_(-3, 0, generator=generator)
    vectors = torch.randn(k, w, dtype=torch.float64, generator=generator).clamp(-4, 4) / 4 * 10 ** (exponents + spread)
    vectors[torch.rand(k, w, generator=generator) < 0.05] = 0
    return vectors.float()


@pytest.mark.parametrize(("wire_dtype", "theirs"), [("float16", np.float16), ("float32", np.float32)])
def test_float16_is_numpys_and_float32_exact_bit_by_bit(wire_dtype, theirs):
    vectors = rows_of_many_magnitudes(*((-9, 4.8) if wire_dtype == "float16" else (-30, 30)))
    before = vectors.clone()
    values = quantise(vectors.requires_grad_(), wire_dtype)
    expected = before.numpy().astype(theirs)
    assert values.numpy().tobytes() == expected.tobytes()
    decoded = dequantise(values, wire_dtype)
    assert decoded.numpy().tobytes() == expected.astype(np.float32).tobytes()
    # what was decoded encodes to the same again, and what was given stays
    assert torch.equal(quantise(decoded, wire_dtype), values)
    assert torch.equal(vectors, before)
    size = before.double().abs()
    bound = torch.where(size < 2**-14, 2**-25, size * 2**-11) if wire_dtype == "float16" else torch.zeros_like(size)
    assert ((decoded.double() - before.double()).abs() <= bound).all()


@pytest.mark.parametrize("wire_dtype", FORMATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused_by_its_row_both_ways(wire_dtype, value):
    vectors = torch.zeros(3, 4)
    vectors[1, 2] = value
    with pytest.raises(QuantisationError, match="Row 1 of the prototypes holds NaN or infinity") as caught:
        quantise(vectors, wire_dtype)
    assert caught.value.row == 1
    with pytest.raises(QuantisationError, match=r"Row 1 .* decodes to a value that is not finite"):
        dequantise(vectors.to(getattr(torch, wire_dtype)), wire_dtype)


def test_a_value_beyond_float16_is_refused_with_the_remedy():
    assert quantise(torch.tensor([[65504.0, -65504.0]]), "float16").isfinite().all()
    with pytest.raises(QuantisationError, match=r"holds 65505, beyond 65504.*choose the wire-dtype float32"):
        quantise(torch.tensor([[65505.0, 0.0]]), "float16")


@pytest.mark.parametrize("wire_dtype", FORMATS)
def test_other_types_ranks_and_formats_are_refused(wire_dtype):
    for wrong in (torch.zeros(3), torch.zeros(2, 2, 2), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(QuantisationError, match="must be floating-point rows"):
            quantise(wrong, wire_dtype)
    with pytest.raises(QuantisationError, match="must be rows"):
        dequantise(torch.zeros(2, 2, dtype=torch.float64), wire_dtype)
    for call in (lambda: quantise(torch.zeros(1, 1), "int8"), lambda: dequantise(torch.zeros(1, 1), "int8")):
        with pytest.raises(ValueError, match="'int8' is unknown; choose one of float32, float16"):
            call()


# --- significant bits -------------------------------------------------------------------------------------


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
