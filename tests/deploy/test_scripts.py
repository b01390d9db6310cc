"""What the start scripts hand to Flower, and what they refuse: with stand-ins for Flower's programs on the PATH."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from protosphere.core.errors import DataError
from protosphere.data.forms.folders import read_folder
from tests.waiting import comes

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


@pytest.fixture
def script(tmp_path, monkeypatch):
    """script(name, *arguments, **changed variables): its exit code, what it said, and what Flower's program was told
    (or None)."""
    # a copy, so that no .venv beside the repository's deploy/ goes before the stand-ins
    place = tmp_path / "checkout" / "deploy"
    place.mkdir(parents=True)
    for name in (
        "superlink.sh",
        "supernode.sh",
        "with_superexec.py",
        "credentials.py",
    ):
        (place / name).write_text((DEPLOY / name).read_text())
        (place / name).chmod(0o755)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("flower-superlink", "flower-supernode"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    (place / "supernode.py").write_text(STAND_IN)
    (place / "executor.py").write_text(OF_SUPEREXEC)
    # not a link, which would be another environment's Python
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python").chmod(0o755)
    told = tmp_path / "told.json"
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "TOLD": str(told)}

    def run(name, *arguments, flower=GRPC, **changed):
        told.unlink(missing_ok=True)
        told.with_name("told.json.superexec").unlink(missing_ok=True)
        # what is found first is the version that is there
        installed = tmp_path / f"flower-{flower}"
        (installed / f"flwr-{flower}.dist-info").mkdir(parents=True, exist_ok=True)
        (installed / f"flwr-{flower}.dist-info" / "METADATA").write_text(f"Name: flwr\nVersion: {flower}\n")
        path = os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH"))))
        command = [str(place / name), *map(str, arguments)]
        own = environment | {"PYTHONPATH": path} | changed
        own = {key: value for key, value in own.items() if value is not None}
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


NODE = ("--superlink", "fl.example.org:9092", "--partition", 1, "--of", 3)


def secure(credentials):
    return "--ca", credentials / "ca.crt", "--key", credentials / "clinic"


def after(arguments, option):
    return arguments[arguments.index(option) + 1]


def test_the_superlink_speaks_tls_to_registered_nodes_and_keeps_its_control_port_to_itself(script, certified, home):
    credentials = certified(-1, 100)
    credentials = credentials.rename(credentials.with_name("my credentials"))
    code, said, told = script("superlink.sh", "--credentials", credentials.name)
    assert (code, said) == (0, "")
    arguments = told["arguments"]
    assert "--enable-supernode-auth" in arguments
    assert "--insecure" not in arguments
    for option, name in (
        ("--ssl-ca-certfile", "ca.crt"),
        ("--ssl-certfile", "superlink.crt"),
        ("--ssl-keyfile", "superlink.key"),
    ):
        assert after(arguments, option) == str(credentials / name)
    assert after(arguments, "--host") == "127.0.0.1"
    assert after(arguments, "--fleet-api-address") == "0.0.0.0:9092"
    assert after(arguments, "--database") == str(home / "superlink.db")
    assert told["here"] == []
    assert told["environment"]["PROTOSPHERE_HOME"] == str(home)
    assert told["environment"]["FLWR_TELEMETRY_ENABLED"] == "0"


def test_from_1_40_on_the_superlink_has_one_port_which_stays_on_loopback(script, certified):
    code, said, told = script("superlink.sh", "--credentials", certified(-1, 100), flower=HTTP)
    assert (code, said) == (0, "")
    arguments = told["arguments"]
    assert (after(arguments, "--host"), after(arguments, "--port")) == ("127.0.0.1", "8000")
    assert "--enable-supernode-auth" in arguments
    assert not {"--fleet-api-address", "--insecure"} & set(arguments)
    for host in ("::1", "localhost"):
        assert (
            after(script("superlink.sh", "--insecure", "--host", host, flower=HTTP)[2]["arguments"], "--host") == host
        )
    gate = "nginx stands before a SuperLink of Flower 1.40 and newer (deploy/nginx/protosphere-gate.conf"
    for words, reason in (
        (("--host", "0.0.0.0"), "--host 0.0.0.0 would let everybody who reaches it start code on all sites"),
        (("--host", "10.0.0.3"), "--host 10.0.0.3 would let everybody"),
        (("--host", "::"), "--host :: would let everybody"),
        (("--fleet", "0.0.0.0:9092"), "--fleet is for Flower 1.39"),
        (("--no-gate",), "--no-gate is gone"),
        (("--connections", "64"), "--connections is gone"),
        (("--largest-body", "8"), "--largest-body is gone"),
    ):
        code, said, told = script("superlink.sh", "--insecure", *words, flower=HTTP)
        assert (code, told, said.count("\n")) == (2, None, 1)
        assert reason in said
        assert gate in said


def test_a_flower_that_was_never_tried_is_refused(script):
    for flower in ("1.38.0", "1.43.0", "2.0.0"):
        code, said, told = script("superlink.sh", "--insecure", flower=flower)
        assert (code, told) == (2, None)
        assert f"Flower {flower} was not tried with this Protosphere, which knows 1.39 to 1.42" in said
        assert script("supernode.sh", *NODE, "--insecure", flower=flower)[0] == 2


def test_a_node_has_its_own_rows_model_and_device(script, credentials, tmp_path):
    (tmp_path / "x rays").mkdir()
    own = ("--data", "x rays", "--model", "resnet18", "--device", "cpu", "--domain", "clinic a", "--state", "mine")
    own += ("--name", "St. Mary & Co")
    code, said, told = script("supernode.sh", *NODE, *secure(credentials), *own, "--port", 9100)
    assert code == 0, said
    arguments = told["arguments"]
    assert after(arguments, "--node-config") == (
        f'partition-id=1 num-partitions=3 data-path="{tmp_path / "x rays"}" model="resnet18" device="cpu" '
        'domain="clinic a" name="St. Mary & Co"'
    )
    assert after(arguments, "--root-certificates") == str(credentials / "ca.crt")
    assert after(arguments, "--auth-supernode-private-key") == str(credentials / "clinic")
    assert (after(arguments, "--host"), after(arguments, "--port")) == ("127.0.0.1", "9100")
    assert "--insecure" not in arguments
    assert told["environment"]["PROTOSPHERE_HOME"] == str(tmp_path / "mine")
    assert (told["cwd"], told["here"]) == (str(tmp_path / "mine" / "empty"), [])


LIMITS = [("3", "1e-5", 3, 1e-5), ("0.5", "0.00001", 0.5, 1e-5), ("8.25", "1e-06", 8.25, 1e-6)]
COLUMNS = ("--label-column", "patient's state", "--text-column", "$(note)", "--group-column", "Größe = 1")


@pytest.mark.parametrize(
    ("own", "read"),
    [
        (
            ("--data", "a b", "--model", "hf:a/b?trainable=2", "--domain", "clínic = 1"),
            {"data-path": "{here}/a b", "model": "hf:a/b?trainable=2"} | {"domain": "clínic = 1"},
        ),
        *(
            (
                ("--privacy", "--privacy-epsilon", epsilon, "--privacy-delta", delta),
                {"privacy": "required", "privacy-epsilon": first, "privacy-delta": second},
            )
            for epsilon, delta, first, second in LIMITS
        ),
        (
            ("--data", "a b", *COLUMNS),
            {"data-path": "{here}/a b", "label-column": "patient's state", "text-column": "$(note)"}
            | {"group-column": "Größe = 1"},
        ),
        (
            ("--data", "a b", *COLUMNS[:2]),
            {"data-path": "{here}/a b", "label-column": "patient's state"},
        ),
    ],
)
def test_flower_reads_the_node_config_as_it_was_meant(script, credentials, tmp_path, own, read):
    from flwr.common.config import parse_config_args

    (tmp_path / "a b").mkdir()
    code, said, told = script("supernode.sh", *NODE, *secure(credentials), *own)
    assert code == 0, said
    wanted = {name: value.format(here=tmp_path) if isinstance(value, str) else value for name, value in read.items()}
    wanted |= {"partition-id": 1, "num-partitions": 3}
    assert parse_config_args([after(told["arguments"], "--node-config")]) == wanted


def test_whose_code_a_site_runs(script, credentials, tmp_path):
    (tmp_path / "trusted.yaml").touch()
    *_, told = script("supernode.sh", *NODE, *secure(credentials), "--trusted-entities", "trusted.yaml")
    assert after(told["arguments"], "--trusted-entities") == str(tmp_path / "trusted.yaml")


def test_without_tls_nobody_else_can_take_part_unless_one_says_so(script):
    assert after(script("superlink.sh", "--insecure")[2]["arguments"], "--fleet-api-address") == "127.0.0.1:9092"
    *_, told = script("superlink.sh", "--insecure", "--fleet", "0.0.0.0:9000")
    assert after(told["arguments"], "--fleet-api-address") == "0.0.0.0:9000"


def test_what_a_site_and_the_superlink_keep_is_their_users_alone(script, credentials, tmp_path):
    # an older version left it open
    (tmp_path / "before").mkdir(mode=0o755)
    for state in ("mine", "before"):
        for name, own in (("supernode.sh", (*NODE, *secure(credentials))), ("superlink.sh", ("--insecure",))):
            *_, told = script(name, *own, "--state", state)
            assert told["umask"] == 0o077
            assert (tmp_path / state).stat().st_mode & 0o777 == 0o700
            (tmp_path / state).chmod(0o755)


def test_results_that_lie_elsewhere_may_be_for_others_to_read(script, tmp_path):
    *_, told = script("superlink.sh", "--insecure", "--state", "mine", "--umask", "027")
    assert told["umask"] == 0o027
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    for odd in ("", "77", "0788", "u=rwx"):
        code, said, told = script("superlink.sh", "--insecure", "--umask", odd)
        assert (code, told) == (2, None)
        assert f"--umask wants an octal mask such as 027, not '{odd}'" in said


def test_the_services_keep_to_it_too():
    for name in ("superlink", "supernode"):
        unit = (DEPLOY / "systemd" / f"protosphere-{name}.service").read_text().splitlines()
        assert {"UMask=0077", "StateDirectoryMode=0700"} <= set(unit)
    assert "KillMode=mixed" in (DEPLOY / "systemd" / "protosphere-superlink.service").read_text().splitlines()


TABLES = ["train.csv", "a.parquet", "rows.json", "rows.jsonl", "data/train.parquet"]
NO_TABLES = ["no/1.png", ".train.csv", "__train.csv", "dataset_info.json", "more/train.csv", "train.txt"]


@pytest.mark.parametrize("name", [*TABLES, *NO_TABLES])
def test_a_table_without_its_classes_is_refused_at_the_start(script, credentials, tmp_path, name):
    folder = tmp_path / "my rows"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).touch()
    (folder / "classes.txt").touch()
    option = "--data"
    node = ("supernode.sh", *NODE, *secure(credentials), option, folder)
    code, said, told = script(*node)
    if name in TABLES:
        assert (code, told) == (2, None)
        assert f"{option} {folder} holds a table but no classes.txt" in said
        if name == TABLES[0]:
            (folder / "classes.txt").write_text("no\n")
            assert script(*node)[0] == 0
    else:
        assert code == 0, said
    # as the data floor sees it, which wants its classes
    (folder / "classes.txt").write_text("no\n")
    assert (name in TABLES) == tables_are_found(folder)


def test_one_file_is_a_site_s_data_with_its_classes_beside_it_and_so_is_code_of_its_own(script, credentials, tmp_path):
    (tmp_path / "my rows").mkdir()
    for name in ("rows.npz", "rows.csv", "code.py"):
        (tmp_path / "my rows" / name).touch()
    node = ("supernode.sh", *NODE, *secure(credentials), "--data")
    for name in ("rows.npz", "rows.csv"):
        code, said, told = script(*node, f"my rows/{name}")
        assert (code, told) == (2, None)
        assert f"--data my rows/{name} has no classes.txt beside it" in said
    (tmp_path / "my rows" / "classes.txt").write_text("no\n")
    for name in ("rows.npz", "rows.csv", "code.py", "code.py:rows"):
        *_, told = script(*node, f"my rows/{name}")
        assert f'data-path="{tmp_path}/my rows/{name}"' in after(told["arguments"], "--node-config")
    assert "--data my rows/none.py is no file" in script(*node, "my rows/none.py:rows")[1]


def tables_are_found(folder):
    try:
        return read_folder(folder).format != "images"
    except DataError:
        return False


def test_state_needs_no_home_where_it_is_named(script, credentials, tmp_path):
    nowhere = {"HOME": None, "PROTOSPHERE_HOME": None}
    for name, arguments in (("superlink.sh", ("--insecure",)), ("supernode.sh", (*NODE, "--insecure"))):
        assert script(name, *arguments, "--state", "mine", **nowhere)[0] == 0
        code, said, told = script(name, *arguments, **nowhere)
        assert (code, told) == (2, None)
        assert "neither PROTOSPHERE_HOME nor HOME says where to keep state; give --state FOLDER" in said


def test_folders_are_found_whatever_cd_looks_through(script, credentials, tmp_path):
    (tmp_path / "rows").mkdir()
    *_, told = script("supernode.sh", *NODE, *secure(credentials), "--data", "rows", CDPATH=str(tmp_path))
    assert f'data-path="{tmp_path / "rows"}"' in after(told["arguments"], "--node-config")


def test_without_flower_the_scripts_say_what_to_install(script, credentials):
    for name, arguments in (("superlink.sh", ("--insecure",)), ("supernode.sh", (*NODE, "--insecure"))):
        code, said, told = script(name, *arguments, PATH="/usr/bin:/bin")
        assert (code, told) == (2, None)
        assert f"there is no flower-{name.removesuffix('.sh')} in " in said
        assert said.endswith("install Protosphere with pip\n")


def superexec_of(tmp_path):
    """What the SuperExec beside it was told: its own options, and those of Flower's."""
    words = json.loads((tmp_path / "told.json.superexec").read_text())
    border = words.index("--")
    return words[:border], words[border + 1 :]


