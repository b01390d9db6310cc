"""Rows judged each by itself: what cannot be used is left out, and moves nothing else."""

import io
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.data.forms.columns import Columns
from protosphere.data.partition.assignment import DataSpec, assignment, open_data
from tests.data.conftest import deep_colours

SECRET = "07" * 32
SIZE = 8


def png(value, mode="L", size=SIZE):
    out = io.BytesIO()
    Image.new(mode, (size, size), value).save(out, "png")
    return out.getvalue()


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
    "no group": (png(7), 0, None),
    "an empty group": (png(7), 0, ""),
}
ODD = {"in colour": (png((1, 2, 3), "RGB"), 0, "q"), "of another size": (png(9, size=20), 1, "q")}


def held(place, rows, group=True):
    """The rows that a site's table is decoded to: (pixels, label), as a set."""
    place.mkdir(parents=True)
    images, labels, groups = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"image": [{"bytes": image, "path": None} for image in images], "label": pa.array(labels, pa.int64())}
    schema = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns["image"] = pa.array(columns["image"], schema)
    pq.write_table(pa.table(columns | {"group": pa.array(groups, pa.string())}), place / "train.parquet")
    (place / "classes.txt").write_text("no\nyes\n")
    names = Columns(group="group") if group else Columns()
    spec = DataSpec(str(place), 1, columns=names, image_size=SIZE, listed="tables", secret=SECRET)
    data = open_data(spec, place.parent / "cache", str(place))
    assignment(spec, data, place.parent / "cache", own=True)
    return [(data.inputs[row].tobytes(), int(data.labels[row])) for row in range(len(data.labels))]


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_is_left_out(tmp_path, what):
    whole = held(tmp_path / "good", GOOD)
    assert len(whole) == 12
    assert len(whole[0][0]) == 3 * SIZE * SIZE
    assert held(tmp_path / "bad", [*GOOD[:5], BAD[what], *GOOD[5:]]) == whole


@pytest.mark.parametrize("what", ODD)
def test_an_odd_row_changes_no_other(tmp_path, what):
    whole, odd = held(tmp_path / "good", GOOD), held(tmp_path / "odd", [ODD[what], *GOOD])
    assert odd[1:] == whole


@pytest.mark.parametrize("rows", [[], [BAD["no image"]] * 3])
def test_no_number_of_rows_is_refused(tmp_path, rows):
    assert held(tmp_path / "none", rows) == []


FILES = {
    "a link to nowhere": (lambda place: (place / "q.png").symlink_to("/nowhere"), 0),
    "a folder": (lambda place: (place / "q.png").mkdir(), 0),
    "a name that is no UTF-8": (lambda place: (place / os.fsdecode(b"\xff.png")).write_bytes(png(7)), 1),
    "such a link": (lambda place: (place / os.fsdecode(b"\xff.png")).symlink_to("/nowhere"), 0),
}


@pytest.mark.parametrize("odd", FILES)
def test_a_file_of_a_folder_of_images_moves_no_other(tmp_path, odd):
    def held(name):
        place = tmp_path / name
        (place / "no").mkdir(parents=True)
        (place / "classes.txt").write_text("no\nyes\n")
        for row in range(6):
            (place / "no" / f"{row}.png").write_bytes(png(10 * row))
        if name == "odd":
            FILES[odd][0](place / "no")
        spec = DataSpec(str(place), 1, image_size=SIZE, listed="all", secret=SECRET)
        return sorted(image.tobytes() for image in open_data(spec, tmp_path / "cache", str(place)).inputs)

    whole, found = held("good"), held("odd")
    assert set(whole) <= set(found)
    assert len(found) == 6 + FILES[odd][1]


LABELS = {"x": None, "": None, "2": None, "-1": None, "no": 0, " yes": 1, "1": 1}


@pytest.mark.parametrize("odd", LABELS)
def test_a_label_of_a_text_moves_no_other(tmp_path, odd):
    def labels(name, rows):
        place = tmp_path / name
        place.mkdir()
        (place / "train.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
        (place / "classes.txt").write_text("no\nyes\n")
        spec = DataSpec(str(place), 1, listed="tables", secret=SECRET)
        data = open_data(spec, tmp_path / "cache", str(place))
        return [(data.inputs[np.array([row])][0], int(data.labels[row])) for row in range(len(data.labels))]

    rows = [(f"text {i}", i % 2) for i in range(6)]
    whole, found = labels("good", rows), labels("odd", [*rows, ("odd", odd)])
    assert found == whole + ([] if LABELS[odd] is None else [("odd", LABELS[odd])])
    assert [label for _, label in whole] == [0, 1] * 3


NUMBERS = {"a fraction": "1.5", "missing": "null", "huge": "1" * 400, "as a fraction": "1.0"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("odd", NUMBERS)
def test_a_number_of_a_table_moves_no_other(tmp_path, odd, suffix):
    def rows(name, labels, value="7"):
        place = tmp_path / name
        place.mkdir()
        lines = [f'{{"age": {i}, "label": {label}}}\n' for i, label in enumerate(labels[:-1])]
        (place / "train.jsonl").write_text("".join(lines) + f'{{"age": {value}, "label": {labels[-1]}}}\n')
        if suffix == "parquet":
            # as pandas writes them: whole numbers beside a missing one are fractions
            read = json.loads(f"[{','.join(map(str, labels))}]")
            fractions = [None if label is None else float(str(label)[:9]) for label in read]
            column = read if all(type(label) is int and label < 2 for label in read) else fractions
            pq.write_table(pa.table({"age": range(len(labels)), "label": column}), place / "train.parquet")
            (place / "train.jsonl").unlink()
        (place / "classes.txt").write_text("no\nyes\n")
        (place / "columns.json").write_text('{"columns": [{"name": "age", "kind": "number"}]}')
        spec = DataSpec(str(place), 1, listed="tables", secret=SECRET)
        data = open_data(spec, tmp_path / "cache", str(place))
        return list(zip(data.inputs[:, 0].tolist(), data.labels.tolist(), strict=True))

    whole = [(i, i % 2) for i in range(6)]
    assert rows("odd label", [*[0, 1] * 3, NUMBERS[odd]])[:6] == whole
    if suffix == "jsonl":
        assert rows("odd value", [*[0, 1] * 3, 0], NUMBERS[odd])[:6] == whole
