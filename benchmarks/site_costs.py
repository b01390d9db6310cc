"""What a site pays for each method: seconds of its processor, bytes, and what the server learns of its rows.

    python -m benchmarks.site_costs            # measures, keeps the figures, writes the page and its picture
    python -m benchmarks.site_costs --page     # the page and its picture alone, from the kept figures

Ten clients of four architectures on digits, twelve rounds of one epoch, evaluated at the end alone: what is counted is
training, the method's own work and its messages. Methods take turns, each run a process of its own; seconds are those
of a round after the first, beside `local`'s of the same turn. In one process the server's work counts among them.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.all_methods import SECONDS, run_one
from benchmarks.answers import PAGES, RESULTS
from benchmarks.common import where
from protosphere.reports import canvas
from protosphere.strategies import read_settings

NAME = "site_costs"
BASE = "local"
COMMAND = f"python -m benchmarks.{NAME}"
CLIENTS, ROUNDS = 10, 12
TASK = f'dataset="digits" models="tiny" partition="dirichlet" alpha=0.5 rounds={ROUNDS} evaluate-every={ROUNDS}'
# of several architectures, with what must be said for them
METHODS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("local", "frame", "protosphere", "fedproto", "protonorm", "tinyproto-fp", "tinyproto-ft")},
    **{name: {} for name in ("fedtgp", "fedpagr", "fedproc", "pfpl", "gfpl", "feddistill", "fedgh", "lg-fedavg")},
    "fedcgs": {"privacy-encoder": "handcrafted", "disclose-class-counts": True},
    **{name: {} for name in ("fedgen", "fedkd", "fml", "fedper", "fedavg")},
}


def measured(repeats: int) -> Iterator[dict[str, Any]]:
    """After each turn the figures of all methods: bytes a client and round, and seconds of a round, one a turn."""
    found: dict[str, dict[str, Any]] = {method: {SECONDS: []} for method in METHODS}
    commit, _, machine = where().partition(", ")
    about = {"commit": commit.removeprefix("commit "), "machine": machine}
    for turn in range(repeats):
        for method, settings in METHODS.items():
            asked = [TASK, *(f"{name}={json.dumps(value)}" for name, value in settings.items())]
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                summary = pool.submit(run_one, method, 0, asked, CLIENTS).result()
            found[method][SECONDS].append(round(summary[SECONDS], 4))
            for kind in ("payload", "wire"):
                sizes = [summary["bytes"][f"{kind}_{way}"] for way in ("up", "down")]
                less = [summary["bytes"]["evaluation_wire_up"] if kind == "wire" else 0, 0]
                found[method][kind] = [
                    round((all_of - some) / CLIENTS / ROUNDS) for all_of, some in zip(sizes, less, strict=True)
                ]
            print(f"turn {turn + 1}, {method}: {summary[SECONDS]:.3f} CPU s a round", flush=True)
        yield {**about, "repeats": turn + 1, "methods": found}


def times(kept: dict[str, Any], method: str) -> float:
    """Of `local`'s seconds, turn by turn: the median."""
    turns = zip(kept["methods"][method][SECONDS], kept["methods"][BASE][SECONDS], strict=True)
    return median(own / base for own, base in turns)


def learns(method: str) -> str:
    """What the uploads tell, as a run says it before round 1."""
    return "; ".join(read_settings({"strategy": method} | METHODS.get(method, {})).exchange.said()) or "nothing"


def ordered(kept: dict[str, Any]) -> list[str]:
    """The methods by their payload."""
    return sorted(kept["methods"], key=lambda method: sum(kept["methods"][method]["payload"]))


def page(kept: dict[str, Any]) -> str:
    """The page, as Markdown."""
    asked = TASK.replace('"', "")
    lines = [
        "# What does a site pay?",
        "",
        "Seconds of its processor beside training alone, bytes, what the server learns of its rows. Cheapest first.",
        "",
        "| method | CPU, times `local` | payload up / down | wire up / down | the server learns |",
        "|---|---:|---:|---:|---|",
    ]
    for method in ordered(kept):
        own = kept["methods"][method]
        sizes = [" / ".join(f"{size / 1e3:,.1f}" for size in own[kind]) for kind in ("payload", "wire")]
        lines.append(f"| `{method}` | {times(kept, method):.2f} | {' | '.join(sizes)} | {learns(method)} |")
    lines += [
        "",
        f"![Seconds beside local's, with the payload, by method]({NAME}.svg)",
        "",
        "kB (1,000 bytes) a client and round, the mean over all rounds, without an evaluation's figures. Payload is "
        "what the method sends; the wire has all of a message. Every site tells who it is besides: its model's name, "
        "classes and number of rows ([privacy](../privacy.md)). In a deployment the start of a process for each "
        "message costs more than all of this ([costs](../results.md#what-a-round-costs-in-a-deployment)).",
        "",
        "## How it was measured",
        "",
        f"`{COMMAND}`, commit {kept['commit']}, {kept['machine']}: {CLIENTS} clients, {asked}, seed 0, every method's "
        f"own defaults; seconds are the median of {kept['repeats']} turns, each method's beside `local`'s of the same "
        "turn. In one process, so that the server's work is among them. A method that exchanges rarely or once has the "
        "mean of its few messages over all rounds.",
    ]
    return "\n".join(lines) + "\n"


def picture(kept: dict[str, Any]) -> str:
    """Seconds beside `local`'s, a bar a method with its payload at the end, as SVG."""
    methods = ordered(kept)
    with canvas.figure((7.5, 0.8 + 0.26 * len(methods))) as drawing:
        axes = drawing.subplots()
        bars = axes.barh(range(len(methods)), [times(kept, method) for method in methods], color=canvas.COLOURS[0])
        sizes = [sum(kept["methods"][method]["payload"]) / 1e3 for method in methods]
        axes.bar_label(bars, [f"{size:,.1f} kB" for size in sizes], padding=4)
        axes.set_yticks(range(len(methods)), methods)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.axvline(1, color=canvas.INK, linewidth=1)
        axes.set_xlabel("CPU, times local; at the end of a bar its payload, a client and round")
        return canvas.svg(drawing)


def write(results: Path = RESULTS, pages: Path = PAGES) -> None:
    """Page and picture of the kept figures."""
    kept = json.loads((results / f"{NAME}.json").read_text("utf-8"))
    (pages / f"{NAME}.md").write_text(page(kept), "utf-8")
    (pages / f"{NAME}.svg").write_text(picture(kept), "utf-8")


def main(words: Sequence[str] | None = None) -> None:
    """Measure, or write the page alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--page", action="store_true", help="from the figures that are kept")
    options = parser.parse_args(words)
    if not options.page:
        for kept in measured(options.repeats):
            (RESULTS / f"{NAME}.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    write()
    print(PAGES / f"{NAME}.md")


if __name__ == "__main__":
    main()
