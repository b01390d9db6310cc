"""Rows judged each by itself: what cannot be used is left out, and moves nothing else."""

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.data.decode import open_data
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.labels import read_keys
from protosphere.data.partition.assignment import assignment
from protosphere.data.spec import DataSpec
from tests.data.conftest import deep_colours

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "report.png"
SECRET = "07" * 32
SIZE = 8


def png(value, mode="L", size=SIZE):
    out = io.BytesIO()
    Image.new(mode, (size, size), value).save(out, "png")
    return out.getvalue()


def read(place, listed="tables", **columns):
    """(content, label) of the rows that a site's folder is decoded to."""
    (place / "classes.txt").write_text("no\nyes\n")
    spec = DataSpec(str(place), 1, columns=Columns(**columns), listed=listed, secret=SECRET)
    spec = spec if (place / "train.csv").exists() else DataSpec(**vars(spec) | {"image_size": SIZE})
    data = open_data(spec, place.parent / "cache", str(place))
    assignment(spec, data, place.parent / "cache", own=True)
    rows = data.inputs[np.arange(len(data.labels))]
    return [(row if isinstance(row, str) else row.tobytes(), int(y)) for row, y in zip(rows, data.labels, strict=True)]


def read_images(place, rows):
    place.mkdir(parents=True)
    images, labels, groups = zip(*rows, strict=True) if rows else ((), (), ())
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [{"bytes": None, "path": i} if isinstance(i, str) else {"bytes": i, "path": None} for i in images]
    column = pa.array(cells, kind)
    table = {"image": column, "label": pa.array(labels, pa.int64()), "group": pa.array(groups, pa.string())}
    pq.write_table(pa.table(table), place / "train.parquet")
    return read(place, group="group")


GOOD = [(png(10 * i), i % 2, f"p{i}") for i in range(12)]
BAD = {
    "no image": (b"nothing", 0, "q"),
    "cut short": (png(7)[:-30], 0, "q"),
    "too deep": (png(700, "I;16"), 0, "q"),
    "too deep in colour": (deep_colours(), 0, "q"),
    "no class": (png(7), 5, "q"),
    "below 0": (png(7), -1, "q"),
    "no label": (png(7), None, "q"),
    "no bytes": (None, 0, "q"),
    # of an image that could be read
    "a file's name": (str(PICTURE), 0, "q"),
    "no group": (png(7), 0, None),
    "an empty group": (png(7), 0, ""),
}
ODD = {"in colour": (png((1, 2, 3), "RGB"), 0, "q"), "of another size": (png(9, size=20), 1, "q")}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_is_left_out(tmp_path, what):
    whole = read_images(tmp_path / "good", GOOD)
    assert (len(whole), len(whole[0][0])) == (12, 3 * SIZE * SIZE)
    assert read_images(tmp_path / "bad", [*GOOD[:5], BAD[what], *GOOD[5:]]) == whole


@pytest.mark.parametrize("what", ODD)
def test_an_odd_row_changes_no_other(tmp_path, what):
    assert read_images(tmp_path / "odd", [ODD[what], *GOOD])[1:] == read_images(tmp_path / "good", GOOD)


@pytest.mark.parametrize("rows", [[], [BAD["no image"]] * 3])
def test_no_number_of_rows_is_refused(tmp_path, rows):
    assert read_images(tmp_path / "none", rows) == []


FILES = {
    "a link to nowhere": (lambda place: (place / "q.png").symlink_to("/nowhere"), 0),
    "a folder": (lambda place: (place / "q.png").mkdir(), 0),
    "a name that is no UTF-8": (lambda place: (place / os.fsdecode(b"\xff.png")).write_bytes(png(7)), 1),
}


@pytest.mark.parametrize("odd", FILES)
def test_a_file_of_a_folder_of_images_moves_no_other(tmp_path, odd):
    def rows(name):
        place = tmp_path / name
        (place / "no").mkdir(parents=True)
        for row in range(6):
            (place / "no" / f"{row}.png").write_bytes(png(10 * row))
        if name == "odd":
            FILES[odd][0](place / "no")
        return read(place, "all")

    whole, found = rows("good"), rows("odd")
    assert set(whole) <= set(found)
    assert len(found) == 6 + FILES[odd][1]


