"""What the benchmarks share: quiet runs in a folder of their own, and a line that says where they ran."""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def own_home(keep_cache: bool = True) -> Iterator[Path]:
    """Results and stores go to a temporary folder; decoded data stay in the user's cache."""
    from protosphere.core.home import home

    before = os.environ.get("PROTOSPHERE_HOME")
    cache = home() / "cache"
    with tempfile.TemporaryDirectory() as folder:
        if keep_cache:
            cache.mkdir(parents=True, exist_ok=True)
            (Path(folder) / "cache").symlink_to(cache)
        os.environ["PROTOSPHERE_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["PROTOSPHERE_HOME"]
            else:
                os.environ["PROTOSPHERE_HOME"] = before


def preset(name: str) -> dict[str, Any]:
    """A preset's settings, flat."""
    from protosphere.launch.run_config import read_preset

    return read_preset(name)


def table_parser(
    doc: str | None, dataset: str, seeds: list[int], rows: list[str], usual: list[str]
) -> argparse.ArgumentParser:
    """The arguments of the benchmarks that run rows of settings on seeds; `usual` are the rows where none are named."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default=dataset, help="a name, hub id or folder, as the setting `dataset`")
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", nargs="+", choices=rows, default=usual)
    parser.add_argument("-c", "--set", action="append", default=[], help="settings that go before the ones above")
    return parser


def summary_of(
    settings: list[str], clients: int, workers: int, look: Callable[[Path], None] | None = None
) -> dict[str, Any]:
    """Run in this process, without a word and in a folder of its own; the run's summary, and under `lines` those of its
    training rounds. `look` sees the results folder before it goes."""
    from protosphere.launch.grid import run_in_process
    from protosphere.launch.run_config import plan

    wanted = plan(settings, clients=clients)
    with own_home():
        folder = run_in_process(wanted.run_config, clients=clients, workers=workers, show=lambda line: None)
        if look is not None:
            look(folder)
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return summary | {"lines": [line for line in lines if not line.get("final")]}


def runs_by_ways(
    options: argparse.Namespace,
    task: str,
    rows: Mapping[str, str],
    look: Mapping[str, Callable[[Path], None]] | None = None,
) -> Iterator[tuple[int, dict[str, list[dict[str, Any]]]]]:
    """Run the `options`' rows on each of their seeds for each of their numbers of ways, saying what runs, and how it
    ends by the row's headline; yields that number and, row by row, the runs' summaries. `look` is by row."""
    settings = [task, f'dataset="{options.dataset}"', *options.set]
    print(where(), f"| {options.clients} clients, seeds {options.seeds}, {' '.join(settings)}", flush=True)
    for ways in options.ways:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.rows}
        for seed, name in itertools.product(options.seeds, options.rows):
            began = time.monotonic()
            asked = [*settings, f"ways={ways} {rows[name]} seed={seed}"]
            summary = summary_of(asked, options.clients, options.workers, (look or {}).get(name))
            found[name].append(summary)
            accuracy, seconds = summary["headline"]["accuracy"], time.monotonic() - began
            print(f"{ways} ways, seed {seed}, {name}: {accuracy:.4f}, {seconds:.0f} s", flush=True)
        yield ways, found


def percent(values: Sequence[float | None]) -> str:
    """Mean and standard deviation over seeds of shares, as percentages."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.1f}{spread}"


def where() -> str:
    """Commit and machine, for the head of a table."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return (
        f"commit {commit.strip() or 'unknown'}, {os.cpu_count()} cores {platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
