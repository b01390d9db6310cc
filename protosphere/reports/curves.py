"""The pictures of a run that look into its mean: the parts of the loss, and every client by itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protosphere.core.client_names import client_word
from protosphere.core.text import cut_apart
from protosphere.reports import canvas
from protosphere.reports.canvas import COLOURS, SOFT
from protosphere.reports.charts import DASHED, DOTTED, Chart, Line
from protosphere.reports.pictures import Picture, dots, plain_numbers, points_of, rows_of, whole_rounds
from protosphere.reports.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SMALL = 20  # clients with a picture of their own
IN_A_ROW = 5
MOST_NAMED = 34  # curves of clients that a legend has room for
TOTAL = "loss"  # the weighted sum of its parts
ORDERS = {"worst": "worst first", "size": "fewest samples first", "together": "all in one"}
FILES = {"worst": "clients-worst-first", "size": "clients-fewest-samples-first", "together": "clients-together"}


def loss_over_rounds(results: Results) -> Picture | str:
    """The total and every part of it, the mean over clients."""
    table = results.rounds.filter(regex="^loss(/|$)").dropna(how="all")
    if table.empty:
        return "Loss over rounds: no client trained."
    table.columns = table.columns.str.removeprefix("loss/")
    names = sorted(table, key=lambda name: name != TOTAL)
    table = table[names]
    # a method may call one of its parts so
    named_otherwise = {TOTAL: "total", "total": "part total"}
    heads = [named_otherwise.get(name, name) for name in names]
    labels = dict(zip(names, cut_apart(heads, 30), strict=True))
    # where there is one part the total is the same curve
    is_one = len(names) == 2 and table[names[0]].equals(table[names[1]])
    drawn_names = names[1:] if is_one else names
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        for place, name in enumerate(drawn_names):
            style: Any = "-" if name == TOTAL else ((0, (4, 1.5)), (0, (1.5, 1.5)))[place % 2]
            colour = COLOURS[place % len(COLOURS)]
            look = {"color": colour, "linestyle": style, "marker": dots(table), "markersize": 3.5}
            axes.plot(table.index, table[name], label=labels[name], **look)
        least, most = table[drawn_names].min().min(), table[drawn_names].max().max()
        is_long = bool(least > 0 and most > 30 * least)
        if is_long:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        axes.set(xlabel="round", ylabel="loss")
        whole_rounds(axes)
        drawn.legend(loc="outside lower center", ncols=3)
        svg = canvas.svg(drawn)
    ends = table.iloc[[0, -1]].dropna(axis=1)
    changes = "; ".join(f"{labels[name]} from {ends[name].iloc[0]:.3g} to {ends[name].iloc[1]:.3g}" for name in ends)
    caption = (
        "Training loss: the mean of each round's steps, averaged over clients weighted by samples. Terms are "
        "unweighted; the total is weighted."
    )
    numbers = [["round", *heads], *rows_of(table)]
    lines = [
        Line(labels[name], points_of(table[name].dropna()), COLOURS[place % len(COLOURS)], dash)
        for place, name in enumerate(drawn_names)
        for dash in ("" if name == TOTAL else (DASHED, DOTTED)[place % 2],)
    ]
    chart = Chart("round", "loss", lines, log="y" if is_long else "", whole=True)
    alt = f"Loss over rounds: {changes}."
    return Picture("loss-over-rounds", svg, alt, caption, numbers=numbers, charts=[chart])


def roc_auc_over_rounds(results: Results) -> Picture | None:
    """The clients' mean area under the ROC curve, and the worst; None where the run did not ask for it."""
    told = {line["round"]: line["roc_auc"] for line in results.lines if "roc_auc" in line}
    if not told:
        return None
    rounds = sorted(told)
    looks = (("mean", "mean over clients, by samples", "", 1.8), ("worst", "worst client", DASHED, 1.3))
    lines = [
        Line(label, [(number, told[number][name]) for number in rounds], COLOURS[place], dash, width)
        for place, (name, label, dash, width) in enumerate(looks)
    ]
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        for line in lines:
            look: Any = {"color": line.colour, "linewidth": line.width, "marker": dots(rounds), "markersize": 3.5}
            style = (0, (4, 1.5)) if line.dash else "-"
            axes.plot(*zip(*line.points, strict=True), label=line.name, linestyle=style, **look)
        axes.set(xlabel="round", ylabel="area under the ROC curve")
        whole_rounds(axes)
        drawn.legend(loc="outside lower center", ncols=2)
        svg = canvas.svg(drawn)
    last = told[rounds[-1]]
    caption = (
        f"Area under the ROC curve by {last['rule']}, on each client's test samples: one class against the rest, "
        f"averaged over classes, then over {last['clients']} clients weighted by test samples. 0.5 is chance level."
    )
    alt = f"Area under the ROC curve at the end: mean {last['mean']:.3f}, worst client {last['worst']:.3f}."
    numbers: list[list[object]] = [["round", "mean", "worst", "clients"]]
    numbers += [[number, *(told[number][name] for name in ("mean", "worst", "clients"))] for number in rounds]
    chart = Chart("round", "area under the ROC curve", lines, whole=True)
    title = "ROC AUC over rounds"
    return Picture("roc-auc-over-rounds", svg, alt, caption, numbers=numbers, charts=[chart], title=title)


