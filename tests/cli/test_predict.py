"""`protosphere predict` for images, folders, tables and arrays, and `protosphere export`: output and exit codes."""

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

RNG = np.random.default_rng(11)
N = 160
Y = RNG.integers(0, 3, N)
SITE = np.array(["a", "b"])[RNG.integers(0, 2, N)]
IS_TEST = np.arange(N) >= 90
OWN = IS_TEST & (SITE == "a")  # the test samples of client 0
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


def run_on_table(suffix, folder):
    """A run on a table, and the test samples of client 0 as a file of the same kind."""
    (folder / "data").mkdir()
    for name, rows in (("train", ~IS_TEST), ("test", IS_TEST)):
        write(FRAME[rows], folder / "data" / f"{name}{suffix}")
    run = protosphere.run("fedproto", folder / "data", label_column="outcome", **QUICK)
    return run, write(FRAME[OWN], folder / f"own{suffix}")


def run_on_arrays(x, folder, **settings):
    arrays = {"x": x[~IS_TEST], "y": Y[~IS_TEST], "site": SITE[~IS_TEST]}
    np.savez(folder / "all.npz", **arrays, x_test=x[IS_TEST], y_test=Y[IS_TEST], site_test=SITE[IS_TEST])
    np.savez(folder / "own.npz", x=x[OWN], y=Y[OWN])
    return protosphere.run("fedproto", folder / "all.npz", **(QUICK | settings)), folder / "own.npz"


FORMS = {
    "csv": lambda folder: run_on_table(".csv", folder),
    "parquet": lambda folder: run_on_table(".parquet", folder),
    "rows": lambda folder: run_on_arrays(ROWS, folder),
    "pixels": lambda folder: run_on_arrays(IMAGES, folder, image_size=9, models="tiny_cnn"),
}


@pytest.fixture
def predict(home, tmp_path):
    """predict(state, *arguments): the result of `protosphere predict`, and the table in its CSV file."""

    def invoke(state, *arguments, csv="left.csv"):
        words = ["predict", "--state", state, *(["--csv", tmp_path / csv] if csv else []), *arguments]
        result = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "300"})
        return result, pd.read_csv(tmp_path / csv) if csv and result.exit_code < 2 else None

    return invoke


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of this file's runs."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOSPHERE_HOME", str(place / "home"))
        patch.setattr("protosphere.server_app.status.leave_report", lambda folder: None)
        yield place


@pytest.fixture(scope="module")
def run_of(place):
    """run_of(form) -> a run on data of that form, its client 0, and that client's test samples as a file."""

    @functools.cache
    def make(form):
        (place / form).mkdir()
        run, samples = FORMS[form](place / form)
        return run, run.client(0), samples

    return make


@pytest.fixture(scope="module")
def trained(place, run_of):
    """Name -> the folder of a client: of digits, a table, rows and images; and folders that are none."""
    folders = {name: run_of(name)[1].folder for name in ("csv", "rows", "pixels")}
    digits = {"norm": {"strategy": "protonorm", "alpha": 1.0}, "digits": {"rounds": 1, "alpha": 10.0}}
    for name, settings in digits.items():
        run = run_in_process(DIGITS | settings, clients=2, workers=1, show=lambda line: None)
        folders[name] = place / "home" / "clients" / run.name / "0"
    return folders | {"run": folders["norm"].parent, "none": place / "none"}


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


def answers_of(state, rule, files):
    client = open_trained(state, "cpu")
    return list(answers_to(client, rule, read_inputs(client, files)))


# --- what it prints ---------------------------------------------------------------------------------------


