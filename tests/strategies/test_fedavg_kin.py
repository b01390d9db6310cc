"""FedAvg's kin, each at the limit where it is FedAvg or nothing, and what is its own against naive computations."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from client_app.client import Client
from federation.wire.codec import Codec
from federation.wire.payloads import Identity, Parts
from federation.wire.weights import layout_lines
from models.split import SplitModel, split
from prototypes.losses import missing_variance, uniformity
from prototypes.prototype_set import PrototypeSet
from prototypes.weights import Weights
from strategies import read_settings
from strategies.contract import Batch, ClientState
from strategies.fedrod import _log_counts

K, D = 3, 4
SMALL = {"rounds": 2, "max-samples": 240, "feature-dim": 8, "models": "tiny_perceptron", "partition": "iid"}


def network(norm=True):
    torch.manual_seed(3)
    layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)] if norm else [nn.Conv2d(1, 2, 3)]
    return split(nn.Sequential(*layers, nn.ReLU()), (1, 5, 5), D, K)


def objective_of(name, **settings):
    run = read_settings({"strategy": name, "feature-dim": D, "learning-rate": 0.1} | settings)
    return run.method.objective(run.settings, run.options, K)


def batch(rows=7):
    random = torch.Generator().manual_seed(5)
    return Batch(torch.randn(rows, 1, 5, 5, generator=random), torch.arange(rows) % K)


def received_of(objective, module, shift):
    """A payload of the module's shared tensors, each moved by `shift`."""
    shared = objective.shared(module)
    return Parts({p: Weights({n: t + shift for n, t in part.tensors.items()}) for p, part in shared.items()})


def evaluations(run, metrics, **settings):
    return [line["evaluation"] for line in metrics(run(SMALL | settings, clients=3))]


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "fedprox", "fedprox.mu": 0.0},
        {"strategy": "feduv", "feduv.variance-weight": 0.0, "feduv.uniformity-weight": 0.0},
        # without norms there is nothing to leave out
        {"strategy": "fedbn"},
    ],
    ids=lambda settings: settings["strategy"],
)
def test_at_its_limit_it_is_fedavg_to_the_bit(run, metrics, settings):
    assert evaluations(run, metrics, **settings) == evaluations(run, metrics, strategy="fedavg")


# --- FedProx ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.25, 1.0])
def test_the_proximal_term_is_half_mu_times_the_squared_distance_to_what_was_received(mu):
    objective = objective_of("fedprox", **{"fedprox.mu": mu})
    state = ClientState(network())
    came = {name: p.detach() + 0.5 for name, p in state.module.named_parameters()}
    payload = Parts(objective.shared(network()))
    for part in payload.parts.values():
        for name, tensor in part.tensors.items():
            tensor.copy_(came.get(name, tensor))
    objective.receive(state, payload, 2)
    with torch.no_grad():
        for p in state.module.parameters():
            p.add_(0.1)
    loss = objective.loss(state, batch(), objective.phases(state, 2)[0], 2)
    count = sum(p.numel() for p in state.module.parameters())
    assert float(loss.parts["proximal"]) == pytest.approx(0.01 * count, rel=1e-4)
    assert float(loss.total - loss.parts["cross-entropy"]) == pytest.approx(mu / 2 * 0.01 * count, rel=1e-4)
    loss.total.backward()
    plain = copy.deepcopy(state.module)
    plain.zero_grad()
    cross_entropy(plain(batch().inputs), batch().labels).backward()
    # the gradient is the plain one and mu (w - w^r)
    for (name, p), q in zip(state.module.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad + mu * 0.1, rtol=1e-3, atol=1e-5, msg=name)


def test_in_round_1_it_is_held_to_the_common_start_and_never_to_running_statistics():
    objective, state = objective_of("fedprox"), ClientState(network())
    objective.receive(state, None, 1)
    held = state.received["anchor"].tensors
    assert held.keys() == dict(state.module.named_parameters()).keys()
    assert float(objective.loss(state, batch(), objective.phases(state, 1)[0], 1).parts["proximal"]) == 0


