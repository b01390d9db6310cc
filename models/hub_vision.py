"""Vision encoders by the names `hf:<hub id or path>`, loaded by transformers and frozen: images in, features out."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from protosphere.core.errors import ModelError
from protosphere.models.small import check_colours, coloured
from protosphere.models.text import EncoderName, encoder_name, loading, nearest, pretrained


class HubVision(nn.Module):
    """(n, C, H, W) from -1 to 1, of 1 or 3 channels -> the mean of the last hidden states: (n, w).

    For an encoder of images and texts (CLIP), it is the image half. If the image processor would crop the border, the
    whole image is resized instead.

    Args:
        name: as above; `?trainable=` is dropped.

    Raises:
        ModelError: transformers is missing, the encoder or its image processor is not found, or it does not take
            images.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, input_shape: tuple[int, ...]):
        super().__init__()
        check_colours(name, input_shape)
        reference = EncoderName(encoder_name(name).place)
        processor = _processor(reference)
        network: Any = pretrained(reference)
        network = getattr(network, "vision_model", network)
        if getattr(network, "main_input_name", "") != "pixel_values":
            raise ModelError(f"the encoder {name!r} does not take images, but inputs have the shape {input_shape}.")
        if isinstance(getattr(network, "pooler", None), nn.Module):
            # the pooler works on the hidden states and is often untrained
            network.pooler = nn.Identity()
        self.network: nn.Module = network
        self.size = _size(processor, network.config, name)
        for buffer_name, values in (("mean", processor["image_mean"]), ("std", processor["image_std"])):
            self.register_buffer(buffer_name, torch.tensor(values, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Preprocess like its image processor, except for the border, and return the features."""
        images = coloured(x, self.size)
        hidden: Tensor = self.network(pixel_values=((images + 1) / 2 - self.mean) / self.std).last_hidden_state
        return hidden.mean(dim=1) if hidden.dim() == 3 else hidden


def _processor(reference: EncoderName) -> dict[str, Any]:
    with loading("image processor", reference) as transformers:
        processor = nearest(reference, partial(transformers.AutoImageProcessor.from_pretrained, reference.source))
        entries: dict[str, Any] = processor.to_dict()
        return entries


def _size(processor: dict[str, Any], config: Any, name: str) -> tuple[int, int]:
    """Its input size (H, W): the crop size, else the resize size, else that of the configuration."""
    cut = processor.get("crop_size") if processor.get("do_center_crop") else None
    size = cut or processor.get("size") or {}
    side = size.get("shortest_edge") or getattr(config, "image_size", None)
    if size.get("height") and size.get("width"):
        return size["height"], size["width"]
    if isinstance(side, int) and side > 0:
        return side, side
    raise ModelError(
        f"the image processor of {name!r} has no image size; set `size` in its preprocessor_config.json.",
    )
