"""What a comparison leaves to read: table.csv, table.md, table.tex, pictures, and report.html that holds it all."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from protosphere.comparison import vary
from protosphere.comparison.figures import as_csv, by_method, differences_csv, figures_of, spread
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.plan import Comparison
from protosphere.comparison.sweep import tuned
from protosphere.comparison.tables import Grid, floor, grids, labels_for, latex, markdown
from protosphere.comparison.trials import Cell, not_default, scaled_words
from protosphere.core.terms import TERMS
from protosphere.core.text import one_line, own_version
from protosphere.reports import canvas
from protosphere.reports.charts import DASHED, DOTTED, Chart, Line
from protosphere.reports.page import (
    Html,
    code,
    details,
    element,
    gallery,
    link,
    page,
    paragraph,
    section,
    table,
    term,
    term_list,
    write,
)
from protosphere.reports.pictures import Picture, framed, plain_numbers, write_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASELINES = ("majority class", "exchange adds")  # that a comparison's tables have
STYLES = ("-", "--", ":")
CSV, MARKDOWN, LATEX, REPORT = "table.csv", "table.md", "table.tex", "report.html"
DIFFERENCES = "differences.csv"
SIZES = {"payload": "payload (bytes)", "wire": "wire (bytes)"}
CAPTIONS = {
    "rounds": "Over rounds: mean of the clients' accuracy, band: standard deviation over seeds.",
    "seconds": "Over the seconds so far, evaluations among them, of this machine as busy as it was.",
    "bytes": "Over the bytes of training so far, both directions: on the left payload, the values that methods "
    "exchange; on the right the wire, whole messages, which a method that exchanges nothing has as well. Such "
    "a one stands at 0 on the left, and a dotted line goes on from its accuracy at the end.",
}
SILENT = "sends nothing"  # id of a line that goes on from a method's curve


@dataclass(frozen=True)
class Written:
    """The tables, and the files that hold them."""

    grids: Sequence[Grid]
    paths: Sequence[Path]


def write_all(folder: ComparisonFolder, comparison: Comparison, cells: Sequence[Cell]) -> Written:
    """Write every file anew from what is finished.

    Raises:
        OSError: the folder cannot be written. SettingError: its `pictures` are a link.
    """
    frame = figures_of(folder, comparison, cells)
    once, chosen, choices = tuned(comparison, frame)
    table_grids = grids(once, scaled_words(cells), chosen, choices)
    pictures = _pictures(once, chosen)
    write_files(folder.path, [picture for drawn in pictures.values() for picture in drawn])
    contents = {
        CSV: as_csv(frame),
        DIFFERENCES: differences_csv(once, chosen),
        MARKDOWN: markdown(table_grids),
        LATEX: latex(table_grids, labels_for(table_grids, comparison.name)),
        REPORT: _page(folder, comparison, cells, frame, table_grids, pictures),
    }
    return Written(table_grids, [write(folder.path / name, content) for name, content in contents.items()])


def curves(runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The curve of one method's runs: at each evaluation that all of them have, its `round`, `mean` and `std` of the
    accuracies, and the means of `payload`, `wire` and `seconds` so far."""
    lines = []
    for of_round, part in pd.concat(runs).groupby(level=0):
        accuracy = spread(part["accuracy"])
        if accuracy is not None and len(part) == len(runs):
            means = {name: sum(part[name]) / len(part) for name in ("payload", "wire", "seconds")}
            lines.append({"round": of_round, "mean": accuracy.mean, "std": accuracy.std} | means)
    return pd.DataFrame(lines, columns=["round", "mean", "std", "payload", "wire", "seconds"]).astype({"std": float})


def _pictures(comparison: Comparison, frame: pd.DataFrame) -> dict[str, list[Picture]]:
    """Row -> its pictures."""
    pictures: dict[str, list[Picture]] = {}
    for number, row in enumerate(comparison.rows, start=1):
        drawn = [
            vary.picture(comparison, frame, row.label, setting, f"accuracy-by-{setting}-row{number}")
            for setting in vary.settings_varied(comparison)
        ]
        drawn += [
            picture_over(comparison, frame, row.label, kind, f"accuracy-over-{kind}-row{number}") for kind in CAPTIONS
        ]
        pictures[row.label] = [picture for picture in drawn if isinstance(picture, Picture)]
    return {label: row_pictures for label, row_pictures in pictures.items() if row_pictures}


