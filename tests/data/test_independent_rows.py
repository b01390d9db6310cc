"""Rows that are judged each by itself: one that cannot be used is left out, and moves no other."""

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.data.forms.columns import Columns
from protosphere.data.forms.labels import read_keys
from tests.data.conftest import deep_colours
from tests.data.draws import decoded

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "report.png"
SIZE = 8


def png(value, mode="L", size=SIZE):
    out = io.BytesIO()
    Image.new(mode, (size, size), value).save(out, "png")
    return out.getvalue()


def read(place, listed="tables", image_size=0, **columns):
    """(content, label) of the rows of a site's folder."""
    (place / "classes.txt").write_text("no\nyes\n")
    data = decoded(
        str(place),
        place.parent / "cache",
        columns=Columns(**columns),
        listed=listed,
        secret="07" * 32,
        image_size=image_size,
    )
    rows = data.inputs[np.arange(len(data.labels))]
    return [(row if isinstance(row, str) else row.tobytes(), int(y)) for row, y in zip(rows, data.labels, strict=True)]


# --- images ----------------------------------------------------------------------------------------------------------


def read_images(place, rows):
    place.mkdir(parents=True)
    images, labels, groups = zip(*rows, strict=True) if rows else ((), (), ())
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [{"bytes": None, "path": i} if isinstance(i, str) else {"bytes": i, "path": None} for i in images]
    table = {"image": pa.array(cells, kind), "label": pa.array(labels, pa.int64())}
    pq.write_table(pa.table(table | {"group": pa.array(groups, pa.string())}), place / "train.parquet")
    return read(place, image_size=SIZE, group="group")


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
    found = {}
    for name in ("good", "odd"):
        place = tmp_path / name
        (place / "no").mkdir(parents=True)
        for row in range(6):
            (place / "no" / f"{row}.png").write_bytes(png(10 * row))
        if name == "odd":
            FILES[odd][0](place / "no")
        found[name] = read(place, "all", SIZE)
    assert set(found["good"]) <= set(found["odd"])
    assert len(found["odd"]) == 6 + FILES[odd][1]


# --- tables ----------------------------------------------------------------------------------------------------------

TEXTS = [*((f"odd,{word}\n", None) for word in ("x", "", "2", "-1", "0.5")), ("cut\n", None), ("a,1,2,3\n", None)]
TEXTS += [("odd, yes\n", 1), ("odd,1\n", 1), ("odd,1.0\n", 1), ("odd,0.0\n", 0)]


@pytest.mark.parametrize(("line", "label"), TEXTS)
def test_a_line_of_a_csv_file_moves_no_other(tmp_path, line, label):
    found = []
    for name, more in (("good", ""), ("odd", line)):
        (tmp_path / name).mkdir()
        lines = "".join(f"text {i},{i % 2}\n" for i in range(6))
        (tmp_path / name / "train.csv").write_text(f"text,label\n{lines}{more}")
        found.append(read(tmp_path / name))
    assert found[1] == found[0] + ([] if label is None else [("odd", label)])


@pytest.mark.parametrize(
    ("names", "labels", "are_positions", "expected"),
    [
        ("0 1 2 a b", ["0", "1", "4", "x"], False, [0, 1, 4]),
        ("1 2 3", [0, 1, 2], True, [0, 1, 2]),
        ("2.0 2.5 3.0", ["2.0", "2.5", "3.0"], False, [0, 1, 2]),
        ("no yes", ["01", "1", "1.0"], False, [1, 1]),
        # grades are names in any type
        *(("1 2 3", [kind(number) for number in (1, 2, 3, 0)], False, [0, 1, 2]) for kind in (str, int, float)),
    ],
)
def test_labels_of_single_rows_are_those_of_whole_columns(names, labels, are_positions, expected):
    parts = {"label": [pa.chunked_array([labels])]}
    settings = {"are_positions": are_positions, "independent": True}
    keys = read_keys("made", parts, "label", Columns(), tuple(names.split()), 9, **settings)
    assert keys.labels[keys.are_usable].tolist() == expected


@pytest.mark.parametrize("odd", [None, 1.5, float("inf"), float("nan"), 1e300])
def test_a_group_that_is_none_moves_no_other(odd):
    groups = pa.array([1.0, odd, 2.0], from_pandas=False)
    parts = {"label": [pa.chunked_array([[0, 1, 0]])], "group": [pa.chunked_array([groups])]}
    keys = read_keys("made", parts, "label", Columns(group="group"), ("a", "b"), 9, independent=True)
    assert keys.are_usable.tolist() == [True, False, True]


SCHEMA = '{"columns": [{"name": "age", "kind": "number"}, {"name": "job", "kind": "category", "values": ["cook"]}]}'
ROWS = {
    "a fraction for a label": (7.0, "cook", 1.5),
    "no label": (7.0, "cook", None),
    "no number": (None, "cook", 0),
    "an infinite number": (float("inf"), "cook", 0),
    "an unknown category": (7.0, "baker", 0),
}


@pytest.mark.parametrize("odd", ROWS)
def test_a_row_of_a_table_moves_no_other(tmp_path, odd):
    good = [(float(i), "cook", float(i % 2)) for i in range(6)]
    found = []
    for name, rows in (("good", good), ("odd", [*good, ROWS[odd]])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "columns.json").write_text(SCHEMA)
        ages, jobs, labels = map(list, zip(*rows, strict=True))
        # as pandas writes whole numbers beside a missing one
        labels = pa.array(labels, pa.float64())
        pq.write_table(pa.table({"age": ages, "job": jobs, "label": labels}), tmp_path / name / "train.parquet")
        found.append(read(tmp_path / name))
    assert found[0] == found[1]
