"""Arrays made to harm: whatever they are, the answer is a MessageError with the reason, before memory is taken."""

import math
import tracemalloc
from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from protosphere.record.confusion import OTHER, confusion_triples
from protosphere.wire.arrays import Limits, decode, value_bytes
from protosphere.wire.checks import MessageError
from protosphere.wire.parts import MIXTURES, PROTOTYPES, Part
from tests.payloads import lone

K, D = 6, 4
COUNTED = Part("prototypes", counts=True)
HALVES = Part("prototypes", dtype="float16")
COMPONENTS = Part("mixtures", components=2)
COUNTED_COMPONENTS = Part("mixtures", components=2, counts=True)
WEIGHTS, SIGNED = Part("weights", "w"), Part("weights", "w", signed=True)
RAGGED = Part("weights", "w", ragged=True)
LAYOUT = {"w": (("a", (4, 3)), ("running_var", (2,)))}

GOOD = {
    PROTOTYPES: {"labels": np.int16([0, 2, 5]), "vectors": np.ones((3, D), np.float32)},
    MIXTURES: {
        "labels": np.int16([0, 0, 2]),
        "means": np.ones((3, D), np.float32),
        "variances": np.full((3, D), 0.5, np.float32),
        "weights": np.float32([0.25, 0.75, 1]),
    },
    WEIGHTS: {"values": np.ones(12, np.float32), "small": np.ones(2, np.float32)},
    RAGGED: {"values": np.ones(4, np.float32), "small": np.ones(2, np.float32), "shapes": np.int32([4, 1, 2])},
}
GOOD[COUNTED] = GOOD[PROTOTYPES] | {"counts": np.array([1, 2, 3])}
GOOD[HALVES] = GOOD[PROTOTYPES] | {"vectors": np.ones((3, D), np.float16)}
GOOD[COMPONENTS] = GOOD[MIXTURES]
GOOD[COUNTED_COMPONENTS] = GOOD[MIXTURES] | {"counts": np.array([3, 3, 2**31 - 1])}
GOOD[SIGNED] = GOOD[WEIGHTS]


def record(part, **changed):
    """An upload made by hand; None leaves an array out."""
    arrays = GOOD[part] | changed
    arrays = {name: values for name, values in arrays.items() if values is not None}
    return ArrayRecord({f"{part.name}.{n}": v if isinstance(v, Array) else Array(v) for n, v in arrays.items()})


def arrived(upload, part=PROTOTYPES):
    """As the other side takes it."""
    return decode(upload, (part,), K, D, Limits(100.0, LAYOUT))[part.name]


def spoilt(part, name, value):
    """The array of that name with one entry changed."""
    values = GOOD[part][name].copy()
    values.reshape(-1)[1] = value
    return {name: values}


def of(name, *shape, kind=np.float32):
    return {name: np.ones(shape, kind)}


def npy(header, data=b"\0" * 48, version=(1, 0)):
    """An .npy file with a header made by hand."""
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2 if version == (1, 0) else 4, "little") + text + data


def saved(function, *arrays, **options):
    file = BytesIO()
    function(file, *arrays, **options)
    return file.getvalue()


