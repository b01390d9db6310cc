"""What the start scripts hand to Flower, and what they refuse: with stand-ins for Flower's programs on the PATH."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
STAND_IN = f"""#!{sys.executable}
import json, os, sys, time
told = {{"arguments": sys.argv[1:], "cwd": os.getcwd(), "here": os.listdir(), "environment": dict(os.environ)}}
told["umask"] = os.umask(0)
deadline = time.monotonic() + 300
while not os.path.exists(os.environ["TOLD"] + ".superexec") and time.monotonic() < deadline:
    time.sleep(0.02)
open(os.environ["TOLD"], "w").write(json.dumps(told))
"""
OF_SUPEREXEC = """
import json, os, sys, time
open(os.environ["TOLD"] + ".superexec", "w").write(json.dumps(sys.argv[1:]))
time.sleep(600)
"""
GRPC, HTTP = "1.39.0", "1.42.0"
NODE = ("--superlink", "fl.example.org:9092", "--partition", 1, "--of", 3)
OPEN_NODE = (*NODE, "--insecure")


@pytest.fixture
def script(tmp_path):
    """script(name, *arguments, flower=version, **changed variables): its exit code, what it said, and what Flower's
    program was told (or None)."""
    # a copy, so that no .venv beside the repository's deploy/ goes before the stand-ins
    place, programs = tmp_path / "checkout" / "deploy", tmp_path / "programs"
    for folder in (place, programs):
        folder.mkdir(parents=True)
    for name in ("superlink.sh", "supernode.sh", "with_superexec.py"):
        (place / name).write_text((DEPLOY / name).read_text())
    (place / "supernode.py").write_text(STAND_IN)
    (place / "executor.py").write_text(OF_SUPEREXEC)
    for name in ("flower-superlink", "flower-supernode"):
        (programs / name).write_text(STAND_IN)
    # not a link, which would be another environment's Python
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for path in (*place.iterdir(), *programs.iterdir()):
        path.chmod(0o755)
    told = tmp_path / "told.json"
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "TOLD": str(told)}

    def run(name, *arguments, flower=GRPC, **changed):
        for path in tmp_path.glob("told.json*"):
            path.unlink()
        # what is found first is the version that is there
        installed = tmp_path / f"flower-{flower}"
        (installed / f"flwr-{flower}.dist-info").mkdir(parents=True, exist_ok=True)
        (installed / f"flwr-{flower}.dist-info" / "METADATA").write_text(f"Name: flwr\nVersion: {flower}\n")
        path = os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH"))))
        own = environment | {"PYTHONPATH": path} | changed
        own = {key: value for key, value in own.items() if value is not None}
        command = [str(place / name), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=own, cwd=tmp_path)
        return done.returncode, done.stderr, json.loads(told.read_text()) if told.exists() else None

    return run


@pytest.fixture
def credentials(tmp_path):
    folder = tmp_path / "my credentials"
    folder.mkdir()
    for name in ("ca.crt", "superlink.crt", "superlink.key", "clinic"):
        (folder / name).touch()
    return folder


def after(arguments, option):
    return arguments[arguments.index(option) + 1]


def superexec_of(tmp_path):
    """What the SuperExec beside it was told: its own options, and those of Flower's."""
    words = json.loads((tmp_path / "told.json.superexec").read_text())
    border = words.index("--")
    return words[:border], words[border + 1 :]


def node_config(told):
    """A site's own configuration, as Flower reads it."""
    return parse_config_args([after(told["arguments"], "--node-config")])


