"""Checks and speed on a GPU in nine minutes, without a network: Markdown for docs/scale.md.

    make gpu-check HTFLIB=../HtFLlib
    python -m benchmarks.gpu_check --device cpu --size small

Three steps: every method's contract and golden figures, in float32 and bf16; a round of FedProto on MNIST, by HtFLlib
and by us; client-rounds per second by number of worker processes. Each step is a separate process, which ends after
--minutes and prints each result immediately. --steps selects steps.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import ROOT, described_parser, table_head, table_row, where

MODELS = {"tiny models": "tiny", "CNN": "cnn2", "ResNet-18": "resnet18"}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "tests": [],
        "processes": 4,
        "mnist": 0.25,
        "models": ("tiny models", "CNN", "ResNet-18"),
        "workers": (1, 8, 4, 2, 16),
        "clients": 20,
        "samples": 100,
    },
    "small": {
        "tests": ["-k", "golden and fedproto"],
        "processes": 0,
        "mnist": 0.01,
        "models": ("tiny models",),
        "workers": (2,),
        "clients": 2,
        "samples": 8,
    },
}


def print_row(*cells: str) -> None:
    """Print a line of the table."""
    print(table_row(cells), flush=True)


def tests_of_methods(options: argparse.Namespace, folder: Path) -> None:
    """The tests of `make cuda-check`, in each precision."""
    files = re.search(r"^CUDA_TESTS := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert files is not None
    size = SIZES[options.size]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(size["processes"])]
    command += [*files[1].replace("\\", " ").split(), *size["tests"]]

    for precision in ("float32",) if options.device == "cpu" else ("float32", "bf16"):
        environment = os.environ | {"PROTOSPHERE_TEST_DEVICE": options.device, "PROTOSPHERE_TEST_PRECISION": precision}
        run = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        counts = re.search(r"^=* ?(.*?) in [\d.]+s", run.stdout.splitlines()[-1] if run.stdout else "")
        if counts is None:
            sys.exit(f"pytest ended without a result:\n{run.stdout[-2000:]}")
        print_row("contract and golden figures", precision, counts[1])


def round_beside_htflib(options: argparse.Namespace, folder: Path) -> None:
    """Seconds of a round of FedProto on HtFLlib's MNIST partition; without a checkout, ours on generated images."""
    from benchmarks.against_htflib import CLIENTS, our_round, their_round, write_partition

    share, rounds, file = SIZES[options.size]["mnist"], 3, folder / "mnist.npz"
    if options.htflib:
        write_partition(options.htflib, file, share)
    else:
        write_images(file, (28, 28), round(52_500 * share), CLIENTS, round(17_500 * share))
    data = "MNIST" if options.htflib else "made-up images"
    print_row("a round of FedProto", f"ours, {data}", f"{our_round(file, rounds, options.device, {})[1]:.2f} s")
    if options.htflib:
        task = {"share": share, "rounds": rounds, "device": options.device}
        seconds = their_round(folder, options.htflib.resolve(), task)[1]
        print_row("a round of FedProto", f"HtFLlib, {data}", f"{seconds:.2f} s")


def rate_by_workers(options: argparse.Namespace, folder: Path) -> None:
    """Client-rounds per second, by number of worker processes and kind of model."""
    import protosphere

    size = SIZES[options.size]
    file = folder / "clients.npz"
    write_images(file, (32, 32, 3), size["samples"] * size["clients"], size["clients"])
    settings = {"rounds": 3, "device": options.device, "partition": "column", "partition_column": "client"}
    settings |= {"feature_dim": 512, "report": False, "results_dir": str(folder / "results")}

    for workers in size["workers"]:
        for name in size["models"]:
            run = protosphere.run(
                "fedproto",
                str(file),
                models=MODELS[name],
                clients=size["clients"],
                workers=workers,
                quiet=True,
                settings=settings,
            )
            # the first round starts processes and creates states
            seconds = median(run.rounds["seconds"].iloc[2:])
            print_row("client-rounds", f"{name}, workers={workers}", f"{size['clients'] / seconds:.1f}/s")


def write_images(file: Path, shape: tuple[int, ...], count: int, clients: int, test_count: int = 0) -> None:
    """Generated images: a pattern per class with noise; every client has samples of all classes."""
    import numpy as np

    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 128, (10, *shape), dtype=np.uint8)
    arrays: dict[str, Any] = {"classes": np.array(CLASSES)}
    for suffix, size in (("", count), ("_test", test_count)):
        if size:
            labels = np.arange(size) // clients % 10
            noise = rng.integers(0, 128, (size, *shape), dtype=np.uint8)
            columns = {"x": patterns[labels] + noise, "y": labels, "client": np.arange(size) % clients}
            arrays |= {name + suffix: values for name, values in columns.items()}
    np.savez(file, **arrays)


STEPS = {"tests": tests_of_methods, "htflib": round_beside_htflib, "workers": rate_by_workers}


def run_step(name: str, seconds: float) -> None:
    """Run a step in its own process, which is ended with its children when its time is up."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu_check", *sys.argv[1:], "--task", name]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        if process.wait(seconds):
            print_row(name, "all", "failed")
    except subprocess.TimeoutExpired:
        print_row(name, "the rest", f"not finished after {seconds:.0f} s")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def card_of(device: str) -> str:
    """The card and its driver.

    Raises:
        SystemExit: torch sees no GPU.
    """
    if device == "cpu":
        return "CPU"
    import torch

    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA GPU on this machine. --device cpu tries the check out.")
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.split("\n")[0]
    return f"{torch.cuda.get_device_name()}, driver {driver or 'unknown'}"


def main() -> None:
    """Print the table as Markdown."""
    parser = described_parser(__doc__)
    parser.add_argument("--htflib", type=Path, help="a checkout of HtFLlib; without it, ours runs alone")
    parser.add_argument("--minutes", type=float, default=3.0, help="for each step")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--task", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["PROTOSPHERE_HOME"] = f"{folder}/home"
            STEPS[options.task](options, Path(folder))
        return

    print(f"{card_of(options.device)}, {where()}\n\n{table_head('what', 'of', 'result', left=3)}", flush=True)
    for step in options.steps:
        run_step(step, 60 * options.minutes)


if __name__ == "__main__":
    main()
