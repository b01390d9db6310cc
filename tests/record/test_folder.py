"""The run's folder: its name, what resume refuses, lines that a crash cut, and writes that fail half-way."""

import errno
import json
import math
import os
import re
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from protosphere.core.errors import SettingError
from protosphere.core.home import results_root, stores
from protosphere.core.settings import Settings, check, is_run_name
from protosphere.record import folder as record
from protosphere.record.folder import RunFolder, find_run
from protosphere.record.snapshots import newest

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
        ("digits", "digits"),
        ("/data/mnist,some/usps, digits", "mnist-usps-digits"),
        ("/data/pacs/*", "pacs"),
        (",".join(f"/data/{name * 40}" for name in "abc"), f"{'a' * 40}-{'b' * 34}"),
        ("a,,b", "a-b"),
    ],
)
def test_a_new_folder_is_named_by_time_strategy_and_all_data_sets(results, noon, dataset, words):
    folder = create(dataset=dataset)
    assert folder.path.parent == results
    assert re.fullmatch(rf"20260101-120000-fedproto-{words}-[0-9a-f]{{8}}", folder.name)
    assert is_run_name(folder.name)
    assert names(folder) == ["settings.json"]
    assert stores(folder.name).is_dir()
    assert folder.settings() == CONFIG


def test_a_second_run_of_the_same_second_gets_a_name_of_the_same_length(results, noon):
    found = [create().name for _ in range(3)]
    assert len(set(found)) == 3
    assert {len(name) for name in found} == {len(found[0])}
    assert all(re.fullmatch(r"20260101-120000-fedproto-digits-[0-9a-f]{8}", name) for name in found)


NAMED = ["uoft-cs/cifar10", "/daten/胸部X線", "線" * 250, "/data/my pictures (2)/", "/a/..", "/", "~/überblick"]


@pytest.mark.parametrize("dataset", [*NAMED, "a" * 250, "./-", "🙂"])
def test_every_name_can_travel(results, dataset):
    """By which letters: test_settings.py."""
    name = create(dataset=dataset).name
    assert is_run_name(name)
    words = re.fullmatch(r"([0-9]{8}-[0-9]{6}-fedproto[\w-]*)-[0-9a-f]{8}", name)[1]
    assert len(words.encode()) <= 100
    assert words.endswith(("胸部X線", "überblick")) == ("X線" in dataset or "ü" in dataset)


def test_the_results_folder_is_the_setting_or_in_home(results, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert results_root("") == results
    assert results_root("~/mine") == tmp_path / "mine"
    assert create(results_dir=str(tmp_path / "elsewhere" / "deep")).path.parent == tmp_path / "elsewhere" / "deep"


@pytest.mark.parametrize("place", ["file/below", "file", "dangling", "dangling/below"])
def test_a_results_folder_that_cannot_be_written(tmp_path, place):
    # tests may run as root, whom no permission stops
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "file" / "nowhere")
    text = refused(lambda: create(results_dir=str(tmp_path / place)))
    assert str(tmp_path / place) in text
    assert "`results-dir`" in text
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("state", ["starting", "running"])
def test_a_run_whose_process_has_gone_does_not_read_as_one_that_is_on(results, state):
    folder = create()
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
    assert resume(first, how="latest").path == first.path


def test_latest_is_no_earlier_run_where_the_newest_has_finished_no_round(results):
    first = finished()
    killed = create()
    os.utime(first.path / "settings.json", (NOON, NOON))
    text = refused(RunFolder.resume, settings(resume="latest"), CONFIG)
    assert f"of the newest run, {killed.path}, no round was finished" in text
    assert text.endswith(f"or resume an earlier run: {first.name}.")
    # what is only read is the newest run with results
    assert find_run("latest", "") == first.path


def test_latest_says_where_the_newest_run_has_come_to_its_end(results):
    folder = finished(2)
    # cut before its summary it may go on
    folder.refuse_fewer_rounds(2, 2, "latest")
    folder.write_summary({"rounds": 2})
    text = refused(folder.refuse_fewer_rounds, 2, 2, "latest")
    assert f"the newest run, {folder.path}, has finished round 2 of 2" in text
    folder.refuse_fewer_rounds(3, 2, "latest")
    folder.refuse_fewer_rounds(2, 2, folder.name)


