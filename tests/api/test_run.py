"""A run from Python: equal to that of the command, with frames, prototypes, predictions and plots."""

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


def start(**settings):
    return protosphere.run(**(SPIRAL | {"quiet": True, "rounds": 3} | settings))


def test_it_is_the_run_of_the_command(run, metrics, home):
    settings = {"dataset": "spiral", "spiral-points": 60, "strategy": "protonorm", "protonorm.gamma": 5.0, "rounds": 3}
    whole = run(settings | {"feature-dim": 64, "max-samples": 0}, clients=3)
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
    read = settings_of(mapping, keywords)
    assert read == settings
    assert {name: type(value) for name, value in read.items()} == {name: type(v) for name, v in settings.items()}


def test_frames_are_the_lines_with_each_evaluation_in_its_round():
    run = start(strategy="protonorm", evaluate_every=2, rounds=4)
    rule = run.summary["headline"]["rule"]
    rounds, clients = run.rounds, run.clients.set_index(["round", "client"])
    assert rounds.index.tolist() == [0, 1, 2, 3, 4]
    assert rounds["accuracy"].notna().tolist() == [True, False, True, False, True]
    for line in RunFolder(run.folder).lines():
        row = rounds.loc[line["round"]]
        for name, client in line["clients"].items():
            values = clients.loc[(line["round"], int(name))]
            if "evaluation" in client:
                assert (values["accuracy"], values["validation"]) == tuple(client["evaluation"][rule])
                assert (values["test_rows"], values["validation_rows"]) == tuple(client["evaluation"]["rows"])
            if "training" in client:
                assert values["loss"] == client["training"]["loss"]["loss"]
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
    calls = []

    def on_round(values):
        calls.append(values)
        return values["round"] < 2

    run = start(strategy="protonorm", on_round=on_round)
    assert [values["round"] for values in calls] == [0, 1, 2]
    assert [values["accuracy"] for values in calls] == run.rounds["accuracy"].tolist()
    assert (run.summary["stopped"], run.summary["rounds"], run.status["state"]) == ("on-round", 2, "completed")
    print_summary(run.folder)
    assert "ended by on-round after round 2" in capsys.readouterr().out
    # a resumed run equals one that nothing ended
    longer, whole = protosphere.run(resume=run, quiet=True), start(strategy="protonorm")
    timeless = [name for name in whole.rounds.columns if name != "seconds" and not name.startswith("wire")]
    assert longer.rounds[timeless].equals(whole.rounds[timeless])
    assert "stopped" not in longer.summary


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("error", "state"), [(ZeroDivisionError, "failed"), (KeyboardInterrupt, "stopped")])
def test_a_cut_run_can_be_loaded_and_resumed(error, state):
    def on_round(values):
        if values["round"] == 2:
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
    seeds = []

    def run(seed):
        start(strategy="fedproto", rounds=1, seed=seed, on_round=lambda values: seeds.append(seed))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))
    # rounds 0 and 1 of each run follow each other
    assert seeds == [seed for seed in dict.fromkeys(seeds) for _ in range(2)]
    assert len(seeds) == 6


def test_lines_and_warnings_are_printed_unless_quiet(capfd):
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


# --- its results -------------------------------------------------------------------------------------------


def test_prototypes_of_the_newest_round_are_kept_or_of_every_round():
    newest, every = start(strategy="fedproto"), start(strategy="fedproto", keep_prototypes="all")
    with pytest.raises(protosphere.SettingError, match='keep-prototypes = "all"'):
        newest.prototypes(1)
    with pytest.raises(protosphere.SettingError):
        start(strategy="local").prototypes()
    for number in (1, 2, 3):
        prototypes = every.prototypes(number)
        assert (prototypes.round, set(prototypes.clients.tolist())) == (number, {0, 1, 2})
        for label, vector in zip(prototypes.labels, prototypes.vectors, strict=True):
            # global prototypes are the means of the clients'
            of_clients = prototypes.client_vectors[prototypes.client_labels == label]
            assert np.allclose(of_clients.mean(axis=0), vector, atol=1e-5)
    # nothing else changes
    assert newest.rounds["accuracy"].tolist() == every.rounds["accuracy"].tolist()


@pytest.fixture
def digits():
    """A run on digits, its client 1, and samples that the client takes."""
    run = start(dataset="digits", max_samples=300, models="tiny_cnn", strategy="local", rounds=1)
    return run, run.client(1), np.random.default_rng(0).integers(0, 17, (4, 1, 8, 8), dtype=np.uint8)


def test_a_client_predicts_arrays_tensors_and_files_alike(digits, tmp_path):
    run, client, levels = digits
    settings = read_settings(run.settings).settings
    test = client_data(data_spec(settings, 3), 1, home_of() / "cache").test
    accuracies = run.clients.set_index(["client", "round"]).loc[(1, 1)]
    for rows in (test.inputs, test.inputs.numpy()):
        predictions = client.predict(rows, "classifier")
        assert (predictions.labels == test.labels.numpy()).mean() == pytest.approx(accuracies["accuracy/classifier"])
    assert np.allclose(predictions.probabilities.sum(axis=1), 1)
    assert (predictions.probabilities.argmax(axis=1) == predictions.labels).all()
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for file, image in zip(files, levels, strict=True):
        # sixteen levels at full scale
        Image.fromarray(np.rint(image[0] * (255 / 16)).astype(np.uint8)).save(file)
    scores = client.predict(levels, "classifier").scores
    assert np.array_equal(client.predict(files, "classifier").scores, scores)
    # one file alone is summed in another order
    assert np.allclose(client.predict(files[0], "classifier").scores, scores[:1], atol=1e-5)


def test_inputs_rules_and_clients_that_do_not_exist_are_refused(digits, tmp_path):
    run, client, levels = digits
    wrong = [levels / 16, levels.astype(int) - 1, levels.astype(complex), None, levels[0], [tmp_path / "none.png"], []]
    for x in wrong:
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
def test_every_plot_of_a_report_is_also_a_matplotlib_figure():
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
    result = protosphere.run("fedproto", "spiral", clients=3, rounds=2, models="tiny_perceptron", spiral_points=60,
                             device="cpu", local_epochs=1, momentum=0.0, report=False, workers=workers)
    print(result.folder)


print(data.NAME)
run(1)
run(2)
"""


@pytest.mark.integration
def test_a_script_beside_a_folder_of_the_name_of_a_package_runs_with_workers(tmp_path):
    """Importing protosphere alone does not load torch, and no worker runs the script again."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("NAME = 'theirs'")
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, *printed = done.stdout.splitlines()
    assert first == "theirs"
    assert first not in printed
    one, two = (protosphere.load(line) for line in printed if line.startswith("/"))
    lines = [line for line in printed if line.startswith("round ")]
    for number, line in enumerate(lines):
        assert line.startswith(f"round {number % 3}/2 | {100 * one.rounds['accuracy'][number % 3]:5.1f} % (worst ")
    assert len(lines) == 6
    assert one.rounds["accuracy"].equals(two.rounds["accuracy"])
