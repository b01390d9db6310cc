"""Features hang on the rounds: each can be taken out of the registry, and the rounds name none of them."""

import ast
from copy import deepcopy
from pathlib import Path

import pytest

from protosphere.client_app.features import FEATURES as CLIENT_FEATURES
from protosphere.core.errors import SettingError
from protosphere.server_app.features import FEATURES
from protosphere.server_app.roster import RosterError
from protosphere.strategies import read_settings

ROOT = Path(__file__).resolve().parents[2]
CORE = ("rounds", "exchange", "feature", "checkpoint", "guards", "roster", "gathering", "queries", "opening", "app")
CLIENT_CORES = {
    "client_app": ("app", "client", "evaluate", "site", "store", "train"),
    "protosphere/wire": ("messages", "payloads", "codec", "specs", "checks"),
    "protosphere/record": ("replies", "snapshots", "folder"),
}
# of each feature, words by which code would name it
WORDS = {
    "membership": ("membership",),
    "encoder": ("encoder", "encoded"),
    "collapse": ("collapse", "first_norm"),
    "privacy": ("privacy_scale", "encoder_means", "guard", "ledger", "unprotected", "release"),
    "download-once": ("downloadonce", "download_once", "holding"),
    "ensemble": ("ensemble", "probabilities"),
    "confusion": ("confusion",),
    "roc auc": ("roc_auc", "rocauc"),
    "early stopping": ("stop_patience", "stopping"),
    "snapshots": ("snapshot",),
    "live figures": ("live", "sink", "tensorboard", "wandb", "mlflow"),
}
FEW = {"rounds": 2, "max-samples": 160}
ALL = FEW | {
    "strategy": "fedproto",
    "ensemble-every": 1,
    "confusion": "always",
    "roc-auc": True,
    "stop-patience": 5,
    "tensorboard": True,
}
PRIVATE = FEW | {"strategy": "fedproto", "privacy": "release", "encoder": "handcrafted"}
ONCE = FEW | {"strategy": "protosphere"}
OPEN = FEW | {"strategy": "fedproto", "min-clients": 4}
LEAVES = {
    "ensemble": "ensemble",
    "confusion": "confusion",
    "roc auc": "roc_auc",
    "membership": "members",
}  # what stands in a line because of the feature


WHOLE = {}  # lines of the runs with all their features, by their settings


@pytest.fixture
def lines_of(run, metrics):
    def read(settings):
        lines = metrics(run(settings))
        return [{name: value for name, value in line.items() if name not in ("time", "bytes")} for line in lines]

    return read


@pytest.fixture
def whole(lines_of):
    def once(settings):
        key = str(settings)
        if key not in WHOLE:
            WHOLE[key] = lines_of(settings)
        return deepcopy(WHOLE[key])

    return once


PAIRS = [
    pytest.param(name, settings, id=f"{name}-{settings['strategy']}-{settings.get('privacy', 'none')}")
    for name in FEATURES
    for settings in (ALL, ONCE, *({"privacy": [PRIVATE], "membership": [OPEN]}.get(name, [])))
    if FEATURES[name].applies(read_settings(settings))
]


@pytest.mark.parametrize(("name", "settings"), PAIRS)
def test_a_feature_that_is_taken_out_takes_nothing_else_with_it(lines_of, whole, monkeypatch, name, settings):
    before = whole(settings)
    monkeypatch.delitem(FEATURES, name)
    lines = lines_of(settings)
    assert [line["round"] for line in lines] == [1, 2, 3]
    if name == "privacy":
        # noise is the operating system's: no two runs are alike
        return
    for line in before:
        line.pop(LEAVES.get(name, ""), None)
    assert lines == before


@pytest.mark.parametrize("name", ["ensemble", "confusion", "roc auc"])
def test_a_clients_feature_that_is_taken_out_takes_nothing_else_with_it(lines_of, whole, monkeypatch, name):
    before = whole(ALL)
    monkeypatch.delitem(CLIENT_FEATURES, name)
    lines = lines_of(ALL)
    for line in before:
        line.pop(LEAVES[name], None)
        assert not line.pop("problems")
    # the server goes on asking, and is told
    told = [problem for line in lines for problem in line.pop("problems").values()]
    assert told
    assert all("which this run does not have by its settings" in problem for problem in told)
    assert lines == before


def test_clients_features_that_a_run_does_not_use_can_be_taken_out(lines_of, whole, monkeypatch):
    before = whole(ALL)
    for name in ("encoder", "privacy"):
        monkeypatch.delitem(CLIENT_FEATURES, name)
    assert lines_of(ALL) == before


@pytest.mark.parametrize("settings", [ONCE, PRIVATE])
def test_without_the_encoder_a_method_that_needs_it_trains_and_sends_nothing(run, metrics, monkeypatch, settings):
    monkeypatch.delitem(CLIENT_FEATURES, "encoder")
    lines = metrics(run(settings))
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert all(line["bytes"]["payload_up"] == 0 for line in lines)
    assert len(lines[0]["problems"]) == 4
    assert all("the upload is missing" in problem for problem in lines[0]["problems"].values())


def test_clients_without_privacy_are_refused_before_round_1(run, monkeypatch):
    monkeypatch.delitem(CLIENT_FEATURES, "privacy")
    with pytest.raises((RosterError, SettingError)):
        run(PRIVATE)


@pytest.mark.parametrize(
    ("room", "files", "name"),
    [("server_app", CORE, name) for name in FEATURES]
    + [("client_app", CLIENT_CORES["client_app"], name) for name in CLIENT_FEATURES]
    + [(room, files, name) for room, files in CLIENT_CORES.items() for name in ("ensemble", "confusion")],
)
def test_the_core_does_not_name_it(room, files, name):
    for file in files:
        nodes = list(ast.walk(ast.parse((ROOT / room / f"{file}.py").read_text())))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not [used for used in names if any(word in used.lower() for word in WORDS[name])], (file, name)


def test_every_feature_has_words_here_and_is_taken_out():
    assert WORDS.keys() == FEATURES.keys() | CLIENT_FEATURES.keys()
    assert FEATURES.keys() == {pair.values[0] for pair in PAIRS}
