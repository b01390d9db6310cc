"""The pictures of a run that are curves and columns: accuracy, bytes, architectures, time."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from protosphere.core.files import own_folder
from protosphere.core.text import cut_apart, readable_size
from protosphere.record.metrics_lines import MAJORITY
from protosphere.reports import canvas, page
from protosphere.reports.canvas import COLOURS, INK, SOFT
from protosphere.reports.charts import DASHED, DOTTED, PERCENT, Chart, Line, as_json, heights, with_majority
from protosphere.reports.csv_files import as_csv
from protosphere.reports.page import Html
from protosphere.reports.results import Results

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = "pictures"  # folder of a run's or a comparison's
FEW_POINTS = 30  # up to which a curve shows its points
FEW_ROUNDS = 60  # up to which rounds are columns
MOST_MODELS = 24


@dataclass(frozen=True)
class Picture:
    """A drawing, in words for those who do not see it, and what is to be said under it.

    `name` is its files' in the folder `PICTURES`, without the ending, and its place in a page. `numbers` is what it
    shows as a table, the heads first. `charts` are its curves, of which readers with scripts get the values.
    """

    name: str
    svg: str
    alt: str
    caption: str
    wide: bool = False
    numbers: Sequence[Sequence[object]] = ()
    charts: Sequence[Chart] = ()
    title: str = ""

    @property
    def heading(self) -> str:
        return self.title or self.name.replace("-", " ").capitalize()


def framed(picture: Picture) -> Html:
    """A picture in a page, with links to its files: itself, and its numbers where it has some."""
    downloads = [("SVG", f"{PICTURES}/{picture.name}.svg")]
    if picture.numbers:
        downloads.append(("CSV", f"{PICTURES}/{picture.name}.csv"))
    return framed_with(picture, downloads)


def framed_with(picture: Picture, downloads: Sequence[tuple[str, str]]) -> Html:
    """A picture in a page, with these links: words, address."""
    charts = as_json(picture.charts) if picture.charts else ""
    words = (picture.svg, picture.alt, picture.caption, picture.wide)
    return page.picture(*words, downloads, picture.name, picture.heading, charts)


def write_files(folder: Path, pictures: Sequence[Picture]) -> None:
    """Write the files of all pictures of a run or a comparison, in place of those that were there.

    Raises:
        OSError: they cannot be written. SettingError: their folder is a link.
    """
    place = own_folder(folder, PICTURES)
    place.mkdir(exist_ok=True)
    names = {picture.name for picture in pictures}
    for old in (*place.glob("*.svg"), *place.glob("*.csv")):
        if old.stem not in names:
            old.unlink()
    # what a killed process has left half-written
    for temporary in place.glob(".*.tmp"):
        temporary.unlink()
    for picture in pictures:
        page.write(place / f"{picture.name}.svg", picture.svg)
        if picture.numbers:
            page.write(place / f"{picture.name}.csv", as_csv(picture.numbers))


def accuracy_over_rounds(results: Results) -> Picture | str:
    """The primary rule's mean, spread and worst client over rounds; the floor; which round was selected."""
    means = 100 * results.figure("accuracy")
    if means.empty:
        return f"Accuracy over rounds: there is no evaluation by {results.rule}."
    with canvas.figure() as drawn:
        chosen = draw_accuracy(drawn, results)
        svg = canvas.svg(drawn)
    alt = (
        f"Test accuracy by {results.rule} over rounds {means.index[0]} to {means.index[-1]}: mean from "
        f"{means.iloc[0]:.1f} % to {means.iloc[-1]:.1f} %, worst client {100 * results.figure('worst').iloc[-1]:.1f} % "
        f"at the end{chosen}."
    )
    caption = f"Test accuracy by {results.rule}, measured on the models after each round (round 0: before training)."
    names = {"accuracy": "mean", "std": "std", "worst": "worst", "validation": "validation mean"}
    table = results.rounds.reindex(columns=[*names, MAJORITY, "ensemble"]).dropna(how="all").dropna(axis=1, how="all")
    heads = ["round", *(f"{names.get(name, name)} (%)" for name in table)]
    numbers: list[list[object]] = [[*heads], *rows_of(100 * table)]
    return Picture("accuracy-over-rounds", svg, alt, caption, numbers=numbers, charts=[accuracy_chart(results)])


