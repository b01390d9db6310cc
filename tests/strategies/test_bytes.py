"""The bytes of a round's payload are the formulas' of each way of exchanging, up and down, as float16; of every method
as float32: test_contract.py and the golden figures.

Written out here once more: values of matrices and of class vectors have the number format's bytes, small tensors
(biases, norms, statistics) always four, so that the sum tells both. The client holds every class, and is alone, which
ends no run of any method.
"""

import pytest

from protosphere.record.folder import RunFolder
from tests.strategies.needs import ASKED, FEW
from tests.strategies.watched import CLASSES, CLIENTS, start

K, D = CLASSES, 10
WIDTHS = (2, 256, 128)  # of tiny_perceptron on the plane


class Values(tuple):
    """(values of matrices or class vectors, values of small tensors); they add up."""

    def __new__(cls, large=0, small=0):
        return super().__new__(cls, (large, small))

    def __add__(self, other):
        return Values(self[0] + other[0], self[1] + other[1])

    def bytes(self, wire_dtype):
        return {"float32": 4, "float16": 2}[wire_dtype] * self[0] + 4 * self[1]


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
# what a client sends, and what it gets from round 2 on: a method for each way of exchanging
FORMULAS = {
    "local": (NOTHING, NOTHING),
    "fedproto": (VECTORS, VECTORS),
    "fedavg": (MODEL, MODEL),
    "fml": (MODEL, MODEL),  # a companion is a tiny_perceptron, too
    "lg-fedavg": (HEAD, HEAD),
    "fedper": (BODY, BODY),
    "fednh": (BODY + Values(0, 1) + VECTORS, BODY + Values(0, 1) + VECTORS),
    "fedfa": (MODEL + VECTORS, MODEL + VECTORS),
    # one alone has no outputs of others to learn from
    "feddistill": (Values(K * K), NOTHING),
    "fedgen": (HEAD, HEAD + GENERATOR),
    "fraug": (MODEL + FEATURES, MODEL + FEATURES),
    "fedgh": (VECTORS, HEAD),
}
TASK = {"models": "tiny_perceptron", "feature-dim": D, "partition": "iid"}


@pytest.fixture
def sizes_of(home):
    """sizes_of(settings, clients=1): the bytes of each round of a run in which nobody has a problem."""

    def run(settings, clients=1):
        lines = RunFolder(start(TASK | settings, clients=clients)).lines()
        assert [line["problems"] for line in lines] == [{}] * len(lines)
        assert [line["training"]["valid"] for line in lines[1:]] == [clients] * (len(lines) - 1)
        return [line["bytes"] for line in lines[1:]]

    return run


@pytest.mark.parametrize("name", FORMULAS)
def test_a_round_s_payload_is_the_formula_s(sizes_of, name):
    up, down = FORMULAS[name]
    sizes = sizes_of({"strategy": name, "rounds": 2, "wire-dtype": "float16"} | FEW.get(name, {}))
    assert [size["payload_up"] for size in sizes] == [up.bytes("float16")] * 2
    assert sizes[1]["payload_down"] == down.bytes("float16")


@pytest.mark.parametrize("energies", [(1.0, 1.0), (0.5, 0.5)], ids=["all energy", "half"])
@pytest.mark.parametrize("wire_dtype", ["float32", "float16"])
def test_of_low_rank_less_crosses_and_of_full_rank_the_whole(sizes_of, wire_dtype, energies):
    settings = {"strategy": "fedkd", "rounds": 3, "wire-dtype": wire_dtype}
    settings |= {"fedkd.start-energy": energies[0], "fedkd.end-energy": energies[1]}
    sizes = sizes_of(settings, CLIENTS)
    # whole weights always have four bytes a value
    whole, change = CLIENTS * MODEL.bytes("float32"), CLIENTS * MODEL.bytes(wire_dtype)
    assert (sizes[0]["payload_up"], sizes[1]["payload_down"]) == (whole, whole)
    small = 4 * CLIENTS * MODEL[1]
    for way, number in (("up", 1), ("up", 2), ("down", 2)):
        crossed = sizes[number][f"payload_{way}"]
        if energies == (1.0, 1.0):
            assert crossed == change
        else:
            assert small < crossed < change / 2


@pytest.mark.parametrize(
    ("name", "means", "moment", "wire_dtype"),
    [
        ("fedcgs", VECTORS, 4 * D * D, "float32"),
        ("fedcgs", VECTORS, 4 * D * D, "float16"),
        ("fedncm", VECTORS, 0, "float16"),
        # mixtures do not cross as float16: of one component means, a variance and a weight
        ("fedpft", NOTHING, 4 * K * (D + 2), "float16"),
        ("fedcof", VECTORS, 0, "float16"),
        ("fed3r", NOTHING, 4 * (D * D + K * D), "float16"),
    ],
)
def test_statistics_go_up_once_and_a_classifier_comes_down(sizes_of, name, means, moment, wire_dtype):
    sizes = sizes_of(ASKED[name] | {"rounds": 3, "wire-dtype": wire_dtype})
    assert [size["payload_up"] for size in sizes] == [means.bytes(wire_dtype) + moment, 0, 0]
    # weights, offsets, and which classes anybody has; the evaluation is the first to bring it
    assert [size["payload_down"] for size in sizes] == [4 * (K * D + 2 * K), 0, 0]


def test_of_a_scatter_half_crosses_in_half_the_bits_and_all_of_it_once(sizes_of):
    sizes = sizes_of({"strategy": "protosphere", "rounds": 3, "spiral-points": 120})
    assert [size["payload_up"] for size in sizes] == [VECTORS.bytes("float32") + 2 * D * (D + 1) // 2, 0, 0]
    assert [size["payload_down"] for size in sizes] == [4 * K + 2 * (K * D + D * (D + 1) // 2), 0, 0]
