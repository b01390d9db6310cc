"""What a site pays for each method: seconds of its processor, and bytes.

    python -m benchmarks.site_costs            # measures, keeps the figures, writes the page and its picture
    python -m benchmarks.site_costs --page     # the page and its picture alone, from the kept figures

Ten clients of four architectures on digits, twelve rounds of one epoch, evaluated at the end alone: what is counted is
training, the method's own work and its messages. Methods take turns, each run a process of its own; seconds are those
of a round after the first, beside `local`'s of the same turn. In one process the server's work counts among them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.answers import PAGES, RESULTS
from benchmarks.common import CPU, described_parser, in_new_process, own_home, table_row, timed_rounds, where
from protosphere.plans.run_config import plan
from protosphere.reports import canvas

NAME = "site_costs"
BASE = "local"
SECONDS = "cpu_seconds"
CLIENTS, ROUNDS = 10, 12
TASK = f'dataset="digits" models="tiny" partition="dirichlet" alpha=0.5 rounds={ROUNDS} evaluate-every={ROUNDS}'
# of several architectures, with the settings that a method asks for
METHODS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("local", "frame", "protosphere", "fedproto", "protonorm", "tinyproto-fp", "tinyproto-ft")},
    **{name: {} for name in ("fedtgp", "fedpagr", "fedproc", "pfpl", "gfpl", "feddistill", "fedgh", "lg-fedavg")},
    "fedcgs": {"encoder": "handcrafted", "disclose-class-counts": True},
    **{name: {} for name in ("fedgen", "fedkd", "fml", "fedper", "fedavg")},
}


def run_one(method: str) -> dict[str, Any]:
    """Of one run in this process: seconds of the processor a round, and bytes a client and round, up and down."""
    settings = " ".join(f"{name}={json.dumps(value)}" for name, value in METHODS[method].items())
    config = plan([TASK, f'strategy="{method}" seed=0 {settings}'], clients=CLIENTS).run_config
    with own_home():
        folder, seconds = timed_rounds(config, CLIENTS)
        total = json.loads((folder / "summary.json").read_text())["bytes"]
    sizes = {
        "payload": (total["payload_up"], total["payload_down"]),
        "wire": (total["wire_up"], total["wire_down"]),
    }
    share = {kind: [round(size / CLIENTS / ROUNDS) for size in both] for kind, both in sizes.items()}
    return {SECONDS: round(float(seconds[:, CPU].mean()), 4), **share}


def measured(repeats: int) -> Iterator[dict[str, Any]]:
    """After each turn the figures of all methods: bytes a client and round, and seconds of a round, one a turn."""
    figures: dict[str, dict[str, Any]] = {method: {SECONDS: []} for method in METHODS}
    commit, _, machine = where().partition(", ")
    for turn in range(1, repeats + 1):
        for method in METHODS:
            run = in_new_process(run_one, method)
            print(f"turn {turn}, {method}: {run[SECONDS]:.3f} CPU s a round", flush=True)
            figures[method] |= run | {SECONDS: [*figures[method][SECONDS], run[SECONDS]]}
        yield {
            "commit": commit.removeprefix("commit "),
            "machine": machine,
            "repeats": turn,
            "methods": figures,
        }


def times(results: dict[str, Any], method: str) -> float:
    """Of `local`'s seconds, turn by turn: the median."""
    methods = results["methods"]
    turns = zip(methods[method][SECONDS], methods[BASE][SECONDS], strict=True)
    return median(seconds / base for seconds, base in turns)


def ordered(results: dict[str, Any]) -> list[str]:
    """The methods by their payload."""
    return sorted(results["methods"], key=lambda method: sum(results["methods"][method]["payload"]))


def page(results: dict[str, Any]) -> str:
    """The page, as Markdown."""
    task = TASK.replace('"', "")
    around = [
        (wire - payload) / 1e3
        for figures in results["methods"].values()
        for wire, payload in zip(figures["wire"], figures["payload"], strict=True)
    ]
    lines = [
        "# What does a site pay?",
        "",
        "CPU seconds and bytes, cheapest first. What the server learns about its samples: "
        "[privacy](../privacy.md#what-a-server-learns-without-release), and `protosphere run --what-leaves`.",
        "",
        "| method | CPU time, relative to `local` | kB up / down |",
        "|---|---:|---:|",
    ]
    for method in ordered(results):
        sizes = " / ".join(f"{size / 1e3:,.1f}" for size in results["methods"][method]["payload"])
        lines.append(table_row([f"`{method}`", f"{times(results, method):.2f}", sizes]))
    lines += [
        "",
        f"![CPU seconds relative to `local`, with the payload, by method]({NAME}.svg)",
        "",
        f"Payload per client per round, averaged over all rounds. Whole messages are {min(around):,.1f} to "
        f"{max(around):,.1f} kB larger each way. In a deployment starting a process for each message costs more than "
        "all of this ([a round](../performance.md)).",
        "",
        f"**Measured** by `python -m benchmarks.{NAME}`, commit {results['commit']}, {results['machine']}: {CLIENTS} "
        f"clients, {task}, seed 0, defaults; median of {results['repeats']} repeats beside `local`, including the "
        "server's work.",
    ]
    return "\n".join(lines) + "\n"


def picture(results: dict[str, Any]) -> str:
    """Seconds beside `local`'s, a bar a method with its payload at the end, as SVG."""
    methods = ordered(results)
    with canvas.figure((7.5, 0.8 + 0.26 * len(methods))) as drawing:
        axes = drawing.subplots()
        ratios = [times(results, method) for method in methods]
        bars = axes.barh(range(len(methods)), ratios, color=canvas.COLOURS[0])
        sizes = [sum(results["methods"][method]["payload"]) / 1e3 for method in methods]
        axes.bar_label(bars, [f"{size:,.1f} kB" for size in sizes], padding=4)
        axes.set_yticks(range(len(methods)), methods)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.axvline(1, color=canvas.INK, linewidth=1)
        axes.set_xlabel("CPU time relative to local; beside each bar, payload per client per round")
        return canvas.svg(drawing)


def write(results_folder: Path = RESULTS, pages: Path = PAGES) -> None:
    """Page and picture of the kept figures."""
    results = json.loads((results_folder / f"{NAME}.json").read_text("utf-8"))
    (pages / f"{NAME}.md").write_text(page(results), "utf-8")
    (pages / f"{NAME}.svg").write_text(picture(results), "utf-8")


def main() -> None:
    """Measure, or write the page alone."""
    parser = described_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--page", action="store_true", help="from the figures that are kept")
    options = parser.parse_args()
    if not options.page:
        for results in measured(options.repeats):
            (RESULTS / f"{NAME}.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    write()
    print(PAGES / f"{NAME}.md")


if __name__ == "__main__":
    main()
