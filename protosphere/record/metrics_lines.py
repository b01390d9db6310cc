"""Turns a round's replies into its line of metrics.jsonl, and that line into one for the console.

Line 0 has the evaluation of the untrained models. Line r has the training of round r and the evaluation of the models
after it. Everything except `time` is bit-identical for equal settings and seed.

`ratio` is everywhere the largest weight of a client, in multiples of the clients' median number of samples.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protosphere.core.text import duration, readable_size
from protosphere.record.confusion import MANY, confusion_figures
from protosphere.record.replies import Bytes, Reply
from protosphere.wire.claims import over_claimed
from protosphere.wire.payloads import Evaluation, Identity, Report, TrainingFigures

MAJORITY = "majority-class"  # the baseline beside every result: always predict the client's most frequent class
SPLITS = ("test", "validation")
MEANS = ("gradient_ratio", "target_norm", "prototype_norm")
LEGEND = "one line per round: test accuracy (of the worst client), payload, time; round 0 is untrained"
Line = dict[str, Any]


@dataclass(frozen=True)
class Exchanged:
    """The messages of a round that ask for training, or those that ask for an evaluation."""

    replies: Sequence[Reply]  # in partition order
    sent: Mapping[int, Bytes]  # partition -> the size of the message to it

    @property
    def bytes_up(self) -> Bytes:
        """The sizes of all replies."""
        return sum((reply.size for reply in self.replies), Bytes())

    @property
    def bytes_down(self) -> Bytes:
        """The sizes of all messages to clients."""
        return sum((self.sent[reply.partition] for reply in self.replies), Bytes())

    def problems(self) -> dict[str, str]:
        """Problems by client."""
        return {str(reply.partition): reply.problems for reply in self.replies if reply.problems}

    def reports(self) -> dict[int, Report]:
        """The usable reports by partition."""
        return {reply.partition: reply.report for reply in self.replies if reply.report is not None}


def empty_line(number: int) -> Line:
    """The line of a round without training, which is round 0."""
    sizes = ("payload_up", "payload_down", "wire_up", "wire_down", "evaluation_wire_up", "evaluation_wire_down")
    return {
        "round": number,
        "bytes": dict.fromkeys(sizes, 0),
        "problems": {},
        "clients": {},
        "time": {"round": 0.0, "train": {}, "evaluate": {}, "client": {}},
    }


def training_line(number: int, exchanged: Exchanged, server: Mapping[str, Any], ratio: float = math.inf) -> Line:
    """The line of a round's training: metrics over clients, by client and of the `server`, bytes and seconds."""
    line = empty_line(number)
    reports = exchanged.reports()
    trainings = {partition: report.training for partition, report in reports.items() if report.training}
    for partition, training in sorted(trainings.items()):
        values = {name: getattr(training, name) for name in ("rows", "steps", *MEANS)}
        line["clients"][str(partition)] = {"training": {"loss": training.parts, **values}}
        line["time"]["train"][str(partition)] = training.seconds
    line["training"] = {
        "asked": len(exchanged.replies),
        "valid": sum(reply.valid for reply in exchanged.replies),
        "dropped": sum(reply.dropped for reply in exchanged.replies),
        **over_trainings(trainings, ratio),
    }
    line["server"] = dict(server)
    up, down = exchanged.bytes_up, exchanged.bytes_down
    line["bytes"] |= {
        "payload_up": up.payload,
        "payload_down": down.payload,
        "wire_up": up.wire,
        "wire_down": down.wire,
    }
    line["problems"] |= exchanged.problems()
    line["time"]["client"] = {str(partition): report.seconds for partition, report in reports.items()}
    return line


