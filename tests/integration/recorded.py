"""Small runs of which every message is kept, in both directions."""

import json

import numpy as np

from protosphere.launch.grid import LocalGrid
from protosphere.record.folder import RunFolder

# a feature-dim that is no other number of these runs; K of the digits
DIM, CLASSES = 23, 10


class Recording(LocalGrid):
    """Keeps every message in both directions, as (type, records)."""

    down: list
    up: list

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        type(self).down += [(message.metadata.message_type, message.content) for message in messages]
        return ids

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        assert not any(reply.has_error() for reply in replies)
        type(self).up += [(reply.metadata.message_type, reply.content) for reply in replies]
        return replies


def recording(run, config, clients=4):
    """A run's folder, and all its messages down and up."""
    Recording.down, Recording.up = [], []
    return run({"feature-dim": DIM} | config, clients=clients, grid=Recording), Recording.down, Recording.up


def lines(folder):
    return RunFolder(folder).lines()


def classes_of(folder):
    """Classes of each client's training rows, by partition."""
    return {entry["partition"]: entry["classes"] for entry in json.loads((folder / "roster.json").read_text())}


def trained_in(line):
    return sorted(int(partition) for partition, client in line["clients"].items() if "training" in client)


def kind_of(specs):
    """Of the one part; None for nothing."""
    return specs[0].kind if specs else None


def decoded(payload, wire_dtype):
    """The values that an upload holds, and their largest rounding error, both float64."""
    stored = payload["prototypes.vectors"].numpy()
    values = stored.astype(np.float64)
    return values, np.abs(values) * 2.0**-10 + 2.0**-24 if wire_dtype == "float16" else np.zeros(values.shape)


def case_name(config):
    """`fedproto-weighted-5-float16`."""
    return "-".join(str(value) for value in config.values()) if isinstance(config, dict) else str(config)