def test_a_superexec_of_ours_shares_a_secret_with_the_supernode_and_starts_its_clientapps(script, tmp_path):
    own = ("--insecure", "--state", tmp_path / "state", "--port", 9100)
    code, said, told = script("supernode.sh", *NODE, *own)
    assert (code, said) == (0, "")
    arguments = told["arguments"]
    ours, of_flower = superexec_of(tmp_path)
    assert after(arguments, "--isolation") == "process"
    assert after(of_flower, "--runtime-api-address") == "127.0.0.1:9100"
    secret = after(arguments, "--superexec-auth-secret-file")
    assert after(of_flower, "--superexec-auth-secret-file") == secret
    assert Path(secret).parent == tmp_path / "state"
    # it ends with both
    assert not Path(secret).exists()
    assert ours == []
    (tmp_path / "apps.txt").touch()
    script("supernode.sh", *NODE, *own, "--warm", "no", "--allow-app", "apps.txt")
    assert superexec_of(tmp_path)[0] == ["--allow-app", str(tmp_path / "apps.txt"), "--cold"]


def test_so_does_that_of_the_superlink(script, tmp_path, certified, home):
    *_, told = script("superlink.sh", "--insecure", "--port", 8100)
    ours, of_flower = superexec_of(tmp_path)
    assert (ours, after(of_flower, "--runtime-api-address")) == (["--cold"], "127.0.0.1:8100")
    assert "--insecure" in of_flower
    assert after(told["arguments"], "--isolation") == "process"
    credentials = certified(-1, 100)
    script("superlink.sh", "--credentials", credentials)
    _, of_flower = superexec_of(tmp_path)
    assert after(of_flower, "--root-certificates") == str(credentials / "ca.crt")
    assert "--insecure" not in of_flower


