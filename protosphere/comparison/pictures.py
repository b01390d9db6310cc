"""A comparison's pictures: every method's accuracy over what it took by then, and by the values of a setting that is
varied."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from protosphere.comparison.figures import Spread, by_method, by_seed, spread
from protosphere.comparison.plan import ENSEMBLE, Comparison
from protosphere.comparison.tables import floor
from protosphere.comparison.variants import settings_varied
from protosphere.core.settings import Scalar, plain_name
from protosphere.reports import canvas
from protosphere.reports.charts import DASHED, DOTTED, PERCENT, Chart, Line, band, heights, with_majority
from protosphere.reports.pictures import Picture, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

STYLES = {"": "-", DASHED: "--", DOTTED: ":"}  # of a chart's line -> as matplotlib has it
SIZES = {"payload": "payload (bytes)", "wire": "wire (bytes)"}
COLUMNS = {"rounds": ("round",), "seconds": ("seconds",), "bytes": ("payload", "wire")}
CAPTIONS = {
    "rounds": "Over rounds: mean accuracy over clients. Band: standard deviation over seeds.",
    "seconds": "Over the seconds so far, including evaluations, on this machine under its load at the time.",
    "bytes": "Over the training bytes so far, both directions. Left: payload, the values that methods exchange. "
    "Right: whole messages, which even a method without an exchange sends. Such a method is at 0 on the left; a "
    "dotted line continues its final accuracy.",
}
SILENT = "sends nothing"  # id of a line that goes on from a method's curve


def curves(runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The curve of one method's runs: at each evaluation that all of them have, its `round`, `mean` and `std` of the
    accuracies, and the means of `payload`, `wire` and `seconds` so far."""
    lines = []
    for number, part in pd.concat(runs).groupby(level=0):
        accuracy = spread(part["accuracy"])
        if accuracy is not None and len(part) == len(runs):
            means = {name: sum(part[name]) / len(part) for name in ("payload", "wire", "seconds")}
            lines.append({"round": number, "mean": accuracy.mean, "std": accuracy.std} | means)
    return pd.DataFrame(lines, columns=["round", "mean", "std", "payload", "wire", "seconds"]).astype({"std": float})


def pictures_of(comparison: Comparison, frame: pd.DataFrame) -> dict[str, list[Picture]]:
    """Each row that has some -> its pictures.

    Args:
        frame: of the finished cells.
    """
    pictures = {}
    for number, row in enumerate(comparison.rows, start=1):
        drawn: list[Picture | str] = []
        for setting in settings_varied(comparison):
            drawn.append(picture_by(comparison, frame, row.label, setting, f"accuracy-by-{setting}-row{number}"))
        for method in crossed_pairs(comparison):
            drawn.append(
                heat_map(comparison, frame, row.label, method, f"accuracy-of-{plain_name(method, 40)}-row{number}")
            )
        for kind in CAPTIONS:
            drawn.append(picture_over(comparison, frame, row.label, kind, f"accuracy-over-{kind}-row{number}"))
        if row_pictures := [picture for picture in drawn if isinstance(picture, Picture)]:
            pictures[row.label] = row_pictures
    return pictures


def picture_over(comparison: Comparison, frame: pd.DataFrame, row: str, kind: str, name: str) -> Picture | str:
    """Every method's accuracy over what it took by then; in words why there is none.

    Args:
        frame: of the finished cells. kind: of `CAPTIONS`. name: of the picture's files.
    """
    runs = by_method(frame, comparison, row)
    curves_by_method = {}
    for method, method_runs in runs.items():
        if len(method_runs):
            curves_by_method[method] = curves(method_runs["curve"].tolist())
    if not any(len(curve) for curve in curves_by_method.values()):
        return f"{row}: no trial is finished."
    # a curve is of test samples, or the ensemble's, which no client's majority class is beside
    majority = floor(frame, row) if comparison.metrics[0].rule != ENSEMBLE else None
    lowest = majority.mean if majority else None
    return picture_of(curves_by_method, kind, name, f"on {row}", lowest)


