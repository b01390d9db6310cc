"""A client's answers for the ensemble: class probabilities of the shared test set, as they cross."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from protosphere.data.shared_test_set import SharedLabels
from protosphere.wire.arrays import read_array
from protosphere.wire.checks import MessageError

SUM_TOLERANCE = 0.01  # float16 rounds each of K probabilities to 11 bits, or to 6e-8 where they are small


def encode_answers(probabilities: Tensor, fingerprint: int) -> ArrayRecord:
    """The ensemble's answers.

    Args:
        probabilities: class probabilities of the shared test set, (n, K), which cross as float16.
        fingerprint: of the test set that was predicted, so that copies which differ are found out.
    """
    values = probabilities.detach().cpu().to(torch.float16).numpy()
    return ArrayRecord({"probabilities": Array(values), "fingerprint": Array(np.array([fingerprint], dtype=np.uint64))})


def decode_answers(record: ArrayRecord, shared: SharedLabels) -> Tensor:
    """Check received answers and give their probabilities, (n, K) float16 as they came.

    Raises:
        MessageError: names what is wrong: fields, dtype, shape, another test set, no probabilities.
    """
    if set(record) != {"probabilities", "fingerprint"}:
        raise MessageError(f"it holds the arrays {sorted(record)} where ['fingerprint', 'probabilities'] belong")
    fingerprint, values = (
        read_array("fingerprint", record["fingerprint"]),
        read_array("probabilities", record["probabilities"]),
    )
    if fingerprint.dtype != np.uint64 or fingerprint.shape != (1,) or int(fingerprint[0]) != shared.fingerprint:
        raise MessageError(
            "it is of another shared test set than the server's; give client and server the same samples in the same "
            "order"
        )
    agreed = (len(shared.labels), shared.num_classes)
    if values.dtype != np.float16 or values.shape != agreed:
        raise MessageError(
            f"its probabilities are {values.dtype} of shape {values.shape}, float16 of {agreed} were agreed"
        )
    probabilities = torch.from_numpy(values)
    # a comparison with NaN is false
    if not bool(((probabilities >= 0) & (probabilities <= 1)).all()):
        raise MessageError("a probability of it lies outside 0 to 1")
    if not bool(((probabilities.sum(dim=1, dtype=torch.float64) - 1).abs() <= SUM_TOLERANCE).all()):
        raise MessageError("the probabilities of a sample of it do not add up to 1")
    return probabilities
