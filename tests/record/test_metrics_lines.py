"""What a person reads while a run runs and after it, from hand-made rounds."""

import itertools
import json
from dataclasses import replace

import pytest

from protosphere.record.metrics_lines import (
    MAJORITY,
    Exchanged,
    add_evaluation,
    console_line,
    empty_line,
    training_line,
)
from protosphere.record.replies import Bytes, Reply
from protosphere.record.summary import (
    FLOORS,
    MAJORITY_ALL_CLASSES,
    MAJORITY_UNWEIGHTED,
    doubts,
    outcome,
    summarise,
)
from protosphere.server_app.exchange import LATE
from protosphere.strategies import read_settings
from protosphere.wire.payloads import Evaluation, Identity, Report, TrainingFigures


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
    line = training_line(number, Exchanged(replies, SENT, 9.0), server)
    add_evaluation(line, Exchanged(evaluations, SENT, 3.0), "classifier", 20, identities, counts_payload)
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


def test_a_message_of_an_evaluation_that_brings_a_download_first_counts_as_one_of_training():
    sizes = line_of(counts_payload=True)["bytes"]
    assert (sizes["payload_down"], sizes["wire_down"]) == (1600 + 1600, 2800 + 2800)
    assert sizes["evaluation_wire_down"] == 0


def test_the_line_of_untrained_models_has_no_training():
    line = empty_line(0)
    add_evaluation(line, Exchanged(EVALUATED, SENT, 3.0), "classifier", 20)
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
    assert line["confusion"] == {
        "rule": "classifier",
        "models": {"a": [[0, 0, 5], [0, 1, 5]]},
        "clients": {"1": [[0, 0, 5], [0, 1, 5]]},
    }
    assert not {"roc_auc", "confusion"} & line_of().keys()


def test_a_round_in_which_nobody_answered():
    line = line_of([Reply(0, trains=True, problem=LATE)], [Reply(1, trains=False, problem=LATE)])
    assert line["training"] == {"asked": 1, "valid": 0, "dropped": 0}
    assert "evaluation" not in line
    assert line["clients"] == {}
    assert line["bytes"]["wire_up"] == 0
    assert line["bytes"]["wire_down"] == 700
    text = console_line(line, 20, "classifier", [3.0])
    assert text == "round  3/20 | 0.0/0.4 kB | 3.0 s | 51 s left"


ENSEMBLE = {"ensemble": {"accuracy": 0.4076, "clients": 4, "rows": 30}}


@pytest.mark.parametrize(
    ("rule", "more", "rounds", "seconds", "text"),
    [
        (
            "classifier",
            {},
            20,
            [60.0, 12.0, 13.0],
            "3/20 |  50.0 % (worst  10.0) | 3.0/1.6 kB | 13 s | 212 s left",
        ),
        (
            "classifier",
            ENSEMBLE,
            9,
            [3.0],
            "3/9 |  50.0 % (worst  10.0, ensemble  40.8) | 3.0/1.6 kB | 3.0 s | 18 s left",
        ),
        ("none", ENSEMBLE, 9, [3.0], "3/9 | ensemble  40.8 % | 3.0/1.6 kB | 3.0 s | 18 s left"),
        # without the primary rule it still tells the rest, and of the last round nothing is left
        ("none", {}, 3, [1.0], "3/3 | 3.0/1.6 kB | 1.0 s"),
    ],
)
def test_the_console_line_of_a_round(rule, more, rounds, seconds, text):
    assert console_line(line_of() | more, rounds, rule, seconds).removeprefix("round").strip() == text


def test_nothing_is_left_of_a_run_that_ended_early():
    line = line_of()
    assert console_line(line, 20, "classifier", [3.0]).endswith(" left")
    assert console_line(line, 20, "classifier", [3.0], is_last=True).endswith("| 3.0 s")


LONGEST = [1, 9_949, 99_950, 994_999, 999_500, 123_456_789, 999_499_999, 999_999_999, 1e11]
DURATIONS = [0.04, 9.96, 123.4, 999.4, 999.6, 5_969, 5_971, 358_000, 359_000, 8e6]


def test_a_round_fits_a_hundred_columns_whatever_it_tells():
    line = line_of() | {"round": 1, "ensemble": {"accuracy": 1.0, "clients": 4, "rows": 30}}
    line["evaluation"]["rules"]["classifier"]["test"] |= {"mean": 1.0, "worst": 1.0}
    for size, last, mean in itertools.product(LONGEST, DURATIONS, DURATIONS):
        line["bytes"] |= {"payload_up": size, "payload_down": size}
        said = console_line(line, 999, "classifier", [last, mean / 998, last])
        assert len(said) <= 100, said
        assert said.isascii()


# --- the summary ------------------------------------------------------------------------------------------


def run_of(tests, validations):
    """Lines of a run of one client with these right answers of ten and four rows, from round 0 on."""
    lines = []
    for number, (right, valid) in enumerate(zip(tests, validations, strict=True)):
        line = empty_line(0)
        if number:
            line = training_line(number, Exchanged([Reply(0, True, size=Bytes(8, 10))], {0: Bytes(4, 5)}, 1.0), {})
        report = Report(0, number, evaluation=evaluation(right, valid))
        reply = Reply(0, False, report, size=Bytes(0, 3))
        add_evaluation(line, Exchanged([reply], {0: Bytes(4, 6)}, 0.5), "classifier", 20)
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
    assert summary["floor"] == {MAJORITY: 0.4, MAJORITY_UNWEIGHTED: 0.4, MAJORITY_ALL_CLASSES: None}
    assert MAJORITY not in summary["rules"]
    assert (summary["bytes"]["payload_up"], summary["bytes"]["wire_down"]) == (24, 15)
    assert (summary["bytes"]["evaluation_wire_up"], summary["bytes"]["evaluation_wire_down"]) == (12, 24)
    assert summary["settings"] == {"rounds": 3}
    assert {"python", "flwr", "torch", "numpy"} <= set(summary["versions"])


