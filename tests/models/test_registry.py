"""What holds for every model: a new one is tested by standing in SMALL or FAMILIES."""

import hashlib

import pytest
import torch
from torch import nn

from protosphere import models
from protosphere.models.small import FLAT, SMALL

# text encoders read other inputs: test_text.py
NAMES = sorted(name for name in set(SMALL).union(*models.FAMILIES.values()) if not models.reads_text(name))
SMALLEST = (1, 8, 8)
# and images that are large enough for a network's own first layers
SHAPES = [(name, SMALLEST) for name in NAMES] + [(name, (3, 64, 64)) for name in NAMES if name not in SMALL]
D, K = 16, 5


def built(name: str, shape: tuple[int, ...], seed: int = 0) -> models.SplitModel:
    return models.build(name, shape, D, K, seed)


def inputs(shape: tuple[int, ...], rows: int) -> torch.Tensor:
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(1))


def digest(model: nn.Module) -> str:
    state = model.state_dict()
    return hashlib.sha256(b"".join(state[key].numpy().tobytes() for key in sorted(state))).hexdigest()


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_two_rows_train_and_keep_to_d_and_k(name: str, shape: tuple[int, ...]) -> None:
    model, x = built(name, shape).train(), inputs(shape, 2)
    logits = model(x)
    assert (model.features(x).shape, logits.shape) == ((2, D), (2, K))
    nn.functional.cross_entropy(logits, torch.tensor([0, K - 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert (model.feature_dim, model.num_classes) == (D, K)


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_is_dead(name: str) -> None:
    model = built(name, (3, 16, 16)).train()
    torch.manual_seed(0)
    nn.functional.cross_entropy(model(inputs((3, 16, 16), 8)), torch.arange(8) % K).backward()
    assert not [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize("name", sorted(FLAT))
def test_perceptrons_take_flat_rows(name: str) -> None:
    model = built(name, (2,)).train()
    model(inputs((2,), 8)).square().sum().backward()
    assert model.features(inputs((2,), 8)).shape == (8, D)
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    torch.manual_seed(1)
    first = digest(built(name, (1, 8, 8), seed=2**62 + 1))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert digest(built(name, (1, 8, 8), seed=2**62 + 1)) == first
    assert torch.equal(torch.get_rng_state(), before)
    assert digest(built(name, (1, 8, 8), seed=3)) != first
