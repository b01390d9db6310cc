"""`protosphere compare`: what it hands down, what it prints, how it exits."""

import io
import json
import re
import shlex
import signal
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from protosphere import comparing
from protosphere.cli.compare import PRESETS
from protosphere.cli.main import app
from protosphere.comparison.bar import Bar
from protosphere.comparison.execution import Finished, Progress, Running
from protosphere.comparison.spec import comparison_names
from protosphere.comparison.trials import Trial
from protosphere.launch.processes import Interrupted
from tests.comparison.fabricated import write_run
from tests.pictures import paint

QUICK = 'rounds=1 max-samples=200 feature-dim=12 models="tiny_perceptron" device="cpu" clients=2'
QUICK += " local-epochs=1 momentum=0.0"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, home):
    """A working directory of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def invoke():
    """invoke(*arguments): the result of `protosphere compare ...`."""
    return lambda *arguments: CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "400"})


@pytest.fixture
def ran(monkeypatch):
    """What `run_trials` was called with; each cell that has no run gets one, but those in `ran.failing` by method."""

    class Ran(dict):
        failing = ()
        raised = None

    calls = Ran()

    def run_trials(folder, trials, executor, tell, **of_runs):
        calls.update(folder=folder, trials=trials, jobs=executor.jobs, **of_runs)
        if calls.raised:
            raise calls.raised
        ended = []
        for cell in trials:
            if folder.run_of(cell):
                continue
            reason = "it broke." if cell.method in calls.failing else ""
            if not reason:
                write_run(folder.of(cell) / "run", cell.settings, 0.8125)
            ended.append(Finished(cell, 61.0, reason))
            tell(Progress(len(trials), 0, ended, []))
        return ended

    monkeypatch.setattr(comparing, "run_trials", run_trials)
    return calls


# --- what it hands down -----------------------------------------------------------------------------------


def test_choices_become_cells_and_their_tables_are_printed_and_written(invoke, ran, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    flags = ["--methods", "local,pfpl", "--seeds", "3,1", "--results", "out", "--jobs", "2", "--keep-models"]
    result = invoke(*flags, "-c", QUICK, "--metric", "final", "--target", "0.5")
    assert result.exit_code == 0, result.output
    assert [(c.row, c.method, c.seed) for c in ran["trials"]] == [
        ("digits", method, seed) for method in ("local", "pfpl") for seed in (3, 1)
    ]
    assert (ran["jobs"], ran["workers"], ran["reports"], ran["keep_models"]) == (2, 1, False, True)
    assert ran["folder"].path.parent == Path("out").absolute()
    assert "4 trials, 2 at a time\n" in result.stdout
    for words in ("accuracy in % (final), mean ±", "81.25 ± 0.00", "majority class"):
        assert words in result.stdout
    assert "The report has all intervals, costs and notes; 5 seeds in place of 2 narrow the intervals." in result.stdout
    assert "digits, to 50 %" in (ran["folder"].path / "table.md").read_text()
    written = re.findall(r"^written: .*/(\S+)$", result.stdout, flags=re.MULTILINE)
    assert written == ["table.csv", "differences.csv", "table.md", "table.tex", "report.html"]


def test_a_header_names_the_rule_where_the_methods_own_rules_differ(invoke, ran):
    result = invoke("--methods", "local,pfpl", "--seeds", "0,1", "-c", QUICK)
    assert result.exit_code == 0, result.output
    assert "accuracy in % (classifier headline, discriminant headline), mean" in result.stdout
    table = (ran["folder"].path / "table.md").read_text()
    assert re.search(r"\| *digits \(classifier headline\) *\| *digits \(discriminant headline\) *\|", table), table
    for method in ("local", "pfpl"):
        assert re.search(rf"^\| *`?{method}`? *\| *40\.62 ± 0\.00 *\| *- *\|", table, re.MULTILINE), table


def test_runs_have_the_workers_that_are_named(invoke, ran, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    base = ["--methods", "local,pfpl", "--seeds", "0,1,2,3", "--results", "out", "-c", QUICK]
    assert invoke(*base, "--on", "workers:4").exit_code == 0
    assert (ran["jobs"], ran["workers"]) == (2, 4)


def test_a_resume_has_as_many_jobs_as_the_start(invoke, ran, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    # of three cells the machine would hold three at a time
    arguments = ["--methods", "local,pfpl,frame", "--seeds", "0", "-c", QUICK]
    assert invoke(*arguments, "--jobs", "2").exit_code == 0
    for more, jobs in ((), 2), (("--jobs", "3"), 3), ((), 2):
        assert invoke("--resume", "latest", *more).exit_code == 0
        assert ran["jobs"] == jobs
    # of one that an earlier version started it is not known
    file = ran["folder"].path / "comparison.json"
    kept = json.loads(file.read_text())
    del kept["jobs"], kept["digest"]
    file.write_text(json.dumps(kept))
    assert invoke("--resume", "latest").exit_code == 0


def test_methods_for_a_file_that_has_none(invoke, ran, tmp_path):
    (tmp_path / "mine.toml").write_text('datasets = ["digits"]\nseeds = [0]\n')
    assert invoke("mine.toml", "--methods", "local,pfpl", "-c", QUICK).exit_code == 0
    assert [cell.method for cell in ran["trials"]] == ["local", "pfpl"]
    refused = invoke("mine.toml", "-c", QUICK)
    assert refused.exit_code == 2
    assert "`methods` is missing" in refused.stderr


def test_data_may_have_a_place_though_their_rows_are_left_out(invoke, ran, tmp_path):
    (tmp_path / "mine.toml").write_text('methods = ["local"]\ndatasets = ["digits", "usps"]\nseeds = [0]\n')
    left_out = ["mine.toml", "--datasets", "digits", "-c", QUICK]
    assert invoke(*left_out, "--data", "usps=./usps").exit_code == 0
    assert [trial.row for trial in ran["trials"]] == ["digits"]
    refused = invoke(*left_out, "--data", "upsp=./usps")
    assert refused.exit_code == 2
    assert (
        '--data has "upsp" (did you mean `usps`?), but the comparison\'s data sets are digits, usps.' in refused.stderr
    )


PRINTED = """
methods = [{ label = "Frame (control, sends nothing)", strategy = "frame" }, "local"]
datasets = ["digits"]
seeds = [0]
[[paper]]
dataset = "digits"
accuracy = { local = 82.9 }
"""


def test_what_a_paper_prints_stands_beside_its_own_settings_alone(invoke, ran, tmp_path):
    (tmp_path / "mine.toml").write_text(f'{PRINTED}[settings]\nrounds = 10\nclients = 8\nmodels = "tiny_perceptron"\n')
    files = ("table.md", "table.tex", "table.csv", "report.html")
    assert invoke("mine.toml").exit_code == 0
    for name, words in zip(files, ("82.90", "82.90", ",0.829", "82.90"), strict=True):
        assert words in (ran["folder"].path / name).read_text(), name
    left_out = [
        ["-c", "learning-rate=0.5"],
        ["--vary", "learning-rate=0.1,0.5"],
    ]
    for arguments in left_out:
        result = invoke("mine.toml", *arguments)
        assert result.exit_code == 0, result.output
        place = re.search("^results: (.*)$", result.stdout, flags=re.MULTILINE)
        assert place
        assert "the paper's values are left out" in (Path(place[1]) / "table.md").read_text()
        for name in files:
            text = (ran["folder"].path / name).read_text()
            assert "82.90" not in text, name
            assert ",0.829," not in text, name
    # where it runs is no setting of the paper's
    assert invoke("mine.toml", "-c", 'device="cpu"').exit_code == 0
    assert "82.90" in (ran["folder"].path / "table.md").read_text()


def test_a_label_with_a_comma_can_be_chosen(invoke, ran, tmp_path):
    (tmp_path / "mine.toml").write_text(PRINTED)
    label = "Frame (control, sends nothing)"
    for methods, labels in (
        (label, [label]),
        (f"local,{label}", ["local", label]),
        (f"{label},local", [label, "local"]),
    ):
        assert invoke("mine.toml", "-c", QUICK, "--methods", methods).exit_code == 0
        assert [cell.method for cell in ran["trials"]] == labels


def test_what_is_started_can_be_resumed(invoke, ran):
    ran.failing = ("local",)
    first = invoke("--methods", "local,pfpl", "--seeds", "0", "-c", QUICK)
    assert first.exit_code == 1
    folder = ran["folder"].path
    assert f"failed: digits | local | seed 0: it broke. ({folder}/trials/digits-local-seed0/output.log)" in first.stderr
    assert f"1 of 2 trials failed; `protosphere compare --resume {folder}` runs them again." in first.stderr
    assert "missing" in (folder / "table.csv").read_text()
    ran.failing = ()
    again = invoke("--resume", "latest")
    assert again.exit_code == 0, again.output
    assert ran["folder"].path == folder
    assert "missing" not in (folder / "table.csv").read_text()
    assert "40.62" in again.stdout


def test_the_help_names_every_preset(invoke):
    # a line may end at a hyphen
    words = "".join(invoke("--help").stdout.split())
    assert set(PRESETS) == set(comparison_names())
    assert f"Atableofthepapers:{','.join(PRESETS)}." in words


@pytest.fixture
def mnist(tmp_path):
    """A folder of that name, with a few grey images."""
    paint(tmp_path / "mnist", "ab", 40)


ONE_ROW = 'methods = ["local"]\nseeds = [0]\ndatasets = [{ label = "Digits", dataset = "digits" }]\n'
PARTITION = '[[partitions]]\nlabel = "Dirichlet 0.1"\npartition = "dirichlet"\n'


@pytest.mark.parametrize(
    ("file", "settings", "row"),
    [
        ("", 'dataset="./mnist"', "mnist"),
        ("", 'dataset="./mnist" partition="iid"', "mnist, iid"),
        ("", "alpha=0.5", "digits, alpha 0.5"),
        ("", "learning-rate=0.1 min-samples=2", "digits"),
        (ONE_ROW, 'dataset="./mnist"', "mnist"),
        (ONE_ROW, 'partition="iid" partition-table=""', "Digits, iid"),
        (ONE_ROW + PARTITION, "rounds=1", "Digits, Dirichlet 0.1"),
    ],
)
def test_a_row_is_called_after_what_the_settings_make_of_it(invoke, ran, mnist, tmp_path, file, settings, row):
    (tmp_path / "mine.toml").write_text(file)
    choices = ["mine.toml"] if file else ["--methods", "local", "--seeds", "0"]
    assert invoke(*choices, "-c", QUICK, "-c", settings).exit_code == 0
    assert [cell.row for cell in ran["trials"]] == [row]
    place = ran["folder"].path
    assert place.name.endswith("-compare-mine" if file else f"-compare-{row.split(',')[0]}")
    for name in ("table.md", "table.tex", "table.csv", "report.html"):
        assert row in (place / name).read_text(), name
        assert "mnist" not in row or "digits" not in (place / name).read_text().lower(), name
    # what is gone on with has the same names
    assert invoke("--resume", "latest").exit_code == 0
    assert [cell.row for cell in ran["trials"]] == [row]


@pytest.mark.parametrize(
    ("more", "settings", "words"),
    [
        (PARTITION, "alpha=0.5", "setting `alpha` may be what the labels of the partitions say (Dirichlet 0.1)"),
        ("", 'inference="classifier"', 'setting `inference` is one of the method "Local, by its classifier"'),
    ],
)
def test_names_that_would_no_longer_be_true_are_refused(invoke, ran, tmp_path, more, settings, words):
    method = '[{ label = "Local, by its classifier", strategy = "local", inference = "classifier" }]'
    (tmp_path / "mine.toml").write_text(ONE_ROW.replace('["local"]', method) + more)
    result = invoke("mine.toml", "-c", QUICK, "-c", settings)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert words in result.stderr
    assert not ran


# --- how it ends ------------------------------------------------------------------------------------------


def test_a_signal_leaves_what_is_finished(invoke, ran):
    ran.raised = Interrupted(signal.SIGTERM)
    result = invoke("--methods", "local", "--seeds", "0", "-c", QUICK)
    assert result.exit_code == 128 + signal.SIGTERM
    folder = ran["folder"].path
    again = f"`protosphere compare --resume {folder}`"
    assert result.stderr == f"stopped by SIGTERM; finished trials are kept, and {again} runs the others.\n"


def test_what_goes_on_is_run_as_what_is_finished_was(invoke, ran):
    ran.failing, asked = ("local",), ["--on", "workers:2", "--keep-models"]
    result = invoke("--methods", "local,pfpl", "--seeds", "0", "-c", QUICK, *asked)
    folder = ran["folder"].path
    assert f"--resume {folder} --on workers:2 --keep-models` runs them again." in result.stderr
    ran.raised = Interrupted(signal.SIGTERM)
    for more in (["--reports"], ["--jobs", "2", "--trust"]):
        stopped = invoke("--resume", str(folder), *more).stderr
        assert f"and `protosphere compare --resume {folder} {' '.join(more)}` runs the others." in stopped


def test_the_command_that_goes_on_can_be_pasted_wherever_the_folder_lies(invoke, ran):
    ran.failing = ("local",)
    first = invoke(
        "--methods", "local,pfpl", "--seeds", "0", "-c", QUICK, "--results", "my results", "--on", "workers:2"
    )
    command = first.stderr.splitlines()[-1].split("`")[1]
    ran.failing = ()
    assert invoke(*shlex.split(command)[2:]).exit_code == 0
    assert (ran["folder"].path.parent, ran["workers"]) == (Path("my results").absolute(), 2)


# --- the bar ----------------------------------------------------------------------------------------------

CELL = Trial("a", "Digits", "Local", 0, {"rounds": 8})


def test_a_run_that_ended_gets_one_line():
    stream = io.StringIO()
    with Bar(Console(file=stream, width=200)) as bar:
        first = Finished(CELL, 61.0)
        bar.update(Progress(4, 2, [first], []))
        bar.update(Progress(4, 2, [first], [Running(CELL, 0, 8)]))
        bar.update(Progress(4, 2, [first, Finished(CELL, 5.0, "no [red]luck[/red].")], []))
    assert stream.getvalue().splitlines() == [
        "3/4 Digits | Local | seed 0: done in 1 min 1 s",
        "4/4 Digits | Local | seed 0: failed: no [red]luck[/red].",
    ]
