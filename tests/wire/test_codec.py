"""The codec: what crosses of a prototype and how exactly, its bytes, and what two ends say that do not agree."""

import re

import pytest
import torch

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.wire.checks import CodecError
from protosphere.wire.codec import Codec, Limits, decode_payload, encode_payload
from protosphere.wire.specs import Spec
from tests.payloads import lone, payload

K = 8
BYTES = {"float32": 4, "float16": 2}
CODECS = {dtype: Codec(K, 12, dtype, seed=3) for dtype in BYTES}
PLAIN = Codec(K, 12)


def prototypes(labels, dim, counted=False, seed=0):
    """Rows of very different size, one of them zero where there are several."""
    vectors = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(seed))
    vectors *= 10.0 ** torch.linspace(3, -6, len(labels)).unsqueeze(1)
    vectors[1:2] = 0
    counts = torch.arange(1, len(labels) + 1) if counted else None
    return PrototypeSet(torch.tensor(list(labels), dtype=torch.int64), vectors, counts)


def allowed_error(values, wire_dtype):
    """What quantisation.py promises for values (k, d)."""
    size = values.double().abs()
    if wire_dtype == "float16":
        return torch.where(size < 2**-14, 2**-25, size * 2**-11)
    return torch.zeros_like(size)


# --- there and back -----------------------------------------------------------------------------------------


def counted_as(counted):
    return (Spec("prototypes", counts=counted),)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("labels", [range(K), (0, 2, 5, 7), (4,), ()], ids=["all", "some", "one", "none"])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_what_crosses_comes_within_the_format(codec, labels, counted, crossed):
    sent = prototypes(labels, codec.dim, counted)
    back = lone(decode_payload(crossed(encode_payload(payload(sent), codec)), Limits(codec, 1e6, counted_as(counted))))
    assert back.labels.tolist() == list(labels)
    assert back.vectors.dtype == torch.float32
    assert back.vectors.shape == (len(labels), codec.dim)
    assert back.counts is None if not counted else back.counts.equal(sent.counts)
    error = (back.vectors.double() - sent.vectors.double()).abs()
    assert (error <= allowed_error(sent.vectors, codec.wire_dtype)).all()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_prototype_takes_as_many_values_on_the_wire_as_it_has(codec, crossed):
    encoded = crossed(encode_payload(payload(prototypes((1, 3, 6), codec.dim, counted=True)), codec))
    arrays = {name: array.numpy() for name, array in encoded.items()}
    assert arrays.keys() == {"labels", "vectors", "counts"}
    assert arrays["vectors"].shape == (3, codec.dim)
    assert arrays["vectors"].itemsize == BYTES[codec.wire_dtype]


# --- agreement ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_encoding_leaves_the_payload_alone_and_what_was_decoded_encodes_to_the_same_again(codec):
    sent = prototypes(range(K), codec.dim)
    before = sent.vectors.clone()
    once = encode_payload(payload(sent.with_vectors(sent.vectors.requires_grad_())), codec)
    assert sent.vectors.equal(before)
    again = encode_payload(payload(lone(decode_payload(once, Limits(codec, 1e6)))), codec)
    assert {name: array.data for name, array in again.items()} == {name: array.data for name, array in once.items()}


def parts(difference):
    """Part -> (there, here), as `difference` tells it."""
    clauses = [re.fullmatch(r"(\w+) is (\S+) there and (\S+) here", clause) for clause in difference.split(", ")]
    assert all(clauses), difference
    return {clause[1]: (clause[2], clause[3]) for clause in clauses}


DIFFERING = {
    "classes": (PLAIN, Codec(9, 12), {"K": ("9", "8")}),
    "width": (PLAIN, Codec(K, 64), {"d": ("64", "12")}),
    "seed": (PLAIN, Codec(K, 12, seed=1), {"seed": ("1", "0")}),
    "two things": (PLAIN, Codec(9, 12, "float16"), {"K": ("9", "8"), "format": ("float16", "float32")}),
}


@pytest.mark.parametrize("name", DIFFERING)
def test_exactly_what_differs_is_named_on_both_sides_with_the_remedy(name, refused):
    here, there, expected = DIFFERING[name]
    found = parts(here.difference(there.fingerprint))
    assert found.keys() == expected.keys()
    assert all(found[part] == values for part, values in expected.items() if values)
    assert parts(there.difference(here.fingerprint)) == {part: (b, a) for part, (a, b) in found.items()}
    reason = refused(here.refuse_other, there.fingerprint)
    assert here.difference(there.fingerprint) in reason
    assert "wire-dtype and seed" in reason  # the remedy
    here.refuse_other(here.fingerprint)


HOSTILE = [
    *("", "K=8\n d=\x1b[2J12 \x00 s=5", "K=" + "x" * 100_000, " ".join(f"a{i}=1" for i in range(5000))),
    *("nobody agreed on this", "= == ===", "K=\ud800", PLAIN.fingerprint + " ", PLAIN.fingerprint + " K=8"),
]


@pytest.mark.parametrize("fingerprint", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_fingerprint_is_refused_in_one_printable_line(fingerprint, refused):
    for codec in (PLAIN, Codec(K, 12, "float16")):
        assert "another codec" in refused(codec.refuse_other, fingerprint)
        assert codec.difference(fingerprint).isprintable()


# --- what a format cannot hold --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire_dtype", "value", "named"),
    [
        ("float16", 65520.0, "65520, beyond 65504"),
        ("float16", -1e6, "wire-dtype float32"),
        ("float16", float("-inf"), "NaN or infinity"),
    ],
)
def test_a_value_that_the_format_cannot_hold_names_its_class(wire_dtype, value, named):
    sent = prototypes((1, 4, 6), 12)
    vectors = sent.vectors.clone()
    vectors[2, -1] = value
    with pytest.raises(CodecError, match=rf"^a prototype cannot be sent \(class 6\): .*{named}"):
        encode_payload(payload(sent.with_vectors(vectors)), Codec(K, 12, wire_dtype))
