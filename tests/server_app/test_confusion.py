"""What clients take for what: asked for after the last round, believed where it fits the evaluation beside it."""

from dataclasses import replace

import pytest


def counts_of(evaluation, K=4):
    """Of K classes all rows in the first two, as many right as the evaluation says."""
    right = evaluation.correct["local-prototypes"][0]
    counts = [0] * K * K
    counts[0], counts[K + 1], counts[1] = right // 2, right - right // 2, evaluation.rows[0] - right
    return counts


def telling(forge=lambda counts: counts, liar=0, in_round=2):
    def tell(partition, round_number, kind, report):
        if report.evaluation is None or round_number != in_round:
            return report
        counts = counts_of(report.evaluation)
        own = tuple(forge(counts) if partition == liar else counts)
        return replace(report, evaluation=replace(report.evaluation, confusion=own))

    return tell


def lines_of(strategy):
    return strategy.folder.lines()


def test_it_is_asked_for_once_and_summed(federation):
    group = federation(tamper=telling())
    strategy = group.start({"rounds": 2})
    assert {instruction.round for *_, instruction in group.asked if instruction.last} == {2}
    told = lines_of(strategy)[-1]["confusion"]
    assert told["clients"].keys() == {"0", "1", "2", "3"}
    assert sum(rows for *_, rows in told["models"]["scripted"]) == 4 * 6
    assert lines_of(strategy)[-1]["problems"] == {}


@pytest.mark.parametrize(
    "forge",
    [
        lambda counts: counts[:-1],
        lambda counts: [counts[0] + 1, *counts[1:]],
        lambda counts: [10**18, *counts[1:]],
        lambda counts: counts[1:] + counts[:1],
    ],
    ids=["short", "one more", "absurd", "others right"],
)
def test_one_that_does_not_fit_is_dropped_by_itself(federation, forge):
    group = federation(tamper=telling(forge))
    last = lines_of(group.start({"rounds": 2}))[-1]
    assert last["confusion"]["clients"].keys() == {"1", "2", "3"}
    assert last["problems"].keys() == {"0"}
    assert "confusion dropped" in last["problems"]["0"]
    assert "evaluation" in last["clients"]["0"]


@pytest.mark.parametrize(("settings", "in_round"), [({}, 1), ({"confusion": "never"}, 2)])
def test_one_that_nobody_asked_for_is_dropped(federation, settings, in_round):
    group = federation(tamper=telling(in_round=in_round))
    lines = lines_of(group.start({"rounds": 2} | settings))
    assert not any("confusion" in line for line in lines[:2])
    assert lines[in_round]["problems"].keys() == {"0", "1", "2", "3"}
    assert all("nobody asked for one" in problem for problem in lines[in_round]["problems"].values())
    assert "evaluation" in lines[in_round]
