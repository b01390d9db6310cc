"""Inputs whose classes are known, and how a trained client fares on them."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protosphere.core.errors import SettingError
from protosphere.core.files import refuse_irregular
from protosphere.core.settings import shown
from protosphere.core.text import class_words
from protosphere.data.forms.columns import IMAGE_COLUMNS, LABEL_COLUMNS, TEXT_COLUMNS
from protosphere.data.forms.folders import IMAGE_SUFFIXES, is_visible
from protosphere.data.forms.table_files import json_rows
from protosphere.serving.predict import Answer, Input, Trained, predict

TABLES = (".csv", ".parquet", ".jsonl")
TEXT_SUFFIXES = (".txt",)
FILE_COLUMNS = ("file", "file_name", "filename", "path")


@dataclass(frozen=True)
class Labelled:
    """An input, by what name it goes, and its class."""

    name: str
    source: Input
    label: int


def holds_labels(path: Path) -> bool:
    """Whether a path is taken for inputs with their classes: a folder, or a table."""
    return path.is_dir() or path.suffix.lower() in TABLES


def read_labelled(trained: Trained, path: Path, label_column: str = "") -> list[Labelled]:
    """The inputs in a folder's subfolders, each named by its class, or in the rows of a table.

    Of a table a row has its class (by name, or by number) and an image, an image's file beside the table, or a text.

    Args:
        label_column: of a table; "" for the usual names.

    Raises:
        SettingError: there is none, or a class that the client does not know.
    """
    inputs = _in_folder(trained, path) if path.is_dir() else _in_table(trained, path, label_column)
    if not inputs:
        raise SettingError(
            f"{path} holds no input with its class; a folder needs subfolders named by class "
            f"({class_words(range(len(trained.class_names)), trained.class_names)}), a table rows."
        )
    return inputs


def _in_folder(trained: Trained, folder: Path) -> list[Labelled]:
    suffixes = TEXT_SUFFIXES if trained.tokens else IMAGE_SUFFIXES
    inputs = []
    for place in sorted(
        subfolder for subfolder in folder.iterdir() if subfolder.is_dir() and is_visible(subfolder.relative_to(folder))
    ):
        files = sorted(file for file in place.rglob("*") if file.suffix.lower() in suffixes and file.is_file())
        if files:
            label = _label(trained, place.name, str(place))
            inputs += [Labelled(str(file.relative_to(folder)), file, label) for file in files]
    return inputs


def _in_table(trained: Trained, path: Path, label_column: str) -> list[Labelled]:
    import pandas as pd

    refuse_irregular(path)
    try:
        if path.suffix.lower() == ".csv":
            # words alone, as in training: a class may be called "NA" or "01", a text "007"
            with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
                # nor may rows that are longer than the header shift what stands in them
                rows = pd.read_csv(path, keep_default_na=False, dtype=str, index_col=False)
        elif path.suffix.lower() == ".jsonl":
            rows = pd.DataFrame([row for _, row in json_rows(path)])
        else:
            rows = pd.read_parquet(path)
    except Exception as error:
        # what is broken in a table shows in exceptions of every kind
        raise SettingError(f"{path} is no readable table ({type(error).__name__}: {error}).") from error
    columns = [str(name) for name in rows.columns]
    named = (label_column,) if label_column else LABEL_COLUMNS
    label = _column(path, columns, named, "the classes are", "name it with --label-column")
    usual = TEXT_COLUMNS if trained.tokens else (*IMAGE_COLUMNS, *FILE_COLUMNS)
    value = _column(path, [name for name in columns if name != label], usual, "the inputs are", "rename it")
    labels = rows[label].tolist()
    if path.suffix.lower() == ".csv" and not any(name.isdecimal() for name in trained.class_names):
        # whole numbers are numbers, unless a class is called by one
        labels = [int(name) if name.strip().isdecimal() else name for name in labels]
    pairs = zip(rows[value].tolist(), labels, strict=True)
    return [
        Labelled(f"row {number}", _source(trained, path, value, cell), _label(trained, name, f"row {number} of {path}"))
        for number, (cell, name) in enumerate(pairs)
    ]


def _column(path: Path, columns: Sequence[str], candidates: Sequence[str], what: str, remedy: str) -> str:
    names = [name for name in columns if name.lower() in candidates or name in candidates]
    if len(names) != 1:
        raise SettingError(
            f"{path} has the columns {', '.join(columns)}, of which {len(names)} can be where {what} "
            f"({', '.join(candidates)}); {remedy}."
        )
    return names[0]


def _source(trained: Trained, path: Path, column: str, cell: Any) -> Input:
    if trained.tokens:
        return str(cell)
    if isinstance(cell, dict) and isinstance(cell.get("bytes"), bytes):
        return BytesIO(cell["bytes"])
    if isinstance(cell, bytes):
        return BytesIO(cell)
    if isinstance(cell, str):
        return path.parent / cell
    raise SettingError(f"{path} has in column {shown(column)} no images, but {type(cell).__name__}.")


def _label(trained: Trained, name: object, where: str) -> int:
    """A class by its name; where none is called so, by its number."""
    names = trained.class_names
    if str(name) in names:
        return names.index(str(name))
    if isinstance(name, int) and not isinstance(name, bool) and 0 <= name < len(names):
        return name
    raise SettingError(
        f"{where} is of class {shown(str(name))}, which this client does not know; it knows "
        f"{class_words(range(len(names)), names)}."
    )


def judge(trained: Trained, rule: str, inputs: Sequence[Labelled]) -> Iterator[tuple[int, Answer]]:
    """The class of each input with the client's answer; one that cannot be read is told in its answer.

    Raises:
        SettingError: at once, for inputs that the client's model does not take.
    """
    answers = predict(trained, rule, [row.source for row in inputs])
    return ((row.label, _named(row.name, answer)) for row, answer in zip(inputs, answers, strict=True))


def _named(name: str, answer: Answer) -> Answer:
    return replace(answer, source=name, problem=f"{name}: {answer.problem}" if answer.problem else "")


def confusion(judged: Iterable[tuple[int, Answer]], num_classes: int) -> NDArray[np.int64]:
    """Counts of (true, predicted), (K, K), of the inputs that could be read."""
    counts = np.zeros((num_classes, num_classes), dtype=np.int64)
    for label, answer in judged:
        if not answer.problem:
            counts[label, answer.label] += 1
    return counts
