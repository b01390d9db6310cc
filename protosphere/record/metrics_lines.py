"""From a round's replies to its line of metrics.jsonl, the line on the console, and the run's summary.

All but what stands under `time` is the same to the bit for the same settings and seed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protosphere.core.client_names import NAMELESS, client_word
from protosphere.core.settings import Settings
from protosphere.record import figures
from protosphere.record.confusion import per_class
from protosphere.record.folder import FORMAT
from protosphere.record.provenance import versions
from protosphere.record.round import Bytes, Reply
from protosphere.wire.claims import over_claimed
from protosphere.wire.payloads import Evaluation, Identity

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
    trainings = {r.partition: r.report.training for r in training_replies if r.report and r.report.training}
    clients: Line = {}
    for partition, training in sorted(trainings.items()):
        values = {name: getattr(training, name) for name in ("rows", "steps", *figures.MEANS)}
        clients[str(partition)] = {"training": {"loss": training.parts, **values}}
    return {
        "round": server_round,
        "training": {
            "asked": len(training_replies),
            "valid": sum(reply.valid for reply in training_replies),
            "dropped": sum(reply.dropped for reply in training_replies),
            **figures.over_trainings(trainings, ratio),
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
    sizes = {reply.partition: _split_size(reply.size, sent[reply.partition]) for reply in replies}
    for prefix, trains in (("", True), ("evaluate_only_", False)):
        mine = [reply.partition for reply in replies if reply.trains == trains]
        up = sum((sizes[partition] for partition in mine), Bytes())
        down = sum((sent[partition] for partition in mine), Bytes())
        sums |= {
            f"{prefix}payload_up": up.payload,
            f"{prefix}payload_down": down.payload,
            f"{prefix}wire_up": up.wire,
            f"{prefix}wire_down": down.wire,
            f"{prefix}evaluation_wire_up": up.evaluation,
        }
    for way, size_by_client in (("up", sizes), ("down", {partition: sent[partition] for partition in sizes})):
        for name, size in sorted(sum(size_by_client.values(), Bytes()).features.items()):
            sums[f"{name}_wire_{way}"] = size
    return {"bytes": sums, "problems": {str(r.partition): r.problems for r in replies if r.problems}}


def _split_size(size: Bytes, sent: Bytes) -> Bytes:
    """A reply's size; all of it is a feature's if the message was sent for that alone."""
    if sent.wire or not sent.features:
        return size
    (name,) = sent.features
    return Bytes(features={name: size.wire + sum(size.features.values())})


def evaluations(replies: Iterable[Reply]) -> dict[int, Evaluation]:
    """The evaluations that arrived, by partition."""
    return {r.partition: r.report.evaluation for r in replies if r.report and r.report.evaluation}


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
    line["evaluation"] = {"of_round": of_round, "rules": figures.over_clients(by_partition, ratio)}
    if capped := sorted(over_claimed(figures.samples_of(by_partition), ratio)):
        line["evaluation"]["capped"] = capped
    domain_of = {partition: identities[partition].domain for partition in by_partition} if identities else {}
    domains = sorted(set(domain_of.values()) - {""})
    if domains:
        line["evaluation"]["domains"] = {
            domain: figures.over_clients(
                {p: evaluation for p, evaluation in by_partition.items() if domain_of[p] == domain}, ratio
            )
            for domain in domains
        }
    for partition, evaluation in sorted(by_partition.items()):
        line["clients"].setdefault(str(partition), {})["evaluation"] = figures.of_client(evaluation)


def times(replies: Sequence[Reply], seconds: float) -> Line:
    """Seconds of the round, and by client of training, evaluation and everything between message and reply."""
    reports = {str(r.partition): r.report for r in replies if r.report is not None}
    return {
        "round": seconds,
        "train": {p: report.training.seconds for p, report in reports.items() if report.training},
        "evaluate": {p: report.evaluation.seconds for p, report in reports.items() if report.evaluation},
        "client": {p: report.seconds for p, report in reports.items()},
    }


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


LEGEND = "a line a round: test accuracy after the round before (the worst client's), payload up/down, time"


def readable_size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _sizes(*counts: int) -> str:
    """Bytes in one unit for all, of two digits or three."""
    scale, unit = next(((s, u) for s, u in ((1e9, "GB"), (1e6, "MB")) if max(counts) >= 0.9995 * s), (1e3, "kB"))
    return f"{'/'.join(_digits(count / scale) for count in counts)} {unit}"


def _format_brief(seconds: float) -> str:
    """A duration in one unit."""
    units = ((1.0, "s", 999.5), (60.0, "min", 99.5), (3600.0, "h", 99.5))
    size, unit = next(((s, u) for s, u, most in units if seconds / s < most), (86400.0, "d"))
    return f"{_digits(seconds / size)} {unit}"


def _digits(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def doubts(summary: Mapping[str, Any], client_names: Mapping[int, str] = NAMELESS) -> list[str]:
    """What a reader has to know beside the headline of a summary: where it is of a round that lacks clients, and whose
    numbers of test samples are believed in part alone."""
    headline, sentences = summary["headline"], []
    figures_of_rule = summary["rules"].get(headline["rule"], {})
    clients, since = figures_of_rule.get("clients"), figures_of_rule.get("since")
    if since:
        sentences.append(
            f"clients came and went: selected and best are chosen among the rounds since round {since}, whose clients "
            "are those at the end"
        )
    is_complete = figures_of_rule.get("complete", clients is None or clients >= summary["clients"])
    if not is_complete:
        sentences.append(
            f"no round evaluated all {summary['clients']} clients: selected and best are chosen among those that "
            f"evaluated {clients}"
        )
    if "capped" in headline:
        names = ", ".join(client_word(partition, client_names) for partition in headline["capped"])
        sentences.append(
            f"{names} says that it has many more test samples than the others: figures believe it up to "
            "`max-weight-ratio` times their median"
        )
    return sentences


def companions(named: Iterable[str]) -> str:
    """What clients say of the second model that all have alike, in words; "" where there is none."""
    names = sorted(set(named) - {""})
    return f"the companion {', '.join(names)}" if names else ""


def summarise(
    settings: Settings,
    rule: str,
    written: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    clients: int,
    companion: str = "",
    stopped: str = "",
) -> Line:
    """The run's outcome, from its lines alone, so that a resumed run has the same.

    Args:
        rule: the primary prediction rule. written: the settings as the run's folder holds them. companion: by
            `companions`: no figure is one of the client's models alone. stopped: what ended it before its last round.
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
        "rounds": sum(not line.get("final", False) for line in lines),
        **({"stopped": stopped} if stopped else {}),
        **outcome(rule, lines, settings.max_weight_ratio),
        **per_class(lines),
        **figures.ensemble_headline(lines),
        "bytes": sizes,
        "gradient_steps": figures.gradient_steps(lines),
        "problems": sum(len(line["problems"]) for line in lines),
        "failures": figures.failures(lines),
        "seconds": sum(line["time"]["round"] for line in lines),
        "settings": dict(written),
        "versions": versions(),
    }


