"""What a GPU has to show in nine minutes: Markdown for docs/scale.md.

    make gpu-check HTFLIB=../HtFLlib WHEELS=../wheels
    python -m benchmarks.gpu_check --device cpu --minutes 3

Three steps, each in processes of its own that end after a quarter of the time: each method's contract and golden
figures in float32 and bf16; a round of FedProto on MNIST by HtFLlib and by us; twenty clients in 1 to 16 worker
processes. A result is a line of results.jsonl as soon as it is there. The next call on the same commit and card
measures what is missing.
"""

import argparse
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOT_NEEDED = {"flwr-datasets", "ray", "matplotlib", "datasets"}
MODELS = {"tiny models": "tiny", "CNN": "cnn2", "ResNet-18": "resnet18"}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "tests": [],
        "shards": 4,
        "mnist": 0.25,
        "workers": (1, 8, 4, 2, 16),
        "clients": 20,
        "samples": 100,
    },
    "small": {
        "tests": ["-k", "golden and fedproto"],
        "shards": 1,
        "mnist": 0.01,
        "workers": (2,),
        "clients": 2,
        "samples": 8,
    },
}


class Results:
    """The lines of results.jsonl that are of this commit, card and size."""

    def __init__(self, file: Path, identity: Mapping[str, str]):
        self.file, self.identity = file, identity

    def of(self, case: str) -> list[dict[str, Any]]:
        """The results of a case, the newest last."""
        lines = []
        for text in self.file.read_text().splitlines() if self.file.exists() else []:
            # a line may have been cut by a kill
            with suppress(ValueError):
                line = json.loads(text)
                if line.items() >= {**self.identity, "case": case}.items():
                    lines.append(line)
        return lines

    def add(self, case: str, **figures: Any) -> None:
        """Append a result; the line break comes first, so that a cut line spoils no other."""
        with self.file.open("a") as file:
            file.write("\n" + json.dumps({**self.identity, "case": case, **figures}))


def absent_requirements() -> list[str]:
    """What the steps need and this Python lacks."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    absent = []
    for requirement in [*requirements, "pytest>=8.3", "pyarrow"]:
        # flwr[simulation] is Ray
        requirement = re.sub(r"\[.*?\]", "", requirement)
        name = re.split(r"[<>=!~ ]", requirement)[0]
        try:
            version(name)
        except PackageNotFoundError:
            if name not in NOT_NEEDED:
                absent.append(requirement)
    return absent


def install(wheels: str) -> None:
    """Name the absent requirements and install them from a folder of wheels, without a network."""
    absent = absent_requirements()
    print(f"absent requirements: {', '.join(absent) or 'none'}; wheels: {wheels or 'no folder given'}", flush=True)
    if not absent:
        return
    if not wheels:
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        fetch = f"python -m pip download --only-binary=:all: --python-version {python} --dest wheels"
        sys.exit(f"Fetch them where there is a network: {fetch} {shlex.join(absent)}\nThen pass --wheels wheels.")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", wheels, *absent]
    if subprocess.run(command).returncode:
        sys.exit(f"pip did not find all of them in {wheels}; its message above names what to add.")


def identity_of(options: argparse.Namespace) -> dict[str, str]:
    """What a result is of."""
    import torch

    card, driver = platform.machine(), "-"
    if options.device != "cpu":
        if not torch.cuda.is_available():
            sys.exit("torch sees no CUDA GPU on this machine. --device cpu tries the check out.")
        card = torch.cuda.get_device_name()
        driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    data = "MNIST" if options.htflib else "made-up images"
    commit = output_of("git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*")
    return {
        "commit": commit,
        "card": card,
        "driver": driver,
        "torch": torch.__version__,
        "size": options.size,
        "data": data,
    }


def output_of(*command: str) -> str:
    """What a command prints; "unknown" where it fails."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# ---------------------------------------------------------------------- steps


