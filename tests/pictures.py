"""Small pictures on disk, for tests that need some."""

from collections.abc import Iterable
from pathlib import Path

from PIL import Image


def paint(folder: Path, names: Iterable[str], each: int) -> str:
    """A folder of grey pictures of 8 × 8, each of another shade, so many of every class; its path."""
    classes = list(names)
    for number in range(each * len(classes)):
        place = folder / classes[number % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(place / f"{number}.png")
    return str(folder)
