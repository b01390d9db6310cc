"""`protosphere predict` of images, folders of classes, tables and arrays, and `protosphere export`: what they print,
the figures of the run's own evaluation, and how they exit."""

import csv
import functools
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix
from typer.testing import CliRunner

import protosphere
from protosphere.cli.main import app
from protosphere.cli.measure import _as_json
from protosphere.launch.grid import run_in_process
from protosphere.serving.predict import open_trained
from protosphere.serving.predict import predict as answers_of
from tests.conftest import QUICK as DIGITS

N = 160
RNG = np.random.default_rng(11)
Y = RNG.integers(0, 3, N)
SITE = np.array(["a", "b"])[RNG.integers(0, 2, N)]
TESTED = np.arange(N) >= 90
FRAME = pd.DataFrame(
    {
        "age": np.where(RNG.random(N) < 0.1, np.nan, 50 + 10 * Y + RNG.normal(0, 9, N)),
        "visits": RNG.integers(0, 9, N) + Y,
        "job": np.where(RNG.random(N) < 0.1, None, np.array(["nurse", "cook", "smith"])[RNG.integers(0, 3, N)]),
        "site": SITE,
        "outcome": np.array(["low", "mid", "high"])[Y],
    }
)
ROWS = (RNG.normal(0, 1.5, (N, 5)) + Y[:, None]).astype(np.float32)
IMAGES = np.clip(RNG.normal(0, 60, (N, 8, 10, 3)) + 60 + 50 * Y[:, None, None, None], 0, 255).astype(np.uint8)
QUICK = {"clients": 2, "rounds": 3, "learning_rate": 0.1, "models": "tiny_perceptron", "split": "official"}
QUICK |= {"partition": "column", "partition_column": "site", "quiet": True, "device": "cpu"}