def test_where_and_how_patiently_it_runs_may_change_and_a_longer_run_remembers_its_rounds(results):
    changes = {"rounds": 50, "device": "cpu", "round-timeout": 5.0, "start-timeout": 5.0, "query-timeout": 5.0}
    folder = finished()
    assert resume(folder, changes | {"results-dir": str(results)}).path == folder.path
    # the settings that it was started with stay
    assert folder.settings() == CONFIG
    stop = {"stop-patience": 3}
    folder.set_end(50, check(Settings, stop))
    assert folder.settings() == CONFIG | stop | {"rounds": 50}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"alpha": 0.5}, ["`alpha` was 0.1 and is now 0.5"]),
        ({"alpha": None}, ["`alpha` was 0.1 and is now null"]),  # gone
        ({"strategy": "protonorm"}, ['`strategy` was "fedproto" and is now "protonorm"']),
        ({"seed": 1}, ["`seed` was null and is now 1"]),
        ({"fedproto.trim": 0.2}, ["`fedproto.trim`"]),
        ({"dataset": "x\ny"}, ["`dataset`", "x\\ny"]),
    ],
)
def test_what_a_run_computes_may_not_change(results, changes, named):
    config = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    finished()
    text = refused(RunFolder.resume, settings(resume="latest"), config)
    assert all(part in text for part in named)


@pytest.mark.parametrize(
    "how", ["nothing", "/nowhere/at/all", "../results", "~nobody-of-that-name/run", "", ".", "latest"]
)
def test_there_is_no_such_run(results, how):
    if how != "latest":
        finished()
    text = refused(find_run, how, "")
    assert f'"{how}"' in text
    assert str(results) in text


def test_a_run_without_a_finished_round_cannot_be_resumed(results):
    folder = create()
    text = refused(resume, folder)
    assert str(folder.path) in text
    assert "no checkpoint" in text


@pytest.mark.parametrize("name", ["my run", "other"])
def test_a_renamed_folder_is_refused_since_its_clients_would_begin_anew(results, name):
    folder = finished()
    renamed = RunFolder(folder.path.rename(results / name))
    # one whose name cannot travel is not even opened
    text = refused(resume, renamed) if " " in name else refused(resume(renamed).load_checkpoint)
    assert str(renamed.path) in text
    assert "rename it back" in text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"null"])
def test_settings_and_roster_that_nobody_wrote(results, content):
    folder = finished()
    (folder.path / "settings.json").write_bytes(content)
    assert "settings.json" in refused(folder.settings)
    (folder.path / "roster.json").write_bytes(content if content != b"[]" else b"{}")
    assert "roster.json" in refused(folder.roster)


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


def test_lines_come_back_as_they_were_written(results):
    folder = create()
    assert folder.lines() == []
    lines = [{"round": 0, "value": 0.1 + 0.2, "text": "ü\u2028\n\x85"}, {"round": 1, "none": None}]
    for line in lines:
        folder.append(line)
    assert folder.lines() == lines
    assert len((folder.path / "metrics.jsonl").read_bytes().split(b"\n")) == 3


def ended(rounds=3):
    """A run that has come to its end."""
    folder = finished(rounds)
    folder.write_summary({"format": record.FORMAT, "rounds": rounds})
    return folder


def test_what_is_lost_at_the_end_of_a_runs_lines_is_said(results):
    folder = ended()
    path, found = folder.path / "metrics.jsonl", folder.lines()
    whole = path.read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(whole) if byte == 10)]
    for lost in range(2, len(whole)):
        for tail in (b"", bytes(lost)):
            path.write_bytes(whole[:-lost] + tail)
            assert "\n" not in refused(folder.lines)
    path.write_bytes(whole[: starts[3]])
    assert "has lines up to round 2, and summary.json is of 3 rounds" in refused(folder.lines)
    # with all but its end the last line is whole
    path.write_bytes(whole[:-1])
    assert folder.lines() == found
    path.write_bytes(whole[: starts[1]] + whole[starts[2] :])
    assert "has a line of round 2 where that of round 1 should be" in refused(folder.lines)
    (folder.path / "summary.json").unlink()
    assert "has a line of round 2 where that of round 1 should be" in refused(folder.lines)
    # earlier versions had no line of untrained models
    path.write_bytes(whole[starts[1] :])
    assert "is of an earlier version of Protosphere" in refused(folder.lines)


def test_a_damaged_end_of_a_line_joins_no_lines_and_drops_none(results):
    folder = ended()
    path = folder.path / "metrics.jsonl"
    whole = path.read_bytes()
    for place in (place for place, byte in enumerate(whole) if byte == 10):
        for other in b"\x00\x0b\x0c\x1c\x85*":
            path.write_bytes(whole[:place] + bytes([other]) + whole[place + 1 :])
            for is_ended in (True, False):
                (folder.path / "summary.json").rename(folder.path / "kept") if not is_ended else None
                assert str(path) in refused(folder.lines)
            (folder.path / "kept").rename(folder.path / "summary.json")


