"""Payloads as tensors by name, for the wire and for checkpoints."""

import pytest
import torch

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.wire.payloads import from_tensors, to_tensors
from tests.payloads import lone, payload

LABELS = torch.tensor([1, 4])
VECTORS = torch.tensor([[0.5, -1.0, 3.0], [2.0, 0.0, 1e-30]])


@pytest.mark.parametrize("counts", [None, torch.tensor([7, 2])])
def test_tensors_and_back(counts):
    sent = PrototypeSet(LABELS, VECTORS, counts)
    tensors = to_tensors(payload(sent))
    fields = {"labels", "vectors"} | (set() if counts is None else {"counts"})
    assert tensors.keys() == {f"part/prototypes/prototypes/{name}" for name in fields}
    back = lone(from_tensors(tensors))
    assert back.labels.equal(LABELS)
    assert back.vectors.equal(VECTORS)
    assert back.counts is None if counts is None else back.counts.equal(counts)
    empty = lone(from_tensors(to_tensors(payload(PrototypeSet.empty(5)))))
    assert (len(empty), empty.dim, empty.counts) == (0, 5, None)
