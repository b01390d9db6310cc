"""Uploads made to harm: whatever their arrays are, the answer is a MessageError with the reason."""

import tracemalloc
from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from protosphere.wire.arrays import Limits, decode, value_bytes
from protosphere.wire.checks import MessageError
from protosphere.wire.parts import PROTOTYPES, Part
from tests.payloads import lone

K, D = 6, 4
PLAIN = (PROTOTYPES,)
COUNTED = (Part("prototypes", counts=True),)
STORED = {"float32": np.float32, "float16": np.float16}


def arrived(upload, parts=PLAIN):
    """As the other side takes it."""
    return decode(upload, parts, K, D, Limits(100.0))


def record(labels=None, vectors=None, **more):
    """An upload made by hand from numpy arrays."""
    labels = np.array([0, 2, 5], np.int16) if labels is None else labels
    vectors = np.ones((3, D), np.float32) if vectors is None else vectors
    arrays = {"labels": labels, "vectors": vectors, **more}
    return ArrayRecord({f"prototypes.{name}": Array(values) for name, values in arrays.items()})


def with_value(value):
    vectors = np.zeros((3, D), np.float32)
    vectors[1, 2] = value
    return vectors


NOT_FINITE = "the vector of class 2 holds a value that is not finite"
SHAPES = [(3,), (3, D - 1), (3, D + 1), (3, D, 1), (1, 3, D), (), (K + 1, D), (0, D + 1)]
KINDS = [np.float64, np.float16, np.int32, np.complex64, np.dtype(">f4"), np.dtype("S4")]
LABELS = ([0, 2, K], [-1, 2, 3]), ([0, 2, 2], [5, 2, 0]), ([0, 2], [[0], [2], [5]])
# sums of such counts overflow, and may come out as any number
OVERFLOWING = [2**62, 2**62, 2**63 - 1]
BAD = [
    *(({"vectors": np.zeros((3, D), kind)}, "float32 was agreed") for kind in KINDS),
    *(({"vectors": np.zeros(s, np.float32)}, f"shape {s}, at most {K} rows of {D} values were agreed") for s in SHAPES),
    *(({"vectors": with_value(value)}, NOT_FINITE) for value in (np.nan, np.inf, -np.inf)),
    *(
        ({"labels": np.array(labels, np.int16)}, words)
        for rows, words in zip(LABELS, ("outside 0 to 5", "unique and ascending", "3 integers were due"), strict=True)
        for labels in rows
    ),
    ({"labels": np.array([0, 2, 2**31 - 1], np.int32)}, "outside 0 to 5"),
    *(({"labels": np.array([0, 2, 5], kind)}, kind) for kind in ("int64", "uint16", "bool", "float32", ">i2")),
    *(
        ({"counts": np.array(counts)}, "outside 1 to 2147483647")
        for counts in ([1, 0, 3], [1, -1, 3], [1, 2, 2**31], OVERFLOWING)
    ),
    *(
        ({"counts": np.array(counts, kind)}, "3 int64 numbers")
        for counts, kind in (([1, 2], int), ([[1, 2, 3]], int), ([1, 2, 3], "u8"), ([1, 2, 3], "i4"), ([1, 2, 3], "f8"))
    ),
]


@pytest.mark.parametrize(("changed", "words"), BAD)
def test_an_array_of_another_form_or_value_is_refused_with_the_reason(changed, words, refused):
    assert words in refused(arrived, record(**changed), COUNTED if "counts" in changed else PLAIN)


def test_the_norm_bound_is_of_the_whole_vector_and_exact(refused):
    vectors = np.zeros((3, D), np.float32)
    vectors[1] = 50  # norm 100: just allowed
    assert lone(arrived(record(vectors=vectors))).vectors.norm(dim=1).max() == 100
    vectors[1, 0] = np.nextafter(np.float32(50), np.float32(51))
    reason = refused(arrived, record(vectors=vectors))
    assert "norm 100" in reason
    assert "`max-prototype-norm` 100" in reason
    # the square of the largest float32 is no float32
    vectors[1, 0] = np.finfo(np.float32).max
    assert "norm 3.4e+38" in refused(arrived, record(vectors=vectors))


@pytest.mark.parametrize(
    ("upload", "parts"),
    [
        (record(), COUNTED),
        (record(counts=np.array([1, 2, 3])), PLAIN),
        (record(weights=np.zeros(10)), PLAIN),
        (record(scales=np.ones(3, np.float32)), PLAIN),
        (ArrayRecord({"prototypes.labels": Array(np.array([0], np.int16))}), PLAIN),
        (ArrayRecord({}), PLAIN),
    ],
)
def test_arrays_that_were_not_agreed_or_are_missing(upload, parts, refused):
    reason = refused(arrived, upload, parts)
    fields = {"labels", "vectors"} | ({"counts"} if parts is COUNTED else set())
    agreed = {f"prototypes.{name}" for name in fields}
    assert f"{sorted(upload)} where {sorted(agreed)} belong" in reason


# --- number formats and widths ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0x7E00, 0xFC00], ids=["NaN", "infinity"])
def test_a_half_that_is_not_finite(bits, refused):
    parts = (Part("prototypes", dtype="float16"),)
    vectors = np.zeros((3, D), np.float16)
    assert lone(arrived(record(vectors=vectors), parts)).vectors.tolist() == [[0.0] * D] * 3
    vectors[2, 1] = np.array(bits, np.uint16).view(np.float16)
    reason = refused(arrived, record(vectors=vectors), parts)
    assert "the vector of class 5 holds a value that is not finite" in reason


