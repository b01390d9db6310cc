"""The same app on real machines: SuperLink and SuperNodes as processes with TLS and node keys.

One deployment of two sites, started by the scripts of deploy/, behind nginx with the file of deploy/nginx where Flower
speaks HTTPS. The second site runs listed apps alone. While it trains, strangers try to take part; a stranger who has
the public ca.crt can do nothing through nginx that it could do at the SuperLink's own port: there it starts an app,
which has its name, its version and its modules' names from another one.
"""

import json
import os
import re
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.core.flower import fleet_transport, submitted_run
from protosphere.data.forms.table_schema import Column, TableSchema
from protosphere.launch import processes
from protosphere.launch.flower import digest_of, find_executable, free_port, launch
from protosphere.launch.grid import LocalGrid
from tests.deployment import CONNECTION, Deployment, Site
from tests.integration.test_nginx import NGINX, fleet_paths, start_nginx
from tests.integration.watched import PATIENCE, assignments, everybody, members
from tests.steps import ONE_EPOCH
from tests.waiting import comes

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
RUN_PATIENCE = 4 * PATIENCE  # seconds for a whole run, in which eight processes load torch one after the other
MODELS = ("tiny_perceptron", "perceptron")
DOMAINS = ("north", "south")
NAMES = {"name": "Clinic North & Co"}, {}
SETTINGS = {"strategy": "fedproto", "rounds": 1, "feature-dim": 12, "dataset": "two-clinics", "device": "cuda:7"}
SETTINGS |= ONE_EPOCH
LIMIT = {"privacy-epsilon": "3", "privacy-delta": "1e-5"}
RELEASE = {"privacy": "release", "encoder": "random", "privacy-epsilon": 2.0}
HAS_GATE = fleet_transport() == "http" and NGINX is not None
behind_nginx = pytest.mark.skipif(not HAS_GATE, reason="no nginx, or a Flower with a port for SuperNodes alone")
PROJECT = """
[project]
name = "told"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "told"
[tool.flwr.app.components]
serverapp = "told.server:app"
clientapp = "told.client:app"
[tool.flwr.app.config]
strategy = "none"
rounds = 2
messages = 1
patience = 3600
"""
UNANSWERED = "what-only-a-message-says"
SERVER = """
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
# put together, so that the app itself has no such words
CONTENT = RecordDict({"none": ConfigRecord({"words": "-".join(("what", "only", "a", "message", "says"))})})
@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    for _ in range(context.run_config["messages"]):
        sent = set(grid.push_messages([Message(CONTENT, node, "train") for node in nodes]))
        deadline = time.monotonic() + context.run_config["patience"]
        while sent and time.monotonic() < deadline:
            for reply in grid.pull_messages(sent):
                sent.discard(reply.metadata.reply_to_message_id)
                print("REPLY of", reply.content["told"]["site"] if reply.has_content() else "none", flush=True)
            time.sleep(0.2)
"""
CLIENT = """
import json, os, time
import numpy, torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from told.words import WORDS, SECONDS
from told import words
app = ClientApp()
calls = []
def read(pid, name):
    try:
        return open(f"/proc/{pid}/{name}", errors="replace").read()
    except OSError:
        # it has just ended
        return ""
# other tests have processes of their own
federation = os.path.dirname(os.path.dirname(os.environ["PROTOSPHERE_HOME"]))
@app.train()
def train(message, context):
    calls.append(1)
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and federation in read(pid, "environ")]
    lines = [read(pid, "cmdline") for pid in pids]
    torch.manual_seed(3)
    told = {"pid": os.getpid(), "words": WORDS, "file": words.__file__, "calls": len(calls)}
    told |= {"random": [torch.initial_seed() and numpy.random.random(), torch.rand(2).tolist()]}
    told |= {"seen": len(lines), "tokens": sum("--token" in line for line in lines)}
    told |= {"name": read("self", "comm").strip(), "parent": read(os.getppid(), "cmdline")}
    print("TOLD", json.dumps(told), flush=True)
    time.sleep(SECONDS)
    site = context.node_config["partition-id"]
    return Message(RecordDict({"told": ConfigRecord({"site": site})}), reply_to=message)
"""
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


