"""The wire's number formats: prototype vectors as float32, float16, bfloat16 bits or int8, and back."""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS = ("float32", "float16", "bfloat16", "int8")

# bfloat16 travels as its bits, for NumPy has no such type
_STORED = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.uint16, "int8": torch.int8}
# the type whose largest number bounds what a format can hold; int8's scale is a float32
_RANGE = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.float32}

_STEPS = 127
# Below float32's smallest normal number a scale would lose its digits, or all of itself on a machine that flushes.
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny
# Of the second largest float32: 127 times the largest's, rounded, would overflow.
_LARGEST_SCALE = (2 - 2**-22) * 2.0**127 / _STEPS


class QuantisationError(ValueError):
    """Prototypes that a number format cannot hold, or an encoding that stands for none.

    row: the row at fault, counted from 0; None where no single row is.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def quantise(vectors: Tensor, wire_dtype: str) -> tuple[Tensor, Tensor | None]:
    """Prototypes as they travel: values (k, w) in the stored type, and int8's scales (k,) float32, else None.

    vectors: (k, w), floating; cast to float32 first, then rounded to nearest, halves to even. The stored type of
    `bfloat16` is torch.uint16, its bits. The error of a value v that `dequantise` gives back:

    - `float32`: none (beyond the cast).
    - `float16`: at most |v|·2^-11, or 2^-25 where |v| < 2^-14.
    - `bfloat16`: at most |v|·2^-8, or 2^-134 where |v| < 2^-126.
    - `int8`: at most s/2 + |v|·2^-23, where s = max(max|row| / 127, 2^-126) is the row's scale; values are in
      -127..127. The second part is float32's rounding of the product. A row whose largest |v| is at most 2^-127
      has scale 0 and decodes to zeros; so does a zero row.

    Each row is encoded by itself, and what has been decoded encodes to the same again. Raises ValueError for
    an unknown format, and QuantisationError for anything but floating-point rows, a value that is not finite,
    or one beyond the largest number of the format.
    """
    _check_format(wire_dtype)
    if vectors.dim() != 2 or not vectors.is_floating_point():
        raise QuantisationError(
            f"The vectors to quantise have shape {tuple(vectors.shape)} and dtype {vectors.dtype}; "
            "they must be floating-point rows (k, w)."
        )
    _check_values(vectors, wire_dtype)
    exact = vectors.detach().to(torch.float32, copy=True)
    if wire_dtype == "int8":
        return _to_int8(exact)
    if wire_dtype == "bfloat16":
        return exact.to(torch.bfloat16).view(torch.uint16), None
    return exact.to(_STORED[wire_dtype]), None


def dequantise(values: Tensor, scales: Tensor | None, wire_dtype: str) -> Tensor:
    """The prototypes (k, w) float32 that `quantise` encoded; for int8 each row times its scale.

    values: (k, w) in the format's stored type; scales: (k,) float32, at least 0, for int8 only. A row of scale 0
    decodes to zeros whatever its values. Raises ValueError for an unknown format, and QuantisationError for a
    wrong type, rank or length, missing or superfluous scales, a negative or non-finite scale, the int8 value
    -128, which no encoder writes, and rows that decode to NaN or infinity.
    """
    _check_format(wire_dtype)
    stored = _STORED[wire_dtype]
    if values.dim() != 2 or values.dtype != stored:
        raise QuantisationError(
            f"The values of {wire_dtype} prototypes have shape {tuple(values.shape)} and dtype {values.dtype}; "
            f"they must be rows (k, w) of {stored}."
        )
    if wire_dtype == "int8":
        decoded = _from_int8(values, scales)
    elif scales is not None:
        raise QuantisationError(f"Scales came with {wire_dtype} prototypes; only int8 has any, so send none.")
    else:
        decoded = (values.view(torch.bfloat16) if wire_dtype == "bfloat16" else values).to(torch.float32, copy=True)
    row = _first_row(~decoded.isfinite())
    if row is not None:
        raise QuantisationError(
            f"Row {row} of the {wire_dtype} prototypes decodes to a value that is not finite; "
            "it was damaged, or encoded by something else.",
            row,
        )
    return decoded


def to_significant_bits(vectors: Tensor, bits: int) -> Tensor:
    """Values rounded to `bits` significant binary digits, halves to even, in their own dtype and shape.

    The product of a float32 and a whole number n reaches only part of the float32 numbers, and which part tells n;
    with 8 digits fewer every value is reached from some float32 whatever n is. vectors: floating, any shape; not
    finite ones stay as they are. Raises ValueError for less than one digit.
    """
    if bits < 1:
        raise ValueError(f"Values were to be rounded to {bits} significant bits; keep at least 1.")
    mantissas, exponents = torch.frexp(vectors.detach().double())
    return torch.ldexp((mantissas * 2.0**bits).round() / 2.0**bits, exponents).to(vectors.dtype)


def _to_int8(vectors: Tensor) -> tuple[Tensor, Tensor]:
    largest = vectors.abs().amax(dim=1) if vectors.numel() else vectors.new_zeros(len(vectors))
    scales = (largest / _STEPS).clamp(_SMALLEST_SCALE, _LARGEST_SCALE)
    # in float64, so that a quotient near a half is not rounded twice
    steps = (vectors.double() / scales.double().unsqueeze(1)).round().clamp(-_STEPS, _STEPS)
    nothing = largest <= _SMALLEST_SCALE / 2
    return steps.to(torch.int8), scales.masked_fill(nothing, 0)


def _from_int8(values: Tensor, scales: Tensor | None) -> Tensor:
    if scales is None:
        raise QuantisationError("The scales of int8 prototypes are missing; one a row must come with the values.")
    if scales.shape != values.shape[:1] or scales.dtype != torch.float32:
        raise QuantisationError(
            f"The scales of int8 prototypes have shape {tuple(scales.shape)} and dtype {scales.dtype}; "
            f"they must be float32, one for each of the {len(values)} rows."
        )
    row = _first_row((~scales.isfinite() | (scales < 0)).unsqueeze(1))
    if row is not None:
        raise QuantisationError(
            f"Row {row} of the int8 prototypes has the scale {float(scales[row])}; a scale is finite and at least 0.",
            row,
        )
    row = _first_row(values == -_STEPS - 1)
    if row is not None:
        raise QuantisationError(
            f"Row {row} of the int8 prototypes holds -128, which no encoder writes; values go from -127 to 127.", row
        )
    return values.to(torch.float32) * scales.unsqueeze(1)


def _check_format(wire_dtype: str) -> None:
    if wire_dtype not in FORMATS:
        raise ValueError(f"The number format {wire_dtype!r} is unknown; choose one of {', '.join(FORMATS)}.")


def _check_values(vectors: Tensor, wire_dtype: str) -> None:
    row = _first_row(~vectors.isfinite())
    if row is not None:
        raise QuantisationError(
            f"Row {row} of the prototypes holds NaN or infinity; the training that made it has diverged, "
            "so lower the learning-rate.",
            row,
        )
    largest = torch.finfo(_RANGE[wire_dtype]).max
    row = _first_row(vectors.abs().double() > largest)
    if row is not None:
        remedy = (
            "choose the wire-dtype bfloat16, int8 or float32"
            if wire_dtype == "float16"
            else "the training that made it has probably diverged, so lower the learning-rate"
        )
        raise QuantisationError(
            f"Row {row} of the prototypes holds {float(vectors[row].abs().max()):.6g}, beyond {largest:.6g}, "
            f"the largest number of {wire_dtype}; {remedy}.",
            row,
        )


def _first_row(bad: Tensor) -> int | None:
    """The first row of bad (k, w), bool, that holds a True."""
    rows = bad.any(dim=1).nonzero()
    return int(rows[0]) if len(rows) else None
