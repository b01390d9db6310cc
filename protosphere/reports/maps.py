"""The pictures of a run that show data and prototypes: who holds what, how far prototypes lie apart, where they lie."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protosphere.core.client_names import client_word
from protosphere.core.text import cut_apart
from protosphere.reports import canvas
from protosphere.reports.canvas import COLOURS, GRID, INK, MARKERS, MOST_NAMED
from protosphere.reports.charts import DASHED, Chart, Line
from protosphere.reports.label_distribution import Holdings
from protosphere.reports.pictures import Picture, dots, plain_numbers, points_of, rows_of, whole_rounds
from protosphere.reports.results import Results

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

MOST_NUMBERED = 20  # clients and classes up to which a cell tells its number
MOST_IN_LEGEND = 20
MOST_ANGLES = 200  # classes whose matrix can be read
SEPARATION = "server/separation/"  # how the columns of a run's frame begin
MOST_POINTS = 2000  # of local prototypes on the map
Array = NDArray[np.float64]


def partition_map(holdings: Holdings, client_names: Sequence[str]) -> Picture:
    """Clients × classes: how many rows each holds, or whether it holds any; and each client's name, "" where it has
    none."""
    with _partition(holdings, client_names) as drawn:
        svg = canvas.svg(drawn)
    counts = np.asarray(holdings.counts)
    classes_of_client = (counts > 0).sum(axis=1)
    fewest, most = classes_of_client.min(), classes_of_client.max()
    of_all = f"{len(counts)} clients and {len(counts.T)} classes; a client holds {fewest} to {most} of them"
    caption = (
        "Samples per client and class (training, validation and test); log scale; blank means no samples."
        if holdings.exact
        else "Filled: the client has training samples of the class. The number is not disclosed."
    )
    names = holdings.class_names
    rows = [
        [client, names[label], int(counts[client, label])] for client, label in zip(*np.nonzero(counts), strict=True)
    ]
    heads = ["client", "class", "rows" if holdings.exact else "held"]
    if any(client_names):
        heads, rows = [*heads, "name"], [[*row, client_names[row[0]]] for row in rows]
    return Picture(
        "samples-by-client-and-class", svg, f"Partition: {of_all}.", caption, wide=True, numbers=[heads, *rows]
    )


def partition_png(holdings: Holdings, client_names: Sequence[str]) -> bytes:
    """What `partition_map` draws, as a PNG file."""
    with _partition(holdings, client_names) as drawn:
        return canvas.png(drawn)


@contextmanager
def _partition(holdings: Holdings, client_names: Sequence[str]) -> "Iterator[Figure]":
    counts = np.asarray(holdings.counts)
    clients, classes = counts.shape
    height = min(8.0, max(2.4, 1.3 + (0.22 if clients <= MOST_NAMED else 0.07) * clients))
    with canvas.figure((canvas.WHOLE[0], height)) as drawn:
        axes = drawn.add_subplot()
        _draw_cells(axes, counts, holdings.exact)
        names = cut_apart(holdings.class_names, 14)
        if classes <= MOST_NAMED:
            long = sum(map(len, names)) > 110
            axes.set_xticks(range(classes), names, rotation=45 if long else 0, ha="right" if long else "center")
        else:
            whole_rounds(axes)
        if clients <= MOST_NAMED:
            labels = cut_apart(client_names, 14)
            axes.set_yticks(range(clients), [f"{i} {name}".strip() for i, name in enumerate(labels)])
        axes.set(xlabel="class", ylabel="client")
        axes.grid(visible=False)
        yield drawn


def _draw_cells(axes: "Axes", counts: "NDArray[np.int64]", exact: bool) -> None:
    from matplotlib.colors import ListedColormap, LogNorm

    cells = np.ma.masked_equal(counts, 0)
    clients, classes = counts.shape
    if not exact:
        axes.imshow(cells, aspect="auto", interpolation="none", cmap=ListedColormap([COLOURS[0]]))
        return
    scale = LogNorm(1, max(2, counts.max()))
    image = axes.imshow(cells, aspect="auto", interpolation="none", cmap=canvas.COLOUR_MAP, norm=scale)
    plain_numbers(canvas.colour_bar(image, "samples", pad=0.01, fraction=0.04).ax.yaxis)
    if clients <= MOST_NUMBERED and classes <= MOST_NUMBERED:
        texts = {(client, label): f"{counts[client, label]}" for client, label in np.argwhere(counts)}
        canvas.number_cells(axes, texts, scale(counts))


def separation_over_rounds(results: Results, tensors: "dict[str, Tensor]") -> Picture | str:
    """Pairwise distances and angles of the global prototypes, beside the largest that there could be."""
    table = results.rounds.filter(like=SEPARATION).dropna(how="all")
    if table.empty:
        return f"Distances of global prototypes: {_why_none(results, tensors)}."
    names = [f"{kind}_{name}" for kind in ("distance", "angle") for name in ("min", "mean", "bound")]
    table = table.rename(columns=lambda name: name.removeprefix(SEPARATION)).reindex(columns=["classes", *names])
    units = {"distance": "Euclidean distance", "angle": "angle (degrees)"}
    charts = [_separation_chart(table, kind, unit) for kind, unit in units.items()]
    with canvas.figure(canvas.WHOLE) as drawn:
        for place, (kind, unit) in enumerate(units.items(), 1):
            axes = drawn.add_subplot(1, 2, place)
            # the bound is broad and faint: where the others reach it, they lie on it
            for name, colour, style, width, label in (
                ("bound", GRID, "-", 7.0, "bound: the largest possible minimum"),
                ("mean", COLOURS[0], "-", 1.8, "mean of all pairs"),
                ("min", COLOURS[1], (0, (4, 1.5)), 1.8, "nearest pair"),
            ):
                marker = dots(table) if name != "bound" or len(table) == 1 else ""
                look: Any = {"color": colour, "linestyle": style, "linewidth": width, "marker": marker}
                axes.plot(table.index, table[f"{kind}_{name}"], label=label, markersize=max(3.5, width), **look)
            axes.set(xlabel="round", ylabel=unit)
            # there are no angles where all prototypes but one are zero, and no height where all lie in one place
            if 0 < axes.dataLim.ymax < np.inf:
                axes.set_ylim(0, 1.08 * axes.dataLim.ymax)
            whole_rounds(axes)
        drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        svg = canvas.svg(drawn)
    last = table.iloc[-1]
    distances = (
        f"nearest pair {last['distance_min']:.3g}, mean {last['distance_mean']:.3g}, bound {last['distance_bound']:.3g}"
    )
    caption = (
        f"Pairwise distances and angles of the {last['classes']:.0f} global prototypes, as targets. If the nearest "
        "pair comes close to 0, two classes are pulled to one place. Bound: √(2K/(K−1)) times the root mean square "
        "of their norms, and arccos(−1/(K−1)); only a simplex reaches it (K ≤ d + 1)."
    )
    alt = f"Distances of global prototypes at the end: {distances}."
    numbers: list[list[object]] = [["round", *names], *rows_of(table[names])]
    return Picture("distances-of-global-prototypes", svg, alt, caption, wide=True, numbers=numbers, charts=charts)


def _separation_chart(table: "pd.DataFrame", kind: str, unit: str) -> Chart:
    looks = {
        "bound": ("bound: the largest possible minimum", GRID, "", 6.0),
        "mean": ("mean of all pairs", COLOURS[0], "", 1.8),
        "min": ("nearest pair", COLOURS[1], DASHED, 1.8),
    }
    lines = [
        Line(label, points_of(table[f"{kind}_{name}"].dropna()), colour, dash, width)
        for name, (label, colour, dash, width) in looks.items()
    ]
    return Chart("round", unit, lines, whole=True)


def _why_none(results: Results, tensors: "dict[str, Tensor]") -> str:
    name, receives = results.run.settings.strategy, sorted({spec.kind for spec in results.run.exchange.down})
    if results.unknown:
        return f"{name} was not loaded, so its exchange is unknown"
    if not receives:
        return f"{name} has none; nothing is exchanged"
    if "prototypes" not in receives:
        return f"{name} sends {' and '.join(receives)} down, for which there is no single distance"
    if tensors and "global/labels" not in tensors:
        return f"{name} gives each client prototypes of its own"
    return "no round has any: the server had fewer than two or too many, or did not record them yet"


def angles(results: Results, tensors: "dict[str, Tensor]", about: dict[str, int]) -> Picture | str:
    """Angles between all pairs of the newest round's global prototypes."""
    if "global/labels" not in tensors:
        return f"Angles of global prototypes: {_why_none(results, tensors)}."
    vectors, labels = tensors["global/vectors"].double().numpy(), tensors["global/labels"].tolist()
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    nonzero = norms[:, 0] > 0
    units = vectors[nonzero] / norms[nonzero]
    names = [results.class_names[label] for label, long in zip(labels, nonzero, strict=True) if long]
    if len(set(labels)) < len(labels):
        return "Angles of global prototypes: not shown, since each class has several, one per component of its mixture."
    if not 2 <= len(names) <= MOST_ANGLES:
        return f"Angles of global prototypes: not shown; a matrix of {len(names)} non-zero prototypes is not readable."
    degrees = np.degrees(np.arccos(np.clip(units @ units.T, -1, 1)))
    np.fill_diagonal(degrees, np.nan)
    with canvas.figure((5.7, 4.9)) as drawn:
        axes = drawn.add_subplot()
        most = max(90.0, float(np.nanmax(degrees)))
        canvas.square(axes, degrees, cut_apart(names, 14), "angle (degrees)", most)
        axes.set(xlabel="class", ylabel="class")
        if len(names) <= 12:
            texts = {(row, column): f"{degrees[row, column]:.0f}" for row, column in np.argwhere(~np.isnan(degrees))}
            canvas.number_cells(axes, texts, degrees / most)
        svg = canvas.svg(drawn)
    first, second = divmod(int(np.nanargmin(degrees)), len(names))
    nearest = f"{names[first]} and {names[second]}, {degrees[first, second]:.0f}°"
    caption = f"Angles between the global prototypes of round {about.get('round', '?')}. Nearest: {nearest}."
    alt = f"Angles between the global prototypes of {len(names)} classes; the nearest are {nearest}."
    rows = [
        [name, *(None if np.isnan(v) else v for v in row)] for name, row in zip(names, degrees.tolist(), strict=True)
    ]
    return Picture("angles-of-global-prototypes", svg, alt, caption, numbers=[["class", *names], *rows])


