"""The ensemble's answers on the wire: what crosses, what is refused and with which words, and how it counts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord

from protosphere.data.shared_test_set import SharedLabels
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.wire.arrays import value_bytes
from protosphere.wire.ensemble import decode_answers, encode_answers
from protosphere.wire.messages import decode_report, encode_report
from protosphere.wire.payloads import Evaluation, Report
from protosphere.wire.sizes import bytes_by_part
from tests.payloads import payload

MARK = 2**64 - 3  # fingerprints fill 64 bits
SHARED = SharedLabels(torch.tensor([0, 2, 1, 1, 0]), 3, MARK)


def probabilities(n=5, K=3, seed=0, dtype=torch.float32):
    scores = torch.randn(n, K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(3 * scores, dim=1).to(dtype)


def record(values=None, **arrays):
    """An answer as a client would send it, with arrays of it replaced, or left out as None."""
    values = probabilities().numpy().astype(np.float16) if values is None else values
    found = {"probabilities": values, "fingerprint": np.array([MARK], dtype=np.uint64)} | arrays
    return ArrayRecord({name: Array(array) for name, array in found.items() if array is not None})


def rows(*values):
    return np.array(values, dtype=np.float16)


GOOD = [0.25, 0.5, 0.25]


# --- crossing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_answers_cross_as_float16_and_what_that_holds_exactly(dtype, crossed):
    sent = probabilities(dtype=dtype).requires_grad_()
    report, _ = decode_report(crossed(encode_report(Report(3, 7, ensemble=encode_answers(sent, MARK)))))
    back = decode_answers(report.ensemble, SHARED)
    assert (back.dtype, back.requires_grad) == (torch.float16, False)
    assert torch.equal(back, sent.detach().to(torch.float16))
    exact = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.5, 0.5], [0.25, 0.75, 0.0], [0.0, 1.0, 0.0]])
    back = decode_answers(crossed(encode_answers(exact, MARK)), SHARED)
    assert torch.equal(back.double(), exact.double())


@pytest.mark.parametrize("K", [1, 2, 1000, 20_000])
def test_probabilities_of_many_classes_add_up(K, crossed):
    """Near uniform, where float16 is coarsest beside the values."""
    shared = SharedLabels(torch.zeros(4, dtype=torch.int64), K, 1)
    scores = 0.05 * torch.randn(4, K, generator=torch.Generator().manual_seed(K))
    sent = torch.softmax(scores, dim=1)
    back = decode_answers(crossed(encode_answers(sent, 1)), shared)
    assert float((back.double() - sent.double()).abs().max()) <= 2**-11 / K * 4 + 2**-25
    # the worst case of rounding one way
    worst = torch.full((4, K), 1 / K).to(torch.float16)
    worst = torch.nextafter(worst.float(), torch.ones(())).to(torch.float16)
    decode_answers(encode_answers(worst, 1), shared)


def test_a_report_carries_them_apart_from_the_upload_and_its_decoder_leaves_them_alone(crossed):
    upload = payload(PrototypeSet(torch.tensor([0, 2]), torch.ones(2, 2)))
    report = Report(3, 7, upload, evaluation=Evaluation((5, 2), {"classifier": (3, 1)}), seconds=1.5)
    told = encode_report(replace(report, ensemble=encode_answers(probabilities(), MARK)))
    found, arrays = decode_report(crossed(told))
    assert set(arrays) == {"prototypes.labels", "prototypes.vectors"}
    assert set(found.ensemble) == {"probabilities", "fingerprint"}
    assert replace(found, ensemble=None) == replace(report, payload=None)
    # a bad answer spoils nothing else
    told["arrays"]["ensemble.probabilities"] = Array("O", (1,), "?", b"")
    found, arrays = decode_report(told)
    assert replace(found, ensemble=None) == replace(report, payload=None)


def test_they_are_no_payload_and_two_bytes_a_value():
    upload = payload(PrototypeSet(torch.tensor([0, 2]), torch.ones(2, 2)))
    plain = encode_report(Report(3, 7, payload=upload))
    told = encode_report(Report(3, 7, payload=upload, ensemble=encode_answers(probabilities(1000, 100), MARK)))
    assert value_bytes(told["arrays"], without=("ensemble",)) == value_bytes(plain["arrays"]) == 16
    sizes = bytes_by_part(told)
    assert 200_000 < sizes.pop("ensemble") < 200_000 + 400
    assert sizes == bytes_by_part(plain)


# --- refusals -----------------------------------------------------------------------------------------------

FOREIGN = [*(np.array(mark, np.uint64) for mark in ([MARK + 1], MARK, [MARK] * 2)), np.array([MARK - 2**64]), [1.5]]
FORMS = [
    *(probabilities().numpy(), np.eye(3, dtype=np.uint8)[[0] * 5], rows(*[GOOD] * 4), rows(*[[*GOOD, 0.0]] * 5)),
    *(rows(*[GOOD] * 5).reshape(-1), rows(*[GOOD] * 5)[None], rows()),
]
OUTSIDE = ([0.25, np.nan, 0.75], [0.0, np.inf, 0.0], [-0.25, 0.75, 0.5], [-6e-8, 0.5, 0.5], [1.001, 0.0, 0.0])
# a sum of the third in float16 would be 1.0098
SUMS = ([0.25, 0.5, 0.2], [0.5, 0.5, 0.02], [0.5, 0.5, 0.0102], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
BAD = [
    (record(probabilities=None), "the arrays ['fingerprint'] where ['fingerprint', 'probabilities'] belong"),
    (record(fingerprint=None), "the arrays ['probabilities'] where ['fingerprint', 'probabilities'] belong"),
    (record(weights=rows(GOOD)), "the arrays ['fingerprint', 'probabilities', 'weights'] where "),
    *((record(fingerprint=np.array(mark)), "another shared test set than the server's") for mark in FOREIGN),
    *((record(values), f"its probabilities are {values.dtype} of shape {values.shape}") for values in FORMS),
    *((record(rows(*[GOOD] * 4, row)), "a probability of it lies outside 0 to 1") for row in OUTSIDE),
    *((record(rows(*[GOOD] * 4, row)), "of a sample of it do not add up to 1") for row in SUMS),
]


@pytest.mark.parametrize(("answers", "reason"), BAD)
def test_what_is_no_answer_is_refused_by_name(answers, reason, crossed, refused):
    assert reason in refused(decode_answers, crossed(answers), SHARED)


@pytest.mark.parametrize("name", ["probabilities", "fingerprint"])
def test_bytes_that_are_no_array_are_refused_by_name(name, refused):
    """The kinds of damage to an array are those of test_uploads.py."""
    records = record()
    records[name] = Array("float16", (5, 3), "numpy.ndarray", b"\x93NUMPY\x01\x00\x10\x00{'shape': (((((")
    assert f"array `{name}` cannot be read (" in refused(decode_answers, records, SHARED)
    other = encode_report(Report(3, 7))
    other["metrics"] = MetricRecord({"ensemble.probabilities": [0.5, 0.5]})
    assert "the metrics 'ensemble', which nobody agreed on" in refused(decode_report, other)


def test_what_these_refusals_are_neighbours_of_passes():
    edges = [0.25, 0.5, 0.242], [0.25, 0.5, 0.258], [0.5, 0.5, 0.0099]
    for values in ([0.25, 0.5, 0.25], *edges, [-0.0, 1.0, 0.0], [6e-8, 0.5, 0.5]):
        decode_answers(record(rows(*[GOOD] * 4, values)), SHARED)
