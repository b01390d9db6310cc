"""The plots of a run, each a function of its results, by the names of their files.

`draw` makes one by its name. If a run has no data for a plot, it raises a `NothingToPlotError` with the reason.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

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
from protosphere.core.text import cut_apart, readable_size
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
from protosphere.reports.label_distribution import Holdings, holdings
from protosphere.reports.results import Results

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]
Tensors = Mapping[str, "Tensor"]
About = Mapping[str, int]

MOST_BARS = 120  # most clients with a bar
MOST_IN_LEGEND = 20
MOST_NUMBERED = 20  # most clients and classes for which cells show their numbers
MOST_MARGINS = 200  # most classes whose margins are readable
MOST_POINTS = 1000  # most local prototypes on the map
MOST_ROWS = 4000  # most prototypes on a map of values
FEWEST_ZEROS = 0.001  # share of zeros in a prototype below which it does not count as sparse
SEPARATION = "server/separation/"  # prefixes of column names in a run's frame
ITERATIONS = "server/alignment_iterations"
SIDES = ("global", "local")


# --- accuracy, loss, bytes --------------------------------------------------------------------------------------


def accuracy_over_rounds(results: Results) -> Plot:
    """The main rule's mean, spread and worst client over rounds, the majority class, and the selected round."""
    means, std = 100 * results.figure("accuracy"), 100 * results.figure("std")
    if means.empty:
        raise NothingToPlotError(f"Accuracy over rounds: there is no evaluation by {results.rule}.")
    curves: dict[str, tuple[str, dict[str, Any]]] = {
        "accuracy": ("mean of all samples", {"color": COLOURS[0], "marker": dots(means), "markersize": 3.5}),
        "worst": ("worst client", {"color": COLOURS[1], "linewidth": 1.3, "linestyle": DASHED}),
        "validation": ("mean of validation samples", {"color": COLOURS[3], "linewidth": 1.3, "linestyle": DOTTED}),
        "ensemble": ("ensemble", {"color": COLOURS[2], "linewidth": 1.3, "marker": "^", "markersize": 4}),
    }
    selection_note = ""
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        low, high = (means - std).clip(0, 100), (means + std).clip(0, 100)
        axes.fill_between(
            means.index, low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="± 1 std over clients"
        )
        heights = [*low, *high]
        for name, (label, look) in curves.items():
            figures = 100 * results.figure(name)
            if len(figures):
                axes.plot(figures.index, figures, label=label, **look)
                heights += [*figures]
        headline = results.summary["headline"]
        number = headline.get("round")
        if headline.get("figure") == "selected" and number in means.index:
            look = {"color": INK, "marker": "o", "markersize": 8, "markerfacecolor": "none", "linestyle": "none"}
            axes.plot([number], [means[number]], label=f"selected (round {number})", **look)
            selection_note = f"; validation selects round {number} with {means[number]:.1f} %"
        axes.set(xlabel="round", ylabel="test accuracy (%)", ylim=limits_of(heights))
        majority = 100 * results.figure(MAJORITY)
        if len(majority):
            label = majority_label(majority.iloc[-1], axes)
            axes.plot(majority.index, majority, label=label, color=SOFT, linewidth=1.3, linestyle=":")
        whole_rounds(axes)
        plot.legend(loc="outside lower center", ncols=2)
    alt = (
        f"Test accuracy by {results.rule} over rounds {means.index[0]} to {means.index[-1]}: mean from "
        f"{means.iloc[0]:.1f} % to {means.iloc[-1]:.1f} %, worst client {100 * results.figure('worst').iloc[-1]:.1f} % "
        f"at the end{selection_note}."
    )
    caption = f"Test accuracy by {results.rule}, measured on the models after each round (round 0: before training)."
    heads = {"accuracy": "mean", "std": "std", "worst": "worst", "validation": "validation mean"}
    columns = [*heads, MAJORITY, "ensemble"]
    table = 100 * results.rounds.reindex(columns=columns).dropna(how="all").dropna(axis=1, how="all")
    table.columns = [f"{heads.get(name, name)} (%)" for name in table]
    return plot.describe("accuracy-over-rounds", "Accuracy over rounds", alt, caption, table.reset_index())


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
    ends = table.iloc[[0, -1]].dropna(axis=1)
    changes = "; ".join(f"{labels[name]} from {ends[name].iloc[0]:.3g} to {ends[name].iloc[1]:.3g}" for name in ends)
    caption = (
        "Training loss: the mean of each round's steps, averaged over clients weighted by samples. Terms are "
        "unweighted; the total is weighted."
    )
    numbers = table.set_axis(heads, axis=1).reset_index()
    return plot.describe("loss-over-rounds", "Loss over rounds", f"Loss over rounds: {changes}.", caption, numbers)


