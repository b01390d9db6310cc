"""The decoded cache: a data set as memory maps, decoded once per machine however many processes ask."""

import hashlib
import io
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from PIL import Image

from data import DataError
from data.columns import USUAL, Columns, column_values
from data.folders import Folder
from data.sources import Source, load_source, locate
from data.texts import CONTENT, Texts, write_texts

FORMAT = 2
_GREY = ("1", "L", "LA", "La")
_TOO_DEEP = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
_BATCH = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Decoded:
    """A decoded data set. The training rows come first.

    `inputs` (n, C, H, W) uint8 or (n, F) float32, a read-only memory map, or n Texts; `labels` (n,) int64; `scale` the
    value of a full-scale input; `key` changes whenever the data do; `groups` (n,) int64 is equal for rows that must
    stay together (`group` of the columns), None without such a column.
    """

    key: str
    name: str
    inputs: np.ndarray | Texts
    labels: np.ndarray
    train_rows: int
    class_names: tuple[str, ...]
    scale: float
    groups: np.ndarray | None = None


def decoded(
    dataset: str,
    cache_dir: Path,
    *,
    columns: Columns = USUAL,
    spiral_noise: float = 0.2,
    spiral_points: int = 1000,
    seed: int = 0,
) -> Decoded:
    """The decoded data set `dataset` (sources.py), from the cache in `cache_dir` or decoded into it now.

    The first process to come decodes and the others wait for it. A local folder is decoded anew when a file's size or
    time has changed, or the cached copy is incomplete.

    Raises:
        DataError: what load_source raises, an unreadable image, images of several sizes, a row without
            text, an unwritable cache.
    """
    key = _key(dataset, columns, spiral_noise, spiral_points, seed)
    folder = cache_dir / "decoded" / key
    found = _open(folder)
    if found is not None:
        return found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            found = _open(folder)
            if found is None:
                partial = folder.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)
                try:
                    _decode(dataset, partial, cache_dir, columns, spiral_noise, spiral_points, seed)
                    shutil.rmtree(folder, ignore_errors=True)
                    os.rename(partial, folder)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
                found = _open(folder)
    except OSError as error:
        raise DataError(
            f"the data cache {str(cache_dir)!r} cannot be written ({error.strerror or error}): free space there or "
            "give another folder."
        ) from error
    if found is None:
        raise DataError(f"the data cache {str(folder)!r} cannot be read back: its disk is full or faulty.")
    return found


def _key(dataset: str, columns: Columns, spiral_noise: float, spiral_points: int, seed: int) -> str:
    place = locate(dataset)
    content: Any = place
    if isinstance(place, Folder):
        content = [str(place.root), place.class_names, place.state()]
    elif place == "spiral":
        content = [place, spiral_noise, spiral_points, seed]
    return hashlib.sha256(json.dumps([FORMAT, content, asdict(columns)]).encode()).hexdigest()[:24]


def _open(folder: Path) -> Decoded | None:
    """What lies in a cache folder; None if it is not there or not whole."""
    try:
        about = json.loads((folder / "about.json").read_text("utf-8"))
        if any((folder / name).stat().st_size != size for name, size in about["sizes"].items()):
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
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _decode(
    dataset: str,
    partial: Path,
    cache_dir: Path,
    columns: Columns,
    spiral_noise: float,
    spiral_points: int,
    seed: int,
) -> None:
    """Write the whole data set to the folder `partial`."""
    begin = time.perf_counter()
    unpacked = partial / "unpacked"
    unpacked.mkdir(parents=True)
    # What was downloaded is worth keeping; what `datasets` copies from a local folder is not.
    keep = cache_dir if isinstance(locate(dataset), str) else unpacked
    source = load_source(
        dataset, keep, columns=columns, spiral_noise=spiral_noise, spiral_points=spiral_points, seed=seed
    )
    tables = [table for table in (source.train, source.test) if table is not None]
    labels = np.concatenate([column_values(table, "label").to_numpy() for table in tables]).astype(np.int64)
    if not labels.size:
        raise DataError(f"data set {dataset!r} has no rows: give it at least one.")
    np.save(partial / "labels.npy", labels)
    if columns.group:
        np.save(partial / "groups.npy", _group_codes(tables))
    if source.kind == "image":
        _decode_images(source, partial / "inputs.npy")
    elif source.kind == "text":
        write_texts(_texts(source), partial)
    else:
        inputs = np.concatenate([table.with_format("numpy")[:]["inputs"] for table in tables])
        # the format hands out int64 whatever the column holds
        np.save(partial / "inputs.npy", inputs.astype(np.float32 if inputs.dtype.kind == "f" else np.uint8))
    about = {
        "dataset": source.name,
        "train_rows": len(source.train),
        "class_names": source.class_names,
        "scale": source.scale,
        "sizes": {path.name: path.stat().st_size for path in partial.iterdir() if path.is_file()},
    }
    del source, tables
    shutil.rmtree(unpacked, ignore_errors=True)
    (partial / "about.json").write_text(json.dumps(about), "utf-8")
    _log.info("decoded %s: %d rows in %.1f s", dataset, labels.size, time.perf_counter() - begin)