# --- FedRep -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "personal"), [(1, {"classifier"}), (2, {"classifier", "extractor.projection"})])
def test_personal_layers_and_base_are_trained_in_turn(layers, personal):
    objective = objective_of("fedrep", **{"fedrep.personal-layers": layers, "fedrep.head-epochs": 4})
    state = ClientState(network())
    names = {id(p): name.rpartition(".")[0] for name, p in state.module.named_parameters()}
    head, body = objective.phases(state, 1)
    assert {names[id(p)] for p in head.parameters} == personal
    assert {id(p) for p in head.parameters} | {id(p) for p in body.parameters} == names.keys()
    assert not {id(p) for p in head.parameters} & {id(p) for p in body.parameters}
    assert (head.epochs, body.epochs) == (4, objective.settings.local_epochs)
    assert list(objective.shared(state.module)) == (["extractor"] if layers == 1 else ["backbone"])


def test_an_encoder_that_is_frozen_as_a_whole_has_no_phase_of_its_own():
    objective = objective_of("fedrep", **{"fedrep.personal-layers": 2})
    state = ClientState(network())
    state.module.extractor.backbone.requires_grad_(False)
    assert [phase.name for phase in objective.phases(state, 1)] == ["head"]


@pytest.mark.parametrize("layers", [1, 2])
def test_both_phases_have_the_gradient_of_the_cross_entropy(layers):
    objective = objective_of("fedrep", **{"fedrep.personal-layers": layers})
    state, plain = ClientState(network()), network()
    cross_entropy(plain(batch().inputs), batch().labels).backward()
    expected = dict(plain.named_parameters())
    for phase in objective.phases(state, 1):
        state.module.zero_grad()
        objective.loss(state, batch(), phase, 1).total.backward()
        for name, p in state.module.named_parameters():
            if any(p is each for each in phase.parameters):
                torch.testing.assert_close(p.grad, expected[name].grad)


def test_a_round_has_the_steps_of_both_phases(run, metrics):
    folder = run(SMALL | {"strategy": "fedrep", "fedrep.head-epochs": 2}, clients=3)
    lines = metrics(folder)
    assert lines[-1]["evaluation"]["rules"]["received"]["test"]["clients"] == 3
    # 2 + 1 epochs of steps a round
    assert {client["training"]["steps"] for client in lines[0]["clients"].values()} == {
        3 * math.ceil(client["training"]["rows"] / 32) for client in lines[0]["clients"].values()
    }


# --- FedBN ------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """A shortcut whose norm has no `bn` in its name."""

    def __init__(self):
        super().__init__()
        self.shortcut = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        self.bn_free = nn.Conv2d(2, 2, 1)

    def forward(self, x):
        return self.bn_free(self.shortcut(x))


@pytest.mark.parametrize("buffers", ["average", "own"])
def test_no_norm_travels_and_all_else_does(buffers):
    objective = objective_of("fedbn", **{"share-buffers": buffers})
    module = split(Residual(), (1, 5, 5), D, K)
    shared = {name for part in objective.shared(module).values() for name in part.tensors}
    norms = {f"extractor.backbone.shortcut.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    floating = {name for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
    assert shared == floating - norms
    assert any("bn_free" in name for name in shared)


def test_clients_without_norms_are_told_of():
    run = read_settings({"strategy": "fedbn", "feature-dim": D})
    half, identities = run.method.server(run.settings, run.options), {}
    for partition, norm in enumerate((True, False, False)):
        module = network(norm)
        parts = objective_of("fedbn").shared(module)
        lines = tuple(line for part, weights in parts.items() for line in layout_lines(part, weights.layout))
        size = sum(p.numel() for p in module.parameters())
        identities[partition] = Identity(partition, 3, f"net{norm}", size, rows=(9, 0, 0), layouts=lines)
    half.meet(Codec(K, D), identities)
    *_, words = half.notices()
    assert "2 clients" in words
    assert "netFalse" in words


# --- FedUV ------------------------------------------------------------------------------------------------


def test_the_variance_term_is_that_of_loops_and_an_identity_has_none_missing():
    p = torch.softmax(torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), dim=1)
    expected = np.mean([max(0.0, 1 / math.sqrt(5) - np.std(p[:, c].numpy(), ddof=1)) for c in range(5)])
    assert float(missing_variance(p)) == pytest.approx(expected, rel=1e-12)
    assert float(missing_variance(torch.eye(5, dtype=torch.float64))) == pytest.approx(0, abs=1e-12)


