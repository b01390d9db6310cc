"""What the start scripts hand to Flower, and what they refuse: with stand-ins for Flower's programs on the PATH."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from protosphere.core.errors import DataError
from protosphere.data.forms.folders import read_folder

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
STAND_IN = f"""#!{sys.executable}
import json, os, sys, time
told = {{"arguments": sys.argv[1:], "cwd": os.getcwd(), "here": os.listdir(), "environment": dict(os.environ)}}
told["umask"] = os.umask(0)
deadline = time.monotonic() + 20
while not os.path.exists(os.environ["TOLD"] + ".superexec") and time.monotonic() < deadline:
    time.sleep(0.02)
open(os.environ["TOLD"], "w").write(json.dumps(told))
"""
OF_SUPEREXEC = """
import json, os, sys, time
open(os.environ["TOLD"] + ".superexec", "w").write(json.dumps(sys.argv[1:]))
time.sleep(60)
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
    for name in ("superlink.sh", "supernode.sh", "with_superexec.py", "credentials.py"):
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
    for name in ("ca.crt", "superlink.crt", "clinic"):
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
    script, certified, home, tmp_path
):
    credentials = certified(-1, 100)
    credentials = credentials.rename(credentials.with_name("my credentials"))
    code, said, told = script("superlink.sh", "--credentials", credentials.name)
    assert (code, said, told["here"]) == (0, "", [])
    arguments = told["arguments"]
    assert "--enable-supernode-auth" in arguments
    assert "--insecure" not in arguments
    for option, value in (
        ("--ssl-ca-certfile", credentials / "ca.crt"),
        ("--ssl-certfile", credentials / "superlink.crt"),
        ("--ssl-keyfile", credentials / "superlink.key"),
        ("--host", "127.0.0.1"),
        ("--fleet-api-address", "0.0.0.0:9092"),
        ("--database", home / "superlink.db"),
        ("--isolation", "process"),
    ):
        assert after(arguments, option) == str(value)
    assert told["environment"]["PROTOSPHERE_HOME"] == str(home)
    assert told["environment"]["FLWR_TELEMETRY_ENABLED"] == "0"
    ours, of_flower = superexec_of(tmp_path)
    assert (ours, after(of_flower, "--runtime-api-address")) == (["--cold"], "127.0.0.1:8000")
    assert after(of_flower, "--root-certificates") == str(credentials / "ca.crt")
    assert "--insecure" not in of_flower


def test_from_1_40_on_the_superlink_has_one_port_which_stays_on_loopback(script, certified):
    code, said, told = script("superlink.sh", "--credentials", certified(-1, 100), flower=HTTP)
    assert (code, said) == (0, "")
    arguments = told["arguments"]
    assert (after(arguments, "--host"), after(arguments, "--port")) == ("127.0.0.1", "8000")
    assert "--enable-supernode-auth" in arguments
    assert not {"--fleet-api-address", "--insecure"} & set(arguments)
    for host in ("::1", "localhost"):
        told = script("superlink.sh", "--insecure", "--host", host, flower=HTTP)[2]
        assert after(told["arguments"], "--host") == host


def test_without_tls_nobody_else_can_take_part_unless_one_says_so(script, tmp_path):
    told = script("superlink.sh", "--insecure", "--port", 8100)[2]
    assert (told["arguments"][0], after(told["arguments"], "--fleet-api-address")) == ("--insecure", "127.0.0.1:9092")
    _, of_flower = superexec_of(tmp_path)
    assert (after(of_flower, "--runtime-api-address"), "--insecure" in of_flower) == ("127.0.0.1:8100", True)
    told = script("superlink.sh", "--insecure", "--fleet", "0.0.0.0:9000")[2]
    assert after(told["arguments"], "--fleet-api-address") == "0.0.0.0:9000"
    assert script("supernode.sh", *OPEN_NODE)[2]["arguments"][0] == "--insecure"


