"""GFPL against the paper written out: the loss, what goes up and when, what retraining moves, what the server fuses and
keeps, what is told before round 1."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from protosphere.core.seeds import derive
from protosphere.models import build
from protosphere.prototypes.fusion import fuse
from protosphere.prototypes.losses import dot_regression
from protosphere.prototypes.mixture import fit_class_mixtures, sample
from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.strategies import read_settings
from protosphere.strategies.contract import EVERYONE, Batch, ClientState, Phase
from protosphere.strategies.gfpl import GFPLSettings
from tests.payloads import lone, payload, payloads
from tests.strategies.sets import same, same_state

K, D = 4, 6
GFPL = {"strategy": "gfpl"}
OFTEN = GFPL | {"gfpl.first-exchange": 2, "gfpl.exchange-every": 2}
SINGLE = {"gfpl.dual-classifier": False}


def client_half(halves, settings=None, model="tiny_perceptron"):
    """An objective and its state, as a client begins."""
    objective = halves(GFPL | {"rounds": 40} | (settings or {}), K, D).objective
    state = ClientState(objective.build(build(model, (1, 8, 8), D, K, 0), 3))
    return objective, state


def mixtures(labels, seed=0):
    """Any mixtures with components of equal weight."""
    random = torch.Generator().manual_seed(seed)
    weights = 1 / torch.tensor([labels.count(label) for label in labels], dtype=torch.float32)
    means = torch.randn(len(labels), D, generator=random)
    variances = torch.rand(len(labels), D, generator=random) + 0.1
    return MixtureSet(torch.tensor(labels), means, variances, weights)


def batch_of(seed=0, rows=11):
    random = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(rows, 1, 8, 8, generator=random), torch.randint(0, K, (rows,), generator=random))


# --- the loss -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["train", "retrain"])
@pytest.mark.parametrize(("weight", "plain_weight"), [(0.3, 1.0), (2.0, 0.0)])
def test_the_loss_is_the_papers(halves, weight, plain_weight, phase):
    """Eq. 13, and on pseudo-features the same without the extractor. The dot regression is held against loops in
    tests/prototypes/test_losses.py."""
    settings = {"gfpl.dot-weight": weight, "gfpl.cross-entropy-weight": plain_weight}
    objective, state = client_half(halves, settings)
    batch, module = batch_of(), state.module
    z = module.model.extractor(batch.inputs)
    given = batch if phase == "train" else Batch(z.detach(), batch.labels)
    loss = objective.loss(state, given, Phase(phase, []), 2)

    h = torch.nn.functional.normalize(module.projection(z), dim=1)
    plain = cross_entropy(module.classifier(z), batch.labels)
    dot = dot_regression(h, batch.labels, module.frame)
    prefix = "retrain-" if phase == "retrain" else ""
    assert loss.parts.keys() == {f"{prefix}cross-entropy", f"{prefix}dot-regression"}
    torch.testing.assert_close(loss.parts[f"{prefix}cross-entropy"], plain)
    torch.testing.assert_close(loss.parts[f"{prefix}dot-regression"], dot)
    torch.testing.assert_close(loss.total, plain_weight * plain + weight * dot)
    torch.testing.assert_close(loss.features, z)
    torch.testing.assert_close(objective.scores(state, z)["etf"], h @ module.frame.T)


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
    sent = lone(objective.upload(state, 10))
    assert sent.counts is None
    assert sent.labels.tolist() == [0] * 4 + [1] + [3] * 2
    torch.testing.assert_close(sent.means[4], features[labels == 1][0])
    assert float(sent.weights[4]) == 1
    # its variance is the floor
    assert 0 < float(sent.variances[4].max()) <= 1e-11
    pooled = (sent.weights[:4, None] * sent.means[:4]).sum(dim=0)
    torch.testing.assert_close(pooled, features[labels == 0].mean(dim=0), rtol=1e-4, atol=1e-5)
    torch.manual_seed(9)
    assert same(lone(objective.upload(state, 10)), sent)
    fewer, state = client_half(halves, {"gfpl.components": 2})
    with_features(state)
    sent = lone(fewer.upload(state, 20))
    assert sent.labels.tolist() == [0, 0, 1, 3, 3]


@pytest.mark.parametrize(
    ("first", "every", "rounds", "expected"),
    [(10, 10, 10, []), (3, 2, 9, [4, 6, 8]), (4, 2, 8, [4, 6]), (1, 1, 3, [1, 2]), (5, 7, 21, [7, 14])],
)
def test_exchange_rounds_are_those_from_t1_on_that_s_divides_but_not_the_last(first, every, rounds, expected):
    settings = GFPL | {"gfpl.first-exchange": first, "gfpl.exchange-every": every}
    options = read_settings(settings).options[GFPLSettings]
    assert [t for t in range(1, rounds + 1) if options.exchanges(t, rounds)] == expected
    # before round 1 there was none: the message of round 1 asks for it
    assert not options.exchanges(0, rounds)
    ablation = read_settings(settings | {"gfpl.pseudo-features": 0}).options[GFPLSettings]
    assert not any(ablation.exchanges(t, rounds) for t in range(rounds + 1))


# --- a client's rounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, SINGLE], ids=["dual", "single"])
def test_retraining_moves_the_classifiers_and_nothing_of_the_extractor(halves, settings):
    """Nor the running statistics of its batch norms, since pseudo-features do not pass through it."""
    objective, state = client_half(halves, settings, "resnet8")
    heads = [state.module.classifier] if settings else [state.module.classifier, state.module.projection]
    expected = [parameter for head in heads for parameter in head.parameters()]
    objective.receive(state, payload(mixtures([0, 1])), 2)
    before = {name: buffer.clone() for name, buffer in state.module.named_buffers()}

    retrain, _ = objective.phases(state, 2)
    loss = objective.loss(state, Batch(*retrain.rows), retrain, 2)
    loss.total.backward()

    assert {id(parameter) for parameter in retrain.parameters} == {id(parameter) for parameter in expected}
    moved = [parameter for parameter in state.module.parameters() if parameter.grad is not None]
    assert {id(parameter) for parameter in moved} == {id(parameter) for parameter in expected}
    assert same_state(before, dict(state.module.named_buffers()))
    if settings:
        z, labels = retrain.rows
        assert torch.equal(loss.total, cross_entropy(state.module.classifier(z), labels))
        assert objective.scores(state, z) == {}


def test_pseudo_features_are_of_the_mixtures_and_of_all_its_classes_equally_many(halves):
    """What is drawn of a mixture: tests/prototypes/test_mixture.py."""
    objective, state = client_half(halves, {"gfpl.pseudo-features": 40})
    came = mixtures([0, 1, 1, 1, 3], seed=5)
    objective.receive(state, payload(came), 11)
    torch.manual_seed(2)
    retrain, train = objective.phases(state, 11)
    torch.manual_seed(2)
    expected = sample(came, 40, torch.default_generator)
    assert all(map(torch.equal, retrain.rows, expected))
    assert retrain.rows[1].bincount(minlength=K).tolist() == [40, 40, 0, 40]
    assert not torch.equal(objective.phases(state, 11)[0].rows[0], expected[0])
    assert train.rows is None
    own = retrain.optimiser(retrain.parameters).param_groups[0]
    assert (own["lr"], own["momentum"], own["weight_decay"], retrain.epochs) == (0.01, 0.5, 0, 1)
    assert (retrain.fresh, retrain.rate) == (True, "gfpl.retrain-learning-rate")
    objective.receive(state, None, 12)
    assert [phase.name for phase in objective.phases(state, 12)] == ["train"]


@pytest.mark.parametrize("most", [1, 4, 40])
def test_the_steps_of_weights_grow_with_the_components(halves, most):
    objective, state = client_half(halves, {"gfpl.components": most})
    features, labels = with_features(state, (200, 0, 0, 0))
    torch.manual_seed(1)
    rounded = lone(objective.upload(state, 10))
    torch.manual_seed(1)
    seed = derive(torch.initial_seed(), "gfpl", "mixtures")
    exact = fit_class_mixtures(features, labels, most, seed).mixtures
    shares = (16 * most * exact.weights.double()).round().clamp(min=1)
    torch.testing.assert_close(rounded.weights, (shares / shares.sum()).float())
    assert torch.equal(rounded.means, exact.means)
    assert most == 1 or not torch.equal(rounded.weights, exact.weights)


# --- the server ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"gfpl.threshold": 1.3}, (1.3, True)),
        ({"gfpl.threshold": 5.0, "gfpl.threshold-per-dimension": False}, (5.0, False)),
    ],
)
def test_the_server_sends_what_fusion_makes_and_tells_the_components(halves, settings, how):
    uploads = {p: mixtures([0, 0, p], seed=p) for p in (1, 2, 3)}
    outcome = halves(GFPL | settings, K, D).server.aggregate(payloads(uploads), {}, 10)
    expected = fuse(uploads, *how)
    assert set(outcome.downloads) == {EVERYONE}
    assert same(lone(outcome.downloads[EVERYONE]), expected)
    assert expected.counts is None
    assert outcome.figures == {"components_before": 9, "components_after": len(expected)}
    # something fused, and something did not; and both settings matter
    assert 4 < len(expected) < 9
    others = [(how[0], not how[1]), (0.0, how[1])]
    assert not any(same(fuse(uploads, *other), expected) for other in others)


def test_a_class_that_nobody_uploaded_keeps_its_mixture(halves):
    strategy = halves(GFPL | {"gfpl.threshold": 0.0}, K, D).server
    first = strategy.aggregate(payloads({0: mixtures([0, 0, 2], seed=1), 1: mixtures([2, 3], seed=2)}), {}, 10)
    second = strategy.aggregate(payloads({1: mixtures([1, 3, 3, 3], seed=3)}), first.state, 20)
    before, after = lone(first.downloads[EVERYONE]), lone(second.downloads[EVERYONE])
    assert after.labels.tolist() == [0, 0, 1, 2, 2, 3, 3, 3]
    for label in (0, 2):
        for name in ("means", "variances", "weights"):
            kept = getattr(after, name)[after.labels == label]
            assert torch.equal(kept, getattr(before, name)[before.labels == label])
    # the figures are of what was fused now
    assert second.figures == {"components_before": 4, "components_after": 4}
