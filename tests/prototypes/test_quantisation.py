"""The number formats against NumPy, torch's own casts and a loop, their error bounds, and what they refuse."""

import math

import numpy as np
import pytest
import torch

from protosphere.prototypes.quantisation import FORMATS, QuantisationError, dequantise, quantise, to_significant_bits

STORED = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.uint16, "int8": torch.int8}
LARGEST = torch.finfo(torch.float32).max
TINY = 2.0**-126


def rows_of_many_magnitudes(low, high, k=400, w=33, seed=0):
    """Rows whose scales go from 10^low to 10^high, with values of other magnitudes, zeros and both signs in each."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.empty(k, 1, dtype=torch.float64).uniform_(low, high, generator=generator)
    spread = torch.empty(k, w, dtype=torch.float64).uniform_(-3, 0, generator=generator)
    vectors = torch.randn(k, w, dtype=torch.float64, generator=generator).clamp(-4, 4) / 4 * 10 ** (exponents + spread)
    vectors[torch.rand(k, w, generator=generator) < 0.05] = 0
    return vectors.float()


def coded(wire_dtype):
    """Random rows that the format can hold."""
    return rows_of_many_magnitudes(*((-9, 4.8) if wire_dtype == "float16" else (-30, 30)))


def there_and_back(vectors, wire_dtype):
    return dequantise(*quantise(vectors, wire_dtype), wire_dtype)


def numbers(values):
    """Stored values as NumPy's, for comparison bit by bit."""
    return values.numpy().view({1: np.int8, 2: np.uint16, 4: np.uint32}[values.element_size()])


# --- against independent references ---------------------------------------------------------------


@pytest.mark.parametrize(("wire_dtype", "theirs"), [("float16", np.float16), ("float32", np.float32)])
def test_float16_is_numpys_and_float32_exact_bit_by_bit(wire_dtype, theirs):
    vectors = coded(wire_dtype)
    values, scales = quantise(vectors, wire_dtype)
    expected = vectors.numpy().astype(theirs)
    assert scales is None
    assert values.numpy().tobytes() == expected.tobytes()
    assert dequantise(values, None, wire_dtype).numpy().tobytes() == expected.astype(np.float32).tobytes()


def test_bfloat16_is_torchs_and_a_float32_without_its_lower_half():
    vectors = rows_of_many_magnitudes(-44, 38)
    values, scales = quantise(vectors, "bfloat16")
    assert scales is None
    bits = vectors.numpy().view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, halves to even
    np.testing.assert_array_equal(values.numpy(), rounded.astype(np.uint16))
    decoded = dequantise(values, None, "bfloat16")
    assert torch.equal(decoded, vectors.to(torch.bfloat16).float())
    np.testing.assert_array_equal(decoded.numpy().view(np.uint32), rounded.astype(np.uint32) << 16)


def test_int8_is_a_loop_over_values():
    vectors = coded("int8")[:60]
    # and next to the halves, where a quotient rounded to float32 would become one
    halves = vectors.abs().amax(dim=1, keepdim=True) / 127 * (torch.arange(-126, 127) + 0.5)
    vectors = torch.cat([vectors, halves, halves.nextafter(torch.tensor(0.0))], dim=1)
    values, scales = quantise(vectors, "int8")
    for row, codes, scale in zip(vectors.tolist(), values.tolist(), scales.tolist(), strict=True):
        expected = np.float32(np.float32(max(abs(v) for v in row)) / np.float32(127))
        assert scale == expected
        # Python's round goes to nearest, halves to even
        assert codes == [round(v / float(expected)) for v in row]


def int8_bound(vectors):
    size = vectors.double().abs()
    scale = (size.amax(dim=1, keepdim=True) / 127).clamp(min=TINY)
    return scale.float().double() / 2 + size * 2.0**-23


