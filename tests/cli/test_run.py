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
from protosphere.launch.flower import Outcome, RunInterrupted
from protosphere.plans.assignments import read_assignments
from protosphere.server_app.app import log
from protosphere.strategies import known_settings
from tests.cli.conftest import QUICK, ROOT
from tests.comparison.fabricated import change_summary

pytestmark = pytest.mark.usefixtures("elsewhere")


# --- what it hands down -----------------------------------------------------------------------------


def test_flags_and_settings_reach_the_launcher(invoke, launched, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    flags = ["--clients", "7", "--cpus-per-client", "2", "--gpus-per-client", "0.5", "--results", "out", "--verbose"]
    result = invoke(*flags, "-c", 'rounds=3 strategy="local"', "--set", "rounds=4")
    assert result.exit_code == 0, result.output
    here = str(Path.cwd() / "out")
    expected = {"clients": 7, "rounds": 4, "strategy": "local", "results-dir": here}
    assert launched["run_config"] == known_settings() | expected
    assert (launched["clients"], launched["cpus_per_client"], launched["gpus_per_client"]) == (7, 2, 0.5)
    assert launched["verbose"] is True


def test_in_process_gets_workers_and_no_flower(here, monkeypatch, folder):
    calls = {}

    def run_in_process(run_config, **keywords):
        calls.update(keywords, run_config=run_config)
        return folder

    monkeypatch.setattr(running, "run_in_process", run_in_process)
    result = here("--on", "workers:2", "--clients", "3")
    assert result.exit_code == 0, result.output
    assert (calls["clients"], calls["workers"], calls["run_config"]["clients"]) == (3, 2, 3)


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


# --- how it ends ------------------------------------------------------------------------------------


def test_a_completed_run_prints_its_lines_once_and_its_table(invoke, launched, folder):
    result = invoke()
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[1:3] == ["results: /there", "round 1/2 | accuracy"]
    assert lines[3] == "protonorm on digits, 2 clients, 2 rounds: test accuracy in %"
    rows = [line.split() for line in lines]
    assert ["inference", "rule", "all", "clients", "worst", "client", "round"] in rows
    assert ["classifier", "45.0", "20.0", "2"] in rows
    assert ["local-prototypes", "*", "90.0", "20.0", "2"] in rows
    assert lines[-6:] == [
        "* the rule by which this method predicts; without validation samples, after the last round",
        "always predicting a client's most frequent class reaches 31.8",
        "sent: 0.2 kB up, 0.2 kB down, and 0.2 kB of overhead; evaluation takes another 0.1 kB",
        "time: 12.3 s",
        f"results: {folder}",
        "next: `protosphere compare --methods local,frame,protonorm -c 'dataset=\"digits\" clients=2'` tells what the "
        "exchange adds",
    ]
    assert "\x1b" not in result.stdout

    def select(summary):
        summary["rules"]["local-prototypes"] |= {"selected": 0.911, "selected_round": 1}
        summary["headline"]["figure"] = "selected"

    change_summary(folder, select)
    lines = invoke().stdout.splitlines()
    assert ["local-prototypes", "*", "91.1", "20.0", "1"] in [line.split() for line in lines]
    chosen = "* the rule by which this method predicts; each rule at the round with its best validation accuracy"
    assert chosen in lines


def test_the_end_names_the_clients_that_failed(invoke, launched, folder):
    failures = {
        "2": {"rounds": 1, "last_round": 1, "last": "no reply in time"},
        "10": {"rounds": 3, "last_round": 3, "last": "upload dropped: a vector holds NaN"},
    }
    change_summary(folder, lambda summary: summary.update(failures=failures))
    lines = invoke().stdout.splitlines()
    assert lines[-5:-3] == [
        "client 10 failed in 3 of 3 rounds, the last time in round 3: upload dropped: a vector holds NaN",
        "client 2 failed in 1 of 3 rounds, the last time in round 1: no reply in time",
    ]
    many = {str(p): failures["2"] for p in range(12)}
    change_summary(folder, lambda summary: summary.update(failures=many))
    lines = invoke().stdout.splitlines()
    assert lines[-4] == "2 more clients failed in some rounds; metrics.jsonl lists them"
    assert sum(line.startswith("client ") for line in lines) == 10


# --- on other machines ------------------------------------------------------------------------------


def test_a_superlink_of_ones_own_gets_paths_and_settings_as_they_are(invoke, launched):
    result = invoke("--on", "superlink:clinics", "--results", "/there", "-c", 'dataset="x-rays" rounds=3')
    assert result.exit_code == 0, result.output
    assert "running on the nodes of the SuperLink `clinics`: as many clients as its nodes report" in result.stdout
    assert launched["connection"] == "clinics"
    assert launched["clients"] == 0
    expected = {"dataset": "x-rays", "rounds": 3, "results-dir": "/there"}
    assert launched["run_config"] == known_settings() | expected
    assert invoke("--on", "superlink:clinics", "--clients", "5").exit_code == 0
    assert launched["run_config"]["clients"] == launched["clients"] == 5


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


@pytest.mark.parametrize(
    ("outcome", "code", "told"),
    [
        (Outcome(False, Path("finished"), "no data.", Path("run.log"), "83"), 1, "no data.\nlog: run.log\n"),
        (Outcome(False, None, "it failed.", None, "83"), 1, "it failed.\nlog: none could be written\n"),
        (Outcome(False, None, "nobody listens.", None), 2, "nobody listens.\n"),
        (
            RunInterrupted(2, Outcome(False, Path("finished"), "stopped by SIGINT.", Path("run.log"))),
            130,
            "stopped by SIGINT.\nlog: run.log\n",
        ),
    ],
    ids=["failed", "without a log", "not taken", "interrupted"],
)
def test_a_run_that_was_not_completed_exits_with_its_reason_and_its_log(invoke, launched, outcome, code, told):
    launched.outcome = outcome
    result = invoke()
    assert (result.exit_code, result.stderr) == (code, told)


def test_a_cut_run_ends_with_the_command_that_goes_on_and_its_own_options(invoke, launched, folder, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    (folder / "checkpoint.safetensors").touch()
    (folder / "settings.json").write_text(json.dumps(known_settings() | {"clients": 3}))
    launched.outcome = RunInterrupted(15, Outcome(False, folder, "stopped by SIGTERM after round 1.", None))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    told = invoke("--cpus-per-client", "2", "--gpus-per-client", "0.5", "--clients", "3").stderr.splitlines()
    assert told[1] == f"resume: protosphere run --on flower --cpus-per-client 2 --gpus-per-client 0.5 --resume {folder}"
    # of another machine's folder only Flower's number of the run is known
    launched.outcome = RunInterrupted(2, Outcome(False, None, "stopped by SIGINT.", None, "8373", resumable=True))
    told = invoke("--on", "superlink:clinics").stderr.splitlines()
    assert told[1] == "resume: protosphere run --on superlink:clinics --resume 8373"
    # where its settings are not known, and are to be given again
    (Path.cwd() / "mine.toml").write_text("rounds = 7\n[protonorm]\ngamma = 5.0\n")
    names = ["-c", "mine.toml", "-c", 'strategy="protonorm" dataset="x-rays" partition="iid"', "--clients", "5"]
    told = invoke("--on", "superlink:clinics", "--results", "/there", *names).stderr.splitlines()[1]
    begun = launched["run_config"]
    *words, first, text, resume, number = shlex.split(told.removeprefix("resume: "))
    assert [*words, first, resume, number] == [
        "protosphere",
        "run",
        "--on",
        "superlink:clinics",
        "-c",
        "--resume",
        "8373",
    ]
    expected = {"rounds": 7, "protonorm.gamma": 5.0, "strategy": "protonorm", "dataset": "x-rays", "partition": "iid"}
    assert read_assignments(text) == expected | {"clients": 5, "results-dir": "/there"}
    invoke(*words[2:], first, text, resume, number)
    assert launched["run_config"] == begun | {"resume": "8373"}
    # and of one that had no round there is nothing to go on with
    launched.outcome = RunInterrupted(2, Outcome(False, None, "stopped by SIGINT.", None, "8373"))
    assert "--resume" not in invoke("--on", "superlink:clinics").stderr
    # what was resumed has a checkpoint, by whatever name
    assert "--resume latest" in invoke("--on", "superlink:clinics", "--resume", "latest").stderr


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
    assert second.exit_code == 1
    assert calls[0] | {"results-dir": ""} == calls[1] | {"results-dir": ""}
    assert calls[1]["rounds"] == 4
    assert [line] == [text for text in second.stderr.splitlines() if text.startswith("resume: ")]
    assert "--on workers:2" in line
    assert "--verbose" in line


def test_a_run_in_process_that_fails_or_is_stopped_names_its_log(here, monkeypatch, tmp_path):
    folder = tmp_path / "begun"
    folder.mkdir()

    def fail(grid, context, opened, on_round):
        opened(folder)
        log.info("results: %s", folder)
        raise RunError("it broke.")

    def stop(grid, context, opened, on_round):
        opened(folder)
        signal.raise_signal(signal.SIGTERM)

    def refuse(grid, context, opened, on_round):
        raise SettingError("no such thing.")

    monkeypatch.setattr(local_grid, "run", refuse)
    result = here()
    assert (result.exit_code, result.stderr) == (2, "no such thing.\n")
    monkeypatch.setattr(local_grid, "run", fail)
    result = here()
    assert (result.exit_code, result.stderr) == (1, f"it broke.\nlog: {folder / 'run.log'}\n")
    assert (folder / "run.log").read_text() == f"results: {folder}\nerror: it broke.\n"
    monkeypatch.setattr(local_grid, "run", stop)
    result = here()
    words = "stopped by SIGTERM before a round was finished."
    assert (result.exit_code, result.stderr) == (143, f"{words}\nlog: {folder / 'run.log'}\n")


def test_an_error_of_ours_shows_where_it_is(here, invoke, monkeypatch):
    def wrong(*_, **__):
        raise ValueError("a slip of ours")

    monkeypatch.setattr(running, "run_in_process", wrong)
    assert isinstance(here().exception, ValueError)
    monkeypatch.setattr("protosphere.plans.assignments.read_assignments", wrong)
    assert isinstance(invoke("-c", "rounds=1").exception, ValueError)


def test_cuda_that_is_not_there_is_refused_before_a_run_in_process(here, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(running, "run_in_process", lambda *_, **__: pytest.fail("it was started"))
    result = here("-c", 'device="cuda"')
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith('setting `device` is "cuda", but this machine has no CUDA')


def test_a_real_run_in_process(here, home):
    result = here("--clients", "3", "-c", QUICK, "--results", "out")
    assert result.exit_code == 0, result.output
    folder = Path(re.findall(r"^results: (.*)$", result.stdout, re.MULTILINE)[-1])
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


@pytest.mark.parametrize(
    ("command", "settings", "words"),
    [
        ("run", "rounds=0", "setting `rounds` is 0, but it should be greater than or equal to 1."),
        ("compare", "learning_rate=0.1", "unknown setting `learning_rate` (did you mean `learning-rate`?)"),
        ("data", 'partition="iid" alpha="x"', 'setting `alpha` is "x", but it should be a valid number'),
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
