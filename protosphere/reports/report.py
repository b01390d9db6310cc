"""The report of a run: report.html, a self-contained file, and its plots as files.

Everything comes from the run's folder, so the report can be written again anywhere (`protosphere report`). Equal
folders give equal bytes.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protosphere.core.client_names import client_word
from protosphere.core.errors import SettingError
from protosphere.core.objects import is_object
from protosphere.core.plugins import stem
from protosphere.core.settings import shown
from protosphere.core.text import class_words, cut_apart, duration, one_class, one_line, percent, readable_size
from protosphere.data.domains import short_name
from protosphere.record import snapshots
from protosphere.record.confusion import by_class
from protosphere.record.summary import FIGURES, doubts
from protosphere.reports.label_distribution import holdings
from protosphere.reports.page import (
    Details,
    Gallery,
    Image,
    Items,
    Page,
    Part,
    Table,
    code,
    images,
    write_images,
)
from protosphere.reports.page import write as write_file
from protosphere.reports.results import Results, read_results
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
    "Bytes": [],
}
# plots that most runs have no data for; their absence is not mentioned
RARE = ("confusion", "margins-of-global-prototypes", "values-of-prototypes", "alignment")


def write_report(folder: Path, trust: bool = False) -> Path:
    """Write `report.html` and `pictures/` into a run's folder; the run may be finished or interrupted.

    Args:
        trust: whether code in the folder may be run.

    Returns:
        The page's path.

    Raises:
        SettingError: raised by read_results; the files have an unexpected content; or `pictures` is a link.
        OSError: it cannot be written.
    """
    # a link has another name than the run
    folder = folder.resolve()
    try:
        page, drawn = _build(folder, trust)
        html = page.html()
    except (SettingError, OSError):
        raise
    except Exception as error:
        # values of unexpected types or lengths may make any step fail
        problem = one_line(f"{type(error).__name__}: {error}", 200).rstrip(".: ")
        raise SettingError(
            f"the report of {folder} cannot be made, since its files are not as this program writes them ({problem}); "
            "nothing was written."
        ) from error
    write_images(folder, drawn)
    return write_file(folder / NAME, html)


def leave_report(folder: Path) -> None:
    """Write the report at the end of a run; a failure is logged as a warning and does not fail the run."""
    try:
        # the run belongs to this home, so its code is trusted
        write_report(folder, trust=True)
    except Exception as error:
        problem = one_line(f"{type(error).__name__}: {error}", 300)
        log.warning("warning: the report could not be written (%s); `protosphere report` tries again", problem)


def _build(folder: Path, trust: bool) -> tuple[Page, list[Image]]:
    """The page and its images; nothing is written except the file of `holdings`."""
    results = read_results(folder, trust)
    if results.unknown:
        log.warning("warning: %s", _without_code(results))
    holdings(results)
    summary, settings = results.summary, results.run.settings
    sections: list[tuple[str, list[Part]]] = []
    every: list[Image] = []
    for heading, names in SECTIONS.items():
        plots, lacking = _draw(results, names)
        drawn = images(plots)
        every += drawn
        gallery: list[Part] = [Gallery(drawn)] if drawn else []
        parts = [*gallery, *_tables(heading, results), *lacking]
        if parts:
            sections.append((heading, parts))
    sections += [*_failures(results), ("Settings", _settings(results))]
    lead = (
        f"{len(results.roster)} clients, {len(results.class_names)} classes, {summary['rounds']} of {settings.rounds} "
        f"rounds, partition {settings.partition}, seed {settings.seed}, inference rule {results.rule}"
    ) + (f", with {one_line(str(summary['companion']), 120)}" if summary.get("companion") else "")
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    page = Page(
        title=f"{stem(settings.strategy)} on {short_name(settings.dataset)}",
        conclusion=conclude(results),
        lead=lead,
        sections=sections,
        cards=_cards(results),
        notes=_notes(results),
        foot=f"Protosphere's report of {results.folder.name}. Made with {versions}. "
        "docs/concepts.md explains the terms.",
    )
    return page, every


def _draw(results: Results, names: Sequence[str]) -> tuple[list["Plot"], list[str]]:
    """The plots of a section, wide ones last, and the reasons why others are missing."""
    # importing matplotlib takes a second, which a starting server should not spend
    from protosphere.reports import plots
    from protosphere.reports.canvas import NothingToPlotError

    tensors, about = snapshots.newest(results.folder)
    drawn, lacking = [], []
    for name in names:
        try:
            drawn.append(plots.draw(name, results, tensors, about))
        except NothingToPlotError as reason:
            lacking += [] if name in RARE else [str(reason)]
    return sorted(drawn, key=lambda plot: plot.wide), lacking


def conclude(results: Results) -> str:
    """The conclusion in one sentence."""
    headline = results.summary["headline"]
    accuracy, majority = headline.get("accuracy"), results.summary["floor"].get("majority-class")
    if accuracy is None:
        return "No accuracy is known: no client was evaluated, or all withhold theirs."
    number = headline.get("round")
    where = "" if number is None else f" after round {number}"
    sentence = f"The clients' models reach {_percent(accuracy)} on test samples{where} ({headline['rule']})"
    baselines = []
    control = CONTROLS.get(headline["rule"], "")
    control_accuracy = results.summary["rules"].get(control, {}).get(headline.get("figure"))
    if control_accuracy is not None:
        baselines.append(f"{control}, which needs no exchange, reaches {_percent(control_accuracy)}")
    if majority is not None:
        baselines.append(f"always predicting a client's most frequent class reaches {_percent(majority)}")
    return "; ".join([sentence, *baselines]) + "."


def _notes(results: Results) -> list[str]:
    summary = results.summary
    notes = [f"{sentence}." for sentence in doubts(summary, results.client_names)]
    if results.unknown:
        notes.insert(0, f"{_without_code(results)}.")
    if not results.finished:
        notes.insert(0, f"This run is not finished: the report covers its first {summary['rounds']} rounds.")
    elif by := summary.get("stopped"):
        notes.insert(0, f"This run was ended by {one_line(str(by), 40)} after {summary['rounds']} rounds.")
    return notes


def _without_code(results: Results) -> str:
    if is_object(results.unknown):
        return (
            f"the report was made without the method {stem(results.unknown)}, an object of the process that made the "
            "run"
        )
    return (
        f"the report was made without the method's code, {one_line(results.unknown, 200)}, which lies in "
        "the run's folder (`protosphere report --trust` runs it) or is not on this machine"
    )


def _cards(results: Results) -> list[tuple[object, object, object]]:
    summary = results.summary
    headline, sizes = summary["headline"], summary["bytes"]
    number = headline.get("round")
    where = f", after round {number}" if number is not None else ""
    unweighted = headline.get("unweighted")
    remark = "" if unweighted is None else f"; unweighted mean over clients: {_percent(unweighted)}"
    worst = results.figure("worst").get(number)
    payload, wire = (sizes[f"{kind}_up"] + sizes[f"{kind}_down"] for kind in ("payload", "wire"))
    steps = summary.get("gradient_steps")
    trained = "" if steps is None else f"; {steps:.4g} gradient steps per client per round"
    ups, downs = readable_size(sizes["payload_up"]), readable_size(sizes["payload_down"])
    return [
        ("test accuracy", _percent(headline.get("accuracy")), f"{headline.get('figure')}{where}{remark}"),
        ("worst client", _percent(worst), "in the same round"),
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


def _tables(heading: str, results: Results) -> list[Part]:
    makers = {
        "Accuracy": (_rules, _domains),
        "Classes": (_classes,),
        "Clients and their data": (_class_names, _roster),
        "Prototypes": (),
        "Bytes": (_bytes,),
    }
    return [part for make in makers[heading] for part in make(results)]


def _rules(results: Results) -> Iterator[Part]:
    rules = results.summary["rules"]
    rows = []
    for rule, values in rules.items():
        name = f"{rule} *" if rule == results.rule else rule
        rows.append([name, *(_in_percent(values.get(figure)) for figure in FIGURES)])
    caption = "Test accuracy in % by inference rule (* used for the headline)"
    yield Table(["rule", *FIGURES], rows, caption)


def _domains(results: Results) -> Iterator[Part]:
    domains = results.summary.get("domains", {})
    if domains:
        rules = list(dict.fromkeys(rule for accuracies in domains.values() for rule in accuracies))
        rows = [[name, *(_in_percent(accuracies.get(rule)) for rule in rules)] for name, accuracies in domains.items()]
        caption = "Test accuracy in % by domain, after the headline's round"
        yield Table(["domain", *rules], rows, caption)


def _classes(results: Results) -> Iterator[Part]:
    """Accuracy by class, over all clients."""
    from protosphere.reports.plots import confusion_triples

    rule, triples = confusion_triples(results)
    if not triples:
        return
    figures = by_class(triples)
    rows: list[list[object]] = []
    for number, name in enumerate(cut_apart(results.class_names, 40)):
        figure = figures.get(str(number), {})
        rows.append([name, figure.get("rows", 0), _in_percent(figure.get("accuracy"))])
    caption = f"Test accuracy in % by class, by {rule}, in the last evaluation"
    table = Table(["class", "samples", "accuracy"], rows, caption)
    yield Details(f"accuracy of the {len(rows)} classes", [table]) if len(rows) > MOST_NAMED else table


def _class_names(results: Results) -> Iterator[Part]:
    """The class names, for plots with room for numbers only; and a note if a client has a single class."""
    names = results.class_names
    if len(names) > MOST_NAMED:
        text = ", ".join(f"{label} {name}" for label, name in enumerate(cut_apart(names, 40)))
        yield Details(f"the {len(names)} classes by number", [text])
    if alone := one_class({client["partition"]: client["classes"] for client in results.roster}, names):
        yield f"Note: {alone}."


def _roster(results: Results) -> Iterator[Part]:
    names = results.client_names
    columns: dict[str, list[object]] = {
        "client": [client["partition"] for client in results.roster],
        "model": list(_model_labels(results)),
    }
    for place, part in enumerate(("training", "validation", "test")):
        columns[part] = [(client["rows"] + [0, 0, 0])[place] for client in results.roster]
    columns["classes"] = [
        one_line(class_words(client["classes"], results.class_names), 120) for client in results.roster
    ]
    columns["accuracy"] = [
        _in_percent(results.at_the_end.get(client["partition"], (None,))[0]) for client in results.roster
    ]
    if any(client["domain"] for client in results.roster):
        columns["domain"] = list(cut_apart([client["domain"] for client in results.roster], 40))
    if any(names.get(client["partition"], "") != client["domain"] for client in results.roster):
        columns["name"] = [names.get(client["partition"], "") for client in results.roster]
    if any("joined" in client or "left" in client for client in results.roster):
        columns["takes part"] = [_membership(client) for client in results.roster]
    more = len(results.roster) - MOST_CLIENTS
    caption = "Clients: samples, classes of the training samples, last test accuracy in %" + (
        f"; the first {MOST_CLIENTS}; roster.json has {more} more" if more > 0 else ""
    )
    rows = list(zip(*columns.values(), strict=True))[:MOST_CLIENTS]
    table = Table(list(columns), rows, caption, words=(0, 1, 5, 7, 8, 9))
    yield Details(f"{len(results.roster)} clients", [table]) if len(rows) > 12 else table
    disclosed = sorted({one_line(str(item)) for client in results.roster for item in client.get("discloses", [])})
    if disclosed:
        yield Details("what the server learnt about each client", [Items(disclosed)])


def _model_labels(results: Results) -> list[str]:
    from protosphere.reports.plots import model_labels

    models = sorted({client["model"] for client in results.roster})
    labels = dict(zip(models, model_labels(models), strict=True))
    return [labels[client["model"]] for client in results.roster]


def _membership(client: Mapping[str, Any]) -> str:
    """The round at whose start a client joined, and the one at whose start it left."""
    phrases = [f"from round {client['joined']}"] if "joined" in client else []
    phrases += [f"until round {client['left']}"] if "left" in client else []
    return ", ".join(phrases) or "always"


def _bytes(results: Results) -> Iterator[Part]:
    sizes = results.summary["bytes"]
    rows = []
    for name, kind in (
        ("payload: prototype values only", "payload"),
        ("wire: training messages", "wire"),
        ("wire: evaluation messages", "evaluation_wire"),
    ):
        both = [sizes.get(f"{kind}_{way}") for way in ("up", "down")]
        if any(both) or kind in ("payload", "wire"):
            rows.append([name, *(None if size is None else readable_size(size) for size in both)])
    yield Table(["sent in all", "up", "down"], rows, "Bytes sent, from and to the clients")


def _failures(results: Results) -> Iterator[tuple[str, list[Part]]]:
    failures = sorted(results.summary["failures"].items(), key=lambda entry: -entry[1]["rounds"])
    if failures:
        rows = []
        for partition, failure in failures[:MOST_CLIENTS]:
            client, reason = client_word(partition, results.client_names), one_line(str(failure["last"]), 300)
            rows.append([client, failure["rounds"], failure["last_round"], reason])
        head = ["", "rounds", "most recently in round", "most recent reason"]
        parts: list[Part] = [Table(head, rows, "Clients that failed in at least one round", (0, 3))]
        more = len(failures) - MOST_CLIENTS
        parts += [f"metrics.jsonl lists {more} more clients."] if more > 0 else []
        yield "Problems", parts


def _settings(results: Results) -> list[Part]:
    defaults = known_settings()
    written = {name: value for name, value in results.settings.items() if name not in NOT_SHOWN}
    changed = []
    for name, value in written.items():
        if value != defaults.get(name):
            changed.append([code(name), code(shown(value)), code(shown(defaults.get(name)))])
    every = Table(
        ["setting", "value"], [[code(name), code(shown(value))] for name, value in written.items()], "", (0, 1)
    )
    first: Part = "All settings have their defaults."
    if changed:
        first = Table(["setting", "value", "default"], changed, "Set for this run", (0, 1, 2))
    return [first, Details("all settings", [every])]


def _percent(value: float | None) -> str | None:
    return None if value is None else percent(value)


def _in_percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f}"
