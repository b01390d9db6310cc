"""Computes a run's summary from the lines of metrics.jsonl."""

import math
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from protosphere.core.client_names import NAMELESS, client_word
from protosphere.core.settings import Settings
from protosphere.core.text import own_version, percent
from protosphere.record.confusion import per_class
from protosphere.record.folder import FORMAT
from protosphere.record.metrics_lines import MAJORITY, Line
from protosphere.wire.claims import most_believed

MAJORITY_UNWEIGHTED = "majority-class-unweighted"  # the same as an unweighted mean over clients
FLOORS = (MAJORITY, MAJORITY_UNWEIGHTED)
FIGURES = ("selected", "best", "client-best", "client-best-unweighted", "last-5", "final", "final-unweighted")
FIGURES_OF_RULE = ("selected", "selected_round", *FIGURES[1:], "worst", "clients")
FAR_BELOW = 0.1  # a trained classifier is rarely this far below a linear discriminant of its own features
PACKAGES = ("flwr", "torch", "numpy", "safetensors")


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
    """The run's outcome, computed from its lines alone, so that a resumed run gives the same.

    Args:
        rule: the run's main inference rule.
        written: the settings in the run's folder.
        stopped: what ended the run before its last round.
        each_line: reads the lines again with metrics by client, if `lines` lack them.
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
    """The accuracies of a summary: `headline`, `floor`, `rules` and, if clients name their domain, `domains` and
    `domains-unweighted`. Arguments are those of `summarise`; `ratio` is the largest weight of a client."""
    rules = headlines(lines, ratio, each_line)
    primary = rules.get(rule, {})
    figure = primary_figure(primary)
    # the floor is taken from the same evaluation as the headline, and so from the same clients
    number: int | None = None
    evaluation: Line = {"rules": {}}
    for line in lines:
        is_chosen = figure != "selected" or line["round"] == primary["selected_round"]
        if is_chosen and _is_tested(line.get("evaluation"), rule):
            number, evaluation = line["round"], line["evaluation"]
    test_figures = evaluation["rules"].get(rule, {}).get("test", {})
    floor = evaluation["rules"].get(MAJORITY, {}).get("test", {})
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
        "floor": {MAJORITY: floor.get("mean"), MAJORITY_UNWEIGHTED: floor.get("plain_mean")},
        "rules": {rule: values for rule, values in rules.items() if rule != MAJORITY},
        **by_domain(evaluation),
    }


def _is_tested(evaluation: Mapping[str, Any] | None, rule: str) -> bool:
    """Whether an evaluation has results on test samples by this rule."""
    return bool(evaluation and evaluation["rules"].get(rule, {}).get("test"))


def headlines(
    lines: Sequence[Mapping[str, Any]],
    ratio: float = math.inf,
    each_line: Iterable[Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, float | int | None]]:
    """The run's results by rule, from the lines of metrics.jsonl.

    Round 0, before training, is never selected; ties go to the latest round. `selected` is the test mean at the best
    validation mean, `best` the highest test mean (TinyProto's); both are chosen from `rounds_to_choose_from`.
    `client-best` is the mean of every client's own best, by test samples or unweighted (ProtoNorm's), `last-5` that of
    the last five evaluations (FedPAGR's), `final` the last one (GFPL's and PFPL's are unweighted). `worst` is the worst
    client's accuracy at `selected`, else at `final`; `clients` the most that were evaluated in a round to choose from.
    Arguments are those of `outcome`. What there is no evaluation for is None.
    """
    evaluations = [with_members(line) for line in lines if line.get("evaluation", {}).get("rules")]
    rules = list(dict.fromkeys(rule for evaluation in evaluations for rule in evaluation["rules"]))
    best_by_client: dict[str, dict[str, tuple[float, int]]] = {rule: {} for rule in rules}
    for line in lines if each_line is None else each_line:
        if line["round"] > 0:
            _update_best(best_by_client, line["clients"])
    return {rule: _headline(rule, evaluations, best_by_client[rule], ratio) for rule in rules}


def _update_best(best_by_client: dict[str, dict[str, tuple[float, int]]], clients: Mapping[str, Any]) -> None:
    """Update every client's best, rule -> partition -> (accuracy, test samples), with `clients` of a line."""
    for partition, client in clients.items():
        evaluation = client.get("evaluation", {})
        for rule, best in best_by_client.items():
            accuracy = evaluation.get(rule, [None])[0]
            if accuracy is not None:
                best[partition] = max((accuracy, evaluation["rows"][0]), best.get(partition, (0.0, 0)))


def _headline(
    rule: str, evaluations: Sequence[Mapping[str, Any]], best_by_client: Mapping[str, tuple[float, int]], ratio: float
) -> dict[str, float | int | None]:
    """The results by one rule; `best_by_client` holds every client's best accuracy and its number of test samples."""
    tested = [(e["round"], e["rules"][rule]) for e in evaluations if _is_tested(e, rule)]
    if not tested:
        return dict.fromkeys(FIGURES_OF_RULE)
    rounds, is_complete = rounds_to_choose_from(evaluations, rule)
    eligible = [(number, splits) for number, splits in tested if number in rounds]
    selected_round, selected, best_validation = None, None, -math.inf
    for number, splits in eligible:
        # ties go to the latest
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
        # the round since which the members are the same, and whether the rounds since then have all of them
        figures |= {"since": members["since"], "complete": is_complete}
    return figures


def rounds_to_choose_from(evaluations: Sequence[Mapping[str, Any]], rule: str) -> tuple[list[int], bool]:
    """The rounds that may be selected, and whether all their clients were evaluated in them.

    A round that lacks a weak client could be the best for that reason alone. Therefore only rounds count in which all
    clients were evaluated, or, if there is none, those with the most clients. If clients join or leave, only the rounds
    since the last change count. `evaluations` come from `with_members`.
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
    """The evaluation of a line of metrics.jsonl, its round, and the members at that time."""
    evaluation: Mapping[str, Any] = line["evaluation"]
    return {**evaluation, "round": line["round"], "members": line.get("members")}


def _count_clients(splits: Mapping[str, Any]) -> int:
    """The number of clients in a rule's test results."""
    return int(splits["test"].get("clients", 0))


def _last_five(accuracies: Sequence[tuple[int, float]]) -> float | None:
    """The mean of the last five, each with its round; round 0, before training, is excluded."""
    trained = [accuracy for number, accuracy in accuracies if number > 0][-5:]
    return math.fsum(trained) / len(trained) if trained else None


def primary_figure(figures: Mapping[str, float | int | None]) -> str:
    """The name of a rule's main result: `selected`, or `final` if no round could be selected."""
    return "selected" if figures.get("selected") is not None else "final"


def by_domain(evaluation: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """`domains` and `domains-unweighted`: the test accuracy of one evaluation, domain -> rule -> mean over its clients,
    weighted by test samples or unweighted; empty if no client names its domain."""
    accuracies: dict[str, dict[str, dict[str, float]]] = {}
    for domain, rules in evaluation.get("domains", {}).items():
        tested = {rule: splits["test"] for rule, splits in rules.items() if "test" in splits}
        for key, mean in (("domains", "mean"), ("domains-unweighted", "plain_mean")):
            accuracies.setdefault(key, {})[domain] = {rule: test[mean] for rule, test in tested.items() if mean in test}
    return accuracies


def ensemble_headline(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """`ensemble`: the accuracy of the clients' mean class probabilities on the shared test set, as best, last-5 (mean
    of the last five measurements of trained models, FedPAGR's) and final, with the number of samples; empty if it was
    never measured. Best and last-5 are None if only round 0 was measured."""
    measured = [line for line in lines if "ensemble" in line]
    if not measured:
        return {}
    accuracies = [(line["round"], line["ensemble"]["accuracy"]) for line in measured]
    figures = {
        "best": max((accuracy for number, accuracy in accuracies if number > 0), default=None),
        "last-5": _last_five(accuracies),
        "final": accuracies[-1][1],
        "rows": measured[-1]["ensemble"]["rows"],
    }
    return {"ensemble": figures}


def gradient_steps(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """A client's gradient steps per round: mean over clients, then over rounds. None if no client trained, or clients
    withhold their steps."""
    steps = [line["training"]["steps"] for line in lines if "steps" in line.get("training", {})]
    return math.fsum(steps) / len(steps) if steps else None


def failures(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int | str]]:
    """Clients that did not answer as asked: partition -> in how many rounds, the last of them, and why."""
    by_partition: dict[str, dict[str, int | str]] = {}
    for line in lines:
        for partition, problem in line["problems"].items():
            rounds = int(by_partition.get(partition, {"rounds": 0})["rounds"]) + 1
            by_partition[partition] = {"rounds": rounds, "last_round": line["round"], "last": problem}
    return dict(sorted(by_partition.items(), key=lambda entry: int(entry[0])))


def doubts(summary: Mapping[str, Any], client_names: Mapping[int, str] = NAMELESS) -> list[str]:
    """Warnings for readers of a summary's headline: those of `doubts_of_clients`, and one if the models look hardly
    trained."""
    sentences = doubts_of_clients(summary, client_names)
    if summary["rounds"] == 0 and summary["rules"]:
        sentences.append("the run ended before its first round: these are untrained models")
    elif sentence := _doubt_of_training(summary):
        sentences.append(sentence)
    return sentences


def doubts_of_clients(summary: Mapping[str, Any], client_names: Mapping[int, str] = NAMELESS) -> list[str]:
    """Warnings if clients are missing from the headline's round, or if clients' test sample counts were capped."""
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
    """A sentence if the private models look hardly trained, else ""."""
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
    """A rule's accuracy by the metric of the headline."""
    return figures.get(primary_figure(figures))


def companions(named: Iterable[str]) -> str:
    """A description of the companion that all clients have; "" if there is none."""
    names = sorted(set(named) - {""})
    return f"the companion {', '.join(names)}" if names else ""


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """The versions of this program, of Python, and of the packages that affect metrics; for a checkout, its commit."""
    version_by_name = {"protosphere": own_version(), "python": platform.python_version()}
    version_by_name |= {name: version(name) for name in PACKAGES}
    if commit := commit_of(Path(__file__).parents[2]):
        version_by_name["commit"] = commit
    return version_by_name


def commit_of(checkout: Path) -> str:
    """The commit of a git checkout, with "-dirty" if tracked files differ from it; "" if the folder is none."""
    # an installed package may lie in the environment of somebody's own repository
    if not (checkout / ".git").exists():
        return ""
    # without locks, since it only reads
    command = ["git", "--no-optional-locks", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        done = subprocess.run([*command, "--exclude", "*"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if done.returncode else done.stdout.strip()
