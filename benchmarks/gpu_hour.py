"""What an hour on a GPU has to measure, in one command: Markdown for docs/performance.md and docs/gpu.md.

    make gpu-hour DATA=../cifar10 HTFLIB=../HtFLlib
    python -m benchmarks.gpu_hour --cifar10 ../cifar10 --device cpu --scale 0.001 --minutes 10

Its steps, in order: every method's contract and golden figures on the GPU, in float32 and bf16; HtFLlib's MNIST round
at full size beside ours; a round of ProtoNorm's CIFAR-10 setting with its four architectures, with utilisation and
memory; the cohort engine over the loop; then ProtoNorm's Table 1, all methods, seed by seed, in the time that is left.
A step that has ended is not run again: its figures lie in FOLDER/steps.json, so that a next hour goes on, and a step
that runs out of time is begun anew then, but for the table, which goes on at its next run.

`--scale` shrinks rounds, samples and clients of all steps, to try them out where no GPU is.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, described_parser, table_head, table_row
from protosphere.core.files import replacing

PYTHON = sys.executable
LOOK = 1.0  # seconds between two looks at the GPU
ROUNDS = 3  # of the timed round: the first makes states and decodes data


class TimeUpError(Exception):
    """The time is up."""


class Clock:
    """The minutes that are left."""

    def __init__(self, minutes: float):
        self._deadline = time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds."""
        return self._deadline - time.monotonic()


def run(command: Sequence[str], clock: Clock, environment: dict[str, str] | None = None) -> str:
    """What a command prints.

    Raises:
        TimeUpError: the time ran out; the command was ended. RuntimeError: it failed.
    """
    if clock.left <= 0:
        raise TimeUpError
    print(f"- {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # so that all that it starts can be ended
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=clock.left)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeUpError from None
            raise
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{output[-2000:]}")
    return output


class Watch:
    """Utilisation and memory of the GPU while inside, by nvidia-smi; empty where there is none."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
        while not self._stop.wait(LOOK):
            answer = subprocess.run(query, capture_output=True, text=True, check=False)
            with suppress(ValueError, IndexError):
                utilisation, memory = answer.stdout.splitlines()[0].split(",")
                self.samples.append((float(utilisation), float(memory)))

    def __enter__(self) -> "Watch":
        if shutil.which("nvidia-smi"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def figures(self) -> dict[str, float]:
        """The mean utilisation in % and the most memory in GB."""
        if not self.samples:
            return {}
        return {
            "utilisation": sum(sample[0] for sample in self.samples) / len(self.samples),
            "memory": max(sample[1] for sample in self.samples) / 1024,
        }


def check(options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """Contract and golden figures in both precisions."""
    definition = re.search(r"^CUDA_TESTS := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert definition is not None
    tests = definition[1].replace("\\", " ").split()
    if options.scale < 1:
        tests = [*tests, "-k", "fedproto"]
    outcome = {}
    for precision in ("float32", "bf16") if options.device == "cuda" else ("float32",):
        environment = {"PROTOSPHERE_TEST_DEVICE": options.device, "PROTOSPHERE_TEST_PRECISION": precision}
        if options.device == "cpu":
            environment = {}
        output = run([PYTHON, "-m", "pytest", "-q", "-p", "no:warnings", *tests], clock, environment)
        outcome[precision] = output.strip().splitlines()[-1]
    return outcome


def htflib(options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """HtFLlib's round beside ours."""
    command = [PYTHON, "-m", "benchmarks.against_htflib", "--htflib", options.htflib, "--device", options.device]
    command += ["--share", str(min(1.0, max(options.scale, 0.02))), "--repeats", "5" if options.scale == 1 else "1"]
    return {
        name: run([*command, "-c", setting], clock)
        for name, setting in (("by a pass", ""), ("from training", 'prototypes-from="training"'))
    }


