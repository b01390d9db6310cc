"""The plots of a run, each a function of its results, by the names of their files.

`draw` makes one by its name. If a run has no data for a plot, it raises a `NothingToPlotError` with the reason.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from numpy.typing import NDArray

from protosphere.core.client_names import client_word
from protosphere.core.errors import SettingError
from protosphere.core.plugins import placeless
from protosphere.core.seeds import limited_threads
from protosphere.core.settings import shown
from protosphere.core.text import cut_apart
from protosphere.record.confusion import OTHER, together
from protosphere.record.metrics_lines import MAJORITY
from protosphere.reports import canvas
from protosphere.reports.canvas import (
    COLOURS,
    DASHED,
    DOTTED,
    GRID,
    INK,
    MARKERS,
    MOST_NAMED,
    SOFT,
    NothingToPlotError,
    Plot,
    dots,
    plain_numbers,
    whole_rounds,
)
from protosphere.reports.frames import sent_by_round
from protosphere.reports.label_distribution import counts_by_class
from protosphere.reports.results import Prototypes, Results, explain_damage

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

MOST_BARS = 120  # most clients with a bar
MOST_IN_LEGEND = 20
MOST_NUMBERED = 20  # most clients and classes for which cells show their numbers
MOST_MARGINS = 200  # most classes whose margins are readable
MOST_POINTS = 1000  # most local prototypes on the map
MOST_ROWS = 4000  # most prototypes on a map of values
FEWEST_ZEROS = 0.001  # share of zeros in a prototype below which it does not count as sparse
SEPARATION = "server/separation/"  # prefixes of column names in a run's frame
ITERATIONS = "server/alignment_iterations"


# --- accuracy, loss, bytes --------------------------------------------------------------------------------------


def accuracy_over_rounds(results: Results) -> Plot:
    """The main rule's mean, spread and worst client over rounds, the majority class, and the selected round."""
    names = ["accuracy", "std", "worst", "validation", MAJORITY, "ensemble"]
    table = 100 * results.rounds.reindex(columns=names).dropna(how="all")
    means = table["accuracy"].dropna()
    if means.empty:
        raise NothingToPlotError(f"Accuracy over rounds: there is no evaluation by {results.rule}.")
    looks: dict[str, dict[str, Any]] = {
        "accuracy": {"label": "mean of all samples", "color": COLOURS[0], "marker": dots(means), "markersize": 3.5},
        "worst": {"label": "worst client", "color": COLOURS[1], "linewidth": 1.3, "linestyle": DASHED},
        "validation": {
            "label": "mean of validation samples",
            "color": COLOURS[3],
            "linewidth": 1.3,
            "linestyle": DOTTED,
        },
        "ensemble": {"label": "ensemble", "color": COLOURS[2], "linewidth": 1.3, "marker": "^", "markersize": 4},
    }
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        std = table["std"].dropna()
        low, high = (means - std).clip(0, 100), (means + std).clip(0, 100)
        axes.fill_between(low.index, low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="± 1 std over clients")
        _draw_curves(axes, table, looks)
        headline = results.summary["headline"]
        number = headline.get("round")
        if headline.get("figure") == "selected" and number in means.index:
            label = f"selected (round {number})"
            axes.plot([number], [means[number]], "o", color=INK, markersize=8, markerfacecolor="none", label=label)
        heights = [*low, *high, *table[list(looks)].to_numpy().ravel()]
        axes.set(xlabel="round", ylabel="test accuracy (%)", ylim=limits_of(heights))
        majority = table[MAJORITY].dropna()
        if len(majority):
            label = majority_label(majority.iloc[-1], axes)
            axes.plot(majority.index, majority, label=label, color=SOFT, linewidth=1.3, linestyle=":")
        whole_rounds(axes)
        plot.legend(loc="outside lower center", ncols=2)
    caption = f"Test accuracy by {results.rule}, measured on the models after each round (round 0: before training)."
    heads = {"accuracy": "mean", "validation": "validation mean"}
    numbers = table.dropna(axis=1, how="all")
    numbers.columns = [f"{heads.get(name, name)} (%)" for name in numbers]
    return plot.describe("accuracy-over-rounds", caption, numbers.reset_index())