def picture_over(comparison: Comparison, frame: pd.DataFrame, row: str, kind: str, name: str) -> Picture | str:
    """Every method's accuracy over what it took by then; in words why there is none.

    Args:
        frame: of the finished cells. kind: of `CAPTIONS`. name: of the picture's files.
    """
    runs = by_method(frame, comparison, row)
    curves_by_method = {method: curves(own["curve"].tolist()) for method, own in runs.items() if len(own)}
    if not any(len(curve) for curve in curves_by_method.values()):
        return f"{row}: no run of it is finished."
    lowest = floor(frame, row)
    return picture_of(curves_by_method, kind, name, f"on {row}", lowest.mean if lowest else None)


def picture_of(
    curves_by_method: Mapping[str, pd.DataFrame], kind: str, name: str, what: str, lowest: float | None
) -> Picture:
    """These curves over what they took by then.

    Args:
        kind, name: as `picture_over` has them. what: they are of, in words. lowest: the majority class's accuracy.
    """
    last = {method: curve["mean"].iloc[-1] for method, curve in curves_by_method.items() if len(curve)}
    ends = ", ".join(f"{method} {100 * mean:.1f} %" for method, mean in last.items())
    return Picture(
        name,
        _draw(curves_by_method, kind, lowest),
        f"Accuracy over {kind} {what}, at the end: {ends}.",
        CAPTIONS[kind],
        wide=kind == "bytes",
        numbers=_numbers(curves_by_method, kind),
        charts=charts(curves_by_method, kind, lowest),
        title=f"Accuracy over {kind}",
    )


