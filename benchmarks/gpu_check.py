"""What a GPU has to show in nine minutes: Markdown for docs/gpu.md.

    make gpu-check DATA=../cifar10 HTFLIB=../HtFLlib WHEELS=../wheels
    python -m benchmarks.gpu_check --device cpu --minutes 3

Its steps: (a) each method's contract and golden figures on the GPU, in float32 and bf16; (b) a round of FedProto on
MNIST by HtFLlib and by us; (c) twenty clients in 1 to 16 worker processes; (d) ProtoNorm's Table 1 on CIFAR-10, as many
rounds as fit. Each runs in processes of its own, which are ended at its limit. A result is a line of results.jsonl as
soon as it is there, and the next call on the same commit and card goes on where this one ended.

It uses the Python API alone, and pytest for (a). The first second says which packages are absent.
"""

import argparse
import hashlib
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
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOT_NEEDED = ("ray", "matplotlib", "datasets")
OPTIONAL = {"pytest": "step (a)", "pyarrow": "step (d) on the images of --data, which are made up instead"}
LIMIT = 2 / 9  # of the minutes, of each step but the last
MODELS = {"tiny models": "tiny", "CNN": "cnn2", "ResNet-18": "resnet18"}
METHODS = ("local", "fedproto", "protonorm")
PARTITION = "protosphere/presets/partitions/protonorm-cifar10-dirichlet-0.1.csv"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ROUNDS = 300  # of ProtoNorm's Table 1


@dataclass(frozen=True)
class Size:
    """How much each step does.

    Attributes:
        tests, shards: of step (a), pytest's -k and the processes that share its tests.
        mnist: of step (b), the share of samples.
        workers, clients, samples: of step (c), the worker counts, the clients, and the samples of each.
        table, models, rounds: of step (d), the share of samples, the models ("" for the paper's), the rounds.
    """

    tests: str
    shards: int
    mnist: float
    workers: tuple[int, ...]
    clients: int
    samples: int
    table: float
    models: str = ""
    rounds: int = ROUNDS


SIZES = {
    "full": Size("", 4, 0.5, (1, 8, 4, 2, 16), 20, 100, 1.0),
    "small": Size("fedproto or protonorm", 1, 0.05, (1, 2), 4, 8, 0.02),
    "smallest": Size("test_golden and fedproto", 1, 0.01, (2,), 2, 8, 0.003, "tiny", 3),
}


class Job:
    """What every process of the check knows, and the results so far.

    Attributes:
        options: of the command line, with absolute paths, and `until`: seconds since the epoch.
        identity: commit, card and so on, of which results are.
    """

    def __init__(self, options: Mapping[str, Any]):
        self.options, self.size = options, SIZES[options["size"]]
        self.folder, self.device, self.identity = Path(options["folder"]), options["device"], options["identity"]
        self.images = "CIFAR-10" if options["data"] else "made-up images"
        self.precisions = ("float32", "bf16") if self.device != "cpu" else ("float32",)
        self.rounds_of = ["ours, made-up images"]
        if options["htflib"]:
            self.rounds_of = ["HtFLlib, MNIST", "ours, MNIST", "ours with prototypes from training, MNIST"]

    def lines(self, step: str, case: str) -> list[dict[str, Any]]:
        """The results of a case on this commit, card and size, the newest last."""
        file = self.folder / "results.jsonl"
        found = []
        for text in file.read_text().splitlines() if file.exists() else []:
            # what was cut while it was written is no result
            with suppress(ValueError):
                line = json.loads(text)
                if line.items() >= (self.identity | {"step": step, "case": case}).items():
                    found.append(line)
        return found

    def add(self, step: str, case: str, **figures: Any) -> None:
        """Write a result."""
        line = self.identity | {"step": step, "case": case} | figures
        with (self.folder / "results.jsonl").open("a") as file:
            file.write(f"\n{json.dumps(line)}" if file.tell() else json.dumps(line))

    def measure(self, step: str, case: str, figures: Callable[[], dict[str, Any]]) -> None:
        """Write what `figures` gives, or why it failed, unless there is a result of the case."""
        if any("failed" not in line for line in self.lines(step, case)):
            return
        try:
            self.add(step, case, **figures())
        except Exception as error:
            traceback.print_exc()
            self.add(step, case, failed=f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}")


