"""Arrays as a data set: `x` and `y`, perhaps `x_test` and `y_test`, of a `.npz` file."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.files import replacing
from protosphere.data.forms.columns import USUAL, Columns
from protosphere.data.forms.independent_rows import usable
from protosphere.data.forms.labels import read_keys, word_of
from protosphere.data.samples import Samples

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".npz"
AXES = ("NCHW", "NHWC", "NHW")
CHANNELS = (1, 2, 3, 4)
_TEST = "_test"
_OWN = ("x", "y", "x_test", "y_test", "classes", "axes")
_BLOCK = 4096  # rows


def read_arrays(path: Path, class_names: tuple[str, ...], columns: Columns, alone: bool = False) -> Samples:
    """What a `.npz` file holds.

    Args:
        class_names: those of the `classes.txt` beside it, () for none: then the file's own `classes` count.
        columns: what a setting names, further arrays of the file.
        alone: rows that cannot be used are left out and decide on nothing else.

    Raises:
        DataError: the file cannot be read, lacks x or y, or holds what `arrange` refuses.
    """
    for setting, column in columns.named.items():
        if setting in ("text-column", "label-column"):
            raise DataError(
                f"{setting} is {column!r}, but arrays have their inputs in x and their labels in y: leave it empty."
            )
    array_names = [*_OWN, *columns.extra, *(name + _TEST for name in columns.extra)]
    arrays, other_names = _load_archive(path, array_names)
    _refuse_misnamed(str(path), other_names)
    return arrange(str(path), arrays, class_names, columns, alone)


def read_inputs(path: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None]:
    """What a `.npz` file holds for a model: `x` as it is stored, and `y` as it stands there if it has one. Rows of `x`
    may hold values that are not finite.

    Args:
        shape: of one input of the model; it says which axis of images has the channels, where the file does not.

    Raises:
        DataError: the file cannot be read, lacks x, or has no rows of values there.
    """
    arrays, _ = _load_archive(path, ["x", "y", "axes"])
    if "x" not in arrays:
        raise DataError(f"{str(path)!r} has no array x: give it the inputs as x, and perhaps their labels as y.")
    x = arrays["x"]
    axes = str(arrays["axes"]) if "axes" in arrays else ""
    if not axes and len(shape) == 3:
        forms = {"NCHW": x.shape[1:], "NHWC": (*x.shape[3:], *x.shape[1:3]), "NHW": (1, *x.shape[1:])}
        fitting = [name for name, form in forms.items() if len(name) == x.ndim and form == shape]
        axes = fitting[0] if len(fitting) == 1 else ""
    x = _store_inputs(str(path), "x", x, axes, alone=True)
    if "y" in arrays and arrays["y"].shape != (len(x),):
        raise DataError(f"{str(path)!r} has y of shape {arrays['y'].shape} beside {len(x)} rows in x: one label a row.")
    return x, arrays.get("y")


def lists_classes(path: Path) -> bool:
    """Whether a `.npz` file has a list of classes of its own."""
    return "classes" in _load_archive(path, ["classes"])[0]


def _load_archive(path: Path, entries: Sequence[str]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Those of the entries that a `.npz` file has, and the names of its other ones."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name in entries}
            return arrays, tuple(name for name in archive.files if name not in entries)
    except Exception as error:
        # broken archives and pickled objects show in exceptions of every kind
        raise DataError(
            f"{str(path)!r} cannot be read ({type(error).__name__}: {error}): write it with numpy.savez(FILE, x=..., "
            "y=...), of numbers and strings, no objects."
        ) from error


def arrange(
    name: str,
    arrays: Mapping[str, np.ndarray],
    class_names: tuple[str, ...] = (),
    columns: Columns = USUAL,
    alone: bool = False,
) -> Samples:
    """Arrays by name (`x`, `y`, `x_test`, `y_test`, `classes`, `axes`) as samples.

    Args:
        name: the data set's, for messages. class_names: go before `classes`.
        columns: the names of arrays of groups and sites.
        alone: rows that cannot be used are left out and decide on nothing else.

    Raises:
        DataError: an array is missing, of another length, shape or type than it can be, or a value that is not finite
            or no class.
    """
    required = ["x", "y"]
    ends = {"train": ""}
    if "x_test" in arrays or "y_test" in arrays:
        required += ["x_test", "y_test"]
        ends["test"] = _TEST
    for key in required:
        if key not in arrays:
            raise _refusal(name, f"has no array {key}: give it x and y (and both of x_test and y_test, or none)")

    axes = str(arrays["axes"]) if "axes" in arrays else ""
    inputs = {}
    for split, end in ends.items():
        inputs[split] = _store_inputs(name, "x" + end, np.asarray(arrays["x" + end]), axes, alone)
    if len({(x.shape[1:], x.dtype) for x in inputs.values()}) > 1:
        shapes = " and ".join(f"{x.dtype} {x.shape[1:]}" for x in inputs.values())
        raise _refusal(name, f"holds rows of {shapes} in x and x_test: give both one shape and type")
    own_names = np.atleast_1d(np.asarray(arrays.get("classes", ()))).tolist()
    # numbers beside the file's own list are positions in it
    are_positions = bool(own_names)
    class_names = class_names or tuple(map(word_of, own_names))
    if len(set(class_names)) < len(class_names):
        raise _refusal(name, "names a class twice in classes: give each class one name, in label order")

    cells: dict[str, dict[str, Any]] = {key: {} for key in ("y", *columns.extra)}
    for key, by_split in cells.items():
        for split, end in ends.items():
            by_split[split] = _to_cells(name, key + end, arrays, len(inputs[split]))
    if alone:
        for split, x in inputs.items():
            groups = cells[columns.group][split] if columns.group else None
            are_finite = finite_rows(x).tolist()
            rows, numbers = usable(cells["y"][split], groups, are_finite, bool, class_names, are_positions)
            inputs[split] = x[rows]
            for by_split in cells.values():
                by_split[split] = by_split[split].take(rows)
            cells["y"][split] = _to_chunks(numbers)

    return Samples(
        name,
        np.concatenate(list(inputs.values())),
        train_rows=len(inputs["train"]),
        scale=255.0 if inputs["train"].dtype == np.uint8 else 1.0,
        **read_keys(name, cells, "y", columns, class_names, are_positions or alone),
    )


def _to_cells(name: str, key: str, arrays: Mapping[str, np.ndarray], rows: int) -> pyarrow.ChunkedArray:
    """An array of labels, groups or sites as a table has them."""
    values = np.asarray(arrays.get(key, ()))
    if values.shape != (rows,):
        raise _refusal(
            name,
            f"has {key} of shape {values.shape} beside {rows} rows of inputs: give it one value a row, or leave a "
            "setting that names it empty",
        )
    if values.dtype.kind not in "iufbUS":
        raise _refusal(name, f"has {key} of type {values.dtype}: give it numbers or strings")
    # what Arrow has no kernel for: truths as classes, fractions of other widths, bytes
    types = {"b": np.dtype(np.int64), "f": np.dtype(np.float64), "S": np.dtype(str)}
    # nor for another machine's order of bytes
    return _to_chunks(values.astype(types.get(values.dtype.kind, values.dtype.newbyteorder("="))))


def _to_chunks(values: np.ndarray) -> pyarrow.ChunkedArray:
    import pyarrow

    return pyarrow.chunked_array([pyarrow.array(values)])


def _refuse_misnamed(name: str, keys: Iterable[str]) -> None:
    """Refuse `xtest` or `X_test`, which would be no test rows, and nobody would hear of it."""
    meant = {array_name.replace("_", ""): array_name for array_name in _OWN}
    for key in keys:
        array_name = meant.get(key.lower().replace("_", ""), key)
        if array_name != key:
            raise _refusal(name, f"has an array {key!r}: if it is {array_name}, call it that, else something else")


def _store_inputs(name: str, key: str, x: np.ndarray, axes: str, alone: bool) -> np.ndarray:
    """An array of inputs as it is stored: uint8 or float32, images as (n, C, H, W)."""
    is_image = bool(axes) or x.ndim == 4 or (x.ndim == 3 and x.dtype == np.uint8)
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise _refusal(name, f"has {key} of shape {x.shape}: give it (n, ...), a row each")
    if x.dtype == bool or (x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim == 2):
        x = x.astype(np.float32)
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise _refusal(
            name,
            f"has {key} of type {x.dtype} and shape {x.shape}: give pixels as uint8 (0 to 255), all else as float32",
        )
    if is_image:
        x = _put_channels_first(name, key, x, axes)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)

    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, dtype=np.float32)
    for start in range(0, 0 if alone else len(x), _BLOCK):
        wrong = np.argwhere(~np.isfinite(x[start : start + _BLOCK]))
        if wrong.size:
            row, *place = wrong[0].tolist()
            index = (row + start, *place)
            raise _refusal(
                name,
                f"has {x[index]} at {key}[{', '.join(map(str, index))}], but inputs must be finite float32 numbers: "
                "mend or drop the row",
            )
    return x


def _put_channels_first(name: str, key: str, x: np.ndarray, axes: str) -> np.ndarray:
    """Images as (n, C, H, W). Of (n, a, b, c) the channels are the axis a or c that alone has 1 to 4 entries."""
    if axes and (axes not in AXES or len(axes) != x.ndim):
        raise _refusal(
            name,
            f"says that the axes of its images are {axes!r}, but {key} has the shape {x.shape}: it can be "
            f"{', '.join(AXES)}, a letter an axis",
        )
    if x.ndim == 3:
        return x[:, None]
    first, last = x.shape[1] in CHANNELS, x.shape[3] in CHANNELS
    if not axes and first == last:
        raise _refusal(
            name,
            f"has {key} of shape {x.shape}, of which {'either' if first else 'neither'} of the axes 1 and 3 can be the "
            'channels (1 to 4 of them): say which with axes="NCHW" or axes="NHWC" beside x',
        )
    return x if (axes or ("NCHW" if first else "NHWC")) == "NCHW" else x.transpose(0, 3, 1, 2)


def finite_rows(x: np.ndarray) -> np.ndarray:
    """Which rows hold finite numbers alone: (n,) bool."""
    if x.dtype == np.uint8:
        return np.ones(len(x), dtype=bool)
    finite: np.ndarray = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    return finite


def _refusal(name: str, sentence: str) -> DataError:
    return DataError(f"{name!r} {sentence}.")


def write_arrays(folder: Path, arrays: Mapping[str, Any]) -> Path:
    """Write arrays by name to a file in `folder` that is called by its content; what is there already stays.

    Raises:
        DataError: it cannot be written, or `arrange` refuses them.
    """
    plain_arrays = {name: _to_plain(np.asarray(values)) for name, values in arrays.items()}
    _refuse_misnamed("dataset", plain_arrays)
    arrange("dataset", plain_arrays)
    digest = hashlib.blake2b(digest_size=8)
    for name, values in sorted(plain_arrays.items()):
        digest.update(repr((name, values.dtype.str, values.shape)).encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    path = folder / f"arrays-{digest.hexdigest()}{SUFFIX}"
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            replacing(path) as temporary,
            open(temporary, "wb", opener=_open_private) as file,
            # as savez, which cannot write an array of the name of one of its arguments
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
        ):
            for name, values in plain_arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, values, allow_pickle=False)
    except OSError as error:
        raise DataError(
            f"the arrays cannot be written to {str(path)!r} ({error.strerror or error}): free space there, or set "
            "PROTOSPHERE_HOME to a writable folder."
        ) from None
    return path


def _to_plain(values: np.ndarray) -> np.ndarray:
    """Strings as a table's column holds them, as an array's; the answers to a question as two classes."""
    if values.dtype == object and values.ndim == 1 and all(isinstance(value, str) for value in values):
        return values.astype(str)
    return values


def _open_private(path: str, flags: int) -> int:
    """For this user alone, as all that is kept of data."""
    return os.open(path, flags, 0o600)