def charts(curves_by_method: Mapping[str, pd.DataFrame], kind: str, lowest: float | None) -> list[Chart]:
    """What `_draw` draws, as data; a run of each curve where the methods are runs."""
    drawn = []
    for name in COLUMNS[kind]:
        scale, label = _scale_of(curves_by_method.values(), name)
        lines = []
        for number, (method, curve) in enumerate(curves_by_method.items()):
            dash = ("", DASHED, DOTTED)[number // len(canvas.COLOURS) % len(STYLES)]
            points = list(zip(curve[name] / scale, 100 * curve["mean"], strict=True))
            spreads = (100 * curve["std"]).fillna(0.0).tolist()
            colour = canvas.COLOURS[number % len(canvas.COLOURS)]
            lines.append(Line(method, points, colour, dash, spread=spreads, run=number))
        values = [x for line in lines for x, _ in line.points]
        if lowest is not None and values:
            ends = [(min(values), 100 * lowest), (max(values), 100 * lowest)]
            lines.append(Line("majority class", ends, canvas.SOFT, DOTTED, 1))
        drawn.append(Chart(label, "test accuracy (%)", lines, whole=name == "round"))
    return drawn


COLUMNS = {"rounds": ("round",), "seconds": ("seconds",), "bytes": ("payload", "wire")}


def _scale_of(curves: Iterable[pd.DataFrame], name: str) -> tuple[float, str]:
    """By what a column is divided, and what its axis says."""
    if name not in SIZES:
        return 1.0, {"round": "round", "seconds": "seconds so far"}[name]
    scale, unit = (1e6, "MB") if max((curve[name].max() for curve in curves), default=0) >= 1e6 else (1e3, "kB")
    return scale, f"{name} so far, {unit}"


def _numbers(curves_by_method: Mapping[str, pd.DataFrame], kind: str) -> list[list[object]]:
    """What a picture shows, a row a method and evaluation."""
    columns = {"seconds": {"seconds": "seconds"}, "bytes": SIZES}.get(kind, {})
    rows: list[list[object]] = [["method", "round", "mean (%)", "std (%)", *columns.values()]]
    for method, curve in curves_by_method.items():
        for line in curve.to_dict("records"):
            std = None if math.isnan(line["std"]) else 100 * line["std"]
            rows.append([method, line["round"], 100 * line["mean"], std, *(line[name] for name in columns)])
    return rows


def _draw(curves_by_method: Mapping[str, pd.DataFrame], kind: str, lowest: float | None) -> str:
    with canvas.figure(canvas.WHOLE if kind == "bytes" else canvas.HALF) as drawing:
        names = COLUMNS[kind]
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


def fill(axes: "Axes", curves_by_method: Mapping[str, pd.DataFrame], name: str) -> None:
    """Every method's curve over one of its columns: what it took by then."""
    scale, label = _scale_of(curves_by_method.values(), name)
    axes.set_xlabel(label)
    across = {method: (curve[name] / scale).tolist() for method, curve in curves_by_method.items()}
    sent = sorted(value for values in across.values() for value in values if value > 0)
    for number, (method, curve) in enumerate(curves_by_method.items()):
        _line(axes, number, curve, across[method])
        if name == "payload" and len(curve) and not any(across[method]):
            colour = canvas.COLOURS[number % len(canvas.COLOURS)]
            axes.axhline(100 * curve["mean"].iloc[-1], color=colour, linewidth=1.2, linestyle=":", gid=SILENT)
    if name in SIZES:
        _scale(axes, sent)
    elif name == "round":
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


def _line(axes: "Axes", number: int, curve: pd.DataFrame, across: Sequence[float]) -> None:
    colours = len(canvas.COLOURS)
    colour, style = canvas.COLOURS[number % colours], STYLES[number // colours % len(STYLES)]
    marker = canvas.MARKERS[number % len(canvas.MARKERS)]
    means, bands = 100 * curve["mean"], 100 * curve["std"].fillna(0.0)
    axes.plot(across, means, style, color=colour, marker=marker, markevery=max(1, len(means) // 8), markersize=4.5)
    if bands.any():
        axes.fill_between(across, means - bands, means + bands, color=colour, alpha=0.15, linewidth=0)


def _page(
    folder: ComparisonFolder,
    comparison: Comparison,
    cells: Sequence[Cell],
    frame: pd.DataFrame,
    table_grids: Sequence[Grid],
    pictures: Mapping[str, Sequence[Picture]],
) -> str:
    title = comparison.title or f"Comparison {comparison.name}"
    seeds = ", ".join(map(str, comparison.seeds))
    lead = (
        f"{frame['run'].count()} of {len(cells)} runs finished: {len(comparison.rows)} rows × "
        f"{len(comparison.methods)} methods × seeds {seeds}. Every method of a row has the same partition, initial "
        "models and client selection."
    )
    *measured, sizes = table_grids
    words = [word for metric in comparison.metrics for word in (metric.figure, metric.rule)]
    parts = [
        section("Accuracy", *map(_table, measured), term_list(dict.fromkeys([*words, *BASELINES]))),
        section("Cost", _table(sizes)),
    ]
    parts += [section(row, gallery(*map(framed, drawn))) for row, drawn in pictures.items()]
    parts.append(section("Runs", _runs(folder, comparison, frame)))
    parts.append(section("Settings", *_settings(comparison, cells)))
    foot = f"Protosphere {own_version()}; the numbers of every run are in {CSV}, of the differences in {DIFFERENCES}."
    return page(title, parts, lead, foot)


def _table(grid: Grid) -> Html:
    lines = [
        [_explain(first.text), *(element("strong", cell.text) if cell.best else cell.text for cell in others)]
        for first, *others in grid.lines
    ]
    notes = (paragraph(note, class_="note") for note in grid.notes)
    # above the table, whose width would break a caption
    return element("div", paragraph(_explain(grid.title)), table([*map(_explain, grid.head)], lines), *notes)


def _explain(text: str) -> Html:
    """A heading with its figures and rules, which stand in brackets, as the glossary has them; so the baselines."""
    if text in TERMS and TERMS[text].kind == "baselines":
        return term(text)
    parts: list[str] = []
    for part in re.split(r"(\([^()]*\))", one_line(text)):
        words = re.findall(r"[\w-]+", part)
        known = part.startswith("(") and bool(words) and all(word in TERMS for word in words)
        parts += (
            [term(piece) if piece in TERMS else piece for piece in re.split(r"([\w-]+)", part)] if known else [part]
        )
    # which escapes what is no markup yet
    return Html("").join(parts)


def _runs(folder: ComparisonFolder, comparison: Comparison, frame: pd.DataFrame) -> Html:
    """Every cell's figures, with its run's own report where it has one."""
    lines = []
    for cell in frame.to_dict("records"):
        values = [cell[f"metric: {metric}"] for metric in comparison.metrics]
        figures = [None if value is None else f"{100 * value:.2f}" for value in values]
        seconds = None if cell["seconds"] is None else f"{cell['seconds']:.0f}"
        report = cell["run"] or "not finished"
        if cell["run"] and (folder.path / cell["run"] / REPORT).exists():
            report = link("report", f"{cell['run']}/{REPORT}")
        lines.append([cell["row"], cell["method"], cell["seed"], *figures, seconds, report])
    head = ["row", "method", "seed", *(f"{metric}, %" for metric in comparison.metrics), "seconds", "report"]
    return table(head, lines, words=(0, 1, len(head) - 1))


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
    return Html(" ".join(code(f"{name}={value}") for name, value in not_default(cell.settings).items()))
