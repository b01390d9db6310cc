"""The pictures of a run that the papers have of prototypes: an alignment's distances, margins of classes, zeros."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protosphere.core.text import cut_apart
from protosphere.reports import canvas
from protosphere.reports.canvas import COLOURS, GRID, MOST_NAMED
from protosphere.reports.charts import DASHED, DOTTED, Chart, Line
from protosphere.reports.pictures import Picture, dots, points_of, whole_rounds
from protosphere.reports.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

ITERATIONS = "server/alignment_iterations"  # column of a run's frame
TRACE = {"max": (COLOURS[2], DOTTED), "mean": (COLOURS[0], ""), "min": (COLOURS[1], DASHED)}
MOST_CLASSES = 200  # whose margins can be read
MOST_ROWS = 4000  # prototypes on a map of values
FEWEST_ZEROS = 0.001  # share of a prototype's values below which nothing is sparse
Array = NDArray[np.float64]


def alignment(results: Results) -> Picture | None:
    """Pairwise distances during the first alignment by ProtoNorm's Algorithm 1, and how many iterations each round
    took; None where no alignment was iterated."""
    trace = next((line["server"]["alignment_trace"] for line in results.lines if _is_traced(line)), None)
    if trace is None or ITERATIONS not in results.rounds:
        return None
    iterations = results.rounds[ITERATIONS].dropna()
    steps = range(len(trace["mean"]))
    distances = [
        Line(name, list(zip(map(float, steps), trace[name], strict=True)), colour, dash)
        for name, (colour, dash) in TRACE.items()
    ]
    counts = Line("iterations", points_of(iterations), COLOURS[0])
    with canvas.figure(canvas.WHOLE) as drawn:
        left, right = drawn.add_subplot(1, 2, 1), drawn.add_subplot(1, 2, 2)
        for line in distances:
            style: Any = {DASHED: (0, (4, 1.5)), DOTTED: (0, (1.5, 1.5))}.get(line.dash, "-")
            left.plot(*zip(*line.points, strict=True), color=line.colour, linestyle=style, label=line.name)
        left.axhline(np.sqrt(2), color=GRID, linewidth=1.4, label="√2: at right angles")
        left.set(xlabel="iteration of the first alignment", ylabel="Euclidean distance of unit vectors")
        right.plot(iterations.index, iterations, color=COLOURS[0], marker=dots(iterations), markersize=3.5)
        right.set(xlabel="round", ylabel="iterations")
        right.set_ylim(0, 1.08 * iterations.max())
        whole_rounds(right)
        drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        svg = canvas.svg(drawn)
    last = {name: values[-1] for name, values in trace.items()}
    alt = (
        f"Distances after {len(steps) - 1} iterations of the first alignment: nearest pair {last['min']:.3g}, mean "
        f"{last['mean']:.3g}; iterations from {iterations.iloc[0]:.0f} to {iterations.iloc[-1]:.0f} in the last round."
    )
    caption = (
        "Left: distances between the global prototypes' directions during the alignment of round 1. Right: number of "
        "iterations of each round's alignment."
    )
    numbers: list[list[object]] = [["iteration", *TRACE]]
    numbers += [[step, *(trace[name][step] for name in TRACE)] for step in steps]
    charts = [
        Chart("iteration of the first alignment", "distance", distances, whole=True),
        Chart("round", "iterations", [counts], whole=True),
    ]
    return Picture("alignment", svg, alt, caption, wide=True, numbers=numbers, charts=charts)


def _is_traced(line: Mapping[str, Any]) -> bool:
    return "alignment_trace" in line.get("server", {})


def margins(results: Results, tensors: "dict[str, Tensor]", about: Mapping[str, int]) -> Picture | None:
    """Each class's margin, the distance of its global prototype from the nearest other one, over the largest
    (ProtoNorm, Figure 5); None without global prototypes of two classes that differ, one each."""
    if "global/labels" not in tensors:
        return None
    labels = tensors["global/labels"].tolist()
    if not 2 <= len(labels) <= MOST_CLASSES or len(set(labels)) < len(labels):
        return None
    from scipy.spatial.distance import cdist

    vectors = tensors["global/vectors"].double().numpy()
    distances = cdist(vectors, vectors)
    np.fill_diagonal(distances, np.inf)
    nearest = distances.min(axis=1)
    if not nearest.max() > 0:
        return None
    shares = nearest / nearest.max()
    names = [results.class_names[label] for label in labels]
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        axes.bar(range(len(labels)), shares, color=COLOURS[0], width=0.8)
        if len(labels) <= MOST_NAMED:
            axes.set_xticks(range(len(labels)), cut_apart(names, 14), rotation=90 if len(labels) > 6 else 0)
        axes.set(xlabel="class", ylabel="margin over the largest", ylim=(0, 1.05))
        svg = canvas.svg(drawn)
    least = int(shares.argmin())
    alt = f"Normalised margins of {len(labels)} global prototypes: the least {shares[least]:.2f}, of {names[least]}."
    caption = (
        f"Margins of the global prototypes of round {about.get('round', '?')}: each one's distance to its nearest "
        "neighbour, divided by the largest such distance. All 1: equally far apart."
    )
    rows = [[name, float(near), float(share)] for name, near, share in zip(names, nearest, shares, strict=True)]
    heads = ["class", "margin", "normalised margin"]
    return Picture("margins-of-global-prototypes", svg, alt, caption, numbers=[heads, *rows])


def prototype_values(results: Results, tensors: "dict[str, Tensor]", about: Mapping[str, int]) -> Picture | None:
    """Where prototypes are zero (TinyProto, Figures 2 and 7 to 12): every client's own, ordered by class, above the
    global ones; None where none of them has zeros."""
    sides = [side for side in ("local", "global") if f"{side}/labels" in tensors]
    vectors = {side: tensors[f"{side}/vectors"].double().numpy() for side in sides}
    labels = {side: tensors[f"{side}/labels"].numpy() for side in sides}
    if not any(_zeros(vectors[side]) >= FEWEST_ZEROS for side in sides if len(vectors[side])):
        return None
    order = {side: np.argsort(labels[side], kind="stable")[:MOST_ROWS] for side in sides}
    with canvas.figure((canvas.WHOLE[0], 5.4)) as drawn:
        heights = [3 if side == "local" else 1 for side in sides]
        panels = drawn.subplots(len(sides), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes, side in zip(panels[:, 0], sides, strict=True):
            _draw_values(axes, vectors[side][order[side]], labels[side][order[side]], results, side)
        panels[-1, 0].set_xlabel("dimension")
        svg = canvas.svg(drawn)
    rows: list[list[object]] = []
    for label in sorted({int(label) for side in sides for label in labels[side]}):
        of_class = {side: vectors[side][labels[side] == label] for side in sides}
        shares = [_zeros(of_class[side]) if len(of_class.get(side, ())) else None for side in ("local", "global")]
        rows.append([results.class_names[label], len(of_class.get("local", ())), *shares])
    zero_percentages = {side: 100 * _zeros(vectors[side]) for side in sides if len(vectors[side])}
    words = {"local": "the clients' own", "global": "the global ones"}
    zeros = " and ".join(f"{share:.0f} % of {words[side]}" for side, share in zero_percentages.items())
    caption = (
        f"Values of the prototypes of round {about.get('round', '?')} by magnitude, blank where zero: {zeros}. A "
        "zero in a client's prototype means that the unit is dead for all its samples of the class, or that the "
        "value is masked and not sent."
    )
    alt = f"Values of prototypes by class and dimension; zero are {zeros}."
    heads = ["class", "prototypes of clients", "zeros of the clients' own", "zeros of the global one"]
    return Picture("values-of-prototypes", svg, alt, caption, wide=True, numbers=[heads, *rows])


def _zeros(vectors: Array) -> float:
    return float((vectors == 0).mean())


def _draw_values(axes: "Axes", vectors: Array, labels: NDArray[np.int64], results: Results, side: str) -> None:
    """A map of rows by dimensions, with the classes' names at their rows."""
    cells = np.ma.masked_equal(np.abs(vectors), 0)
    # one far value must not make all others one colour
    most = float(np.quantile(cells.compressed(), 0.99)) if cells.count() else 1.0
    image = axes.imshow(cells, aspect="auto", interpolation="none", cmap=canvas.COLOUR_MAP, vmin=0, vmax=most)
    canvas.colour_bar(image, "size", pad=0.01, fraction=0.04)
    classes, first = np.unique(labels, return_index=True)
    if len(classes) <= MOST_NAMED:
        middles = (first + np.append(first[1:], len(labels)) - 1) / 2
        axes.set_yticks(middles, cut_apart([results.class_names[label] for label in classes.tolist()], 14))
    for start in first[1:]:
        axes.axhline(start - 0.5, color=GRID, linewidth=0.5)
    axes.set_ylabel("each client's, by class" if side == "local" else "global")
    axes.grid(visible=False)
