"""Flower's contract: what its users may call, and what we may call of it."""

import inspect
import json
import logging
import re
import warnings
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp.strategy import Strategy

from protosphere import strategies
from protosphere.core.errors import RunError, SettingError
from protosphere.launch.grid import LocalGrid
from protosphere.record.folder import RunFolder
from protosphere.reports.report import leave_report
from protosphere.server_app import status
from protosphere.server_app.roster import RosterError
from protosphere.server_app.strategy import PrototypeStrategy
from protosphere.strategies import METHODS, known_settings, read_settings
from protosphere.strategies.tinyproto import TinyProtoSettings
from tests.strategies.needs import ASKED
from tests.strategies.watched import start, without_time

ROOT = Path(__file__).resolve().parents[2]


def test_strategies_keep_flowers_contract():
    for name in METHODS:
        strategy = PrototypeStrategy(read_settings(ASKED[name]), None)
        assert isinstance(strategy, Strategy)
        for method in ("start", *Strategy.__abstractmethods__):
            expected = list(inspect.signature(getattr(Strategy, method)).parameters)
            assert list(inspect.signature(getattr(type(strategy), method)).parameters) == expected


def test_the_lines_of_docs_flower_md_run_in_a_server_app_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path))
    lines = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "flower.md").read_text(), re.DOTALL)[1]
    assert len([line for line in lines.splitlines() if line]) <= 10
    assert lines.count("clients=4)") == 1
    lines = lines.replace("clients=4)", 'clients=4, models="tiny_perceptron", max_samples=400)')
    own = {}
    exec(compile(lines, "docs/flower.md", "exec"), own)
    # the app's own configuration, of which clients know nothing
    config = {"num-server-rounds": 3}
    nodes = [{"partition-id": number, "num-partitions": 4} for number in range(4)]
    grid = LocalGrid(config, nodes)
    own["app"](grid, Context(1, 1, {}, RecordDict(), config))
    assert re.search(r"3: *\{ *'accuracy'", capsys.readouterr().out)
    (folder,) = (tmp_path / "results").iterdir()
    record = RunFolder(folder)
    assert record.summary()["rounds"] == 3
    assert record.settings() == known_settings() | {
        "strategy": "protonorm",
        "protonorm.gamma": 10,
        "rounds": 3,
        "dataset": "digits",
        "clients": 4,
        "models": "tiny_perceptron",
        "max-samples": 400,
    }
    # the same figures as those of a run that has its settings from its configuration
    same = start(record.settings(), clients=4)
    pairs = zip(without_time(same), without_time(folder), strict=True)
    for line, own_line in pairs:
        # the settings cross beside
        more = own_line.pop("bytes")["wire_down"] - line.pop("bytes")["wire_down"]
        assert (own_line, more > 0) == (line, line["round"] > 0)


@pytest.mark.usefixtures("undrawn")
def test_a_strategy_holds_the_folder_of_its_run_and_starts_once(home, monkeypatch):
    monkeypatch.setattr(status, "leave_report", leave_report)
    states = []

    def look(line):
        (folder,) = (home / "results").iterdir()
        states.append(RunFolder(folder).status()["state"])
        with pytest.raises(SettingError, match="a run that has not ended"), RunFolder(folder).lock():
            pass
        return True

    nodes = [{"partition-id": number, "num-partitions": 3} for number in range(3)]
    small = {"models": "tiny_perceptron", "max_samples": 400, "rounds": 1, "clients": 3}
    made = strategies.FedProto(look, **small)
    made.start(LocalGrid({}, nodes))
    assert states == ["running"] * 2
    assert made.folder.status()["state"] == "completed"
    assert (made.folder.path / "report.html").exists()
    with pytest.raises(RunError, match="started before"):
        made.start(LocalGrid({}, nodes))
    with pytest.raises(RosterError):
        strategies.FedProto(**small, feature_dim=16, start_timeout=0.1).start(LocalGrid({}, nodes[:1]))
    assert list((home / "results").iterdir()) == [made.folder.path]


def test_a_strategy_takes_settings_by_keyword(home):
    made = strategies.TinyProtoFT(rounds=2, local_epochs=3, sparsity_dim=10, **{"tinyproto.mu": 0.5})
    assert (made.settings.rounds, made.settings.local_epochs) == (2, 3)
    own = made.run.options[TinyProtoSettings]
    assert (own.sparsity_dim, own.mu) == (10, 0.5)
    for settings, words in (
        ({"nonesuch": 1}, "unknown setting `nonesuch`"),
        ({"strategy": "local"}, "the strategy of `FedProto` is `fedproto`"),
        ({"protonorm.gamma": 3.0}, "`fedproto` does not read it"),
        ({"dataset": "./photos"}, "photos"),
    ):
        with pytest.raises(SettingError, match=words):
            strategies.FedProto(**settings)
    assert not (home / "results").exists()
    with pytest.raises(AttributeError, match="NoneSuch"):
        strategies.NoneSuch  # noqa: B018


def test_rounds_and_timeout_can_be_given_as_flower_users_do(federation, clock):
    def silent(partition, round_number, kind, report):
        return None if partition == 0 and kind == "train" else report

    group = federation(2, tamper=silent)
    strategy = group.start({"rounds": 9}, num_rounds=2, timeout=7.0)
    assert [line["round"] for line in strategy.folder.lines()] == [0, 1, 2]
    assert clock.now == pytest.approx(14, abs=1)
    assert {message.metadata.ttl for message in group.grid.sent if message.metadata.message_type == "train"} == {67.0}
    assert json.loads((strategy.folder.path / "summary.json").read_text())["settings"]["rounds"] == 2


def test_arguments_without_a_meaning_are_refused(federation):
    group = federation(2)
    weights, config = ArrayRecord({"w": Array(torch.zeros(2).numpy())}), ConfigRecord({"lr": 0.1})
    without = {"initial_arrays": weights, "train_config": config, "evaluate_config": config, "evaluate_fn": print}
    for name, value in without.items():
        with pytest.raises(ValueError, match="no global weights"):
            group.start(**{name: value})
    assert not group.asked


def test_no_deprecated_call_of_flower(run):
    """A whole run, both apps, with warnings as errors and an ear on Flower's own log, where it deprecates."""
    heard = []
    ear = logging.Handler()
    ear.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("flwr")
    logger.addHandler(ear)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run({"rounds": 2, "fraction-train": 0.5})
    finally:
        logger.removeHandler(ear)
    assert not [line for line in heard if "deprecat" in line.lower() or "preview" in line.lower()]