def _draw_curves(axes: Axes, table: pd.DataFrame, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw columns over the index of a table, those with values."""
    for name, look in looks.items():
        points = table[name].dropna()
        if len(points):
            axes.plot(points.index, points, **look)


def limits_of(values: Iterable[float]) -> tuple[float, float]:
    """The limits of a vertical axis: the range of all values, extended by a twentieth on both sides."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    least, most = min(finite), max(finite)
    edge = 0.05 * (most - least) if most > least else 0.5
    return least - edge, most + edge


def majority_label(value: float, axes: Axes) -> str:
    """The legend entry of the majority class; if its line is outside the plot, the entry has its value."""
    low, high = axes.get_ylim()
    place = ", below" if value < low else ", above" if value > high else ""
    return f"majority class ({value:.1f} %{place})"


def loss_over_rounds(results: Results) -> Plot:
    """The total loss and each part, averaged over clients."""
    table = results.rounds.filter(regex="^loss(/|$)").dropna(how="all")
    if table.empty:
        raise NothingToPlotError("Loss over rounds: no client trained.")
    table.columns = table.columns.str.removeprefix("loss/")
    names = sorted(table, key=lambda name: name != "loss")
    table = table[names]
    # a method may use this name for one of its parts
    heads = [{"loss": "total", "total": "part total"}.get(name, name) for name in names]
    labels = dict(zip(names, cut_apart(heads, 30), strict=True))
    # with a single part, the total is the same curve
    drawn_names = names[1:] if len(names) == 2 and table[names[0]].equals(table[names[1]]) else names
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        for place, name in enumerate(drawn_names):
            style: Any = "-" if name == "loss" else (DASHED, DOTTED)[place % 2]
            look = {"color": COLOURS[place % len(COLOURS)], "linestyle": style, "marker": dots(table)}
            axes.plot(table.index, table[name], label=labels[name], markersize=3.5, **look)
        least, most = table[drawn_names].min().min(), table[drawn_names].max().max()
        if least > 0 and most > 30 * least:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        axes.set(xlabel="round", ylabel="loss")
        whole_rounds(axes)
        plot.legend(loc="outside lower center", ncols=3)
    caption = (
        "Training loss: the mean of each round's steps, averaged over clients weighted by samples. Terms are "
        "unweighted; the total is weighted."
    )
    numbers = table.set_axis(heads, axis=1).reset_index()
    return plot.describe("loss-over-rounds", caption, numbers)


def accuracy_over_bytes(results: Results) -> Plot:
    """The main rule's mean accuracy over the bytes that were sent by then, as payload and on the wire."""
    table = sent_by_round(results.lines).join((100 * results.figure("accuracy")).rename("mean"), how="inner")
    looks: dict[str, dict[str, Any]] = {
        "payload": {"label": "payload: prototype values", "color": COLOURS[0]},
        "wire": {"label": "wire: whole messages of training", "color": COLOURS[1], "linestyle": DASHED},
    }
    # 0 bytes have no place on a logarithmic axis
    curves = {name: table[table[name] > 0] for name in looks}
    if curves["payload"].empty:
        raise NothingToPlotError("Accuracy over bytes: nothing was sent before an evaluation.")
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        for name, part in curves.items():
            axes.plot(part[name] / 1e6, part["mean"], marker=dots(part), markersize=3.5, **looks[name])
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
        axes.set(xlabel="sent since the start, both directions (MB)", ylabel="test accuracy (%)")
        plot.legend(loc="outside lower center", ncols=1)
    caption = f"The same mean accuracy by {results.rule}, over the bytes that clients and server had sent by then."
    numbers = table.set_axis(["payload (bytes)", "wire (bytes)", "mean (%)"], axis=1)
    return plot.describe("accuracy-over-bytes", caption, numbers.rename_axis("round").reset_index())


# --- clients ----------------------------------------------------------------------------------------------------


def accuracy_by_client(results: Results) -> Plot:
    """Every client's final accuracy, worst first, coloured by architecture."""
    clients = pd.DataFrame(results.roster).set_index("partition", drop=False)
    table = pd.DataFrame(
        {
            "client": clients["partition"],
            "name": clients["partition"].map(results.client_names),
            "model": clients["model"],
            "training samples": clients["rows"].str[0],
            "accuracy (%)": 100 * clients["partition"].map(results.final_accuracies).astype(float),
        }
    )
    table = table.dropna(subset="accuracy (%)").sort_values(["accuracy (%)", "client"], ignore_index=True)
    if table.empty:
        raise NothingToPlotError(f"Accuracy by client: no client was evaluated by {results.rule}.")
    models = sorted(table["model"].unique())
    labels = dict(zip(models, model_labels(models), strict=True))
    bars = table[:MOST_BARS]
    with canvas.figure((canvas.WHOLE[0], 3.6)) as plot:
        axes = plot.add_subplot()
        for place, model in enumerate(models):
            heights = bars.loc[bars["model"] == model, "accuracy (%)"]
            axes.bar(heights.index, heights, color=COLOURS[place % len(COLOURS)], width=0.8, label=labels[model])
        axes.set_xticks([])
        if len(bars) <= MOST_NAMED:
            names = [client_word(number, results.client_names) for number in bars["client"]]
            _name_ticks(axes, [name.removeprefix("client ") for name in cut_apart(names, 14)], 100)
        axes.set(xlabel="client, worst first", ylabel="test accuracy (%)", ylim=(0, 105))
        axes.grid(visible=False, axis="x")
        if len(models) <= MOST_IN_LEGEND:
            plot.legend(loc="outside lower center", ncols=min(5, len(models)))
    accuracies = table["accuracy (%)"]
    medians = accuracies.groupby(table["model"]).median()
    some = f"The {MOST_BARS} worst of {len(table)} clients" if len(table) > MOST_BARS else f"All {len(table)} clients"
    caption = (
        f"{some} after round {results.figure('accuracy').index[-1]}, by {results.rule}. Median by architecture: "
        f"{'; '.join(f'{labels[model]} {medians[model]:.1f} %' for model in models)}."
    )
    numbers = table if results.client_names else table.drop(columns="name")
    return plot.describe("accuracy-by-client", caption, numbers, wide=True)


def _name_ticks(axes: Axes, names: Sequence[str], most: int) -> None:
    """Write names along the lower axis, at an angle if they have more than so many characters."""
    look: dict[str, Any] = {"rotation": 45, "ha": "right"} if sum(map(len, names)) > most else {}
    axes.set_xticks(range(len(names)), names, **look)


def model_labels(names: Sequence[str]) -> list[str]:
    """Architectures as `mynet.py:MyNet`, without a folder; if two would look equal, the difference is kept."""
    short = [placeless(name) or "?" for name in names]
    repeated_labels = {label for label in short if short.count(label) > 1}
    numbered = []
    for place, label in enumerate(short):
        numbered.append(f"{label} ({short[:place].count(label) + 1})" if label in repeated_labels else label)
    return cut_apart(numbered, 28)


def samples_by_client_and_class(results: Results) -> Plot:
    """Clients × classes: each client's number of samples, or whether it has any."""
    names = [results.client_names.get(client["partition"], "") for client in results.roster]
    return partition_map(results.class_names, names, *counts_by_class(results))


def partition_map(class_names: Sequence[str], client_names: Sequence[str], counts: Labels, exact: bool) -> Plot:
    """The same plot for any partition.

    Args:
        client_names: "" for a client without a name. counts, exact: as from `counts_by_class`.
    """
    clients, classes = counts.shape
    height = min(8.0, max(2.4, 1.3 + (0.22 if clients <= MOST_NAMED else 0.07) * clients))
    with canvas.figure((canvas.WHOLE[0], height)) as plot:
        axes = plot.add_subplot()
        _draw_counts(axes, counts, exact)
        if classes <= MOST_NAMED:
            _name_ticks(axes, cut_apart(class_names, 14), 110)
        else:
            whole_rounds(axes)
        if clients <= MOST_NAMED:
            labels = cut_apart(client_names, 14)
            axes.set_yticks(range(clients), [f"{i} {name}".strip() for i, name in enumerate(labels)])
        axes.set(xlabel="class", ylabel="client")
        axes.grid(visible=False)
    caption = "Filled: the client has training samples of the class. The number is not disclosed."
    if exact:
        caption = "Samples per client and class (training, validation and test); log scale; blank means no samples."
    rows = []
    for client, label in np.argwhere(counts):
        rows.append((client, class_names[label], counts[client, label], client_names[client]))
    numbers = pd.DataFrame(rows, columns=["client", "class", "rows" if exact else "held", "name"])
    numbers = numbers if any(client_names) else numbers.drop(columns="name")
    return plot.describe("samples-by-client-and-class", caption, numbers, wide=True)


def _draw_counts(axes: Axes, counts: Labels, exact: bool) -> None:
    cells = np.ma.masked_equal(counts, 0)
    look: dict[str, Any] = {"aspect": "auto", "interpolation": "none"}
    if not exact:
        axes.imshow(cells, cmap=ListedColormap([COLOURS[0]]), **look)
        return
    scale = LogNorm(1, max(2, counts.max()))
    image = axes.imshow(cells, cmap=canvas.COLOUR_MAP, norm=scale, **look)
    plain_numbers(canvas.colour_bar(image, "samples", pad=0.01, fraction=0.04).ax.yaxis)
    if max(counts.shape) <= MOST_NUMBERED:
        texts = {(client, label): f"{counts[client, label]}" for client, label in np.argwhere(counts)}
        canvas.number_cells(axes, texts, scale(counts))


# --- classes ----------------------------------------------------------------------------------------------------


def confusion(results: Results) -> Plot:
    """The confusion matrix of the last evaluation, over all clients."""
    last: Mapping[str, Any] = next((line["confusion"] for line in reversed(results.lines) if "confusion" in line), {})
    triples = together(last.get("models", {}).values())
    if not triples or any(predicted == OTHER for _, predicted, _ in triples):
        raise NothingToPlotError("Confusion: clients disclosed none; the setting `confusion` asks for it.")
    names = results.class_names
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    for true, predicted, rows in triples:
        counts[true, predicted] = rows
    with canvas.figure((canvas.HALF[0], 4.9)) as plot:
        _draw_confusion(plot.add_subplot(), counts, cut_apart(names, 14))
    caption = (
        f"Test samples of all clients in the last evaluation, by {last['rule']}: number of samples by true class "
        "(rows) and predicted class (columns)."
    )
    numbers = pd.DataFrame(counts, columns=names)
    numbers.insert(0, "true class", names, allow_duplicates=True)
    return plot.describe("confusion", caption, numbers)


def _draw_confusion(axes: Axes, counts: Labels, names: Sequence[str]) -> None:
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(100 * counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    cells = np.ma.masked_equal(shares, 0)
    image = axes.imshow(cells, vmin=0, vmax=100, interpolation="none", cmap=canvas.COLOUR_MAP)
    canvas.colour_bar(image, "share of the true class (%)", pad=0.02, fraction=0.046)
    if len(names) <= MOST_NAMED:
        axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
        axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    axes.set(xlabel="predicted class", ylabel="true class")
    if len(counts) <= MOST_NUMBERED:
        texts = {(row, column): f"{counts[row, column]}" for row, column in np.argwhere(counts)}
        canvas.number_cells(axes, texts, shares / 100, 8 if len(counts) <= 12 else 6.5)


# --- prototypes -------------------------------------------------------------------------------------------------


def separation_over_rounds(results: Results) -> Plot:
    """Pairwise distances of the global prototypes, and the largest possible ones."""
    table = results.rounds.filter(like=SEPARATION).dropna(how="all")
    table.columns = table.columns.str.removeprefix(SEPARATION)
    if table.empty:
        raise NothingToPlotError(
            "Distances of global prototypes: no round has any; clients share no set of two or more prototypes."
        )
    marker = {"marker": dots(table), "markersize": 3.5}
    looks: dict[str, dict[str, Any]] = {
        # broad and faint, because the other curves may lie on it
        "distance_bound": {"color": GRID, "linewidth": 7.0, "label": "bound: the largest possible minimum"},
        "distance_mean": {"color": COLOURS[0], "label": "mean of all pairs", **marker},
        "distance_min": {"color": COLOURS[1], "linestyle": DASHED, "label": "nearest pair", **marker},
    }
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        _draw_curves(axes, table, looks)
        axes.set(xlabel="round", ylabel="Euclidean distance")
        # no range if all are equal
        if axes.dataLim.ymax > 0:
            axes.set_ylim(0, 1.08 * axes.dataLim.ymax)
        whole_rounds(axes)
        plot.legend(loc="outside lower center", ncols=2)
    caption = (
        f"Pairwise distances of the {table['classes'].iloc[-1]:.0f} global prototypes, as targets. If the nearest pair "
        "comes close to 0, two classes are pulled to one place. Bound: √(2K/(K−1)) times the root mean square of their "
        "norms; only a simplex reaches it (K ≤ d + 1)."
    )
    return plot.describe("distances-of-global-prototypes", caption, table[list(looks)[::-1]].reset_index())


def prototype_map(results: Results, prototypes: Prototypes) -> Plot:
    """Global and local prototypes of a round, in two dimensions."""
    labels = np.concatenate([prototypes.labels, prototypes.client_labels])
    if not len(labels):
        raise NothingToPlotError("Map of prototypes: nothing is exchanged that has classes, or no round is finished.")
    vectors = np.concatenate([prototypes.vectors, prototypes.client_vectors]).astype(np.float64)
    points, axis_names = in_plane(vectors)
    count = len(prototypes.labels)
    is_global = np.arange(len(points)) < count
    # one in so many local ones
    step = max(1, -(-len(prototypes.client_labels) // MOST_POINTS))
    is_local_drawn = ~is_global & ((np.arange(len(points)) - count) % step == 0)
    classes = np.unique(labels).tolist()
    class_names = [results.class_names[label] for label in classes]
    has_few = len(classes) <= MOST_NAMED
    large = []
    with canvas.figure((canvas.WHOLE[0], 5.4)) as plot:
        axes = plot.add_subplot()
        for label, word in zip(classes, cut_apart(class_names, 12), strict=True):
            colour, marker = COLOURS[label % 6], MARKERS[(label // 6 + label) % len(MARKERS)]
            look: dict[str, Any] = {"color": colour, "marker": marker}
            small, big = points[is_local_drawn & (labels == label)], points[is_global & (labels == label)]
            if vectors.shape[1] == 2:
                for x, y in big:
                    axes.plot([0, x], [0, y], "--", color=colour, linewidth=1.1)
            axes.scatter(small[:, 0], small[:, 1], s=26, alpha=0.7, linewidths=0, **look)
            look |= {"s": 110, "linewidths": 1.2} if has_few else {"s": 40, "linewidths": 0.6}
            large.append(axes.scatter(big[:, 0], big[:, 1], zorder=3, edgecolor=INK, **look))
            if len(classes) > MOST_IN_LEGEND:
                for point in big:
                    axes.annotate(word, tuple(point), (5, 5), textcoords="offset points", fontsize=7.5)
        axes.set(xlabel=axis_names[0], ylabel=axis_names[1])
        axes.set_aspect("equal", adjustable="datalim")
        if len(classes) <= MOST_IN_LEGEND:
            # handles with labels explicitly: matplotlib ignores a label that starts with "_"
            plot.legend(large, cut_apart(class_names, 22), loc="outside right upper", title="class")
    caption = f"Prototypes of round {prototypes.round}. Small: those that clients uploaded; of mixtures, the means."
    if count:
        caption += " Large: the global ones, as targets."
    if step > 1:
        caption += f" One in {step} of the small ones is shown."
    if prototypes.left_out:
        caption += f" Those of {prototypes.left_out} more clients were not stored, since all would take too much space."
    numbers = pd.DataFrame(points, columns=list(axis_names))
    uploaders = [client_word(client, results.client_names) for client in prototypes.clients.tolist()]
    numbers.insert(0, "of", ["global"] * count + uploaders)
    numbers.insert(1, "class", [results.class_names[label] for label in labels])
    return plot.describe("map-of-prototypes", caption, numbers, wide=True)


def in_plane(vectors: Array) -> tuple[Array, tuple[str, str]]:
    """Points (n, d) in two dimensions, and labels of the axes: two features are kept; otherwise the first two principal
    components with their share of the variance, signed so that their largest entry is positive."""
    d = vectors.shape[1]
    if d == 2:
        return vectors, ("feature 1", "feature 2")
    centred = vectors - vectors.mean(axis=0)
    values, components = np.linalg.eigh(centred.T @ centred)
    order = [d - 1, d - 2]
    axes = components[:, order]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    total = max(float(values.sum()), np.finfo(np.float64).tiny)
    first, second = (100 * max(0.0, float(values[index])) / total for index in order)
    names = f"first principal component ({first:.0f} %)", f"second principal component ({second:.0f} %)"
    return centred @ axes, names


def margins(results: Results, prototypes: Prototypes) -> Plot:
    """Each class's margin, the distance of its global prototype from the nearest other one, relative to the largest
    margin of any class (ProtoNorm, Figure 5)."""
    from scipy.spatial.distance import cdist

    labels = prototypes.labels.tolist()
    nearest = np.zeros(1)
    if 2 <= len(labels) <= MOST_MARGINS and len(set(labels)) == len(labels):
        distances = cdist(prototypes.vectors, prototypes.vectors)
        np.fill_diagonal(distances, np.inf)
        nearest = distances.min(axis=1)
    if not nearest.max() > 0:
        raise NothingToPlotError("Margins of global prototypes: there are none of two classes, one each.")
    shares = nearest / nearest.max()
    names = [results.class_names[label] for label in labels]
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        axes.bar(range(len(labels)), shares, color=COLOURS[0], width=0.8)
        if len(labels) <= MOST_NAMED:
            axes.set_xticks(range(len(labels)), cut_apart(names, 14), rotation=90 if len(labels) > 6 else 0)
        axes.set(xlabel="class", ylabel="margin over the largest", ylim=(0, 1.05))
    caption = (
        f"Margins of the global prototypes of round {prototypes.round}: each one's distance to its nearest neighbour, "
        "divided by the largest such distance. If all are 1, they are equally far apart."
    )
    numbers = pd.DataFrame({"class": names, "margin": nearest, "normalised margin": shares})
    return plot.describe("margins-of-global-prototypes", caption, numbers)


def prototype_values(results: Results, prototypes: Prototypes) -> Plot:
    """Zeros in prototypes (TinyProto, Figures 2 and 7 to 12): every client's own, ordered by class, above the global
    ones."""
    sides = [
        ("clients' own", prototypes.client_labels, prototypes.client_vectors),
        ("global ones", prototypes.labels, prototypes.vectors),
    ]
    sides = [side for side in sides if len(side[1])]
    if not any(_zeros(vectors) >= FEWEST_ZEROS for _, _, vectors in sides):
        raise NothingToPlotError(
            'Values of prototypes: no prototype has zeros; `feature-activation = "relu"` or `tinyproto.sparsity-dim` '
            "makes some."
        )
    with canvas.figure((canvas.WHOLE[0], 5.4)) as plot:
        heights = [1 if name == "global ones" else 3 for name, _, _ in sides]
        panels = plot.subplots(len(sides), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes, (name, labels, vectors) in zip(panels[:, 0], sides, strict=True):
            order = np.argsort(labels, kind="stable")[:MOST_ROWS]
            _draw_values(axes, vectors[order], labels[order], results.class_names)
            axes.set_ylabel("global" if name == "global ones" else "each client's, by class")
        panels[-1, 0].set_xlabel("dimension")
    rows = []
    for label in np.union1d(prototypes.labels, prototypes.client_labels).tolist():
        uploaded = prototypes.client_vectors[prototypes.client_labels == label]
        common = prototypes.vectors[prototypes.labels == label]
        rows.append((results.class_names[label], len(uploaded), _zeros(uploaded), _zeros(common)))
    heads = ["class", "prototypes of clients", "zeros of the clients' own", "zeros of the global one"]
    zeros = " and ".join(f"{100 * _zeros(vectors):.0f} % of the {name}" for name, _, vectors in sides)
    caption = (
        f"Values of the prototypes of round {prototypes.round} by magnitude, blank where zero: {zeros}. A zero in a "
        "client's prototype means that the unit is dead for all its samples of the class, or that the value is masked "
        "and not sent."
    )
    numbers = pd.DataFrame(rows, columns=heads)
    return plot.describe("values-of-prototypes", caption, numbers, wide=True)


def _zeros(vectors: Array) -> float:
    """The share of zeros; NaN for no vector."""
    return float((vectors == 0).mean()) if len(vectors) else math.nan


def _draw_values(axes: Axes, vectors: Array, labels: Labels, names: Sequence[str]) -> None:
    """A map of rows by dimensions, with class names at the rows."""
    cells = np.ma.masked_equal(np.abs(vectors).astype(np.float64), 0)
    # a single outlier must not make all other values one colour
    most = float(np.quantile(cells.compressed(), 0.99)) if cells.count() else 1.0
    image = axes.imshow(cells, aspect="auto", interpolation="none", cmap=canvas.COLOUR_MAP, vmin=0, vmax=most)
    canvas.colour_bar(image, "size", pad=0.01, fraction=0.04)
    classes, first = np.unique(labels, return_index=True)
    if len(classes) <= MOST_NAMED:
        middles = (first + np.append(first[1:], len(labels)) - 1) / 2
        axes.set_yticks(middles, cut_apart([names[label] for label in classes.tolist()], 14))
    for start in first[1:]:
        axes.axhline(start - 0.5, color=GRID, linewidth=0.5)
    axes.grid(visible=False)


def alignment(results: Results) -> Plot:
    """Pairwise distances during the first alignment by ProtoNorm's Algorithm 1, and the iterations per round."""
    traces = [
        line["server"]["alignment_trace"] for line in results.lines if "alignment_trace" in line.get("server", {})
    ]
    if not traces or ITERATIONS not in results.rounds:
        raise NothingToPlotError(
            'Alignment: no alignment of this run was iterated; `protonorm.alignment = "thomson"` is.'
        )
    trace = pd.DataFrame(traces[0])[["max", "mean", "min"]]
    iterations = results.figure(ITERATIONS)
    with canvas.figure(canvas.WHOLE) as plot:
        left_axes, right_axes = plot.subplots(1, 2)
        looks: dict[str, dict[str, Any]] = {
            "max": {"color": COLOURS[2], "linestyle": DOTTED, "label": "max"},
            "mean": {"color": COLOURS[0], "label": "mean"},
            "min": {"color": COLOURS[1], "linestyle": DASHED, "label": "min"},
        }
        _draw_curves(left_axes, trace, looks)
        left_axes.axhline(np.sqrt(2), color=GRID, linewidth=1.4, label="√2: at right angles")
        left_axes.set(xlabel="iteration of the first alignment", ylabel="Euclidean distance of unit vectors")
        right_axes.plot(iterations.index, iterations, color=COLOURS[0], marker=dots(iterations), markersize=3.5)
        right_axes.set(xlabel="round", ylabel="iterations", ylim=(0, 1.08 * iterations.max()))
        whole_rounds(right_axes)
        plot.legend(*left_axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    caption = (
        "Left: distances between the global prototypes' directions during the alignment of round 1. Right: number of "
        "iterations of each round's alignment."
    )
    numbers = trace.rename_axis("iteration").reset_index()
    return plot.describe("alignment", caption, numbers, wide=True)


# --- by name ----------------------------------------------------------------------------------------------------

OF_RUN: dict[str, Callable[[Results], Plot]] = {
    "accuracy-over-rounds": accuracy_over_rounds,
    "loss-over-rounds": loss_over_rounds,
    "accuracy-over-bytes": accuracy_over_bytes,
    "accuracy-by-client": accuracy_by_client,
    "confusion": confusion,
    "samples-by-client-and-class": samples_by_client_and_class,
    "distances-of-global-prototypes": separation_over_rounds,
    "alignment": alignment,
}
OF_PROTOTYPES: dict[str, Callable[[Results, Prototypes], Plot]] = {
    "map-of-prototypes": prototype_map,
    "margins-of-global-prototypes": margins,
    "values-of-prototypes": prototype_values,
}


def draw(name: str, results: Results, prototypes: Prototypes) -> Plot:
    """Draw a plot by its name, from a run and the prototypes of one of its rounds.

    Raises:
        NothingToPlotError: the run has no data for it.
        SettingError: there is no such plot.
    """
    # the number of threads would change the last digits of a map
    with limited_threads(1), explain_damage(results.folder):
        if name in OF_RUN:
            return OF_RUN[name](results)
        if name in OF_PROTOTYPES:
            return OF_PROTOTYPES[name](results, prototypes)
    raise SettingError(f"plot is {shown(name)}, but it is {', '.join([*OF_RUN, *OF_PROTOTYPES])}.")
