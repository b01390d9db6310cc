"""A data set in tables, of files or of the hub: numbers and categories, texts, or encoded images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError
from protosphere.data.forms.columns import (
    IMAGE_COLUMNS,
    TEXT_COLUMNS,
    Columns,
    find_label,
    list_columns,
    refuse_absent,
)
from protosphere.data.forms.folders import SCHEMA, Folder
from protosphere.data.forms.images import Stored, decode_images, is_readable, refuse_unsized
from protosphere.data.forms.independent_rows import usable
from protosphere.data.forms.labels import is_string, name_kind, read_keys, to_python
from protosphere.data.forms.table_files import parquet_schema, read_cells, read_columns, types_of
from protosphere.data.forms.table_schema import Column, TableSchema, join_tables
from protosphere.data.forms.texts import Texts, write_texts
from protosphere.data.samples import INPUTS, Samples

if TYPE_CHECKING:
    import datasets
    import pyarrow

TEXT, IMAGE = "text", "image"
_BATCH = 1000


@dataclass(frozen=True)
class FileSplit:
    """The training or the test table of a data set, in files of one format; `alone` as in TableReader."""

    name: str
    paths: tuple[Path, ...]
    alone: bool = False

    @property
    def types(self) -> Mapping[str, pyarrow.DataType]:
        """The columns of the first file, in their order, and what each holds."""
        return types_of(self.paths[0])

    def read(self, names: Sequence[str]) -> pyarrow.Table:
        """Some columns of all files.

        Raises:
            DataError: a file lacks one.
        """
        self._refuse_lacking(names)
        return join_tables(self.name, [read_columns(path, names, self.alone) for path in self.paths])

    def cells(self, name: str) -> Iterator[Any]:
        """Arrow's cells of one column, file after file.

        Raises:
            DataError: a file lacks it.
        """
        self._refuse_lacking([name])
        for path in self.paths:
            yield from read_cells(path, name, self.alone)

    def refuse_more_columns(self) -> None:
        """Refuse a column that a later file has and the first one lacks: it would be no feature.

        Raises:
            DataError: it names the first.
        """
        first = self.types
        for path in self.paths[1:]:
            for name in types_of(path):
                if name not in first:
                    raise DataError(
                        f"{self.name!r} has the column {name!r} in {path.name}, but not in {self.paths[0].name}: give "
                        f"all tables the same columns, or name those to use in {SCHEMA}."
                    )

    def _refuse_lacking(self, names: Sequence[str]) -> None:
        for path in self.paths:
            types = types_of(path)
            for name in names:
                if name not in types:
                    raise DataError(
                        f"{self.name!r} has no column {name!r} in {path.name}; {list_columns(types)}: give all tables "
                        f"the columns of the first, or of {SCHEMA}."
                    )


@dataclass(frozen=True)
class HubSplit:
    """A split that `datasets` has fetched from the hub; its methods are as FileSplit's."""

    name: str
    table: datasets.Dataset

    @property
    def types(self) -> Mapping[str, pyarrow.DataType]:
        """Its columns."""
        schema = self.table.features.arrow_schema
        return {name: schema.field(name).type for name in schema.names}

    def read(self, names: Sequence[str]) -> pyarrow.Table:
        """Some columns.

        Raises:
            DataError: it lacks one.
        """
        for name in names:
            if name not in self.table.column_names:
                raise DataError(
                    f"{self.name!r} has no column {name!r} in its test table; {list_columns(self.table.column_names)}: "
                    "give both tables the same columns."
                )
        return self.table.select_columns(list(names)).with_format("arrow")[:]

    def cells(self, name: str) -> Iterator[Any]:
        """Arrow's cells of one column."""
        for batch in self.table.select_columns([name]).with_format("arrow").iter(_BATCH):
            yield from batch.column(name)


Split = FileSplit | HubSplit


def is_numbers(folder: Folder, columns: Columns, site: bool) -> bool:
    """Whether a folder's tables hold numbers and categories: a `columns.json` lies there, or no column is an image or
    has a usual name of texts, and it is no site's."""
    if columns.text:
        return False
    if (folder.root / SCHEMA).is_file():
        return True
    if site:
        return False
    types = types_of(folder.train[0])
    for name in TEXT_COLUMNS:
        # parquet alone knows numbers from strings before every row is read
        if name in types and (folder.format == "csv" or is_string(types[name])):
            return False
    return not holds_images(types) and len(types) > 1


def holds_images(types: Mapping[str, pyarrow.DataType]) -> bool:
    """Whether a table of these columns may hold images: strings and numbers alone are none."""
    return any(str(kind).startswith(("struct", "binary", "large_binary", "list")) for kind in types.values())


