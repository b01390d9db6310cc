"""The same app on real machines: SuperLink and SuperNodes as processes over gRPC with TLS and node keys.

One deployment of two sites, started by the scripts of deploy/; while it trains, others knock at its door.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from deploy.demo import CONNECTION, Deployment, Site
from protosphere.cli.main import app
from protosphere.data.forms.table_schema import Column, TableSchema
from protosphere.launch.flower import free_port
from protosphere.launch.grid import LocalGrid
from tests.integration.watched import PATIENCE, Watched
from tests.steps import ONE_EPOCH
from tests.waiting import comes

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("tiny_perceptron", "perceptron")
DOMAINS = ("north", "south")
# one site forks its ClientApps, the other starts each from nothing: to the bit, both are as in one process
NAMES = {"name": "Clinic North & Co"}, {"warm": "no"}
SETTINGS = {"strategy": "fedproto", "rounds": 1, "feature-dim": 12, "dataset": "two-clinics", "device": "cuda:7"}
SETTINGS |= ONE_EPOCH
LIMIT = {"privacy-epsilon": "3", "privacy-delta": "1e-5"}
# by the old name of `encoder`, which must still work over Flower
RELEASE = {"privacy": "release", "privacy-encoder": "random", "privacy-epsilon": 2.0}
SENT_AWAY = "Connection attempt failed"  # a SuperNode says so and tries again, for ever


def assignments(settings):
    return " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


@pytest.fixture(scope="module")
def place():
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc to watch processes in")
    with tempfile.TemporaryDirectory(prefix="protosphere-test-") as folder:
        yield Path(folder)


def as_table(folder, seed):
    """A site's own rows as CSV, with the columns and classes that both sites agree on."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, 60)
    frame = pd.DataFrame({"age": 50 + 20 * label + rng.normal(0, 9, 60), "ward": rng.choice(["east", "west"], 60)})
    frame.loc[::9, "age"] = np.nan
    frame.assign(label=np.array(["well", "ill"])[label]).to_csv(folder / "rows.csv", index=False)
    columns = [Column("age", "number", missing=True), Column("ward", "category", ("east", "west"))]
    TableSchema(columns).save(folder / "columns.json")
    return folder / "rows.csv"


