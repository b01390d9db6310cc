"""Trials in processes and as tasks: how many at a time, and what one that dies leaves. `make ray-check` tests Ray."""

import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from protosphere.comparison.execution import (
    OUTPUT,
    Order,
    Processes,
    Tasks,
    environments,
    perform,
    run_trials,
)
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.spec import ComparisonSpec, Entry
from protosphere.comparison.trials import Trial, expand
from protosphere.core.errors import SettingError
from protosphere.launch.grid import run_in_process
from protosphere.launch.ray_cluster import Node
from protosphere.record.folder import RunFolder
from protosphere.strategies import known_settings
from tests.waiting import comes

QUICK = {"rounds": 1, "max-samples": 200, "feature-dim": 12, "models": "tiny_perceptron", "device": "cpu", "clients": 2}


@pytest.fixture
def ordered(tmp_path, home):
    """A comparison's folder, its trial, and the order to run it."""
    digits = Entry("Digits", {"dataset": "digits"})
    spec = ComparisonSpec("test", (Entry("Local", {"strategy": "local"}),), (digits,), seeds=(0,), settings=QUICK)
    (trial,) = expand(spec, {}, {})
    folder = ComparisonFolder.create(spec, [trial], str(tmp_path / "results"))
    folder.of(trial).mkdir(parents=True)
    return folder, trial, Order(trial.settings, str(folder.of(trial)))


# --- one trial --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_models", [False, True])
def test_a_trial_leaves_its_run_and_models_only_if_asked(ordered, home, keep_models):
    folder, trial, order = ordered
    assert perform(replace(order, keep_models=keep_models)) == ""
    run = folder.run_of(trial)
    assert run is not None
    assert [path.name for path in (home / "clients").iterdir()] == ([run.name] if keep_models else [])
    first, *lines = (folder.of(trial) / OUTPUT).read_text().splitlines()
    assert first == f"on {socket.gethostname()}, process {os.getpid()}"
    assert lines == (run / "run.log").read_text().splitlines()


def test_a_node_without_the_folder_of_the_comparison_names_itself(ordered):
    folder, _, order = ordered
    shutil.rmtree(folder.path)
    assert f"{order.place} was not found on {socket.gethostname()}" in perform(order)
    assert not folder.path.exists()


# --- processes --------------------------------------------------------------------------------------------------

# ends its process by the seed, as memory that ran out or a library would
DEADLY = """
import os, signal
from dataclasses import replace
from protosphere.strategies import fedproto


class Deadly(fedproto.METHOD.objective):
    def upload(self, state, round_number):
        if self.settings.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.settings.seed == 2:
            raise RuntimeError("broken on purpose")
        os.environ["PROTOSPHERE_HOME"] = os.path.join(os.path.dirname(__file__), "elsewhere")
        return super().upload(state, round_number)


METHOD = replace(fedproto.METHOD, objective=Deadly)
"""


@pytest.mark.integration
def test_a_trial_after_a_killed_or_failed_one_equals_a_run_alone(tmp_path, home):
    (tmp_path / "deadly.py").write_text(DEADLY)
    method = Entry("deadly", {"strategy": f"{tmp_path}/deadly.py"})
    digits = (Entry("Digits", {"dataset": "digits"}),)
    spec = ComparisonSpec("deadly", (method,), digits, seeds=(1, 2, 3, 4), settings=QUICK)
    trials = expand(spec, {}, {})
    folder = ComparisonFolder.create(spec, trials, str(tmp_path / "results"))
    lines = []
    killed, broken, *whole = run_trials(folder, trials, Processes([{}]), lines.append)
    assert lines[0].startswith("1/4 Digits | deadly | seed 1: failed: it ended with exit code -9")
    assert re.fullmatch(r"4/4 Digits \| deadly \| seed 4: done in \d+ s \| 0 s left", lines[3])
    assert "exit code -9" in killed.reason
    assert "broken on purpose" in broken.reason + (folder.of(broken.trial) / OUTPUT).read_text()
    assert [each.reason for each in whole] == ["", ""]
    assert not list((home / "clients").iterdir())
    config = trials[3].settings
    here = run_in_process(config | {"results-dir": str(tmp_path)}, clients=config["clients"], show=lambda line: None)
    alone, compared = (RunFolder(run).lines() for run in (here, folder.run_of(trials[3])))
    for name in ("evaluation", "bytes"):
        assert [line.get(name) for line in alone] == [line.get(name) for line in compared]


