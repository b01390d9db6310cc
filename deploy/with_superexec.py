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
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from protosphere.core.flower import TABLES_OF_MESSAGES

LOOK = 0.1  # seconds between looks at both
GRACE = 3.0  # seconds that both have to end: less than service managers give
SIGNAL_WITH_PARENT = 1  # of prctl
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def end_with_parent() -> None:
    """In a child of this process: end when it is gone, be it killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SIGNAL_WITH_PARENT, signal.SIGTERM)


def pass_on(lines: Iterable[str]) -> None:
    """Write lines as they come, with the time."""
    for line in lines:
        # whoever reads may have gone, and a pipe that nobody empties would stop them
        with suppress(OSError):
            sys.stdout.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {COLOUR.sub('', line)}")
            sys.stdout.flush()


def run_both(commands: list[list[str]]) -> int:
    """Run both until one ends or a signal comes: the exit code of the first that ended, or 0."""
    # not an event, whose lock a signal may find taken by the wait that it interrupts
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # what nohup ignores stays ignored
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: signals.append(number))
    children, readers = [], []
    for command in commands:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=end_with_parent,
            # the database's lock is theirs, too: a SuperLink may outlive this process
            close_fds=False,
        )
        children.append(child)
        readers.append(threading.Thread(target=pass_on, args=(child.stdout,), daemon=True))
        readers[-1].start()
    codes: list[int] = []
    while not codes and not signals:
        time.sleep(LOOK)
        codes = [child.returncode for child in children if child.poll() is not None]

    for child in children:
        child.terminate()
    # a SuperExec and a SuperNode end within it, unless they are stuck
    stop_at = time.monotonic() + GRACE
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, stop_at - time.monotonic()))
        child.kill()
        child.wait()
    # what they started may have their pipes for longer
    for reader in readers:
        reader.join(1.0)
    code = codes[0] if codes else 0
    return 128 - code if code < 0 else code


def lock(database: Path) -> bool:
    """Hold a database, and let the children hold it; whether no other process does."""
    descriptor = os.open(f"{database}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sweep(database: Path) -> None:
    """Delete the messages in a database that no SuperLink has open, and all that was deleted before. What stands
    against it is printed."""
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


def main(words: list[str]) -> int:
    """Run both: the exit code of the one that ended first, 0 after a signal, or 2 where the database is another's."""
    with ExitStack() as stack:
        if words[0] == "--database":
            database, words = Path(words[1]), words[2:]
            if not lock(database):
                reason = f"another SuperLink has {database}; give each a --state of its own"
                print(f"deploy/superlink.sh: {reason}", file=sys.stderr)
                return 2
            sweep(database)
            stack.callback(sweep, database)
        state, border = words[0], words.index("::")
        secret = stack.enter_context(tempfile.NamedTemporaryFile(prefix="secret-", dir=state))
        secret.write(secrets.token_bytes(32))
        secret.flush()
        shared = ["--superexec-auth-secret-file", secret.name]
        node = [*words[1:border], "--isolation", "process", *shared]
        superexec = [*words[border + 1 :], "--parent-pid", str(os.getpid()), *shared]
        return run_both([node, superexec])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
