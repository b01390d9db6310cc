"""A run from Python: the same as the command's, and what it leaves as tables, vectors, predictions and pictures."""

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protosphere
from protosphere.cli.summary import print_summary
from protosphere.core.home import home as home_of
from protosphere.data.client_data import client_data
from protosphere.data.spec import data_spec
from protosphere.names import settings_of
from protosphere.record.folder import RunFolder
from protosphere.strategies import read_settings

SPIRAL = {"dataset": "spiral", "clients": 3, "models": "tiny_perceptron", "spiral_points": 60, "device": "cpu"}
SPIRAL |= {"local_epochs": 1, "momentum": 0.0}


def start(**asked):
    return protosphere.run(**(SPIRAL | {"quiet": True, "rounds": 3} | asked))


def test_it_is_the_run_of_the_command(run, metrics, home):
    asked = {"dataset": "spiral", "spiral-points": 60, "strategy": "protonorm", "protonorm.gamma": 5.0, "rounds": 3}
    whole = run(asked | {"feature-dim": 64, "max-samples": 0}, clients=3)
    assert metrics(start(strategy="protonorm", protonorm__gamma=5.0).folder) == metrics(whole)


@pytest.mark.parametrize(
    ("mapping", "keywords", "settings"),
    [
        (None, {"feature_dim": 8, "fraug__lambda_g": 3}, {"feature-dim": 8, "fraug.lambda-g": 3}),
        ({"feature-dim": 9, "seed": 1}, {"feature_dim": 8}, {"feature-dim": 8, "seed": 1}),
        (None, {"models": ["tiny_mlp", "tiny_cnn"]}, {"models": "tiny_mlp,tiny_cnn"}),
        (None, {"w": Path("/x"), "x": np.int64(3), "y": np.float32(0.5)}, {"w": "/x", "x": 3, "y": 0.5}),
    ],
)
def test_names_and_values_of_settings(mapping, keywords, settings):
    found = settings_of(mapping, keywords)
    assert found == settings
    assert [type(value) for value in found.values()] == [type(settings[name]) for name in found]


def test_frames_are_the_lines_with_each_evaluation_at_the_round_that_it_is_of():
    run = start(strategy="protonorm", evaluate_every=2, rounds=4)
    rule = run.summary["headline"]["rule"]
    rounds, clients = run.rounds, run.clients.set_index(["round", "client"])
    assert rounds.index.tolist() == [0, 1, 2, 3, 4]
    assert rounds["accuracy"].notna().tolist() == [True, False, True, False, True]
    for line in RunFolder(run.folder).lines():
        row = rounds.loc[line["round"]]
        for name, client in line["clients"].items():
            own = clients.loc[(line["round"], int(name))]
            if "evaluation" in client:
                assert (own["accuracy"], own["validation"]) == tuple(client["evaluation"][rule])
                assert (own["test_rows"], own["validation_rows"]) == tuple(client["evaluation"]["rows"])
            if "training" in client:
                assert own["loss"] == client["training"]["loss"]["loss"]
        if "evaluation" in line:
            rules = line["evaluation"]["rules"]
            assert (row["accuracy"], row["worst"]) == (rules[rule]["test"]["mean"], rules[rule]["test"]["worst"])
            assert row["validation"] == rules[rule]["validation"]["mean"]
            assert row["accuracy/classifier"] == rules["classifier"]["test"]["mean"]
        if line["round"]:
            assert row["loss/cross-entropy"] == line["training"]["loss"]["cross-entropy"]
            assert (row["payload_up"], row["wire_down"]) == (line["bytes"]["payload_up"], line["bytes"]["wire_down"])


