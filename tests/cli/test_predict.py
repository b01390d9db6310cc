"""`protosphere predict` of images, folders of classes, tables and arrays, and `protosphere export`: what they print,
the figures of the run's own evaluation, and how they exit."""

import functools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import protosphere
from protosphere.cli.main import app
from protosphere.core.errors import DataError
from protosphere.launch.grid import run_in_process
from protosphere.serving.inputs import read_inputs
from protosphere.serving.predict import open_trained
from protosphere.serving.predict import predict as answers_to
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


def answers_of(trained, rule, files):
    return answers_to(trained, rule, read_inputs(trained, files))


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
    "pixels": lambda folder: of_arrays(IMAGES, folder, image_size=9, models="tiny_cnn"),
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
    found |= {"run": found["norm"].parent, "none": place / "none"}
    return SimpleNamespace(**found)


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


# --- what it prints ---------------------------------------------------------------------------------------


def test_images_have_a_row_each_and_one_that_is_broken_costs_only_itself(predict, trained, scans, tmp_path):
    broken, left = tmp_path / "broken.png", tmp_path / "left.csv"
    broken.write_bytes(b"nothing")
    images = scans.files[:3]
    result = predict(trained.norm, "--rule", "discriminant", "--csv", left, broken, *images)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith(f"{broken} is no readable image")
    assert result.stdout.startswith(f"client 0 of run {trained.norm.parent.name}, tiny_perceptron by discriminant\n")
    table = pd.read_csv(left)
    assert table["label"].isna().all()
    assert table["prediction"].isna().tolist() == [True, False, False, False]
    for answer, row in zip(
        answers_of(open_trained(trained.norm, "cpu"), "discriminant", images), table[1:].itertuples(), strict=True
    ):
        assert (row.input, row.prediction) == (answer.source, answer.label)
        assert (row.score, row.probability) == pytest.approx((answer.score, answer.confidence))


