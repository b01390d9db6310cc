"""Seconds of the processor from `protosphere run` to the first round's line, in process; and where imports spend them.

python -m benchmarks.start [SETTINGS ...]
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.common import own_home, where

DEFAULT = 'dataset="spiral" spiral-points=200 models="tiny_perceptron" feature-dim=8 clients=4 rounds=1'
IMPORTED = re.compile(r"import time:\s+\d+ \|\s+(\d+) \| (\w[\w.]*)$")  # by our own code, or from within a function
SHOWN = 12


def first_line(settings: Sequence[str], *options: str) -> tuple[float, float, list[str]]:
    """Seconds of the processor, seconds by the clock, and all that was written to the error stream."""
    with own_home() as home, (home / "errors").open("w+") as errors:
        began = time.perf_counter()
        run = subprocess.Popen(
            [
                sys.executable,
                *options,
                "-m",
                "protosphere.cli.main",
                "run",
                *(word for text in settings for word in ("-c", text)),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PROTOSPHERE_HOME": str(home), "PYTHONUNBUFFERED": "1"},
        )
        assert run.stdout is not None
        found = None
        for line in run.stdout:
            if line.startswith("round 1/"):
                found = _processor(run.pid), time.perf_counter() - began
                break
        run.communicate()
        errors.seek(0)
        said = errors.read()
    if found is None:
        raise SystemExit(f"the run came to no round: {said}")
    return (*found, said.splitlines())


def _processor(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    # its own, in user and system mode, and its children's
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=[DEFAULT])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    runs = [first_line(options.settings) for _ in range(options.repeats)]
    processor, clock = (median(run[place] for run in runs) for place in (0, 1))
    print(f"{where()} | {' '.join(options.settings)}, median of {options.repeats}\n")
    print(f"to the first round's line: {processor:.1f} CPU s, {clock:.1f} s by the clock\n")
    lines = first_line(options.settings, "-X", "importtime")[2]
    top = sorted(((int(m[1]), m[2]) for m in map(IMPORTED.match, lines) if m), reverse=True)
    print("| import, with all that it imports first | ms |\n|---|---:|")
    for microseconds, name in top[:SHOWN]:
        print(f"| `{name}` | {microseconds / 1000:.0f} |")


if __name__ == "__main__":
    main()
