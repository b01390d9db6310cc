"""FRAug: its three losses by loops and each on its own parts, the share that rises, means and turns, MMD by loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from protosphere.models.generator import ClassTurns
from protosphere.models.split import SplitModel
from protosphere.prototypes.losses import kernel_mmd
from protosphere.strategies.contract import Batch, ClientState
from tests.strategies.kin import halves_of as both_halves

K, D, T = 3, 4, 10
RAND = torch.rand


def halves_of(**settings):
    return both_halves("fraug", {"rounds": T, "learning-rate": 0.1} | settings, K, D)


def client(objective):
    torch.manual_seed(2)
    state = ClientState(objective.build(SplitModel(nn.Linear(2, D), D, K), 1).double().train())
    with torch.no_grad():
        state.module.turns.means.copy_(torch.randn(K, D))
        state.module.turns.turn.fill_(2)
    return state


def batch(rows=5):
    random = torch.Generator().manual_seed(5)
    labels = torch.tensor([0, 0, 2, 2, 0, 2, 0])[:rows]
    return Batch(torch.randn(rows, 2, generator=random, dtype=torch.float64), labels)


def mmd_by_loops(one, other):
    rows = [row.detach().numpy() for row in (*one, *other)]
    square = np.array([[((a - b) ** 2).sum() for b in rows] for a in rows])
    middle = square.sum() / (len(rows) ** 2 - len(rows))
    kernel = sum(np.exp(-square / (middle * 2.0**power)) for power in (-2, -1, 0, 1, 2))
    n = len(one)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - kernel[:n, n:].mean() - kernel[n:, :n].mean()


def expected(objective, state, rows, number, lambda_g, lambda_t, ramp):
    """The three losses, step by step, with the noise that the process's generator gives."""
    module, (inputs, labels) = state.module, (rows.inputs, rows.labels)
    z = module.features(inputs).detach()
    means = module.turns.means.clone()
    for c in labels.unique().tolist():
        means[c] = 0.7 * means[c] + 0.3 * z[labels == c].mean(dim=0)
    dealt = torch.tensor([(2 + i) % K for i in range(len(labels))])
    partners, wanted = (z, means[dealt]), (labels, dealt)
    share = min(0.5, math.exp(ramp * (number - 1 - T)))

    def made(mode, of):
        hot = one_hot(of, K).double()
        return module.generator.train(mode).network(torch.cat([torch.rand(len(of), D // 2).double(), hot], dim=1))

    def moved(mode, features, of):
        return module.transformation.train(mode).network(torch.cat([features, one_hot(of, K).double()], dim=1))

    def loss_of(features, of):
        return cross_entropy(module.classifier(features), of)

    torch.manual_seed(11)
    hots = torch.cat(wanted)
    real = torch.cat(partners)
    augmented = real + moved(False, made(False, hots), hots)
    two = [loss_of(each, of) for each, of in zip(augmented.split(len(z)), wanted, strict=True)]
    first = (1 - share) * loss_of(z, labels) + share * sum(two) / 2
    generated = made(True, dealt)
    apart = (generated - means[dealt]).square().mean()
    # without a bound G would leave all limits
    far = apart / (1 + apart)
    second = loss_of(generated, dealt) - lambda_g * far
    third = 0.0
    for partner, of in zip(partners, wanted, strict=True):
        shifted = partner + moved(True, made(False, of), of)
        p = module.classifier(shifted).softmax(dim=1)
        near = mmd_by_loops(shifted, partner)
        third += (lambda_t * near + (p * p.log()).sum(dim=1).mean()) / 2
    return first, second, third, means


@pytest.mark.parametrize("number", [1, 8])
def test_the_losses_are_those_of_loops(number):
    values = {"lambda_g": 2.0, "lambda_t": 3.0, "ramp": 0.15}
    own = {f"fraug.{name.replace('_', '-')}": value for name, value in values.items()}
    _, objective = halves_of(**own)
    state, plain = client(objective), client(objective)
    torch.manual_seed(11)
    found = objective.loss(state, batch(), objective.phases(state, number)[0], number)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        # noise of one type is other noise than that of another
        patch.setattr(torch, "rand", lambda *size, **_: RAND(*size, dtype=torch.float64))
        first, second, third, means = expected(objective, plain, batch(), number, **values)
    assert float(found.parts["generator"].detach()) == pytest.approx(float(second), rel=1e-9)
    assert float(found.parts["transformation"].detach()) == pytest.approx(float(third), rel=1e-9)
    assert float(found.total.detach()) == pytest.approx(float(first + second + third), rel=1e-9)
    torch.testing.assert_close(state.module.turns.means, means)
    assert int(state.module.turns.turn) == (2 + 5) % K


def test_each_loss_moves_its_own_parts_alone():
    _, objective = halves_of()
    state = client(objective)
    parts = objective.loss(state, batch(), objective.phases(state, 1)[0], 1).parts
    owners = {
        "augmented-cross-entropy": {"classifier"},
        "generator": {"generator"},
        "transformation": {"transformation"},
        "cross-entropy": {"extractor", "classifier"},
    }
    for part, owner in owners.items():
        state.module.zero_grad(set_to_none=True)
        parts[part].backward(retain_graph=True)
        moved = {name.partition(".")[0] for name, p in state.module.named_parameters() if p.grad is not None}
        assert moved == owner, part


def test_generator_and_transformation_have_a_rate_of_their_own():
    _, objective = halves_of(**{"fraug.rate": 0.03})
    state = client(objective)
    (phase,) = objective.phases(state, 1)
    model, beside = phase.optimiser(phase.parameters).param_groups
    assert (model["lr"], beside["lr"]) == (0.1, 0.03)
    named = {id(p): name.partition(".")[0] for name, p in state.module.named_parameters()}
    assert {named[id(p)] for p in model["params"]} == {"extractor", "classifier"}
    assert {named[id(p)] for p in beside["params"]} == {"generator", "transformation"}


def test_a_mean_that_no_row_came_for_stays_and_classes_are_dealt_in_turn():
    turns = ClassTurns(3, 2)
    turns.remember(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 5.0]]), torch.tensor([2, 2, 0]), 0.5)
    assert turns.means.tolist() == [[2.5, 2.5], [0, 0], [1.0, 1.5]]
    turns.remember(torch.tensor([[1.0, 1.0]]), torch.tensor([1]), 0.5)
    assert turns.means.tolist() == [[2.5, 2.5], [0.5, 0.5], [1.0, 1.5]]
    assert list(itertools.chain(*(turns.deal(n).tolist() for n in (2, 5, 1)))) == [0, 1, 2, 0, 1, 2, 0, 1]


# --- the maximum mean discrepancy ---------------------------------------------------------------------------------


def test_rows_that_are_all_equal_have_no_discrepancy_and_no_nan():
    rows = torch.ones(3, 2, requires_grad=True)
    loss = kernel_mmd(rows, torch.ones(3, 2))
    loss.backward()
    assert float(loss.detach()) == 0
    assert bool(rows.grad.isfinite().all())
