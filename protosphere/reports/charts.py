"""A picture's curves as data, which the page's script draws with values on hover and zoom; the picture itself stays for
readers without scripts."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup as Html

from protosphere.core.text import one_line
from protosphere.reports.canvas import COLOURS, SOFT

DASHED, DOTTED = "7 3", "2 3"
DIGITS = 7  # significant ones of a number: no reader sees more
# JSON between the tags of a script: no name of anybody's may end it
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        colour: of `canvas.COLOURS`, or another with its counterpart on a dark ground. dash: as SVG has it; "" for none.
        spread: half the height of a band around each point; empty for no band. marked: whether points are all there is.
        run: place of the run whose curve it is, on a page of several; -1 on others.
        framed: whether the upright axis makes room for it.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = COLOURS[0]
    dash: str = ""
    width: float = 1.8
    spread: Sequence[float] = ()
    marked: bool = False
    run: int = -1
    framed: bool = True


@dataclass(frozen=True)
class Chart:
    """Curves over one axis.

    Attributes:
        x, y: what the axes say. log: which of them are scales of orders, of "xy". whole: the lower axis has whole
            numbers. bounds: the least and the most that a value can be, at which bands end.
    """

    x: str
    y: str
    lines: Sequence[Line]
    log: str = ""
    whole: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)


PERCENT = (0.0, 100.0)  # bounds of accuracies


def band(line: Line, bounds: tuple[float, float]) -> tuple[list[float], list[float]]:
    """The lower and the upper edge of a curve's band, as many as it has points; the curve itself where it has none."""
    low, high = [], []
    for (_, y), around in zip(line.points, line.spread or [0.0] * len(line.points), strict=True):
        around = around if math.isfinite(around) else 0.0
        low.append(max(y - around, min(y, bounds[0])))
        high.append(min(y + around, max(y, bounds[1])))
    return low, high


def heights(chart: Chart) -> tuple[float, float]:
    """The ends of an upright axis that is no scale of orders: of all framed curves with their bands, and a twentieth
    of that around them."""
    places: list[float] = []
    for line in chart.lines:
        if line.framed:
            low, high = band(line, chart.bounds)
            places += [*low, *high]
    places = [place for place in places if math.isfinite(place)]
    if not places:
        return 0.0, 1.0
    least, most = min(places), max(places)
    edge = 0.05 * (most - least) if most > least else 0.5
    return least - edge, most + edge


def with_majority(chart: Chart, points: Sequence[tuple[float, float]]) -> Chart:
    """The chart with the line of the majority class, in percent. The axis is that of the curves: where the line lies
    far from them, the legend has its value."""
    value = points[-1][1]
    low, high = heights(chart)
    place = ", below" * (value < low) + ", above" * (value > high)
    line = Line(f"majority class ({value:.1f} %{place})", points, SOFT, DOTTED, 1.3, framed=False)
    return replace(chart, lines=[*chart.lines, line])


def as_json(charts: Sequence[Chart]) -> Html:
    """For a script's element of JSON."""
    text = json.dumps([_chart(chart) for chart in charts], separators=(",", ":"), allow_nan=False)
    for sign, escaped in UNSAFE.items():
        text = text.replace(sign, escaped)
    return Html(text)


def _chart(chart: Chart) -> dict[str, object]:
    lines = [_line(line, chart) for line in chart.lines]
    axes = {"x": chart.x, "y": chart.y, "log": chart.log, "whole": chart.whole}
    return axes | {"lines": [line for line in lines if line["x"]]}


def _line(line: Line, chart: Chart) -> dict[str, object]:
    log, spreads = chart.log, line.spread or [0.0] * len(line.points)
    points, spread = [], []
    for (x, y), around in zip(line.points, spreads, strict=True):
        is_drawn = math.isfinite(x) and math.isfinite(y) and not ("x" in log and x <= 0) and not ("y" in log and y <= 0)
        if is_drawn:
            points.append((x, y))
            spread.append(around if math.isfinite(around) else 0.0)
    edges = band(replace(line, points=points, spread=spread), chart.bounds) if any(spread) else ([], [])
    look = {
        "name": one_line(line.name),
        "colour": line.colour.removeprefix("#"),
        "dash": line.dash,
        "width": line.width,
    }
    more: dict[str, object] = {"marked": line.marked, "run": line.run, "framed": line.framed}
    more |= {"spread": _shorten(spread) if any(spread) else [], "band": [*map(_shorten, edges)]}
    return look | more | {"x": _shorten([x for x, _ in points]), "y": _shorten([y for _, y in points])}


def _shorten(numbers: Sequence[float]) -> list[float]:
    return [float(f"{number:.{DIGITS}g}") for number in numbers]
