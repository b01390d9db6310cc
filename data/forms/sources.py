"""Data sets by name, hub id or local path: arrays, or encoded images and texts in tables."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.files import LARGEST_ROW, refuse_irregular
from protosphere.core.paths import is_path
from protosphere.data.forms.arrays import Arrays
from protosphere.data.forms.columns import Columns, check_alike, check_strings, class_numbers, group_values, roles
from protosphere.data.forms.folders import TEST_SPLITS, Folder, read_folder
from protosphere.data.forms.images import is_readable
from protosphere.data.forms.independent_rows import usable
from protosphere.data.forms.spiral import NUM_CLASSES, spiral
from protosphere.data.forms.table_files import batches, types_of

if TYPE_CHECKING:
    import datasets
    import pyarrow

BUILT_IN = ("digits", "spiral")
_BATCH = 1000
# Short names for the papers' data sets: hub id and, where the hub has several, the configuration.
HUB = {
    "cifar10": ("uoft-cs/cifar10", None),
    "cifar100": ("uoft-cs/cifar100", None),
    "mnist": ("ylecun/mnist", None),
    "fashion_mnist": ("zalando-datasets/fashion_mnist", None),
    "tiny-imagenet": ("zh-plus/tiny-imagenet", None),
    "flowers102": ("nkirschi/oxford-flowers", None),
    "usps": ("flwrlabs/usps", None),
    "svhn": ("ufldl-stanford/svhn", "cropped_digits"),
    "mnist-m": ("Mike0307/MNIST-M", None),
    "femnist": ("flwrlabs/femnist", None),
}


@dataclass(frozen=True, eq=False)
class Source:
    """A data set of images or texts, not decoded yet; training rows first.

    Attributes:
        kind: what `tables` hold, by split, in the column `inputs`: "image", struct{bytes, path}; "text", strings.
        labels: (n,) int64 in 0..K-1. extra: further values of each row, (n,), by name.
    """

    name: str
    kind: str
    tables: Mapping[str, datasets.Dataset]
    labels: np.ndarray
    class_names: tuple[str, ...]
    extra: Mapping[str, np.ndarray]

    @property
    def train_rows(self) -> int:
        """How many are for training."""
        return len(self.tables["train"])

    def cells(self) -> Iterator[tuple[str, int, Any]]:
        """The inputs, Arrow's cells, each with its split and its row there."""
        for split, table in self.tables.items():
            row = 0
            for batch in table.with_format("arrow").iter(_BATCH):
                for cell in batch.column("inputs"):
                    yield split, row, cell
                    row += 1


def locate(dataset: str) -> str | Folder:
    """What a `dataset` setting names: a built-in or hub id, or a local folder. Reads no data.

    Raises:
        DataError: an unknown name, a path that does not exist, or a folder without images.
    """
    if is_path(dataset):
        return read_folder(Path(dataset).expanduser().resolve())
    if dataset in BUILT_IN:
        return dataset
    if dataset in HUB:
        return HUB[dataset][0]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", dataset):
        return dataset
    names = [*BUILT_IN, *HUB]
    near = difflib.get_close_matches(dataset.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? The names are" if near else "the names are"
    raise DataError(
        f"unknown data set {dataset!r}: {hint} {', '.join(names)}; a hub id has the form owner/name, and a local "
        "folder starts with /, ./, ../ or ~.",
    )


def built_in(name: str, points: int, noise: float, seed: int) -> Arrays:
    """One of BUILT_IN; `points`, `noise` and `seed` are of the spiral (spiral.py)."""
    if name == "spiral":
        positions, arms = spiral(points, noise, seed)
        return Arrays(positions, arms, len(arms), tuple(f"arm {k}" for k in range(NUM_CLASSES)), {})
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]
    return Arrays(images, bunch.target.astype(np.int64), len(images), tuple(map(str, range(10))), {}, scale=16.0)


