"""`make gpu-check` on a CPU at its small size, where the packages are missing that it does not need."""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
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


def test_all_steps_are_measured_and_after_a_kill_only_what_is_missing(check, tmp_path):
    process = check()
    while process.poll() is None and not any(line["case"].startswith("htflib") for line in results_of(tmp_path)):
        time.sleep(0.05)
    process.kill()
    process.wait()
    # so does what it has started
    while processes_of(tmp_path):
        time.sleep(0.1)
    before = results_of(tmp_path)

    process = check()
    output = process.communicate()[0]
    assert process.returncode == 0
    results = results_of(tmp_path)
    assert results[: len(before)] == before
    assert {line["case"].split()[0] for line in results[len(before) :]} == {"checks", "workers"}

    newest = {line["case"]: line for line in results}
    rates = [f"workers {name}, 2" for name in ("tiny models", "CNN", "ResNet-18")]
    assert set(newest) == {"checks float32", "htflib ours", *rates}
    assert [line["outcome"] for line in results if "test" in line] == ["passed"]
    assert newest["htflib ours"]["processor"] > 0
    for case in rates:
        assert newest[case]["rate"] > 0
        # two workers and their parent have torch each
        assert newest[case]["host"] > 0.5

    assert "absent requirements: none; wheels: no folder given\n" in output
    about = "{card}, driver -, torch {torch}, commit {commit}, size small".format(**newest["htflib ours"])
    assert about in output
    missing = [row for row in output.splitlines() if row.endswith("| not measured |")]
    assert [row.split(" | ")[1] for row in missing] == ["bf16", "HtFLlib, made-up images"]
    assert "| contract and golden figures | float32 | of 1 tests 1 passed, 0 failed, 0 skipped |" in output


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


def test_a_step_that_there_is_none_of_is_refused():
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--steps", "checks,workers,speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--steps has speed; checks, htflib, workers are allowed" in done.stderr
