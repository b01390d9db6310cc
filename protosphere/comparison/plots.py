"""A comparison's plots: accuracy over rounds and bytes, accuracy by the values of varied settings, and differences from
the baseline. A plot without finished trials raises NothingToPlotError."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from protosphere.comparison import frame as numbers_of
from protosphere.comparison.frame import floor, means_of, runs_of, summarise
from protosphere.comparison.spec import ENSEMBLE, ComparisonSpec
from protosphere.core.settings import plain_name
from protosphere.record.metrics_lines import MAJORITY
from protosphere.reports import canvas
from protosphere.reports.canvas import COLOURS, DASHED, MARKERS, SOFT, NothingToPlotError, Plot, plain_numbers
from protosphere.reports.plots import limits_of, majority_label

STYLES = ("-", "--", ":")
COLUMNS = {"rounds": "round", "bytes": "payload"}
CAPTIONS = {
    "rounds": "Over rounds: mean accuracy over clients. Band: standard deviation over seeds.",
    "bytes": "Over the payload of training so far, both directions: the values that methods exchange. A method without "
    "an exchange is at 0; a dotted line continues its final accuracy.",
}


def plots_of(spec: ComparisonSpec, trials: pd.DataFrame) -> dict[str, list[Plot]]:
    """The plots of each row that has some; `trials` are the finished ones."""
    plots: dict[str, list[Plot]] = {}
    for number, row in enumerate(spec.rows, start=1):
        for name, make in makers_of(spec).items():
            with suppress(NothingToPlotError):
                plot = make(spec, trials, row.label, name=f"{name}-row{number}")
                plots.setdefault(row.label, []).append(plot)
    return plots


def makers_of(spec: ComparisonSpec) -> dict[str, Callable[..., Plot]]:
    """The functions that draw the plots of a row, by the plots' names."""
    makers: dict[str, Callable[..., Plot]] = {"differences": differences}
    for entry in spec.methods:
        for setting in entry.varied:
            makers[f"accuracy-by-{setting}"] = partial(by_value, setting=setting)
    for entry in spec.methods:
        if len(entry.varied) == 2:
            makers[f"accuracy-of-{plain_name(entry.varied_of, 40)}"] = partial(heat_map, method=entry.varied_of)
    for kind in CAPTIONS:
        makers[f"accuracy-over-{kind}"] = partial(over, kind=kind)
    return makers


def _draw_legend(plot: Plot, lines: Mapping[str, Any]) -> None:
    longest = max(map(len, lines), default=1)
    # inches of a line's sample with its gaps, and of a letter
    columns = max(1, int(plot.get_figwidth() / (0.6 + 0.075 * longest)))
    # by pairs, since matplotlib leaves out a label that begins with "_"
    plot.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=columns)


# --- over rounds and bytes --------------------------------------------------------------------------------------


