"""FedPAGR against the paper written out: where it begins, what the server refines, what a client trains and predicts
with."""

import json
import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from client_app import client as client_module
from client_app.evaluation import features_of
from federation.settings import SettingError
from federation.wire.codec import Codec
from federation.wire.parts import Limits, decode_payload, encode_payload
from federation.wire.payloads import Instruction
from models import build
from prototypes.masks import class_masks
from prototypes.nearest import nearest_scores
from prototypes.prototype_set import PrototypeSet
from prototypes.refinement import class_sums, mean_directions, refine
from runs.folder import RunFolder
from strategies.contract import EVERYONE, Batch, ClientState, Phase, as_state
from strategies.rounds.checkpoint import pack, unpack

K, D = 5, 8
FEDPAGR = {"strategy": "fedpagr"}
OTHER_SERVER = {
    "fedpagr.separation-weight": 2.0,
    "fedpagr.margin": -0.2,
    "fedpagr.steps": 7,
    "fedpagr.server-learning-rate": 0.05,
    "fedpagr.server-momentum": 0.5,
}
CLASSES, DIM = 10, 8  # of the digits
QUICK = FEDPAGR | {"max-samples": 400, "feature-dim": DIM, "models": "tiny_perceptron", "device": "cpu"}
FIGURES = {f"{name}_{when}" for name in ("agreement", "separation", "largest_cosine") for when in ("before", "after")}


def uploads(seed=0, clients=6):
    """partition -> prototypes around one direction, of any length, as masks make them; class 4 is nobody's."""
    random = torch.Generator().manual_seed(seed)
    made = {}
    for partition in range(clients):
        labels = torch.tensor([label for label in range(4) if (partition + label) % 3])
        vectors = torch.randn(len(labels), D, generator=random) + 1
        made[partition] = PrototypeSet(labels, vectors * (partition + 1))
    return made


def prototypes(seed, num_classes=K, dim=D, length=1.0):
    random = torch.Generator().manual_seed(seed)
    vectors = torch.nn.functional.normalize(torch.randn(num_classes, dim, generator=random, dtype=torch.float64))
    return PrototypeSet(torch.arange(num_classes), (length * vectors).float())


def across(payload, codec):
    """As the other end has it."""
    return decode_payload(encode_payload(payload, codec), Limits(codec, 1e6))


# --- where it begins ----------------------------------------------------------------------------------------------


def test_it_begins_with_seeded_unit_vectors_of_all_classes(halves):
    torch.manual_seed(1)
    first = halves(FEDPAGR, K, D).server.begin()
    torch.manual_seed(2)
    again = halves(FEDPAGR, K, D).server.begin()
    other = halves(FEDPAGR | {"seed": 1}, K, D).server.begin()
    assert set(first.downloads) == {EVERYONE}
    begun = first.downloads[EVERYONE]
    assert begun.labels.tolist() == list(range(K))
    assert begun.counts is None
    assert begun.vectors.dtype == torch.float32
    torch.testing.assert_close(begun.vectors.norm(dim=1), torch.ones(K))
    assert torch.equal(again.downloads[EVERYONE].vectors, begun.vectors)
    assert float((other.downloads[EVERYONE].vectors - begun.vectors).norm(dim=1).min()) > 0.1
    state, downloads = unpack(pack(first.state, first.downloads))
    assert torch.equal(state["vectors"], begun.vectors)
    assert torch.equal(downloads[EVERYONE].vectors, begun.vectors)


def test_the_vectors_it_begins_with_favour_no_direction(halves):
    vectors = halves(FEDPAGR, 3000, 3).server.begin().downloads[EVERYONE].vectors
    assert float(vectors.mean(dim=0).norm()) < 0.05
    torch.testing.assert_close(vectors.T @ vectors / 3000, torch.eye(3) / 3, rtol=0, atol=0.03)


