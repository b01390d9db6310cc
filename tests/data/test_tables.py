"""Tables as practitioners have them: what columns become, labels and groups however they are written, texts."""

import csv
import gzip
import json
import os
import runpy
import unicodedata
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.core.errors import DataError, LabelsError
from protosphere.data.client_data import InputTransform, client_data
from protosphere.data.decode import open_data
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.sources import HUB
from protosphere.data.forms.table_schema import Column, TableSchema
from protosphere.data.partition.assignment import assignment
from protosphere.data.spec import DataSpec
from tests.data.draws import decoded

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = pytest.mark.parametrize("suffix", ["csv", "parquet"])
N = 40
FRAME = pd.DataFrame(
    {
        "age": np.where(np.arange(N) % 10 == 3, np.nan, 20.0 + np.arange(N)),
        "weight": np.random.default_rng(7).normal(70, 9, N),
        "job": [("nurse", None, "cook", "smith")[i % 4] for i in range(N)],
        "sex": [("f", "m")[i % 2] for i in range(N)],
        "label": np.arange(N) % 3,
    }
)
SCHEMA = (
    Column("age", "number", missing=True),
    Column("weight", "number"),
    Column("job", "category", ("cook", "nurse", "smith"), True),
    Column("sex", "category", ("f", "m")),
)


def alternating(*words):
    return [words[row % len(words)] for row in range(N)]


def put(path, columns):
    """Write columns, or a frame, as CSV or parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(columns)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path, index=False)
    return str(path)


@pytest.fixture
def read(tmp_path):
    """read(columns, suffix, **names of columns): the samples of a table of a number, a label and these columns."""

    def make(columns, suffix="csv", **names):
        rows = {"size": np.arange(N) + 0.5, "label": np.arange(N) % 2}
        path = put(tmp_path / f"one.{suffix}", columns if isinstance(columns, pd.DataFrame) else rows | columns)
        return decoded(path, tmp_path / "cache", columns=Columns(**names))

    return make


# --- features --------------------------------------------------------------------------------------------------------


def features(frame):
    """The features of FRAME's columns by pandas."""
    jobs = pd.get_dummies(frame["job"], dummy_na=True).to_numpy(np.float32)
    parts = [frame["age"], frame["age"].isna(), frame["weight"], *jobs.T, frame["sex"] == "f", frame["sex"] == "m"]
    return np.stack([np.asarray(part, np.float32) for part in parts], axis=1)


@SUFFIXES
def test_columns_become_features(read, suffix):
    data = read(FRAME, suffix)
    assert data.columns == SCHEMA
    assert np.array_equal(np.array(data.inputs), features(FRAME), equal_nan=True)
    assert (data.labels.tolist(), data.scale) == (FRAME["label"].tolist(), 1.0)
    assert TableSchema(SCHEMA).numeric.tolist() == [True, False, True, *[False] * 6]
    assert TableSchema(SCHEMA).count_missing(data.inputs) == {"age": 4, "job": 10}
    # labels and groups are no features
    data = read(FRAME.rename(columns={"label": "outcome"}), suffix, label="outcome", group="sex")
    assert [column.name for column in data.columns] == ["age", "weight", "job"]


def test_a_column_has_the_type_of_all_splits_together(tmp_path):
    train = pd.DataFrame({"a": [1, 2, 3], "b": [True, False, True], "label": ["x", "y", "x"]})
    put(tmp_path / "train.parquet", train)
    put(tmp_path / "test.parquet", train.assign(a=[0.5, 1.5, np.nan]))
    data = decoded(str(tmp_path), tmp_path / "cache")
    assert data.columns == (Column("a", "number", missing=True), Column("b", "number"))
    expected = [[1, 0, 1], [2, 0, 0], [3, 0, 1], [0.5, 0, 1], [1.5, 0, 0], [np.nan, 1, 1]]
    assert np.array_equal(np.array(data.inputs), np.array(expected, np.float32), equal_nan=True)
    assert data.train_rows == 3