def absent_packages() -> list[str]:
    """The project's requirements, and those of the check, that are not installed."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    absent = []
    for requirement in [*requirements, "pytest>=8.3", "pyarrow", "ray"]:
        # without extras: flwr[simulation] is Ray
        requirement = re.sub(r"\[.*?\]", "", requirement)
        try:
            version(name_of(requirement))
        except PackageNotFoundError:
            absent.append(requirement)
    return absent


def name_of(requirement: str) -> str:
    """`numpy` of `numpy>=1.26,<3`."""
    return re.split(r"[<>=!~ ]", requirement)[0]


def complete_packages(wheels: str) -> set[str]:
    """Say which packages are absent, install them from a folder of wheels, and give the names of those still absent."""
    absent = absent_packages()
    print(
        f"absent and not needed here: {', '.join(name for name in map(name_of, absent) if name in NOT_NEEDED) or '-'}"
    )
    needed = [requirement for requirement in absent if name_of(requirement) not in NOT_NEEDED]
    print(f"absent and needed: {', '.join(needed) or '-'}", flush=True)
    if needed and wheels:
        command = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", wheels, *needed]
        print(f"installing from {wheels}: {shlex.join(command)}", flush=True)
        if subprocess.run(command).returncode:
            sys.exit(f"pip found not all of them in {wheels}; what it lacks stands above. Add those wheels.")
        needed = []
    for name in OPTIONAL.keys() & set(map(name_of, needed)):
        print(f"without {name} there is no result of {OPTIONAL[name]}; --wheels installs it.")
    if not OPTIONAL.keys() >= set(map(name_of, needed)):
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        fetch = f"python -m pip download --only-binary=:all: --python-version {python} --dest wheels"
        sys.exit(
            f"Fetch them where there is a network: {fetch} {shlex.join(needed)}\nThen give that folder: --wheels wheels"
        )
    return set(map(name_of, needed))


def identity_of(options: argparse.Namespace) -> dict[str, str]:
    """What results are of."""
    import torch

    card, driver = platform.machine(), "-"
    if options.device != "cpu":
        if not torch.cuda.is_available():
            sys.exit("torch sees no CUDA GPU on this machine. --device cpu tries all out.")
        card = torch.cuda.get_device_name()
        driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0] or "-"
    commit = output_of("git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*") or "unknown"
    if commit == "unknown" or commit.endswith("dirty"):
        # results of other code are none of this
        digest = hashlib.sha256()
        for room in ("protosphere", "server_app", "client_app", "strategies", "models", "data"):
            for path in sorted((ROOT / room).rglob("*.py")):
                digest.update(path.read_bytes())
        commit += f"-{digest.hexdigest()[:8]}"
    return {"commit": commit, "card": card, "driver": driver, "torch": torch.__version__, "size": options.size}


def output_of(*command: str) -> str:
    """What a command prints, "" where it fails or is not there."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def end_with_parent() -> None:
    """End this process and all that it has started when its parent is gone, be it killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def run_jobs(jobs: Sequence[Mapping[str, Any]], until: float) -> None:
    """Each in a process of its own, all at once, ended at `until`, seconds since the epoch."""
    folder = Path(jobs[0]["folder"])
    environment = os.environ | {"PROTOSPHERE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    processes: list[subprocess.Popen[bytes]] = []
    with (folder / "log.txt").open("a") as log:
        try:
            for job in jobs:
                command = [sys.executable, "-m", "benchmarks.gpu_check", "--job", json.dumps(job | {"until": until})]
                processes.append(
                    subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
            for process in processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until - time.time()))
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def checks(job: Job, precision: str, shard: int) -> None:
    """The tests of `make cuda-check`, each `shards`-th of them."""
    os.environ |= {"PROTOSPHERE_TEST_DEVICE": job.device, "PROTOSPHERE_TEST_PRECISION": precision}
    import pytest

    case = f"{precision} {shard + 1}/{job.size.shards}"
    before = (job.lines("checks", case) or [{"tests": 0, "passed": 0, "failed": []}])[-1]
    if before["tests"] == before.get("of"):
        return

    class Shard:
        """Deselects what is not of this shard or has ended before, and writes how far it is every other second."""

        tests, passed, failed, written = before["tests"], before["passed"], list(before["failed"]), 0.0

        # after pytest's own -k
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            items[:] = items[shard :: job.size.shards]
            self.of = len(items)
            items[:] = items[self.tests :]

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.passed += report.passed and report.when == "call"
            if report.failed and report.nodeid not in self.failed:
                self.failed.append(report.nodeid)

        def pytest_runtest_logfinish(self) -> None:
            self.tests += 1
            if self.tests == self.of or time.time() > self.written + 2:
                job.add("checks", case, tests=self.tests, of=self.of, passed=self.passed, failed=self.failed)
                self.written = time.time()

    definition = re.search(r"^CUDA_TESTS := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert definition is not None
    flags = ["-q", "-p", "no:cacheprovider", f"--basetemp={job.folder / 'tests' / f'{precision}-{shard}'}"]
    (job.folder / "tests").mkdir(exist_ok=True)
    selection = ["-k", job.size.tests] if job.size.tests else []
    pytest.main([*flags, *selection, *definition[1].replace("\\", " ").split()], plugins=[Shard()])


def htflib(job: Job, case: str) -> None:
    """Seconds of a round of FedProto on HtFLlib's MNIST partition, or without a checkout of it on made-up images."""
    from benchmarks.against_htflib import CLIENTS, our_round, their_round, write_partition

    checkout, share, rounds = job.options["htflib"], job.size.mnist, 3

    def figures() -> dict[str, Any]:
        if case.startswith("HtFLlib"):
            task = {"share": share, "rounds": rounds, "device": job.device}
            processor, clock = their_round(job.folder, Path(checkout), task)
        else:
            file = job.folder / "home" / "mnist.npz"
            if checkout:
                write_partition(Path(checkout), file, share)
            else:
                write_images(file, (28, 28), CLIENTS, round(52_500 * share), round(17_500 * share))
            settings = {"prototypes_from": "training"} if "training" in case else {}
            processor, clock = our_round(file, rounds, job.device, settings)
        return {"seconds": round(float(clock), 3), "processor": round(float(processor), 3), "share": share}

    job.measure("htflib", case, figures)


