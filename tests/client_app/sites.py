"""Sites whose data, models and stores hold `canary` in whatever a message might quote of them: rows, labels, files,
folders, layers."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.data.conftest import encode, pixels

MODELS = """
from torch import nn
from protosphere.models import SplitModel

def network(feature_dim, num_classes, **_):
    canary = nn.Sequential(nn.Flatten())
    canary.add_module("canary", nn.Linear(64, feature_dim))
    return SplitModel(canary, feature_dim, num_classes)

def raising(**_):
    raise RuntimeError("canary")
"""
Site = Callable[[Path], dict[str, object]]


def put(place, *files):
    for name, content in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def own(*files, classes="no\nyes\n", **node):
    """A site whose own folder has these files, (name, content) each; `{root}` in its node config is its folder, where
    `own_models` is a module."""

    def make(root):
        put(root, ("own_models.py", MODELS))
        put(root / "canary-data", *files, *([("classes.txt", classes)] if classes else []))
        config = {key.replace("_", "-"): value for key, value in node.items()}
        return {"data-path": str(root / "canary-data")} | config

    return make


def table(columns):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def picture(row=0, size=8):
    return encode(pixels(row, channels=1, size=size))


def images_of(rows):
    return [{"bytes": picture(i), "path": f"canary-{i}.png"} for i in range(rows)]


def folder(*more, rows=8, prefix="", size=8, first=0, names=("no", "yes")):
    """Files of an image folder of two classes."""
    files = [
        (f"{prefix}{name}/canary-{i}.png", picture(first + 8 * i + n, size))
        for n, name in enumerate(names)
        for i in range(rows)
    ]
    return [*files, *more]