@pytest.mark.usefixtures("undrawn")
def test_a_function_gets_the_values_of_each_round_and_may_end_the_run(capsys):
    heard = []

    def on_round(figures):
        heard.append(figures)
        return figures["round"] < 2

    run = start(strategy="protonorm", on_round=on_round)
    assert [figures["round"] for figures in heard] == [0, 1, 2]
    for figures in heard:
        assert figures["accuracy"] == run.rounds.loc[figures["round"], "accuracy"]
    assert (run.summary["stopped"], run.summary["rounds"], run.status["state"]) == ("on-round", 2, "completed")
    print_summary(run.folder)
    assert "ended by on-round after round 2" in capsys.readouterr().out
    # it may go on, and is then the run that nobody ended
    longer, whole = protosphere.run(resume=run, quiet=True), start(strategy="protonorm")
    timeless = [name for name in whole.rounds.columns if name != "seconds" and not name.startswith("wire")]
    assert longer.rounds[timeless].equals(whole.rounds[timeless])
    assert "stopped" not in longer.summary


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("error", "state"), [(ZeroDivisionError, "failed"), (KeyboardInterrupt, "stopped")])
def test_a_run_that_is_cut_can_be_loaded_and_resumed(error, state):
    def on_round(figures):
        if figures["round"] == 2:
            raise error

    with pytest.raises(error) as caught:
        start(strategy="fedproto", on_round=on_round)
    run = protosphere.load()
    assert any(str(run.folder) in note for note in caught.value.__notes__)
    assert (run.status["state"], run.summary["status"], run.rounds.index.tolist()) == (state, "not finished", [0, 1, 2])
    assert (run.folder / "report.html").exists() == (state == "stopped")
    whole = start(strategy="fedproto")
    assert protosphere.run(resume=run.name, quiet=True).rounds["accuracy"].equals(whole.rounds["accuracy"])


def test_runs_in_threads_wait_for_each_other():
    heard = []

    def go(seed):
        start(strategy="fedproto", rounds=1, seed=seed, on_round=lambda figures: heard.append(seed))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(go, range(3)))
    assert [own for own, before in zip(heard, [None, *heard], strict=False) if own != before] == list(
        dict.fromkeys(heard)
    )


def test_lines_and_warnings_are_printed_unless_it_is_to_be_quiet(capfd):
    alone = {"partition": "pathological", "classes_per_client": 1, "rounds": 1, "strategy": "local", "clients": 6}
    run = start(**alone, quiet=False)
    lines = capfd.readouterr().out.splitlines()
    assert lines.count(f"results: {run.folder}") == 1
    assert any(line.startswith("warning: ") and "class" in line for line in lines)
    assert [line.partition(" |")[0] for line in lines if line.startswith("round ")] == ["round 0/1", "round 1/1"]
    start(**alone)
    assert capfd.readouterr() == ("", "")


def test_load_finds_a_run_by_every_name(tmp_path, monkeypatch):
    first, run = (start(strategy="local", rounds=1) for _ in range(2))
    monkeypatch.chdir(run.folder.parent)
    for name in ("latest", run.name, run.folder, str(run.folder), f"./{run.name}"):
        assert protosphere.load(name).folder == run.folder
    copied = shutil.copytree(run.folder, tmp_path / "copied")
    assert protosphere.load(copied).summary == run.summary
    assert protosphere.load(first.name, run.folder.parent).folder == first.folder
    with pytest.raises(protosphere.SettingError, match=r'"nothing".*; the newest there is \d{8}-\d{6}-local-\w+-\w+; '):
        protosphere.load("nothing")


# --- what it leaves -------------------------------------------------------------------------------------------


def test_prototypes_are_those_of_the_newest_round_and_of_every_round_where_that_is_asked_for():
    newest = start(strategy="fedproto")
    with pytest.raises(protosphere.SettingError, match='keep-prototypes = "all"'):
        newest.prototypes(1)
    with pytest.raises(protosphere.SettingError):
        start(strategy="local").prototypes()
    every = start(strategy="fedproto", keep_prototypes="all")
    for number in (1, 2, 3):
        found = every.prototypes(number)
        assert (found.round, set(found.clients.tolist())) == (number, {0, 1, 2})
        for label, vector in zip(found.labels, found.vectors, strict=True):
            # what came up makes what went down
            assert np.allclose(found.client_vectors[found.client_labels == label].mean(axis=0), vector, atol=1e-5)
    # nothing else changes
    assert newest.rounds["accuracy"].tolist() == every.rounds["accuracy"].tolist()


@pytest.mark.parametrize("asked", [SPIRAL, {"dataset": "digits", "max_samples": 300, "models": "tiny_cnn"}])
def test_a_client_predicts_its_own_test_rows_as_the_run_says(asked):
    run = start(strategy="protonorm", inference="classifier", rounds=1, **asked)
    settings = read_settings(run.settings).settings
    last = run.clients[run.clients["round"] == 1].set_index("client")
    for number in range(3):
        client, test = run.client(number), client_data(data_spec(settings, 3), number, home_of() / "cache").test
        for rule in client.rules:
            for rows in (test.inputs, test.inputs.numpy()):
                found = client.predict(rows, rule)
                right = float((found.labels == test.labels.numpy()).mean())
                assert right == pytest.approx(last.loc[number, f"accuracy/{rule}"])
        shares = client.predict(test.inputs).probabilities
        assert np.allclose(shares.sum(axis=1), 1)
        assert (shares.argmax(axis=1) == client.predict(test.inputs, "classifier").labels).all()


