"""Names and families, and what `build` refuses, by its words."""

import re
from pathlib import Path

import pytest
import torch

from protosphere import models
from protosphere.models.split import SplitModel

NETWORKS = """
import torch
from torch import nn
from protosphere.models.split import SplitModel

DRAWN = torch.rand(3)  # a module that draws numbers when it is imported

class Own(SplitModel):
    def features(self, x):
        return super().features(x) * 2

def own(input_shape, num_classes, feature_dim):
    width = torch.Size(input_shape).numel()
    return Own(nn.Sequential(nn.Flatten(), nn.Linear(width, feature_dim)), feature_dim, num_classes)

def narrow(input_shape, num_classes, feature_dim):
    return own(input_shape, num_classes, feature_dim - 1)

def mixed(input_shape, num_classes, feature_dim):
    width = torch.Size(input_shape).numel()
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(width, 16)), feature_dim, num_classes)

def few(input_shape, num_classes, feature_dim):
    return own(input_shape, num_classes - 2, feature_dim)

def feature_map(input_shape, num_classes, feature_dim):
    return nn.Conv2d(input_shape[0], 7, 3)

def flat(input_shape, num_classes, feature_dim):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(torch.Size(input_shape).numel()))

def tokens(input_shape, num_classes, feature_dim):
    return nn.Flatten(2)

class Pair(nn.Module):
    def forward(self, x):
        return x, x

def pair(input_shape, num_classes, feature_dim):
    return Pair()

def half(input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8)).half()

def by_batch(input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, track_running_stats=False))

def words(input_shape, num_classes, feature_dim):
    return "a network"

def positional(shape):
    return nn.Flatten()

NUMBER = 3
"""


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A user's module, imported afresh by each test."""
    name = "networks_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    (tmp_path / f"{name}.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_names_and_families_come_in_order_and_are_dealt_round_robin_by_partition() -> None:
    assert models.model_names("resnet8, tiny ,resnet8") == ("resnet8", *models.FAMILIES["tiny"], "resnet8")
    assert models.model_names("densenet121,my.networks:make") == ("densenet121", "my.networks:make")
    assert [models.model_for("cnn2,cnn4,resnet8", p) for p in range(5)] == ["cnn2", "cnn4", "resnet8", "cnn2", "cnn4"]


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ("cnn2,mobilenetv2", "nearest is 'mobilenet_v2'"),
        ("tinny", "nearest is 'tiny'"),
        ("fcn_resnet50", "is unknown"),  # torchvision's, but no classifier
        (" , ", "names no model"),
        *[(name, "is not of the form") for name in ("networks:make()", "my net:make", ":make", "a:b:c")],
    ],
)
def test_names_are_refused_with_the_nearest(asked: str, word: str) -> None:
    with pytest.raises(models.ModelError, match=word):
        models.model_names(asked)


SHAPES = [(1, 7, 8), (3, 32, 4), (8, 8), (0, 8, 8), (0,), (1, 1, 8, 8), ()]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("inception_v3", (1, 8, 8)), ("resnet18", (9,)), *[("cnn2", shape) for shape in [*SHAPES, (9,)]]],
)
def test_inputs_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(models.ModelError, match=re.escape(f"shape {shape}")):
        models.build(name, shape, 8, 4, 0)


def test_a_callable_gives_its_own_split_model(networks: str) -> None:
    model = models.build(f"{networks}:own", (1, 8, 8), 8, 4, 0)
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(model.features(x), 2 * model.extractor(x))
    assert type(model).__name__ == "Own"
    assert model.training
    assert models.build(f"{networks}:own", (1, 8, 8), 8, 4, 0, "relu").features(x).min() == 0


@pytest.mark.parametrize(("callable_name", "width"), [("feature_map", 7), ("flat", 64), ("by_batch", 8)])
def test_a_callable_s_backbone_is_brought_to_d_and_its_import_changes_no_weights(
    networks: str, callable_name: str, width: int
) -> None:
    before = torch.get_rng_state()
    model, other = (models.build(f"{networks}:{callable_name}", (1, 8, 8), 8, 4, 0) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())
    assert isinstance(model, SplitModel)
    # building leaves no trace in running statistics
    assert {float(v.sum()) for k, v in model.named_buffers() if "num_batches" in k or "mean" in k} <= {0.0}
    assert all(module.training for module in model.modules())
    assert model.extractor.projection.weight.shape == (8, width)
    assert model(torch.randn(5, 1, 8, 8)).shape == (5, 4)


@pytest.mark.parametrize(
    ("callable_name", "word"),
    [
        ("narrow", r"shape \(1, 7\)"),
        ("mixed", r"features have shape \(1, 16\).*extractor's last layer"),
        ("few", r"shape \(1, 2\)"),
        ("tokens", r"shape \(1, 1, 64\)"),
        ("pair", "it returns a tuple"),
        ("half", "float16"),
        ("words", "it returns a str"),
        ("positional", "no arguments but the keywords"),
        ("NUMBER", "is of type int"),
        ("missing", "no attribute 'missing'"),
    ],
)
def test_a_callable_that_does_not_fit_is_refused(networks: str, callable_name: str, word: str) -> None:
    with pytest.raises(models.ModelError, match=rf"{networks}:{callable_name}'.*{word}"):
        models.build(f"{networks}:{callable_name}", (1, 8, 8), 8, 4, 0)


def test_what_no_client_here_can_have_is_refused_before_anything_is_built(networks: str) -> None:
    for name in (f"{networks}:missing", "no_such_module:make", "tiny", "resnet19"):
        with pytest.raises(models.ModelError, match=name):
            models.check_model(name)
    for good in (f"{networks}:flat", "tiny_cnn", "resnet18", "hf:some/encoder"):
        models.check_model(good)
