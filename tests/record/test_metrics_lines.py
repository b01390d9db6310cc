"""What a person reads while a run runs and after it, from hand-made rounds."""

import itertools
import json

import pytest

from protosphere.record.metrics_lines import MAJORITY, add_evaluation, console_line, final_line, times, training_line
from protosphere.record.replies import Bytes, Reply
from protosphere.record.summary import (
    FLOORS,
    MAJORITY_ALL_CLASSES,
    MAJORITY_UNWEIGHTED,
    doubts,
    outcome,
    summarise,
    up_to_date,
)
from protosphere.server_app.exchange import LATE
from protosphere.strategies import read_settings
from protosphere.wire.payloads import Evaluation, Report, TrainingFigures


def evaluation(right, validation=1):
    return Evaluation((10, 4), {"classifier": (right, validation), MAJORITY: (4, 2)}, seconds=0.25)


def reply(partition, right=5, trains=True, rows=30, loss=1.0, **more):
    training = (
        TrainingFigures(rows, 3, {"cross-entropy": loss, "loss": 2 * loss}, 0.5, 1.0, 2.0, 1.5) if trains else None
    )
    report = Report(partition, 2, training=training, evaluation=evaluation(right), seconds=2.0)
    size = Bytes(payload=1000, wire=1500, evaluation=100) if trains else Bytes(0, 300, 120)
    return Reply(partition, trains, report, **({"size": size} | more))


REPLIES = [
    reply(0, right=9, rows=30, loss=1.0),
    reply(1, right=1, trains=False),
    reply(2, right=5, rows=10, loss=3.0),
    Reply(3, trains=True, problem=LATE),
    reply(4, problem="upload dropped: a vector holds NaN", dropped=True),
]
SENT = {partition: Bytes(payload=400, wire=700) for partition in range(5)}


def line_of(replies=REPLIES, server_round=3, of_round=2, **server):
    line = training_line(server_round, replies, SENT, server)
    add_evaluation(line, replies, of_round, 20)
    line["time"] = times(replies, 12.25)
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
    assert line["problems"] == {"3": LATE, "4": "upload dropped: a vector holds NaN"}
    assert line["bytes"] == {
        "payload_up": 3000,
        "payload_down": 1600,
        "wire_up": 4500,
        "wire_down": 2800,
        "evaluation_wire_up": 300,
        "evaluate_only_payload_up": 0,
        "evaluate_only_payload_down": 400,
        "evaluate_only_wire_up": 300,
        "evaluate_only_wire_down": 700,
        "evaluate_only_evaluation_wire_up": 120,
    }
    classifier = line["evaluation"]["rules"]["classifier"]["test"]
    assert line["evaluation"]["of_round"] == 2
    assert classifier["mean"] == pytest.approx((9 + 1 + 5 + 5) / 40)
    assert (classifier["worst"], classifier["clients"], classifier["rows"]) == (0.1, 4, 40)
    assert list(line["clients"]) == ["0", "2", "4", "1"]
    assert line["clients"]["1"] == {"evaluation": {"classifier": [0.1, 0.25], MAJORITY: [0.4, 0.5], "rows": [10, 4]}}
    assert line["clients"]["2"]["training"]["loss"] == {"cross-entropy": 3.0, "loss": 6.0}
    assert line["clients"]["2"]["training"]["rows"] == 10
    assert json.loads(json.dumps(line, allow_nan=False)) == line


def test_answers_for_the_ensemble_count_apart_and_their_refusal_is_told_beside_other_problems():
    asked = [
        reply(0, size=Bytes(payload=1000, wire=1500, evaluation=100, features={"ensemble": 70})),
        reply(
            1,
            trains=False,
            size=Bytes(wire=300, evaluation=120, features={"ensemble": 50}),
            refused="ensemble answer dropped: bad",
        ),
        reply(2, problem="upload dropped: NaN", refused="ensemble answer dropped: worse", dropped=True),
    ]
    line = line_of(asked)
    assert line["bytes"]["ensemble_wire_up"] == 120
    assert (line["bytes"]["wire_up"], line["bytes"]["evaluate_only_wire_up"]) == (3000, 300)
    assert (line["bytes"]["evaluation_wire_up"], line["bytes"]["evaluate_only_evaluation_wire_up"]) == (200, 120)
    assert line["problems"] == {
        "1": "ensemble answer dropped: bad",
        "2": "upload dropped: NaN; ensemble answer dropped: worse",
    }
    assert (line["training"]["valid"], line["training"]["dropped"]) == (1, 1)
    assert asked[1].valid, "a refused answer spoils nothing else"