def test_a_node_has_its_own_rows_model_and_device(script, credentials, tmp_path):
    (tmp_path / "x rays").mkdir()
    (tmp_path / "trusted.yaml").touch()
    own = {"data": "x rays", "model": "hf:a/b?trainable=2", "device": "cpu", "domain": "clínic = 1", "state": "mine"}
    own |= {"name": "St. Mary & Co", "label-column": "patient's state", "text-column": "$(note)", "port": 9100}
    own |= {"group-column": "Größe = 1", "privacy-epsilon": "8.25", "privacy-delta": "1e-06"}
    own |= {"ca": credentials / "ca.crt", "key": credentials / "clinic", "trusted-entities": "trusted.yaml"}
    options = [word for name, value in own.items() for word in (f"--{name}", value)]
    # a folder is found whatever `cd` looks through
    code, said, told = script("supernode.sh", *NODE, *options, "--privacy", CDPATH=str(tmp_path))
    assert code == 0, said
    names = ("model", "device", "domain", "name", "label-column", "text-column", "group-column")
    assert node_config(told) == {name: own[name] for name in names} | {
        "partition-id": 1,
        "num-partitions": 3,
        "data-path": str(tmp_path / "x rays"),
        "privacy": "required",
        "privacy-epsilon": 8.25,
        "privacy-delta": 1e-6,
    }
    for option, value in (
        ("--root-certificates", credentials / "ca.crt"),
        ("--auth-supernode-private-key", credentials / "clinic"),
        ("--trusted-entities", tmp_path / "trusted.yaml"),
        ("--host", "127.0.0.1"),
        ("--port", 9100),
    ):
        assert after(told["arguments"], option) == str(value)
    assert "--insecure" not in told["arguments"]
    assert told["environment"]["PROTOSPHERE_HOME"] == str(tmp_path / "mine")
    assert (told["cwd"], told["here"]) == (str(tmp_path / "mine" / "empty"), [])


@pytest.mark.parametrize(
    ("own", "read"),
    [
        (("--name", "病" * 60), {"name": "病" * 60}),
        (("--privacy-epsilon", "3", "--privacy-delta", "1e-5"), {"privacy-epsilon": 3, "privacy-delta": 1e-5}),
        (("--privacy-epsilon", "0.5", "--privacy-delta", "0.00001"), {"privacy-epsilon": 0.5, "privacy-delta": 1e-5}),
    ],
)
def test_flower_reads_the_node_config_as_it_was_meant(script, own, read):
    """A name has sixty characters of any alphabet, where a shell counts bytes; numbers are TOML's."""
    code, said, told = script("supernode.sh", *OPEN_NODE, *own)
    assert code == 0, said
    assert node_config(told) == read | {"partition-id": 1, "num-partitions": 3}


def test_a_superexec_of_ours_shares_a_secret_with_the_supernode_and_starts_its_clientapps(script, tmp_path):
    own = ("--state", tmp_path / "state", "--port", 9100)
    code, said, told = script("supernode.sh", *OPEN_NODE, *own)
    assert (code, said) == (0, "")
    ours, of_flower = superexec_of(tmp_path)
    assert after(told["arguments"], "--isolation") == "process"
    assert after(of_flower, "--runtime-api-address") == "127.0.0.1:9100"
    secret = after(told["arguments"], "--superexec-auth-secret-file")
    assert after(of_flower, "--superexec-auth-secret-file") == secret
    # it ends with both
    assert (Path(secret).parent, Path(secret).exists()) == (tmp_path / "state", False)
    assert ours == []
    (tmp_path / "apps.txt").touch()
    script("supernode.sh", *OPEN_NODE, *own, "--warm", "no", "--allow-app", "apps.txt")
    assert superexec_of(tmp_path)[0] == ["--allow-app", str(tmp_path / "apps.txt"), "--cold"]


@pytest.mark.parametrize(("name", "arguments"), [("supernode.sh", OPEN_NODE), ("superlink.sh", ("--insecure",))])
def test_what_both_scripts_see_to(name, arguments, script, tmp_path):
    """Their state is their user's alone, also one that an older version left open, and needs no home; no proxy is asked
    for this machine."""
    (tmp_path / "before").mkdir(mode=0o755)
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": None, "NO_PROXY": None, "HOME": None}
    for state, more, expected in (
        ("mine", {}, "127.0.0.1,localhost"),
        ("before", {"no_proxy": "example.org"}, "example.org,127.0.0.1,localhost"),
        ("before", {"NO_PROXY": "example.org"}, "example.org,127.0.0.1,localhost"),
    ):
        told = script(name, *arguments, "--state", state, **proxy | {"PROTOSPHERE_HOME": None} | more)[2]
        assert told["umask"] == 0o077
        assert (tmp_path / state).stat().st_mode & 0o777 == 0o700
        assert [told["environment"][each] for each in ("no_proxy", "NO_PROXY")] == [expected] * 2