def accuracy_over_bytes(results: Results) -> Plot:
    """The main rule's mean over cumulative bytes, as payload and on the wire."""
    table = results.sent.join((100 * results.figure("accuracy")).rename("mean"), how="inner")
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        "payload": ("payload: prototype values", {"color": COLOURS[0]}),
        "wire": ("wire: whole messages, without evaluation results", {"color": COLOURS[1], "linestyle": DASHED}),
    }
    # 0 bytes have no place on a log scale
    crossed = {name: table[table[name] > 0] for name in looks if (table[name] > 0).any()}
    if not crossed:
        raise NothingToPlotError("Accuracy over bytes: nothing was sent before an evaluation.")
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        for name, part in crossed.items():
            label, look = looks[name]
            axes.plot(part[name] / 1e6, part["mean"], label=label, marker=dots(part), markersize=3.5, **look)
        sizes = [size for name, part in crossed.items() for size in part[name]]
        if max(sizes) > 10 * min(sizes):
            axes.set_xscale("log")
        plain_numbers(axes.xaxis)
        axes.set(xlabel="sent since the start, both directions (MB)", ylabel="test accuracy (%)")
        # for a constant curve, matplotlib chooses a range of ten points, far beyond 100 %
        axes.set_ylim(limits_of(mean for part in crossed.values() for mean in part["mean"]))
        plot.legend(loc="outside lower center", ncols=1)
    name, part = next(iter(crossed.items()))
    size = readable_size(round(part[name].iloc[-1]))
    alt = f"Test accuracy over megabytes sent: {part['mean'].iloc[-1]:.1f} % after {size}."
    caption = f"The same mean accuracy by {results.rule}, over the bytes that clients and server had sent by then."
    numbers = table.set_axis(["payload (bytes)", "wire (bytes)", "mean (%)"], axis=1)
    numbers = numbers.rename_axis("round").reset_index()
    return plot.describe("accuracy-over-bytes", "Accuracy over bytes", alt, caption, numbers)


# --- clients ----------------------------------------------------------------------------------------------------


def accuracy_by_client(results: Results) -> Plot:
    """Every client's final accuracy, worst first, coloured by architecture."""
    rows = []
    for client in results.roster:
        partition = client["partition"]
        if partition in results.at_the_end:
            accuracy, _ = results.at_the_end[partition]
            samples = sum(client["rows"][:1]) or None
            rows.append((partition, results.client_names.get(partition), client["model"], samples, 100 * accuracy))
    if not rows:
        raise NothingToPlotError(f"Accuracy by client: no client was evaluated by {results.rule}.")
    heads = ["client", "name", "model", "training samples", "accuracy (%)"]
    table = pd.DataFrame(sorted(rows, key=lambda row: (row[-1], row[0])), columns=heads)
    models = sorted(table["model"].unique())
    labels = dict(zip(models, model_labels(models), strict=True))
    colours = {model: COLOURS[place % len(COLOURS)] for place, model in enumerate(models)}
    bars = table[:MOST_BARS]
    with canvas.figure((canvas.WHOLE[0], 3.6)) as plot:
        axes = plot.add_subplot()
        for model in models:
            model_bars = bars[bars["model"] == model]
            axes.bar(model_bars.index, model_bars["accuracy (%)"], color=colours[model], width=0.8, label=labels[model])
        if len(bars) <= MOST_NAMED:
            names = cut_apart([client_word(number, results.client_names) for number in bars["client"]], 14)
            short = [name.removeprefix("client ") for name in names]
            long = sum(map(len, short)) > 100
            axes.set_xticks(bars.index, short, rotation=45 if long else 0, ha="right" if long else "center")
        else:
            axes.set_xticks([])
        axes.set(xlabel="client, worst first", ylabel="test accuracy (%)", ylim=(0, 105))
        axes.grid(visible=False, axis="x")
        if len(models) <= MOST_IN_LEGEND:
            plot.legend(loc="outside lower center", ncols=min(5, len(models)))
    medians = []
    for model in models:
        medians.append(f"{labels[model]} {median(table.loc[table['model'] == model, 'accuracy (%)']):.1f} %")
    some = f"The {MOST_BARS} worst of {len(table)} clients" if len(table) > MOST_BARS else f"All {len(table)} clients"
    caption = (
        f"{some} after round {results.figure('accuracy').index[-1]}, by {results.rule}. Median by architecture: "
        f"{'; '.join(medians)}."
    )
    alt = (
        f"Test accuracy by client: from {table['accuracy (%)'].iloc[0]:.0f} to {table['accuracy (%)'].iloc[-1]:.0f} %."
    )
    numbers = table if results.client_names else table.drop(columns="name")
    return plot.describe("accuracy-by-client", "Accuracy by client", alt, caption, numbers, wide=True)


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
    return partition_map(holdings(results), results.name_list)