@pytest.mark.parametrize(("low", "high"), [(-44, -34), (37, 38.5)])
def test_int8_bound_down_to_the_smallest_numbers_and_up_to_the_largest(low, high):
    vectors = rows_of_many_magnitudes(low, high).clamp(-LARGEST, LARGEST)
    decoded = there_and_back(vectors, "int8")
    assert decoded.isfinite().all()
    assert ((decoded.double() - vectors.double()).abs() <= int8_bound(vectors)).all()


@pytest.mark.parametrize("largest", [2.0**-149, 2.0**-127, 2.0**-127 * (1 + 2**-22), 2.0**-126, 1e-36])
def test_int8_rows_whose_scale_would_underflow(largest):
    vectors = torch.tensor([[largest, -largest, largest / 2, 0.0]])
    values, scales = quantise(vectors, "int8")
    zero = largest <= 2.0**-127
    assert float(scales) == (0 if zero else TINY)
    assert bool(values.any()) is not zero
    assert ((dequantise(values, scales, "int8") - vectors).abs().double() <= int8_bound(vectors)).all()


# --- invariances ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire_dtype", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_what_was_decoded_encodes_to_the_same(wire_dtype, seed):
    vectors = coded(wire_dtype)
    if wire_dtype == "int8":
        vectors = torch.cat([vectors, rows_of_many_magnitudes(-44, -34), torch.tensor([[LARGEST] * 33, [0.0] * 33])])
    vectors = vectors * (1 + seed / 7) if wire_dtype == "bfloat16" else vectors * (1 - seed / 7)
    values, scales = quantise(vectors, wire_dtype)
    again, scales_again = quantise(dequantise(values, scales, wire_dtype), wire_dtype)
    np.testing.assert_array_equal(numbers(again), numbers(values))
    assert scales is None or torch.equal(scales, scales_again)


# --- degenerate input, types, NumPy -----------------------------------------------------------------


@pytest.mark.parametrize("wire_dtype", FORMATS)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (1, 1), (4, 1)])
def test_shapes_and_types(wire_dtype, shape):
    values, scales = quantise(torch.full(shape, 0.75), wire_dtype)
    assert values.shape == shape
    assert values.dtype == STORED[wire_dtype]
    assert (scales is None) is (wire_dtype != "int8")
    assert scales is None or (scales.shape == shape[:1] and scales.dtype == torch.float32)
    decoded = dequantise(values, scales, wire_dtype)
    assert decoded.dtype == torch.float32
    torch.testing.assert_close(decoded, torch.full(shape, 0.75))


@pytest.mark.parametrize("wire_dtype", FORMATS)
def test_zero_rows_stay_zero_beside_others(wire_dtype):
    values, scales = quantise(torch.tensor([[0.0, 0.0], [3.0, -1.0], [0.0, -0.0]]), wire_dtype)
    decoded = dequantise(values, scales, wire_dtype)
    assert not decoded[[0, 2]].any()
    assert decoded[1].all()
    assert scales is None or scales[[0, 2]].tolist() == [0, 0]
    assert scales is None or not dequantise(torch.full_like(values, 5), 0 * scales, wire_dtype).any()


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire_dtype", FORMATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_row(wire_dtype, value):
    vectors = torch.ones(4, 3)
    vectors[2, 1] = value
    with pytest.raises(QuantisationError, match=r"^Row 2 of the prototypes holds NaN or infinity") as raised:
        quantise(vectors, wire_dtype)
    assert raised.value.row == 2


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("wire_dtype", "fits", "beyond", "words"),
    [
        ("float16", 65504.0, 65505.0, "65505, beyond 65504"),
        ("bfloat16", (2 - 2.0**-7) * 2.0**127, (2 - 2.0**-8) * 2.0**127, r"3\.[34].*, beyond 3\.[34].*"),
        ("float32", LARGEST, 2.0**128, r"3\.[34].*, beyond 3\.[34].*"),
        ("int8", LARGEST, 2.0**128, r"3\.[34].*, beyond 3\.[34].*"),
    ],
)
def test_what_would_round_to_infinity_is_refused(wire_dtype, fits, beyond, words, sign):
    assert there_and_back(torch.tensor([[sign * fits]], dtype=torch.float64), wire_dtype).isfinite().all()
    vectors = torch.tensor([[1.0, 0.0], [0.0, sign * beyond]], dtype=torch.float64)
    with pytest.raises(
        QuantisationError, match=f"^Row 1 .* holds {words}, the largest number of {wire_dtype}"
    ) as raised:
        quantise(vectors, wire_dtype)
    assert raised.value.row == 1