def outcome(rule: str, lines: Sequence[Mapping[str, Any]], ratio: float) -> Line:
    """The accuracies of a summary: `headline`, `floor`, `rules`, and where clients name their domain `domains` and
    `domains-unweighted`.

    Args:
        rule: the primary prediction rule. lines: of metrics.jsonl. ratio: the most that a client may weigh.
    """
    rules = figures.headlines(lines, ratio)
    primary = rules.get(rule, {})
    figure = figures.primary_figure(primary)
    # the floor beside the headline is of the same evaluation, so of the same clients
    every = [line["evaluation"] for line in lines if "evaluation" in line]
    measured = [evaluation for evaluation in every if evaluation["rules"].get(rule, {}).get("test")]
    of_round = measured[-1]["of_round"] if measured else None
    if figure == "selected":
        of_round = primary["selected_round"]
    evaluation: Line = next((evaluation for evaluation in measured if evaluation["of_round"] == of_round), {})
    accuracies: Line = evaluation.get("rules", {})
    covered = accuracies.get(rule, {}).get("test", {})
    floor = accuracies.get(figures.MAJORITY, {}).get("test", {})
    return {
        "headline": {
            "rule": rule,
            "figure": figure,
            "accuracy": primary.get(figure),
            "unweighted": covered.get("plain_mean"),
            "of_round": of_round,
            "clients": covered.get("clients"),
            "rows": covered.get("rows"),
            **({"capped": evaluation["capped"]} if "capped" in evaluation else {}),
        },
        "floor": {figures.MAJORITY: floor.get("mean"), figures.MAJORITY_UNWEIGHTED: floor.get("plain_mean")},
        "rules": {rule: values for rule, values in rules.items() if rule != figures.MAJORITY},
        **figures.by_domain(evaluation),
    }


def up_to_date(summary: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A summary whose accuracies mean what they mean today: those of a version that chose among round 0 or rounds that
    lack clients, too, weighed the clients of `client-best` alike, or left a figure out, are worked out anew."""
    if is_up_to_date(summary):
        return summary
    # versions without the setting believed every claim
    ratio = summary.get("settings", {}).get("max-weight-ratio", math.inf)
    accuracies = outcome(summary["headline"]["rule"], lines, ratio)
    return {**summary, **accuracies, **figures.ensemble_headline(lines)}


def is_up_to_date(summary: Mapping[str, Any]) -> bool:
    """Whether `up_to_date` leaves it as it is."""
    if "domains" in summary and "domains-unweighted" not in summary:
        return False
    if "floor" in summary and figures.MAJORITY_UNWEIGHTED not in summary["floor"]:
        return False
    return all({*figures.FIGURES, "clients"} <= values.keys() for values in summary["rules"].values())
