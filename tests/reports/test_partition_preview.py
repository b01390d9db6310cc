"""What `protosphere data` shows is what clients really get, of every partition and kind of data."""

import io
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from protosphere.core.errors import SettingError
from protosphere.core.home import home as home_folder
from protosphere.data.client_data import client_data
from protosphere.data.spec import data_spec
from protosphere.plans.run_config import plan
from protosphere.reports.partition_preview import view, write_picture
from protosphere.strategies import read_settings


@dataclass(frozen=True)
class Counting:
    """Token ids that say nothing, for the data of a model that reads text."""

    encoder: str = "none"
    max_tokens: int = 2

    def __call__(self, texts):
        return torch.zeros(len(texts), self.max_tokens, dtype=torch.int32)


def write_images(folder, train, test, seed):
    """Grey images of four classes as parquet."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    for name, rows in (("train", train), ("test", test)):
        cells = []
        for _ in range(rows):
            buffer = io.BytesIO()
            Image.fromarray(draw.integers(0, 256, (5, 5), dtype=np.uint8)).save(buffer, "PNG")
            cells.append({"bytes": buffer.getvalue(), "path": None})
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        labels = draw.permutation(np.arange(rows) % 4)
        pq.write_table(pa.table({"image": pa.array(cells, kind), "label": labels}), folder / f"{name}.parquet")
    (folder / "classes.txt").write_text("ant\nbee\ncat\ndog\n")
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Where the data of these tests lie, by a word."""
    root = tmp_path_factory.mktemp("data")
    write_images(root / "insects", 120, 40, seed=0)
    for seed, name in enumerate(("photo", "sketch"), start=1):
        write_images(root / "domains" / name, 80, 24, seed)
    (root / "notes").mkdir()
    lines = [f"note {row},{'home' if row % 3 else 'ward'},p{row // 2}" for row in range(120)]
    (root / "notes" / "notes.csv").write_text("\n".join(["text,label,patient", *lines]) + "\n")
    (root / "encoder").mkdir()
    return {
        "insects": str(root / "insects"),
        "domains": f"{root}/domains/*",
        "notes": str(root / "notes"),
        "encoder": f"hf:{root / 'encoder'}",
    }


FEW = {"ways": 2, "shots": 5, "shots-spread": 2}
TASKS = {
    "iid": {"partition": "iid"},
    "dirichlet": {"partition": "dirichlet", "alpha": 0.3},
    "pathological": {"partition": "pathological", "classes-per-client": 3},
    "fewer rows": {"partition": "iid", "max-samples": 200, "validation-share": 0.0},
    "shared": {"ensemble-every": 1, "shared-test-share": 0.2},
    "spiral": {"dataset": "spiral", "spiral-points": 60},
    "official": {"dataset": "insects", "split": "official", "alpha": 1.0},
    "way-shot": {"dataset": "insects", "partition": "way-shot", "split": "official"} | FEW,
    "domains": {"dataset": "domains", "partition": "iid"},
    "mixed": {"dataset": "domains", "partition": "mixed"} | FEW,
    "mixed official": {"dataset": "domains", "partition": "mixed", "split": "official"} | FEW,
    "texts": {"dataset": "notes", "models": "encoder", "group-column": "patient", "alpha": 5.0},
}


@pytest.fixture
def planned(places, tmp_path):
    """planned(settings, clients=4): the plan that the command line would make of them."""

    def make(settings, clients=4):
        said = {name: places.get(value, value) if isinstance(value, str) else value for name, value in settings.items()}
        file = tmp_path / "settings.toml"
        words = {name: f"'{value}'" if isinstance(value, str) else str(value).lower() for name, value in said.items()}
        file.write_text("".join(f"{name} = {value}\n" for name, value in words.items()))
        return plan([str(file)], clients=clients, trains=False)

    return make


def viewed(run_plan):
    return view(read_settings(run_plan.run_config).settings, run_plan.clients)


# of these every row is somebody's or shared
PARTED = ("iid", "dirichlet", "pathological", "shared", "spiral", "official", "texts")


@pytest.mark.parametrize("task", TASKS)
def test_clients_get_what_is_shown_and_what_is_shown_of_the_partition_are_the_settings(planned, task):
    wanted = planned(TASKS[task])
    shown = viewed(wanted)
    spec = data_spec(read_settings(wanted.run_config).settings, 4)
    encode = Counting() if task == "texts" else None
    assert len(shown.clients) == 4
    for number, client in enumerate(shown.clients):
        own = client_data(spec, number, home_folder() / "cache", encode=encode)
        assert (client.train, client.validation, client.test) == tuple(map(len, (own.train, own.validation, own.test)))
        labels = torch.cat([own.train.labels, own.validation.labels, own.test.labels])
        assert list(client.counts) == torch.bincount(labels, minlength=own.num_classes).tolist()
        assert client.classes == len(set(labels.tolist()))
        assert client.domain == own.domain
    assert tuple(shown.class_names) == own.class_names
    assert shown.partition.items() <= wanted.run_config.items()
    assert shown.partition.keys() >= {"partition", "split", "seed"} | TASKS[task].keys() & {
        "alpha",
        "classes-per-client",
        "ways",
        "shots",
    }
    assert (shown.shared > 0) == (task == "shared")
    if task in PARTED:
        held = sum(client.train + client.validation + client.test for client in shown.clients)
        assert (shown.nobodys, held + shown.shared) == (0, shown.train + shown.test)


def test_pictures(planned, tmp_path):
    shown = viewed(planned(TASKS["mixed"]))
    write_picture(shown, tmp_path / "map.svg")
    svg = (tmp_path / "map.svg").read_text()
    assert "ant" in svg
    assert f"0 {shown.clients[0].domain}" in svg
    write_picture(shown, tmp_path / "map.PNG")
    with Image.open(tmp_path / "map.PNG") as picture:
        assert len(picture.convert("RGB").getcolors(picture.width * picture.height)) > 5
    for name, words in (
        ("map.jpg", "map.jpg', but its name must"),
        ("nowhere/map.svg", "nowhere/map.svg cannot be wri"),
    ):
        with pytest.raises(SettingError, match=words):
            write_picture(shown, tmp_path / name)