def checks(options: argparse.Namespace, results: Results, precision: str, shard: str) -> None:
    """Every `shards`-th test of `make cuda-check` that has no result yet."""
    os.environ |= {"PROTOSPHERE_TEST_DEVICE": options.device, "PROTOSPHERE_TEST_PRECISION": precision}
    import pytest

    case, shards = f"checks {precision}", SIZES[options.size]["shards"]
    tested = {line["test"] for line in results.of(case) if "test" in line}

    class Shard:
        @pytest.hookimpl(trylast=True)  # after -k
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            results.add(case, tests=len(items))
            items[:] = [item for item in items[int(shard) :: shards] if item.nodeid not in tested]

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome != "passed":
                results.add(case, test=report.nodeid, outcome=report.outcome)

    files = re.search(r"^CUDA_TESTS := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert files is not None
    tests = [*files[1].replace("\\", " ").split(), *SIZES[options.size]["tests"]]
    folder = options.folder / f"tests-{precision}-{shard}"
    pytest.main(["-q", "-p", "no:cacheprovider", f"--basetemp={folder}", *tests], plugins=[Shard()])


def htflib(options: argparse.Namespace, results: Results, side: str) -> None:
    """Seconds of a round of FedProto on HtFLlib's MNIST partition; without a checkout, of ours on made-up images."""
    from benchmarks.against_htflib import CLIENTS, our_round, their_round, write_partition

    share, rounds, file = SIZES[options.size]["mnist"], 3, options.folder / "mnist.npz"
    if side == "HtFLlib":
        task = {"share": share, "rounds": rounds, "device": options.device}
        processor, clock = their_round(options.folder, options.htflib, task)
    else:
        if options.htflib:
            write_partition(options.htflib, file, share)
        else:
            write_images(file, (28, 28), round(52_500 * share), CLIENTS, round(17_500 * share))
        processor, clock = our_round(file, rounds, options.device, {})
    results.add(f"htflib {side}", seconds=round(float(clock), 3), processor=round(float(processor), 3))


def workers(options: argparse.Namespace, results: Results) -> None:
    """Client-rounds a second and memory in GB, by number of worker processes and kind of model."""
    clients, file = SIZES[options.size]["clients"], options.folder / "clients.npz"
    write_images(file, (32, 32, 3), SIZES[options.size]["samples"] * clients, clients)
    for count in SIZES[options.size]["workers"]:
        for name, models in MODELS.items():
            case = f"workers {name}, {count}"
            if not results.of(case):
                results.add(case, **client_rounds(options, file, models, clients, count))


def client_rounds(options: argparse.Namespace, file: Path, models: str, clients: int, count: int) -> dict[str, float]:
    """Rate and memory of a run of three rounds."""
    import protosphere

    if options.device != "cpu":
        import torch

        # what torch keeps of the run before would count as there already
        torch.cuda.empty_cache()
    before = gpu_memory(options.device)
    memory: list[tuple[float, float]] = []

    def note(_: Mapping[str, Any]) -> None:
        memory.append((host_memory(), gpu_memory(options.device) - before))

    settings: dict[str, Any] = {
        "rounds": 3,
        "device": options.device,
        "partition": "column",
        "partition_column": "client",
    }
    settings |= {"feature_dim": 512, "report": False, "results_dir": str(options.folder / "workers")}
    run = protosphere.run(
        "fedproto",
        str(file),
        models=models,
        clients=clients,
        workers=count,
        quiet=True,
        on_round=note,
        settings=settings,
    )
    # the first round starts processes and makes states
    seconds = median(run.rounds["seconds"].iloc[2:])
    host, gpu = (max(figures) for figures in zip(*memory, strict=True))
    return {"rate": round(clients / seconds, 2), "host": round(host, 2), "gpu": round(gpu, 2)}


def gpu_memory(device: str) -> float:
    """GB in use on the card, by whomever."""
    import torch

    if device == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def host_memory() -> float:
    """GB of this process and its children; shared pages count once."""
    kilobytes = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # a process may end meanwhile
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[2]) == os.getpgid(0):
                sizes = re.findall(r"^Pss: +(\d+)", (stat.parent / "smaps_rollup").read_text(), re.MULTILINE)
                kilobytes += sum(map(int, sizes))
    return kilobytes / 1e6


# ----------------------------------------------------------------------- data


def write_images(file: Path, shape: tuple[int, ...], count: int, clients: int = 1, test_count: int = 0) -> None:
    """Made-up images: a pattern per class under noise; every client has samples of all classes."""
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


# ----------------------------------------------------------- processes, table


