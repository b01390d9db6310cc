"""torchvision's classifiers as backbones: without the classifier, with a stem adapted to the channels and to small
images."""

from typing import Any

from torch import nn
from torchvision import models as torchvision_models

from protosphere.models.small import image_channels

SMALL_IMAGE = 64  # shorter side in pixels, below which a stem keeps the resolution


def classifier_names() -> list[str]:
    """The names of torchvision's classifier constructors."""
    names: list[str] = torchvision_models.list_models(module=torchvision_models)
    return names


def vision_backbone(name: str, input_shape: tuple[int, ...]) -> nn.Module:
    """A torchvision network with random weights: (n, C, H, W) -> (n, width) or (n, width, h, w).

    Args:
        name: one of `classifier_names()`.
        input_shape: (C, H, W). ViTs need H = W, a multiple of their patch size; their stem is unchanged.

    Raises:
        ModelError: the input is flat.
    """
    channels = image_channels(input_shape)
    network: nn.Module = torchvision_models.get_model(name, weights=None, **_arguments(name, input_shape))
    _remove_classifier(network)
    small = min(input_shape[1:]) < SMALL_IMAGE and not name.startswith("vit_")
    _fit_stem(network, channels, small)
    return network


def _arguments(name: str, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """Arguments that some constructors need: fixed sizes, and options that avoid unused heads."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": False}
    if name.startswith("vit_"):
        return {"image_size": input_shape[1]}
    if name.startswith("maxvit_"):
        return {"input_size": input_shape[1:]}
    return {}


def _remove_classifier(network: nn.Module) -> None:
    """Remove everything after the pooled features, including a classifier's dropout."""
    for name in ("fc", "classifier", "heads", "head"):
        classifier = getattr(network, name, None)
        if isinstance(classifier, nn.Module):
            pools = any(isinstance(layer, nn.AdaptiveAvgPool2d) for layer in classifier.modules())
            setattr(network, name, nn.AdaptiveAvgPool2d(1) if pools else nn.Identity())
    if isinstance(getattr(network, "dropout", None), nn.Dropout):
        network.dropout = nn.Identity()
    if isinstance(getattr(network, "avgpool", None), nn.AdaptiveAvgPool2d):
        # VGG and AlexNet pool to 7x7 and 6x6, which makes features 49 or 36 times as wide, and repeats pixels of small
        # images
        network.avgpool = nn.AdaptiveAvgPool2d(1)


def _fit_stem(network: nn.Module, channels: int, small: bool) -> None:
    """Accept `channels` channels; on small images, keep the resolution through the stem.

    A stem's stride becomes 1, its kernel at most 3x3, and a max pool before the second convolution is removed: the
    usual adaptation of these networks to 32x32 images.
    """
    layers = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.MaxPool2d)]
    name, stem = next((name, m) for name, m in layers if isinstance(m, nn.Conv2d))
    kernel, stride, padding = stem.kernel_size[0], stem.stride[0], int(stem.padding[0])  # all kernels are square
    if small and stride > 1:
        stride = 1
        if kernel > 3:
            kernel, padding = 3, 1
        if len(layers) > 1 and isinstance(layers[1][1], nn.MaxPool2d):
            network.set_submodule(layers[1][0], nn.Identity())
    if (channels, stride) != (stem.in_channels, stem.stride[0]):
        fitted = nn.Conv2d(channels, stem.out_channels, kernel, stride, padding, bias=stem.bias is not None)
        network.set_submodule(name, fitted)
