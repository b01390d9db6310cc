"""GFPL against the paper written out: the loss, what retraining moves, when mixtures cross, what the server fuses."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from client_app import client as client_module
from experiments.runtime import preflight
from experiments.runtime.grid import LocalGrid
from federation.roster import RosterError
from federation.seeds import generator
from federation.settings import SettingError
from federation.wire.messages import encode_report
from federation.wire.parts import as_sent
from federation.wire.payloads import Instruction, to_tensors
from models import build
from models.heads import DualClassifierModel
from prototypes.fusion import fuse
from prototypes.mixture_set import MixtureSet
from runs.folder import RunFolder
from strategies import gfpl, read_settings
from strategies.contract import EVERYONE, Batch, ClientState, Phase
from strategies.gfpl import GFPLObjective, GFPLSettings
from strategies.rounds.checkpoint import pack, unpack

K, D = 4, 6
GFPL = {"strategy": "gfpl"}
OFTEN = GFPL | {"gfpl.first-exchange": 2, "gfpl.exchange-every": 2}
SAMPLES = {"gfpl.weighting": "samples", "disclose-class-counts": True}
SINGLE = {"gfpl.dual-classifier": False}
CLASSES, DIM = 10, 12  # of the digits
QUICK = OFTEN | {"max-samples": 400, "feature-dim": DIM, "models": "tiny_perceptron", "device": "cpu", "rounds": 6}


def mixtures(labels, dim=D, seed=0, counts=None, scale=1.0):
    """Any mixtures with components of equal weight."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.tensor(labels, dtype=torch.int64)
    weights = 1 / torch.tensor([labels.count(label) for label in labels], dtype=torch.float32)
    means = scale * torch.randn(len(labels), dim, generator=random)
    variances = torch.rand(len(labels), dim, generator=random) + 0.1
    counted = None if counts is None else torch.tensor([counts[label] for label in labels])
    return MixtureSet(rows, means, variances, weights, counted)


def same(one, other):
    ours, theirs = to_tensors(one), to_tensors(other)
    return ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def client_half(halves, settings=None, model="tiny_perceptron"):
    """An objective and its state, as a client begins."""
    objective = halves(GFPL | {"rounds": 40} | (settings or {}), K, D).objective
    state = ClientState(objective.build(build(model, (1, 8, 8), D, K, 0), 3))
    return objective, state


def batch_of(seed=0, rows=11):
    random = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(rows, 1, 8, 8, generator=random), torch.randint(0, K, (rows,), generator=random))


# --- the loss -----------------------------------------------------------------------------------------------------


def by_hand(module, rows, labels, weight):
    """Eq. 13 in plain floats: means over the samples of CE and of the half squared distance of h z_y from 1."""
    w, b = (p.detach().double() for p in module.classifier.parameters())
    p, c = (p.detach().double() for p in module.projection.parameters())
    plain, dots = [], []
    for z, label in zip(rows.detach().double(), labels.tolist(), strict=True):
        logits = [float(w[k] @ z + b[k]) for k in range(K)]
        plain.append(math.log(sum(math.exp(value) for value in logits)) - logits[label])
        h = [float(p[k] @ z + c[k]) for k in range(D)]
        length = math.sqrt(sum(value * value for value in h))
        product = sum(a / length * e for a, e in zip(h, module.frame[label].double().tolist(), strict=True))
        dots.append((product - 1) ** 2 / 2)
    means = sum(plain) / len(plain), sum(dots) / len(dots)
    return {"cross-entropy": means[0], "dot-regression": means[1]}, means[0] + weight * means[1]


@pytest.mark.parametrize("weight", [2.0, 0.0, 0.3])
def test_the_loss_is_the_papers_by_a_loop_over_samples(halves, weight):
    objective, state = client_half(halves, {"gfpl.dot-weight": weight})
    batch = batch_of()
    loss = objective.loss(state, batch, Phase("train", []), 2)
    z = state.module.network.extractor(batch.inputs)
    parts, total = by_hand(state.module, z, batch.labels, weight)
    assert {name: part.item() for name, part in loss.parts.items()} == pytest.approx(parts, rel=1e-5)
    assert loss.total.item() == pytest.approx(total, rel=1e-5)
    torch.testing.assert_close(loss.features, z)
    assert client_half(halves)[0].options[GFPLSettings].dot_weight == 2.0