def sites_of(data, listed):
    """The second site runs listed apps alone."""
    ways = {}, {"allow-app": str(listed)}
    return [
        Site(i, {"data": str(path), "model": model, "device": "cpu", "domain": domain} | name | way | LIMIT)
        for i, (path, model, domain, name, way) in enumerate(zip(data, MODELS, DOMAINS, NAMES, ways, strict=True))
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


def write_app(folder, words, seconds=0):
    """An app that says these words of each message, and answers after so many seconds."""
    (folder / "told").mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "told" / "__init__.py").touch()
    (folder / "told" / "server.py").write_text(SERVER)
    (folder / "told" / "client.py").write_text(CLIENT)
    (folder / "told" / "words.py").write_text(f"WORDS, SECONDS = {words!r}, {seconds}\n")
    return folder


@pytest.fixture(scope="module")
def listed(place):
    """The apps that the second site runs: ours, and one more."""
    apps = ROOT, write_app(place / "listed", "listed")
    (place / "apps.txt").write_text("".join(f"{digest_of(app)} {app.name}\n" for app in apps))
    return place / "apps.txt"


@pytest.fixture(scope="module")
def proxy():
    """A listener in the place of a proxy: its port, and what it was asked for."""
    calls = []

    class Listener(socketserver.StreamRequestHandler):
        def handle(self):
            calls.append(self.rfile.readline())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], calls
        server.shutdown()


@pytest.fixture(scope="module")
def deployment(place, files, listed, proxy):
    """A site of a table, and one of a file of arrays, on machines that have a proxy."""
    kind = BehindNginx if HAS_GATE else Deployment
    home = {"PROTOSPHERE_HOME": str(place / "home")}
    behind_proxy = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), f"http://127.0.0.1:{proxy[0]}")
    behind_proxy |= {"no_proxy": "", "NO_PROXY": ""}
    made = kind(place / "federation", sites_of(files, listed), home, behind_proxy)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        assert everybody(made) == set()


def told(deployment, partition, words):
    """What the app of these words has said at a site, once for each message."""
    lines = deployment.log(partition).read_text().splitlines()
    said = [json.loads(line.partition(" TOLD ")[2]) for line in lines if " TOLD " in line]
    return [one for one in said if one["words"] == words]


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
def finished(place, deployment):
    """A run over the deployment, how strangers fared meanwhile, and how many of its prototypes lie in the SuperLink's
    database when it has ended."""
    run = front_door(deployment, SETTINGS)
    knocked = knock(place / "strangers", deployment)
    out, err = run.communicate(timeout=RUN_PATIENCE)
    kept = count_kept(prototypes(deployment, folder_of(out).name), deployment)
    return run.returncode, out, err, knocked, kept


def knock(folder, deployment):
    """Of the SuperNode of each who must not come in: its exit code, None where it was still trying, and its log."""
    other = Deployment(folder, [Site(0)])
    other.make_credentials()
    node = [find_executable("flower-supernode"), "--superlink", f"localhost:{deployment.fleet}"]
    node += ["--node-config", "partition-id=0 num-partitions=2", "--isolation", "process"]
    knocks = {
        "unknown key": (deployment.authority, other.key(0)),
        "wrong authority": (other.authority, deployment.key(0)),
        "no TLS": (),
    }
    started = {}
    for name, files in knocks.items():
        options = ["--root-certificates", "--auth-supernode-private-key"]
        own = [word for pair in zip(options, files, strict=False) for word in pair] or ["--insecure"]
        command = [*node, "--port", str(free_port()), *map(str, own)]
        with (folder / f"{name}.log").open("w") as log:
            started[name] = processes.start(command, env=deployment.environment, stdout=log, stderr=subprocess.STDOUT)
    sent_away = folder / "no TLS.log"
    comes(lambda: SENT_AWAY in sent_away.read_text() or started["no TLS"].poll() is not None)
    for name in ("unknown key", "wrong authority"):
        comes(lambda name=name: started[name].poll() is not None)
    codes = {name: process.poll() for name, process in started.items()}
    processes.stop(*started.values())
    return {name: (code, (folder / f"{name}.log").read_text()) for name, code in codes.items()}


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