def load_source(place: str | Folder, columns: Columns, cache_dir: Path, alone: bool = False) -> Source:
    """Open a data set of images or texts.

    Args:
        place: a hub id, or a folder of tables or images. Splits other than train and test (without one: validation)
            are left out.
        columns: the names of the columns, where they are not the usual ones.
        cache_dir: where `datasets` keeps what it downloads and unpacks.
        alone: whether each row is judged by itself (independent_rows.py).

    Raises:
        DataError: it cannot be fetched or read, or lacks inputs, usable labels or groups.
    """
    if isinstance(place, str):
        return _source(place, _from_hub(place, cache_dir), (), columns)
    if place.format in ("csv", "json"):
        splits = _from_text_files(place, columns, cache_dir)
    else:
        splits = _from_parquet(place, cache_dir) if place.format == "parquet" else _from_images(place)
    return _source(place.name, splits, place.class_names, columns, place.format, alone)


def _from_parquet(folder: Folder, cache_dir: Path) -> dict[str, datasets.Dataset]:
    import glob

    import datasets
    import pyarrow.parquet

    datasets.disable_progress_bars()
    tables = {}
    try:
        for split, paths in folder.splits.items():
            # `datasets` fails on tables without rows, and reads names as patterns
            full = [glob.escape(str(path)) for path in paths if pyarrow.parquet.read_metadata(path).num_rows]
            if full:
                tables[split] = datasets.load_dataset(
                    "parquet", data_files={split: full}, split=split, cache_dir=str(cache_dir)
                )
            else:
                tables[split] = datasets.Dataset(pyarrow.parquet.read_table(paths[0]))
    except Exception as error:
        raise DataError(
            f"the parquet files in {str(folder.root)!r} cannot be read ({_first_line(error)}): write them anew; all "
            "files of a table must have the same columns.",
        ) from error
    return tables


def _from_text_files(folder: Folder, columns: Columns, cache_dir: Path) -> dict[str, datasets.Dataset]:
    """The columns that matter, strictly read (table_files.py), as tables in memory maps of `cache_dir`."""
    import datasets
    import pyarrow

    name = folder.name
    types_by_path = {path: types_of(path) for path in (*folder.train, *folder.test)}
    first = types_by_path[folder.train[0]]
    schema = pyarrow.schema([(column, first[column]) for column in roles(name, first, columns, True)[1]])
    for path, types in types_by_path.items():
        lacking = [column for column in schema.names if column not in types]
        # a JSON file without rows has no columns either
        if lacking and (types or folder.format == "csv"):
            raise DataError(
                f"{str(path)!r} has the columns {', '.join(types)}, but {folder.train[0].name} "
                f"{' and '.join(schema.names)}: give all files the same columns.",
            )
    tables = {}
    cache_dir.mkdir(parents=True, exist_ok=True)
    for split, paths in folder.splits.items():
        file = cache_dir / f"{split}.arrow"
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, schema) as writer:
            for path in paths:
                for batch in batches(path, schema):
                    writer.write_batch(batch)
        tables[split] = datasets.Dataset.from_file(str(file))
    return tables


def _from_images(folder: Folder) -> dict[str, datasets.Dataset]:
    # Not `load_dataset("imagefolder")`: it takes `test` in a file's name for a split, drops the label where there
    # is one class only, and reads brackets in a path as a pattern.
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(folder.class_names))}
    )
    label_of = {name: label for label, name in enumerate(folder.class_names)}
    split = (folder.root / "train").is_dir()
    tables = {}
    for name, paths in folder.splits.items():
        labels = [label_of[path.relative_to(folder.root).parts[1 if split else 0]] for path in paths]
        columns = {"image": [_name_image(path) for path in paths], "label": labels}
        tables[name] = datasets.Dataset.from_dict(columns, features=features)
    return tables


def _name_image(path: Path) -> dict[str, Any]:
    """An image by its path, or, where that is no UTF-8, which Arrow would not take, by its bytes."""
    try:
        str(path).encode()
        return {"bytes": None, "path": str(path)}
    except UnicodeEncodeError:
        pass
    try:
        refuse_irregular(path, LARGEST_ROW)
        return {"bytes": path.read_bytes(), "path": None}
    except (OSError, DataError):
        # no image, as whoever opens it will find
        return {"bytes": b"", "path": None}


