"""Trackers: they get the figures of metrics.jsonl, once a round, and never cost a run."""

import importlib.machinery
import importlib.util
import sys
import types

import pytest

from protosphere.core.errors import SettingError
from protosphere.plans.run_config import plan
from protosphere.record.folder import RunFolder
from protosphere.server_app.live_figures import TensorBoard, scalars


def module(monkeypatch, name, **content):
    """A stand-in for a package that is not installed."""
    stand_in = types.ModuleType(name)
    stand_in.__spec__ = importlib.machinery.ModuleSpec(name, None, origin="here")
    stand_in.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, stand_in)


@pytest.fixture
def calls(monkeypatch):
    """What the stand-ins of both packages are asked, in order."""
    calls = []

    def note(name):
        return lambda *words, **options: calls.append((name, *words, options))

    def init(**options):
        calls.append(("open", options["config"]["rounds"], options["id"]))
        return types.SimpleNamespace(log=note("log"), finish=note("close"))

    online = types.SimpleNamespace(settings=types.SimpleNamespace(mode="online"))

    def login(**options):
        calls.append(("login", options["prompt"]))
        return True

    module(monkeypatch, "wandb", init=init, Settings=dict, setup=lambda: online, login=login)
    module(
        monkeypatch,
        "mlflow",
        set_tracking_uri=note("place"),
        set_experiment=note("experiment"),
        start_run=lambda run_name: calls.append(("open", run_name)),
        log_params=lambda settings: calls.append(("settings", settings["rounds"])),
        log_metrics=note("log"),
        end_run=note("close"),
    )
    return calls


def test_tensorboard_reads_what_metrics_jsonl_holds_over_a_resume(run):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = run({"tensorboard": True, "rounds": 1})
    run({"tensorboard": True, "resume": str(folder)})
    reading = events.EventAccumulator(str(folder / "tensorboard"), size_guidance={events.SCALARS: 0})
    reading.Reload()
    found = {name: [(e.step, e.value) for e in reading.Scalars(name)] for name in reading.Tags()["scalars"]}
    assert found.keys() == {name for line in RunFolder(folder).lines() for name in scalars(line)}
    for line in RunFolder(folder).lines():
        for name, value in scalars(line).items():
            # it keeps four bytes of a number
            assert (line["round"], pytest.approx(value, rel=1e-6)) in found[name]


def test_wandb_and_mlflow_get_settings_and_one_step_a_round(run, calls):
    folder = run({"wandb": True})
    # nobody is asked for a key
    assert calls[:2] == [("login", False), ("open", 2, folder.name)]
    lines = RunFolder(folder).lines()
    assert calls[2:-1] == [("log", scalars(line), {"step": line["round"]}) for line in lines]
    assert calls[-1] == ("close", {"exit_code": 0})
    calls.clear()
    folder = run({"mlflow": "http://x:1"})
    begin = [("place", "http://x:1", {}), ("experiment", "protosphere", {}), ("open", folder.name), ("settings", "2")]
    assert calls[:4] == begin
    assert [options["step"] for name, *_, options in calls[4:-1]] == [0, 1, 2]
    assert calls[-1] == ("close", "FINISHED", {})


@pytest.mark.parametrize("fails", ["open", "log", "close"])
def test_a_tracker_that_fails_costs_one_warning(run, monkeypatch, fails):
    pytest.importorskip("tensorboard")

    def broken(*arguments):
        raise RuntimeError("No space\nleft")

    monkeypatch.setattr(TensorBoard, fails, broken)
    folder = run({"tensorboard": True})
    assert len(RunFolder(folder).lines()) == 3
    words = "warning: TensorBoard gets no more metrics of this run (RuntimeError: No space left)"
    assert len([line for line in run.said if line.startswith(words)]) == 1


def test_the_command_line_refuses_it_before_flower_starts(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match="`tensorboard` is true"):
        plan(["tensorboard=true"], clients=3)
    # the SuperLink's machine is another one
    assert plan(["tensorboard=true"], clients=3, remote=True).run_config["tensorboard"] is True
