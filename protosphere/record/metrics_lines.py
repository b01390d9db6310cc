"""From a round's replies to its line of metrics.jsonl, and that line on the console.

All but what stands under `time` is the same to the bit for the same settings and seed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protosphere.record.replies import Bytes, Reply
from protosphere.wire.claims import over_claimed
from protosphere.wire.payloads import Evaluation, Identity, Report, TrainingFigures

MAJORITY = "majority-class"  # the floor beside every result: always answer the client's most frequent class
SPLITS = ("test", "validation", "all-classes")
MEANS = ("gradient_ratio", "target_norm", "prototype_norm")
LEGEND = "one line per round: test accuracy after the previous round (of the worst client), payload up/down, time"
Line = dict[str, Any]


def training_line(
    server_round: int,
    replies: Sequence[Reply],
    sent: Mapping[int, Bytes],
    server: Mapping[str, Any],
    ratio: float = math.inf,
) -> Line:
    """What a round's training came to: over clients, by client, in bytes.

    Args:
        ratio: the most that a client weighs in the loss, in medians of the clients' numbers of samples.
    """
    training_replies = [reply for reply in replies if reply.trains]
    reports = _reports(training_replies)
    trainings = {partition: report.training for partition, report in reports.items() if report.training}
    clients: Line = {}
    for partition, training in sorted(trainings.items()):
        values = {name: getattr(training, name) for name in ("rows", "steps", *MEANS)}
        clients[str(partition)] = {"training": {"loss": training.parts, **values}}
    return {
        "round": server_round,
        "training": {
            "asked": len(training_replies),
            "valid": sum(reply.valid for reply in training_replies),
            "dropped": sum(reply.dropped for reply in training_replies),
            **over_trainings(trainings, ratio),
        },
        "server": dict(server),
        **_exchange(replies, sent),
        "clients": clients,
    }


def final_line(server_round: int, replies: Sequence[Reply], sent: Mapping[int, Bytes]) -> Line:
    """The line of the evaluation that ends a run."""
    return {"round": server_round, "final": True, **_exchange(replies, sent), "clients": {}}


def _exchange(replies: Sequence[Reply], sent: Mapping[int, Bytes]) -> Line:
    """Payload and wire both ways, evaluate-only messages apart; and what went wrong, by client."""
    sums: Line = {}
    features_up, features_down = Bytes(), Bytes()
    for prefix, trains in (("", True), ("evaluate_only_", False)):
        asked = [reply for reply in replies if reply.trains == trains]
        up = sum((_split_size(reply.size, sent[reply.partition]) for reply in asked), Bytes())
        down = sum((sent[reply.partition] for reply in asked), Bytes())
        sums |= {
            f"{prefix}payload_up": up.payload,
            f"{prefix}payload_down": down.payload,
            f"{prefix}wire_up": up.wire,
            f"{prefix}wire_down": down.wire,
            f"{prefix}evaluation_wire_up": up.evaluation,
        }
        features_up, features_down = features_up + up, features_down + down
    for way, size in (("up", features_up), ("down", features_down)):
        sums |= {f"{name}_wire_{way}": size.features[name] for name in sorted(size.features)}
    return {"bytes": sums, "problems": {str(r.partition): r.problems for r in replies if r.problems}}


def _split_size(size: Bytes, sent: Bytes) -> Bytes:
    """A reply's size; all of it is a feature's if the message was sent for that alone."""
    if sent.wire or not sent.features:
        return size
    (name,) = sent.features
    return Bytes(features={name: size.wire + sum(size.features.values())})


def evaluations(replies: Iterable[Reply]) -> dict[int, Evaluation]:
    """The evaluations that arrived, by partition."""
    return {partition: report.evaluation for partition, report in _reports(replies).items() if report.evaluation}


def _reports(replies: Iterable[Reply]) -> dict[int, Report]:
    return {reply.partition: reply.report for reply in replies if reply.report is not None}


def add_evaluation(
    line: Line,
    replies: Sequence[Reply],
    of_round: int,
    ratio: float,
    identities: Mapping[int, Identity] | None = None,
) -> None:
    """Put the evaluation that rode along into the line: it is of the models that `of_round` left. Where clients say
    their domain, it is there by domain as well; `capped` are the partitions of whose test samples only a part is
    believed.

    Args:
        ratio: the most that a client may weigh, in medians of all.
    """
    by_partition = evaluations(replies)
    if not by_partition:
        return
    line["evaluation"] = {"of_round": of_round, "rules": over_clients(by_partition, ratio)}
    if capped := sorted(over_claimed(samples_of(by_partition), ratio)):
        line["evaluation"]["capped"] = capped
    by_domain: dict[str, dict[int, Evaluation]] = {}
    for partition, evaluation in by_partition.items():
        if identities and identities[partition].domain:
            by_domain.setdefault(identities[partition].domain, {})[partition] = evaluation
    if by_domain:
        line["evaluation"]["domains"] = {domain: over_clients(by_domain[domain], ratio) for domain in sorted(by_domain)}
    for partition, evaluation in sorted(by_partition.items()):
        line["clients"].setdefault(str(partition), {})["evaluation"] = of_client(evaluation)


def times(replies: Sequence[Reply], seconds: float) -> Line:
    """Seconds of the round, and by client of training, evaluation and everything between message and reply."""
    train, evaluate, client = {}, {}, {}
    for partition, report in _reports(replies).items():
        name = str(partition)
        client[name] = report.seconds
        if report.training:
            train[name] = report.training.seconds
        if report.evaluation:
            evaluate[name] = report.evaluation.seconds
    return {"round": seconds, "train": train, "evaluate": evaluate, "client": client}


def over_trainings(trainings: Mapping[int, TrainingFigures], ratio: float = math.inf) -> dict[str, Any]:
    """Mean of the clients' training figures: parts of the loss by training samples, the rest plainly over the clients
    that have them; `steps` are a client's gradient steps in this round.

    Args:
        ratio: the most that a client weighs, in medians of the clients' numbers of samples.
    """
    if not trainings:
        return {}
    partitions = sorted(trainings)
    shares = over_claimed({partition: trainings[partition].rows for partition in partitions}, ratio)
    weights = {partition: trainings[partition].rows * shares.get(partition, 1.0) for partition in partitions}
    loss = {}
    for name in dict.fromkeys(name for partition in partitions for name in trainings[partition].parts):
        having = [partition for partition in partitions if name in trainings[partition].parts]
        total = sum(weights[partition] for partition in having)
        loss[name] = math.fsum(trainings[p].parts[name] * weights[p] for p in having) / total
    figures = {"loss": loss, "steps": sum(training.steps for training in trainings.values()) / len(trainings)}
    for name in MEANS:
        values = [getattr(trainings[partition], name) for partition in partitions]
        measured = [value for value in values if value is not None]
        if measured:
            figures[name] = math.fsum(measured) / len(measured)
    return figures


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
    figures: dict[str, dict[str, Any]] = {rule: {} for rule in rules}
    for index, split in enumerate(SPLITS):
        claims = samples_of(evaluations, index)
        shares = over_claimed(claims, ratio)
        for rule in rules:
            counts = {}
            for partition, evaluation in sorted(evaluations.items()):
                if rule in evaluation.correct and claims[partition]:
                    counts[partition] = evaluation.correct[rule][index], claims[partition]
            if counts:
                figures[rule][split] = _spread(counts, shares)
    return figures


def samples_of(evaluations: Mapping[int, Evaluation], index: int = 0) -> dict[int, int]:
    """Partition -> the samples of a split that it says it was evaluated on: by default those of its test."""
    return {partition: sum(evaluation.rows[index : index + 1]) for partition, evaluation in evaluations.items()}


def _spread(counts_by_client: Mapping[int, tuple[int, int]], shares: Mapping[int, float]) -> dict[str, float | int]:
    """The figures of one rule and split.

    Args:
        counts_by_client: right answers and samples.
        shares: of whose samples only a share is believed.
    """
    accuracies = sorted(right / samples for right, samples in counts_by_client.values())
    plain_mean = math.fsum(accuracies) / len(accuracies)
    tenth = accuracies[: max(1, len(accuracies) // 10)]
    believed = []
    for partition, (right, samples) in counts_by_client.items():
        share = shares.get(partition, 1)
        believed.append((share * right, share * samples))
    return {
        "mean": sum(right for right, _ in believed) / sum(samples for _, samples in believed),
        "plain_mean": plain_mean,
        "std": math.sqrt(math.fsum((a - plain_mean) ** 2 for a in accuracies) / len(accuracies)),
        "worst": accuracies[0],
        "worst_tenth": math.fsum(tenth) / len(tenth),
        "clients": len(accuracies),
        "rows": sum(samples for _, samples in counts_by_client.values()),
    }


def of_client(evaluation: Evaluation) -> dict[str, Any]:
    """One client's accuracies: rule -> one for each of `SPLITS` that it reports, None where it has no such rows."""
    accuracies: dict[str, Any] = {}
    for rule, counts in evaluation.correct.items():
        pairs = zip(counts, evaluation.rows, strict=True)
        accuracies[rule] = [right / samples if samples else None for right, samples in pairs]
    return {**accuracies, "rows": list(evaluation.rows)}