def test_the_superlink_speaks_tls_to_registered_nodes_and_keeps_its_control_port_to_itself(
    script, credentials, home, tmp_path
):
    """What real sites and strangers find: tests/integration/test_deployment.py."""
    for flower in (GRPC, HTTP):
        code, said, told = script("superlink.sh", "--credentials", credentials.name, "--umask", "027", flower=flower)
        assert (code, said, told["here"]) == (0, "", [])
        arguments = told["arguments"]
        assert "--enable-supernode-auth" in arguments
        # from 1.40 on it has one port, which stays on loopback
        assert ("--fleet-api-address" in arguments) == (flower == GRPC)
        for option, value in (("--ssl-certfile", credentials / "superlink.crt"), ("--host", "127.0.0.1")):
            assert after(arguments, option) == str(value)
        assert told["environment"]["PROTOSPHERE_HOME"] == str(home)
        assert told["environment"]["FLWR_TELEMETRY_ENABLED"] == "0"
        # results that lie elsewhere may be for a group to read
        assert told["umask"] == 0o027
        ours, of_flower = superexec_of(tmp_path)
        assert (ours, after(of_flower, "--root-certificates")) == ([], str(credentials / "ca.crt"))
    # without keys, whoever reaches the port takes part
    arguments = script("superlink.sh", "--insecure")[2]["arguments"]
    assert (arguments[0], after(arguments, "--fleet-api-address")) == ("--insecure", "127.0.0.1:9092")
    assert "--insecure" in superexec_of(tmp_path)[1]


def test_a_node_has_its_own_rows_model_and_device(script, credentials, tmp_path):
    (tmp_path / "x rays").mkdir()
    (tmp_path / "code.py").touch()
    own = {"data": "x rays", "model": "hf:a/b?trainable=2", "device": "cpu", "domain": "clínic = 1", "state": "mine"}
    # a name has sixty characters of any alphabet, where a shell counts bytes
    own |= {"name": "病" * 60, "label-column": "patient's state", "text-column": "$(note)", "port": 9100}
    # paths do not depend on where the script was started
    own |= {
        "strategy": "code.py:Mine",
        "group-column": "Größe = 1",
        "privacy-epsilon": "8.25",
        "privacy-delta": "1e-06",
    }
    own |= {"ca": credentials / "ca.crt", "key": credentials / "clinic", "allow-app": "code.py"}
    options = [word for name, value in own.items() for word in (f"--{name}", value)]
    # a folder is found whatever `cd` looks through
    code, said, told = script("supernode.sh", *NODE, *options, "--privacy", CDPATH=str(tmp_path))
    assert code == 0, said
    names = ("model", "device", "domain", "name", "label-column", "text-column", "group-column")
    assert node_config(told) == {name: own[name] for name in names} | {
        "partition-id": 1,
        "num-partitions": 3,
        "data-path": str(tmp_path / "x rays"),
        "strategy-file": f"{tmp_path}/code.py:Mine",
        "privacy": "required",
        "privacy-epsilon": 8.25,
        "privacy-delta": 1e-6,
    }
    for option, value in (
        ("--root-certificates", credentials / "ca.crt"),
        ("--auth-supernode-private-key", credentials / "clinic"),
        ("--host", "127.0.0.1"),
        ("--port", 9100),
    ):
        assert after(told["arguments"], option) == str(value)
    assert "--insecure" not in told["arguments"]
    assert told["environment"]["PROTOSPHERE_HOME"] == str(tmp_path / "mine")
    assert (told["cwd"], told["here"]) == (str(tmp_path / "mine" / "empty"), [])
    ours, of_flower = superexec_of(tmp_path)
    assert ours == ["--allow-app", str(tmp_path / "code.py")]
    assert after(of_flower, "--runtime-api-address") == "127.0.0.1:9100"
    # without their secret, any account of the machine may take the site's tasks
    assert after(told["arguments"], "--isolation") == "process"
    secret = "--superexec-auth-secret-file"
    assert after(of_flower, secret) == after(told["arguments"], secret)


