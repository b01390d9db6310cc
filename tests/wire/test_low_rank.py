"""Weights of low rank: what stays of a tensor, what crosses, and what is refused."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from protosphere.prototypes.weights import Weights
from protosphere.wire.checks import MessageError
from protosphere.wire.codec import Codec, Limits, as_arrived, decode_payload, encode_payload, payload_bytes
from protosphere.wire.low_rank import LowRank, factored, products
from protosphere.wire.messages import decode_instruction, encode_instruction
from protosphere.wire.payloads import Instruction
from protosphere.wire.specs import Exchange, Spec

SPEC = Spec("weights", "w", change=True, transforms=(LowRank(),))
# by names that sort apart from their factors': "a.b" lies between "a" and "a/left"
SHAPES = {"a": (6, 40), "a.b": (3, 2), "bias": (5,), "conv": (8, 4, 3, 3), "none": ()}


def drawn(name, shape, rank=0):
    random = torch.Generator().manual_seed(len(name))
    if not rank:
        return torch.randn(shape, generator=random)
    out, rest = shape[0], int(np.prod(shape[1:]))
    one, other = torch.randn(out, rank, generator=random), torch.randn(rank, rest, generator=random)
    return (one @ other).reshape(shape)


def weights(**ranks):
    return Weights({name: drawn(name, shape, ranks.get(name, 0)) for name, shape in SHAPES.items()})


def crossed(sent, wire_dtype="float32"):
    codec = Codec(3, 4, wire_dtype=wire_dtype, added=Exchange((SPEC,), ()).added)
    return encode_payload({"w": sent}, codec, (SPEC,)), codec


def limits(codec, layout, most=1e4):
    return Limits(codec, most, (SPEC,), lambda: {"w": layout})


def matrix(tensor):
    return tensor.reshape(len(tensor), -1).double()


# --- what stays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("energy", [0.3, 0.9, 0.95, 0.98, 1.0])
@pytest.mark.parametrize("shape", [(10, 500), (40, 40), (16, 8, 3, 3), (32, 32, 1, 1), (1, 50), (50, 1), (2, 2)])
def test_the_smallest_rank_that_keeps_the_energy_and_only_where_it_saves_values(shape, energy):
    tensor = drawn("x", shape) * torch.linspace(0.01, 1, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    made = factored(Weights({"x": tensor}), energy).tensors
    squares = torch.linalg.svdvals(matrix(tensor)).square()
    rank = next(k for k in range(1, len(squares) + 1) if squares[:k].sum() >= energy * squares.sum() * (1 - 1e-12))
    if rank * sum(matrix(tensor).shape) >= tensor.numel():
        assert list(made) == ["x"]
        assert torch.equal(made["x"], tensor)
        return
    assert {name: tuple(each.shape) for name, each in made.items()} == {
        "x/left": (shape[0], rank),
        "x/right": (rank, matrix(tensor).shape[1]),
    }
    lost = (matrix(tensor) - products(made)["x"].double()).square().sum()
    assert lost <= (1 - energy) * squares.sum() + 1e-10 * squares.sum()


def test_at_energy_1_a_tensor_of_full_rank_is_whole_one_of_less_is_exact_but_for_rounding_and_zeros_are_zeros():
    sent = weights(conv=2)
    back = as_arrived(factored(sent, 1.0), SPEC, crossed(sent)[1], sent.layout)
    assert back.layout == sent.layout
    for name, tensor in sent.tensors.items():
        torch.testing.assert_close(back.tensors[name], tensor, rtol=0, atol=2e-6 if name == "conv" else 0)
    made = factored(Weights({"x": torch.zeros(10, 500)}), 0.95).tensors
    assert [tuple(each.shape) for each in made.values()] == [(10, 1), (1, 500)]
    assert torch.equal(products(made)["x"], torch.zeros(10, 500))


# --- what crosses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wire_dtype", "size", "near"), [("float32", 4, 0), ("float16", 2, 3e-2)])
def test_factors_cross_in_the_number_format_and_arrive_as_their_product(wire_dtype, size, near):
    sent = factored(weights(a=1, conv=2), 0.999)
    assert {name for name in sent.tensors if "/" in name} == {"a/left", "a/right", "conv/left", "conv/right"}
    record, codec = crossed(sent, wire_dtype)
    assert set(record) == {"w.values", "w.small", "w.ranks"}
    assert record["w.ranks"].numpy().tolist() == [1, 0, 2]
    large, small = (sum(t.numel() for t in sent.tensors.values() if (t.dim() > 1) == of) for of in (True, False))
    assert payload_bytes({"payload": record}) == size * large + 4 * small
    back = decode_payload(record, limits(codec, weights().layout))["w"]
    whole = products(sent.tensors)
    assert back.layout == weights().layout
    for name, shape in SHAPES.items():
        torch.testing.assert_close(back.tensors[name], whole[name].reshape(shape), rtol=0, atol=near)
    # what was decoded by one end is what the other decodes
    other = as_arrived(sent, SPEC, codec, weights().layout)
    assert all(torch.equal(tensor, back.tensors[name]) for name, tensor in other.tensors.items())


def test_a_change_may_lower_a_variance_and_weights_may_not_have_a_negative_one():
    sent = Weights({"running_var": torch.tensor([-1.0])})
    codec = Codec(3, 4)
    assert as_arrived(sent, SPEC, codec, sent.layout).tensors["running_var"] == -1
    with pytest.raises(MessageError, match="`running_var` holds a negative variance"):
        as_arrived(sent, Spec("weights", "w"), codec, sent.layout)


def test_exact_weights_cross_as_float32_whatever_the_number_format():
    sent, codec = weights(), Codec(3, 4, wire_dtype="float16")
    back = as_arrived(sent, Spec("weights", "w", dtype="float32"), codec, sent.layout)
    assert all(torch.equal(tensor, back.tensors[name]) for name, tensor in sent.tensors.items())


def test_both_ends_have_to_agree_on_it():
    exchange = Exchange((SPEC,), (Spec("weights", "w"),))
    assert exchange.added == "up.w=low-rank"
    with pytest.raises(MessageError, match=r"up\.w is none there and low-rank here"):
        Codec(3, 4, added=exchange.added).refuse_other(Codec(3, 4).fingerprint)


def test_of_a_message_of_either_part_one_comes_and_no_other_number():
    codec = Codec(3, 4, added=Exchange((), (SPEC,)).added)
    specs = (Spec("weights", "v"), SPEC)
    sent = weights()
    agreed = Limits(codec, 1e4, specs, lambda: {"v": sent.layout, "w": sent.layout}, either=True)

    def come(*names):
        payload = dict.fromkeys(names, sent) if names else None
        instruction = Instruction("a-run", 2, payload)
        return decode_instruction(encode_instruction(instruction, codec, specs), agreed).payload

    assert come() is None
    assert [list(come(name)) for name in "vw"] == [["v"], ["w"]]
    with pytest.raises(MessageError, match="the payload kind 'v,w' was not agreed on"):
        come("v", "w")
    with pytest.raises(MessageError, match="was not agreed on"):
        come("x")


# --- what is refused --------------------------------------------------------------------------------------------


def ranks(*values, dtype=np.int32):
    return lambda arrays: arrays | {"w.ranks": np.array(values, dtype)}


def without(name):
    return lambda arrays: {each: array for each, array in arrays.items() if each != name}


def of(name, change):
    return lambda arrays: arrays | {name: change(np.array(arrays[name]))}


HOSTILE = {
    "no ranks": (without("w.ranks"), r"where \['w.ranks', 'w.small', 'w.values'\] belong"),
    "a rank beyond the matrix": (ranks(7, 0, 2), "tensor `a` has rank 7, 0 to 6 were agreed"),
    "a rank beyond a narrow matrix": (ranks(1, 3, 2), r"tensor `a\.b` has rank 3, 0 to 2 were agreed"),
    "a negative rank": (ranks(1, 0, -1), "tensor `conv` has rank -1, 0 to 8 were agreed"),
    "too few ranks": (ranks(1, 0), r"`ranks` is int32 of shape \(2,\), 3 values of int32 were agreed"),
    "too many ranks": (ranks(1, 0, 2, 0), r"`ranks` is int32 of shape \(4,\), 3 values"),
    "ranks in two dimensions": (of("w.ranks", lambda each: each[None]), r"shape \(1, 3\), 3 values"),
    "ranks of another type": (ranks(1, 0, 2, dtype=np.int64), "`ranks` is int64"),
    "other ranks than the values": (ranks(2, 0, 2), "`values` is float32 of shape .* values of float32 were agreed"),
    "too few values": (of("w.values", lambda each: each[:-1]), "`values` is float32 of shape"),
    "a product that overflows": (of("w.values", lambda each: each * np.float32(1e30)), "not finite"),
    "a product that is too long": (of("w.values", lambda each: each * np.float32(1e3)), "has norm .*, above"),
    "NaN": (of("w.values", lambda each: each * np.nan), "not finite"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_malformed_ranks_and_factors_are_refused_by_what_is_wrong(case):
    change, words = HOSTILE[case]
    record, codec = crossed(factored(weights(a=1, conv=2), 0.999))
    arrays = change({name: np.array(array.numpy()) for name, array in record.items()})
    hostile = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
    with pytest.raises(MessageError, match=words):
        decode_payload(hostile, limits(codec, weights().layout))