def test_round_1_has_targets_which_the_checkpoint_keeps_until_somebody_uploads(federation, halves):
    def silent(partition, round_number, kind, report):
        return replace(report, payload=None) if round_number == 1 else report

    settings = FEDPAGR | {"fraction-train": 0.5}
    group = federation(4, tamper=silent)
    strategy = group.start(settings | {"rounds": 1})
    begun = halves(settings, 4, 3).server.begin().downloads[EVERYONE]
    # trained or evaluated only, in round 1 and after it
    assert {(number, kind) for _, number, kind, _ in group.asked} == {(1, "train"), (1, "evaluate"), (2, "evaluate")}
    for *_, instruction in group.asked:
        assert instruction.payload.labels.tolist() == [0, 1, 2, 3]
        assert torch.equal(instruction.payload.vectors, begun.vectors)
    tensors, _ = strategy.folder.load_checkpoint()
    assert torch.equal(tensors["state/vectors"], begun.vectors)
    assert torch.equal(tensors["download/-1/vectors"], begun.vectors)
    # and goes on from there
    again = federation(4, tamper=silent)
    resumed = again.start(settings | {"rounds": 2, "resume": str(strategy.folder.path)})
    sent = {number: instruction.payload.vectors for _, number, _, instruction in again.asked}
    assert torch.equal(sent[2], begun.vectors)
    assert not torch.equal(sent[3], begun.vectors)
    whole = federation(4, tamper=silent).start(settings | {"rounds": 2})
    assert torch.equal(resumed.state["vectors"], whole.state["vectors"])


# --- the server's step --------------------------------------------------------------------------------------------


def unit(vector):
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def units_of(sets, label):
    """The clients' unit prototypes of a class, as lists of floats; a row of zeros is none."""
    rows = []
    for each in sets.values():
        if label in each.labels.tolist():
            row = each.vectors[each.labels.tolist().index(label)].double().tolist()
            rows += [unit(row)] if any(row) else []
    return rows


def naive_means(sets, previous):
    """Eq. 3; a class without an upload keeps what it had."""
    means = []
    for label in range(K):
        rows = units_of(sets, label)
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        means.append(unit(mean) if rows else previous[label].double().tolist())
    return torch.tensor(means, dtype=torch.float64)


def naive_parts(points, sets, margin):
    """Eq. 5 and 6 over clients and ordered pairs of classes."""
    agreement = sum(
        1 - points[label] @ torch.tensor(row, dtype=torch.float64)
        for label in range(K)
        for row in units_of(sets, label)
    )
    separation = sum((points[a] @ points[b] - margin).clamp(min=0) for a, b in permutations(range(K), 2))
    return agreement, separation


def naive_refinement(start, sets, options):
    """Eq. 4 to 7: T steps of SGD with momentum on free vectors."""
    free, velocity = start.clone(), torch.zeros_like(start)
    for _ in range(options["fedpagr.steps"]):
        free.requires_grad_()
        points = torch.stack([row / row.norm() for row in free])
        agreement, separation = naive_parts(points, sets, options["fedpagr.margin"])
        (gradient,) = torch.autograd.grad(agreement + options["fedpagr.separation-weight"] * separation, free)
        velocity = options["fedpagr.server-momentum"] * velocity + gradient
        free = (free - options["fedpagr.server-learning-rate"] * velocity).detach()
    return torch.stack([row / row.norm() for row in free])


PAPER = {
    "fedpagr.separation-weight": 0.5,
    "fedpagr.margin": 0.3,
    "fedpagr.steps": 5,
    "fedpagr.server-learning-rate": 0.01,
    "fedpagr.server-momentum": 0.9,
}


