"""From replies to lines, the console, the table of clients and the summary, against loops that anybody can follow."""

import json
import random
import statistics
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score

import protosphere
from protosphere.record import client_tables
from protosphere.record.confusion import OTHER, confusion_figures, macro, per_class
from protosphere.record.folder import RunFolder
from protosphere.record.metrics_lines import (
    MAJORITY,
    Exchanged,
    add_evaluation,
    console_line,
    empty_line,
    of_client,
    over_clients,
    over_trainings,
    training_line,
)
from protosphere.record.replies import Bytes, Reply
from protosphere.record.summary import (
    FIGURES_OF_RULE,
    MAJORITY_UNWEIGHTED,
    by_domain,
    doubts,
    ensemble_headline,
    headlines,
    summarise,
)
from protosphere.server_app.exchange import LATE
from protosphere.strategies import read_settings
from protosphere.wire.payloads import Evaluation, Identity, Report, TrainingFigures
from tests.strategies.watched import start

RULES = ("classifier", "local-prototypes")
BELIEVED = 1e9  # whatever a client claims


# --- over clients -------------------------------------------------------------------------------------------


def random_evaluations(clients, seed):
    draw = random.Random(seed)
    found = {}
    for partition in draw.sample(range(1000), clients):
        rows = (draw.randint(0, 40), draw.choice([0, 0, 7]))
        # a client without training rows has no local rule
        rules = draw.sample(RULES, draw.randint(1, 2))
        found[partition] = Evaluation(rows, {rule: tuple(draw.randint(0, n) for n in rows) for rule in rules})
    return found


