"""Built-in backbones: perceptrons, plain convolutional networks and ResNet-8 for vectors and images (8x8 or larger).

Each builder takes an input shape, (C, H, W) or (F,), and gives a backbone for `protosphere.models.split.split`. Pooling
comes before ReLU, which gives the same values to the bit (a maximum and ReLU commute) on a quarter of them.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from protosphere.core.errors import ModelError

Backbone = Callable[[tuple[int, ...]], nn.Module]


def perceptron(input_shape: tuple[int, ...], widths: Iterable[int]) -> nn.Module:
    """Hidden linear layers with ReLU on the flattened input: (n, *input_shape) -> (n, last width)."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = torch.Size(input_shape).numel()
    for hidden in widths:
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers)


def cnn2(input_shape: tuple[int, ...], widths: tuple[int, int], normed: bool, padded: bool = True) -> nn.Module:
    """The papers' CNN: two 5x5 convolutions, each pooled by 2, flattened (GFPL, experimental setup).

    Its "two fully connected layers" are the one that leads to d and the classifier.
    (n, C, H, W) -> (n, widths[1] * (H // 4) * (W // 4)), or without padding (H // 4 − 3) and (W // 4 − 3).
    """
    channels = image_channels(input_shape)
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(channels, width, 5, padding=2 if padded else 0)]
        layers += [group_norm(width)] if normed else []
        layers += [nn.MaxPool2d(2), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.Flatten())


def cnn2_narrow(input_shape: tuple[int, ...]) -> nn.Module:
    """The CNN of GFPL's Table 1 on MNIST by its numbers of parameters, 20 clients together: 10 and 20 channels have the
    106 thousand of FedPer, which shares the convolutions; not padded, at d = 50, they have the 430 thousand of FedAvg.

    Images under 16 pixels are padded, or nothing would be left of them.
    (n, C, H, W) -> (n, 20 * (H // 4 − 3) * (W // 4 − 3)).
    """
    return cnn2(input_shape, (10, 20), normed=False, padded=min(input_shape[1:], default=0) < 16)


def cnn4(
    input_shape: tuple[int, ...], widths: tuple[int, int, int, int], norm: Callable[[int], nn.Module]
) -> nn.Module:
    """Four 3x3 convolutions, pooled by 2 after each of the first three.

    Pooling stops while the shorter side has under 4 pixels, so that 3x3 kernels never look at padding alone.
    (n, C, H, W) -> (n, widths[3], h, w).
    """
    channels, side = image_channels(input_shape), min(input_shape[1:])
    layers: list[nn.Module] = []
    for number, width in enumerate(widths):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), norm(width)]
        if number < 3 and side >= 4:
            layers.append(nn.MaxPool2d(2))
            side //= 2
        layers.append(nn.ReLU())
        channels = width
    return nn.Sequential(*layers)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, itself a 1x1 convolution where the shape changes.

    (n, channels, h, w) -> (n, width, h / stride, w / stride), rounded up.
    """

    def __init__(self, channels: int, width: int, stride: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            norm(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), norm(width))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(residual + shortcut)."""
        return torch.relu(self.residual(x) + self.shortcut(x))


def resnet8(input_shape: tuple[int, ...], widths: tuple[int, int, int], norm: Callable[[int], nn.Module]) -> nn.Module:
    """ResNet-8: the 6n + 2 layers of He et al. (2016), section 4.2, at n = 1; widths 16, 32, 64 are theirs.

    (n, C, H, W) -> (n, widths[2], h, w).
    """
    channels = image_channels(input_shape)
    first, second, third = widths
    return nn.Sequential(
        nn.Conv2d(channels, first, 3, padding=1, bias=False),
        norm(first),
        nn.ReLU(),
        ResidualBlock(first, first, 1, norm),
        ResidualBlock(first, second, 2, norm),
        ResidualBlock(second, third, 2, norm),
    )


def image_channels(input_shape: tuple[int, ...]) -> int:
    """C of (C, H, W).

    Raises:
        ModelError: the input is flat.
    """
    if len(input_shape) != 3:
        raise ModelError(
            f"it takes images (channels, height, width), but this data has flat vectors of shape {input_shape}; "
            f"use one of {', '.join(FLAT)}.",
        )
    return input_shape[0]


def check_colours(name: str, input_shape: tuple[int, ...]) -> None:
    """Refuse inputs of a public encoder that are no images of 1 or 3 channels."""
    if len(input_shape) != 3 or input_shape[0] not in (1, 3):
        problem = f"takes images of 1 or 3 channels, but inputs have the shape {input_shape}"
        raise ModelError(f"the encoder {name!r} {problem}; give another encoder.")


def coloured(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (n, C, h, w) of 1 or 3 channels as three channels of this size, (n, 3, H, W)."""
    images = x.expand(-1, 3, -1, -1)
    if (*images.shape[2:],) != size:
        images = nn.functional.interpolate(images, size, mode="bilinear", antialias=True)
    return images


def group_norm(width: int) -> nn.Module:
    """Four groups: no statistics of a batch, which a client with a dozen rows could not estimate."""
    return nn.GroupNorm(4, width)


FLAT: dict[str, Backbone] = {
    "perceptron": partial(perceptron, widths=(512, 512)),
    "tiny_perceptron": partial(perceptron, widths=(256, 128)),
    # Five linear layers: three here, the one that leads to d, the classifier (methods page, section 2).
    "spiral_mlp": partial(perceptron, widths=(64, 64, 64)),
}
SMALL: dict[str, Backbone] = FLAT | {
    "cnn2": partial(cnn2, widths=(32, 64), normed=False),
    "cnn2_narrow": cnn2_narrow,
    "cnn4": partial(cnn4, widths=(32, 64, 128, 256), norm=nn.BatchNorm2d),
    "resnet8": partial(resnet8, widths=(16, 32, 64), norm=nn.BatchNorm2d),
    "tiny_cnn": partial(cnn2, widths=(16, 32), normed=True),
    "tiny_cnn4": partial(cnn4, widths=(16, 32, 64, 64), norm=group_norm),
    "tiny_resnet": partial(resnet8, widths=(16, 32, 64), norm=group_norm),
}
