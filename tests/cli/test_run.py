"""`protosphere run`: the settings that it passes on, its output and its exit codes."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protosphere import running
from protosphere.core.errors import RunError, SettingError
from protosphere.launch import grid as local_grid
from protosphere.launch.flower import Outcome
from protosphere.strategies import known_settings
from tests.cli.conftest import QUICK, ROOT
from tests.comparison.fabricated import change_summary

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_flags_and_settings_reach_the_launcher(invoke, launched, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    flags = ["--clients", "7", "--cpus-per-client", "2", "--gpus-per-client", "0.5", "--results", "out", "--verbose"]
    result = invoke(*flags, "-c", 'rounds=3 strategy="local"', "--set", "rounds=4")
    assert result.exit_code == 0, result.output
    expected = {"clients": 7, "rounds": 4, "strategy": "local", "results-dir": str(Path.cwd() / "out")}
    assert launched["run_config"] == known_settings() | expected
    flags = ("clients", "cpus_per_client", "gpus_per_client", "verbose")
    assert [launched[name] for name in flags] == [7, 2, 0.5, True]
    # a SuperLink's machines have paths of their own
    arguments = ["--results", "/there", "-c", 'dataset="x-rays" rounds=3', "--clients", "5"]
    assert invoke("--on", "superlink:clinics", *arguments).exit_code == 0
    assert (launched["connection"], launched["clients"]) == ("clinics", 5)
    assert launched["run_config"]["results-dir"] == "/there"


def test_what_leaves_is_listed_without_a_run(here):
    result = here("--what-leaves", "--clients", "3", "-c", 'strategy="fedproto"')
    assert result.exit_code == 0, result.output
    head, *items = result.stdout.splitlines()
    assert head == "the server would learn about each client:"
    assert {"  - prototypes of its classes", "  - the classes it holds"} <= {*items}
    assert not list(Path.cwd().rglob("summary.json"))
    lost = here("--what-leaves", "-c", 'dataset="/nowhere"')
    assert (lost.exit_code, len(lost.stderr.splitlines())) == (2, 1)
    refused = here("--what-leaves", "--on", "superlink:clinics")
    assert (refused.exit_code, "roster.json" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("resume", "stored", "batch_size"),
    [
        ("latest", "latest", 32),
        # if the folder is on this machine, its settings are known
        ("{folder}", "{folder}", 7),
        # a path is absolute, since the SuperLink has another working directory
        ("./{name}", "{folder}", 7),
        ("{name}", "{name}", 32),
    ],
)
def test_a_run_of_a_superlink_is_resumed(invoke, launched, tmp_path, monkeypatch, resume, stored, batch_size):
    (tmp_path / "settings.json").write_text(json.dumps(known_settings() | {"batch-size": 7}))
    monkeypatch.chdir(tmp_path.parent)
    places = {"folder": tmp_path, "name": tmp_path.name}
    arguments = ["--on", "superlink:clinics", "--resume", resume.format(**places), "-c", "rounds=9"]
    assert invoke(*arguments).exit_code == 0
    changes = {"resume": stored.format(**places), "rounds": 9, "batch-size": batch_size}
    assert launched["run_config"] == known_settings() | changes


def test_a_real_run_in_process(here, home):
    result = here("--clients", "3", "-c", QUICK, "--results", "out")
    assert result.exit_code == 0, result.output
    # before the rounds and after the table
    name, last_name = re.findall(r"^results: (.*)$", result.stdout, re.MULTILINE)
    assert name == last_name
    folder = Path(name)
    assert folder.parent == Path.cwd() / "out"
    assert json.loads((folder / "summary.json").read_text())["clients"] == 3
    assert "round 1/1" in result.stdout
    complete = here("--resume", "latest", "--results", "out")
    assert (complete.exit_code, complete.stdout) == (2, "")
    assert complete.stderr.startswith(f"the newest run, {folder}, has finished round 1 of 1")
    more = here("--resume", "latest", "--results", "out", "-c", "rounds=2")
    assert more.exit_code == 0, more.output
    assert "round 2/2" in more.stdout
    assert f"results: {folder}\n" in more.stdout
    log = (folder / "run.log").read_text().splitlines()
    assert [line.split(" |")[0] for line in log if line.startswith("round ")] == ["round 0/1", "round 1/1", "round 2/2"]


def test_a_completed_run_prints_its_lines_and_its_table(invoke, launched, folder):
    failure = {"rounds": 3, "last_round": 3, "last": "upload dropped: a vector holds NaN"}

    def change(summary):
        summary["rules"]["local-prototypes"] |= {"selected": 0.911, "selected_round": 1}
        summary["headline"]["figure"] = "selected"
        summary["failures"] = {str(number): failure for number in range(12)}

    change_summary(folder, change)
    result = invoke()
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1:3] == ["results: /there", "round 1/2 | accuracy"]
    table = [
        "inference rule all clients worst client round",
        "classifier 45.0 20.0 2",
        "local-prototypes * 91.1 20.0 1",
    ]
    assert {*table} <= {*lines}
    for words in (
        "most frequent class reaches 31.8",
        "sent: 0.2 kB up, 0.2 kB down",
        "best validation accuracy",
        f"results: {folder}",
        "`protosphere compare --methods local,frame,protonorm`",
        "2 more clients failed",
    ):
        assert words in result.stdout
    # ten failed clients are named
    assert result.stdout.count("a vector holds NaN") == 10
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (Outcome(False, Path("there"), "no data.", "83"), 1, "no data.\nlog: there/run.log\n"),
        (Outcome(False, None, "it failed.", "83"), 1, "it failed.\n"),
        (Outcome(False, None, "nobody listens."), 2, "nobody listens.\n"),
        (Outcome(False, Path("there"), "stopped.", "83", 2), 130, "stopped.\nlog: there/run.log\n"),
    ],
)
def test_an_incomplete_run_exits_with_its_reason_and_its_log(invoke, launched, outcome, code, words):
    launched.outcome = outcome
    result = invoke()
    assert (result.exit_code, result.stderr) == (code, words)


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (RunError("it broke."), 1, "it broke."),
        (signal.SIGTERM, 143, "stopped by SIGTERM."),
        (SettingError("no such thing."), 2, "no such thing."),
    ],
)
def test_a_failed_or_stopped_run_in_process_names_its_log(here, monkeypatch, tmp_path, end, code, words):
    folder = tmp_path / "begun"
    folder.mkdir()

    def run(grid, context, opened, on_round):
        if not isinstance(end, SettingError):
            opened(folder)
        if end is signal.SIGTERM:
            signal.raise_signal(end)
        raise end

    monkeypatch.setattr(local_grid, "run", run)
    result = here()
    log_line = "" if code == 2 else f"log: {folder / 'run.log'}\n"
    assert (result.exit_code, result.stderr) == (code, f"{words}\n{log_line}")


# --- the command that continues --------------------------------------------------------------------------------


def test_a_stopped_run_ends_with_the_command_that_continues_it(invoke, launched, folder, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    (folder / "checkpoint.safetensors").touch()
    (folder / "settings.json").write_text(json.dumps(known_settings() | {"clients": 3}))
    launched.outcome = Outcome(False, folder, "stopped by SIGTERM after round 1.", "8373", 15)
    last = invoke("--cpus-per-client", "2", "--clients", "3").stderr.splitlines()[1]
    assert last == f"resume: protosphere run --on flower --cpus-per-client 2 --resume {folder}"
    # a run of a SuperLink is known by its number, and its settings are given again
    launched.outcome = Outcome(False, None, "stopped by SIGINT.", "8373", 2)
    (Path.cwd() / "mine.toml").write_text("rounds = 7\n[protonorm]\ngamma = 5.0\n")
    names = ["-c", "mine.toml", "-c", 'strategy="protonorm" dataset="x-rays" partition="iid"', "--clients", "5"]
    last = invoke("--on", "superlink:clinics", "--results", "/there", *names).stderr.splitlines()[1]
    settings = launched["run_config"]
    invoke(*shlex.split(last.removeprefix("resume: "))[2:])
    assert launched["run_config"] == settings | {"resume": "8373"}
    # a run that Flower did not accept cannot be continued
    launched.outcome = Outcome(False, None, "stopped by SIGINT.", "", 2)
    assert "--resume" not in invoke("--on", "superlink:clinics").stderr


def test_the_command_that_continues_a_resumed_run_repeats_its_settings(here, monkeypatch):
    assert here("--clients", "3", "-c", QUICK, "--results", "my results").exit_code == 0
    configs = []

    def fail(config, **keywords):
        (folder,) = (Path.cwd() / "my results").iterdir()
        keywords["opened"](folder)
        configs.append(config | {"results-dir": ""})
        raise RunError("it broke.")

    monkeypatch.setattr(running, "run_in_process", fail)
    settings = 'rounds=4 round-timeout=77.0 keep-prototypes="all"'
    first = here("--resume", "latest", "--results", "my results", "-c", settings, "--on", "workers:2", "--verbose")
    assert first.exit_code == 1
    (line,) = [line for line in first.stderr.splitlines() if line.startswith("resume: ")]
    second = here(*shlex.split(line)[3:])
    assert configs[0] == configs[1]
    assert configs[1]["rounds"] == 4
    assert line in second.stderr.splitlines()
    assert "--on workers:2" in line
    assert "--verbose" in line


@pytest.mark.parametrize(
    ("command", "settings", "words"),
    [
        ("run", "rounds=0", "setting `rounds` is 0, but it should be greater than or equal to 1."),
        ("compare", "learning_rate=0.1", "unknown setting `learning_rate` (did you mean `learning-rate`?)"),
    ],
)
def test_an_invalid_setting_is_refused_before_torch_is_loaded(command, settings, words):
    script = (
        "import sys\nfrom protosphere.cli.main import app\n"
        f"try: app([{command!r}, '-c', {settings!r}])\n"
        "finally: print([name for name in ('torch', 'flwr', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert done.stderr.startswith(words)


def test_workers_reach_the_run_in_process(here, monkeypatch, folder):
    calls = {}
    monkeypatch.setattr(running, "run_in_process", lambda config, **keywords: calls.update(keywords) or folder)
    assert here("--on", "workers:2", "--clients", "3").exit_code == 0
    assert (calls["clients"], calls["workers"]) == (3, 2)