def test_an_unknown_format_and_what_is_no_rows_of_floats_are_refused():
    for refuse in (lambda: quantise(torch.ones(1, 1), "float8"), lambda: dequantise(torch.ones(1, 1), None, "float8")):
        with pytest.raises(ValueError, match="'float8' is unknown; choose one of float32, float16, bfloat16, int8"):
            refuse()
    for vectors in (torch.ones(3), torch.ones(2, 2, 2), torch.ones(2, 2, dtype=torch.int64)):
        with pytest.raises(QuantisationError, match=r"shape \(.*must be floating-point rows \(k, w\)"):
            quantise(vectors, "float32")


@pytest.mark.parametrize("wire_dtype", FORMATS)
def test_another_stored_type_or_rank_is_refused(wire_dtype):
    values, scales = quantise(torch.ones(2, 3), wire_dtype)
    for wrong in [values.to(torch.float64), values.view(torch.uint8), values[0], values[None]]:
        with pytest.raises(QuantisationError, match=rf"values of {wire_dtype} prototypes have shape \(.*must be rows"):
            dequantise(wrong, scales, wire_dtype)
    # its own size in bytes, but another meaning
    for other in FORMATS:
        if STORED[other] != STORED[wire_dtype]:
            with pytest.raises(QuantisationError, match=f"values of {other} prototypes"):
                dequantise(values, scales if other == "int8" else None, other)


TWO = torch.zeros(2, 3, dtype=torch.int8)
SCALES = (torch.ones(1), torch.ones(3), torch.ones(2, 1), torch.ones(2).double(), torch.ones(2).int())
OF_INT8 = {-1.0: "-1.0", math.nan: "nan", math.inf: "inf", -1e-45: "-1"}
BITS = [torch.tensor([[0x3F80], [bits]], dtype=torch.uint16) for bits in (0x7FC0, 0xFF80)]
# format, values, scales, the row that is named, words
BROKEN = [
    ("int8", TWO, None, None, "scales of int8 prototypes are missing"),
    *(
        (name, quantise(torch.ones(2, 3), name)[0], torch.ones(2), None, f"Scales came with {name} prototypes")
        for name in ("float32", "float16", "bfloat16")
    ),
    *(("int8", TWO, s, None, r"scales of int8 .* shape \(.*one for each of the 2 rows") for s in SCALES),
    *(("int8", TWO, torch.tensor([1.0, s]), 1, f"Row 1 .* has the scale {named}") for s, named in OF_INT8.items()),
    # the code that no encoder writes
    ("int8", torch.tensor([[-127, 127], [0, -128]], dtype=torch.int8), torch.ones(2), 1, "Row 1 .* holds -128"),
    ("float32", torch.tensor([[1.0], [math.nan]]), None, 1, "Row 1 of the float32 .* not finite"),
    ("float16", torch.tensor([[1.0], [-math.inf]]).half(), None, 1, "Row 1 of the float16 .* not finite"),
    *(("bfloat16", bits, None, 1, "Row 1 of the bfloat16 .* not finite") for bits in BITS),
    ("int8", torch.tensor([[1], [127]], dtype=torch.int8), torch.tensor([3e38, 3e38]), 1, "Row 1 .* not finite"),
]


@pytest.mark.parametrize(("wire_dtype", "values", "scales", "row", "words"), BROKEN)
def test_what_cannot_be_decoded_is_refused_with_its_row(wire_dtype, values, scales, row, words):
    with pytest.raises(QuantisationError, match=words) as raised:
        dequantise(values, scales, wire_dtype)
    assert raised.value.row == row


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
