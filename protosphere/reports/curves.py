"""The pictures of a run that look into its mean: the parts of the loss, and every client by itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protosphere.core.text import cut_apart
from protosphere.reports import canvas
from protosphere.reports.canvas import COLOURS, SOFT
from protosphere.reports.pictures import Picture, dots, plain_numbers, whole_rounds
from protosphere.reports.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SMALL = 20  # clients with a picture of their own
IN_A_ROW = 5
TOTAL = "loss"  # the weighted sum of its parts
PERCENT = (0, 20, 40, 60, 80, 100)
ORDERS = {"worst": "worst first", "size": "fewest rows first"}


def loss_over_rounds(results: Results) -> Picture | str:
    """The total and every part of it, the mean over clients."""
    losses = [
        (line["round"], line["training"]["loss"]) for line in results.lines if line.get("training", {}).get("loss")
    ]
    if not losses:
        return "Loss over rounds: no client trained."
    rounds = [number for number, _ in losses]
    every = dict.fromkeys(name for _, parts in losses for name in parts)
    names = sorted(every, key=lambda name: name != TOTAL)
    # a method may call one of its parts so
    named_otherwise = {TOTAL: "total", "total": "part total"}
    heads = [named_otherwise.get(name, name) for name in names]
    labels = dict(zip(names, cut_apart(heads, 30), strict=True))
    # where there is one part the total is the same curve
    drawn_names = [name for name in names if name != TOTAL or len(names) != 2 or not _equal(losses, names)]
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        for place, name in enumerate(drawn_names):
            values = [parts.get(name, float("nan")) for _, parts in losses]
            style: Any = "-" if name == TOTAL else ((0, (4, 1.5)), (0, (1.5, 1.5)))[place % 2]
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(
                rounds, values, color=colour, linestyle=style, marker=dots(rounds), markersize=3.5, label=labels[name]
            )
        values = [parts[name] for _, parts in losses for name in drawn_names if name in parts]
        if min(values) > 0 and max(values) > 30 * min(values):
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        axes.set(xlabel="round", ylabel="loss")
        whole_rounds(axes)
        drawn.legend(loc="outside lower center", ncols=3)
        svg = canvas.svg(drawn)
    first, last = losses[0][1], losses[-1][1]
    changes = "; ".join(
        f"{labels[name]} from {first[name]:.3g} to {last[name]:.3g}"
        for name in names
        if {name} <= first.keys() & last.keys()
    )
    caption = (
        "Training loss, the mean of each round's steps over clients, weighted by rows. The parts are before their "
        "weights; the total has these."
    )
    rows = [[number, *(parts.get(name) for name in names)] for number, parts in losses]
    return Picture("loss", svg, f"Loss over rounds: {changes}.", caption, numbers=[["round", *heads], *rows])


def _equal(losses: Sequence[tuple[int, Any]], names: Sequence[str]) -> bool:
    return all(len({parts.get(name) for name in names}) == 1 for _, parts in losses)


def clients_over_rounds(results: Results) -> list[tuple[str, Picture]]:
    """Small multiples of the clients' own test accuracy by the primary rule, in each of two orders: what it is, and its
    picture; nothing where no client was evaluated."""
    curves: dict[int, list[tuple[int, float]]] = {}
    for line in results.lines:
        if not line.get("evaluation"):
            continue
        for partition, client in line["clients"].items():
            accuracy = client.get("evaluation", {}).get(results.rule, [None])[0]
            if accuracy is not None:
                curves.setdefault(int(partition), []).append((line["evaluation"]["of_round"], accuracy))
    clients = {client["partition"]: client for client in results.roster if client["partition"] in curves}
    if not clients:
        return []
    rows = {partition: sum(client["rows"][:1]) for partition, client in clients.items()}
    orders = {
        "worst": sorted(clients, key=lambda partition: (curves[partition][-1][1], partition)),
        "size": sorted(clients, key=lambda partition: (rows[partition], partition)),
    }
    # of clients that withhold their rows there is one order alone
    chosen = list(ORDERS.items()) if any(rows.values()) else [("worst", ORDERS["worst"])]
    return [(text, _draw_small(results, name, orders[name], curves, rows)) for name, text in chosen]


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
    with canvas.figure((canvas.WHOLE[0], 0.7 + 1.65 * down)) as drawn:
        _panels(drawn, across, [curves[partition] for partition in partitions], results.of_rule("mean"))
        for place, partition in enumerate(partitions):
            row_count = f", {rows[partition]} rows" if rows[partition] else ""
            title = f"{partition}: {100 * curves[partition][-1][1]:.0f} %{row_count}"
            left, bottom = _corner(place, across)
            drawn.axes[0].text(left, bottom + 1.05, title, fontsize=9.5)
            model_name = short[partition]
            drawn.axes[0].text(left + 0.97, bottom + 0.05, model_name, ha="right", fontsize=8, color=SOFT)
        drawn.supxlabel("round", fontsize=9.5)
        drawn.supylabel("test accuracy (%)", fontsize=9.5)
        svg = canvas.svg(drawn)
    some = (
        f"The first {len(partitions)} of {len(order)} clients"
        if len(order) > len(partitions)
        else f"All {len(order)} clients"
    )
    last = ", ".join(f"{partition} {100 * curves[partition][-1][1]:.0f} %" for partition in partitions[:5])
    caption = (
        f"{some}, {ORDERS[name]}: number, test accuracy by {results.rule} at the end, training rows, model. Broad: the "
        "mean of all clients' rows."
    )
    table = [[p, models[p], rows[p] or None, of_round, 100 * value] for p in order for of_round, value in curves[p]]
    heads = ["client", "model", "training rows", "round", "accuracy (%)"]
    alt = f"Test accuracy of single clients over rounds, {ORDERS[name]}; at the end {last}."
    return Picture(f"clients-{name}", svg, alt, caption, wide=True, numbers=[heads, *table])


Points = Sequence[tuple[int, float]]  # round, accuracy as a share


def _corner(place: int, across: int) -> tuple[float, float]:
    """Left and bottom of a panel, each of which is one wide and one high."""
    return 1.1 * (place % across), -1.28 * (place // across)


def _panels(drawn: "Figure", across: int, panels: Sequence[Points], mean: Points) -> None:
    """A panel a curve, each over the mean, in one pair of axes; with a pair each matplotlib takes ten times as long."""
    from matplotlib.collections import LineCollection
    from matplotlib.ticker import MaxNLocator

    all_rounds = [of_round for curve in (mean, *panels) for of_round, _ in curve]
    first, last = min(all_rounds), max(all_rounds)
    span = max(last - first, 1)
    # beyond both ends, as axes are: the round numbers among them are rounder then
    ticks = MaxNLocator(nbins=4, integer=True, min_n_ticks=1).tick_values(first - 0.05 * span, last + 0.05 * span)
    rounds = [tick for tick in ticks if first <= tick <= last]
    axes = drawn.add_subplot()
    axes.set_axis_off()

    def x(of_round: float) -> float:
        return 0.04 + 0.92 * (of_round - first) / span

    def y(share: float) -> float:
        return 0.03 + 0.94 * share

    lines: dict[str, list[list[tuple[float, float]]]] = {"grid": [], "frame": [], "mean": [], "client": []}
    for place, points in enumerate(panels):
        left, bottom = _corner(place, across)
        lines["grid"] += [[(left + x(of_round), bottom), (left + x(of_round), bottom + 1)] for of_round in rounds]
        lines["grid"] += [[(left, bottom + y(tick / 100)), (left + 1, bottom + y(tick / 100))] for tick in PERCENT]
        lines["frame"].append([(left, bottom + 1), (left, bottom), (left + 1, bottom)])
        for name, curve in {"mean": mean, "client": points}.items():
            if curve:
                lines[name].append([(left + x(of_round), bottom + y(share)) for of_round, share in curve])
        small: Any = {"fontsize": 8.8, "color": SOFT}
        if place % across == 0:
            for tick in PERCENT:
                axes.text(left - 0.03, bottom + y(tick / 100), f"{tick}", ha="right", va="center", **small)
        # where no panel is below
        if place + across >= len(panels):
            for of_round in rounds:
                axes.text(left + x(of_round), bottom - 0.05, f"{of_round:.0f}", ha="center", va="top", **small)
    look: dict[str, Any] = {
        "grid": {"colors": canvas.GRID, "linewidths": 0.7},
        "frame": {"colors": SOFT, "linewidths": 0.8},
        "mean": {"colors": SOFT, "linewidths": 3.0, "alpha": 0.35},
        "client": {"colors": COLOURS[0], "linewidths": 1.8},
    }
    for name, segments in lines.items():
        axes.add_collection(LineCollection(segments, clip_on=False, **look[name]))
    # too few to be seen as a curve
    few = [point for curve in lines["client"] if len(curve) < 4 for point in curve]
    if few:
        axes.plot(*zip(*few, strict=True), color=COLOURS[0], marker="o", markersize=3, linestyle="")
    axes.set(xlim=(0, _corner(across - 1, across)[0] + 1), ylim=(_corner(len(panels) - 1, across)[1], 1))
