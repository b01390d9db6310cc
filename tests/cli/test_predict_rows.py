"""`protosphere predict` of tables and arrays: the figures of the run's own evaluation, and what is refused or told."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import protosphere
from protosphere.cli.main import app

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
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
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
    "jsonl": lambda folder: of_table(".jsonl", folder),
    "rows": lambda folder: of_arrays(ROWS, folder),
    "normalised": lambda folder: of_arrays(ROWS, folder, normalise=True),
    "pixels": lambda folder: of_arrays(IMAGES, folder, normalise=True, models="tiny_cnn"),
    "resized": lambda folder: of_arrays(IMAGES, folder, image_size=9, models="tiny_cnn"),
    "volumes": lambda folder: of_arrays(ROWS[:, :4].reshape(N, 2, 2), folder),
}


@pytest.fixture
def predict(home):
    return lambda *arguments: CliRunner().invoke(app, ["predict", *map(str, arguments)], env={"COLUMNS": "200"})


def state_of(run):
    return run.client(0).folder


@pytest.mark.parametrize("form", FORMS)
def test_figures_are_those_of_the_runs_own_evaluation(form, predict, tmp_path):
    run, own = FORMS[form](tmp_path)
    last = run.clients[run.clients["client"] == 0].iloc[-1]
    count = int((TESTED & (SITE == "a")).sum())
    assert last["test_rows"] == count
    for rule in ("local-prototypes", "classifier"):
        found = predict("--state", state_of(run), own, "--json", "--csv", tmp_path / "left.csv", "--rule", rule)
        assert (found.exit_code, found.stderr) == (0, "")
        told = json.loads(found.stdout)
        assert (told["rows"], told["accuracy"]) == (count, last[f"accuracy/{rule}"])
        assert (
            np.sum(told["confusion"], axis=1).tolist()
            == np.bincount([run.client(0).class_names.index(name) for name in named(form)], minlength=3).tolist()
        )
        rows = list(csv.DictReader((tmp_path / "left.csv").open(newline="")))
        assert [row["label"] for row in rows] == named(form)
        assert sum(row["label"] == row["prediction"] for row in rows) == told["right"]
    assert 0.34 < last["accuracy"] <= 1


def named(form):
    table = form in ("csv", "parquet", "jsonl")
    return [(FRAME["outcome"][row] if table else str(Y[row])) for row in np.flatnonzero(TESTED & (SITE == "a"))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Clients of a table, of rows and of images, in one home."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOSPHERE_HOME", str(place / "home"))
        found = {}
        for name in ("csv", "rows", "pixels"):
            (place / name).mkdir()
            found[name] = FORMS[name](place / name)
        yield SimpleNamespace(**{name: state_of(run) for name, (run, _) in found.items()})


def test_without_classes_there_are_predictions_alone(trained, predict, tmp_path):
    own = FRAME[:7]
    plain = write(own.drop(columns="outcome"), tmp_path / "plain.csv")
    told = json.loads(predict("--state", trained.csv, write(own, tmp_path / "own.csv"), "--json").stdout)
    found = predict("--state", trained.csv, plain, "--json", "--csv", tmp_path / "left.csv")
    assert (found.exit_code, found.stderr) == (0, "")
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["input"] for line in lines] == [f"row {row}" for row in range(7)]
    assert sum(line["class"] == name for line, name in zip(lines, own["outcome"], strict=True)) == told["right"]
    rows = list(csv.DictReader((tmp_path / "left.csv").open(newline="")))
    assert [(row["label"], row["prediction"]) for row in rows] == [("", line["class"]) for line in lines]
    assert "row 6" in predict("--state", trained.csv, plain).stdout
    np.savez(tmp_path / "plain.npz", x=ROWS[:3])
    assert len(predict("--state", trained.rows, tmp_path / "plain.npz", "--json").stdout.splitlines()) == 3


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
    found = predict("--state", trained.csv, write(frame, tmp_path / "own.csv"), "--json")
    assert (found.exit_code, len(found.stderr.splitlines())) == (1, 1)
    assert words in found.stderr
    others = predict("--state", trained.csv, write(FRAME[:6].drop(index=2), tmp_path / "others.csv"), "--json")
    assert json.loads(found.stdout) == json.loads(others.stdout)


def test_a_category_that_no_training_row_had_is_none_of_those_and_counted(trained, predict, tmp_path):
    strange = FRAME[:6].assign(job=["baker", *FRAME["job"][1:4], "judge", "nurse"])
    found = predict("--state", trained.csv, write(strange.drop(columns="outcome"), tmp_path / "own.csv"), "--json")
    assert found.exit_code == 0
    (told,) = found.stderr.splitlines()
    assert told.startswith("warning: 2 of 6 rows have a category that no training row had")
    assert "job (2)" in told
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line.get("unknown_categories") for line in lines] == [["job"], None, None, None, ["job"], None]
    measured = json.loads(predict("--state", trained.csv, write(strange, tmp_path / "all.csv"), "--json").stdout)
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
    found = predict("--state", trained.csv, write(FRAME.assign(visits="many"), tmp_path / "own.csv"))
    assert (found.exit_code, "no input could be read" in found.stdout) == (1, True)
    told = found.stderr.splitlines()
    assert len(told) < 30
    assert [f"row {row} " in told[row] for row in range(9)] == [True] * 9
    assert str(N - len(told) + 1) in told[-1]


def test_a_column_too_many_is_told_and_not_read(trained, predict, tmp_path):
    given = [FRAME[:9], FRAME[:9][FRAME.columns[::-1]].assign(noise=1.5)]
    found = [predict("--state", trained.csv, write(each, tmp_path / "own.csv"), "--json") for each in given]
    assert [each.exit_code for each in found] == [0, 0]
    assert (found[0].stderr, "noise" in found[1].stderr, "site" in found[1].stderr) == ("", True, False)
    assert found[0].stdout == found[1].stdout
    np.savez(tmp_path / "own.npz", x=ROWS[:4], y=Y[:4], x_test=ROWS[:2])
    assert "x_test" in predict("--state", trained.rows, tmp_path / "own.npz").stderr


def test_classes_are_found_by_the_runs_column_by_a_usual_name_or_by_a_given_one(trained, predict, tmp_path):
    def rows(frame, *more):
        found = predict("--state", trained.csv, write(frame, tmp_path / "own.csv"), "--json", *more)
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


@pytest.mark.parametrize(
    ("client", "given", "words"),
    [
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
        ("rows", arrays(x=ROWS.reshape(N, 5, 1)), "rows of shape (5, 1)"),
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
    found = predict("--state", getattr(trained, client), *given(tmp_path))
    assert (found.exit_code, found.stdout) == (2, "")
    assert words in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_row_that_is_not_finite_is_told_and_left_out(trained, predict, tmp_path):
    x = ROWS[:5].copy()
    x[3, 1] = np.inf
    np.savez(tmp_path / "own.npz", x=x, y=Y[:5])
    found = predict("--state", trained.rows, tmp_path / "own.npz", "--json")
    assert (found.exit_code, json.loads(found.stdout)["rows"]) == (1, 4)
    assert found.stderr.startswith("row 3 ")