@pytest.mark.parametrize(
    ("name", "arguments"), [("supernode.sh", (*NODE, "--insecure")), ("superlink.sh", ("--insecure",))]
)
@pytest.mark.parametrize(
    ("variable", "before"), [("no_proxy", "example.org"), ("NO_PROXY", "example.org"), ("no_proxy", None)]
)
def test_no_proxy_is_asked_for_this_machine(script, name, arguments, variable, before):
    cleared = {"no_proxy": None, "NO_PROXY": None}
    *_, told = script(name, *arguments, **cleared | {"http_proxy": "http://127.0.0.1:9", variable: before})
    expected = ",".join(filter(None, (before, "127.0.0.1,localhost")))
    assert [told["environment"][each] for each in ("no_proxy", "NO_PROXY")] == [expected] * 2


def test_without_tls_one_has_to_say_so(script, credentials):
    assert script("superlink.sh", "--insecure")[2]["arguments"][0] == "--insecure"
    assert script("supernode.sh", *NODE, "--insecure")[2]["arguments"][0] == "--insecure"
    for name, arguments in (("superlink.sh", ()), ("supernode.sh", NODE)):
        code, said, told = script(name, *arguments)
        assert (code, told) == (2, None)
        assert "--insecure for a trial on one machine" in said
    assert "exclude each other" in script("superlink.sh", "--insecure", "--credentials", credentials)[1]
    assert "goes without --ca and --key" in script("supernode.sh", *NODE, *secure(credentials), "--insecure")[1]