def curves(runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The mean curve of a method's runs: `round`, `mean` and `std` of the accuracies, and mean `payload` and `wire`, at
    each evaluation that all runs have."""
    lines = []
    for number, part in pd.concat(runs).groupby(level=0):
        accuracy = summarise(part["accuracy"])
        if accuracy is not None and len(part) == len(runs):
            sizes = {name: part[name].mean() for name in ("payload", "wire")}
            lines.append({"round": number, "mean": accuracy.mean, "std": accuracy.std} | sizes)
    return pd.DataFrame(lines, columns=["round", "mean", "std", "payload", "wire"]).astype({"std": float})


def over(spec: ComparisonSpec, trials: pd.DataFrame, row: str, kind: str, name: str) -> Plot:
    """Every method's accuracy over rounds or bytes.

    Args:
        kind: a key of `CAPTIONS`. name: name of the plot's files.
    """
    curve_by_method = {}
    for method in spec.methods:
        runs = runs_of(trials, row, method.label)
        curve = curves(runs["curve"].tolist()) if len(runs) else pd.DataFrame()
        if len(curve):
            curve_by_method[method.label] = curve
    if not curve_by_method:
        raise NothingToPlotError(f"{row}: no trial is finished.")
    # the baseline is a mean over all clients
    metric = spec.metrics[0]
    majority = None
    if metric.rule != ENSEMBLE and not metric.of_domain:
        majority = floor(trials, row, metric.floor or MAJORITY)
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        lines = draw_curves(axes, curve_by_method, COLUMNS[kind], 100 * majority.mean if majority else None)
        _draw_legend(plot, lines)
    numbers = pd.concat(curve.assign(method=method) for method, curve in curve_by_method.items())
    numbers = numbers.assign(**{"mean (%)": 100 * numbers["mean"], "std (%)": 100 * numbers["std"]})
    numbers = numbers.rename(columns={"payload": "payload (bytes)", "wire": "wire (bytes)"})
    columns = ["method", "round", "mean (%)", "std (%)"]
    columns += ["payload (bytes)", "wire (bytes)"] if kind == "bytes" else []
    return plot.describe(name, CAPTIONS[kind], numbers[columns], title=f"Accuracy over {kind}")


def draw_curves(
    axes: Axes, curve_by_method: Mapping[str, pd.DataFrame], column: str, majority: float | None
) -> dict[str, Any]:
    """Draw every method's curve over one of its columns, and the majority class in percent.

    Returns:
        The lines by their labels.
    """
    is_bytes = column == COLUMNS["bytes"]
    # in MB
    scale = 1e6 if is_bytes else 1.0
    lines: dict[str, Any] = {}
    heights: list[float] = []
    for number, (method, curve) in enumerate(curve_by_method.items()):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        marker = MARKERS[number % len(MARKERS)]
        across, means, std = curve[column] / scale, 100 * curve["mean"], (100 * curve["std"]).fillna(0.0)
        every = max(1, len(means) // 8)
        (lines[method],) = axes.plot(across, means, style, color=colour, marker=marker, markevery=every, markersize=4.5)
        low, high = (means - std).clip(0, 100), (means + std).clip(0, 100)
        if std.any():
            axes.fill_between(across, low, high, color=colour, alpha=0.15, linewidth=0)
        heights += [*low, *high]
        if is_bytes and not across.any():
            axes.axhline(means.iloc[-1], color=colour, linewidth=1.2, linestyle=":")
    axes.set(xlabel="payload so far, MB" if is_bytes else column, ylabel="test accuracy, %", ylim=limits_of(heights))
    if majority is not None:
        label = majority_label(majority, axes)
        lines[label] = axes.axhline(majority, color=SOFT, linewidth=1, linestyle=(0, (1, 2)))
    if not is_bytes:
        axes.locator_params(axis="x", integer=True)
        return lines
    # by orders of magnitude, with a place for 0
    sizes = pd.concat(curve[column] for curve in curve_by_method.values()) / scale
    if sizes.any():
        least = 10 ** math.floor(math.log10(sizes[sizes > 0].min()))
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        axes.set_xlim(-0.1 * least, 1.2 * sizes.max())
        plain_numbers(axes.xaxis)
    return lines


# --- by the values of a setting ---------------------------------------------------------------------------------


def _means_by_value(spec: ComparisonSpec, trials: pd.DataFrame, row: str, settings: Sequence[str]) -> pd.DataFrame:
    """The means of a row by the first metric, in percent, of the methods whose variants have these settings ("" in
    place of a value for methods that do not vary)."""
    entries = {entry.label: entry for entry in spec.methods}
    means = means_of(spec, trials)
    rows = []
    for line in means[(means["row"] == row) & (means["metric"] == str(spec.metrics[0]))].itertuples():
        entry = entries[line.method]
        if line.seeds and list(entry.varied) in ([], list(settings)):
            values = [entry.varied.get(setting, "") for setting in settings]
            rows.append([entry.varied_of or entry.label, *values, 100 * line.mean, 100 * line.std, line.seeds])
    return pd.DataFrame(rows, columns=["method", *settings, "mean (%)", "std (%)", "seeds"])


def by_value(spec: ComparisonSpec, trials: pd.DataFrame, row: str, setting: str, name: str) -> Plot:
    """Accuracy by the values of a setting, a curve for each method."""
    numbers = _means_by_value(spec, trials, row, [setting]).astype({setting: object})
    variants = numbers[numbers[setting].map(lambda value: value != "")]
    if variants.empty:
        raise NothingToPlotError(f"{setting} on {row}: no trial is finished.")
    values = _values(spec, setting)
    is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    # strings stand side by side
    places = {value: float(value) if is_numeric else float(place) for place, value in enumerate(values)}
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        lines: dict[str, Any] = {}
        for number, (method, points) in enumerate(numbers.groupby("method", sort=False)):
            colour = COLOURS[number % len(COLOURS)]
            if points[setting].iloc[0] == "":
                mean = points["mean (%)"].iloc[0]
                lines[method] = axes.axhline(mean, color=colour, linewidth=1.4, linestyle="--")
                continue
            points = points.assign(place=points[setting].map(places)).sort_values("place")
            means, stds = points["mean (%)"], points["std (%)"].fillna(0.0)
            # no accuracy is below 0 or above 100 %
            bars = [stds.clip(upper=means), stds.clip(upper=100 - means)] if stds.any() else None
            look: dict[str, Any] = {"color": colour, "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
            look |= {"linestyle": "-" if is_numeric else "none", "capsize": 3, "elinewidth": 1.1}
            lines[method] = axes.errorbar(points["place"], means, bars, **look)
        least, most = min(places.values()), max(places.values())
        if is_numeric and least > 0 and most > 10 * least:
            axes.set_xscale("log")
            plain_numbers(axes.xaxis)
        elif not is_numeric:
            axes.set_xlim(least - 0.4, most + 0.4)
        axes.set_xticks(list(places.values()), [str(value) for value in values])
        axes.minorticks_off()
        axes.set(xlabel=setting, ylabel=f"test accuracy, % ({spec.metrics[0]})")
        _draw_legend(plot, lines)
    over_seeds = "of one seed"
    if len(spec.seeds) > 1:
        over_seeds = f"mean over {len(spec.seeds)} seeds, bars: their standard deviation"
    caption = (
        f"Test accuracy by {setting}, {over_seeds}. Dashed: methods without these values. All values are shown: "
        "choosing the highest point would be a choice on test samples."
    )
    return plot.describe(name, caption, numbers, title=f"Accuracy by {setting}")


def heat_map(spec: ComparisonSpec, trials: pd.DataFrame, row: str, method: str, name: str) -> Plot:
    """A method's mean accuracy by the values of two settings."""
    across, down = next(entry.varied for entry in spec.methods if entry.varied_of == method)
    numbers = _means_by_value(spec, trials, row, [across, down])
    numbers = numbers[numbers["method"] == method][[down, across, "mean (%)"]]
    if numbers.empty:
        raise NothingToPlotError(f"{method} on {row}: no trial is finished.")
    cells = numbers.pivot(index=down, columns=across, values="mean (%)")
    cells = cells.reindex(index=_values(spec, down), columns=_values(spec, across))
    shares, low, high = cells.to_numpy(), numbers["mean (%)"].min(), numbers["mean (%)"].max()
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        image = axes.imshow(shares, cmap=canvas.COLOUR_MAP, aspect="auto")
        canvas.colour_bar(image, "test accuracy, %")
        axes.set_xticks(range(len(cells.columns)), [str(value) for value in cells.columns])
        axes.set_yticks(range(len(cells.index)), [str(value) for value in cells.index])
        texts = {(y, x): f"{shares[y, x]:.1f}" for y, x in zip(*cells.notna().to_numpy().nonzero(), strict=True)}
        canvas.number_cells(axes, texts, (shares - low) / max(high - low, 1e-9))
        axes.set(xlabel=across, ylabel=down)
        axes.grid(visible=False)
    caption = f"Mean test accuracy over seeds by {across} and {down}. All values are shown; none was chosen."
    return plot.describe(name, caption, numbers, title=f"{method} by {across} and {down}")


def _values(spec: ComparisonSpec, setting: str) -> list[Any]:
    """The values of a varied setting, in their order."""
    return list(dict.fromkeys(entry.varied[setting] for entry in spec.methods if setting in entry.varied))


# --- to the baseline --------------------------------------------------------------------------------------------


def differences(spec: ComparisonSpec, trials: pd.DataFrame, row: str, name: str) -> Plot:
    """A forest plot: each method's difference to the baseline by the first metric, with its interval."""
    metric = str(spec.metrics[0])
    lines = numbers_of.differences(spec, trials).dropna(subset="low")
    lines = lines[(lines["row"] == row) & (lines["metric"] == metric)]
    if lines.empty:
        raise NothingToPlotError(f"{row}: no two seeds of two methods are finished.")
    numbers = 100 * lines[["difference", "low", "high"]].reset_index(drop=True)
    numbers = numbers.rename(columns={"difference": "difference (points)"})
    numbers.insert(0, "method", lines["method"].tolist())
    places = range(len(numbers))
    with canvas.figure((canvas.HALF[0], 1.2 + 0.35 * len(numbers))) as plot:
        axes = plot.add_subplot()
        axes.axvline(0, color=SOFT, linewidth=1, linestyle=DASHED)
        axes.hlines(places, numbers["low"], numbers["high"], color=COLOURS[0], linewidth=1.6)
        axes.plot(numbers["difference (points)"], places, "o", color=COLOURS[0], markersize=5)
        axes.set_yticks(places, numbers["method"])
        axes.set(xlabel=f"points to {spec.baseline_label} ({metric})", ylim=(len(numbers) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")
    caption = "Mean difference to the baseline, paired by seed, with its 95 % t interval."
    return plot.describe(name, caption, numbers, title=f"Difference to {spec.baseline_label}")
