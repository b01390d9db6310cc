"""What data cannot be, form by form: a row is a bad input, its class of error and a telling word of its message."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protosphere.core.errors import DataError, LabelsError
from protosphere.data.decode import open_data
from protosphere.data.domains import domains_of
from protosphere.data.forms.columns import Columns
from protosphere.data.spec import DataSpec
from tests.data.conftest import deep_colours, encode, write_table

N = 40
GOOD = encode(np.zeros((4, 4, 3), np.uint8))
BYTES = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())  # the second is no UTF-8


def frame(**columns):
    """A CSV table of 40 rows with a number, a label and these columns."""
    return pd.DataFrame({"size": np.arange(N) + 0.5, "label": np.arange(N) % 2} | columns).to_csv(index=False)


def stray(word):
    return frame(size=["0", "1", word, *map(str, range(3, N))])


def labels(*words):
    return frame(label=[words[row % len(words)] for row in range(N)])


def images(*shapes):
    return [encode(np.zeros(shape, np.uint8)) for shape in shapes]


def lay(root, files):
    """Write files by name: text, bytes, an Arrow table, arrays by name, or a list of encoded images in a parquet."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        elif isinstance(content, dict):
            np.savez(path, **content)
        elif isinstance(content, list):
            write_table(path, content, np.arange(len(content)) % 2)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode("latin-1"))
    root.mkdir(exist_ok=True)
    return root


def parquet(rows):
    return {"train.parquet": rows if isinstance(rows, pa.Table) else pa.table(rows)}