def test_each_image_has_a_row_and_a_broken_one_a_sentence(predict, trained, scans, tmp_path):
    broken, state = tmp_path / "broken.png", trained["norm"]
    broken.write_bytes(b"nothing")
    images = scans.files[:3]
    result, table = predict(state, "--rule", "discriminant", broken, *images)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith(f"{broken} is no readable image")
    assert result.stdout.startswith(f"client 0 of run {state.parent.name}, tiny_perceptron by discriminant\n")
    assert table["label"].isna().all()
    assert table["prediction"].isna().tolist() == [True, False, False, False]
    answers = answers_of(state, "discriminant", images)
    for answer, row in zip(answers, table[1:].itertuples(), strict=True):
        assert (row.input, row.prediction) == (answer.source, answer.label)
        assert (row.score, row.probability) == pytest.approx((answer.score, answer.confidence))
    # without any readable input there is no table
    result, _ = predict(state, broken, csv="")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stdout.splitlines()[1:] == ["no input could be read"]


def test_export_writes_a_program_and_overwrites_only_with_force(trained, tmp_path):
    def export(state, output, *more):
        return CliRunner().invoke(app, ["export", "--state", str(state), "--output", str(output), *more])

    output = tmp_path / "model.pt2"
    result = export(trained["norm"], output, "--rule", "classifier")
    assert (result.exit_code, result.stderr) == (0, "")
    scores, features = torch.export.load(output).module()(torch.zeros(3, 1, 8, 8))
    assert (scores.shape, features.shape) == ((3, 10), (3, 12))
    again = export(trained["norm"], output)
    assert (again.exit_code, "--force" in again.stderr) == (2, True)
    assert export(trained["run"], tmp_path / "other.pt2").exit_code == 2


@pytest.mark.parametrize("kind", ["folder of classes", "table beside the images", "table of images"])
def test_images_with_classes_have_an_accuracy(predict, trained, scans, tmp_path, kind):
    place = scans.place
    if kind == "table beside the images":
        files = {"file": [str(path.relative_to(tmp_path)) for path in scans.files], "label": scans.labels}
        place = write(pd.DataFrame(files), tmp_path / "table.csv")
    elif kind == "table of images":
        content = [{"bytes": path.read_bytes(), "path": None} for path in scans.files]
        place = write(pd.DataFrame({"image": content, "label": list(map(str, scans.labels))}), tmp_path / "t.parquet")
    result, table = predict(trained["digits"], "--rule", "classifier", place)
    assert (result.exit_code, result.stderr) == (0, "")
    predictions = [answer.label for answer in answers_of(trained["digits"], "classifier", scans.files)]
    assert (table["label"].tolist(), table["prediction"].tolist()) == (scans.labels, predictions)
    assert f"({(table['label'] == table['prediction']).sum()} of 12)\n" in result.stdout
    assert "precision    recall  f1-score   support" in result.stdout


@pytest.mark.parametrize("form", FORMS)
def test_accuracies_are_those_of_the_runs_own_evaluation(form, run_of, predict):
    run, client, samples = run_of(form)
    last = run.clients[run.clients["client"] == 0].iloc[-1]
    labels = FRAME["outcome"][OWN].tolist() if form in ("csv", "parquet") else Y[OWN].tolist()
    for rule in ("local-prototypes", "classifier"):
        result, table = predict(client.folder, samples, "--rule", rule)
        assert (result.exit_code, result.stderr) == (0, "")
        assert table["label"].tolist() == labels
        assert (table["label"] == table["prediction"]).mean() == last[f"accuracy/{rule}"]
        assert len(table) == last["test_rows"]
    assert 0.34 < last["accuracy"] <= 1


def test_a_table_may_have_other_columns_and_unreadable_rows(trained, predict, tmp_path):
    samples = FRAME[:7].rename(columns={"outcome": "end"}).assign(noise=1.5)
    result, _ = predict(trained["csv"], write(samples, tmp_path / "own.csv"), "--label-column", "end")
    assert " of 7)" in result.stdout
    broken = FRAME[:8].drop(columns="outcome").astype(object)
    broken.loc[7, "age"] = "old"
    result, table = predict(trained["csv"], write(broken, tmp_path / "broken.csv"))
    assert (result.exit_code, "row 7 has 'old' in the column 'age'" in result.stderr) == (1, True)
    assert table["prediction"].isna().tolist() == [False] * 7 + [True]


