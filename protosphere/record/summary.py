"""From the lines of metrics.jsonl to the run's summary."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protosphere.core.client_names import NAMELESS, client_word
from protosphere.core.settings import Settings
from protosphere.core.text import percent
from protosphere.record.confusion import per_class
from protosphere.record.folder import FORMAT
from protosphere.record.metrics_lines import MAJORITY, Line
from protosphere.record.provenance import versions
from protosphere.wire.claims import most_believed

MAJORITY_UNWEIGHTED = "majority-class-unweighted"  # the same, as an unweighted mean over clients
FLOORS = (MAJORITY, MAJORITY_UNWEIGHTED)
FIGURES = ("selected", "best", "client-best", "client-best-unweighted", "last-5", "final", "final-unweighted")
FIGURES_OF_RULE = ("selected", "selected_round", *FIGURES[1:], "worst", "clients")
FAR_BELOW = 0.1  # by so much a trained classifier is seldom below a linear discriminant of its own features


def summarise(
    settings: Settings,
    rule: str,
    written: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    clients: int,
    companion: str = "",
    stopped: str = "",
    each_line: Iterable[Mapping[str, Any]] | None = None,
) -> Line:
    """The run's outcome, from its lines alone, so that a resumed run has the same.

    Args:
        rule: the primary prediction rule. written: the settings as the run's folder holds them. companion: by
            `companions`: no figure is one of the client's models alone. stopped: what ended it before its last round.
        each_line: the lines once more, with their figures by client, where `lines` are without.
    """
    sizes: Line = {}
    for line in lines:
        for name, value in line["bytes"].items():
            sizes[name] = sizes.get(name, 0) + value
    return {
        "format": FORMAT,
        "status": "completed",
        "strategy": settings.strategy,
        "dataset": settings.dataset,
        "seed": settings.seed,
        "clients": clients,
        **({"companion": companion} if companion else {}),
        "rounds": lines[-1]["round"],
        **({"stopped": stopped} if stopped else {}),
        **outcome(rule, lines, settings.max_weight_ratio, each_line),
        **per_class(lines),
        **ensemble_headline(lines),
        "bytes": sizes,
        "gradient_steps": gradient_steps(lines),
        "problems": sum(len(line["problems"]) for line in lines),
        "failures": failures(lines),
        "seconds": sum(line["time"]["round"] for line in lines),
        "settings": dict(written),
        "versions": versions(),
    }


def outcome(
    rule: str,
    lines: Sequence[Mapping[str, Any]],
    ratio: float,
    each_line: Iterable[Mapping[str, Any]] | None = None,
) -> Line:
    """The accuracies of a summary: `headline`, `floor`, `rules`, and where clients name their domain `domains` and
    `domains-unweighted`.

    Args:
        rule: the primary prediction rule. lines: of metrics.jsonl. ratio: the most that a client may weigh.
        each_line: of `summarise`.
    """
    rules = headlines(lines, ratio, each_line)
    primary = rules.get(rule, {})
    figure = primary_figure(primary)
    tested = [(line["round"], line["evaluation"]) for line in lines if _is_tested(line.get("evaluation"), rule)]
    if figure == "selected":
        tested = [entry for entry in tested if entry[0] == primary["selected_round"]]
    # the floor beside the headline is of the same evaluation, so of the same clients
    number: int | None = None
    evaluation: Line = {"rules": {}}
    if tested:
        number, evaluation = tested[-1]
    test_figures = evaluation["rules"].get(rule, {}).get("test", {})
    floor = evaluation["rules"].get(MAJORITY, {}).get("test", {})
    majority = {
        MAJORITY: floor.get("mean"),
        MAJORITY_UNWEIGHTED: floor.get("plain_mean"),
    }
    headline = {
        "rule": rule,
        "figure": figure,
        "accuracy": primary.get(figure),
        "unweighted": test_figures.get("plain_mean"),
        "round": number,
        "clients": test_figures.get("clients"),
        "rows": test_figures.get("rows"),
    }
    if "capped" in evaluation:
        headline["capped"] = evaluation["capped"]
    return {
        "headline": headline,
        "floor": majority,
        "rules": {rule: values for rule, values in rules.items() if rule != MAJORITY},
        **by_domain(evaluation),
    }


def _is_tested(evaluation: Mapping[str, Any] | None, rule: str) -> bool:
    """Whether an evaluation has figures of test samples by this rule."""
    return bool(evaluation and evaluation["rules"].get(rule, {}).get("test"))


def headlines(
    lines: Sequence[Mapping[str, Any]],
    ratio: float = math.inf,
    each_line: Iterable[Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, float | int | None]]:
    """The run's figures by rule, from the lines of metrics.jsonl.

    Round 0, before training, is chosen by none of them; ties go to the latest round. `selected` and `best` are chosen
    among the rounds in which every client was evaluated that was to be; where there is none, among those with the most:
    else a round in which a weak client is missing would be the best.

    Args:
        ratio: the most that a client may weigh, in medians of the clients' numbers of test samples.
        each_line: of `summarise`.

    Returns:
        rule -> selected (test mean at the evaluation with the best validation mean; None without validation
        samples) and selected_round; and, chosen on the test set as the papers do: best (highest test mean of any
        evaluation, TinyProto's), client-best (mean of every client's own best, weighted by its test samples as all
        other figures are) and client-best-unweighted (every client alike, ProtoNorm's), last-5 (mean of the last five
        evaluations, or of as many as there are, FedPAGR's), each None before the first evaluation of trained models;
        final; final-unweighted (every client alike, as GFPL and PFPL average); worst, the worst client's accuracy at
        the evaluation of selected, else of final; clients, how many were evaluated in the rounds among which was
        chosen, at most.
    """
    evaluations = [with_members(line) for line in lines if line.get("evaluation", {}).get("rules")]
    rules = list(dict.fromkeys(rule for evaluation in evaluations for rule in evaluation["rules"]))
    best_by_client: dict[str, dict[str, tuple[float, int]]] = {rule: {} for rule in rules}
    for line in lines if each_line is None else each_line:
        if line["round"] > 0:
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


def _headline(
    rule: str, evaluations: Sequence[Mapping[str, Any]], best_by_client: Mapping[str, tuple[float, int]], ratio: float
) -> dict[str, float | int | None]:
    """Of one rule.

    Args:
        best_by_client: every client's best accuracy and its number of test samples.
        ratio: the most that a client may weigh.
    """
    tested = [(e["round"], e["rules"][rule]) for e in evaluations if _is_tested(e, rule)]
    if not tested:
        return dict.fromkeys(FIGURES_OF_RULE)
    rounds, is_complete = rounds_to_choose_from(evaluations, rule)
    eligible = [(number, splits) for number, splits in tested if number in rounds]
    selected_round, selected, best_validation = None, None, -math.inf
    for number, splits in eligible:
        # of equals the latest
        if "validation" in splits and splits["validation"]["mean"] >= best_validation:
            selected_round, selected, best_validation = number, splits, splits["validation"]["mean"]
    most = most_believed({int(partition): count for partition, (_, count) in best_by_client.items()}, ratio)
    bests = [(accuracy, min(count, most)) for accuracy, count in best_by_client.values()]
    samples = sum(count for _, count in bests)
    last = tested[-1][1]
    figures = {
        "selected": selected["test"]["mean"] if selected else None,
        "selected_round": selected_round,
        "best": max((splits["test"]["mean"] for _, splits in eligible), default=None),
        "client-best": math.fsum(a * count for a, count in bests) / samples if samples else None,
        "client-best-unweighted": math.fsum(a for a, _ in bests) / len(bests) if samples else None,
        "last-5": _last_five([(number, splits["test"]["mean"]) for number, splits in tested]),
        "final": last["test"]["mean"],
        "final-unweighted": last["test"].get("plain_mean"),
        "worst": (selected or last)["test"].get("worst"),
        "clients": max((_count_clients(splits) for _, splits in eligible), default=None),
    }
    if members := evaluations[-1].get("members"):
        # clients come and go: since which round they are the same, and whether a round has all of them
        figures |= {"since": members["since"], "complete": is_complete}
    return figures


def rounds_to_choose_from(evaluations: Sequence[Mapping[str, Any]], rule: str) -> tuple[list[int], bool]:
    """The rounds of which one may be chosen as the best, and whether all their clients were evaluated in them.

    A round that lacks a weak client would be the best for that alone: so those count in which all were evaluated, and
    where there is none those with the most. Of a run whose clients come and go the rounds since the last change count,
    for others are of other clients.

    Args:
        evaluations: of the lines of metrics.jsonl, with their `members`.
    """
    trained = [e for e in evaluations if e["round"] > 0 and _is_tested(e, rule)]
    if not trained:
        return [], True
    members = trained[-1].get("members")
    if members:
        trained = [e for e in trained if (e.get("members") or {}).get("since") == members["since"]]
    clients_by_round = {e["round"]: _count_clients(e["rules"][rule]) for e in trained}
    most = max(clients_by_round.values())
    due = members["clients"] if members else most
    complete = [number for number, clients in clients_by_round.items() if clients >= due]
    return complete or [number for number, clients in clients_by_round.items() if clients == most], bool(complete)


def with_members(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """The evaluation of a line of metrics.jsonl, its round, and what the line says of who was there to evaluate."""
    evaluation: Mapping[str, Any] = line["evaluation"]
    return {**evaluation, "round": line["round"], "members": line.get("members")}


def _count_clients(splits: Mapping[str, Any]) -> int:
    """How many clients the test figures of a rule cover."""
    return int(splits["test"].get("clients", 0))


def _last_five(accuracies: Sequence[tuple[int, float]]) -> float | None:
    """The mean of the last five, each with the round that its models are of: round 0 has trained nothing."""
    trained = [accuracy for number, accuracy in accuracies if number > 0][-5:]
    return math.fsum(trained) / len(trained) if trained else None


def primary_figure(figures: Mapping[str, float | int | None]) -> str:
    """The figure that a run is headed by: `selected`, or `final` where nothing was selected.

    Args:
        figures: of the run's own rule, as `headlines` has them.
    """
    return "selected" if figures.get("selected") is not None else "final"


def by_domain(evaluation: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """`domains` and `domains-unweighted`: the test accuracy of one evaluation, domain -> rule -> mean over its clients,
    weighted by test samples, or every client alike; nothing where no client says its domain."""
    accuracies: dict[str, dict[str, dict[str, float]]] = {}
    for domain, rules in evaluation.get("domains", {}).items():
        tested = {rule: splits["test"] for rule, splits in rules.items() if "test" in splits}
        for key, mean in (("domains", "mean"), ("domains-unweighted", "plain_mean")):
            accuracies.setdefault(key, {})[domain] = {rule: test[mean] for rule, test in tested.items() if mean in test}
    return accuracies


def ensemble_headline(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """`ensemble`: accuracy of the clients' mean class probabilities on the shared test set, as best, last-5 (mean
    of the last five times of trained models, FedPAGR's) and final, with the number of rows; nothing where it was never
    asked for. Best and last-5 are None where only round 0, before training, was measured."""
    measured = [(line["round"], line["ensemble"]) for line in lines if "ensemble" in line]
    if not measured:
        return {}
    accuracies = [(number, ensemble["accuracy"]) for number, ensemble in measured]
    return {
        "ensemble": {
            "best": max((accuracy for number, accuracy in accuracies if number > 0), default=None),
            "last-5": _last_five(accuracies),
            "final": accuracies[-1][1],
            "rows": measured[-1][1]["rows"],
        }
    }


def gradient_steps(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """A client's gradient steps in a round: mean over clients, then over rounds. None where no round says it: nobody
    trained, or the steps stay with the clients."""
    steps = [line["training"]["steps"] for line in lines if "steps" in line.get("training", {})]
    return math.fsum(steps) / len(steps) if steps else None


def failures(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int | str]]:
    """Which clients did not answer as asked: partition -> in how many rounds, the last of them, and why."""
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


def doubts(summary: Mapping[str, Any], client_names: Mapping[int, str] = NAMELESS) -> list[str]:
    """What a reader has to know beside the headline of a summary: what `doubts_of_clients` says, and whether the models
    are trained."""
    sentences = doubts_of_clients(summary, client_names)
    if summary["rounds"] == 0 and summary["rules"]:
        sentences.append("the run ended before its first round: these are untrained models")
    elif sentence := _doubt_of_training(summary):
        sentences.append(sentence)
    return sentences


def doubts_of_clients(summary: Mapping[str, Any], client_names: Mapping[int, str] = NAMELESS) -> list[str]:
    """Where the headline of a summary is of a round that lacks clients, and whose numbers of test samples are believed
    in part alone."""
    headline, sentences = summary["headline"], []
    figures_of_rule = summary["rules"].get(headline["rule"], {})
    clients, since = figures_of_rule.get("clients"), figures_of_rule.get("since")
    if since:
        sentences.append(
            f"clients joined or left: selected and best are chosen among the rounds since round {since}, which have "
            "the final clients"
        )
    is_complete = figures_of_rule.get("complete", clients is None or clients >= summary["clients"])
    if not is_complete:
        sentences.append(
            f"no round evaluated all {summary['clients']} clients: selected and best are chosen among the rounds "
            f"that evaluated {clients}"
        )
    if "capped" in headline:
        names = ", ".join(client_word(partition, client_names) for partition in headline["capped"])
        sentences.append(
            f"{names} reports many more test samples than the others: its weight is capped at `max-weight-ratio` "
            "times their median"
        )
    return sentences


def _doubt_of_training(summary: Mapping[str, Any]) -> str:
    """A sentence where the private models look hardly trained, else ""."""
    by_rule, majority = summary["rules"], summary["floor"].get(MAJORITY)
    accuracy = _accuracy_of(by_rule.get("classifier", {}))
    discriminant = _accuracy_of(by_rule.get("discriminant", {}))
    if accuracy is None or not summary.get("gradient_steps"):
        return ""
    if majority is not None and accuracy < majority:
        reason = f"their classifiers reach {percent(accuracy)}, always predicting the most frequent class "
        reason += percent(majority)
    elif discriminant is not None and accuracy < discriminant - FAR_BELOW:
        reason = f"their classifiers reach {percent(accuracy)}, a linear discriminant of their features "
        reason += percent(discriminant)
    else:
        return ""
    return f"the private models may need more training: {reason}; try more `rounds` or `local-epochs`"


def _accuracy_of(figures: Mapping[str, float | int | None]) -> float | int | None:
    """A rule's accuracy by the figure that heads a run."""
    return figures.get(primary_figure(figures))


def companions(named: Iterable[str]) -> str:
    """What clients say of the second model that all have alike, in words; "" where there is none."""
    names = sorted(set(named) - {""})
    return f"the companion {', '.join(names)}" if names else ""
