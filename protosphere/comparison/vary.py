"""Settings of methods that are varied one at a time, to see what they do: a curve of accuracies over the values.

Nothing is chosen, unlike in sweep.py: a method that reads a varied setting stands in the plan and in all tables once a
value, and `Entry.varied_of` names it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from protosphere.comparison.figures import Spread, by_seed, spread
from protosphere.comparison.plan import Comparison, Entry, varied_label
from protosphere.comparison.sweep import expanded, values_of
from protosphere.core.errors import SettingError
from protosphere.core.settings import Scalar, shown
from protosphere.reports import canvas
from protosphere.reports.pictures import Picture, plain_numbers
from protosphere.strategies import known_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

OPTION = "--vary"


@dataclass(frozen=True)
class Curve:
    """A method's accuracies by the values of a setting.

    Attributes:
        points: value -> accuracy over the seeds; None while it has no finished run.
    """

    method: str
    points: Mapping[Scalar, Spread | None]


def varied(
    comparison: Comparison, texts: Sequence[str] = (), overrides: Mapping[str, Scalar] | None = None
) -> Comparison:
    """The comparison with each method that reads a varied setting as one method for each of its values.

    Args:
        texts: such as `protonorm.gamma=1,10,100`; with them those of the comparison's file, which they replace by name.
        overrides: what `-c` says, for all methods.

    Raises:
        SettingError: it is no setting with values, no method reads it, the methods of a row share it, or a figure of a
            paper is of a method that its variants replace.
    """
    values_by_setting = values_of(comparison.vary, texts, OPTION, "vary")
    if not values_by_setting:
        return comparison
    methods = expanded(comparison, values_by_setting, OPTION, overrides or {}, _variants)
    _refuse_printed_of_replaced(comparison, methods)
    return replace(comparison, methods=methods, baseline=_baseline(comparison, methods))


def _variants(entry: Entry, values_by_setting: Mapping[str, Sequence[Scalar]]) -> list[Entry]:
    return [
        replace(
            entry,
            label=varied_label(entry.label, name, value),
            settings=entry.settings | {name: value},
            varied_of=entry.label,
            varied={name: value},
        )
        for name, values in values_by_setting.items()
        for value in values
    ]


def _refuse_printed_of_replaced(comparison: Comparison, methods: Sequence[Entry]) -> None:
    """Refuse a figure of a paper that no table would show, because its method stands there as its variants alone."""
    for printed in comparison.paper:
        variants = [entry for entry in methods if entry.varied_of == printed.method]
        if variants:
            labels = ", ".join(shown(entry.label) for entry in variants)
            settings = dict.fromkeys(f"`{name}`" for entry in variants for name in entry.varied)
            raise SettingError(
                f"`accuracy` in `paper` has {shown(printed.method)}, but [vary] puts {labels} in its place, and no "
                f"table would show {printed.accuracy}: name one of these, or add a method with {', '.join(settings)} "
                "of its own, which is not varied."
            )


def _baseline(comparison: Comparison, methods: Sequence[Entry]) -> str:
    """The label of what the others are held against; of a varied method the one with the setting's default, else the
    first."""
    label = comparison.baseline_label
    variants = [entry for entry in methods if entry.varied_of == label]
    if not variants:
        return label
    defaults = known_settings(variants[0].settings["strategy"])
    usual = [entry for entry in variants if all(defaults.get(name) == value for name, value in entry.varied.items())]
    return (usual or variants)[0].label


def settings_varied(comparison: Comparison) -> list[str]:
    """The settings that are varied, in their order."""
    return list(dict.fromkeys(name for entry in comparison.methods for name in entry.varied))


def curves_of(comparison: Comparison, frame: pd.DataFrame, row: str, setting: str) -> list[Curve]:
    """A row's curves over the values of a setting by the first metric, a method each; one that does not read it has a
    single point of no value, under "".

    Args:
        frame: of the finished cells.
    """
    figures = by_seed(frame, comparison, row, comparison.metrics[0])
    points: dict[str, dict[Scalar, Spread | None]] = {}
    for entry in comparison.methods:
        if setting in entry.varied:
            points.setdefault(entry.varied_of, {})[entry.varied[setting]] = spread(figures[entry.label])
        elif not entry.varied:
            points[entry.label] = {"": spread(figures[entry.label])}
    return [Curve(method, values) for method, values in points.items()]


def picture(comparison: Comparison, frame: pd.DataFrame, row: str, setting: str, name: str) -> Picture | str:
    """The curves of `curves_of` as a picture; in words why there is none."""
    curves = curves_of(comparison, frame, row, setting)
    over = {curve.method: curve.points for curve in curves if "" not in curve.points}
    values = list(dict.fromkeys(value for points in over.values() for value in points))
    if not any(accuracy for points in over.values() for accuracy in points.values()):
        return f"{setting} on {row}: no run of its values is finished."
    places, numeric = _places(values)
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        lines: dict[str, Line2D] = {}
        for number, curve in enumerate(curves):
            colour = canvas.COLOURS[number % len(canvas.COLOURS)]
            if curve.method in over:
                marker = canvas.MARKERS[number % len(canvas.MARKERS)]
                lines[curve.method] = _draw_curve(axes, curve, places, colour, marker, "-" if numeric else "none")
            elif (alone := curve.points[""]) is not None:
                lines[curve.method] = axes.axhline(100 * alone.mean, color=colour, linewidth=1.4, linestyle="--")
        _scale(axes, [places[value] for value in values], numeric)
        axes.set_xticks([places[value] for value in values], [str(value) for value in values])
        axes.minorticks_off()
        axes.set(xlabel=setting, ylabel=f"test accuracy, % ({comparison.metrics[0]})")
        # by pairs: a label that begins with "_" would be left out
        drawn.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=3)
        svg = canvas.svg(drawn)
    words = ", ".join(text for method, points in over.items() if (text := _highest(method, points)))
    seeds = len(comparison.seeds)
    over_seeds = f"mean of {seeds} seeds, bars: their standard deviation" if seeds > 1 else "of one seed"
    caption = (
        f"Test accuracy by the values of {setting}, {over_seeds}. Dashed: methods without these values. All values are "
        "shown, so the highest point is no choice that was made without the test samples."
    )
    rows = [
        [curve.method, value, 100 * point.mean, None if point.std is None else 100 * point.std, point.seeds]
        for curve in curves
        for value, point in curve.points.items()
        if point is not None
    ]
    heads = ["method", setting, "mean (%)", "std (%)", "seeds"]
    alt = f"Accuracy by {setting} on {row}: highest {words}."
    return Picture(name, svg, alt, caption, numbers=[heads, *rows], title=f"Accuracy by {setting}")


def find_row(comparison: Comparison, row: str) -> str:
    """The label of a row, "" for the first.

    Raises:
        SettingError: there is none such.
    """
    labels = [entry.label for entry in comparison.rows]
    if row and row not in labels:
        raise SettingError(f"row is {shown(row)}, but the rows are {'; '.join(labels)}.")
    return row or labels[0]


def find_setting(comparison: Comparison, setting: str) -> str:
    """A setting that is varied, "" for the first.

    Raises:
        SettingError: it is not, or none is.
    """
    names = settings_varied(comparison)
    if not names:
        raise SettingError(
            "no setting is varied in this comparison; give it `vary`, as in {'protonorm.gamma': [1, 10]}."
        )
    if setting and setting not in names:
        raise SettingError(f"setting is {shown(setting)}, but what is varied is {', '.join(names)}.")
    return setting or names[0]


def _places(values: Sequence[Scalar]) -> tuple[dict[Scalar, float], bool]:
    """Where each value stands along the axis, and whether that is its number."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return {value: float(value) for value in values}, True
    return {value: float(place) for place, value in enumerate(values)}, False


