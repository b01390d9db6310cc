"""Payloads of a single part, and back."""

from collections.abc import Mapping

from protosphere.prototypes.prototype_set import PartValue


def payload(part):
    """A payload of one part under the name of its kind; None, and what is a payload already, as it is."""
    return {part.kind: part} if isinstance(part, PartValue) else part


def payloads(parts: Mapping):
    """Uploads of one part each."""
    return {partition: payload(part) for partition, part in parts.items()}


def lone(sent):
    """The part of a payload that has one, under the name of its kind; None of none."""
    if sent is None:
        return None
    ((name, part),) = sent.items()
    assert name == part.kind
    return part