@pytest.mark.parametrize("options", [{}, OTHER_SERVER], ids=["paper", "other"])
def test_two_rounds_are_the_papers_written_out(halves, options):
    strategy = halves(FEDPAGR | options, K, D).server
    state, expected = strategy.begin().state, strategy.begin().state["vectors"]
    for number in (1, 2):
        sets = uploads(number)
        outcome = strategy.aggregate(sets, state, number)
        start = naive_means(sets, expected)
        expected = naive_refinement(start, sets, PAPER | options)
        assert set(outcome.downloads) == {EVERYONE}
        download, state = outcome.downloads[EVERYONE], outcome.state
        assert download.labels.tolist() == list(range(K))
        assert download.vectors.dtype == torch.float32
        assert torch.equal(state["vectors"], download.vectors)
        np.testing.assert_allclose(download.vectors, expected, rtol=0, atol=1e-6)
        # the steps did something
        assert float((expected - start).norm(dim=1).max()) > 0.01
        assert set(outcome.figures) == FIGURES
        for when, points in (("before", start), ("after", expected)):
            agreement, separation = naive_parts(points, sets, (PAPER | options)["fedpagr.margin"])
            largest = max(float(points[a] @ points[b]) for a, b in permutations(range(K), 2))
            assert outcome.figures[f"agreement_{when}"] == pytest.approx(float(agreement), rel=1e-5)
            assert outcome.figures[f"separation_{when}"] == pytest.approx(float(separation), rel=1e-4, abs=1e-5)
            assert outcome.figures[f"largest_cosine_{when}"] == pytest.approx(largest, rel=1e-5)


def test_the_step_is_the_functions_of_the_floor_below_to_the_bit(halves):
    strategy = halves(FEDPAGR | OTHER_SERVER, K, D).server
    begun, sets = strategy.begin(), uploads()
    sums, counts = class_sums(list(sets.values()), K)
    assert counts.tolist() == [4, 4, 4, 4, 0]
    refined = refine(
        mean_directions(sums, counts, begun.state["vectors"]),
        sums,
        counts,
        steps=7,
        learning_rate=0.05,
        momentum=0.5,
        separation_weight=2.0,
        margin=-0.2,
    )
    outcome = strategy.aggregate(sets, begun.state, 1)
    assert torch.equal(outcome.state["vectors"], refined.points)
    assert outcome.figures["agreement_after"] == refined.after.agreement
    assert outcome.figures["separation_before"] == refined.before.separation


@pytest.mark.parametrize("nothing", [{"fedpagr.separation-weight": 0.0}, {"fedpagr.steps": 0}], ids=["lambda", "T"])
def test_without_separation_or_steps_there_are_the_normalised_means(halves, nothing):
    """The means agree best already; and a class never reported stays where it began."""
    strategy = halves(FEDPAGR | nothing, K, D).server
    begun = strategy.begin()
    outcome, means = strategy.aggregate(uploads(), begun.state, 1), naive_means(uploads(), begun.state["vectors"])
    np.testing.assert_allclose(outcome.state["vectors"], means, rtol=0, atol=1e-6)
    kept = outcome.state["vectors"][4]
    torch.testing.assert_close(kept, begun.state["vectors"][4], rtol=0, atol=1e-7)
    assert outcome.figures["agreement_after"] == pytest.approx(outcome.figures["agreement_before"], rel=1e-6)


def test_a_class_never_reported_moves_for_the_separation_alone(halves):
    """Those that come too near to it push it away; one at a distance stays."""
    strategy = halves(FEDPAGR, 3, 2).server
    begun = PrototypeSet(torch.arange(3), torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]]))
    sets = {0: PrototypeSet(torch.tensor([0]), torch.tensor([[1.0, 0.0]]))}
    after = strategy.aggregate(sets, as_state(begun), 1).state["vectors"]
    assert after[1] @ begun.vectors[0] < 0.79
    assert torch.equal(after[2], begun.vectors[2])


def test_neither_the_length_of_an_upload_nor_a_row_of_zeros_matters(halves):
    strategy, sets = halves(FEDPAGR, K, D).server, uploads()
    state = strategy.begin().state
    usual = strategy.aggregate(sets, state, 1).state["vectors"]
    units = {p: each.on_sphere() for p, each in sets.items()}
    torch.testing.assert_close(strategy.aggregate(units, state, 1).state["vectors"], usual, rtol=0, atol=1e-6)
    zeros = sets | {9: PrototypeSet(torch.tensor([0, 4]), torch.zeros(2, D))}
    assert torch.equal(strategy.aggregate(zeros, state, 1).state["vectors"], usual)
    alone = strategy.aggregate({9: zeros[9]}, state, 1)
    assert alone.figures["agreement_before"] == 0
    assert bool(alone.state["vectors"].isfinite().all())


