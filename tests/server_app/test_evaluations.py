"""What clients tell beside their uploads: answers for the ensemble, confusion, area under the curve, figures under
`privacy`. What does not fit is dropped by itself, and what nobody asked for is not taken."""

import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, MetricRecord

from protosphere.core.errors import SettingError
from protosphere.record.folder import RunFolder
from protosphere.server_app import ensemble as ensemble_module
from protosphere.server_app.ensemble import score
from tests.tampered import tampered

CLASSES, ROWS, LIAR = 4, 11, 1
LABELS = [number % CLASSES for number in range(ROWS)]


def lines_of(strategy):
    return [{name: value for name, value in line.items() if name != "time"} for line in strategy.folder.lines()]


# --- the ensemble ---------------------------------------------------------------------------------------------


def probabilities(partition, round_number):
    random = torch.Generator().manual_seed(100 * partition + round_number)
    return torch.softmax(3 * torch.randn(ROWS, CLASSES, generator=random), dim=1)


def encoded(values):
    return Array(values.to(torch.float16).numpy())


def shared(num_classes=CLASSES):
    """What the server reads of the shared test set."""
    data = SimpleNamespace(labels=np.array(LABELS), class_names=("",) * num_classes)
    return lambda settings, clients: (data, np.arange(ROWS))


@pytest.fixture
def answering(federation, script, monkeypatch):
    """answering(change=None, every=1) -> clients that answer for the ensemble in every nth evaluation and in the last;
    `change(partition, round, kind, report)` may change that."""
    monkeypatch.setattr(ensemble_module, "shared_test_set", shared())
    monkeypatch.setattr(script.Grid, "simulated", True)

    def start(change=None, every=1):
        def answer(partition, round_number, kind, report):
            if kind == "evaluate" and (round_number % every == 0 or made.asked[-1][3].last):
                report = replace(report, ensemble=encoded(probabilities(partition, round_number)))
            return report if change is None else change(partition, round_number, kind, report)

        made = federation(tamper=answer)
        return made

    return start


def accuracy_of(partitions, number):
    """Accuracy of the argmax of the mean, from plain floats as they crossed."""
    crossed = [np.asarray(probabilities(p, number)).astype(np.float16).astype(float).tolist() for p in partitions]
    right = 0
    for row, label in enumerate(LABELS):
        means = [math.fsum(each[row][c] for each in crossed) / len(crossed) for c in range(CLASSES)]
        right += max(range(CLASSES), key=means.__getitem__) == label
    return right / ROWS


def spoilt(answers, how):
    values = torch.from_numpy(answers.numpy()).clone()
    if how == "shape":
        return encoded(values[1:])
    if how == "type":
        return Array(values.float().numpy())
    values[2, 1] = math.nan
    return encoded(values)


BAD_ANSWERS = [
    ("shape", "float16 of shape (10, 4), float16 of (11, 4) were agreed"),
    ("type", "float32 of shape (11, 4), float16 of (11, 4) were agreed"),
    ("NaN", "its probabilities are not finite"),
]


def test_a_bad_answer_costs_nothing_but_itself_and_is_named(answering, say):
    settings = {"ensemble-every": 1, "fraction-train": 0.5}
    honest = lines_of(answering().start(settings))
    for line in honest:
        found = {"accuracy": accuracy_of(range(4), line["round"]), "clients": 4, "rows": ROWS}
        assert line["ensemble"] == found
    for how, words in BAD_ANSWERS:

        def change(partition, number, kind, report, how=how):
            if (partition, number, kind) != (2, 2, "evaluate"):
                return report
            return replace(report, ensemble=spoilt(report.ensemble, how))

        lines = lines_of(answering(change).start(settings))
        line, other = lines.pop(2), honest[2]
        assert lines == honest[:2] + honest[3:]
        problem = line["problems"].pop("2")
        assert problem.startswith("ensemble answer dropped: ")
        assert words in problem
        assert line["ensemble"] == {"accuracy": accuracy_of((0, 1, 3), 2), "clients": 3, "rows": ROWS}
        assert all(line[name] == other[name] for name in ("training", "evaluation", "clients", "problems", "server"))
        assert any(said.startswith("warning: round 2, client 2: ") and words in said for said in say())


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_answer_that_nobody_asked_for_is_dropped_and_nothing_else_changes(answering, kind):
    def change(partition, number, of_kind, report):
        unasked = encoded(probabilities(partition, number))
        return replace(report, ensemble=unasked) if (partition, number, of_kind) == (1, 1, kind) else report

    lines, honest = (lines_of(answering(how, every=2).start({"ensemble-every": 2})) for how in (change, None))
    line, other = lines.pop(1), honest.pop(1)
    assert lines == honest
    assert line["problems"] == {"1": "ensemble answer dropped: nobody asked for one"}
    assert line | {"problems": {}, "bytes": {}} == other | {"bytes": {}}


def test_what_no_ensemble_can_be_measured_on_is_refused_before_the_run(answering, script, monkeypatch):
    made = answering()
    monkeypatch.setattr(ensemble_module, "shared_test_set", shared(num_classes=5))
    with pytest.raises(SettingError, match="the shared test set has 5 classes, but the clients have 4; give both"):
        made.start({"ensemble-every": 1})
    monkeypatch.setattr(script.Grid, "simulated", False)
    with pytest.raises(SettingError, match="`ensemble-every` is 1, and the ensemble needs a test set"):
        made.start({"ensemble-every": 1})
    assert made.asked == []


