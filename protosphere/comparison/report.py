"""What a comparison leaves to read: table.csv, table.md, table.tex, pictures, and report.html that holds it all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from protosphere.comparison.figures import Result, Spread, as_csv, by_method, differences_csv, results, spread
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.plan import Comparison
from protosphere.comparison.sweep import tuned
from protosphere.comparison.tables import Grid, floor, grids, latex, markdown
from protosphere.comparison.trials import Cell, not_default, scaled_words
from protosphere.core.text import own_version
from protosphere.record.locations import own_folder
from protosphere.reports import canvas
from protosphere.reports.csv_files import as_csv as numbers_csv
from protosphere.reports.page import (
    Html,
    details,
    element,
    gallery,
    link,
    page,
    paragraph,
    picture,
    section,
    table,
    write,
)
from protosphere.reports.pictures import plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = ("-", "--", ":")
CSV, MARKDOWN, LATEX, REPORT = "table.csv", "table.md", "table.tex", "report.html"
DIFFERENCES = "differences.csv"
PICTURES = "pictures"
SIZES = ("payload (bytes)", "wire (bytes)")
SILENT = "sends nothing"  # id of a line that goes on from a method's curve


@dataclass(frozen=True)
class Written:
    """The tables, and the files that hold them."""

    grids: Sequence[Grid]
    paths: Sequence[Path]


@dataclass(frozen=True)
class Curve:
    """A method's accuracy at each evaluation of all its seeds: mean and spread; mean bytes and seconds so far."""

    rounds: Sequence[int]
    accuracies: Sequence[Spread]
    payload: Sequence[float]
    wire: Sequence[float]
    seconds: Sequence[float]


class Drawn(NamedTuple):
    """A picture: what `protosphere.reports.page.picture` takes, the file with its numbers by its path in the folder."""

    svg: str
    alt: str
    caption: str
    wide: bool
    numbers: str


def write_all(folder: ComparisonFolder, comparison: Comparison, cells: Sequence[Cell]) -> Written:
    """Write every file anew from what is finished.

    Raises:
        OSError: the folder cannot be written. SettingError: its `pictures` are a link.
    """
    cell_results = results(folder, comparison, cells)
    once, chosen, choices = tuned(comparison, cell_results)
    table_grids = grids(once, scaled_words(cells), chosen, choices)
    pictures = _pictures(folder, once, chosen)
    contents = {
        CSV: as_csv(comparison, cells, cell_results, folder.path),
        DIFFERENCES: differences_csv(once, chosen),
        MARKDOWN: markdown(table_grids),
        LATEX: latex(table_grids),
        REPORT: _page(folder, comparison, cells, cell_results, table_grids, pictures),
    }
    return Written(table_grids, [write(folder.path / name, content) for name, content in contents.items()])


def curves(runs: Sequence[Result]) -> Curve:
    """The curve of one method's runs; evaluations that some seed lacks are left out."""
    by_round = [{point.of_round: point for point in run.curve} for run in runs]
    common = sorted(set.intersection(*map(set, by_round))) if by_round else []
    accuracies = [spread([points[r].accuracy for points in by_round]) for r in common]
    payload, wire, seconds = (
        [sum(getattr(points[r], name) for points in by_round) / len(by_round) for r in common]
        for name in ("payload", "wire", "seconds")
    )
    return Curve(common, [accuracy for accuracy in accuracies if accuracy], payload, wire, seconds)


def _pictures(
    folder: ComparisonFolder, comparison: Comparison, cell_results: Sequence[Result]
) -> dict[str, list[Drawn]]:
    """Row -> its pictures, which are left as files, too, each with its numbers."""
    place = own_folder(folder.path, PICTURES)
    drawn: dict[str, list[Drawn]] = {}
    for number, row in enumerate(comparison.rows):
        curves_by_method = {
            method: curves(runs) for method, runs in by_method(cell_results, row.label, comparison).items() if runs
        }
        if not any(curve.rounds for curve in curves_by_method.values()):
            continue
        lowest = floor(cell_results, row.label)
        ends = ", ".join(
            f"{method} {100 * curve.accuracies[-1].mean:.1f} %"
            for method, curve in curves_by_method.items()
            if curve.rounds
        )
        captions = {
            "rounds": "Over rounds: mean of the clients' accuracy, band: standard deviation over seeds.",
            "seconds": "Over the seconds so far, evaluations among them, of this machine as busy as it was.",
            "bytes": "Over the bytes of training so far, both directions: on the left payload, the values that methods "
            "exchange; on the right the wire, whole messages, which a method that exchanges nothing has as well. Such "
            "a one stands at 0 on the left, and a dotted line goes on from its accuracy at the end.",
        }
        for kind, caption in captions.items():
            name = f"row{number + 1}-{kind}"
            svg = _draw(curves_by_method, kind, lowest.mean if lowest else None)
            place.mkdir(exist_ok=True)
            write(place / f"{name}.svg", svg)
            write(place / f"{name}.csv", numbers_csv(_numbers(curves_by_method, kind)))
            alt = f"Accuracy over {kind} on {row.label}, at the end: {ends}."
            drawing = Drawn(svg, alt, caption, kind == "bytes", f"{PICTURES}/{name}.csv")
            drawn.setdefault(row.label, []).append(drawing)
    return drawn


