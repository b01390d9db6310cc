"""Checkpoints and resume: a run that was cut and resumed is the one that was not, to the bit."""

import json
import shutil
from dataclasses import replace

import pytest

from protosphere.core.errors import RunError, SettingError
from protosphere.record.folder import RunFolder
from protosphere.server_app.checkpoint import pack
from protosphere.server_app.roster import RosterError
from protosphere.strategies import load_method
from protosphere.strategies.contract import Outcome
from tests.payloads import lone

CONSTANTS = {"mu": 0.1 + 0.2, "other": -1e-300}


class Cut(BaseException):
    """The server's end at a moment of the test's choice."""


def said_in(strategy):
    """The lines of metrics.jsonl but for the time, and the bytes of what the server ends with."""
    lines = [{name: value for name, value in line.items() if name != "time"} for line in strategy.folder.lines()]
    tensors = pack(strategy.state)[0]
    return lines, {name: (tensor.dtype, tensor.numpy().tobytes()) for name, tensor in tensors.items()}


def cut_at(round_number, message="train"):
    def answer(partition, of_round, kind, report):
        if (of_round, kind) == (round_number, message):
            raise Cut
        return report

    return answer


def test_constants_are_worked_out_once_and_sent_with_every_message_also_after_a_resume(federation, monkeypatch):
    strategy = load_method("fedproto").server
    rosters = []

    def begin(self):
        rosters.append(sorted(self.identities))
        return Outcome({}, {}, constants=CONSTANTS)

    def again(self):
        raise AssertionError("the constants of a resumed run are those of its start")

    monkeypatch.setattr(strategy, "begin", begin)
    group = federation(4, tamper=cut_at(4))
    with pytest.raises(Cut):
        group.start({"rounds": 6, "fraction-train": 0.5})
    assert rosters == [[0, 1, 2, 3]]
    assert group.strategy.folder.load_checkpoint()[1]["constants"] == CONSTANTS
    monkeypatch.setattr(strategy, "begin", again)
    resumed = federation(4)
    resumed.start({"rounds": 6, "fraction-train": 0.5, "resume": "latest"})
    kinds = {kind for _, _, kind, _ in group.asked + resumed.asked}
    assert kinds == {"train", "evaluate"}
    assert {round_number for _, round_number, *_ in resumed.asked} == {4, 5, 6}
    # to the bit
    assert all(instruction.constants == CONSTANTS for *_, instruction in group.asked + resumed.asked)


def test_cut_between_line_and_checkpoint_runs_the_round_again(federation, monkeypatch):
    whole = federation(3).start({"rounds": 4})
    save = RunFolder.save_checkpoint

    def cut(self, tensors, meta):
        if meta["round"] == 3:
            raise Cut
        save(self, tensors, meta)

    group = federation(3)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", cut)
        with pytest.raises(Cut):
            group.start({"rounds": 4})
    assert [line["round"] for line in group.strategy.folder.lines()] == [0, 1, 2, 3]
    again = federation(3)
    resumed = again.start({"rounds": 4, "resume": "latest"})
    assert min(round_number for _, round_number, *_ in again.asked) == 3
    assert said_in(resumed) == said_in(whole)


@pytest.mark.parametrize("where", [(1, "train"), (3, "evaluate")])
def test_a_run_that_is_cut_in_a_round_runs_that_round_again(federation, where):
    """Before round 1, too, what untrained models do is known. Half of a line is none."""
    whole = federation(3).start({"rounds": 3})
    group = federation(3, tamper=cut_at(*where))
    with pytest.raises(Cut):
        group.start({"rounds": 3})
    path = group.strategy.folder.path
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "tra')

    again = federation(3)
    resumed = again.start({"rounds": 3, "resume": str(path)})

    assert min(round_number for _, round_number, *_ in again.asked) == where[0]
    assert said_in(resumed) == said_in(whole)


