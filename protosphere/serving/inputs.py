"""Reads the inputs of a trained client, with their classes if known: files, texts, a folder of classes, a table, or
arrays. All are read as in training; features of a table are scaled by the client's stored means and deviations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protosphere.core.errors import DataError, SettingError
from protosphere.core.paths import is_several
from protosphere.core.settings import shown
from protosphere.core.text import class_words
from protosphere.data.client_data import InputTransform
from protosphere.data.forms.arrays import SUFFIX, finite_rows
from protosphere.data.forms.arrays import read_inputs as read_arrays
from protosphere.data.forms.columns import IMAGE_COLUMNS, LABEL_COLUMNS, TEXT_COLUMNS
from protosphere.data.forms.folders import IMAGE_SUFFIXES, TABLE_SUFFIXES, class_of, is_visible_below
from protosphere.data.forms.images import read_pixels, resized
from protosphere.data.forms.labels import numbering
from protosphere.data.forms.table_files import open_table
from protosphere.data.forms.table_schema import CATEGORY, NOTHING, Column, describe_cell
from protosphere.serving.predict import Trained
from protosphere.strategies.release import RULE

if TYPE_CHECKING:
    import pyarrow

PIXEL = 255  # full scale of an image channel
TEXT_SUFFIXES = (".txt",)
FILE_COLUMNS = ("file", "file_name", "filename", "path")


@dataclass(frozen=True, eq=False)
class Input:
    """One input.

    Attributes:
        source: a file, a text, the content of an image file, or a tensor as the training data were stored.
        label: its class number; None if unknown.
        problem: why it cannot be used, in a sentence; "" if it can.
        unknown: the columns of a row with a category that no training sample had.
    """

    name: str
    source: Path | str | bytes | Tensor
    label: int | None = None
    problem: str = ""
    unknown: tuple[str, ...] = ()

    def read(self, trained: Trained, rule: str) -> Tensor:
        """The input as the training data were stored.

        Raises:
            DataError: it cannot be read.
        """
        if isinstance(self.source, Tensor):
            return self.source
        if isinstance(self.source, Path) and self.source.suffix in (".json", ".jsonl"):
            raise DataError(f"{self.name} is neither an image nor a text: write JSON as a table (.csv, .parquet).")
        try:
            if trained.tokens is None:
                content = self.source.read_bytes() if isinstance(self.source, Path) else self.source
                return _decode(trained.transform, self.name, content)
            text = self.source.read_text("utf-8") if isinstance(self.source, Path) else str(self.source)
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.name} cannot be read ({error}).") from None
        if not text.strip():
            raise DataError(f"{self.name} has no text: give it one.")
        # a text encoder has its own tokens
        of_encoder = trained.encoder_rule.tokens if rule == RULE and trained.encoder_rule else None
        return (of_encoder or trained.tokens)([text])[0]


def _decode(transform: Any, name: str, content: Any) -> Tensor:
    """An image as the training images are stored: (C, H, W) uint8 in their full scale."""
    channels, height, width = transform.shape
    pixels = read_pixels(name, {"bytes": content, "path": None}, grey=channels == 1)
    shares = resized(pixels, height, width) * (transform.scale / PIXEL)
    return torch.from_numpy(np.rint(shares).astype(np.uint8))


def read_inputs(trained: Trained, sources: Sequence[Path | str], label_column: str = "") -> list[Input]:
    """The inputs in one folder, table or file of arrays, or in single files and texts.

    A folder has a subfolder per class. A row of a table has the training table's columns, an image, the path of an
    image file next to the table, or a text; and its class, by name or number, if the table has a column of classes.

    Args:
        label_column: of a table; "" for the run's setting or a usual name.

    Raises:
        SettingError, DataError: there are no inputs, the client's model does not take them, or a class is unknown.
    """
    single = sources[0] if len(sources) == 1 and isinstance(sources[0], Path) else None
    if label_column and (single is None or single.suffix not in TABLE_SUFFIXES):
        raise SettingError(f"--label-column is {shown(label_column)}, but the input is no table; leave it out.")
    if single is not None and single.suffix == SUFFIX:
        inputs = _read_arrays(trained, single)
    elif single is not None and single.suffix in TABLE_SUFFIXES:
        inputs = _read_table(trained, single, label_column)
    elif trained.tokens is None and not trained.reads_images:
        raise SettingError(
            f"this client's model takes no images but {_describe(trained)}: give it one table (.csv, .parquet) or one "
            f"{SUFFIX} file, like its training data."
        )
    elif single is not None and single.is_dir():
        inputs = _read_folder(trained, single)
    else:
        if trained.tokens is None and any(isinstance(source, str) for source in sources):
            raise SettingError(f"this client's model {trained.model!r} reads images; give it files instead of --text.")
        inputs = [Input(str(source), source) for source in sources]
    if not inputs:
        if single is not None and single.is_dir():
            raise SettingError(f"there is nothing to classify in {single}: a folder has a subfolder per class.")
        raise SettingError(f"there is nothing to classify{f' in {single}' if single else ''}; name at least one file.")
    return inputs


def _read_folder(trained: Trained, root: Path) -> list[Input]:
    suffixes = TEXT_SUFFIXES if trained.tokens else IMAGE_SUFFIXES
    inputs = []
    for file in sorted(root.glob("*/**/*")):
        if file.suffix.lower() not in suffixes or not is_visible_below(root, file) or not file.is_file():
            continue
        name = file.relative_to(root)
        class_name = class_of(root / name.parts[0])
        if class_name not in trained.class_names:
            raise _unknown_class(trained, str(root / name.parts[0]), class_name)
        inputs.append(Input(str(name), file, trained.class_names.index(class_name)))
    return inputs


# --- tables -------------------------------------------------------------------------------------------------------


def _read_table(trained: Trained, path: Path, label_column: str) -> list[Input]:
    transform = trained.transform
    schema = transform.columns if isinstance(transform, InputTransform) else ()
    if not schema and trained.tokens is None and not trained.reads_images:
        raise _other_form(trained, path, "a table")
    try:
        part = open_table(path)
        names = [column.name for column in schema]
        label = _find_label(trained, path, part.names, names, label_column)
        if not schema:
            names = [_find_input(trained, path, [name for name in part.names if name != label])]
        table = part.read([name for name in (*names, label) if name in part.names])
        if schema:
            inputs = read_rows(schema, table).inputs()
        else:
            cells = table.column(names[0]).to_pylist()
            inputs = [_cell(trained, path, f"row {row}", cell) for row, cell in enumerate(cells)]
    except (DataError, SettingError):
        raise
    except Exception as error:
        # a broken table raises exceptions of any kind
        raise SettingError(f"{path} is no readable table ({type(error).__name__}: {error}).") from error
    if label:
        labels = labels_of(trained, path, table.column(label).to_pylist(), bool(part.class_names(label)))
        inputs = [replace(item, label=label) for item, label in zip(inputs, labels, strict=True)]
    return inputs


def _find_label(
    trained: Trained, path: Path, columns: Sequence[str], features: Sequence[str], label_column: str
) -> str:
    """The column of the classes; "" if the table has none."""
    free = [name for name in columns if name not in features]
    if label_column and label_column not in free:
        raise SettingError(
            f"--label-column is {shown(label_column)}, but {path} has the columns {', '.join(free)} beside the model's "
            "inputs; name the one with the classes."
        )
    candidates = (label_column, trained.objective.settings.label_column, *LABEL_COLUMNS)
    return next((name for name in candidates if name and name in free), "")


def _find_input(trained: Trained, path: Path, columns: Sequence[str]) -> str:
    """The column of the images, image files or texts."""
    candidates = TEXT_COLUMNS if trained.tokens else (*IMAGE_COLUMNS, *FILE_COLUMNS)
    usable = [name for name in columns if name in candidates]
    if len(usable) != 1:
        raise SettingError(
            f"{path} has the columns {', '.join(columns)}, but exactly one must hold the inputs and be called "
            f"{', '.join(candidates)}; rename it."
        )
    return usable[0]


def _cell(trained: Trained, path: Path, name: str, cell: Any) -> Input:
    if trained.tokens:
        return Input(name, "" if cell is None else str(cell))
    content = (cell.get("bytes") or cell.get("path")) if isinstance(cell, dict) else cell
    if isinstance(content, str):
        return Input(name, path.parent / content)
    if isinstance(content, bytes):
        return Input(name, content)
    return Input(name, b"", problem=f"{name} has no image.")


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a table as features.

    Attributes:
        features: (n, F) float32.
        problems: row -> why it cannot be used, in a sentence.
        unknown: row -> the columns with a category that no training sample had.
    """

    features: Tensor
    problems: dict[int, str]
    unknown: dict[int, tuple[str, ...]]

    def inputs(self) -> list[Input]:
        """One input per row."""
        inputs = []
        for row, features in enumerate(self.features):
            problem, unknown = self.problems.get(row, ""), self.unknown.get(row, ())
            inputs.append(Input(f"row {row}", features, problem=problem, unknown=unknown))
        return inputs


