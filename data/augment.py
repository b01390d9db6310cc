"""Flips and crops of a batch of training images (He et al. 2016, section 4.2)."""

from typing import Literal

import torch
from torch import Tensor

from protosphere.core.errors import DataError

Augment = Literal["none", "flip", "crop", "flip-crop"]
PADDING = 8  # the padding is a side's length divided by this: 4 of 32 pixels


def augmented(images: Tensor, augment: Augment, draws: torch.Generator) -> Tensor:
    """Mirror each image (n, C, H, W), as stored, with probability 1/2, and then cut a window of its size, at a
    uniformly random position, from the image padded with zeros.

    Args:
        draws: on the CPU, so that the draws are equal on all devices.
    """
    n, channels, height, width = images.shape
    if "flip" in augment:
        mirrored = (torch.rand(n, generator=draws) < 0.5).to(images.device)
        images = torch.where(mirrored.view(n, 1, 1, 1), images.flip(3), images)
    if "crop" in augment:
        top, left_margin = (max(side // PADDING, 1) for side in (height, width))
        padded = torch.nn.functional.pad(images, (left_margin, left_margin, top, top))
        down = torch.randint(2 * top + 1, (n, 1), generator=draws).to(images.device)
        right = torch.randint(2 * left_margin + 1, (n, 1), generator=draws).to(images.device)
        rows = (down + torch.arange(height, device=images.device)).view(n, 1, height, 1)
        columns = (right + torch.arange(width, device=images.device)).view(n, 1, 1, width)
        every = torch.arange(n, device=images.device).view(n, 1, 1, 1)
        images = padded[every, torch.arange(channels, device=images.device).view(1, channels, 1, 1), rows, columns]
    return images


def refuse_unfit(augment: Augment, axes: int) -> None:
    """Refuse to flip or crop data other than images.

    Args:
        axes: the number of axes of one input, 0 for a text.
    """
    if augment != "none" and axes != 3:
        raise DataError(f'augment is "{augment}", which is for images, and the data are none: set it to "none".')
