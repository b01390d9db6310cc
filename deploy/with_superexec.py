"""Runs a SuperNode or a SuperLink, in the foreground, and beside it the SuperExec that starts its tasks.

    with_superexec.py [--database FILE] STATE COMMAND ... :: SUPEREXEC ...

They share a secret that nobody else on the machine knows: without it, any local account may take the tasks at the
port of the first, and with them a run's messages. When one of the two ends, the other is ended.

A SuperLink's database is cleared of messages before it begins and after it has ended, and no second SuperLink gets it.
Flower deletes a message when it has been answered, but SQLite leaves its bytes in the write-ahead log and, as it may be
built, in the file; and those of a round that was cut stay for good.

Each line that they say gets the time at which it came, and loses its colours, which a log would keep as signs.
"""

import ctypes
import fcntl
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from protosphere.core.flower import OTHER_TABLES, TABLES_OF_MESSAGES

LOOK = 0.1  # seconds between looks at both
GRACE = 3.0  # seconds that both have to end: less than service managers give
SIGNAL_WITH_PARENT = 1  # of prctl
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DATED = re.compile(r"\d{4}-\d\d-\d\dT")  # how a line begins that has its time already


def end_with_parent() -> None:
    """In a child of this process: end when it is gone, be it killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SIGNAL_WITH_PARENT, signal.SIGTERM)


def pass_on(lines: Iterable[str]) -> None:
    """Write lines as they come, with the time."""
    for line in lines:
        text = COLOUR.sub("", line)
        if not DATED.match(text):
            text = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}"
        # whoever reads may have gone, and a pipe that nobody empties would stop them
        with suppress(OSError):
            sys.stdout.write(text)
            sys.stdout.flush()


def run_both(commands: list[list[str]], signals: list[int]) -> int:
    """Run both until one ends or a signal has come: the exit code of the first that ended.

    Args:
        signals: those that have come, whose handlers add to it.
    """
    children, readers = [], []
    for command in commands:
        # what was meant to be inherited, such as the lock of a database, is
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=end_with_parent,
            close_fds=False,
        )
        children.append(child)
        readers.append(threading.Thread(target=pass_on, args=(child.stdout,), daemon=True))
        readers[-1].start()
    while not signals and all(child.poll() is None for child in children):
        time.sleep(LOOK)
    first = next((child for child in children if child.poll() is not None), children[0])

    for child in children:
        child.terminate()
    deadline = time.monotonic() + GRACE
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    # what they started may have their pipes for longer
    for reader in readers:
        reader.join(1.0)
    return 128 - first.returncode if first.returncode < 0 else first.returncode


# --- the SuperLink's database -----------------------------------------------------------------------------------


def lock(database: Path) -> bool:
    """Hold a database, and let the children hold it; whether no other process does."""
    descriptor = os.open(f"{database}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another SuperLink has {database}; give each a --state of its own")
        return False
    return True


def sweep(database: Path) -> set[str]:
    """Delete the messages in a database that no SuperLink has open, and all that was deleted before.

    Returns:
        Tables of which nobody here knows what they hold; they are left as they are.

    Raises:
        sqlite3.Error: it is no database, damaged or in use, or there is no room for a second copy of it.
    """
    address = f"{database.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=1, isolation_level=None)) as base:
        table_names = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in TABLES_OF_MESSAGES:
            if table in table_names:
                base.execute(f"DELETE FROM {table}")
        base.execute("VACUUM")
        busy, *_ = base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise sqlite3.OperationalError("another process has it open")
    # SQLite's own have names of this form, and nobody else's may
    sqlite_tables = {name for name in table_names if name.startswith("sqlite_")}
    return table_names - sqlite_tables - {*TABLES_OF_MESSAGES, *OTHER_TABLES}


def clear(database: Path) -> bool:
    """Take the messages out of a database; whether all its tables are known. What stands against it is printed."""
    try:
        strange = sweep(database) if database.exists() else set()
    except sqlite3.Error as error:
        say(f"{database} may still hold messages ({error}).")
        return True
    if strange:
        say(
            f"{database} has tables of which this version knows nothing ({', '.join(sorted(strange))}), and they may "
            "hold messages of the sites; install the Flower that Protosphere asks for, and give it a --state of its own"
        )
    return not strange


def say(sentence: str) -> None:
    """Tell whoever started the SuperLink."""
    print(f"deploy/superlink.sh: {sentence}", file=sys.stderr)


def main(words: list[str]) -> int:
    """Run both: the exit code of the one that ended first, or 2 where the database has tables that nobody knows."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # what nohup ignores stays ignored
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: signals.append(number))
    database = None
    if words[0] == "--database":
        database, words = Path(words[1]), words[2:]
        if not lock(database) or not clear(database):
            return 2
    state, border = words[0], words.index("::")
    with tempfile.NamedTemporaryFile(prefix="secret-", dir=state) as secret:
        secret.write(secrets.token_bytes(32))
        secret.flush()
        shared = ["--superexec-auth-secret-file", secret.name]
        node = [*words[1:border], "--isolation", "process", *shared]
        superexec = [*words[border + 1 :], "--parent-pid", str(os.getpid()), *shared]
        code = run_both([node, superexec], signals)
    if database is not None and not clear(database):
        code = code or 2
    if signals:
        # for whoever asked, it ended by that signal; the first process of a container does not, by the kernel's rule
        signal.signal(signals[0], signal.SIG_DFL)
        os.kill(os.getpid(), signals[0])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
