"""Names, folders and columns: what is found, and the sentence for what is not."""

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.core.errors import DataError
from protosphere.data.forms.sources import HUB, locate
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
    (image_folder / "classes.txt").write_text("dog\ncat\nbee\n")
    with pytest.raises(DataError, match=r"has a folder 'ant', but classes\.txt names no such class"):
        locate(str(image_folder))


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


def test_a_hub_that_cannot_be_reached_names_the_remedy(tmp_path, monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        DataError, match=r"'uoft-cs/cifar10' could not be fetched .*Couldn't reach the Hub\).*local folder"
    ):
        decoded("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifr10", r"unknown data set 'cifr10': did you mean 'cifar10'\?"),
        ("zzzzzz", "unknown data set 'zzzzzz': the names are digits, spiral, cifar10"),
        ("", "unknown data set ''"),
        ("/no/such/folder", "data path '/no/such/folder' does not exist"),
        ("./no-such-folder", "no-such-folder' does not exist"),
        ("~/no-such-folder", "no-such-folder' does not exist"),
    ],
)
def test_unknown_names_and_paths(name, words):
    with pytest.raises(DataError, match=words):
        locate(name)


def test_numbers_of_images_that_can_be_no_classes_are_refused(parquet_folder, tmp_path):
    (parquet_folder / "classes.txt").unlink(missing_ok=True)
    file = parquet_folder / "train.parquet"
    table = pq.read_table(file)
    ids = pa.array([10_000 + row for row in range(len(table))], pa.int64())
    pq.write_table(table.set_column(table.column_names.index("label"), "label", ids).replace_schema_metadata(), file)
    with pytest.raises(
        DataError, match=r"column 'label' of .* would make .* classes, more than 10000: set label-column"
    ):
        decoded(str(parquet_folder), tmp_path / "cache")


def test_folders_that_cannot_be_used(tmp_path, parquet_folder):
    def refused(folder, words):
        with pytest.raises(DataError, match=words):
            locate(str(folder))

    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", r"holds no images: expected train\.parquet")
    refused(parquet_folder / "classes.txt", "is a file, but a data set is a folder")
    (tmp_path / "loose" / "ant").mkdir(parents=True)
    image(1).save(tmp_path / "loose" / "a.png")
    refused(tmp_path / "loose", r"a\.png' lies in no class folder")
    (tmp_path / "loose" / "a.png").rename(tmp_path / "loose" / "ant" / "a.PNG")
    (tmp_path / "loose" / "bee").mkdir()
    alone = decoded(str(tmp_path / "loose"), tmp_path / "cache")
    assert (alone.class_names, alone.labels.tolist(), alone.train_rows) == (("ant", "bee"), [0], 1)
    (parquet_folder / "classes.txt").write_text("ant\nbee\nant\n")
    refused(parquet_folder, "names a class twice")
    (parquet_folder / "classes.txt").unlink()
    (parquet_folder / "train.parquet").unlink()
    refused(parquet_folder, r"has no training table, only test\.parquet")


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("image", None, "has no image column; its columns are label"),
        ("label", None, "has no label column; its columns are image"),
        ("label", [0, 1] * 19 + [4, 0], "row 38 of the train table .* has the label 4, but labels must be 0 to 3"),
        ("label", [0, 1] * 19 + [-1, 0], "row 38 of the train table .* has the label -1"),
        ("label", [0, None] * 20, "row 1 of the train table .* has no label"),
        ("label", ["art"] * 40, "row 0 of the train table .* has the label 'art', but classes.txt names no such"),
        (None, None, r"the data .* cannot be read \(ArrowInvalid: Parquet"),
    ],
)
def test_tables_that_cannot_be_used(parquet_folder, tmp_path, column, values, words):
    (parquet_folder / "test.parquet").unlink()
    train = parquet_folder / "train.parquet"
    if column:
        table = pq.read_table(train)
        pq.write_table(table.set_column(1, column, pa.array(values)) if values else table.drop_columns([column]), train)
    else:
        train.write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match=words):
        decoded(str(parquet_folder), tmp_path / "cache")
    assert not list((tmp_path / "cache" / "decoded").glob("*.partial"))


def test_a_test_table_with_other_columns(parquet_folder, tmp_path, monkeypatch):
    tables = {
        "train": make_table([image(0)], [0]),
        "test": make_table([image(0)], [0], label_column="target"),
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: datasets.DatasetDict(tables))
    with pytest.raises(DataError, match="'a/b' has no column 'label' in its test table"):
        decoded("a/b", tmp_path)
