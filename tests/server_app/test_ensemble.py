"""The ensemble: who is asked when, what is scored, what is dropped, and that nothing else of a run knows of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from protosphere.core.errors import SettingError
from protosphere.data.client_data import DataSpec
from protosphere.data.shared_test_set import SharedTestSpec, shared_labels
from protosphere.wire.ensemble import encode_answers
from protosphere.wire.messages import encode_report
from protosphere.wire.sizes import wire_bytes

CLASSES, ROWS = 4, 11
APART = {"ensemble_wire_up", "ensemble_wire_down"}


def scans(folder, values, classes, size=8):
    """Images (1, size, size), unlike each other, in folders named by their class, value mod classes."""
    for value in values:
        place = folder / str(value % classes)
        place.mkdir(parents=True, exist_ok=True)
        shape = np.full((size, size), value, dtype=np.uint8)
        shape[0, 0] = 250
        Image.fromarray(shape).save(place / f"{value:03d}.png")
    return folder


@pytest.fixture
def shared(tmp_path, home):
    """A shared test set of four classes, as the server sees it; `.path` is where it lies."""
    folder = scans(tmp_path / "shared", range(ROWS), CLASSES)
    found = shared_labels(SharedTestSpec(DataSpec("digits", clients=4), home / "cache", str(folder)))
    assert sorted(found.labels.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    return found, {"shared-test-path": str(folder)}


def probabilities(partition, round_number, n=ROWS, K=CLASSES):
    random = torch.Generator().manual_seed(100 * partition + round_number)
    return torch.softmax(3 * torch.randn(n, K, generator=random), dim=1)


def answer_of(answers, shared):
    return {"ensemble": encode_answers(answers, shared[0].fingerprint)}


@pytest.fixture
def answering(federation, shared):
    """answering(change=None, after=None, **federation) -> clients that answer whenever they are asked.

    `change(partition, round, kind, report)` may change that, and `after(partition, round)` delays it.
    """

    def start(change=None, after=None, **how):
        def answer(partition, round_number, kind, report):
            if "ensemble" in made.asked[-1][3].asks:
                report = replace(report, answers=answer_of(probabilities(partition, round_number), shared))
            content = report if change is None else change(partition, round_number, kind, report)
            return (after(partition, round_number), content) if after else content

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
    ("every", "due", "evaluate_every", "who"),
    [(0, [], 1, "all"), (1, [1, 2, 3, 4, 5, 6], 2, "sampled"), (2, [1, 3, 5, 6], 2, "all"), (9, [1, 6], 1, "all")],
)
def test_all_clients_answer_in_every_nth_round_and_at_the_end(answering, shared, every, due, evaluate_every, who):
    found, path = shared
    made = answering(clients=6)
    settings = {"rounds": 5, "ensemble-every": every, "fraction-train": 0.5}
    strategy = made.start(settings | path | {"evaluate-every": evaluate_every, "evaluate-clients": who})
    lines = strategy.folder.lines()
    for number in range(1, 7):
        asked = {p: (kind, told) for p, r, kind, told in made.asked if r == number}
        sampled = {p for p, (kind, _) in asked.items() if kind == "train"}
        assert len(sampled) == (3 if number < 6 else 0)
        assert {p for p, (_, told) in asked.items() if "ensemble" in told.asks} == (
            set(range(6)) if number in due else set()
        )
        evaluated = number == 6 or (number - 1) % evaluate_every == 0
        chosen = set(range(6)) if who == "all" else sampled if number < 6 else set(strategy.sample(5))
        assert {p for p, (_, told) in asked.items() if told.evaluate} == (chosen if evaluated else set())
        line = lines[number - 1]
        assert ("ensemble" in line) == (number in due)
        if number in due:
            accuracy = naive([probabilities(p, number) for p in range(6)], found.labels.tolist())
            assert line["ensemble"] == {"of_round": number - 1, "accuracy": accuracy, "clients": 6, "rows": ROWS}
    asked = [(p, r) for p, r, _, _ in made.asked]
    assert len(set(asked)) == len(asked), "one message a client and round"


@pytest.mark.parametrize("settings", [{"evaluate-every": 2}, {"evaluate-clients": "sampled"}])
def test_a_message_for_the_ensemble_alone_is_in_no_other_count(answering, shared, script, settings):
    """Neither what goes down on it, prototypes too, nor the whole of what comes back."""
    settings = settings | {"rounds": 4, "fraction-train": 0.5}
    plain = answering().start(settings).folder.lines()
    made = answering()
    lines = made.start(settings | {"ensemble-every": 1} | shared[1]).folder.lines()
    down, up = dict.fromkeys(range(1, 6), 0), dict.fromkeys(range(1, 6), 0)
    messages = [message for message in made.grid.sent if message.metadata.message_type != "query"]
    for (p, number, kind, told), message in zip(made.asked, messages, strict=True):
        report = made.report(p, number, kind, told.evaluate)
        records = encode_report(replace(report, answers=answer_of(probabilities(p, number), shared)), script.CODEC)
        alone = kind == "evaluate" and not told.evaluate
        down[number] += wire_bytes(message.content) * alone
        up[number] += wire_bytes(records) - wire_bytes(records, without=("ensemble",)) * (not alone)
    # evaluation falls out in rounds 2 and 4; of four clients two are sampled in each round, and asked at the end
    expected = [2, 4] if "evaluate-every" in settings else [1, 2, 3, 4, 5]
    assert [number for number, count in down.items() if count] == expected
    for line, other in zip(lines, plain, strict=True):
        found = [line["bytes"].pop(name, 0) for name in ("ensemble_wire_up", "ensemble_wire_down")]
        assert found == [up[line["round"]], down[line["round"]]]
        assert not APART & other["bytes"].keys()
        # the feature's name in each question
        for name in ("wire_down", "evaluate_only_wire_down"):
            assert 0 <= line["bytes"].pop(name) - other["bytes"].pop(name) < 4 * 50
        assert line["bytes"] == other["bytes"]


def spoilt(answers, how):
    values = torch.from_numpy(answers["ensemble"]["probabilities"].numpy()).clone()
    mark = int(answers["ensemble"]["fingerprint"].numpy()[0])
    if how == "test set":
        mark ^= 1
    elif how == "shape":
        values = values[1:]
    elif how == "sum":
        values[2] *= 0.97
    else:
        values[2, 1] = {"nan": math.nan, "negative": -0.1}[how]
    return {"ensemble": encode_answers(values, mark)}


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
        if (p, number) != (partition, 2):
            return report
        if how == "remark":
            return replace(report, answers={}, remark=words)
        return replace(report, answers=spoilt(report.answers, how))

    settings = {"ensemble-every": 1, "fraction-train": 0.5} | shared[1]
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
        assert line["ensemble"]["accuracy"] == naive(left, shared[0].labels.tolist())
        for name in ("training", "evaluation", "clients", "problems", "server"):
            assert line[name] == other[name]
    assert any(line.startswith(f"warning: round 2, client {partition}: ") and words in line for line in say())
    assert strategy.failed_in_a_row == 0


def test_where_every_answer_is_bad_there_is_no_figure(answering, shared):
    def change(p, number, kind, report):
        return replace(report, answers=spoilt(report.answers, "nan")) if number == 2 else report

    strategy = answering(change).start({"ensemble-every": 1} | shared[1])
    assert ["ensemble" in line for line in strategy.folder.lines()] == [True, False, True, True]
    assert len(strategy.folder.lines()[1]["problems"]) == 4
    assert strategy.failed_in_a_row == 0


def test_an_answer_that_nobody_asked_for_is_dropped_and_nothing_else_changes(answering, shared):
    def change(p, number, kind, report):
        unasked = answer_of(probabilities(p, number), shared)
        return replace(report, answers=unasked) if (p, number) == (1, 2) else report

    runs = (answering(how).start({"ensemble-every": 2} | shared[1]) for how in (change, None))
    lines, honest = map(lines_of, runs)
    line, other = lines.pop(1), honest.pop(1)
    assert lines == honest
    assert line["problems"] == {"1": "ensemble answer dropped: nobody asked for one"}
    assert line["bytes"].pop("ensemble_wire_up") > 0
    assert "ensemble_wire_up" not in other["bytes"]
    assert line | {"problems": {}} == other


def test_a_shared_test_set_that_is_missing_or_of_other_classes_is_refused_before_the_run(answering, tmp_path):
    five = scans(tmp_path / "five", range(10), 5)
    for place, words in (
        (tmp_path / "nowhere", r"`ensemble-every` is 1, but the server cannot .*shared-test-path: .*nowhere' does not"),
        (five, "the shared test set has 5 classes, but the clients have 4; give both"),
    ):
        made = answering()
        with pytest.raises(SettingError, match=words):
            made.start({"ensemble-every": 1, "shared-test-path": str(place)})
        assert made.asked == []
        made.start({"shared-test-path": str(place)})