def write(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    return path


def of_table(suffix, folder):
    """A run on a table, and the test rows of client 0 as a file of the same kind."""
    (folder / "data").mkdir()
    for name, rows in (("train", ~TESTED), ("test", TESTED)):
        write(FRAME[rows], folder / "data" / f"{name}{suffix}")
    run = protosphere.run("fedproto", folder / "data", label_column="outcome", **QUICK)
    return run, write(FRAME[TESTED & (SITE == "a")], folder / f"own{suffix}")


def of_arrays(x, folder, **more):
    held = {"x": x[~TESTED], "y": Y[~TESTED], "site": SITE[~TESTED]}
    np.savez(folder / "all.npz", **held, x_test=x[TESTED], y_test=Y[TESTED], site_test=SITE[TESTED])
    run = protosphere.run("fedproto", folder / "all.npz", **(QUICK | more))
    own = TESTED & (SITE == "a")
    np.savez(folder / "own.npz", x=x[own], y=Y[own])
    return run, folder / "own.npz"


FORMS = {
    "csv": lambda folder: of_table(".csv", folder),
    "parquet": lambda folder: of_table(".parquet", folder),
    "rows": lambda folder: of_arrays(ROWS, folder),
    "normalised": lambda folder: of_arrays(ROWS, folder, normalise=True),
    "pixels": lambda folder: of_arrays(IMAGES, folder, normalise=True, models="tiny_cnn"),
    "resized": lambda folder: of_arrays(IMAGES, folder, image_size=9, models="tiny_cnn"),
    "volumes": lambda folder: of_arrays(ROWS[:, :4].reshape(N, 2, 2), folder),
}


@pytest.fixture
def predict(home):
    """predict(state, *arguments): the result of `protosphere predict --state ...`."""
    return lambda state, *arguments: CliRunner().invoke(
        app, ["predict", "--state", str(state), *map(str, arguments)], env={"COLUMNS": "300"}
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of this file's runs, of which each is made once."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOSPHERE_HOME", str(place / "home"))
        patch.setattr("protosphere.server_app.status.leave_report", lambda folder: None)
        yield place


@pytest.fixture(scope="module")
def formed(place):
    """formed(form) -> the run on data of that form, its client 0, and that client's test rows as a file."""

    @functools.cache
    def make(form):
        (place / form).mkdir()
        run, own = FORMS[form](place / form)
        return run, run.client(0), own

    return make


@pytest.fixture(scope="module")
def trained(place, formed):
    """Folders of clients in one home: two of digits, one each of a table, of rows and of images."""
    found = {name: formed(name)[1].folder for name in ("csv", "rows", "pixels")}
    for name, settings in {
        "norm": {"strategy": "protonorm", "alpha": 1.0},
        "digits": {"rounds": 1, "alpha": 10.0},
    }.items():
        run = run_in_process(DIGITS | settings, clients=2, workers=1, show=lambda line: None)
        found[name] = place / "home" / "clients" / run.name / "0"
    found |= {"run": found["norm"].parent, "home": place / "home"}
    return SimpleNamespace(**found)


# --- single images ----------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path):
    """Images that a client of digits can classify; one has a name that looks like markup."""
    paths = [tmp_path / name for name in ("one.png", "[red]two.png", "three.gif")]
    random = np.random.default_rng(0)
    for path in paths:
        Image.fromarray(random.integers(0, 256, (20, 30), dtype=np.uint8)).save(path)
    return paths


def test_a_line_of_json_for_each_image(predict, trained, images):
    result = predict(trained.norm, "--rule", "discriminant", "--json", *images)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    expected = answers_of(open_trained(trained.norm, "cpu"), "discriminant", images)
    assert lines == [
        {
            "input": str(path),
            "rule": "discriminant",
            "class": str(answer.label),
            "label": answer.label,
            "score": answer.score,
            "confidence": answer.confidence,
            "runner_up": str(answer.runner_up),
            "runner_up_score": answer.runner_up_score,
        }
        for path, answer in zip(images, expected, strict=True)
    ]


def test_a_table_by_the_clients_own_rule(predict, trained, images):
    result = predict(trained.norm, *images)
    assert result.exit_code == 0
    first, *rows = result.stdout.splitlines()
    assert first == f"client 0 of run {trained.norm.parent.name}, tiny_perceptron by local-prototypes"
    found = [row.split() for row in rows if any(path.name in row for path in images)]
    answers = answers_of(open_trained(trained.norm, "cpu"), "local-prototypes", images)
    assert found == [
        [answer.source, str(answer.label), "-", f"{answer.score:.4g}", str(answer.runner_up)] for answer in answers
    ]
    assert " % " in predict(trained.norm, "--rule", "classifier", images[0]).stdout


def test_one_broken_image_costs_only_itself(predict, trained, images, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    result = predict(trained.norm, "--json", broken, images[0])
    assert result.exit_code == 1
    assert [json.loads(line)["input"] for line in result.stdout.splitlines()] == [str(images[0])]
    assert result.stderr.startswith(f"{broken} is no readable image")
    assert len(result.stderr.splitlines()) == 1
    alone = predict(trained.norm, broken)
    assert (alone.exit_code, alone.stdout) == (1, "")


def test_export_writes_a_program_and_says_so(trained, tmp_path):
    def export(state, output, *more):
        arguments = ["export", "--state", str(state), "--output", str(output), *more]
        return CliRunner().invoke(app, arguments)

    output = tmp_path / "model.pt2"
    result = export(trained.norm, output, "--rule", "classifier")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"wrote {output}: tiny_perceptron by classifier, {output.stat().st_size} bytes\n"
    scores, features = torch.export.load(output).module()(torch.zeros(3, 1, 8, 8))
    assert (scores.shape, features.shape) == ((3, 10), (3, 12))
    again = export(trained.norm, output)
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr == f"{output} is there already; give --force to replace it, or another --output.\n"
    assert export(trained.norm, output, "--force").exit_code == 0
    refused = export(trained.norm.parent, tmp_path / "other.pt2")
    assert (refused.exit_code, "is the folder of a run" in refused.stderr) == (2, True)


# --- a folder of classes, or a table of images ------------------------------------------------------------


@pytest.fixture
def scans(tmp_path):
    """Pictures of three digits in folders: the place, the files and their labels."""
    random = np.random.default_rng(0)
    place = tmp_path / "scans"
    for name in ("3", "5", "8"):
        (place / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(random.integers(0, 256, (8, 8), dtype=np.uint8)).save(place / name / f"{number}.png")
    files = sorted(place.rglob("*.png"))
    return SimpleNamespace(place=place, files=files, labels=[int(path.parent.name) for path in files])


def encoded(path):
    with io.BytesIO() as stream:
        Image.open(path).save(stream, "PNG")
        return {"bytes": stream.getvalue(), "path": None}


@pytest.mark.parametrize("suffix", ["", ".csv", ".parquet"])
def test_figures_are_those_of_the_single_answers(predict, trained, scans, tmp_path, suffix):
    place, left = scans.place, tmp_path / "left.csv"
    if suffix:
        files = {"file": [str(path.relative_to(tmp_path)) for path in scans.files], "label": scans.labels}
        if suffix == ".parquet":
            files = {"image": list(map(encoded, scans.files)), "label": list(map(str, scans.labels))}
        place = write(pd.DataFrame(files), tmp_path / f"table{suffix}")
    asked = (trained.digits, "--rule", "classifier", place)
    found = predict(*asked, "--json", "--csv", left)
    assert (found.exit_code, found.stderr) == (0, "")
    told = json.loads(found.stdout)
    answers = list(answers_of(open_trained(trained.digits, "cpu"), "classifier", scans.files))
    predicted = [answer.label for answer in answers]
    expected = confusion_matrix(scans.labels, predicted, labels=range(10))
    assert told["confusion"] == expected.tolist()
    assert told["accuracy"] == expected.trace() / 12
    of_fives = told["classes"]["5"]
    assert (of_fives["support"], of_fives["recall"]) == (4, expected[5, 5] / 4)
    assert told["classes"]["0"]["recall"] is None
    rows = list(csv.DictReader(left.open(newline="")))
    assert [int(row["label"]) for row in rows] == scans.labels
    assert [int(row["prediction"]) for row in rows] == predicted
    assert [float(row["probability"]) for row in rows] == pytest.approx([answer.confidence for answer in answers])
    shown = predict(*asked).stdout
    assert f"accuracy: {100 * expected.trace() / 12:.1f} % ({expected.trace()} of 12)" in shown
    assert re.search(r"^ +precision +recall +f1-score +support$", shown, re.MULTILINE)
    assert "true class" in shown


def test_what_cannot_be_read_is_told_and_left_out(predict, trained, scans, tmp_path):
    (scans.place / "3" / "broken.png").write_text("no picture")
    found = predict(trained.digits, scans.place, "--json", "--csv", tmp_path / "left.csv")
    assert found.exit_code == 1
    assert "broken.png" in found.stderr
    assert json.loads(found.stdout)["rows"] == 12
    rows = list(csv.DictReader((tmp_path / "left.csv").open(newline="")))
    assert [row["prediction"] for row in rows if "broken" in row["input"]] == [""]


# --- tables and arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_figures_are_those_of_the_runs_own_evaluation(form, formed, predict, tmp_path):
    run, client, own = formed(form)
    last = run.clients[run.clients["client"] == 0].iloc[-1]
    count = int((TESTED & (SITE == "a")).sum())
    assert last["test_rows"] == count
    for rule in ("local-prototypes", "classifier"):
        found = predict(client.folder, own, "--json", "--csv", tmp_path / "left.csv", "--rule", rule)
        assert (found.exit_code, found.stderr) == (0, "")
        told = json.loads(found.stdout)
        assert (told["rows"], told["accuracy"]) == (count, last[f"accuracy/{rule}"])
        assert (
            np.sum(told["confusion"], axis=1).tolist()
            == np.bincount([client.class_names.index(name) for name in named(form)], minlength=3).tolist()
        )
        rows = list(csv.DictReader((tmp_path / "left.csv").open(newline="")))
        assert [row["label"] for row in rows] == named(form)
        assert sum(row["label"] == row["prediction"] for row in rows) == told["right"]
    assert 0.34 < last["accuracy"] <= 1


def named(form):
    table = form in ("csv", "parquet")
    return [(FRAME["outcome"][row] if table else str(Y[row])) for row in np.flatnonzero(TESTED & (SITE == "a"))]


def test_without_classes_there_are_predictions_alone(trained, predict, tmp_path):
    own = FRAME[:7]
    plain = write(own.drop(columns="outcome"), tmp_path / "plain.csv")
    told = json.loads(predict(trained.csv, write(own, tmp_path / "own.csv"), "--json").stdout)
    found = predict(trained.csv, plain, "--json", "--csv", tmp_path / "left.csv")
    assert (found.exit_code, found.stderr) == (0, "")
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["input"] for line in lines] == [f"row {row}" for row in range(7)]
    assert sum(line["class"] == name for line, name in zip(lines, own["outcome"], strict=True)) == told["right"]
    rows = list(csv.DictReader((tmp_path / "left.csv").open(newline="")))
    assert [(row["label"], row["prediction"]) for row in rows] == [("", line["class"]) for line in lines]
    assert "row 6" in predict(trained.csv, plain).stdout
    np.savez(tmp_path / "plain.npz", x=ROWS[:3])
    assert len(predict(trained.rows, tmp_path / "plain.npz", "--json").stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ({"visits": None}, "row 2 has no value in the column 'visits'"),
        ({"age": "old"}, "row 2 has 'old' in the column 'age'"),
    ],
)
def test_a_row_that_training_would_refuse_is_told_and_left_out(cell, words, trained, predict, tmp_path):
    frame = FRAME[:6].astype(object)
    frame.loc[2, list(cell)] = list(cell.values())
    found = predict(trained.csv, write(frame, tmp_path / "own.csv"), "--json")
    assert (found.exit_code, len(found.stderr.splitlines())) == (1, 1)
    assert words in found.stderr
    others = predict(trained.csv, write(FRAME[:6].drop(index=2), tmp_path / "others.csv"), "--json")
    assert json.loads(found.stdout) == json.loads(others.stdout)


def test_a_category_that_no_training_row_had_is_none_of_those_and_counted(trained, predict, tmp_path):
    strange = FRAME[:6].assign(job=["baker", *FRAME["job"][1:4], "judge", "nurse"])
    found = predict(trained.csv, write(strange.drop(columns="outcome"), tmp_path / "own.csv"), "--json")
    assert found.exit_code == 0
    (told,) = found.stderr.splitlines()
    assert told.startswith("warning: 2 of 6 rows have a category that no training sample had")
    assert "job (2)" in told
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line.get("unknown_categories") for line in lines] == [["job"], None, None, None, ["job"], None]
    measured = json.loads(predict(trained.csv, write(strange, tmp_path / "all.csv"), "--json").stdout)
    assert (measured["rows"], measured["unknown_categories"]) == (6, 2)
    # in Python alike; and what it is judged by is a row of features none of which stands for a job
    client = protosphere.Client(trained.csv)
    answers = client.predict(strange)
    assert answers.unknown.tolist() == [True, False, False, False, True, False]
    assert list(answers.names) == [line["class"] for line in lines]
    age, visits = FRAME["age"][0], FRAME["visits"][0]
    row = np.array([[age, np.isnan(age), visits, 0, 0, 0, 0]])
    assert client.predict(row).scores[0] == pytest.approx(answers.scores[0], abs=1e-6)
    with pytest.raises(protosphere.DataError, match="row 1 of x has 'old' in the column 'age'"):
        client.predict(strange.assign(age=["1", "old", "2", "3", "4", "5"]))
    with pytest.raises(protosphere.DataError, match=r"numbers and words alike .*age"):
        client.predict(strange.astype(object).assign(age=[1, "old", 2, 3, 4, 5]))
    with pytest.raises(protosphere.DataError, match="lack the column 'job'"):
        client.predict(strange.drop(columns="job"))


def test_of_many_rows_of_no_use_some_are_told(trained, predict, tmp_path):
    found = predict(trained.csv, write(FRAME.assign(visits="many"), tmp_path / "own.csv"))
    assert (found.exit_code, "no input could be read" in found.stdout) == (1, True)
    told = found.stderr.splitlines()
    assert len(told) < 30
    assert [f"row {row} " in told[row] for row in range(9)] == [True] * 9
    assert str(N - len(told) + 1) in told[-1]


def test_a_column_too_many_is_told_and_not_read(trained, predict, tmp_path):
    given = [FRAME[:9], FRAME[:9][FRAME.columns[::-1]].assign(noise=1.5)]
    found = [predict(trained.csv, write(each, tmp_path / "own.csv"), "--json") for each in given]
    assert [each.exit_code for each in found] == [0, 0]
    assert (found[0].stderr, "noise" in found[1].stderr, "site" in found[1].stderr) == ("", True, False)
    assert found[0].stdout == found[1].stdout
    np.savez(tmp_path / "own.npz", x=ROWS[:4], y=Y[:4], x_test=ROWS[:2])
    assert "x_test" in predict(trained.rows, tmp_path / "own.npz").stderr


def test_classes_are_found_by_the_runs_column_by_a_usual_name_or_by_a_given_one(trained, predict, tmp_path):
    def rows(frame, *more):
        found = predict(trained.csv, write(frame, tmp_path / "own.csv"), "--json", *more)
        return json.loads(found.stdout)["rows"]

    own = FRAME[:5]
    assert rows(own) == rows(own.rename(columns={"outcome": "label"})) == 5
    numbers = own.assign(outcome=[("high", "low", "mid").index(name) for name in own["outcome"]])
    assert rows(numbers.rename(columns={"outcome": "end"}), "--label-column", "end") == 5


def table(frame, name="t.csv"):
    return lambda place: [write(frame, place / name)]


def arrays(**held):
    def make(place):
        np.savez(place / "t.npz", **held)
        return [place / "t.npz"]

    return make


def text(content, name="t.csv"):
    def make(place):
        (place / name).write_text(content)
        return [place / name]

    return make


def scanned(change):
    """Files of a folder of classes, changed."""

    def make(place):
        (place / "3").mkdir()
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(place / "3" / "0.png")
        return change(place)

    return make


@pytest.mark.parametrize(
    ("client", "given", "words"),
    [
        ("none", lambda place: [place], "there is no folder"),
        ("run", lambda place: [place], "is the folder of a run"),
        ("home", lambda place: [place], "holds no client.json"),
        ("norm", lambda place: [], "there is nothing to classify"),
        ("norm", lambda place: ["--text", "words"], "reads images"),
        ("norm", scanned(lambda place: [place / "3" / "0.png", "--rule", "oracle"]), "rule 'oracle' cannot be applied"),
        ("norm", scanned(lambda place: [place / "3" / "0.png", "--device", "abacus"]), 'device is "abacus"'),
        ("digits", scanned(lambda place: [(place / "3").rename(place / "cat").parent]), '"cat"'),
        ("digits", lambda place: [place], "no input with its class"),
        ("digits", text("file,x\na.png,3\n"), "--label-column"),
        ("digits", text("file,label\na.png,10\n"), '"10"'),
        ("digits", text("no table", "t.parquet"), "no readable table"),
        ("digits", scanned(lambda place: [place / "3" / "0.png", "--csv", place / "x.csv"]), "--csv"),
        ("digits", scanned(lambda place: [place, "--csv", place / "no" / "x.csv"]), "cannot be written"),
        ("csv", table(FRAME.drop(columns=["age", "job"])), "lacks the columns age, job"),
        ("csv", table(FRAME.assign(outcome="odd")), '"odd"'),
        ("csv", table(FRAME.assign(outcome=None)), "no class"),
        ("csv", lambda place: [*table(FRAME)(place), "--label-column", "nonesuch"], "nonesuch"),
        ("csv", lambda place: [*table(FRAME)(place), "--label-column", "age"], '"age"'),
        ("csv", arrays(x=ROWS), "trained on a table of the columns age, visits, job"),
        ("csv", text("", "t.parquet"), "no readable table"),
        ("csv", lambda place: [place / "none.csv"], "none.csv"),
        ("rows", table(FRAME), "rows of 5 numbers"),
        ("rows", arrays(x=ROWS[:, :4]), "rows of 4 numbers, but this client was trained on rows of 5 numbers"),
        ("rows", arrays(x=ROWS.reshape(N, 5, 1)), "samples of shape (5, 1)"),
        ("rows", arrays(x=ROWS.astype(np.uint8)), "uint8"),
        ("rows", arrays(x=ROWS, y=Y[:3]), "y of shape (3,)"),
        ("rows", arrays(x=ROWS, y=Y + 1), '"3"'),
        ("rows", arrays(y=Y), "no array x"),
        ("rows", text("no archive", "t.npz"), "cannot be read"),
        ("rows", lambda place: [*arrays(x=ROWS)(place), "--label-column", "y"], "--label-column"),
        ("rows", lambda place: [*arrays(x=ROWS)(place), *table(FRAME)(place)], "one .npz"),
        ("pixels", arrays(x=IMAGES / 255), "float32"),
        ("pixels", arrays(x=IMAGES[:, :5]), "(3, 5, 10)"),
    ],
)  # fmt: skip
def test_what_is_of_no_use_is_one_sentence(client, given, words, trained, predict, tmp_path):
    (tmp_path / "given").mkdir()
    found = predict(getattr(trained, client, tmp_path / "none"), *given(tmp_path / "given"))
    assert (found.exit_code, found.stdout) == (2, "")
    assert words in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_row_that_is_not_finite_is_told_and_left_out(trained, predict, tmp_path):
    x = ROWS[:5].copy()
    x[3, 1] = np.inf
    np.savez(tmp_path / "own.npz", x=x, y=Y[:5])
    found = predict(trained.rows, tmp_path / "own.npz", "--json")
    assert (found.exit_code, json.loads(found.stdout)["rows"]) == (1, 4)
    assert found.stderr.startswith("row 3 ")


def test_a_class_may_be_called_as_an_average_of_the_measures():
    measures = _as_json([(0, 0), (1, 1), (1, 0)], "classifier", ["accuracy", "macro avg"])
    assert measures["classes"]["accuracy"] == {"precision": 0.5, "recall": 1.0, "f1-score": 2 / 3, "support": 1}
    assert measures["classes"]["macro avg"]["recall"] == 0.5
