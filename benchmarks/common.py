"""Shared by the benchmarks: quiet runs in their own folder, the time of their rounds, and tables.

Internal modules are imported on use, because some benchmarks use only the Python API.
"""

import argparse
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from protosphere.launch.grid import LocalGrid

ROOT = Path(__file__).resolve().parents[1]
CPU, CLOCK = 0, 1  # the columns of `timed_rounds`


def described_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring, unchanged."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


@contextmanager
def own_home() -> Iterator[Path]:
    """Results and stores go to a temporary folder; decoded data stay in the user's cache."""
    from protosphere.core.home import home

    before = os.environ.get("PROTOSPHERE_HOME")
    cache = home() / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cache").symlink_to(cache)
        os.environ["PROTOSPHERE_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("PROTOSPHERE_HOME")
            if before is not None:
                os.environ["PROTOSPHERE_HOME"] = before


def timed_rounds(
    config: Mapping[str, Any], clients: int, grid_of: "type[LocalGrid] | None" = None, workers: int = 1
) -> tuple[Path, np.ndarray]:
    """Run in this process, plus further ones with several workers. Returns the folder of its results, and the seconds
    of each round after the first, (rounds - 1, 2): CPU time of this process, and wall-clock time. The first round is
    excluded, because it creates states and caches data."""
    from protosphere.launch.grid import LocalGrid, run_in_process

    ends: list[tuple[float, float]] = []

    def note_round(line: str) -> None:
        if line.startswith("round "):
            ends.append((time.process_time(), time.perf_counter()))

    grid_of = grid_of or LocalGrid
    folder = run_in_process(config, clients=clients, workers=workers, show=note_round, grid_of=grid_of)
    return folder, np.diff(np.array(ends), axis=0)


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result from a new process, which inherits nothing that another run has cached and may start
    processes of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        return executor.submit(function, *arguments).result()


def table_head(*columns: str, left: int = 1) -> str:
    """The first two lines of a Markdown table; `left` columns are aligned left, the others right."""
    return f"| {' | '.join(columns)} |\n{'|---' * left}{'|---:' * (len(columns) - left)}|"


def table_row(cells: Iterable[object]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def where() -> str:
    """Commit and machine, for the head of a table."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return (
        f"commit {commit.strip() or 'unknown'}, {os.cpu_count()} cores {platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
