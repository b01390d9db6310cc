"""Decodes the data of a spec into samples in the cache, once per machine for all its processes."""

import errno
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.paths import is_path, is_several
from protosphere.data.cache import cached, make_key
from protosphere.data.domains import are_tables, domains_of, for_each, join_arrays, join_tables, locate_all
from protosphere.data.forms.arrays import read_arrays
from protosphere.data.forms.folders import Folder, refuse_unlisted
from protosphere.data.forms.images import in_bytes, refuse_image_size, resized
from protosphere.data.forms.sources import BUILT_IN, locate, read_built_in, read_hub
from protosphere.data.forms.tables import open_folder, read_tables
from protosphere.data.forms.texts import Texts
from protosphere.data.samples import Samples
from protosphere.data.spec import DataSpec
from protosphere.data.user_code import read_code

# operating system errors that only writing causes
OF_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
# not a child of `protosphere`, whose lines a run prints
_log = logging.getLogger("data.decode")


def data_key(spec: DataSpec) -> str:
    """The key of a spec's cache entry; it changes with every setting, and with a local file's size or time."""
    domains = domains_of(spec.dataset) if spec.code is None else ()
    if domains:
        locate_all(spec.dataset)
        keys = for_each(domains, lambda dataset: data_key(replace(spec, dataset=dataset)))
        return make_key(["domains", list(keys.items()), spec.classes])

    place = locate(spec.dataset) if spec.code is None else ""
    content: Any = place
    if spec.code is not None:
        content = ["code", asdict(spec.code)]
    elif isinstance(place, Folder):
        # a link may be redirected to other files of the same sizes and times
        content = [place.name, os.path.realpath(place.name), place.class_names, place.state()]
    elif place == "spiral":
        content = [place, spec.spiral_noise, spec.spiral_points, spec.seed]
    return make_key([content, asdict(spec.columns), spec.image_size, spec.independent, spec.listed])


def open_data(spec: DataSpec, cache_dir: Path, data_path: str | None = None) -> Samples:
    """The decoded data set or domains of a spec, or a client's own data at `data_path`, from the cache in `cache_dir`.

    If `image_size` is above 0, all images are resized to that square and to a full scale of 255.
    """
    cache_dir = Path(cache_dir)
    if data_path is not None:
        spec = replace(spec, dataset=data_path, columns=replace(spec.columns, partition=""))
        if spec.code is None and not is_path(data_path):
            raise DataError(f"data-path is {data_path!r}, but a path must start with /, ./, ../ or ~.")
        if spec.code is None and is_several(data_path):
            raise DataError(
                f"the data path {data_path!r} names several data sets, but a client's own data are one folder: name "
                "that."
            )

    def read(target: Path) -> Samples:
        begin = time.perf_counter()
        with explaining(spec.dataset, cache_dir):
            samples = _read(spec, target, cache_dir)
        if not len(samples.labels) and not spec.independent:
            raise DataError(f"data set {samples.name!r} has no samples: give it at least one.")
        _log.info("decoded %s: %d samples in %.1f s", spec.dataset, len(samples.labels), time.perf_counter() - begin)
        return samples

    return cached(cache_dir, data_key(spec), read)


def _read(spec: DataSpec, target: Path, cache_dir: Path) -> Samples:
    """The samples of a spec; large ones are written to the folder `target`."""
    columns = spec.columns
    if spec.code is not None:
        # text and label columns may be those of other sites' tables
        _refuse_columns(spec, "group-column", "partition-column")
        return _resize(spec, read_code(spec.code))

    domains = domains_of(spec.dataset)
    if domains and are_tables(spec.dataset):
        return join_tables(spec, target)
    if domains:
        data_sets = for_each(domains, lambda dataset: open_data(replace(spec, dataset=dataset), cache_dir))
        return join_arrays(spec, data_sets, target)
    place = locate(spec.dataset)
    if isinstance(place, Folder):
        refuse_unlisted(place, spec.listed)
        if place.format == "arrays":
            return _resize(spec, read_arrays(place.train[0], place.class_names, columns, spec.independent))
        if place.format == "images":
            _refuse_columns(spec, *columns.named)
        return read_tables(open_folder(place, spec.independent), spec, target)
    if place not in BUILT_IN:
        return read_hub(place, spec, target, cache_dir)
    _refuse_columns(spec, *columns.named)
    return _resize(spec, read_built_in(place, spec.spiral_points, spec.spiral_noise, spec.seed))


def _refuse_columns(spec: DataSpec, *settings: str) -> None:
    """Refuse settings that name columns of a data set without columns."""
    for setting in settings:
        if setting in spec.columns.named:
            column = spec.columns.named[setting]
            raise DataError(f"{setting} is {column!r}, but {spec.dataset!r} is no table: leave it empty.")


def _resize(spec: DataSpec, samples: Samples) -> Samples:
    """Resize images in memory, with a full scale of 255."""
    inputs, size = samples.inputs, spec.image_size
    if not size or isinstance(inputs, Texts):
        return samples
    if inputs.ndim != 4 or inputs.dtype != np.uint8:
        refuse_image_size(spec.dataset, size, "numbers")
    images = np.empty((len(inputs), inputs.shape[1], size, size), np.uint8)
    # scale first, so that interpolated values are not rounded to sixteenths
    for row, image in enumerate(in_bytes(inputs, samples.scale)):
        images[row] = resized(image, size, size)
    return replace(samples, inputs=images, scale=255.0)


@contextmanager
def explaining(dataset: str, cache_dir: Path) -> Iterator[None]:
    """While inside, errors of the operating system and of Arrow become one sentence about the data set.

    Raises:
        DataError: the data cannot be read.
        OSError: the cache cannot be written.
    """
    try:
        yield
    except Exception as error:
        # if Arrow is not imported, it has raised no error
        arrow = sys.modules.get("pyarrow")
        of_arrow = (arrow.ArrowException,) if arrow else ()
        if not isinstance(error, (OSError, MemoryError, UnicodeDecodeError, *of_arrow)):
            raise
        number = error.errno if isinstance(error, OSError) else None
        if number is not None and (number in OF_WRITING or str(cache_dir) in str(error)):
            raise
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        remedy = "a file there is damaged, or claims more than this machine holds; restore it, or write it anew"
        if number is not None:
            problem = os.strerror(number)
            remedy = "see that this user may read all files there, and that their disk is whole"
        raise DataError(f"the data {dataset!r} cannot be read ({problem}): {remedy}.") from error