def _numbers(curves_by_method: Mapping[str, Curve], kind: str) -> list[list[object]]:
    """What a picture shows, a row a method and evaluation."""
    columns = {
        "rounds": {},
        "seconds": {"seconds": "seconds"},
        "bytes": dict(zip(("payload", "wire"), SIZES, strict=True)),
    }
    heads: list[object] = ["method", "round", "mean (%)", "std (%)", *columns[kind].values()]
    rows = [
        [method, of_round, 100 * accuracy.mean, None if accuracy.std is None else 100 * accuracy.std]
        + [getattr(curve, name)[place] for name in columns[kind]]
        for method, curve in curves_by_method.items()
        for place, (of_round, accuracy) in enumerate(zip(curve.rounds, curve.accuracies, strict=True))
    ]
    return [heads, *rows]


def _draw(curves_by_method: Mapping[str, Curve], kind: str, lowest: float | None) -> str:
    with canvas.figure(canvas.WHOLE if kind == "bytes" else canvas.HALF) as drawing:
        names = ("payload", "wire") if kind == "bytes" else (kind,)
        for place, name in enumerate(names, 1):
            axes = drawing.add_subplot(1, len(names), place)
            fill(axes, curves_by_method, name)
            if lowest is not None:
                axes.axhline(100 * lowest, color=canvas.SOFT, linewidth=1, linestyle=(0, (1, 2)))
            axes.set_ylabel("test accuracy, %")
        # by pairs: a label that begins with "_" would be left out
        lines = [line for line in axes.lines if line.get_gid() != SILENT]
        drawing.legend(
            lines, [*curves_by_method, "majority class"][: len(lines)], loc="outside lower center", ncols=3 * len(names)
        )
        return canvas.svg(drawing)


def fill(axes: "Axes", curves_by_method: Mapping[str, Curve], name: str) -> None:
    """Every method's curve over what it took by then."""
    across = {method: list(getattr(curve, name)) for method, curve in curves_by_method.items()}
    axes.set_xlabel({"rounds": "round", "seconds": "seconds so far"}.get(name, ""))
    sent = sorted(value for values in across.values() for value in values if value > 0)
    size, unit = 1.0, ""
    if name in ("payload", "wire"):
        size, unit = (1e6, "MB") if sent and sent[-1] >= 1e6 else (1e3, "kB")
        across = {method: [value / size for value in values] for method, values in across.items()}
        axes.set_xlabel(f"{SIZES[name == 'wire'].removesuffix(' (bytes)')} so far, {unit}")
    for number, (method, curve) in enumerate(curves_by_method.items()):
        _line(axes, number, curve, across[method])
        if name == "payload" and curve.rounds and not any(across[method]):
            colour = canvas.COLOURS[number % len(canvas.COLOURS)]
            axes.axhline(100 * curve.accuracies[-1].mean, color=colour, linewidth=1.2, linestyle=":", gid=SILENT)
    if name in ("payload", "wire"):
        _scale(axes, [value / size for value in sent])
    elif name == "rounds":
        axes.locator_params(axis="x", integer=True)


def _scale(axes: "Axes", sent: Sequence[float]) -> None:
    """An axis of bytes with a place for 0: of orders, where they differ by more than one."""
    if not sent:
        axes.set(xlim=(-0.05, 1), xticks=[0])
    elif sent[-1] > 10 * sent[0]:
        least = 10 ** math.floor(math.log10(sent[0]))
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        axes.set_xlim(-0.1 * least, 1.2 * sent[-1])
        plain_numbers(axes.xaxis)


