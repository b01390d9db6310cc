"""torchvision's networks: what is removed, what is fitted, and what is left as it was."""

import pytest
import torch
import torchvision
from torch import nn

from protosphere import models
from protosphere.models.vision import vision_backbone

# of each how many max pools of its stem go on small images
PAPERS = {"resnet18": 1, "googlenet": 1, "mobilenet_v2": 0, "shufflenet_v2_x1_0": 1, "efficientnet_b0": 0}


def drawn_by_nobody(name: str, shape: tuple[int, ...]) -> nn.Module:
    """A backbone whose tensors have shapes alone: to draw the weights of large networks takes seconds."""
    with torch.device("meta"):
        return vision_backbone(name, shape)


def first_convolution(network: nn.Module) -> nn.Conv2d:
    return next(module for module in network.modules() if isinstance(module, nn.Conv2d))


def max_pools(network: nn.Module) -> int:
    return sum(isinstance(module, nn.MaxPool2d) for module in network.modules())


@pytest.mark.parametrize(("name", "removed"), PAPERS.items())
def test_a_small_image_keeps_its_resolution_through_the_stem(name: str, removed: int) -> None:
    network = drawn_by_nobody(name, (1, 63, 63))
    stem = first_convolution(network)
    assert stem(torch.empty(2, 1, 63, 63, device="meta")).shape == (2, stem.out_channels, 63, 63)
    assert stem.kernel_size == (3, 3)
    assert max_pools(network) == max_pools(drawn_by_nobody(name, (3, 64, 64))) - removed
    # dropout goes with the classifier
    assert not [module for module in network.modules() if isinstance(module, nn.Dropout)]


@pytest.mark.parametrize(("name", "classifier"), [("resnet18", "fc"), ("mobilenet_v2", "classifier")])
def test_a_large_colour_image_changes_the_classifier_alone(name: str, classifier: str) -> None:
    reference = torchvision.models.get_model(name, weights=None)
    ours = vision_backbone(name, (3, 64, 64)).state_dict()
    expected = {key: value.shape for key, value in reference.state_dict().items() if not key.startswith(classifier)}
    assert {key: value.shape for key, value in ours.items()} == expected
    reference.load_state_dict(ours, strict=False)
    setattr(reference, classifier, nn.Identity())
    x = torch.randn(2, 3, 64, 64)
    network = vision_backbone(name, (3, 64, 64))
    network.load_state_dict(ours)
    assert torch.equal(network.eval()(x), reference.eval()(x))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "efficientnet_b0"])
def test_means_of_neighbouring_features_take_the_projection_s_place(name: str) -> None:
    """ProtoNorm's release: `base.fc = nn.AdaptiveAvgPool1d(feature_dim)`."""
    x = torch.randn(3, 3, 32, 32)
    model = models.build(f"{name}?pool", (3, 32, 32), 100, 5, 0).eval()
    backbone = vision_backbone(name, (3, 32, 32)).eval()
    backbone.load_state_dict(model.extractor.backbone.state_dict())
    features = backbone(x)
    width = features.shape[1]
    expected = [features[:, j * width // 100 : -(-(j + 1) * width // 100)].mean(dim=1) for j in range(100)]
    assert torch.allclose(model.features(x), torch.stack(expected, dim=1), atol=1e-6)
    # nothing is learnt between the backbone and the classifier
    assert {key.split(".")[1] for key in model.state_dict() if key.startswith("extractor")} == {"backbone"}


@pytest.mark.parametrize(
    ("name", "dim", "words"), [("resnet18?pool", 513, "512 features to pool"), ("cnn2?pool", 8, "unknown")]
)
def test_what_cannot_be_pooled_is_refused(name: str, dim: int, words: str) -> None:
    with pytest.raises(models.ModelError, match=words):
        models.build(name, (3, 32, 32), dim, 5, 0)


def test_alexnet_is_pooled_to_its_channels_and_a_vit_takes_the_size_it_is_built_for() -> None:
    for name, channels, width in (("alexnet", 3, 256), ("vit_b_16", 1, 768)):
        network = drawn_by_nobody(name, (channels, 32, 32))
        assert network(torch.empty(2, channels, 32, 32, device="meta")).shape == (2, width)
    with pytest.raises(models.ModelError, match=r"'vit_b_16' does not fit inputs of shape \(1, 28, 28\).*patch size"):
        models.build("vit_b_16", (1, 28, 28), 16, 5, 0)