def test_a_finished_run_goes_on_with_more_rounds_and_else_asks_nobody(federation):
    whole = federation(3).start({"rounds": 5})
    short = federation(3).start({"rounds": 2})
    before, again = said_in(short), federation(3)
    assert said_in(again.start({"rounds": 2, "resume": str(short.folder.path)})) == before
    assert again.asked == []
    resumed = federation(3).start({"rounds": 5, "resume": str(short.folder.path)})
    lines, tensors = said_in(resumed)
    # where the shorter run ended it evaluated for the last time
    assert lines[2].pop("last")
    assert (lines, tensors) == said_in(whole)
    summary = json.loads((resumed.folder.path / "summary.json").read_text())
    assert (summary["rounds"], summary["settings"]["rounds"]) == (5, 5)


def snapshot(path):
    return {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def other_identity(**changes):
    def change(group):
        group.identities[1] = replace(group.identities[1], **changes)

    return change


@pytest.mark.parametrize(
    ("settings", "change", "error", "words"),
    [
        ({"rounds": 2}, None, SettingError, r"`rounds` is 2, but .* has finished 3; resume with that many or more"),
        (
            {},
            other_identity(rows=(30, 4, 6)),
            RosterError,
            r"client 1.* was \[20, 4, 6\] and is now \[30, 4, 6\].* version",
        ),
        ({"learning-rate": 0.5}, None, SettingError, "`learning-rate` was 0.01 and is now 0.5"),
        (
            {},
            other_identity(settings="others"),
            RosterError,
            r"had 3 clients and now has 2; .*Client 1 .* other settings of messages",
        ),
        (
            {"fedproto.aggregation": "median"},
            None,
            SettingError,
            '`fedproto.aggregation` was "mean" and is now "median"',
        ),
    ],
)
def test_what_would_be_another_run_is_refused_and_nothing_touched(federation, settings, change, error, words):
    first = federation(3).start({"rounds": 3})
    before = snapshot(first.folder.path)
    group = federation(3)
    if change:
        change(group)
    with pytest.raises(error, match=words):
        group.start({"rounds": 3, "resume": str(first.folder.path)} | settings)
    assert not group.asked
    assert snapshot(first.folder.path) == before


def test_a_run_that_stopped_on_failures_goes_on_from_there(federation):
    def silent(partition, round_number, kind, report):
        return None if round_number >= 3 and kind == "train" else report

    group = federation(3, tamper=silent)
    with pytest.raises(RunError, match="2 rounds in a row"):
        group.start({"rounds": 6, "max-failed-rounds": 2})
    path = group.strategy.folder.path
    # one more bad round would be too many if the old ones still counted
    once = federation(3, tamper=lambda p, r, kind, report: None if r == 5 and kind == "train" else report)
    resumed = once.start({"rounds": 6, "max-failed-rounds": 2, "resume": str(path)})
    assert [line["training"]["valid"] for line in resumed.folder.lines()[1:]] == [3, 3, 0, 0, 0, 3]
    downloads = {i.round: i.payload for *_, i in once.asked}
    assert lone(downloads[5]).labels.tolist() == [0, 1, 2, 3]


# --- stores and lines that were lost ------------------------------------------------------------------------------


def test_one_lost_store_leaves_the_others_their_run(run, home, metrics):
    folder = run()
    shutil.rmtree(home / "clients" / folder.name / "3")
    run({"resume": str(folder), "rounds": 3})
    line = metrics(folder)[3]
    assert line["training"]["valid"] == 3
    assert line["problems"].keys() == {"3"}


def test_lost_lines_are_said_and_the_rest_is_left_alone(run):
    folder = run()

    def content():
        # the log says why the run was not resumed
        changing = ("metrics.jsonl", "run.log")
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name not in changing}

    before = content()
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(SettingError, match="no longer holds a line for each of the 2 finished rounds"):
        run({"resume": str(folder), "rounds": 2})
    assert content() == before
    assert not (folder / "metrics.jsonl").exists()
    assert "no longer holds a line" in (folder / "run.log").read_text().splitlines()[-1]
