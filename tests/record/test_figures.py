"""Figures of rounds and runs against loops that anybody can follow."""

import random
import statistics

import pytest

from protosphere.record.metrics_lines import of_client, over_clients, over_trainings
from protosphere.record.summary import FIGURES_OF_RULE, by_domain, ensemble_headline, gradient_steps, headlines
from protosphere.wire.payloads import Evaluation, TrainingFigures

RULES = ("classifier", "local-prototypes")
BELIEVED = 1e9  # whatever a client claims


def random_evaluations(clients, seed):
    draw = random.Random(seed)
    found = {}
    for partition in draw.sample(range(1000), clients):
        rows = (draw.randint(0, 40), draw.choice([0, 0, 7]), *draw.choice([(), (draw.randint(0, 90),)]))
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
        for index, split in enumerate(("test", "validation", "all-classes")):
            right, rows, accuracies = 0, 0, []
            for evaluation in evaluations.values():
                # a client that is not tested on the classes that it lacks has two counts
                if rule in evaluation.correct and len(evaluation.rows) > index and evaluation.rows[index] > 0:
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


def test_nobody_evaluated_and_nobody_trained():
    assert over_clients({}, BELIEVED) == {}
    assert over_clients({0: Evaluation((5, 5), {})}, BELIEVED) == {}
    assert over_clients({0: Evaluation((0, 0), {"classifier": (0, 0)})}, BELIEVED) == {"classifier": {}}
    assert over_trainings({}) == {}


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


def test_one_client():
    evaluation = Evaluation((4, 0, 8), {"classifier": (3, 0, 4), "global-prototypes": (1, 0, 1)})
    assert of_client(evaluation) == {
        "classifier": [0.75, None, 0.5],
        "global-prototypes": [0.25, None, 0.125],
        "rows": [4, 0, 8],
    }


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


def test_a_claim_weighs_no_more_in_the_loss_than_in_other_figures():
    trainings = {p: TrainingFigures(10, 1, {"loss": 1.0}, 0.5, 3.0, 1.0) for p in range(4)}
    trainings[4] = TrainingFigures(2**31 - 1, 1, {"loss": 1e6}, 0.5, 3.0, 1.0)
    assert over_trainings(trainings, 20)["loss"]["loss"] == pytest.approx((4 * 10 + 200 * 1e6) / 240)
    assert over_trainings(trainings, 1)["loss"]["loss"] == pytest.approx((4 + 1e6) / 5)


# --- headlines ----------------------------------------------------------------------------------------------


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


def test_the_unweighted_final_figure_is_the_plain_mean_over_clients_of_the_last_evaluation():
    evaluations = [
        {0: Evaluation((10, 0), {"classifier": (5, 0)}), 1: Evaluation((90, 0), {"classifier": (0, 0)})},
        {0: Evaluation((10, 0), {"classifier": (9, 0)}), 1: Evaluation((90, 0), {"classifier": (45, 0)})},
    ]
    lines = [
        {"round": number, "evaluation": {"rules": over_clients(found, BELIEVED)}, "clients": {}}
        for number, found in enumerate(evaluations)
    ]
    found = headlines(lines)["classifier"]
    assert (found["final"], found["final-unweighted"]) == (pytest.approx(0.54), pytest.approx(0.7))


def test_a_domain_is_averaged_by_test_samples_and_over_its_clients():
    evaluations = {
        "usps": {0: Evaluation((10, 0), {"classifier": (9, 0)}), 1: Evaluation((90, 0), {"classifier": (45, 0)})},
        # nobody could be tested
        "svhn": {2: Evaluation((0, 4), {"classifier": (0, 2)})},
    }
    evaluation = {"domains": {name: over_clients(found, BELIEVED) for name, found in evaluations.items()}}
    assert by_domain(evaluation) == {
        "domains": {"usps": {"classifier": pytest.approx(0.54)}, "svhn": {}},
        "domains-unweighted": {"usps": {"classifier": pytest.approx(0.7)}, "svhn": {}},
    }
    assert by_domain({}) == {}


def test_no_round_that_lacks_a_client_is_chosen_where_one_has_all():
    found = headlines(lines_of(DROPOUT))["classifier"]
    assert (found["selected"], found["selected_round"], found["best"], found["clients"]) == (0.90, 3, 0.90, 3)
    # the last evaluations are whatever they are
    assert found["final"] == 0.95


def test_where_no_round_has_all_it_is_one_of_those_with_the_most():
    found = headlines(lines_of([(0.2, 0.2, 3), (0.9, 0.9, 1), (0.7, 0.7, 2), (0.6, 0.6, 2)]))["classifier"]
    assert (found["selected"], found["selected_round"], found["best"], found["clients"]) == (0.7, 2, 0.7, 2)


