"""The pair of a SuperNode, or a SuperLink, and its SuperExec: they end together, also where one does not listen. Then
what clears a SuperLink's database; when it is called: test_scripts.py."""

import fcntl
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from deploy.with_superexec import sweep
from protosphere.core.flower import TABLES_OF_MESSAGES
from tests.integration.watched import living
from tests.waiting import PATIENCE, comes

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "with_superexec.py"
WAITS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS


def words_of(tmp_path, one=WAITS, other=WAITS, database=None):
    """A command line of the pair, whose two write their ids to files as their first act."""
    first, second = ([sys.executable, "-c", code] for code in (one, other))
    words = [sys.executable, "-P", str(SCRIPT), *(["--database", str(database)] if database else []), str(tmp_path)]
    return [*words, *first, str(tmp_path / "one"), "::", *second, str(tmp_path / "other")]


def begin(tmp_path, *codes, database=None, **options):
    """The process of the pair, and the ids of its two."""
    pair = subprocess.Popen(words_of(tmp_path, *codes, database=database), **options)
    files = [tmp_path / "one", tmp_path / "other"]
    assert comes(lambda: all(file.exists() and file.read_text() for file in files))
    return pair, [int(file.read_text()) for file in files]


@pytest.mark.parametrize("dying", [0, 1])
def test_when_one_ends_the_other_is_ended_and_the_exit_code_is_the_first_one_s(tmp_path, dying):
    pair, pids = begin(tmp_path, WAITS, WAITS)
    os.kill(pids[dying], signal.SIGKILL)
    assert pair.wait(PATIENCE) == 128 + signal.SIGKILL
    assert not living().keys() & set(pids)
    assert list(tmp_path.glob("secret-*")) == []


def test_a_killed_watcher_ends_the_pair(tmp_path):
    """What it watched lives on, and holds its output open."""
    pair, pids = begin(tmp_path, WAITS, WAITS)
    watcher = psutil.Process(pids[0]).parent()
    watcher.kill()
    try:
        assert pair.wait(PATIENCE) == 128 + signal.SIGKILL
        assert pids[1] not in living()
    finally:
        os.kill(pids[0], signal.SIGKILL)


def test_a_killed_pair_takes_both_along_and_its_lock_is_held_until_then(tmp_path):
    file = tmp_path / "lock"
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        pair, pids = begin(tmp_path, STUBBORN, WAITS, pass_fds=[held.fileno()])
    pair.kill()
    pair.wait()
    with file.open() as another:
        with pytest.raises(BlockingIOError):
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert comes(lambda: not living().keys() & set(pids))
        fcntl.flock(another, fcntl.LOCK_EX)


def test_each_line_has_its_time_and_no_colours(tmp_path):
    done = subprocess.run(words_of(tmp_path, "print('\\x1b[92mINFO \\x1b[0m: begun')"), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} INFO : begun\n", done.stdout)


# --- the database ---------------------------------------------------------------------------------------------------

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
    assert ANSWERED in content(file)
    return file


def content(file):
    return b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))


def test_a_database_is_clear_of_messages_when_both_begin_and_when_a_signal_has_ended_them(base, tmp_path):
    pair, _ = begin(tmp_path, database=base)
    assert KEY in content(base)
    assert not any(message in content(base) for message in (ANSWERED, WAITING))
    with closing(sqlite3.connect(base)) as database:
        database.execute("INSERT INTO message_ins VALUES (?)", [WAITING])
        database.commit()
    pair.send_signal(signal.SIGTERM)
    assert pair.wait(PATIENCE) == 0
    assert WAITING not in content(base)
    assert not base.with_name("superlink.db-wal").exists()


def test_a_message_in_flower_s_own_database_is_in_a_table_that_is_swept(tmp_path):
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    file = tmp_path / "superlink.db"
    store = ObjectStoreFactory(str(file)).store()
    state = SqlLinkState(str(file), federation_manager=NoOpFederationManager(), object_store=store)
    state.initialize()
    with closing(sqlite3.connect(file)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    names = [name for name in tables if "message" in name or "object" in name]
    # of locks it keeps the names alone
    assert set(names) - {"objectstore_locks"} <= set(TABLES_OF_MESSAGES)
    assert {"objects", "message_ins", "message_res"} <= set(names)
    sweep(file)


def test_a_database_that_cannot_be_cleared_is_told_and_stops_nothing(base, tmp_path, capsys):
    reader = sqlite3.connect(base, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM node").fetchall()
    sweep(base)
    assert f"{base} may still hold messages (" in capsys.readouterr().err
    reader.close()
    sweep(tmp_path / "none.db")
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "none.db").exists()