def test_a_message_for_the_ensemble_alone_is_the_ensembles_both_ways():
    """Whatever came back on it, an upload that nobody asked for too."""
    alone = reply(1, trains=False, size=Bytes(payload=8, wire=300, features={"ensemble": 50}))
    late = Reply(2, trains=False, problem=LATE)
    sent = {0: Bytes(payload=400, wire=700), 1: Bytes(features={"ensemble": 210}), 2: Bytes(features={"ensemble": 220})}
    asked = [reply(0, size=Bytes(payload=1000, wire=1500, evaluation=100, features={"ensemble": 70})), alone, late]
    without = training_line(3, asked[:1], sent, {})["bytes"]
    assert without["ensemble_wire_up"] == 70
    assert "ensemble_wire_down" not in without
    assert training_line(3, asked, sent, {})["bytes"] == without | {
        "ensemble_wire_up": 70 + 300 + 50,
        "ensemble_wire_down": 210 + 220,
    }
    end = final_line(4, [alone, late], sent)["bytes"]
    assert {name: count for name, count in end.items() if count} == {
        "ensemble_wire_up": 350,
        "ensemble_wire_down": 430,
    }


def test_a_round_in_which_nobody_answered():
    silence = [Reply(0, trains=True, problem=LATE), Reply(1, trains=False, problem=LATE)]
    line = line_of(silence)
    assert line["training"] == {"asked": 1, "valid": 0, "dropped": 0}
    assert "evaluation" not in line
    assert line["clients"] == {}
    assert line["bytes"]["wire_up"] == 0
    assert line["bytes"]["wire_down"] == 700
    text = console_line(line, 20, "classifier", [3.0])
    assert text == "round  3/20 | 0.0/0.4 kB | 3.0 s | 51 s left"


ENSEMBLE = {"ensemble": {"of_round": 2, "accuracy": 0.4076, "clients": 4, "rows": 30}}


@pytest.mark.parametrize(
    ("rule", "more", "rounds", "seconds", "text"),
    [
        (
            "classifier",
            {},
            20,
            [60.0, 12.0, 13.0],
            "3/20 | after  2:  50.0 % (worst  10.0) | 3.0/1.6 kB | 13 s | 212 s left",
        ),
        (
            "classifier",
            ENSEMBLE,
            9,
            [3.0],
            "3/9 | after 2:  50.0 % (worst  10.0, ensemble  40.8) | 3.0/1.6 kB | 3.0 s | 18 s left",
        ),
        ("none", ENSEMBLE, 9, [3.0], "3/9 | after 2: ensemble  40.8 % | 3.0/1.6 kB | 3.0 s | 18 s left"),
        # without the primary rule it still tells the rest
        ("none", {}, 3, [1.0], "3/3 | 3.0/1.6 kB | 1.0 s | 0.0 s left"),
    ],
)
def test_the_console_line_of_a_round(rule, more, rounds, seconds, text):
    assert console_line(line_of() | more, rounds, rule, seconds).removeprefix("round").strip() == text


def test_the_console_line_of_the_end():
    replies = [reply(p, right=p, trains=False) for p in range(3)]
    line = final_line(21, replies, SENT)
    add_evaluation(line, replies, 20, 20)
    assert line["final"] is True
    assert "training" not in line
    assert console_line(line, 20, "classifier", [9.0, 0.44]) == (
        "final evaluation | after 20:  10.0 % (worst   0.0) | 0.0/1.2 kB | 0.4 s"
    )


LONGEST = [1, 9_949, 99_950, 994_999, 999_500, 123_456_789, 999_499_999, 999_999_999, 1e11]
DURATIONS = [0.04, 9.96, 123.4, 999.4, 999.6, 5_969, 5_971, 358_000, 359_000, 8e6]


