"""The run's folder: its name, what resume refuses, lines that a crash cut, and writes that fail half-way."""

import errno
import math
import os
import re
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from protosphere.core.errors import SettingError
from protosphere.core.home import stores
from protosphere.core.settings import Settings, check, is_run_name
from protosphere.record import folder as record
from protosphere.record.folder import RunFolder, find_run

CONFIG = {"strategy": "fedproto", "dataset": "digits", "rounds": 20, "alpha": 0.1, "device": "auto", "resume": ""}
NOON = 1_767_268_800.75  # 2026-01-01 12:00:00 UTC, and a bit


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A PROTOSPHERE_HOME of this test's; the results folder in it, which does not exist yet."""
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "own"))
    return tmp_path / "own" / "results"


@pytest.fixture
def noon(monkeypatch):
    """The clock stands still."""
    stopped = SimpleNamespace(time=lambda: NOON, strftime=record.time.strftime, gmtime=record.time.gmtime)
    monkeypatch.setattr(record, "time", stopped)


def settings(**changes):
    values = {"strategy": "fedproto"} | {name.replace("_", "-"): value for name, value in changes.items()}
    return check(Settings, values)


def create(**changes):
    return RunFolder.create(settings(**changes), CONFIG)


def finished(rounds=2, **changes):
    """A run that was cut after some rounds."""
    folder = create(**changes)
    for number in range(rounds + 1):
        folder.append({"round": number, "value": number / 7})
        folder.save_checkpoint({"x": torch.tensor([float(number)])}, {"round": number})
    return folder


def refused(function, *arguments):
    """The sentence with which something is refused."""
    with pytest.raises(SettingError) as caught:
        function(*arguments)
    assert str(caught.value).isprintable()
    return str(caught.value)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}


def names(folder):
    return sorted(contents(folder))


# --- create -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("/data/mnist,some/usps, digits", "mnist-usps-digits"),
        ("/data/pacs/*", "pacs"),
        (",".join(f"/data/{name * 40}" for name in "abc"), f"{'a' * 40}-{'b' * 34}"),
        ("/daten/胸部X線", "胸部X線"),
    ],
)
def test_a_new_folder_is_named_by_time_strategy_and_all_data_sets(results, noon, dataset, words):
    folder = create(dataset=dataset)
    assert folder.path.parent == results
    # a second run of the same second has another name
    for name in (folder.name, other := create(dataset=dataset).name):
        assert re.fullmatch(rf"20260101-120000-fedproto-{words}-[0-9a-f]{{8}}", name)
    assert folder.name != other
    assert is_run_name(folder.name)
    assert names(folder) == ["settings.json"]
    assert stores(folder.name).is_dir()
    assert folder.settings() == CONFIG


@pytest.mark.parametrize("place", ["file/below", "file", "dangling", "dangling/below"])
def test_a_results_folder_that_cannot_be_written(tmp_path, place):
    # tests may run as root, whom no permission stops
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "file" / "nowhere")
    text = refused(lambda: create(results_dir=str(tmp_path / place)))
    assert str(tmp_path / place) in text
    assert "`results-dir`" in text
    assert (tmp_path / "file").read_text() == ""


def test_a_run_whose_process_has_gone_does_not_read_as_one_that_is_on(results):
    folder = create()
    for state in ("starting", "running"):
        with folder.lock():
            folder.write_status({"state": state, "round": 3})
            assert RunFolder(folder.path).status() == {"state": state, "round": 3}
        assert folder.status() == {"state": "stopped", "round": 3}
    folder.write_status({"state": "completed"})
    assert folder.status() == {"state": "completed"}


# --- resume -------------------------------------------------------------------------------------------------


def resume(folder, changes=None, **setting_changes):
    how = setting_changes.pop("how", str(folder.path))
    return RunFolder.resume(settings(resume=how, **setting_changes), CONFIG | {"resume": how} | (changes or {}))