CSV = [
    ("text,label\na,x\n  ,y\n", DataError, "row 1 .*no text"),
    ("text,label\na,x\nsecret,\n", LabelsError, "row 1 .*no label"),
    ("text,label\na,-1\n", LabelsError, "row 0 .*-1"),
    ("text,label\na,99999999\n", LabelsError, "100000000 classes"),
    ("text,label\na,x\nsecret\n", DataError, "row 1 .*fields"),
    ('text,label\n"secret\nb,x\n', DataError, "fields"),
    ("text,label\na,x\nsecret\xff,x\n", DataError, "row 1 .*UTF-8"),
    ("", DataError, "empty"),
    ("text,label\n", DataError, "no samples"),
    ("text,text\na,x\n", DataError, "twice"),
    ("text,class\na,x\n", DataError, "no label column.*text, class"),
    ("size;label\n1.5;0\n", DataError, "semicolons"),
    ("size\tlabel\n1.5\t0\n", DataError, "tabs"),
    ("size,label\n1.5,0\n".encode("utf-16"), DataError, "UTF-16"),
    ("size,label,\n1.5,0,\n", DataError, "comma at the end"),
    ("size,label\r1.5,0\r2.5,\r", LabelsError, "row 1 .*no label"),
    (",size,label\n0,1,x\n1,2,y\n", DataError, "index=False"),
    (labels("0", "1", "1", "NaN"), LabelsError, "row 3 .*'NaN'"),
    (labels("ill", "well", "NA"), LabelsError, r"row 2 .*no label \(it holds 'NA'\).*classes.txt"),
    (frame(label=np.arange(N) * 1.5 + 0.25), LabelsError, r"pandas\.cut"),
    (stray("<0.1"), DataError, "'<0.1' in row 2 .*'size'"),
    (stray("5,2"), DataError, "'5,2' in row 2 .*decimals with a point"),
    (stray("inf"), DataError, "'inf' in row 2 .*not finite"),
    (frame(size=[f"{row % 15}%" for row in range(N)]), DataError, "percent sign"),
    (frame(size=[f"{row % 15},5" for row in range(N)]), DataError, "decimal comma"),
    (frame(more=[f"a sentence of row {row}" for row in range(N)]), DataError, "set text-column"),
]
IDS = {"text": ["a"] * 3, "label": ["x"] * 3, "id": ["1", "2", None]}
ONE = {"text": ["a"], "label": [0], "id": [5]}
COLUMNS = [
    (IDS, {"text": "note"}, "text-column is 'note'.*text, label, id"),
    (IDS, {"text": "text", "group": "text"}, "twice"),
    (IDS, {"group": "id"}, "row 2 .*no group"),
    (ONE | {"id": [0.5]}, {"group": "id"}, "whole number or"),
    (ONE | {"id": [None]}, {"partition": "id"}, "row 0 .*no site"),
    ({"text": BYTES, "label": ["x", "y"]}, {}, "row 1 .*UTF-8"),
    ({"a": pd.to_datetime(["2020-01-01"] * 2), "label": [0, 1]}, {}, "timestamp"),
    ({"a": [[1], [2, 3]], "label": [0, 1]}, {}, "no image column and no text column"),
    (pa.table([[1], [2], [0]], ["a", "a", "label"]), {}, "column 'a' twice"),
]
PICTURE = {"bytes": GOOD, "path": "0.png"}
NAMED = {"bytes": None, "path": "/srv/logo.png"}
IMAGES = [
    (images((4, 4), (4, 5)), DataError, r"1\.png.*5×4 .*4×4"),
    ([GOOD, GOOD, GOOD[:-50]], DataError, r"row 2 .*2\.png.*no readable image"),
    ([GOOD, encode(np.zeros((4, 4), np.uint16))], DataError, "mode I;16"),
    ([GOOD, deep_colours()], DataError, "mode RGB;16B"),
    ([GOOD, b"P6\n4 4\n65535\n" + bytes(96)], DataError, "mode RGB;16"),
    ([], DataError, "no samples"),
    (pa.table({"image": [PICTURE, None], "label": [0, 1]}), DataError, "row 1 .*no image"),
    (pa.table({"image": [PICTURE, NAMED], "label": [0, 1]}), DataError, "row 1 .* names the file .*logo.png"),
    (pa.table({"image": [PICTURE] * 2, "label": [0, 20_000]}), LabelsError, "20001 classes"),
    (pa.table({"image": [PICTURE] * 2, "mark": [0, 1]}), DataError, "no label column"),
    (b"PAR1 nonsense", DataError, "ArrowInvalid"),
]
KNOWN = json.dumps(
    {"columns": [{"name": "age", "kind": "number"}, {"name": "job", "kind": "category", "values": ["cook"]}]}
)
SCHEMAS = [
    (KNOWN, "age,job,label\n1,cook,0\n2,baker,1\n", "'baker' in row 1 .*'job'"),
    (KNOWN, "age,job,label\n1,cook,0\n2,,1\n", "no value in row 1 .*'job'"),
    (KNOWN, "age,job,label\n1,cook,0\nold,cook,1\n", "'old' in row 1 .*'age'"),
    (KNOWN, "age,job,label\n1,cook,0\n,cook,1\n", "no value in row 1 .*'age'"),
    (KNOWN, "age,label\n1,0\n", "no column 'job'"),
    ('{"columns": [{"name": "label", "kind": "number"}]}', "age,label\n1,0\n", "feature 'label'"),
    ('{"columns":' + "[" * 100_000, "age,label\n1,0\n", "does not name columns"),
]
FOLDERS = [
    ({}, DataError, "no images"),
    ({"a.png": GOOD, "ant/b.png": GOOD}, DataError, "no class folder"),
    ({"test.csv": "a"}, DataError, "no training table"),
    ({"train.csv": "x,label\n1,a\n", "test.jsonl": "{}\n"}, DataError, "JSON lines are no longer read"),
    ({"train.csv": "a", "test.parquet": pa.table({"a": [1]})}, DataError, "several formats"),
    ({"train.csv": "x,label\n1,a\n", "TEST.CSV": "x,label\n1,a\n"}, DataError, r"TEST\.CSV.*\*\.csv"),
    ({"Training/ant/a.png": GOOD, "Testing/ant/a.png": GOOD}, DataError, "Testing, Training.*train and test"),
    ({"train/ant/a.png": GOOD, "testing/ant/a.png": GOOD}, DataError, "testing, train.*train and test"),
    ({"train.csv": "a", "ant/a.png": GOOD}, DataError, "a table, train.csv, and images"),
    ({"train.csv": "text,label\na,0\n", "test.csv": "txt,label\na,0\n"}, DataError, "no column 'text' in test.csv"),
    ({"classes.txt": "a\nb\n", "train.csv": "text,label\na,x\n"}, LabelsError, "row 0 .*'x'.*classes.txt"),
    ({"classes.txt": "a\nb\n", "train.csv": "text,label\na,2\n"}, LabelsError, "label 2 .*0 to 1"),
    ({"classes.txt": "a\na\n", "train.csv": "text,label\na,a\n"}, LabelsError, "twice"),
    ({"classes.txt": "ant\n", "train/bee/a.png": GOOD}, LabelsError, "folder 'bee'"),
]
Y, X = np.arange(6) % 3, np.zeros((6, 4), np.float32)
NAN = np.zeros((6, 2, 2), np.float32)
NAN[4, 1, 0] = np.nan
ARRAYS = [
    ({"y": Y}, "no array x"),
    ({"x": X}, "no array y"),
    ({"x": X, "y": Y, "y_test": Y}, "no array x_test"),
    ({"x": NAN, "y": Y}, r"nan at x\[4, 1, 0\]"),
    ({"x": X, "y": Y[:5]}, r"\(5,\) beside 6 rows"),
    ({"x": X, "y": Y, "classes": ["a", "b", "a"]}, "twice"),
    ({"x": X, "y": Y, "X_test": X}, "if it is x_test"),
    ({"x": X[:, 0], "y": Y}, "one row per sample"),
    ({"x": np.zeros((6, 8, 9), np.int64), "y": Y}, "of type int64"),
    ({"x": np.zeros((6, 3, 8, 3), np.uint8), "y": Y}, "either of the axes"),
    ({"x": X, "y": Y, "axes": "NCHW"}, "'NCHW'"),
    ({"x": X, "y": Y, "x_test": X[:, :3], "y_test": Y}, "one shape and type"),
    ({"x": np.array([{}]), "y": Y}, "no objects"),
    (b"no archive", "numpy.savez"),
]
LABELS_OF_ARRAYS = [
    ({"x": X, "y": Y + 0.5}, "few bins"),
    ({"x": X, "y": Y - 1}, "row 0 .*label -1"),
    ({"x": X, "y": Y, "classes": ["a", "b"]}, "row 2 .*label 2"),
    ({"x": X, "y": np.array(list("abcabd")), "classes": list("abc")}, "row 5 .*label 'd'"),
    ({"x": X, "y": Y + 10_000}, "more than 10000"),
]
TEXTS, NUMBERS = {"train.csv": "text,label\na,0\nb,1\n"}, {"train.csv": "a,label\n1,0\n2,1\n"}
ARRAY = {"rows.npz": {"x": X, "y": Y}}
SETTINGS = [
    (TEXTS, {"image_size": 8}, DataError, "holds texts"),
    (NUMBERS, {"image_size": 8}, DataError, "holds numbers"),
    (ARRAY, {"columns": Columns(group="bed")}, DataError, "bed of shape"),
    (ARRAY, {"columns": Columns(label="y")}, DataError, "label-column"),
    (ARRAY, {"listed": "tables"}, LabelsError, "no classes.txt"),
    ({"ant/a.png": GOOD}, {"columns": Columns(partition="ward")}, DataError, "no table"),
    (NUMBERS | {"classes.txt": "0\n1\n"}, {"listed": "tables"}, DataError, "columns.json"),
]
TABLE = [
    *(({"train.csv": content}, {}, error, word) for content, error, word in CSV),
    *((parquet(rows), {"columns": Columns(**names)}, None, word) for rows, names, word in COLUMNS),
    *(({"train.parquet": content}, {}, error, word) for content, error, word in IMAGES),
    (parquet({"size": np.arange(N), "label": np.arange(N) * 1.5}), {}, LabelsError, "few bins"),
    *(({"columns.json": schema, "train.csv": rows}, {}, DataError, word) for schema, rows, word in SCHEMAS),
    *((files, {}, error, word) for files, error, word in FOLDERS),
    *(({"rows.npz": content}, {}, DataError, word) for content, word in ARRAYS),
    *(({"rows.npz": content}, {}, LabelsError, word) for content, word in LABELS_OF_ARRAYS),
    *SETTINGS,
]