@pytest.mark.parametrize("letter", "xé病")
def test_a_name_has_sixty_characters_of_any_alphabet(letter, script, credentials):
    # a shell counts bytes
    code, said, told = script("supernode.sh", *NODE, *secure(credentials), "--name", letter * 60)
    assert code == 0, said
    assert f'name="{letter * 60}"' in after(told["arguments"], "--node-config")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nonsense", "1"), "unknown option --nonsense"),
        (("--data",), "--data wants a value"),
        (("--data", "/nowhere"), "--data /nowhere does not exist"),
        (("--partition", "one"), "--partition wants a whole number, not 'one'"),
        (("--partition", "01"), "--partition wants a whole number, not '01'"),
        (("--partition", "3"), "--partition is 3, but the 3 clients are 0 to 2"),
        (("--of", ""), "--of wants a whole number, not ''"),
        (("--model", 'a" partition-id="0'), "the value of --model may hold no quote"),
        (("--encoder", "/no/such.pth"), "/no/such.pth does not exist; weights of a network are named as resnet18@"),
        (("--encoder", "resnet18@/no/such.pth"), ": /no/such.pth does not exist"),
        (("--encoder", "hf:/no/such?trainable=1"), ": /no/such does not exist"),
        (("--encoder", "/no/mine.py:Encoder"), ": /no/mine.py does not exist"),
        (("--domain", "a\nb"), "the value of --domain may hold no quote, backslash or line end"),
        (("--name", 'a"b'), "the value of --name may hold no quote, backslash or line end"),
        *((("--name", letter * 61), "is longer than 60 characters; give a shorter one") for letter in "xé病"),
        (("--superlink", ""), "--superlink HOST:PORT is missing"),
        (("--warm", "maybe"), "--warm is yes or no, not 'maybe'"),
        (("--key", "/nowhere"), "--key /nowhere cannot be read"),
        (("--privacy-epsilon", "3"), "--privacy-epsilon"),
        (("--privacy-delta", "1e-5"), "--privacy-delta"),
        *(
            (("--privacy-delta", "1e-5", "--privacy-epsilon", bad), "--privacy-epsilon wants a number above 0")
            for bad in ("-1", "0", "0.0e5", "1,5", "three", "01", '3" x="', "1 2")
        ),
        (("--trusted-entities", "gone.yaml"), "--trusted-entities"),
        (COLUMNS[:2], "name columns of the tables at --data"),
        (("--data", ".", "--label-column", 'a" b="'), "the value of --label-column may hold no quote"),
    ],
)
def test_a_node_refuses_what_cannot_work(arguments, words, script, credentials):
    code, said, told = script("supernode.sh", *NODE, *secure(credentials), *arguments)
    assert (code, told) == (2, None)
    assert said.splitlines()[-1] == f"deploy/supernode.sh: {words}" or words in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "resnet19"), "model 'resnet19' is unknown"),
        (("--device", "mps:0"), '--device is "mps:0", but this machine has no'),
        (("--device", "gpu"), "--device 'gpu': should be 'auto', 'cpu', 'cuda'"),
    ],
)
def test_a_model_or_device_that_a_site_lacks_is_refused(arguments, words, script, credentials):
    code, said, told = script("supernode.sh", *NODE, *secure(credentials), *arguments)
    assert (code, told, said.count("\n")) == (2, None, 1)
    assert words in said


