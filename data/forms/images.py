"""Encoded images to one array file: one channel where all are grey, and one size, their own or that of `image-size`.

PIL is imported only to decode: a deployment starts a process a message, and decodes once.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.files import LARGEST_ROW, refuse_irregular

if TYPE_CHECKING:
    from PIL import Image

    from protosphere.data.forms.sources import Source

_GREY = ("1", "L", "LA", "La")
# Pillow's modes of more than 8 bits a channel
TOO_DEEP = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


def decode_images(source: "Source", target: Path, image_size: int = 0, colour: bool = False) -> None:
    """Write all images, one channel if all are grey, else three, to the array file `target`.

    Args:
        source: with encoded images; training rows come first in the file.
        target: an .npy of (n, C, H, W) uint8.
        image_size: H and W in pixels, to which every image is brought; 0 for the size that all have.
        colour: three channels whatever the images are.

    Raises:
        DataError: an unreadable image, one of more than 8 bits a channel, or, without `image_size`, of another size.
    """
    first: tuple[Where, tuple[int, int]] | None = None
    grey = not colour
    rows = 0
    for where, image in _images(source):
        rows += 1
        if depth := too_deep(image):
            raise DataError(
                f"{where} has pixels of mode {depth}, but images must have 8 bits a channel: convert it first.",
            )
        grey = grey and image.mode in _GREY
        first = first or (where, image.size)
        if image.size != first[1] and not image_size:
            raise DataError(
                f"{where} is {_size(image.size)} pixels but {first[0]} {_size(first[1])}: the images of a data set "
                "must have one size, so resize them first, or set image-size to the one that all are brought to.",
            )
    width, height = first[1] if first else (0, 0)
    if image_size:
        width = height = image_size
    shape = (rows, 1 if grey else 3, height, width)
    inputs = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=shape)
    for row, (where, image) in enumerate(_images(source)):
        try:
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
        except Exception as error:
            raise _unreadable(where, error) from error
        inputs[row] = resized(pixels[None] if grey else pixels.transpose(2, 0, 1), height, width)
    inputs.flush()


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image (C, H, W) uint8 brought to (C, height, width), bilinear, antialiased; as it is if it has that size."""
    if pixels.shape[1:] == (height, width):
        return pixels
    from PIL import Image

    channels = [
        Image.fromarray(np.ascontiguousarray(channel)).resize((width, height), Image.Resampling.BILINEAR)
        for channel in pixels
    ]
    return np.stack([np.asarray(channel) for channel in channels])


def in_bytes(inputs: np.ndarray, scale: float) -> np.ndarray:
    """Pixels of any shape whose full scale is `scale`, as uint8 of full scale 255, rounded to the nearest."""
    return inputs if scale == 255 else np.rint(inputs * (255 / scale)).astype(np.uint8)


@dataclass(frozen=True)
class Where:
    """An image's place, and the data set's and the image's own names."""

    row: int
    split: str
    names: str

    def __str__(self) -> str:
        return f"row {self.row} of the {self.split} table{self.names}"


def open_image(stored: dict[str, Any] | None) -> "Image.Image":
    """An image of a table, {bytes, path}, its header read and its pixels not yet; a path without bytes is a file.

    Raises:
        Exception: of many a kind, as Pillow has them, where it is no image.
    """
    from PIL import Image

    content, path = (stored["bytes"], stored["path"]) if stored else (None, None)
    if content is None:
        # read here, so that no file stays open
        refuse_irregular(Path(path or ""), LARGEST_ROW)
        content = Path(path or "").read_bytes()
    return Image.open(io.BytesIO(content))


def is_readable(stored: dict[str, Any] | None) -> bool:
    """Whether an image of a table can be decoded."""
    try:
        image = open_image(stored)
        depth = too_deep(image)
        image.convert("RGB")
    except Exception:
        # Pillow raises a dozen kinds
        return False
    return not depth


def too_deep(image: "Image.Image") -> str:
    """The mode of an image, not decoded yet, that has more than 8 bits a channel; "" of any other. Of colours Pillow
    would take the upper 8 bits, and call that RGB. (Its BGR;16 is of BMP files: 16 bits for a pixel's three channels.)
    """
    if image.mode in TOO_DEEP:
        return image.mode
    for decoder, *_, arguments in getattr(image, "tile", ()):
        for part in arguments if isinstance(arguments, tuple) else (arguments,):
            if isinstance(part, str) and ";16" in part and not part.startswith("BGR;"):
                return part
            # PPM files name their largest value
            if decoder.startswith("ppm") and isinstance(part, int) and part > 255:
                return f"{image.mode};16"
    return ""


def _images(source: "Source") -> "Iterator[tuple[Where, Image.Image]]":
    """Each image, opened, with the words that name it; training rows first."""
    for split, row, cell in source.cells():
        stored = cell.as_py()
        path = stored["path"] if stored else None
        where = Where(row, split, f" of {source.name!r}" + (f" ({path})" if path else ""))
        if not stored or (stored["bytes"] is None and not path):
            raise DataError(f"{where} has no image: give it one or drop the row.")
        try:
            image = open_image(stored)
        except Exception as error:
            raise _unreadable(where, error) from error
        yield where, image


def _unreadable(where: Where, error: Exception) -> DataError:
    return DataError(
        f"{where} is no readable image ({type(error).__name__}: {error}): replace it or drop the row.",
    )


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"