def test_the_uniformity_term_is_that_of_loops_and_does_not_see_the_scale():
    z = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    z[4] = z[1]  # a pair without distance is a term, but no part of the median
    squares = [float((z[i] - z[j]).square().sum()) for i, j in itertools.combinations(range(6), 2)]
    apart = sorted(square for square in squares if square > 0)
    median = apart[(len(apart) - 1) // 2]
    expected = np.mean([math.exp(-square / median) for square in squares])
    assert float(uniformity(z)) == pytest.approx(expected, rel=1e-12)
    assert float(uniformity(7 * z)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("term", [missing_variance, uniformity])
def test_without_two_rows_that_differ_there_is_no_term_and_no_nan(term, rows):
    values = torch.full((rows, 3), 1 / 3, dtype=torch.float64, requires_grad=True)
    loss = term(values)
    loss.backward()
    assert torch.isfinite(loss)
    assert bool(values.grad.isfinite().all())
    if term is uniformity or rows == 1:
        assert float(loss) == 0


@pytest.mark.parametrize("term", [missing_variance, uniformity])
def test_gradients_are_those_of_finite_differences(term):
    values = torch.rand(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) / 9
    assert torch.autograd.gradcheck(term, values.requires_grad_())


def test_feduv_adds_its_terms_with_their_weights():
    settings = {"feduv.variance-weight": 3.0, "feduv.uniformity-weight": 0.25}
    objective, state = objective_of("feduv", **settings), ClientState(network())
    loss = objective.loss(state, batch(), objective.phases(state, 1)[0], 1)
    parts = loss.parts
    assert float(loss.total) == pytest.approx(
        float(parts["cross-entropy"] + 3 * parts["variance"] + 0.25 * parts["uniformity"]), rel=1e-6
    )


# --- Ditto and APFL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "ditto", "ditto.weight": 0.0},
        {"strategy": "apfl", "apfl.alpha": 1.0, "apfl.adaptive": False},
    ],
    ids=lambda settings: settings["strategy"],
)
def test_at_its_limit_the_clients_own_model_is_trained_alone_to_the_bit(run, metrics, settings):
    """v is the model of `local`."""
    rules = ("classifier", "local-prototypes", "discriminant")
    found, alone = (
        [{rule: each["rules"][rule] for rule in rules} for each in evaluations(run, metrics, **of)]
        for of in (settings, {"strategy": "local"})
    )
    assert found == alone


def test_ditto_holds_its_model_to_what_was_received_and_not_to_what_was_trained():
    objective = objective_of("ditto", **{"ditto.weight": 0.5, "ditto.personal-epochs": 3})
    state = ClientState(objective.build(network(), 1))
    payload = received_of(objective, state.module, 0.5)
    objective.receive(state, payload, 2)
    for name, tensor in payload["companion"].tensors.items():
        assert torch.equal(state.module.state_dict()[name], tensor)
    shared, own = objective.phases(state, 2)
    assert (shared.name, own.name, own.epochs) == ("global", "train", 3)
    assert {id(p) for p in own.parameters} == {id(p) for p in state.module.model.parameters()}
    with torch.no_grad():
        for p in state.module.companion.parameters():
            p.add_(9.0)
    loss = objective.loss(state, batch(), own, 2)
    count = sum(p.numel() for p in own.parameters)
    assert float(loss.parts["proximal"]) == pytest.approx(0.25 * count, rel=1e-3)
    assert float(loss.total - loss.parts["cross-entropy"]) == pytest.approx(0.25 * 0.25 * count, rel=1e-3)
    # the two are trained apart
    loss.total.backward()
    assert all(p.grad is None for p in state.module.companion.parameters())
    state.module.zero_grad()
    objective.loss(state, batch(), shared, 2).total.backward()
    assert all(p.grad is None for p in state.module.model.parameters())


