"""FedKD: its loss against one written out, and that server and clients hold the same model whatever gets lost."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from protosphere.models import build
from protosphere.prototypes.weights import Weights
from protosphere.record.folder import RunFolder
from protosphere.strategies.contract import EVERYONE, Batch, ClientState
from protosphere.strategies.fedkd import CHANGE, WHOLE, FedKD, FedKDObjective, base_of, moved
from protosphere.wire.codec import Codec, as_arrived
from protosphere.wire.low_rank import factored
from protosphere.wire.payloads import Identity
from tests.strategies.kin import halves_of as both_halves
from tests.strategies.kin import lines_of_layouts
from tests.strategies.sets import same_state
from tests.tampered import tampered

K, D = 3, 4


def halves_of(**settings):
    return both_halves("fedkd", {"models": "tiny_perceptron", "rounds": 4} | settings, K, D)


def built(model="tiny_perceptron", **settings):
    _, objective = halves_of(**settings)
    return objective, ClientState(objective.build(build(model, (5,), D, K, 3), 3))


def batch(rows=7):
    random = torch.Generator().manual_seed(5)
    return Batch(torch.randn(rows, 5, generator=random), torch.arange(rows) % K)


def shifted(weights, step):
    return Weights({name: tensor + step for name, tensor in weights.tensors.items()})


def loss_of(objective, state, rows):
    return objective.loss(state, rows, objective.phases(state, 1)[0], 1)


# --- the loss ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["batch", "element"])
def test_each_model_learns_what_the_other_knows_the_less_the_more_both_err(reduction):
    objective, state = built("perceptron", **{"fedkd.reduction": reduction})
    rows, theirs = batch(), copy.deepcopy(state.module)
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
    loss = loss_of(objective, state, Batch(batch().inputs, torch.zeros(7, dtype=torch.int64)))
    loss.total.backward()
    assert float(loss.parts["cross-entropy"].detach()) == 0
    assert bool(loss.total.isfinite())
    assert all(bool(p.grad.isfinite().all()) for p in state.module.parameters())


# --- what travels -----------------------------------------------------------------------------------------------


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
        expected = factored(change, 0.2 + 0.7 * number / 4)
        assert list(sent) == ["companion-update"]
        assert same_state(sent["companion-update"].tensors, expected.tensors)


def test_no_sum_leaves_a_variance_below_zero():
    base, change = ({"a.running_var": torch.tensor([v, 2.0]), "a.running_mean": torch.tensor([v])} for v in (0.5, -1.0))
    sums = moved(Weights(base), Weights(change)).tensors
    assert {name: tensor.tolist() for name, tensor in sums.items()} == {
        "a.running_var": [0.0, 4.0],
        "a.running_mean": [-0.5],
    }


# --- the server -------------------------------------------------------------------------------------------------


def met(clients=3, **settings):
    server, objective = halves_of(**settings)
    start = objective.shared(objective.build(build("tiny_perceptron", (5,), D, K, 3), 3))
    lines = lines_of_layouts(start)
    rows = {p: Identity(p, clients, "net", rows=(10 + 90 * p, 0, 0), layouts=lines) for p in range(clients)}
    server.meet(Codec(K, D, wire_dtype=server.settings.wire_dtype), rows)
    return server, start["companion"]


@pytest.mark.parametrize("wire_dtype", ["float32", "float16"])
def test_the_model_is_the_plain_mean_then_moves_by_the_mean_change_as_it_arrives(wire_dtype):
    server, start = met(**{"wire-dtype": wire_dtype, "fedkd.start-energy": 0.4, "fedkd.end-energy": 0.6})
    first = server.aggregate({p: {"companion": shifted(start, 3.0 * p)} for p in (0, 1)}, {}, 1)
    assert list(first.downloads) == [EVERYONE]
    for name, tensor in base_of(first.state).tensors.items():
        torch.testing.assert_close(tensor, start.tensors[name] + 1.5, msg="whatever the numbers of rows")
    drawn = {p: Weights({n: torch.randn_like(t) for n, t in start.tensors.items()}) for p in (1, 2)}
    second = server.aggregate({p: {"companion-update": each} for p, each in drawn.items()}, first.state, 2)
    whole, change = second.downloads[EVERYONE]["companion"], second.downloads[0]
    assert same_state(base_of(second.state).tensors, whole.tensors)
    assert second.figures["values_share"] < 1
    objective, state = built(**{"wire-dtype": wire_dtype})
    objective.receive(state, first.downloads[EVERYONE], 2)
    arrived = as_arrived(change["companion-update"], CHANGE, server.codec, start.layout)
    objective.receive(state, {"companion-update": arrived}, 3)
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
    uploads = {p: {"companion-update": change} for p in (0, 1)}
    outcomes = []
    for number in (2, 3):
        outcomes.append(server.aggregate(uploads, state, number))
        state = outcomes[-1].state
    last = outcomes[-1]
    assert "the mean of this round's changes is dropped" in last.warnings[0]
    assert name in last.warnings[0]
    whole = last.downloads[EVERYONE]["companion"]
    assert same_state(whole.tensors, base_of(last.state).tensors)
    assert all(bool(tensor.isfinite().all()) and float(tensor.norm()) < 1e4 for tensor in whole.tensors.values())
    assert {server.address(p, last.downloads, last.state, 4) for p in range(3)} == {EVERYONE}


def test_the_change_goes_to_those_whose_upload_of_the_last_round_counted_and_the_whole_to_the_others():
    server, start = met()
    assert [server.awaited((WHOLE, CHANGE), {}, number) for number in (1, 2)] == [(WHOLE,), (WHOLE,)]
    first = server.aggregate({p: {"companion": start} for p in (0, 1, 2)}, {}, 1)
    assert server.awaited((WHOLE, CHANGE), first.state, 2) == (CHANGE,)
    assert {server.address(p, first.downloads, first.state, 2) for p in range(3)} == {EVERYONE}
    step = {"companion-update": shifted(start, 1.0)}
    second = server.aggregate({0: step, 2: step}, first.state, 2)
    assert [server.address(p, second.downloads, second.state, 3) for p in range(3)] == [0, EVERYONE, 0]
    # a round of which nothing counted: who was sent the change holds it already
    assert [server.address(p, second.downloads, second.state, 4) for p in range(3)] == [EVERYONE] * 3
    assert server.downloads_due(3, trains=True)
    assert not server.downloads_due(3, trains=False)


# --- whole runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire_dtype", "first"), [("float32", ()), ("float16", (0, 1, 2, 3))], ids=["all of round 1", "none of round 1"]
)
def test_after_every_loss_the_clients_hold_the_server_s_model_to_the_bit(run, monkeypatch, wire_dtype, first):
    held, had, sent = {}, {}, {}
    phases, messages = FedKDObjective.phases, FedKD.address

    def holding(self, state, round_number):
        student = {name: tensor.clone() for name, tensor in self.shared(state.module)["companion"].tensors.items()}
        held.setdefault(round_number, []).append(student)
        return phases(self, state, round_number)

    def addressing(self, partition, downloads, state, server_round):
        key = messages(self, partition, downloads, state, server_round)
        if downloads:
            had[server_round] = base_of(state).tensors
            sent.setdefault(server_round, set()).add(*downloads[key])
        return key

    monkeypatch.setattr(FedKDObjective, "phases", holding)
    monkeypatch.setattr(FedKD, "address", addressing)
    # of client 1 the uploads of rounds 2 and 5, of round 4 all clients', of round 1 none counts or all do
    lost = ((2, 1), (5, 1), *((4, p) for p in range(4)), *((1, p) for p in first))

    def lose(records, partition, number):
        if (number, partition) in lost:
            records.pop("payload", None)

    grid = tampered(lose)
    settings = {"strategy": "fedkd", "rounds": 7, "fraction-train": 0.75, "wire-dtype": wire_dtype, "max-samples": 200}
    # with running statistics
    folder = run(settings | {"models": "tiny_perceptron", "fedkd.companion": "resnet8", "feature-dim": 8}, grid=grid)
    lines = RunFolder(folder).lines()
    assert [bool(line["problems"]) for line in lines][4]
    assert set(had) == set(range(3 if first else 2, 8))
    for number, whole in had.items():
        assert len(held[number]) == 3
        assert all(same_state(student, whole) for student in held[number]), number
    assert sent[5] == {"companion"}, "after a round of which nothing counted"
    assert set.union(*sent.values()) == {"companion", "companion-update"}
    # until something counts all start from the initial weights
    early = held[1] + (held[2] if first else [])
    assert all(same_state(student, early[0]) for student in early)