def _from_hub(hub_id: str, cache_dir: Path) -> dict[str, datasets.Dataset]:
    import datasets

    datasets.disable_progress_bars()
    config = next((config for name, config in HUB.values() if name == hub_id), None)
    try:
        with _quiet_hub(cache_dir / "hub"):
            splits = datasets.load_dataset(hub_id, config, cache_dir=str(cache_dir / "datasets"))
    except Exception as error:
        raise DataError(
            f"data set {hub_id!r} could not be fetched from the Hugging Face hub ({_first_line(error)}): check the "
            "name and the network, or set dataset to the path of a local folder (it starts with /, ./, ../ or ~) "
            "that holds its parquet files or images.",
        ) from error
    return dict(splits)


@contextmanager
def _quiet_hub(folder: Path) -> Iterator[None]:
    """Downloads of huggingface_hub go to `folder`, for which `datasets` has no parameter; and no attempt that failed is
    told, since the error has the last one's reason."""
    from huggingface_hub import constants
    from huggingface_hub.utils import logging

    before, constants.HF_HUB_CACHE = constants.HF_HUB_CACHE, str(folder)
    os.environ.setdefault("HF_XET_CACHE", str(folder / "xet"))
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        constants.HF_HUB_CACHE = before


def _first_line(error: BaseException) -> str:
    # `datasets` wraps the reason in "An error occurred while generating the dataset"
    reason = error.__cause__ if type(error).__name__ == "DatasetGenerationError" and error.__cause__ else error
    return f"{type(reason).__name__}: {(str(reason).strip().splitlines() or ['no reason given'])[0]}"


def _source(
    name: str,
    splits: dict[str, datasets.Dataset],
    class_names: tuple[str, ...],
    columns: Columns,
    form: str = "hub",
    alone: bool = False,
) -> Source:
    """The inputs of `splits`, with their labels and groups checked."""
    import datasets
    import pyarrow

    train = splits["train"] if "train" in splits else next(iter(splits.values()))
    test = next((splits[key] for key in TEST_SPLITS if key in splits and splits[key] is not train), None)
    tables = {"train": train} if test is None else {"train": train, "test": test}
    kind, role_by_column = roles(name, train.features, columns, form in ("csv", "json"))
    inputs, label, *extra = role_by_column
    if not class_names and isinstance(train.features[label], datasets.ClassLabel):
        class_names = tuple(train.features[label].names)
    check_alike(name, tables, role_by_column)
    values = {column: {split: _cells(table, column) for split, table in tables.items()} for column in (label, *extra)}
    if alone:
        read = is_readable if kind == "image" else _is_text
        for split, table in tables.items():
            groups = values[columns.group][split] if columns.group else None
            rows, numbers = usable(values[label][split], groups, _cells(table, inputs), read, class_names)
            tables[split] = table.select(rows)
            for column in extra:
                values[column][split] = values[column][split].take(rows)
            values[label][split] = pyarrow.chunked_array([numbers])
    is_text = kind == "text"
    labels, class_names = class_numbers(
        name, label, values[label], class_names, names=is_text, untyped=form in ("csv", "parquet")
    )
    extra_values = {column: group_values(name, column, values[column]) for column in extra}
    for split, table in tables.items():
        if is_text:
            check_strings(name, split, table, inputs)
        table = table.select_columns([inputs]).rename_columns({inputs: "inputs"})
        tables[split] = table if is_text else table.cast_column("inputs", datasets.Image(decode=False))
    return Source(name, kind, tables, labels, class_names, extra_values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _cells(table: datasets.Dataset, column: str) -> pyarrow.ChunkedArray:
    """One column of a table as it lies in memory."""
    import pyarrow

    if not len(table):
        return pyarrow.chunked_array([], pyarrow.null())
    return table.select_columns([column]).with_format("arrow")[:].column(column)