def test_strings_of_parquet_may_be_categories_or_views(tmp_path):
    words, labels = pa.array(["u", "v", "u", None]), pa.array(["x", "y", "x", "y"])
    tables = {
        "plain": {"a": words, "b": words, "label": labels},
        "odd": {"a": words.cast(pa.string_view()), "b": words.dictionary_encode(), "label": labels.dictionary_encode()},
    }
    found = []
    for name, table in tables.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
        data = decoded(str(tmp_path / f"{name}.parquet"), tmp_path / "cache")
        found.append((data.columns, data.inputs.tolist(), data.labels.tolist(), data.class_names))
    assert found[0] == found[1]
    pq.write_table(pa.table({"text": words[:2].dictionary_encode(), "label": labels[:2]}), tmp_path / "notes.parquet")
    assert list(decoded(str(tmp_path / "notes.parquet"), tmp_path / "cache").inputs[[0, 1]]) == ["u", "v"]


@pytest.mark.parametrize("word", ["NULL", "None", "n.a.", "N.A.", "#N/A", "<NA>", "-", "na", "?"])
def test_a_missing_word_in_a_column_of_numbers_is_a_missing_number(read, word):
    data = read({"size": [word, *map(str, range(1, N))]})
    assert [column.kind for column in data.columns] == ["number"]
    assert np.isnan(data.inputs[0, 0])
    assert data.inputs[:, 1].tolist() == [1.0] + [0.0] * (N - 1)


def test_a_client_scales_numbers_by_its_own_training_rows_alone(tmp_path):
    spec = DataSpec(put(tmp_path / "one.csv", FRAME.assign(same=0.1)), 2, "iid", min_samples=1)
    transforms = []
    for partition in (0, 1):
        data = client_data(spec, partition, tmp_path / "cache")
        rows = data.train.inputs.numpy().astype(np.float64)
        mean, std = np.nanmean(rows[:, [0, 2]], axis=0), np.nanstd(rows[:, [0, 2]], axis=0)
        assert np.allclose([data.transform.mean[i] for i in (0, 2)], mean, rtol=1e-12)
        assert np.allclose([data.transform.std[i] for i in (0, 2)], std, rtol=1e-12)
        assert {data.transform.mean[i] for i in (1, 3, 4, 5, 6, 7, 8)} == {0.0}
        # a constant is no division by nothing
        assert data.transform.std[9] == 1.0
        # test rows by the training rows' figures; a missing number is the mean
        for part in (data.train, data.test, data.validation):
            values = part.inputs.numpy().astype(np.float64)
            scaled = np.nan_to_num((values[:, [0, 2]] - mean) / std)
            assert np.allclose(data.transform(part.inputs).numpy()[:, [0, 2]], scaled, atol=1e-5)
        assert InputTransform.from_dict(json.loads(json.dumps(data.transform.to_dict()))) == data.transform
        transforms.append(data.transform)
    assert transforms[0] != transforms[1]


def test_sites_agree_on_features_by_a_file(tmp_path):
    # a site that lacks values of every column, and has a column more
    frame = FRAME[(FRAME["job"] == "cook") & FRAME["age"].notna()].assign(noise=1.5)
    root = tmp_path / "site"
    put(root / "train.csv", frame)
    (root / "classes.txt").write_text("a\nb\nc\n")
    decoded(str(root), tmp_path / "cache")
    with pytest.raises(DataError, match=r"columns\.json"):
        decoded(str(root), tmp_path / "cache", listed="tables")
    TableSchema(SCHEMA).save(root / "columns.json")
    assert TableSchema.load(root / "columns.json").columns == SCHEMA
    data = decoded(str(root), tmp_path / "cache", listed="tables")
    assert np.array_equal(np.array(data.inputs), features(FRAME)[frame.index], equal_nan=True)


def test_true_and_false_may_be_stored_or_written(tmp_path):
    put(tmp_path / "a.csv", {"smokes": alternating("True", "False"), "label": alternating("x", "y")})
    assert decoded(str(tmp_path / "a.csv"), tmp_path / "cache").columns[0].values == ("False", "True")
    column = Column("smokes", "category", ("False", "True"), missing=True)
    one_hot, wrong = column.encode(pa.chunked_array([[True, None, False]]))
    assert (one_hot.tolist(), wrong.any()) == ([[0, 1, 0], [0, 0, 1], [1, 0, 0]], False)
    # words where the column is known to be a number
    numbers, wrong = Column("smokes", "number").encode(pa.chunked_array([["True", "false", "1"]]))
    assert (numbers.tolist(), wrong.any()) == ([[1], [0], [1]], False)


