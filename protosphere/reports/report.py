"""The report of a run: report.html, a self-contained file, and its plots as files.

Everything but the numbers of samples by class comes from the run's folder, so the report can be written again anywhere
(`protosphere report`). On one machine, equal folders give equal bytes.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from protosphere.core.client_names import client_word
from protosphere.core.plugins import stem
from protosphere.core.settings import shown
from protosphere.core.text import class_words, cut_apart, duration, one_class, one_line, percent, readable_size
from protosphere.data.domains import short_name
from protosphere.record.summary import FIGURES, doubts
from protosphere.reports.page import Details, Gallery, Page, Part, Table, code, write_plots
from protosphere.reports.page import write as write_file
from protosphere.reports.results import Prototypes, Results, explain_damage, read_prototypes, read_results
from protosphere.strategies import known_settings
from protosphere.strategies.release import CONTROLS

if TYPE_CHECKING:
    from protosphere.reports.canvas import Plot

log = logging.getLogger("protosphere")

NAME = "report.html"
MOST_CLIENTS = 50
MOST_NAMED = 32  # most classes whose accuracies are shown without expanding
# settings on how and where it ran, which are not listed
NOT_SHOWN = frozenset({"results-dir", "resume"})
# heading -> the plots below it
SECTIONS = {
    "Accuracy": ["accuracy-over-rounds", "loss-over-rounds", "accuracy-over-bytes"],
    "Classes": ["confusion"],
    "Clients and their data": ["accuracy-by-client", "samples-by-client-and-class"],
    "Prototypes": [
        "distances-of-global-prototypes",
        "map-of-prototypes",
        "margins-of-global-prototypes",
        "values-of-prototypes",
        "alignment",
    ],
}


def write_report(folder: Path) -> Path:
    """Write `report.html` and `pictures/` into a run's folder; the run may be finished or interrupted.

    Returns:
        The page's path.

    Raises:
        SettingError: raised by read_results; the files have an unexpected content; or `pictures` is a link.
        OSError: it cannot be written.
    """
    # a link has another name than the run
    folder = folder.resolve()
    results, prototypes = read_results(folder), read_prototypes(folder)
    with explain_damage(folder):
        plots = _draw(results, prototypes)
        sections: list[tuple[str, list[Part]]] = []
        for heading, names in SECTIONS.items():
            gallery = [plots[name] for name in names if name in plots]
            parts: list[Part] = [Gallery(gallery)] if gallery else []
            parts += _tables(heading, results)
            if parts:
                sections.append((heading, parts))
        sections += [*_failures(results), ("Settings", _settings(results))]
        html = _page(results, sections).html()
    write_plots(folder, plots.values())
    return write_file(folder / NAME, html)


def leave_report(folder: Path) -> None:
    """Write the report at the end of a run; a failure is logged as a warning and does not fail the run."""
    try:
        write_report(folder)
    except Exception as error:
        problem = one_line(f"{type(error).__name__}: {error}", 300)
        log.warning("warning: the report could not be written (%s); `protosphere report` tries again", problem)


def _draw(results: Results, prototypes: Prototypes) -> dict[str, "Plot"]:
    """The plots that the run has data for, by name."""
    # importing matplotlib takes a second, which a starting server should not spend
    from protosphere.reports import plots
    from protosphere.reports.canvas import NothingToPlotError

    drawn: dict[str, Plot] = {}
    for names in SECTIONS.values():
        for name in names:
            with suppress(NothingToPlotError):
                drawn[name] = plots.draw(name, results, prototypes)
    return drawn


def _page(results: Results, sections: Sequence[tuple[str, Sequence[Part]]]) -> Page:
    summary, settings = results.summary, results.settings
    lead = (
        f"{len(results.roster)} clients, {len(results.class_names)} classes, {summary['rounds']} of {settings.rounds} "
        f"rounds, partition {settings.partition}, seed {settings.seed}, inference rule {results.rule}"
    )
    if summary.get("companion"):
        lead += f", with {one_line(str(summary['companion']), 120)}"
    notes = [f"{sentence}." for sentence in doubts(summary, results.client_names)]
    if not results.finished:
        notes.insert(0, f"This run is not finished: the report covers its first {summary['rounds']} rounds.")
    elif by := summary.get("stopped"):
        notes.insert(0, f"This run was ended by {one_line(str(by), 40)} after {summary['rounds']} rounds.")
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    return Page(
        title=f"{stem(settings.strategy)} on {short_name(settings.dataset)}",
        conclusion=conclude(results),
        lead=lead,
        sections=sections,
        cards=_cards(results),
        notes=notes,
        foot=f"Protosphere's report of {results.folder.name}. Made with {versions}. "
        "docs/concepts.md explains the terms.",
    )


def conclude(results: Results) -> str:
    """The conclusion in one sentence."""
    headline = results.summary["headline"]
    accuracy, majority = headline.get("accuracy"), results.summary["floor"].get("majority-class")
    if accuracy is None:
        return "No accuracy is known: no client was evaluated, or all withhold theirs."
    number = headline.get("round")
    where = "" if number is None else f" after round {number}"
    parts = [f"The clients' models reach {percent(accuracy)} on test samples{where} ({headline['rule']})"]
    control = CONTROLS.get(headline["rule"], "")
    control_accuracy = results.summary["rules"].get(control, {}).get(headline.get("figure"))
    if control_accuracy is not None:
        parts.append(f"{control}, which needs no exchange, reaches {percent(control_accuracy)}")
    if majority is not None:
        parts.append(f"always predicting a client's most frequent class reaches {percent(majority)}")
    return "; ".join(parts) + "."


def _cards(results: Results) -> list[tuple[object, object, object]]:
    summary = results.summary
    headline, sizes = summary["headline"], summary["bytes"]
    number, unweighted = headline.get("round"), headline.get("unweighted")
    remark = str(headline.get("figure"))
    if number is not None:
        remark += f", after round {number}"
    if unweighted is not None:
        remark += f"; unweighted mean over clients: {percent(unweighted)}"
    steps = summary.get("gradient_steps")
    trained = "" if steps is None else f"; {steps:.4g} gradient steps per client per round"
    payload, wire = (sizes[f"{kind}_up"] + sizes[f"{kind}_down"] for kind in ("payload", "wire"))
    ups, downs = readable_size(sizes["payload_up"]), readable_size(sizes["payload_down"])
    return [
        ("test accuracy", _percent(headline.get("accuracy")), remark),
        ("worst client", _percent(results.figure("worst").get(number)), "in the same round"),
        (
            "majority-class baseline",
            _percent(summary["floor"].get("majority-class")),
            "always predicting a client's most frequent class",
        ),
        ("payload", readable_size(payload), f"{ups} up, {downs} down"),
        ("on the wire", readable_size(wire), "whole messages"),
        ("time", duration(summary["seconds"]), f"{summary['rounds']} rounds{trained}"),
    ]


# --- tables -----------------------------------------------------------------------------------------------------


def _tables(heading: str, results: Results) -> Iterator[Part]:
    if heading == "Accuracy":
        yield from _rules(results)
    elif heading == "Classes":
        yield from _classes(results)
    elif heading == "Clients and their data":
        yield from _clients(results)


def _rules(results: Results) -> Iterator[Part]:
    rows = []
    for rule, values in results.summary["rules"].items():
        name = f"{rule} *" if rule == results.rule else rule
        rows.append([name, *(_in_percent(values.get(figure)) for figure in FIGURES)])
    yield Table(["rule", *FIGURES], rows, "Test accuracy in % by inference rule (* used for the headline)")
    domains = results.summary.get("domains", {})
    if domains:
        rules = list(dict.fromkeys(rule for accuracies in domains.values() for rule in accuracies))
        rows = [[name, *(_in_percent(accuracies.get(rule)) for rule in rules)] for name, accuracies in domains.items()]
        yield Table(["domain", *rules], rows, "Test accuracy in % by domain, after the headline's round")


def _classes(results: Results) -> Iterator[Part]:
    """Accuracy by class, over all clients; and the class names, for plots with room for numbers only."""
    names = results.class_names
    classes = results.summary.get("classes")
    rows: list[list[object]] = []
    for label, name in enumerate(cut_apart(names, 40)):
        figures = classes["all"].get(str(label), {}) if classes else {}
        rows.append([label, name, figures.get("rows"), _in_percent(figures.get("accuracy"))])
    caption = f"Test accuracy in % by class, by {classes['rule']}, in the last evaluation" if classes else ""
    table = Table(["", "class", "samples", "accuracy"], rows, caption, (0, 1))
    if len(names) > MOST_NAMED:
        yield Details(f"the {len(names)} classes by number", [table])
    elif classes:
        yield table


def _clients(results: Results) -> Iterator[Part]:
    roster = results.roster
    if alone := one_class({client["partition"]: client["classes"] for client in roster}, results.class_names):
        yield f"Note: {alone}."
    # importing matplotlib takes a second, which a starting server should not spend
    from protosphere.reports.plots import model_labels

    models = sorted({client["model"] for client in roster})
    labels = dict(zip(models, model_labels(models), strict=True))
    rows = []
    for client in roster[:MOST_CLIENTS]:
        partition = client["partition"]
        class_names = one_line(class_words(client["classes"], results.class_names), 120)
        accuracy = _in_percent(results.final_accuracies.get(partition))
        sizes = (client["rows"] + [0, 0, 0])[:3]
        name = client_word(partition, results.client_names).removeprefix("client ")
        rows.append([name, labels[client["model"]], *sizes, class_names, accuracy])
    head = ["client", "model", "training", "validation", "test", "classes", "accuracy"]
    caption = "Clients: samples, classes of the training samples, last test accuracy in %"
    if len(roster) > MOST_CLIENTS:
        caption += f"; the first {MOST_CLIENTS}; roster.json has {len(roster) - MOST_CLIENTS} more"
    table = Table(head, rows, caption, (0, 1, 5))
    yield Details(f"{len(roster)} clients", [table]) if len(rows) > 12 else table
    disclosed = sorted({one_line(str(item)) for client in roster for item in client.get("discloses", [])})
    if disclosed:
        yield Details("what the server learnt about each client", disclosed)


def _failures(results: Results) -> Iterator[tuple[str, list[Part]]]:
    failures = sorted(results.summary["failures"].items(), key=lambda entry: -entry[1]["rounds"])
    rows = []
    for partition, failure in failures[:MOST_CLIENTS]:
        client, reason = client_word(partition, results.client_names), one_line(str(failure["last"]), 300)
        rows.append([client, failure["rounds"], failure["last_round"], reason])
    head = ["", "rounds", "most recently in round", "most recent reason"]
    caption = "Clients that failed in at least one round"
    if len(failures) > MOST_CLIENTS:
        caption += f"; metrics.jsonl lists {len(failures) - MOST_CLIENTS} more"
    if rows:
        yield "Problems", [Table(head, rows, caption, (0, 3))]


def _settings(results: Results) -> list[Part]:
    defaults = known_settings()
    changed, every = [], []
    for name, value in results.stored.items():
        if name in NOT_SHOWN:
            continue
        every.append([code(name), code(shown(value))])
        if value != defaults.get(name):
            changed.append([*every[-1], code(shown(defaults.get(name)))])
    first: Part = "All settings have their defaults."
    if changed:
        first = Table(["setting", "value", "default"], changed, "Set for this run", (0, 1, 2))
    return [first, Details("all settings", [Table(["setting", "value"], every, "", (0, 1))])]


def _percent(value: float | None) -> str | None:
    return None if value is None else percent(value)


def _in_percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f}"