def add_evaluation(
    line: Line,
    exchanged: Exchanged,
    rule: str,
    ratio: float,
    identities: Mapping[int, Identity] | None = None,
    counts_payload: bool = False,
) -> None:
    """Add the evaluation of a round to its line, by domain as well if clients name their domains.

    Args:
        rule: the run's own inference rule.
        counts_payload: whether the payload of these messages counts as training, because it is sent only once.
    """
    identities = identities or {}
    sizes = line["bytes"]
    sizes["evaluation_wire_up"] += exchanged.bytes_up.wire
    for reply in exchanged.replies:
        size = exchanged.sent[reply.partition]
        if counts_payload and size.payload:
            sizes["payload_down"] += size.payload
            sizes["wire_down"] += size.wire
        else:
            sizes["evaluation_wire_down"] += size.wire
    for name, problem in exchanged.problems().items():
        earlier = line["problems"].get(name, "")
        # a problem in training often occurs in the evaluation, too
        line["problems"][name] = earlier if problem == earlier else "; ".join(filter(None, (earlier, problem)))
    for partition, report in exchanged.reports().items():
        seconds = line["time"]["client"]
        seconds[str(partition)] = seconds.get(str(partition), 0.0) + report.seconds

    by_partition = evaluations(exchanged.replies)
    if not by_partition:
        return
    line["evaluation"] = {"rules": over_clients(by_partition, ratio)}
    if capped := sorted(over_claimed(_count_samples(by_partition, 0), ratio)):
        line["evaluation"]["capped"] = capped
    by_domain: dict[str, dict[int, Evaluation]] = {}
    for partition, evaluation in by_partition.items():
        if partition in identities and identities[partition].domain:
            by_domain.setdefault(identities[partition].domain, {})[partition] = evaluation
    if by_domain:
        line["evaluation"]["domains"] = {domain: over_clients(by_domain[domain], ratio) for domain in sorted(by_domain)}
    for partition, evaluation in sorted(by_partition.items()):
        line["clients"].setdefault(str(partition), {})["evaluation"] = of_client(evaluation)
        line["time"]["evaluate"][str(partition)] = evaluation.seconds
    line |= _auc_figures(by_partition, rule, ratio)
    counts = {reply.partition: reply.confusion for reply in exchanged.replies if reply.confusion}
    line |= confusion_figures(counts, rule, {partition: identity.model for partition, identity in identities.items()})


def evaluations(replies: Iterable[Reply]) -> dict[int, Evaluation]:
    """The received evaluations by partition."""
    results = {}
    for reply in replies:
        if reply.report is not None and reply.report.evaluation is not None:
            results[reply.partition] = reply.report.evaluation
    return results


def _auc_figures(by_partition: Mapping[int, Evaluation], rule: str, ratio: float) -> Line:
    """`roc_auc` of a line: the mean over clients, weighted by capped numbers of test samples, and the worst value;
    empty if no client reported any."""
    areas = {partition: e.auc for partition, e in sorted(by_partition.items()) if e.auc is not None and e.rows[0]}
    if not areas:
        return {}
    weights = _cap({partition: by_partition[partition].rows[0] for partition in areas}, ratio)
    mean = math.fsum(weights[partition] * area for partition, area in areas.items()) / math.fsum(weights.values())
    figures: Line = {"rule": rule, "mean": mean, "worst": min(areas.values()), "clients": len(areas)}
    # as with the confusion matrix, not by client if there are many
    if len(areas) < MANY:
        figures["by_client"] = {str(partition): area for partition, area in areas.items()}
    return {"roc_auc": figures}


def over_trainings(trainings: Mapping[int, TrainingFigures], ratio: float = math.inf) -> dict[str, Any]:
    """Means of the clients' training metrics: terms of the loss weighted by training samples, the others unweighted
    over the clients that report them. `steps` is the number of gradient steps per client in this round."""
    if not trainings:
        return {}
    trainings = dict(sorted(trainings.items()))
    weights = _cap({partition: training.rows for partition, training in trainings.items()}, ratio)
    loss = {}
    for name in dict.fromkeys(name for training in trainings.values() for name in training.parts):
        terms = {partition: t.parts[name] for partition, t in trainings.items() if name in t.parts}
        total = sum(weights[partition] for partition in terms)
        loss[name] = math.fsum(term * weights[partition] for partition, term in terms.items()) / total
    figures = {"loss": loss, "steps": sum(training.steps for training in trainings.values()) / len(trainings)}
    for name in MEANS:
        values = [getattr(training, name) for training in trainings.values()]
        measured = [value for value in values if value is not None]
        if measured:
            figures[name] = math.fsum(measured) / len(measured)
    return figures


