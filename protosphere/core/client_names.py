"""What a client is called: the name that it told, beside its number."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from protosphere.core.text import one_line

LONGEST_CLIENT_NAME = 60  # characters
_SIGNS = " -_.,:/&+'’…"  # beside letters and digits of any alphabet
NAMELESS: Mapping[int, str] = {}
_MOST_JOINED = 3  # names of one client that has several
_NUMBERED = re.compile(r"client\W*\d", re.IGNORECASE)  # what another client may be called
# of the run that this thread serves; a run that ends leaves it to the next, whose roster begins with none
_names: ContextVar[Mapping[int, str]] = ContextVar("client names", default=NAMELESS)


def client_names(clients: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """The clients that have a name, by partition: the one that they told, else that of their domain.

    Names are letters, digits and few signs, on one line and bounded, whatever a client sent. Several clients of one
    name get a number each, in the order of their partitions; what reads like the number of a client is no name.

    Args:
        clients: `partition`, and where they are known `name` and `domain`, as roster.json and identities have them.
    """
    printable_names = {client["partition"]: _printable(client) for client in clients}
    names = {
        partition: name for partition, name in sorted(printable_names.items()) if name and not _NUMBERED.match(name)
    }
    counts, numbers, taken = Counter(names.values()), Counter[str](), set(names.values())
    for partition, name in names.items():
        if counts[name] > 1:
            numbers[name] += 1
            while (numbered := f"{name} {numbers[name]}") in taken:
                numbers[name] += 1
            names[partition] = numbered
    return names


def _printable(client: Mapping[str, Any]) -> str:
    name = client.get("name") or client.get("domain") or ""
    return plain_client_name(str(name))


def plain_client_name(text: str) -> str:
    """What of somebody's words can stand as a name, within a sentence as in a spreadsheet: nothing of it ends the
    brackets or the quotation around it, is markup or begins a formula."""
    letters = "".join(c if c in _SIGNS or unicodedata.category(c)[0] in "LMN" else " " for c in text)
    return one_line(letters.lstrip(_SIGNS), LONGEST_CLIENT_NAME)


def use_client_names(names: Mapping[int, str]) -> None:
    """From now on `client_word` calls clients so: the server's side of a run has one list of names at a time."""
    _names.set(names)


def client_word(partition: int | str, names: Mapping[int, str] | None = None) -> str:
    """A client for a sentence: `client 3`, with its name in brackets where it has one.

    Args:
        names: of `client_names`; None for those of the run that is served.
    """
    name = (_names.get() if names is None else names).get(int(partition))
    return f"client {partition} ({name})" if name else f"client {partition}"


def client_label(partition: int, names: Mapping[int, str]) -> str:
    """A client by its name alone, for a column: `client 3` where it has none."""
    return names.get(partition) or f"client {partition}"


def joined_names(names: Sequence[str]) -> str:
    """One name of several: the first few, and how many more there are."""
    more = f" + {len(names) - _MOST_JOINED} more" if len(names) > _MOST_JOINED else ""
    room = LONGEST_CLIENT_NAME - len(more)
    return one_line(", ".join(map(plain_client_name, names[:_MOST_JOINED])), room) + more
