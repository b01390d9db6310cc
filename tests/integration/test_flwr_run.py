"""Real Flower runs of the real app: `protosphere run --on flower` of somebody's own method, killed and resumed, and
plain `flwr run` of the default."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from protosphere.launch.flower import copy_app, free_port, is_healthy
from protosphere.record.folder import RunFolder
from tests.integration.watched import Watched, assignments
from tests.soak.faults.files import finished
from tests.steps import ONE_EPOCH
from tests.strategies.test_adding_a_method import printed
from tests.waiting import comes

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
# for longer than anybody waits: both are ended after a few rounds
FIVE = {"rounds": 5000, "max-samples": 400, "feature-dim": 12, "models": "tiny", "device": "cpu", "fraction-train": 0.6}
FIVE |= ONE_EPOCH
# the default
TWO = {"rounds": 5000, "max-samples": 200, "feature-dim": 8, "models": "tiny_perceptron,tiny_cnn"}
TWO |= ONE_EPOCH


@pytest.fixture(scope="module")
def place():
    """A folder with a short path (Ray's sockets lie in it), with the environment of a user of his own."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc to watch processes in")
    place = Path(tempfile.mkdtemp(prefix="f", dir="/tmp"))
    for name in ("home", "flwr", "empty", "tmp"):
        (place / name).mkdir()
    # somebody's own project: folders of our names, and a method
    for name in ("data", "models", "cli"):
        (place / "project" / name).mkdir(parents=True)
        (place / "project" / name / "__init__.py").write_text("raise RuntimeError('not the package that was meant')\n")
    (place / "project" / "shrunk.py").write_text(printed("adding-a-method.md"))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def environment(place):
    return os.environ | {
        "PROTOSPHERE_HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "FLWR_HOME": str(place / "flwr"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's agents outlive their node until they give up its store, after a minute by default
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
        "no_proxy": "127.0.0.1",
        "NO_PROXY": "127.0.0.1",
    }


def the_run(watched, place):
    """The one folder that the output names last."""
    named = [line.split("results: ")[1] for line in watched.output.splitlines() if "results: " in line]
    assert named, watched.output
    folder = Path(named[-1].strip())
    assert folder.parent == place / "home" / "results"
    return folder


def protosphere(place, environment, *arguments):
    """`protosphere run` in the project."""
    command = [str(Path(sys.executable).with_name("protosphere")), "run", *arguments]
    own = environment | {"PYTHONPATH": os.pathsep.join(map(str, (place / "project", ROOT)))}
    return Watched(command, cwd=place / "project", env=own)


@pytest.fixture(scope="module")
def killed(place, environment):
    """A run of the method on five clients whose front door is killed after its first round, as no handler could know
    of it."""
    method = 'strategy="./shrunk.py" shrunk.beta=0.5'
    watched = protosphere(place, environment, "--on", "flower", "--clients", "5", "-c", f"{method} {assignments(FIVE)}")
    for line in watched.process.stdout:
        watched.output += line
        if "round    1/5000 |" in line:
            break
    # counted before the kill: the watchers are quick to end them
    watched.many = len(watched.alive())
    watched.scratch = set()
    for pid in watched.alive():
        with suppress(psutil.Error):
            watched.scratch.add(Path(psutil.Process(pid).environ().get("FLWR_HOME", place / "flwr")).parent)
    # whose SuperLink is not ours has the user's own
    watched.scratch.discard(place)
    watched.process.kill()
    watched.finish()
    return watched


@pytest.fixture(scope="module")
def resumed(killed, place, environment):
    """The same, gone on with in one process for a round more than it came to."""
    assert killed.left() == set()
    folder = the_run(killed, place)
    rounds = finished(folder)[1] + 1
    watched = protosphere(place, environment, "--resume", str(folder), "-c", f"rounds={rounds}")
    watched.finish()
    watched.rounds = rounds
    return watched


@pytest.fixture(scope="module")
def plain(place, environment):
    """`flwr run` of one round on two clients, against a SuperLink that the user started; ended by its pid."""
    port = free_port()
    (place / "flwr" / "config.toml").write_text(f'[superlink.mine]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    flower = {name: str(Path(sys.executable).with_name(name)) for name in ("flwr", "flower-superlink")}
    options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    beside = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    superlink = Watched(
        [flower["flower-superlink"], *options, "--disable-runtime-dependency-installation"],
        cwd=place / "empty",
        env=environment | {"RAY_TMPDIR": str(place), "PATH": beside},
    )
    assert comes(lambda: is_healthy(port)), "the SuperLink does not answer"
    federation = "num-supernodes=2 client-resources-num-cpus=1"
    command = [flower["flwr"], "run", ".", "mine", "--stream", "--federation-config", federation]
    # a clone as it comes: Flower takes seconds to look through a virtual environment that lies in it
    clone = copy_app(ROOT, place / "clone")
    run = Watched([*command, "--run-config", assignments(TWO)], cwd=clone, env=environment)
    for line in run.process.stdout:
        run.output += line
        if "[protosphere] round " in line and "/5000 |" in line:
            break
    (number,) = re.findall(r"Successfully started run (\d+)", run.output)
    subprocess.run([flower["flwr"], "stop", number, "mine"], cwd=clone, env=environment, check=True)
    run.finish()
    superlink.process.send_signal(signal.SIGTERM)
    superlink.finish()
    run.superlink = superlink
    return run


def test_a_killed_run_ends_whole(killed, place):
    assert "round    1/5000 |" in killed.output
    assert killed.many > 8, "watchers, SuperLink, SuperExec, the simulation, Ray's daemons and actors"
    assert killed.left() == set()
    status = RunFolder(the_run(killed, place)).status()
    assert (status["state"], status["problem"]) == ("stopped", "")
    assert killed.scratch
    assert not any(folder.exists() for folder in killed.scratch)


def test_resumed_it_is_that_of_one_process_which_was_never_cut(resumed, place, run, metrics):
    assert resumed.process.returncode == 0, resumed.output
    folder = the_run(resumed, place)
    assert "-shrunk-digits-" in folder.name
    expected = {"settings.json", "roster.json", "status.json", "metrics.jsonl", "checkpoint.safetensors"}
    expected |= {"prototypes.safetensors", "summary.json"}
    expected |= {"report.html", "pictures", "run.log", "clients.parquet", ".lock"}
    assert {path.name for path in folder.iterdir()} == expected
    roster = json.loads((folder / "roster.json").read_text())
    assert [client["partition"] for client in roster] == list(range(5))
    # four architectures, dealt round robin
    assert len({client["model"] for client in roster}) == 4
    method = {"strategy": str(place / "project" / "shrunk.py"), "shrunk.beta": 0.5}
    in_process = metrics(run(FIVE | method | {"rounds": resumed.rounds}, clients=5))
    assert metrics(folder) == in_process
    assert [line["training"]["valid"] for line in in_process[1:]] == [3] * resumed.rounds
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["clients"], summary["rounds"]) == ("completed", 5, resumed.rounds)


def test_its_stream_is_for_people_and_it_leaves_its_stores_and_no_process(killed, resumed, place):
    shown = resumed.output.splitlines()
    assert any("resuming after round" in line for line in shown)
    assert sum(line.startswith(f"round {resumed.rounds}/{resumed.rounds} |") for line in shown) == 1
    for line in (*killed.output.splitlines(), *shown):
        assert not any(word in line for word in ("INFO", "Traceback", "\x1b[")), line
    stores = place / "home" / "clients" / the_run(resumed, place).name
    # beside the stores what Ray's workers know the home by
    assert {path.name for path in stores.iterdir()} == set(map(str, range(5)))
    assert resumed.left() == set()


def test_plain_flwr_run_works_as_flower_users_expect_and_nothing_lives_after_the_superlink(plain, place, run, metrics):
    assert "deprecat" not in (plain.output + plain.superlink.output).lower()
    folder = the_run(plain, place)
    assert "-protosphere-digits-" in folder.name
    # stopped in one of the first rounds
    lines = metrics(folder)
    last = lines[-1]["round"]
    assert 0 < last < TWO["rounds"]
    # the last round of a run has more in its line
    first = min(last, 3)
    assert lines[:first] == metrics(run(TWO | {"rounds": first}, clients=2))[:first]
    settings = json.loads((folder / "settings.json").read_text())
    assert (settings["clients"], settings["feature-dim"]) == (0, 8)
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["problem"]) == ("stopped", "")
    assert plain.left() == set()
    assert len(plain.superlink.seen) > 3
    assert plain.superlink.left() == set()