# --- the client's round -------------------------------------------------------------------------------------------


def client_half(halves, settings=None, received=None, round_number=1):
    """An objective and its state, as a client has them once it received."""
    made = halves(FEDPAGR | (settings or {}), K, D)
    objective = made.objective
    state = ClientState(objective.build(build("tiny_perceptron", (1, 8, 8), D, K, 0), 3))
    received = prototypes(7, length=2.5) if received is None else received
    objective.receive(state, received, round_number)
    state.targets = objective.targets(state, received)
    state.table = state.targets.table(K)
    return objective, state


def batch_of(seed=0, rows=11):
    random = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(rows, 1, 8, 8, generator=random), torch.randint(0, K, (rows,), generator=random))


def test_receiving_anchors_the_classifier(halves):
    """W = P and b = 0, whatever was there; P of unit rows, however long they came."""
    came = prototypes(7, length=2.5)
    objective, state = client_half(halves, received=came)
    expected = came.on_sphere().vectors
    assert torch.equal(state.module.classifier.weight, expected)
    assert torch.equal(state.module.classifier.bias, torch.zeros(K))
    assert torch.equal(state.targets.vectors, expected)
    with torch.no_grad():
        state.module.classifier.weight.fill_(3.0)
        state.module.classifier.bias.fill_(4.0)
    objective.receive(state, prototypes(8), 2)
    assert torch.equal(state.module.classifier.weight, prototypes(8).on_sphere().vectors)
    assert not state.module.classifier.bias.any()
    # logits are the cosines
    state.module.eval()
    z = objective.features(state, batch_of().inputs)
    torch.testing.assert_close(objective.logits(state, z), z @ prototypes(8).vectors.T)


@pytest.mark.parametrize("options", [{}, {"fedpagr.temperature": 0.7, "fedpagr.entropy-weight": 2.0}])
def test_the_loss_is_the_papers_by_a_loop_over_samples(halves, options):
    objective, state = client_half(halves, options)
    with torch.no_grad():
        state.module.classifier.bias.copy_(torch.linspace(-1, 1, K))
        state.module.classifier.weight.mul_(1.7)
    state.module.eval()
    batch = batch_of()
    loss = objective.loss(state, batch, Phase("train", []), 2)
    beta, weight = options.get("fedpagr.temperature", 0.1), options.get("fedpagr.entropy-weight", 0.1)
    w, b = (p.detach().double() for p in (state.module.classifier.weight, state.module.classifier.bias))
    p = prototypes(7).vectors.double().tolist()
    local, contrast, spread = [], [], []
    for z, label in zip(loss.features.double().detach(), batch.labels.tolist(), strict=True):
        own = [float(w[c] @ z + b[c]) for c in range(K)]
        local.append(math.log(sum(math.exp(value) for value in own)) - own[label])
        logits = [sum(a * v for a, v in zip(z.tolist(), row, strict=True)) / beta for row in p]
        total = math.log(sum(math.exp(value) for value in logits))
        contrast.append(total - logits[label])
        spread.append(sum(total - value for value in logits) / K)
    expected = {
        "cross-entropy": sum(local) / len(local),
        "prototype-contrast": sum(contrast) / len(contrast),
        "entropy-spread": sum(spread) / len(spread),
    }
    assert {name: part.item() for name, part in loss.parts.items()} == pytest.approx(expected, rel=1e-5)
    whole = expected["cross-entropy"] + expected["prototype-contrast"] + weight * expected["entropy-spread"]
    assert loss.total.item() == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(loss.features.norm(dim=1), torch.ones(len(batch.labels)))


