"""The same app on real machines: SuperLink and SuperNodes as processes with TLS and node keys.

One deployment of two sites, started by the scripts of deploy/, behind nginx with the file of deploy/nginx where Flower
speaks HTTPS. While it trains, strangers try to take part; a stranger who has the public ca.crt can do nothing through
nginx that it could do at the SuperLink's own port.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from deploy.demo import CONNECTION, Deployment, Site
from protosphere.cli.main import app
from protosphere.core.flower import fleet_transport
from protosphere.data.forms.table_schema import Column, TableSchema
from protosphere.launch import processes
from protosphere.launch.flower import free_port
from protosphere.launch.grid import LocalGrid
from tests.deploy.test_nginx import NGINX, fleet_paths, start_nginx
from tests.integration.watched import PATIENCE, assignments, everybody, members
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
RELEASE = {"privacy": "release", "encoder": "random", "privacy-epsilon": 2.0}
HAS_GATE = fleet_transport() == "http" and NGINX is not None
behind_nginx = pytest.mark.skipif(not HAS_GATE, reason="no nginx, or a Flower with a port for SuperNodes alone")
APP = {
    "pyproject.toml": """
[project]
name = "stranger"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "stranger.server:app"
clientapp = "stranger.client:app"
""",
    "stranger/__init__.py": "",
    "stranger/server.py": """
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    print("the stranger's app runs")
""",
    "stranger/client.py": "from flwr.clientapp import ClientApp\napp = ClientApp()\n",
}
RUNTIME_PATHS = ("/v1/runtime/acquire-task", "/v1/runtime/pull-task-input", "/v1/runtime/get-nodes")
CONTROL_PATHS = ("/v1/control/list-runs", "/v1/control/start-run", "/v1/control/register-node")
SENT_AWAY = "Connection attempt failed"  # a SuperNode says so and tries again, for ever


class BehindNginx(Deployment):
    """A deployment whose sites call nginx."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.fleet = free_port()
        self.nginx_folder = self.folder / "nginx"

    def start_superlink(self):
        super().start_superlink()
        self.nginx = start_nginx(self.nginx_folder, self.folder / "credentials", self.fleet, self.port)
        assert comes(lambda: self.status(self.fleet, "/v1/fleet/get-run") == 401), self.errors()

    def stop(self):
        super().stop()
        processes.stop(self.nginx)

    def errors(self):
        return (self.nginx_folder / "error.log").read_text()

    def status(self, port, path):
        """The status of an empty call, None where the connection breaks."""
        headers = {"content-type": "application/protobuf"}
        try:
            with httpx.Client(verify=str(self.authority), trust_env=False, timeout=PATIENCE) as client:
                return client.post(f"https://127.0.0.1:{port}{path}", content=b"", headers=headers).status_code
        except httpx.HTTPError:
            return None


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
    kind = BehindNginx if HAS_GATE else Deployment
    made = kind(place / "federation", sites_of(files), {"PROTOSPHERE_HOME": str(place / "home")})
    try:
        made.start()
        yield made
    finally:
        made.stop()
        assert everybody(made) == set()


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
    """Mixtures: test_supernodes.py."""
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


# --- nginx -----------------------------------------------------------------------------------------------


def flwr_of_stranger(deployment, folder, port, *arguments):
    """The output, as JSON, of a stranger's `flwr`: it has ca.crt, and an address that it knows."""
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(
        f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{deployment.authority}"\n'
    )
    program = shutil.which("flwr", path=deployment.environment["PATH"])
    command = [program, *map(str, arguments), CONNECTION, "--format", "json"]
    environment = deployment.environment | {"FLWR_HOME": str(folder)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE)
    return run.stdout + run.stderr


@behind_nginx
def test_with_ca_crt_alone_a_stranger_starts_an_app_at_the_bare_port_and_none_through_nginx(deployment, tmp_path):
    app = tmp_path / "stranger"
    for name, text in APP.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)

    def runs():
        return len(json.loads(deployment.flwr("ls", CONNECTION, "--format", "json"))["runs"])

    before = runs()
    public = deployment.key(0).with_name("key.pub")
    for words in (("run", app), ("supernode", "register", public)):
        output = flwr_of_stranger(deployment, tmp_path / "outside", deployment.fleet, *words)
        assert '"success": true' not in output, output
    assert runs() == before
    output = flwr_of_stranger(deployment, tmp_path / "inside", deployment.port, "run", app)
    assert '"success": true' in output
    assert runs() == before + 1


@behind_nginx
def test_the_server_s_task_is_out_of_reach(deployment):
    """At the bare port, a SuperLink whose SuperExec has no secret gives it away; deploy/superlink.sh starts both with
    one, and so it says 401."""
    for path in (*RUNTIME_PATHS, *(f"/v1/fleet/..{path[3:]}" for path in RUNTIME_PATHS), *CONTROL_PATHS):
        assert deployment.status(deployment.fleet, path) == 404
    assert deployment.status(deployment.port, RUNTIME_PATHS[0]) == 401
    # these it serves to whoever comes: it finds fault with an empty body at most
    assert {deployment.status(deployment.port, path) for path in CONTROL_PATHS} & {None, 401, 404} == set()


@behind_nginx
def test_without_a_key_no_call_of_a_supernode_s_does_anything_and_none_registers_itself(deployment):
    for path in fleet_paths():
        assert deployment.status(deployment.fleet, path) == 401
    for name in ("register-node", "unregister-node"):
        assert deployment.status(deployment.fleet, f"/v1/fleet/{name}") == 404


@behind_nginx
def test_the_superlink_itself_listens_on_loopback_alone(deployment):
    listening = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A" and int(local.rpartition(":")[2], 16) == deployment.port:
                listening.add(local.rpartition(":")[0])
    assert listening == {"0100007F"}


@behind_nginx
def test_messages_go_through_nginx_and_none_is_written_to_its_disk(finished, deployment):
    calls = (deployment.nginx_folder / "access.log").read_text()
    assert re.search(r'"POST /v1/fleet/push-object HTTP/1.1" 200 ', calls)
    assert "temporary file" not in deployment.errors()


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
    for pid in members(deployment):
        os.kill(pid, signal.SIGTERM)
    assert comes(lambda: not members(deployment)), deployment.log().read_text()


def test_nothing_that_a_site_has_sent_is_left_when_the_superlink_has_ended(finished, deployment):
    vectors = prototypes(deployment, folder_of(finished[1]).name)
    # what was answered is deleted, and is there all the same
    assert kept_of(vectors, deployment) > 0
    end_superlink(deployment)
    assert kept_of(vectors, deployment) == 0