@pytest.mark.parametrize(("files", "recipe", "error", "word"), TABLE, ids=[f"{row[3][:40]}" for row in TABLE])
def test_what_cannot_be_used_is_refused(tmp_path, files, recipe, error, word):
    root = lay(tmp_path / "set", files)
    path = root / "rows.npz" if "rows.npz" in files else root
    with pytest.raises(DataError, match=word) as caught:
        open_data(DataSpec(str(path), **recipe), tmp_path / "cache")
    assert type(caught.value) is (error or DataError)
    # nothing of a note belongs in a message, and nothing half-written stays
    assert "secret" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("decoded/*.partial"))


def test_classes_may_be_called_as_splits_are_where_they_are_listed(tmp_path):
    files = {"classes.txt": "testing\ntraining\n", "testing/a.png": GOOD, "training/a.png": GOOD}
    data = open_data(DataSpec(str(lay(tmp_path / "listed", files))), tmp_path / "cache")
    assert (data.class_names, len(data.labels)) == (("testing", "training"), 2)
    files = {"train/a/a.png": GOOD, "test/a/a.png": GOOD, "Valid/a/a.png": GOOD}
    assert len(open_data(DataSpec(str(lay(tmp_path / "third", files))), tmp_path / "cache").labels) == 2


NAMES = [
    ("zzzzzz", "digits, spiral, cifar10"),
    ("", "unknown data set ''"),
    ("~/no-such-folder", "does not exist"),
    (__file__, "is a file"),
    ("digits,,usps", "empty item"),
    ("usps,/data/usps", "two domains 'usps'"),
    ("digits,/data/*", "stands alone"),
    ("/nowhere/at/all/*", "no folder"),
]


