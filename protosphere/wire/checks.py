"""Checks of the records of a message, before anything in them is used."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

CONFIG, ARRAYS, METRICS = "config", "arrays", "metrics"
SETTINGS = "settings"  # the record with the settings of a strategy in a user's own ServerApp
RECORDS = {CONFIG: ConfigRecord, ARRAYS: ArrayRecord, METRICS: MetricRecord, SETTINGS: ConfigRecord}
LARGEST_FIGURE = 1e100  # above it, a mean over clients could overflow
LONGEST_TEXT = 1000  # characters of one text, which goes to the log and the run's record
MOST_NAMES = 64  # inference rules, or terms of a loss, in one report


class MessageError(ValueError):
    """A message that must not be used. The text is the reason, in one sentence."""

    def __init__(self, reason: str):
        # it quotes text from a stranger
        super().__init__(plain(reason))


class CodecError(ValueError):
    """A value cannot be encoded."""


def plain(text: str) -> str:
    """The text without line breaks and unprintable characters, cut to LONGEST_TEXT."""
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST_TEXT])


class Kind(NamedTuple):
    """A kind of value: its name in a sentence, and whether a value is of this kind."""

    words: str
    fits: Callable[[Any], bool]


# True is no integer, and a comparison with NaN is false
FLAG = Kind("a flag", lambda value: type(value) is bool)
INTEGER = Kind("an integer", lambda value: type(value) is int)
COUNT = Kind("a count", lambda value: type(value) is int and 0 <= value <= LARGEST_FIGURE)
FINITE = Kind("a finite number", lambda value: type(value) is float and abs(value) <= LARGEST_FIGURE)
NOT_NEGATIVE = Kind(
    "a finite number of at least 0", lambda value: type(value) is float and 0 <= value <= LARGEST_FIGURE
)
SHARE = Kind("a number from 0 to 1", lambda value: type(value) is float and 0 <= value <= 1)


def text(most: int = LONGEST_TEXT) -> Kind:
    """Printable text of at most so many characters on one line."""
    return Kind(
        f"printable text of at most {most} characters",
        lambda value: isinstance(value, str) and len(value) <= most and value == plain(value),
    )


def list_of(kind: Kind, fewest: int = 0, most: int | None = None) -> Kind:
    """A list of values of one kind; by default, of any length."""
    size = ""
    if most is not None:
        size = f"{most} " if fewest == most else f"{fewest} to {most} "
    return Kind(
        f"a list of {size}values, each {kind.words}",
        lambda value: (
            isinstance(value, list)
            and fewest <= len(value)
            and (most is None or len(value) <= most)
            and all(map(kind.fits, value))
        ),
    )


def check_records(records: RecordDict, *names: str) -> None:
    """Refuse records other than `names`, and records of the wrong kind."""
    for name, record in records.items():
        if name not in names:
            raise MessageError(f"the message holds the record {name!r}, which nobody agreed on")
        if not isinstance(record, RECORDS[name]):
            raise MessageError(f"record `{name}` is a {type(record).__name__}, {RECORDS[name].__name__} was agreed")


def check_fields(
    record: str, values: Mapping[str, Any], kinds: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None
) -> None:
    """Refuse extra and missing fields, and values of another kind than that of their field."""
    optional = optional or {}
    if not kinds.keys() <= values.keys() <= kinds.keys() | optional.keys():
        raise MessageError(f"`{record}` holds {sorted(values)} where {sorted(kinds)} belong")
    for name, value in values.items():
        kind = kinds.get(name) or optional[name]
        if not kind.fits(value):
            # a list may be as long as the message
            what = f"a list of {len(value)}" if isinstance(value, list | tuple) else repr(value)
            raise MessageError(f"`{name}` of `{record}` is not {kind.words}: {what}")


def check_named(record: str, values: Mapping[str, Any], kind: Kind) -> None:
    """Refuse fields whose names, which the sender chose, are unprintable or too many, and values of another kind."""
    if len(values) > MOST_NAMES or not all(name and text().fits(name) for name in values):
        raise MessageError(f"`{record}` has {len(values)} names, at most {MOST_NAMES} printable ones were agreed")
    check_fields(record, values, dict.fromkeys(values, kind))