def test_under_privacy_a_release_leaves_the_sites_and_figures_stay_there(deployment, metrics):
    out, err = front_door(deployment, SETTINGS | RELEASE).communicate(timeout=RUN_PATIENCE)
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
    code, out, err, *_ = finished
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


def test_no_proxy_is_asked_for_what_is_on_the_same_machine(finished, proxy):
    assert proxy[1] == []


def test_each_site_has_a_model_of_its_own_table_or_arrays_which_reads_them_as_they_are(finished, deployment, files):
    name = folder_of(finished[1]).name
    for number, file in enumerate(files):
        state = deployment.folder / f"site-{number}" / "state" / "clients" / name / str(number)
        found = CliRunner().invoke(app, ["predict", "--state", str(state), str(file)])
        assert (found.stderr, " of 60)" in found.stdout) == ("", True)


def test_strangers_are_sent_away_and_leave_no_trace(finished, metrics, deployment):
    knocked = finished[3]
    code, words = knocked["unknown key"]
    assert code is not None
    # Flower's own number, which no exit code can be
    assert "Exit Code: 305" in words
    code, words = knocked["wrong authority"]
    assert code not in (0, None), words
    assert "CERTIFICATE_VERIFY_FAILED" in words
    code, words = knocked["no TLS"]
    assert SENT_AWAY in words or code not in (0, None)
    assert "SuperNode ID" not in words
    listing = json.loads(deployment.flwr("supernode", "list", CONNECTION, "--format", "json"))
    # those that another test has ended stay in the list, as unregistered
    assert [node["status"] for node in listing["nodes"] if node["status"] != "unregistered"] == ["online"] * 2
    lines = metrics(folder_of(finished[1]))
    assert [line["problems"] for line in lines] == [{}] * 2
    assert [sorted(line["clients"]) for line in lines] == [["0", "1"]] * 2


# --- the SuperExec of ours, and apps that have all names in common ------------------------------------------


@pytest.fixture(scope="module")
def unlisted(place):
    """An app that the second site has not listed; it does not come to its end."""
    return write_app(place / "unlisted", "unlisted", seconds=3600)


@pytest.fixture(scope="module")
def answered(deployment, place, listed):
    """Two messages to the listed app at each site. Flower would go on with a folder of that name, whatever lies in it,
    and what lies there has other words."""
    apps = deployment.folder / "site-1" / "state" / "flwr" / "apps"
    write_app(apps / f"told.told.1.0.0.{digest_of(place / 'listed')[:8]}", "planted")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in deployment.environment.items():
            patch.setenv(name, value)
        lines = []
        outcome = launch(
            {"messages": 2, "patience": int(PATIENCE)},
            clients=2,
            show=lines.append,
            verbose=True,
            app=place / "listed",
            connection=CONNECTION,
        )
    assert outcome.ok, outcome.message
    return sorted(line.partition("REPLY of ")[2] for line in lines if "REPLY of " in line)


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
    return run.stdout


@pytest.fixture(scope="module")
def started(deployment, place, finished, answered, unlisted):
    """The run of the unlisted app, which a stranger has started who has ca.crt alone, at the SuperLink's own port."""
    number = submitted_run(flwr_of_stranger(deployment, place / "inside", deployment.port, "run", unlisted))
    assert number
    assert comes(lambda: told(deployment, 0, "unlisted")), deployment.log(0).read_text()
    return number


