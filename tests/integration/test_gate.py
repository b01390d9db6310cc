"""A stranger before a real SuperLink of Flower 1.40 or newer, with nothing in hand but the public ca.crt: what it could
do at the SuperLink's own port, it cannot where sites call."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import httpx
import pytest
import yaml

from deploy.demo_data import write_sites
from deploy.deployment import CONNECTION, Deployment, Site
from protosphere.core.flower import FLEET_PATHS, SELF_REGISTRATION, fleet_transport
from protosphere.launch.grid import LocalGrid
from protosphere.launch.processes import Family
from protosphere.launch.superlink import free_port
from tests.waiting import comes

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        fleet_transport() != "http", reason="the Fleet API of this Flower is gRPC, at a port of its own"
    ),
]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
STARTS = ("by Compose", "behind nginx")
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
[tool.flwr.app.config]
secret = "what nobody else may read"
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


BY_HAND = ["deploy/superlink.sh", "--credentials", "/keys", "--state", "/state"]


def command_of(kind: str) -> list[str]:
    """How the SuperLink is started: the words of the file that does it."""
    if kind == "by Compose":
        return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["superlink"]["command"]
    if kind == "by systemd":
        unit = (ROOT / "deploy" / "systemd" / "protosphere-superlink.service").read_text()
        (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
        return shlex.split(line.removeprefix("ExecStart="))
    return BY_HAND


class Served(Deployment):
    """A deployment whose SuperLink is started as one of the files in deploy/ does it, at ports of its own."""

    def __init__(self, folder: Path, kind: str):
        super().__init__(folder, [Site(0, {}), Site(1, {})])
        self.kind = kind
        self._proxy = Family()

    def start_superlink(self) -> None:
        places = {"/keys": self.folder / "credentials", "/state": self.home}
        program, *words = command_of(self.kind)
        assert program.endswith("deploy/superlink.sh")
        own = ["--port", self.port, *(["--no-gate"] if self.kind == "behind nginx" else ["--fleet", self.place])]
        command = [ROOT / "deploy" / "superlink.sh", *(places.get(word, word) for word in words), *own]
        self._superlink = Family()
        with self.log().open("a") as out:
            self._superlink.start(
                [str(word) for word in command], env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )
        if self.kind == "behind nginx":
            self.start_nginx()
        for port in (self.port, self.fleet):
            assert comes(lambda port=port: self.status(port, "/health") is not None), self.log().read_text()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.fleet}"

    def start_nginx(self) -> None:
        """With the file of deploy/nginx, whose addresses and paths are those of a real machine."""
        text = (ROOT / "deploy" / "nginx" / "protosphere-gate.conf").read_text()
        for was, own in (
            ("listen [::]:9092", f"listen [::1]:{self.fleet}"),
            ("listen 9092", f"listen 127.0.0.1:{self.fleet}"),
            ("/etc/protosphere", str(self.folder / "credentials")),
            ("127.0.0.1:8000", f"127.0.0.1:{self.port}"),
        ):
            assert was in text
            text = text.replace(was, own)
        place = self.folder / "nginx"
        place.mkdir()
        (place / "gate.conf").write_text(text)
        (place / "nginx.conf").write_text(
            f"pid {place}/pid; error_log {place}/error.log; daemon off; events {{}}\n"
            f"http {{ access_log {place}/access.log; client_body_temp_path {place}/b; proxy_temp_path {place}/p;\n"
            f"fastcgi_temp_path {place}/f; uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;\n"
            f"include {place}/gate.conf; }}\n"
        )
        with self.log().open("a") as out:
            command = [str(NGINX), "-p", str(place), "-e", str(place / "error.log"), "-c", str(place / "nginx.conf")]
            self._proxy.start(command, stdout=out, stderr=subprocess.STDOUT)

    def stop(self) -> None:
        super().stop()
        self._proxy.stop(10.0)

    def status(self, port: int, target: str, body: bytes = b"") -> int | None:
        try:
            return self.post(port, target, body).status_code
        except httpx.HTTPError:
            return None

    def post(self, port: int, target: str, body: bytes = b"", **headers: str) -> httpx.Response:
        own = {"content-type": "application/protobuf"} | {
            name.replace("_", "-"): each for name, each in headers.items()
        }
        with httpx.Client(verify=str(self.authority), trust_env=False, timeout=20) as client:
            if target == "/health":
                return client.get(f"https://127.0.0.1:{port}/health")
            return client.post(f"https://127.0.0.1:{port}{target}", content=body, headers=own)


@pytest.fixture(scope="module", params=STARTS)
def served(request):
    if request.param == "behind nginx" and NGINX is None:
        pytest.skip("no nginx here")
    with tempfile.TemporaryDirectory(prefix="protosphere-test-") as folder:
        deployment = Served(Path(folder) / "federation", request.param)
        deployment.make_credentials()
        try:
            deployment.start_superlink()
            yield deployment
        finally:
            deployment.stop()
            assert deployment.members() == set()


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger") / "stranger"
    for name, text in APP.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def flwr(served, folder, port, *arguments):
    """A stranger's `flwr`: it has ca.crt, and an address that it knows."""
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(
        f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{served.authority}"\n'
    )
    program = shutil.which("flwr", path=served.environment["PATH"])
    environment = served.environment | {"FLWR_HOME": str(folder)}
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_by_hand_compose_and_systemd_it_is_the_same_gate():
    program, *words = command_of("by systemd")
    places = {"/etc/protosphere": "/keys", "/var/lib/protosphere": "/state"}
    assert program == "/opt/protosphere/deploy/superlink.sh"
    assert [places.get(word, word) for word in words] == BY_HAND[1:]
    # what others may do with the files of runs is no matter of the gate
    assert command_of("by Compose") == [*BY_HAND, "--umask", "022"]