# --- labels, groups and sites ----------------------------------------------------------------------------------------


@SUFFIXES
@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("ill", "ill ", "well", "\twell"), ("ill", "well")),
        (("1", "1.0", "0", " 0"), ("0", "1")),
        ((0.0, 1.0), ("0", "1")),
        (("10", "2", "0"), tuple(map(str, range(11)))),
        # not all are canonical whole numbers, so all are names
        (("0", "01", "2"), ("0", "01", "2")),
        # an accent, and a letter that is one
        (("cafe\u0301", "caf\u00e9", "bar"), ("bar", "caf\u00e9")),
    ],
)
def test_a_class_is_the_same_however_it_is_written(read, suffix, labels, names):
    data = read({"label": alternating(*labels)}, suffix)
    assert data.class_names == names
    assert [names[number] for number in data.labels] == [
        unicodedata.normalize("NFC", str(label)).strip().removesuffix(".0") for label in alternating(*labels)
    ]


@SUFFIXES
@pytest.mark.parametrize(
    ("labels", "listed", "numbers"),
    [
        (("b", "a", "b"), "b a c", [0, 1, 0]),
        (("0", "2", "0"), "x y z", [0, 2, 0]),
        # written-out numbers that classes.txt names are names, whatever their order there
        (("1", "2", "1"), "3 2 1", [2, 1, 2]),
        # grades: stored numbers are names as well
        ((1, 2, 1), "1 2 3", [0, 1, 0]),
        ((1.0, 2.0, 1.0), "1 2 3", [0, 1, 0]),
        ((1, 2, 1), "0 1 2", [1, 2, 1]),
        ((1, 2, 1), "x y z", [1, 2, 1]),
        (("e\u0301", "b", "b"), "b \u00e9", [1, 0, 0]),
        # letters after digits, as in EMNIST: a number is its own position
        ((0, 4, 1), "0 1 2 a b", [0, 4, 1]),
        (("1.0", "2.0", "4.0"), "1.0 2.0 3.0 4.0", [0, 1, 3]),
        # names and class numbers side by side
        (("b", "1", "a"), "b a c", [0, 1, 1]),
    ],
)
def test_classes_txt_gives_labels_their_order(tmp_path, labels, listed, numbers, suffix):
    put(tmp_path / f"train.{suffix}", {"text": ["t"] * 3, "label": labels})
    (tmp_path / "classes.txt").write_text("\r\n".join(listed.split()), "utf-8")
    data = decoded(str(tmp_path), tmp_path / "cache")
    assert (data.class_names, data.labels.tolist()) == (tuple(listed.split()), numbers)


def test_labels_of_one_word_are_one_class_whatever_their_type(tmp_path):
    put(tmp_path / "train.parquet", {"size": [1, 2], "label": [0, 1]})
    put(tmp_path / "test.parquet", {"size": [1, 2], "label": ["1", "0"]})
    assert decoded(str(tmp_path), tmp_path / "cache").labels.tolist() == [0, 1, 1, 0]


@SUFFIXES
@pytest.mark.parametrize("patients", [("P7", "P7 ", "P8"), ("7", "7.0", "8"), (7.0, 7.0, 8.0)])
def test_a_patient_is_the_same_however_it_is_written(read, suffix, patients):
    assert len(np.unique(read({"patient": alternating(*patients)}, suffix, group="patient").groups)) == 2
    data = read({"clinic": alternating(*patients)}, suffix, partition="clinic")
    assert data.site_names == (str(patients[0]).removesuffix(".0"), str(patients[2]).removesuffix(".0"))


def test_stored_sites_are_numbered_in_their_order(read):
    assert read({"clinic": alternating(10, 9, 2)}, "parquet", partition="clinic").site_names == ("2", "9", "10")
    assert read({"clinic": alternating("10", "9")}, "parquet", partition="clinic").site_names == ("10", "9")


def test_stored_truths_are_the_classes_that_written_ones_are(read, tmp_path):
    data = read({"size": [1.5, 2.5, 3.5, 4.5], "label": [True, False, True, False]})
    assert data.class_names == ("False", "True")
    assert data.labels.tolist() == [1, 0, 1, 0]