def clients_over_rounds(results: Results, order: str = "") -> list[tuple[str, Picture]]:
    """The clients' own test accuracy by the primary rule, as small multiples in each of two orders, and all in one:
    what it is, and its picture; nothing where no client was evaluated.

    Args:
        order: of `ORDERS`, in that alone; "" for each.
    """
    curves: dict[int, list[tuple[int, float]]] = {}
    for line in results.each_line():
        if not line.get("evaluation"):
            continue
        for partition, client in line["clients"].items():
            accuracy = client.get("evaluation", {}).get(results.rule, [None])[0]
            if accuracy is not None:
                curves.setdefault(int(partition), []).append((line["round"], accuracy))
    clients = {client["partition"]: client for client in results.roster if client["partition"] in curves}
    if not clients:
        return []
    rows = {partition: sum(client["rows"][:1]) for partition, client in clients.items()}
    orders = {
        "worst": sorted(clients, key=lambda partition: (curves[partition][-1][1], partition)),
        "size": sorted(clients, key=lambda partition: (rows[partition], partition)),
        "together": sorted(clients),
    }
    pictures = []
    for name, text in ORDERS.items():
        # of clients that withhold their rows there is no order by them
        is_known = name != "size" or any(rows.values())
        if is_known and order in ("", name):
            draw = _draw_together if name == "together" else _draw_small
            pictures.append((text, draw(results, name, orders[name], curves, rows)))
    return pictures


