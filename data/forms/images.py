"""Encoded images to one array file: one channel where all are grey, and one size, their own or that of `image-size`.

PIL is imported only to decode: a deployment starts a process a message, and decodes once.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError, UnsizedError
from protosphere.data.forms.folders import Folder, class_of
from protosphere.data.samples import INPUTS, Samples

if TYPE_CHECKING:
    from PIL import Image

_GREY = ("1", "L", "LA", "La")
# Pillow's modes of more than 8 bits a channel
TOO_DEEP = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


Stored = dict[str, Any] | None  # {bytes, path} as a table holds an image, a path without bytes a file; None for none
Pictures = Callable[[], Iterator[tuple[str, Stored]]]  # images, each with where it stands for messages, anew each time


def open_image(place: str, stored: Stored) -> "Image.Image":
    """An image as a table holds it, its header read and its pixels not yet.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    from PIL import Image

    content, path = (stored.get("bytes"), stored.get("path") or "") if stored else (None, "")
    if content is None and not path:
        raise DataError(f"{place} has no image: give it one or drop the row.")
    with _naming(place, path):
        if content is None:
            # read here, so that no file stays open
            content = Path(path).read_bytes()
        return Image.open(io.BytesIO(content))


@contextmanager
def _naming(place: str, path: str | None) -> Iterator[None]:
    """Whatever of a dozen kinds Pillow raises while inside is one sentence on that image."""
    try:
        yield
    except Exception as error:
        raise DataError(
            f"{_name(place, path)} is no readable image ({type(error).__name__}: {error}): replace it or drop the row."
        ) from error


def _name(place: str, path: str | None) -> str:
    return f"{place} ({path})" if path else place


def decode_images(pictures: Pictures, target: Path, image_size: int = 0, colour: bool = False) -> None:
    """Write all images, one channel if all are grey, else three, to the array file `target`, (n, C, H, W) uint8.

    Args:
        pictures: their headers are read first, and then their pixels.
        image_size: H and W in pixels, to which every image is brought; 0 for the size that all have.
        colour: three channels whatever the images are.

    Raises:
        DataError: an unreadable image, one of more than 8 bits a channel, or, without `image_size`, of another size.
    """
    count, grey, size, first = 0, not colour, (0, 0), ""
    for place, stored in pictures():
        image = open_image(place, stored)
        name = _name(place, stored.get("path") if stored else "")
        if depth := too_deep(image):
            raise DataError(
                f"{name} has pixels of mode {depth}, but images must have 8 bits a channel: convert it first."
            )
        if not count:
            size, first = image.size, name
        if image.size != size and not image_size:
            raise DataError(
                f"{name} is {_size(image.size)} pixels but {first} {_size(size)}: the images of a data set must have "
                "one size, so resize them first, or set image-size to the one that all are brought to."
            )
        count += 1
        grey = grey and image.mode in _GREY

    width, height = (image_size, image_size) if image_size else size
    shape = (count, 1 if grey else 3, height, width)
    inputs = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=shape)
    for row, (place, stored) in enumerate(pictures()):
        image = open_image(place, stored)
        with _naming(place, stored.get("path") if stored else ""):
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
        inputs[row] = resized(pixels[None] if grey else pixels.transpose(2, 0, 1), height, width)
    inputs.flush()


def read_image_folder(folder: Folder, target: Path, image_size: int = 0, alone: bool = False) -> Samples:
    """The images of a folder of classes, which are written to the folder `target`.

    Args:
        alone: images that cannot be read are left out, and decide on nothing.

    Raises:
        DataError: what decode_images raises.
    """
    if alone:
        refuse_unsized(image_size)
    numbers = {name: label for label, name in enumerate(folder.class_names)}
    split_depth = 1 if (folder.root / "train").is_dir() else 0
    pictures: list[tuple[str, Stored]] = []
    labels: list[int] = []
    train_rows = 0
    for split, paths in folder.splits.items():
        for row, path in enumerate(paths):
            stored = {"bytes": None, "path": str(path)}
            if alone and not is_readable(stored):
                continue
            pictures.append((f"row {row} of the {split} table of {folder.name!r}", stored))
            labels.append(numbers[class_of(Path(path.relative_to(folder.root).parts[split_depth]))])
        if split == "train":
            train_rows = len(pictures)

    decode_images(lambda: iter(pictures), target / INPUTS, image_size, colour=alone)
    inputs = np.load(target / INPUTS, mmap_mode="r")
    return Samples(folder.name, inputs, np.array(labels, np.int64), train_rows, folder.class_names, scale=255.0)


def refuse_unsized(image_size: int) -> None:
    """Refuse private images without a size that all sites have agreed on, before any is looked at.

    Raises:
        UnsizedError: `image_size` is 0.
    """
    if not image_size:
        raise UnsizedError("setting `image-size` is 0; under `privacy` a site's own images need one.")


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


def is_readable(stored: Stored) -> bool:
    """Whether an image of a table can be decoded."""
    try:
        image = open_image("", stored)
        depth = too_deep(image)
        with _naming("", None):
            image.convert("RGB")
    except DataError:
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


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"
