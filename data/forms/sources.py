"""Data sets by name, hub id or local path, and those that come with this package or from the hub."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.paths import is_path
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.folders import TEST_SPLITS, Folder, read_folder
from protosphere.data.forms.spiral import NUM_CLASSES, spiral
from protosphere.data.forms.tables import HubSplit, Split, TableReader, features_of_schema
from protosphere.data.samples import Samples

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


def locate(dataset: str) -> str | Folder:
    """What a `dataset` setting names: a built-in or hub id, or a local folder. Reads no data.

    Raises:
        DataError: an unknown name, a path that does not exist, or a folder without data.
    """
    if is_path(dataset):
        # what lies beside a link to a file is beside the link
        return read_folder(Path(os.path.abspath(os.path.expanduser(dataset))))
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


def read_built_in(name: str, points: int, noise: float, seed: int) -> Samples:
    """One of BUILT_IN; `points`, `noise` and `seed` are of the spiral (spiral.py)."""
    if name == "spiral":
        positions, arms = spiral(points, noise, seed)
        return Samples(name, positions, arms, len(arms), tuple(f"arm {k}" for k in range(NUM_CLASSES)))
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    return Samples(name, images, labels, len(images), tuple(map(str, range(10))), scale=16.0)


def read_hub(hub_id: str, columns: Columns, target: Path, cache_dir: Path, image_size: int = 0) -> Samples:
    """Images or texts of the Hugging Face hub, which are written to the folder `target`.

    The test split is `test`, or without one `validation`; other splits are left out.

    Raises:
        DataError: it cannot be fetched; what TableReader raises.
    """
    tables = _fetch(hub_id, cache_dir)
    train = tables.get("train", next(iter(tables.values())))
    splits: dict[str, Split] = {"train": HubSplit(hub_id, train)}
    for name in TEST_SPLITS:
        if name in tables and tables[name] is not train:
            splits["test"] = HubSplit(hub_id, tables[name])
            break
    features = features_of_schema(train.features.arrow_schema)
    return TableReader(hub_id, splits, columns, features=features, image_size=image_size).read_inputs(target)


def _fetch(hub_id: str, cache_dir: Path) -> dict[str, datasets.Dataset]:
    import datasets

    datasets.disable_progress_bars()
    config = next((config for name, config in HUB.values() if name == hub_id), None)
    try:
        with _quiet_hub(cache_dir / "hub"):
            splits = datasets.load_dataset(hub_id, config, cache_dir=str(cache_dir / "datasets"))
    except Exception as error:
        # `datasets` wraps the reason in "An error occurred while generating the dataset"
        is_wrapped = type(error).__name__ == "DatasetGenerationError" and error.__cause__
        reason = error.__cause__ if is_wrapped else error
        first_line = (str(reason).strip().splitlines() or ["no reason given"])[0]
        raise DataError(
            f"data set {hub_id!r} could not be fetched from the Hugging Face hub ({type(reason).__name__}: "
            f"{first_line}): check the name and the network, or set dataset to the path of a local folder (it starts "
            "with /, ./, ../ or ~) that holds its parquet files or images."
        ) from error
    return dict(splits)


@contextmanager
def _quiet_hub(folder: Path) -> Iterator[None]:
    """Downloads of huggingface_hub go to `folder`, for which `datasets` has no parameter; and no line says that an
    attempt failed, since the error has the last one's reason."""
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
