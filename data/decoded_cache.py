"""The decoded cache: a data set as memory maps, decoded once per machine however many processes ask."""

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from protosphere.core.errors import DataError, StorageError, UnsizedError
from protosphere.core.files import KIND, opened, sealed
from protosphere.data.forms.arrays import Arrays, read_arrays
from protosphere.data.forms.columns import USUAL, Columns
from protosphere.data.forms.folders import SCHEMA, Folder, Listed, refuse_unlisted
from protosphere.data.forms.images import decode_images, in_bytes, resized
from protosphere.data.forms.sources import BUILT_IN, Source, built_in, load_source, locate
from protosphere.data.forms.tabular import Column, columns_of, is_numbers, read_table
from protosphere.data.forms.texts import CONTENT, Texts, write_texts
from protosphere.data.partition.groups import by_first
from protosphere.data.user_code import OwnCode, read_code

FORMAT = 4
# numbers of errors that are about a file that is to be read, where it is none of the cache's
OF_FILES = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP})
# no child of `protosphere`, whose lines a run shows
_log = logging.getLogger("data.decoded")
# path, inode, time and size of the files that this process has held against their digests: an entry is opened often
_checked: set[tuple[Path, int, int, int]] = set()


@dataclass(frozen=True, eq=False)
class Decoded:
    """A decoded data set. The training rows come first.

    `inputs` (n, ...) uint8 or float32, of images (n, C, H, W), a read-only memory map, or n Texts; `labels` (n,)
    int64; `scale` the value of a full-scale input; `key` changes whenever the data do; `groups` (n,) int64 is equal for
    rows that must stay together (`group` of the columns), None without such a column; `domains` (n,) int64 numbers the
    domain of each row in the order of `domain_names`, None where the data set is not of domains (domains.py);
    `columns`, of a table of numbers, say what its features are (tabular.py); `dealt` (n,) int64 numbers the values of
    the column by which rows are dealt, in their order, and `dealt_names` are these values.
    """

    key: str
    name: str
    inputs: np.ndarray | Texts
    labels: np.ndarray
    train_rows: int
    class_names: tuple[str, ...]
    scale: float
    groups: np.ndarray | None = None
    domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    dealt: np.ndarray | None = None
    dealt_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What decides one decoded data set; names and meaning are those of the settings.

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
            content = [str(place.root), place.class_names, place.state()]
        elif place == "spiral":
            content = [place, self.spiral_noise, self.spiral_points, self.seed]
        columns = {name: value for name, value in asdict(self.columns).items() if value or name != "partition"}
        more = [*(["alone"] if self.alone else []), *(["names"] if self.columns.partition else [])]
        return cache_key([content, columns, self.image_size, *more])


@contextmanager
def explained(dataset: str, cache_dir: Path) -> Iterator[None]:
    """While inside, data are read, whose libraries fail in ways of their own over a damaged or forged file.

    Raises:
        DataError: they cannot be read.
        OSError: the cache cannot be written.
    """
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError, MemoryError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in OF_FILES and str(cache_dir) not in str(error):
            raise DataError(
                f"the data {dataset!r} cannot be read ({os.strerror(number)}): let the user who runs this read all "
                "files there, and leave them in their place meanwhile.",
            ) from error
        # another number is the operating system's: of the disk, which is said as such
        if number is not None:
            raise
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError(
            f"the data {dataset!r} cannot be read ({problem}): a file there is damaged, or claims more than "
            "this machine holds; bring it back from a copy, or write it anew.",
        ) from error


def decode(recipe: Recipe, cache_dir: Path) -> Decoded:
    """The decoded data set of a recipe, from the cache in `cache_dir` or decoded into it now.

    The first process to come decodes and the others wait for it. A local folder is decoded anew when a file's size or
    time has changed, or the cached copy is incomplete. `image_size` above 0 brings all images to that square (and
    those of `digits` to 0..255 before, so that what lies between two pixels is not rounded to sixteenths).

    Raises:
        DataError: what load_source raises, an unreadable image, images of several sizes, an `image_size` of what holds
            no images, a row without text, an unwritable cache.
    """

    def write(partial: Path) -> None:
        with explained(recipe.dataset, cache_dir):
            _decode(recipe, partial, cache_dir)

    data = kept(cache_dir, recipe.key(), write)
    # an entry may have been made when nobody asked for a list
    place = locate(recipe.dataset) if data.columns and recipe.listed else None
    if isinstance(place, Folder) and not is_numbers(place, recipe.columns, site=True):
        raise DataError(
            f"{place.name!r} is a table of numbers without a {SCHEMA}: have `protosphere data --export-columns "
            f"{SCHEMA}` write one from samples that may be disclosed, and give all sites the same.",
        )
    return data


def cache_key(content: Any) -> str:
    """The key of a cache entry that `content` (plain lists, numbers and strings) decides."""
    return hashlib.sha256(json.dumps([FORMAT, content]).encode()).hexdigest()[:24]


