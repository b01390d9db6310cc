"""Sites whose data, models and stores are broken in every way that the program knows, with `canary` in whatever a
message might quote of them: rows, labels, groups, columns, files, folders, layers."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from tests.data.conftest import encode, pixels

AGE = 1912837465  # a label that is somebody's, and no class
TEXT_COLUMN, LABEL_COLUMN, GROUP_COLUMN = "text-column", "label-column", "group-column"
MODELS = """
from torch import nn
from protosphere.models import SplitModel

class Listing(nn.Module):
    def forward(self, x):
        return [x]

def raising(**_):
    raise RuntimeError("canary")

def nothing(**_):
    return "canary"

def listing(**_):
    return Listing()

def cube(**_):
    return nn.Flatten(2)

def network(feature_dim, num_classes, more_features=0, more_classes=0, **_):
    canary = nn.Sequential(nn.Flatten())
    canary.add_module("canary", nn.Linear(64, feature_dim + more_features))
    model = SplitModel(canary, feature_dim, num_classes)
    model.classifier = nn.Linear(feature_dim + more_features, num_classes + more_classes)
    return model

def wide(**given):
    return network(more_features=1, **given)

def many(**given):
    return network(more_classes=1, **given)
"""
Site = Callable[[Path], dict[str, object]]


@dataclass(frozen=True)
class Case:
    """One site.

    Attributes:
        told: words of the messages that say what is wrong; "" where all is well.
        make: prepares the site in the folder that it is given, and returns its node config.
        settings: of the run; `{root}` in them is the site's folder.
        spoil: breaks the client's store, whose folder it is given, after the first round.
    """

    told: str
    make: Site
    settings: dict[str, object] = field(default_factory=dict)
    spoil: Callable[[Path], object] | None = None


# --- sites -----------------------------------------------------------------------------------------------------


def put(place, *files):
    for name, content in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def own(*files, classes="no\nyes\n", node=None):
    """A site whose own folder has these files: (name, content) each."""

    def make(root):
        put(root / "canary-data", *files, *([("classes.txt", classes)] if classes else []))
        return {"data-path": str(root / "canary-data")} | (node or {})

    return make


def named(*files):
    """A site without data of its own, where `{root}/canary-data` is what the run's settings name."""

    def make(root):
        put(root / "canary-data", *files)
        return {}

    return make


def node(make, **more):
    """The same site with more in its node config; `{root}` is its folder, where `own_models` is a module."""

    def made(root):
        put(root, ("own_models.py", MODELS))
        found = make(root)
        return found | {key.replace("_", "-"): str(value).replace("{root}", str(root)) for key, value in more.items()}

    return made


def beside(make, *files, here="{root}/canary-shared"):
    """The same site, with the shared test set in a place of its own."""

    def made(root):
        put(root / "canary-shared", *files)
        return node(make, shared_test_path=here)(root)

    return made


def file_at_home(name, make):
    """The same site, with a file in its PROTOSPHERE_HOME where a folder has to be."""

    def made(root):
        put(root.parent / "canary-home", (name, ""))
        return make(root)

    return made


def npz(**values):
    """A file's content."""
    file = io.BytesIO()
    np.savez(file, **values)
    return file.getvalue()


def arrays(suffix="", **values):
    """A site whose own data are a file of arrays."""
    make = own(("train-canary.npz", suffix.encode() or npz(**values)))
    return node(make, data_path="{root}/canary-data/train-canary.npz")


def coded(body):
    """A site whose own data come from its own code."""
    return node(own(("canary.py", f"def dataset():\n    {body}\n")), data_path="{root}/canary-data/canary.py")


def csv(content, **columns):
    return own(("train-canary.csv", content), node=dashed(columns))


def json_lines(*rows, **columns):
    content = b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
    return own(("train-canary.jsonl", content), node=dashed(columns))


def parquet(test=None, node=None, **columns):
    files = [("train-canary.parquet", table(columns)), *([("test-canary.parquet", table(test))] if test else [])]
    return own(*files, node=node)


def dashed(columns):
    return {name.replace("_", "-"): value for name, value in columns.items()}


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


def domain(name, *classes):
    """A domain with a list of its own classes."""
    return folder((f"{name}/classes.txt", "\n".join(classes) + "\n"), prefix=f"{name}/", names=classes)


def tested(group):
    """A test table whose one row is of this group."""
    return "test-canary.csv", f"text,label,canary\na,no,{group}\n"


NOTES = [{"canary_note": f"canary {i}", "canary_kind": ("no", "yes")[i % 2], "canary_id": str(i)} for i in range(16)]
PINS = {"text_column": "canary_note", "label_column": "canary_kind", "group_column": "canary_id"}


def encoder(kind="Bert", query="", words=(), network=True, spoil=None, **sizes):
    """A site of texts with an encoder in a folder of its own."""

    def make(root):
        texts = pytest.importorskip("tests.models.test_text", reason="text needs the extra `text`")
        place = root / "canary-encoder"
        place.mkdir(parents=True)
        if network:
            texts.save_encoder(place, kind, **sizes)
        texts.save_tokenizer(place, [*texts.WORDS, *words])
        if spoil:
            spoil(place)
        return json_lines(*NOTES, **PINS)(root) | {"model": f"hf:{place}{query}"}

    return make


def without_a_layer(place):
    kept = {name: values for name, values in load_file(place / "model.safetensors").items() if ".layer.1." not in name}
    save_file(kept, place / "model.safetensors", {"format": "pt"})


# --- stores ----------------------------------------------------------------------------------------------------


def newest(store):
    return max(store.glob("round-*.safetensors"))


def changed(prefix, by):
    """Rewrites the tensors of the newest state whose names begin with `prefix`."""

    def spoil(store):
        held = load_file(newest(store))
        new = {name: by(values).contiguous() if name.startswith(prefix) else values for name, values in held.items()}
        save_file(new, newest(store))

    return spoil


def only_a_later_state(store):
    shutil.copy(newest(store), store / "round-000007.safetensors")
    for path in store.glob("round-00000[0-6].safetensors"):
        path.unlink()


def beside_it(make_file):
    """A site whose table is what `make_file(path)` leaves there."""

    def make(root):
        found = own()(root)
        make_file(root / "canary-data" / "train-canary.csv")
        return found

    return make


def too_large(path):
    with path.open("wb") as file:
        # without a block on the disk
        file.truncate(2**36 + 1)


def other_description(store):
    path = store / "client.json"
    path.write_text(path.read_text().replace("tiny", "tinz"))


def of_another_run(store):
    described = json.loads((store / "client.json").read_text())
    del described["digest"]
    (store / "client.json").write_text(json.dumps(described | {"token": "canary"}))


def lost(store):
    shutil.rmtree(store)
