"""Live figures: the same as in metrics.jsonl, once each, and never at the run's cost."""

import importlib.machinery
import importlib.util
import json
import logging
import sys
import threading
import types
from pathlib import Path

import pytest

from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings, check, shown
from protosphere.plans.run_config import plan
from protosphere.record.folder import RunFolder
from protosphere.server_app import live_figures as module
from protosphere.server_app.callbacks import RunView
from protosphere.server_app.live_figures import SINKS, LiveFigures, figures_of, refuse_missing_packages
from protosphere.strategies import known_settings

LINE = {
    "round": 3,
    "training": {"asked": 4, "loss": {"pull": 0.5}, "gradient_ratio": None},
    "server": {"alignment": "riesz", "converged": True, "separation": {"distance_min": 1.25}},
    "bytes": {"payload_up": 640},
    "problems": {"2": "late"},
    "clients": {"0": {"training": {"rows": 7}}},
    "evaluation": {
        "rules": {"classifier": {"test": {"mean": 0.75}}},
        "domains": {"a b/ü": {"classifier": {"test": {"mean": 0.5}}}},
    },
    "ensemble": {"accuracy": 0.9},
    "time": {"round": 2.5, "server": 0.5, "train": {"0": 1.0}},
}


def line_of(number):
    """The line of a round as the server appends it."""
    line = LINE | {"round": number}
    del line["ensemble"]
    return line


def live(settings, folder):
    """The callback of a run, begun."""
    callback = LiveFigures()
    callback.on_start(RunView(settings, "classifier", folder, {}))
    return callback


@pytest.fixture
def told():
    """told(settings, rounds, folder to resume): the folder of a run that ended after so many rounds, each line told."""

    def tell(settings, rounds, folder=None):
        config = known_settings() | settings | {"rounds": rounds}
        shared = check(Settings, settings | {"rounds": rounds})
        folder = RunFolder.create(shared, config) if folder is None else RunFolder(folder.path)
        last = len(folder.lines()) - 1
        callback = live(shared, folder)
        for number in range(last + 1, rounds + 1):
            folder.append(line_of(number))
            callback.on_round(line_of(number))
        callback.on_end(True)
        return folder

    return tell


@pytest.fixture
def recorded(monkeypatch):
    """A stand-in for TensorBoard that keeps what it is told: `opened`, `written`, `closed`."""

    class Recorded:
        opened, written, closed = [], [], []

        def __init__(self, folder, last_round, place):
            self.opened.append((folder.path, last_round, place))

        def write(self, number, values):
            self.written.append((number, dict(values)))

        def close(self, completed):
            self.closed.append(completed)

    monkeypatch.setitem(SINKS, "tensorboard", Recorded)
    return Recorded


@pytest.mark.parametrize("sink", ["tensorboard", "wandb"])
def test_a_link_in_the_place_of_a_sinks_folder_leads_to_no_files_of_its_readers(told, wandb, caplog, tmp_path, sink):
    if sink == "tensorboard":
        pytest.importorskip("tensorboard")
    folder = told({}, 1)
    (tmp_path / "events.out.tfevents.mine").write_text("x")
    before = set(tmp_path.iterdir())
    (folder.path / sink).symlink_to(tmp_path)
    with caplog.at_level(logging.WARNING, "protosphere"):
        told({sink: True}, 2, folder)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert f"{sink} is a link to elsewhere; take it away" in warning
    assert (set(tmp_path.iterdir()), wandb.began) == (before, [])