def test_a_round_fits_a_hundred_columns_whatever_it_tells():
    line = line_of() | {"round": 1, "ensemble": {"of_round": 998, "accuracy": 1.0, "clients": 4, "rows": 30}}
    line["evaluation"]["of_round"] = 998
    line["evaluation"]["rules"]["classifier"]["test"] |= {"mean": 1.0, "worst": 1.0}
    for size, last, mean in itertools.product(LONGEST, DURATIONS, DURATIONS):
        line["bytes"] |= {"payload_up": size, "payload_down": size}
        said = console_line(line, 999, "classifier", [last, mean / 998, last])
        assert len(said) <= 100, said
        assert said.isascii()


# --- the summary ------------------------------------------------------------------------------------------


def run_of(tests, validations):
    """Lines of a run of one client with these right answers of ten and four rows."""
    lines = []
    for of_round, (right, valid) in enumerate(zip(tests, validations, strict=True)):
        last = of_round == len(tests) - 1
        replies = [
            Reply(0, not last, Report(0, of_round + 1, evaluation=evaluation(right, valid)), size=Bytes(8, 10, 1))
        ]
        line = (final_line if last else lambda *a: training_line(*a, {}))(of_round + 1, replies, {0: Bytes(4, 5)})
        add_evaluation(line, replies, of_round, 20)
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
        "clients": 1,
    }
    headline = {"rule": "classifier", "figure": "selected", "accuracy": 0.5, "of_round": 3}
    headline |= {"unweighted": 0.5, "clients": 1, "rows": 10}
    assert summary["headline"] == headline
    assert summary["gradient_steps"] is None
    assert summary["floor"] == {MAJORITY: 0.4, MAJORITY_UNWEIGHTED: 0.4, MAJORITY_ALL_CLASSES: None}
    assert MAJORITY not in summary["rules"]
    assert summary["bytes"]["payload_up"] == 24
    assert summary["bytes"]["evaluate_only_payload_up"] == 8
    assert summary["bytes"]["wire_down"] == 15
    assert summary["settings"] == {"rounds": 3}
    assert {"python", "flwr", "torch", "numpy"} <= set(summary["versions"])


def test_the_summary_of_an_earlier_version_means_what_it_means_today():
    """It chose among round 0, too, and weighed the clients of `client-best` alike."""
    run = read_settings({"inference": "classifier", "strategy": "fedproto"})
    lines = run_of((9, 6, 5), (9, 3, 2))
    today = summarise(run.settings, run.inference, {}, lines, 1)
    earlier = today | {
        "headline": today["headline"] | {"accuracy": 0.9, "of_round": 0},
        "rules": {"classifier": {"selected": 0.9, "selected_round": 0, "client-best": 0.9, "final": 0.5}},
    }
    assert up_to_date(earlier, lines) == today
    # so did the ensemble's best
    told = ({"of_round": number, "accuracy": accuracy, "rows": 4} for number, accuracy in enumerate((0.9, 0.5)))
    asked = [each | {"ensemble": found} for each, found in zip(lines, told, strict=False)]
    ensemble = {"best": 0.5, "last-5": 0.5, "final": 0.5, "rows": 4}
    assert up_to_date(earlier | {"ensemble": ensemble | {"best": 0.9}}, asked)["ensemble"] == ensemble
    assert up_to_date(today, []) == today
    # kept by the clients: there is nothing to work out
    assert up_to_date({"rules": {}}, []) == {"rules": {}}


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
        ("2", {"rounds": 1, "last_round": 1, "last": LATE}),
        ("10", {"rounds": 3, "last_round": 4, "last": LATE}),
    ]


def test_without_validation_rows_the_headline_is_the_final_and_says_so():
    lines = run_of((1, 6, 9, 5), (0, 0, 0, 0))
    for line in lines:
        for rule in line["evaluation"]["rules"].values():
            del rule["validation"]
    run = read_settings({"inference": "classifier"})
    summary = summarise(run.settings, run.inference, {}, lines, 1)
    headline = {"rule": "classifier", "figure": "final", "accuracy": 0.5, "of_round": 3}
    headline |= {"unweighted": 0.5, "clients": 1, "rows": 10}
    assert summary["headline"] == headline
    assert summary["rules"]["classifier"]["selected"] is None


def test_a_run_without_any_evaluation_has_a_summary_all_the_same():
    line = final_line(2, [Reply(0, False, problem=LATE)], SENT)
    line["time"] = {"round": 1.0}
    summary = summarise(read_settings({}).settings, read_settings({}).inference, {}, [line], 1)
    assert (summary["headline"]["accuracy"], summary["headline"]["of_round"]) == (None, None)
    assert (summary["floor"], summary["rules"]) == (dict.fromkeys(FLOORS), {})


