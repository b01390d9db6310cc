"""nginx, with the file of deploy/nginx, before a real SuperLink of Flower 1.40 or newer: sites train through it, and a
stranger who has the public ca.crt can do nothing there that it could do at the SuperLink's own port."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

from deploy.demo import CONNECTION, Deployment, Site, write_sites
from protosphere.core.flower import fleet_transport
from protosphere.launch import processes
from protosphere.launch.flower import free_port
from protosphere.launch.grid import LocalGrid
from tests.deploy.test_nginx import fleet_paths, start_nginx
from tests.steps import ONE_EPOCH
from tests.waiting import comes

ROOT = Path(__file__).resolve().parents[2]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(fleet_transport() != "http", reason="this Flower has a port for SuperNodes alone"),
    pytest.mark.skipif(NGINX is None, reason="there is no nginx"),
]
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


class BehindNginx(Deployment):
    """A deployment whose sites call nginx."""

    def __init__(self, folder):
        super().__init__(folder, [Site(0, {}), Site(1, {})])
        self.fleet = free_port()

    def start_superlink(self):
        super().start_superlink()
        self.nginx = start_nginx(self.folder / "nginx", self.folder / "credentials", self.fleet, self.port)
        assert comes(lambda: self.status(self.fleet, "/v1/fleet/get-run") == 401), self.said()

    def stop(self):
        super().stop()
        processes.stop(self.nginx)

    def said(self):
        return (self.folder / "nginx" / "error.log").read_text()

    def status(self, port, target, body=b""):
        try:
            with httpx.Client(verify=str(self.authority), trust_env=False, timeout=20) as client:
                headers = {"content-type": "application/protobuf"}
                return client.post(f"https://127.0.0.1:{port}{target}", content=body, headers=headers).status_code
        except httpx.HTTPError:
            return None


@pytest.fixture(scope="module")
def served():
    with tempfile.TemporaryDirectory(prefix="protosphere-test-") as folder:
        deployment = BehindNginx(Path(folder) / "federation")
        deployment.make_credentials()
        try:
            deployment.start_superlink()
            yield deployment
        finally:
            deployment.stop()
            assert deployment.members() == set()


def flwr(served, folder, port, *arguments):
    """A stranger's `flwr`: it has ca.crt, and an address that it knows."""
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(
        f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{served.authority}"\n'
    )
    program = shutil.which("flwr", path=served.environment["PATH"])
    environment = served.environment | {"FLWR_HOME": str(folder)}
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=120)
    return done.stdout + done.stderr


def test_with_ca_crt_alone_a_stranger_starts_an_app_at_the_bare_port_and_none_through_nginx(served, tmp_path):
    app = tmp_path / "stranger"
    for name, text in APP.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)

    def runs():
        return len(json.loads(served.flwr("ls", CONNECTION, "--format", "json"))["runs"])

    public = served.key(0).with_name("key.pub")
    for words in (("run", app), ("supernode", "register", public)):
        said = flwr(served, tmp_path / "outside", served.fleet, *words, CONNECTION, "--format", "json")
        assert '"success": true' not in said, said
    assert runs() == 0
    said = flwr(served, tmp_path / "inside", served.port, "run", app, CONNECTION, "--format", "json")
    assert '"success": true' in said
    assert runs() == 1


def test_the_server_s_task_is_out_of_reach(served):
    """At the bare port, a SuperLink whose SuperExec has no secret gives it away; deploy/superlink.sh starts both with
    one, and so it says 401."""
    for path in (*RUNTIME_PATHS, *(f"/v1/fleet/..{path[3:]}" for path in RUNTIME_PATHS), *CONTROL_PATHS):
        assert served.status(served.fleet, path) == 404
    assert served.status(served.port, RUNTIME_PATHS[0]) == 401
    # these it serves to whoever comes: it finds fault with an empty body at most
    assert {served.status(served.port, path) for path in CONTROL_PATHS} & {None, 401, 404} == set()


def test_without_a_key_no_call_of_a_supernode_s_does_anything_and_none_registers_itself(served):
    for path in fleet_paths():
        assert served.status(served.fleet, path) == 401
    for name in ("register-node", "unregister-node"):
        assert served.status(served.fleet, f"/v1/fleet/{name}") == 404


def test_the_superlink_itself_listens_on_loopback_alone(served):
    listening = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A" and int(local.rpartition(":")[2], 16) == served.port:
                listening.add(local.rpartition(":")[0])
    assert listening == {"0100007F"}


def test_sites_train_through_nginx_with_the_metrics_of_one_process(served, clinics, run, metrics):
    """Weights cross, up in the round and down with the message that ends the run."""
    own = [{"model": "tiny_perceptron", "device": "cpu"} for _ in served.sites]
    for site, options in zip(served.sites, own, strict=True):
        site.options.update(options | {"data": str(clinics[site.partition])})
        served.register(served.key(site.partition))
        served.start_node(site.partition)
    settings = {"rounds": 1, "feature-dim": 12, "dataset": "clinics", "strategy": "lg-fedavg", "max-samples": 0}
    settings |= ONE_EPOCH
    command = [sys.executable, "-m", "protosphere.cli.main", "run", "--on", f"superlink:{CONNECTION}"]
    command += ["-c", " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())]
    done = subprocess.run(command, capture_output=True, text=True, env=served.environment, cwd=ROOT, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + served.log().read_text()
    (summary,) = served.home.glob("results/*/summary.json")
    content = json.loads(summary.read_text())
    assert (content["clients"], content["failures"]) == (2, {})

    def grid(config, nodes, workers):
        paths = ({"data-path": str(folder)} for folder in clinics)
        return LocalGrid(config, [a | b | c for a, b, c in zip(nodes, own, paths, strict=True)], workers)

    assert metrics(summary.parent) == metrics(run(settings, clients=2, grid=grid))
    calls = (served.folder / "nginx" / "access.log").read_text()
    assert re.search(r'"POST /v1/fleet/push-object HTTP/1.1" 200 ', calls)
    assert "temporary file" not in served.said()


@pytest.fixture(scope="module")
def clinics(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data"), 2)