def accuracy_chart(results: Results) -> Chart:
    """What `draw_accuracy` draws, as data."""
    spread = {number: 100 * std for number, std in results.figure("std").items()}
    lines = []
    for name, look in ACCURACY_CURVES.items():
        points = points_of(100 * results.figure(name))
        if points:
            spreads = [spread.get(number, 0.0) for number, _ in points] if name == "accuracy" else []
            dash = DOTTED if name == "validation" else DASHED * (name == "worst")
            label = f"{look['label']}, ± 1 std over clients" if spreads else look["label"]
            lines.append(Line(label, points, look["color"], dash, look.get("linewidth", 1.8), spreads))
    if selected := _selected(results):
        lines.append(Line(f"selected (round {selected[0]})", [selected], INK, marked=True))
    chart = Chart("round", "test accuracy (%)", lines, whole=True, bounds=PERCENT)
    majority = points_of(100 * results.figure(MAJORITY))
    return with_majority(chart, majority) if majority else chart


def points_of(column: "pd.Series[float]") -> list[tuple[float, float]]:
    """A column of a table by round as points."""
    return [(float(number), float(value)) for number, value in column.items()]


def draw_accuracy(drawn: "Figure", results: Results) -> str:
    """Fill a figure with the primary rule's accuracy over rounds; inside `canvas.figure`. Some of it must be there.

    Returns:
        Which round validation selected, in words; "" for none.
    """
    means, std = 100 * results.figure("accuracy"), 100 * results.figure("std")
    axes = drawn.add_subplot()
    low, high = (means - std).clip(0, 100), (means + std).clip(0, 100)
    axes.fill_between(means.index, low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="± 1 std over clients")
    for name, look in ACCURACY_CURVES.items():
        figures = 100 * results.figure(name)
        if len(figures):
            marks: dict[str, Any] = {"marker": dots(means), "markersize": 3.5} if name == "accuracy" else {}
            axes.plot(figures.index, figures, **look, **marks)
    chosen = _draw_selected(axes, results)
    chart = accuracy_chart(results)
    for line in chart.lines:
        if not line.framed:
            axes.plot(*zip(*line.points, strict=True), label=line.name, color=SOFT, linewidth=line.width, linestyle=":")
    axes.set(xlabel="round", ylabel="test accuracy (%)", ylim=heights(chart))
    whole_rounds(axes)
    drawn.legend(loc="outside lower center", ncols=2)
    return chosen


ACCURACY_CURVES: dict[str, dict[str, Any]] = {
    "accuracy": {"label": "mean of all samples", "color": COLOURS[0]},
    "worst": {"label": "worst client", "color": COLOURS[1], "linewidth": 1.3, "linestyle": (0, (4, 1.5))},
    "validation": {
        "label": "mean of validation samples",
        "color": COLOURS[3],
        "linewidth": 1.3,
        "linestyle": (0, (1.5, 1.5)),
    },
    "ensemble": {"label": "ensemble", "color": COLOURS[2], "linewidth": 1.3, "marker": "^", "markersize": 4},
}


def _selected(results: Results) -> tuple[int, float] | None:
    """The round that validation selected, and its accuracy in percent."""
    headline, means = results.summary["headline"], 100 * results.figure("accuracy")
    number = headline.get("round")
    if headline.get("figure") != "selected" or number not in means.index:
        return None
    return number, float(means[number])


def _draw_selected(axes: "Axes", results: Results) -> str:
    """Mark the round that validation selected; in words for the alternative text."""
    selected = _selected(results)
    if selected is None:
        return ""
    number, accuracy = selected
    axes.plot(
        [number],
        [accuracy],
        color=INK,
        marker="o",
        markersize=8,
        markerfacecolor="none",
        linestyle="none",
        label=f"selected (round {number})",
    )
    return f"; validation selects round {number} with {accuracy:.1f} %"


