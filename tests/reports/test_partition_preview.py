"""`protosphere data` shows what clients get, for every partition and kind of data."""

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
    """Token ids of zeros, for the data of a model that reads text."""

    encoder: str = "none"
    max_tokens: int = 2

    def __call__(self, texts):
        return torch.zeros(len(texts), self.max_tokens, dtype=torch.int32)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Name -> the place of a data set or encoder."""
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
    "dirichlet": {"partition": "dirichlet", "alpha": 0.3},
    "pathological": {"partition": "pathological", "classes-per-client": 3},
    "fewer samples": {"partition": "iid", "max-samples": 200, "validation-share": 0.0},
    "shared": {"ensemble-every": 1, "shared-test-share": 0.2},
    "spiral": {"dataset": "spiral", "spiral-points": 60},
    "official": {"dataset": "insects", "split": "official", "alpha": 1.0},
    "way-shot": {"dataset": "insects", "partition": "way-shot", "split": "official"} | FEW,
    "mixed": {"dataset": "domains", "partition": "mixed", "split": "official"} | FEW,
    "texts": {"dataset": "notes", "models": "encoder", "group-column": "patient", "alpha": 5.0},
}
# tasks in which every sample belongs to a client or is shared
COMPLETE = ("dirichlet", "pathological", "shared", "spiral", "official", "texts")
OF_PARTITION = {"alpha", "classes-per-client", "ways", "shots"}


@pytest.fixture
def preview_of(places):
    """preview_of(task): the settings of the run that the command line plans, and its preview."""

    def make(task):
        settings = {}
        for name, value in TASKS[task].items():
            settings[name] = places.get(value, value) if isinstance(value, str) else value
        run_plan = plan(more=settings, clients=4, trains=False)
        return run_plan.run_config, view(read_settings(run_plan.run_config).settings, run_plan.clients)

    return make


@pytest.mark.parametrize("task", TASKS)
def test_the_preview_shows_the_samples_that_clients_get(preview_of, task):
    run_config, preview = preview_of(task)
    spec = data_spec(read_settings(run_config).settings, 4)
    encode = Counting() if task == "texts" else None
    assert [client.partition for client in preview.clients] == [0, 1, 2, 3]
    for client in preview.clients:
        data = client_data(spec, client.partition, home_folder() / "cache", encode=encode)
        parts = data.train, data.validation, data.test
        assert (client.train, client.validation, client.test) == tuple(map(len, parts))
        labels = torch.cat([part.labels for part in parts])
        assert client.counts == torch.bincount(labels, minlength=data.num_classes).tolist()
        assert client.classes == len(set(labels.tolist()))
        assert client.domain == data.domain
        assert tuple(preview.class_names) == data.class_names
    assert preview.partition.items() <= run_config.items()
    assert preview.partition.keys() >= {"partition", "split", "seed"} | TASKS[task].keys() & OF_PARTITION
    assert (preview.shared_test_rows > 0) == (task == "shared")
    if task in COMPLETE:
        samples = sum(client.train + client.validation + client.test for client in preview.clients)
        assert preview.rows_of_nobody == 0
        assert samples + preview.shared_test_rows == preview.train_rows + preview.test_rows


def test_the_heat_map_is_written_as_svg_or_png(preview_of, tmp_path):
    _, preview = preview_of("mixed")
    write_picture(preview, tmp_path / "map.svg")
    svg = (tmp_path / "map.svg").read_text()
    assert "ant" in svg
    assert f"0 {preview.clients[0].domain}" in svg
    write_picture(preview, tmp_path / "map.PNG")
    with Image.open(tmp_path / "map.PNG") as picture:
        assert len(picture.convert("RGB").getcolors(picture.width * picture.height)) > 5
    with pytest.raises(SettingError, match=r"nowhere/map.svg cannot be written"):
        write_picture(preview, tmp_path / "nowhere" / "map.svg")