@pytest.mark.parametrize("how", ["path", "name", "latest", "dots", "link", "home"])
def test_a_run_is_found_by_path_name_or_latest(results, tmp_path, monkeypatch, how):
    folder = finished()
    (results / "link").symlink_to(folder.path)
    monkeypatch.setenv("HOME", str(results))
    given = {
        "path": str(folder.path),
        "name": folder.name,
        "latest": "latest",
        "dots": str(folder.path / "x" / ".."),
        "link": str(results / "link"),
        "home": f"~/{folder.name}",
    }
    (folder.path / "x").mkdir()
    assert resume(folder, how=given[how]).path == folder.path


def test_latest_is_the_run_that_began_last_whatever_its_name(results):
    first, second = finished(), finished()
    for folder, age in ((first, 1), (second, 2)):
        os.utime(folder.path / "settings.json", (NOON - age, NOON - age))
    # other programs keep such a file, too
    (results / "editor").mkdir()
    (results / "editor" / "settings.json").write_text('{"tab": 4}')
    assert resume(first, how="latest").path == first.path


def test_latest_is_no_earlier_run_where_the_newest_has_finished_no_round_or_all(results):
    first = finished()
    # cut before its summary it may go on
    first.refuse_fewer_rounds(2, 2, "latest")
    first.write_summary({"rounds": 2})
    assert "has finished round 2 of 2" in refused(first.refuse_fewer_rounds, 2, 2, "latest")
    first.refuse_fewer_rounds(3, 2, "latest")
    killed = create()
    os.utime(first.path / "settings.json", (NOON, NOON))
    text = refused(RunFolder.resume, settings(resume="latest"), CONFIG)
    assert f"the newest run, {killed.path}, has no finished round" in text
    assert text.endswith(f"or resume an earlier run: {first.name}.")
    assert "no checkpoint" in refused(resume, killed)
    # what is only read is the newest run with results
    assert find_run("latest", "") == first.path


def test_where_and_how_patiently_it_runs_may_change_and_a_longer_run_remembers_its_rounds(results):
    folder = finished()
    changes = {"rounds": 50, "device": "cpu", "round-timeout": 5.0, "results-dir": str(results)}
    assert resume(folder, changes).path == folder.path
    # the settings that it was started with stay
    assert folder.settings() == CONFIG
    folder.set_end(50, check(Settings, {"stop-patience": 3}))
    assert folder.settings() == CONFIG | {"stop-patience": 3, "rounds": 50}


@pytest.mark.parametrize(
    "how", ["nothing", "/nowhere/at/all", "../results", "~nobody-of-that-name/run", "", ".", "latest"]
)
def test_there_is_no_such_run(results, how):
    if how != "latest":
        finished()
    text = refused(find_run, how, "")
    assert f'"{how}"' in text
    assert str(results) in text


@pytest.mark.parametrize("name", ["my run", "other"])
def test_a_renamed_folder_is_refused_since_its_clients_would_begin_anew(results, name):
    folder = finished()
    renamed = RunFolder(folder.path.rename(results / name))
    text = refused(resume(renamed).load_checkpoint)
    assert str(renamed.path) in text
    assert "rename it back" in text


def test_only_one_server_at_a_time_holds_a_folder(results):
    folder = finished()
    with folder.lock():
        text = refused(RunFolder(folder.path).lock().__enter__)
        assert str(folder.path) in text
        assert "stop it first" in text
    with pytest.raises(KeyError, match="inside"), folder.lock():
        raise KeyError("inside")
    with folder.lock():
        pass


def test_a_folder_of_a_run_that_came_to_no_round_goes_and_any_other_stays(results):
    folder = create()
    folder.write_roster([])
    folder.discard_unless_begun()
    assert not folder.path.exists()
    folder.discard_unless_begun()
    begun = finished(1)
    for name in ("metrics.jsonl", "checkpoint.safetensors"):
        begun.discard_unless_begun()
        assert "settings.json" in names(begun)
        (begun.path / name).unlink()
    # what a person put there is nobody's to take away
    (begun.path / "notes.txt").write_text("mine")
    begun.discard_unless_begun()
    assert names(begun) == ["notes.txt"]


