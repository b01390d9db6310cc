"""What data cannot be, form by form: each row of a table is a bad input, and words that say what and where it is."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.core.errors import DataError, LabelsError
from protosphere.data.decode import Recipe, decode
from protosphere.data.domains import domains_of, locate_all, open_all
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.sources import locate
from tests.data.conftest import deep_colours, encode, pixels, write_table

N = 40
GOOD = encode(np.zeros((4, 4, 3), np.uint8))
IDS = {"text": ["a"] * 3, "label": ["x"] * 3, "id": ["1", "2", None]}


def frame(**columns):
    """A table of 40 rows with a number, a label and these columns, as CSV."""
    return pd.DataFrame({"size": np.arange(N) + 0.5, "label": np.arange(N) % 2} | columns).to_csv(index=False)


def parquet(**columns):
    return pa.table(columns)


def alternating(*words):
    return [words[row % len(words)] for row in range(N)]


def stray(word):
    return {"train.csv": frame(size=["0", "1", word, *map(str, range(3, N))])}


def label(*labels):
    return {"train.csv": frame(label=[*labels, *alternating("0", "1")[len(labels) :]])}


def lay(root, files):
    """Write files by name: text, bytes, an Arrow table, arrays by name, or a list of encoded images in a parquet."""
    root.mkdir(parents=True, exist_ok=True)
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
    return root


NO_CLASS = "row 1 of the train table of {root!r} has "
CSV = [
    ("text,label\na,x\n  ,y\n", NO_CLASS + "no text"),
    ("text,label\na,x\nsecret,\n", NO_CLASS + "no label"),
    ("text,label\na,-1\n", "row 0 of the train table of {root!r} has the label -1"),
    ("text,label\na,99999999\n", "would make 100000000 classes, more than 10000"),
    ("text,label\na,x\nsecret\n", "row 1 of '{root}/train.csv' has another number of fields (1) than the header (2)"),
    ("text,label\nsecret,x,y\n", "row 0 of '{root}/train.csv' has another number of fields (3) than the header (2)"),
    ('text,label\n"secret\nb,x\n', "another number of fields (1) than the header (2)"),
    ("text,label\n" + '"a\nb",x\n' * 50 + "secret\n", "row 50 of"),
    ("text,label\na,x\nsecret\xff,x\n", "row 1 of '{root}/train.csv' is not UTF-8"),
    ("t\xffxt,label\na,x\n", "'{root}/train.csv' is not UTF-8"),
    ("", "'{root}/train.csv' is empty"),
    ("text,label\n", "data set {root!r} has no samples"),
    ("text,text\na,x\n", "names the column 'text' twice"),
    ("text,class\na,x\n", "{root!r} has no label column; its columns are text, class"),
    ("size;label\n1.5;0\n", "has semicolons between its fields, but a CSV file has commas: write it anew, as pandas"),
    ("size\tlabel\n1.5\t0\n", r"has tabs between its fields"),
    ("size,label\n1.5,0\n".encode("utf-16"), "is UTF-16: save the file in UTF-8"),
    ("size,label,\n1.5,0,\n", "has a comma at the end of its header"),
    (",size,label\n0,1,x\n1,2,y\n", "write the table with index=False"),
]
JSON = [
    (b'{"text": "a", "label": 1}\n\n{"text": "secret"}', NO_CLASS + "no label"),
    (b'{"text": "a", "label": 1}\n{"text": "b", "label": "1"}', "has text in column 'label', where other rows have a"),
    (b'{"text": "a", "label": true}', "holds bool, but labels must be class numbers"),
    (b'{"text": "a", "label": 1e400}', "holds double, but labels must be class numbers"),
    (b'{"text": "a", "label": 9223372036854775808}', "holds double, but labels must be class numbers"),
    (b'{"text": 7, "label": 1}', "column 'text' of the train table of {root!r} holds whole numbers, but texts"),
    (b'{"text": "\\ud83d", "label": 1}', "row 0 of '{root}/train.jsonl' has half of a \\u pair in column 'text'"),
    (b'{"text": "a", "label": 1}\n{"text": "\xff", "label": 1}', "row 1 of '{root}/train.jsonl' is not UTF-8"),
    (b'{"text": "a", "label": 1}\n{"text": "secret', "row 1 of '{root}/train.jsonl' is no JSON object"),
    (b'{"text": "a", "label": 1}\n["secret"]', "row 1 of '{root}/train.jsonl' is no JSON object"),
    (b'\n[{"text": "secret", "label": 1}]', "holds a JSON array: write one object per line"),
    (b"", "has no text column; it has no columns"),
    (
        b'{"a": 0.5, "label": 0}\n{"a": "secret", "label": 1}\n',
        "has text in column 'a', where other rows have a number",
    ),
    (b'{"a": 0.5, "label": 0}\n{"a": [1], "label": 1}\n', "row 1 of '{root}/train.jsonl' has a list or an object in"),
]
COLUMNS = [
    ({"text": "note"}, "text-column is 'note', but {root!r} has no such column; its columns are text, label, id"),
    ({"label": "class"}, "label-column is 'class', but"),
    ({"group": "patient"}, "group-column is 'patient', but"),
    ({"text": "text", "group": "text"}, "text-column = 'text', group-column = 'text' name one column of"),
    ({"group": "id"}, "row 2 of the train table of {root!r} has no group in column 'id'"),
]
BYTES = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
SPLIT = {"text": ["a"], "label": [0], "id": [5]}
PARQUET = [
    (
        {"train.parquet": parquet(**SPLIT), "test.parquet": parquet(**SPLIT | {"label": ["0"]})},
        "column 'label' holds strings in the test",
    ),
    (
        {"train.parquet": parquet(**SPLIT), "test.parquet": parquet(**SPLIT | {"id": ["5"]})},
        "column 'id' holds strings in the test",
    ),
    (
        {"train.parquet": parquet(**SPLIT | {"id": [0.5]})},
        "column 'id' of {root!r} holds double, but groups must be whole numbers",
    ),
    (
        {"train.parquet": parquet(text=BYTES, label=["x", "y"], id=[1, 2])},
        "row 1 of the train table of {root!r} is not UTF-8",
    ),
    (
        {"train.parquet": parquet(text=["a", "b"], label=BYTES, id=[1, 2])},
        "row 1 of the train table of {root!r} has a label or group",
    ),
    (
        {"train.parquet": parquet(text=["a", "b"], label=["x", "y"], id=BYTES)},
        "row 1 of the train table of {root!r} has a label or group",
    ),
    (
        {"train.csv": "text,label,id\na,x,1\n", "test.csv": "text,class,id\na,x,1\n"},
        "has no column 'label' in test.csv; its columns are text, class",
    ),
]
VALUES = [
    (label("0", "1", "1", "NaN"), "row 3 of the train table of {root!r} has no label (it holds 'NaN')"),
    (label("0", "1", "1", "n.a."), "row 3 of the train table of {root!r} has no label (it holds 'n.a.')"),
    ({"train.csv": frame(label=np.arange(N) * 1.5 + 0.25)}, "put the numbers into a few bins, as pandas.cut does"),
    (
        {"train.parquet": parquet(size=np.arange(N), label=np.arange(N) * 1.5)},
        "put numbers with decimals into a few bins",
    ),
    *(
        (stray(word), f"has {word!r} in row 2 in the column 'size', whose other values are numbers: correct that cell")
        for word in ("<0.1", "TRUE", "5%")
    ),
    (
        stray("5,2"),
        "has '5,2' in row 2 in the column 'size', whose other values are numbers: write decimals with a point",
    ),
    (stray("inf"), "has 'inf' in row 2 of its train table in the column 'size', which is not finite"),
    (
        {"train.csv": frame(size=[f"{row % 15}%" for row in range(N)])},
        "has numbers with a percent sign in the column 'size', such as '0%'",
    ),
    (
        {"train.csv": frame(size=[f"{row % 15},5" for row in range(N)])},
        "has numbers with a decimal comma in the column 'size'",
    ),
    (
        {"train.csv": frame(more=[f"a sentence of row {row}" for row in range(N)])},
        "if it holds texts, set text-column to it",
    ),
    (
        {"train.parquet": parquet(a=pd.to_datetime(["2020-01-01"] * 2), label=[0, 1])},
        "in the column 'a', but features are numbers",
    ),
    ({"train.parquet": parquet(a=[[1], [2, 3]], label=[0, 1])}, "has no image column; its columns are a, label"),
]
SCHEMA = {"columns": [{"name": "age", "kind": "number"}, {"name": "job", "kind": "category", "values": ["cook"]}]}
KNOWN = {"columns.json": json.dumps(SCHEMA)}
SCHEMAS = [
    (
        KNOWN | {"train.csv": "age,job,label\n1,cook,0\n2,baker,1\n"},
        "has 'baker' in row 1 of its train table in the column 'job'",
    ),
    (
        KNOWN | {"train.csv": "age,job,label\n1,cook,0\n2,,1\n"},
        "has no value in row 1 of its train table in the column 'job'",
    ),
    (
        KNOWN | {"train.csv": "age,job,label\n1,cook,0\nold,cook,1\n"},
        "has 'old' in row 1 of its train table in the column 'age'",
    ),
    (
        KNOWN | {"train.csv": "age,job,label\n1,cook,0\n,cook,1\n"},
        "has no value in row 1 of its train table in the column 'age'",
    ),
    (KNOWN | {"train.csv": "age,label\n1,0\n"}, "has no column 'job' in train.csv"),
    (
        {"columns.json": '{"columns": [{"name": "label", "kind": "number"}]}', "train.csv": "age,label\n1,0\n"},
        "has the feature 'label', which is its column of labels, groups or sites",
    ),
    (
        {"columns.json": '{"columns":' + "[" * 100_000, "train.csv": "age,label\n1,0\n"},
        "does not name columns as",
    ),
    *(
        ({"columns.json": content, "train.csv": "age,label\n1,0\n"}, "does not name columns as")
        for content in (
            "",
            "{}",
            '{"columns": []}',
            '{"columns": [{"name": "a", "kind": "word"}]}',
            '{"columns": [{"kind": "number"}]}',
            '{"columns": [{"name": "a", "kind": "category", "values": [1]}]}',
            '{"columns": [{"name": "a", "kind": "number"}, {"name": "a", "kind": "number"}]}',
        )
    ),
]
IMAGES = [
    (
        [GOOD, GOOD, encode(np.zeros((4, 5, 3), np.uint8))],
        "(2.png) is 5×4 pixels but row 0 of the train table of {root!r} (0.png) 4×4",
    ),
    ([GOOD, GOOD, GOOD[:-50]], "row 2 of the train table of {root!r} (2.png) is no readable image"),
    ([GOOD, GOOD, b"not an image"], "row 2 of the train table of {root!r} (2.png) is no readable image"),
    ([GOOD, GOOD, None], "row 2 of the train table of {root!r} (2.png) is no readable image"),
    ([GOOD, GOOD, encode(np.zeros((4, 4), np.uint16))], "(2.png) has pixels of mode I;16, but images must have 8 bits"),
    ([GOOD, GOOD, deep_colours()], "(2.png) has pixels of mode RGB;16B"),
    ([GOOD, GOOD, b"P6\n4 4\n65535\n" + bytes(96)], "(2.png) has pixels of mode RGB;16, but"),
    ([], "data set {root!r} has no samples"),
    (
        parquet(image=[{"bytes": GOOD, "path": None}, None], label=[0, 1]),
        "row 1 of the train table of {root!r} has no image: give it",
    ),
    (
        parquet(image=[{"bytes": GOOD, "path": None}, {"bytes": None, "path": None}], label=[0, 1]),
        "row 1 of the train table of {root!r} has no image",
    ),
    (
        parquet(image=[{"bytes": GOOD, "path": ""}] * 2, label=[0, 20_000]),
        "column 'label' of {root!r} would make 20001 classes, more than 10000",
    ),
    (
        parquet(image=[{"bytes": GOOD, "path": ""}] * 2, label=[0, None]),
        "row 1 of the train table of {root!r} has no label",
    ),
    (parquet(image=[{"bytes": GOOD, "path": ""}] * 2, mark=[0, 1]), "has no label column; its columns are image, mark"),
    (parquet(image=[{"path": ""}] * 2, label=[0, 1]), "row 0 of the train table of {root!r} has no image"),
    (b"PAR1 nonsense", "the data {root!r} cannot be read (ArrowInvalid: Parquet"),
]
LISTED = [
    (
        {"classes.txt": "a\nb\n", "train.csv": "text,label\na,x\n"},
        "row 0 of the train table of {root!r} has the label 'x', but classes.txt names no such class",
    ),
    (
        {"classes.txt": "a\nb\n", "train.csv": "text,label\na,2\n"},
        "has the label 2, but labels must be 0 to 1, since there are 2 class names",
    ),
    ({"classes.txt": "a\nb\na\n", "train.csv": "text,label\na,a\n"}, "names a class twice"),
    ({"classes.txt": "ant\n", "train/bee/a.png": GOOD}, "has a folder 'bee', but classes.txt names no such class"),
]
FOLDERS = [
    ({}, "holds no images: expected train.parquet"),
    ({"a.png": GOOD, "ant/b.png": GOOD}, "a.png' lies in no class folder"),
    ({"test.parquet": parquet(a=[1])}, "has no training table, only test.parquet"),
    ({"train.csv": "a", "test.parquet": parquet(a=[1])}, "holds tables of several formats (train.csv, test.parquet)"),
    ({"train.csv": "a", "ant/a.png": GOOD}, "holds a table, train.csv, and images, ant/a.png"),
]
Y = np.arange(6) % 3
X = np.zeros((6, 4), np.float32)
NAN, INF = np.zeros((6, 2, 2), np.float32), np.zeros((6, 4))
NAN[4, 1, 0], INF[5, 3] = np.nan, 1e39
ARRAYS = [
    ({"y": Y}, "no array x"),
    ({"x": X}, "no array y"),
    ({"x": X, "y": Y, "x_test": X}, "no array y_test"),
    ({"x": X, "y": Y, "y_test": Y}, "no array x_test"),
    ({"x": NAN, "y": Y}, "has nan at x[4, 1, 0]"),
    ({"x": X, "y": Y, "x_test": INF, "y_test": Y}, "has inf at x_test[5, 3]"),
    ({"x": X, "y": Y[:5]}, "y of shape (5,) beside 6 rows"),
    ({"x": X, "y": Y + 0.5}, "labels of type float64: give class numbers 0, 1, 2, ... or names; put numbers with"),
    ({"x": X, "y": np.array([0, 1, 2, 0, -1, 1])}, "the label -1 at y[4]"),
    ({"x": X, "y": Y, "classes": ["a", "b"]}, "the label 2 at y[2]"),
    ({"x": X, "y": np.array(list("abcabd")), "classes": list("abc")}, "the label d at y[5]"),
    ({"x": X, "y": Y, "classes": ["a", "b", "a"]}, "a class twice"),
    ({"x": X, "y": Y, "X_test": X, "ytest": Y}, "an array 'X_test': if it is x_test"),
    ({"x": X, "y": Y + 10_000}, "more than 10000"),
    ({"x": X[:, :0], "y": Y}, "a row each"),
    ({"x": X[:, 0], "y": Y}, "a row each"),
    ({"x": np.zeros((6, 8, 9), np.int64), "y": Y}, "of type int64"),
    ({"x": X.astype("U"), "y": Y}, "of type <U"),
    ({"x": np.zeros((6, 3, 8, 3), np.uint8), "y": Y}, "either of the axes"),
    ({"x": np.zeros((6, 13, 8, 9), np.uint8), "y": Y}, "neither of the axes"),
    ({"x": X, "y": Y, "axes": "NCHW"}, "axes of its images are 'NCHW'"),
    ({"x": X, "y": Y, "x_test": X[:, :3], "y_test": Y}, "one shape and type"),
    ({"x": np.array([{}]), "y": Y}, "of numbers and strings, no objects"),
    (b"no archive", "write it with numpy.savez"),
]

TABLE = [
    *(("csv", {"train.csv": content}, {}, words) for content, words in CSV),
    *(("json", {"train.jsonl": content}, {}, words) for content, words in JSON),
    *(
        ("columns", {"train.parquet": parquet(**IDS)}, {"columns": Columns(**columns)}, words)
        for columns, words in COLUMNS
    ),
    *(("parquet", files, {"columns": Columns(group="id")}, words) for files, words in PARQUET),
    *(("values", files, {}, words) for files, words in VALUES),
    *(("schema", files, {}, words) for files, words in SCHEMAS),
    *(("images", {"train.parquet": content}, {}, words) for content, words in IMAGES),
    *(("listed", files, {}, words) for files, words in LISTED),
    *(("folder", files, {}, words) for files, words in FOLDERS),
    *(("arrays", {"rows.npz": content}, {}, words) for content, words in ARRAYS),
    (
        "texts",
        {"train.csv": "text,label\na,0\nb,1\n", "test.csv": "txt,label\na,0\n"},
        {},
        "has no column 'text' in test.csv; its columns are txt, label",
    ),
    ("size", {"train.csv": "text,label\na,0\nb,1\n"}, {"image_size": 8}, "image-size is 8, but {root!r} holds texts"),
    ("size", {"train.csv": "a,label\n1,0\n2,1\n"}, {"image_size": 8}, "image-size is 8, but {root!r} holds numbers"),
    ("size", {"rows.npz": {"x": X, "y": Y}}, {"image_size": 16}, "image-size is 16, but"),
    (
        "site",
        {"rows.npz": {"x": X, "y": Y}},
        {"listed": "tables"},
        "holds arrays, but no classes.txt: list the classes",
    ),
    (
        "site",
        {"classes.txt": "0\n1\n", "train.csv": "a,b,label\n1,2,0\n"},
        {"listed": "tables"},
        "a site's table of numbers needs a columns.json",
    ),
]


@pytest.mark.parametrize(("form", "files", "recipe", "words"), TABLE, ids=[f"{row[0]}-{row[3][:40]}" for row in TABLE])
def test_what_cannot_be_used_is_said_with_its_place(tmp_path, form, files, recipe, words):
    root = lay(tmp_path / "set", files)
    path = root / "rows.npz" if "rows.npz" in files else root
    with pytest.raises(DataError) as caught:
        decode(Recipe(str(path), **recipe), tmp_path / "cache")
    assert words.replace("{root!r}", repr(str(root))).replace("{root}", str(root)) in str(caught.value)
    # nothing of a note belongs in a message, and nothing half-written stays
    assert "secret" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("decoded/*.partial"))
    if form == "listed":
        assert isinstance(caught.value, LabelsError)


def test_a_row_of_a_file_is_no_longer_than_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr("protosphere.data.forms.table_files._BLOCK_BYTES", 64)
    root = lay(tmp_path / "set", {"train.csv": "text,label\na,x\n" + "secret" * 50 + ",x\n"})
    with pytest.raises(DataError, match="a row of more than 64 bytes: look for a quote without its end"):
        decode(Recipe(str(root)), tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifr10", "unknown data set 'cifr10': did you mean 'cifar10'?"),
        ("zzzzzz", "unknown data set 'zzzzzz': the names are digits, spiral, cifar10"),
        ("", "unknown data set ''"),
        ("/no/such/folder", "data path '/no/such/folder' does not exist"),
        ("./no-such-folder", "no-such-folder' does not exist"),
        ("~/no-such-folder", "no-such-folder' does not exist"),
        (__file__, "is a file, but a data set is a folder"),
    ],
)
def test_names_and_paths_that_lead_nowhere(name, words):
    with pytest.raises(DataError) as caught:
        locate(name)
    assert words in str(caught.value)


@pytest.mark.parametrize("setting", ["text", "label", "group", "partition"])
def test_what_is_no_table_has_no_columns(image_folder, tmp_path, setting):
    for name in ("digits", "spiral", str(image_folder)):
        with pytest.raises(DataError) as caught:
            decode(Recipe(name, Columns(**{setting: "note"})), tmp_path / "cache")
        assert f"{setting}-column is 'note', but {name!r} is no table" in str(caught.value)


LISTS = [
    ("digits,,usps", "dataset is 'digits,,usps', a list with an empty item"),
    ("digits,", "a list with an empty item"),
    ("usps,/data/usps", "dataset names two domains 'usps'"),
    ("digits,mnist,digits", "dataset names two domains 'digits'"),
    ("digits,/data/*", "dataset lists '/data/*' among others"),
    ("/nowhere/at/all/*", "data path '/nowhere/at/all' is no folder"),
]


@pytest.mark.parametrize(("dataset", "words"), LISTS)
def test_lists_that_cannot_be_read(dataset, words, tmp_path):
    for entry in (domains_of, locate_all, lambda item: open_all(Recipe(item), tmp_path / "cache")):
        with pytest.raises(DataError) as caught:
            entry(dataset)
        assert words in str(caught.value)
    assert not (tmp_path / "cache").exists()


def images_of(name, *shapes, classes=None):
    """The files of a domain of images of these shapes, of the classes 0 and 1."""
    content = [encode(np.zeros(shape, np.uint8)) for shape in shapes]
    return {f"{name}/train.parquet": content} | ({f"{name}/classes.txt": "\n".join(classes)} if classes else {})


def sites_of(north, south):
    return {f"{name}.csv": frame(label=alternating(*labels)) for name, labels in (("north", north), ("south", south))}


def rows_of(seed, shape, dtype):
    x = (np.random.default_rng(seed).random((6, *shape)) * 255).astype(dtype)
    return {"x": x, "y": np.arange(6) % 2}


AB = [encode(pixels(0))] * 2
DOMAINS = [
    (images_of("a", (6, 6)), "a,gone", "domain 'gone': data path"),
    (images_of("a", (6, 6)), "a,digit", "domain 'digit': unknown data set 'digit'"),
    (images_of("a", (6, 6)) | images_of("b"), "a,b", "domain 'b': data set"),
    (images_of("a", (6, 6)) | images_of("b", (6, 6), (6, 7)), "a,b", "domain 'b': row 1 of the train table"),
    (
        images_of("a", (6, 6)) | {"b/train.parquet": [], "b/test.parquet": AB},
        "a,b",
        "domain 'b' has no training sample",
    ),
    (images_of("a", (6, 6)), "a,spiral", "domain 'spiral' holds numbers, but domains must be images"),
    (
        images_of("a", (6, 6)) | {"b/train.csv": "text,label\na,0\n"},
        "a,b",
        "domain 'a' holds images or arrays, but 'b' a csv table: ",
    ),
    (
        images_of("a", (6, 6)) | {"b/train.parquet": parquet(age=[1, 2], label=[0, 1])},
        "a,b",
        "domain 'a' holds images or arrays, but 'b' a parquet table",
    ),
    (
        images_of("a", (6, 6), classes="xy") | images_of("b", (6, 6), classes="xzw"),
        "a,b",
        "domains 'a' and 'b' have different classes (only 'a' has y; only 'b' has z, w): ",
    ),
    (
        images_of("a", (6, 6), classes="xy") | images_of("b", (6, 6), classes="x"),
        "a,b",
        "have different classes (only 'a' has y)",
    ),
    (
        {"a.npz": rows_of(1, (5,), "float32"), "b.npz": rows_of(2, (4,), "float32")},
        "a.npz,b.npz",
        "domains 'a.npz' and 'b.npz' hold samples of float32 (5,) and float32 (4,)",
    ),
    (
        {"a.npz": rows_of(1, (5,), "float32"), "b.npz": rows_of(2, (5,), "uint8")},
        "a.npz,b.npz",
        "hold samples of float32 (5,) and uint8 (5,)",
    ),
    (
        {"a.npz": rows_of(1, (5,), "float32"), "b.npz": rows_of(2, (3, 8, 8), "uint8")},
        "a.npz,b.npz",
        "hold samples of float32 (5,) and uint8 (3, 8, 8)",
    ),
    (
        sites_of("01", ("ill", "well")),
        "north.csv,south.csv",
        "'north' and 'south' have no label in common ('0', '1'; 'ill', 'well')",
    ),
    (
        sites_of(("ill", "well"), ("Ill", "well")),
        "north.csv,south.csv",
        "have one label in two spellings ('ill'; 'Ill')",
    ),
    (sites_of(("<=50K", ">50K"), ("<=50K.", ">50K.")), "north.csv,south.csv", "in two spellings ('<=50K'; '<=50K.')"),
    (
        {"a.csv": "x,y,label\n1,2,0\n", "b.csv": "x,z,label\n1,2,0\n"},
        "a.csv,b.csv",
        "has no column 'y' in b.csv; its columns are x, z, label",
    ),
    ({"a.csv": "x,label\n1,0\n", "b.csv": "x,label\n"}, "a.csv,b.csv", "domain 'b' has no training sample"),
    (
        {"a.csv": "x,label\n1,0\n", "b.parquet": parquet(x=[1], label=[0])},
        "a.csv,b.parquet",
        "domain 'a' holds a csv table, but 'b' a parquet table: list data sets of one form",
    ),
    (
        {"a/t.csv": "x,label\n1,0\n", "a/classes.txt": "0\n1\n", "b.csv": "x,label\n1,0\n"},
        "b.csv,a/t.csv",
        "'b' and 't' do not have the same classes.txt beside them",
    ),
    (
        {"one.parquet": parquet(x=[1.0], label=[0]), "two.parquet": b"PAR1 torn"},
        "one.parquet,two.parquet",
        "cannot be read (",
    ),
]


@pytest.mark.parametrize(("files", "items", "words"), DOMAINS, ids=[row[2][:60] for row in DOMAINS])
def test_a_bad_domain_is_named(tmp_path, files, items, words):
    root = lay(tmp_path / "all", files)
    named = [item if item in ("digit", "spiral") else str(root / item) for item in items.split(",")]
    with pytest.raises(DataError) as caught:
        open_all(Recipe(",".join(named)), tmp_path / "cache")
    assert words in str(caught.value)
    # the domains that are whole may stay; nothing is half-written
    entries = [path for path in (tmp_path / "cache").glob("decoded/*") if path.suffix != ".lock"]
    assert all((path / "about.json").is_file() for path in entries)


def test_what_a_folder_of_domains_cannot_be(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "one" / split / "ant").mkdir(parents=True)
    (tmp_path / "hidden" / ".b").mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "c").symlink_to(tmp_path / "unmounted")
    for name, words in {
        "one": f"set dataset to {str(tmp_path / 'one')!r}",
        "hidden": "has no subfolders",
        "link": "domain 'c': data path ",
    }.items():
        with pytest.raises(DataError) as caught:
            open_all(Recipe(f"{tmp_path}/{name}/*"), tmp_path / "cache")
        assert words in str(caught.value)


def test_a_hub_that_cannot_be_reached_names_the_remedy(tmp_path, monkeypatch):
    import datasets

    def load_dataset(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        DataError, match=r"'uoft-cs/cifar10' could not be fetched .*Couldn't reach the Hub\).*local fold"
    ):
        decode(Recipe("cifar10"), tmp_path)


def test_a_file_that_nobody_may_open_and_a_cache_that_nobody_may_write(tmp_path, monkeypatch):
    root = lay(tmp_path / "set", {"t.csv": "a,b,label\n1,2,x\n2,3,y\n"})

    def refuse(*_):
        raise PermissionError(13, "Permission denied", str(root / "t.csv"))

    monkeypatch.setattr("protosphere.data.forms.tables.read_columns", refuse)
    with pytest.raises(DataError, match=r"the data .*set' cannot be read \(Permission denied\): let the user"):
        decode(Recipe(str(root)), tmp_path / "cache")
    (tmp_path / "file").write_text("a file stands where the folder should be")
    with pytest.raises(DataError, match=r"the data cache .* cannot be written .* set PROTOSPHERE_HOME"):
        decode(Recipe("digits"), tmp_path / "file")


def test_an_image_of_a_folder_lies_in_a_class(tmp_path):
    root = tmp_path / "set"
    (root / "ant").mkdir(parents=True)
    Image.new("L", (2, 2)).save(root / "ant" / "a.PNG")
    (root / "bee").mkdir()
    found = decode(Recipe(str(root)), tmp_path / "cache")
    assert (found.class_names, found.labels.tolist(), found.train_rows) == (("ant", "bee"), [0], 1)