def test_the_score_depends_neither_on_who_came_first_nor_on_a_narrow_type():
    # two classes that tie but for the order of summation: another order would answer another class
    thirds = [torch.tensor([[a, b]], dtype=torch.float64) for a, b in ((0.1, 0.3), (0.2, 0.2), (0.3, 0.1))]
    orders = itertools.permutations(enumerate(thirds))
    assert len({score(dict(order), torch.tensor([0]))["accuracy"] for order in orders}) == 1
    # class 1 is ahead by 2^-11 of one client: added to 64 in float16, whose step there is 2^-4, it would be lost
    half, ahead = (torch.tensor([[0.5, 0.5 + more]], dtype=torch.float16) for more in (0, 2**-11))
    assert score(dict.fromkeys(range(129), half) | {129: ahead}, torch.tensor([1]))["accuracy"] == 1


# --- confusion and area under the curve -------------------------------------------------------------------------


def telling(forge=lambda counts: counts, in_round=2):
    """Clients that tell their confusion in a round: all rows in the first two classes; client 0 forges it."""

    def tell(partition, round_number, kind, report):
        if report.evaluation is None or round_number != in_round:
            return report
        right, counts = report.evaluation.correct["local-prototypes"][0], [0] * CLASSES * CLASSES
        counts[0], counts[CLASSES + 1], counts[1] = right // 2, right - right // 2, report.evaluation.rows[0] - right
        own = tuple(forge(counts) if partition == 0 else counts)
        return replace(report, evaluation=replace(report.evaluation, confusion=own))

    return tell


def test_confusion_is_summed_and_what_does_not_fit_the_evaluation_is_dropped_by_itself(federation):
    last = lines_of(federation(tamper=telling()).start({"rounds": 2}))[-1]
    assert last["confusion"]["clients"].keys() == {"0", "1", "2", "3"}
    assert sum(rows for *_, rows in last["confusion"]["models"]["scripted"]) == 4 * 6
    assert last["problems"] == {}
    forged = telling(lambda counts: [counts[0] + 1, *counts[1:]])
    last = lines_of(federation(tamper=forged).start({"rounds": 2}))[-1]
    assert last["confusion"]["clients"].keys() == {"1", "2", "3"}
    assert "confusion dropped" in last["problems"]["0"]
    assert "evaluation" in last["clients"]["0"]


@pytest.mark.parametrize(("settings", "in_round"), [({}, 1), ({"confusion": "never"}, 2)])
def test_confusion_that_nobody_asked_for_is_dropped(federation, settings, in_round):
    line = lines_of(federation(tamper=telling(in_round=in_round)).start({"rounds": 2} | settings))[in_round]
    assert "confusion" not in line
    assert all("nobody asked for one" in line["problems"][str(partition)] for partition in range(4))
    assert "evaluation" in line


def test_each_evaluation_has_the_area_under_the_curve_where_that_is_asked_for(run, metrics):
    for line in metrics(run({"rounds": 1, "roc-auc": True})):
        assert line["roc_auc"]["by_client"].keys() == line["clients"].keys()


# --- under privacy ------------------------------------------------------------------------------------------------

PRIVATE = {"strategy": "fedproto", "rounds": 1, "max-samples": 160, "privacy": "release", "encoder": "handcrafted"}


def with_figures(records, partition, number):
    """A client that says how well it does, and on how many samples."""
    if "seconds" not in records["config"]:
        return
    rows = [10**9, 10**9]
    evaluation = {"evaluation.rows": rows, "evaluation.seconds": 0.0, "correct.classifier": rows}
    training = {"training.rows": 10**9, "training.steps": 1, "loss.loss": 1e50}
    figures = dict.fromkeys(("training.gradient_ratio", "training.target_norm", "training.seconds"), 0.0)
    records["metrics"] = MetricRecord(evaluation | training | figures)


def test_figures_that_one_client_tells_under_privacy_are_not_the_run_s(run):
    folder = run(PRIVATE, grid=tampered(with_figures, of=LIAR))
    untrained, line = RunFolder(folder).lines()
    words = "figures dropped: under `privacy` a client keeps them"
    assert [each["problems"] for each in (untrained, line)] == [{str(LIAR): words}] * 2
    assert not any("evaluation" in each for each in (untrained, line))
    assert "loss" not in line["training"]
    # its release counts as the others' do
    assert line["training"]["valid"] == 4
    assert json.loads((folder / "summary.json").read_text())["headline"]["accuracy"] is None


# --- claims of samples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "claim", "words"),
    [
        ("evaluation", [10**6, 10**6], "it claims (1000000, 1000000) test and validation samples"),
        ("training", 10**6, "it claims 1000000 training samples"),
    ],
)
def test_a_reply_of_rows_that_a_client_does_not_have_is_dropped(run, metrics, record, claim, words):
    def forge(records, partition, number):
        if f"{record}.rows" in records.get("metrics", ()):
            records["metrics"] = MetricRecord(dict(records["metrics"]) | {f"{record}.rows": claim})

    lines = metrics(run(grid=tampered(forge, of=LIAR)))
    assert all(record not in line["clients"].get(str(LIAR), {}) for line in lines)
    assert words in lines[1]["problems"][str(LIAR)]
    # a client that lies about one thing is believed in nothing of that reply
    assert lines[1]["training"]["valid"] == (3 if record == "training" else 4)