NOT_AGREED = "was agreed"
BELONG = " belong"
BAD = [
    # --- prototypes
    *(
        (PROTOTYPES, of("vectors", 3, D, kind=kind), "float32 of (3, 4) was agreed")
        for kind in ("f8", "f2", "i4", "c8", ">f4")
    ),
    *((PROTOTYPES, of("vectors", *shape), NOT_AGREED) for shape in [(3,), (3, D - 1), (3, D, 1), (), (K + 1, D)]),
    *(
        (PROTOTYPES, spoilt(PROTOTYPES, "vectors", value), "the vector of class 0 holds a value that is not finite")
        for value in (np.nan, -np.inf)
    ),
    (PROTOTYPES, spoilt(PROTOTYPES, "vectors", 3.4e38), "norm 3.4e+38, above `max-prototype-norm` 100"),
    (PROTOTYPES, {"labels": np.int16([0, 2, K])}, "outside 0 to 5"),
    (PROTOTYPES, {"labels": np.int16([-1, 2, 3])}, "outside 0 to 5"),
    (PROTOTYPES, {"labels": np.int16([0, 2, 2])}, "class 2 has 2 components, at most 1"),
    (PROTOTYPES, {"labels": np.int16([5, 2, 0])}, "the labels do not ascend"),
    *((PROTOTYPES, {"labels": np.int16(bad)}, "`labels` is int16 of shape") for bad in ([0, 2], [[0], [2], [5]])),
    *((PROTOTYPES, {"labels": np.array([0, 2, 5], kind)}, kind) for kind in ("int64", "uint16", "bool", ">i2")),
    (PROTOTYPES, {"counts": np.array([1, 2, 3])}, BELONG),
    (PROTOTYPES, {"vectors": None}, BELONG),
    (PROTOTYPES, {"weights": np.zeros(9)}, BELONG),
    (COUNTED, {"counts": None}, BELONG),
    # sums of the last overflow, and may come out as any number
    *(
        (COUNTED, {"counts": np.array(bad)}, "outside 1 to 2147483647")
        for bad in ([1, 0, 3], [1, -1, 3], [1, 2, 2**31], [2**62, 2**62, 2**63 - 1])
    ),
    *((COUNTED, {"counts": np.array([1, 2, 3], kind)}, "int64 of (3,) was agreed") for kind in ("u8", "i4", "f8")),
    (COUNTED, {"counts": np.array([1, 2])}, "int64 of (3,) was agreed"),
    (HALVES, of("vectors", 3, D), "float16 of (3, 4) was agreed"),
    (HALVES, spoilt(HALVES, "vectors", np.inf), "not finite"),
    # --- mixtures
    (COMPONENTS, {"weights": np.float32([0.25, 0.7, 1])}, "weights of class 0 in a mixture set sum to 0.95"),
    *((COMPONENTS, spoilt(MIXTURES, "weights", bad), "a weight that is not above 0") for bad in (0, -0.5, 1e-45)),
    *((COMPONENTS, spoilt(MIXTURES, "variances", bad), "a variance that is not above 0") for bad in (0, -1e-30)),
    *(
        (COMPONENTS, spoilt(MIXTURES, name, math.nan), f"the {name} hold a number that is not finite")
        for name in ("means", "variances", "weights")
    ),
    *((COMPONENTS, spoilt(MIXTURES, "means", bad), "above `max-prototype-norm` 100") for bad in (-101.0, 3e38)),
    # with the means' 4 * 1 just above 100 squared, though neither part is
    (COMPONENTS, {"variances": np.full((3, D), 2499.5, np.float32)}, "above `max-prototype-norm` 100"),
    *(
        (COMPONENTS, of(name, 3, D, kind=np.float64), f"`{name}` is float64 of shape (3, 4), float32 of")
        for name in ("means", "variances", "weights")
    ),
    (COMPONENTS, of("means", 2, D), "float32 of (3, 4) was agreed"),
    (COMPONENTS, {"labels": np.int16([2, 2, 0])}, "the labels do not ascend"),
    (COMPONENTS, {"labels": np.int16([0, 0, 0])}, "class 0 has 3 components, at most 2 were agreed"),
    (COMPONENTS, {"labels": np.int16([0, 0, K])}, "outside 0 to 5"),
    (COMPONENTS, {"vectors": np.ones((3, D), np.float32)}, BELONG),
    (COUNTED_COMPONENTS, {"counts": np.array([3, 4, 5])}, "different counts within class 0"),
    (COUNTED_COMPONENTS, {"counts": np.array([3, 3, 2**31])}, "outside 1 to 2147483647"),
    # --- weights
    (WEIGHTS, of("values", 11), "float32 of (12,) was agreed"),
    (WEIGHTS, of("small", 2, kind=np.float64), "float32 of (2,) was agreed"),
    (WEIGHTS, spoilt(WEIGHTS, "values", np.nan), "tensor `a` holds a value that is not finite"),
    (WEIGHTS, spoilt(WEIGHTS, "values", 1e9), "tensor `a` has norm 1e+09, above"),
    (WEIGHTS, spoilt(WEIGHTS, "small", -1), "`running_var` holds a negative variance"),
    (RAGGED, {"shapes": None}, BELONG),
    (RAGGED, {"shapes": np.int32([4, 4, 2])}, "tensor `a` has shape (4, 4), at most (4, 3) was agreed"),
    (RAGGED, {"shapes": np.int32([-4, -1, 2])}, "tensor `a` has shape (-4, -1)"),
    (RAGGED, {"shapes": np.int32([4, 1])}, "`shapes` is int32 of shape (2,), int32 of (3,) was agreed"),
    (RAGGED, {"shapes": np.array([4, 1, 2])}, "`shapes` is int64"),
    (RAGGED, {"shapes": np.int32([4, 2, 2])}, "float32 of (8,) was agreed"),
]


@pytest.mark.parametrize(("part", "changed", "words"), BAD)
def test_an_array_of_another_form_or_value_is_refused_with_the_reason(part, changed, words, crossed, refused):
    assert len(arrived(record(part), part).fields()) > 0
    assert words in refused(arrived, crossed(record(part, **changed)), part)


def test_only_a_signed_part_may_lower_a_variance():
    assert arrived(record(SIGNED, **spoilt(SIGNED, "small", -1)), SIGNED).tensors["running_var"].min() == -1