# what `flwr ls`, `flwr run` and `flwr supernode list` and `register` call
CONTROL_PATHS = tuple(f"/v1/control/{call}" for call in ("list-runs", "start-run", "list-nodes", "register-node"))


def test_no_call_of_those_who_start_runs_gets_in_where_sites_call(served):
    for path in CONTROL_PATHS:
        assert served.status(served.fleet, path) == 404
        # there it is at the SuperLink's own port, whatever it makes of an empty body
        assert served.status(served.port, path) not in (None, 404)


def runs(served):
    return json.loads(served.flwr("ls", CONNECTION, "--format", "json"))["runs"]


def superexec(served):
    """The SuperLink's process that takes tasks."""
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in served.alive()}
    (process,) = [pid for pid, line in lines.items() if b"executor.py" in line and b"with_superexec.py" not in line]
    return process


def test_a_stranger_neither_lists_nor_starts_runs_where_sites_call(served, app, tmp_path):
    """By Flower's own command."""
    before = len(runs(served))
    public = served.key(0).with_name("key.pub")
    for words in (("ls",), ("run", app), ("supernode", "list"), ("supernode", "register", public)):
        code, said = flwr(served, tmp_path / "outside", served.fleet, *words, CONNECTION, "--format", "json")
        assert code != 0 or '"success": false' in said, said
        assert '"success": true' not in said, said
    assert len(runs(served)) == before
    assert json.loads(served.flwr("supernode", "list", CONNECTION, "--format", "json"))["nodes"] == []
    # the same words at the SuperLink's own port: without the gate the attack is a success
    code, said = flwr(served, tmp_path / "inside", served.port, "run", app, CONNECTION, "--format", "json")
    assert '"success": true' in said
    assert len(runs(served)) == before + 1


def test_a_stranger_takes_no_task_from_the_server_where_sites_call(served, app, tmp_path):
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    wanted = AcquireTaskRequest(supported_task_types=[str(TaskType.SERVER_APP)]).SerializeToString()
    paths = ("/v1/runtime/acquire-task", "/v1/runtime/pull-task-input", "/v1/runtime/get-nodes")
    # the SuperLink's own process is held, so that the race is the stranger's
    os.kill(superexec(served), signal.SIGSTOP)
    try:
        assert (
            '"success": true'
            in flwr(served, tmp_path / "inside", served.port, "run", app, CONNECTION, "--format", "json")[1]
        )
        for path in (*paths, *(f"/v1/fleet/..{path[3:]}" for path in paths)):
            assert served.post(served.fleet, path, wanted).status_code == 404
        # nor at the SuperLink's own port, without the secret that its SuperExec has
        assert served.post(served.port, paths[0], wanted).status_code == 401
    finally:
        os.kill(superexec(served), signal.SIGCONT)