def protonorm_round(options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """Seconds of a round of ProtoNorm's CIFAR-10 setting, one client after the other and together."""
    outcome = {}
    settings = f'rounds={ROUNDS} report=false device="{options.device}" dataset="{options.cifar10}"'
    clients = []
    if options.scale < 1:
        settings += ' max-samples=200 min-samples=2 local-epochs=1 partition="dirichlet" partition-table=""'
        clients = ["--clients", "4"]
    for engine in ("loop", "cohort"):
        folder = options.folder / f"protonorm-{engine}"
        shutil.rmtree(folder, ignore_errors=True)
        command = [PYTHON, "-m", "protosphere", "run", "--preset", "protonorm-cifar10", *clients, "--engine", engine]
        with Watch() as watch:
            run([*command, "--results", str(folder), "-c", settings], clock)
        (metrics,) = folder.glob("*/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        seconds = [line["time"]["round"] for line in lines if 1 < line["round"] <= ROUNDS]
        outcome[engine] = {"seconds": sorted(seconds)[len(seconds) // 2]} | watch.figures()
    return outcome


def cohort(options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """The cohort engine over the loop."""
    clients = ["20", "100", "1000"] if options.scale == 1 else ["3"]
    command = [PYTHON, "-m", "benchmarks.cohort", "--device", options.device, "--clients", *clients]
    if options.scale < 1:
        command += ["--batches", "2", "--repeats", "1"]
    return {"table": run(command, clock)}


def table(options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """ProtoNorm's Table 1 on CIFAR-10, seed by seed; what is finished stays."""
    results = options.folder / "tables"
    command = [PYTHON, "-m", "protosphere", "compare", "--preset", "protonorm-table1", "--datasets", "CIFAR-10"]
    command += ["--data", f"cifar10={options.cifar10}", "--results", str(results), "--reuse"]
    command += ["-c", f'device="{options.device}"']
    if options.scale < 1:
        command += ["--scale", str(options.scale), "--methods", "Local,FedProto (paper)"]
    outcome = {}
    for seed in range(3 if options.scale == 1 else 1):
        run([*command, "--seeds", str(seed)], clock)
        newest = max(results.glob("*-compare-*"))
        outcome[f"seed {seed}"] = (newest / "table.md").read_text()
    return outcome


STEPS: dict[str, Callable[[argparse.Namespace, Clock], dict[str, Any]]] = {
    "check": check,
    "htflib": htflib,
    "protonorm-round": protonorm_round,
    "cohort": cohort,
    "table": table,
}


def print_figures(done: dict[str, Any], device: str) -> None:
    """The Markdown."""
    print(f"\n## Measured on {device}\n")
    if "check" in done:
        for precision, sentence in done["check"].items():
            print(f"- contract and golden figures, {precision}: {sentence}")
    if "protonorm-round" in done:
        print(
            "\nA round of ProtoNorm's CIFAR-10 setting (`protonorm-cifar10`), median of the rounds after the first:\n"
        )
        print(table_head("engine", "seconds", "utilisation, %", "memory, GB"))
        for engine, figures in done["protonorm-round"].items():
            numbers = [f"{figures[name]:.1f}" if name in figures else "-" for name in ("utilisation", "memory")]
            print(table_row([engine, f"{figures['seconds']:.1f}", *numbers]))
    for name, outputs in done.items():
        if name in ("htflib", "cohort", "table"):
            for title, text in outputs.items():
                print(f"\n### {name}: {title}\n\n{text.strip()}")


def describe_device(device: str) -> str:
    """The card by its name, with the version of torch."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def main() -> None:
    """Run what is not done yet, and print all that is."""
    parser = described_parser(__doc__)
    parser.add_argument("--cifar10", required=True, help="a folder of CIFAR-10")
    parser.add_argument("--htflib", default="", help="a checkout of HtFLlib; without it that step is left out")
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path("results") / "gpu-hour")
    options = parser.parse_args()
    options.cifar10 = str(Path(options.cifar10).resolve())
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.device == "cuda" and not shutil.which("nvidia-smi"):
        sys.exit(
            "there is no nvidia-smi here, so there is no GPU to measure; --device cpu --scale 0.001 tries all out."
        )
    clock, record = Clock(options.minutes), options.folder / "steps.json"
    done = json.loads(record.read_text()) if record.exists() else {}
    for name, step in STEPS.items():
        if name in done or (name == "htflib" and not options.htflib):
            continue
        began = time.monotonic()
        try:
            done[name] = step(options, clock)
        except TimeUpError:
            print(f"- the time is up in {name}: the next call goes on there.", file=sys.stderr)
            break
        except RuntimeError as error:
            # the others are still worth their time
            print(f"- {name} failed: {error}", file=sys.stderr)
            continue
        print(f"- {name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        with replacing(record) as temporary:
            temporary.write_text(json.dumps(done))
    print_figures(done, describe_device(options.device))
    missing = [name for name in STEPS if name not in done]
    if missing:
        print(f"\nNot measured yet: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
