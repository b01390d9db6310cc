"""The bytes of a round's payload are the formulas' of each method, up and down, as int8 and, of some, as float32.

Written out here once more: values of matrices and of class vectors have the number format's bytes, small tensors
(biases, norms, statistics) always four. Each client holds every class.
"""

import pytest

from protosphere.record.folder import RunFolder
from protosphere.strategies import METHODS
from tests.strategies.needs import ASKED
from tests.strategies.watched import CLASSES, CLIENTS, start

K, D, M = CLASSES, 10, CLIENTS
WIDTHS = (2, 256, 128)  # of tiny_perceptron on the plane


class Values(tuple):
    """(values of matrices or class vectors, values of small tensors); they add up."""

    def __new__(cls, large=0, small=0):
        return super().__new__(cls, (large, small))

    def __add__(self, other):
        return Values(self[0] + other[0], self[1] + other[1])

    def bytes(self, wire_dtype):
        return {"float32": 4, "int8": 1}[wire_dtype] * self[0] + 4 * self[1]


def linear(inputs, outputs):
    return Values(inputs * outputs, outputs)


def extractor(dim):
    return linear(WIDTHS[0], WIDTHS[1]) + linear(WIDTHS[1], WIDTHS[2]) + linear(WIDTHS[2], dim)


NOTHING, HEAD, BODY = Values(), linear(D, K), extractor(D)
MODEL = BODY + HEAD
VECTORS = Values(K * D)
NORM = Values(0, 4 * 256)  # weight, bias and running statistics of FedGen's hidden layer
GENERATOR = linear(32 + K, 256) + NORM + linear(256, D) + Values(0, K)  # and which classes anybody holds
FEATURES = linear(D // 2 + K, D) + linear(D, D) + Values(0, 2 * 4 * D)  # FRAug's generator, two norms among it
# what a client sends, and what it gets from round 2 on
FORMULAS = {
    **dict.fromkeys(("fedproto", "protonorm", "fedtgp", "fedorgp", "tinyproto-fp", "tinyproto-ft"), (VECTORS, VECTORS)),
    **dict.fromkeys(("fedpagr", "fedproc", "pfpl"), (VECTORS, VECTORS)),
    **dict.fromkeys(("local", "frame"), (NOTHING, NOTHING)),
    **dict.fromkeys(("fedavg", "fedprox", "fedbn", "feduv", "fesem", "fedrod"), (MODEL, MODEL)),
    # a companion is a tiny_perceptron, too
    **dict.fromkeys(("ditto", "apfl", "fml"), (MODEL, MODEL)),
    # of features of no more than d values
    "fedmrl": (MODEL, MODEL),
    "lg-fedavg": (HEAD, HEAD),
    **dict.fromkeys(("fedper", "fedrep"), (BODY, BODY)),
    "fednh": (BODY + Values(0, 1) + VECTORS, BODY + Values(0, 1) + VECTORS),
    "fedfa": (MODEL + VECTORS, MODEL + VECTORS),
    "feddistill": (Values(K * K), Values(K * K)),
    "fedgen": (HEAD, HEAD + GENERATOR),
    "fedpa": (MODEL + VECTORS, MODEL + VECTORS + GENERATOR),
    "fraug": (MODEL + FEATURES, MODEL + FEATURES),
    "fedgh": (VECTORS, HEAD),
}
TASK = {"models": "tiny_perceptron", "feature-dim": D, "partition": "iid", "device": "cpu"}


def lines_of(run, settings):
    return RunFolder(run(TASK | settings)).lines()


@pytest.fixture
def run(home):
    return start


# as int8 the two kinds of values differ in size, so that the sum tells both; as float32 one of each kind of parts
IN_FULL = ("fedproto", "local", "fedavg", "fednh", "feddistill", "fedgen", "fraug", "fedgh")


@pytest.mark.parametrize(
    ("name", "wire_dtype"), [*((name, "int8") for name in FORMULAS), *((name, "float32") for name in IN_FULL)]
)
def test_a_round_s_payload_is_the_formula_s(run, name, wire_dtype):
    up, down = FORMULAS[name]
    lines = lines_of(run, {"strategy": name, "rounds": 2, "wire-dtype": wire_dtype})
    assert [line["bytes"]["payload_up"] for line in lines[:2]] == [M * up.bytes(wire_dtype)] * 2
    assert lines[1]["bytes"]["payload_down"] == M * down.bytes(wire_dtype)


@pytest.mark.parametrize("energies", [(1.0, 1.0), (0.5, 0.5)], ids=["all energy", "half"])
@pytest.mark.parametrize("wire_dtype", ["float32", "int8"])
def test_of_low_rank_less_crosses_and_of_full_rank_the_whole(run, wire_dtype, energies):
    settings = {"strategy": "fedkd", "rounds": 3, "wire-dtype": wire_dtype}
    settings |= {"fedkd.start-energy": energies[0], "fedkd.end-energy": energies[1]}
    sizes = [line["bytes"] for line in lines_of(run, settings)]
    # whole weights always have four bytes a value
    whole, change = M * MODEL.bytes("float32"), M * MODEL.bytes(wire_dtype)
    assert (sizes[0]["payload_up"], sizes[1]["payload_down"]) == (whole, whole)
    small = 4 * M * MODEL[1]
    for way, number in (("up", 1), ("up", 2), ("down", 2)):
        crossed = sizes[number][f"payload_{way}"]
        if energies == (1.0, 1.0):
            assert crossed == change
        else:
            assert small < crossed < change / 2


def test_of_mixtures_means_variances_and_weights_cross(run):
    settings = {"strategy": "gfpl", "rounds": 2, "gfpl.first-exchange": 1, "gfpl.exchange-every": 1}
    lines = lines_of(run, settings | {"gfpl.components": 1})
    assert lines[0]["bytes"]["payload_up"] == 4 * M * K * (2 * D + 1)


@pytest.mark.parametrize(
    ("name", "means", "moment", "wire_dtype"),
    [
        ("fedcgs", VECTORS, 4 * D * D, "float32"),
        ("fedcgs", VECTORS, 4 * D * D, "int8"),
        ("fedncm", VECTORS, 0, "int8"),
        # mixtures do not cross as int8: of one component means, a variance and a weight
        ("fedpft", NOTHING, 4 * K * (D + 2), "int8"),
        ("fedcof", VECTORS, 0, "int8"),
        ("fed3r", NOTHING, 4 * (D * D + K * D), "int8"),
    ],
)
def test_statistics_go_up_once_and_a_classifier_comes_down(run, name, means, moment, wire_dtype):
    sizes = [line["bytes"] for line in lines_of(run, ASKED[name] | {"rounds": 3, "wire-dtype": wire_dtype})]
    assert [size["payload_up"] for size in sizes[:3]] == [M * (means.bytes(wire_dtype) + moment), 0, 0]
    # weights, offsets, and which classes anybody has
    assert [size["payload_down"] for size in sizes[1:3]] == [M * 4 * (K * D + 2 * K), 0]


def test_of_a_scatter_half_crosses_in_half_the_bits_and_all_of_it_once(run):
    sizes = [
        line["bytes"]
        for line in lines_of(run, {"strategy": "protosphere", "rounds": 3, "partition": "iid", "spiral-points": 120})
    ]
    assert [size["payload_up"] for size in sizes[:3]] == [M * (VECTORS.bytes("float32") + 2 * D * (D + 1) // 2), 0, 0]
    assert [size["payload_down"] for size in sizes[:3]] == [0, M * (4 * K + 2 * (K * D + D * (D + 1) // 2)), 0]


def test_every_method_has_a_formula():
    assert {*FORMULAS, "fedkd", "gfpl", "fedcgs", "protosphere", "fedncm", "fed3r", "fedcof", "fedpft"} == set(METHODS)