def test_on_pseudo_features_the_loss_is_the_same_without_the_extractor(halves):
    objective, state = client_half(halves)
    rows = torch.randn(9, D, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(9) % K
    loss = objective.loss(state, Batch(rows, labels), Phase("retrain", []), 2)
    parts, total = by_hand(state.module, rows, labels, 2.0)
    parts = {f"retrain-{name}": value for name, value in parts.items()}
    assert {name: part.item() for name, part in loss.parts.items()} == pytest.approx(parts, rel=1e-5)
    assert loss.total.item() == pytest.approx(total, rel=1e-5)
    loss.total.backward()
    assert all(parameter.grad is None for parameter in state.module.network.extractor.parameters())


def test_without_the_dual_classifier_there_is_cross_entropy_alone(halves):
    objective, state = client_half(halves, SINGLE)
    assert not isinstance(state.module, DualClassifierModel)
    assert not any("projection" in name and "extractor" not in name for name, _ in state.module.named_parameters())
    batch, rows = batch_of(), torch.randn(11, D)
    for phase, given in (("train", batch), ("retrain", Batch(rows, batch.labels))):
        loss = objective.loss(state, given, Phase(phase, []), 2)
        z = rows if phase == "retrain" else state.module.features(batch.inputs)
        assert set(loss.parts) == {"cross-entropy" if phase == "train" else "retrain-cross-entropy"}
        assert torch.equal(loss.total, cross_entropy(state.module.classifier(z), batch.labels))
    assert objective.scores(state, rows) == {}
    objective.receive(state, mixtures([0, 1]), 2)
    retrain, train = objective.phases(state, 2)
    assert [id(p) for p in retrain.parameters] == [id(p) for p in state.module.classifier.parameters()]
    assert len(train.parameters) == len(list(state.module.parameters()))


def test_etf_scores_are_the_cosines_to_the_frame(halves):
    objective, state = client_half(halves)
    z = state.module.features(batch_of().inputs)
    scores = objective.scores(state, z)
    assert set(scores) == {"etf"}
    h = torch.nn.functional.linear(z, *state.module.projection.parameters())
    for row, cosines in zip(h.detach(), scores["etf"].detach(), strict=True):
        expected = [float(row @ vector) / float(row.norm()) for vector in state.module.frame]
        assert cosines.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_frame_is_the_same_on_every_client_and_architecture_and_the_seeds_alone(halves):
    frames = [
        client_half(halves, settings, model)[1].module.frame
        for model in ("tiny_perceptron", "tiny_cnn", "resnet8")
        for settings in ({}, {"shared-init": False, "gfpl.components": 2})
    ]
    assert all(torch.equal(frame, frames[0]) for frame in frames)
    cosines = frames[0] @ frames[0].T
    torch.testing.assert_close(cosines, (K * torch.eye(K) - 1) / (K - 1), rtol=0, atol=1e-6)
    assert not torch.allclose(client_half(halves, {"seed": 1})[1].module.frame, frames[0], atol=0.1)


# --- what goes up -------------------------------------------------------------------------------------------------


def with_features(state, held=(7, 1, 0, 2)):
    """As after a round's training, of which class j has held[j] rows."""
    random = torch.Generator().manual_seed(4)
    labels = torch.tensor([label for label, count in enumerate(held) for _ in range(count)])
    labels = labels[torch.randperm(len(labels), generator=random)]
    state.features = torch.randn(len(labels), D, generator=random) + labels[:, None], labels
    return state.features


def test_a_class_goes_up_as_at_most_n_gaussians_and_never_more_than_its_samples(halves):
    objective, state = client_half(halves)
    features, labels = with_features(state)
    torch.manual_seed(9)
    sent = objective.upload(state, 10)
    assert sent.counts is None
    assert sent.labels.tolist() == [0] * 4 + [1] + [3] * 2
    alone = features[labels == 1][0]
    torch.testing.assert_close(sent.means[4], alone)
    assert float(sent.weights[4]) == 1
    # its variance is the floor
    assert 0 < float(sent.variances[4].max()) <= 1e-11
    pooled = (sent.weights[:4, None] * sent.means[:4]).sum(dim=0)
    torch.testing.assert_close(pooled, features[labels == 0].mean(dim=0), rtol=1e-4, atol=1e-5)
    torch.manual_seed(9)
    assert same(objective.upload(state, 10), sent)


@pytest.mark.parametrize("most", [1, 2, 9])
def test_n_is_a_setting_and_counts_go_up_for_samples_alone(halves, most):
    objective, state = client_half(halves, {"gfpl.components": most} | SAMPLES)
    with_features(state)
    sent = objective.upload(state, 20)
    expected = [label for label, count in enumerate((7, 1, 0, 2)) for _ in range(min(most, count))]
    assert sent.labels.tolist() == expected
    assert sent.counts.tolist() == [(7, 1, 0, 2)[label] for label in expected]


def test_nothing_goes_up_outside_an_exchange_or_without_rows(halves):
    objective, state = client_half(halves)
    with_features(state)
    assert [number for number in range(1, 41) if objective.upload(state, number) is not None] == [10, 20, 30]
    state.features = None
    assert objective.upload(state, 10) is None
    without, state = client_half(halves, {"gfpl.pseudo-features": 0})
    with_features(state)
    assert all(without.upload(state, number) is None for number in range(1, 41))


@pytest.mark.parametrize(
    ("first", "every", "rounds", "expected"),
    [
        (10, 10, 40, [10, 20, 30]),
        (10, 10, 45, [10, 20, 30, 40]),
        (10, 10, 10, []),
        (3, 2, 9, [4, 6, 8]),
        (4, 2, 8, [4, 6]),
        (1, 3, 10, [3, 6, 9]),
        (1, 1, 3, [1, 2]),
        (5, 1, 5, []),
        (5, 7, 21, [7, 14]),
    ],
)
def test_exchange_rounds_are_those_from_t1_on_that_s_divides_but_not_the_last(first, every, rounds, expected):
    settings = GFPL | {"gfpl.first-exchange": first, "gfpl.exchange-every": every}
    options = read_settings(settings).options[GFPLSettings]
    assert [t for t in range(1, rounds + 1) if options.exchanges(t, rounds)] == expected
    # before round 1 there was none: the message of round 1 asks for it
    assert not options.exchanges(0, rounds)
    ablation = read_settings(settings | {"gfpl.pseudo-features": 0}).options[GFPLSettings]
    assert not any(ablation.exchanges(t, rounds) for t in range(rounds + 1))


# --- the server's step ----------------------------------------------------------------------------------------------


def test_the_server_sends_what_fusion_makes_and_tells_the_components(halves):
    strategy = halves(GFPL | {"gfpl.threshold": 1.3}, K, D).server
    uploads = {p: mixtures([0, 0, p], seed=p) for p in (1, 2, 3)}
    outcome = strategy.aggregate(uploads, {}, 10)
    expected = fuse(uploads, 1.3, True, "uniform")
    assert set(outcome.downloads) == {EVERYONE}
    sent = outcome.downloads[EVERYONE]
    assert same(sent, expected)
    assert sent.counts is None
    assert sent.classes().tolist() == [0, 1, 2, 3]
    assert outcome.figures == {"components_before": 9, "components_after": len(expected)}
    # something fused, and something did not
    assert 4 < len(expected) < 9
    state, downloads = unpack(pack(outcome.state, outcome.downloads))
    assert same(downloads[EVERYONE], sent)
    assert same(strategy.aggregate(uploads, state, 20).downloads[EVERYONE], sent)


@pytest.mark.parametrize(
    ("threshold", "after"), [(0.0, 9), (1e9, 4)], ids=["nothing fuses", "one component a class is left"]
)
def test_the_threshold_is_a_setting(halves, threshold, after):
    strategy = halves(GFPL | {"gfpl.threshold": threshold}, K, D).server
    uploads = {p: mixtures([0, 0, p], seed=p) for p in (1, 2, 3)}
    assert strategy.aggregate(uploads, {}, 10).figures["components_after"] == after


def test_the_threshold_is_divided_by_d_unless_the_paper_is_followed(halves):
    """Of two unit Gaussians a distance a apart D_B is a² / 8: here 2.4, that is 0.4 a dimension."""
    means = torch.zeros(2, D)
    means[1, 0] = math.sqrt(2.4 * 8)
    sent = MixtureSet(torch.zeros(2, dtype=torch.int64), means, torch.ones(2, D), torch.tensor([0.5, 0.5]))
    found = {}
    for per_dimension in (True, False):
        for threshold in (0.39, 0.41, 2.39, 2.41):
            settings = {"gfpl.threshold": threshold, "gfpl.threshold-per-dimension": per_dimension}
            strategy = halves(GFPL | settings, K, D).server
            found[per_dimension, threshold] = strategy.aggregate({0: sent}, {}, 10).figures["components_after"]
    assert [found[True, t] for t in (0.39, 0.41, 2.39, 2.41)] == [2, 1, 1, 1]
    assert [found[False, t] for t in (0.39, 0.41, 2.39, 2.41)] == [2, 2, 2, 1]


def test_a_class_that_nobody_uploaded_keeps_its_mixture(halves):
    strategy = halves(GFPL | {"gfpl.threshold": 0.0}, K, D).server
    first = strategy.aggregate({0: mixtures([0, 0, 2], seed=1), 1: mixtures([2, 3], seed=2)}, {}, 10)
    second = strategy.aggregate({1: mixtures([1, 3, 3, 3], seed=3)}, first.state, 20)
    before, after = first.downloads[EVERYONE], second.downloads[EVERYONE]
    assert after.labels.tolist() == [0, 0, 1, 2, 2, 3, 3, 3]
    for label in (0, 2):
        for name in ("means", "variances", "weights"):
            kept = getattr(after, name)[after.labels == label]
            assert torch.equal(kept, getattr(before, name)[before.labels == label])
    fresh = mixtures([1, 3, 3, 3], seed=3)
    assert torch.equal(after.means[after.labels == 3].sort(dim=0).values, fresh.means[1:].sort(dim=0).values)
    # the figures are of what was fused now
    assert second.figures == {"components_before": 4, "components_after": 4}


def test_by_samples_a_component_weighs_as_many_samples_as_it_stands_for(halves):
    uploads = {0: mixtures([0, 0, 1], seed=1, counts={0: 30, 1: 2}), 1: mixtures([0], seed=2, counts={0: 10})}
    for settings, expected in ((SAMPLES, [0.375, 0.375, 0.25]), ({}, [0.25, 0.25, 0.5])):
        sets = uploads if settings else {p: each.without_counts() for p, each in uploads.items()}
        strategy = halves(GFPL | {"gfpl.threshold": 0.0} | settings, K, D).server
        sent = strategy.aggregate(sets, {}, 10).downloads[EVERYONE]
        found = {round(float(mean[0]), 4): float(w) for mean, w in zip(sent.means[:3], sent.weights[:3], strict=True)}
        rows = [*uploads[0].means[:2, 0].tolist(), float(uploads[1].means[0, 0])]
        assert [found[round(row, 4)] for row in rows] == pytest.approx(expected, rel=1e-6)
        assert float(sent.weights[3]) == 1


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("components", 0),
        ("dual-classifier", 1),
        ("dot-weight", -0.1),
        ("threshold", -0.1),
        ("threshold", math.nan),
        ("threshold-per-dimension", 0),
        ("weighting", "rows"),
        ("first-exchange", 0),
        ("exchange-every", 0),
        ("pseudo-features", -1),
        ("retrain-learning-rate", 0.0),
        ("retrain-momentum", 1.0),
    ],
)
def test_wrong_settings_are_named(name, value):
    with pytest.raises(SettingError, match=f"`gfpl.{name}` is "):
        read_settings(GFPL | {f"gfpl.{name}": value})