def _group_codes(tables: list[Any]) -> np.ndarray:
    """A number for each group, by its first row; (n,) int64 over all rows of `tables`."""
    import pyarrow

    # a table without rows may be of another type
    values = [column_values(table, "group").cast("string") for table in tables if len(table)]
    chunks = [chunk for each in values for chunk in each.chunks]
    codes = pyarrow.concat_arrays(chunks).dictionary_encode().indices
    return codes.to_numpy(zero_copy_only=False).astype(np.int64)


def _texts(source: Source) -> Iterator[str]:
    """Each text, training rows first."""
    for split, table in (("train", source.train), ("test", source.test)):
        if table is None:
            continue
        row = 0
        for batch in table.select_columns(["inputs"]).with_format("arrow").iter(_BATCH):
            for value in batch.column("inputs"):
                where = f"row {row} of the {split} table of {source.name!r}"
                try:
                    text = value.as_py()
                except UnicodeDecodeError:
                    raise DataError(f"{where} is not UTF-8: write its text in UTF-8.") from None
                if text is None or not text.strip():
                    raise DataError(f"{where} has no text: give it one or drop the row.")
                yield text
                row += 1


def _decode_images(source: Source, target: Path) -> None:
    """Write all images, one channel if all are grey, else three, to the array file `target`."""
    first: tuple[str, tuple[int, int]] | None = None
    grey = True
    rows = 0
    for where, image in _images(source):
        rows += 1
        if image.mode in _TOO_DEEP:
            raise DataError(
                f"{where} has pixels of mode {image.mode}, but images must have 8 bits a channel: convert it first."
            )
        grey = grey and image.mode in _GREY
        first = first or (where, image.size)
        if image.size != first[1]:
            raise DataError(
                f"{where} is {_size(image.size)} pixels but {first[0]} {_size(first[1])}: the images of a data set "
                "must have one size, so resize them first."
            )
    width, height = first[1] if first else (0, 0)
    shape = (rows, 1 if grey else 3, height, width)
    inputs = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=shape)
    for row, (where, image) in enumerate(_images(source)):
        try:
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
        except Exception as error:
            raise _unreadable(where, error) from error
        inputs[row] = pixels[None] if grey else pixels.transpose(2, 0, 1)
    inputs.flush()


def _images(source: Source) -> Iterator[tuple[str, Image.Image]]:
    """Each image, its header read and its pixels not yet, with the words that name it; training rows first."""
    for split, table in (("train", source.train), ("test", source.test)):
        if table is None:
            continue
        row = 0
        for batch in table.select_columns(["inputs"]).with_format("arrow").iter(_BATCH):
            for item in batch.column("inputs").to_pylist():
                content, path = (item["bytes"], item["path"]) if item else (None, None)
                where = f"row {row} of the {split} table of {source.name!r}" + (f" ({path})" if path else "")
                try:
                    if content is None:
                        # A path without bytes is a file; read here, so that no file stays open.
                        content = Path(path or "").read_bytes()
                    yield where, Image.open(io.BytesIO(content))
                except Exception as error:
                    raise _unreadable(where, error) from error
                row += 1


def _unreadable(where: str, error: Exception) -> DataError:
    return DataError(f"{where} is no readable image ({type(error).__name__}: {error}): replace it or drop the row.")


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"
