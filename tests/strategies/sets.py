"""Payloads and states held against each other to the bit; class means of any kind."""

import torch

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.wire.payloads import to_tensors
from tests.payloads import payload


def same(one, other):
    """Whether two payloads or parts, or none, are equal to the bit."""
    if one is None or other is None:
        return one is other
    return same_state(to_tensors(payload(one)), to_tensors(payload(other)))


def same_state(one, other):
    """Whether two methods' states are equal to the bit, on whatever device they lie."""
    return one.keys() == other.keys() and all(torch.equal(t.cpu(), other[name].cpu()) for name, t in one.items())


def class_means(held, dim, seed=0, shift=0.0, counted=False):
    """Partition -> prototypes of the classes that it holds, around `shift` in all directions.

    Args:
        held: partition -> classes. counted: whether with class counts, from 1 to 49.
    """
    random = torch.Generator().manual_seed(seed)
    made = {}
    for partition, labels in held.items():
        vectors = torch.randn(len(labels), dim, generator=random) + shift
        counts = torch.randint(1, 50, (len(labels),), generator=random) if counted else None
        made[partition] = PrototypeSet(torch.tensor(labels, dtype=torch.int64), vectors, counts)
    return made


def in_part(clients, classes):
    """Partition -> two of three of these classes, others for its neighbours."""
    return {p: tuple(label for label in classes if (p + label) % 3) for p in range(clients)}
