"""Ditto, APFL and FedRoD, which keep a model or a head of their own beside the one that they share."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import Batch, ClientState
from tests.strategies.kin import D, batch, network, objective_of, received_of

# --- Ditto and APFL -----------------------------------------------------------------------------------------


def test_ditto_holds_its_model_to_what_was_received_and_not_to_what_was_trained():
    objective = objective_of("ditto", **{"ditto.weight": 0.5, "ditto.personal-epochs": 3, "local-epochs": 2})
    state = ClientState(objective.build(network(), 1))
    objective.receive(state, received_of(objective, state.module, 0.5), 2)
    shared, own = objective.phases(state, 2)
    assert [(phase.name, phase.epochs) for phase in (shared, own)] == [("global", 2), ("train", 3)]
    assert {id(p) for p in own.parameters} == {id(p) for p in state.module.model.parameters()}
    # unless told otherwise its own model is trained for as long
    usual = objective_of("ditto", **{"local-epochs": 2})
    assert [phase.epochs for phase in usual.phases(state, 2)] == [2, 2]
    with torch.no_grad():
        for p in state.module.companion.parameters():
            p.add_(9.0)
    loss = objective.loss(state, batch(), own, 2)
    count = sum(p.numel() for p in own.parameters)
    assert float(loss.parts["proximal"]) == pytest.approx(0.25 * count, rel=1e-3)
    assert float(loss.total - loss.parts["cross-entropy"]) == pytest.approx(0.25 * 0.25 * count, rel=1e-3)
    # the two are trained apart
    for phase, other in ((own, state.module.companion), (shared, state.module.model)):
        state.module.zero_grad(set_to_none=True)
        objective.loss(state, batch(), phase, 2).total.backward()
        assert all(p.grad is None for p in other.parameters())


def mixture(alpha=0.3, adaptive=True):
    objective = objective_of("apfl", **{"apfl.alpha": alpha, "apfl.adaptive": adaptive})
    state = ClientState(objective.build(network(norm=False).double(), 1).double())
    random = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for p in state.module.companion.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=random, dtype=p.dtype))
    return objective, state


def mixed(module, alpha):
    """A network of the weights alpha v + (1 - alpha) w."""
    v, w = (dict(each.named_parameters()) for each in (module.model, module.companion))
    plain = network(norm=False).double()
    with torch.no_grad():
        for name, p in plain.named_parameters():
            p.copy_(alpha * v[name] + (1 - alpha) * w[name])
    return plain


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_apfls_gradients_are_those_of_the_mixed_weights_by_finite_differences(alpha):
    """At the bounds, too, where the gradient of a clamp may be 0."""
    objective, state = mixture(alpha)
    rows = Batch(batch().inputs.double(), batch().labels)
    (phase,) = objective.phases(state, 1)
    objective.loss(state, rows, phase, 1).total.backward()
    module, step = state.module, 1e-6

    def difference(p, place):
        values = []
        with torch.no_grad():
            for move in (step, -2 * step):
                p[place] += move
                plain = mixed(module, float(module.alpha))
                values.append(float(cross_entropy(plain(rows.inputs), rows.labels)))
            p[place] += step
        return (values[0] - values[1]) / (2 * step)

    v = dict(module.model.named_parameters())
    for name in ("extractor.backbone.0.weight", "classifier.bias"):
        place = (0,) * v[name].dim()
        assert float(v[name].grad[place]) == pytest.approx(difference(v[name], place), rel=1e-4, abs=1e-8)
    assert float(module.alpha.grad) == pytest.approx(difference(module.alpha, ()), rel=1e-4)
    # w has the gradient of its own cross-entropy alone
    alone = deepcopy(module.companion)
    alone.zero_grad()
    cross_entropy(alone(rows.inputs), rows.labels).backward()
    for p, q in zip(module.companion.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


# alpha, its gradient, a weight decay -> alpha after a step: it is brought back to 0 and 1, leaves them, does not decay
STEPS = [(0.3, 9.0, 0, 0.0), (0.3, -9.0, 0, 1.0), (0.0, -1.0, 0, 0.1), (1.0, 1.0, 0, 0.9), (0.5, 0.0, 0.5, 0.5)]


@pytest.mark.parametrize(("alpha", "gradient", "decay", "after"), STEPS)
def test_a_step_of_apfls_share(alpha, gradient, decay, after):
    objective = objective_of("apfl", **{"apfl.alpha": alpha, "weight-decay": decay})
    state = ClientState(objective.build(network(), 1))
    (phase,) = objective.phases(state, 1)
    optimiser = phase.optimiser(phase.parameters)
    state.module.alpha.grad = torch.tensor(gradient)
    optimiser.step()
    stepped = [p for group in optimiser.param_groups for p in group["params"]]
    assert {id(p) for p in stepped} == {id(p) for p in phase.parameters}
    assert float(state.module.alpha.detach()) == pytest.approx(after)


def test_apfls_share_may_stand_still():
    objective, state = mixture(adaptive=False)
    (phase,) = objective.phases(state, 1)
    assert not any(p is state.module.alpha for p in phase.parameters)


def test_apfl_predicts_by_the_mixture_of_its_own_and_what_came():
    objective, state = mixture(alpha=0.25)
    received = received_of(objective, state.module, 0.5)
    arrived = objective.evaluation_state(state, received).module
    objective.receive(state, received, 2)
    inputs = batch().inputs.double()
    expected = mixed(state.module, 0.25)(inputs)
    torch.testing.assert_close(arrived(inputs), expected)
    torch.testing.assert_close(state.module(inputs), expected)


# --- FedRoD -----------------------------------------------------------------------------------------------------


def rod(gamma=1.0, counts=(6, 1)):
    """A client of two classes, with what it keeps for a round's training."""
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


def test_the_personal_head_moves_nothing_else_and_nothing_else_moves_it():
    objective, state, rows = rod()
    parts = objective.loss(state, rows, objective.phases(state, 1)[0], 1).parts
    for part, owners in (("personal-cross-entropy", {"personal"}), ("cross-entropy", {"extractor", "classifier"})):
        state.module.zero_grad(set_to_none=True)
        parts[part].backward(retain_graph=True)
        moved = [name for name, p in state.module.named_parameters() if p.grad is not None and bool(p.grad.any())]
        assert {name.partition(".")[0] for name in moved} == owners


def test_fedrod_predicts_by_both_heads_tells_the_generic_one_and_keeps_the_personal_one():
    objective, state, rows = rod()
    z = state.module.features(rows.inputs)
    both = state.module.classifier(z) + state.module.personal(z)
    torch.testing.assert_close(objective.scores(state, z)["classifier"], both)
    torch.testing.assert_close(objective.scores(state, z)["generic"], state.module.classifier(z))
    names = {name for part in objective.upload(state, 1).values() for name in part.tensors}
    assert not any("personal" in name for name in names)
    # it starts as a copy of the generic one
    fresh = objective.build(network(), 1)
    assert torch.equal(fresh.personal.weight, fresh.classifier.weight)