@pytest.mark.parametrize(("name", "arguments"), [("supernode.sh", OPEN_NODE), ("superlink.sh", ("--insecure",))])
def test_what_both_scripts_see_to(name, arguments, script, tmp_path):
    """Their state is their user's alone, also one that an older version left open, and needs no home; no proxy is asked
    for this machine."""
    (tmp_path / "mine").mkdir(mode=0o755)
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": None, "NO_PROXY": "example.org", "HOME": None}
    told = script(name, *arguments, "--state", "mine", **proxy | {"PROTOSPHERE_HOME": None})[2]
    assert told["umask"] == 0o077
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    expected = "example.org,127.0.0.1,localhost"
    assert [told["environment"][each] for each in ("no_proxy", "NO_PROXY")] == [expected] * 2


def test_a_superlink_s_state_is_no_other_superlink_s(script, tmp_path):
    (tmp_path / "mine").mkdir()
    with (tmp_path / "mine" / "superlink.db.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, said, _ = script("superlink.sh", "--insecure", "--state", "mine")
    assert (code, "give each a --state of its own" in said) == (2, True), said


def test_the_services_keep_to_it_too():
    for name, lines in (("superlink", {"KillMode=mixed"}), ("supernode", {"Restart=always"})):
        unit = (DEPLOY / "systemd" / f"protosphere-{name}.service").read_text().splitlines()
        assert lines | {"UMask=0077", "StateDirectoryMode=0700"} <= set(unit)


OPEN = "would let everybody who reaches it start code on all sites"
GATE = "nginx stands before a SuperLink of Flower 1.40 and newer (deploy/nginx/protosphere-gate.conf"
OF_NODES = [
    (("--nonsense", "1"), "unknown option --nonsense"),
    (("--data", "/nowhere"), "--data /nowhere does not exist"),
    (("--partition", "3"), "--partition is 3, but the 3 clients are 0 to 2"),
    (("--model", 'a" partition-id="0'), "the value of --model may hold no quote"),
    (("--name", "病" * 61), "is longer than 60 characters; give a shorter one"),
    (("--privacy-epsilon", "3"), "a limit has two parts"),
    (("--privacy-delta", "1e-5", "--privacy-epsilon", '3" x="'), "--privacy-epsilon wants a number above 0"),
    (("--allow-app", "gone.txt"), "--allow-app gone.txt cannot be read"),
    (("--model", "resnet19"), "model 'resnet19' is unknown"),
    (("--device", "gpu"), "--device 'gpu': should be 'auto', 'cpu', 'cuda'"),
]
OF_SUPERLINKS = [
    (("--host", "10.0.0.3"), f"--host 10.0.0.3 {OPEN}; leave it on loopback: {GATE}"),
    (("--fleet", "0.0.0.0:9092"), f"--fleet is for Flower 1.39: {GATE}"),
    (("--umask", "0788"), "an octal mask such as 027, not '0788'"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "changed", "words"),
    [
        *(("supernode.sh", (*OPEN_NODE, *arguments), {}, words) for arguments, words in OF_NODES),
        *(("superlink.sh", ("--insecure", *arguments), {}, words) for arguments, words in OF_SUPERLINKS),
        ("supernode.sh", NODE, {}, "--insecure for a trial on one machine"),
        ("superlink.sh", ("--credentials", "."), {}, "./ca.crt cannot be read; make it with deploy/"),
        ("superlink.sh", ("--insecure",), {"HOME": None, "PROTOSPHERE_HOME": None}, "give --state FOLDER"),
        ("supernode.sh", OPEN_NODE, {"PATH": "/usr/bin:/bin"}, "there is no flower-supernode in "),
        ("superlink.sh", ("--insecure",), {"flower": "1.38.0"}, "Flower 1.38.0 was not tested with this version"),
    ],
)
def test_what_cannot_work_is_one_sentence(name, arguments, changed, words, script):
    code, said, told = script(name, *arguments, **{"flower": HTTP} | changed)
    assert (code, told) == (2, None)
    sentence = said.splitlines()[-1]
    assert sentence.startswith(f"deploy/{name}: ")
    assert words in sentence
    # how it is used stands before, where it is not
    assert said.count("\n") == 1 or said.startswith("usage: ")