def partition_map(held: Holdings, client_names: Sequence[str]) -> Plot:
    """The same plot for any partition; `client_names` is "" for a client without a name."""
    counts = np.asarray(held.counts)
    clients, classes = counts.shape
    height = min(8.0, max(2.4, 1.3 + (0.22 if clients <= MOST_NAMED else 0.07) * clients))
    with canvas.figure((canvas.WHOLE[0], height)) as plot:
        axes = plot.add_subplot()
        _draw_holdings(axes, counts, held.exact)
        names = cut_apart(held.class_names, 14)
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
    fewest, most = (counts > 0).sum(axis=1).min(), (counts > 0).sum(axis=1).max()
    alt = f"Partition: {clients} clients and {classes} classes; a client holds {fewest} to {most} of them."
    caption = (
        "Samples per client and class (training, validation and test); log scale; blank means no samples."
        if held.exact
        else "Filled: the client has training samples of the class. The number is not disclosed."
    )
    rows = []
    for client, label in zip(*np.nonzero(counts), strict=True):
        rows.append((client, held.class_names[label], int(counts[client, label]), client_names[client]))
    numbers = pd.DataFrame(rows, columns=["client", "class", "rows" if held.exact else "held", "name"])
    numbers = numbers if any(client_names) else numbers.drop(columns="name")
    name = "samples-by-client-and-class"
    return plot.describe(name, "Samples by client and class", alt, caption, numbers, wide=True)


def _draw_holdings(axes: Axes, counts: NDArray[np.int64], exact: bool) -> None:
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


def confusion_triples(results: Results) -> tuple[str, Sequence[Sequence[int]]]:
    """The rule of the last evaluation with a confusion matrix, and its triples (true class, predicted class, samples)
    over all clients; empty if there is none."""
    last: Mapping[str, Any] = next((line["confusion"] for line in reversed(results.lines) if "confusion" in line), {})
    return str(last.get("rule", "")), together(last.get("models", {}).values())


def confusion(results: Results) -> Plot:
    """The confusion matrix of the last evaluation, over all clients."""
    rule, triples = confusion_triples(results)
    if not triples or any(predicted == OTHER for _, predicted, _ in triples):
        raise NothingToPlotError("Confusion: clients disclosed none; the setting `confusion` asks for it.")
    names = results.class_names
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    for true, predicted, rows in triples:
        counts[true, predicted] = rows
    with canvas.figure((canvas.HALF[0], 4.9)) as plot:
        axes = plot.add_subplot()
        _draw_confusion(axes, counts, cut_apart(names, 14))
    wrong = sorted(((counts[t, p], t, p) for t, p in np.argwhere(counts) if t != p), reverse=True)[:3]
    mistakes = [f"“{names[true]}” for “{names[other]}” ({rows})" for rows, true, other in wrong]
    most = f"Confused most often: {', '.join(mistakes)}." if mistakes else "No sample was assigned to a wrong class."
    caption = (
        f"Test samples of all clients in the last evaluation, by {rule}: number of samples by true class (rows) and "
        f"predicted class (columns). {most}"
    )
    alt = f"Confusion of all clients: {np.trace(counts)} of {counts.sum()} test samples right. {most}"
    numbers = pd.DataFrame(counts, columns=names)
    numbers.insert(0, "true class", names, allow_duplicates=True)
    return plot.describe("confusion", "Confusion", alt, caption, numbers)