def accuracy_over_bytes(results: Results) -> Picture | str:
    """The primary rule's mean over what had crossed by then, as payload and on the wire."""
    table = results.sent.join((100 * results.figure("accuracy")).rename("mean"), how="inner").drop(columns="seconds")
    curves = []
    for name, label, colour, style in (
        ("payload", "payload: prototype values", COLOURS[0], "-"),
        ("wire", "wire: whole messages, without evaluation results", COLOURS[1], (0, (4, 1.5))),
    ):
        # before anything has crossed there is no place on a scale of orders
        crossed = table[table[name] > 0]
        if len(crossed):
            curves.append((label, colour, style, crossed[name] / 1e6, crossed["mean"]))
    if not curves:
        return "Accuracy over bytes: nothing was sent before an evaluation."
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        for label, colour, style, xs, ys in curves:
            axes.plot(xs, ys, color=colour, linestyle=style, marker=dots(xs), markersize=3.5, label=label)
        is_long = max(xs.max() for *_, xs, _ in curves) > 10 * min(xs.min() for *_, xs, _ in curves)
        if is_long:
            axes.set_xscale("log")
        plain_numbers(axes.xaxis)
        axes.set(xlabel="sent since the start, both directions (MB)", ylabel="test accuracy (%)")
        drawn.legend(loc="outside lower center", ncols=1)
        svg = canvas.svg(drawn)
    *_, xs, ys = curves[0]
    alt = f"Test accuracy over megabytes sent: {ys.iloc[-1]:.1f} % after {readable_size(round(xs.iloc[-1] * 1e6))}."
    caption = f"The same mean accuracy by {results.rule}, over the bytes that clients and server had sent by then."
    heads = ["round", "payload (bytes)", "wire (bytes)", "mean (%)"]
    lines = [
        Line(label, list(zip(xs, ys, strict=True)), colour, DASHED if style != "-" else "")
        for label, colour, style, xs, ys in curves
    ]
    chart = Chart("sent since the start, both directions (MB)", "test accuracy (%)", lines, log="x" if is_long else "")
    return Picture("accuracy-over-bytes", svg, alt, caption, numbers=[heads, *rows_of(table)], charts=[chart])


def accuracy_by_model(results: Results) -> Picture | str:
    """Every client's accuracy at the end, by its architecture."""
    title = "Accuracy by architecture"
    accuracies: dict[str, list[float]] = {}
    for client in results.roster:
        if client["partition"] in results.at_the_end:
            accuracy, _ = results.at_the_end[client["partition"]]
            accuracies.setdefault(client["model"], []).append(100 * accuracy)
    if not accuracies:
        return f"{title}: no client was evaluated by {results.rule}."
    names = sorted(accuracies)[:MOST_MODELS]
    labels = cut_apart([name or "?" for name in names], 28)
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        for place, name in enumerate(names):
            _draw_strip(axes, place, sorted(accuracies[name]))
        long = max(map(len, labels)) * len(labels) > 60
        axes.set_xticks(range(len(names)), labels, rotation=30 if long else 0, ha="right" if long else "center")
        axes.set(xlim=(-0.6, len(names) - 0.4), ylabel="test accuracy (%)", xlabel="architecture")
        axes.grid(visible=False, axis="x")
        svg = canvas.svg(drawn)
    medians = "; ".join(f"{word} {median(accuracies[name]):.1f} %" for word, name in zip(labels, names, strict=True))
    more = (
        f" Only the first {MOST_MODELS} of {len(accuracies)} architectures are shown."
        if len(accuracies) > MOST_MODELS
        else ""
    )
    number = sum(map(len, accuracies.values()))
    caption = (
        f"Each dot is one of {number} clients, after round {results.figure('accuracy').index[-1]}; bars are medians; "
        f"boxes span the middle half, if there are five clients or more.{more}"
    )
    alt = f"Median test accuracy by architecture: {medians}."
    rows = [[name, value] for name in sorted(accuracies) for value in sorted(accuracies[name])]
    return Picture("accuracy-by-architecture", svg, alt, caption, numbers=[["model", "accuracy (%)"], *rows])


def _draw_strip(axes: "Axes", place: int, values: Sequence[float]) -> None:
    if len(values) >= 5:
        axes.boxplot(
            [values],
            positions=[place],
            widths=0.5,
            showfliers=False,
            whis=(0, 100),
            boxprops={"color": SOFT},
            whiskerprops={"color": SOFT},
            capprops={"color": SOFT},
            medianprops={"color": COLOURS[1], "linewidth": 2},
            manage_ticks=False,
        )
    else:
        axes.hlines(median(values), place - 0.25, place + 0.25, color=COLOURS[1], linewidth=2)
    # side by side in a fixed order: the golden ratio spreads any number of them
    shifts = [0.4 * ((index * 0.618034) % 1 - 0.5) for index in range(len(values))]
    size = 22 if len(values) <= 50 else 8
    axes.scatter([place + s for s in shifts], values, s=size, color=COLOURS[0], alpha=0.75, linewidths=0)


