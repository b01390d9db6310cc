"""Arrays as a data set: `x` and `y`, perhaps `x_test` and `y_test`, of a `.npz` file."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.files import replacing
from protosphere.data.forms.columns import USUAL, Columns
from protosphere.data.forms.labels import read_keys
from protosphere.data.forms.words import word_of
from protosphere.data.samples import Samples

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".npz"
AXES = ("NCHW", "NHWC", "NHW")
CHANNELS = (1, 2, 3, 4)
_TEST = "_test"
_NAMES = ("x", "y", "x_test", "y_test", "classes", "axes")
_BLOCK = 4096  # rows


@dataclass(frozen=True, eq=False)
class Arrays:
    """Arrays by name, of a data set with a `name` for messages; a file may have `other_names`."""

    name: str
    by_name: Mapping[str, np.ndarray]
    other_names: Sequence[str] = ()

    @classmethod
    def load(cls, path: Path, names: Collection[str]) -> Arrays:
        """Those of some names that a `.npz` file has."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files if name in names}
                return cls(str(path), arrays, [name for name in archive.files if name not in names])
        except Exception as error:
            # broken archives and pickled objects raise exceptions of every kind
            raise DataError(
                f"{str(path)!r} cannot be read ({type(error).__name__}: {error}): write it with numpy.savez(FILE, "
                "x=..., y=...), of numbers and strings, no objects."
            ) from error

    def refusal(self, problem: str) -> DataError:
        """The error for a problem with an array."""
        return DataError(f"{self.name!r} {problem}.")

    @property
    def axes(self) -> str:
        """What the array `axes` says about `x`; "" without it."""
        return str(self.by_name.get("axes", ""))

    def inputs(self, key: str, axes: str) -> np.ndarray:
        """An array of inputs in stored form: uint8 or float32, images as (n, C, H, W)."""
        x = np.asarray(self.by_name[key])
        is_image = bool(axes) or x.ndim == 4 or (x.ndim == 3 and x.dtype == np.uint8)
        if x.ndim < 2 or 0 in x.shape[1:]:
            raise self.refusal(f"has {key} of shape {x.shape}: give it (n, ...), one row per sample")
        if x.dtype == bool or (x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim == 2):
            x = x.astype(np.float32)
        if x.dtype != np.uint8 and x.dtype.kind != "f":
            raise self.refusal(
                f"has {key} of type {x.dtype} and shape {x.shape}: give pixels as uint8 (0 to 255), all else as float32"
            )
        if is_image:
            x = self._put_channels_first(key, x, axes)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(x, dtype=np.uint8 if x.dtype == np.uint8 else np.float32)

    def _put_channels_first(self, key: str, x: np.ndarray, axes: str) -> np.ndarray:
        """Images as (n, C, H, W). Of (n, a, b, c), the channel axis is the only one of a and c with 1 to 4 entries."""
        if axes and (axes not in AXES or len(axes) != x.ndim):
            raise self.refusal(
                f"says that the axes of its images are {axes!r}, but {key} has the shape {x.shape}: it can be "
                f"{', '.join(AXES)}, one letter per axis"
            )
        if x.ndim == 3:
            return x[:, None]
        first, last = x.shape[1] in CHANNELS, x.shape[3] in CHANNELS
        if not axes and first == last:
            raise self.refusal(
                f"has {key} of shape {x.shape}, of which {'either' if first else 'neither'} of the axes 1 and 3 can be "
                'the channels (1 to 4 of them): say which with axes="NCHW" or axes="NHWC" beside x'
            )
        return x if (axes or ("NCHW" if first else "NHWC")) == "NCHW" else x.transpose(0, 3, 1, 2)

    def column(self, key: str, rows: int) -> pyarrow.ChunkedArray:
        """An array of labels, groups or sites as the column of a table."""
        import pyarrow

        values = np.asarray(self.by_name.get(key, ()))
        if values.shape != (rows,):
            raise self.refusal(
                f"has {key} of shape {values.shape} beside {rows} rows of inputs: give it one value per row, or leave "
                "a setting that names it empty"
            )
        if values.dtype.kind not in "iufbUS":
            raise self.refusal(f"has {key} of type {values.dtype}: give it numbers or strings")
        # Arrow cannot read another byte order
        return pyarrow.chunked_array([pyarrow.array(values.astype(values.dtype.newbyteorder("=")))])


def read_arrays(path: Path, class_names: tuple[str, ...], columns: Columns, independent: bool = False) -> Samples:
    """The samples of a `.npz` file; arguments as in `arrange`."""
    for setting, column in columns.named.items():
        if setting in ("text-column", "label-column"):
            raise DataError(
                f"{setting} is {column!r}, but arrays have their inputs in x and their labels in y: leave it empty."
            )
    arrays = Arrays.load(path, [*_NAMES, *columns.extra, *(name + _TEST for name in columns.extra)])
    _refuse_misnamed(arrays.name, arrays.other_names)
    return arrange(arrays.name, arrays.by_name, class_names, columns, independent)