def test_results_that_lie_elsewhere_may_be_for_others_to_read(script, tmp_path):
    told = script("superlink.sh", "--insecure", "--state", "mine", "--umask", "027")[2]
    assert told["umask"] == 0o027
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700


def test_the_services_keep_to_it_too():
    for name in ("superlink", "supernode"):
        unit = (DEPLOY / "systemd" / f"protosphere-{name}.service").read_text().splitlines()
        assert {"UMask=0077", "StateDirectoryMode=0700"} <= set(unit)
    assert "KillMode=mixed" in (DEPLOY / "systemd" / "protosphere-superlink.service").read_text().splitlines()


TABLES = ["train.csv", "data/train.parquet"]
NO_TABLES = ["no/1.png", ".train.csv", "more/train.csv", "train.txt"]


@pytest.mark.parametrize("name", [*TABLES, *NO_TABLES])
def test_a_table_without_its_classes_is_refused_at_the_start(script, tmp_path, name):
    folder = tmp_path / "my rows"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).touch()
    (folder / "classes.txt").touch()
    code, said, _ = script("supernode.sh", *OPEN_NODE, "--data", folder)
    assert (code == 2) == (f"--data {folder} holds a table but no classes.txt" in said) == (name in TABLES)
    # as the data floor sees it, which wants its classes
    (folder / "classes.txt").write_text("no\n")
    assert (name in TABLES) == tables_are_found(folder)


def tables_are_found(folder):
    try:
        return read_folder(folder).format != "images"
    except DataError:
        return False


def test_one_file_is_a_site_s_data_with_its_classes_beside_it_and_so_is_code_of_its_own(script, tmp_path):
    (tmp_path / "my rows").mkdir()
    for name in ("rows.npz", "rows.csv", "code.py"):
        (tmp_path / "my rows" / name).touch()
    node = ("supernode.sh", *OPEN_NODE, "--data")
    assert "--data my rows/rows.npz has no classes.txt beside it" in script(*node, "my rows/rows.npz")[1]
    (tmp_path / "my rows" / "classes.txt").write_text("no\n")
    for name in ("rows.npz", "rows.csv", "code.py:rows"):
        assert node_config(script(*node, f"my rows/{name}")[2])["data-path"] == f"{tmp_path}/my rows/{name}"


# --- refusals ----------------------------------------------------------------------------------------------------

