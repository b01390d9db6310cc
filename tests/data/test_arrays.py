"""Arrays as a data set: what rows they become."""

import numpy as np
import pytest

from protosphere.core.errors import DataError
from protosphere.data.decode import data_key
from protosphere.data.forms.arrays import read_arrays, read_inputs, write_arrays
from protosphere.data.forms.columns import USUAL, Columns
from protosphere.data.spec import DataSpec
from tests.data.draws import decoded

RNG = np.random.default_rng(5)
Y = np.arange(6) % 3
X = np.zeros((6, 4), np.float32)


def saved(path, **held):
    np.savez(path, **held)
    return path


SHAPES = [
    # given, dtype, axes -> stored shape of a row, scale
    ((6, 4), "float64", "", (4,), 1.0),
    ((6, 4), "int64", "", (4,), 1.0),
    ((6, 4), "uint8", "", (4,), 255.0),
    ((6, 8, 9), "uint8", "", (1, 8, 9), 255.0),
    ((6, 8, 9), "float32", "", (8, 9), 1.0),
    ((6, 8, 9), "float32", "NHW", (1, 8, 9), 1.0),
    ((6, 8, 9, 3), "uint8", "", (3, 8, 9), 255.0),
    ((6, 3, 8, 9), "float32", "", (3, 8, 9), 1.0),
    ((6, 3, 8, 3), "uint8", "NHWC", (3, 3, 8), 255.0),
    ((6, 13, 8, 9), "uint8", "NCHW", (13, 8, 9), 255.0),
    ((6, 2, 3, 4, 5), "float32", "", (2, 3, 4, 5), 1.0),
]


@pytest.mark.parametrize(("shape", "dtype", "axes", "row", "scale"), SHAPES)
def test_rows_of_any_shape_and_type_are_stored_as_they_are(shape, dtype, axes, row, scale, tmp_path):
    x = RNG.integers(0, 256, shape).astype(dtype)
    path = saved(tmp_path / "rows.npz", x=x, y=Y, **({"axes": axes} if axes else {}))
    found = decoded(str(path), tmp_path / "cache")
    assert (found.inputs.shape, found.scale, found.train_rows) == ((6, *row), scale, 6)
    assert found.inputs.dtype == (np.uint8 if dtype == "uint8" else np.float32)
    # the same values, row by row, wherever their channels stood
    channels_last = axes == "NHWC" or (len(shape) == 4 and shape[3] == 3)
    expected = np.moveaxis(x, 3, 1) if channels_last else x
    assert np.array_equal(np.array(found.inputs).ravel(), expected.astype(np.float32).ravel())
    assert (found.labels.tolist(), found.class_names) == (Y.tolist(), ("0", "1", "2"))


@pytest.mark.parametrize(
    ("given", "shape", "row"),
    [
        ((6, 3, 8, 3), (3, 3, 8), (3, 3, 8)),
        ((6, 3, 8, 3), (3, 8, 3), (3, 8, 3)),
        ((6, 8, 9), (1, 8, 9), (1, 8, 9)),
        ((6, 8, 9), (8, 9), (8, 9)),
        ((6, 8, 9, 3), (3, 5, 5), (3, 8, 9)),
    ],
)
def test_of_a_models_rows_its_shape_says_where_the_channels_are(given, shape, row, tmp_path):
    x = RNG.integers(0, 256, given).astype("uint8" if len(given) == 4 else "float32")
    inputs, labels, _ = read_inputs(saved(tmp_path / "x.npz", x=x, y=Y, site=Y), shape)
    assert (inputs.shape, labels.tolist()) == ((6, *row), Y.tolist())
    last = len(given) == 4 and row != given[1:]
    assert np.array_equal(inputs, np.moveaxis(x, 3, 1) if last else x.reshape(inputs.shape))


def test_classes_groups_and_test_rows(tmp_path):
    held = {"x": X, "x_test": X[:2], "y": np.array(["c", "a", "b", "c ", " a", "b"]), "y_test": np.array(["b", "c"])}
    path = saved(tmp_path / "rows.npz", **held, ward=np.array([7, 3, 7, 9, 3, 3.0]), ward_test=np.array([3, 1]))
    found = decoded(str(path), tmp_path / "cache", columns=Columns(group="ward"))
    assert (found.class_names, found.labels.tolist()) == (("a", "b", "c"), [2, 0, 1, 2, 0, 1, 1, 2])
    assert (found.train_rows, found.groups.tolist()) == (6, [0, 1, 0, 2, 1, 1, 1, 3])
    # what lies beside goes before what is inside
    (tmp_path / "classes.txt").write_text("c\nb\na\nd\n")
    found = decoded(str(path), tmp_path / "cache")
    assert (found.class_names, found.labels.tolist()) == (("c", "b", "a", "d"), [0, 2, 1, 0, 2, 1, 1, 0])


def test_a_row_that_stands_alone_and_cannot_be_used_decides_on_nothing(tmp_path):
    rows = X.copy()
    rows[4, 1] = np.nan
    path = saved(tmp_path / "rows.npz", x=rows, y=np.array([0, 1, 5, 0, 1, 1]))
    (tmp_path / "classes.txt").write_text("no\nyes\n")
    found = decoded(str(path), tmp_path / "cache", listed="all", secret="07" * 32)
    assert (found.labels.tolist(), len(found.inputs)) == ([0, 1, 0, 1], 4)


def test_arrays_are_written_once_a_content_for_this_user_alone(tmp_path):
    first = write_arrays(tmp_path / "arrays", {"x": X, "y": Y})
    assert write_arrays(tmp_path / "arrays", {"y": Y.copy(), "x": X.copy()}) == first
    others = [{"x": X + 1, "y": Y}, {"x": X.astype(np.float64), "y": Y}, {"x": X, "y": Y, "classes": list("abc")}]
    assert len({write_arrays(tmp_path / "arrays", other) for other in others} | {first}) == 4
    assert first.stat().st_mode & 0o077 == 0
    # strings as a table's column holds them, and an array that is called as an argument of numpy.savez
    strings = {"x": X, "y": np.array(list("abcabc"), dtype=object), "file": np.arange(6)}
    kept = read_arrays(write_arrays(tmp_path / "arrays", strings), (), Columns(group="file"))
    assert (kept.class_names, kept.groups.tolist()) == (("a", "b", "c"), list(range(6)))
    assert read_arrays(first, (), USUAL).labels.tolist() == Y.tolist()
    with pytest.raises(DataError, match="one value per row"):
        write_arrays(tmp_path / "arrays", {"x": X, "y": Y[:3]})
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_arrays(tmp_path / "file", {"x": X, "y": Y})
    assert data_key(DataSpec(str(first))) != data_key(DataSpec(str(first), columns=Columns(group="file")))


def test_class_numbers_of_another_machines_byte_order_are_read(tmp_path):
    labels = np.arange(20) % 2
    np.savez(tmp_path / "mine.npz", x=np.ones((20, 3), np.float32), y=labels.astype(">i4"))
    assert read_arrays(tmp_path / "mine.npz", (), Columns()).labels.tolist() == labels.tolist()
