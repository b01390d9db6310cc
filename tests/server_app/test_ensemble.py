"""The ensemble: who is asked when, what is scored, what is dropped, and that nothing else of a run knows of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from protosphere.core.errors import SettingError
from protosphere.data.shared_test_set import SharedLabels
from protosphere.server_app import ensemble as ensemble_module
from protosphere.wire.ensemble import encode_answers

CLASSES, ROWS = 4, 11


@pytest.fixture
def shared(script, monkeypatch):
    """A shared test set of four classes, as the server of a simulation sees it."""
    labels = torch.tensor([number % CLASSES for number in range(ROWS)])
    found = SharedLabels(labels, CLASSES, 77)
    monkeypatch.setattr(ensemble_module, "shared_labels", lambda spec: found)
    monkeypatch.setattr(script.Grid, "simulated", True)
    return found


def probabilities(partition, round_number, n=ROWS, K=CLASSES):
    random = torch.Generator().manual_seed(100 * partition + round_number)
    return torch.softmax(3 * torch.randn(n, K, generator=random), dim=1)


def answer_of(answers, shared):
    return encode_answers(answers, shared.fingerprint)


@pytest.fixture
def answering(federation, shared):
    """answering(change=None, every=1, **federation) -> clients that answer for the ensemble in every nth evaluation and
    in the last; `change(partition, round, kind, report)` may change that."""

    def start(change=None, every=1, **how):
        def answer(partition, round_number, kind, report):
            due = every and (round_number % every == 0 or made.asked[-1][3].last)
            if kind == "evaluate" and due:
                report = replace(report, ensemble=answer_of(probabilities(partition, round_number), shared))
            return report if change is None else change(partition, round_number, kind, report)

        made = federation(tamper=answer, **how)
        return made

    return start


def naive(answers, labels):
    """Accuracy of the argmax of the mean, from plain floats as they crossed."""
    crossed = [np.asarray(each).astype(np.float16).astype(float).tolist() for each in answers]
    right = 0
    for row, label in enumerate(labels):
        means = [math.fsum(each[row][c] for each in crossed) / len(crossed) for c in range(len(crossed[0][row]))]
        right += max(range(len(means)), key=means.__getitem__) == label
    return right / len(labels)


def lines_of(strategy, without=("time",)):
    return [{name: value for name, value in line.items() if name not in without} for line in strategy.folder.lines()]


@pytest.mark.parametrize(
    ("every", "due", "evaluate_every"),
    [(0, [], 1), (1, [0, 1, 2, 3, 4, 5], 1), (2, [0, 2, 4, 5], 2), (9, [0, 5], 1)],
)
@pytest.mark.parametrize("who", ["all", "sampled"])
def test_who_evaluates_answers_in_every_nth_round_and_at_the_end(answering, shared, every, due, evaluate_every, who):
    made = answering(every=every, clients=6)
    settings = {"rounds": 5, "ensemble-every": every, "fraction-train": 0.5}
    strategy = made.start(settings | {"evaluate-every": evaluate_every, "evaluate-clients": who})
    for line in strategy.folder.lines():
        number = line["round"]
        evaluators = {p for p, r, kind, _ in made.asked if (r, kind) == (number, "evaluate")}
        assert ("ensemble" in line) == (number in due)
        if number in due:
            accuracy = naive([probabilities(p, number) for p in sorted(evaluators)], shared.labels.tolist())
            assert line["ensemble"] == {"accuracy": accuracy, "clients": len(evaluators), "rows": ROWS}
            assert len(evaluators) == (6 if who == "all" else 3)


def spoilt(answers, how):
    values = torch.from_numpy(answers["probabilities"].numpy()).clone()
    mark = int(answers["fingerprint"].numpy()[0])
    if how == "test set":
        mark ^= 1
    elif how == "shape":
        values = values[1:]
    elif how == "sum":
        values[2] *= 0.97
    else:
        values[2, 1] = {"nan": math.nan, "negative": -0.1}[how]
    return encode_answers(values, mark)


_honest: list = []  # the lines of a run of good answers alone, once for all bad ones


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("test set", "of another shared test set than the server's"),
        ("shape", "float16 of shape (10, 4), float16 of (11, 4) were agreed"),
        ("nan", "lies outside 0 to 1"),
        ("negative", "lies outside 0 to 1"),
        ("sum", "do not add up to 1"),
        ("remark", "no ensemble answer: gone"),
    ],
)
def test_a_bad_answer_costs_nothing_but_itself(answering, shared, say, how, words):
    partition = 2

    def change(p, number, kind, report):
        if (p, number, kind) != (partition, 2, "evaluate"):
            return report
        if how == "remark":
            return replace(report, ensemble=None, remark=words)
        return replace(report, ensemble=spoilt(report.ensemble, how))

    settings = {"ensemble-every": 1, "fraction-train": 0.5}
    if not _honest:
        _honest.extend(lines_of(answering().start(settings)))
    strategy = answering(change).start(settings)
    for line, other in zip(lines_of(strategy), _honest, strict=True):
        if line["round"] != 2:
            assert line == other
            continue
        problem = line["problems"].pop(str(partition))
        assert problem.startswith("" if how == "remark" else "ensemble answer dropped: ")
        assert words in problem
        assert line["ensemble"]["clients"] == 3
        left = [probabilities(p, 2) for p in range(4) if p != partition]
        assert line["ensemble"]["accuracy"] == naive(left, shared.labels.tolist())
        for name in ("training", "evaluation", "clients", "problems", "server"):
            assert line[name] == other[name]
    assert any(line.startswith(f"warning: round 2, client {partition}: ") and words in line for line in say())
    assert strategy.failed_in_a_row == 0


def test_where_every_answer_is_bad_there_is_no_figure(answering, shared):
    def change(p, number, kind, report):
        if (number, kind) != (2, "evaluate"):
            return report
        return replace(report, ensemble=spoilt(report.ensemble, "nan"))

    strategy = answering(change).start({"ensemble-every": 1})
    assert ["ensemble" in line for line in strategy.folder.lines()] == [True, True, False, True]
    assert len(strategy.folder.lines()[2]["problems"]) == 4
    assert strategy.failed_in_a_row == 0


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_answer_that_nobody_asked_for_is_dropped_and_nothing_else_changes(answering, shared, kind):
    def change(p, number, of_kind, report):
        unasked = answer_of(probabilities(p, number), shared)
        return replace(report, ensemble=unasked) if (p, number, of_kind) == (1, 1, kind) else report

    runs = (answering(how, every=2).start({"ensemble-every": 2}) for how in (change, None))
    lines, honest = map(lines_of, runs)
    line, other = lines.pop(1), honest.pop(1)
    assert lines == honest
    assert line["problems"] == {"1": "ensemble answer dropped: nobody asked for one"}
    assert line | {"problems": {}, "bytes": {}} == other | {"bytes": {}}


def test_a_shared_test_set_of_other_classes_is_refused_before_the_run(answering, shared, monkeypatch):
    five = SharedLabels(shared.labels, 5, 77)
    monkeypatch.setattr(ensemble_module, "shared_labels", lambda spec: five)
    made = answering()
    with pytest.raises(SettingError, match="the shared test set has 5 classes, but the clients have 4; give both"):
        made.start({"ensemble-every": 1})
    assert made.asked == []


def test_it_is_measured_in_simulations_alone(answering, script, monkeypatch):
    monkeypatch.setattr(script.Grid, "simulated", False)
    made = answering()
    with pytest.raises(SettingError, match="`ensemble-every` is 1, and the ensemble needs a test set"):
        made.start({"ensemble-every": 1})
    assert made.asked == []
