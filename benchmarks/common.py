"""What the benchmarks share: quiet runs in a folder of their own, and a line that says where they ran."""

import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def own_home(keep_cache: bool = True) -> Iterator[Path]:
    """Results and stores go to a temporary folder; decoded data stay in the user's cache."""
    from federation.settings import home

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
    from experiments.run_config import PRESETS, read_toml

    return read_toml(PRESETS / f"{name}.toml")


def where() -> str:
    """Commit and machine, for the head of a table."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return (
        f"commit {commit.strip() or 'unknown'}, {os.cpu_count()} cores {platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
