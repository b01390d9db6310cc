"""Where the global prototypes lie over rounds: their ways, and a map of each round that is kept."""

from collections.abc import Sequence
from html import escape

import numpy as np

from protosphere.core.text import cut_apart, one_line
from protosphere.record.snapshots import global_by_round
from protosphere.reports import canvas, page
from protosphere.reports.canvas import COLOURS, MARKERS, MOST_NAMED
from protosphere.reports.maps import MOST_IN_LEGEND, in_plane
from protosphere.reports.page import Html
from protosphere.reports.pictures import Picture
from protosphere.reports.results import Results

MOST_CLASSES = 100
WIDTH, HEIGHT, EDGE = 560, 420, 34  # of a map, in pixels


def motion(results: Results) -> tuple[Picture, list[tuple[str, Html]]] | None:
    """The ways of the classes' global prototypes as a picture; and the map of each kept round, by the same two
    components. None with fewer than two rounds, or where a class has several."""
    prototypes_by_round = global_by_round(results.folder)
    rounds = [(number, labels.tolist(), vectors.numpy()) for number, (labels, vectors) in prototypes_by_round.items()]
    K = len(results.class_names)
    widths = {vectors.shape[1:] for *_, vectors in rounds}
    drawable = all(
        len(set(labels)) == len(labels) == len(v) and set(labels) <= set(range(K)) for _, labels, v in rounds
    )
    if len(rounds) < 2 or K > MOST_CLASSES or len(widths) != 1 or not drawable:
        return None
    points, axis_names = in_plane(np.concatenate([vectors for *_, vectors in rounds]))
    ends = np.cumsum([len(labels) for _, labels, _ in rounds])
    maps = [
        (number, dict(zip(labels, round_points.tolist(), strict=True)))
        for (number, labels, _), round_points in zip(rounds, np.split(points, ends[:-1]), strict=True)
    ]
    low, high = points.min(axis=0), points.max(axis=0)
    frames = [(str(number), _frame(results, points_by_label, low, high)) for number, points_by_label in maps]
    return _ways(results, maps, axis_names), frames


def _ways(results: Results, maps: Sequence[tuple[int, dict[int, list[float]]]], axis_names: tuple[str, str]) -> Picture:
    labels = sorted({label for _, points_by_label in maps for label in points_by_label})
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        handles = []
        for label in labels:
            way = np.array([points_by_label[label] for _, points_by_label in maps if label in points_by_label])
            colour, marker = COLOURS[label % 6], MARKERS[(label // 6 + label) % len(MARKERS)]
            axes.plot(way[:, 0], way[:, 1], color=colour, linewidth=1.0, alpha=0.6)
            handles.append(
                axes.scatter(way[-1:, 0], way[-1:, 1], color=colour, marker=marker, s=45, zorder=3, linewidths=0)
            )
        axes.set(xlabel=axis_names[0], ylabel=axis_names[1])
        axes.set_aspect("equal", adjustable="datalim")
        if len(labels) <= MOST_IN_LEGEND:
            names = cut_apart([results.class_names[label] for label in labels], 14)
            drawn.legend(handles, names, loc="outside right upper", title="class")
        svg = canvas.svg(drawn)
    first, last = maps[0][0], maps[-1][0]
    caption = (
        f"Trajectories of the global prototypes from round {first} to round {last}, {len(maps)} rounds in total, on "
        "the first two principal components of all; each ends at its marker."
    )
    rows = [
        [number, results.class_names[label], *points_by_label[label]]
        for number, points_by_label in maps
        for label in sorted(points_by_label)
    ]
    alt = f"Trajectories of {len(labels)} global prototypes over rounds {first} to {last} in the plane."
    return Picture("paths-of-global-prototypes", svg, alt, caption, numbers=[["round", "class", *axis_names], *rows])


def _frame(results: Results, points_by_label: dict[int, list[float]], low: np.ndarray, high: np.ndarray) -> Html:
    """A map in the page itself, in its letters and ink; all have one scale."""
    scale = min((WIDTH - 3 * EDGE) / max(high[0] - low[0], 1e-12), (HEIGHT - 2 * EDGE) / max(high[1] - low[1], 1e-12))
    parts = []
    short = cut_apart(results.class_names, 12)
    for label, (x, y) in sorted(points_by_label.items()):
        name = escape(one_line(results.class_names[label]))
        across, down = EDGE + scale * (x - low[0]), HEIGHT - EDGE - scale * (y - low[1])
        place = f'cx="{across:.1f}" cy="{down:.1f}" r="7"'
        parts.append(f'<circle {place} fill="{COLOURS[label % 6]}"><title>{name}</title></circle>')
        if len(points_by_label) <= MOST_NAMED:
            word = escape(short[label])
            parts.append(f'<text x="{across + 10:.1f}" y="{down + 5:.1f}" fill="currentColor">{word}</text>')
    frame = f'x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}"'
    return Html(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" font-size="15" role="img" '
        f'aria-label="map of {len(points_by_label)} prototypes">'
        f'<rect {frame} fill="none" stroke="currentColor" opacity=".25"></rect>'
        f"{''.join(parts)}</svg>"
    )


def slider(frames: Sequence[tuple[str, Html]]) -> Html:
    """One round at a time, by mouse or with the arrow keys."""
    caption = page.element("figcaption", "Choose a round, or use the arrow keys.")
    choice = page.choice("round", frames[-page.MOST_CHOICES :], "round", wide=False)
    return page.element("figure", choice, caption, class_="rounds")
