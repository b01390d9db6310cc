"""From what clients report to the figures of a round and of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from protosphere.wire.claims import most_believed, over_claimed
from protosphere.wire.payloads import Evaluation, TrainingFigures

MAJORITY = "majority-class"  # the floor beside every result: always answer the client's most frequent class
MAJORITY_UNWEIGHTED = "majority-class-unweighted"  # the same with every client alike
SPLITS = ("test", "validation", "all-classes")
FIGURES = ("selected", "best", "client-best", "client-best-unweighted", "last-5", "final", "final-unweighted")
FIGURES_OF_RULE = ("selected", "selected_round", *FIGURES[1:], "clients")
MEANS = ("gradient_ratio", "target_norm", "prototype_norm")


def over_clients(evaluations: Mapping[int, Evaluation], ratio: float) -> dict[str, dict[str, Any]]:
    """Accuracy by rule and split, over clients.

    Args:
        evaluations: by partition id.
        ratio: the most that a client may weigh, in medians of the clients' numbers of samples.

    Returns:
        rule -> split -> mean (weighted by samples, as far as they are believed), plain_mean, std (over clients), worst,
        worst_tenth (mean of the worst tenth, one client at least), clients and rows covered. A split without rows is
        missing. `all-classes` are the test rows of the classes that a client lacks as well, where it is tested on them.
    """
    rules = sorted({rule for evaluation in evaluations.values() for rule in evaluation.correct})
    figures: dict[str, dict[str, Any]] = {}
    for rule in rules:
        figures[rule] = {}
        for index, split in enumerate(SPLITS):
            counts = {
                partition: (evaluation.correct[rule][index], evaluation.rows[index])
                for partition, evaluation in sorted(evaluations.items())
                if rule in evaluation.correct and any(evaluation.rows[index : index + 1])
            }
            if counts:
                shares = over_claimed(samples_of(evaluations, index), ratio)
                figures[rule][split] = _spread(counts, shares)
    return figures


def samples_of(evaluations: Mapping[int, Evaluation], index: int = 0) -> dict[int, int]:
    """Partition -> the samples of a split that it says it was evaluated on: by default those of its test."""
    return {partition: sum(evaluation.rows[index : index + 1]) for partition, evaluation in evaluations.items()}


def _spread(counts_by_client: Mapping[int, tuple[int, int]], shares: Mapping[int, float]) -> dict[str, float | int]:
    """Args:
    counts_by_client: right answers and samples.
    shares: of whose samples only a share is believed.
    """
    counts = list(counts_by_client.values())
    accuracies = sorted(right / rows for right, rows in counts)
    plain_mean = math.fsum(accuracies) / len(accuracies)
    tenth = accuracies[: max(1, len(accuracies) // 10)]
    total = sum(rows for _, rows in counts)
    weights = [shares.get(partition, 1) for partition in counts_by_client]
    right = sum(weight * right for weight, (right, _) in zip(weights, counts, strict=True))
    return {
        "mean": right / sum(weight * rows for weight, (_, rows) in zip(weights, counts, strict=True)),
        "plain_mean": plain_mean,
        "std": math.sqrt(math.fsum((a - plain_mean) ** 2 for a in accuracies) / len(accuracies)),
        "worst": accuracies[0],
        "worst_tenth": math.fsum(tenth) / len(tenth),
        "clients": len(counts),
        "rows": total,
    }


def of_client(evaluation: Evaluation) -> dict[str, Any]:
    """One client's accuracies: rule -> one for each of `SPLITS` that it reports, None where it has no such rows."""
    return {
        rule: [right / rows if rows else None for right, rows in zip(counts, evaluation.rows, strict=True)]
        for rule, counts in evaluation.correct.items()
    } | {"rows": list(evaluation.rows)}


def over_trainings(trainings: Mapping[int, TrainingFigures], ratio: float = math.inf) -> dict[str, Any]:
    """Mean of the clients' training figures: parts of the loss by training samples, the rest plainly over the clients
    that have them; `steps` are a client's gradient steps in this round.

    Args:
        ratio: the most that a client weighs, in medians of the clients' numbers of samples.
    """
    ordered = [figures for _, figures in sorted(trainings.items())]
    if not ordered:
        return {}
    shares = over_claimed({partition: figures.rows for partition, figures in trainings.items()}, ratio)
    weights = {partition: figures.rows * shares.get(partition, 1.0) for partition, figures in sorted(trainings.items())}
    names = list(dict.fromkeys(name for figures in ordered for name in figures.parts))
    loss = {}
    for name in names:
        having = [partition for partition in weights if name in trainings[partition].parts]
        total = sum(weights[partition] for partition in having)
        loss[name] = math.fsum(trainings[p].parts[name] * weights[p] for p in having) / total
    values_by_name = {name: [f for figures in ordered if (f := getattr(figures, name)) is not None] for name in MEANS}
    means = {name: math.fsum(values) / len(values) for name, values in values_by_name.items() if values}
    return {"loss": loss, "steps": sum(figures.steps for figures in ordered) / len(ordered), **means}