@pytest.mark.parametrize(("dataset", "word"), NAMES)
def test_names_and_lists_that_lead_nowhere(dataset, word, tmp_path):
    with pytest.raises(DataError, match=word):
        open_data(DataSpec(dataset), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


A = {"a/train.parquet": images((6, 6), (6, 6))}
ROWS = {"a.npz": {"x": np.zeros((6, 5), np.float32), "y": Y}}
DOMAINS = [
    (A, "a,gone", "domain 'gone'"),
    (A | {"b/train.parquet": []}, "a,b", "domain 'b': .*no samples"),
    (A | {"b/train.parquet": images((6, 6), (6, 7))}, "a,b", "domain 'b': row 1"),
    (A | {"b/train.parquet": [], "b/test.parquet": images((6, 6))}, "a,b", "'b' has no training sample"),
    (A, "a,spiral", "'a' and 'spiral' have different classes"),
    (A | {"b/train.csv": "text,label\na,0\n"}, "a,b", "'b' holds texts or a table"),
    (A | {"b/train.csv": "text,label\na,0\n"}, "b,a", "'a' holds no table"),
    (
        A | {"a/classes.txt": "x\ny", "b/classes.txt": "x\nz", **{"b/train.parquet": images((6, 6))}},
        "a,b",
        "has y; .*z",
    ),
    (
        ROWS | {"b.npz": {"x": np.zeros((6, 4), np.float32), "y": Y}},
        "a.npz,b.npz",
        r"float32 \(5,\) and float32 \(4,\)",
    ),
    ({"n.csv": labels("0", "1"), "s.csv": labels("ill", "well")}, "n.csv,s.csv", "no label in common .'0', '1'; 'ill'"),
    ({"n.csv": labels("ill", "well"), "s.csv": labels("Ill", "well")}, "n.csv,s.csv", "spellings .'ill'; 'Ill'"),
    ({"a.csv": "x,y,label\n1,2,0\n", "b.csv": "x,z,label\n1,2,0\n"}, "a.csv,b.csv", "'z' in b.csv, but not in a.csv"),
    ({"a.csv": "x,label\n1,0\n", "b.csv": "x,y,label\n1,2,0\n"}, "a.csv,b.csv", "'y' in b.csv, but not in a.csv"),
    (
        {"a/t.csv": "x,label\n1,0\n", "a/classes.txt": "0\n1\n", "b.csv": "x,label\n1,0\n"},
        "b.csv,a/t.csv",
        "classes.txt",
    ),
    ({"a.parquet": pa.table({"x": [1.0], "label": [0]}), "b.parquet": b"PAR1 torn"}, "a.parquet,b.parquet", "be read"),
    ({"all/train/ant/a.png": GOOD, "all/test/ant/a.png": GOOD}, "all/*", "splits of one data set"),
    ({"all/.b/x": "", "all/y": ""}, "all/*", "no subfolders"),
]


@pytest.mark.parametrize(("files", "items", "word"), DOMAINS, ids=[row[2] for row in DOMAINS])
def test_a_bad_domain_is_named(tmp_path, files, items, word):
    root = lay(tmp_path / "sets", files)
    named = [item if item == "spiral" else str(root / item) for item in items.split(",")]
    with pytest.raises(DataError, match=word):
        open_data(DataSpec(",".join(named)), tmp_path / "cache")
    # the domains that are whole may stay; nothing is half-written
    entries = [path for path in (tmp_path / "cache").glob("decoded/*") if path.suffix != ".lock"]
    assert all((path / "about.json").is_file() for path in entries)


def test_a_link_to_nowhere_is_a_domain_that_is_missing(tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "c").symlink_to(tmp_path / "unmounted")
    with pytest.raises(DataError, match="domain 'c': data path"):
        open_data(DataSpec(f"{tmp_path}/all/*"), tmp_path / "cache")
    assert domains_of("digits") == ()


def test_a_hub_that_cannot_be_reached_names_the_remedy(tmp_path, monkeypatch):
    import datasets

    def load_dataset(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"Couldn't reach the Hub\).*local fold"):
        open_data(DataSpec("cifar10"), tmp_path)


def test_an_error_while_reading_is_the_datas_and_one_while_writing_the_caches(tmp_path, monkeypatch):
    root = lay(tmp_path / "set", {"t.csv": "a,b,label\n1,2,x\n2,3,y\n"})
    for number, word in ((13, "Permission denied"), (5, "Input/output error")):

        def refuse(*_, number=number, **__):
            raise OSError(number, "no", str(root / "t.csv"))

        with monkeypatch.context() as patch:
            patch.setattr("protosphere.data.forms.tables.open_table", refuse)
            with pytest.raises(DataError, match=f"data .*set' cannot be read .{word}"):
                open_data(DataSpec(str(root)), tmp_path / "cache")
    (tmp_path / "file").write_text("a file stands where the folder should be")
    with pytest.raises(DataError, match=r"data cache .* cannot be written .* PROTOSPHERE_HOME"):
        open_data(DataSpec("digits"), tmp_path / "file")
