"""A single data set as samples in the cache, decoded once a machine however many processes ask."""

import errno
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from protosphere.core.errors import DataError
from protosphere.data.cache import cached, make_key
from protosphere.data.forms.arrays import read_arrays
from protosphere.data.forms.columns import USUAL, Columns
from protosphere.data.forms.folders import SCHEMA, Folder, Listed, refuse_unlisted
from protosphere.data.forms.images import in_bytes, read_image_folder, resized
from protosphere.data.forms.sources import BUILT_IN, locate, read_built_in, read_hub
from protosphere.data.forms.tables import read_table_folder
from protosphere.data.forms.texts import Texts
from protosphere.data.samples import Samples
from protosphere.data.user_code import OwnCode, read_code

# errors of the operating system that come of writing alone
OF_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
# no child of `protosphere`, whose lines a run shows
_log = logging.getLogger("data.decode")


@dataclass(frozen=True)
class Recipe:
    """What decides the samples of a data set; names and meaning are those of the settings.

    `listed`: of what local folder a classes.txt is asked (refuse_unlisted). `alone`: whether each row of a local folder
    is judged by itself (independent_rows.py). `code`: somebody's own, which `dataset` names (user_code.py).
    """

    dataset: str
    columns: Columns = USUAL
    spiral_noise: float = 0.2
    spiral_points: int = 1000
    seed: int = 0
    image_size: int = 0
    listed: Listed = ""
    alone: bool = False
    code: OwnCode | None = None

    def key(self) -> str:
        """That of the cache entry: another one whenever a setting, or a local file's size or time, is another.

        Raises:
            DataError: what locate raises; a folder whose classes had to be listed and are not.
        """
        place = locate(self.dataset) if self.code is None else ""
        content: Any = place
        if self.code is not None:
            content = ["code", asdict(self.code)]
        elif isinstance(place, Folder):
            # here, since an entry may have been made when nobody asked for a list
            refuse_unlisted(place, self.listed)
            # a link may be led elsewhere, to files of the same sizes and times
            content = [place.name, os.path.realpath(place.name), place.class_names, place.state()]
        elif place == "spiral":
            content = [place, self.spiral_noise, self.spiral_points, self.seed]
        return make_key([content, asdict(self.columns), self.image_size, self.alone])


def decode(recipe: Recipe, cache_dir: Path) -> Samples:
    """The samples of a recipe, from the cache in `cache_dir` or decoded into it now.

    `image_size` above 0 brings all images to that square (and those of `digits` to 0..255 before, so that what lies
    between two pixels is not rounded to sixteenths).

    Raises:
        DataError: the data cannot be found or read, an `image_size` of what holds no images, an unwritable cache.
    """

    def read(target: Path) -> Samples:
        begin = time.perf_counter()
        with explaining(recipe.dataset, cache_dir):
            samples = _read(recipe, target, cache_dir)
        if not len(samples.labels) and not recipe.alone:
            raise DataError(f"data set {samples.name!r} has no samples: give it at least one.")
        _log.info("decoded %s: %d samples in %.1f s", recipe.dataset, len(samples.labels), time.perf_counter() - begin)
        return samples

    samples = cached(cache_dir, recipe.key(), read)
    # an entry may have been made when nobody asked for a list
    place = locate(recipe.dataset) if samples.columns and recipe.listed else None
    if isinstance(place, Folder) and not (place.root / SCHEMA).is_file():
        raise DataError(
            f"{place.name!r} is a table of numbers without a {SCHEMA}: have `protosphere data --export-columns "
            f"{SCHEMA}` write one from samples that may be disclosed, and give all sites the same."
        )
    return samples


