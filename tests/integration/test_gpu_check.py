"""`make gpu-check` on a CPU at its smallest size, where the packages are missing that it does not need."""

import csv
import json
import math
import os
import re
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

import pytest

import protosphere

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "protosphere" / "presets" / "partitions" / "protonorm-cifar10-dirichlet-0.1.csv"
# what site.py imports in each process: modules that cannot be imported, and packages that are not installed
BLOCKED = """
import importlib.metadata, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        for blocked in ("ray", "flwr.simulation", "matplotlib", "datasets", "flwr_datasets"):
            if name == blocked or name.startswith(blocked + "."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def distribution(name):
    if name in ("ray", "matplotlib", "datasets", "flwr-datasets"):
        raise importlib.metadata.PackageNotFoundError(name)
    return whole(name)

sys.meta_path.insert(0, Blocked())
whole, importlib.metadata.distribution = importlib.metadata.distribution, distribution
"""


@pytest.fixture
def check(tmp_path):
    """check(): the process of the smallest check in this test's folder, which prints to a pipe."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCKED)
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--size", "smallest"]
    command += ["--minutes", "30", "--folder", str(tmp_path / "check")]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"}
    processes = []

    def start():
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def lines_of(folder):
    file = folder / "check" / "smallest" / "results.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def processes_of(folder):
    """How many processes are called with this folder."""
    count = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += str(folder / "check").encode() in file.read_bytes()
        except OSError:
            continue
    return count


def rounds_of(lines, method):
    return [line["round"] for line in lines if line["case"] == f"{method}, made-up images"]


def assert_as_the_preset(folders):
    """The runs of Table 1 have the preset's constants and three thousandths of the authors' split, rounded up."""
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    held = [sum(math.ceil(int(row[name]) * 0.003) for name in row if name != "client") for row in rows]
    runs = {run.settings["strategy"]: run for run in (protosphere.load("latest", results=path) for path in folders)}
    assert set(runs) == {"local", "fedproto", "protonorm"}
    assert runs["protonorm"].settings["protonorm.gamma"] == 100.0
    for run in runs.values():
        names = ("prototype-loss", "prototype-weight", "share-buffers", "feature-dim", "batch-size", "test-share")
        assert [run.settings[name] for name in names] == ["l2", 1.0, "own", 512, 32, 0.25]
        first = run.clients[run.clients["round"] == 1].set_index("client")
        samples = first[["train_rows", "test_rows", "validation_rows"]].fillna(0).sum(axis=1)
        assert samples.tolist() == held


def test_all_steps_are_measured_and_after_a_kill_only_what_is_missing(check, tmp_path):
    process = check()
    while process.poll() is None and 2 not in rounds_of(lines_of(tmp_path), "fedproto"):
        time.sleep(0.05)
    process.kill()
    process.wait()
    # what it has started ends, too
    while processes_of(tmp_path):
        time.sleep(0.1)
    before = lines_of(tmp_path)
    assert rounds_of(before, "protonorm") == []

    process = check()
    output = process.communicate()[0]
    assert process.returncode == 0
    lines = lines_of(tmp_path)
    assert lines[: len(before)] == before
    fresh = lines[len(before) :]
    assert {line["step"] for line in fresh} == {"table"}
    assert rounds_of(fresh, "local") == []
    assert 1 not in rounds_of(fresh, "fedproto")
    newest = {(line["step"], line["case"]): line for line in lines}

    assert set(newest) == {
        ("checks", "float32 1/1"),
        ("htflib", "ours, made-up images"),
        *(("workers", f"{name}, 2") for name in ("tiny models", "CNN", "ResNet-18")),
        *(("table", f"{method}, made-up images") for method in ("local", "fedproto", "protonorm")),
    }
    checks = newest["checks", "float32 1/1"]
    assert (checks["tests"], checks["of"], checks["passed"], checks["failed"]) == (1, 1, 1, [])
    assert newest["htflib", "ours, made-up images"]["processor"] > 0
    for (step, _), line in newest.items():
        if step == "workers":
            assert line["rate"] > 0
            # two workers and their parent have torch each
            assert line["host"] > 0.5
        if step == "table":
            # they learn the made-up images, which are a tenth of each class
            assert line["round"] == line["of"] == 3
            assert 0.3 < line["accuracy"] <= 1
            assert 0.3 < line["best"] <= 1

    assert "absent and not needed here: datasets, matplotlib, ray\nabsent and needed: -\n" in output
    commit, card = newest["htflib", "ours, made-up images"]["commit"], lines[0]["card"]
    assert f"{card}, driver -, torch {lines[0]['torch']}, commit {commit}, size smallest" in output
    missing = [row for row in output.splitlines() if row.endswith("| not measured |")]
    assert [row.split(" | ")[1] for row in missing] == ["bf16", "HtFLlib, MNIST"]
    assert "| ProtoNorm's Table 1 | fedproto, made-up images | 3 rounds of " in output
    assert_as_the_preset(sorted((tmp_path / "check" / "smallest" / "table").iterdir()))


def test_where_needed_packages_are_absent_it_names_them_and_installs_from_a_folder_of_wheels_alone(tmp_path):
    venv.create(tmp_path / "bare", with_pip=True)
    (tmp_path / "wheels").mkdir()
    command = [tmp_path / "bare" / "bin" / "python", "-m", "benchmarks.gpu_check", "--device", "cpu"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*more):
        return subprocess.run([*command, *more], cwd=ROOT, env=environment, capture_output=True, text=True)

    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    requirements = [re.sub(r"\[.*\]", "", requirement) for requirement in requirements]
    needed = [each for each in requirements if not re.match("(datasets|matplotlib)>", each)]
    needed += ["pytest>=8.3", "pyarrow"]

    done = run()
    assert done.returncode == 1
    assert "absent and not needed here: datasets, matplotlib, ray\n" in done.stdout
    assert f"absent and needed: {', '.join(needed)}\n" in done.stdout
    words = " ".join(f"'{each}'" if each != "pyarrow" else each for each in needed)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"pip download --only-binary=:all: --python-version {version} --dest wheels {words}\n" in done.stderr

    done = run("--wheels", str(tmp_path / "wheels"))
    assert done.returncode == 1
    assert f"-m pip install --no-index --find-links {tmp_path / 'wheels'} {words}\n" in done.stdout
    assert f"pip found not all of them in {tmp_path / 'wheels'}" in done.stderr
