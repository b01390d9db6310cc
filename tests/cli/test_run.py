"""`protosphere run`: what it hands down, what it prints, how it exits."""

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
    given = ["--results", "/there", "-c", 'dataset="x-rays" rounds=3', "--clients", "5"]
    assert invoke("--on", "superlink:clinics", *given).exit_code == 0
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


def test_a_run_of_another_machine_is_resumed_with_its_settings_given_again(invoke, launched, tmp_path, monkeypatch):
    assert invoke("--on", "superlink:clinics", "--resume", "latest", "-c", "rounds=9").exit_code == 0
    assert launched["run_config"] == known_settings() | {"resume": "latest", "rounds": 9}
    # where its folder is here, too, they are known
    (tmp_path / "settings.json").write_text(json.dumps(known_settings() | {"rounds": 4, "batch-size": 7}))
    assert invoke("--on", "superlink:clinics", "--resume", str(tmp_path)).exit_code == 0
    assert launched["run_config"]["batch-size"] == 7
    # the SuperLink has another working directory
    monkeypatch.chdir(tmp_path.parent)
    assert invoke("--on", "superlink:clinics", "--resume", f"./{tmp_path.name}").exit_code == 0
    assert launched["run_config"]["resume"] == str(tmp_path)
    assert launched["run_config"]["batch-size"] == 7
    assert invoke("--on", "superlink:clinics", "--resume", tmp_path.name).exit_code == 0
    assert launched["run_config"]["resume"] == tmp_path.name


def test_a_real_run_in_process(here, home):
    result = here("--clients", "3", "-c", QUICK, "--results", "out")
    assert result.exit_code == 0, result.output
    # before the rounds and after the table
    (folder,) = map(Path, {*(named := re.findall(r"^results: (.*)$", result.stdout, re.MULTILINE))})
    assert len(named) == 2
    assert folder.parent == Path.cwd() / "out"
    assert json.loads((folder / "summary.json").read_text())["clients"] == 3
    assert "round 1/1" in result.stdout
    over = here("--resume", "latest", "--results", "out")
    assert (over.exit_code, over.stdout) == (2, "")
    assert over.stderr.startswith(f"the newest run, {folder}, has finished round 1 of 1")
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
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[1:3] == ["results: /there", "round 1/2 | accuracy"]
    rows = [line.split() for line in lines]
    assert ["inference", "rule", "all", "clients", "worst", "client", "round"] in rows
    assert ["classifier", "45.0", "20.0", "2"] in rows
    assert ["local-prototypes", "*", "91.1", "20.0", "1"] in rows
    for words in (
        "most frequent class reaches 31.8",
        "sent: 0.2 kB up, 0.2 kB down",
        "best validation accuracy",
        f"results: {folder}",
        "`protosphere compare --methods local,frame,protonorm`",
        "2 more clients failed",
    ):
        assert words in result.stdout
    # ten clients that failed are named
    assert result.stdout.count("a vector holds NaN") == 10
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (Outcome(False, Path("there"), "no data.", "83"), 1, "no data.\nlog: there/run.log\n"),
        (Outcome(False, None, "it failed.", "83"), 1, "it failed.\n"),
        (Outcome(False, None, "nobody listens."), 2, "nobody listens.\n"),
        (Outcome(False, Path("there"), "stopped.", "83", 2), 130, "stopped.\nlog: there/run.log\n"),
    ],
)
def test_a_run_that_was_not_completed_exits_with_its_reason_and_its_log(invoke, launched, outcome, code, said):
    launched.outcome = outcome
    result = invoke()
    assert (result.exit_code, result.stderr) == (code, said)


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (RunError("it broke."), 1, "it broke."),
        (signal.SIGTERM, 143, "stopped by SIGTERM."),
        (SettingError("no such thing."), 2, "no such thing."),
    ],
)
def test_a_run_in_process_that_fails_or_is_stopped_names_its_log(here, monkeypatch, tmp_path, end, code, said):
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
    assert (result.exit_code, result.stderr) == (code, f"{said}\n{log_line}")


# --- the command that goes on --------------------------------------------------------------------------------


def test_a_cut_run_ends_with_the_command_that_goes_on_and_its_own_options(invoke, launched, folder, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    (folder / "checkpoint.safetensors").touch()
    (folder / "settings.json").write_text(json.dumps(known_settings() | {"clients": 3}))
    launched.outcome = Outcome(False, folder, "stopped by SIGTERM after round 1.", "8373", 15)
    last = invoke("--cpus-per-client", "2", "--clients", "3").stderr.splitlines()[1]
    assert last == f"resume: protosphere run --on flower --cpus-per-client 2 --resume {folder}"
    # of another machine's folder only Flower's number of the run is known, and its settings are given again
    launched.outcome = Outcome(False, None, "stopped by SIGINT.", "8373", 2)
    (Path.cwd() / "mine.toml").write_text("rounds = 7\n[protonorm]\ngamma = 5.0\n")
    names = ["-c", "mine.toml", "-c", 'strategy="protonorm" dataset="x-rays" partition="iid"', "--clients", "5"]
    last = invoke("--on", "superlink:clinics", "--results", "/there", *names).stderr.splitlines()[1]
    begun = launched["run_config"]
    invoke(*shlex.split(last.removeprefix("resume: "))[2:])
    assert launched["run_config"] == begun | {"resume": "8373"}
    # of one that Flower has not taken there is nothing to go on with
    launched.outcome = Outcome(False, None, "stopped by SIGINT.", "", 2)
    assert "--resume" not in invoke("--on", "superlink:clinics").stderr


def test_what_a_resume_was_told_stands_in_the_command_that_goes_on_with_it(here, monkeypatch):
    assert here("--clients", "3", "-c", QUICK, "--results", "my results").exit_code == 0

    def fail(config, **keywords):
        (folder,) = (Path.cwd() / "my results").iterdir()
        keywords["opened"](folder)
        calls.append(config)
        raise RunError("it broke.")

    calls = []
    monkeypatch.setattr(running, "run_in_process", fail)
    settings = 'rounds=4 round-timeout=77.0 keep-prototypes="all"'
    first = here("--resume", "latest", "--results", "my results", "-c", settings, "--on", "workers:2", "--verbose")
    assert first.exit_code == 1
    (line,) = [line for line in first.stderr.splitlines() if line.startswith("resume: ")]
    second = here(*shlex.split(line)[3:])
    assert calls[0] | {"results-dir": ""} == calls[1] | {"results-dir": ""}
    assert calls[1]["rounds"] == 4
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
def test_a_setting_that_is_wrong_alone_is_refused_before_torch_is_loaded(command, settings, words):
    script = (
        "import sys\nfrom protosphere.cli.main import app\n"
        f"try: app([{command!r}, '-c', {settings!r}])\n"
        "finally: print([name for name in ('torch', 'flwr', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert done.stderr.startswith(words)


def test_in_process_gets_workers(here, monkeypatch, folder):
    calls = {}
    monkeypatch.setattr(running, "run_in_process", lambda config, **keywords: calls.update(keywords) or folder)
    assert here("--on", "workers:2", "--clients", "3").exit_code == 0
    assert (calls["clients"], calls["workers"]) == (3, 2)