@pytest.mark.parametrize(
    ("word", "label"),
    [("x", None), ("", None), ("2", None), ("-1", None), (" yes", 1), ("1", 1), ("1.0", 1), ("0.0", 0), ("0.5", None)],
)
def test_a_label_of_a_text_moves_no_other(tmp_path, word, label):
    def rows(name, more=""):
        (tmp_path / name).mkdir()
        lines = "".join(f"text {i},{i % 2}\n" for i in range(6))
        (tmp_path / name / "train.csv").write_text(f"text,label\n{lines}{more}")
        return read(tmp_path / name)

    assert rows("odd", f"odd,{word}\n") == rows("good") + ([] if label is None else [("odd", label)])


def test_a_line_of_another_number_of_fields_moves_no_other(tmp_path):
    for name, more in (("good", ""), ("odd", "cut\nodd,1,2,3\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.csv").write_text(f"text,label\na,0\n{more}b,1\n")
    assert read(tmp_path / "odd") == read(tmp_path / "good") == [("a", 0), ("b", 1)]


def labels_of(labels, names, are_positions=False, groups=None):
    """The class numbers of the usable rows."""
    parts = {"label": [pa.chunked_array([labels])], "group": [] if groups is None else [pa.chunked_array([groups])]}
    columns = Columns(group="group" if groups is not None else "")
    keys = read_keys("made", parts, "label", columns, names, 9, are_positions=are_positions, alone=True)
    return keys.labels[keys.are_usable].tolist()


@pytest.mark.parametrize("kind", [str, int, float])
def test_grades_are_names_in_any_type(kind):
    assert labels_of(pa.array(map(kind, (1, 2, 3, 0))), ("1", "2", "3")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("names", "labels", "are_positions", "expected"),
    [
        ("0 1 2 a b", ["0", "1", "4", "x"], False, [0, 1, 4]),
        ("1 2 3", [0, 1, 2], True, [0, 1, 2]),
        ("2.0 2.5 3.0", ["2.0", "2.5", "3.0"], False, [0, 1, 2]),
        ("no yes", ["01", "1", "1.0"], False, [1, 1]),
    ],
)
def test_labels_of_single_rows_are_those_of_whole_columns(names, labels, are_positions, expected):
    assert labels_of(pa.array(labels), tuple(names.split()), are_positions) == expected


@pytest.mark.parametrize("odd", [None, 1.5, float("inf"), float("nan"), 1e300])
def test_a_group_that_is_none_moves_no_other(odd):
    groups = pa.array([1.0, odd, 2.0], from_pandas=False)
    assert labels_of(pa.array([0, 1, 0]), ("a", "b"), groups=groups) == [0, 0]


SCHEMA = '{"columns": [{"name": "age", "kind": "number"}, {"name": "job", "kind": "category", "values": ["cook"]}]}'
ROWS = {
    "a fraction for a label": ([7.0], ["cook"], [1.5]),
    "no label": ([7.0], ["cook"], [None]),
    "no number": ([None], ["cook"], [0]),
    "an infinite number": ([float("inf")], ["cook"], [0]),
    "an unknown category": ([7.0], ["baker"], [0]),
}


@pytest.mark.parametrize("odd", ROWS)
def test_a_row_of_a_table_moves_no_other(tmp_path, odd):
    def rows(name, ages=(), jobs=(), labels=()):
        place = tmp_path / name
        place.mkdir()
        (place / "columns.json").write_text(SCHEMA)
        table = {"age": [*map(float, range(6)), *ages], "job": ["cook"] * 6 + [*jobs], "label": [0, 1] * 3 + [*labels]}
        # as pandas writes them: whole numbers beside a missing one are fractions
        if any(isinstance(label, float) or label is None for label in labels):
            table["label"] = [None if label is None else float(label) for label in table["label"]]
        pq.write_table(pa.table(table), place / "train.parquet")
        (place / "classes.txt").write_text("no\nyes\n")
        spec = DataSpec(str(place), 1, listed="tables", secret=SECRET)
        data = open_data(spec, tmp_path / "cache", str(place))
        return list(zip(data.inputs.tolist(), data.labels.tolist(), strict=True))

    assert rows("odd", *ROWS[odd]) == rows("good")