@pytest.mark.parametrize("agreed", STORED)
@pytest.mark.parametrize("sent", STORED)
def test_values_in_another_format_than_agreed(agreed, sent, refused):
    parts = (Part("prototypes", dtype=agreed),)
    upload = record(vectors=np.ones((3, D), STORED[sent]))
    if agreed == sent:
        assert lone(arrived(upload, parts)).vectors.shape == (3, D)
        return
    stored = np.dtype(STORED[agreed])
    assert f"the vectors are {np.dtype(STORED[sent])}, {stored} was agreed" in refused(arrived, upload, parts)


@pytest.mark.parametrize("wire_dtype", STORED)
def test_an_upload_is_as_wide_as_its_part_says(wire_dtype, refused):
    narrow = (Part("prototypes", width=2, dtype=wire_dtype),)

    def of_width(width):
        return record(vectors=np.ones((3, width), STORED[wire_dtype]))

    assert lone(arrived(of_width(2), narrow)).vectors.shape == (3, 2)
    for width in (D, 1, 3, 0):
        reason = refused(arrived, of_width(width), narrow)
        assert f"shape (3, {width}), at most {K} rows of 2 values were agreed" in reason


def npy(header, data=b"", version=(1, 0)):
    """An .npy file with a header made by hand."""
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2 if version == (1, 0) else 4, "little") + text + data


def saved(function, *arrays, **options):
    file = BytesIO()
    function(file, *arrays, **options)
    return file.getvalue()


HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"
VALID = saved(np.save, np.ones((3, D), np.float32))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        b"\x80\x04K\x01.",
        VALID[:-1],
        VALID[:60],
        VALID + b"\0",
        VALID[:128],
        saved(np.savez, vectors=np.ones((3, D), np.float32)),
        saved(np.save, np.array([[object()] * D] * 3), allow_pickle=True),
        b"PK\x03\x04" + VALID,
        npy(HEADER.format("<f4", "(3, 4)"), b"\0" * 48, (2, 0)),
        npy(HEADER.format("<f4", "(-3, -4)"), b"\0" * 48),
        npy(HEADER.format("<f4", "(-3, 4)"), b"\0" * 48),
        npy(HEADER.format("|V0", "(1000000000000000000,)")),
        npy(HEADER.format("<f4", "(3.0, 4)"), b"\0" * 48),
        npy(HEADER.format("<f4", "'abc'"), b"\0" * 48),
        npy(HEADER.format("<f9", "(3, 4)"), b"\0" * 48),
        npy(HEADER.format("O", "(3, 2)"), b"\0" * 48),
        npy(HEADER.format("<f4", "(" * 5000), b"\0" * 48),
        npy(HEADER.format("<f4", "9" * 5000), b"\0" * 48),
        npy(HEADER.format("f4," * 3000, "(3, 4)"), b"\0" * 48),
        npy("  {\n 'descr'\n   '''", b"\0" * 48),
        npy("[" * 9000, b"\0" * 48),
        npy("\0\xff\xfe", b"\0" * 48),
    ],
)
def test_bytes_that_are_no_such_array(data, refused):
    upload = record()
    upload["prototypes.vectors"] = Array("float32", (3, D), "numpy.ndarray", data)
    refused(arrived, upload)
    assert 0 <= value_bytes(upload) <= len(data)
    upload["prototypes.vectors"] = Array("float32", (3, D), "a new form", VALID)
    assert "a new form" in refused(arrived, upload)


@pytest.mark.parametrize("shape", ["(67108864,)", "(134217728, 4)", "(4611686018427387904, 4)"])
def test_a_forged_size_is_refused_before_memory_is_taken(shape, refused):
    upload = record()
    upload["prototypes.vectors"] = Array(
        "float32", (3, D), "numpy.ndarray", npy(HEADER.format("<f4", shape), b"\0" * 48)
    )
    tracemalloc.start()
    try:
        reason = refused(arrived, upload)
        value_bytes(upload)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert "where 48 came" in reason


@pytest.mark.filterwarnings("ignore")  # a header is parsed as Python, which warns of odd escapes
def test_random_bytes_are_refused_or_a_payload_that_keeps_to_the_limits():
    rng = np.random.default_rng(0)
    decoded = 0
    for round_number in range(600):
        data = bytearray(VALID)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
        data = data[: rng.integers(len(data))] if round_number % 3 == 0 else data
        upload = record()
        upload["prototypes.vectors"] = Array("float32", (3, D), "numpy.ndarray", bytes(data))
        assert 0 <= value_bytes(upload) <= len(data)
        try:
            vectors = lone(arrived(upload)).vectors
        except MessageError:
            continue
        decoded += 1
        assert vectors.shape == (3, D)
        assert vectors.isfinite().all()
        assert vectors.norm(dim=1).max() <= 100
    assert 20 < decoded < 560  # both ways were tried


@pytest.mark.parametrize("dtype", ["float32", "xyz", "f4,,", "S99999999999", "O", "(9999,9999)f8", "\ud800", ""])
def test_value_bytes_believe_no_declaration(dtype):
    for shape in ((3, D), (2**62, 2**62), (-3, D), (), (0,)):
        upload = record()
        upload["prototypes.vectors"] = Array(dtype, shape, "numpy.ndarray", VALID)
        assert value_bytes(upload) == 3 * D * 4