def workers(job: Job) -> None:
    """Clients that share worker processes: client-rounds a second, and the memory of all in GB."""
    file = job.folder / "home" / "clients.npz"
    write_images(file, (32, 32, 3), job.size.clients, job.size.clients * job.size.samples)
    for count in job.size.workers:
        for name, models in MODELS.items():
            job.measure("workers", f"{name}, {count}", partial(client_rounds, job, file, models, count))


def client_rounds(job: Job, file: Path, models: str, count: int) -> dict[str, Any]:
    """Of a run of three rounds."""
    import protosphere

    before = gpu_memory(job.device)
    # at the end of a round torch still has what the round took
    memory: list[tuple[float, float]] = []
    settings = {"rounds": 3, "device": job.device, "partition": "column", "partition_column": "client"}
    settings |= {"feature_dim": 512, "report": False, "results_dir": str(job.folder / "workers")}
    run = protosphere.run(
        "fedproto",
        str(file),
        models=models,
        clients=job.size.clients,
        workers=count,
        quiet=True,
        on_round=lambda _: memory.append((host_memory(), gpu_memory(job.device) - before)),
        settings=settings,
    )
    # the first round makes states and starts processes
    seconds = median(run.rounds["seconds"].iloc[2:])
    host, gpu = map(max, zip(*memory, strict=True))
    return {"rate": round(job.size.clients / seconds, 2), "host": round(host, 2), "gpu": round(gpu, 2)}


def gpu_memory(device: str) -> float:
    """GB that are taken on the card, by whomever."""
    import torch

    if device == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def host_memory() -> float:
    """GB of this process and those that it has started; what they share counts once."""
    kilobytes = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        # a process may end meanwhile
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[2]) == os.getpgid(0):
                rollup = (status.parent / "smaps_rollup").read_text()
                kilobytes += sum(int(size) for size in re.findall(r"^Pss: +(\d+)", rollup, re.MULTILINE))
    return kilobytes / 1e6


def table(job: Job) -> None:
    """ProtoNorm's Table 1, CIFAR-10: each method has an equal share of the time that is left."""
    file, partition = write_table_data(job)
    # as many workers as made ResNet-18s the fastest
    rates = dict.fromkeys(job.size.workers, 0.0)
    for count in rates:
        for line in job.lines("workers", f"ResNet-18, {count}"):
            rates[count] = line.get("rate", 0.0)
    count = max(rates, key=rates.__getitem__) if any(rates.values()) else 1
    for number, method in enumerate(METHODS):
        share = (job.options["until"] - 5 - time.time()) / (len(METHODS) - number)
        table_run(job, method, {"dataset": str(file), "partition_table": str(partition)}, count, time.time() + share)


