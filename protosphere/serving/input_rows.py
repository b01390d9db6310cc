"""Reads a table of numbers and categories, or a file of arrays, as rows for a trained client: encoded as in training,
and scaled by the client's stored means and deviations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch
from torch import Tensor

from protosphere.client_app.evaluate import ROWS_AT_ONCE
from protosphere.core.errors import DataError, SettingError
from protosphere.core.paths import is_several
from protosphere.core.settings import shown
from protosphere.data.client_data import InputTransform
from protosphere.data.forms.arrays import SUFFIX, finite_rows, read_inputs
from protosphere.data.forms.columns import LABEL_COLUMNS
from protosphere.data.forms.folders import TABLE_SUFFIXES
from protosphere.data.forms.images import resized
from protosphere.data.forms.table_files import open_table
from protosphere.data.forms.table_schema import CATEGORY, NOTHING, Column, describe_cell
from protosphere.serving.labelled_data import labels_of
from protosphere.serving.predict import PIXEL, Answer, Trained, judged, reads_images

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, eq=False)
class GivenRows:
    """The rows of a file.

    Attributes:
        inputs: (n, ...) as the training data were stored.
        labels: n class numbers; None if the file has none.
        problems: row number -> why the row cannot be used.
        unknown: row number -> the columns with a category that no training sample had.
    """

    inputs: Tensor
    labels: list[int] | None
    problems: dict[int, str] = field(default_factory=dict)
    unknown: dict[int, tuple[str, ...]] = field(default_factory=dict)


def holds_rows(trained: Trained, path: Path) -> bool:
    """Whether a path is read as rows of numbers: a file of arrays, or a table if the client does not read images."""
    numbers = trained.tokens is None and not reads_images(trained)
    return path.suffix == SUFFIX or (path.suffix in TABLE_SUFFIXES and numbers)


def read_rows(trained: Trained, path: Path, label_column: str = "") -> GivenRows:
    """Read the rows of a file, and their classes if it has them: in `y`, or in a column.

    Args:
        label_column: for a table; "" for the run's setting or a usual name.

    Raises:
        SettingError, DataError: the file cannot be read, lacks a column, has rows of another shape or type than the
            training data, or a class that the client does not know.
    """
    if not isinstance(trained.transform, InputTransform):
        raise SettingError(f"this client's model {trained.model!r} reads texts, and {path} holds none: give it texts.")
    if path.suffix == SUFFIX:
        if label_column:
            raise SettingError(f"--label-column is of a table, and {path} holds arrays: their labels are y.")
        return _arrays(trained, trained.transform, path)
    return _table(trained, trained.transform, path, label_column)


def answers_to(trained: Trained, rule: str, rows: GivenRows) -> Iterator[Answer]:
    """One answer per row; an unusable row gets an answer with its problem."""
    usable = [row for row in range(len(rows.inputs)) if row not in rows.problems]
    parts = (usable[start : start + ROWS_AT_ONCE] for start in range(0, len(usable), ROWS_AT_ONCE))
    answers = (answer for part in parts for answer in judged(trained, rule, rows.inputs[part]))
    for row in range(len(rows.inputs)):
        name = f"row {row}"
        if row in rows.problems:
            yield Answer(name, f"{name} has {rows.problems[row]}.")
        else:
            yield replace(next(answers), source=name, unknown=rows.unknown.get(row, ()))


# --- tables --------------------------------------------------------------------------------------------------


def _table(trained: Trained, transform: InputTransform, path: Path, label_column: str) -> GivenRows:
    schema = transform.columns
    if not schema:
        _refuse_form(path, "a table", transform)
    names = [column.name for column in schema]
    try:
        source_table = open_table(path)
        column_names = source_table.names
        label = _label_column(path, column_names, names, label_column, trained.objective.settings.label_column)
        lacking = [name for name in names if name not in column_names]
        if lacking:
            raise SettingError(
                f"{path} lacks {_columns(lacking)}, on which this client was trained; it has {_columns(column_names)}: "
                "add what is missing."
            )
        table = source_table.read([*names, *([label] if label else [])])
        inputs, problems, unknown = encoded(schema, table)
    except (DataError, SettingError):
        raise
    except Exception as error:
        # a broken table raises exceptions of any kind
        raise SettingError(f"{path} is no readable table ({type(error).__name__}: {error}).") from error
    labels = None
    if label:
        labels = labels_of(trained, path, table.column(label).to_pylist(), bool(source_table.class_names(label)))
    return GivenRows(torch.from_numpy(inputs), labels, problems, unknown)


def _label_column(path: Path, columns: Sequence[str], features: Sequence[str], label_column: str, usual: str) -> str:
    """The column of the classes; "" if the table has none."""
    if label_column and (label_column not in columns or label_column in features):
        what = (
            "is one of the model's inputs"
            if label_column in features
            else f"is not in {path}, which has {_columns(columns)}"
        )
        raise SettingError(f"--label-column is {shown(label_column)}, which {what}; name the column with the classes.")
    free = [name for name in columns if name not in features]
    return label_column or next((name for name in (usual, *LABEL_COLUMNS) if name and name in free), "")


def encoded(
    schema: Sequence[Column], table: "pyarrow.Table"
) -> tuple[np.ndarray, dict[int, str], dict[int, tuple[str, ...]]]:
    """Features of the rows (n, F), the problems of unusable rows, and the columns of a row with an unknown category,
    whose features are then all 0.

    Raises:
        DataError: a column is missing, or has values that are neither numbers nor strings.
    """
    import pyarrow

    parts, problems, unknown = (
        [np.zeros((table.num_rows, 0), np.float32)],
        dict[int, str](),
        dict[int, tuple[str, ...]](),
    )
    for column in schema:
        if column.name not in table.column_names:
            raise DataError(f"the rows lack the column {column.name!r}, on which this client was trained: add it.")
        cells = table.column(column.name)
        try:
            part, wrong = column.encode(cells)
        except pyarrow.ArrowNotImplementedError:
            raise DataError(
                f"the rows have {cells.type} in the column {column.name!r}, but features are numbers and strings: "
                "write it as one of them."
            ) from None
        parts.append(part)
        for row in np.flatnonzero(wrong).tolist():
            if column.kind == CATEGORY:
                unknown[row] = (*unknown.get(row, ()), column.name)
                continue
            what = describe_cell(cells[row].as_py())
            problems.setdefault(row, f"{what} in the column {column.name!r}, where {_describe_training(what)}")
    return np.concatenate(parts, axis=1), problems, unknown


def _describe_training(what: str) -> str:
    return "no training sample has a missing value there" if what == NOTHING else "training samples had finite numbers"


def _columns(names: Sequence[str]) -> str:
    return f"{'the columns' if len(names) > 1 else 'the column'} {', '.join(names)}" if names else "no column"


# --- arrays --------------------------------------------------------------------------------------------------


def _arrays(trained: Trained, transform: InputTransform, path: Path) -> GivenRows:
    if transform.columns:
        _refuse_form(path, "arrays", transform)
    inputs, labels, lists_classes = read_inputs(path, transform.shape)
    pixels = transform.scale != 1
    if (inputs.dtype == np.uint8) != pixels:
        kind = f"uint8, pixels from 0 to {PIXEL}" if pixels else "float32"
        raise SettingError(
            f"{path} has x of type {inputs.dtype}, but this client was trained on {kind}: give it the numbers that "
            "its training data hold, before any scaling."
        )
    rows = torch.from_numpy(_in_shape(trained, transform, path, inputs))
    if pixels and transform.scale != PIXEL:
        rows = (rows * (transform.scale / PIXEL)).round().to(torch.uint8)
    label_numbers = None
    if labels is not None:
        label_numbers = labels_of(trained, path, labels.tolist(), lists_classes)
    wrong = np.flatnonzero(~finite_rows(inputs)).tolist()
    return GivenRows(rows, label_numbers, dict.fromkeys(wrong, "a value that is not finite in x"))


def _in_shape(trained: Trained, transform: InputTransform, path: Path, inputs: np.ndarray) -> np.ndarray:
    """Rows of the model's shape; images are resized if the training images were."""
    shape, settings = tuple(transform.shape), trained.objective.settings
    if inputs.shape[1:] == shape:
        return inputs
    brought = settings.image_size or is_several(settings.dataset)
    if brought and transform.pixels and inputs.ndim == 4 and inputs.shape[1] in (1, shape[0]):
        images = [np.broadcast_to(resized(image, *shape[1:]), shape) for image in inputs]
        return np.stack(images) if images else np.empty((0, *shape), np.uint8)
    raise SettingError(
        f"{path} holds {_form(inputs.shape[1:])}, but this client was trained on {_form(shape)}: give it samples like "
        "those."
    )


def _form(shape: Sequence[int]) -> str:
    return f"rows of {shape[0]} numbers" if len(shape) == 1 else f"samples of shape {tuple(shape)}"


def _refuse_form(path: Path, content: str, transform: InputTransform) -> NoReturn:
    trained = f"a table of {_columns([column.name for column in transform.columns])}"
    raise SettingError(
        f"{path} holds {content}, but this client was trained on "
        f"{trained if transform.columns else _form(transform.shape)}: give it "
        f"{'such a table' if transform.columns else f'a {SUFFIX} file with such rows in x'}."
    )