def test_without_alignment_cross_entropy_stays_alone(halves):
    objective, state = client_half(halves, {"fedpagr.alignment": False})
    state.module.eval()
    batch = batch_of()
    loss = objective.loss(state, batch, Phase("train", []), 2)
    assert set(loss.parts) == {"cross-entropy"}
    logits = state.module.classify(state.module.features(batch.inputs))
    assert torch.equal(loss.total, cross_entropy(logits, batch.labels))
    # anchored all the same, and predicted with
    assert torch.equal(state.module.classifier.weight, prototypes(7, length=2.5).on_sphere().vectors)
    assert state.targets is not None


def test_without_alignment_a_run_reports_cross_entropy_alone(run, metrics):
    lines = metrics(run(FEDPAGR | {"fedpagr.alignment": False}))
    assert [set(line["training"]["loss"]) for line in lines[:-1]] == [{"cross-entropy", "loss"}] * 2
    assert "global-prototypes" in lines[-1]["evaluation"]["rules"]


def test_what_is_uploaded_are_directions_and_zeros_stay_zeros(halves):
    objective, state = client_half(halves)
    vectors = torch.tensor([[3.0, 0, 0, 4, 0, 0, 0, 0], [0.0] * 8, [0.01] * 8])
    state.prototypes = PrototypeSet(torch.tensor([0, 2, 3]), vectors, torch.tensor([5, 6, 7]))
    sent = objective.upload(state, 1)
    assert sent.counts is None
    assert sent.labels.tolist() == [0, 2, 3]
    expected = torch.tensor([[0.6, 0, 0, 0.8, 0, 0, 0, 0], [0.0] * 8, [8**-0.5] * 8])
    torch.testing.assert_close(sent.vectors, expected)
    for codec in (Codec(K, D), Codec(K, D, 3, "int8")):
        assert not across(sent, codec).vectors[1].any()
    # and the client keeps its own means
    assert torch.equal(state.prototypes.vectors, vectors)
    state.prototypes = None
    assert objective.upload(state, 1) is None


# --- settings -----------------------------------------------------------------------------------------------------


def test_a_temperature_of_zero_is_refused_in_one_sentence_that_names_the_remedy(halves):
    with pytest.raises(SettingError) as raised:
        halves(FEDPAGR | {"fedpagr.temperature": 0.0}, K, D)
    sentence = str(raised.value)
    assert "`fedpagr.temperature`" in sentence
    assert "set `fedpagr.alignment` to false" in sentence
    assert "\n" not in sentence
    assert sentence.count(". ") == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("alignment", 1),
        ("entropy-weight", -0.1),
        ("separation-weight", -1.0),
        ("margin", 1.1),
        ("margin", -1.1),
        ("steps", -1),
        ("steps", 2.5),
        ("server-learning-rate", 0.0),
        ("server-momentum", 1.0),
        ("dropout", 1.0),
    ],
)
def test_wrong_settings_are_named(halves, name, value):
    with pytest.raises(SettingError, match=f"`fedpagr.{name}` is "):
        halves(FEDPAGR | {f"fedpagr.{name}": value}, K, D)


def test_dropout_reaches_the_head(halves):
    for dropout in (0.0, 0.4):
        _, state = client_half(halves, {"fedpagr.dropout": dropout})
        assert state.module.head.dropout.p == dropout


# --- prediction ---------------------------------------------------------------------------------------------------


@pytest.fixture
def client():
    """client(partition, settings): made anew, as for every message."""
    client_module._states.clear()

    def make(partition=0, settings=None):
        node = {"partition-id": partition, "num-partitions": 4}
        return client_module.Client(Context(1, 2, node, RecordDict(), QUICK | (settings or {})))

    return make


def ask(number, payload):
    return Instruction("a-run", number, True, payload)


def digits(seed):
    return prototypes(seed, CLASSES, DIM)


