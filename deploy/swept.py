"""Runs the SuperLink and keeps its database clear of messages: `swept.py FILE COMMAND ...`.

Flower deletes a message when it has been answered, but SQLite leaves its bytes in the write-ahead log and, as it may be
built, in the file; and those of a round that was cut stay for good. So when the SuperLink has ended, and before it
begins, since the last one may have been killed, messages are deleted and the file is written anew. Which tables hold
them is Flower's affair: where there is one that nobody here has heard of, that is said, and no SuperLink starts.
"""

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from protosphere.core.flower import OTHER_TABLES, TABLES_OF_MESSAGES

GRACE = 5  # seconds, after which the SuperLink is killed: it waits for others to hang up, service managers do not wait
REFUSED = 2  # the exit code of what cannot begin, nor could if it were tried again


class StrangeTablesError(Exception):
    """A database has tables of which nobody here knows what they hold."""


def sweep(file: Path) -> None:
    """Delete the messages in a database that no SuperLink has open, and all that was deleted before.

    Raises:
        StrangeTablesError: it has other tables, too, which are left as they are.
        sqlite3.Error: it is no database, damaged or in use, or there is no room for a second copy of it.
    """
    address = f"{file.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=1, isolation_level=None)) as database:
        there = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in TABLES_OF_MESSAGES:
            if table in there:
                database.execute(f"DELETE FROM {table}")
        database.execute("VACUUM")
        busy, *_ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise sqlite3.OperationalError("another process has it open")
    # SQLite's own have names of this form, and nobody else's may
    strange = {name for name in there if not name.startswith("sqlite_")} - {*TABLES_OF_MESSAGES, *OTHER_TABLES}
    if strange:
        raise StrangeTablesError(", ".join(sorted(strange)))


def hold(file: Path) -> int:
    """Let no other SuperLink have the database, which would lose its messages: the descriptor of the lock.

    Raises:
        BlockingIOError: one has it.
    """
    lock = os.open(f"{file}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def run(command: list[str], lock: int) -> tuple[int, int]:
    """Run a command to its end: its exit code, and the number of the signal that asked for the end, or 0.

    The command holds the lock, too, so that it is held also if this process is killed and the command goes on.
    It is told by SIGTERM whatever the signal: it may have had the same one itself, as by Ctrl-C, and takes another.
    """
    asked: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def stop(number: int, _: object) -> None:
        asked.append(number)
        if child is not None:
            child.terminate()
            signal.alarm(GRACE)

    def kill(*_: object) -> None:
        if child is not None:
            child.kill()

    signal.signal(signal.SIGALRM, kill)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup's stays as it is
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    child = subprocess.Popen(command, pass_fds=(lock,))
    if asked:
        child.terminate()
        signal.alarm(GRACE)
    code = child.wait()
    signal.alarm(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return code, asked[0] if asked else 0


def clear(file: Path) -> bool:
    """`sweep`, where there is something to; what stands against it is said. False where Flower has other tables than we
    know."""
    try:
        if file.exists():
            sweep(file)
    except StrangeTablesError as tables:
        print(
            f"deploy/swept.py: {file} has tables of which this version knows nothing ({tables}), and they may hold "
            "messages of the sites; install the Flower that Protosphere asks for, and give it a --state of its own",
            file=sys.stderr,
        )
        return False
    except sqlite3.Error as error:
        print(f"deploy/swept.py: {file} may still hold messages ({error}).", file=sys.stderr)
    return True


def main(file: Path, command: list[str]) -> int:
    """Clear, run, clear; the exit code."""
    try:
        lock = hold(file)
    except BlockingIOError:
        print(f"deploy/superlink.sh: another SuperLink has {file}; give each a --state of its own", file=sys.stderr)
        return REFUSED
    if not clear(file):
        return REFUSED
    code, asked = run(command, lock)
    known = clear(file)
    if asked:
        # for whoever asked, it ended by that signal; the first process of a container does not, by the kernel's rule
        signal.signal(asked, signal.SIG_DFL)
        os.kill(os.getpid(), asked)
    code = 128 + (asked or -code) if asked or code < 0 else code
    return code if known else code or REFUSED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