def over_clients(evaluations: Mapping[int, Evaluation], ratio: float) -> dict[str, dict[str, Any]]:
    """Accuracy over clients: rule -> split -> metrics. A split without samples is missing.

    `mean` is weighted by capped numbers of samples, whose sum is `rows`; `std` is over clients, and `worst_tenth` the
    mean of the worst tenth of them, at least one.
    """
    rules = sorted({rule for evaluation in evaluations.values() for rule in evaluation.correct})
    figures: dict[str, dict[str, Any]] = {rule: {} for rule in rules}
    for index, split in enumerate(SPLITS):
        shares = over_claimed(_count_samples(evaluations, index), ratio)
        for rule in rules:
            counts = {}
            for partition, evaluation in sorted(evaluations.items()):
                if rule in evaluation.correct and evaluation.rows[index]:
                    counts[partition] = evaluation.correct[rule][index], evaluation.rows[index]
            if counts:
                figures[rule][split] = _summarise(counts, shares)
    return figures


def _count_samples(evaluations: Mapping[int, Evaluation], index: int) -> dict[int, int]:
    """Partition -> the reported number of samples of a split."""
    return {partition: evaluation.rows[index] for partition, evaluation in evaluations.items()}


def _cap(samples: Mapping[int, int], ratio: float) -> dict[int, float]:
    """Partition -> the weight of its samples."""
    shares = over_claimed(samples, ratio)
    return {partition: count * shares.get(partition, 1.0) for partition, count in samples.items()}


def _summarise(counts_by_client: Mapping[int, tuple[int, int]], shares: Mapping[int, float]) -> dict[str, float | int]:
    """The metrics of one rule and split, from (correct predictions, samples) and the accepted share of samples."""
    accuracies = sorted(right / samples for right, samples in counts_by_client.values())
    plain_mean = math.fsum(accuracies) / len(accuracies)
    tenth = accuracies[: max(1, len(accuracies) // 10)]
    right_sum: float = 0
    samples_sum: float = 0
    for partition, (right, samples) in counts_by_client.items():
        share = shares.get(partition, 1)
        right_sum += share * right
        samples_sum += share * samples
    return {
        "mean": right_sum / samples_sum,
        "plain_mean": plain_mean,
        "std": math.sqrt(math.fsum((a - plain_mean) ** 2 for a in accuracies) / len(accuracies)),
        "worst": accuracies[0],
        "worst_tenth": math.fsum(tenth) / len(tenth),
        "clients": len(accuracies),
        "rows": round(samples_sum),
    }


def of_client(evaluation: Evaluation) -> dict[str, Any]:
    """One client's accuracies: rule -> one per split in the order of `SPLITS`; None for a split without samples."""
    accuracies: dict[str, Any] = {}
    for rule, counts in evaluation.correct.items():
        pairs = zip(counts, evaluation.rows, strict=True)
        accuracies[rule] = [right / samples if samples else None for right, samples in pairs]
    return {**accuracies, "rows": list(evaluation.rows)}


def console_line(line: Line, rounds: int, rule: str, seconds: Sequence[float], is_last: bool = False) -> str:
    """The console line of a round, as `LEGEND` explains, with the `seconds` of this process's rounds, newest last."""
    number = line["round"]
    parts = [f"round {number:>{len(str(rounds))}}/{rounds}"]
    test = line.get("evaluation", {}).get("rules", {}).get(rule, {}).get("test")
    ensemble = f"ensemble {100 * line['ensemble']['accuracy']:5.1f}" if "ensemble" in line else ""
    if test:
        details = ", ".join(filter(None, (f"worst {100 * test['worst']:5.1f}", ensemble)))
        parts.append(f"{100 * test['mean']:5.1f} % ({details})")
    elif ensemble:
        parts.append(f"{ensemble} %")
    if number:
        up, down = (readable_size(line["bytes"][f"payload_{way}"]) for way in ("up", "down"))
        parts.append(f"{up} up, {down} down")
    parts.append(f"{seconds[-1]:.1f} s")
    if 0 < number < rounds and not is_last:
        # the first round includes starting the workers and is not representative
        usual = seconds[1:] or seconds
        parts.append(f"{duration((rounds - number) * sum(usual) / len(usual))} left")
    return " | ".join(parts)