def test_without_a_key_no_call_of_a_supernode_s_does_anything_either(served):
    for path in FLEET_PATHS:
        # what is missing is the key: the SuperLink says so itself
        assert served.status(served.fleet, path) == 401
    for path in SELF_REGISTRATION:
        assert served.status(served.fleet, path) == 404


def test_the_superlink_itself_listens_on_loopback_alone(served):
    listening = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A" and int(local.rpartition(":")[2], 16) == served.port:
                listening.add(local.rpartition(":")[0])
    assert listening == {"0100007F"}


def test_a_container_s_check_asks_the_superlink_itself_and_through_the_gate(served, monkeypatch):
    spec = spec_from_file_location("healthy", ROOT / "deploy" / "docker" / "healthy.py")
    healthy = module_from_spec(spec)
    spec.loader.exec_module(healthy)
    monkeypatch.setattr(healthy, "AUTHORITY", str(served.authority))
    monkeypatch.setattr(healthy, "CONTROL", f"https://127.0.0.1:{served.port}/health")
    monkeypatch.setattr(healthy, "FLEET", f"https://127.0.0.1:{served.fleet}{FLEET_PATHS[0]}")
    healthy.superlink()
    for name, port in (("CONTROL", free_port()), ("FLEET", free_port())):
        with monkeypatch.context() as patch:
            patch.setattr(healthy, name, f"https://127.0.0.1:{port}/")
            with pytest.raises(SystemExit, match=f"{port}/ does not answer"):
                healthy.superlink()
    monkeypatch.setattr(healthy, "FLEET", f"https://127.0.0.1:{served.fleet}/v1/control/list-runs")
    with pytest.raises(SystemExit, match="answers with 404 instead of 401"):
        healthy.superlink()


def test_a_gate_that_was_killed_is_back_and_the_superlink_never_went(served):
    if served.kind == "behind nginx":
        pytest.skip("a service manager's business")

    def processes_of(program):
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in served.alive()}
        return {pid for pid, line in lines.items() if program in line and b"swept.py" not in line}

    # those of its runs, which the tests before this one have begun, come and go
    staying = (b"flower-superlink\0", b"executor.py\0")
    before = [processes_of(program) for program in staying]
    assert all(before)
    (gate,) = processes_of(b"gate.py\0--listen")
    os.kill(gate, signal.SIGKILL)
    assert comes(lambda: served.status(served.fleet, "/v1/fleet/get-run") == 401)
    assert [processes_of(program) for program in staying] == before
    assert gate not in processes_of(b"gate.py\0--listen")


def test_sites_train_through_nginx_as_through_the_gate(served, clinics, run, metrics):
    """Weights cross, up in the round and down with the message that ends the run. The demo and test_deployment.py have
    the gate, and prototypes."""
    if served.kind != "behind nginx":
        pytest.skip("elsewhere")
    own = [{"model": "tiny_perceptron", "device": "cpu"} for _ in served.sites]
    for site, options in zip(served.sites, own, strict=True):
        site.options.update(options | {"data": str(clinics[site.partition])})
        served.register(served.key(site.partition))
        served.start_node(site.partition)
    settings = {"rounds": 1, "feature-dim": 12, "dataset": "clinics", "strategy": "lg-fedavg", "max-samples": 0}
    command = [sys.executable, "-m", "protosphere.cli.main", "run", "--superlink", CONNECTION]
    command += ["-c", " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())]
    done = subprocess.run(command, capture_output=True, text=True, env=served.environment, cwd=ROOT, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + served.log().read_text()
    (summary,) = served.home.glob("results/*/summary.json")
    told = json.loads(summary.read_text())
    assert (told["clients"], told["failures"]) == (2, {})

    def grid(config, nodes, workers):
        paths = ({"data-path": str(folder)} for folder in clinics)
        return LocalGrid(config, [a | b | c for a, b, c in zip(nodes, own, paths, strict=True)], workers)

    assert metrics(summary.parent) == metrics(run(settings, clients=2, grid=grid))


@pytest.fixture(scope="module")
def clinics(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data"), 2)
