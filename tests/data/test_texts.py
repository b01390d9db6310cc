"""Texts from files to the memory map: as they were written, or one sentence on what cannot be used."""

import csv
import gzip
import json
import re
import runpy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protosphere.data.forms.columns import Columns
from protosphere.data.forms.table_files import types_of
from protosphere.data.forms.texts import Texts
from tests.data.draws import decoded, refusal

ROOT = Path(__file__).resolve().parents[2]
ODD = ['a, "b"\nc', "None", "NA", "null", "nan", "  blank around ", "007", "1e5", "😀 ünï", "2020-01-01", '"', "#x"]
ODD.append("\u2028y")
IDS = ["00012", "12", "1e2", "NA", "-0", "0.10", "None", "x y", "0x1", "1_000", "TRUE", "2020-01-01", "+1"]
ROWS = [{"id": n, "text": text, "label": name} for n, text, name in zip(IDS, ODD, "abcabcabcabca", strict=True)]


def put(path, rows, columns=("id", "text", "label")):
    """Write rows in the format of the path's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, columns)
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in columns}), path)
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def opened(folder, **columns):
    return decoded(str(folder), folder.parent / "cache", columns=Columns(**columns))


def everything(data):
    return data.inputs[np.arange(len(data.labels))]


def failure(folder, **columns):
    said = refusal(opened, folder, **columns)
    # nothing of a note belongs in a message
    assert "secret" not in said
    return said


def of(names, column, **rest):
    """Rows of the column `column`, one a name."""
    return [{"text": "t", column: name} | rest for name in names]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet"])
def test_odd_texts_and_ids_stay_what_they_are(tmp_path, suffix):
    put(tmp_path / "set" / f"train{suffix}", ROWS)
    put(tmp_path / "set" / f"test{suffix}", ROWS[:2])
    data = opened(tmp_path / "set", group="id")
    assert everything(data) == ODD + ODD[:2]
    assert data.class_names == ("a", "b", "c")
    assert data.labels.tolist() == [0, 1, 2] * 4 + [0] + [0, 1]
    # "00012" and "12" are two patients, and the same two in both tables
    assert data.groups.tolist() == [*range(13), 0, 1]
    assert data.train_rows == 13
    assert opened(tmp_path / "set").groups is None


def test_a_lone_table_of_any_name_is_the_training_table(tmp_path):
    put(tmp_path / "set" / "mimic-iv-bhc.csv", ROWS)
    for other, content in (("dataset_infos.json", "{}"), ("._mimic.csv", "")):
        (tmp_path / "set" / other).write_text(content)
    assert opened(tmp_path / "set").train_rows == 13


def test_shards_below_data_and_a_table_beside_that_is_no_split(tmp_path):
    shards = {"train-0.jsonl": ROWS[:5], "train-1.jsonl": ROWS[5:], "valid.jsonl": ROWS[:1], "sources.csv": ROWS}
    for name, rows in shards.items():
        put(tmp_path / "set" / "data" / name, rows)
    data = opened(tmp_path / "set")
    assert (everything(data), data.train_rows) == (ODD + ODD[:1], 13)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_more_rows_than_a_batch_keep_their_order(tmp_path, suffix):
    rows = [{"id": i, "text": f"note {i}", "label": i % 7} for i in range(2345)]
    put(tmp_path / "set" / f"a{suffix}", rows)
    data = opened(tmp_path / "set", group="id")
    assert everything(data) == [row["text"] for row in rows]
    assert data.labels.tolist() == [row["label"] for row in rows]
    assert data.groups.tolist() == list(range(2345))


@pytest.mark.parametrize(
    ("suffix", "labels", "listed", "names", "numbers"),
    [
        (".csv", ["b", "a", "b"], "", "a b", [1, 0, 1]),
        (".csv", ["b", "a", "b"], "b\na\nc\n", "b a c", [0, 1, 0]),
        (".csv", ["0", "2", "0"], "", "0 1 2", [0, 2, 0]),
        (".csv", ["0", "2", "0"], "x\ny\nz\n", "x y z", [0, 2, 0]),
        # written-out numbers that classes.txt names are names, whatever their order there
        (".csv", ["1", "2", "1"], "3\n2\n1\n", "3 2 1", [2, 1, 2]),
        # not all are canonical whole numbers, so all are names
        (".csv", ["0", "01", "2"], "", "0 01 2", [0, 1, 2]),
        # strings of JSON are names, and its numbers numbers
        (".jsonl", ["10", "9", "10"], "", "10 9", [0, 1, 0]),
        (".jsonl", [1, 3, 0], "", "0 1 2 3", [1, 3, 0]),
    ],
)
def test_labels_are_numbers_or_names(tmp_path, suffix, labels, listed, names, numbers):
    put(tmp_path / "set" / f"train{suffix}", of(labels, "label"), ("text", "label"))
    if listed:
        (tmp_path / "set" / "classes.txt").write_text(listed)
    data = opened(tmp_path / "set")
    assert (data.class_names, data.labels.tolist()) == (tuple(names.split()), numbers)


def test_classes_of_the_test_table_count_too_and_classes_txt_gives_sites_one_order(tmp_path):
    for split, label in (("train", "b"), ("test", "a")):
        put(tmp_path / "set" / f"{split}.csv", of(label, "label"), ("text", "label"))
    assert opened(tmp_path / "set").class_names == ("a", "b")
    (tmp_path / "set" / "classes.txt").write_text("Home\nb\n")
    assert re.search("row 0 of the test table of .* has the label 'a', but classes.txt", failure(tmp_path / "set"))


def test_named_columns_are_obeyed(tmp_path):
    rows = [{"input": "in", "target": "out", "text": "t", "where": name} for name in ("Home", "SNF")]
    put(tmp_path / "set" / "train.csv", rows, rows[0])
    data = opened(tmp_path / "set", text="input", label="where")
    assert (everything(data), data.class_names) == (["in", "in"], ("Home", "SNF"))
    assert everything(opened(tmp_path / "set", label="text")) == ["in", "in"]
    # a cached copy of other columns is another data set
    assert opened(tmp_path / "set", text="text", label="where").key != data.key


def test_parquet_with_images_and_texts_is_what_is_asked_for(tmp_path, png):
    picture = {"bytes": png(np.zeros((2, 2, 3), dtype=np.uint8)), "path": "a.png"}
    table = pa.table(
        {"image": [picture] * 3, "text": list("xyz"), "label": [0, 1, 0], "other": [1, 1, 0], "who": [5, 5, 6]}
    )
    (tmp_path / "set").mkdir()
    pq.write_table(table, tmp_path / "set" / "train.parquet")
    image = opened(tmp_path / "set", label="other", group="who")
    assert image.inputs.shape == (3, 3, 2, 2)
    assert (image.labels.tolist(), image.groups.tolist()) == ([1, 1, 0], [0, 0, 1])
    assert everything(opened(tmp_path / "set", text="text")) == ["x", "y", "z"]


BOM = {".csv": "text,label\na,x\n", ".jsonl": '{"text": "a", "label": "x"}\n'}


@pytest.mark.parametrize("suffix", BOM)
def test_a_file_with_a_byte_order_mark(tmp_path, suffix):
    (tmp_path / f"train{suffix}").write_text(BOM[suffix], "utf-8-sig")
    assert list(types_of(tmp_path / f"train{suffix}")) == ["text", "label"]


def test_a_shortened_file_of_texts_is_decoded_anew(tmp_path):
    put(tmp_path / "set" / "train.csv", ROWS)
    folder = tmp_path / "cache" / "decoded" / opened(tmp_path / "set").key
    assert {path.name for path in folder.iterdir()} == {"about.json", "labels.npy", "inputs.utf8", "ends.npy"}
    (folder / "inputs.utf8").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"inputs\.utf8 does not have the"):
        Texts.open(folder)
    assert everything(opened(tmp_path / "set")) == ODD


def write_csv(path, header, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header.split(), *rows])


def test_the_script_joins_tables_of_mimic_s_layout(tmp_path, monkeypatch, capsys):
    # by note: patient, stay, location, died there; three stays of patient 00000007
    made = {
        "N1": ("00000007", "21", "HOME", "0", "Home"),
        "N2": ("00000007", "22", "HOME HEALTH CARE", "0", "Home Health"),
        "N3": ("00000007", "23", "SKILLED NURSING FACILITY", "0", "SNF"),
        "N4": ("00000008", "24", "REHAB", "0", "Rehab"),
        "N5": ("00000009", "25", "DIED", "1", "Expired"),
        "N7": ("00000011", "27", "HOSPICE", "0", "Other"),
        "N8": ("00000012", "28", "", "0", "Other"),
    }
    texts = {note: f'<SEX> F\n<SERVICE> "{note}", stable' for note in made} | {"N8": "None"}
    bhc = [(note, text, "summary", 12, 3) for note, text in texts.items()]
    header = "note_id input target input_tokens target_tokens"
    # one note of which MIMIC-IV-Note knows nothing, and one without a word
    write_csv(tmp_path / "mimic-iv-bhc.csv", header, *bhc, ("N0", "nobody's", "", 2, 0), ("N9", " \n", "", 0, 0))
    owners = [(note, row[0], row[1], "DS", 1, "2150-01-01", "2150-01-02", "whole") for note, row in made.items()]
    owners.append(("N9", "00000012", "28", "DS", 2, "2150-01-01", "2150-01-02", "whole"))
    header = "note_id subject_id hadm_id note_type note_seq charttime storetime text"
    write_csv(tmp_path / "note" / "discharge.csv.gz", header, *reversed(owners))
    stays = [(row[0], row[1], "2150-01-01", row[2], "Medicare", row[3]) for row in made.values()]
    header = "subject_id hadm_id admittime discharge_location insurance hospital_expire_flag"
    write_csv(tmp_path / "hosp" / "admissions.csv.gz", header, *stays)

    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "benchmarks" / "mimic_discharge.py"))
    assert "7 of 9 notes of 5 patients" in capsys.readouterr().out
    data = opened(tmp_path / "mimic-discharge", group="subject_id")
    assert data.class_names == ("Home", "Home Health", "SNF", "Rehab", "Expired", "Other")
    assert dict(zip(everything(data), [data.class_names[label] for label in data.labels], strict=True)) == {
        texts[note]: row[4] for note, row in made.items()
    }
    # the notes of one patient are one group
    patients = {texts[note]: row[0] for note, row in made.items()}
    pairs = {(patients[text], group) for text, group in zip(everything(data), data.groups.tolist(), strict=True)}
    assert len(pairs) == len(set(patients.values())) == np.unique(data.groups).size
