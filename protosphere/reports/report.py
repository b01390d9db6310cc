"""The run's report: report.html, one file that needs no other, and its pictures as files beside it.

All of it comes from the run's folder, so that it can be made again anywhere (`protosphere report`). The same folder
gives the same bytes.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protosphere.core.client_names import client_word
from protosphere.core.errors import SettingError
from protosphere.core.objects import is_object
from protosphere.core.plugins import stem
from protosphere.core.seeds import limited_threads
from protosphere.core.settings import shown
from protosphere.core.terms import TERMS
from protosphere.core.text import class_words, cut_apart, duration, one_class, one_line, readable_size
from protosphere.data.domains import short_name
from protosphere.record import snapshots
from protosphere.record.provenance import origins
from protosphere.record.summary import FIGURES, doubts
from protosphere.reports import page
from protosphere.reports.canvas import MOST_NAMED
from protosphere.reports.confusions import class_table, confusion_matrices
from protosphere.reports.curves import clients_over_rounds, loss_over_rounds, roc_auc_over_rounds
from protosphere.reports.label_distribution import Holdings, holdings
from protosphere.reports.maps import angles, partition_map, prototype_map, separation_over_rounds
from protosphere.reports.page import Html, code, paragraph, section
from protosphere.reports.pictures import (
    Picture,
    accuracy_by_model,
    accuracy_over_bytes,
    accuracy_over_rounds,
    framed,
    time_by_part,
    write_files,
)
from protosphere.reports.prototype_figures import alignment, margins, prototype_values
from protosphere.reports.results import Results, read_results
from protosphere.reports.trajectories import motion, slider
from protosphere.strategies import known_settings

log = logging.getLogger("protosphere")

NAME = "report.html"
MOST_CLIENTS = 50
# of a training line: its term
MEANINGS = {
    "gradient_ratio": TERMS["gradient ratio"],
    "target_norm": TERMS["target norm"],
    "prototype_norm": TERMS["prototype norm"],
}
# how and where it ran, which is no part of what was asked for
NOT_SHOWN = frozenset({"results-dir", "resume"})


@dataclass(frozen=True)
class Choice:
    """Pictures of which a reader sees one at a time: words and picture of each."""

    name: str
    title: str
    entries: Sequence[tuple[str, Picture]]
    wide: bool = True


@dataclass(frozen=True)
class Slider:
    """Maps in the page itself, of which a reader sees one at a time: round and map of each."""

    frames: Sequence[tuple[str, Html]]


Drawn = Picture | Choice | Slider | str  # the last: why there is none


def write_report(folder: Path, trust: bool = False) -> Path:
    """Write `report.html` and `pictures/` of a run into its folder, finished or cut after a round or more.

    Args:
        trust: whether code that lies in the folder may be run.

    Returns:
        The page's path.

    Raises:
        SettingError: what read_results raises; the files are not as this program writes them; `pictures` is a link.
        OSError: it cannot be written.
    """
    # a link has another name than the run
    folder = folder.resolve()
    try:
        html, pictures = _build(folder, trust)
    except (SettingError, OSError):
        raise
    except Exception as error:
        # figures of other types or lengths than this program writes: whatever is made of them may fail
        problem = one_line(f"{type(error).__name__}: {error}", 200).rstrip(".: ")
        raise SettingError(
            f"the report of {folder} cannot be made, since its files are not as this program writes them ({problem}); "
            "nothing was written."
        ) from error
    write_files(folder, pictures)
    return page.write(folder / NAME, html)


def _build(folder: Path, trust: bool) -> tuple[str, list[Picture]]:
    """The page, and its pictures; nothing is written yet."""
    results = read_results(folder, trust)
    if results.unknown:
        log.warning("warning: %s", _without_code(results))
    # the number of threads would change the map's last digits
    with limited_threads(1):
        distribution = holdings(results)
        tensors, about = snapshots.newest(folder)
        drawn: dict[str, list[Drawn]] = {
            "Accuracy": [
                *(make(results) for make in (accuracy_over_rounds, loss_over_rounds, accuracy_over_bytes)),
                accuracy_by_model(results),
                *filter(None, [roc_auc_over_rounds(results)]),
                Choice("clients", "order of the clients", clients_over_rounds(results)),
            ],
            "Classes": [Choice("confusion", "whose", confusion_matrices(results), wide=False)],
            "Clients and their data": [partition_map(distribution, results.name_list)],
            "Prototypes": [
                separation_over_rounds(results, tensors),
                prototype_map(results, tensors, about),
                angles(results, tensors, about),
                *filter(
                    None,
                    [
                        margins(results, tensors, about),
                        prototype_values(results, tensors, about),
                        alignment(results),
                    ],
                ),
            ],
            "Time and bytes": [time_by_part(results)],
        }
        moved = motion(results)
        if moved is not None:
            paths, frames = moved
            drawn["Prototypes"] += [paths, Slider(frames)]
    pictures = [picture for group in drawn.values() for part in group for picture in _pictures(part)]
    return _page(results, distribution, drawn), pictures


def leave_report(folder: Path) -> None:
    """Write the report at the end of a run, which it must not fail: what goes wrong is one line of warning."""
    try:
        # of a run of this home's own
        write_report(folder, trust=True)
    except Exception as error:
        problem = one_line(f"{type(error).__name__}: {error}", 300)
        log.warning("warning: the report could not be written (%s); `protosphere report` tries again", problem)


def _pictures(drawn: Drawn) -> list[Picture]:
    if isinstance(drawn, Choice):
        return [picture for _, picture in drawn.entries]
    return [drawn] if isinstance(drawn, Picture) else []


def _frame(drawn: Picture | Choice | Slider) -> Html:
    if isinstance(drawn, Slider):
        return slider(drawn.frames)
    if isinstance(drawn, Choice):
        entries = [(label, _frame(content)) for label, content in drawn.entries]
        return page.choice(drawn.name, entries, drawn.title, drawn.wide) if len(entries) > 1 else entries[0][1]
    return framed(drawn)


def _page(results: Results, distribution: Holdings, drawn: Mapping[str, Sequence[Drawn]]) -> str:
    summary, settings = results.summary, results.run.settings
    side_tables = {
        "Accuracy": [_rules(results)],
        "Classes": [*class_table(results)],
        "Time and bytes": [_bytes(summary)],
    }
    below = {
        "Accuracy": [*_domains(summary), *_ensemble(summary)],
        "Clients and their data": [*_classes(results), _roster(results)],
        "Prototypes": [*_figures(results)],
    }
    parts: list[Html] = [_cards(results)]
    parts += [paragraph(f"{sentence}.", class_="note") for sentence in doubts(summary, results.client_names)]
    if results.unknown:
        parts.insert(0, paragraph(f"{_without_code(results)}.", class_="note"))
    if not results.finished:
        rounds = summary["rounds"]
        parts.insert(0, paragraph(f"This run is not finished: the report covers its first {rounds} rounds."))
    elif by := summary.get("stopped"):
        parts.insert(0, paragraph(f"This run was ended by {one_line(str(by), 40)} after {summary['rounds']} rounds."))
    for title, pictures in drawn.items():
        if content := [*_gallery(pictures, side_tables.get(title, [])), *below.get(title, [])]:
            parts.append(section(title, *content))
    parts += [*_failures(results), *_origin(results), _settings(results)]
    lead = (
        f"{len(results.roster)} clients, {len(results.class_names)} classes, {summary['rounds']} of {settings.rounds} "
        f"rounds, partition {settings.partition}, seed {settings.seed}, inference rule {results.rule}"
    ) + (f", with {one_line(str(summary['companion']), 120)}" if summary.get("companion") else "")
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    foot = f"Protosphere's report of {results.folder.name}. Made with {versions}."
    return page.page(f"{stem(settings.strategy)} on {short_name(settings.dataset)}", parts, lead=lead, foot=foot)


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


def _gallery(pictures: Sequence[Drawn], tables: Sequence[Html]) -> Iterator[Html]:
    """The pictures, with the tables beside them; then why others are missing."""
    shown = [item for item in pictures if not isinstance(item, str) and (isinstance(item, Slider) or _pictures(item))]
    # what is across the page last, so that no half is left empty before it
    across = [item for item in shown if isinstance(item, Choice) and item.wide]
    halves = [*(_frame(item) for item in shown if item not in across), *tables]
    if tables and len(halves) % 2:
        # the last table has nothing beside it, and may need the room
        halves[-1] = page.element("div", halves[-1], class_="whole")
    if halves or across:
        yield page.gallery(*halves, *map(_frame, across))
    yield from (paragraph(item, class_="note") for item in pictures if isinstance(item, str))


def _cards(results: Results) -> Html:
    summary = results.summary
    headline, sizes = summary["headline"], summary["bytes"]
    number = headline.get("round")
    where = f", after round {number}" if number is not None else ""
    unweighted_accuracy = headline.get("unweighted")
    unweighted = (
        "" if unweighted_accuracy is None else f"; unweighted mean over clients: {_percent(unweighted_accuracy)}"
    )
    worst = results.figure("worst").get(number)
    payload, wire = (sizes[f"{kind}_up"] + sizes[f"{kind}_down"] for kind in ("payload", "wire"))
    steps = summary.get("gradient_steps")
    trained = "" if steps is None else f"; {steps:.4g} gradient steps per client per round"
    ups, downs = readable_size(sizes["payload_up"]), readable_size(sizes["payload_down"])
    return page.cards(
        [
            (
                page.term("headline", "test accuracy"),
                _percent(headline.get("accuracy")),
                page.term(str(headline.get("figure"))) + f"{where}{unweighted}",
            ),
            (page.term("worst client"), _percent(worst), "in the same round"),
            (
                page.term("majority class", "majority-class baseline"),
                _percent(summary["floor"].get("majority-class")),
                "always predicting a client's most frequent class",
            ),
            (page.term("payload"), readable_size(payload), f"{ups} up, {downs} down"),
            (page.term("on the wire"), readable_size(wire), "whole messages"),
            ("time", duration(summary["seconds"]), f"{summary['rounds']} rounds{trained}"),
        ]
    )


def _rules(results: Results) -> Html:
    rules = results.summary["rules"]
    every = any("all-classes" in values for values in rules.values())
    figures = (*FIGURES, "all-classes") if every else FIGURES
    rows = [
        [page.term(rule) + " *" * (rule == results.rule), *(_in_percent(values.get(name)) for name in figures)]
        for rule, values in rules.items()
    ]
    terms = page.term_list([*figures, *rules])
    caption = "Test accuracy in % by inference rule (* used for the headline)"
    return page.element("div", page.table(["rule", *map(page.term, figures)], rows, caption), terms)


def _domains(summary: Mapping[str, Any]) -> Iterator[Html]:
    domains = summary.get("domains", {})
    if domains:
        rules = list(dict.fromkeys(rule for accuracies in domains.values() for rule in accuracies))
        rows = [[name, *(_in_percent(accuracies.get(rule)) for rule in rules)] for name, accuracies in domains.items()]
        yield page.table(
            ["domain", *map(page.term, rules)], rows, "Test accuracy in % by domain, after the headline's round"
        )


def _ensemble(summary: Mapping[str, Any]) -> Iterator[Html]:
    ensemble = summary.get("ensemble")
    if ensemble:
        names = ("best", "last-5", "final")
        rows = [["all clients together", *(_in_percent(ensemble.get(name)) for name in names), ensemble.get("rows")]]
        yield page.table(
            [page.term("ensemble"), *map(page.term, names), "samples"],
            rows,
            "Accuracy in % of all clients' averaged class probabilities",
        )


def _classes(results: Results) -> Iterator[Html]:
    """What the classes are called where a picture has room for their numbers alone; and where one alone misleads."""
    names = results.class_names
    if len(names) > MOST_NAMED:
        names_text = ", ".join(f"{label} {name}" for label, name in enumerate(cut_apart(names, 40)))
        yield page.details(f"the {len(names)} classes by number", paragraph(names_text))
    if alone := one_class({client["partition"]: client["classes"] for client in results.roster}, names):
        yield paragraph(f"Note: {alone}.")


def _figures(results: Results) -> Iterator[Html]:
    """The figures of training that say whether the exchange could change anything, each with what it means."""
    table = results.rounds.reindex(columns=["loss", *MEANINGS]).dropna(subset="loss")
    rows = [
        [known.name, f"{table[name].iloc[0]:.3g}", f"{table[name].iloc[-1]:.3g}", known.plain]
        for name, known in MEANINGS.items()
        if table[name].notna().all() and table[name].any()
    ]
    if rows:
        head = ["figure", "first round", "last round", "what it means"]
        yield page.table(head, rows, "Training metrics, averaged over clients", words=(0, 3))


def _roster(results: Results) -> Html:
    names = results.client_names
    domains = any(client["domain"] for client in results.roster)
    named = any(names.get(client["partition"], "") != client["domain"] for client in results.roster)
    changes = any("joined" in client or "left" in client for client in results.roster)
    rows = []
    models = cut_apart([client["model"] for client in results.roster], 60)
    domain_names = cut_apart([client["domain"] for client in results.roster], 40)
    for client, model, domain in zip(results.roster[:MOST_CLIENTS], models, domain_names, strict=False):
        row = [client["partition"], model, *(client["rows"] + [0, 0, 0])[:3]]
        row += [one_line(class_words(client["classes"], results.class_names), 120)]
        row += [_in_percent(results.at_the_end.get(client["partition"], (None,))[0])]
        row += [domain] if domains else []
        row += [names.get(client["partition"], "")] if named else []
        row += [_membership(client)] if changes else []
        rows.append(row)
    head = ["client", "model", "training", "validation", "test", "classes", "accuracy"]
    head += ["domain"] * domains + ["name"] * named + ["takes part"] * changes
    more = len(results.roster) - MOST_CLIENTS
    caption = "Clients: samples, classes of the training samples, last test accuracy in %" + (
        f"; the first {MOST_CLIENTS}; roster.json has {more} more" if more > 0 else ""
    )
    disclosed = sorted({one_line(str(item)) for client in results.roster for item in client.get("discloses", [])})
    items = [page.element("li", item) for item in disclosed]
    learnt = page.details("what the server learnt about each client", page.element("ul", *items)) if disclosed else ""
    table = page.table(head, rows, caption, words=(0, 1, 5, 7, 8, 9))
    return page.Html((page.details(f"{len(results.roster)} clients", table) if len(rows) > 12 else table) + learnt)


def _membership(client: Mapping[str, Any]) -> str:
    """From which round on, and until the start of which, a client takes part in the run."""
    words = [f"from round {client['joined']}"] if "joined" in client else []
    words += [f"until round {client['left']}"] if "left" in client else []
    return ", ".join(words) or "always"


def _bytes(summary: Mapping[str, Any]) -> Html:
    sizes = summary["bytes"]
    kinds = (
        ("payload: prototype values only", "payload"),
        ("wire: training messages", "wire"),
        ("wire: evaluation messages", "evaluation_wire"),
    )
    rows = [
        [name, *(readable_size(sizes[key]) if (key := f"{kind}_{way}") in sizes else None for way in ("up", "down"))]
        for name, kind in kinds
        if any(sizes.get(f"{kind}_{way}") for way in ("up", "down")) or kind in ("payload", "wire")
    ]
    return page.table(["sent in all", "up", "down"], rows, "Bytes sent, from and to the clients")


def _failures(results: Results) -> Iterator[Html]:
    failures = sorted(results.summary["failures"].items(), key=lambda entry: -entry[1]["rounds"])
    if failures:
        rows = [
            [
                client_word(partition, results.client_names),
                failure["rounds"],
                failure["last_round"],
                one_line(str(failure["last"]), 300),
            ]
            for partition, failure in failures[:MOST_CLIENTS]
        ]
        head = ["", "rounds", "most recently in round", "most recent reason"]
        more = len(failures) - MOST_CLIENTS
        more_note = [paragraph(f"metrics.jsonl lists {more} more clients.", class_="note")] if more > 0 else []
        yield section(
            "Problems", page.table(head, rows, "Clients that failed in at least one round", (0, 3)), *more_note
        )


def _settings(results: Results) -> Html:
    defaults = known_settings()
    written = {name: value for name, value in results.settings.items() if name not in NOT_SHOWN}
    changed = [
        [code(name), code(shown(value)), code(shown(defaults.get(name)))]
        for name, value in written.items()
        if value != defaults.get(name)
    ]
    every = [[code(name), code(shown(value))] for name, value in written.items()]
    head = ["setting", "value", "default"]
    table = (
        page.table(head, changed, "Set for this run", (0, 1, 2))
        if changed
        else paragraph("All settings have their defaults.")
    )
    return section("Settings", table, page.details("all settings", page.table(head[:2], every, words=(0, 1))))


def _origin(results: Results) -> Iterator[Html]:
    """What was run: from the record of each start, and the versions that the summary has where there is none."""
    starts = origins(results.folder)
    if not starts:
        return
    labels = {"at": "started", "command": "command", "commit": "commit", "commit_of_folder": "commit of the folder"}
    rows = [
        [name if place == 0 else f"{name}, resumed", code(one_line(str(start[key]), 500))]
        for place, start in enumerate(starts)
        for key, name in labels.items()
        if start.get(key)
    ]
    machine, versions = (starts[-1].get(name) for name in ("machine", "versions"))
    for name, record in (("machine", machine), ("versions", versions)):
        if isinstance(record, dict):
            text = ", ".join(f"{key} {', '.join(v) if isinstance(v, list) else v}" for key, v in record.items())
            rows.append([name, one_line(text, 500)])
    if not starts[0].get("command"):
        rows.insert(0, ["command", "started by Flower or in a notebook; see the settings below"])
    yield section("What was run", page.table(["", ""], rows, words=(0, 1)))


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"


def _in_percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f}"
