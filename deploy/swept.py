"""Keeps a SuperLink's database clear of messages: `swept.py FILE LOCK`, before it begins and after it has ended.

Flower deletes a message when it has been answered, but SQLite leaves its bytes in the write-ahead log and, as it may be
built, in the file; and those of a round that was cut stay for good. So messages are deleted and the file is written
anew. Which tables hold them is Flower's affair: where there is one that nobody here has heard of, the exit code is 2.

LOCK is the number of an open descriptor, which the SuperLink inherits: no second SuperLink gets the database.
"""

import fcntl
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from protosphere.core.flower import OTHER_TABLES, TABLES_OF_MESSAGES


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


def main(file: Path, lock: int) -> str:
    """Why no SuperLink may begin with this database; empty where one may. What stands against a sweep is printed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if file.exists():
            sweep(file)
    except BlockingIOError:
        return f"deploy/superlink.sh: another SuperLink has {file}; give each a --state of its own"
    except StrangeTablesError as tables:
        return (
            f"deploy/superlink.sh: {file} has tables of which this version knows nothing ({tables}), and they may hold "
            "messages of the sites; install the Flower that Protosphere asks for, and give it a --state of its own"
        )
    except sqlite3.Error as error:
        print(f"deploy/superlink.sh: {file} may still hold messages ({error}).", file=sys.stderr)
    return ""


if __name__ == "__main__":
    sentence = main(Path(sys.argv[1]), int(sys.argv[2]))
    if sentence:
        print(sentence, file=sys.stderr)
        sys.exit(2)