def console_line(line: Line, rounds: int, rule: str, seconds: Sequence[float]) -> str:
    """One line a round, as `LEGEND` says, of 100 characters at most up to round 999.

    Args:
        seconds: wall seconds of this process's rounds so far, the newest last.
    """
    final = line.get("final", False)
    width = len(str(rounds))
    parts = ["final evaluation" if final else f"round {line['round']:>{width}}/{rounds}"]
    test = line.get("evaluation", {}).get("rules", {}).get(rule, {}).get("test")
    ensemble = f"ensemble {100 * line['ensemble']['accuracy']:5.1f}" if "ensemble" in line else ""
    if test:
        details = ", ".join(filter(None, (f"worst {100 * test['worst']:5.1f}", ensemble)))
        parts.append(f"after {line['evaluation']['of_round']:>{width}}: {100 * test['mean']:5.1f} % ({details})")
    elif ensemble:
        parts.append(f"after {line['ensemble']['of_round']:>{width}}: {ensemble} %")
    prefix = "evaluate_only_" if final else ""
    parts += [_sizes(*(line["bytes"][f"{prefix}payload_{way}"] for way in ("up", "down"))), _format_brief(seconds[-1])]
    if not final:
        # the first round pays for starting the workers: it says little about the others
        usual = seconds[1:] or seconds
        parts.append(f"{_format_brief((rounds - line['round']) * sum(usual) / len(usual))} left")
    return " | ".join(parts)


def _sizes(*counts: int) -> str:
    """Bytes in one unit for all, of two digits or three."""
    scale, unit = 1e3, "kB"
    for larger_scale, larger_unit in ((1e6, "MB"), (1e9, "GB")):
        if max(counts) >= 0.9995 * larger_scale:
            scale, unit = larger_scale, larger_unit
    return f"{'/'.join(_digits(count / scale) for count in counts)} {unit}"


def _format_brief(seconds: float) -> str:
    """A duration in one unit."""
    for size, unit, most in ((1.0, "s", 999.5), (60.0, "min", 99.5), (3600.0, "h", 99.5)):
        if seconds / size < most:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 86400)} d"


def _digits(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
