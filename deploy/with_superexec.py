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


class Pair:
    """The two processes, which end together."""

    def __init__(self) -> None:
        self.signal = 0  # the first that asked for the end
        self._children: list[subprocess.Popen[str]] = []
        self._is_ending = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # what nohup ignores stays ignored
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def run(self, commands: Iterable[list[str]]) -> int:
        """Run both until one ends: the exit code of that one."""
        readers = []
        for command in commands:
            # what was meant to be inherited, such as the lock of a database, is
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                preexec_fn=end_with_parent,
                close_fds=False,
            )
            assert process.stdout is not None
            self._children.append(process)
            readers.append(threading.Thread(target=pass_on, args=(process.stdout,), daemon=True))
            readers[-1].start()
        if self.signal:
            # it came while they were started
            self._end()

        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        for child in self._children:
            if child.pid == pid:
                child.returncode = code
        self._end()
        for child in self._children:
            child.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        # what they started may have their pipes for longer
        for reader in readers:
            reader.join(1.0)
        return 128 - code if code < 0 else code

    def _note(self, number: int, *_: object) -> None:
        self.signal = self.signal or number
        self._end()

    def _end(self) -> None:
        for child in self._children:
            child.terminate()
        # the first call sets the time by which both are gone
        if self._children and not self._is_ending:
            self._is_ending = True
            signal.signal(signal.SIGALRM, self._kill)
            signal.setitimer(signal.ITIMER_REAL, GRACE)

    def _kill(self, *_: object) -> None:
        for child in self._children:
            child.kill()


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


def say(sentence: str) -> None:
    """Tell whoever started the SuperLink."""
    print(f"deploy/superlink.sh: {sentence}", file=sys.stderr)


def lock(database: Path) -> None:
    """Hold a database, and let the children hold it; end this process where another one does."""
    descriptor = os.open(f"{database}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another SuperLink has {database}; give each a --state of its own")
        sys.exit(2)


def clear(database: Path) -> bool:
    """Take the messages out of a database; whether all its tables are known. What stands against it is printed."""
    try:
        if database.exists():
            sweep(database)
    except StrangeTablesError as tables:
        say(
            f"{database} has tables of which this version knows nothing ({tables}), and they may hold messages of the "
            "sites; install the Flower that Protosphere asks for, and give it a --state of its own"
        )
        return False
    except sqlite3.Error as error:
        say(f"{database} may still hold messages ({error}).")
    return True


def main(words: list[str]) -> int:
    """Run both: the exit code of the one that ended first, or 2 where the database has tables that nobody knows."""
    database = None
    if words[0] == "--database":
        database, words = Path(words[1]), words[2:]
        lock(database)
        if not clear(database):
            return 2
    state, border = words[0], words.index("::")
    pair = Pair()
    with tempfile.NamedTemporaryFile(prefix="secret-", dir=state) as secret:
        secret.write(secrets.token_bytes(32))
        secret.flush()
        shared = ["--superexec-auth-secret-file", secret.name]
        code = pair.run(
            [
                [*words[1:border], "--isolation", "process", *shared],
                [*words[border + 1 :], "--parent-pid", str(os.getpid()), *shared],
            ]
        )
    if database is not None and not clear(database):
        code = code or 2
    if pair.signal:
        # for whoever asked, it ended by that signal; the first process of a container does not, by the kernel's rule
        signal.signal(pair.signal, signal.SIG_DFL)
        os.kill(os.getpid(), pair.signal)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