def read_inputs(path: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None, bool]:
    """The arrays `x`, as stored, and `y`, if present, of a `.npz` file for a model; and whether the file lists its
    classes. The `shape` of one input decides which axis has the channels, if the file does not."""
    arrays = Arrays.load(path, ["x", "y", "axes", "classes"])
    if "x" not in arrays.by_name:
        raise arrays.refusal("has no array x: give it the inputs as x, and perhaps their labels as y")
    x, y, axes = arrays.by_name["x"], arrays.by_name.get("y"), arrays.axes
    if not axes and len(shape) == 3:
        forms = {"NCHW": x.shape[1:], "NHWC": (*x.shape[3:], *x.shape[1:3]), "NHW": (1, *x.shape[1:])}
        fitting = [name for name, form in forms.items() if len(name) == x.ndim and form == shape]
        axes = fitting[0] if len(fitting) == 1 else ""
    inputs = arrays.inputs("x", axes)
    if y is not None and y.shape != (len(x),):
        raise arrays.refusal(f"has y of shape {y.shape} beside {len(x)} rows in x: one label per row")
    return inputs, y, "classes" in arrays.by_name


def arrange(
    name: str,
    by_name: Mapping[str, np.ndarray],
    class_names: tuple[str, ...] = (),
    columns: Columns = USUAL,
    independent: bool = False,
) -> Samples:
    """Arrays by name (`x`, `y`, `x_test`, `y_test`, `classes`, `axes`) as samples.

    Args:
        name: the data set's, for messages. class_names: they go before `classes`.
        columns: the names of the arrays with groups and sites.
        independent: judge each row by itself: one that cannot be used is left out, and decides on nothing else.
    """
    arrays = Arrays(name, by_name)
    ends = ["", _TEST] if "x_test" in by_name or "y_test" in by_name else [""]
    for key in (start + end for end in ends for start in "xy"):
        if key not in by_name:
            raise arrays.refusal(f"has no array {key}: give it x and y (and both of x_test and y_test, or none)")

    inputs = {end: arrays.inputs("x" + end, arrays.axes) for end in ends}
    if len({(x.shape[1:], x.dtype) for x in inputs.values()}) > 1:
        shapes = " and ".join(f"{x.dtype} {x.shape[1:]}" for x in inputs.values())
        raise arrays.refusal(f"holds rows of {shapes} in x and x_test: give both one shape and type")
    finite = {end: finite_rows(x) for end, x in inputs.items()}
    for end, x in inputs.items():
        if not (independent or finite[end].all()):
            row = int(finite[end].argmin())
            index = (row, *np.argwhere(~np.isfinite(x[row]))[0].tolist())
            raise arrays.refusal(
                f"has {x[index]} at x{end}[{', '.join(map(str, index))}], but inputs must be finite float32 numbers: "
                "correct or drop the row"
            )

    listed = np.atleast_1d(np.asarray(by_name.get("classes", ()))).tolist()
    class_names = class_names or tuple(word_of(value) or str(value) for value in listed)
    if len(set(class_names)) < len(class_names):
        raise arrays.refusal("names a class twice in classes: give each class one name, in label order")
    parts = {}
    for key in ("y", *columns.extra):
        parts[key] = [arrays.column(key + end, len(x)) for end, x in inputs.items()]
    keys = read_keys(
        name, parts, "y", columns, class_names, len(inputs[""]), are_positions=bool(listed), independent=independent
    )
    x = np.concatenate(list(inputs.values())) if len(ends) > 1 else inputs[""]
    usable = keys.are_usable & np.concatenate(list(finite.values()))
    return replace(keys, inputs=x, scale=255.0 if x.dtype == np.uint8 else 1.0).take(np.flatnonzero(usable))


def _refuse_misnamed(name: str, keys: Iterable[str]) -> None:
    """Refuse `xtest` or `X_test`, whose test samples would be silently ignored."""
    expected = {array_name.replace("_", ""): array_name for array_name in _NAMES}
    for key in keys:
        array_name = expected.get(key.lower().replace("_", ""), key)
        if array_name != key:
            raise DataError(f"{name!r} has an array {key!r}: if it is {array_name}, call it that, else something else.")


def finite_rows(x: np.ndarray) -> np.ndarray:
    """Which rows hold only finite numbers: (n,) bool."""
    finite = np.ones(len(x), dtype=bool)
    if x.dtype != np.uint8:
        for start in range(0, len(x), _BLOCK):
            block = x[start : start + _BLOCK]
            finite[start : start + _BLOCK] = np.isfinite(block).reshape(len(block), -1).all(axis=1)
    return finite


def write_arrays(folder: Path, arrays: Mapping[str, Any]) -> Path:
    """Write arrays by name to a file in `folder` that is named after its content; an existing file is kept."""
    plain_arrays = {}
    for name, values in arrays.items():
        array = np.asarray(values)
        if array.dtype == object and array.ndim == 1 and all(isinstance(value, str) for value in array):
            # strings from pandas
            array = array.astype(str)
        plain_arrays[name] = array
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
            # savez cannot write an array named like one of its arguments
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


def _open_private(path: str, flags: int) -> int:
    """Open a file that only this user can read."""
    return os.open(path, flags, 0o600)