def test_of_a_run_that_was_cut_a_last_line_is_dropped_unless_it_holds_zeros(results):
    folder = finished(3)
    path, found = folder.path / "metrics.jsonl", folder.lines()
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for end in range(last + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert folder.lines() == found[:3]
        path.write_bytes(whole[:end] + bytes(len(whole) - end))
        assert "was cut, or is zeros at its end" in refused(folder.lines)
        # what is to be run again need not be whole
        folder.truncate(2)
        assert folder.lines() == found[:3]
    folder.append(found[3])
    assert folder.lines() == found
    with path.open("a") as file:
        file.write('{"round": 4, \n{"round": 5}\n')
    assert "metrics.jsonl cannot be read" in refused(folder.lines)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("metrics.jsonl", RunFolder.lines),
        ("settings.json", RunFolder.settings),
        ("roster.json", RunFolder.roster),
        ("summary.json", RunFolder.summary),
        ("status.json", RunFolder.status),
        ("prototypes.safetensors", lambda folder: newest(folder.path)),
        ("checkpoint.safetensors", RunFolder.load_checkpoint),
    ],
)
def test_nothing_but_a_regular_file_is_read(results, name, read, make):
    folder = ended()
    (folder.path / name).unlink(missing_ok=True)
    make(folder.path / name)
    assert re.search(
        rf"{name}.* cannot be read \(it is, or leads to, a .* no file with an end\)", refused(read, folder)
    )


def test_truncate_drops_later_rounds_and_the_summary(results):
    folder = finished(3)
    whole = folder.lines()
    folder.append({"round": 4})
    folder.write_summary({"status": "completed"})
    for last in (3, 2, 0):
        folder.truncate(last)
        assert folder.lines() == whole[: last + 1]
        assert not (folder.path / "summary.json").exists()


def test_the_last_line_is_replaced_whole_or_not_at_all(results, monkeypatch):
    folder = finished(1)
    folder.append({"round": 2, "bytes": {}, "clients": {"0": {"x": 1.0}}, "time": {"round": 1.0}})
    before = contents(folder)
    line = folder.lines()[-1]
    line["clients"]["0"]["x"] = 2.0

    def broken(*arguments):
        raise OSError(28, "No space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", broken)
        assert "No space left" in refused(folder.replace_last, line)
    assert contents(folder) == before
    folder.replace_last(line)
    assert folder.lines()[2]["clients"] == {"0": {"x": 2.0}}
    assert folder.lines(with_clients=False)[2]["clients"] == {}
    folder.truncate(2)
    assert folder.lines()[2]["clients"] == {"0": {"x": 2.0}}


@pytest.mark.parametrize("last", ["[1]", "1", "{}"])
def test_a_line_without_a_round_is_refused_where_a_run_goes_on(results, last):
    folder = finished(1)
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write(last + "\n")
    assert "holds a line without a round" in refused(folder.truncate, 1)


def test_a_run_of_an_earlier_form_is_refused(results):
    folder = finished(1)
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 2, "clients_in": "clients/round-000002.parquet"}) + "\n")
    for read in (folder.lines, lambda: folder.truncate(1), lambda: [*folder.each_line()]):
        assert "is of an earlier version of Protosphere" in refused(read)


def test_a_tail_that_is_no_text_is_left_out_where_a_run_goes_on(results):
    folder = finished(1)
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "\xff\xfe')
    folder.truncate(1)
    assert [line["round"] for line in folder.lines()] == [0, 1]


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


def test_a_checkpoint_comes_back_as_it_was_saved(results):
    folder = create()
    base = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    tensors = {
        "state/labels": torch.tensor([3, 1]),
        "state/transposed": base.t(),
        "state/same": base,
        "download/-1/vectors": torch.tensor([[math.nan, math.inf]]),
        "empty": torch.empty(0, 5),
        "flag": torch.tensor(True),
    }
    meta = {"round": 7, "first_norm": 0.1 + 0.2, "none": None, "text": "ü"}
    folder.save_checkpoint(tensors, meta)
    back, meta_back = folder.load_checkpoint()
    assert meta_back == meta
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name].nan_to_num(9.0), tensor.nan_to_num(9.0))
    folder.save_checkpoint({}, {"round": 8})
    assert folder.load_checkpoint() == ({}, {"round": 8})


# flipped bits and lost tails are those of test_tensor_files.py
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


def half(path, text):
    path.write_bytes(text.encode()[:5])
    full()


def write_everything(folder):
    """Each way of writing a file of the folder as a whole."""
    return [
        lambda: folder.write_summary({"new": 1}),
        lambda: folder.write_roster([{"partition": 1}]),
        lambda: folder.truncate(0),
        lambda: folder.save_checkpoint({"new": torch.zeros(3)}, {"round": 9}),
    ]


@pytest.mark.parametrize("where", ["rename", "write"])
def test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_beside_it(results, monkeypatch, where):
    folder = finished()
    folder.write_summary({"old": 1})
    folder.write_roster([{"partition": 0}])
    before = contents(folder)
    if where == "rename":
        monkeypatch.setattr(record.os, "replace", full)
    else:
        monkeypatch.setattr(record.Path, "write_text", half)
        monkeypatch.setattr(record, "_as_text", full)
        monkeypatch.setattr(record, "write_tensors", lambda path, _, metadata: half(path, metadata["meta"]))
    for write in write_everything(folder):
        text = refused(write)
        assert f"{folder.path} cannot be written (No space left on device)" in text
        assert contents(folder) == before
