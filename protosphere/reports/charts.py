"""A picture's curves as data, which the page's script draws with values on hover and zoom; the picture itself stays for
readers without scripts."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup as Html

from protosphere.core.text import one_line
from protosphere.reports.canvas import COLOURS

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
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = COLOURS[0]
    dash: str = ""
    width: float = 1.8
    spread: Sequence[float] = ()
    marked: bool = False
    run: int = -1


@dataclass(frozen=True)
class Chart:
    """Curves over one axis.

    Attributes:
        x, y: what the axes say. log: which of them are scales of orders, of "xy". whole: the lower axis has whole
            numbers.
    """

    x: str
    y: str
    lines: Sequence[Line]
    log: str = ""
    whole: bool = False


def as_json(charts: Sequence[Chart]) -> Html:
    """For a script's element of JSON."""
    text = json.dumps([_chart(chart) for chart in charts], separators=(",", ":"), allow_nan=False)
    for sign, escaped in UNSAFE.items():
        text = text.replace(sign, escaped)
    return Html(text)


def _chart(chart: Chart) -> dict[str, object]:
    lines = [_line(line, chart.log) for line in chart.lines]
    axes = {"x": chart.x, "y": chart.y, "log": chart.log, "whole": chart.whole}
    return axes | {"lines": [line for line in lines if line["x"]]}


def _line(line: Line, log: str) -> dict[str, object]:
    spreads = line.spread or [0.0] * len(line.points)
    xs, ys, spread = [], [], []
    for (x, y), around in zip(line.points, spreads, strict=True):
        is_drawn = math.isfinite(x) and math.isfinite(y) and not ("x" in log and x <= 0) and not ("y" in log and y <= 0)
        if is_drawn:
            xs.append(_short(x))
            ys.append(_short(y))
            spread.append(_short(around if math.isfinite(around) else 0.0))
    look = {
        "name": one_line(line.name),
        "colour": line.colour.removeprefix("#"),
        "dash": line.dash,
        "width": line.width,
    }
    more = {"marked": line.marked, "run": line.run, "spread": spread if any(spread) else []}
    return look | more | {"x": xs, "y": ys}


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