# --- lines --------------------------------------------------------------------------------------------------


def ended(rounds=3):
    """A run that has come to its end."""
    folder = finished(rounds)
    folder.write_summary({"format": record.FORMAT, "rounds": rounds})
    return folder


def test_lines_come_back_as_they_were_written_and_truncate_drops_later_ones(results):
    folder = create()
    assert folder.lines() == []
    lines = [{"round": 0, "value": 0.1 + 0.2, "text": "ü\u2028\n\x85"}, {"round": 1, "none": None}]
    for line in (*lines, {"round": 2}):
        folder.append(line)
    folder.write_summary({"status": "completed"})
    for last in (1, 0):
        folder.truncate(last)
        assert folder.lines() == lines[: last + 1]
        assert not (folder.path / "summary.json").exists()


def test_a_lost_end_is_said_of_a_run_that_ended_and_dropped_of_one_that_was_cut(results):
    folder = ended()
    path, found = folder.path / "metrics.jsonl", folder.lines()
    whole = path.read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(whole) if byte == 10)]
    for lost in range(2, len(whole)):
        for tail in (b"", bytes(lost)):
            path.write_bytes(whole[:-lost] + tail)
            assert "\n" not in refused(folder.lines)
    path.write_bytes(whole[: starts[1]] + whole[starts[2] :])
    assert "lacks lines" in refused(folder.lines)
    (folder.path / "summary.json").unlink()
    for end in range(starts[3] + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert folder.lines() == found[:3]
    folder.truncate(2)
    assert folder.lines() == found[:3]
    folder.append(found[3])
    assert folder.lines() == found


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_never_holds_what_is_no_number(results, value):
    folder = finished(1)
    before = contents(folder)
    deep = {"round": 2, "deep": [{"value": value}]}
    for write in (
        *(folder.append, folder.write_summary, folder.write_status),
        lambda line: folder.write_roster([{"partition": 0, **line}]),
        lambda line: folder.save_checkpoint({}, line),
    ):
        with pytest.raises(ValueError, match="JSON"):
            write(deep)
    assert contents(folder) == before


# --- checkpoint ---------------------------------------------------------------------------------------------


# flipped bits and lost tails are those of tests/core/test_files.py
@pytest.mark.parametrize("damage", ["cut", "text", "gone", "foreign", "meta"])
def test_a_checkpoint_that_cannot_be_read(results, damage):
    folder = finished(1)
    path = folder.path / "checkpoint.safetensors"
    contents = {"cut": path.read_bytes()[:-2], "text": b"no checkpoint"}
    if damage in contents:
        path.write_bytes(contents[damage])
    elif damage == "gone":
        path.unlink()
    else:
        metadata = {"run": folder.name, "meta": "{"} if damage == "meta" else None
        save_file({"x": torch.zeros(1)}, path, metadata=metadata)
    assert str(path) in refused(folder.load_checkpoint)


# --- writes that fail ---------------------------------------------------------------------------------------


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["rename", "write"])
def test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_beside_it(results, monkeypatch, where):
    folder = finished()
    folder.write_summary({"old": 1})
    folder.write_roster([{"partition": 0}])
    before = contents(folder)

    def half(path, *_, **__):
        path.write_bytes(b"half")
        full()

    if where == "rename":
        monkeypatch.setattr(record.os, "replace", full)
    else:
        monkeypatch.setattr(record.Path, "write_text", half)
        monkeypatch.setattr(record, "write_tensors", half)
        monkeypatch.setattr(record, "_as_text", full)
    for write in (
        lambda: folder.write_summary({"new": 1}),
        lambda: folder.write_roster([{"partition": 1}]),
        lambda: folder.truncate(0),
        lambda: folder.save_checkpoint({"new": torch.zeros(3)}, {"round": 9}),
    ):
        assert f"{folder.path} cannot be written (No space left on device)" in refused(write)
        assert contents(folder) == before
