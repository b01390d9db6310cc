"""Reads tables from files, from the hub or from a folder of images as samples: numbers and categories, texts, or
images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError
from protosphere.data.forms.columns import IMAGE_COLUMNS, TEXT_COLUMNS
from protosphere.data.forms.folders import SCHEMA, Folder, class_of
from protosphere.data.forms.images import decode_images, read_file, refuse_image_size
from protosphere.data.forms.labels import read_keys
from protosphere.data.forms.table_files import BATCH, TablePart, open_table
from protosphere.data.forms.table_schema import TableSchema, join_tables, refuse_odd_types
from protosphere.data.forms.texts import write_texts
from protosphere.data.forms.words import place_of, to_python
from protosphere.data.samples import INPUTS, Samples
from protosphere.data.spec import DataSpec

if TYPE_CHECKING:
    import datasets
    import pyarrow

NUMBERS, TEXTS, IMAGES = "numbers", "texts", "images"


@dataclass(frozen=True, eq=False)
class TableSource:
    """The tables of a data set.

    Attributes:
        name: the data set's, for messages.
        parts: those of training samples come first.
        class_names: the known names, () for none.
        are_positions: whether labels are class numbers, whatever the names are.
        schema: the columns.json, if there is one.
        may_be_numbers: whether the columns may be numbers and categories.
    """

    name: str
    parts: Sequence[TablePart]
    class_names: tuple[str, ...] = ()
    are_positions: bool = False
    schema: Path | None = None
    may_be_numbers: bool = True


def open_folder(folder: Folder, independent: bool = False) -> TableSource:
    """The tables of a folder, or its images as tables of paths; CSV rows are skipped if `independent` and ragged."""
    if folder.format == "images":
        parts = [_open_images(folder, folder.train), replace(_open_images(folder, folder.test), is_test=True)]
        return TableSource(folder.name, parts, folder.class_names, are_positions=True)
    parts = [open_table(path, skips_ragged=independent) for path in folder.train]
    parts += [replace(open_table(path, skips_ragged=independent), is_test=True) for path in folder.test]
    return TableSource(folder.name, parts, folder.class_names, schema=folder.schema)


def _open_images(folder: Folder, paths: Sequence[Path]) -> TablePart:
    import pyarrow

    # root/train/class/image, or root/class/image
    depth = 1 if (folder.root / "train").is_dir() else 0
    images, labels = [], []
    for path in paths:
        name = class_of(Path(path.relative_to(folder.root).parts[depth]))
        images.append({"bytes": None, "path": bytes(path)})
        labels.append(folder.class_names.index(name))
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.binary())])
    columns = [pyarrow.array(images, kind), pyarrow.array(labels, pyarrow.int64())]
    table = pyarrow.table(columns, ["image", "label"])
    return TablePart(folder.name, table.schema, lambda names, rows: iter([table.select(names)]), opens_files=True)


def open_hub(hub_id: str, splits: Mapping[str, datasets.Dataset], train: str, test: str) -> TableSource:
    """Two splits of a data set of the hub; `test` may be ""."""

    def open_split(name: str) -> TablePart:
        split = splits[name]

        def batches(names: Sequence[str], rows: int) -> Iterator[pyarrow.Table]:
            for batch in split.select_columns(list(names)).with_format("arrow").iter(rows):
                yield batch.select(list(names))

        return TablePart(f"split {name}", split.features.arrow_schema, batches, opens_files=True)

    tests = [replace(open_split(test), is_test=True)] if test else []
    return TableSource(hub_id, [open_split(train), *tests], may_be_numbers=False)


def read_tables(source: TableSource, spec: DataSpec, target: Path) -> Samples:
    """The samples of tables; images and texts are written to the folder `target`."""
    first, parts = source.parts[0], source.parts
    kind, inputs = _find_inputs(source, spec)
    label = spec.columns.find_label(source.name, first.names, inputs)
    key_names = [label, *spec.columns.extra]
    schema = TableSchema.load(source.schema) if kind == NUMBERS and source.schema else None
    feature_names = _feature_names(source, schema, key_names) if kind == NUMBERS else []
    if kind != IMAGES:
        refuse_image_size(source.name, spec.image_size, kind)
    _refuse_lacking(source.name, parts, [*feature_names, *key_names, *([inputs] if inputs else [])])

    tables = [part.read([*feature_names, *key_names]) for part in parts]
    sizes = [table.num_rows for table in tables]
    noted_names = first.class_names(label)
    train_rows = 0
    for part, size in zip(parts, sizes, strict=True):
        if not part.is_test:
            train_rows += size
        if (part.class_names(label) or noted_names) != noted_names:
            raise DataError(
                f"column {label!r} of {source.name!r} lists other classes in {part.name} than in {first.name}: write "
                "the same list, in the same order, into both."
            )
    keys = read_keys(
        source.name,
        {name: [table.column(name) for table in tables] for name in key_names},
        label,
        spec.columns,
        source.class_names or noted_names,
        train_rows=train_rows,
        are_positions=source.are_positions or bool(noted_names),
        independent=spec.independent,
    )
    if first.domain is not None:
        keys = replace(keys, domains=np.repeat([part.domain for part in parts], sizes).astype(np.int64))

    if kind == NUMBERS:
        tables = [table.select(feature_names) for table in tables]
        return _read_numbers(tables, keys, schema, spec.independent)
    if kind == TEXTS:
        return _read_texts(parts, inputs, keys, target, spec.independent)
    rows = decode_images(partial(_cells, parts, inputs, keys), target / INPUTS, spec.image_size, spec.independent)
    return replace(keys.take(rows), inputs=np.load(target / INPUTS, mmap_mode="r"), scale=255.0)


def _find_inputs(source: TableSource, spec: DataSpec) -> tuple[str, str]:
    """The kind of a table's contents, and the column of images or texts.

    A table is text if a setting names the column, or if it has no image column and has a text column of a usual name.
    """
    columns = spec.columns
    if columns.text:
        return TEXTS, columns.text
    if source.schema:
        return NUMBERS, ""
    table = source.parts[0]
    free = [name for name in table.names if name not in columns.named.values()]
    for name in free:
        if table.notes.get(name, {}).get("_type") == "Image":
            return IMAGES, name
    for name in IMAGE_COLUMNS:
        if name in free and str(table.schema.field(name).type).startswith("struct"):
            return IMAGES, name
    for name in TEXT_COLUMNS:
        if name in free and table.is_string(name):
            return TEXTS, name
    # a site's table needs a columns.json
    if source.may_be_numbers and not spec.listed and not may_hold_images(table) and len(table.names) > 1:
        return NUMBERS, ""
    raise DataError(
        f"{source.name!r} has no image column and no text column; its columns are {', '.join(table.names) or 'none'}: "
        f"call the column of encoded images {IMAGE_COLUMNS[0]!r} (struct{{bytes, path}}), or set text-column to the "
        f"one with texts; a site's table of numbers needs a {SCHEMA}."
    )


def may_hold_images(table: TablePart) -> bool:
    """Whether a table has a column of a type other than strings and numbers."""
    kinds = [str(field.type) for field in table.schema]
    return any(kind.startswith(("struct", "binary", "large_binary", "list")) for kind in kinds)


def _feature_names(source: TableSource, schema: TableSchema | None, key_names: Sequence[str]) -> list[str]:
    """The columns that become features."""
    if schema is not None:
        names = [column.name for column in schema.columns]
        for name in names:
            if name in key_names:
                raise DataError(
                    f"{SCHEMA} of {source.name!r} has the feature {name!r}, which is its column of labels, groups or "
                    "sites: remove it."
                )
        return names
    first = source.parts[0]
    known_names = set(first.names)
    for part in source.parts:
        for name in part.names:
            if name not in known_names and not part.is_test:
                raise DataError(
                    f"{source.name!r} has the column {name!r} in {part.name}, but not in {first.name}: give all tables "
                    f"the same columns, or name those to use in {SCHEMA}."
                )
    return [name for name in first.names if name not in key_names]


def _refuse_lacking(data_set: str, parts: Sequence[TablePart], names: Sequence[str]) -> None:
    for part in parts:
        present = set(part.names)
        for name in names:
            if name not in present:
                raise DataError(
                    f"{data_set!r} has no column {name!r} in {part.name}; its columns are {', '.join(part.names)}: "
                    f"give all tables the columns of the first, or of {SCHEMA}."
                )


def _read_numbers(
    tables: Sequence[pyarrow.Table], keys: Samples, schema: TableSchema | None, independent: bool
) -> Samples:
    refuse_odd_types(keys.name, tables)
    if schema is None:
        schema = TableSchema.fit(keys.name, join_tables(keys.name, tables), keys.train_rows)
    features, usable = [], keys.are_usable
    first = 0
    for table in tables:
        encoded, are_valid = schema.encode(keys.name, table, keys.train_rows, first, independent)
        features.append(encoded)
        usable[first : first + table.num_rows] &= are_valid
        first += table.num_rows
    samples = replace(keys, inputs=np.concatenate(features), columns=schema.columns)
    return samples.take(np.flatnonzero(usable))


def _read_texts(parts: Sequence[TablePart], column: str, keys: Samples, target: Path, independent: bool) -> Samples:
    rows: list[int] = []

    def texts() -> Iterator[str]:
        for row, place, text in _cells(parts, column, keys):
            if isinstance(text, str) and text.strip():
                rows.append(row)
                yield text
            elif not independent:
                raise DataError(f"{place} has no text in UTF-8 in column {column!r}: give it one or drop the row.")

    inputs = write_texts(texts(), target)
    return replace(keys.take(np.array(rows, dtype=np.int64)), inputs=inputs)


def _cells(parts: Sequence[TablePart], column: str, keys: Samples) -> Iterator[tuple[int, str, Any]]:
    """The values of a column in the rows with usable keys, each after its row and its place for messages."""
    usable = keys.are_usable
    row = 0
    for part in parts:
        for batch in part.batches([column], BATCH):
            for cell in batch.column(0):
                if usable[row]:
                    value = to_python(cell)
                    is_file = isinstance(value, dict) and value.get("bytes") is None and value.get("path")
                    if part.opens_files and is_file:
                        value = read_file(value["path"])
                    yield row, place_of(keys.name, row, keys.train_rows), value
                row += 1
