"""Decodes images into one array file: one channel if all are grey, and one size, their own or `image-size`.

PIL is imported only for decoding: a deployment starts a process per message, and decodes once.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError, UnsizedError

if TYPE_CHECKING:
    from PIL import Image

GREY = ("1", "L", "LA", "La")
# Pillow's modes of more than 8 bits per channel
TOO_DEEP = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")

Stored = dict[str, Any] | None  # {bytes, path} as in a table's image column; None for a missing image
# row number, its place for messages, and the image; each call starts anew
Images = Callable[[], Iterator[tuple[int, str, Stored]]]


def open_image(place: str, stored: Stored) -> Image.Image:
    """An image of a table, its header read and its pixels not yet."""
    from PIL import Image

    if stored is not None and not isinstance(stored, dict):
        raise DataError(f"{place} holds {type(stored).__name__} where an image belongs: write struct{{bytes, path}}.")
    content = stored.get("bytes") if stored else None
    name = _name(place, stored)
    if content is None:
        # a changed file would not be noticed, and a table could name any file of this machine
        path = stored.get("path") if stored else None
        what = f"names the file {path!r} where an image belongs" if path else "has no image"
        raise DataError(f"{place} {what}: write its bytes into the table or drop the row, or give a folder of images.")
    try:
        image = Image.open(io.BytesIO(content))
    except Exception as error:
        raise _describe_unreadable(name, error) from error
    depth = too_deep(image)
    if depth:
        raise DataError(f"{name} has pixels of mode {depth}, but images have 8 bits per channel: convert it first.")
    return image


def read_pixels(place: str, stored: Stored, grey: bool) -> np.ndarray:
    """The pixels (C, H, W) uint8 of an image, in one channel or in three."""
    image = open_image(place, stored)
    try:
        pixels = np.asarray(image.convert("L" if grey else "RGB"))
    except Exception as error:
        raise _describe_unreadable(_name(place, stored), error) from error
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _name(place: str, stored: Stored) -> str:
    return f"{place} ({stored['path']})" if stored and stored.get("path") else place


def _describe_unreadable(name: str, error: Exception) -> DataError:
    from PIL import UnidentifiedImageError

    # Pillow raises errors of a dozen classes; this one quotes the address of our buffer
    unknown = isinstance(error, UnidentifiedImageError)
    reason = "its format is unknown" if unknown else f"{type(error).__name__}: {error}"
    return DataError(f"{name} is no readable image ({reason}): replace it or drop the row.")


def decode_images(images: Images, target: Path, image_size: int = 0, independent: bool = False) -> np.ndarray:
    """Write images to the array file `target`, (n, C, H, W) uint8: one channel if all are grey, else three.

    Args:
        images: their headers are read first, and then their pixels.
        image_size: H and W in pixels, to which every image is brought; 0 for the size that all have.
        independent: an unreadable image is left out, and no image decides on the channels: they are three.

    Returns:
        The numbers of the rows that were written, (n,) int64.

    Raises:
        DataError: an unreadable image, or, without `image_size`, images of several sizes.
        UnsizedError: `independent` without `image_size`, before any image is looked at.
    """
    if independent and not image_size:
        raise UnsizedError("setting `image-size` is 0; under `privacy` a site's own images need one.")
    rows: list[int] = []
    grey, size, first = not independent, (0, 0), ""
    for row, place, stored in images():
        if independent and not _is_readable(stored):
            continue
        image = open_image(place, stored)
        if not rows:
            size, first = image.size, _name(place, stored)
        if image.size != size and not image_size:
            raise DataError(
                f"{_name(place, stored)} is {_describe_size(image.size)} pixels but {first} {_describe_size(size)}: "
                "the images of a data set must have one size, so resize them first, or set image-size to the one that "
                "all are brought to."
            )
        rows.append(row)
        grey = grey and image.mode in GREY

    width, height = (image_size, image_size) if image_size else size
    shape = (len(rows), 1 if grey else 3, height, width)
    inputs = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=shape)
    selected = set(rows)
    written = 0
    for row, place, stored in images():
        if row in selected:
            inputs[written] = resized(read_pixels(place, stored, grey), height, width)
            written += 1
    inputs.flush()
    return np.array(rows, dtype=np.int64)


def _is_readable(stored: Stored) -> bool:
    try:
        read_pixels("", stored, grey=False)
    except DataError:
        return False
    return True


def _describe_size(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"


def read_file(path: str | bytes) -> Stored:
    """An image file in the form of a table's image column; without content if the file cannot be read."""
    try:
        content = Path(os.fsdecode(path)).read_bytes()
    except OSError:
        content = b""
    return {"bytes": content, "path": os.fsencode(path).decode(errors="replace")}


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize an image (C, H, W) uint8 to (C, height, width), bilinear, antialiased; unchanged if it has that size."""
    if pixels.shape[1:] == (height, width):
        return pixels
    from PIL import Image

    channels = [
        Image.fromarray(np.ascontiguousarray(channel)).resize((width, height), Image.Resampling.BILINEAR)
        for channel in pixels
    ]
    return np.stack([np.asarray(channel) for channel in channels])


def refuse_image_size(dataset: str, image_size: int, content: str) -> None:
    """Refuse `image-size` for data other than images."""
    if image_size:
        raise DataError(f"image-size is {image_size}, but {dataset!r} holds {content} and no images: leave it 0.")


def in_bytes(inputs: np.ndarray, scale: float) -> np.ndarray:
    """Pixels of any shape whose full scale is `scale`, as uint8 of full scale 255, rounded to the nearest."""
    return inputs if scale == 255 else np.rint(inputs * (255 / scale)).astype(np.uint8)


def too_deep(image: Image.Image) -> str:
    """The mode of an image with more than 8 bits per channel, before decoding; "" for any other image.

    Pillow would keep the upper 8 bits of colours and report the mode RGB. Its mode BGR;16 has 16 bits for all three
    channels.
    """
    if image.mode in TOO_DEEP:
        return image.mode
    for decoder, *_, arguments in getattr(image, "tile", ()):
        for part in arguments if isinstance(arguments, tuple) else (arguments,):
            if isinstance(part, str) and ";16" in part and not part.startswith("BGR;"):
                return part
            # PPM files contain their largest value
            if decoder.startswith("ppm") and isinstance(part, int) and part > 255:
                return f"{image.mode};16"
    return ""