def end_with_parent() -> None:
    """End this process and its children when its parent is gone, killed or not."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def run_tasks(tasks: list[str], folder: Path, until: float) -> None:
    """Run tasks side by side, each in a process of its own, until `until` (seconds since the epoch)."""
    environment = os.environ | {"PROTOSPHERE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu_check", *sys.argv[1:], "--task"]
    with (folder / "log.txt").open("a") as log:
        processes = [
            subprocess.Popen([*command, task], env=environment, stdout=log, stderr=log, start_new_session=True)
            for task in tasks
        ]
        for process in processes:
            try:
                process.wait(max(0.1, until - time.time()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def markdown(options: argparse.Namespace, results: Results) -> str:
    """All results as a table."""
    about = "{card}, driver {driver}, torch {torch}, commit {commit}, size {size}".format(**results.identity)
    lines = [f"| {what} | {case} | {text or 'not measured'} |" for what, case, text in rows_of(options, results)]
    return "\n".join([about, "", "| what | of | result |", "|---|---|---|", *lines, ""])


def rows_of(options: argparse.Namespace, results: Results) -> Iterator[tuple[str, str, str]]:
    """What was measured, of what, and the result, "" for none."""
    for precision in ("float32", "bf16"):
        outcomes = {line["test"]: line["outcome"] for line in results.of(f"checks {precision}") if "test" in line}
        total = max((line.get("tests", 0) for line in results.of(f"checks {precision}")), default=0)
        counts = Counter(outcomes.values())
        text = f"of {total} tests {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
        text = text if outcomes else ""
        yield "contract and golden figures", precision, text
    for side in ("HtFLlib", "ours"):
        text = "".join(f"{line['seconds']:.2f} s" for line in results.of(f"htflib {side}")[-1:])
        yield "a round of FedProto", f"{side}, {'MNIST' if options.htflib else 'made-up images'}", text
    for name in MODELS:
        for count in sorted(SIZES[options.size]["workers"]):
            form = "{rate:.1f}/s, {host:.1f} GB, {gpu:.1f} GB on the GPU"
            text = "".join(form.format(**line) for line in results.of(f"workers {name}, {count}")[-1:])
            yield "client-rounds", f"{name}, workers={count}", text


def main() -> None:
    """Measure what is missing and print all results."""
    start = time.time()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--htflib", type=Path, help="a checkout of HtFLlib; without it, ours runs alone")
    parser.add_argument("--wheels", default="", help="a folder of wheels of absent packages")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--size", choices=SIZES, help="full; on a CPU small")
    parser.add_argument("--folder", type=Path, default=Path("results") / "gpu-check")
    parser.add_argument("--steps", default="checks,htflib,workers", help="some of the three, separated by commas")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps: dict[str, Callable[..., None]] = {step.__name__: step for step in (checks, htflib, workers)}
    unknown = set(options.steps.split(",")) - steps.keys()
    if unknown:
        parser.error(f"--steps has {', '.join(sorted(unknown))}; {', '.join(steps)} are allowed, separated by commas")
    if not options.task:
        install(options.wheels)
    options.size = options.size or ("small" if options.device == "cpu" else "full")
    options.folder = options.folder.resolve() / options.size
    options.folder.mkdir(parents=True, exist_ok=True)
    results = Results(options.folder / "results.jsonl", identity_of(options))
    if options.task:
        end_with_parent()
        step, *arguments = options.task.split(":")
        steps[step](options, results, *arguments)
        return

    precisions = ("float32",) if options.device == "cpu" else ("float32", "bf16")
    shards = range(SIZES[options.size]["shards"])
    sides = [side for side in ("HtFLlib", "ours") if side == "ours" or options.htflib]
    groups = [[f"checks:{precision}:{shard}" for precision in precisions for shard in shards]]
    groups += [[f"htflib:{side}"] for side in sides if not results.of(f"htflib {side}")]
    groups += [["workers"]]
    # five seconds to end processes and print
    deadline = start + 60 * options.minutes - 5
    for tasks in groups:
        if tasks[0].split(":")[0] not in options.steps.split(","):
            continue
        run_tasks(tasks, options.folder, min(deadline, time.time() + 60 * options.minutes / 4))
    text = markdown(options, results)
    (options.folder / "table.md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
