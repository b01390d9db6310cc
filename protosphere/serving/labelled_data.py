"""Labelled inputs, and a trained client's results on them. Tables are read as in training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from protosphere.core.errors import DataError, SettingError
from protosphere.core.settings import shown
from protosphere.core.text import class_words
from protosphere.data.forms.columns import IMAGE_COLUMNS, LABEL_COLUMNS, TEXT_COLUMNS
from protosphere.data.forms.folders import IMAGE_SUFFIXES, TABLE_SUFFIXES, class_of, is_visible, is_visible_below
from protosphere.data.forms.labels import numbering
from protosphere.data.forms.table_files import open_table
from protosphere.serving.predict import Answer, Input, Trained, predict

TEXT_SUFFIXES = (".txt",)
FILE_COLUMNS = ("file", "file_name", "filename", "path")


@dataclass(frozen=True)
class Labelled:
    """An input, its name, and its class; None if the class is unknown."""

    name: str
    source: Input
    label: int | None


def holds_labels(path: Path) -> bool:
    """Whether a path is read as labelled inputs: a folder, or a table."""
    return path.is_dir() or path.suffix in TABLE_SUFFIXES


def read_labelled(trained: Trained, path: Path, label_column: str = "") -> list[Labelled]:
    """Read the inputs in a folder's subfolders, each named after a class, or in the rows of a table.

    A row of a table has an image, the path of an image file next to the table, or a text; and its class (by name or
    number) if the table has a column of classes.

    Args:
        label_column: for a table; "" for the usual names.

    Raises:
        SettingError, DataError: there are no inputs, or a class is unknown to the client.
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
    for place in sorted(folder.iterdir()):
        if not place.is_dir() or not is_visible(place.relative_to(folder)):
            continue
        files = []
        for file in sorted(place.rglob("*")):
            if file.suffix.lower() in suffixes and is_visible_below(place, file) and file.is_file():
                files.append(file)
        if files and class_of(place) not in trained.class_names:
            raise _unknown(trained, str(place), place.name)
        for file in files:
            label = trained.class_names.index(class_of(place))
            inputs.append(Labelled(str(file.relative_to(folder)), file, label))
    return inputs


def _in_table(trained: Trained, path: Path, label_column: str) -> list[Labelled]:
    try:
        source_table = open_table(path)
        columns = source_table.names
        trained_column = trained.objective.settings.label_column
        setting = label_column or (trained_column if trained_column in columns else "")
        candidates = (setting,) if setting else LABEL_COLUMNS
        label = ""
        if setting or any(name.lower() in candidates for name in columns):
            label = _column(path, columns, candidates, "the classes are", "name it with --label-column")
        usual = TEXT_COLUMNS if trained.tokens else (*IMAGE_COLUMNS, *FILE_COLUMNS)
        value = _column(path, [name for name in columns if name != label], usual, "the inputs are", "rename it")
        table = source_table.read([value, label] if label else [value])
    except (DataError, SettingError):
        raise
    except Exception as error:
        # a broken table raises exceptions of any kind
        raise SettingError(f"{path} is no readable table ({type(error).__name__}: {error}).") from error
    cells = table.column(value).to_pylist()
    labels: Sequence[int | None] = [None] * len(cells)
    if label:
        labels = labels_of(trained, path, table.column(label).to_pylist(), bool(source_table.class_names(label)))
    return [
        Labelled(f"row {row}", _source(trained, path, value, cell), number)
        for row, (cell, number) in enumerate(zip(cells, labels, strict=True))
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
        return "" if cell is None else str(cell)
    content = (cell.get("bytes") or cell.get("path")) if isinstance(cell, dict) else cell
    if content is None or isinstance(content, bytes):
        return BytesIO(content or b"")
    if isinstance(content, str):
        return path.parent / content
    raise SettingError(f"{path} has in column {shown(column)} no images, but {type(cell).__name__}.")


def labels_of(trained: Trained, path: Path, values: Sequence[Any], are_positions: bool = False) -> list[int]:
    """Class numbers, as in `read_keys` for training data.

    Args:
        are_positions: whether stored numbers are class numbers, whatever the names of the classes are.

    Raises:
        SettingError: a row has no class, or one that the client does not know.
    """
    number_of = numbering(trained.class_names, are_positions)
    labels = []
    for row, value in enumerate(values):
        label = number_of(value)
        if label is None:
            raise _unknown(trained, f"row {row} of {path}", value)
        labels.append(label)
    return labels


def _unknown(trained: Trained, where: str, value: Any) -> SettingError:
    what = "no class" if value in (None, "") else f"of class {shown(str(value))}, which this client does not know"
    names = trained.class_names
    return SettingError(
        f"{where} is {what}; it knows {class_words(range(len(names)), names)}: correct that, or leave the classes out."
    )


def judge(trained: Trained, rule: str, inputs: Sequence[Labelled]) -> Iterator[tuple[int | None, Answer]]:
    """The class of each input with the client's answer; an unreadable input gets an answer with its problem.

    Raises:
        SettingError: immediately, if the client's model does not take such inputs.
    """
    answers = predict(trained, rule, [row.source for row in inputs])
    return ((row.label, _named(row.name, answer)) for row, answer in zip(inputs, answers, strict=True))


def _named(name: str, answer: Answer) -> Answer:
    return replace(answer, source=name, problem=f"{name}: {answer.problem}" if answer.problem else "")
