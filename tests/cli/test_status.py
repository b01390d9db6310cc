"""`protosphere status`: sites by the names of their keys, the newest run, and what will run out."""

import json
import shutil
import sqlite3
import time
from contextlib import closing

import pytest
from typer.testing import CliRunner

from deploy.credentials import app as credentials
from protosphere.cli.main import app


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Where a SuperLink's folder lies, with a database as the installed Flower makes it, and its sites' keys."""
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    from protosphere.cli.status import _as_pem

    place = tmp_path_factory.mktemp("superlink")
    state, keys = place / "superlink", place / "credentials"
    state.mkdir()
    for words in (("authority",), ("superlink", "fl.example.org", "--days", "20")):
        assert CliRunner().invoke(credentials, [words[0], str(keys), *words[1:]]).exit_code == 0
    assert CliRunner().invoke(credentials, ["node", str(keys / "clinic-north")]).exit_code == 0
    file = str(state / "superlink.db")
    store = ObjectStoreFactory(file).store()
    SqlLinkState(file, federation_manager=NoOpFederationManager(), object_store=store).initialize()
    now = time.time()
    rows = [(-5, "online", now + 50, _as_pem(keys / "clinic-north.pub")), (7, "online", now - 100, b"another key")]
    rows += [(8, "registered", None, b"a third"), (9, "unregistered", now, b"a fourth")]
    with closing(sqlite3.connect(file)) as database:
        for row in rows:
            columns = "node_id, status, online_until, public_key, heartbeat_interval"
            database.execute(f"INSERT INTO node ({columns}) VALUES (?, ?, ?, ?, 30)", row)
        database.commit()
    return place


@pytest.fixture
def superlink(made, tmp_path):
    """The SuperLink's folder and that of the keys, for this test alone."""
    return tuple(shutil.copytree(made / name, tmp_path / name) for name in ("superlink", "credentials"))


def status(*words):
    done = CliRunner().invoke(app, ["status", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_sites_have_the_names_of_their_keys_and_are_heard_by_their_heartbeats(superlink):
    state, keys = superlink
    code, out, _ = status("--state", state, "--credentials", keys, "--json")
    content = json.loads(out)
    assert code == 0
    sites = [(site["name"], site["node"], site["status"]) for site in content["sites"]]
    assert sites == [("clinic-north", str(2**64 - 5), "online"), (None, "7", "offline"), (None, "8", "registered")]
    # an online node is heard 60 s before it would count as offline
    assert 10 <= content["sites"][0]["heard_seconds"] <= 40
    assert content["sites"][1]["heard_seconds"] >= 160
    assert content["sites"][2]["heard_seconds"] is None
    assert (content["run"], content["certificate_days"]["superlink.crt"]) == (None, 19)
    assert 3640 < content["certificate_days"]["ca.crt"] < 3650
    assert content["free_gb"] > 0
    _, out, _ = status("--state", state, "--credentials", keys)
    assert out.splitlines()[0] == "3 sites"
    assert "superlink.crt: 19 days left" in out


def test_the_newest_run_has_its_round_its_pace_and_who_answered_last(superlink, run):
    state, _ = superlink
    folder = run({"rounds": 3, "max-samples": 100, "feature-dim": 8, "models": "tiny_perceptron"}, clients=2)
    code, out, _ = status("--state", state, "--results", folder.parent, "--json")
    found = json.loads(out)["run"]
    assert (code, found["folder"], found["state"]) == (0, str(folder), "completed")
    assert (found["round"], found["rounds"], found["seconds_per_round"] >= 0) == (3, 3, True)
    assert [(client["partition"], client["last_round"]) for client in found["clients"]] == [(0, 3), (1, 3)]
    told = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(told | {"state": "running", "round": 2}))
    # its process has gone, whatever the file says
    assert f"{folder}: stopped, round 2 of 3" in status("--state", state, "--results", folder.parent)[1]


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        ("", "holds no superlink.db"),
        ("superlink.db", "superlink.db cannot be read (file is not a database)"),
        ("superlink.crt", "superlink.crt holds no certificate ("),
    ],
)
def test_a_file_that_cannot_be_read_is_named(superlink, broken, word):
    state, keys = superlink
    folder = keys if broken.endswith(".crt") else state
    # with the log that SQLite would restore it from
    for file in folder.glob(f"{broken}*"):
        file.unlink()
    if broken:
        (folder / broken).write_text("no such thing")
    code, out, said = status("--state", state, "--credentials", keys)
    assert (code, out) == (2, "")
    assert word in said
    assert said.count("\n") == 1
