"""The ServerApp: what it refuses before anything is written, and how it speaks."""

import json
import logging

import pytest
from flwr.app import Context, RecordDict

from protosphere.core.errors import SettingError
from protosphere.core.flower import SERVER_NODE
from protosphere.launch.grid import LocalGrid, run_in_process
from protosphere.record.folder import RunFolder, find_run
from protosphere.server_app.app import PREFIX, PREFIX_OF_ERRORS, app, said
from protosphere.server_app.roster import RosterError
from protosphere.strategies import known_settings

log = logging.getLogger("protosphere")


def start(settings, clients=3, of=None):
    """The app as Flower calls it: with every setting fused in."""
    config = known_settings() | {"device": "cpu", "max-samples": 300, "feature-dim": 12, "models": "tiny_perceptron"}
    config |= {"rounds": 1, "strategy": "protonorm"} | settings
    nodes = [{"partition-id": p, "num-partitions": of or clients} for p in range(clients)]
    grid = LocalGrid(config, nodes)
    app(grid, Context(grid.run_id, SERVER_NODE, {}, RecordDict(), config))


def written(home):
    return sorted(path for path in home.rglob("*") if "cache" not in path.relative_to(home).parts)


def test_a_run_says_first_where_its_results_are_and_only_once(home, capsys):
    start({})
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(PREFIX) for line in lines)
    (folder,) = (home / "results").iterdir()
    assert [number for number, line in enumerate(lines) if "results: " in line] == [0]
    assert lines[0] == f"{PREFIX}results: {folder}"
    files = {
        "settings.json",
        "clients.parquet",
        "roster.json",
        "status.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
    }
    files |= {"prototypes.safetensors", "summary.json", ".lock"}
    assert {path.name for path in folder.iterdir()} == files
    assert json.loads((folder / "settings.json").read_text()).keys() == known_settings().keys()


class RunNotRunning(BaseException):
    """As Flower raises it in a deployment whose run was stopped."""


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, RunNotRunning])
def test_a_run_that_is_stopped_says_so(home, end):
    config = {"device": "cpu", "max-samples": 300, "feature-dim": 12, "models": "tiny_perceptron", "rounds": 3}

    def stop(line):
        if line["round"] == 1:
            raise end

    with pytest.raises(end):
        run_in_process(config, clients=2, show=lambda line: None, on_round=stop)
    (folder,) = (home / "results").iterdir()
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["round"], status["problem"]) == ("stopped", 1, "")


# what is wrong with a setting is in tests/core/test_settings.py
MISTAKES = [
    ({"strategy": "fedprotto"}, "fedproto"),
    ({"no-such-setting": 3}, "`no-such-setting`"),
    ({"dataset": "./digits"}, r"`dataset` .*\./digits"),
    ({"results-dir": "here"}, '`results-dir` is "here"'),
    ({"resume": "latest"}, "holds no run"),
]


@pytest.mark.parametrize(("settings", "words"), MISTAKES)
def test_a_wrong_setting_is_one_sentence_and_leaves_nothing(home, capsys, settings, words):
    with pytest.raises(SettingError, match=words) as error:
        start(settings)
    assert written(home) == []
    assert capsys.readouterr().out == f"{PREFIX_OF_ERRORS}{error.value}\n"
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dataset": "/no/such/folder"}, "/no/such/folder"),
        ({"models": "resnet9"}, "resnet9"),
        ({"max-samples": 20}, "client"),
        ({"min-replies": 4}, "`min-replies` 4"),
    ],
)
def test_what_only_clients_find_out_ends_the_run_with_a_sentence(home, capsys, settings, words):
    with pytest.raises((RosterError, SettingError), match=words) as error:
        start({"clients": 0} | settings)
    assert f"{PREFIX_OF_ERRORS}{error.value}\n" in capsys.readouterr().out
    assert "\n" not in str(error.value)
    # what holds no result is not there to be taken for a run
    assert list((home / "results").iterdir()) == []


def test_whoever_looks_on_sees_how_far_a_run_is(home, run, cut, monkeypatch):
    seen = []
    written = RunFolder.write_status
    monkeypatch.setattr(RunFolder, "write_status", lambda self, told: (seen.append(dict(told)), written(self, told)))
    folder = run({"rounds": 2, "strategy": "protonorm"})
    assert [(told["state"], told["round"]) for told in seen] == [
        ("starting", 0),
        ("running", 0),
        ("running", 1),
        ("running", 2),
        ("completed", 2),
    ]
    assert json.loads((folder / "status.json").read_text()) == seen[-1]
    summary = json.loads((folder / "summary.json").read_text())
    assert seen[-1]["latest"] == {"accuracy": summary["rules"]["local-prototypes"]["final"], "round": 2}
    assert (seen[-1]["rounds"], seen[-1]["folder"], seen[-1]["problem"]) == (2, str(folder), "")
    assert find_run(seen[-1]["flower_run"], "") == folder
    seconds = [told["seconds"] for told in seen]
    assert seconds == sorted(seconds)
    cut({"rounds": 2, "seed": 1, "strategy": "protonorm"}, "configure_train", lambda self, number, *_: number == 2)
    assert (seen[-1]["state"], seen[-1]["round"], seen[-1]["latest"]["round"]) == ("failed", 1, 1)


# --- speaking ---------------------------------------------------------------------------------------------


def test_a_run_within_another_has_a_listener_of_its_own_or_else_that_of_the_other(capsys):
    outer, inner = [], []
    with said(outer.append):
        with said(inner.append):
            log.info("%d rounds", 3)
        with said():
            log.info("heard outside")
            # whoever listens gets it as an exception
            log.error("why it failed")
    assert (outer, inner) == (["heard outside"], ["3 rounds"])
    assert capsys.readouterr().out == ""


def test_a_clients_words_stay_on_one_line(capsys):
    with said():
        log.warning("client says: %s", f"no\n{PREFIX}results: /elsewhere\r\n{PREFIX_OF_ERRORS}forged\u2028x")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{PREFIX}client says: no")
    assert line.count("\n") == 0