def test_groups_of_bytes_are_groups(tmp_path):
    groups = np.array([b"n", b"s", b"n", b"s"])
    np.savez(tmp_path / "a.npz", x=np.eye(4, dtype=np.float32), y=np.arange(4) % 2, ward=groups)
    data = open_data(DataSpec(str(tmp_path / "a.npz"), columns=Columns(group="ward")), tmp_path / "cache")
    assert data.groups.tolist() == [0, 1, 0, 1]


def test_names_in_one_table_and_numbers_in_the_other_are_refused(tmp_path):
    for split, labels in (("train", ["cat", "dog"]), ("test", [0, 1])):
        pd.DataFrame({"size": [1.5, 2.5], "label": labels}).to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(LabelsError, match="names and numbers"):
        open_data(DataSpec(str(tmp_path)), tmp_path / "cache")


def test_lists_of_classes_in_another_order_are_refused(tmp_path):
    for split, names in (("train", ["cat", "dog"]), ("test", ["dog", "cat"])):
        features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
        table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
        table.to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(DataError, match=r"'label' .*other classes in test\.parquet than in train\.parquet"):
        open_data(DataSpec(str(tmp_path)), tmp_path / "cache")


def write_sites(root, north, south):
    for name, labels in (("north", north), ("south", south)):
        put(root / f"{name}.csv", {"size": np.arange(N), "label": alternating(*labels)})
    return DataSpec(f"{root}/north.csv,{root}/south.csv")


@pytest.mark.parametrize(("north", "south"), [(("a", "b", "c"), ("a",)), (("a",), ("b",)), (("b", "a"), ("a", "c"))])
def test_a_site_s_table_may_lack_classes(tmp_path, north, south):
    spec = write_sites(tmp_path, north, south)
    for classes in ("same", "union"):
        data = open_data(replace(spec, classes=classes), tmp_path / "cache")
        assert data.class_names == tuple(sorted({*north, *south}))


def test_a_classes_txt_beside_tables_settles_labels_that_no_two_share(tmp_path):
    spec = write_sites(tmp_path, ("0", "1"), ("ill", "well"))
    (tmp_path / "classes.txt").write_text("0\n1\nill\nwell\n")
    assert open_data(spec, tmp_path / "cache").class_names == ("0", "1", "ill", "well")


@pytest.mark.parametrize(("tested", "refused"), [(("Ill", "Well"), True), (("ill", "Well"), False)])
def test_official_samples_of_classes_that_nobody_trains_are_named(tmp_path, caplog, tested, refused):
    for name, labels in (("train", ("ill", "well")), ("test", tested)):
        put(tmp_path / f"{name}.csv", {"size": np.arange(N), "label": alternating(*labels)})
    spec = DataSpec(str(tmp_path), 2, partition="iid", split="official")
    data = open_data(spec, tmp_path / "cache")
    if refused:
        with pytest.raises(DataError, match=r"no client can be tested.*'Ill', 'Well'"):
            assignment(spec, data, tmp_path / "cache")
    else:
        assert sum(map(len, assignment(spec, data, tmp_path / "cache").test)) == N // 2
        assert "nobody is tested: 'Well'" in caplog.text


def test_labels_that_skip_numbers_are_said_to_leave_classes_empty(tmp_path, run):
    table = put(tmp_path / "a.csv", {"size": np.arange(N), "label": np.arange(N) % 3 * 3 + 3})
    run({"dataset": table, "partition": "iid", "rounds": 1}, clients=2)
    assert any("7 of the 10 classes (0, 1, 2, 4, 5, …)" in line for line in run.said)


def test_numbers_beside_a_list_in_the_file_are_positions_in_it(tmp_path):
    """Of `datasets`' notes, and of `classes` in an archive; whatever classes.txt calls them."""
    (tmp_path / "classes.txt").write_text("1\n2\n3\n")
    kinds = {"text": datasets.Value("string"), "size": datasets.Value("int64")}
    noted = datasets.Features(kinds | {"label": datasets.ClassLabel(names=list("123"))})
    rows = {"text": ["a", "b", "c"], "size": [1, 2, 3], "label": [0, 1, 2]}
    whole = datasets.Dataset.from_dict(rows, noted)
    for number, columns in enumerate((["text", "label"], ["size", "label"])):
        whole.select_columns(columns).to_parquet(tmp_path / f"{number}.parquet")
        assert decoded(str(tmp_path / f"{number}.parquet"), tmp_path / "cache").labels.tolist() == [0, 1, 2]
    np.savez(tmp_path / "rows.npz", x=np.eye(3), y=[0, 1, 2], classes=list("123"))
    assert decoded(str(tmp_path / "rows.npz"), tmp_path / "cache").labels.tolist() == [0, 1, 2]
    # and privately
    private = {"listed": "tables", "secret": "07" * 32}
    assert decoded(str(tmp_path / "0.parquet"), tmp_path / "cache", **private).labels.tolist() == [0, 1, 2]