def gradient_steps(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """A client's gradient steps in a round: mean over clients, then over rounds. None where no round says it: nobody
    trained, or the steps stay with the clients."""
    steps = [line["training"]["steps"] for line in lines if "steps" in line.get("training", {})]
    return math.fsum(steps) / len(steps) if steps else None


def headlines(lines: Sequence[Mapping[str, Any]], ratio: float = math.inf) -> dict[str, dict[str, float | int | None]]:
    """The run's figures by rule, from the lines of metrics.jsonl.

    Round 0, before training, is chosen by none of them; of equal rounds the latest is. `selected` and `best` are chosen
    among the rounds in which every client was evaluated that was to be; where there is none, among those with the most:
    else a round in which a weak client is missing would be the best.

    Args:
        ratio: the most that a client may weigh, in medians of the clients' numbers of test samples.

    Returns:
        rule -> selected (test mean at the evaluation with the best validation mean; None without validation
        samples) and selected_round; and, chosen on the test set as the papers do: best (highest test mean of any
        evaluation, TinyProto's), client-best (mean of every client's own best, weighted by its test samples as all
        other figures are) and client-best-unweighted (every client alike, ProtoNorm's), last-5 (mean of the last five
        evaluations, or of as many as there are, FedPAGR's), each None before the first evaluation of trained models;
        final; final-unweighted (every client alike, as GFPL and PFPL average); clients, how many were evaluated in the
        rounds among which was chosen, at most; and where clients are tested on the classes that they lack, too,
        all-classes (of the last evaluation).
    """
    evaluated = [line for line in lines if line.get("evaluation", {}).get("rules")]
    evaluations = [with_members(line) for line in evaluated]
    rules = list(dict.fromkeys(rule for evaluation in evaluations for rule in evaluation["rules"]))
    best_by_client: dict[str, dict[str, tuple[float, int]]] = {rule: {} for rule in rules}
    for line in evaluated:
        if line["evaluation"]["of_round"] > 0:
            _update_best(best_by_client, line["clients"])
    return {rule: _headline(rule, evaluations, best_by_client[rule], ratio) for rule in rules}


def _update_best(best_by_client: dict[str, dict[str, tuple[float, int]]], clients: Mapping[str, Any]) -> None:
    """Bring every client's best up to date with one round.

    Args:
        best_by_client: rule -> partition -> (accuracy, test samples).
        clients: of a line of metrics.jsonl.
    """
    for partition, client in clients.items():
        evaluation = client.get("evaluation", {})
        for rule, best in best_by_client.items():
            accuracy = evaluation.get(rule, [None])[0]
            if accuracy is not None:
                best[partition] = max((accuracy, evaluation["rows"][0]), best.get(partition, (0.0, 0)))


def primary_figure(figures: Mapping[str, float | int | None]) -> str:
    """The figure that a run is headed by: `selected`, or `final` where nothing was selected.

    Args:
        figures: of the run's own rule, as `headlines` has them.
    """
    return "selected" if figures.get("selected") is not None else "final"


def ensemble_headline(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """`ensemble`: accuracy of the clients' mean class probabilities on the shared test set, as best, last-5 (mean
    of the last five times of trained models, FedPAGR's) and final, with the number of rows; nothing where it was never
    asked for. Best and last-5 are None where only round 0, before training, was measured."""
    measured = [line["ensemble"] for line in lines if "ensemble" in line]
    if not measured:
        return {}
    return {
        "ensemble": {
            "best": max((ensemble["accuracy"] for ensemble in measured if ensemble["of_round"] > 0), default=None),
            "last-5": _last_five([(ensemble["of_round"], ensemble["accuracy"]) for ensemble in measured]),
            "final": measured[-1]["accuracy"],
            "rows": measured[-1]["rows"],
        }
    }


def _last_five(accuracies: Sequence[tuple[int, float]]) -> float | None:
    """The mean of the last five, each with the round that its models are of: round 0 has trained nothing."""
    trained = [accuracy for of_round, accuracy in accuracies if of_round > 0][-5:]
    return math.fsum(trained) / len(trained) if trained else None


def by_domain(evaluation: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """`domains` and `domains-unweighted`: the test accuracy of one evaluation, domain -> rule -> mean over its clients,
    weighted by test samples, or every client alike; nothing where no client says its domain."""
    accuracies: dict[str, dict[str, dict[str, float]]] = {}
    for domain, rules in evaluation.get("domains", {}).items():
        tested = {rule: splits["test"] for rule, splits in rules.items() if "test" in splits}
        for key, mean in (("domains", "mean"), ("domains-unweighted", "plain_mean")):
            accuracies.setdefault(key, {})[domain] = {rule: test[mean] for rule, test in tested.items() if mean in test}
    return accuracies


def failures(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int | str]]:
    """Which clients did not answer as asked: partition -> in how many rounds (the evaluation that ends a run counts as
    one), the last of them, and why."""
    by_partition: dict[str, dict[str, int | str]] = {}
    for line in lines:
        for partition, problem in line["problems"].items():
            before = by_partition.get(partition, {"rounds": 0})
            by_partition[partition] = {
                "rounds": int(before["rounds"]) + 1,
                "last_round": line["round"],
                "last": problem,
            }
    return dict(sorted(by_partition.items(), key=lambda entry: int(entry[0])))


def _headline(
    rule: str, evaluations: Sequence[Mapping[str, Any]], best_by_client: Mapping[str, tuple[float, int]], ratio: float
) -> dict[str, float | int | None]:
    """Of one rule.

    Args:
        best_by_client: every client's best accuracy and its number of test samples.
        ratio: the most that a client may weigh.
    """
    rounds = [(e["of_round"], e["rules"][rule]) for e in evaluations if e["rules"].get(rule, {}).get("test")]
    if not rounds:
        return dict.fromkeys(FIGURES_OF_RULE)
    chosen_from, is_complete = rounds_to_choose_from(evaluations, rule)
    trained = [(of_round, splits) for of_round, splits in rounds if of_round in chosen_from]
    validated = [(of_round, figures) for of_round, figures in trained if "validation" in figures]
    # max() keeps the first of equals, and the latest is asked for
    selected_round, selected = max(
        reversed(validated), key=lambda entry: entry[1]["validation"]["mean"], default=(None, None)
    )
    most = most_believed({int(partition): count for partition, (_, count) in best_by_client.items()}, ratio)
    bests = [(accuracy, min(count, most)) for accuracy, count in best_by_client.values()]
    samples = sum(count for _, count in bests)
    figures = {
        "selected": selected["test"]["mean"] if selected else None,
        "selected_round": selected_round,
        "best": max((figures["test"]["mean"] for _, figures in trained), default=None),
        "client-best": math.fsum(a * count for a, count in bests) / samples if samples else None,
        "client-best-unweighted": math.fsum(a for a, _ in bests) / len(bests) if samples else None,
        "last-5": _last_five([(of_round, figures["test"]["mean"]) for of_round, figures in rounds]),
        "final": rounds[-1][1]["test"]["mean"],
        "final-unweighted": rounds[-1][1]["test"].get("plain_mean"),
        "clients": max((_count_clients(splits) for _, splits in trained), default=None),
        **_since_change(evaluations, is_complete),
    }
    if "all-classes" in rounds[-1][1]:
        figures["all-classes"] = rounds[-1][1]["all-classes"]["mean"]
    return figures


def _since_change(evaluations: Sequence[Mapping[str, Any]], is_complete: bool) -> dict[str, float | int | None]:
    """Of a run whose clients come and go: since which round they are the same, and whether a round has all of them."""
    members = evaluations[-1].get("members")
    return {"since": members["since"], "complete": is_complete} if members else {}


def rounds_to_choose_from(evaluations: Sequence[Mapping[str, Any]], rule: str) -> tuple[list[int], bool]:
    """The rounds of which one may be chosen as the best, and whether all their clients were evaluated in them.

    A round that lacks a weak client would be the best for that alone: so those count in which all were evaluated, and
    where there is none those with the most. Of a run whose clients come and go the rounds since the last change count,
    for others are of other clients.

    Args:
        evaluations: of the lines of metrics.jsonl, with their `members`.
    """
    trained = [e for e in evaluations if e["of_round"] > 0 and e["rules"].get(rule, {}).get("test")]
    if not trained:
        return [], True
    members = trained[-1].get("members")
    if members:
        trained = [e for e in trained if (e.get("members") or {}).get("since") == members["since"]]
    number_of = {e["of_round"]: _count_clients(e["rules"][rule]) for e in trained}
    most = max(number_of.values())
    due = members["clients"] if members else most
    complete = [of_round for of_round, number in number_of.items() if number >= due]
    return complete or [of_round for of_round, number in number_of.items() if number == most], bool(complete)


def with_members(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """The evaluation of a line of metrics.jsonl, and what the line says of who was there to evaluate."""
    evaluation: Mapping[str, Any] = line["evaluation"]
    return {**evaluation, "members": line.get("members")}


def _count_clients(splits: Mapping[str, Any]) -> int:
    """How many clients the test figures of a rule cover."""
    return int(splits["test"].get("clients", 0))
