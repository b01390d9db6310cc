"""Data sets by name, hub id or local path, and the reading of built-in and hub data sets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.paths import is_path
from protosphere.data.forms.folders import TEST_SPLITS, Folder, read_folder
from protosphere.data.forms.spiral import NUM_CLASSES, spiral
from protosphere.data.forms.tables import open_hub, read_tables
from protosphere.data.samples import Samples
from protosphere.data.spec import DataSpec

if TYPE_CHECKING:
    import datasets

BUILT_IN = ("digits", "spiral")
# short names of the papers' data sets -> the hub id and, if there are several, the configuration
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
    """The local folder, or the name of the built-in or hub data set, that a `dataset` setting names."""
    if is_path(dataset):
        # files next to a link belong to it, not those next to its target
        return read_folder(Path(os.path.abspath(os.path.expanduser(dataset))))
    if dataset in BUILT_IN:
        return dataset
    if dataset in HUB:
        return HUB[dataset][0]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", dataset):
        return dataset
    raise DataError(
        f"unknown data set {dataset!r}: the names are {', '.join([*BUILT_IN, *HUB])}; a hub id has the form "
        "owner/name, and a local folder starts with /, ./, ../ or ~."
    )


def read_built_in(name: str, points: int, noise: float, seed: int) -> Samples:
    """A data set of BUILT_IN; `points`, `noise` and `seed` are of the spiral."""
    if name == "spiral":
        positions, arms = spiral(points, noise, seed)
        return Samples(name, positions, arms, len(arms), tuple(f"arm {k}" for k in range(NUM_CLASSES)))
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    return Samples(name, images, labels, len(images), tuple(map(str, range(10))), scale=16.0)


def read_hub(hub_id: str, spec: DataSpec, target: Path, cache_dir: Path) -> Samples:
    """Images or texts of the Hugging Face hub, which are written to the folder `target`.

    The test split is `test` or, without one, `validation`; other splits are left out.
    """
    splits = _fetch(hub_id, cache_dir)
    train = "train" if "train" in splits else next(iter(splits))
    test = next((name for name in TEST_SPLITS if name in splits and name != train), "")
    return read_tables(open_hub(hub_id, splits, train, test), spec, target)


def _fetch(hub_id: str, cache_dir: Path) -> dict[str, datasets.Dataset]:
    import datasets

    datasets.disable_progress_bars()
    config = dict(HUB.values()).get(hub_id)
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
    """Let huggingface_hub download to `folder`, which `datasets` cannot set, without logging failed attempts."""
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