def test_each_message_has_a_process_of_its_own_and_at_the_site_that_lists_apps_a_folder(answered, started, deployment):
    assert answered == ["0", "0", "1", "1"]
    free, listing = told(deployment, 0, "listed"), told(deployment, 1, "listed")
    assert (len(free), len(listing)) == (2, 2)
    assert all("forkserver" in said["parent"] for said in free + listing)
    assert len({said["file"] for said in listing}) == 2
    every = free + listing + told(deployment, 0, "unlisted")
    # none goes on with what one before it has left
    assert {said["calls"] for said in every} == {1}
    assert {said["name"] for said in every} == {"flwr-clientapp"}
    # both sites' and the SuperLink's
    assert min(said["seen"] for said in every) > 6
    assert {said["tokens"] for said in every} == {0}
    # what is seeded is the same, and what is not differs from fork to fork
    assert len({str(said["random"][1]) for said in every}) == 1
    numbers = [said["random"][0] for said in every]
    assert len(set(numbers)) == len(numbers)
    assert deployment.log(0).read_text().count(" method=none rounds=2") == len(every) - len(listing)


def test_runs_of_different_code_stay_apart_and_a_site_runs_only_what_it_has_listed(
    started, deployment, listed, unlisted
):
    (said,) = told(deployment, 0, "unlisted")
    assert said["file"] not in {one["file"] for one in told(deployment, 0, "listed")}
    refusal = f"refused app={digest_of(unlisted)}: it is not listed in {listed}"
    assert comes(lambda: refusal in deployment.log(1).read_text())
    assert told(deployment, 1, "unlisted") == told(deployment, 1, "planted") == []


def test_nobody_else_on_the_machine_gets_a_site_s_task(deployment):
    port = deployment.ports[0]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/runtime/acquire-task", data=b"", method="POST")
    request.add_header("content-type", "application/protobuf")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        opener.open(request, timeout=PATIENCE)


def test_a_supernode_that_is_killed_in_a_message_leaves_nothing(started, deployment):
    (said,) = told(deployment, 0, "unlisted")
    alive = members(deployment, 0)
    assert said["pid"] in alive
    # python -P .../supernode.py; its parent has the same words behind its own
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in alive}
    (node,) = (pid for pid, command in words.items() if len(command) > 2 and command[2].endswith(b"/supernode.py"))
    os.kill(node, signal.SIGKILL)
    assert comes(lambda: not members(deployment, 0)), members(deployment, 0)
    assert not Path(f"/proc/{said['pid']}").exists()


# --- nginx -----------------------------------------------------------------------------------------------


@behind_nginx
def test_with_ca_crt_alone_a_stranger_starts_an_app_at_the_bare_port_and_none_through_nginx(
    started, deployment, unlisted, tmp_path
):
    public = deployment.key(0).with_name("key.pub")
    for words in (("run", unlisted), ("supernode", "register", public)):
        output = flwr_of_stranger(deployment, tmp_path / "outside", deployment.fleet, *words)
        assert '"success": true' not in output, output
    runs = json.loads(deployment.flwr("ls", CONNECTION, "--format", "json"))["runs"]
    assert [run["run-id"] for run in runs if run["fab-hash"] == digest_of(unlisted)] == [started]


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


def count_kept(contents, deployment):
    """How many of these bytes lie in the SuperLink's database or its write-ahead log."""
    database = b"".join(path.read_bytes() for path in deployment.home.glob("superlink.db*"))
    return sum(content in database for content in contents)


def end_superlink(deployment):
    for pid in members(deployment):
        os.kill(pid, signal.SIGTERM)
    assert comes(lambda: not members(deployment)), deployment.log().read_text()


def test_no_message_is_left_when_the_superlink_has_ended(finished, started, deployment):
    # what was answered is deleted, and was there all the same
    assert finished[4] > 0
    contents = [*prototypes(deployment, folder_of(finished[1]).name), UNANSWERED.encode()]
    # the second site has refused the app
    assert count_kept([UNANSWERED.encode()], deployment) == 1
    end_superlink(deployment)
    assert count_kept(contents, deployment) == 0
