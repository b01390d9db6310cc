"""Clients' names in messages: the name that a client sent, next to its number."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from protosphere.core.text import one_line

LONGEST_CLIENT_NAME = 60  # characters
_SIGNS = " -_.,:/&+'’…"  # allowed besides letters and digits of any alphabet
NAMELESS: Mapping[int, str] = {}
_NUMBERED = re.compile(r"client\W*\d", re.IGNORECASE)  # names that could be mistaken for a numbered client
# of the run that this thread serves; the next run starts with an empty roster
_names: ContextVar[Mapping[int, str]] = ContextVar("client names", default=NAMELESS)


def client_names(clients: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """The names of clients that have one, by partition: its `name`, else its `domain`, as in roster.json.

    Equal names are numbered by partition. A name that looks like a client's number is ignored.
    """
    names: dict[int, str] = {}
    for client in sorted(clients, key=lambda client: client["partition"]):
        name = plain_client_name(str(client.get("name") or client.get("domain") or ""))
        if name and not _NUMBERED.match(name):
            names[client["partition"]] = name
    counts, numbers, taken = Counter(names.values()), Counter[str](), set(names.values())
    for partition, name in names.items():
        if counts[name] > 1:
            numbers[name] += 1
            while (numbered := f"{name} {numbers[name]}") in taken:
                numbers[name] += 1
            names[partition] = numbered
    return names


def plain_client_name(text: str) -> str:
    """A client's text as a short name that cannot end a quotation, contain markup or start a formula."""
    letters = "".join(c if c in _SIGNS or unicodedata.category(c)[0] in "LMN" else " " for c in text)
    return one_line(letters.lstrip(_SIGNS), LONGEST_CLIENT_NAME)


def use_client_names(names: Mapping[int, str]) -> None:
    """Set the names that `client_word` uses from now on."""
    _names.set(names)


def client_word(partition: int | str, names: Mapping[int, str] | None = None) -> str:
    """A client for a sentence: `client 3`, followed by its name in brackets if it has one.

    `names` come from `client_names`; None stands for those of the current run.
    """
    name = (_names.get() if names is None else names).get(int(partition))
    return f"client {partition} ({name})" if name else f"client {partition}"


def client_label(partition: int, names: Mapping[int, str]) -> str:
    """A client's name for a column; `client 3` if it has none."""
    return names.get(partition) or f"client {partition}"