def test_what_arrives_at_ditto_is_judged_and_its_own_model_predicts():
    objective = objective_of("ditto")
    state = ClientState(objective.build(network(), 1))
    payload = received_of(objective, state.module, 0.5)
    before = {name: tensor.clone() for name, tensor in state.module.state_dict().items()}
    arrived = objective.arrived(state, payload)
    assert torch.equal(arrived.module.classifier.bias, payload["companion"].tensors["companion.classifier.bias"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.module.state_dict().items())
    assert isinstance(objective.arrived(state, None).module, SplitModel)


@pytest.mark.parametrize(("strategy", "judged"), [("ditto", "WithCompanion"), ("fedavg", "SplitModel")])
def test_the_ensemble_is_of_the_models_that_predict(run, monkeypatch, strategy, judged):
    """v for Ditto, whatever came; what came for FedAvg."""
    seen, answers = set(), Client._answers

    def kept(self, state):
        seen.add(type(state.module).__name__)
        return answers(self, state)

    monkeypatch.setattr(Client, "_answers", kept)
    run(SMALL | {"strategy": strategy, "ensemble-every": 1, "shared-test-share": 0.1}, clients=3)
    assert seen == {judged}


def mixture(alpha=0.3, adaptive=True):
    objective = objective_of("apfl", **{"apfl.alpha": alpha, "apfl.adaptive": adaptive})
    state = ClientState(objective.build(network(norm=False).double(), 1).double())
    random = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for p in state.module.companion.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=random, dtype=p.dtype))
    return objective, state