# --- links -----------------------------------------------------------------------------------------------------------


def test_a_link_that_is_led_elsewhere_is_read_anew(tmp_path):
    for name, value in (("v1", 1), ("v2", 2)):
        put(tmp_path / name / "train.csv", {"size": [value], "label": ["x"]})
        os.utime(tmp_path / name / "train.csv", (1, 1))
    link, found = tmp_path / "current", []
    for name in ("v1", "v2"):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / name)
        found.append(float(decoded(str(link), tmp_path / "cache").inputs[0, 0]))
    assert found == [1, 2]


def test_the_files_beside_a_link_count_and_not_those_beside_its_target(tmp_path):
    put(tmp_path / "store" / "4f2a.csv", {"size": [1, 2], "label": ["no", "yes"]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "ward.csv").symlink_to(tmp_path / "store" / "4f2a.csv")
    (tmp_path / "mine" / "classes.txt").write_text("yes\nno\n")
    data = decoded(str(tmp_path / "mine" / "ward.csv"), tmp_path / "cache")
    assert (data.class_names, data.labels.tolist()) == (("yes", "no"), [1, 0])


# --- texts -----------------------------------------------------------------------------------------------------------

ODD = ['a, "b"\nc', "None", "NA", "null", "nan", "  blank ", "007", "1e5", "😀 ünï", "2020-01-01", '"', "\u2028y"]
IDS = ["00012", "12", "1e2", "NA", "-0", "0.10", "None", "x y", "0x1", "1_000", "TRUE", "2020-01-01"]
NOTES = pd.DataFrame({"id": IDS, "text": ODD, "label": list("abcabcabcabc")})


def texts_of(data):
    return data.inputs[np.arange(len(data.labels))]


@SUFFIXES
def test_odd_texts_and_ids_stay_what_they_are(tmp_path, suffix):
    put(tmp_path / "set" / f"train.{suffix}", NOTES)
    put(tmp_path / "set" / f"test.{suffix}", NOTES[:2])
    data = decoded(str(tmp_path / "set"), tmp_path / "cache", columns=Columns(group="id"))
    assert texts_of(data) == ODD + ODD[:2]
    assert (data.class_names, data.labels.tolist()) == (("a", "b", "c"), [0, 1, 2] * 4 + [0, 1])
    # "00012" and "12" are two patients, and the same two in both tables
    assert data.groups.tolist() == [*range(12), 0, 1]
    assert (data.train_rows, data.columns) == (12, ())


def test_shards_below_data_more_rows_than_a_batch_and_a_table_beside_that_is_no_split(tmp_path):
    rows = pd.DataFrame({"text": [f"note {i}" for i in range(2345)], "label": np.arange(2345) % 7})
    shards = {"train-0.csv": rows[:5], "train-1.csv": rows[5:], "valid.csv": rows[:1], "sources.csv": rows}
    for name, some in shards.items():
        put(tmp_path / "set" / "data" / name, some)
    (tmp_path / "set" / "data" / "._mac.csv").write_text("")
    data = decoded(str(tmp_path / "set"), tmp_path / "cache")
    assert texts_of(data) == [*rows["text"], "note 0"]
    assert data.labels.tolist() == [*rows["label"], 0]
    assert data.train_rows == 2345


def test_named_columns_are_obeyed_and_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    (tmp_path / "a.csv").write_text("text,input,target,where\nt,in,out,Home\nt,in,out,SNF\n", "utf-8-sig")
    for text, words in (("input", ["in", "in"]), ("text", ["t", "t"])):
        data = decoded(str(tmp_path / "a.csv"), tmp_path / "cache", columns=Columns(text=text, label="where"))
        assert (texts_of(data), data.class_names) == (words, ("Home", "SNF"))


def write_gzip(path, header, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header.split(), *rows])