def test_the_summary_names_those_that_failed():
    run = read_settings({"inference": "classifier", "strategy": "fedproto"})
    lines = run_of((1, 6, 9, 5), (0, 3, 2, 3))
    assert summarise(run.settings, run.inference, {}, lines, 1)["failures"] == {}
    lines[0]["problems"] = {"10": "ValueError: boom", "2": LATE}
    lines[2]["problems"] = {"10": "upload dropped: a vector holds NaN"}
    lines[3]["problems"] = {"10": LATE}
    summary = summarise(run.settings, run.inference, {}, lines, 1)
    assert summary["problems"] == 4
    assert list(summary["failures"].items()) == [
        ("2", {"rounds": 1, "last_round": 0, "last": LATE}),
        ("10", {"rounds": 3, "last_round": 3, "last": LATE}),
    ]


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


def test_a_run_without_any_evaluation_has_a_summary_all_the_same():
    line = empty_line(0)
    add_evaluation(line, Exchanged([Reply(0, False, problem=LATE)], SENT, 1.0), "classifier", 20)
    summary = summarise(read_settings({}).settings, read_settings({}).inference, {}, [line], 1)
    assert (summary["headline"]["accuracy"], summary["headline"]["round"]) == (None, None)
    assert (summary["floor"], summary["rules"]) == (dict.fromkeys(FLOORS), {})


def test_the_summary_has_the_ensemble_where_it_was_measured():
    run = read_settings({"inference": "classifier", "strategy": "fedproto"})
    lines = run_of((1, 6, 9, 5), (0, 3, 2, 3))
    without = summarise(run.settings, run.inference, {}, lines, 1)
    assert "ensemble" not in without
    for index, accuracy in ((0, 0.25), (2, 0.5), (3, 0.375)):
        lines[index]["ensemble"] = {"accuracy": accuracy, "clients": 1, "rows": 8}
    summary = summarise(run.settings, run.inference, {}, lines, 1)
    assert summary["ensemble"] == {"best": 0.5, "last-5": (0.5 + 0.375) / 2, "final": 0.375, "rows": 8}
    assert summary["rules"].keys() == without["rules"].keys()


def test_a_headline_of_a_round_that_lacks_clients_says_so():
    summary = summary_of()
    assert doubts(summary) == []
    (sentence,) = doubts(summary | {"clients": 3})
    words = "no round evaluated all 3 clients: selected and best are chosen among the rounds that evaluated 1"
    assert sentence == words


def test_a_claim_of_test_samples_weighs_in_part_in_client_best():
    rows = {0: 10, 1: 10, 2: 10_000}
    evaluations = {str(p): {"evaluation": {"pool": [float(p == 2)], "rows": [number]}} for p, number in rows.items()}
    rules = {"pool": {"test": {"mean": 0.5, "plain_mean": 0.5, "clients": 3}, "validation": {"mean": 0.5}}}
    line = {"problems": {}, "clients": evaluations, "round": 1, "evaluation": {"rules": rules}}
    today = {"settings": {"max-weight-ratio": 3.0}, **outcome("pool", [line], 3.0)}
    assert today["rules"]["pool"]["client-best"] == pytest.approx(0.6)


def test_a_domain_has_the_mean_by_samples_and_over_clients():
    test = {"mean": 0.5, "plain_mean": 0.75, "clients": 2}
    rules = {"pool": {"test": test}}
    line = {"problems": {}, "clients": {}, "round": 1, "evaluation": {"rules": rules, "domains": {"usps": rules}}}
    today = {"settings": {}, **outcome("pool", [line], 20.0)}
    assert (today["domains"], today["domains-unweighted"]) == ({"usps": {"pool": 0.5}}, {"usps": {"pool": 0.75}})


def test_the_majority_class_is_averaged_by_test_samples_over_clients_and_over_all_classes():
    rules = {"pool": {"test": {"mean": 0.5, "plain_mean": 0.75, "clients": 2}}}
    rules[MAJORITY] = {"test": {"mean": 0.25, "plain_mean": 0.125, "clients": 2}, "all-classes": {"mean": 0.1}}
    line = {"problems": {}, "clients": {}, "round": 1, "evaluation": {"rules": rules}}
    today = {"settings": {}, **outcome("pool", [line], 20.0)}
    assert today["floor"] == {MAJORITY: 0.25, MAJORITY_UNWEIGHTED: 0.125, MAJORITY_ALL_CLASSES: 0.1}


def test_where_clients_came_and_went_the_choice_is_told():
    summary = summary_of() | {"clients": 3}
    values = summary["rules"]["classifier"] | {"since": 4, "complete": True}
    (sentence,) = doubts(summary | {"rules": {"classifier": values}})
    assert "since round 4, which have the final clients" in sentence


HARDLY = "the private models may be hardly trained: their classifiers reach "


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


def test_a_run_that_ended_before_its_first_round_says_that_nothing_is_trained():
    summary = summary_of() | {"rounds": 0}
    assert doubts(summary) == ["the run ended before its first round: these are untrained models"]