def prototype_map(results: Results, tensors: "dict[str, Tensor]", about: dict[str, int]) -> Picture | str:
    """Global and local prototypes of the last round with uploads, in the plane."""
    if not tensors and results.unknown:
        return "Map of prototypes: without the method's code its exchange is unknown."
    if not tensors:
        reason = "nothing is exchanged" if not results.run.exchange.down else "no round's uploads were kept"
        return f"Map of prototypes: {reason}."
    empty = np.empty(0, dtype=np.int64)
    labels = [tensors[f"{side}/labels"].numpy() if f"{side}/labels" in tensors else empty for side in _SIDES]
    vectors = [tensors[f"{side}/vectors"].double().numpy() for side in _SIDES if f"{side}/vectors" in tensors]
    points, axis_names = in_plane(np.concatenate(vectors))
    ours, theirs = points[: len(labels[0])], points[len(labels[0]) :]
    step = -(-len(theirs) // MOST_POINTS) if len(theirs) else 1
    classes = sorted(set(labels[0].tolist()) | set(labels[1].tolist()))
    size = 110 if len(classes) <= MOST_NAMED else 40
    with canvas.figure((canvas.WHOLE[0], 5.4)) as drawn:
        axes = drawn.add_subplot()
        names, large = cut_apart([results.class_names[label] for label in classes], 22), []
        annotations = cut_apart([results.class_names[label] for label in classes], 12)
        for label, word in zip(classes, annotations, strict=True):
            colour, marker = COLOURS[label % 6], MARKERS[(label // 6 + label) % len(MARKERS)]
            local_points, global_points = theirs[::step][labels[1][::step] == label], ours[labels[0] == label]
            if vectors[0].shape[1] == 2:
                for end in global_points:
                    axes.plot([0, end[0]], [0, end[1]], "--", color=colour, linewidth=1.1)
            axes.scatter(
                local_points[:, 0], local_points[:, 1], s=26, color=colour, marker=marker, alpha=0.7, linewidths=0
            )
            large.append(
                axes.scatter(global_points[:, 0], global_points[:, 1], s=size, color=colour, marker=marker, zorder=3)
            )
            large[-1].set(edgecolor=INK, linewidths=1.2 if size > 50 else 0.6)
            if len(classes) > MOST_IN_LEGEND:
                for x, y in global_points:
                    axes.annotate(word, (x, y), (5, 5), textcoords="offset points", fontsize=7.5)
        axes.set(xlabel=axis_names[0], ylabel=axis_names[1])
        axes.set_aspect("equal", adjustable="datalim")
        if len(classes) <= MOST_IN_LEGEND:
            # by pairs: a label that begins with "_" would be left out
            drawn.legend(large, names, loc="outside right upper", title="class")
        svg = canvas.svg(drawn)
    alt = f"Map of {len(ours)} global and {len(theirs)} local prototypes of {len(classes)} classes in the plane."
    clients = tensors["local/clients"].tolist() if "local/clients" in tensors else []
    sources = ["global"] * len(ours) + [client_word(client, results.client_names) for client in clients]
    every = [results.class_names[label] for label in (*labels[0].tolist(), *labels[1].tolist())]
    rows = [[*row, *point] for *row, point in zip(sources, every, points.tolist(), strict=True)]
    caption = _map_caption(results, about, ours, step)
    return Picture("map-of-prototypes", svg, alt, caption, wide=True, numbers=[["of", "class", *axis_names], *rows])


_SIDES = ("global", "local")


def _map_caption(results: Results, about: dict[str, int], ours: Array, step: int) -> str:
    left_out = about.get("left_out", 0)
    sentences = [
        f"Prototypes of round {about.get('round', '?')}: small, those of {about.get('clients', 0) - left_out} clients "
        + ("as they came up, on the targets' scale" if about.get("scaled") else "as they came up"),
        "; large: the global prototypes made from them, as targets."
        if len(ours)
        else f"; {results.run.settings.strategy} has no global prototypes that all clients share.",
    ]
    if not about.get("clients"):
        sentences = [f"The global prototypes of round {about.get('round', '?')}, as targets."]
    if "mixtures" in results.run.exchange.kinds():
        sentences.append(" For a mixture they are the means of its components.")
    if step > 1:
        sentences.append(f" One in {step} of the small ones is shown.")
    if left_out:
        sentences.append(f" Those of {left_out} more clients were not stored, since all would take too much space.")
    return "".join(sentences)


def in_plane(vectors: Array) -> tuple[Array, tuple[str, str]]:
    """Points (n, d) in two dimensions, and what the axes are: two features as they are, else the two first principal
    components with their share of the variance; each component's largest entry is positive."""
    d = vectors.shape[1]
    if d == 2:
        return vectors, ("feature 1", "feature 2")
    centred = vectors - vectors.mean(axis=0)
    values, components = np.linalg.eigh(centred.T @ centred)
    order = [d - 1, d - 2]
    chosen = components[:, order]
    chosen = chosen * np.sign(chosen[np.abs(chosen).argmax(axis=0), [0, 1]])
    total = max(float(values.sum()), np.finfo(np.float64).tiny)
    shares = [100 * max(0.0, float(values[index])) / total for index in order]
    names = [f"{which} principal component ({s:.0f} %)" for which, s in zip(("first", "second"), shares, strict=True)]
    return centred @ chosen, (names[0], names[1])
