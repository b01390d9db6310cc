"""A comparison's plots: every method's accuracy over what it took by then, by the values of settings that are varied,
and how far it lies from the baseline."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from protosphere.comparison import frame as numbers_of
from protosphere.comparison.frame import MeanStd, by_method, by_seed, floor, summarise
from protosphere.comparison.spec import ENSEMBLE, ComparisonSpec, Entry
from protosphere.comparison.variants import settings_varied
from protosphere.core.settings import Scalar, plain_name
from protosphere.record.metrics_lines import MAJORITY
from protosphere.reports import canvas
from protosphere.reports.canvas import COLOURS, DASHED, MARKERS, SOFT, NothingToPlotError, Plot, plain_numbers
from protosphere.reports.plots import limits_of, majority_label

STYLES = ("-", "--", ":")
COLUMNS = {"rounds": ("round",), "bytes": ("payload", "wire")}
CAPTIONS = {
    "rounds": "Over rounds: mean accuracy over clients. Band: standard deviation over seeds.",
    "bytes": "Over the training bytes so far, both directions. Left: payload, the values that methods exchange. "
    "Right: whole messages, which even a method without an exchange sends. Such a method is at 0 on the left; a "
    "dotted line continues its final accuracy.",
}


def plots_of(comparison: ComparisonSpec, frame: pd.DataFrame) -> dict[str, list[Plot]]:
    """Each row that has some -> its plots.

    Args:
        frame: of the finished trials.
    """
    plots: dict[str, list[Plot]] = {}
    for number, row in enumerate(comparison.rows, start=1):
        row_plots: list[Plot] = []
        for name, make in makers_of(comparison).items():
            with suppress(NothingToPlotError):
                row_plots.append(make(comparison, frame, row.label, name=f"{name}-row{number}"))
        if row_plots:
            plots[row.label] = row_plots
    return plots


def makers_of(comparison: ComparisonSpec) -> dict[str, Callable[..., Plot]]:
    """What draws each plot of a row, by the plot's name."""
    makers: dict[str, Callable[..., Plot]] = {"differences": differences}
    for setting in settings_varied(comparison):
        makers[f"accuracy-by-{setting}"] = partial(by_value, setting=setting)
    for method in crossed_methods(comparison):
        makers[f"accuracy-of-{plain_name(method, 40)}"] = partial(heat_map, method=method)
    for kind in CAPTIONS:
        makers[f"accuracy-over-{kind}"] = partial(over, kind=kind)
    return makers


# --- over what it took ------------------------------------------------------------------------------------------