def read_rows(schema: Sequence[Column], table: "pyarrow.Table") -> TableRows:
    """The rows of a table as features; those of an unknown category are all 0.

    Raises:
        DataError: columns are missing, or have values that are neither numbers nor strings.
    """
    import pyarrow

    lacking = [column.name for column in schema if column.name not in table.column_names]
    if lacking:
        raise DataError(f"the rows lack the columns {', '.join(lacking)}, on which this client was trained: add them.")
    parts = [np.zeros((table.num_rows, 0), np.float32)]
    problems: dict[int, str] = {}
    unknown: dict[int, tuple[str, ...]] = {}
    for column in schema:
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
            expected = "every training sample has one" if what == NOTHING else "training samples had finite numbers"
            problems.setdefault(row, f"row {row} has {what} in the column {column.name!r}, where {expected}.")
    return TableRows(torch.from_numpy(np.concatenate(parts, axis=1)), problems, unknown)


# --- arrays -------------------------------------------------------------------------------------------------------


def _read_arrays(trained: Trained, path: Path) -> list[Input]:
    transform = trained.transform
    if not isinstance(transform, InputTransform) or transform.columns:
        raise _other_form(trained, path, "arrays")
    x, labels, lists_classes = read_arrays(path, transform.shape)
    inputs = _in_shape(trained, transform, x)
    is_uint8 = x.dtype == np.uint8
    if inputs.shape[1:] != transform.shape or is_uint8 != (transform.scale != 1):
        raise _other_form(trained, path, f"{x.dtype} of shape {x.shape[1:]}")
    if is_uint8 and transform.scale != PIXEL:
        inputs = np.rint(inputs * (transform.scale / PIXEL)).astype(np.uint8)
    numbers: Sequence[int | None] = [None] * len(x)
    if labels is not None:
        numbers = labels_of(trained, path, labels.tolist(), lists_classes)
    rows = []
    for row, is_finite in enumerate(finite_rows(x).tolist()):
        problem = "" if is_finite else f"row {row} has a value that is not finite in x."
        rows.append(Input(f"row {row}", torch.from_numpy(inputs[row]), numbers[row], problem))
    return rows


