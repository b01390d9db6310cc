"""`protosphere predict` of a folder of classes, or a table: accuracy, by class, what was taken for what, a CSV."""

import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.metrics import confusion_matrix
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.serving.predict import open_trained, predict


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def site(run, home, tmp_path):
    """A client that knows the digits, and pictures of three of them in folders: the labels, and what it answers."""
    folder = run({"rounds": 1, "alpha": 10.0}, clients=2)
    random = np.random.default_rng(0)
    place, labels = tmp_path / "scans", []
    for name in ("3", "5", "8"):
        (place / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(random.integers(0, 256, (8, 8), dtype=np.uint8)).save(place / name / f"{number}.png")
            labels.append(int(name))
    files = sorted(place.rglob("*.png"))
    state = home / "clients" / folder.name / "0"
    answers = list(predict(open_trained(state, "cpu"), "classifier", files))
    return SimpleNamespace(state=state, place=place, files=files, labels=labels, answers=answers)


def encoded(path):
    with io.BytesIO() as stream:
        Image.open(path).save(stream, "PNG")
        return {"bytes": stream.getvalue(), "path": None}


def as_folder(site, tmp_path):
    return site.place


def as_csv(site, tmp_path):
    table = pd.DataFrame({"file": [str(path.relative_to(tmp_path)) for path in site.files], "label": site.labels})
    table.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def as_json_lines(site, tmp_path):
    table = pd.DataFrame({"file": [str(path.relative_to(tmp_path)) for path in site.files], "label": site.labels})
    table.to_json(tmp_path / "table.jsonl", orient="records", lines=True)
    return tmp_path / "table.jsonl"


def as_parquet(site, tmp_path):
    table = pd.DataFrame({"image": list(map(encoded, site.files)), "label": [str(label) for label in site.labels]})
    table.to_parquet(tmp_path / "table.parquet")
    return tmp_path / "table.parquet"


@pytest.mark.parametrize("form", [as_folder, as_csv, as_json_lines, as_parquet])
def test_figures_are_those_of_the_single_answers(invoke, site, tmp_path, form):
    place, left = form(site, tmp_path), tmp_path / "left.csv"
    asked = ("predict", "--state", site.state, "--rule", "classifier", place)
    found = invoke(*asked, "--json", "--csv", left)
    assert (found.exit_code, found.stderr) == (0, "")
    told = json.loads(found.stdout)
    predicted = [answer.label for answer in site.answers]
    expected = confusion_matrix(site.labels, predicted, labels=range(10))
    assert told["confusion"] == expected.tolist()
    assert told["accuracy"] == expected.trace() / 12
    assert told["classes"]["5"] == {"rows": 4, "right": int(expected[5, 5]), "accuracy": expected[5, 5] / 4}
    assert told["classes"]["0"]["accuracy"] is None
    rows = list(csv.DictReader(left.open(newline="")))
    assert [(int(row["label"]), int(row["prediction"])) for row in rows] == list(
        zip(site.labels, predicted, strict=True)
    )
    assert [float(row["probability"]) for row in rows] == pytest.approx([answer.confidence for answer in site.answers])
    shown = invoke(*asked).stdout
    assert f"accuracy: {100 * expected.trace() / 12:.1f} % ({expected.trace()} of 12)" in shown
    assert "true class" in shown


def test_what_cannot_be_read_is_told_and_left_out(invoke, site, tmp_path):
    (site.place / "3" / "broken.png").write_text("no picture")
    found = invoke("predict", "--state", site.state, site.place, "--json", "--csv", tmp_path / "left.csv")
    assert found.exit_code == 1
    assert "broken.png" in found.stderr
    assert json.loads(found.stdout)["rows"] == 12
    rows = list(csv.DictReader((tmp_path / "left.csv").open(newline="")))
    assert [row["prediction"] for row in rows if "broken" in row["input"]] == [""]


def renamed(site, tmp_path):
    (site.place / "3").rename(site.place / "cat")
    return (site.place,)


def empty(site, tmp_path):
    (tmp_path / "empty").mkdir()
    return (tmp_path / "empty",)


def without_labels(site, tmp_path):
    (tmp_path / "t.csv").write_text("file,x\na.png,3\n")
    return (tmp_path / "t.csv",)


def of_a_foreign_class(site, tmp_path):
    (tmp_path / "t.csv").write_text("file,label\na.png,10\n")
    return (tmp_path / "t.csv",)


def broken(site, tmp_path):
    (tmp_path / "t.parquet").write_text("no table")
    return (tmp_path / "t.parquet",)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (renamed, '"cat"'),
        (empty, "no input with its class"),
        (without_labels, "--label-column"),
        (of_a_foreign_class, '"10"'),
        (broken, "no readable table"),
        (lambda site, tmp_path: (*site.files[:1], "--csv", tmp_path / "x.csv"), "--csv"),
        (lambda site, tmp_path: (site.place, "--csv", tmp_path / "no" / "x.csv"), "cannot be written"),
    ],
)
def test_what_is_of_no_use_is_one_sentence(invoke, site, tmp_path, given, words):
    found = invoke("predict", "--state", site.state, *given(site, tmp_path))
    assert (found.exit_code, found.stdout) == (2, "")
    assert words in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_column_of_another_name_is_named(invoke, site, tmp_path):
    (tmp_path / "t.csv").write_text(f"file,digit\n{site.files[0]},3\n")
    found = invoke("predict", "--state", site.state, tmp_path / "t.csv", "--label-column", "digit", "--json")
    assert json.loads(found.stdout)["rows"] == 1