def test_the_script_joins_tables_of_mimic_s_layout(tmp_path, monkeypatch, capsys):
    # by note: patient, stay, location, died there, class
    made = {
        "N1": ("00000007", "21", "HOME", "0", "Home"),
        "N2": ("00000007", "22", "HOME HEALTH CARE", "0", "Home Health"),
        "N3": ("00000008", "23", "SKILLED NURSING FACILITY", "0", "SNF"),
        "N4": ("00000008", "24", "REHAB", "0", "Rehab"),
        "N5": ("00000009", "25", "DIED", "1", "Expired"),
        "N8": ("00000012", "28", "", "0", "Other"),
    }
    texts = {note: f'<SEX> F\n<SERVICE> "{note}", stable' for note in made} | {"N8": "None"}
    # one note of which MIMIC-IV-Note knows nothing, and one without a word
    notes = texts | {"N0": "nobody's", "N9": " \n"}
    put(tmp_path / "mimic-iv-bhc.csv", {"note_id": notes.keys(), "input": notes.values(), "target": "summary"})
    owners = {note: row[:2] for note, row in made.items()} | {"N9": ("00000012", "28")}
    rows = [(note, *owner, "DS", 1, "2150-01-01", "2150-01-02", "whole") for note, owner in reversed(owners.items())]
    header = "note_id subject_id hadm_id note_type note_seq charttime storetime text"
    write_gzip(tmp_path / "note" / "discharge.csv.gz", header, *rows)
    header = "subject_id hadm_id admittime discharge_location insurance hospital_expire_flag"
    stays = [(row[0], row[1], "2150-01-01", row[2], "Medicare", row[3]) for row in made.values()]
    write_gzip(tmp_path / "hosp" / "admissions.csv.gz", header, *stays)

    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "benchmarks" / "mimic_discharge.py"))
    assert "6 of 8 notes of 4 patients" in capsys.readouterr().out
    data = decoded(str(tmp_path / "mimic-discharge"), tmp_path / "cache", columns=Columns(group="subject_id"))
    assert data.class_names == ("Home", "Home Health", "SNF", "Rehab", "Expired", "Other")
    classes = {text: data.class_names[label] for text, label in zip(texts_of(data), data.labels, strict=True)}
    groups = dict(zip(texts_of(data), data.groups.tolist(), strict=True))
    assert classes == {text: made[note][4] for note, text in texts.items()}
    # the notes of one patient are one group
    for one, other in (("N1", "N2"), ("N2", "N3"), ("N3", "N4"), ("N4", "N5"), ("N5", "N8")):
        assert (groups[texts[one]] == groups[texts[other]]) == (made[one][0] == made[other][0])


# --- the hub ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar100", "svhn"])
def test_hub_data_sets(name, tmp_path, monkeypatch):
    asked = []
    image_type = datasets.Features({"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=list("abc"))})

    def load_dataset(*args, cache_dir):
        asked.append(args)
        rows = {"img": [Image.new("RGB", (4, 4), (i,) * 3) for i in range(6)], "fine_label": [2, 0, 1, 2, 0, 1]}
        train = datasets.Dataset.from_dict(rows, features=image_type).add_column("coarse_label", [0] * 6)
        return datasets.DatasetDict({"extra": train, "train": train, "valid": train.select([4, 5])})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = decoded(name, tmp_path)
    assert asked == [HUB[name]]
    assert (data.class_names, data.labels.tolist()) == (("a", "b", "c"), [2, 0, 1, 2, 0, 1, 0, 1])
    assert data.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 4, 5]
    assert data.train_rows == 6
    assert decoded(HUB[name][0], tmp_path).key == data.key


def test_an_image_of_the_hub_may_lie_in_a_file(tmp_path, monkeypatch):
    Image.new("L", (4, 4), 7).save(tmp_path / "a.png")
    kind = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = datasets.Dataset.from_dict({"image": [str(tmp_path / "a.png")], "label": [0]}, features=kind)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.DatasetDict({"train": rows}))
    assert decoded("some/body", tmp_path / "cache").inputs[0, 0, 0, 0] == 7
