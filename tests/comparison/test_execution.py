"""Cells as processes and as tasks: how many at a time, what each of them is given, and what one that dies leaves. Ray
itself is `make ray-check`'s."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

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
from protosphere.launch.ray_cluster import Cluster, Node
from protosphere.record.folder import RunFolder
from protosphere.strategies import known_settings
from tests.waiting import comes

QUICK = {"rounds": 1, "max-samples": 200, "feature-dim": 12, "models": "tiny_perceptron", "device": "cpu", "clients": 2}
LOCAL = Entry("Local", {"strategy": "local"})
BROKEN = Entry("Broken", {"strategy": "fedproto", "learning-rate": 1e30, "max-failed-rounds": 1})


LONG = "x" * 100_000  # a pipe of Linux holds 65,536 bytes


def _send_much(sender):
    sender.send(LONG)


def _send_when_asked(sender, asked):
    asked.wait()
    sender.send("")


def cell(name="c", row="r", method="m", clients=4, **settings):
    return Trial(name, row, method, 0, known_settings() | {"clients": clients} | settings)


@pytest.fixture
def asked(tmp_path, home):
    """asked(method, keep): the comparison's folder, its cell, and what a process is told of it."""

    def make(method=LOCAL, keep=False):
        comparison = ComparisonSpec(
            "test", (method,), (Entry("Digits", {"dataset": "digits"}),), seeds=(0,), settings=QUICK
        )
        (cell,) = expand(comparison, {}, {})
        folder = ComparisonFolder.create(comparison, [cell], str(tmp_path / "results"))
        folder.of(cell).mkdir(parents=True)
        return folder, cell, Order(cell.settings, cell.clients, str(folder.of(cell)), keep_models=keep)

    return make


# --- one cell ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
def test_a_cell_leaves_its_run_in_the_comparison_and_no_model_unless_asked(asked, home, keep):
    folder, cell, order = asked(keep=keep)
    assert perform(order) == ""
    run = folder.run_of(cell)
    assert run is not None
    assert [path.name for path in (home / "clients").iterdir()] == ([run.name] if keep else [])
    said = (folder.of(cell) / OUTPUT).read_text().splitlines()
    assert said[0] == f"on {socket.gethostname()}, process {os.getpid()}"
    assert said[1:] == (run / "run.log").read_text().splitlines()


def test_a_cell_that_fails_says_why(asked, home):
    folder, cell, order = asked(BROKEN)
    reason = perform(order)
    assert "valid replies" in reason
    assert reason in (folder.of(cell) / OUTPUT).read_text()
    assert folder.run_of(cell) is None
    assert not list((home / "clients").iterdir())


def test_a_reason_longer_than_a_pipe_holds_ends_a_trial(asked, home, monkeypatch):
    _, _, order = asked(BROKEN)
    executor = Processes([{}])
    receiver, sender = executor._context.Pipe(duplex=False)
    process = executor._context.Process(target=_send_much, args=(sender,))
    process.start()
    sender.close()
    deadline = time.monotonic() + 60
    while (reason := executor.failure((process, receiver, order))) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert reason == LONG


def test_a_trial_that_ends_while_it_is_looked_at_has_not_failed(asked):
    _, _, order = asked()
    executor = Processes([{}])
    receiver, sender = executor._context.Pipe(duplex=False)
    due = executor._context.Event()
    process = executor._context.Process(target=_send_when_asked, args=(sender, due))
    process.start()
    sender.close()

    class Receiver:
        """The pipe, whose writer sends its answer and ends as soon as it was looked at."""

        def poll(self):
            is_there = receiver.poll()
            due.set()
            process.join(60)
            return is_there

        def recv(self):
            return receiver.recv()

    answers = [executor.failure((process, Receiver(), order)) for _ in range(2)]
    assert answers == [None, ""]


def test_a_node_without_the_comparison_s_folder_refuses_by_its_name_and_leaves_nothing(asked):
    folder, _, order = asked()
    shutil.rmtree(folder.path)
    reason = perform(order)
    assert order.place in reason
    assert socket.gethostname() in reason
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


def text_of(run):
    lines = RunFolder(run).lines()
    return json.dumps([{k: v for k, v in line.items() if k in ("round", "evaluation", "bytes")} for line in lines])


@pytest.mark.integration
def test_a_cell_after_one_that_was_killed_or_broke_is_that_of_a_process_of_its_own(tmp_path, home):
    (tmp_path / "deadly.py").write_text(DEADLY)
    method = Entry("deadly", {"strategy": f"{tmp_path}/deadly.py"})
    comparison = ComparisonSpec(
        "deadly", (method,), (Entry("Digits", {"dataset": "digits"}),), seeds=(1, 2, 3, 4), settings=QUICK
    )
    made = expand(comparison, {}, {})
    folder = ComparisonFolder.create(comparison, made, str(tmp_path / "results"))
    ended = run_trials(folder, made, Processes([{}]), lambda progress: None)
    reasons = [each.reason for each in ended]
    assert "exit code -9" in reasons[0]
    assert "broken on purpose" in reasons[1] + (folder.of(made[1]) / OUTPUT).read_text()
    assert reasons[2:] == ["", ""]
    assert not list((home / "clients").iterdir())
    config = made[3].settings
    here = run_in_process(config | {"results-dir": str(tmp_path)}, clients=config["clients"], show=lambda line: None)
    assert text_of(here) == text_of(folder.run_of(made[3]))