def test_by_samples_needs_leave_to_disclose_class_counts():
    with pytest.raises(SettingError, match="`disclose-class-counts` is false, but `gfpl` as set uploads class counts"):
        read_settings(GFPL | {"gfpl.weighting": "samples"})
    run = read_settings(GFPL | SAMPLES)
    assert run.exchange.counts
    without = read_settings(GFPL | {"disclose-class-counts": True})
    assert not without.exchange.counts
    # without pseudo-features nothing is uploaded, so there is nothing to allow
    nothing = read_settings(GFPL | {"gfpl.weighting": "samples", "gfpl.pseudo-features": 0})
    assert not nothing.exchange.counts


def test_what_mixtures_disclose_is_said_as_far_as_it_is_sent():
    def said(settings):
        run = read_settings(GFPL | settings)
        return list(run.exchange.discloses), bool(run.exchange.up)

    (rows, about), exchanges = said({"gfpl.components": 7})
    assert rows == "the features of single rows: of each in a class of 7 or fewer, of an outlier in a larger one"
    assert "about how many rows a class has" in about
    assert exchanges
    # where the exact numbers go up, there is no about
    assert said(SAMPLES | {"gfpl.components": 7}) == ([rows], True)
    assert said({"gfpl.pseudo-features": 0}) == ([], False)
    assert said(SAMPLES | {"gfpl.pseudo-features": 0}) == ([], False)


NEVER = "no mixture of this run is ever used"


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"rounds": 10}, 10),
        ({"rounds": 1}, 10),
        ({"rounds": 11}, None),
        ({"rounds": 20, "gfpl.first-exchange": 11}, 20),
        ({"rounds": 21, "gfpl.first-exchange": 11}, None),
        ({"rounds": 30, "gfpl.first-exchange": 40}, 40),
        ({"rounds": 30, "gfpl.exchange-every": 31}, 31),
        ({"rounds": 10, "gfpl.pseudo-features": 0}, None),
    ],
)
def test_a_run_that_never_uses_a_mixture_says_so_once_at_the_start(halves, settings, first):
    said = [line for line in halves(GFPL | settings, K, D).server.notices() if NEVER in line]
    if first is None:
        assert not said
        return
    assert len(said) == 1
    assert f"the first would go up in round {first} and" in said[0]
    assert f"`rounds` is {settings['rounds']}; lower `gfpl.first-exchange` or `gfpl.exchange-every`, or" in said[0]


@pytest.mark.parametrize(("rounds", "times"), [(2, 1), (3, 0)])
def test_a_run_shows_that_warning(run, rounds, times):
    run(OFTEN | {"rounds": rounds})
    assert sum(NEVER in line for line in run.said) == times


@pytest.mark.parametrize(("classes", "dim"), [(7, 6), (100, 99)])
def test_a_frame_that_does_not_fit_is_refused_in_one_sentence(halves, classes, dim):
    with pytest.raises(SettingError) as caught:
        halves(GFPL, classes, dim).server.check(classes, dim)
    sentence = str(caught.value)
    assert sentence.startswith(f"setting `feature-dim` is {dim}, but the fixed frame of `gfpl` needs as many")
    assert f"({classes})" in sentence
    assert sentence.count(". ") == 0
    halves(GFPL, 6, 6).server.check(6, 6)
    halves(GFPL | SINGLE, classes, dim).server.check(classes, dim)


def test_a_frame_of_one_class_is_refused_with_what_helps(halves):
    """More dimensions would not."""
    with pytest.raises(SettingError) as caught:
        halves(GFPL, 1, D).server.check(1, D)
    assert str(caught.value) == (
        "setting `gfpl.dual-classifier` is true, but its fixed frame needs 2 classes or more and the data have 1; set "
        "it to false."
    )
    halves(GFPL | SINGLE, 1, D).server.check(1, D)


@pytest.mark.parametrize("codec", [{"sparsity-dim": 3}, {"wire-dtype": "int8"}, {"wire-dtype": "float16"}])
def test_how_vectors_cross_says_nothing_about_mixtures_and_is_refused_before_round_1(run, home, codec):
    said = r"setting `(sparsity-dim|wire-dtype)` is .*, but `gfpl` sends mixtures; take it out"
    with pytest.raises(SettingError, match=said):
        read_settings(QUICK | codec)
    with pytest.raises(SettingError, match=said):
        run(QUICK | codec)
    assert not list((home / "results").rglob("metrics.jsonl"))


