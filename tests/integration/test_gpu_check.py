"""`make gpu-check` on a CPU at its small size, where the packages are missing that it does not need."""

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
    """check(): the process of the small check in this test's folder, which prints to a pipe."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCKED)
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu"]
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


def results_of(folder):
    file = folder / "check" / "small" / "results.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []


def processes_of(folder):
    """How many processes are called with this folder."""
    count = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += str(folder / "check").encode() in file.read_bytes()
        except OSError:
            continue
    return count


def rounds_of(results, method):
    return [line["round"] for line in results if line["case"] == f"table {method}"]


def assert_as_the_preset(folders):
    """The runs of Table 1 have the preset's constants and three thousandths of the authors' split, rounded up."""
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    samples = [sum(math.ceil(int(row[name]) * 0.003) for name in row if name != "client") for row in rows]
    runs = {run.settings["strategy"]: run for run in (protosphere.load("latest", results=path) for path in folders)}
    assert set(runs) == {"local", "fedproto", "protonorm"}
    assert runs["protonorm"].settings["protonorm.gamma"] == 100.0
    for run in runs.values():
        names = ("prototype-loss", "prototype-weight", "share-buffers", "feature-dim", "batch-size", "test-share")
        assert [run.settings[name] for name in names] == ["l2", 1.0, "own", 512, 32, 0.25]
        first = run.clients[run.clients["round"] == 1].set_index("client")
        assert first[["train_rows", "test_rows", "validation_rows"]].fillna(0).sum(axis=1).tolist() == samples


def test_all_steps_are_measured_and_after_a_kill_only_what_is_missing(check, tmp_path):
    process = check()
    while process.poll() is None and 2 not in rounds_of(results_of(tmp_path), "fedproto"):
        time.sleep(0.05)
    process.kill()
    process.wait()
    # so does what it has started
    while processes_of(tmp_path):
        time.sleep(0.1)
    before = results_of(tmp_path)
    assert rounds_of(before, "protonorm") == []

    process = check()
    output = process.communicate()[0]
    assert process.returncode == 0
    results = results_of(tmp_path)
    assert results[: len(before)] == before
    later = results[len(before) :]
    assert {line["case"].split()[0] for line in later} == {"checks", "table"}
    assert not [line for line in later if "test" in line]
    assert rounds_of(later, "local") == []
    assert 1 not in rounds_of(later, "fedproto")

    newest = {line["case"]: line for line in results}
    rates = [f"workers {name}, 2" for name in ("tiny models", "CNN", "ResNet-18")]
    tables = [f"table {method}" for method in ("local", "fedproto", "protonorm")]
    assert set(newest) == {"checks float32", "htflib ours", *rates, *tables}
    assert [line["outcome"] for line in results if "test" in line] == ["passed"]
    assert newest["htflib ours"]["processor"] > 0
    for case in rates:
        assert newest[case]["rate"] > 0
        # two workers and their parent have torch each
        assert newest[case]["host"] > 0.5
    for case in tables:
        # they learn the made-up images, which are a tenth of each class
        assert newest[case]["round"] == 3
        assert 0.3 < newest[case]["accuracy"] <= 1

    assert "absent requirements: none; wheels: no folder given\n" in output
    about = "{card}, driver -, torch {torch}, commit {commit}, size small".format(**newest["htflib ours"])
    assert about in output
    missing = [row for row in output.splitlines() if row.endswith("| not measured |")]
    assert [row.split(" | ")[1] for row in missing] == ["bf16", "HtFLlib, made-up images"]
    assert "| contract and golden figures | float32 | 1 of 1 tests passed, 0 failed |" in output
    assert "| ProtoNorm's Table 1 | fedproto, made-up images | 3 rounds of " in output
    assert_as_the_preset(sorted((tmp_path / "check" / "small" / "table").iterdir()))


def test_where_needed_packages_are_absent_it_names_them_and_installs_from_a_folder_of_wheels_alone(tmp_path):
    venv.create(tmp_path / "bare", with_pip=True)
    (tmp_path / "wheels").mkdir()
    command = [tmp_path / "bare" / "bin" / "python", "-m", "benchmarks.gpu_check", "--device", "cpu"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*more):
        return subprocess.run([*command, *more], cwd=ROOT, env=environment, capture_output=True, text=True)

    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    requirements = [re.sub(r"\[.*\]", "", requirement) for requirement in requirements]
    needed = [each for each in requirements if not re.match("(datasets|flwr-datasets|matplotlib)>", each)]
    needed += ["pytest>=8.3", "pyarrow"]

    done = run()
    assert done.returncode == 1
    assert f"absent requirements: {', '.join(needed)}; wheels: no folder given\n" in done.stdout
    words = " ".join(f"'{each}'" if each != "pyarrow" else each for each in needed)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"pip download --only-binary=:all: --python-version {version} --dest wheels {words}\n" in done.stderr

    done = run("--wheels", str(tmp_path / "wheels"))
    assert done.returncode == 1
    assert f"wheels: {tmp_path / 'wheels'}\n" in done.stdout
    assert f"pip did not find all of them in {tmp_path / 'wheels'}" in done.stderr