def test_the_summary_has_the_ensemble_where_it_was_measured():
    run = read_settings({"inference": "classifier", "strategy": "fedproto"})
    lines = run_of((1, 6, 9, 5), (0, 3, 2, 3))
    without = summarise(run.settings, run.inference, {}, lines, 1)
    assert "ensemble" not in without
    for index, accuracy in ((0, 0.25), (2, 0.5), (3, 0.375)):
        lines[index]["ensemble"] = {"of_round": index, "accuracy": accuracy, "clients": 1, "rows": 8}
        lines[index]["bytes"]["ensemble_wire_up"] = 40 + index
    summary = summarise(run.settings, run.inference, {}, lines, 1)
    assert summary["ensemble"] == {"best": 0.5, "last-5": (0.5 + 0.375) / 2, "final": 0.375, "rows": 8}
    assert summary["bytes"]["ensemble_wire_up"] == 125
    assert summary["rules"].keys() == without["rules"].keys()


def test_a_headline_of_a_round_that_lacks_clients_says_so():
    summary = summary_of()
    assert doubts(summary) == []
    (sentence,) = doubts(summary | {"clients": 3})
    words = "no round evaluated all 3 clients: selected and best are chosen among the rounds that evaluated 1"
    assert sentence == words


def test_a_claim_that_was_not_believed_is_not_believed_later_either():
    rows = {0: 10, 1: 10, 2: 10_000}
    evaluations = {str(p): {"evaluation": {"pool": [float(p == 2)], "rows": [number]}} for p, number in rows.items()}
    rules = {"pool": {"test": {"mean": 0.5, "plain_mean": 0.5, "clients": 3}, "validation": {"mean": 0.5}}}
    line = {"problems": {}, "clients": evaluations, "evaluation": {"of_round": 1, "rules": rules}}
    today = {"settings": {"max-weight-ratio": 3.0}, **outcome("pool", [line], 3.0)}
    earlier_rules = {"pool": {name: value for name, value in today["rules"]["pool"].items() if name != "clients"}}
    assert up_to_date(today | {"rules": earlier_rules}, [line]) == today
    assert today["rules"]["pool"]["client-best"] == pytest.approx(0.6)


def test_a_summary_that_knows_domains_by_test_samples_alone_gets_the_mean_over_clients():
    test = {"mean": 0.5, "plain_mean": 0.75, "clients": 2}
    rules = {"pool": {"test": test}}
    line = {"problems": {}, "clients": {}, "evaluation": {"of_round": 1, "rules": rules, "domains": {"usps": rules}}}
    today = {"settings": {}, **outcome("pool", [line], 20.0)}
    assert (today["domains"], today["domains-unweighted"]) == ({"usps": {"pool": 0.5}}, {"usps": {"pool": 0.75}})
    earlier = {name: value for name, value in today.items() if name != "domains-unweighted"}
    assert up_to_date(earlier, [line]) == today


def test_the_majority_class_is_averaged_by_test_samples_over_clients_and_over_all_classes():
    rules = {"pool": {"test": {"mean": 0.5, "plain_mean": 0.75, "clients": 2}}}
    rules[MAJORITY] = {"test": {"mean": 0.25, "plain_mean": 0.125, "clients": 2}, "all-classes": {"mean": 0.1}}
    line = {"problems": {}, "clients": {}, "evaluation": {"of_round": 1, "rules": rules}}
    today = {"settings": {}, **outcome("pool", [line], 20.0)}
    assert today["floor"] == {MAJORITY: 0.25, MAJORITY_UNWEIGHTED: 0.125, MAJORITY_ALL_CLASSES: 0.1}
    # earlier versions had the first alone, or the first two
    for floors in ({MAJORITY: 0.25}, {MAJORITY: 0.25, MAJORITY_UNWEIGHTED: 0.125}):
        assert up_to_date(today | {"floor": floors}, [line]) == today


def test_where_clients_came_and_went_the_choice_is_told():
    summary = summary_of() | {"clients": 3}
    values = summary["rules"]["classifier"] | {"since": 4, "complete": True}
    (sentence,) = doubts(summary | {"rules": {"classifier": values}})
    assert "since round 4, which have the final clients" in sentence
