"""Runs over each other on one page: their curves, their figures, the settings in which they differ.

The page is one file. Its reader chooses which of the runs are shown; without scripts all are.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from protosphere.comparison.figures import curve_of
from protosphere.comparison.pictures import curves, picture_of
from protosphere.core.errors import SettingError
from protosphere.core.settings import plain_name
from protosphere.core.text import cut_apart, one_line, own_version
from protosphere.reports import canvas, page
from protosphere.reports.charts import Chart, Line
from protosphere.reports.csv_files import as_csv
from protosphere.reports.page import Html, code, element, paragraph, section
from protosphere.reports.pictures import Picture, dots, framed_with, points_of, whole_rounds
from protosphere.reports.results import Results
from protosphere.runs.differences import differing_settings, figures, gain

MOST_RUNS = 21  # that can be told apart by colour and line
MOST_BYTES = 180  # of a file's name


CAPTIONS = {
    "rounds": "Over rounds: the mean over all clients' test samples, each run by its own inference rule.",
    "seconds": "Over the seconds so far, including evaluations, on the machines that the runs used.",
    "bytes": "Over the training bytes so far, both directions. Left: payload, the values that methods exchange. "
    "Right: whole messages.",
}


def file_name(runs: Sequence[Results]) -> str:
    """A page's name: of the runs on it."""
    words = "overlay-" + "-".join(run.folder.name for run in runs)
    plain = plain_name(words, MOST_BYTES)
    # of many runs the name has no room for all
    cut = "" if len(words.encode()) <= MOST_BYTES else f"-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
    return f"{plain}{cut}.html"


def write_overlay(runs: Sequence[Results], target: Path) -> Path:
    """Write the page of these runs.

    Returns:
        `target`.

    Raises:
        SettingError: there are too few of them or too many, one is there twice, or has figures that cannot be read.
        OSError: the page cannot be written.
    """
    if len({run.folder for run in runs}) < len(runs):
        raise SettingError("a run is named twice; name each once.")
    if not 2 <= len(runs) <= MOST_RUNS:
        raise SettingError(f"an overlay needs two to {MOST_RUNS} runs; these are {len(runs)}.")
    names = _names(runs)
    notes = []
    for place, (name, run) in enumerate(zip(names, runs, strict=True)):
        if not run.finished:
            notes.append(paragraph(f"{name} is not finished.", class_="note", data_run=place))
    halves: list[Html] = []
    across: list[Html] = []
    for picture in _pictures(runs, names):
        (across if picture.wide else halves).append(framed_with(picture, _download(picture)))
    measured = [[name, *_on_one_line(values)] for name, values in figures(runs)]
    differing = [[code(name), *map(code, _on_one_line(values))] for name, values in differing_settings(runs)]
    settings = paragraph("Their settings are the same.")
    if differing:
        settings = _by_run(page.table(["setting", *names], differing, words=range(len(names) + 1)))
    parts = [
        element("div", data_runs=json.dumps(names)),
        *notes,
        section("Accuracy and cost", page.gallery(*halves, _by_run(page.table(["figure", *names], measured)), *across)),
        section("Settings that differ", settings),
        section("Clients of one run against another's", *_gains(runs, names)),
    ]
    lead = ", ".join(names)
    return page.write(target, page.page(f"{len(runs)} runs", parts, lead=lead, foot=f"Protosphere {own_version()}."))


def _on_one_line(values: Sequence[str]) -> list[str]:
    return [one_line(value, 200) for value in values]


def _names(runs: Sequence[Results]) -> list[str]:
    names = [run.folder.name for run in runs]
    if len(set(names)) < len(names):
        # a run that was copied keeps its name
        names = [f"{run.folder.parent.name}/{run.folder.name}" for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    return cut_apart(names, 60)


def _pictures(runs: Sequence[Results], names: Sequence[str]) -> Iterator[Picture]:
    curves_by_run = {name: curves([curve_of(run.lines, run.rule)]) for name, run in zip(names, runs, strict=True)}
    is_evaluated = any(len(curve) for curve in curves_by_run.values())
    losses = _losses(runs, names)
    for kind, caption in CAPTIONS.items():
        if is_evaluated:
            picture = picture_of(curves_by_run, kind, f"accuracy-over-{kind}", "of these runs", None)
            yield replace(picture, caption=caption)
    if losses is not None:
        yield losses


def _losses(runs: Sequence[Results], names: Sequence[str]) -> Picture | None:
    totals = [run.figure("loss") for run in runs]
    if not any(len(total) for total in totals):
        return None
    curves_of_loss = []
    numbers: list[list[object]] = [["run", "round", "loss"]]
    ends = []
    for place, (name, total) in enumerate(zip(names, totals, strict=True)):
        points = points_of(total)
        curves_of_loss.append(Line(name, points, canvas.COLOURS[place % len(canvas.COLOURS)], run=place))
        numbers += [[name, *point] for point in points]
        if points:
            ends.append(f"{name} {points[-1][1]:.3g}")
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        for total, curve in zip(totals, curves_of_loss, strict=True):
            axes.plot(total.index, total, color=curve.colour, marker=dots(total), markersize=3.5)
        axes.set(xlabel="round", ylabel="training loss")
        whole_rounds(axes)
        drawn.legend(list(axes.lines), list(names), loc="outside lower center", ncols=1)
        svg = canvas.svg(drawn)
    caption = (
        "The weighted sum of each method's terms, averaged over clients. For different methods or weights these are "
        "different sums."
    )
    chart = Chart("round", "training loss", curves_of_loss, whole=True)
    alt = f"Training loss at the end: {'; '.join(ends)}."
    return Picture("training-loss-over-rounds", svg, alt, caption, numbers=numbers, charts=[chart])


def _download(picture: Picture) -> list[tuple[str, str]]:
    """The page has no file beside it: its numbers are in it."""
    csv = base64.b64encode(as_csv(picture.numbers).encode()).decode()
    return [("CSV", f"data:text/csv;charset=utf-8;base64,{csv}")]


def _by_run(table: Html) -> Html:
    """A table with a column a run, which goes where its run is not shown."""
    return element("div", table, class_="by-run")


def _gains(runs: Sequence[Results], names: Sequence[str]) -> Iterator[Html]:
    for place in range(1, len(runs)):
        words = f"{names[place]} against {names[0]}: {gain(runs[0], runs[place])}."
        yield paragraph(words, data_run=place)