def test_a_superlink_warns_of_its_certificates_end_and_does_not_start_after_it(script, certified):
    ending, over, early = certified(-10, 29), certified(-10, -1), certified(1, 10)
    code, said, told = script("superlink.sh", "--credentials", ending)
    assert (code, told is None) == (0, False)
    assert f"warning: {ending}/superlink.crt ends on 20" in said
    assert f"`python deploy/credentials.py renew {ending}` makes it anew" in said
    for folder, words in ((over, "has been over since 20"), (early, "is not valid before 20")):
        code, said, told = script("superlink.sh", "--credentials", folder)
        assert (code, told, said.count("\n")) == (2, None, 1)
        assert f"{folder}/superlink.crt {words}" in said


def test_a_superlink_refuses_missing_credentials(script, credentials):
    (credentials / "superlink.key").unlink()
    code, said, told = script("superlink.sh", "--credentials", credentials)
    assert (code, told) == (2, None)
    assert f"{credentials}/superlink.key cannot be read" in said


# --- the SuperLink's end and its database


LEAVES = """
import sqlite3
base = sqlite3.connect(os.environ["PROTOSPHERE_HOME"] + "/superlink.db")
base.execute("CREATE TABLE IF NOT EXISTS message_ins (content TEXT)")
base.execute("INSERT INTO message_ins VALUES ('what a site has sent')")
base.commit()
open(os.environ["TOLD"] + ".begun", "w").close()
"""
WAITS = "import time; time.sleep(60)\n"