def _line(axes: "Axes", number: int, curve: Curve, across: Sequence[float]) -> None:
    colours = len(canvas.COLOURS)
    colour, style = canvas.COLOURS[number % colours], STYLES[number // colours % len(STYLES)]
    means = [100 * accuracy.mean for accuracy in curve.accuracies]
    marker = canvas.MARKERS[number % len(canvas.MARKERS)]
    every = max(1, len(means) // 8)
    axes.plot(across, means, style, color=colour, marker=marker, markevery=every, markersize=4.5)
    bands = [100 * (accuracy.std or 0.0) for accuracy in curve.accuracies]
    if any(bands):
        low = [mean - band for mean, band in zip(means, bands, strict=True)]
        high = [mean + band for mean, band in zip(means, bands, strict=True)]
        axes.fill_between(across, low, high, color=colour, alpha=0.15, linewidth=0)


def _page(
    folder: ComparisonFolder,
    comparison: Comparison,
    cells: Sequence[Cell],
    cell_results: Sequence[Result],
    table_grids: Sequence[Grid],
    pictures: Mapping[str, Sequence[Drawn]],
) -> str:
    title = comparison.title or f"Comparison {comparison.name}"
    seeds = ", ".join(map(str, comparison.seeds))
    lead = (
        f"{len(cell_results)} of {len(cells)} cells finished: {len(comparison.rows)} rows × "
        f"{len(comparison.methods)} methods × seeds {seeds}. Every method of a row has the same partition, initial "
        "models and samples of clients."
    )
    *measured, sizes = table_grids
    parts = [section("Accuracy", *map(_table, measured)), section("Cost", _table(sizes))]
    for row, drawn in pictures.items():
        parts.append(section(row, gallery(*(picture(*drawing) for drawing in drawn))))
    parts.append(section("Runs", _runs(folder, comparison, cells, cell_results)))
    parts.append(section("Settings", *_settings(comparison, cells)))
    foot = f"Protosphere {own_version()}; the numbers of every cell are in {CSV}, of the differences in {DIFFERENCES}."
    return page(title, parts, lead, foot)


def _table(grid: Grid) -> Html:
    lines = [[element("strong", cell.text) if cell.best else cell.text for cell in line] for line in grid.lines]
    notes = (paragraph(note, class_="note") for note in grid.notes)
    # above the table, whose width would break a caption
    return element("div", paragraph(grid.title), table(grid.head, lines), *notes)


def _runs(
    folder: ComparisonFolder, comparison: Comparison, cells: Sequence[Cell], cell_results: Sequence[Result]
) -> Html:
    of_cell = {cell_result.cell.name: cell_result for cell_result in cell_results}
    lines = []
    for cell in cells:
        cell_result = of_cell.get(cell.name)
        if cell_result is None:
            lines.append([cell.row, cell.method, cell.seed, *[None] * len(comparison.metrics), None, "not finished"])
            continue
        values = [None if value is None else f"{100 * value:.2f}" for value in cell_result.values]
        lines.append(
            [
                cell.row,
                cell.method,
                cell.seed,
                *values,
                f"{cell_result.seconds:.0f}",
                _report_of(cell_result.run, folder),
            ]
        )
    head = ["row", "method", "seed", *(f"{metric}, %" for metric in comparison.metrics), "seconds", "report"]
    return table(head, lines, words=(0, 1, len(head) - 1))


def _report_of(run: Path, folder: ComparisonFolder) -> Html | str:
    relative = run.relative_to(folder.path).as_posix()
    return link("report", f"{relative}/{REPORT}") if (run / REPORT).exists() else relative


def _settings(comparison: Comparison, cells: Sequence[Cell]) -> list[Html]:
    """What each method of each row was set to, where it differs from the defaults."""
    parts = []
    for row in comparison.rows:
        row_cells = [cell for cell in cells if cell.row == row.label and cell.seed == comparison.seeds[0]]
        lines = [[cell.method, _codes(cell)] for cell in row_cells]
        head = ["method", "settings that differ from the defaults"]
        parts.append(details(row.label, table(head, lines, words=(0, 1))))
    return parts


def _codes(cell: Cell) -> Html:
    return Html(" ".join(element("code", f"{name}={value}") for name, value in not_default(cell.settings).items()))
