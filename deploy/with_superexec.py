"""Runs a SuperNode or a SuperLink in the foreground, together with the SuperExec that starts its tasks.

    with_superexec.py [--database FILE] STATE COMMAND ... :: SUPEREXEC ...

They share a secret that nobody else on the machine knows. Without it, any local account could take the tasks at the
port of the first, and with them a run's messages. If one of the two ends, the other is ended.

Messages are cleared from a SuperLink's database before it starts and after it has ended. Flower deletes answered
messages, but SQLite may leave their bytes in the write-ahead log and the file, and messages of an interrupted round
would stay forever.

Each line of their output gets a timestamp and loses its colour codes.
"""

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
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from protosphere.core.flower import TABLES_OF_MESSAGES
from protosphere.launch import processes

LOOK = 0.1  # seconds between two checks
GRACE = 3.0  # seconds for each to end, and then for its descendants; less than service managers allow
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def pass_on(lines: Iterable[str]) -> None:
    """Write lines as they arrive, with timestamps."""
    for line in lines:
        # the reader may be gone, and a full pipe would block them
        with suppress(OSError):
            sys.stdout.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {COLOUR.sub('', line)}")
            sys.stdout.flush()


def run_both(commands: list[list[str]]) -> int:
    """Run both until one ends or a signal arrives. Returns the exit code of the first that ended, or 0."""
    # not an event: a signal may interrupt a wait that holds the event's lock
    signals: list[int] = []
    for number in processes.SIGNALS:
        # signals that are ignored, as under nohup, stay ignored
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: signals.append(number))
    children, readers = [], []
    for command in commands:
        # the watchers hold the database's lock, too, since their processes may outlive this one
        child = processes.start(command, GRACE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, close_fds=False)
        children.append(child)
        readers.append(threading.Thread(target=pass_on, args=(child.stdout,), daemon=True))
        readers[-1].start()
    codes: list[int] = []
    while not codes and not signals:
        time.sleep(LOOK)
        codes = [child.returncode for child in children if child.poll() is not None]

    processes.stop(*children)
    for reader in readers:
        # a process that outlives a killed watcher keeps the pipe open
        reader.join(1.0)
    return processes.shell_code(codes[0]) if codes else 0


def sweep(database: Path) -> None:
    """Delete the messages in a database that no SuperLink has open, and wipe everything that was deleted before.
    Obstacles are printed."""
    if not database.exists():
        return
    address = f"{database.absolute().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=1, isolation_level=None)) as base:
            table_names = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in TABLES_OF_MESSAGES:
                if table in table_names:
                    base.execute(f"DELETE FROM {table}")
            base.execute("VACUUM")
            busy, *_ = base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("another process has it open")
    except sqlite3.Error as error:
        print(f"deploy/superlink.sh: {database} may still hold messages ({error}).", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Run both. Returns the exit code of the one that ended first, or 0 after a signal."""
    with ExitStack() as stack:
        if arguments[0] == "--database":
            database, arguments = Path(arguments[1]), arguments[2:]
            sweep(database)
            stack.callback(sweep, database)
        state, border = arguments[0], arguments.index("::")
        secret = stack.enter_context(tempfile.NamedTemporaryFile(prefix="secret-", dir=state))
        secret.write(secrets.token_bytes(32))
        secret.flush()
        shared = ["--superexec-auth-secret-file", secret.name]
        node = [*arguments[1:border], "--isolation", "process", *shared]
        superexec = [*arguments[border + 1 :], "--parent-pid", str(os.getpid()), *shared]
        return run_both([node, superexec])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