def right_by_cosine(client, given):
    """Test and validation rows that argmax_c z . P_c gets right, with the newest state of the store."""
    made = client()
    state, found = made.restore("a-run"), []
    for rows in (made.data.test, made.data.validation):
        with torch.no_grad():
            z = features_of(made.objective, state, rows, made.data.transform)
        found.append(
            sum(
                int(max(range(CLASSES), key=(given.vectors @ row).tolist().__getitem__)) == int(label)
                for row, label in zip(z, rows.labels, strict=True)
            )
        )
    return tuple(found)


def rule(report):
    return report.evaluation.correct["global-prototypes"]


def telling(client, old):
    """Prototypes that a client would predict otherwise with."""
    return next(
        new for new in map(digits, range(100, 200)) if right_by_cosine(client, new) != right_by_cosine(client, old)
    )


def test_a_client_predicts_with_what_it_trained_with(client):
    """On arrival of a training message and of an evaluation alone, from memory and from the store."""
    trained = digits(1)
    client().train(ask(1, trained))
    newest = telling(client, trained)
    expected = right_by_cosine(client, trained)
    assert rule(client().evaluate(ask(2, newest))) == expected
    client_module._states.clear()
    assert rule(client().evaluate(ask(2, newest))) == expected
    client_module._states.clear()
    report = client().train(ask(2, newest))
    assert rule(report) == expected
    # and from then on with what came then, whatever comes
    expected = right_by_cosine(client, newest)
    later = telling(client, newest)
    assert rule(client().evaluate(ask(3, later))) == expected
    client_module._states.clear()
    assert rule(client().evaluate(ask(3, later))) == expected


def test_a_client_that_never_trained_predicts_with_what_came(client):
    first = digits(1)
    client().evaluate(ask(1, first))
    second = telling(client, first)
    assert rule(client().evaluate(ask(1, first))) == right_by_cosine(client, first)
    assert rule(client().evaluate(ask(2, second))) == right_by_cosine(client, second)
    client_module._states.clear()
    assert rule(client().evaluate(ask(3, first))) == right_by_cosine(client, first)
    assert not client().restore("a-run").kept


def test_each_round_starts_at_the_prototypes_and_trains_from_there(client, monkeypatch):
    seen, whole = [], client_module.train

    def train(objective, state, *arguments):
        seen.append({name: tensor.clone() for name, tensor in state.module.classifier.state_dict().items()})
        assert torch.equal(state.table[0], seen[-1]["weight"])
        figures = whole(objective, state, *arguments)
        seen.append({name: tensor.clone() for name, tensor in state.module.classifier.state_dict().items()})
        return figures

    monkeypatch.setattr(client_module, "train", train)
    for number, came in ((1, digits(1)), (2, digits(2)), (3, digits(2))):
        report = client().train(ask(number, came))
        assert set(report.training.parts) == {"cross-entropy", "prototype-contrast", "entropy-spread", "loss"}
        assert report.training.target_norm == pytest.approx(1, rel=1e-6)
        assert report.training.prototype_norm == pytest.approx(1, rel=1e-6)
        before, after = seen[-2:]
        assert torch.equal(before["weight"], came.on_sphere().vectors)
        assert not before["bias"].any()
        assert not torch.equal(after["weight"], before["weight"])
        assert after["bias"].all()


def test_the_nearest_unit_prototype_is_that_of_the_largest_cosine():
    """So that the shared rule is FedPAGR's own (Eq. 8)."""
    z, given = prototypes(1, 2000, 6).vectors, prototypes(2, 9, 6).vectors
    nearest = nearest_scores(z, given, torch.ones(9, dtype=torch.bool)).argmax(dim=1)
    assert torch.equal(nearest, (z @ given.T).argmax(dim=1))
    assert len(nearest.unique()) == 9


def test_the_cosine_rule_is_the_methods_own(run):
    folder = run(FEDPAGR)
    found = json.loads((folder / "summary.json").read_text())
    assert found["headline"]["rule"] == "global-prototypes"
    assert "prediction by global-prototypes" in run.said[1]


