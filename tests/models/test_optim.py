"""EagerSGD: torch's steps to the bit, and no compiler in the process of a client."""

import pytest
import torch

from protosphere.models.optimiser import EagerSGD, optimiser_tensors, restore_optimiser


def trained(kind, steps=5, **options):
    """A small net and its optimiser after some steps."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    optimiser = kind(module.parameters(), lr=0.1, **options)
    go_on(module, optimiser, steps)
    return module, optimiser


def go_on(module, optimiser, steps):
    draws = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(module(torch.randn(8, 6, generator=draws)), torch.arange(8) % 3)
        loss.backward()
        optimiser.step()


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 1}]
)
def test_its_steps_are_those_of_torch(options):
    ours, own = trained(EagerSGD, **options)
    theirs, other = trained(torch.optim.SGD, **options)
    assert same(ours, theirs)
    assert not same(ours, trained(EagerSGD, steps=0)[0])
    assert own.state_dict()["param_groups"] == other.state_dict()["param_groups"]
    # the update is no part of anybody's gradient
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in ours.parameters())


def test_its_state_goes_on_in_torchs_and_back():
    ours, own = trained(EagerSGD, momentum=0.9)
    for kind in (EagerSGD, torch.optim.SGD):
        other, fresh = trained(kind, steps=0, momentum=0.9)
        other.load_state_dict(ours.state_dict())
        restore_optimiser(fresh, optimiser_tensors(own, "train"), "train")
        go_on(other, fresh, 3)
        whole, whole_optimiser = trained(EagerSGD, momentum=0.9)
        go_on(whole, whole_optimiser, 3)
        assert same(other, whole)