def test_without_a_readable_input_there_is_a_sentence_and_no_table(predict, trained, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    result = predict(trained.norm, broken)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stdout.splitlines()[1:] == ["no input could be read"]


def test_export_writes_a_program_and_replaces_none_unasked(trained, tmp_path):
    def export(state, output, *more):
        arguments = ["export", "--state", str(state), "--output", str(output), *more]
        return CliRunner().invoke(app, arguments)

    output = tmp_path / "model.pt2"
    result = export(trained.norm, output, "--rule", "classifier")
    assert (result.exit_code, result.stderr) == (0, "")
    scores, features = torch.export.load(output).module()(torch.zeros(3, 1, 8, 8))
    assert (scores.shape, features.shape) == ((3, 10), (3, 12))
    again = export(trained.norm, output)
    assert (again.exit_code, "--force" in again.stderr) == (2, True)
    assert export(trained.norm.parent, tmp_path / "other.pt2").exit_code == 2


@pytest.mark.parametrize("suffix", ["", ".csv", ".parquet"])
def test_images_with_classes_are_measured(predict, trained, scans, tmp_path, suffix):
    """Of a folder of classes, a table beside the images, or a table that holds them."""
    place, left = scans.place, tmp_path / "left.csv"
    if suffix == ".csv":
        files = {"file": [str(path.relative_to(tmp_path)) for path in scans.files], "label": scans.labels}
        place = write(pd.DataFrame(files), tmp_path / "table.csv")
    elif suffix == ".parquet":
        content = [{"bytes": path.read_bytes(), "path": None} for path in scans.files]
        place = write(pd.DataFrame({"image": content, "label": list(map(str, scans.labels))}), tmp_path / "t.parquet")
    found = predict(trained.digits, "--rule", "classifier", place, "--csv", left)
    assert (found.exit_code, found.stderr) == (0, "")
    answers = [answer.label for answer in answers_of(open_trained(trained.digits, "cpu"), "classifier", scans.files)]
    table = pd.read_csv(left)
    assert (table["label"].tolist(), table["prediction"].tolist()) == (scans.labels, answers)
    assert f"({(table['label'] == table['prediction']).sum()} of 12)\n" in found.stdout
    assert "precision    recall  f1-score   support" in found.stdout


@pytest.mark.parametrize("form", FORMS)
def test_measures_are_those_of_the_runs_own_evaluation(form, formed, predict, tmp_path):
    run, client, own = formed(form)
    last = run.clients[run.clients["client"] == 0].iloc[-1]
    rows = np.flatnonzero(TESTED & (SITE == "a"))
    labels = FRAME["outcome"][rows].tolist() if form in ("csv", "parquet") else Y[rows].tolist()
    for rule in ("local-prototypes", "classifier"):
        found = predict(client.folder, own, "--csv", tmp_path / "left.csv", "--rule", rule)
        assert (found.exit_code, found.stderr) == (0, "")
        table = pd.read_csv(tmp_path / "left.csv")
        assert table["label"].tolist() == labels
        assert (table["label"] == table["prediction"]).mean() == last[f"accuracy/{rule}"]
        assert len(table) == last["test_rows"]
    assert 0.34 < last["accuracy"] <= 1


def test_a_table_may_have_other_columns_and_rows_that_cannot_be_read(trained, predict, tmp_path):
    own = FRAME[:7].rename(columns={"outcome": "end"}).assign(noise=1.5)
    assert " of 7)" in predict(trained.csv, write(own, tmp_path / "own.csv"), "--label-column", "end").stdout
    broken = FRAME[:8].drop(columns="outcome").astype(object)
    broken.loc[7, "age"] = "old"
    found = predict(trained.csv, write(broken, tmp_path / "broken.csv"), "--csv", tmp_path / "left.csv")
    assert (found.exit_code, "row 7 has 'old' in the column 'age'" in found.stderr) == (1, True)
    assert pd.read_csv(tmp_path / "left.csv")["prediction"].isna().tolist() == [False] * 7 + [True]


def test_a_category_that_no_training_row_had_is_none_of_those_and_counted(trained, predict, tmp_path):
    strange = FRAME[:6].assign(job=["baker", *FRAME["job"][1:4], "judge", "nurse"])
    own = write(strange.drop(columns="outcome"), tmp_path / "own.csv")
    found = predict(trained.csv, own, "--csv", tmp_path / "left.csv")
    assert found.exit_code == 0
    assert found.stderr.startswith("warning: 2 of 6 rows have a category that no training sample had")
    table = pd.read_csv(tmp_path / "left.csv").fillna("")
    assert table["unknown"].tolist() == ["job", "", "", "", "job", ""]
    # in Python alike; and what it is judged by is a row of features none of which stands for a job
    client = protosphere.Client(trained.csv)
    answers = client.predict(strange)
    assert answers.unknown.tolist() == [True, False, False, False, True, False]
    assert list(answers.names) == table["prediction"].tolist()
    age, visits = FRAME["age"][0], FRAME["visits"][0]
    row = np.array([[age, np.isnan(age), visits, 0, 0, 0, 0]])
    assert client.predict(row).scores[0] == pytest.approx(answers.scores[0], abs=1e-6)
    # columns that it does not read may hold anything
    more = strange.assign(notes=["a", 1, None, 2.5, "b", "c"])
    assert client.predict(more).labels.tolist() == answers.labels.tolist()
    for wrong, words in (
        (pd.concat([strange, strange["age"]], axis=1), "x has the column 'age' twice"),
        (strange.assign(visits=[10**30] * 6), "numbers beyond 64 bits"),
    ):
        with pytest.raises(DataError, match=words):
            client.predict(wrong)


def test_a_number_that_is_not_finite_is_said_with_its_place(trained):
    rows = ROWS[:3].copy()
    rows[2, 1] = np.inf
    with pytest.raises(DataError, match=r"x holds inf at x\[2, 1\]"):
        protosphere.Client(trained.rows).predict(rows)


# --- what is of no use ------------------------------------------------------------------------------------


def table(frame, *more):
    return lambda place: [write(frame, place / "t.csv"), *more]


def arrays(**held):
    def make(place):
        np.savez(place / "t.npz", **held)
        return [place / "t.npz"]

    return make


def text(content, name):
    def make(place):
        (place / name).write_text(content)
        return [place / name]

    return make


def image(*more):
    def make(place):
        (place / "cat").mkdir()
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(place / "cat" / "0.png")
        return [place / "cat" / "0.png", *more] if more else [place]

    return make


@pytest.mark.parametrize(
    ("client", "given", "words"),
    [
        ("none", image(), "there is no client in"),
        ("run", image(), "this is a run with the clients 0, 1"),
        ("norm", lambda place: [], "there is nothing to classify"),
        ("norm", image("--rule", "oracle"), "rule 'oracle' cannot be applied"),
        ("norm", image("--device", "abacus"), 'device is "abacus"'),
        ("digits", image(), '"cat"'),
        ("norm", image("--csv", "."), "--csv . cannot be written"),
        (
            "norm",
            image("--csv", "/nonexistent/left.csv"),
            "--csv /nonexistent/left.csv cannot be written (No such file",
        ),
        ("digits", text("no table", "t.parquet"), "no readable table"),
        ("csv", table(FRAME.drop(columns=["age", "job"])), "lack the columns age, job"),
        ("csv", table(FRAME.assign(outcome="odd")), '"odd"'),
        ("csv", table(FRAME, "--label-column", "nonesuch"), "nonesuch"),
        ("csv", arrays(x=ROWS), "trained on a table of the columns age, visits, job"),
        ("rows", arrays(x=ROWS[:, :4]), "float32 of shape (4,), but this client was trained on float32 of shape (5,)"),
        ("rows", arrays(x=ROWS, y=Y[:3]), "y of shape (3,)"),
        ("pixels", arrays(x=IMAGES / 255), "float32"),
    ],
)
def test_what_is_of_no_use_is_one_sentence(client, given, words, trained, predict, tmp_path):
    (tmp_path / "given").mkdir()
    found = predict(getattr(trained, client), *given(tmp_path / "given"))
    assert (found.exit_code, found.stdout) == (2, "")
    assert words in found.stderr
    assert len(found.stderr.splitlines()) == 1
