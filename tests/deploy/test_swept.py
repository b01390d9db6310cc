"""What clears a SuperLink's database: bytes that are gone. When it is called: test_scripts.py."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from deploy.swept import sweep

SWEPT = Path(__file__).resolve().parents[2] / "deploy" / "swept.py"
ANSWERED, WAITING, KEY = b"a vector that was answered", b"a vector that nobody fetched", b"the key of a node"
# as a SuperLink leaves it that is killed: nothing written back, whatever SQLite was built with
KILLED = f"""
import os, sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
for pragma in ("journal_mode = WAL", "secure_delete = OFF"):
    base.execute("PRAGMA " + pragma)
for table in ("objects", "message_ins", "node"):
    base.execute("CREATE TABLE " + table + " (content BLOB)")
base.execute("INSERT INTO objects VALUES (?)", [{ANSWERED!r} * 400])
base.execute("INSERT INTO node VALUES (?)", [{KEY!r}])
base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
base.execute("DELETE FROM objects")
for table in ("objects", "message_ins"):
    base.execute("INSERT INTO " + table + " VALUES (?)", [{WAITING!r}])
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def base(tmp_path):
    """A database that a killed SuperLink left."""
    file = tmp_path / "superlink.db"
    subprocess.run([sys.executable, "-c", KILLED, file], check=False)
    held = content(file)
    assert all(found in held for found in (ANSWERED, WAITING, KEY))
    return file


def content(file):
    return b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))


def swept(file):
    """What is said of a file, and what is printed."""
    command = 'exec 9>>"$2.lock"; "$0" -P "$1" "$2" 9'
    return subprocess.run(["sh", "-c", command, sys.executable, SWEPT, file], capture_output=True, text=True)


def test_nothing_of_a_message_is_left_and_all_else_is(base):
    done = swept(base)
    assert (done.returncode, done.stderr) == (0, "")
    assert not base.with_name("superlink.db-wal").exists()
    assert KEY in content(base)
    assert not any(message in content(base) for message in (ANSWERED, WAITING))


def test_tables_that_nobody_knows_are_told(base):
    with closing(sqlite3.connect(base)) as database:
        database.execute("CREATE TABLE message_store (content BLOB)")
    done = swept(base)
    assert done.returncode == 2
    assert f"{base} has tables of which this version knows nothing (message_store)" in done.stderr
    # what is known is cleared all the same
    assert WAITING not in content(base)


def test_every_table_of_the_flower_that_is_installed_is_known(tmp_path):
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    file = tmp_path / "superlink.db"
    store = ObjectStoreFactory(str(file)).store()
    state = SqlLinkState(str(file), federation_manager=NoOpFederationManager(), object_store=store)
    state.initialize()
    with closing(sqlite3.connect(file)) as database:
        made = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert made > {"objects", "message_ins", "node"}
    sweep(file)


def test_a_database_that_cannot_be_cleared_is_told_and_stops_nothing(base, tmp_path):
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    done = swept(tmp_path / "torn.db")
    assert done.returncode == 0
    assert f"{tmp_path / 'torn.db'} may still hold messages (file is not a database)" in done.stderr
    reader = sqlite3.connect(base, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM node").fetchall()
    done = swept(base)
    assert (done.returncode, "may still hold messages" in done.stderr) == (0, True)
    reader.close()
    assert swept(tmp_path / "none.db").stderr == ""
    assert not (tmp_path / "none.db").exists()