def picture_of(
    curves_by_method: Mapping[str, pd.DataFrame], kind: str, name: str, what: str, lowest: float | None
) -> Picture:
    """These curves over what they took by then.

    Args:
        kind, name: as `picture_over` has them. what: they are of, in words. lowest: the majority class's accuracy.
    """
    charts = [chart_of(curves_by_method, column, lowest) for column in COLUMNS[kind]]
    last = {method: curve["mean"].iloc[-1] for method, curve in curves_by_method.items() if len(curve)}
    ends = ", ".join(f"{method} {100 * mean:.1f} %" for method, mean in last.items())
    return Picture(
        name,
        _svg(charts, COLUMNS[kind]),
        f"Accuracy over {kind} {what}, at the end: {ends}.",
        CAPTIONS[kind],
        wide=kind == "bytes",
        numbers=_numbers(curves_by_method, kind),
        charts=charts,
        title=f"Accuracy over {kind}",
    )


def chart_of(curves_by_method: Mapping[str, pd.DataFrame], column: str, lowest: float | None) -> Chart:
    """Every method's curve over one of its columns: what it took by then. A method's place is its line's `run`."""
    scale, label = _scale_of(curves_by_method.values(), column)
    lines = []
    for number, (method, curve) in enumerate(curves_by_method.items()):
        points = list(zip(curve[column] / scale, 100 * curve["mean"], strict=True))
        spreads = (100 * curve["std"]).fillna(0.0).tolist()
        colour = canvas.COLOURS[number % len(canvas.COLOURS)]
        dash = list(STYLES)[number // len(canvas.COLOURS) % len(STYLES)]
        lines.append(Line(method, points, colour, dash, spread=spreads, run=number))
    chart = Chart(label, "test accuracy (%)", lines, whole=column == "round", bounds=PERCENT)
    values = [x for line in lines for x, _ in line.points]
    if lowest is None or not values:
        return chart
    return with_majority(chart, [(min(values), 100 * lowest), (max(values), 100 * lowest)])


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


def _svg(charts: Sequence[Chart], columns: Sequence[str]) -> str:
    """The charts side by side, over one legend."""
    with canvas.figure(canvas.WHOLE if len(charts) > 1 else canvas.HALF) as drawing:
        for place, (chart, column) in enumerate(zip(charts, columns, strict=True), 1):
            axes = drawing.add_subplot(1, len(charts), place)
            draw(axes, chart, column)
            axes.set_ylabel("test accuracy, %")
        # by pairs: a label that begins with "_" would be left out
        lines = [line for line in axes.lines if line.get_gid() != SILENT]
        names = [line.name for line in charts[-1].lines]
        drawing.legend(lines, names, loc="outside lower center", ncols=3 * len(charts))
        return canvas.svg(drawing)


def draw(axes: "Axes", chart: Chart, column: str) -> None:
    """Draw a chart's lines: those of methods, then the majority class from side to side."""
    axes.set_xlabel(chart.x)
    axes.set_ylim(*heights(chart))
    for line in chart.lines:
        if line.run < 0:
            axes.axhline(line.points[0][1], color=line.colour, linewidth=1, linestyle=(0, (1, 2)))
        else:
            _draw_curve(axes, line, chart.bounds)
            if column == "payload" and line.points and not any(x for x, _ in line.points):
                axes.axhline(line.points[-1][1], color=line.colour, linewidth=1.2, linestyle=":", gid=SILENT)
    if column in SIZES:
        _set_scale_of_bytes(axes, sorted(x for line in chart.lines for x, _ in line.points if x > 0))
    elif chart.whole:
        axes.locator_params(axis="x", integer=True)


def _draw_curve(axes: "Axes", line: Line, bounds: tuple[float, float]) -> None:
    across = [x for x, _ in line.points]
    means = [y for _, y in line.points]
    axes.plot(
        across,
        means,
        STYLES[line.dash],
        color=line.colour,
        marker=canvas.MARKERS[line.run % len(canvas.MARKERS)],
        markevery=max(1, len(means) // 8),
        markersize=4.5,
    )
    if any(line.spread):
        axes.fill_between(across, *band(line, bounds), color=line.colour, alpha=0.15, linewidth=0)


def _set_scale_of_bytes(axes: "Axes", sent: Sequence[float]) -> None:
    """An axis of bytes with a place for 0: of orders, where they differ by more than one."""
    if not sent:
        axes.set(xlim=(-0.05, 1), xticks=[0])
    elif sent[-1] > 10 * sent[0]:
        least = 10 ** math.floor(math.log10(sent[0]))
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        axes.set_xlim(-0.1 * least, 1.2 * sent[-1])
        plain_numbers(axes.xaxis)


def points_by(
    comparison: Comparison, frame: pd.DataFrame, row: str, setting: str
) -> dict[str, dict[Scalar, Spread | None]]:
    """Method -> value of a varied setting -> a row's accuracy over the seeds by the first metric, None while no run of
    it is finished. A method that does not read the setting has one point, under "".

    Args:
        frame: of the finished cells.
    """
    figures = by_seed(frame, comparison, row, comparison.metrics[0])
    points: dict[str, dict[Scalar, Spread | None]] = {}
    for entry in comparison.methods:
        if len(entry.varied) > 1:
            # a heat map has it
            continue
        if setting in entry.varied:
            points.setdefault(entry.varied_of, {})[entry.varied[setting]] = spread(figures[entry.label])
        elif not entry.varied:
            points[entry.label] = {"": spread(figures[entry.label])}
    return points


def picture_by(comparison: Comparison, frame: pd.DataFrame, row: str, setting: str, name: str) -> Picture | str:
    """What `points_by` has as curves; in words why there are none."""
    points_by_method = points_by(comparison, frame, row, setting)
    curves_by_method = {method: points for method, points in points_by_method.items() if "" not in points}
    values = list(dict.fromkeys(value for points in curves_by_method.values() for value in points))
    if not any(accuracy for points in curves_by_method.values() for accuracy in points.values()):
        return f"{setting} on {row}: no trial is finished."
    is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    # between names there is nothing, and they stand side by side
    places = {value: float(value) if is_numeric else float(place) for place, value in enumerate(values)}
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        lines = {}
        for number, (method, points) in enumerate(points_by_method.items()):
            colour = canvas.COLOURS[number % len(canvas.COLOURS)]
            if method in curves_by_method:
                look = {"color": colour, "marker": canvas.MARKERS[number % len(canvas.MARKERS)], "markersize": 5}
                lines[method] = _draw_points(axes, {places[v]: p for v, p in points.items() if p}, is_numeric, look)
            elif (alone := points[""]) is not None:
                lines[method] = axes.axhline(100 * alone.mean, color=colour, linewidth=1.4, linestyle="--")
        _set_scale_of_values(axes, list(places.values()), is_numeric)
        axes.set_xticks(list(places.values()), [str(value) for value in values])
        axes.minorticks_off()
        axes.set(xlabel=setting, ylabel=f"test accuracy, % ({comparison.metrics[0]})")
        # by pairs: a label that begins with "_" would be left out
        drawn.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=3)
        svg = canvas.svg(drawn)
    seeds = len(comparison.seeds)
    over_seeds = f"mean over {seeds} seeds, bars: their standard deviation" if seeds > 1 else "of one seed"
    caption = (
        f"Test accuracy by {setting}, {over_seeds}. Dashed: methods without these values. All values "
        "are shown: choosing the highest point would be a choice on test samples."
    )
    numbers: list[list[object]] = [["method", setting, "mean (%)", "std (%)", "seeds"]]
    highest = []
    for method, points in points_by_method.items():
        finished = {value: point for value, point in points.items() if point}
        for value, point in finished.items():
            std = None if point.std is None else 100 * point.std
            numbers.append([method, value, 100 * point.mean, std, point.seeds])
        if finished and method in curves_by_method:
            value, point = max(finished.items(), key=lambda item: item[1].mean)
            highest.append(f"{method} {100 * point.mean:.1f} % at {value}")
    alt = f"Accuracy by {setting} on {row}: highest {', '.join(highest)}."
    return Picture(name, svg, alt, caption, numbers=numbers, title=f"Accuracy by {setting}")


def crossed_pairs(comparison: Comparison) -> list[str]:
    """The methods that have a variant for each pair of values of two settings."""
    return list(dict.fromkeys(entry.varied_of for entry in comparison.methods if len(entry.varied) == 2))


def heat_map(comparison: Comparison, frame: pd.DataFrame, row: str, method: str, name: str) -> Picture | str:
    """A method's mean accuracy by the values of two settings; in words why there is none.

    Args:
        frame: of the finished cells.
    """
    variants = [entry for entry in comparison.methods if entry.varied_of == method and len(entry.varied) == 2]
    across, down = variants[0].varied
    columns = list(dict.fromkeys(entry.varied[across] for entry in variants))
    lines = list(dict.fromkeys(entry.varied[down] for entry in variants))
    figures = by_seed(frame, comparison, row, comparison.metrics[0])
    shares = np.full((len(lines), len(columns)), np.nan)
    for entry in variants:
        if accuracy := spread(figures[entry.label]):
            shares[lines.index(entry.varied[down]), columns.index(entry.varied[across])] = 100 * accuracy.mean
    if np.isnan(shares).all():
        return f"{method} on {row}: no trial is finished."
    low, high = np.nanmin(shares), np.nanmax(shares)
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        image = axes.imshow(shares, cmap=canvas.COLOUR_MAP, aspect="auto")
        canvas.colour_bar(image, "test accuracy, %")
        axes.set_xticks(range(len(columns)), [str(value) for value in columns])
        axes.set_yticks(range(len(lines)), [str(value) for value in lines])
        texts = {(y, x): f"{shares[y, x]:.1f}" for y, x in np.argwhere(~np.isnan(shares))}
        canvas.number_cells(axes, texts, (shares - low) / max(high - low, 1e-9))
        axes.set(xlabel=across, ylabel=down)
        axes.grid(visible=False)
        svg = canvas.svg(drawn)
    numbers: list[list[object]] = [[down, across, "mean (%)"]]
    for y, x in np.argwhere(~np.isnan(shares)):
        numbers.append([lines[y], columns[x], shares[y, x]])
    alt = f"Accuracy of {method} on {row} by {across} and {down}: from {low:.1f} to {high:.1f} %."
    caption = f"Mean test accuracy over seeds by {across} and {down}. All values are shown; none was chosen."
    return Picture(name, svg, alt, caption, numbers=numbers, title=f"{method} by {across} and {down}")


def _draw_points(axes: "Axes", points: Mapping[float, Spread], is_numeric: bool, look: Mapping[str, Any]) -> "Line2D":
    """A method's accuracies where they stand along the axis, with bars for their deviations."""
    across = sorted(points)
    means = [100 * points[x].mean for x in across]
    errors = [100 * (points[x].std or 0.0) for x in across]
    if any(errors):
        low, high = band(Line("", list(zip(across, means, strict=True)), spread=errors), PERCENT)
        below = [mean - edge for mean, edge in zip(means, low, strict=True)]
        above = [edge - mean for mean, edge in zip(means, high, strict=True)]
        axes.errorbar(across, means, [below, above], color=look["color"], linestyle="none", capsize=3, linewidth=1.1)
    (line,) = axes.plot(across, means, linestyle="-" if is_numeric else "none", **look)
    return line


def _set_scale_of_values(axes: "Axes", places: Sequence[float], is_numeric: bool) -> None:
    least, most = min(places), max(places)
    if is_numeric and least > 0 and most > 10 * least:
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
    elif not is_numeric:
        axes.set_xlim(least - 0.4, most + 0.4)
