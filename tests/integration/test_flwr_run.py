"""Real Flower runs of the real app: `protosphere run` and plain `flwr run`, on ten clients and on two.

Four runs in all, some ten seconds each; the tests share them.
"""

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from tests.integration.watched import Watched

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
TEN = {"rounds": 2, "max-samples": 700, "feature-dim": 12, "models": "tiny", "device": "cpu", "fraction-train": 0.7}
TWO = {"strategy": "fedproto", "rounds": 2, "max-samples": 200, "feature-dim": 8, "models": "tiny_perceptron,tiny_cnn"}


def assignments(settings):
    return " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


@pytest.fixture(scope="module")
def place():
    """A folder with a short path (Ray's sockets lie in it), with the environment of a user of his own."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc to watch processes in")
    place = Path(tempfile.mkdtemp(prefix="f", dir="/tmp"))
    for name in ("home", "flwr", "empty", "tmp"):
        (place / name).mkdir()
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
        "no_proxy": "127.0.0.1",
        "NO_PROXY": "127.0.0.1",
    }


def protosphere(environment, *arguments):
    """`protosphere run` from the checkout, to its end."""
    watched = Watched([sys.executable, "-m", "cli.main", "run", "--flower", *arguments], cwd=ROOT, env=environment)
    watched.finish()
    return watched


def the_run(watched, place):
    """The one folder that the output names last."""
    named = [line.split("results: ")[1] for line in watched.output.splitlines() if "results: " in line]
    assert named, watched.output
    folder = Path(named[-1].strip())
    assert folder.parent == place / "home" / "results"
    return folder


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def ten(environment):
    """`protosphere run` on ten clients, as the demo runs."""
    return protosphere(environment, "--clients", "10", "-c", assignments(TEN))


@pytest.fixture(scope="module")
def plain(place, environment):
    """`flwr run` of one round on two clients, against a SuperLink that the user started; ended by its pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (place / "flwr" / "config.toml").write_text(f'[superlink.mine]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    flower = {name: str(Path(sys.executable).with_name(name)) for name in ("flwr", "flower-superlink")}
    options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    beside = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    superlink = Watched(
        [flower["flower-superlink"], *options, "--disable-runtime-dependency-installation"],
        cwd=place / "empty",
        env=environment | {"RAY_TMPDIR": str(place), "PATH": beside},
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
            break
        except OSError:
            assert time.monotonic() < deadline, "the SuperLink does not answer"
            time.sleep(0.2)
    settings = assignments(TWO | {"rounds": 1})
    federation = "num-supernodes=2 client-resources-num-cpus=1"
    command = [flower["flwr"], "run", ".", "mine", "--stream", "--federation-config", federation]
    run = Watched([*command, "--run-config", settings], cwd=ROOT, env=environment)
    code = run.finish()
    superlink.process.send_signal(signal.SIGTERM)
    superlink.finish()
    run.code, run.superlink = code, superlink
    return run


@pytest.fixture(scope="module")
def resumed(plain, place, environment):
    """The plain run, gone on with for one more round by `protosphere run`."""
    folder = the_run(plain, place)
    before = lines_of(folder)
    watched = protosphere(environment, "--resume", str(folder), "-c", "rounds=2")
    watched.before = before
    return watched


# --- ten clients ------------------------------------------------------------------------------------------


def test_ten_clients_run_to_the_end(ten, place):
    assert ten.process.returncode == 0, ten.output
    folder = the_run(ten, place)
    assert folder.name.endswith("-protonorm-digits")
    expected = {"settings.json", "roster.json", "status.json", "metrics.jsonl", "checkpoint.safetensors", "token"}
    expected |= {
        "prototypes.safetensors",
        "summary.json",
        "partition.json",
        "report.html",
        "pictures",
        "run.log",
        ".lock",
    }
    assert {path.name for path in folder.iterdir()} == expected
    roster = json.loads((folder / "roster.json").read_text())
    assert [client["partition"] for client in roster] == list(range(10))
    # four architectures, dealt round robin
    models = [client["model"] for client in roster]
    assert len(set(models)) == 4
    assert models[:4] == models[4:8]
    lines = lines_of(folder)
    assert [(line["round"], line.get("final", False)) for line in lines] == [(1, False), (2, False), (3, True)]
    for line in lines:
        assert line["problems"] == {}
        assert line["evaluation"]["rules"]["discriminant"]["test"]["clients"] == 10
    assert [line["training"]["valid"] for line in lines[:2]] == [7, 7]


def test_ten_clients_have_a_summary(ten, place):
    summary = json.loads((the_run(ten, place) / "summary.json").read_text())
    assert (summary["status"], summary["clients"], summary["rounds"], summary["seed"]) == ("completed", 10, 2, 0)
    assert summary["settings"]["max-samples"] == 700
    assert {"local-prototypes", "global-prototypes", "classifier", "discriminant"} == set(summary["rules"])
    assert 0 < summary["floor"]["majority-class"] < 1
    assert summary["headline"]["accuracy"] == summary["rules"]["local-prototypes"]["selected"]
    assert summary["bytes"]["wire_up"] > summary["bytes"]["payload_up"] > 0


def test_its_stream_is_for_people(ten):
    shown = ten.output.splitlines()
    assert sum(line.startswith(("round 1/2 |", "round 2/2 |")) for line in shown) == 2
    assert sum(line.startswith("final evaluation | after 2:") for line in shown) == 1
    assert not [line for line in shown if "INFO" in line or "Traceback" in line or "\x1b[" in line]


def test_ray_and_one_process_give_the_same_metrics(ten, place, run, metrics):
    in_process = metrics(run(TEN, clients=10))
    assert metrics(the_run(ten, place)) == in_process
    assert len(in_process) == 3


def test_every_client_left_a_store_and_no_process(ten, place):
    stores = place / "home" / "clients" / the_run(ten, place).name
    assert sorted(int(path.name) for path in stores.iterdir()) == list(range(10))
    assert len(ten.seen) > 8, "SuperLink, SuperExec, the simulation, Ray's daemons and its actors were seen"
    assert ten.left() == set()
    assert list((place / "tmp").glob("protosphere-*")) == []


# --- two clients ------------------------------------------------------------------------------------------


def test_plain_flwr_run_works_as_flower_users_expect(plain, place):
    assert plain.code == 0, plain.output
    assert "[protosphere] round 1/1 |" in plain.output
    assert "[protosphere] final evaluation | after 1:" in plain.output
    assert "deprecat" not in plain.output.lower()
    assert "deprecat" not in plain.superlink.output.lower()
    folder = the_run(plain, place)
    assert folder.name.endswith("-fedproto-digits")
    settings = json.loads((folder / "settings.json").read_text())
    assert (settings["clients"], settings["feature-dim"]) == (0, 8)


def test_nothing_lives_after_the_superlink_was_ended_by_its_pid(plain):
    assert plain.left() == set()
    assert len(plain.superlink.seen) > 3
    assert plain.superlink.left() == set()


def test_a_plain_run_resumed_by_protosphere_is_the_whole_run(resumed, place, run, metrics):
    assert resumed.process.returncode == 0, resumed.output
    assert "resuming after round 1" in resumed.output
    folder = the_run(resumed, place)
    assert [line["round"] for line in resumed.before] == [1, 2]
    assert resumed.before[1]["final"]
    assert lines_of(folder)[0] == resumed.before[0]
    assert metrics(folder) == metrics(run(TWO, clients=2))
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 2
    assert resumed.left() == set()


# --- a failure --------------------------------------------------------------------------------------------


def test_clients_that_cannot_train_fail_the_run_with_a_sentence(place, environment):
    settings = {"rounds": 1, "learning-rate": 1e30, "max-failed-rounds": 1}
    watched = protosphere(environment, "--clients", "2", "-c", assignments(settings))
    assert watched.process.returncode == 1, watched.output
    last, *_, log = watched.output.splitlines()[-4:]
    assert "is not finite" in last
    assert Path(log.removeprefix("log: ")).read_text().count("[protosphere error] ") == 1
    assert "Traceback" not in watched.output
    assert watched.left() == set()