def as_arrays(folder, seed):
    """A site's own rows as a file of arrays."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, 60)
    np.savez(folder / "rows.npz", x=rng.normal(size=(60, 4)) + label[:, None], y=label)
    return folder / "rows.npz"


def sites_of(data):
    return [
        Site(i, {"data": str(path), "model": model, "device": "cpu", "domain": domain} | name | LIMIT)
        for i, (path, model, domain, name) in enumerate(zip(data, MODELS, DOMAINS, NAMES, strict=True))
    ]


@pytest.fixture(scope="module")
def files(place):
    """Of one site a table, of the other a file of arrays."""
    made = []
    for seed, (name, form) in enumerate(zip(DOMAINS, (as_table, as_arrays), strict=True)):
        (place / name).mkdir()
        (place / name / "classes.txt").write_text("well\nill\n")
        made.append(form(place / name, seed))
    return made


@pytest.fixture(scope="module")
def deployment(place, files):
    """A site of a table, and one of a file of arrays."""
    made = Deployment(place / "federation", sites_of(files), {"PROTOSPHERE_HOME": str(place / "home")})
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def strangers(place, deployment):
    """What each who must not come in has seen of it, while the run was on: (its exit code or None, its words)."""
    other = Deployment(place / "strangers", [Site(0)])
    other.make_credentials()
    ours, theirs, key = deployment.authority, other.authority, deployment.key(0)
    knocks = {
        "unknown key": ("--ca", ours, "--key", other.key(0)),
        "no TLS": ("--insecure",),
        "wrong authority": ("--ca", theirs, "--key", key),
    }
    return deployment, other, knocks


def front_door(deployment, settings):
    """`protosphere run --on superlink:NAME`, begun."""
    command = [
        sys.executable,
        "-m",
        "protosphere.cli.main",
        "run",
        "--on",
        f"superlink:{CONNECTION}",
        "-c",
        assignments(settings),
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=deployment.environment, text=True, **pipes)


@pytest.fixture(scope="module")
def finished(deployment, strangers):
    """A run over the deployment, and how strangers fared meanwhile."""
    run = front_door(deployment, SETTINGS)
    knocked = knock(*strangers)
    out, err = run.communicate(timeout=PATIENCE)
    return run.returncode, out, err, knocked


# what each says when it was sent away; "" where it ends. A SuperExec that is early says SENT_AWAY of its own node
SIGNS = {"unknown key": "", "no TLS": SENT_AWAY, "wrong authority": ""}


def knock(deployment, other, knocks):
    """Each stranger's SuperNode for partition 0, until it ended or was sent away."""
    processes = {}
    for number, (name, options) in enumerate(knocks.items()):
        log = other.folder / f"{number}.log"
        command = [ROOT / "deploy" / "supernode.sh", "--superlink", f"localhost:{deployment.fleet}"]
        own = ["--partition", "0", "--of", "2", "--state", other.folder / f"{number}", "--port", str(free_port())]
        own += ["--warm", "no"]
        with log.open("w") as out:
            started = subprocess.Popen(
                [str(word) for word in (*command, *own, *options)],
                env=deployment.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        processes[name] = started, log
    deadline = time.monotonic() + PATIENCE
    seen = {}
    for name, (process, log) in processes.items():
        while (code := process.poll()) is None and not (SIGNS[name] and SIGNS[name] in log.read_text()):
            assert time.monotonic() < deadline, f"{name}: {log.read_text()}"
            time.sleep(0.2)
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seen[name] = code, log.read_text()
    return seen


def folder_of(out):
    return Path(next(line for line in out.splitlines() if line.startswith("results: ")).removeprefix("results: "))


@pytest.fixture
def in_process(run, metrics, files):
    """The figures of the same run in this process."""

    def grid(config, nodes, workers):
        own = [
            node | {"data-path": str(path), "model": model, "domain": domain, "device": "cpu"}
            for node, path, model, domain in zip(nodes, files, MODELS, DOMAINS, strict=True)
        ]
        return LocalGrid(config, own, workers)

    return metrics(run({"max-samples": 0} | SETTINGS, clients=2, grid=grid))


# before the run of prototypes: the last test looks for those in the pages of a database that others would overwrite
def test_under_privacy_a_release_leaves_the_sites_and_figures_stay_there(deployment, metrics):
    out, err = front_door(deployment, SETTINGS | RELEASE).communicate(timeout=PATIENCE)
    assert err == ""
    folder = folder_of(out)
    lines = metrics(folder)
    assert [(line["problems"], line["clients"], "evaluation" in line) for line in lines] == [({}, {}, False)] * 2
    assert lines[1]["training"]["valid"] == 2
    for partition in range(2):
        state = deployment.folder / f"site-{partition}" / "state"
        (spent,) = [json.loads(line) for line in (state / "privacy" / "ledger.jsonl").read_text().splitlines()]
        assert (spent["run"], spent["unit"], spent["encoder"]) == (folder.name, "row", "random")
        kept = state / "clients" / folder.name / str(partition) / "figures.jsonl"
        assert "encoder" in json.loads(kept.read_text().splitlines()[-1])["correct"]


def test_the_run_ends_with_a_summary_and_each_site_keeps_its_model_to_itself(finished, deployment):
    code, out, err, _ = finished
    assert (code, err) == (0, "")
    folder = folder_of(out)
    assert folder.parent == deployment.home / "results"
    assert "-fedproto-two-clinics-" in folder.name
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["clients"], summary["rounds"], summary["problems"], summary["failures"]) == (2, 1, 0, {})
    roster = json.loads((folder / "roster.json").read_text())
    assert [(client["model"], client["domain"]) for client in roster] == list(zip(MODELS, DOMAINS, strict=True))
    # the first tells its name, the second is called by its domain
    assert [client["name"] for client in roster] == ["Clinic North & Co", DOMAINS[1]]
    assert ["its name" in client["discloses"] for client in roster] == [True, False]
    assert f"  names: client 0 (Clinic North & Co), 1 ({DOMAINS[1]})" in out
    for partition, model in enumerate(MODELS):
        clients = deployment.folder / f"site-{partition}" / "state" / "clients" / folder.name
        assert [path.name for path in clients.iterdir()] == [str(partition)]
        assert json.loads((clients / str(partition) / "client.json").read_text())["model"] == model
    assert [path for path in (deployment.home / "clients").rglob("*") if path.is_file()] == []


def test_the_same_metrics_to_the_bit_as_in_one_process(finished, metrics, in_process):
    """Weights: test_gate.py; mixtures: test_flwr_run.py."""
    assert metrics(folder_of(finished[1])) == in_process