def time_by_part(results: Results) -> Picture | str:
    """Where the rounds' seconds went."""
    times = {line["round"]: _seconds(line["time"]) for line in results.each_line() if line["round"]}
    if not times:
        return "Time by part: no round was finished."
    at_a_time = clients_at_a_time(times.values())
    parts = [_parts(seconds, at_a_time) for seconds in times.values()]
    rounds = [*times]
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        base = [0.0] * len(parts)
        for (name, colour), values in zip(PARTS, zip(*parts, strict=True), strict=True):
            top = [below + value for below, value in zip(base, values, strict=True)]
            if len(rounds) <= FEW_ROUNDS:
                axes.bar(rounds, values, bottom=base, color=colour, width=0.85, label=name)
            else:
                axes.fill_between(rounds, base, top, color=colour, linewidth=0, step="mid", label=name)
            base = top
        axes.set(xlabel="round", ylabel="seconds", xlim=(rounds[0] - 0.6, rounds[-1] + 0.6))
        axes.grid(visible=False, axis="x")
        whole_rounds(axes)
        drawn.legend(loc="outside lower center", ncols=2)
        svg = canvas.svg(drawn)
    totals = [math.fsum(values) for values in zip(*parts, strict=True)]
    totals_text = ", ".join(f"{name} {seconds:.1f} s" for (name, _), seconds in zip(PARTS, totals, strict=True))
    caption = "Wall-clock seconds per round. " + (
        f"Several clients worked at a time. Their seconds are divided by {at_a_time}, the smallest number with which "
        "they fit into the rounds."
        if at_a_time > 1
        else "The rest is messages, process starts and waiting."
    )
    heads = ["round", *(f"{name} (s)" for name, _ in PARTS)]
    rows = [[number, *part_seconds] for number, part_seconds in zip(rounds, parts, strict=True)]
    alt = f"Seconds in all: {totals_text}."
    return Picture("time-by-round", svg, alt, caption, numbers=[heads, *rows])


PARTS = (
    ("clients train", COLOURS[0]),
    ("clients evaluate", COLOURS[4]),
    ("server", COLOURS[1]),
    ("messages and waiting", COLOURS[6]),
)


class Seconds(NamedTuple):
    """Where a round's time went: `train` and `evaluate` are sums over clients."""

    train: float
    evaluate: float
    server: float
    round: float


def _seconds(time: Mapping[str, Any]) -> Seconds:
    train, evaluate = (math.fsum(time.get(name, {}).values()) for name in ("train", "evaluate"))
    return Seconds(train, evaluate, time.get("server", 0.0), time["round"])


def clients_at_a_time(times: Iterable[Seconds]) -> int:
    """The least number of clients at a time with which their seconds fit into every round."""
    busy = [1.0]
    for seconds in times:
        client_seconds = seconds.round - seconds.server
        if client_seconds > 0:
            busy.append((seconds.train + seconds.evaluate) / client_seconds)
    return math.ceil(max(busy) - 1e-6)


def _parts(seconds: Seconds, at_a_time: int) -> tuple[float, float, float, float]:
    train, evaluate = seconds.train / at_a_time, seconds.evaluate / at_a_time
    rest = seconds.round - seconds.server - train - evaluate
    return train, evaluate, seconds.server, max(0.0, rest)


def rows_of(table: "pd.DataFrame") -> list[list[object]]:
    """A table's rows, each behind its round; None where there is nothing."""
    rows: list[list[object]] = table.astype(object).where(table.notna(), None).reset_index().to_numpy().tolist()
    return rows


def dots(points: Sequence[Any]) -> str:
    """The marker of a curve: none where there are too many points to tell apart."""
    return "o" if len(points) <= FEW_POINTS else ""


def plain_numbers(axis: Any) -> None:
    """10 and 100 rather than powers, also where the scale is of orders."""
    from matplotlib.ticker import NullFormatter

    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def whole_rounds(axes: "Axes", most: int = 8) -> None:
    """Whole numbers along the lower axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1))
