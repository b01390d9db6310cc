"""Checks of every record of a message before it is decoded: its records, fields and types, and texts that can be
printed and stored. messages.py builds on them."""

from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

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


def check_records(records: RecordDict, *names: str) -> None:
    """Refuse records other than `names`, and records of the wrong kind."""
    for name, record in records.items():
        if name not in names:
            raise MessageError(f"the message holds the record {name!r}, which nobody agreed on")
        if not isinstance(record, RECORDS[name]):
            raise MessageError(f"record `{name}` is a {type(record).__name__}, {RECORDS[name].__name__} was agreed")


def config_values(records: RecordDict, **types: type) -> dict[str, Any]:
    """The fields of the ConfigRecord, each of exactly its type (so True is no int)."""
    config = records.config_records.get(CONFIG)
    if config is None:
        raise MessageError(f"the record `{CONFIG}` is missing")
    check_keys(CONFIG, config, set(types))
    for name, kind in types.items():
        if type(config[name]) is not kind:
            raise MessageError(f"`{name}` of record `{CONFIG}` is no {kind.__name__}")
    return dict(config)


def check_keys(record: str, names: Iterable[str], expected: set[str]) -> None:
    """Refuse a record with extra or missing fields."""
    if set(names) != expected:
        raise MessageError(f"record `{record}` holds {sorted(names)} where {sorted(expected)} belong")


def check_texts(name: str, texts: Sequence[Any]) -> None:
    """Refuse values that are not texts, texts that cannot be printed on one line, and texts that are too long."""
    for text in texts:
        if not isinstance(text, str) or text != plain(text):
            raise MessageError(f"`{name}` holds {text!r}, no printable text of at most {LONGEST_TEXT} characters")


def check_names(name: str, names: Sequence[Any]) -> None:
    """`check_texts` for names that become keys: they must be unique and not too many."""
    check_texts(name, names)
    if len(names) > MOST_NAMES or len(set(names)) < len(names):
        raise MessageError(f"`{name}` holds {len(names)} names, at most {MOST_NAMES} different ones were agreed")


def check_norms(values: Tensor, max_norm: float) -> None:
    """Refuse rows (k, d) longer than `max-prototype-norm`."""
    norms = values.double().norm(dim=1)
    if len(norms) and float(norms.max()) > max_norm:
        raise MessageError(f"a vector has norm {float(norms.max()):.3g}, above `max-prototype-norm` {max_norm:.3g}")


def are_counts(values: Sequence[Any]) -> bool:
    """Whether all values are whole numbers of at least 0."""
    return all(type(value) is int and value >= 0 for value in values)
