"""Runs the SuperLink and keeps its database clear of messages: `swept.py FILE COMMAND ...`. Needs nothing but Python.

Flower deletes a message when it has been answered, but SQLite leaves its bytes in the write-ahead log and, as it may be
built, in the file; and those of a round that was cut stay for good. So when the SuperLink has ended, and before it
begins, since the last one may have been killed, messages are deleted and the file is written anew.
"""

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

# Flower's tables of messages. None outlives the SuperLink, with which their runs end.
MESSAGES = ("message_res", "message_ins", "run_objects", "object_children", "objects")
GRACE = 5  # seconds, after which the SuperLink is killed: it waits for others to hang up, service managers do not wait


def sweep(file: Path) -> None:
    """Delete the messages in a database that no SuperLink has open, and all that was deleted before.

    Raises:
        sqlite3.Error: it is no database, damaged or in use, or there is no room for a second copy of it.
    """
    address = f"{file.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=1, isolation_level=None)) as database:
        there = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in MESSAGES:
            if table in there:
                database.execute(f"DELETE FROM {table}")
        database.execute("VACUUM")
        busy, *_ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise sqlite3.OperationalError("another process has it open")


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


def clear(file: Path) -> None:
    """`sweep`, where there is something to; what stands against it is said."""
    try:
        if file.exists():
            sweep(file)
    except sqlite3.Error as error:
        print(f"deploy/swept.py: {file} may still hold messages ({error}).", file=sys.stderr)


def main(file: Path, command: list[str]) -> int:
    """Clear, run, clear; the exit code."""
    try:
        lock = hold(file)
    except BlockingIOError:
        print(f"deploy/superlink.sh: another SuperLink has {file}; give each a --state of its own", file=sys.stderr)
        return 2
    clear(file)
    code, asked = run(command, lock)
    clear(file)
    if asked:
        # for whoever asked, it ended by that signal; the first process of a container does not, by the kernel's rule
        signal.signal(asked, signal.SIG_DFL)
        os.kill(os.getpid(), asked)
    return 128 + (asked or -code) if asked or code < 0 else code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
