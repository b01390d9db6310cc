"""Data sets by name, hub id or local path, each as a train and a test table of inputs and labels."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data import DataError
from data.folders import TEST_SPLITS, Folder, read_folder
from data.spiral import NUM_CLASSES, spiral

if TYPE_CHECKING:
    import datasets

BUILT_IN = ("digits", "spiral")
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
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "character")


@dataclass(frozen=True)
class Source:
    """A data set, not decoded yet.

    Both tables have the columns `inputs` and `label` (int, 0..K−1). `inputs` is an encoded image, struct{bytes,
    path}, where `encoded`, else an array of one shape: uint8 (C, H, W) or float32 (F,). `scale` is the value that a
    full-scale input has (255 for images, 16 for digits, 1 for plain numbers).
    """

    name: str
    train: datasets.Dataset
    test: datasets.Dataset | None
    class_names: tuple[str, ...]
    encoded: bool
    scale: float


def is_path(dataset: str) -> bool:
    """Whether a `dataset` setting names a local folder: it starts with `/`, `./`, `../` or `~`."""
    return dataset.startswith(("/", "./", "../", "~"))


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
        "folder starts with /, ./, ../ or ~."
    )


def load_source(
    dataset: str, cache_dir: Path, *, spiral_noise: float = 0.2, spiral_points: int = 1000, seed: int = 0
) -> Source:
    """Open a data set.

    Args:
        dataset: `digits`, `spiral`, a short name of HUB, a hub id owner/name, or the path of a folder: of parquet
            files (train*.parquet, test*.parquet; an image and a label column) or of images
            (train/<class>/*.png and test/<class>/*.png, or <class>/*.png). `classes.txt` in a folder names the
            classes, one a line, in label order. Splits other than train and test (without one: validation) are
            left out.
        cache_dir: where `datasets` keeps what it downloads and unpacks.
        spiral_noise, spiral_points, seed: of the spiral (spiral.py).

    Raises:
        DataError: the data set is unknown, cannot be fetched, or lacks images or usable labels.
    """
    place = locate(dataset)
    if place == "digits":
        return _digits()
    if place == "spiral":
        return _spiral(spiral_points, spiral_noise, seed)
    if isinstance(place, str):
        splits = _from_hub(place, cache_dir)
        return _source(place, splits, ())
    splits = _from_parquet(place, cache_dir) if place.parquet else _from_images(place)
    return _source(str(place.root), splits, place.class_names)


def _digits() -> Source:
    import datasets
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]
    features = datasets.Features(
        {"inputs": datasets.Array3D(images.shape[1:], "uint8"), "label": datasets.Value("int64")}
    )
    table = datasets.Dataset.from_dict({"inputs": images, "label": bunch.target}, features=features)
    return Source("digits", table, None, tuple(str(k) for k in range(10)), False, 16.0)


def _spiral(points: int, noise: float, seed: int) -> Source:
    import datasets

    positions, arms = spiral(points, noise, seed)
    features = datasets.Features(
        {"inputs": datasets.List(datasets.Value("float32"), 2), "label": datasets.Value("int64")}
    )
    table = datasets.Dataset.from_dict({"inputs": positions, "label": arms}, features=features)
    return Source("spiral", table, None, tuple(f"arm {k}" for k in range(NUM_CLASSES)), False, 1.0)


def _from_parquet(folder: Folder, cache_dir: Path) -> dict[str, datasets.Dataset]:
    import glob

    import datasets
    import pyarrow.parquet

    datasets.disable_progress_bars()
    tables = {}
    try:
        for split, paths in (("train", folder.train), ("test", folder.test)):
            # `datasets` fails on tables without rows, and reads names as patterns
            full = [glob.escape(str(path)) for path in paths if pyarrow.parquet.read_metadata(path).num_rows]
            if full:
                tables[split] = datasets.load_dataset(
                    "parquet", data_files={split: full}, split=split, cache_dir=str(cache_dir)
                )
            elif paths:
                tables[split] = datasets.Dataset(pyarrow.parquet.read_table(paths[0]))
    except Exception as error:
        raise DataError(
            f"the parquet files in {str(folder.root)!r} cannot be read ({_first_line(error)}): write them anew; all "
            "files of a table must have the same columns."
        ) from error
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
    for name, paths in (("train", folder.train), ("test", folder.test)):
        if name == "test" and not paths:
            continue
        labels = [label_of[path.relative_to(folder.root).parts[1 if split else 0]] for path in paths]
        columns = {"image": [str(path) for path in paths], "label": labels}
        tables[name] = datasets.Dataset.from_dict(columns, features=features)
    return tables


def _from_hub(hub_id: str, cache_dir: Path) -> dict[str, datasets.Dataset]:
    import datasets

    datasets.disable_progress_bars()
    config = next((config for name, config in HUB.values() if name == hub_id), None)
    try:
        with _hub_cache(cache_dir / "hub"):
            splits = datasets.load_dataset(hub_id, config, cache_dir=str(cache_dir / "datasets"))
    except Exception as error:
        raise DataError(
            f"data set {hub_id!r} could not be fetched from the Hugging Face hub ({_first_line(error)}): check the "
            "name and the network, or set dataset to the path of a local folder (it starts with /, ./, ../ or ~) "
            "that holds its parquet files or images."
        ) from error
    return dict(splits)


@contextmanager
def _hub_cache(folder: Path) -> Iterator[None]:
    """Downloads of huggingface_hub go to `folder`; `datasets` has no parameter that does this."""
    from huggingface_hub import constants

    before, constants.HF_HUB_CACHE = constants.HF_HUB_CACHE, str(folder)
    os.environ.setdefault("HF_XET_CACHE", str(folder / "xet"))
    try:
        yield
    finally:
        constants.HF_HUB_CACHE = before


def _first_line(error: BaseException) -> str:
    # `datasets` wraps the reason in "An error occurred while generating the dataset"
    reason = error.__cause__ if type(error).__name__ == "DatasetGenerationError" and error.__cause__ else error
    return f"{type(reason).__name__}: {(str(reason).strip().splitlines() or ['no reason given'])[0]}"


def _source(name: str, splits: dict[str, datasets.Dataset], class_names: tuple[str, ...]) -> Source:
    """The tables of `splits` cut down to `inputs` and `label`, their labels checked."""
    import datasets

    train = splits["train"] if "train" in splits else next(iter(splits.values()))
    test = next((splits[key] for key in TEST_SPLITS if key in splits and splits[key] is not train), None)
    image, label = _image_column(name, train), _label_column(name, train)
    feature = train.features[label]
    if not class_names and isinstance(feature, datasets.ClassLabel):
        class_names = tuple(feature.names)
    tables = {"train": train} if test is None else {"train": train, "test": test}
    largest = max(_check_labels(name, split, table, label, class_names) for split, table in tables.items())
    chosen = {}
    for split, table in tables.items():
        columns = {image: "inputs", label: "label"}
        if not set(columns) <= set(table.column_names):
            raise DataError(
                f"the {split} table of {name!r} has the columns {', '.join(table.column_names)}, but the train table "
                f"{image} and {label}: give both tables the same columns."
            )
        renamed = table.select_columns(list(columns)).rename_columns(columns)
        chosen[split] = renamed.cast_column("inputs", datasets.Image(decode=False))
    class_names = class_names or tuple(str(k) for k in range(largest + 1))
    return Source(name, chosen["train"], chosen.get("test"), class_names, True, 255.0)


def _image_column(name: str, table: datasets.Dataset) -> str:
    import datasets

    typed = [column for column, feature in table.features.items() if isinstance(feature, datasets.Image)]
    named = [column for column in IMAGE_COLUMNS if _holds_images(table.features.get(column))]
    if not typed and not named:
        raise DataError(
            f"{name!r} has no image column; its columns are {', '.join(table.column_names)}: name "
            f"one {IMAGE_COLUMNS[0]} with encoded images as struct{{bytes, path}}."
        )
    return (typed or named)[0]


def _holds_images(feature: Any) -> bool:
    return isinstance(feature, dict) and "bytes" in feature


def _label_column(name: str, table: datasets.Dataset) -> str:
    column = next((column for column in LABEL_COLUMNS if column in table.column_names), None)
    if column is None:
        raise DataError(
            f"{name!r} has no label column; its columns are {', '.join(table.column_names)}: name the one with the "
            f"class numbers {LABEL_COLUMNS[0]}."
        )
    return column


def column_values(table: datasets.Dataset, column: str) -> Any:
    """One column of a table as it lies in memory: a pyarrow ChunkedArray."""
    return table.select_columns([column]).with_format("arrow")[:].column(column)


def _check_labels(name: str, split: str, table: datasets.Dataset, column: str, class_names: tuple[str, ...]) -> int:
    """The largest label of a table (−1 for an empty one); an error names the first row with an unusable label."""
    if column not in table.column_names or not len(table):
        return -1
    values = column_values(table, column)
    if not str(values.type).startswith(("int", "uint")):
        raise DataError(
            f"column {column!r} of {name!r} holds {values.type}, but labels must be class numbers 0, 1, 2, …."
        )
    missing = np.flatnonzero(values.is_null().to_numpy())
    if missing.size:
        raise DataError(f"row {missing[0]} of the {split} table of {name!r} has no label: give it one or drop the row.")
    labels = values.to_numpy()
    allowed = (
        f"0 to {len(class_names) - 1}, since there are {len(class_names)} class names" if class_names else "0 or more"
    )
    wrong = np.flatnonzero((labels < 0) | (labels >= len(class_names) if class_names else False))
    if wrong.size:
        raise DataError(
            f"row {wrong[0]} of the {split} table of {name!r} has the label {labels[wrong[0]]}, but labels must be "
            f"{allowed}: correct the row or the class names."
        )
    return int(labels.max())