def read_table_folder(
    folder: Folder, columns: Columns, target: Path, *, image_size: int = 0, site: bool = False, alone: bool = False
) -> Samples:
    """The samples of a folder's tables; inputs that are large are written to `target`.

    Raises:
        DataError: what TableReader raises.
    """
    reader = TableReader(
        folder.name,
        {split: FileSplit(folder.name, paths, alone) for split, paths in folder.splits.items()},
        columns,
        folder.class_names,
        texts_only=folder.format == "csv",
        features=features_of_schema(parquet_schema(folder.train[0])) if folder.format == "parquet" else {},
        image_size=image_size,
        alone=alone,
    )
    if not is_numbers(folder, columns, site):
        return reader.read_inputs(target)
    return reader.read_numbers(TableSchema.load(folder.root / SCHEMA) if (folder.root / SCHEMA).is_file() else None)


@dataclass(frozen=True)
class TableReader:
    """How a data set's tables are read.

    Attributes:
        name: the data set's, for messages. splits: "train", and perhaps "test".
        columns: what the settings name. class_names: those of a classes.txt, () for none.
        texts_only: the format holds no images.
        features: what `datasets` says of columns, by name. image_size: that of images, 0 for their own.
        alone: whether each row is judged by itself (independent_rows.py).
    """

    name: str
    splits: Mapping[str, Split]
    columns: Columns
    class_names: tuple[str, ...] = ()
    texts_only: bool = False
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    image_size: int = 0
    alone: bool = False

    def read_numbers(self, schema: TableSchema | None) -> Samples:
        """Rows of numbers and categories as features, by a schema, or by what the whole table holds.

        Raises:
            DataError: no label column, a column of another kind than numbers or strings, a value that is none of its
                column's, unusable labels or groups.
        """
        train = self.splits["train"]
        types = train.types
        refuse_absent(self.name, types, self.columns)
        label = self.columns.label or find_label(self.name, types, self.columns.extra)
        keys = [label, *self.columns.extra]
        feature_names = [name for name in types if name not in keys]
        if schema is not None:
            feature_names = [column.name for column in schema.columns]
            for name in feature_names:
                if name in keys:
                    raise DataError(
                        f"{SCHEMA} of {self.name!r} has the feature {name!r}, which is its column of labels, groups "
                        "or sites: remove it."
                    )

        tables = {split: part.read([*feature_names, *keys]) for split, part in self.splits.items()}
        if schema is None:
            if isinstance(train, FileSplit):
                train.refuse_more_columns()
            schema = TableSchema.fit(self.name, tables, feature_names)
        inputs = []
        for split, table in tables.items():
            features = schema.encode(self.name, split, table, self.alone)
            if self.alone:
                are_finite = ~np.isinf(features).any(axis=1)
                tables[split], rows = self._select_usable(table, label, iter(are_finite.tolist()), bool)
                features = features[rows]
            inputs.append(features)
        return self._samples(np.concatenate(inputs), tables, label, self.class_names, schema.columns)

    def read_inputs(self, folder: Path) -> Samples:
        """Rows of images or texts, which are written to `folder`.

        Raises:
            DataError: no column of inputs or of labels, an input that cannot be used, unusable labels or groups.
        """
        types = self.splits["train"].types
        refuse_absent(self.name, types, self.columns)
        kind, inputs = self._find_inputs(types)
        if self.alone and kind == IMAGE:
            refuse_unsized(self.image_size)
        label = self.columns.label or find_label(self.name, types, [*self.columns.extra, inputs])
        tables = {split: part.read([label, *self.columns.extra]) for split, part in self.splits.items()}
        selected: dict[str, np.ndarray] = {}
        if self.alone:
            for split, table in tables.items():
                cells = map(to_python, self.splits[split].cells(inputs))
                is_usable = _is_image if kind == IMAGE else _is_text
                tables[split], selected[split] = self._select_usable(table, label, cells, is_usable)

        class_names = self.class_names or tuple(map(str, self._listed_names(label)))
        # labels first: they are read in no time, and images are not
        samples = self._samples(np.empty(0), tables, label, class_names)
        if kind == TEXT:
            write_texts(self._texts(inputs, selected), folder)
            return replace(samples, inputs=Texts.open(folder))

        def pictures() -> Iterator[tuple[str, Stored]]:
            in_files = isinstance(self.splits["train"], FileSplit)
            for place, cell in self._cells(inputs, selected):
                stored = cell.as_py()
                if in_files and stored and stored.get("bytes") is None and stored.get("path"):
                    # nobody would see that the file has changed, and a table may name any file of this machine
                    raise DataError(
                        f"{place} names the file {stored['path']!r} where an image belongs: write the images' bytes "
                        "into the table, or give a folder of images."
                    )
                yield place, stored

        decode_images(pictures, folder / INPUTS, self.image_size, self.alone)
        return replace(samples, inputs=np.load(folder / INPUTS, mmap_mode="r"), scale=255.0)

    def _find_inputs(self, types: Mapping[str, pyarrow.DataType]) -> tuple[str, str]:
        """Whether the table holds images or texts, and the column that does.

        A table is text if a setting names the column, or if it has no image column and has a text column of a usual
        name.
        """
        if self.columns.text:
            return TEXT, self.columns.text
        free = [name for name in types if name not in self.columns.named.values()]
        if not self.texts_only:
            for name in free:
                if self.features.get(name, {}).get("_type") == "Image":
                    return IMAGE, name
            for name in IMAGE_COLUMNS:
                if name in free and str(types[name]).startswith("struct"):
                    return IMAGE, name
        for name in TEXT_COLUMNS:
            if name in free and is_string(types[name]):
                return TEXT, name

        kind, remedy = TEXT, f"name it {TEXT_COLUMNS[0]} or set text-column"
        if not self.texts_only:
            kind = IMAGE
            remedy = (
                f"name one {IMAGE_COLUMNS[0]} with encoded images as struct{{bytes, path}}, or set text-column to the "
                "one with texts"
            )
        raise DataError(
            f"{self.name!r} has no {kind} column; {list_columns(types)}: {remedy}; a site's table of numbers needs a "
            f"{SCHEMA}."
        )

    def _select_usable(
        self, table: pyarrow.Table, label: str, inputs: Iterator[Any], is_usable: Callable[[Any], bool]
    ) -> tuple[pyarrow.Table, np.ndarray]:
        """The rows that can be used, with the numbers of their classes in place of labels, and which they are."""
        groups = table.column(self.columns.group) if self.columns.group else None
        are_positions = bool(self._listed_names(label))
        rows, numbers = usable(table.column(label), groups, inputs, is_usable, self.class_names, are_positions)
        table = table.take(rows)
        return table.set_column(table.column_names.index(label), label, [numbers]), rows

    def _samples(
        self,
        inputs: np.ndarray,
        tables: Mapping[str, pyarrow.Table],
        label: str,
        class_names: tuple[str, ...],
        columns: tuple[Column, ...] = (),
    ) -> Samples:
        """Samples of these inputs with the labels, groups and sites that the tables hold."""
        # `_select_usable` has put class numbers in the place of labels
        are_positions = self.alone or bool(self._listed_names(label))
        cells = {}
        for name in (label, *self.columns.extra):
            cells[name] = {split: table.column(name) for split, table in tables.items()}
        keys = read_keys(self.name, cells, label, self.columns, class_names, are_positions)
        return Samples(self.name, inputs, train_rows=tables["train"].num_rows, columns=columns, **keys)

    def _listed_names(self, label: str) -> list[Any]:
        """The classes that `datasets` has noted of a column, whose numbers are positions in that list."""
        return listed_names(self.features, label)

    def _cells(self, name: str, selected: Mapping[str, np.ndarray]) -> Iterator[tuple[str, Any]]:
        """Arrow's cells of the rows that are used, each with where it stands, for a sentence."""
        for split, part in self.splits.items():
            selected_rows = set(selected[split].tolist()) if split in selected else None
            for row, cell in enumerate(part.cells(name)):
                if selected_rows is None or row in selected_rows:
                    yield f"row {row} of the {split} table of {self.name!r}", cell

    def _texts(self, name: str, selected: Mapping[str, np.ndarray]) -> Iterator[str]:
        for place, cell in self._cells(name, selected):
            try:
                text = cell.as_py()
            except UnicodeDecodeError:
                raise DataError(f"{place} is not UTF-8: write its text in UTF-8.") from None
            if text is None or (isinstance(text, str) and not text.strip()):
                raise DataError(f"{place} has no text: give it one or drop the row.")
            if not isinstance(text, str):
                raise DataError(f"{place} holds {name_kind(cell.type)} in column {name!r}, but texts must be strings.")
            yield text


def listed_names(features: Mapping[str, Mapping[str, Any]], column: str) -> list[Any]:
    """The classes of a column by what `features_of_schema` gives; none where nothing is noted."""
    names = features.get(column, {}).get("names")
    return names if isinstance(names, list) else []


def features_of_schema(schema: pyarrow.Schema) -> dict[str, dict[str, Any]]:
    """What `datasets` has noted of the columns: their classes' names, and which are images. Notes of another form,
    which somebody else may have written, do not count."""
    try:
        noted = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in noted.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _is_image(value: Any) -> bool:
    """Whether a table's cell holds an image; a file's name is none."""
    return bool(value) and value.get("bytes") is not None and is_readable(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
