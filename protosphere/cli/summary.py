"""Prints a run's summary.json as a small table."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from protosphere.cli.tables import print_table
from protosphere.core.client_names import NAMELESS, client_names, client_word
from protosphere.core.errors import SettingError
from protosphere.core.text import counted, readable_size
from protosphere.record.folder import RunFolder
from protosphere.record.summary import doubts, primary_figure

MOST_FAILURES = 10  # clients whose failures are printed


def print_summary(folder: Path) -> None:
    """Print accuracies by inference rule, warnings, bytes, seconds, the report, and what to do next."""
    summary = RunFolder(folder).summary()
    if summary["rules"]:
        name, data, clients = summary["strategy"], summary["dataset"], summary["clients"]
        typer.echo(f"{name} on {data}, {clients} clients, {counted(summary['rounds'], 'round')}: test accuracy in %")
        print_table(("inference rule", "all clients", "worst client", "round"), _rows(summary))
    names = NAMELESS
    # a summary can be printed without them
    with suppress(SettingError):
        names = client_names(RunFolder(folder).roster())
    for line in _lines(summary, names):
        typer.echo(line)
    if (folder / "report.html").exists():
        typer.echo(f"report: {folder / 'report.html'}")
    # not through the console, which would break a long path
    typer.echo(f"results: {folder}")
    if summary["rules"] and summary["strategy"] not in ("local", "frame"):
        command = f"protosphere compare --methods local,frame,{summary['strategy']}"
        # the control needs the same public encoder
        encoder = summary["settings"].get("encoder") or _default_encoder(summary["strategy"])
        command += f""" -c 'encoder="{encoder}"'""" if encoder else ""
        typer.echo(f"next: `{command}` with the other settings of this run shows what the exchange adds")


def _default_encoder(strategy: str) -> str:
    from protosphere.strategies import METHODS, default_encoder, load_method

    return default_encoder(load_method(strategy)) if strategy in METHODS else ""


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Each rule's accuracy at the round with the best validation accuracy or, without validation samples, at the last
    round."""
    for rule, figures in summary["rules"].items():
        mark = " *" if rule == summary["headline"]["rule"] else ""
        figure = primary_figure(figures)
        number = figures["selected_round"] if figure == "selected" else summary["rounds"]
        yield rule + mark, _percent(figures.get(figure)), _percent(figures.get("worst")), str(number)


def _lines(summary: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    lines = []
    if "companion" in summary:
        lines.append(f"all accuracies are measured with {summary['companion']}")
    lines += _accuracy_lines(summary)
    for doubt in doubts(summary, names):
        lines.append(f"note: {doubt}")
    if "stopped" in summary:
        lines.append(f"ended by {summary['stopped']} after round {summary['rounds']}")

    sizes = summary["bytes"]
    up, down = sizes["payload_up"], sizes["payload_down"]
    overhead = sizes["wire_up"] + sizes["wire_down"] - up - down
    evaluation = sizes["evaluation_wire_up"] + sizes["evaluation_wire_down"]
    lines.append(
        f"sent: {readable_size(up)} up, {readable_size(down)} down, and {readable_size(overhead)} of overhead; "
        f"evaluation takes another {readable_size(evaluation)}"
    )
    lines += _failure_lines(summary, names)
    return [*lines, f"time: {summary['seconds']:.1f} s"]


def _accuracy_lines(summary: Mapping[str, Any]) -> list[str]:
    """What the table's accuracies are, and the baseline that any useful model exceeds."""
    headline = summary["headline"]
    if not summary["rules"]:
        if summary.get("settings", {}).get("privacy") == "release":
            return ["accuracy: withheld by the clients (`privacy`); `protosphere report --state` prints it there"]
        return ["accuracy: no client could be evaluated"]
    if headline["figure"] == "selected":
        choice = "each rule is shown at the round with its best validation accuracy"
    else:
        choice = "without validation samples, each rule is shown after the last round"
    majority = _percent(summary["floor"]["majority-class"])
    return [
        f"* this method's own rule; {choice}",
        f"always predicting a client's most frequent class reaches {majority}",
    ]


def _failure_lines(summary: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    """Lines on the clients that failed most often."""
    failures = sorted(summary.get("failures", {}).items(), key=lambda entry: -entry[1]["rounds"])
    # the evaluation of the untrained models counts as one more round
    rounds = summary["rounds"] + 1
    lines = []
    for partition, failed in failures[:MOST_FAILURES]:
        lines.append(
            f"{client_word(partition, names)} failed in {failed['rounds']} of {rounds} rounds, the last time in round "
            f"{failed['last_round']}: {failed['last']}"
        )
    more = len(failures) - MOST_FAILURES
    return [*lines, f"{more} more clients failed in some rounds; metrics.jsonl lists them"] if more > 0 else lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