SCRIPT = """
import protosphere

print("this script began")
found = protosphere.compare(["local"], ["spiral"], seeds=[0], clients=2, rounds={rounds}, models="tiny_perceptron",
                            spiral_points=60, quiet=True, results_dir={results!r})
print(found.table()["seeds"].tolist())
"""


@pytest.mark.integration
def test_a_script_without_a_guard_for_its_main_module_compares_once(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(rounds=1, results=str(tmp_path / "results")))
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=300)
    assert done.stdout == "this script began\n[1]\n", done.stderr


@pytest.mark.integration
def test_of_a_comparison_that_is_killed_no_process_is_left(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(rounds=5000, results=str(tmp_path / "results")))
    script = subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.DEVNULL)
    try:
        assert comes(lambda: any(tmp_path.glob("results/*/trials/*/*/metrics.jsonl")), 120)
        begun = psutil.Process(script.pid).children(recursive=True)
        assert begun
        script.send_signal(signal.SIGKILL)
        assert comes(lambda: not any(process.is_running() for process in begun), 30)
    finally:
        script.kill()


def test_what_is_loaded_before_a_fork_has_neither_threads_of_python_s_nor_a_gpu():
    code = (
        "import threading, torch; import protosphere.comparison.preloaded; "
        "print(threading.active_count(), torch.cuda.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1", "False"]


# --- how many at a time -----------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """machine(cores, gpus, visible): what this machine seems to have."""

    def have(cores, gpus=0, visible=None):
        monkeypatch.setattr("os.cpu_count", lambda: cores)
        monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return have


@pytest.mark.parametrize(
    ("cores", "number", "jobs", "workers", "at_a_time"),
    [
        (8, 20, None, 1, 8),
        (8, 3, None, 1, 3),  # no more than there are cells
        (2, 9, 4, 1, 4),  # more than there are cores: as asked
        (16, 20, None, 4, 4),
        (2, 9, None, 4, 1),
        (8, 0, None, 1, 1),  # nothing left to run
    ],
)
def test_cells_at_a_time_are_as_many_as_the_cores_hold(machine, cores, number, jobs, workers, at_a_time):
    machine(cores)
    made = [cell(str(index), device="cpu") for index in range(number)]
    assert environments(made, jobs, workers) == [{}] * at_a_time


@pytest.mark.parametrize(
    ("gpus", "visible", "jobs", "places"),
    [(1, None, None, "0"), (2, None, None, "01"), (2, None, 3, "010"), (2, "5,7", None, "57"), (0, "", 1, "")],
)
def test_each_place_has_a_gpu_where_there_are_any(machine, gpus, visible, jobs, places):
    machine(16, gpus, visible)
    given = environments([cell(str(index)) for index in range(6)], jobs)
    assert "".join(place.get("CUDA_VISIBLE_DEVICES", "") for place in given) == places


@pytest.mark.parametrize(
    ("nodes", "device", "jobs", "expected"),
    [
        (((4, 0), (2, 0)), "auto", None, (6, 0)),
        (((4, 0), (2, 0)), "auto", 2, (2, 0)),
        (((4, 0), (2, 0)), "auto", 50, (6, 0)),
        (((8, 2), (2, 0)), "auto", None, (2, 1)),
        (((8, 2), (2, 0)), "cpu", None, (9, 0)),  # no more than there are cells
    ],
)
def test_cells_of_a_cluster_are_as_many_as_its_nodes_hold(machine, nodes, device, jobs, expected):
    """Whatever this machine has."""
    machine(1)
    cluster = Cluster("head:1", [Node(*node) for node in nodes])
    tasks = Tasks([cell(str(index), device=device) for index in range(9)], cluster, jobs)
    assert (tasks.jobs, tasks._resources["num_gpus"]) == expected


def test_no_cell_at_a_time_and_no_node_that_holds_one_are_refused():
    cluster = Cluster("head:1", [Node(4, 0), Node(2, 1)])
    for jobs_of in (lambda jobs: environments([cell()], jobs), lambda jobs: Tasks([cell()], cluster, jobs)):
        with pytest.raises(SettingError, match="the number of jobs is 0"):
            jobs_of(0)
    with pytest.raises(SettingError, match=r"no node of Ray at head:1 .* has"):
        Tasks([cell(threads=5)], cluster, None)