def test_too_few_dimensions_for_the_frame_are_refused_before_round_1(run, home):
    with pytest.raises(SettingError, match=r"`feature-dim` is 9, but the fixed frame of `gfpl` needs .* \(10\)"):
        preflight.check(read_settings(QUICK | {"feature-dim": 9}), clients=4)
    with pytest.raises(RosterError, match=r"client \d: setting `feature-dim` is 9, but the fixed frame .* \(10\)"):
        run(QUICK | {"feature-dim": 9})
    assert not list((home / "results").rglob("metrics.jsonl"))
    # without a frame there is nothing to fit
    assert run(QUICK | SINGLE | {"feature-dim": 9, "rounds": 1})


def test_without_a_frame_nobody_predicts_by_it(run):
    with pytest.raises(SettingError, match=r'setting `inference` is "etf", but without `gfpl.dual-classifier`'):
        run(QUICK | SINGLE | {"inference": "etf"})


# --- a client's rounds ----------------------------------------------------------------------------------------------


@pytest.fixture
def client():
    """client(partition, settings): made anew, as for every message."""
    client_module._states.clear()

    def make(partition=0, settings=None):
        node = {"partition-id": partition, "num-partitions": 4}
        return client_module.Client(Context(1, 2, node, RecordDict(), QUICK | (settings or {})))

    return make


def ask(number, payload=None):
    return Instruction("a-run", number, True, payload)


def digits(labels=range(CLASSES), seed=0):
    return mixtures([label for label in labels for _ in range(2)], DIM, seed, scale=3.0)


