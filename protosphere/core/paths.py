"""Parsing of a `dataset` setting: a name, a local path, a list of these, or all subfolders of a folder."""

import os
from pathlib import Path

from protosphere.core.errors import DataError

EVERY = "*"


def is_path(dataset: str) -> bool:
    """Whether a `dataset` setting is a local path."""
    return dataset.startswith(("/", "./", "../", "~"))


def listed(dataset: str) -> tuple[str, ...]:
    """The data sets of a `dataset` setting: `items_of`, of which none may be empty (DataError)."""
    items = items_of(dataset)
    if len(items) > 1 and "" in items:
        raise DataError(f"dataset is {dataset!r}, a list with an empty item: remove the extra comma.")
    return items


def is_several(dataset: str) -> bool:
    """Whether a `dataset` setting is a list or `<folder>/*`."""
    items = items_of(dataset)
    return len(items) > 1 or is_every(items[0])


def items_of(dataset: str) -> tuple[str, ...]:
    """The items between commas. A path that exists is one data set, and so is `<folder>/*` of such a folder."""
    if "," not in dataset:
        return (dataset,)
    root = os.path.dirname(dataset) if is_every(dataset) else dataset
    if is_path(dataset) and os.path.exists(os.path.expanduser(root)):
        return (dataset,)
    return tuple(item.strip() for item in dataset.split(","))


def is_every(item: str) -> bool:
    """Whether an item is `<folder>/*`."""
    return is_path(item) and Path(item).name == EVERY