def table_run(job: Job, method: str, data: Mapping[str, str], count: int, end: float) -> None:
    """Begin the run of a method, or go on with it, until the next round would end after `end`."""
    import protosphere

    case = f"{method}, {job.images}"
    results = job.folder / "table" / re.sub(r"\W+", "-", "-".join([*job.identity.values(), case]))

    def note(figures: Mapping[str, Any]) -> bool:
        seconds, accuracy = float(figures["seconds"]), float(figures["accuracy"])
        job.add("table", case, round=figures["round"], seconds=seconds, accuracy=accuracy, of=figures["of_round"])
        return time.time() + seconds < end

    try:
        run = protosphere.load("latest", results=results)
    except protosphere.SettingError:
        # the preset has the paper's constants; as in its comparison running statistics stay with their clients
        settings = dict(data) | {"share_buffers": "own", "rounds": job.size.rounds, "device": job.device}
        settings |= {"report": False, "results_dir": str(results)}
        if job.size.models:
            settings["models"] = job.size.models
        run = protosphere.run(
            method, preset="protonorm-cifar10", workers=count, on_round=note, quiet=True, settings=settings
        )
    else:
        if run.status["round"] == job.size.rounds:
            return
        run = protosphere.run(resume=run.folder, workers=count, on_round=note, quiet=True)
    last, accuracy = int(run.rounds.index[-1]), float(run.rounds["accuracy"].iloc[-1])
    best = run.summary["rules"][run.summary["headline"]["rule"]]["client-best-unweighted"]
    seconds = median(run.rounds["seconds"].iloc[1:])
    job.add("table", case, round=last, seconds=seconds, accuracy=accuracy, of=last, best=best, workers=count)


def write_images(file: Path, shape: tuple[int, ...], clients: int, rows: int, test_rows: int = 0) -> None:
    """Made-up images of ten classes, each a pattern under noise; each client has samples of all classes."""
    import numpy as np

    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 128, (10, *shape), dtype=np.uint8)
    arrays = {"classes": np.array(CLASSES)}
    for end, count in (("", rows), ("_test", test_rows)):
        if count:
            numbers = np.arange(count)
            labels = numbers // clients % 10
            noise = rng.integers(0, 128, (count, *shape), dtype=np.uint8)
            arrays |= {f"x{end}": patterns[labels] + noise, f"y{end}": labels, f"client{end}": numbers % clients}
    np.savez(file, **arrays)


def write_table_data(job: Job) -> tuple[Path, Path]:
    """The files of step (d): CIFAR-10, or as many made-up images, and how many of each class a client holds."""
    import numpy as np

    head, *rows = (ROOT / PARTITION).read_text().splitlines()
    counts = np.array([row.split(",")[1:] for row in rows], dtype=np.int64)
    counts = np.ceil(counts * job.size.table).astype(np.int64)
    file, partition = job.folder / "home" / f"{job.images}.npz", job.folder / "home" / "partition.csv"
    lines = [",".join(map(str, [client, *row])) for client, row in enumerate(counts.tolist())]
    partition.write_text("\n".join([head, *lines]) + "\n")
    if not file.exists():
        unfinished = file.with_name("unfinished.npz")
        wanted = counts.sum(axis=0)
        if job.options["data"]:
            write_cifar10(Path(job.options["data"]), unfinished, wanted)
        else:
            write_images(unfinished, (32, 32, 3), 1, 10 * (int(wanted.max()) + 1))
        unfinished.rename(file)
    return file, partition


def write_cifar10(folder: Path, file: Path, wanted: Any) -> None:
    """The first `wanted` (10,) images of each class in a folder with train.parquet and test.parquet."""
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    images = pa.concat_tables([pq.read_table(folder / f"{split}.parquet") for split in ("train", "test")])
    labels = images["label"].to_numpy()
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == k)[: wanted[k]] for k in range(10)]))
    cells = images["image"].take(pa.array(chosen)).to_pylist()
    pixels = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in cells]
    np.savez(file, x=np.stack(pixels), y=labels[chosen], classes=np.array(CLASSES))