def tensors_of(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.fixture
def retraining_alone(monkeypatch):
    """Rounds without training on samples; gives the phases as they were."""
    whole, seen = GFPLObjective.phases, []

    def phases(self, state, round_number):
        found = whole(self, state, round_number)
        seen.append(found)
        return [phase for phase in found if phase.name == "retrain"]

    monkeypatch.setattr(GFPLObjective, "phases", phases)
    return seen


@pytest.mark.parametrize(("model", "normed_by_batch"), [("resnet8", True), ("tiny_cnn", False)])
def test_retraining_moves_both_classifiers_and_nothing_of_the_extractor(
    client, retraining_alone, model, normed_by_batch
):
    settings = {"models": model}
    client(settings=settings).train(ask(1))
    before = tensors_of(client(settings=settings).restore("a-run").module)
    came = digits()
    report = client(settings=settings).train(ask(2, came))
    after = tensors_of(client(settings=settings).restore("a-run").module)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {f"{part}.{kind}" for part in ("network.classifier", "projection") for kind in ("weight", "bias")}
    # there are statistics that could have moved
    for statistic in ("running_mean", "running_var", "num_batches_tracked"):
        assert any(statistic in name for name in before) == normed_by_batch
    assert [phase.name for phase in retraining_alone[0]] == ["train"]
    assert [phase.name for phase in retraining_alone[1]] == ["retrain", "train"]
    assert report.training.steps == math.ceil(16 * CLASSES / 32)


def test_training_after_it_moves_everything(client):
    settings = {"models": "tiny_cnn"}
    client(settings=settings).train(ask(1))
    before = tensors_of(client(settings=settings).restore("a-run").module)
    report = client(settings=settings).train(ask(2, digits()))
    after = tensors_of(client(settings=settings).restore("a-run").module)
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert not still
    rows = len(client(settings=settings).data.train)
    assert math.ceil(rows / 32) - 1 <= report.training.steps - 16 * CLASSES // 32 <= math.ceil(rows / 32)


def test_retraining_is_one_pass_of_plain_sgd_over_the_shuffled_pseudo_features(client, retraining_alone):
    """Written out with the paper's values: lr 0.01, momentum 0.5, batches of B."""
    settings = {"momentum": 0.9, "weight-decay": 0.1, "local-epochs": 3, "learning-rate": 0.5, "batch-size": 20}
    client(settings=settings).train(ask(1))
    module = client(settings=settings).restore("a-run").module
    report = client(settings=settings).train(ask(2, digits()))
    (features, labels) = retraining_alone[1][0].rows
    order = torch.randperm(len(labels), generator=generator(0, "client", 0, "round", 2, "retrain", 0))
    trained = [*module.classifier.parameters(), *module.projection.parameters()]
    velocity = [torch.zeros_like(p) for p in trained]
    losses = []
    for index in order.split(20):
        z, y = features[index], labels[index]
        h = module.projection(z)
        h = h / h.norm(dim=1, keepdim=True)
        dot = 0.5 * ((h * module.frame[y]).sum(dim=1) - 1).square().mean()
        loss = cross_entropy(module.classifier(z), y) + 2 * dot
        losses.append(loss.item())
        for p, v, g in zip(trained, velocity, torch.autograd.grad(loss, trained), strict=True):
            v.mul_(0.5).add_(g)
            p.data.sub_(0.01 * v)
    found = client(settings=settings).restore("a-run").module.state_dict()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
    assert report.training.parts["retrain-loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert report.training.steps == 8


def test_pseudo_features_are_the_mixtures_and_of_all_its_classes_equally_many(halves):
    objective, state = client_half(halves, {"gfpl.pseudo-features": 4000})
    came = mixtures([0, 1, 1, 1, 3], seed=5)
    came = replace(came, weights=torch.tensor([1.0, 0.1, 0.2, 0.7, 1.0]))
    objective.receive(state, came, 11)
    torch.manual_seed(2)
    retrain, train = objective.phases(state, 11)
    features, labels = retrain.rows
    assert labels.bincount(minlength=K).tolist() == [4000, 4000, 0, 4000]
    for label in (0, 1, 3):
        rows, own = features[labels == label], came.labels == label
        shares, means = came.weights[own, None], came.means[own]
        mean = (shares * means).sum(dim=0)
        variance = (shares * (came.variances[own] + (means - mean).square())).sum(dim=0)
        assert bool(((rows.mean(dim=0) - mean).abs() < 5 * (variance / 4000).sqrt()).all())
        torch.testing.assert_close(rows.var(dim=0), variance, rtol=0.2, atol=0)
    # they follow the process's generator, which is seeded anew for each client and round
    torch.manual_seed(2)
    assert torch.equal(objective.phases(state, 11)[0].rows[0], features)
    assert not torch.equal(objective.phases(state, 11)[0].rows[0], features)
    assert train.rows is None
    objective.receive(state, None, 12)
    assert [phase.name for phase in objective.phases(state, 12)] == ["train"]


def test_two_clients_and_two_rounds_draw_other_pseudo_features(client, retraining_alone):
    for partition, number in ((0, 3), (1, 3), (0, 5)):
        client(partition).train(ask(number, digits()))
    drawn = [phases[0].rows[0] for phases in retraining_alone]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_the_fit_of_each_client_and_round_has_a_start_of_its_own(client, monkeypatch):
    fit, seeds = gfpl.fit_class_mixtures, []

    def recorded(features, labels, components, seed):
        seeds.append(seed)
        return fit(features, labels, components, seed)

    monkeypatch.setattr(gfpl, "fit_class_mixtures", recorded)
    for partition, number in ((0, 2), (1, 2), (0, 4)):
        client(partition).train(ask(number))
    assert len(set(seeds)) == 3


def test_the_start_decides_what_a_fit_finds_where_clusters_overlap(halves):
    objective, state = client_half(halves)
    with_features(state, (40, 0, 0, 0))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(objective.upload(state, 10).means)
    assert not torch.allclose(*found, atol=1e-3)


def test_retraining_starts_anew_each_time_though_the_optimiser_state_is_to_persist(client, retraining_alone):
    """Its SGD is fresh: what was kept of it would move the classifiers on."""
    settings = {"optimizer-state": "persistent", "momentum": 0.9}
    kept, usual = client(settings=settings), client(settings={"momentum": 0.9})
    for number, came in ((1, None), (2, digits()), (3, digits(seed=1))):
        for made in (kept, usual):
            client_module._states.clear()
            made.train(replace(ask(number, came), run=f"a-run-{made is kept}"))
    (one, other) = (made.restore(f"a-run-{made is kept}") for made in (kept, usual))
    assert not one.optimiser
    assert all(map(torch.equal, one.module.state_dict().values(), other.module.state_dict().values()))


def test_beside_retraining_the_optimiser_state_persists(client):
    settings = {"optimizer-state": "persistent", "momentum": 0.9}
    client(settings=settings).train(ask(1))
    client(settings=settings).train(ask(2, digits()))
    kept = client(settings=settings).restore("a-run").optimiser
    assert {name.split("/")[0] for name in kept} == {"train"}


def test_a_client_fits_its_mixtures_to_the_features_after_training(client):
    made = client()
    assert made.train(ask(1)).payload is None
    sent = made.train(ask(2)).payload
    state = client().restore("a-run")
    state.module.eval()
    with torch.no_grad():
        features = state.module.features(made.data.transform(made.data.train.inputs))
    labels = made.data.train.labels
    assert sent.classes().tolist() == labels.unique().tolist()
    for label in labels.unique().tolist():
        own, rows = sent.labels == label, features[labels == label]
        assert int(own.sum()) == min(4, len(rows))
        # the weights are rounded to shares of 1/(16 n), one at least, which moves the mean of the mixture that much
        apart = (sent.means[own] - rows.mean(dim=0)).abs().max()
        pooled = (sent.weights[own, None] * sent.means[own]).sum(dim=0)
        torch.testing.assert_close(pooled, rows.mean(dim=0), rtol=0, atol=float(apart) / 16)
    assert sent.counts is None
    # the same again, from memory or from the store
    client_module._states.clear()
    assert same(client().train(ask(2)).payload, sent)


@pytest.mark.parametrize("most", [2, 4, 6])
def test_weights_are_shares_too_coarse_to_tell_how_many_rows_there_are(client, most):
    """To the last digit they would be whole shares of n_ij, which is not to leave."""
    made = client(settings={"gfpl.components": most})
    made.train(ask(1))
    sent = as_sent(made.train(ask(2)).payload, made.run.exchange.up)
    for label in sent.classes().tolist():
        weights = sent.weights[sent.labels == label].double()
        shares = weights / weights.min()
        steps = 16 * most * weights
        # in whole steps before they were made to sum to 1, which moves each by the same factor
        assert any(torch.allclose(shares * k, (shares * k).round(), atol=1e-3) for k in range(1, 16 * most + 1)), steps
    assert any("how many rows a class has" in item for item in made.identity().discloses)
    counted = client(settings={"gfpl.weighting": "samples", "disclose-class-counts": True})
    assert any("class counts" in item for item in counted.identity().discloses)


@pytest.mark.parametrize("most", [1, 4, 40])
def test_the_steps_of_weights_grow_with_the_components(halves, most):
    """With counts the weights go up as they are."""
    sent = []
    for settings in (SAMPLES, {}):
        objective, state = client_half(halves, {"gfpl.components": most} | settings)
        with_features(state, (200, 0, 0, 0))
        torch.manual_seed(1)
        sent.append(as_sent(objective.upload(state, 10), gfpl.METHOD.exchange(objective.options).up))
    exact, rounded = sent
    shares = (16 * most * exact.weights.double()).round().clamp(min=1)
    torch.testing.assert_close(rounded.weights, (shares / shares.sum()).float())
    assert torch.equal(rounded.means, exact.means)
    assert most == 1 or not torch.equal(rounded.weights, exact.weights)


def test_neither_frame_nor_mixtures_nor_features_are_kept_in_the_store_of_a_round(client, home):
    client().train(ask(1))
    client().train(ask(2, digits()))
    ((_, state),) = client_module._states.values()
    assert state.features is None
    assert state.received is None
    frame = state.module.frame
    paths = list((home / "clients").rglob("*.safetensors"))
    assert {path.name for path in paths} >= {"round-000001.safetensors", "received.safetensors"}
    for path in paths:
        for name, tensor in load_file(path).items():
            assert "frame" not in name
            assert tensor.shape != frame.shape or not torch.allclose(tensor.float(), frame, atol=1e-3)
            assert path.name == "received.safetensors" or name.split("/")[0] in ("module", "prototypes", "covariance")


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (1e30, "phase `train`; lower `gfpl.retrain-learning-rate` or `learning-rate`"),  # weights are huge, and finite
        (1e38, "phase `retrain`; lower `gfpl.retrain-learning-rate`"),
    ],
)
def test_retraining_that_diverges_is_told_and_leaves_the_store_as_it_was(client, rate, said):
    wild = {"gfpl.retrain-learning-rate": rate}
    client(settings=wild).train(ask(1))
    before = tensors_of(client(settings=wild).restore("a-run").module)
    report = client(settings=wild).train(ask(2, digits()))
    assert "diverged in round 2" in report.problem
    assert report.problem.endswith(said)
    assert report.payload is None
    after = tensors_of(client(settings=wild).restore("a-run").module)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_rules_of_a_client(client):
    rules = set(client().train(ask(1)).evaluation.correct)
    assert rules == {"local-prototypes", "classifier", "discriminant", "etf", "majority-class"}
    client().train(ask(2, digits()))
    assert set(client().evaluate(ask(3)).evaluation.correct) == rules
    client_module._states.clear()
    assert set(client(1, SINGLE).train(ask(1)).evaluation.correct) == rules - {"etf"}


