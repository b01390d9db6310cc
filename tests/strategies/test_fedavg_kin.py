"""FedAvg's kin, each at the limit where it is FedAvg or nothing, and what is its own against naive computations."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from protosphere.models.split import split
from protosphere.prototypes.losses import missing_variance, uniformity
from protosphere.strategies.contract import ClientState
from tests.strategies.kin import D, K, batch, network, objective_of

# --- FedProx ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.25, 1.0])
def test_the_proximal_term_is_half_mu_times_the_squared_distance_to_what_was_received(mu):
    objective = objective_of("fedprox", **{"fedprox.mu": mu})
    state = ClientState(network())
    came = {name: p.detach() + 0.5 for name, p in state.module.named_parameters()}
    payload = objective.shared(network())
    for part in payload.values():
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
