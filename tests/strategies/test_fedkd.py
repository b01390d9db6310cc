"""FedKD: its loss against one written out, and that server and clients hold the same model whatever gets lost."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from protosphere.models import build
from protosphere.prototypes.weights import Weights
from protosphere.strategies.contract import EVERYONE, Batch
from protosphere.strategies.fedkd import CHANGE, WHOLE, base_of, change_of, factors_of
from protosphere.wire.arrays import Limits, decode, encode
from protosphere.wire.checks import MessageError
from tests.strategies.kin import D, K, client_of, meet, rows_of_five
from tests.strategies.kin import halves_of as both_halves
from tests.strategies.sets import same_state


def halves_of(**settings):
    return both_halves("fedkd", {"models": "tiny_perceptron", "rounds": 4} | settings, K, D)


def built(model="tiny_perceptron", **settings):
    return client_of("fedkd", model, rounds=4, **settings)


def loss_of(objective, state, rows):
    return objective.loss(state, rows, objective.phases(state, 1)[0], 1)


def shifted(weights, step):
    return Weights({name: tensor + step for name, tensor in weights.tensors.items()})


# --- the loss ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["batch", "element"])
def test_each_model_learns_from_the_other_less_the_more_both_err(reduction):
    objective, state = built("perceptron", **{"fedkd.reduction": reduction})
    rows, theirs = rows_of_five(), copy.deepcopy(state.module)
    loss_of(objective, state, rows).total.backward()
    z, small = theirs.model.features(rows.inputs), theirs.companion.features(rows.inputs)
    p, q = theirs.model.classify(z), theirs.companion.classify(small)
    wrong, wrong_too = cross_entropy(p, rows.labels), cross_entropy(q, rows.labels)
    u = 1 / (wrong.item() + wrong_too.item())
    hidden = 2 * ((z - small @ theirs.projection.weight.T) ** 2).mean()
    total = wrong + wrong_too + u * hidden
    for own, other in ((p, q), (q, p)):
        known = torch.softmax(other.detach(), dim=1)
        apart = (known * (known.log() - torch.log_softmax(own, dim=1))).sum() / len(rows.labels)
        total = total + u * apart / (K if reduction == "element" else 1)
    total.backward()
    for (name, one), other in zip(state.module.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_models_without_any_error_have_a_finite_loss():
    objective, state = built()
    for model in (state.module.model, state.module.companion):
        nn.init.zeros_(model.classifier.weight)
        model.classifier.bias.data = torch.tensor([200.0, 0.0, 0.0])
    loss = loss_of(objective, state, Batch(rows_of_five().inputs, torch.zeros(7, dtype=torch.int64)))
    loss.total.backward()
    assert float(loss.parts["cross-entropy"].detach()) == 0
    assert all(bool(p.grad.isfinite().all()) for p in state.module.parameters())


# --- factors ----------------------------------------------------------------------------------------------------


def drawn_weights(shapes):
    random = torch.Generator().manual_seed(3)
    return Weights({name: torch.randn(shape, generator=random) for name, shape in shapes.items()})


def crossed(factors, wire_dtype="float32"):
    """Factors as the other side has them, which knows the largest that there can be."""
    parts = (replace(CHANGE, dtype=wire_dtype),)
    limits = Limits(1e4, {"companion-update": factors.layout})
    return decode(encode({"companion-update": factors}, parts), parts, K, D, limits)["companion-update"]


def test_the_energy_goes_from_its_start_to_its_end_over_the_rounds():
    objective, state = built(**{"fedkd.start-energy": 0.2, "fedkd.end-energy": 0.9})
    base = objective.shared(state.module)["companion"]
    objective.receive(state, {"companion": base}, 2)
    with torch.no_grad():
        for p in state.module.companion.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    student = objective.shared(state.module)["companion"]
    change = Weights({name: tensor - base.tensors[name] for name, tensor in student.tensors.items()})
    for number in (2, 4):
        sent = objective.upload(state, number)
        expected = factors_of(change, 0.2 + 0.7 * number / 4)
        assert list(sent) == ["companion-update"]
        assert same_state(sent["companion-update"].tensors, expected.tensors)


@pytest.mark.parametrize("energy", [0.3, 0.95, 1.0])
@pytest.mark.parametrize("shape", [(10, 500), (16, 8, 3, 3), (1, 50), (2, 2)])
def test_the_smallest_rank_that_keeps_the_energy_and_only_where_it_saves_values(shape, energy):
    falling = torch.linspace(0.01, 1, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    tensor = drawn_weights({"x": shape}).tensors["x"] * falling
    change = Weights({"x": tensor})
    made = factors_of(change, energy)
    back = change_of(made, change.layout).tensors["x"]
    squares = torch.linalg.svdvals(tensor.reshape(len(tensor), -1).double()).square()
    rank = next(k for k in range(1, len(squares) + 1) if squares[:k].sum() >= energy * squares.sum() * (1 - 1e-12))
    rows, columns = shape[0], math.prod(shape[1:])
    sizes = {name: tuple(each.shape) for name, each in made.tensors.items()}
    if rank * (rows + columns) >= tensor.numel():
        assert sizes == {"x/left": (rows, columns), "x/right": (0, columns)}
        assert torch.equal(back, tensor)
        return
    assert sizes == {"x/left": (rows, rank), "x/right": (rank, columns)}
    lost = (tensor.double() - back.double()).square().sum()
    assert lost <= (1 - energy + 1e-10) * squares.sum()


# by names that sort apart from their factors': "a.b" lies between "a" and "a/left"
SHAPES = {"a": (6, 40), "a.b": (3, 2), "bias": (5,), "conv": (8, 4, 3, 3), "none": ()}
# factors that replace honest ones -> what is said
UNFIT = [
    ({"a/left": (6, 2)}, "tensor `a` have ranks 2 and 6"),
    ({"a/left": (5, 1), "a/right": (1, 40)}, r"tensor `a` give a shape other than \(6, 40\)"),
    ({"a/left": (5, 1), "a/right": (1, 48)}, "tensor `a` give a shape other"),
    ({"bias": (4,)}, "tensor `bias` give a shape other"),
    ({"more": (4,)}, "not those of the student's tensors"),
    # without the second factor
    ({"conv/right": None}, "not those of the student's tensors"),
]


@pytest.mark.parametrize(("sizes", "words"), UNFIT)
def test_factors_that_make_no_change_of_the_student_are_refused_by_both_ends(sizes, words):
    change = drawn_weights(SHAPES)
    # of a matrix of full rank whose factors are sent whole, the second is empty
    honest = factors_of(change, 1.0).tensors | {"a/left": torch.ones(6, 6), "a/right": torch.ones(6, 40)}
    change_of(Weights(honest), change.layout)
    altered = dict(honest)
    for name, size in sizes.items():
        altered.pop(name, None)
        if size is not None:
            altered[name] = torch.ones(size)
    with pytest.raises(MessageError, match=words):
        change_of(Weights(altered), change.layout)


def test_a_product_that_is_too_long_is_refused_by_the_server_with_the_upload_and_by_the_client():
    server, start = met()
    factors = factors_of(start, 1.0)
    assert server.contradiction(1, {"companion": start}) == ""
    assert server.contradiction(1, {"companion-update": factors}) == ""
    name = next(name for name in factors.tensors if name.endswith("/left"))
    rows, columns = factors.tensors[name].shape
    # each factor keeps to the bound
    right = name.removesuffix("/left") + "/right"
    long = {name: torch.full((rows, 1), 9e3 / rows), right: torch.full((1, columns), 9e3 / columns)}
    update = {"companion-update": Weights(factors.tensors | long)}
    assert "has norm" in server.contradiction(1, update)
    objective, state = built()
    objective.receive(state, {"companion": start}, 2)
    with pytest.raises(MessageError, match=r"has norm .*, above `max-prototype-norm`"):
        objective.receive(state, update, 3)


# --- the server -------------------------------------------------------------------------------------------------


def met(**settings):
    server, objective = halves_of(**settings)
    start = objective.shared(objective.build(build("tiny_perceptron", (5,), D, K, 3), 3))
    return meet(server, dict.fromkeys(range(3), start)), start["companion"]


@pytest.mark.parametrize("wire_dtype", ["float32", "float16"])
def test_the_model_is_the_plain_mean_then_moves_by_the_mean_change_as_it_arrives(wire_dtype):
    server, start = met(**{"wire-dtype": wire_dtype, "fedkd.start-energy": 0.4, "fedkd.end-energy": 0.6})
    first = server.aggregate({p: {"companion": shifted(start, 3.0 * p)} for p in (0, 1)}, {}, 1)
    assert list(first.downloads) == [EVERYONE]
    for name, tensor in base_of(first.state).tensors.items():
        # whatever the numbers of rows
        torch.testing.assert_close(tensor, start.tensors[name] + 1.5)
    drawn = {p: Weights({n: torch.randn_like(t) for n, t in start.tensors.items()}) for p in (1, 2)}
    uploads = {p: {"companion-update": factors_of(each, 1.0)} for p, each in drawn.items()}
    second = server.aggregate(uploads, first.state, 2)
    whole, change = second.downloads[EVERYONE]["companion"], second.downloads[0]
    assert same_state(base_of(second.state).tensors, whole.tensors)
    assert second.figures["values_share"] < 1
    objective, state = built(**{"wire-dtype": wire_dtype})
    objective.receive(state, first.downloads[EVERYONE], 2)
    objective.receive(state, {"companion-update": crossed(change["companion-update"], wire_dtype)}, 3)
    assert same_state(objective.shared(state.module)["companion"].tensors, whole.tensors)
    mean = {name: (drawn[1].tensors[name] + drawn[2].tensors[name]) / 2 for name in start.tensors}
    lost = sum(float((mean[n] + base_of(first.state).tensors[n] - t).square().sum()) for n, t in whole.tensors.items())
    allowed = 1.1 * (1 - 0.5) * sum(float(tensor.square().sum()) for tensor in mean.values())
    assert 0 < lost < allowed


@pytest.mark.parametrize("much", [9e3, 3e38], ids=["too long", "not finite"])
def test_changes_that_add_up_to_what_nobody_would_take_are_dropped_and_the_run_goes_on(much):
    server, start = met()
    change = Weights({name: torch.full_like(tensor, 0.0) for name, tensor in start.tensors.items()})
    name = next(iter(change.tensors))
    change.tensors[name].view(-1)[0] = much
    state = server.aggregate({0: {"companion": start}}, {}, 1).state
    uploads = {p: {"companion-update": factors_of(change, 1.0)} for p in (0, 1)}
    for number in (2, 3):
        last = server.aggregate(uploads, state, number)
        state = last.state
    assert "the mean of this round's changes is dropped" in last.warnings[0]
    assert name in last.warnings[0]
    whole = last.downloads[EVERYONE]["companion"]
    assert same_state(whole.tensors, base_of(last.state).tensors)
    assert all(bool(tensor.isfinite().all()) and float(tensor.norm()) < 1e4 for tensor in whole.tensors.values())
    assert {server.download(p, last.downloads, last.state, 4, True) for p in range(3)} == {EVERYONE}


def test_the_change_goes_to_those_whose_upload_of_the_last_round_counted_and_the_whole_to_the_others():
    server, start = met()
    assert server.expected_parts((WHOLE, CHANGE), {}, 1) == (WHOLE,)
    first = server.aggregate({p: {"companion": start} for p in (0, 1, 2)}, {}, 1)
    assert server.expected_parts((WHOLE, CHANGE), first.state, 2) == (CHANGE,)
    assert {server.download(p, first.downloads, first.state, 2, True) for p in range(3)} == {EVERYONE}
    step = {"companion-update": factors_of(shifted(start, 1.0), 1.0)}
    second = server.aggregate({0: step, 2: step}, first.state, 2)
    assert [server.download(p, second.downloads, second.state, 3, True) for p in range(3)] == [0, EVERYONE, 0]
    # a round of which nothing counted: who was sent the change holds it already
    assert [server.download(p, second.downloads, second.state, 4, True) for p in range(3)] == [EVERYONE] * 3
    # what teaches alone goes to those who learn
    assert server.download(0, second.downloads, second.state, 3, False) is None