SCRIPT = """
import protosphere

print("this script began")
protosphere.compare(["local"], ["spiral"], seeds=[0], clients=2, rounds={rounds}, models="tiny_perceptron",
                    spiral_points=60, quiet=True, results_dir={results!r})
"""


def _answer_and_stay(sender):
    sender.send("")
    time.sleep(30)


def test_a_trial_ends_with_its_answer_even_if_its_process_lives_on(tmp_path):
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer_and_stay, args=(sender,))
    process.start()
    run = (process, receiver, Order({}, str(tmp_path)))
    try:
        assert comes(lambda: Processes([{}]).failure(run) == "")
        assert process.is_alive()
    finally:
        process.kill()


@pytest.mark.integration
def test_a_script_without_a_main_guard_compares_once_and_leaves_no_process(tmp_path):
    script, output = tmp_path / "script.py", tmp_path / "output"
    # the working directory is not where a trial imports from
    place = tmp_path / "place"
    place.mkdir()
    (place / "calendar.py").write_text("raise RuntimeError('not the module that was meant')")
    script.write_text(SCRIPT.format(rounds=5000, results=str(tmp_path / "killed")))
    with output.open("w") as stream:
        process = subprocess.Popen([sys.executable, "-u", script], stdout=stream, cwd=place)
    try:
        assert comes(lambda: any(tmp_path.glob("killed/*/trials/*/*/metrics.jsonl")))
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        # a process of a trial does not run the script again
        assert output.read_text() == "this script began\n"
        process.send_signal(signal.SIGKILL)
        assert comes(lambda: not any(each.is_running() for each in children))
    finally:
        process.kill()


# --- how many at a time -----------------------------------------------------------------------------------------


def trials_on(device, number):
    settings = known_settings() | {"clients": 4, "device": device}
    return [Trial(str(index), "r", "m", 0, settings) for index in range(number)]


@pytest.mark.parametrize(
    ("cores", "gpus", "visible", "trials", "jobs", "workers", "expected"),
    [
        (8, 0, None, 20, None, 1, [""] * 8),
        (8, 0, None, 3, None, 1, [""] * 3),  # as many as there are trials
        (2, 0, None, 9, 4, 1, [""] * 4),  # as asked
        (16, 0, None, 20, None, 4, [""] * 4),
        (16, 1, None, 6, None, 1, ["0"]),
        (16, 2, None, 6, 3, 1, ["0", "1", "0"]),
        (16, 2, "5,7", 6, None, 1, ["5", "7"]),
    ],
)
def test_trials_at_a_time_are_as_many_as_cores_or_gpus(
    monkeypatch, cores, gpus, visible, trials, jobs, workers, expected
):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    places = environments(trials_on("auto", trials), jobs, workers)
    assert [place.get("CUDA_VISIBLE_DEVICES", "") for place in places] == expected


@pytest.mark.parametrize(
    ("nodes", "device", "jobs", "expected"),
    [
        (((4, 0), (2, 0)), "auto", None, (6, 0)),
        (((4, 0), (2, 0)), "auto", 2, (2, 0)),
        (((8, 2), (2, 0)), "auto", None, (2, 1)),
        (((8, 2), (2, 0)), "cpu", None, (9, 0)),  # no more than there are trials
    ],
)
def test_trials_of_a_cluster_are_as_many_as_its_nodes_hold(nodes, device, jobs, expected):
    cluster = [Node(*node) for node in nodes]
    tasks = Tasks(trials_on(device, 9), "head:1", cluster, jobs)
    assert (tasks.jobs, tasks._resources["num_gpus"]) == expected
    with pytest.raises(SettingError, match="the number of jobs is 0"):
        Tasks(trials_on(device, 9), "head:1", cluster, 0)