def kept(cache_dir: Path, key: str, write: Callable[[Path], None]) -> Decoded:
    """The entry `key` of the cache in `cache_dir`, made by `write` if it is not there or not whole.

    One process writes and the others wait; it writes to a folder of its own, which gets the entry's name when it is
    whole and is gone after an error.

    Args:
        write: fills the empty folder that it is given, with `write_about` last.

    Raises:
        DataError: the cache cannot be written or read back; what `write` raises.
    """
    folder = _folder(cache_dir, key)
    data = _open(folder)
    if data is not None:
        return data
    with one_writer(cache_dir, folder):
        data = _open(folder)
        if data is None:
            if folder.exists():
                logging.getLogger("protosphere").warning(
                    "the decoded data in %s are not as they were written; they are made anew", folder
                )
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            try:
                partial.mkdir()
                write(partial)
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            data = _open(folder)
    if data is None:
        raise StorageError(
            f"the data cache {str(folder)!r} cannot be read back: its disk is full or faulty.",
        )
    return data


@contextmanager
def one_writer(cache_dir: Path, entry: Path) -> Iterator[None]:
    """While one process writes an entry of the cache in `cache_dir` the others wait.

    Raises:
        DataError: it cannot be written.
    """
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(entry.with_suffix(".lock")):
            yield
    except OSError as error:
        raise StorageError(
            f"the data cache {str(cache_dir)!r} cannot be written ({error.strerror or error}): free space there or "
            "set PROTOSPHERE_HOME to a folder of yours.",
        ) from error


def read_kept(cache_dir: Path, key: str) -> Decoded | None:
    """The entry `key` of the cache in `cache_dir`; None if it is not there or not whole."""
    return _open(_folder(cache_dir, key))


def _folder(cache_dir: Path, key: str) -> Path:
    return cache_dir / "decoded" / key