def test_each_site_has_a_model_of_its_own_table_or_arrays_which_reads_them_as_they_are(finished, deployment, files):
    name = folder_of(finished[1]).name
    for number, file in enumerate(files):
        state = deployment.folder / f"site-{number}" / "state" / "clients" / name / str(number)
        found = CliRunner().invoke(app, ["predict", "--state", str(state), str(file), "--json"])
        assert (found.stderr, json.loads(found.stdout)["rows"]) == ("", 60)


def test_strangers_are_sent_away_and_leave_no_trace(finished, metrics, deployment):
    knocked = finished[3]
    _, words = knocked["unknown key"]
    # Flower's own number, which no exit code can be
    assert "Exit Code: 305" in words
    code, words = knocked["wrong authority"]
    assert code not in (0, None), words
    assert "CERTIFICATE_VERIFY_FAILED" in words
    code, words = knocked["no TLS"]
    assert SENT_AWAY in words or code
    assert "SuperNode ID" not in words
    listing = json.loads(deployment.flwr("supernode", "list", CONNECTION, "--format", "json"))
    # those that another test has ended stay in the list, as unregistered
    assert [node["status"] for node in listing["nodes"] if node["status"] != "unregistered"] == ["online"] * 2
    lines = metrics(folder_of(finished[1]))
    assert [line["problems"] for line in lines] == [{}] * 2
    assert [sorted(line["clients"]) for line in lines] == [["0", "1"]] * 2


# --- what a stopped SuperLink leaves ------------------------------------------------------------------------


def prototypes(deployment, name):
    """The bytes of every local prototype of a run that its sites keep: fedproto sends them as they are."""
    stores = deployment.folder.glob(f"site-*/state/clients/{name}/*/round-*.safetensors")
    return [row.tobytes() for path in stores for row in load_file(path)["prototypes/vectors"].numpy()]


def kept_of(vectors, deployment):
    """How many of the vectors lie in the SuperLink's database or its write-ahead log."""
    held = b"".join(path.read_bytes() for path in deployment.home.glob("superlink.db*"))
    return sum(vector in held for vector in vectors)


def end_superlink(deployment):
    for pid in deployment.alive():
        os.kill(pid, signal.SIGTERM)
    assert comes(lambda: not deployment.alive()), deployment.log().read_text()


def test_nothing_that_a_site_has_sent_is_left_when_the_superlink_has_ended(finished, deployment):
    vectors = prototypes(deployment, folder_of(finished[1]).name)
    # what was answered is deleted, and is there all the same
    assert kept_of(vectors, deployment) > 0
    end_superlink(deployment)
    assert kept_of(vectors, deployment) == 0


# --- make deploy-demo --------------------------------------------------------------------------------


def ports(folder):
    """The ports that the demo's processes listened on, by their own words."""
    config = (folder / "config" / "config.toml").read_text()
    return [int(config.partition("127.0.0.1:")[2].partition('"')[0])]


def refused(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_demo_stopped_by_ctrl_c_leaves_nothing(tmp_path):
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc to watch processes in")
    environment = os.environ | {"PROTOSPHERE_HOME": str(tmp_path / "own")}
    # with one of its sites: each is stopped alike
    code = "import sys; from deploy import demo; demo.MODELS = demo.MODELS[-1:]; sys.exit(demo.main('rounds=50'))"
    command = [sys.executable, "-c", code]
    watched = Watched(command, cwd=ROOT, env=environment, start_new_session=True)
    folder = tmp_path / "own" / "deploy-demo"
    deadline = time.monotonic() + PATIENCE
    # begun: the server's app is there, and sites are asked who they are
    while not any((folder.parent / "results").glob("*/status.json")):
        assert watched.process.poll() is None, watched.finish()
        assert time.monotonic() < deadline, "no run has begun"
        time.sleep(0.2)
    watched.process.send_signal(signal.SIGINT)
    assert watched.finish() == 130, watched.output
    assert "SIGINT: stopping" in watched.output
    assert "== stopped: SuperLink and SuperNodes, and all that they started" in watched.output
    assert "Traceback" not in watched.output
    # watchers, SuperLink, SuperNode, SuperExecs, front door, the server's app
    assert len(watched.seen) > 6
    assert watched.left() == set()
    assert all(map(refused, ports(folder)))
