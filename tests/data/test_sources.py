"""Names, folders and columns: what is found, and the sentence for what is not."""

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.data.forms.sources import HUB
from tests.data.draws import decoded


def make_table(images, labels, names=None, image_column="image", label_column="label"):
    label = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    features = datasets.Features({image_column: datasets.Image(), label_column: label})
    return datasets.Dataset.from_dict({image_column: images, label_column: labels}, features=features)


def image(value, size=4, mode="RGB"):
    return Image.new(mode, (size, size), value if mode == "L" else (value,) * 3)


def test_spiral_is_float_and_depends_on_its_settings(tmp_path):
    data = decoded("spiral", tmp_path, spiral_points=20, spiral_noise=0.0)
    assert data.inputs.shape == (120, 2)
    assert data.inputs.dtype == np.float32
    keys = {
        decoded("spiral", tmp_path, spiral_points=points, spiral_noise=noise, seed=seed).key
        for points, noise, seed in ((20, 0.0, 0), (21, 0.0, 0), (20, 0.1, 0), (20, 0.0, 1))
    }
    assert len(keys) == 4


def test_parquet_in_shards_below_data_without_a_class_list(parquet_folder, tmp_path):
    root = tmp_path / "sh[a]rds"
    (root / "data").mkdir(parents=True)
    table = pq.read_table(parquet_folder / "train.parquet")
    pq.write_table(table.slice(0, 25), root / "data" / "train-00000-of-00002.parquet")
    pq.write_table(table.slice(25), root / "data" / "train-00001-of-00002.parquet")
    pq.write_table(table.slice(0, 5), root / "data" / "validation-00000-of-00001.parquet")
    data = decoded(str(root), tmp_path / "cache")
    assert data.inputs[:, 0, 0, 0].tolist() == [*range(40), *range(5)]
    assert data.class_names == ("0", "1", "2", "3")
    assert data.train_rows == 40


def test_image_folder(image_folder, tmp_path):
    (image_folder / "train" / "bee" / "notes.txt").write_text("no image")
    (image_folder / "train" / ".hidden").mkdir()
    data = decoded(str(image_folder), tmp_path / "cache")
    assert data.inputs.shape == (33, 1, 6, 6)
    assert data.class_names == ("ant", "bee", "cat")
    assert data.train_rows == 24
    filled = data.inputs[:, 0, 0, 0]
    assert np.array_equal(filled // 20, data.labels)
    assert sorted((filled[:24] % 20).tolist()) == sorted([*range(8)] * 3)
    # the first rows are not of one class alone
    assert len(set(data.labels[:12].tolist())) == 3


def test_classes_txt_gives_an_image_folder_the_order_of_all_sites(image_folder, tmp_path):
    (image_folder / "classes.txt").write_text("dog\r\ncat\r\nbee\r\nant\r\n")
    data = decoded(str(image_folder), tmp_path / "cache")
    assert data.class_names == ("dog", "cat", "bee", "ant")
    assert np.array_equal(data.labels, 3 - data.inputs[:, 0, 0, 0] // 20)


@pytest.mark.parametrize(("name", "hub_id"), [("cifar100", "uoft-cs/cifar100"), ("svhn", "ufldl-stanford/svhn")])
def test_hub_data_sets(name, hub_id, tmp_path, monkeypatch):
    asked = []

    def load_dataset(*args, cache_dir):
        asked.append((*args, cache_dir))
        train = make_table([image(i) for i in range(6)], [2, 0, 1, 2, 0, 1], ["a", "b", "c"], "img", "fine_label")
        train = train.add_column("coarse_label", [0] * 6)
        return datasets.DatasetDict({"extra": train, "train": train, "valid": train.select([4, 5])})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = decoded(name, tmp_path)
    assert asked == [(hub_id, HUB[name][1], str(tmp_path / "datasets"))]
    assert data.class_names == ("a", "b", "c")
    assert data.labels.tolist() == [2, 0, 1, 2, 0, 1, 0, 1]
    assert data.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 4, 5]
    assert data.train_rows == 6
    assert decoded(hub_id, tmp_path).key == data.key
    assert len(asked) == 1