# --- the schedule, by scripted clients ------------------------------------------------------------------------------

HELD = {0: (0, 1), 1: (1, 2), 2: (2, 3), 3: (3,)}
ROWS = 20  # training rows of a scripted client


def upload(partition, number, counts=False):
    labels = sorted(HELD[partition] * 2)
    counted = {label: ROWS // len(HELD[partition]) for label in labels} if counts else None
    return mixtures(labels, 3, 10 * number + partition, counted)


def scripted(federation, settings=None, change=None, rounds=7):
    """A run of four scripted clients with exchanges in rounds 2, 4 and 6; change(partition, round, records or report)
    -> what is answered in an exchange in its place."""
    settings = settings or {}

    def tamper(partition, number, kind, report):
        if kind != "train":
            return report
        due = number % 2 == 0
        payload = upload(partition, number, "gfpl.weighting" in settings) if due else None
        honest = replace(report, payload=payload)
        return change(partition, number, honest) if change else honest

    group = federation(4, tamper=tamper, held=HELD, kind="mixtures")
    group.start(OFTEN | SINGLE | {"rounds": rounds} | settings)
    return group


def test_mixtures_go_up_when_due_and_down_to_those_who_train_in_the_round_after(federation):
    group = scripted(federation, {"fraction-train": 0.5})
    strategy, lines = group.strategy, group.strategy.folder.lines()
    carried = {(p, number, kind) for p, number, kind, sent in group.asked if sent.payload is not None}
    expected = {(p, number, "train") for number in (3, 5, 7) for p in strategy.sample(number)}
    assert carried == expected
    assert len(carried) == 6
    # those who only evaluate were asked, and got nothing
    assert {(kind, number) for _, number, kind, _ in group.asked} >= {("evaluate", number) for number in range(1, 9)}
    for line in lines:
        number, sizes = line["round"], line["bytes"]
        sampled = strategy.sample(number) if number < 8 else []
        up = sum(2 * len(HELD[p]) * 7 * 4 for p in sampled) if number in (2, 4, 6) else 0
        assert sizes["payload_up"] == up
        assert bool(sizes["payload_down"]) == (number in (3, 5, 7))
        assert sizes["evaluate_only_payload_down"] == sizes["evaluate_only_payload_up"] == 0
        assert ("components_before" in line.get("server", {})) == (number in (2, 4, 6))
    assert all(line["training"]["dropped"] == 0 for line in lines[:-1])


def test_what_comes_down_is_the_fusion_of_what_went_up_and_older_mixtures_of_other_classes(federation):
    group = scripted(federation, {"fraction-train": 0.5, "gfpl.threshold": 0.0})
    strategy, known = group.strategy, {}
    for number in (2, 4, 6):
        fresh = {}
        for partition in strategy.sample(number):
            sent = upload(partition, number)
            for label in HELD[partition]:
                fresh.setdefault(label, []).extend(sent.means[sent.labels == label].tolist())
        known |= fresh
        (came, *others) = [sent.payload for _, r, kind, sent in group.asked if (r, kind) == (number + 1, "train")]
        assert all(same(other, came) for other in others)
        assert came.classes().tolist() == sorted(known)
        for label, means in known.items():
            assert sorted(came.means[came.labels == label].tolist()) == sorted(means)
        line = strategy.folder.lines()[number - 1]
        count = sum(map(len, fresh.values()))
        assert line["server"]["components_before"] == line["server"]["components_after"] == count
    # of some exchange not all classes were uploaded
    assert any(len({label for p in strategy.sample(number) for label in HELD[p]}) < 4 for number in (4, 6))


def test_the_norm_that_is_watched_is_of_the_class_means_of_the_mixtures(federation, say):
    """From the first exchange on, and GFPL's collapse is told by it."""

    def change(partition, number, report):
        if report.payload is None:
            return report
        factor = 0.2 if number == 4 else 1.0
        return replace(report, payload=replace(report.payload, means=factor * report.payload.means))

    group = scripted(federation, change=change, rounds=5)
    found = {line["round"]: line["server"].get("prototype_norm") for line in group.strategy.folder.lines()[:-1]}
    assert [number for number, norm in found.items() if norm is not None] == [2, 4]
    for number, factor in ((2, 1.0), (4, 0.2)):
        means = {}
        for partition, held in HELD.items():
            sent = upload(partition, number)
            for label in held:
                pair = sent.means[sent.labels == label].double()  # both weigh a half
                means.setdefault(label, []).append(factor * (pair[0] + pair[1]) / 2)
        norms = [float((sum(each) / len(each)).norm()) for each in means.values()]
        assert found[number] == pytest.approx(sum(norms) / len(norms), rel=1e-5)
    (said,) = [line for line in say() if "collapse" in line]
    assert f"round 4: the mean norm of the prototypes has fallen from {found[2]:.3g} in the first round with" in said
    assert "round 1" not in said


@pytest.mark.parametrize("settings", [{}, {"fraction-train": 0.5}], ids=["all", "half"])
@pytest.mark.parametrize("rounds", [4, 5])
def test_in_the_last_round_nothing_goes_up(federation, settings, rounds):
    def change(partition, number, report):
        return replace(report, payload=None) if number == 4 == rounds else report

    group = scripted(federation, settings, change, rounds)
    lines = group.strategy.folder.lines()
    assert [line["round"] for line in lines if line["bytes"]["payload_up"]] == ([2] if rounds == 4 else [2, 4])
    assert not any(line.get("problems") for line in lines)
    assert {number for _, number, _, sent in group.asked if sent.payload} == ({3} if rounds == 4 else {3, 5})


def tampered(report, changed, codec):
    """The report's message with an upload whose arrays are others, by name."""
    shares = "" if report.payload.counts is not None else "up.mixtures=shares/64"
    records = encode_report(report, replace(codec, added=shares))
    arrays = {name: records["payload"][name].numpy().copy() for name in records["payload"]}
    arrays |= changed(arrays)
    records["payload"] = ArrayRecord({name: Array(np.array(values, order="C")) for name, values in arrays.items()})
    return records


def entry(name, value):
    """A lie of one number."""

    def changed(arrays):
        arrays[name].flat[1] = value
        return arrays

    return changed


LIES = {
    "weights that do not sum to one": (entry("weights", 0.6), "weights of class 0 in a mixture set sum to 1.1"),
    "a variance of 0": (entry("variances", 0), "a variance that is not above 0"),
    "a negative variance": (entry("variances", -1), "a variance that is not above 0"),
    "a NaN variance": (entry("variances", math.nan), "the variances hold a number that is not finite"),
    "an infinite variance": (entry("variances", math.inf), "the variances hold a number that is not finite"),
    "a mean beyond the bound": (entry("means", 2e6), "above `max-prototype-norm` 1e+04"),
    "another dtype": (lambda arrays: {"means": arrays["means"].astype(np.float64)}, "the means are float64"),
    "another shape": (lambda arrays: {"means": arrays["means"][:, :2]}, "the means are float32 of shape (4, 2)"),
    "another rank": (lambda arrays: {"weights": arrays["weights"][:, None]}, "the weights are float32 of shape (4, 1)"),
    "labels of no rank": (lambda arrays: {"labels": arrays["labels"][0]}, "the labels are int16 of shape ()"),
    "a label beyond K": (lambda arrays: {"labels": arrays["labels"] + 3}, "a label lies outside 0 to 3"),
    "descending labels": (lambda arrays: {"labels": arrays["labels"][::-1]}, "the labels do not ascend"),
    "an array too many": (lambda arrays: {"vectors": arrays["means"]}, "'vectors', 'weights'] where"),
    "counts unasked": (lambda arrays: {"counts": np.full(4, 10)}, "['counts', 'labels'"),
    "a component more than agreed": (
        lambda arrays: {
            "labels": np.zeros(5, np.int16),
            "means": np.zeros((5, 3), np.float32),
            "variances": np.ones((5, 3), np.float32),
            "weights": np.full(5, 0.2, np.float32),
        },
        "class 0 has 5 components, at most 4 were agreed",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_bad_upload_is_refused_and_counted_and_the_round_goes_on(federation, script, name):
    changed, said = LIES[name]

    def lie(partition, number, report):
        return tampered(report, changed, script.CODEC) if (partition, number) == (0, 2) else report

    group = scripted(federation, change=lie, rounds=3)
    line = group.strategy.folder.lines()[1]
    assert line["problems"].keys() == {"0"}
    assert line["problems"]["0"].startswith("upload dropped: ")
    assert said in line["problems"]["0"]
    assert (line["training"]["valid"], line["training"]["dropped"]) == (3, 1)
    honest = fuse({partition: upload(partition, 2) for partition in (1, 2, 3)}, 0.7)
    came = [sent.payload for _, number, kind, sent in group.asked if (number, kind) == (3, "train")]
    assert len(came) == 4
    assert all(same(each, honest) for each in came)


COUNTS = {
    "another total": (lambda arrays: {"counts": arrays["counts"] + 1}, "counts that do not add up to its 20 training"),
    "a total for the components": (lambda arrays: {"counts": np.full(4, 5)}, "do not add up to its 20 training rows"),
    "two counts for a class": (
        lambda arrays: {"counts": np.array([9, 11, 10, 10])},
        "upload dropped: a mixture set has different counts within class 0",
    ),
    "none": (None, "upload dropped: the payload holds the arrays ['labels', 'means', 'variances', 'weights'] where"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_held_against_the_rows_of_the_roster(federation, script, name):
    changed, said = COUNTS[name]

    def lie(partition, number, report):
        if (partition, number) != (0, 2):
            return report
        if changed is None:
            return replace(report, payload=report.payload.without_counts())
        return tampered(report, changed, script.CODEC)

    group = scripted(federation, SAMPLES, lie, rounds=3)
    line = group.strategy.folder.lines()[1]
    assert said in line["problems"]["0"]
    assert line["training"]["dropped"] == 1
    honest = fuse({partition: upload(partition, 2, True) for partition in (1, 2, 3)}, 0.7, weighting="samples")
    (came, *_) = [sent.payload for _, number, kind, sent in group.asked if (number, kind) == (3, "train")]
    assert same(came, honest)
    assert came.counts is None


def test_an_exchange_of_lies_alone_leaves_what_was_there(federation, script):
    """Before there was anything, nothing comes down; later the mixtures of the exchange before."""

    def lie(partition, number, report):
        return tampered(report, entry("variances", -1), script.CODEC) if number in (2, 6) else report

    group = scripted(federation, change=lie)
    came = {number: sent.payload for _, number, kind, sent in group.asked if kind == "train"}
    assert came[3] is None
    expected = fuse({partition: upload(partition, 4) for partition in range(4)}, 0.7)
    assert same(came[5], expected)
    assert same(came[7], expected)
    assert [line["training"]["dropped"] for line in group.strategy.folder.lines()[:-1]] == [0, 4, 0, 0, 0, 4, 0]


def test_an_upload_that_is_missing_when_due_or_comes_when_it_is_not_is_dropped(federation):
    def change(partition, number, report):
        if (partition, number) == (0, 2):
            return replace(report, payload=None)
        return replace(report, payload=upload(1, number)) if (partition, number) == (1, 3) else report

    group = scripted(federation, change=change, rounds=5)
    lines = group.strategy.folder.lines()
    assert lines[1]["problems"].keys() == {"0"}
    assert lines[2]["problems"].keys() == {"1"}
    assert lines[2]["problems"]["1"].startswith("upload dropped: ")
    assert [line["training"]["dropped"] for line in lines[:-1]] == [1 if n in (1, 2) else 0 for n in range(5)]
    (came, *_) = [sent.payload for _, number, kind, sent in group.asked if (number, kind) == (3, "train")]
    assert same(came, fuse({partition: upload(partition, 2) for partition in (1, 2, 3)}, 0.7))


def test_another_number_of_rounds_on_resume_is_refused(federation):
    """The last round exchanges nothing: with another one earlier rounds would have been others."""
    folder = scripted(federation).strategy.folder
    with pytest.raises(SettingError, match=r"`rounds` is 9, but the run was started for 7"):
        scripted(federation, {"resume": str(folder.path)}, rounds=9)


# --- whole runs -----------------------------------------------------------------------------------------------------

WHOLE = OFTEN | {"rounds": 5, "fraction-train": 0.5, "momentum": 0.9, "models": "tiny_cnn,tiny_perceptron"}


def left_by(folder):
    """Every tensor that the server and the clients of a run end with, to the bit."""
    found = RunFolder(folder).load_checkpoint()[0]
    for path in sorted((folder.parents[1] / "clients" / folder.name).rglob("*.safetensors")):
        found |= {f"{path.parent.name}/{path.name}/{name}": tensor for name, tensor in load_file(path).items()}
    return {name: (tensor.dtype, tensor.numpy().tobytes()) for name, tensor in found.items()}


@pytest.fixture(scope="module")
def whole():
    """What the run WHOLE makes; worked out once."""
    return {}


@pytest.mark.parametrize("number", [2, 3, 4])
def test_cut_in_or_right_after_an_exchange_and_resumed_is_as_never_cut_to_the_bit(run, metrics, cut, whole, number):
    if not whole:
        folder = run(WHOLE)
        whole.update(metrics=metrics(folder), left=left_by(folder))
    client_module._states.clear()
    cut(WHOLE, "_aggregate", lambda strategy, server_round, replies: server_round == number)
    client_module._states.clear()
    folder = run(WHOLE | {"resume": "latest"})
    assert metrics(folder) == whole["metrics"]
    assert left_by(folder) == whole["left"]


def test_two_workers_change_nothing(run, metrics, whole):
    """Processes share no memory: what was received for the retraining comes with the message alone."""
    if not whole:
        folder = run(WHOLE)
        whole.update(metrics=metrics(folder), left=left_by(folder))
    apart = run(WHOLE, workers=2)
    assert metrics(apart) == whole["metrics"]
    assert left_by(apart) == whole["left"]


def test_a_run_reports_both_classifiers_components_and_no_global_prototypes(run, metrics):
    folder = run(WHOLE | {"fraction-train": 1.0})
    lines = metrics(folder)
    rules = {"local-prototypes", "classifier", "discriminant", "etf", "majority-class"}
    assert all(set(line["evaluation"]["rules"]) == rules for line in lines)
    assert json.loads((folder / "summary.json").read_text())["headline"]["rule"] == "classifier"
    parts = {"cross-entropy", "dot-regression", "loss"}
    # retraining has figures of its own
    retrained = parts | {f"retrain-{name}" for name in parts}
    for line in lines[:-1]:
        assert set(line["training"]["loss"]) == (retrained if line["round"] in (3, 5) else parts)
    for line in lines:
        server = line.get("server", {})
        assert ("components_before" in server) == (line["round"] in (2, 4))
        if "components_before" in server:
            assert 0 < server["components_after"] <= server["components_before"] <= 4 * 4 * CLASSES
            # what the server counts is what the bytes say
            assert line["bytes"]["payload_up"] == server["components_before"] * (2 * DIM + 1) * 4
    etf = run(WHOLE | {"rounds": 1, "inference": "etf"})
    assert json.loads((etf / "summary.json").read_text())["headline"]["rule"] == "etf"


@pytest.mark.parametrize(
    "ablation", [SINGLE, {"gfpl.pseudo-features": 0}, SINGLE | {"gfpl.pseudo-features": 0}], ids=["dcs", "pfg", "both"]
)
def test_the_papers_ablations_are_settings(run, metrics, ablation):
    lines = metrics(run(WHOLE | ablation | {"rounds": 4, "models": "tiny_perceptron"}))
    dual, exchanged = "gfpl.dual-classifier" not in ablation, "gfpl.pseudo-features" not in ablation
    assert all(("etf" in line["evaluation"]["rules"]) == dual for line in lines)
    assert all(("dot-regression" in line["training"]["loss"]) == dual for line in lines[:-1])
    crossed = [line["bytes"]["payload_up"] + line["bytes"]["payload_down"] for line in lines]
    assert [bool(sizes) for sizes in crossed] == [False, exchanged, exchanged, False, False]


def test_without_both_halves_it_is_local_training(run, metrics):
    """The paper's `w/o DCS and PFG`, to the bit."""
    neither = WHOLE | SINGLE | {"gfpl.pseudo-features": 0, "rounds": 3}
    local = {name: value for name, value in WHOLE.items() if "." not in name} | {"strategy": "local", "rounds": 3}
    for one, other in zip(metrics(run(neither)), metrics(run(local)), strict=True):
        assert one["evaluation"]["rules"] == other["evaluation"]["rules"]
        assert one.get("training") == other.get("training")


def test_by_samples_a_run_goes_through_and_weighs_otherwise(run):
    """Counts and rows of the same data agree, so nothing is dropped."""
    sent = {}
    for name, settings in (("uniform", {}), ("samples", SAMPLES)):
        folder = run(OFTEN | {"rounds": 3, "gfpl.threshold": 0.0} | settings)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert not any(line.get("problems") for line in lines)
        tensors, _ = RunFolder(folder).load_checkpoint()
        assert not any("counts" in key for key in tensors)
        sent[name] = tensors
    weights = {name: tensors["download/-1/weights"].sort().values for name, tensors in sent.items()}
    means = {name: tensors["download/-1/means"].sort(dim=0).values for name, tensors in sent.items()}
    assert torch.equal(means["uniform"], means["samples"])
    assert not torch.allclose(weights["uniform"], weights["samples"], rtol=1e-2)


BAD_DOWNLOADS = {
    "a NaN mean": entry("means", math.nan),
    "a variance of 0": entry("variances", 0),
    "a huge mean": entry("means", 1e9),
    "weights beyond one": entry("weights", 5.0),
    "a label beyond K": lambda arrays: {"labels": arrays["labels"] + 5},
    "labels of no rank": lambda arrays: {"labels": arrays["labels"][0]},
    "counts": lambda arrays: {"counts": np.ones(len(arrays["labels"]), np.int64)},
}


@pytest.mark.parametrize("name", BAD_DOWNLOADS)
def test_a_client_takes_no_bad_download(run, home, name):
    """It answers with the reason, trains nothing and keeps its model; the others' round goes on."""

    class Tampering(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            victim = next((message for message in messages if "payload" in message.content), None)
            if victim is not None:
                payload = victim.content["payload"]
                arrays = {key: payload[key].numpy().copy() for key in payload}
                arrays |= BAD_DOWNLOADS[name](arrays)
                bad = {key: Array(np.array(values, order="C")) for key, values in arrays.items()}
                # one message may be shared by all
                victim.content = RecordDict({**victim.content, "payload": ArrayRecord(bad)})
            return super().push_messages(messages)

    folder = run(OFTEN | {"rounds": 3}, grid=Tampering)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert list(lines[2]["problems"]) == ["0"]
    assert lines[2]["training"]["valid"] == 3
    store = home / "clients" / folder.name
    newest = {path.name: max(path.glob("round-*")).stem for path in store.iterdir()}
    assert newest == {"0": "round-000002"} | dict.fromkeys("123", "round-000003")


def test_the_frame_crosses_in_no_message(run, client):
    """No array and no list of numbers of a run holds a row of it."""
    found = []

    class Recording(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            found.extend(message.content for message in messages)
            return super().push_messages(messages)

        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            found.extend(reply.content for reply in replies)
            return replies

    run(OFTEN | {"rounds": 3}, grid=Recording)
    frame = client()._new_state().module.frame.numpy()
    numbers = set()
    for records in found:
        for record in records.values():
            for value in record.values():
                values = value.numpy() if isinstance(value, Array) else value
                if not isinstance(values, (str, bytes)):
                    flat = [v for v in np.ravel(values).tolist() if isinstance(v, float)]
                    numbers.update(np.float32(v).tobytes() for v in flat)
    assert len(numbers) > 1000
    assert not numbers & {value.tobytes() for value in frame.ravel()}