def write_about(
    partial: Path,
    name: str,
    train_rows: int,
    class_names: tuple[str, ...],
    scale: float,
    domain_names: tuple[str, ...] = (),
    columns: Sequence[Column] = (),
    dealt_names: tuple[str, ...] = (),
) -> None:
    """Make the folder `partial`, which holds the arrays, an entry: what is no array, and size and digest of every
    file."""
    files = [path for path in partial.iterdir() if path.is_file()]
    about = {
        "dataset": name,
        "train_rows": train_rows,
        "class_names": class_names,
        "scale": scale,
        "domain_names": domain_names,
        "columns": [column.as_json() for column in columns],
        "dealt_names": dealt_names,
        "sizes": {path.name: path.stat().st_size for path in files},
        "digests": {path.name: _digest(path) for path in files},
    }
    (partial / "about.json").write_text(json.dumps(sealed(about)), "utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return KIND + hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(path: Path, size: int, digest: str | None) -> bool:
    """Whether a file is the one that was written; its digest is worked out once a process. Entries of earlier versions
    have none."""
    status = path.stat()
    if status.st_size != size:
        return False
    state = path, status.st_ino, status.st_mtime_ns, status.st_size
    if digest is not None and state not in _checked:
        if _digest(path) != digest:
            return False
        _checked.add(state)
    return True


def _open(folder: Path) -> Decoded | None:
    """What lies in a cache folder; None if it is not there or not whole."""
    try:
        about = opened(json.loads((folder / "about.json").read_text("utf-8")), folder / "about.json", notice=False)
        digests = about.get("digests", {})
        if not all(_is_whole(folder / name, size, digests.get(name)) for name, size in about["sizes"].items()):
            return None
        return Decoded(
            key=folder.name,
            name=about["dataset"],
            inputs=Texts.open(folder) if CONTENT in about["sizes"] else np.load(folder / "inputs.npy", mmap_mode="r"),
            labels=np.load(folder / "labels.npy"),
            train_rows=about["train_rows"],
            class_names=tuple(about["class_names"]),
            scale=about["scale"],
            groups=np.load(folder / "groups.npy") if "groups.npy" in about["sizes"] else None,
            domains=np.load(folder / "domains.npy") if "domains.npy" in about["sizes"] else None,
            domain_names=tuple(about["domain_names"]),
            dealt=np.load(folder / "dealt.npy") if "dealt.npy" in about["sizes"] else None,
            dealt_names=tuple(about.get("dealt_names", ())),
            columns=columns_of(about.get("columns", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _decode(recipe: Recipe, partial: Path, cache_dir: Path) -> None:
    """Write the whole data set to the folder `partial`."""
    begin = time.perf_counter()
    place = locate(recipe.dataset) if recipe.code is None else recipe.code.name
    name = place.name if isinstance(place, Folder) else place
    with tempfile.TemporaryDirectory(dir=partial) as unpacked:
        # what was downloaded is worth keeping; what `datasets` copies from a local folder is not
        rows = open_rows(recipe, place, cache_dir if isinstance(place, str) else Path(unpacked))
        if recipe.alone and isinstance(rows, Source) and rows.kind == "image" and not recipe.image_size:
            # before images are looked at, whose sizes nobody is told
            raise UnsizedError("setting `image-size` is 0; under `privacy` a site's own images need one.")
        if not rows.labels.size and not recipe.alone:
            raise DataError(f"data set {name!r} has no samples: give it at least one.")
        write_rows(recipe, rows, name, partial)
    _log.info("decoded %s: %d samples in %.1f s", recipe.dataset, rows.labels.size, time.perf_counter() - begin)


def write_rows(
    recipe: Recipe,
    rows: Arrays | Source,
    name: str,
    partial: Path,
    domains: np.ndarray | None = None,
    domain_names: tuple[str, ...] = (),
) -> None:
    """Make an entry of a data set's rows in the folder `partial`.

    Args:
        rows: as `open_rows` gives them.
        domains: (n,) int64, the domain of each row, of those that `domain_names` name; None where there are none.
    """
    scale = _write_inputs(recipe, rows, partial)
    np.save(partial / "labels.npy", rows.labels)
    if domains is not None:
        np.save(partial / "domains.npy", domains)
    if recipe.columns.group:
        np.save(partial / "groups.npy", by_first(rows.extra[recipe.columns.group]))
    dealt_names: tuple[str, ...] = ()
    if recipe.columns.partition:
        values, numbers = np.unique(rows.extra[recipe.columns.partition], return_inverse=True)
        np.save(partial / "dealt.npy", numbers.astype(np.int64))
        dealt_names = tuple(map(str, values.tolist()))
    columns = rows.columns if isinstance(rows, Arrays) else ()
    write_about(partial, name, rows.train_rows, rows.class_names, scale, domain_names, columns, dealt_names)


def open_rows(recipe: Recipe, place: str | Folder, unpacked: Path) -> Arrays | Source:
    """The data set that lies at a place; `datasets` may write to `unpacked`."""
    columns = recipe.columns
    if recipe.code is not None:
        # columns of texts and labels may be those of other sites' tables
        _refuse_columns(recipe, "group-column", "partition-column")
        return read_code(recipe.code)
    if isinstance(place, str) and place in BUILT_IN:
        _refuse_columns(recipe, *columns.named)
        return built_in(place, recipe.spiral_points, recipe.spiral_noise, recipe.seed)
    if isinstance(place, Folder) and place.format == "images":
        _refuse_columns(recipe, *columns.named)
    if isinstance(place, Folder) and place.format == "arrays":
        return read_arrays(place.train[0], place.class_names, columns, recipe.alone)
    if isinstance(place, Folder) and is_numbers(place, columns, bool(recipe.listed)):
        return read_table(place, columns, recipe.alone)
    return load_source(place, columns, unpacked, recipe.alone)


def _refuse_columns(recipe: Recipe, *settings: str) -> None:
    """Refuse these settings, which name columns, of a data set that has none."""
    setting = next((setting for setting in settings if setting in recipe.columns.named), "")
    if setting:
        raise DataError(
            f"{setting} is {recipe.columns.named[setting]!r}, but {recipe.dataset!r} is no table: leave {setting} "
            "empty.",
        )


def _write_inputs(recipe: Recipe, rows: Arrays | Source, partial: Path) -> float:
    """Write the inputs to the folder `partial`; the value of a full-scale one."""
    if isinstance(rows, Arrays):
        inputs, scale = _resize(recipe, rows.inputs, rows.scale)
        np.save(partial / "inputs.npy", inputs)
        return scale
    if rows.kind == "image":
        decode_images(rows, partial / "inputs.npy", recipe.image_size, recipe.alone)
        return 255.0
    _refuse_size(recipe, "texts")
    write_texts(_texts(rows), partial)
    return 1.0


def _resize(recipe: Recipe, inputs: np.ndarray, scale: float) -> tuple[np.ndarray, float]:
    """Images at the size that is asked for, and their full scale."""
    if not recipe.image_size:
        return inputs, scale
    if inputs.ndim != 4 or inputs.dtype != np.uint8:
        _refuse_size(recipe, "numbers")
    square = (recipe.image_size, recipe.image_size)
    if not len(inputs):
        return np.empty((0, inputs.shape[1], *square), np.uint8), 255.0
    return np.stack([resized(image, *square) for image in in_bytes(inputs, scale)]), 255.0


def _refuse_size(recipe: Recipe, content: str) -> None:
    if recipe.image_size:
        raise DataError(
            f"image-size is {recipe.image_size}, but {recipe.dataset!r} holds {content} and no images: leave it 0.",
        )


def _texts(source: Source) -> Iterator[str]:
    """Each text, training rows first."""
    for split, row, cell in source.cells():
        try:
            text = cell.as_py()
        except UnicodeDecodeError:
            raise DataError(
                f"row {row} of the {split} table of {source.name!r} is not UTF-8: write its text in UTF-8.",
            ) from None
        if text is None or not text.strip():
            raise DataError(
                f"row {row} of the {split} table of {source.name!r} has no text: give it one or drop the row.",
            )
        yield text