@contextmanager
def explaining(dataset: str, cache_dir: Path) -> Iterator[None]:
    """While inside, data are read, of which Arrow has errors of its own where a file is damaged or forged. Any other
    error is a slip in this program, and stays what it is.

    Raises:
        DataError: they cannot be read.
        OSError: the cache cannot be written.
    """
    try:
        yield
    except _errors_of_reading() as error:
        number = error.errno if isinstance(error, OSError) else None
        if number is not None and (number in OF_WRITING or str(cache_dir) in str(error)):
            raise
        if number is not None:
            raise DataError(
                f"the data {dataset!r} cannot be read ({os.strerror(number)}): see that this user may read all files "
                "there, and that their disk is whole."
            ) from error
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError(
            f"the data {dataset!r} cannot be read ({problem}): a file there is damaged, or claims more than this "
            "machine holds; restore it from a copy, or write it anew."
        ) from error


def _errors_of_reading() -> tuple[type[Exception], ...]:
    errors: tuple[type[Exception], ...] = (OSError, MemoryError, UnicodeDecodeError)
    # what has not imported Arrow has none of its errors
    arrow = sys.modules.get("pyarrow")
    return (*errors, arrow.ArrowException) if arrow else errors


def _read(recipe: Recipe, target: Path, cache_dir: Path) -> Samples:
    """The samples of a recipe; those that are large are written to the folder `target`."""
    columns = recipe.columns
    if recipe.code is not None:
        # columns of texts and labels may be those of other sites' tables
        _refuse_columns(recipe, "group-column", "partition-column")
        return _resize(recipe, read_code(recipe.code))

    place = locate(recipe.dataset)
    if isinstance(place, Folder):
        return _read_folder(recipe, place, target)
    if place not in BUILT_IN:
        return read_hub(place, columns, target, cache_dir, recipe.image_size)
    _refuse_columns(recipe, *columns.named)
    return _resize(recipe, read_built_in(place, recipe.spiral_points, recipe.spiral_noise, recipe.seed))


def _read_folder(recipe: Recipe, folder: Folder, target: Path) -> Samples:
    if folder.format == "images":
        _refuse_columns(recipe, *recipe.columns.named)
        return read_image_folder(folder, target, recipe.image_size, recipe.alone)
    if folder.format == "arrays":
        return _resize(recipe, read_arrays(folder.train[0], folder.class_names, recipe.columns, recipe.alone))
    return read_tables(recipe, folder, target)


def read_tables(recipe: Recipe, folder: Folder, target: Path) -> Samples:
    """The samples of a folder's tables; images and texts are written to the folder `target`."""
    columns, site = recipe.columns, bool(recipe.listed)
    samples = read_table_folder(folder, columns, target, image_size=recipe.image_size, site=site, alone=recipe.alone)
    if recipe.image_size and (isinstance(samples.inputs, Texts) or samples.columns):
        _refuse_size(recipe, "texts" if isinstance(samples.inputs, Texts) else "numbers")
    return samples


def _refuse_columns(recipe: Recipe, *settings: str) -> None:
    """Refuse these settings, which name columns, of a data set that has none."""
    for setting in settings:
        if setting in recipe.columns.named:
            raise DataError(
                f"{setting} is {recipe.columns.named[setting]!r}, but {recipe.dataset!r} is no table: leave {setting} "
                "empty."
            )


def _resize(recipe: Recipe, samples: Samples) -> Samples:
    """Images in memory at the size that is asked for, of full scale 255."""
    inputs = samples.inputs
    if not recipe.image_size or isinstance(inputs, Texts):
        return samples
    if inputs.ndim != 4 or inputs.dtype != np.uint8:
        _refuse_size(recipe, "numbers")
    size = recipe.image_size
    images = np.empty((len(inputs), inputs.shape[1], size, size), np.uint8)
    for row, image in enumerate(in_bytes(inputs, samples.scale)):
        images[row] = resized(image, size, size)
    return replace(samples, inputs=images, scale=255.0)


def _refuse_size(recipe: Recipe, content: str) -> None:
    raise DataError(
        f"image-size is {recipe.image_size}, but {recipe.dataset!r} holds {content} and no images: leave it 0."
    )