def markdown(job: Job) -> str:
    """All results, as a table."""
    rows = []
    for precision in ("float32", "bf16"):
        shards = [job.lines("checks", f"{precision} {n + 1}/{job.size.shards}")[-1:] for n in range(job.size.shards)]
        lines = [line for shard in shards for line in shard]
        tests, passed = (sum(line[name] for line in lines) for name in ("tests", "passed"))
        failed = sum(len(line["failed"]) for line in lines)
        text = f"{passed} tests passed, {failed} failed" if lines else ""
        if len(lines) < len(shards) or tests < sum(line["of"] for line in lines):
            text += ", others were not run" if lines else ""
        rows.append(("contract and golden figures", precision, text))
    for case in dict.fromkeys(["HtFLlib, MNIST", *job.rounds_of]):
        text = result(job, "htflib", case, "{seconds:.2f} s, CPU {processor:.2f} s, {share:.0%} of the samples")
        rows.append(("a round of FedProto", case, text))
    form = "{rate:.1f}/s, {host:.1f} GB" + (", {gpu:.1f} GB on the GPU" if job.device != "cpu" else "")
    for name in MODELS:
        for count in sorted(job.size.workers):
            text = result(job, "workers", f"{name}, {count}", form)
            rows.append((f"client-rounds of {job.size.clients} clients", f"{name}, workers={count}", text))
    for method in METHODS:
        case, text = f"{method}, {job.images}", ""
        if lines := job.lines("table", case):
            last, seconds = lines[-1], median(line["seconds"] for line in lines)
            text = f"{last['round']} rounds of {seconds:.2f} s; {100 * last['accuracy']:.1f} % after round {last['of']}"
            text += f", mean of each client's best {100 * last['best']:.1f} %" if "best" in last else ""
            text += f"; {ROUNDS} rounds: {ROUNDS * seconds / 3600:.2f} h"
        rows.append(("ProtoNorm's Table 1", case, text))
    about = "{card}, driver {driver}, torch {torch}, commit {commit}, size {size}".format(**job.identity)
    body = "\n".join(f"| {what} | {case} | {text or 'not measured'} |" for what, case, text in rows)
    return f"{about}\n\n| what | of | result |\n|---|---|---|\n{body}\n"


def result(job: Job, step: str, case: str, form: str) -> str:
    """The newest result of a case, "" for none."""
    lines = job.lines(step, case)
    if not lines:
        return ""
    return f"failed: {lines[-1]['failed']}" if "failed" in lines[-1] else form.format(**lines[-1])


def main() -> None:
    """Measure what is not measured yet, and print all that is."""
    began = time.time()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="a folder of CIFAR-10; without it images are made up")
    parser.add_argument("--htflib", default="", help="a checkout of HtFLlib; without it ours runs alone")
    parser.add_argument("--wheels", default="", help="a folder of wheels of packages that are absent")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--size", choices=SIZES, help="by default full, small on a CPU")
    parser.add_argument("--folder", type=Path, default=Path("results") / "gpu-check")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        end_with_parent()
        job = Job(json.loads(options.job))
        steps: dict[str, Callable[..., None]] = {
            "checks": checks,
            "htflib": htflib,
            "workers": workers,
            "table": table,
        }
        steps[job.options["step"]](job, *job.options["arguments"])
        return

    absent = complete_packages(options.wheels)
    options.size = options.size or ("small" if options.device == "cpu" else "full")
    folder = options.folder.resolve() / options.size
    (folder / "home").mkdir(parents=True, exist_ok=True)
    common = {"size": options.size, "device": options.device, "folder": str(folder), "identity": identity_of(options)}
    for name, place in (("data", "" if "pyarrow" in absent else options.data), ("htflib", options.htflib)):
        common[name] = str(Path(place).resolve()) if place else ""
    job = Job(common)
    # those of a wave run at once, one wave after the other
    waves: dict[str, list[list[tuple[Any, ...]]]] = {
        "checks": [[(precision, shard) for precision in job.precisions for shard in range(job.size.shards)]],
        "htflib": [[(case,)] for case in job.rounds_of],
        "workers": [[()]],
        "table": [[()]],
    }
    if "pytest" in absent:
        del waves["checks"]
    # five seconds to end processes and print
    deadline = began + 60 * options.minutes - 5
    for step, step_waves in waves.items():
        start = time.time()
        until = deadline if step == "table" else min(deadline, start + LIMIT * 60 * options.minutes)
        for wave in step_waves:
            if time.time() < until:
                run_jobs([common | {"step": step, "arguments": arguments} for arguments in wave], until)
        print(f"{step}: {time.time() - start:.0f} s", flush=True)
    text = markdown(job)
    (folder / "table.md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
