"""What practitioners' tables hold: blanks, missing words, strays, other dialects of CSV, targets that are no class."""

import numpy as np
import pandas as pd
import pytest

from protosphere.core.errors import DataError
from protosphere.data.decode import Recipe, decode
from protosphere.data.domains import open_all
from protosphere.data.forms.columns import Columns
from protosphere.data.partition.assignment import DataSpec, assignment, open_data

ROWS = 40


@pytest.fixture
def decoded(tmp_path):
    """decoded(columns of a table, suffix, **columns of the settings): its decoded rows; also of text as it is."""

    def make(content, suffix="csv", **columns):
        path = tmp_path / f"one.{suffix}"
        if isinstance(content, str | bytes):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        else:
            frame = pd.DataFrame({"size": np.arange(ROWS) + 0.5, "label": np.arange(ROWS) % 2} | content)
            frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, index=False)
        return decode(Recipe(str(path), Columns(**columns)), tmp_path / "cache")

    return make


def alternating(*words):
    return [words[row % len(words)] for row in range(ROWS)]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (alternating("ill", "ill ", "well", "\twell"), ("ill", "well")),
        (alternating("1", "1.0", "0", " 0"), ("0", "1")),
        (alternating(0.0, 1.0), ("0", "1")),
        (alternating("10", "2", "0"), tuple(map(str, range(11)))),
    ],
)
def test_a_class_is_the_same_however_it_is_written(decoded, suffix, labels, names):
    data = decoded({"label": labels}, suffix)
    assert data.class_names == names
    plain = [str(label).strip().removesuffix(".0") for label in labels]
    assert [names[number] for number in data.labels] == plain


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("patients", [("P7", "P7 ", "P8"), ("7", "7.0", "8"), (7.0, 7.0, 8.0)])
def test_a_patient_is_the_same_however_it_is_written(decoded, suffix, patients):
    data = decoded({"patient": alternating(*patients)}, suffix, group="patient", partition="")
    assert len(np.unique(data.groups)) == 2
    data = decoded({"clinic": alternating(*patients)}, suffix, partition="clinic")
    assert data.site_names == (str(patients[0]).removesuffix(".0"), str(patients[2]).removesuffix(".0"))


@pytest.mark.parametrize("word", ["NULL", "None", "n.a.", "N.A.", "#N/A", "<NA>", "-", "na", "?"])
def test_a_missing_word_in_a_column_of_numbers_is_a_missing_number(decoded, word):
    data = decoded({"size": [word, *map(str, range(1, ROWS))]})
    assert [column.kind for column in data.columns] == ["number"]
    assert np.isnan(data.inputs[0, 0])
    assert data.inputs[:, 1].tolist() == [1.0] + [0.0] * (ROWS - 1)


@pytest.mark.parametrize(("north", "south"), [(("a", "b", "c"), ("a",)), (("a",), ("b",)), (("b", "a"), ("a", "c"))])
def test_a_site_s_table_may_lack_classes(tmp_path, north, south):
    for name, labels in (("north", north), ("south", south)):
        frame = pd.DataFrame({"size": np.arange(ROWS), "label": alternating(*labels)})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    recipe = Recipe(f"{tmp_path}/north.csv,{tmp_path}/south.csv")
    for classes in ("same", "union"):
        assert open_all(recipe, tmp_path / "cache", classes).class_names == tuple(sorted({*north, *south}))


def test_a_classes_txt_beside_tables_settles_labels_that_no_two_share(tmp_path):
    for name, labels in (("north", ("0", "1")), ("south", ("ill", "well"))):
        frame = pd.DataFrame({"size": np.arange(ROWS), "label": alternating(*labels)})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    recipe = Recipe(f"{tmp_path}/north.csv,{tmp_path}/south.csv")
    everything = open_all(recipe, tmp_path / "cache", "union").class_names
    assert everything == ("0", "1", "ill", "well")
    (tmp_path / "classes.txt").write_text("\n".join(everything))
    assert open_all(recipe, tmp_path / "cache").class_names == everything


@pytest.mark.parametrize(
    ("tested", "words"),
    [
        (("Ill", "Well"), r"none is of a class that a client holds \('Ill', 'Well' are in the test table alone\)"),
        (("ill", "Well"), ""),
    ],
)
def test_official_samples_of_classes_that_nobody_trains_are_named(tmp_path, caplog, tested, words):
    for name, labels in (("train", ("ill", "well")), ("test", tested)):
        frame = pd.DataFrame({"size": np.arange(ROWS), "label": alternating(*labels)})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    spec = DataSpec(str(tmp_path), 2, partition="iid", split="official")
    data = open_data(spec, tmp_path / "cache")
    if words:
        with pytest.raises(DataError, match=words):
            assignment(spec, data, tmp_path / "cache")
    else:
        assert sum(map(len, assignment(spec, data, tmp_path / "cache").test)) == ROWS // 2
        assert "has classes in its test table alone, on which nobody is tested: 'Well'" in caplog.text


def test_labels_that_skip_numbers_are_said_to_leave_classes_empty(tmp_path, run):
    frame = pd.DataFrame({"size": np.arange(ROWS), "label": np.arange(ROWS) % 3 * 3 + 3})
    for skips in (True, False):
        frame.assign(label=frame["label"] if skips else frame["label"] // 3 - 1).to_csv(tmp_path / "a.csv", index=False)
        run({"dataset": str(tmp_path / "a.csv"), "partition": "iid", "rounds": 1}, clients=2)
        said = [
            line
            for line in run.said
            if "no client has a training sample of 7 of the 10 classes (0, 1, 2, 4, 5, …)" in line
        ]
        assert len(said) == skips