def _draw_confusion(axes: Axes, counts: NDArray[np.int64], names: Sequence[str]) -> None:
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(100 * counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    canvas.square(axes, np.ma.masked_equal(shares, 0), names, "share of the true class (%)", 100)
    axes.set(xlabel="predicted class", ylabel="true class")
    if len(counts) <= MOST_NUMBERED:
        texts = {(row, column): f"{counts[row, column]}" for row, column in np.argwhere(counts)}
        canvas.number_cells(axes, texts, shares / 100, 8 if len(counts) <= 12 else 6.5)


# --- prototypes -------------------------------------------------------------------------------------------------


def separation_over_rounds(results: Results, tensors: Tensors, about: About) -> Plot:
    """Pairwise distances and angles of the global prototypes, and the largest possible ones."""
    table = results.rounds.filter(like=SEPARATION).dropna(how="all")
    if table.empty:
        raise NothingToPlotError(f"Distances of global prototypes: {_why_none(results, tensors)}.")
    names = [f"{kind}_{name}" for kind in ("distance", "angle") for name in ("min", "mean", "bound")]
    table = table.rename(columns=lambda name: name.removeprefix(SEPARATION)).reindex(columns=["classes", *names])
    # the bound is broad and faint, because the other curves may lie on it
    looks: dict[str, dict[str, Any]] = {
        "bound": {"color": GRID, "linewidth": 7.0, "label": "bound: the largest possible minimum"},
        "mean": {"color": COLOURS[0], "label": "mean of all pairs"},
        "min": {"color": COLOURS[1], "linestyle": DASHED, "label": "nearest pair"},
    }
    with canvas.figure(canvas.WHOLE) as plot:
        for place, (kind, unit) in enumerate((("distance", "Euclidean distance"), ("angle", "angle (degrees)")), 1):
            axes = plot.add_subplot(1, 2, place)
            for name, look in looks.items():
                marker = dots(table) if name != "bound" or len(table) == 1 else ""
                axes.plot(table.index, table[f"{kind}_{name}"], marker=marker, markersize=3.5, **look)
            axes.set(xlabel="round", ylabel=unit)
            # no angles if all prototypes but one are zero, and no range if all are equal
            if 0 < axes.dataLim.ymax < np.inf:
                axes.set_ylim(0, 1.08 * axes.dataLim.ymax)
            whole_rounds(axes)
        plot.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
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
    name = "distances-of-global-prototypes"
    return plot.describe(name, "Distances of global prototypes", alt, caption, table[names].reset_index(), wide=True)


def _why_none(results: Results, tensors: Tensors) -> str:
    name, receives = results.run.settings.strategy, sorted({part.kind for part in results.run.exchange.down})
    if results.unknown:
        return f"{name} was not loaded, so its exchange is unknown"
    if not receives:
        return f"{name} has none; nothing is exchanged"
    if "prototypes" not in receives:
        return f"{name} sends {' and '.join(receives)} down, for which there is no single distance"
    if tensors and "global/labels" not in tensors:
        return f"{name} gives each client prototypes of its own"
    return "no round has any: the server had fewer than two or too many, or did not record them yet"


def prototype_map(results: Results, tensors: Tensors, about: About) -> Plot:
    """Global and local prototypes of a round, in two dimensions."""
    if not tensors and results.unknown:
        raise NothingToPlotError("Map of prototypes: without the method's code its exchange is unknown.")
    if not tensors:
        reason = "nothing is exchanged" if not results.run.exchange.down else "no round's uploads were kept"
        raise NothingToPlotError(f"Map of prototypes: {reason}.")
    empty = np.empty(0, dtype=np.int64)
    labels = [tensors[f"{side}/labels"].numpy() if f"{side}/labels" in tensors else empty for side in SIDES]
    vectors = [tensors[f"{side}/vectors"].double().numpy() for side in SIDES if f"{side}/vectors" in tensors]
    points, axis_names = in_plane(np.concatenate(vectors))
    ours, theirs = points[: len(labels[0])], points[len(labels[0]) :]
    step = -(-len(theirs) // MOST_POINTS) if len(theirs) else 1
    classes = sorted(set(labels[0].tolist()) | set(labels[1].tolist()))
    size = 110 if len(classes) <= MOST_NAMED else 40
    names, large = cut_apart([results.class_names[label] for label in classes], 22), []
    with canvas.figure((canvas.WHOLE[0], 5.4)) as plot:
        axes = plot.add_subplot()
        for label, word in zip(classes, cut_apart([results.class_names[label] for label in classes], 12), strict=True):
            look: dict[str, Any] = {
                "color": COLOURS[label % 6],
                "marker": MARKERS[(label // 6 + label) % len(MARKERS)],
            }
            local_points, global_points = theirs[::step][labels[1][::step] == label], ours[labels[0] == label]
            if vectors[0].shape[1] == 2:
                for end in global_points:
                    axes.plot([0, end[0]], [0, end[1]], "--", color=look["color"], linewidth=1.1)
            axes.scatter(local_points[:, 0], local_points[:, 1], s=26, alpha=0.7, linewidths=0, **look)
            width = 1.2 if size > 50 else 0.6
            x, y = global_points[:, 0], global_points[:, 1]
            large.append(axes.scatter(x, y, s=size, zorder=3, edgecolor=INK, linewidths=width, **look))
            if len(classes) > MOST_IN_LEGEND:
                for point in global_points:
                    axes.annotate(word, tuple(point), (5, 5), textcoords="offset points", fontsize=7.5)
        axes.set(xlabel=axis_names[0], ylabel=axis_names[1])
        axes.set_aspect("equal", adjustable="datalim")
        if len(classes) <= MOST_IN_LEGEND:
            # handles with labels explicitly: matplotlib ignores a label that starts with "_"
            plot.legend(large, names, loc="outside right upper", title="class")
    alt = f"Map of {len(ours)} global and {len(theirs)} local prototypes of {len(classes)} classes in the plane."
    clients = tensors["local/clients"].tolist() if "local/clients" in tensors else []
    numbers = pd.DataFrame(points, columns=list(axis_names))
    numbers.insert(0, "of", ["global"] * len(ours) + [client_word(client, results.client_names) for client in clients])
    numbers.insert(1, "class", [results.class_names[label] for side in labels for label in side.tolist()])
    caption = _map_caption(results, about, len(ours) > 0, step)
    return plot.describe("map-of-prototypes", "Map of prototypes", alt, caption, numbers, wide=True)


def _map_caption(results: Results, about: About, has_global: bool, step: int) -> str:
    left_out = about.get("left_out", 0)
    number = about.get("round", "?")
    if not about.get("clients"):
        sentences = [f"The global prototypes of round {number}, as targets."]
    else:
        how = "as uploaded, on the targets' scale" if about.get("scaled") else "as uploaded"
        theirs = f"Prototypes of round {number}: small, those of {about['clients'] - left_out} clients {how}"
        ours = (
            "; large: the global prototypes made from them, as targets."
            if has_global
            else f"; {results.run.settings.strategy} has no global prototypes that all clients share."
        )
        sentences = [theirs + ours]
    if "mixtures" in results.run.exchange.kinds():
        sentences.append("For a mixture they are the means of its components.")
    if step > 1:
        sentences.append(f"One in {step} of the small ones is shown.")
    if left_out:
        sentences.append(f"Those of {left_out} more clients were not stored, since all would take too much space.")
    return " ".join(sentences)


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


def margins(results: Results, tensors: Tensors, about: About) -> Plot:
    """Each class's margin, the distance of its global prototype from the nearest other one, relative to the largest
    margin of any class (ProtoNorm, Figure 5)."""
    nothing = NothingToPlotError("Margins of global prototypes: there are none of two classes, one each.")
    if "global/labels" not in tensors:
        raise nothing
    labels = tensors["global/labels"].tolist()
    if not 2 <= len(labels) <= MOST_MARGINS or len(set(labels)) < len(labels):
        raise nothing
    from scipy.spatial.distance import cdist

    vectors = tensors["global/vectors"].double().numpy()
    distances = cdist(vectors, vectors)
    np.fill_diagonal(distances, np.inf)
    nearest = distances.min(axis=1)
    if not nearest.max() > 0:
        raise nothing
    shares = nearest / nearest.max()
    names = [results.class_names[label] for label in labels]
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        axes.bar(range(len(labels)), shares, color=COLOURS[0], width=0.8)
        if len(labels) <= MOST_NAMED:
            axes.set_xticks(range(len(labels)), cut_apart(names, 14), rotation=90 if len(labels) > 6 else 0)
        axes.set(xlabel="class", ylabel="margin over the largest", ylim=(0, 1.05))
    least = int(shares.argmin())
    alt = f"Normalised margins of {len(labels)} global prototypes: the least {shares[least]:.2f}, of {names[least]}."
    caption = (
        f"Margins of the global prototypes of round {about.get('round', '?')}: each one's distance to its nearest "
        "neighbour, divided by the largest such distance. If all are 1, they are equally far apart."
    )
    numbers = pd.DataFrame({"class": names, "margin": nearest, "normalised margin": shares})
    return plot.describe("margins-of-global-prototypes", "Margins of global prototypes", alt, caption, numbers)


def prototype_values(results: Results, tensors: Tensors, about: About) -> Plot:
    """Zeros in prototypes (TinyProto, Figures 2 and 7 to 12): every client's own, ordered by class, above the global
    ones."""
    sides = [side for side in ("local", "global") if f"{side}/labels" in tensors]
    vectors = {side: tensors[f"{side}/vectors"].double().numpy() for side in sides}
    labels = {side: tensors[f"{side}/labels"].numpy() for side in sides}
    zeros_of_side = {side: _zeros(vectors[side]) for side in sides if len(vectors[side])}
    if not any(share >= FEWEST_ZEROS for share in zeros_of_side.values()):
        raise NothingToPlotError(
            'Values of prototypes: no prototype has zeros; `feature-activation = "relu"` or `tinyproto.sparsity-dim` '
            "makes some."
        )
    with canvas.figure((canvas.WHOLE[0], 5.4)) as plot:
        heights = [3 if side == "local" else 1 for side in sides]
        panels = plot.subplots(len(sides), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes, side in zip(panels[:, 0], sides, strict=True):
            order = np.argsort(labels[side], kind="stable")[:MOST_ROWS]
            _draw_values(axes, vectors[side][order], labels[side][order], results.class_names)
            axes.set_ylabel("each client's, by class" if side == "local" else "global")
        panels[-1, 0].set_xlabel("dimension")
    rows = []
    for label in sorted({int(label) for side in sides for label in labels[side]}):
        of_class = {side: vectors[side][labels[side] == label] for side in sides}
        shares = [_zeros(of_class[side]) if len(of_class.get(side, ())) else None for side in ("local", "global")]
        rows.append((results.class_names[label], len(of_class.get("local", ())), *shares))
    side_names = {"local": "the clients' own", "global": "the global ones"}
    zeros = " and ".join(f"{100 * share:.0f} % of {side_names[side]}" for side, share in zeros_of_side.items())
    caption = (
        f"Values of the prototypes of round {about.get('round', '?')} by magnitude, blank where zero: {zeros}. A "
        "zero in a client's prototype means that the unit is dead for all its samples of the class, or that the "
        "value is masked and not sent."
    )
    heads = ["class", "prototypes of clients", "zeros of the clients' own", "zeros of the global one"]
    alt = f"Values of prototypes by class and dimension; zero are {zeros}."
    numbers = pd.DataFrame(rows, columns=heads)
    return plot.describe("values-of-prototypes", "Values of prototypes", alt, caption, numbers, wide=True)


def _zeros(vectors: Array) -> float:
    return float((vectors == 0).mean())


def _draw_values(axes: Axes, vectors: Array, labels: NDArray[np.int64], names: Sequence[str]) -> None:
    """A map of rows by dimensions, with class names at the rows."""
    cells = np.ma.masked_equal(np.abs(vectors), 0)
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


def alignment(results: Results, tensors: Tensors, about: About) -> Plot:
    """Pairwise distances during the first alignment by ProtoNorm's Algorithm 1, and the iterations per round."""
    traces = [
        line["server"]["alignment_trace"] for line in results.lines if "alignment_trace" in line.get("server", {})
    ]
    if not traces or ITERATIONS not in results.rounds:
        raise NothingToPlotError(
            'Alignment: no alignment of this run was iterated; `protonorm.alignment = "thomson"` is.'
        )
    trace = traces[0]
    iterations = results.rounds[ITERATIONS].dropna()
    steps = range(len(trace["mean"]))
    with canvas.figure(canvas.WHOLE) as plot:
        left_axes, right_axes = plot.subplots(1, 2)
        for name, colour, style in (
            ("max", COLOURS[2], DOTTED),
            ("mean", COLOURS[0], "-"),
            ("min", COLOURS[1], DASHED),
        ):
            left_axes.plot(steps, trace[name], color=colour, linestyle=style, label=name)
        left_axes.axhline(np.sqrt(2), color=GRID, linewidth=1.4, label="√2: at right angles")
        left_axes.set(xlabel="iteration of the first alignment", ylabel="Euclidean distance of unit vectors")
        right_axes.plot(iterations.index, iterations, color=COLOURS[0], marker=dots(iterations), markersize=3.5)
        right_axes.set(xlabel="round", ylabel="iterations", ylim=(0, 1.08 * iterations.max()))
        whole_rounds(right_axes)
        plot.legend(*left_axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    alt = (
        f"Distances after {len(steps) - 1} iterations of the first alignment: nearest pair {trace['min'][-1]:.3g}, "
        f"mean {trace['mean'][-1]:.3g}; iterations from {iterations.iloc[0]:.0f} to {iterations.iloc[-1]:.0f} in the "
        "last round."
    )
    caption = (
        "Left: distances between the global prototypes' directions during the alignment of round 1. Right: number of "
        "iterations of each round's alignment."
    )
    numbers = pd.DataFrame({"iteration": steps, **{name: trace[name] for name in ("max", "mean", "min")}})
    return plot.describe("alignment", "Alignment", alt, caption, numbers, wide=True)


# --- by name ----------------------------------------------------------------------------------------------------

OF_RUN: dict[str, Callable[[Results], Plot]] = {
    "accuracy-over-rounds": accuracy_over_rounds,
    "loss-over-rounds": loss_over_rounds,
    "accuracy-over-bytes": accuracy_over_bytes,
    "accuracy-by-client": accuracy_by_client,
    "confusion": confusion,
    "samples-by-client-and-class": samples_by_client_and_class,
}
OF_PROTOTYPES: dict[str, Callable[[Results, Tensors, About], Plot]] = {
    "distances-of-global-prototypes": separation_over_rounds,
    "map-of-prototypes": prototype_map,
    "margins-of-global-prototypes": margins,
    "values-of-prototypes": prototype_values,
    "alignment": alignment,
}
NAMES = (*OF_RUN, *OF_PROTOTYPES)


def draw(name: str, results: Results, tensors: Tensors, about: About) -> Plot:
    """Draw a plot by its name.

    Args:
        tensors, about: a round's prototypes, and their round.

    Raises:
        NothingToPlotError: the run has no data for it.
        SettingError: there is no such plot.
    """
    # the number of threads would change the last digits of a map
    with limited_threads(1):
        if name in OF_RUN:
            return OF_RUN[name](results)
        if name in OF_PROTOTYPES:
            return OF_PROTOTYPES[name](results, tensors, about)
    raise SettingError(f"plot is {shown(name)}, but it is {', '.join(NAMES)}.")
