"""What `protosphere data` shows is what clients really get, of every partition and kind of data."""

from dataclasses import dataclass

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
from tests.pictures import paint

CLASSES = ("ant", "bee", "cat", "dog")


@dataclass(frozen=True)
class Counting:
    """Token ids that say nothing, for the data of a model that reads text."""

    encoder: str = "none"
    max_tokens: int = 2

    def __call__(self, texts):
        return torch.zeros(len(texts), self.max_tokens, dtype=torch.int32)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Where the data of these tests lie, by a word."""
    root = tmp_path_factory.mktemp("data")
    for folder in ("insects", "domains/photo", "domains/sketch"):
        paint(root / folder / "train", CLASSES, 30)
        paint(root / folder / "test", CLASSES, 10)
    (root / "notes").mkdir()
    lines = [f"note {row},{'home' if row % 3 else 'ward'},p{row // 2}" for row in range(120)]
    (root / "notes" / "notes.csv").write_text("\n".join(["text,label,patient", *lines]) + "\n")
    (root / "encoder").mkdir()
    places = {name: str(root / name) for name in ("insects", "notes")}
    return places | {"domains": f"{root}/domains/*", "encoder": f"hf:{root / 'encoder'}"}


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
# of these every row is somebody's or shared
PARTED = ("iid", "dirichlet", "pathological", "shared", "spiral", "official", "texts")
OF_PARTITION = {"alpha", "classes-per-client", "ways", "shots"}


@pytest.fixture
def viewed(places, tmp_path):
    """viewed(task): the settings of the run that the command line would make of it, and what is shown of it."""

    def make(task):
        words = []
        for name, value in TASKS[task].items():
            value = places.get(value, value) if isinstance(value, str) else value
            words.append(f"{name} = '{value}'" if isinstance(value, str) else f"{name} = {value}")
        file = tmp_path / "settings.toml"
        file.write_text("\n".join(words) + "\n")
        run_plan = plan([str(file)], clients=4, trains=False)
        return run_plan.run_config, view(read_settings(run_plan.run_config).settings, run_plan.clients)

    return make


@pytest.mark.parametrize("task", TASKS)
def test_clients_get_what_is_shown_and_what_is_shown_of_the_partition_are_the_settings(viewed, task):
    run_config, shown = viewed(task)
    spec = data_spec(read_settings(run_config).settings, 4)
    encode = Counting() if task == "texts" else None
    assert [client.partition for client in shown.clients] == [0, 1, 2, 3]
    for client in shown.clients:
        own = client_data(spec, client.partition, home_folder() / "cache", encode=encode)
        parts = own.train, own.validation, own.test
        assert (client.train, client.validation, client.test) == tuple(map(len, parts))
        labels = torch.cat([part.labels for part in parts])
        assert client.counts == torch.bincount(labels, minlength=own.num_classes).tolist()
        assert client.classes == len(set(labels.tolist()))
        assert client.domain == own.domain
        assert tuple(shown.class_names) == own.class_names
    assert shown.partition.items() <= run_config.items()
    assert shown.partition.keys() >= {"partition", "split", "seed"} | TASKS[task].keys() & OF_PARTITION
    assert (shown.shared_test_rows > 0) == (task == "shared")
    if task in PARTED:
        held = sum(client.train + client.validation + client.test for client in shown.clients)
        assert (shown.rows_of_nobody, held + shown.shared_test_rows) == (0, shown.train_rows + shown.test_rows)


def test_pictures(viewed, tmp_path):
    _, shown = viewed("mixed")
    write_picture(shown, tmp_path / "map.svg")
    svg = (tmp_path / "map.svg").read_text()
    assert "ant" in svg
    assert f"0 {shown.clients[0].domain}" in svg
    write_picture(shown, tmp_path / "map.PNG")
    with Image.open(tmp_path / "map.PNG") as picture:
        assert len(picture.convert("RGB").getcolors(picture.width * picture.height)) > 5
    with pytest.raises(SettingError, match=r"nowhere/map.svg cannot be written"):
        write_picture(shown, tmp_path / "nowhere" / "map.svg")
