"""A run that ends before its last round: when, how it ends, and what a resume makes of it."""

from dataclasses import replace

import pytest

from protosphere.core.errors import RunError, SettingError
from protosphere.server_app.strategy import PrototypeStrategy
from protosphere.wire.payloads import Evaluation

ROWS = 20  # of validation, of one client


def summary(strategy):
    return strategy.folder.summary()


def rising(means):
    """Clients whose validation mean after round r is `means[r]` of ROWS, the last one for good."""

    def answer(partition, round_number, kind, report):
        if report.evaluation is None:
            return report
        right = means[min(round_number, len(means) - 1)]
        found = Evaluation((6, ROWS), {"local-prototypes": (3, right), "classifier": (3, ROWS)}, 0.1)
        return replace(report, evaluation=found)

    return answer


def told(strategy):
    """The lines but for the times, and the summary but for these and what a resume is told."""
    lines = [{name: value for name, value in line.items() if name != "time"} for line in strategy.folder.lines()]
    last = dict(lines[-1]["bytes"])
    lines[-1]["bytes"] = {name: size for name, size in last.items() if not name.startswith("evaluation")}
    told = {"seconds", "settings", "stopped", "bytes"}
    return lines, {name: value for name, value in summary(strategy).items() if name not in told}


# means by round from 0 on, of 20 rows
@pytest.mark.parametrize(
    ("settings", "means", "rounds"),
    [
        ({"stop-patience": 2}, [1, 5, 4, 5, 9], 3),  # equal is not better
        ({"stop-patience": 2}, [1, 5, 4, 6, 6, 6], 5),
        ({"stop-patience": 1, "evaluate-every": 3}, [1, 9, 9, 1], 6),  # patience counts evaluations
        ({"stop-patience": 2}, [19, 5, 6, 7, 8, 8, 8], 6),  # untrained models are no best
        ({"stop-patience": 8}, [1], 8),  # too late by one round
    ],
)
def test_it_ends_when_the_validation_mean_no_longer_rises(federation, settings, means, rounds):
    rows = dict.fromkeys(range(2), (20, ROWS, 6))
    group = federation(2, tamper=rising(means), rows=rows)
    stopped = group.start({"rounds": 8, **settings})
    found = summary(stopped)
    assert (found["rounds"], found.get("stopped")) == (rounds, "stop-patience" if rounds < 8 else None)
    assert [line["round"] for line in stopped.folder.lines()] == list(range(rounds + 1))
    # but for the messages of its last evaluation, exactly the run that was asked for so many rounds
    every = {name: value for name, value in settings.items() if name == "evaluate-every"}
    short = federation(2, tamper=rising(means), rows=rows)
    assert told(short.start({"rounds": rounds, **every})) == told(stopped)


def test_a_cut_run_ends_where_the_whole_one_does_and_goes_on_with_more_patience(federation):
    means, rows = [1, 5, 4, 5, 9, 3], dict.fromkeys(range(2), (20, ROWS, 6))
    settings = {"rounds": 8, "stop-patience": 2}
    whole = federation(2, tamper=rising(means), rows=rows).start(settings)

    class Cut(BaseException):
        pass

    def cut(partition, round_number, kind, report):
        if round_number == 3:
            raise Cut
        return rising(means)(partition, round_number, kind, report)

    with pytest.raises(Cut):
        federation(2, tamper=cut, rows=rows).start(settings)
    again = federation(2, tamper=rising(means), rows=rows).start(settings | {"resume": "latest"})
    assert told(again) == told(whole)
    # what stopped of itself stays so, until it is told otherwise
    resumed = federation(2, tamper=rising(means), rows=rows)
    assert told(resumed.start(settings | {"resume": "latest"})) == told(whole)
    assert resumed.asked == []
    longer = federation(2, tamper=rising(means), rows=rows)
    patient = settings | {"stop-patience": 3, "resume": "latest"}
    assert summary(longer.start(patient))["rounds"] == 7
    assert longer.strategy.folder.settings()["stop-patience"] == 3


def test_without_a_validation_row_nothing_begins(federation):
    group = federation(2, rows=dict.fromkeys(range(2), (20, 0, 6)))
    with pytest.raises(SettingError, match="`stop-patience` is 2"):
        group.start({"stop-patience": 2})
    assert not group.asked


@pytest.mark.parametrize(("answer", "stops"), [(False, True), (0, False)])
def test_somebody_who_is_told_of_rounds_ends_the_run_by_false_alone(federation, answer, stops):
    group, heard = federation(2), []

    def on_round(line):
        # it is on the disk by then
        assert group.strategy.folder.load_checkpoint()[1]["round"] == line["round"]
        heard.append(line["round"])
        return answer if line["round"] == 2 else None

    strategy = group.start({"rounds": 4}, on_round)
    assert heard == ([0, 1, 2] if stops else [0, 1, 2, 3, 4])
    assert summary(strategy).get("stopped") == ("on-round" if stops else None)
    assert federation(2).start({"rounds": 4, "resume": str(strategy.folder.path)}).state.last_round == 4


def test_a_download_that_float16_cannot_hold_ends_also_the_last_evaluation_in_a_sentence(federation, monkeypatch):
    made = federation(dtype="float16")
    aggregate = PrototypeStrategy._aggregate

    def aggregate_and_scale(self, server_round, replies):
        figures = aggregate(self, server_round, replies)
        for payload in self.state.downloads.values():
            for part in payload.values():
                part.vectors.mul_(1e7)
        return figures

    monkeypatch.setattr(PrototypeStrategy, "_aggregate", aggregate_and_scale)
    # the round that it stops after has no evaluation of its own, which would have found it
    settings = {"evaluate-every": 2, "rounds": 4, "max-prototype-norm": 1e9}
    with pytest.raises(RunError, match=r"after round 1: a prototype cannot be sent .* start a new one"):
        made.start(settings, on_round=lambda line: line["round"] < 1)