def events(folder):
    """name -> [(step, value)] as TensorBoard itself reads it."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = reading.EventAccumulator(str(folder / "tensorboard"), size_guidance={reading.SCALARS: 0})
    accumulator.Reload()
    return {
        name: [(event.step, event.value) for event in accumulator.Scalars(name)]
        for name in accumulator.Tags()["scalars"]
    }


def test_a_line_is_flattened_by_group():
    """Of the line of untrained models only accuracies."""
    evaluation = {"evaluation/classifier/test/mean": 0.75, "evaluation/domains/a_b_ü/classifier/test/mean": 0.5}
    evaluation["ensemble/accuracy"] = 0.9
    server = {"server/separation/distance_min": 1.25, "time/round": 2.5, "time/server": 0.5}
    training = {"training/asked": 4, "training/loss/pull": 0.5, "bytes/payload_up": 640, "problems/clients": 1}
    assert figures_of(LINE) == evaluation | training | server
    assert figures_of(LINE | {"round": 0}) == evaluation


def test_tensorboard_reads_what_metrics_jsonl_holds_and_changes_no_figure(run, metrics):
    folder = run({"tensorboard": True})
    assert metrics(folder) == metrics(run())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = events(folder)
    rule = "local-prototypes"
    held = {
        f"evaluation/{rule}/test/worst": [line["evaluation"]["rules"][rule]["test"]["worst"] for line in lines],
        "bytes/wire_up": [line["bytes"]["wire_up"] for line in lines[1:]],
        "training/prototype_norm": [line["training"]["prototype_norm"] for line in lines[1:]],
        "time/round": [line["time"]["round"] for line in lines[1:]],
    }
    for name, values in held.items():
        steps, read = zip(*found[name], strict=True)
        assert steps == ((0, 1, 2) if len(values) == 3 else (1, 2))
        # it keeps four bytes of a number
        assert read == pytest.approx(values, rel=1e-6)


def test_a_resumed_run_has_every_round_once(run, cut, home):
    settings = {"tensorboard": True, "rounds": 3}
    whole = events(run(settings))
    cut(settings, "_round", lambda self, grid, server_round, *rest: server_round == 3)
    (folder,) = (path for path in (home / "results").iterdir() if not (path / "summary.json").exists())
    # as if a later process had been cut between its line and its checkpoint
    (folder / "metrics.jsonl").open("a").write(json.dumps(LINE | {"round": 3}) + "\n")
    run(settings | {"resume": str(folder)})
    resumed = events(folder)
    still = {name for name in whole if not name.startswith("time/")}
    assert {name: resumed[name] for name in still} == {name: whole[name] for name in still}
    assert resumed.keys() == whole.keys()
    assert [step for step, _ in resumed["time/round"]] == [1, 2, 3]


def test_turned_on_for_a_resumed_run_it_has_the_rounds_before(told, recorded):
    folder = told({}, 1)
    told({"tensorboard": True}, 2, folder)
    assert [number for number, _ in recorded.written] == [0, 1, 2]
    assert recorded.opened == [(folder.path, 1, True)]
    assert recorded.closed == [True]


@pytest.mark.parametrize("fails", ["__init__", "write", "close", "start"])
def test_a_sink_that_fails_costs_one_warning(told, recorded, monkeypatch, caplog, fails):
    def broken(*arguments, **options):
        raise RuntimeError("No space\nleft")

    monkeypatch.setattr(threading.Thread if fails == "start" else recorded, fails, broken)
    with caplog.at_level(logging.WARNING, "protosphere"):
        folder = told({"tensorboard": True}, 2)
    assert len(folder.lines()) == 3
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith("warning: TensorBoard ")
    assert "No space" in warning
    assert len(recorded.opened) == (fails in ("write", "close"))


def test_a_sink_that_never_answers_does_not_keep_the_run(told, recorded, monkeypatch, caplog):
    released = threading.Event()
    monkeypatch.setattr(recorded, "write", lambda *arguments: released.wait(60))
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    try:
        with caplog.at_level(logging.WARNING, "protosphere"):
            assert len(told({"tensorboard": True}, 2).lines()) == 3
    finally:
        released.set()
    assert "within 0.01 s" in caplog.text


def test_a_run_that_fails_is_closed_as_one(told, recorded):
    folder = told({}, 1)

    callback = live(check(Settings, {"tensorboard": True}), folder)
    callback.on_round(line_of(2))
    callback.on_end(False)
    assert recorded.closed == [False]


@pytest.mark.parametrize("settings", [{"tensorboard": True}, {"wandb": True}, {"mlflow": "http://x:1"}])
def test_without_its_package_a_run_is_refused_before_it_starts(run, home, monkeypatch, tmp_path, settings):
    # a folder of that name, as these programs leave, is no package
    ((name, value),) = settings.items()
    (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(SettingError) as error:
        run(settings)
    assert f"`{name}` is {shown(value)}" in str(error.value)
    assert f"pip install 'protosphere[{name}]'" in str(error.value)
    assert not (home / "results").exists()


def test_the_command_line_refuses_it_before_flower_starts(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match="`tensorboard` is true"):
        plan(["tensorboard=true"], clients=3)
    # the SuperLink's machine is another one
    assert plan(["tensorboard=true"], clients=3, remote=True).run_config["tensorboard"] is True
    # nor is anything asked for without a sink
    monkeypatch.setattr(importlib.util, "find_spec", pytest.fail)
    refuse_missing_packages(Settings())


# --- Weights & Biases and MLflow, of which stand-ins keep what they are asked ----------------------------------


def stand_in(monkeypatch, name, **content):
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, origin="here")
    made.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.fixture
def wandb(monkeypatch):
    """As Weights & Biases: online a run of an id goes on at the step after its last, offline at 0."""
    told = types.SimpleNamespace(began=[], logged={}, ended=[], mode="online", key=True)

    class Run:
        offline = False

        def __init__(self):
            self.step = 0 if self.offline else max(told.logged, default=-1) + 1

        def define_metric(self, name, step_metric):
            assert (name, step_metric) == ("*", "round")

        def log(self, values, step):
            assert step >= max(told.logged, default=0), "its steps must not fall"
            told.logged.setdefault(step, {}).update(values)

        def finish(self, exit_code):
            told.ended.append(exit_code)

    def init(**arguments):
        told.began.append(arguments)
        Path(arguments["dir"], "wandb").mkdir(exist_ok=True)
        return Run()

    def login(prompt, verify):
        assert (prompt, verify) == (False, False)
        return told.key

    def setup():
        return types.SimpleNamespace(settings=types.SimpleNamespace(mode=told.mode))

    told.run = Run
    stand_in(monkeypatch, "wandb", init=init, Settings=dict, setup=setup, login=login)
    return told


def test_wandb_gets_every_round_once_over_a_resume(told, wandb):
    folder = told({"wandb": True}, 2)
    assert sorted(wandb.logged) == [0, 1, 2]
    first = dict(wandb.logged[2])
    told({"wandb": True}, 3, folder)
    assert sorted(wandb.logged) == [0, 1, 2, 3]
    assert wandb.logged[2] == first
    assert [wandb.logged[step]["round"] for step in range(4)] == [0, 1, 2, 3]
    assert {"evaluation/classifier/test/mean", "bytes/payload_up"} <= wandb.logged[3].keys()
    assert wandb.ended == [0, 0]
    for began in wandb.began:
        assert (began["project"], began["id"], began["resume"]) == ("protosphere", folder.name, "allow")
        assert began["config"]["strategy"] == "protosphere"
        assert (began["dir"], began["settings"]["console"]) == (str(folder.path), "off")


def test_wandb_without_a_key_asks_nobody(told, wandb, caplog):
    wandb.key = False
    with caplog.at_level(logging.WARNING, "protosphere"):
        told({"wandb": True}, 1)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "PermissionError" in warning
    assert not wandb.began


def test_offline_wandb_gets_the_new_rounds_of_a_resumed_run(told, wandb, monkeypatch):
    folder = told({"wandb": True}, 2)
    wandb.logged.clear()
    wandb.mode, wandb.key = "offline", False
    monkeypatch.setattr(wandb.run, "offline", True)
    told({"wandb": True}, 3, folder)
    assert sorted(wandb.logged) == [3]


class Store:
    """What an MLflow server keeps, for one run."""

    def __init__(self):
        self.made, self.uris, self.parameters, self.metrics, self.status = [], [], {}, [], []

    def client(self, tracking_uri):
        self.uris.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id="7") if self.made else None

    def create_experiment(self, name):
        assert name == "protosphere"
        return "7"

    def search_runs(self, experiment_ids, filter_string, max_results):
        assert experiment_ids == ["7"]
        found = [run for run in self.made if filter_string == f"tags.`protosphere.run` = '{run[1]}'"]
        return [types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))] if found else []

    def create_run(self, experiment_id, tags, run_name):
        self.made.append((experiment_id, tags["protosphere.run"], run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))

    def update_run(self, run_id, status):
        self.status.append(status)

    def log_batch(self, run_id, metrics=(), params=()):
        assert run_id == "r"
        assert len(params) <= 100
        assert len(metrics) <= 1000
        self.parameters |= dict(params)
        self.metrics += metrics

    def get_metric_history(self, run_id, key):
        return [types.SimpleNamespace(step=step) for name, _, _, step in self.metrics if name == key]

    def set_terminated(self, run_id, status):
        self.status.append(status)


@pytest.mark.parametrize(("place", "uri"), [(True, None), ("http://x:1", "http://x:1")])
def test_mlflow_gets_every_round_once_over_a_resume(told, monkeypatch, place, uri):
    store = Store()
    entities = {"Metric": lambda *values: values, "Param": lambda *values: values}
    stand_in(monkeypatch, "mlflow", MlflowClient=store.client)
    stand_in(monkeypatch, "mlflow.entities", **entities)
    folder = told({"mlflow": place}, 2)
    told({"mlflow": place}, 3, folder)
    assert store.made == [("7", folder.name, folder.name)]
    assert store.uris == [uri, uri]
    steps = {name: [step for each, _, _, step in store.metrics if each == name] for name, *_ in store.metrics}
    assert steps["evaluation/classifier/test/mean"] == [0, 1, 2, 3]
    assert steps["bytes/payload_up"] == [1, 2, 3]
    assert store.parameters["protonorm.gamma"] == "10.0"
    assert store.status == ["FINISHED", "RUNNING", "FINISHED"]


def test_two_domains_that_a_sink_would_write_alike_keep_a_figure_each():
    def rules(share):
        return {"classifier": {"test": {"mean": share}}}

    domains = {"lung a": rules(0.25), "lung_a": rules(0.5), "lung?a": rules(0.75)}
    line = {"round": 0, "evaluation": {"rules": {}, "domains": domains}}
    evaluation = figures_of(line)
    assert sorted(evaluation.values()) == [0.25, 0.5, 0.75]
    assert evaluation["evaluation/domains/lung_a/classifier/test/mean"] == 0.5
