"""SplitModel: the structure of every client's model: an extractor to R^d, then a linear classifier."""

import logging
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from protosphere.core.errors import ModelError

log = logging.getLogger("protosphere")
KEPT = "keeps_layout"  # attribute of an extractor
POOLED = "?pool"  # after the name of a torchvision network


class SplitModel(nn.Module):
    """f: input -> z in R^d, g: R^d -> K logits (methods page, section 0).

    Args:
        extractor: (n, *input_shape) -> (n, d), its last layer linear, or a pooling of features.
        feature_dim: d.
        num_classes: K.
        feature_activation: what is applied to z: "linear" leaves negative coordinates within reach of aligned
            prototypes; "relu" is for TinyProto's analysis of dead units.

    Attributes:
        input_shape: the shape of one input, set by `protosphere.models.build`, for building a second model.
    """

    input_shape: tuple[int, ...] = ()

    def __init__(self, extractor: nn.Module, feature_dim: int, num_classes: int, feature_activation: str = "linear"):
        super().__init__()
        self.extractor = extractor
        self.classifier = nn.Linear(feature_dim, num_classes)
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.feature_activation = feature_activation

    def features(self, x: Tensor) -> Tensor:
        """z = f(x): (n, *input_shape) float -> (n, d)."""
        z: Tensor = self.extractor(x)
        return torch.relu(z) if self.feature_activation == "relu" else z

    def classify(self, z: Tensor) -> Tensor:
        """g(z): (n, d) -> (n, K) logits, no activation after the last layer."""
        logits: Tensor = self.classifier(z)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """g(f(x)): (n, *input_shape) -> (n, K) logits."""
        return self.classify(self.features(x))


class WrappedModel(nn.Module):
    """A SplitModel inside another module, which has the same methods; unless overridden, they are those of the model.

    Args:
        model: taken over; do not use it by itself afterwards.
    """

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.feature_dim = model.feature_dim
        self.num_classes = model.num_classes
        self.model = model

    def features(self, x: Tensor) -> Tensor:
        """z: (n, *input_shape) float -> (n, d)."""
        return self.model.features(x)

    def classify(self, z: Tensor) -> Tensor:
        """(n, d) -> (n, K) logits."""
        return self.model.classify(z)

    def forward(self, x: Tensor) -> Tensor:
        """(n, *input_shape) -> (n, K) logits."""
        return self.classify(self.features(x))


def split(
    backbone: nn.Module,
    input_shape: tuple[int, ...],
    feature_dim: int,
    num_classes: int,
    feature_activation: str = "linear",
    pools: bool = False,
) -> SplitModel:
    """Bring a backbone to d: global average pooling of a feature map, then one linear layer.

    Args:
        backbone: (n, *input_shape) -> (n, width) or (n, width, h, w), of any width.
        pools: whether means of neighbouring features replace the linear layer, as in ProtoNorm's release: feature j is
            the mean of the backbone's features from floor(j width / d) to ceil((j + 1) width / d).

    Raises:
        ModelError: the backbone returns something else, or has fewer features than d with `pools`.
    """
    shape = probe(backbone, input_shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict(backbone=backbone)
    if len(shape) == 4:
        layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    elif len(shape) != 2:
        raise ModelError(
            f"it gives an output of shape {shape} for one input; let it give (n, width) or "
            "(n, channels, height, width).",
        )
    if shape[1] == num_classes:
        log.warning(
            "warning: a model's output has as many values as there are classes (%d): they are used as the backbone's "
            "features; if they are logits, return the layer before them",
            num_classes,
        )
    if pools and shape[1] < feature_dim:
        raise ModelError(
            f"it has {shape[1]} features to pool, fewer than feature-dim {feature_dim}; lower that, or remove {POOLED} "
            "from the name"
        )
    layers["projection"] = nn.AdaptiveAvgPool1d(feature_dim) if pools else nn.Linear(shape[1], feature_dim)
    return SplitModel(nn.Sequential(layers), feature_dim, num_classes, feature_activation)


def channels_last(module: nn.Module) -> nn.Module:
    """Store the weights of image convolutions in the memory layout that their kernels read fastest; names and values
    are unchanged.

    It works in place. Other layers accept either layout; a model that relies on torch's default layout (`keep_layout`)
    is left as it is.
    """
    as_they_are = {layer for part in module.modules() if hasattr(part, KEPT) for layer in part.modules()}
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and layer not in as_they_are:
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
    return module


def keep_layout(model: SplitModel, input_shape: tuple[int, ...]) -> None:
    """Give a model images in torch's default layout, if its code relies on it: `x.view(x.size(0), -1)` on a
    convolution's output, as in many tutorials, fails with channels last."""

    def tried(images: Tensor) -> Tensor:
        return model.features(images.to(memory_format=torch.channels_last))

    try:
        probe(model, input_shape, tried)
    except RuntimeError:
        # on the extractor, because a method may wrap the model
        setattr(model.extractor, KEPT, True)
        model.extractor.register_forward_pre_hook(_default_layout)
        # other errors are raised when the model is used
        probe(model, input_shape, tried)


def _default_layout(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.to(memory_format=torch.contiguous_format) for x in inputs)


def probe(
    module: nn.Module, input_shape: tuple[int, ...], call: Callable[[Tensor], object] | None = None
) -> tuple[int, ...]:
    """The shape of the output of `call` (by default the module) for one input; the module is left unchanged.

    Raises:
        ModelError: the output is not a tensor.
    """
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            try:
                output = (call or module)(torch.zeros(1, *input_shape))
            except ValueError as error:
                # a layer that normalises over the batch needs two samples
                if "more than 1 value per channel" not in str(error):
                    raise
                output = (call or module)(torch.zeros(2, *input_shape))
                output = output[:1] if isinstance(output, Tensor) else output
    finally:
        module.train(training)
    if not isinstance(output, Tensor):
        raise ModelError(f"it returns a {type(output).__name__}; let it return one tensor, the features.")
    return tuple(output.shape)