# --- under masks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire_dtype", ["float32", "int8"])
@pytest.mark.parametrize("ones", [1, 3])
def test_masked_rows_are_unit_vectors_again_at_the_client(halves, ones, wire_dtype):
    codec = halves(FEDPAGR | {"sparsity-dim": ones, "wire-dtype": wire_dtype}, K, D).server.codec
    came = across(prototypes(7), codec)
    assert float(came.vectors.norm(dim=1).min()) < 0.9
    _, state = client_half(halves, received=came)
    for rows in (state.targets.vectors, state.module.classifier.weight, state.table[0]):
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(K))
        assert not rows[~class_masks(K, D, ones, seed=0)].any()
    torch.testing.assert_close(state.targets.vectors * came.vectors.norm(dim=1, keepdim=True), came.vectors)


@pytest.mark.parametrize(
    ("ones", "dim", "warned"), [(2, 8, True), (2, 9, True), (3, 8, False), (0, 8, False), (8, 8, 0)]
)
def test_masks_that_leave_nothing_to_separate_are_warned_of(federation, say, ones, dim, warned):
    federation(2, codec=Codec(4, dim, ones)).start(FEDPAGR | {"rounds": 1})
    warnings = [line for line in say() if "the separation does nothing" in line]
    assert len(warnings) == bool(warned)
    assert all(line.startswith(f"warning: 4 classes of {ones} values fit into d = {dim} without") for line in warnings)


# --- whole runs ---------------------------------------------------------------------------------------------------

WHOLE = FEDPAGR | {"rounds": 4, "fraction-train": 0.5, "momentum": 0.9, "models": "tiny_cnn,tiny_perceptron"}


def left_by(folder):
    """Every tensor that the server and the clients of a run end with, to the bit."""
    found = RunFolder(folder).load_checkpoint()[0]
    for path in sorted((folder.parents[1] / "clients" / folder.name).rglob("*.safetensors")):
        found |= {f"{path.parent.name}/{path.name}/{name}": tensor for name, tensor in load_file(path).items()}
    return {name: (tensor.dtype, tensor.numpy().tobytes()) for name, tensor in found.items()}


@pytest.mark.parametrize("codec", [{}, {"sparsity-dim": 4, "wire-dtype": "int8"}], ids=["plain", "masked-int8"])
def test_cut_and_resumed_is_as_never_cut_to_the_bit(run, metrics, cut, codec):
    whole = run(WHOLE | codec)
    cut(WHOLE | codec, "_aggregate", lambda strategy, server_round, replies: server_round == 3)
    (folder,) = set(whole.parent.iterdir()) - {whole}
    client_module._states.clear()
    assert run(WHOLE | codec | {"resume": str(folder)}) == folder
    assert metrics(folder) == metrics(whole)
    assert left_by(folder) == left_by(whole)


def test_two_workers_and_a_run_that_grows_change_nothing(run, metrics):
    """Processes share no memory: what a client predicts with comes from its store."""
    whole = run(WHOLE | {"rounds": 3})
    apart = run(WHOLE | {"rounds": 2}, workers=2)
    client_module._states.clear()
    assert run(WHOLE | {"rounds": 3, "resume": str(apart)}) == apart
    assert metrics(apart) == metrics(whole)
    assert left_by(apart) == left_by(whole)


def test_the_geometry_of_each_round_is_recorded(run, metrics):
    lines = metrics(run(WHOLE | {"fedpagr.margin": 0.1}))
    for line in lines[:-1]:
        figures = line["server"]
        assert set(figures) >= FIGURES
        sent = sum("training" in client for client in line["clients"].values()) * CLASSES
        assert 0 <= figures["agreement_before"] <= 2 * sent
        total = {
            when: figures[f"agreement_{when}"] + 0.5 * figures[f"separation_{when}"] for when in ("before", "after")
        }
        assert total["after"] < total["before"]
        assert figures["agreement_after"] > figures["agreement_before"]
        assert figures["largest_cosine_after"] <= 1 + 1e-9
