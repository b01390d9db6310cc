"""Mixtures on the wire: means, variances and weights as float32, a row a component; and what they must keep to."""

from collections.abc import Mapping

import numpy as np
import torch

from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.wire.checks import MessageError, check_norms
from protosphere.wire.specs import Fields

MIXTURE_VALUES = ("means", "variances", "weights")
POSITIVE = {"variances": "a variance", "weights": "a weight"}


def check_mixture_arrays(arrays: Mapping[str, np.ndarray], rows: int, dim: int, variances: int) -> None:
    """Refuse values of `rows` components in R^d that are of a wrong type or shape, not finite, or not above 0 where
    they must be.

    Args:
        variances: of a component.
    """
    shapes = {"means": (rows, dim), "variances": (rows, variances), "weights": (rows,)}
    for name, shape in shapes.items():
        if arrays[name].dtype != np.float32 or arrays[name].shape != shape:
            raise MessageError(
                f"the {name} are {arrays[name].dtype} of shape {arrays[name].shape}, float32 of {shape} were agreed"
            )
        if not np.isfinite(arrays[name]).all():
            raise MessageError(f"the {name} hold a number that is not finite")
        if name in POSITIVE and (arrays[name] < torch.finfo(torch.float32).tiny).any():
            raise MessageError(f"the payload holds {POSITIVE[name]} that is not above 0, or too small for float32")


def checked_mixtures(fields: Fields, max_norm: float) -> MixtureSet:
    """Received tensors as mixtures, on the CPU.

    Raises:
        MessageError: a mean or variance that is too large, weights of a class that do not sum to 1, counts that differ
            within a class.
    """
    # The mean square of a component's features: what is fused by moments has none beyond that of its parts, so that no
    # legal upload makes a download which clients refuse.
    spread = fields["variances"].double().sum(dim=1, keepdim=True).sqrt()
    check_norms(torch.cat([fields["means"].double(), spread], dim=1), max_norm)
    try:
        return MixtureSet(**fields)
    except ValueError as error:
        raise MessageError(f"{str(error)[0].lower()}{str(error)[1:].rstrip('.')}") from None