def _in_shape(trained: Trained, transform: InputTransform, x: np.ndarray) -> np.ndarray:
    """Images of the model's size, if training images were resized; all else as it is."""
    settings, shape = trained.objective.settings, transform.shape
    are_resized = settings.image_size or is_several(settings.dataset)
    if not are_resized or not transform.pixels or x.ndim != 4 or x.shape[1] not in (1, shape[0]) or not len(x):
        return x
    return np.stack([np.broadcast_to(resized(image, *shape[1:]), shape) for image in x])


def _describe(trained: Trained) -> str:
    """What the client was trained on."""
    transform = trained.transform
    if not isinstance(transform, InputTransform):
        return "texts"
    if transform.columns:
        return f"a table of the columns {', '.join(column.name for column in transform.columns)}"
    return f"{'float32' if transform.scale == 1 else 'uint8'} of shape {transform.shape}"


def _other_form(trained: Trained, path: Path, content: str) -> SettingError:
    return SettingError(
        f"{path} holds {content}, but this client was trained on {_describe(trained)}: give it inputs like its "
        "training data, before any scaling."
    )


# --- classes ------------------------------------------------------------------------------------------------------


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
            raise _unknown_class(trained, f"row {row} of {path}", value)
        labels.append(label)
    return labels


def _unknown_class(trained: Trained, where: str, value: Any) -> SettingError:
    what = "no class" if value in (None, "") else f"of class {shown(str(value))}, which this client does not know"
    names = trained.class_names
    return SettingError(
        f"{where} is {what}; it knows {class_words(range(len(names)), names)}: correct that, or leave the classes out."
    )
