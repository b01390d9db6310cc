"""Runs of a comparison are forked from one process: each is as if it were the first, and none takes another with it."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from multiprocessing import Pipe

import psutil
import pytest

from protosphere.comparison import warm
from protosphere.comparison.jobs import OUTPUT
from protosphere.launch import grid as local_grid
from protosphere.launch.processes import descendants
from protosphere.record.folder import RunFolder
from tests.waiting import comes

pytestmark = pytest.mark.skipif(not warm.can_fork(), reason="forks are taken on Linux alone")

# ends its process by the seed, as memory that ran out or a library would
DEADLY = """
import os, signal
from protosphere.strategies import fedproto
from protosphere.strategies.contract import Method

LEAK = []


class Deadly(fedproto.METHOD.objective):
    def upload(self, state, round_number):
        seed = self.settings.seed
        if seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == 2:
            raise RuntimeError("broken on purpose")
        if seed == 3:
            LEAK.append(bytearray(300 << 20))
            os.environ["PROTOSPHERE_HOME"] = os.path.join(os.path.dirname(__file__), "elsewhere")
        return super().upload(state, round_number)


METHOD = Method(
    server=fedproto.METHOD.server,
    objective=Deadly,
    settings=fedproto.METHOD.settings,
    exchange=fedproto.METHOD.exchange,
    inference=fedproto.METHOD.inference,
)
"""


def compare(home, *arguments):
    """A comparison's folder and what it said."""
    command = [sys.executable, "-m", "protosphere", "compare", *arguments, "--results", str(home / "results")]
    environment = os.environ | {"PROTOSPHERE_HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    folders = list((home / "results").glob("*-compare-*"))
    assert len(folders) == 1, done.stderr
    return folders[0], done


def lines_of(folder):
    """Cell -> its run's lines, without times and names that every run has of its own."""
    return {path.parent.parent.name: text_of(path.parent) for path in folder.glob("cells/*/*/summary.json")}


def text_of(run):
    lines = RunFolder(run).lines()
    return json.dumps([{k: v for k, v in line.items() if k in ("round", "evaluation", "bytes")} for line in lines])


def test_runs_after_one_that_was_killed_broke_or_leaked_are_those_of_processes_of_their_own(tmp_path):
    (tmp_path / "deadly.py").write_text(DEADLY)
    method = f'{{ label = "deadly", strategy = "{tmp_path}/deadly.py" }}'
    (tmp_path / "deadly.toml").write_text(
        f'title = "deadly"\nseeds = [1, 2, 3, 4]\nmethods = [{method}]\n'
        '[settings]\nclients = 2\nrounds = 2\nmax-samples = 200\nmodels = "tiny_perceptron"\n'
        '[[datasets]]\ndataset = "digits"\n'
    )
    folder, done = compare(tmp_path / "warm", str(tmp_path / "deadly.toml"), "--jobs", "1")
    assert done.returncode == 1
    assert "exit code -9" in done.stdout + done.stderr
    assert "broken on purpose" in (
        done.stdout + done.stderr + "".join(p.read_text() for p in folder.glob(f"cells/*/{OUTPUT}"))
    )
    forked = lines_of(folder)
    assert len(forked) == 2
    # the last, after all of these, beside a run of this process
    (cell,) = [name for name in forked if name.endswith("seed4")]
    config = tomllib.loads((folder / "cells" / cell / "settings.toml").read_text())
    here = local_grid.run_in_process(config, clients=config["clients"], show=lambda line: None)
    assert text_of(here) == forked[cell]


@pytest.fixture
def template(tmp_path):
    """A template, and how one of its runs is begun."""
    made = warm.Template()

    def begin(*arguments):
        environment = os.environ | {"PROTOSPHERE_HOME": str(tmp_path)}
        return made.start(arguments, tmp_path, environment, tmp_path / "output")

    yield made, begin
    made.close()


def test_a_run_says_what_it_says_with_a_code_of_its_own_and_a_lost_template_takes_its_runs_along(template, tmp_path):
    made, begin = template
    child = begin("run", "-c", "rounds=none")
    child.wait(60)
    assert child.returncode == 2
    assert "rounds" in (tmp_path / "output").read_text()
    child = begin("methods", "--search", "protonorm")
    child.wait(60)
    assert child.returncode == 0
    assert "protonorm" in (tmp_path / "output").read_text()

    child = begin("run", "-c", "rounds=1000")
    assert child.poll() is None
    parent = psutil.Process(child.pid).ppid()
    assert descendants(made._process.pid).keys() >= {child.pid, parent}
    os.kill(parent, signal.SIGKILL)
    child.wait(30)
    assert child.returncode == -signal.SIGKILL
    assert comes(lambda: child.pid not in descendants(made._process.pid))
    # the next begins as a process of its own
    assert begin("methods") is None


def test_a_run_whose_start_was_interrupted_is_known_and_its_end_takes_nobody_along(template, monkeypatch):
    made, begin = template
    other = begin("run", "-c", "rounds=1000")
    parent = psutil.Process(other.pid).ppid()

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(made, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            begin("run", "-c", "rounds=1000")
    unheard = set()
    deadline = time.monotonic() + 30
    while not unheard and time.monotonic() < deadline:
        other.wait(0.1)
        unheard = {child.pid for child in psutil.Process(parent).children()} - {other.pid}
    os.kill(unheard.pop(), signal.SIGKILL)
    other.wait(2.0)
    assert other.returncode is None
    other.terminate()
    other.wait(30)
    assert other.returncode is not None


def test_a_template_that_is_not_needed_any_more_ends_while_it_still_loads(tmp_path):
    made = warm.Template()
    assert comes(lambda: descendants(made._process.pid))
    made.close()
    assert made._process.returncode == 128 + signal.SIGTERM


def test_a_template_whose_comparison_was_killed_after_an_order_ends_without_a_word(tmp_path):
    mine, its = Pipe()
    command = [sys.executable, "-m", "protosphere.comparison.warm", str(its.fileno())]
    template = subprocess.Popen(command, pass_fds=(its.fileno(),), stderr=subprocess.PIPE, text=True)
    its.close()
    order = {"arguments": ["methods"], "cwd": "/", "env": dict(os.environ), "output": str(tmp_path / "output")}
    mine.send(order)
    mine.close()
    _, said = template.communicate(timeout=120)
    assert (said, template.returncode) == ("", 0)


def test_it_has_neither_threads_of_python_s_nor_a_gpu_before_a_run_begins():
    code = (
        "import threading, torch; from protosphere.comparison.warm import load; load(); "
        "print(threading.active_count(), torch.cuda.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1", "False"]