def test_apfls_gradients_are_those_of_the_mixed_weights_by_finite_differences():
    objective, state = mixture()
    rows = Batch(batch().inputs.double(), batch().labels)
    (phase,) = objective.phases(state, 1)
    objective.loss(state, rows, phase, 1).total.backward()
    module, step = state.module, 1e-6
    v, w = (dict(each.named_parameters()) for each in (module.model, module.companion))

    def mixed_loss():
        alpha = float(module.alpha)
        plain = network(norm=False).double()
        with torch.no_grad():
            for name, p in plain.named_parameters():
                p.copy_(alpha * v[name] + (1 - alpha) * w[name])
            return float(cross_entropy(plain(rows.inputs), rows.labels))

    def difference(p, place):
        with torch.no_grad():
            values = []
            for sign in (1, -1):
                p[place] += sign * step
                values.append(mixed_loss())
                p[place] -= sign * step
        return (values[0] - values[1]) / (2 * step)

    for name in ("extractor.backbone.0.weight", "classifier.bias"):
        place = (0,) * v[name].dim()
        assert float(v[name].grad[place]) == pytest.approx(difference(v[name], place), rel=1e-4, abs=1e-8)
    assert float(module.alpha.grad) == pytest.approx(difference(module.alpha, ()), rel=1e-4)
    # w has the gradient of its own cross-entropy alone
    alone = copy.deepcopy(module.companion)
    alone.zero_grad()
    cross_entropy(alone(rows.inputs), rows.labels).backward()
    for p, q in zip(module.companion.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_apfls_share_stays_within_0_and_1_does_not_decay_and_may_stand_still():
    objective, state = mixture()
    with torch.no_grad():
        state.module.alpha.fill_(1.7)
    (phase,) = objective.phases(state, 1)
    objective.loss(state, Batch(batch().inputs.double(), batch().labels), phase, 1)
    assert float(state.module.alpha) == 1
    optimiser = phase.optimiser(phase.parameters)
    (group,) = (group for group in optimiser.param_groups if any(p is state.module.alpha for p in group["params"]))
    assert (len(group["params"]), group["weight_decay"]) == (1, 0.0)
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(phase.parameters)
    objective, state = mixture(adaptive=False)
    (phase,) = objective.phases(state, 1)
    assert not any(p is state.module.alpha for p in phase.parameters)


def test_apfl_predicts_by_the_mixture_of_its_own_and_what_came():
    objective, state = mixture(alpha=0.25)
    module = state.module
    payload = received_of(objective, module, 0.0)
    v, w = dict(module.model.named_parameters()), dict(module.companion.named_parameters())
    plain = network(norm=False).double()
    with torch.no_grad():
        for name, p in plain.named_parameters():
            p.copy_(0.25 * v[name] + 0.75 * w[name].float())
    inputs = batch().inputs.double()
    arrived = objective.arrived(state, payload).module
    torch.testing.assert_close(arrived(inputs), plain(inputs), rtol=1e-5, atol=1e-6)


# --- FedRoD -------------------------------------------------------------------------------------------------


def rod(gamma=1.0, counts=(6, 1)):
    objective = objective_of("fedrod", **{"fedrod.gamma": gamma})
    state = ClientState(objective.build(network(norm=False), 1))
    held = torch.arange(len(counts))
    state.prototypes = PrototypeSet(held, torch.zeros(len(counts), D), torch.tensor(counts))
    objective.receive(state, None, 1)
    with torch.no_grad():
        state.module.personal.bias.add_(torch.tensor([0.2, -0.1, 0.4]))
    return objective, state, Batch(batch().inputs, torch.arange(7) % len(counts))


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_the_balanced_softmax_weighs_held_classes_by_their_counts(gamma):
    objective, state, rows = rod(gamma)
    loss = objective.loss(state, rows, objective.phases(state, 1)[0], 1)
    logits = state.module(rows.inputs).detach().double().numpy()[:, :2]
    weighed = np.exp(logits) * np.array([6.0, 1.0]) ** gamma
    chosen = weighed[np.arange(7), rows.labels.numpy()] / weighed.sum(axis=1)
    assert float(loss.parts["cross-entropy"]) == pytest.approx(-np.log(chosen).mean(), rel=1e-5)


def test_counts_weigh_as_float32_under_a_narrow_number_format():
    objective, state, rows = rod(counts=(1001, 1000))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = objective.loss(state, rows, objective.phases(state, 1)[0], 1)
    assert bool(torch.isfinite(narrow.total))
    table = _log_counts(state, K)
    torch.testing.assert_close(table[:2], torch.tensor([1001.0, 1000.0]).log())


def test_the_personal_head_moves_nothing_else_and_nothing_else_moves_it():
    objective, state, rows = rod()
    module = state.module
    parts = objective.loss(state, rows, objective.phases(state, 1)[0], 1).parts
    parts["personal-cross-entropy"].backward(retain_graph=True)
    moved = {name for name, p in module.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert moved == {"personal.weight", "personal.bias"}
    module.zero_grad(set_to_none=True)
    parts["cross-entropy"].backward()
    moved = {name.partition(".")[0] for name, p in module.named_parameters() if p.grad is not None}
    assert moved == {"extractor", "classifier"}


def test_fedrod_predicts_by_both_heads_tells_the_generic_one_and_keeps_the_personal_one():
    objective, state, rows = rod()
    z = state.module.features(rows.inputs)
    both = state.module.classifier(z) + state.module.personal(z)
    torch.testing.assert_close(objective.logits(state, z), both)
    torch.testing.assert_close(objective.scores(state, z)["generic"], state.module.classifier(z))
    names = {name for part in objective.upload(state, 1).parts.values() for name in part.tensors}
    assert not any("personal" in name for name in names)
    # it starts as a copy of the generic one
    fresh = objective.build(network(), 1)
    assert torch.equal(fresh.personal.weight, fresh.classifier.weight)
