"""What runs the SuperLink and clears its database: signals, exit codes, and bytes that are gone."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from deploy.swept import sweep
from tests.waiting import comes

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
WAITS = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, lambda *_: None); {WAITS}; time.sleep(60)"


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


def swept(file, *command, **options):
    return subprocess.run([sys.executable, SWEPT, file, *command], capture_output=True, text=True, **options)


def test_nothing_of_a_message_is_left_when_the_superlink_begins_and_when_it_has_ended(base):
    seen = base.with_name("seen")
    look = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.with_name('seen').write_bytes(p.read_bytes())"
    done = swept(base, sys.executable, "-c", look, base)
    assert (done.returncode, done.stderr) == (0, "")
    assert not base.with_name("superlink.db-wal").exists()
    for held in (content(base), seen.read_bytes()):
        assert KEY in held
        assert ANSWERED not in held
        assert WAITING not in held
    # whatever it did meanwhile
    assert (
        swept(base, sys.executable, "-c", KILLED.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"), base).returncode
        == 137
    )
    assert WAITING not in content(base)
    assert content(base).count(KEY) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_superlink_and_its_database_is_cleared(base, number):
    file = base.with_name("begun")
    # in a suite that was started in the background the signal may be ignored, which a child inherits
    heard = {"preexec_fn": lambda: signal.signal(number, signal.SIG_DFL)}
    runner = subprocess.Popen([sys.executable, SWEPT, base, sys.executable, "-c", WAITS, file], **heard)
    wait_for(file)
    base.unlink()
    subprocess.run([sys.executable, "-c", KILLED, base], check=False)
    runner.send_signal(number)
    assert runner.wait(20) == -number
    assert WAITING not in content(base)


def test_a_superlink_that_waits_for_others_to_hang_up_is_killed(base):
    file = base.with_name("begun")
    program = "import sys, deploy.swept as s; s.GRACE = 1; sys.exit(s.main(s.Path(sys.argv[1]), sys.argv[2:]))"
    command = [sys.executable, "-c", program, base, sys.executable, "-c", DEAF, file]
    runner = subprocess.Popen(command, cwd=SWEPT.parents[1])
    wait_for(file)
    began = time.monotonic()
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(20) == -signal.SIGTERM
    assert 0.9 < time.monotonic() - began < 10


def wait_for(file):
    assert comes(lambda: file.exists() and file.read_text())
    return int(file.read_text())


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_its_exit_code_is_passed_on(tmp_path, ends, code):
    done = swept(tmp_path / "none.db", sys.executable, "-c", f"import os, sys; {ends}")
    assert (done.returncode, done.stderr) == (code, "")
    assert not (tmp_path / "none.db").exists()


LOOK_INTO = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('ran')"


def test_tables_that_nobody_knows_are_told_and_no_superlink_starts(base):
    ran = base.with_name("ran")
    with closing(sqlite3.connect(base)) as database:
        database.execute("CREATE TABLE message_store (content BLOB)")
    done = swept(base, sys.executable, "-c", LOOK_INTO, ran)
    assert (done.returncode, ran.exists()) == (2, False)
    assert f"{base} has tables of which this version knows nothing (message_store)" in done.stderr
    # what is known is cleared all the same
    assert WAITING not in content(base)


def test_tables_that_the_superlink_has_made_are_told_at_its_end(tmp_path):
    file = tmp_path / "superlink.db"
    makes = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('CREATE TABLE a_new_one (content BLOB)')"
    done = swept(file, sys.executable, "-c", makes, file)
    assert done.returncode == 2
    assert "knows nothing (a_new_one)" in done.stderr


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
    done = swept(tmp_path / "torn.db", sys.executable, "-c", "print('run')")
    assert (done.returncode, done.stdout) == (0, "run\n")
    assert done.stderr.count(f"{tmp_path / 'torn.db'} may still hold messages (file is not a database)") == 2
    reader = sqlite3.connect(base, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM node").fetchall()
    done = swept(base, sys.executable, "-c", "print('run')")
    assert (done.returncode, done.stdout) == (0, "run\n")
    assert "may still hold messages" in done.stderr
    reader.close()


def test_no_second_superlink_takes_the_messages_of_the_first(base):
    file = base.with_name("begun")
    first = subprocess.Popen([sys.executable, SWEPT, base, sys.executable, "-c", WAITS, file])
    superlink = wait_for(file)
    base.unlink()
    subprocess.run([sys.executable, "-c", KILLED, base], check=False)
    # also when nobody is left to clear after it but the SuperLink itself
    for _ in range(2):
        second = swept(base, sys.executable, "-c", "print('run')")
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr == f"deploy/superlink.sh: another SuperLink has {base}; give each a --state of its own\n"
        assert WAITING in content(base)
        first.kill()
        first.wait()
    os.kill(superlink, signal.SIGKILL)
    assert comes(lambda: swept(base, sys.executable, "-c", "print('run')").stdout == "run\n")
    assert WAITING not in content(base)