def test_files_are_read_as_the_rows_that_they_hold_and_what_fits_nothing_is_refused(tmp_path):
    run = start(dataset="digits", max_samples=300, models="tiny_cnn", strategy="local", rounds=1)
    client = run.client(1)
    levels = np.random.default_rng(0).integers(0, 17, (4, 1, 8, 8), dtype=np.uint8)
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for file, image in zip(files, levels, strict=True):
        # sixteen levels at full scale
        Image.fromarray(np.rint(image[0] * (255 / 16)).astype(np.uint8)).save(file)
    of_rows = client.predict(levels, "classifier").scores
    assert np.array_equal(client.predict(files, "classifier").scores, of_rows)
    # one alone adds up in another order
    assert np.allclose(client.predict(files[0], "classifier").scores, of_rows[:1], atol=1e-5)
    for x in (
        levels / 16,
        levels.astype(int) - 1,
        levels.astype(complex),
        None,
        levels[0],
        [tmp_path / "none.png"],
        [],
    ):
        with pytest.raises((protosphere.DataError, protosphere.SettingError)):
            client.predict(x)
    with pytest.raises(protosphere.SettingError, match="nearest"):
        client.predict(levels, "nearest")
    with pytest.raises(protosphere.SettingError, match="client is 3"):
        run.client(3)
    shutil.rmtree(client.folder)
    with pytest.raises(protosphere.SettingError, match="client 1"):
        run.client(1)


PLOTS = ["accuracy-over-rounds", "accuracy-over-bytes", "loss-over-rounds", "accuracy-by-client"]
PLOTS += ["confusion", "samples-by-client-and-class", "map-of-prototypes"]
PLOTS += ["distances-of-global-prototypes", "margins-of-global-prototypes"]


@pytest.mark.usefixtures("undrawn")
def test_every_plot_of_a_report_is_a_matplotlib_figure_and_a_file():
    run = start(strategy="protonorm")
    report = run.report()
    assert "&lt;html" in re.search(r'srcdoc="([^"]*)"', report._repr_html_())[1]
    pictures = report.path.parent / "pictures"
    assert {path.stem for path in pictures.glob("*.svg")} == set(PLOTS)
    for name in PLOTS:
        # the same numbers as the report's
        assert run.plot(name).csv == (pictures / f"{name}.csv").read_text()
    (mean,) = [line for line in run.plot().axes[0].lines if line.get_label() == "mean of all samples"]
    assert np.allclose(mean.get_ydata(), 100 * run.rounds["accuracy"])
    with pytest.raises(protosphere.SettingError, match='plot is "loss"'):
        run.plot("loss")
    with pytest.raises(protosphere.SettingError, match="nothing is exchanged"):
        start(strategy="local").plot("map-of-prototypes")


# --- a script ---------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import data
import protosphere

assert "torch" not in sys.modules
protosphere.run


def run(workers):
    made = protosphere.run("fedproto", "spiral", clients=3, rounds=2, models="tiny_perceptron", spiral_points=60,
                           device="cpu", local_epochs=1, momentum=0.0, report=False, workers=workers)
    print(made.folder)


print(data.NAME)
run(1)
run(2)
"""


@pytest.mark.integration
def test_a_script_beside_folders_of_our_names_prints_its_lines_and_has_workers_of_ours(tmp_path):
    """And the import alone loads nothing, and no worker runs the script again."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("NAME = 'theirs'")
    (tmp_path / "mine.py").write_text(SCRIPT)
    ran = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    first, *printed = ran.stdout.splitlines()
    assert first == "theirs"
    assert first not in printed
    one, two = (protosphere.load(line) for line in printed if line.startswith("/"))
    lines = [line for line in printed if line.startswith("round ")]
    for number, line in enumerate(lines):
        assert line.startswith(f"round {number % 3}/2 | {100 * one.rounds['accuracy'][number % 3]:5.1f} % (worst ")
    assert len(lines) == 6
    assert one.rounds["accuracy"].equals(two.rounds["accuracy"])
