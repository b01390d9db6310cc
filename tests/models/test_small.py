"""Our backbones against the layer counts and shapes of their sources."""

import pytest
import torch
from torch import nn

from protosphere import models
from protosphere.models.small import SMALL, ResidualBlock


def layers(model: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, kind)]


def test_spiral_mlp_is_the_papers_five_linear_layers() -> None:
    model = models.build("spiral_mlp", (2,), 2, 6, 0)
    shapes = [tuple(layer.weight.shape) for layer in layers(model, nn.Linear)]
    assert shapes == [(64, 2), (64, 64), (64, 64), (2, 64), (6, 2)]
    assert len(layers(model, nn.ReLU)) == 3


def test_cnn2_has_two_convolutions_and_two_linear_layers() -> None:
    model = models.build("cnn2", (1, 28, 28), 50, 10, 0)
    assert [layer.out_channels for layer in layers(model, nn.Conv2d)] == [32, 64]
    assert [tuple(layer.weight.shape) for layer in layers(model, nn.Linear)] == [(50, 64 * 7 * 7), (10, 50)]


def test_cnn2_narrow_has_the_parameters_of_gfpls_table() -> None:
    model = models.build("cnn2_narrow", (1, 28, 28), 50, 10, 0)
    shared_by_fedper = sum(p.numel() for layer in layers(model, nn.Conv2d) for p in layer.parameters())
    assert 20 * shared_by_fedper == pytest.approx(106e3, rel=0.01)
    assert 20 * sum(p.numel() for p in model.parameters()) == pytest.approx(430e3, rel=0.02)


@pytest.mark.parametrize(("side", "left"), [(8, 2), (15, 3), (16, 1), (19, 1), (28, 4), (64, 13)])
def test_cnn2_narrow_leaves_something_of_every_image(side: int, left: int) -> None:
    assert SMALL["cnn2_narrow"]((3, side, side))(torch.randn(2, 3, side, side)).shape == (2, 20 * left * left)


def test_resnet8_has_eight_weighted_layers() -> None:
    model = models.build("resnet8", (3, 32, 32), 512, 10, 0)
    on_the_path = [layer for layer in layers(model, nn.Conv2d) if layer.kernel_size == (3, 3)]
    assert len(on_the_path) + 1 == 6 * 1 + 2  # the one that leads to d
    assert SMALL["resnet8"]((3, 32, 32))(torch.randn(2, 3, 32, 32)).shape == (2, 64, 8, 8)


@pytest.mark.parametrize(("side", "left"), [(8, 2), (9, 2), (15, 3), (28, 3), (32, 4), (64, 8)])
def test_cnn4_stops_pooling_before_its_kernels_see_padding_alone(side: int, left: int) -> None:
    backbone = SMALL["cnn4"]((3, side, side + 1))
    assert len(layers(backbone, nn.Conv2d)) == 4
    assert backbone(torch.randn(2, 3, side, side + 1)).shape[:3] == (2, 256, left)


def test_a_residual_block_adds_its_input() -> None:
    block = ResidualBlock(4, 4, 1, nn.BatchNorm2d)
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(3, 4, 8, 8)
    assert torch.equal(block(x), x.clamp(min=0))
    assert ResidualBlock(4, 6, 2, nn.BatchNorm2d)(torch.randn(3, 4, 9, 8)).shape == (3, 6, 5, 4)


@pytest.mark.parametrize("name", models.FAMILIES["tiny"])
def test_tiny_models_can_train_on_one_row_and_predict_as_they_trained(name: str) -> None:
    """No statistics over a batch: a client with one row trains, and eval mode is train mode."""
    model = models.build(name, (1, 8, 8), 64, 10, 0)
    x = torch.randn(5, 1, 8, 8)
    alone = torch.cat([model.train()(row[None]) for row in x])
    torch.testing.assert_close(alone, model.eval()(x), rtol=1e-4, atol=1e-5)