def curves(runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The curve of one method's runs: at each evaluation that all of them have, its `round`, `mean` and `std` of the
    accuracies, and the means of `payload` and `wire` so far."""
    lines = []
    for number, part in pd.concat(runs).groupby(level=0):
        accuracy = summarise(part["accuracy"])
        if accuracy is not None and len(part) == len(runs):
            means = {name: part[name].mean() for name in ("payload", "wire")}
            lines.append({"round": number, "mean": accuracy.mean, "std": accuracy.std} | means)
    return pd.DataFrame(lines, columns=["round", "mean", "std", "payload", "wire"]).astype({"std": float})


def over(comparison: ComparisonSpec, frame: pd.DataFrame, row: str, kind: str, name: str) -> Plot:
    """Every method's accuracy over what it took by then.

    Args:
        frame: of the finished trials. kind: of `CAPTIONS`. name: of the plot's files.

    Raises:
        NothingToPlotError: no trial of the row is finished.
    """
    curve_by_method = {}
    for method, runs in by_method(frame, comparison, row).items():
        if len(runs):
            curve_by_method[method] = curves(runs["curve"].tolist())
    curve_by_method = {method: curve for method, curve in curve_by_method.items() if len(curve)}
    if not curve_by_method:
        raise NothingToPlotError(f"{row}: no trial is finished.")
    # the baseline is a mean over all clients, so it is not drawn beside the ensemble or a single domain
    metric = comparison.metrics[0]
    majority = None
    if metric.rule != ENSEMBLE and not metric.of_domain:
        majority = floor(frame, row, metric.floor or MAJORITY)
    columns = COLUMNS[kind]
    with canvas.figure(canvas.WHOLE if len(columns) > 1 else canvas.HALF) as plot:
        for place, column in enumerate(columns, 1):
            axes = plot.add_subplot(1, len(columns), place)
            draw_curves(axes, curve_by_method, column, 100 * majority.mean if majority else None)
        # by pairs: a label that begins with "_" would be left out
        lines = {str(line.get_gid()): line for line in axes.lines if line.get_gid() is not None}
        ncols = legend_columns(plot, lines)
        plot.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=ncols)
    ends = ", ".join(f"{method} {100 * curve['mean'].iloc[-1]:.1f} %" for method, curve in curve_by_method.items())
    alt = f"Accuracy over {kind} on {row}, at the end: {ends}."
    numbers = pd.concat(
        curve.assign(method=method, **{"mean (%)": 100 * curve["mean"], "std (%)": 100 * curve["std"]})
        for method, curve in curve_by_method.items()
    )
    extra = ["payload", "wire"] if kind == "bytes" else []
    numbers = numbers[["method", "round", "mean (%)", "std (%)", *extra]]
    numbers = numbers.rename(columns={"payload": "payload (bytes)", "wire": "wire (bytes)"})
    return plot.describe(name, f"Accuracy over {kind}", alt, CAPTIONS[kind], numbers, wide=len(columns) > 1)


def draw_curves(axes: Axes, curve_by_method: Mapping[str, pd.DataFrame], column: str, majority: float | None) -> None:
    """Every method's curve over one of its columns; then the majority class, in percent, from side to side. A line in
    the legend has its method's name as `gid`."""
    is_bytes = column in COLUMNS["bytes"]
    largest = max(curve[column].max() for curve in curve_by_method.values())
    scale, unit = (1e6, "MB") if largest >= 1e6 else (1e3, "kB")
    scale = scale if is_bytes else 1.0
    heights: list[float] = []
    for number, (method, curve) in enumerate(curve_by_method.items()):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        across, means, std = curve[column] / scale, 100 * curve["mean"], (100 * curve["std"]).fillna(0.0)
        marker = MARKERS[number % len(MARKERS)]
        look: dict[str, Any] = {"color": colour, "marker": marker, "markevery": max(1, len(means) // 8)}
        axes.plot(across, means, style, markersize=4.5, gid=method, **look)
        low, high = (means - std).clip(0, 100), (means + std).clip(0, 100)
        if std.any():
            axes.fill_between(across, low, high, color=colour, alpha=0.15, linewidth=0)
        heights += [*low, *high]
        if column == "payload" and not across.any():
            axes.axhline(means.iloc[-1], color=colour, linewidth=1.2, linestyle=":")
    label = f"{column} so far, {unit}" if is_bytes else column
    axes.set(xlabel=label, ylabel="test accuracy, %", ylim=limits_of(heights))
    if majority is not None:
        gid = majority_label(majority, axes)
        axes.axhline(majority, color=SOFT, linewidth=1, linestyle=(0, (1, 2)), gid=gid)
    if is_bytes:
        sizes = [size / scale for curve in curve_by_method.values() for size in curve[column]]
        _scale_bytes(axes, sorted(size for size in sizes if size > 0))
    else:
        axes.locator_params(axis="x", integer=True)


def _scale_bytes(axes: Axes, sizes: Sequence[float]) -> None:
    """An axis of bytes with a place for 0: of orders, where they differ by more than one."""
    if not sizes:
        axes.set(xlim=(-0.05, 1), xticks=[0])
    elif sizes[-1] > 10 * sizes[0]:
        least = 10 ** math.floor(math.log10(sizes[0]))
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        axes.set_xlim(-0.1 * least, 1.2 * sizes[-1])
        plain_numbers(axes.xaxis)


# --- by the values of a setting ---------------------------------------------------------------------------------


def points_by(
    comparison: ComparisonSpec, frame: pd.DataFrame, row: str, setting: str
) -> dict[str, dict[Scalar, MeanStd | None]]:
    """Method -> value of a varied setting -> a row's accuracy over the seeds by the first metric, None while no run of
    it is finished. A method that does not read the setting has one point, under "".

    Args:
        frame: of the finished trials.
    """
    figures = by_seed(frame, comparison, row, comparison.metrics[0])
    points: dict[str, dict[Scalar, MeanStd | None]] = {}
    for entry in comparison.methods:
        # what is crossed has a heat map
        if list(entry.varied) == [setting]:
            points.setdefault(entry.varied_of, {})[entry.varied[setting]] = summarise(figures[entry.label])
        elif not entry.varied:
            points[entry.label] = {"": summarise(figures[entry.label])}
    return points


def by_value(comparison: ComparisonSpec, frame: pd.DataFrame, row: str, setting: str, name: str) -> Plot:
    """What `points_by` has as curves.

    Raises:
        NothingToPlotError: none of them is finished.
    """
    points_by_method = points_by(comparison, frame, row, setting)
    points_of_varied = {method: points for method, points in points_by_method.items() if "" not in points}
    values = list(dict.fromkeys(value for points in points_of_varied.values() for value in points))
    if not any(accuracy for points in points_of_varied.values() for accuracy in points.values()):
        raise NothingToPlotError(f"{setting} on {row}: no trial is finished.")
    is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    # between names there is nothing, and they stand side by side
    places = {value: float(value) if is_numeric else float(place) for place, value in enumerate(values)}
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        lines: dict[str, Any] = {}
        for number, (method, points) in enumerate(points_by_method.items()):
            colour = COLOURS[number % len(COLOURS)]
            if method in points_of_varied:
                finished = {places[value]: point for value, point in points.items() if point}
                across = sorted(finished)
                means = np.array([100 * finished[x].mean for x in across])
                stds = np.array([100 * (finished[x].std or 0.0) for x in across])
                # no accuracy is below none or above all samples
                bars = [np.minimum(stds, means), np.minimum(stds, 100 - means)] if stds.any() else None
                look: dict[str, Any] = {"color": colour, "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
                look |= {"linestyle": "-" if is_numeric else "none", "capsize": 3, "elinewidth": 1.1}
                lines[method] = axes.errorbar(across, means, bars, **look)
            elif (alone := points[""]) is not None:
                lines[method] = axes.axhline(100 * alone.mean, color=colour, linewidth=1.4, linestyle="--")
        least, most = min(places.values()), max(places.values())
        if is_numeric and least > 0 and most > 10 * least:
            axes.set_xscale("log")
            plain_numbers(axes.xaxis)
        elif not is_numeric:
            axes.set_xlim(least - 0.4, most + 0.4)
        axes.set_xticks(list(places.values()), [str(value) for value in values])
        axes.minorticks_off()
        axes.set(xlabel=setting, ylabel=f"test accuracy, % ({comparison.metrics[0]})")
        # by pairs: a label that begins with "_" would be left out
        ncols = legend_columns(plot, lines)
        plot.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=ncols)
    seeds = len(comparison.seeds)
    over_seeds = f"mean over {seeds} seeds, bars: their standard deviation" if seeds > 1 else "of one seed"
    caption = (
        f"Test accuracy by {setting}, {over_seeds}. Dashed: methods without these values. All values "
        "are shown: choosing the highest point would be a choice on test samples."
    )
    rows, highest = [], []
    for method, points in points_by_method.items():
        measured = {value: point for value, point in points.items() if point}
        for value, point in measured.items():
            rows.append((method, value, 100 * point.mean, None if point.std is None else 100 * point.std, point.seeds))
        if measured and method in points_of_varied:
            value, point = max(measured.items(), key=lambda item: item[1].mean)
            highest.append(f"{method} {100 * point.mean:.1f} % at {value}")
    numbers = pd.DataFrame(rows, columns=["method", setting, "mean (%)", "std (%)", "seeds"], dtype=object)
    alt = f"Accuracy by {setting} on {row}: highest {', '.join(highest)}."
    return plot.describe(name, f"Accuracy by {setting}", alt, caption, numbers)


def crossed_methods(comparison: ComparisonSpec) -> list[str]:
    """The methods that have a variant for each pair of values of two settings."""
    return list(dict.fromkeys(entry.varied_of for entry in comparison.methods if len(entry.varied) == 2))


def heat_map(comparison: ComparisonSpec, frame: pd.DataFrame, row: str, method: str, name: str) -> Plot:
    """A method's mean accuracy by the values of two settings.

    Raises:
        NothingToPlotError: none of its trials is finished.
    """
    variants = [entry for entry in comparison.methods if entry.varied_of == method and len(entry.varied) == 2]
    across, down = variants[0].varied
    figures = by_seed(frame, comparison, row, comparison.metrics[0])
    rows = []
    for entry in variants:
        if accuracy := summarise(figures[entry.label]):
            rows.append((entry.varied[down], entry.varied[across], 100 * accuracy.mean))
    if not rows:
        raise NothingToPlotError(f"{method} on {row}: no trial is finished.")
    numbers = pd.DataFrame(rows, columns=[down, across, "mean (%)"])
    cells = numbers.pivot(index=down, columns=across, values="mean (%)")
    cells = cells.reindex(index=_values(variants, down), columns=_values(variants, across))
    shares, low, high = cells.to_numpy(), numbers["mean (%)"].min(), numbers["mean (%)"].max()
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        image = axes.imshow(shares, cmap=canvas.COLOUR_MAP, aspect="auto")
        canvas.colour_bar(image, "test accuracy, %")
        axes.set_xticks(range(len(cells.columns)), [str(value) for value in cells.columns])
        axes.set_yticks(range(len(cells.index)), [str(value) for value in cells.index])
        texts = {(y, x): f"{shares[y, x]:.1f}" for y, x in np.argwhere(~np.isnan(shares))}
        canvas.number_cells(axes, texts, (shares - low) / max(high - low, 1e-9))
        axes.set(xlabel=across, ylabel=down)
        axes.grid(visible=False)
    alt = f"Accuracy of {method} on {row} by {across} and {down}: from {low:.1f} to {high:.1f} %."
    caption = f"Mean test accuracy over seeds by {across} and {down}. All values are shown; none was chosen."
    return plot.describe(name, f"{method} by {across} and {down}", alt, caption, numbers)


def _values(variants: Sequence[Entry], setting: str) -> list[Scalar]:
    return list(dict.fromkeys(entry.varied[setting] for entry in variants))


# --- to the baseline --------------------------------------------------------------------------------------------


def differences(comparison: ComparisonSpec, frame: pd.DataFrame, row: str, name: str) -> Plot:
    """A forest plot: each method's difference to the baseline by the first metric, with its interval.

    Raises:
        NothingToPlotError: there is no interval, as of one seed.
    """
    metric = str(comparison.metrics[0])
    lines = numbers_of.differences(comparison, frame).dropna(subset="low")
    lines = lines[(lines["row"] == row) & (lines["metric"] == metric)]
    if lines.empty:
        raise NothingToPlotError(f"{row}: no two seeds of two methods are finished.")
    shares = 100 * lines[["difference", "low", "high"]].reset_index(drop=True)
    numbers = shares.rename(columns={"difference": "difference (points)"})
    numbers.insert(0, "method", lines["method"].tolist())
    places = range(len(numbers))
    with canvas.figure((canvas.HALF[0], 1.2 + 0.35 * len(numbers))) as plot:
        axes = plot.add_subplot()
        axes.axvline(0, color=SOFT, linewidth=1, linestyle=DASHED)
        axes.hlines(places, numbers["low"], numbers["high"], color=COLOURS[0], linewidth=1.6)
        axes.plot(numbers["difference (points)"], places, "o", color=COLOURS[0], markersize=5)
        axes.set_yticks(places, numbers["method"])
        axes.set(xlabel=f"points to {comparison.baseline_label} ({metric})", ylim=(len(numbers) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")
    rows = numbers.itertuples(index=False, name=None)
    texts = [f"{method} {mean:+.1f} [{low:+.1f}, {high:+.1f}]" for method, mean, low, high in rows]
    alt = f"Difference to {comparison.baseline_label} on {row} in points: {'; '.join(texts)}."
    caption = "Mean difference to the baseline, paired by seed, with its 95 % t interval."
    return plot.describe(name, f"Difference to {comparison.baseline_label}", alt, caption, numbers)


def legend_columns(plot: Plot, labels: Iterable[str]) -> int:
    """How many labels fit beside each other below a plot."""
    longest = max(map(len, labels), default=1)
    # inches of a line's sample with its gaps, and of a letter
    return max(1, int(plot.get_figwidth() / (0.6 + 0.075 * longest)))