def test_an_unknown_category_is_counted_and_has_no_feature(trained, predict, tmp_path):
    frame = FRAME[:6].assign(job=["baker", *FRAME["job"][1:4], "judge", "nurse"])
    result, table = predict(trained["csv"], write(frame.drop(columns="outcome"), tmp_path / "own.csv"))
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: 2 of 6 rows have a category that no training sample had")
    table = table.fillna("")
    assert table["unknown"].tolist() == ["job", "", "", "", "job", ""]
    # the Python API agrees, and so does a row of features without any for a job
    client = protosphere.Client(trained["csv"])
    answers = client.predict(frame)
    assert answers.unknown.tolist() == [True, False, False, False, True, False]
    assert list(answers.names) == table["prediction"].tolist()
    age, visits = FRAME["age"][0], FRAME["visits"][0]
    row = np.array([[age, np.isnan(age), visits, 0, 0, 0, 0]])
    assert client.predict(row).scores[0] == pytest.approx(answers.scores[0], abs=1e-6)
    # other columns may hold anything
    more = frame.assign(notes=["a", 1, None, 2.5, "b", "c"])
    assert client.predict(more).labels.tolist() == answers.labels.tolist()


@pytest.mark.parametrize(
    ("client", "x", "words"),
    [
        ("csv", pd.concat([FRAME[:6], FRAME["age"][:6]], axis=1), "x has the column 'age' twice"),
        ("csv", FRAME[:6].assign(visits=[10**30] * 6), "numbers beyond 64 bits"),
        ("rows", np.array([[0, 0, 0, 0, 0], [0, np.inf, 0, 0, 0]], np.float32), r"x holds inf at x\[1, 1\]"),
    ],
    ids=["column twice", "large numbers", "infinity"],
)
def test_values_that_cannot_be_read_are_refused_in_python(trained, client, x, words):
    with pytest.raises(DataError, match=words):
        protosphere.Client(trained[client]).predict(x)


# --- mistakes ---------------------------------------------------------------------------------------------


def table(frame, *more):
    return lambda place: [write(frame, place / "t.csv"), *more]


def arrays(**content):
    def make(place):
        np.savez(place / "t.npz", **content)
        return [place / "t.npz"]

    return make


def no_table(place):
    (place / "t.parquet").write_text("no table")
    return [place / "t.parquet"]


def image(*more):
    """An image with further arguments; without any, the folder of its class."""

    def make(place):
        (place / "cat").mkdir()
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(place / "cat" / "0.png")
        return [place / "cat" / "0.png", *more] if more else [place]

    return make


@pytest.mark.parametrize(
    ("client", "arguments", "words"),
    [
        ("none", image(), "there is no client in"),
        ("run", image(), "this is a run with the clients 0, 1"),
        ("norm", lambda place: [], "there is nothing to classify"),
        ("norm", image("--rule", "oracle"), "rule 'oracle' cannot be applied"),
        ("norm", image("--device", "abacus"), 'device is "abacus"'),
        ("digits", image(), '"cat"'),
        ("norm", image("--csv", "."), "--csv . cannot be written"),
        ("norm", image("--csv", "/nonexistent/left.csv"), "--csv /nonexistent/left.csv cannot be written (No such"),
        ("digits", no_table, "no readable table"),
        ("csv", table(FRAME.drop(columns=["age", "job"])), "lack the columns age, job"),
        ("csv", table(FRAME.assign(outcome="odd")), '"odd"'),
        ("csv", table(FRAME, "--label-column", "nonesuch"), "nonesuch"),
        ("csv", arrays(x=ROWS), "trained on a table of the columns age, visits, job"),
        ("rows", arrays(x=ROWS[:, :4]), "float32 of shape (4,), but this client was trained on float32 of shape (5,)"),
        ("rows", arrays(x=ROWS, y=Y[:3]), "y of shape (3,)"),
        ("pixels", arrays(x=IMAGES / 255), "float32"),
    ],
)
def test_a_mistake_is_one_sentence(client, arguments, words, trained, predict, tmp_path):
    (tmp_path / "given").mkdir()
    result, _ = predict(trained[client], *arguments(tmp_path / "given"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
