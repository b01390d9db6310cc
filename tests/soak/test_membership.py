"""Over real processes with TLS: a run starts with three of four sites, the fourth joins, another leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.demo_data import write_sites
from protosphere.record.folder import RunFolder
from tests.deployment import CONNECTION, Deployment, Site
from tests.integration.watched import members

pytestmark = [pytest.mark.integration, pytest.mark.soak]

MODELS = ("tiny_cnn", "tiny_cnn", "tiny_perceptron", "tiny_cnn")
SETTINGS = (
    "rounds=7 clients=4 min-clients=3 forget-after=1 start-timeout=120.0 round-timeout=90.0 "
    'dataset="digits-of-four-sites"'
)


@pytest.fixture
def deployment(tmp_path):
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc to watch processes in")
    roots = write_sites(tmp_path / "data", len(MODELS))
    sites = [
        Site(number, {"data": str(root), "model": model, "device": "cpu"})
        for number, (root, model) in enumerate(zip(roots, MODELS, strict=True))
    ]
    made = Deployment(tmp_path / "deployment", sites)
    try:
        made.make_credentials()
        made.start_superlink()
        for site in sites:
            made.register(made.key(site.partition))
        for partition in range(3):
            made.start_node(partition)
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("strategy", ["protosphere", "fedproto"])
def test_a_fourth_site_joins_and_one_leaves(deployment, tmp_path, strategy):
    command = [sys.executable, "-m", "protosphere.cli.main", "run", "--on", f"superlink:{CONNECTION}"]
    command += ["-c", f'strategy="{strategy}" {SETTINGS}', "--results", str(tmp_path / "results")]
    said = []
    with subprocess.Popen(command, env=deployment.environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            said.append(line)
            if line.startswith("round 2/7"):
                deployment.start_node(3)
            if line.startswith("round 4/7"):
                for process in members(deployment, 1):
                    os.kill(process, signal.SIGTERM)
    assert run.returncode == 0, "".join(said)
    (folder,) = (tmp_path / "results").iterdir()
    roster = {entry["partition"]: entry for entry in RunFolder(folder).roster()}
    assert 3 <= roster[3]["joined"] <= 5
    assert 5 <= roster[1]["left"] <= 7
    lines = {line["round"]: line for line in RunFolder(folder).lines()}
    trained = {p for p, client in lines[7]["clients"].items() if "training" in client}
    assert trained == {"0", "2", "3"}
    assert not lines[7]["problems"]
