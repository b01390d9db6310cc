"""Mixtures on the wire: means, variances and weights as float32, a row a component; and what they must keep to."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from federation.wire.checks import MessageError, check_norms
from prototypes.mixture_set import MixtureSet

MIXTURE_VALUES = ("means", "variances", "weights")
POSITIVE = {"variances": "a variance", "weights": "a weight"}


def mixture_arrays(mixtures: MixtureSet) -> dict[str, np.ndarray]:
    """The values of mixtures by field; a variance or weight too small for float32 becomes its smallest."""
    smallest = torch.finfo(torch.float32).tiny
    tensors = {name: getattr(mixtures, name).detach().cpu().float() for name in MIXTURE_VALUES}
    tensors |= {name: tensors[name].clamp(min=smallest) for name in ("variances", "weights")}
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def checked_mixtures(
    labels: Tensor, arrays: Mapping[str, np.ndarray], counts: Tensor | None, dim: int, max_norm: float
) -> MixtureSet:
    """Received values as mixtures in R^d, on the CPU.

    Raises:
        MessageError: a wrong type or shape, a mean or variance that is not finite or too large, a variance or weight
            that is not above 0, weights of a class that do not sum to 1, counts that differ within a class.
    """
    shapes = {"means": (len(labels), dim), "variances": (len(labels), dim), "weights": (len(labels),)}
    for name, shape in shapes.items():
        if arrays[name].dtype != np.float32 or arrays[name].shape != shape:
            raise MessageError(
                f"the {name} are {arrays[name].dtype} of shape {arrays[name].shape}, float32 of {shape} were agreed"
            )
        if not np.isfinite(arrays[name]).all():
            raise MessageError(f"the {name} hold a number that is not finite")
        if name in POSITIVE and (arrays[name] < torch.finfo(torch.float32).tiny).any():
            raise MessageError(f"the payload holds {POSITIVE[name]} that is not above 0, or too small for float32")
    tensors = {name: torch.from_numpy(arrays[name]) for name in MIXTURE_VALUES}
    # The mean square of a component's features: what is fused by moments has none beyond that of its parts, so that no
    # legal upload makes a download which clients refuse.
    spread = tensors["variances"].double().sum(dim=1, keepdim=True).sqrt()
    check_norms(torch.cat([tensors["means"].double(), spread], dim=1), max_norm)
    try:
        return MixtureSet(labels, **tensors, counts=counts)
    except ValueError as error:
        raise MessageError(f"{str(error)[0].lower()}{str(error)[1:].rstrip('.')}") from None