def test_bounds_are_of_whole_vectors_and_exact_but_for_what_a_server_has_rounded(refused):
    vectors = np.zeros((3, D), np.float32)
    vectors[1] = 50  # norm 100: just allowed
    assert arrived(record(PROTOTYPES, vectors=vectors)).vectors.norm(dim=1).max() == 100
    vectors[1, 0] = np.nextafter(np.float32(50), np.float32(51))
    assert "norm 100, above `max-prototype-norm` 100" in refused(arrived, record(PROTOTYPES, vectors=vectors))
    # what the server fuses of legal uploads may come out a rounding above the bound, and no more
    tiny = np.full((3, D), np.finfo(np.float32).tiny)
    for above, passes in ((5e-6, True), (5e-5, False)):
        means = np.zeros((3, D), np.float32)
        means[0, 0] = 100 * (1 + above)
        sent = record(MIXTURES, means=means, variances=tiny)
        refused(arrived, sent, COMPONENTS)
        assert arrived(sent, MIXTURES) is not None if passes else refused(arrived, sent, MIXTURES)


# --- bytes that are no array --------------------------------------------------------------------------------------

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
        saved(np.savez, vectors=np.ones((3, D), np.float32)),
        saved(np.save, np.array([[object()] * D] * 3), allow_pickle=True),
        npy(HEADER.format("<f4", "(3, 4)"), version=(2, 0)),
        npy(HEADER.format("<f4", "(-3, -4)")),
        npy(HEADER.format("|V0", "(1000000000000000000,)")),
        npy(HEADER.format("<f4", "(3.0, 4)")),
        npy(HEADER.format("O", "(3, 2)")),
        npy(HEADER.format("<f4", "(" * 5000)),
        npy(HEADER.format("f4," * 3000, "(3, 4)")),
        npy("[" * 9000),
        npy("\0\xff\xfe"),
    ],
)
def test_bytes_that_are_no_such_array(data, refused):
    upload = record(PROTOTYPES, vectors=Array("float32", (3, D), "numpy.ndarray", data))
    assert "array `prototypes.vectors` cannot be read (" in refused(arrived, upload)
    assert 0 <= value_bytes(upload) <= len(data)
    assert "a new form" in refused(arrived, record(PROTOTYPES, vectors=Array("float32", (3, D), "a new form", VALID)))


@pytest.mark.parametrize("shape", ["(67108864,)", "(134217728, 4)", "(4611686018427387904, 4)"])
def test_a_forged_size_is_refused_before_memory_is_taken(shape, refused):
    forged = Array("float32", (3, D), "numpy.ndarray", npy(HEADER.format("<f4", shape)))
    upload = record(PROTOTYPES, vectors=forged)
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
        try:
            vectors = arrived(record(PROTOTYPES, vectors=Array("f4", (3, D), "numpy.ndarray", bytes(data)))).vectors
        except MessageError:
            continue
        decoded += 1
        assert vectors.shape == (3, D)
        assert vectors.isfinite().all()
        assert vectors.norm(dim=1).max() <= 100
    assert 20 < decoded < 560  # both ways were tried


@pytest.mark.parametrize("dtype", ["xyz", "f4,,", "S99999999999", "O", "\ud800", ""])
def test_value_bytes_believe_no_declaration(dtype):
    for shape in ((2**62, 2**62), (-3, D), ()):
        assert value_bytes(record(PROTOTYPES, vectors=Array(dtype, shape, "numpy.ndarray", VALID))) == 3 * D * 4


# --- confusion ---------------------------------------------------------------------------------------------------

COUNTS = (3, 1, 0, 0, 2, 0, 1, 0, 5)


def test_counts_become_triples_of_true_and_predicted_class_and_of_many_classes_right_and_wrong():
    found = confusion_triples(COUNTS, 3, samples=12, right=10)
    assert found == [[0, 0, 3], [0, 1, 1], [1, 1, 2], [2, 0, 1], [2, 2, 5]]
    assert confusion_triples((2, 1, *[0] * 199, 4), 101, 7, 2) == [[0, 0, 2], [0, OTHER, 1], [100, OTHER, 4]]


@pytest.mark.parametrize(
    ("values", "samples", "right", "words"),
    [
        (COUNTS[:-1], 7, 5, "3 times 3"),
        ((), 0, 0, "3 times 3"),
        (COUNTS, 13, 10, "of 12 samples"),
        (COUNTS, 12, 9, "10 samples right"),
        ((*[2**62] * 4, 12, 0, 0, 0, 0), 12, 10, "samples"),
    ],
)
def test_counts_that_cannot_be_are_refused(values, samples, right, words, refused):
    assert words in refused(confusion_triples, values, 3, samples, right)


def test_a_part_alone_takes_an_upload_of_its_kind(refused):
    renamed = {name.replace("mixtures", "prototypes"): array for name, array in record(MIXTURES).items()}
    assert "['prototypes.labels', 'prototypes.vectors'] belong" in refused(arrived, ArrayRecord(renamed))
    assert lone(decode(record(PROTOTYPES), (PROTOTYPES,), K, D, Limits(100.0))).labels.tolist() == [0, 2, 5]