@pytest.fixture
def begun(tmp_path, script):
    """begun(what the SuperLink then does): superlink.sh as a process whose SuperLink has messages in its database."""
    started = []

    def begin(then, **options):
        (tmp_path / "programs" / "flower-superlink").write_text(STAND_IN + LEAVES + then)
        environment = os.environ | {"PATH": f"{tmp_path}/programs:{os.environ['PATH']}"}
        environment |= {"TOLD": str(tmp_path / "told.json")}
        command = [str(tmp_path / "checkout" / "deploy" / "superlink.sh"), "--insecure", "--state", "mine"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, **options)
        started.append(process)
        assert comes(lambda: (tmp_path / "told.json.begun").exists()), process.stderr.read()
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(20)


def messages(tmp_path):
    return sum(file.read_bytes().count(b"what a site has sent") for file in (tmp_path / "mine").glob("superlink.db*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_superlink_whose_database_is_cleared(begun, tmp_path, number):
    # in a suite that was started in the background the signal may be ignored, which a child inherits
    process = begun(WAITS, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    assert messages(tmp_path) == 1
    process.send_signal(number)
    assert process.wait(20) == -number
    assert messages(tmp_path) == 0


def test_its_exit_code_is_passed_on_and_what_a_killed_one_left_is_cleared_at_the_next_start(begun, script, tmp_path):
    assert begun("sys.exit(3)\n").wait(20) == 3
    assert messages(tmp_path) == 0
    with closing(sqlite3.connect(tmp_path / "mine" / "superlink.db")) as database:
        database.execute("INSERT INTO message_ins VALUES ('what a site has sent')")
        database.commit()
    (tmp_path / "programs" / "flower-superlink").write_text(STAND_IN)
    assert script("superlink.sh", "--insecure", "--state", "mine")[:2] == (0, "")
    assert messages(tmp_path) == 0


def test_no_second_superlink_takes_the_messages_of_the_first(begun, script, tmp_path):
    begun(WAITS)
    code, said, told = script("superlink.sh", "--insecure", "--state", "mine")
    assert (code, told, messages(tmp_path)) == (2, None, 1)
    assert said == (
        f"deploy/superlink.sh: another SuperLink has {tmp_path}/mine/superlink.db; give each a --state of its own\n"
    )