def _draw_together(
    results: Results,
    name: str,
    order: Sequence[int],
    curves: dict[int, list[tuple[int, float]]],
    rows: dict[int, int],
) -> Picture:
    """A curve for each client, over the mean of all."""
    mean = [(number, 100 * share) for number, share in results.figure("accuracy").items()]
    percents = {p: [(number, 100 * share) for number, share in curves[p]] for p in order}
    names = results.client_names
    words = [client_word(partition, names) for partition in order]
    is_few = len(order) <= MOST_NAMED
    with canvas.figure((canvas.WHOLE[0], 4.4)) as drawn:
        axes = drawn.add_subplot()
        axes.plot(*zip(*mean, strict=True), color=SOFT, linewidth=5, alpha=0.35, label="mean of all samples")
        for place, (partition, word) in enumerate(zip(order, cut_apart(words, 30), strict=True)):
            look: Any = {"color": COLOURS[place % len(COLOURS)], "linewidth": 1.2 if is_few else 0.7}
            label = word if is_few else None
            marker = "o" if len(percents[partition]) == 1 else ""
            axes.plot(*zip(*percents[partition], strict=True), label=label, alpha=0.7, marker=marker, **look)
        axes.set(xlabel="round", ylabel="test accuracy (%)", ylim=(-3, 103))
        whole_rounds(axes)
        if is_few:
            drawn.legend(loc="outside right upper", ncols=1 + len(order) // 17)
        svg = canvas.svg(drawn)
    lines = [
        Line("mean of all samples", mean, SOFT, width=5),
        *(
            Line(word, percents[partition], COLOURS[place % len(COLOURS)], width=1.2)
            for place, (partition, word) in enumerate(zip(order, words, strict=True))
        ),
    ]
    ends = [percents[partition][-1][1] for partition in order]
    alt = f"Test accuracy of {len(order)} clients over rounds; at the end from {min(ends):.0f} to {max(ends):.0f} %."
    caption = f"Test accuracy by {results.rule} of each of the {len(order)} clients. Thick line: mean over all samples."
    table: list[list[Any]] = [[p, number, value] for p in order for number, value in percents[p]]
    heads = ["client", "round", "accuracy (%)"]
    if names:
        heads, table = [*heads, "name"], [[p, *cells, names.get(p)] for p, *cells in table]
    numbers = [heads, *table]
    chart = Chart("round", "test accuracy (%)", lines, whole=True)
    return Picture(FILES[name], svg, alt, caption, wide=True, numbers=numbers, charts=[chart])


def _draw_small(
    results: Results,
    name: str,
    order: Sequence[int],
    curves: dict[int, list[tuple[int, float]]],
    rows: dict[int, int],
) -> Picture:
    partitions = order[:MOST_SMALL]
    across = min(IN_A_ROW, len(partitions))
    down = -(-len(partitions) // across)
    models = {client["partition"]: client["model"] for client in results.roster}
    short = dict(zip(models, cut_apart(list(models.values()), 22), strict=True))
    cut_names = cut_apart([results.client_names.get(partition, "") for partition in partitions], 12)
    called = {p: f" {name}" if name else "" for p, name in zip(partitions, cut_names, strict=True)}
    width, height = canvas.WHOLE[0], 0.7 + 1.65 * down
    with canvas.figure((width, height)) as drawn:
        # margins in inches: to find them for twenty panels takes matplotlib as long as to draw them
        drawn.set_layout_engine(None)
        drawn.subplots_adjust(0.7 / width, 0.6 / height, 1 - 0.1 / width, 1 - 0.3 / height, wspace=0.1, hspace=0.28)
        panels = drawn.subplots(down, across, sharex=True, sharey=True, squeeze=False).flatten()
        for partition, axes in zip(partitions, panels, strict=False):
            _draw_client(axes, curves[partition], [*results.figure("accuracy").items()])
            row_count = f"{rows[partition]} samples" if rows[partition] else ""
            head, corner = f"{partition}{called[partition]}: {100 * curves[partition][-1][1]:.0f} %", short[partition]
            # beside a name there is no room for it
            if row_count and called[partition]:
                corner = f"{row_count}\n{corner}"
            elif row_count:
                head = f"{head}, {row_count}"
            axes.set_title(head, fontsize=9.5)
            axes.text(0.97, 0.05, corner, ha="right", fontsize=8, color=SOFT, transform=axes.transAxes)
        # which all panels share
        panels[0].set(ylim=(-3, 103), yticks=range(0, 101, 20))
        whole_rounds(panels[0], most=4)
        for axes in panels[len(partitions) - across : len(partitions)]:
            # also where the last row is not full
            axes.tick_params(labelbottom=True)
        for axes in panels[len(partitions) :]:
            axes.remove()
        drawn.supxlabel("round", fontsize=9.5)
        drawn.supylabel("test accuracy (%)", fontsize=9.5)
        svg = canvas.svg(drawn)
    some = (
        f"The first {len(partitions)} of {len(order)} clients"
        if len(order) > len(partitions)
        else f"All {len(order)} clients"
    )
    last = ", ".join(f"{partition} {100 * curves[partition][-1][1]:.0f} %" for partition in partitions[:5])
    who = "number and name" if results.client_names else "number"
    caption = (
        f"{some}, {ORDERS[name]}: {who}, final test accuracy by {results.rule}, training samples, model. Thick line: "
        "the mean over all clients' samples."
    )
    table = [[p, models[p], rows[p] or None, number, 100 * value] for p in order for number, value in curves[p]]
    heads = ["client", "model", "training samples", "round", "accuracy (%)"]
    if names := results.client_names:
        heads, table = [*heads, "name"], [[*row, names.get(row[0])] for row in table]
    alt = f"Test accuracy of single clients over rounds, {ORDERS[name]}; at the end {last}."
    return Picture(FILES[name], svg, alt, caption, wide=True, numbers=[heads, *table])


def _draw_client(axes: "Axes", points: Sequence[tuple[int, float]], mean: Sequence[tuple[int, float]]) -> None:
    """A client's accuracies by round, as shares, over the mean of all."""
    for curve, look in (
        (mean, {"color": SOFT, "linewidth": 3.0, "alpha": 0.35}),
        # too few are not to be seen as a curve
        (points, {"color": COLOURS[0], "marker": "o" if len(points) < 4 else "", "markersize": 3}),
    ):
        axes.plot([number for number, _ in curve], [100 * share for _, share in curve], **look)