@pytest.mark.parametrize("clients", [1, 2, 10, 19, 35])
def test_over_clients_against_a_naive_computation(clients):
    evaluations = random_evaluations(clients, seed=clients)
    figures = over_clients(evaluations, BELIEVED)
    assert set(figures) == {rule for evaluation in evaluations.values() for rule in evaluation.correct}
    for rule, splits in figures.items():
        for index, split in enumerate(("test", "validation")):
            right, rows, accuracies = 0, 0, []
            for evaluation in evaluations.values():
                if rule in evaluation.correct and evaluation.rows[index] > 0:
                    right += evaluation.correct[rule][index]
                    rows += evaluation.rows[index]
                    accuracies.append(evaluation.correct[rule][index] / evaluation.rows[index])
            if not accuracies:
                assert split not in splits
                continue
            worst_tenth = sorted(accuracies)[: max(1, len(accuracies) // 10)]
            assert splits[split] == {
                "mean": right / rows,
                "plain_mean": pytest.approx(statistics.mean(accuracies), abs=1e-15),
                "std": pytest.approx(statistics.pstdev(accuracies), abs=1e-12),
                "worst": min(accuracies),
                "worst_tenth": pytest.approx(statistics.mean(worst_tenth), abs=1e-15),
                "clients": len(accuracies),
                "rows": rows,
            }


def test_order_of_arrival_changes_no_bit():
    evaluations = random_evaluations(35, seed=3)
    backwards = dict(reversed(evaluations.items()))
    assert over_clients(evaluations, BELIEVED) == over_clients(backwards, BELIEVED)
    trainings = {p: TrainingFigures(3 + p, 1, {"loss": 1 / (p + 1)}, 0.1 * p, 0.7, 0.3) for p in range(30)}
    assert over_trainings(trainings) == over_trainings(dict(reversed(trainings.items())))


def test_a_claim_of_many_samples_weighs_as_the_ratio_says_it_may():
    """One of three says that it was right on all of two billion test samples."""
    evaluations = {
        0: Evaluation((10, 0), {"classifier": (5, 0)}),
        1: Evaluation((20, 0), {"classifier": (5, 0)}),
        2: Evaluation((2**31 - 1, 0), {"classifier": (2**31 - 1, 0)}),
    }
    test = over_clients(evaluations, 20)["classifier"]["test"]
    # the median of the claims is 20
    assert test["mean"] == pytest.approx((5 + 5 + 400) / (10 + 20 + 400))
    assert test["plain_mean"] == pytest.approx((0.5 + 0.25 + 1) / 3)
    clients = {str(p): {"evaluation": of_client(evaluation)} for p, evaluation in evaluations.items()}
    lines = [{"round": 1, "evaluation": {"rules": over_clients(evaluations, 20)}, "clients": clients}]
    assert headlines(lines, 20)["classifier"]["client-best"] == pytest.approx(test["mean"])


def test_loss_is_averaged_by_rows_over_those_that_have_the_part_and_the_rest_plainly():
    trainings = {
        4: TrainingFigures(30, 1, {"loss": 1.0, "prototype-pull": 4.0}, 0.5, 3.0, 1.0, seconds=9.0),
        2: TrainingFigures(10, 9, {"loss": 5.0}, 0.0, 0.0, 2.0),
        7: TrainingFigures(10, 1, {"prototype-pull": 8.0}, 0.1, 0.6, 3.0),
    }
    assert over_trainings(trainings) == {
        "loss": {"loss": pytest.approx(80 / 40), "prototype-pull": pytest.approx(200 / 40)},
        "steps": pytest.approx(11 / 3),
        "gradient_ratio": pytest.approx(0.2),
        "target_norm": pytest.approx(1.2),
        "prototype_norm": pytest.approx(2.0),
    }


# --- a line -------------------------------------------------------------------------------------------------


def evaluation(right, validation=1, **more):
    correct = {"classifier": (right, validation), MAJORITY: (4, 2)}
    return Evaluation((10, 4), correct, seconds=0.25, **more)


def trained(partition, rows=30, loss=1.0, **more):
    training = TrainingFigures(rows, 3, {"cross-entropy": loss, "loss": 2 * loss}, 0.5, 1.0, 2.0, 1.5)
    report = Report(partition, 3, training=training, seconds=2.0)
    return Reply(partition, True, report, **({"size": Bytes(1000, 1500)} | more))


def evaluated(partition, right=5, **more):
    report = Report(partition, 3, evaluation=evaluation(right), seconds=0.5)
    return Reply(partition, False, report, **({"size": Bytes(0, 300)} | more))


TRAINED = [
    trained(0, rows=30, loss=1.0),
    trained(2, rows=10, loss=3.0),
    Reply(3, trains=True, problem=LATE),
    trained(4, problem="upload dropped: a vector holds NaN", dropped=True),
]

EVALUATED = [evaluated(0, 9), evaluated(1, 1), evaluated(2), evaluated(4, refused="confusion dropped: bad")]

SENT = {partition: Bytes(400, 700) for partition in range(5)}


def line_of(replies=TRAINED, evaluations=EVALUATED, number=3, counts_payload=False, identities=None, **server):
    line = training_line(number, Exchanged(replies, SENT), server)
    add_evaluation(line, Exchanged(evaluations, SENT), "classifier", 20, identities, counts_payload)
    line["time"]["round"] = 12.25
    return line


def test_a_rounds_line():
    line = line_of(alignment_solver="simplex", distance_share=None)
    assert line["round"] == 3
    training = line["training"]
    assert (training["asked"], training["valid"], training["dropped"]) == (4, 2, 1)
    # parts of the loss by rows, over all that trained: (30 * 1 + 10 * 3 + 30 * 1) / 70
    assert training["loss"]["cross-entropy"] == pytest.approx(90 / 70)
    assert (training["gradient_ratio"], training["target_norm"], training["prototype_norm"]) == (0.5, 1.0, 2.0)
    assert line["server"] == {"alignment_solver": "simplex", "distance_share": None}
    assert line["problems"] == {
        "3": LATE,
        "4": "upload dropped: a vector holds NaN; confusion dropped: bad",
    }
    assert line["bytes"] == {
        "payload_up": 3000,
        "payload_down": 1600,
        "wire_up": 4500,
        "wire_down": 2800,
        "evaluation_wire_up": 1200,
        "evaluation_wire_down": 2800,
    }
    classifier = line["evaluation"]["rules"]["classifier"]["test"]
    assert classifier["mean"] == pytest.approx((9 + 1 + 5 + 5) / 40)
    assert (classifier["worst"], classifier["clients"], classifier["rows"]) == (0.1, 4, 40)
    assert line["clients"].keys() == {"0", "1", "2", "4"}
    assert line["clients"]["1"] == {"evaluation": {"classifier": [0.1, 0.25], MAJORITY: [0.4, 0.5], "rows": [10, 4]}}
    assert line["clients"]["2"]["training"]["loss"] == {"cross-entropy": 3.0, "loss": 6.0}
    assert line["clients"]["2"]["training"]["rows"] == 10
    assert line["time"]["train"] == {"0": 1.5, "2": 1.5, "4": 1.5}
    assert line["time"]["client"] == {"0": 2.5, "1": 0.5, "2": 2.5, "4": 2.5}
    assert json.loads(json.dumps(line, allow_nan=False)) == line


def test_the_line_of_untrained_models_has_no_training():
    line = empty_line(0)
    add_evaluation(line, Exchanged(EVALUATED, SENT), "classifier", 20)
    assert "training" not in line
    assert {name: size for name, size in line["bytes"].items() if size} == {
        "evaluation_wire_up": 1200,
        "evaluation_wire_down": 2800,
    }
    assert console_line(line, 20, "classifier", [0.44]) == "round  0/20 |  50.0 % (worst  10.0) | 0.4 s"


def test_area_under_the_curve_and_confusion_are_over_clients():
    areas = {0: 0.9, 1: 0.6}
    replies = []
    for partition, area in areas.items():
        report = Report(partition, 3, evaluation=evaluation(5, auc=area))
        confusion = [[0, 0, 5], [0, 1, 5]] if partition else []
        replies.append(Reply(partition, False, report, confusion=confusion))
    more = replace(replies[1].report, evaluation=Evaluation((30, 4), {"classifier": (5, 1)}, auc=0.6))
    replies[1] = replace(replies[1], report=more)
    identities = {partition: Identity(partition, 2, model="a") for partition in areas}
    line = line_of(evaluations=replies, identities=identities)
    assert line["roc_auc"] == {
        "rule": "classifier",
        "mean": pytest.approx((10 * 0.9 + 30 * 0.6) / 40),
        "worst": 0.6,
        "clients": 2,
        "by_client": {"0": 0.9, "1": 0.6},
    }
    assert line["confusion"]["clients"] == {"1": [[0, 0, 5], [0, 1, 5]]}
    assert not {"roc_auc", "confusion"} & line_of().keys()


def test_figures_are_by_domain_where_clients_name_theirs():
    domains = ("dark", "light", "light")
    replies = [Reply(p, False, Report(p, 3, evaluation=evaluation(p + 1))) for p in range(3)]
    identities = {p: Identity(p, 3, model="a", domain=domain) for p, domain in enumerate(domains)}
    found = line_of(evaluations=replies, identities=identities)["evaluation"]
    assert {domain: rules["classifier"]["test"]["mean"] for domain, rules in found["domains"].items()} == {
        "dark": pytest.approx(0.1),
        "light": pytest.approx(0.25),
    }
    assert by_domain(found)["domains"]["dark"]["classifier"] == pytest.approx(0.1)


def test_a_round_in_which_nobody_answered():
    line = line_of([Reply(0, trains=True, problem=LATE)], [Reply(1, trains=False, problem=LATE)])
    assert line["training"] == {"asked": 1, "valid": 0, "dropped": 0}
    assert "evaluation" not in line
    assert line["clients"] == {}
    assert line["bytes"]["wire_up"] == 0
    assert line["bytes"]["wire_down"] == 700
    text = console_line(line, 20, "classifier", [3.0])
    assert text == "round  3/20 | 0.0 kB up, 0.4 kB down | 3.0 s | 51 s left"


ENSEMBLE = {"ensemble": {"accuracy": 0.4076, "clients": 4, "rows": 30}}


@pytest.mark.parametrize(
    ("rule", "more", "rounds", "seconds", "text"),
    [
        (
            "classifier",
            {},
            20,
            [60.0, 12.0, 13.0],
            "3/20 |  50.0 % (worst  10.0) | 3.0 kB up, 1.6 kB down | 13.0 s | 3 min 32 s left",
        ),
        (
            "classifier",
            ENSEMBLE,
            9,
            [3.0],
            "3/9 |  50.0 % (worst  10.0, ensemble  40.8) | 3.0 kB up, 1.6 kB down | 3.0 s | 18 s left",
        ),
        ("none", ENSEMBLE, 9, [3.0], "3/9 | ensemble  40.8 % | 3.0 kB up, 1.6 kB down | 3.0 s | 18 s left"),
        # without the primary rule it still tells the rest, and of the last round nothing is left
        ("none", {}, 3, [1.0], "3/3 | 3.0 kB up, 1.6 kB down | 1.0 s"),
    ],
)
def test_the_console_line_of_a_round(rule, more, rounds, seconds, text):
    assert console_line(line_of() | more, rounds, rule, seconds).removeprefix("round").strip() == text


# --- what is taken for what -----------------------------------------------------------------------------------

COUNTS = {
    0: [[0, 0, 3], [0, 1, 1], [1, 1, 2]],
    1: [[0, 1, 4], [1, 0, 1], [1, 1, 1]],
    2: [[0, 0, 5]],
}

MODELS = {0: "a", 1: "b", 2: "a"}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_counts_are_summed_by_architecture_in_whatever_order_they_come(order):
    found = confusion_figures({partition: COUNTS[partition] for partition in order}, "classifier", MODELS)["confusion"]
    assert found["rule"] == "classifier"
    assert found["models"] == {"a": [[0, 0, 8], [0, 1, 1], [1, 1, 2]], "b": [[0, 1, 4], [1, 0, 1], [1, 1, 1]]}
    assert found["clients"]["2"] == [[0, 0, 5]]
    told = per_class([{"round": 1}, {"confusion": found}])["classes"]
    assert told["all"] == {"0": {"accuracy": 8 / 13, "rows": 13}, "1": {"accuracy": 3 / 4, "rows": 4}}
    assert told["models"]["b"]["0"] == {"accuracy": 0.0, "rows": 4}


def triples_of(true, predicted):
    pairs, counts = np.unique(np.stack([true, predicted]), axis=1, return_counts=True)
    return [[int(a), int(b), int(count)] for (a, b), count in zip(pairs.T, counts, strict=True)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_macro_figures_are_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    K, number = int(rng.integers(2, 12)), int(rng.integers(1, 60))
    # rare classes, classes that nobody predicts, and such as only predictions have
    true = rng.choice(K, number, p=rng.dirichlet(np.full(K, 0.4)))
    predicted = np.where(rng.random(number) < 0.5, true, rng.integers(0, K, number))
    found = macro(triples_of(true, predicted))
    assert found["accuracy"] == pytest.approx(balanced_accuracy_score(true, predicted), abs=1e-12)
    labels = np.unique(true)
    assert found["f1"] == pytest.approx(f1_score(true, predicted, labels=labels, average="macro"), abs=1e-12)


def test_where_counts_do_not_tell_there_is_none():
    assert macro([]) == {"accuracy": None, "f1": None}
    assert macro([[0, 0, 3], [0, OTHER, 1], [1, OTHER, 2]]) == {"accuracy": 0.375, "f1": None}
    assert per_class([{}]) == {}


# --- the table of clients ---------------------------------------------------------------------------------------

THIRD = 1 / 3

LINE = {
    "round": 7,
    "clients": {
        "10": {"evaluation": {"classifier": [THIRD, None], "rows": [3, 0]}},
        "0": {"training": {"loss": {"loss": THIRD, "pull": 2.0}, "rows": 2**40, "prototype_norm": None, "steps": 4}},
        "2": {
            "training": {"loss": {}, "rows": 5},
            "evaluation": {"classifier": [0.1, 0.2], "majority-class": [0.3, 0.4], "mean": [0.5, 0.6], "rows": [1, 2]},
        },
    },
    "problems": {"3": "late"},
    "time": {"round": 0.1, "train": {"0": 0.25}},
}

ROSTER = [
    {"partition": 0, "model": "cnn", "name": "north"},
    {"partition": 2, "model": "mlp", "name": ""},
    {"partition": 3, "model": "mlp", "name": ""},
    {"partition": 10, "model": "cnn", "name": ""},
]


def test_a_row_is_a_client_in_a_round_and_a_column_a_figure():
    (rows,) = client_tables.rows_of_run([LINE], ROSTER, "mean")
    assert [(row["round"], row["client"], row["model"]) for row in rows] == [
        (7, 0, "cnn"),
        (7, 2, "mlp"),
        (7, 3, "mlp"),
        (7, 10, "cnn"),
    ]
    trained, both, late, evaluated = rows
    assert (
        trained.items() >= {"loss": THIRD, "loss/pull": 2.0, "train_rows": 2**40, "steps": 4, "seconds": 0.25}.items()
    )
    assert "prototype_norm" not in trained
    assert both.items() >= {"accuracy": 0.5, "validation": 0.6, "accuracy/classifier": 0.1, "train_rows": 5}.items()
    assert both.items() >= {"majority-class": 0.3, "test_rows": 1, "validation_rows": 2}.items()
    assert late["problem"] == "late"
    assert evaluated["accuracy/classifier"] == THIRD
    assert "accuracy" not in evaluated


def test_a_run_ends_with_the_table_and_a_resumed_one_has_that_of_a_run_that_was_never_cut(home):
    settings = {"evaluate-every": 1}
    whole, resumed = start(settings | {"rounds": 2}), start(settings | {"rounds": 1})
    assert len(pd.read_parquet(resumed / client_tables.FILE)) == 6
    assert start(settings | {"rounds": 2, "resume": str(resumed)}) == resumed
    tables = [pd.read_parquet(folder / client_tables.FILE).drop(columns="seconds") for folder in (whole, resumed)]
    pd.testing.assert_frame_equal(*tables)
    assert len(tables[0]) == 9
    frame = protosphere.load(whole).clients.drop(columns="seconds")
    pd.testing.assert_frame_equal(tables[0], frame, check_dtype=False, check_like=True)
    RunFolder(whole).truncate(1)
    assert not (whole / client_tables.FILE).exists()


# --- the figures that head a run -----------------------------------------------------------------------------


def line(number, test, validation=None, clients=None, rule="classifier"):
    """A line of metrics.jsonl as far as headlines look at it: the means, and each client's test accuracy; client p has
    10 ** p test samples."""
    splits = {"test": {"mean": test}} | ({} if validation is None else {"validation": {"mean": validation}})
    clients = clients or {}
    return {
        "round": number,
        "evaluation": {"rules": {rule: splits}},
        "clients": {
            p: {"evaluation": {rule: [accuracy, None], "rows": [10 ** int(p), 0]}} for p, accuracy in clients.items()
        },
    }


# by every figure round 0 would be chosen, if it could be
LINES = [
    line(0, 0.90, 0.90, {"0": 1.0, "1": 1.0, "2": 1.0}),
    # nothing was evaluated in this round, and client 3 only trained
    {"round": 1, "training": {}, "clients": {"3": {"training": {"rows": 4}}}},
    line(2, 0.50, 0.60, {"0": 0.9, "1": 0.3}),
    line(3, 0.70, 0.55, {"1": 0.4, "2": 0.5, "3": None}),
    line(4, 0.60, 0.60, {"0": 0.2, "2": 0.8}),
    line(5, 0.40, 0.30, {"0": 0.5, "1": 0.2, "2": 0.1}),
    line(6, 0.55, 0.10, {"1": 0.35}),
]


def test_headlines_of_a_sequence_made_by_hand():
    assert headlines(LINES) == {
        "classifier": {
            # validation is best in rounds 2 and 4: the later counts
            "selected": 0.60,
            "selected_round": 4,
            "best": 0.70,
            # clients 0, 1 and 2 of 1, 10 and 100 test samples; client 3 has none
            "client-best": pytest.approx((0.9 + 10 * 0.4 + 100 * 0.8) / 111),
            "client-best-unweighted": pytest.approx((0.9 + 0.4 + 0.8) / 3),
            "last-5": pytest.approx((0.50 + 0.70 + 0.60 + 0.40 + 0.55) / 5),
            "final": 0.55,
            "final-unweighted": None,
            "worst": None,
            "clients": 0,
        }
    }


# test mean, validation mean, clients that were evaluated
DROPOUT = [(0.2, 0.2, 3), (0.80, 0.80, 3), (0.99, 1.00, 2), (0.90, 0.85, 3), (0.95, 0.95, 1)]


def lines_of(rounds, **more):
    lines = []
    for number, (test, validation, clients) in enumerate(rounds):
        splits = {"test": {"mean": test, "clients": clients}, "validation": {"mean": validation, "clients": clients}}
        found = {"round": number, "evaluation": {"rules": {"classifier": splits}}, "clients": {}}
        lines.append(found | {name: values[number] for name, values in more.items()})
    return lines


def test_no_round_that_lacks_a_client_is_chosen_where_one_has_all():
    found = headlines(lines_of(DROPOUT))["classifier"]
    assert (found["selected"], found["selected_round"], found["best"], found["clients"]) == (0.90, 3, 0.90, 3)
    # the last evaluations are whatever they are
    assert found["final"] == 0.95


def test_where_clients_come_and_go_a_round_since_the_last_change_is_chosen():
    rounds = [(0.2, 0.2, 4), (0.6, 0.6, 4), (0.99, 0.99, 2), (0.8, 0.8, 3), (0.7, 0.7, 3), (0.97, 0.97, 2)]
    before, after = {"clients": 4, "since": 0}, {"clients": 3, "since": 3}
    found = headlines(lines_of(rounds, members=[before, before, before, after, after, after]))["classifier"]
    assert (found["selected"], found["selected_round"], found["best"]) == (0.8, 3, 0.8)
    assert (found["clients"], found["since"], found["complete"]) == (3, 3, True)
    lacking = {"clients": 5, "since": 3}
    found = headlines(lines_of(rounds, members=[before, before, before, lacking, lacking, lacking]))["classifier"]
    assert (found["selected_round"], found["clients"], found["complete"]) == (3, 3, False)


def test_before_training_there_is_nothing_to_choose_but_the_final_figure():
    found = headlines([line(0, 0.5, 0.5, {"0": 0.0, "1": 1.0})])["classifier"]
    assert found == dict.fromkeys(FIGURES_OF_RULE) | {"final": 0.5}


def test_the_ensembles_best_is_none_of_round_0():
    """It is chosen among trained models, as every other best."""
    measured = [{"round": r, "ensemble": {"accuracy": a, "rows": 4}} for r, a in ((0, 0.9), (1, 0.5), (2, 0.4))]
    found = {"best": 0.5, "last-5": 0.45, "final": 0.4, "rows": 4}
    assert ensemble_headline(measured) == {"ensemble": found}
    untrained = {"best": None, "last-5": None, "final": 0.9, "rows": 4}
    assert ensemble_headline(measured[:1]) == {"ensemble": untrained}


# --- the summary ---------------------------------------------------------------------------------------------


def run_of(tests, validations):
    """Lines of a run of one client with these right answers of ten and four rows, from round 0 on."""
    lines = []
    for number, (right, valid) in enumerate(zip(tests, validations, strict=True)):
        line = empty_line(0)
        if number:
            line = training_line(number, Exchanged([Reply(0, True, size=Bytes(8, 10))], {0: Bytes(4, 5)}), {})
        report = Report(0, number, evaluation=evaluation(right, valid))
        reply = Reply(0, False, report, size=Bytes(0, 3))
        add_evaluation(line, Exchanged([reply], {0: Bytes(4, 6)}), "classifier", 20)
        line["time"] = {"round": 1.5}
        lines.append(line)
    return lines


def summary_of(tests=(1, 6, 9, 5), validations=(0, 3, 2, 3), **settings):
    run = read_settings({"inference": "classifier", "strategy": "fedproto", "seed": 7} | settings)
    lines = run_of(tests, validations)
    lines[1]["problems"] = {"2": LATE}
    return summarise(run.settings, run.inference, {"rounds": 3}, lines, 1)


def test_the_summary():
    summary = summary_of()
    assert summary["status"] == "completed"
    assert (summary["strategy"], summary["dataset"], summary["seed"]) == ("fedproto", "digits", 7)
    assert (summary["clients"], summary["rounds"], summary["problems"], summary["seconds"]) == (1, 3, 1, 6.0)
    # the best validation mean is round 1's, and round 3's is equal: the later counts
    assert summary["rules"]["classifier"] == {
        "selected": 0.5,
        "selected_round": 3,
        "best": 0.9,
        "client-best": 0.9,
        "client-best-unweighted": 0.9,
        "last-5": pytest.approx((0.6 + 0.9 + 0.5) / 3),
        "final": 0.5,
        "final-unweighted": 0.5,
        "worst": 0.5,
        "clients": 1,
    }
    headline = {"rule": "classifier", "figure": "selected", "accuracy": 0.5, "round": 3}
    headline |= {"unweighted": 0.5, "clients": 1, "rows": 10}
    assert summary["headline"] == headline
    assert summary["gradient_steps"] is None
    assert summary["floor"] == {MAJORITY: 0.4, MAJORITY_UNWEIGHTED: 0.4}
    assert MAJORITY not in summary["rules"]
    assert (summary["bytes"]["payload_up"], summary["bytes"]["wire_down"]) == (24, 15)
    assert (summary["bytes"]["evaluation_wire_up"], summary["bytes"]["evaluation_wire_down"]) == (12, 24)
    assert summary["settings"] == {"rounds": 3}
    assert {"python", "flwr", "torch", "numpy"} <= set(summary["versions"])


def test_without_validation_rows_the_headline_is_the_final_and_says_so():
    lines = run_of((1, 6, 9, 5), (0, 0, 0, 0))
    for line in lines:
        for rule in line["evaluation"]["rules"].values():
            del rule["validation"]
    run = read_settings({"inference": "classifier"})
    summary = summarise(run.settings, run.inference, {}, lines, 1)
    headline = {"rule": "classifier", "figure": "final", "accuracy": 0.5, "round": 3}
    headline |= {"unweighted": 0.5, "clients": 1, "rows": 10}
    assert summary["headline"] == headline
    assert summary["rules"]["classifier"]["selected"] is None


def test_a_headline_of_a_round_that_lacks_clients_says_so():
    summary = summary_of()
    assert doubts(summary) == []
    (sentence,) = doubts(summary | {"clients": 3})
    words = "no round evaluated all 3 clients: selected and best are chosen among the rounds that evaluated 1"
    assert sentence == words


HARDLY = "the private models may need more training: their classifiers reach "


@pytest.mark.parametrize(
    ("accuracy", "discriminant", "majority", "steps", "reason"),
    [
        (0.44, 0.86, 0.3, 2.5, f"{HARDLY}44.0 %, a linear discriminant of their features 86.0 %"),
        (0.29, None, 0.3, 2.5, f"{HARDLY}29.0 %, always predicting the most frequent class 30.0 %"),
        (0.78, 0.86, 0.3, 2.5, ""),
        (0.44, 0.86, 0.3, None, ""),
        (None, 0.86, 0.3, 2.5, ""),
    ],
    ids=["below the discriminant", "below the majority", "a little below", "nobody trained", "no classifier"],
)
def test_models_that_are_hardly_trained_are_named(accuracy, discriminant, majority, steps, reason):
    # 5 points are usual where there are few samples
    rules = {
        "classifier": {"selected": None, "final": accuracy},
        "discriminant": {"selected": discriminant, "final": 0.1},
    }
    summary = {"headline": {"rule": "classifier"}, "rules": rules, "floor": {MAJORITY: majority}}
    summary |= {"clients": 2, "rounds": 3, "gradient_steps": steps}
    remedy = "; try more `rounds` or `local-epochs`"
    assert doubts(summary) == ([reason + remedy] if reason else [])