COLUMN = ("--label-column", "state")
SECURE = ("--ca", "{credentials}/ca.crt", "--key", "{credentials}/clinic")
NOWHERE = {"HOME": None, "PROTOSPHERE_HOME": None}
NO_STATE = "neither PROTOSPHERE_HOME nor HOME says where to keep state; give --state FOLDER"
OF_NODES = [
    (("--nonsense", "1"), "unknown option --nonsense"),
    (("--data",), "--data wants a value"),
    (("--data", "/nowhere"), "--data /nowhere does not exist"),
    (("--data", "none.py:rows"), "--data none.py is no file"),
    (("--partition", "01"), "--partition wants a whole number, not '01'"),
    (("--partition", "3"), "--partition is 3, but the 3 clients are 0 to 2"),
    (("--of", ""), "--of wants a whole number, not ''"),
    (("--model", 'a" partition-id="0'), "the value of --model may hold no quote"),
    (("--encoder", "/no/such"), ": /no/such does not exist"),
    (("--encoder", "/no/mine.py:Encoder"), ": /no/mine.py does not exist"),
    (("--name", 'a"b'), "the value of --name may hold no quote, backslash or line end"),
    (("--name", "病" * 61), "is longer than 60 characters; give a shorter one"),
    (("--superlink", ""), "--superlink HOST:PORT is missing"),
    (("--warm", "maybe"), "--warm is yes or no, not 'maybe'"),
    (("--privacy-epsilon", "3"), "a limit has two parts"),
    (("--privacy-delta", "1e-5"), "a limit has two parts"),
    *(
        (("--privacy-delta", "1e-5", "--privacy-epsilon", bad), "--privacy-epsilon wants a number above 0")
        for bad in ("0", "1,5", '3" x="')
    ),
    (("--trusted-entities", "gone.yaml"), "--trusted-entities gone.yaml cannot be read"),
    (COLUMN, "name columns of the tables at --data"),
    (("--data", ".", "--label-column", 'a" b="'), "the value of --label-column may hold no quote"),
    (("--model", "resnet19"), "model 'resnet19' is unknown"),
    (("--device", "mps:0"), '--device is "mps:0", but this machine has no'),
    (("--device", "gpu"), "--device 'gpu': should be 'auto', 'cpu', 'cuda'"),
    (SECURE, "--insecure goes without --ca and --key"),
]
GATE = "nginx stands before a SuperLink of Flower 1.40 and newer (deploy/nginx/protosphere-gate.conf"
OPEN = "would let everybody who reaches it start code on all sites"
OF_SUPERLINKS = [
    (("--host", "10.0.0.3"), f"--host 10.0.0.3 {OPEN}; leave it on loopback: {GATE}"),
    (("--host", "::"), f"--host :: {OPEN}"),
    (("--fleet", "0.0.0.0:9092"), f"--fleet is for Flower 1.39: {GATE}"),
    (("--no-gate",), f"--no-gate is gone: {GATE}"),
    (("--connections", "64"), f"--connections is gone: {GATE}"),
    (("--largest-body", "8"), f"--largest-body is gone: {GATE}"),
    *((("--umask", odd), f"an octal mask such as 027, not '{odd}'") for odd in ("", "0788")),
    (("--credentials", "."), "--credentials and --insecure exclude each other"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "changed", "words"),
    [
        *(("supernode.sh", (*OPEN_NODE, *arguments), {}, words) for arguments, words in OF_NODES),
        *(("superlink.sh", ("--insecure", *arguments), {}, words) for arguments, words in OF_SUPERLINKS),
        ("supernode.sh", NODE, {}, "--insecure for a trial on one machine"),
        ("superlink.sh", (), {}, "--insecure for a trial on one machine"),
        ("supernode.sh", (*NODE, *SECURE[:3], "/nowhere"), {}, "--key /nowhere cannot be read"),
        ("superlink.sh", ("--credentials", "{credentials}"), {}, "superlink.key cannot be read; make it with deploy/"),
        ("supernode.sh", OPEN_NODE, NOWHERE, NO_STATE),
        ("superlink.sh", ("--insecure",), NOWHERE, NO_STATE),
        ("supernode.sh", OPEN_NODE, {"PATH": "/usr/bin:/bin"}, "there is no flower-supernode in "),
        ("superlink.sh", ("--insecure",), {"PATH": "/usr/bin:/bin"}, "there is no flower-superlink in "),
        *(
            (
                "superlink.sh",
                ("--insecure",),
                {"flower": flower},
                f"Flower {flower} was not tried with this Protosphere",
            )
            for flower in ("1.38.0", "1.43.0")
        ),
        ("supernode.sh", OPEN_NODE, {"flower": "1.43.0"}, "which knows 1.39 to 1.42"),
    ],
)
def test_what_cannot_work_is_one_sentence(name, arguments, changed, words, script, credentials):
    arguments = [str(word).replace("{credentials}", str(credentials)) for word in arguments]
    code, said, told = script(name, *arguments, **{"flower": HTTP} | changed)
    assert (code, told) == (2, None)
    sentence = said.splitlines()[-1]
    assert sentence.startswith(f"deploy/{name}: ")
    assert words in sentence
    # how it is used stands before, where it is not
    assert said.count("\n") == 1 or said.startswith("usage: ")


MESSAGE = b"what a site has sent"
LEAVES = f"""
import sqlite3
base = sqlite3.connect(os.environ["PROTOSPHERE_HOME"] + "/superlink.db")
base.execute("CREATE TABLE message_ins (content BLOB)")
base.execute("INSERT INTO message_ins VALUES (?)", [{MESSAGE!r}])
base.commit()
assert {MESSAGE!r} in open(os.environ["PROTOSPHERE_HOME"] + "/superlink.db", "rb").read()
sys.exit(3)
"""


def test_a_superlink_s_exit_code_is_passed_on_and_its_database_cleared(script, tmp_path):
    """What clears it, and when: test_with_superexec.py."""
    (tmp_path / "programs" / "flower-superlink").write_text(STAND_IN + LEAVES)
    assert script("superlink.sh", "--insecure", "--state", "mine")[0] == 3
    assert MESSAGE not in (tmp_path / "mine" / "superlink.db").read_bytes()