def _highest(method: str, points: Mapping[Scalar, Spread | None]) -> str:
    """`protonorm 93.1 % at 10`; "" of a method without a finished run."""
    means = {value: accuracy.mean for value, accuracy in points.items() if accuracy is not None}
    if not means:
        return ""
    best = max(means, key=lambda value: means[value])
    return f"{method} {100 * means[best]:.1f} % at {best}"


def _draw_curve(
    axes: "Axes", curve: Curve, places: Mapping[Scalar, float], colour: str, marker: str, style: str
) -> "Line2D":
    points = sorted(
        (places[value], 100 * point.mean, 100 * (point.std or 0.0)) for value, point in curve.points.items() if point
    )
    across, means, errors = (list(column) for column in zip(*points, strict=True)) if points else ([], [], [])
    if any(errors):
        axes.errorbar(across, means, errors, color=colour, linestyle="none", capsize=3, linewidth=1.1)
    # between names there is nothing
    (line,) = axes.plot(across, means, color=colour, marker=marker, markersize=5, linestyle=style)
    return line


def _scale(axes: "Axes", places: Sequence[float], numeric: bool) -> None:
    least, most = min(places), max(places)
    if numeric and least > 0 and most > 10 * least:
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
    elif not numeric:
        axes.set_xlim(least - 0.4, most + 0.4)