def test_where_clients_come_and_go_a_round_since_the_last_change_is_chosen():
    rounds = [(0.2, 0.2, 4), (0.6, 0.6, 4), (0.99, 0.99, 2), (0.8, 0.8, 3), (0.7, 0.7, 3), (0.97, 0.97, 2)]
    before, after = {"clients": 4, "since": 0}, {"clients": 3, "since": 3}
    found = headlines(lines_of(rounds, members=[before, before, before, after, after, after]))["classifier"]
    assert (found["selected"], found["selected_round"], found["best"]) == (0.8, 3, 0.8)
    assert (found["clients"], found["since"], found["complete"]) == (3, 3, True)
    lacking = {"clients": 5, "since": 3}
    found = headlines(lines_of(rounds, members=[before, before, before, lacking, lacking, lacking]))["classifier"]
    assert (found["selected_round"], found["clients"], found["complete"]) == (3, 3, False)


@pytest.mark.parametrize(("number", "last_five"), [(1, None), (3, 0.50), (4, 0.60), (7, 0.55)])
def test_the_last_five_leave_the_untrained_models_out_and_may_be_fewer(number, last_five):
    found = headlines(LINES[:number])["classifier"]["last-5"]
    assert found == (None if last_five is None else pytest.approx(last_five))


def test_a_rule_that_begins_later_is_measured_from_there():
    lines = [line(0, 0.2, 0.9, {"0": 0.2}), line(1, 0.4, 0.1, {"0": 0.4}, rule="global-prototypes")]
    found = headlines(lines)
    assert set(found) == {"classifier", "global-prototypes"}
    figures = dict.fromkeys(("selected", "best", "client-best", "client-best-unweighted", "last-5", "final"), 0.4)
    assert found["global-prototypes"] == figures | {
        "selected_round": 1,
        "clients": 0,
        "final-unweighted": None,
        "worst": None,
    }
    assert found["classifier"]["final"] == 0.2


def test_what_was_not_measured_has_no_figure_and_what_is_always_wrong_has_zero():
    nothing = line(1, 0.0, clients={"0": None})
    nothing["evaluation"]["rules"] = {"classifier": {}}
    found = headlines([nothing])["classifier"]
    assert found == dict.fromkeys(FIGURES_OF_RULE)
    assert headlines([]) == headlines([LINES[1]]) == {}
    assert headlines([line(1, 0.5, clients={"0": 0.0})])["classifier"]["client-best"] == 0


def test_before_training_there_is_nothing_to_choose_but_the_final_figure():
    found = headlines([line(0, 0.5, 0.5, {"0": 0.0, "1": 1.0})])["classifier"]
    assert found == dict.fromkeys(FIGURES_OF_RULE) | {"final": 0.5}


def test_gradient_steps_are_a_client_s_in_a_round():
    lines = [{"training": {"steps": 4.0}}, {"training": {}}, {"training": {"steps": 8.0}}, {"round": 0}]
    assert gradient_steps(lines) == 6
    assert gradient_steps(lines[1:2]) is None


def test_all_classes_is_of_the_last_evaluation():
    lines = [line(1, 0.9), line(2, 0.8)]
    for number, found in enumerate(lines):
        found["evaluation"]["rules"]["classifier"]["all-classes"] = {"mean": (number + 1) / 10}
    lines[0]["clients"] = {"0": {"evaluation": {"classifier": [0.9, None, 0.1], "rows": [1, 0, 10]}}}
    assert headlines(lines)["classifier"]["all-classes"] == 0.2
    del lines[1]["evaluation"]["rules"]["classifier"]["all-classes"]
    assert "all-classes" not in headlines(lines)["classifier"]


@pytest.mark.parametrize(
    ("accuracies", "best", "last_five", "final"),
    [
        ([0.25], 0.25, 0.25, 0.25),
        ([0.5, 0.0], 0.5, 0.25, 0.0),
        ([1.0, 0.5, 0.25, 0.5, 0.75, 0.5, 0.25], 1.0, 0.45, 0.25),
    ],
)
def test_the_ensembles_headline(accuracies, best, last_five, final):
    """Rounds without the measurement stand between those with it and count for nothing."""
    measured = [{"round": 1, "ensemble": {"accuracy": a, "clients": 3, "rows": 4}} for a in accuracies]
    lines = [line for one in measured for line in ({"clients": {}}, one)] + [{"clients": {}}]
    found = ensemble_headline(lines)
    assert found == {
        "ensemble": {"best": best, "last-5": pytest.approx(last_five, abs=1e-15), "final": final, "rows": 4}
    }


def test_the_ensembles_best_is_none_of_round_0():
    """It is chosen among trained models, as every other best."""
    measured = [{"round": r, "ensemble": {"accuracy": a, "rows": 4}} for r, a in ((0, 0.9), (1, 0.5), (2, 0.4))]
    found = {"best": 0.5, "last-5": 0.45, "final": 0.4, "rows": 4}
    assert ensemble_headline(measured) == {"ensemble": found}
    untrained = {"best": None, "last-5": None, "final": 0.9, "rows": 4}
    assert ensemble_headline(measured[:1]) == {"ensemble": untrained}
