"""Rounding that hides the factors of a product."""

import torch
from torch import Tensor


def to_significant_bits(vectors: Tensor, bits: int) -> Tensor:
    """Values rounded to `bits` significant binary digits, halves to even, in their own dtype and shape.

    The product of a float32 and a whole number n reaches only some of the float32 numbers, and these reveal n; with 8
    digits fewer, every value can be reached from some float32 for every n. vectors: floating, any shape; not finite
    ones stay as they are. Raises ValueError for less than one digit.
    """
    if bits < 1:
        raise ValueError(f"Values were to be rounded to {bits} significant bits; keep at least 1.")
    mantissas, exponents = torch.frexp(vectors.detach().double())
    return torch.ldexp((mantissas * 2.0**bits).round() / 2.0**bits, exponents).to(vectors.dtype)
