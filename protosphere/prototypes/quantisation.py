"""The wire's number formats: prototype vectors as float32 or float16, and back."""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS = ("float32", "float16")
_STORED = {"float32": torch.float32, "float16": torch.float16}


class QuantisationError(ValueError):
    """Prototypes that a number format cannot hold, or an encoding that stands for none.

    row: the row at fault, counted from 0; None where no single row is.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def quantise(vectors: Tensor, wire_dtype: str) -> Tensor:
    """Prototypes (k, w) as they travel, in the format's type: cast to float32 first, then rounded to nearest, halves to
    even. float16 is off by at most |v|·2^-11, or 2^-25 where |v| < 2^-14.

    What has been decoded encodes to the same again. Raises ValueError for an unknown format, and QuantisationError for
    anything but floating-point rows, a value that is not finite, or one beyond the largest number of the format.
    """
    _check_format(wire_dtype)
    if vectors.dim() != 2 or not vectors.is_floating_point():
        raise QuantisationError(
            f"The vectors to quantise have shape {tuple(vectors.shape)} and dtype {vectors.dtype}; "
            "they must be floating-point rows (k, w)."
        )
    _check_values(vectors, wire_dtype)
    return vectors.detach().to(torch.float32, copy=True).to(_STORED[wire_dtype])


def dequantise(values: Tensor, wire_dtype: str) -> Tensor:
    """The prototypes (k, w) float32 that `quantise` encoded.

    Raises ValueError for an unknown format, and QuantisationError for a wrong type or rank, and for rows that hold NaN
    or infinity.
    """
    _check_format(wire_dtype)
    stored = _STORED[wire_dtype]
    if values.dim() != 2 or values.dtype != stored:
        raise QuantisationError(
            f"The values of {wire_dtype} prototypes have shape {tuple(values.shape)} and dtype {values.dtype}; "
            f"they must be rows (k, w) of {stored}."
        )
    decoded = values.to(torch.float32, copy=True)
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
    largest = torch.finfo(_STORED[wire_dtype]).max
    row = _first_row(vectors.abs().double() > largest)
    if row is not None:
        remedy = (
            "choose the wire-dtype float32"
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
