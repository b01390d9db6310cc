"""Several data sets as one: their images and labels against loops, and which one an error is about."""

import logging
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.data.client_data import client_data
from protosphere.data.decode import Recipe
from protosphere.data.domains import interleaved, open_all
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.images import open_image
from protosphere.data.partition.assignment import DataSpec, open_data
from tests.data.draws import decoded, refusal


def names_of(data, domain):
    """What the rows of a domain are called, in their order."""
    return [data.class_names[label] for label in data.labels[data.domains == domain]]


ABC = ("ant", "bee", "cat")


def files_of(folder):
    """The images of a made domain, as PIL reads them, and their labels: training rows first."""
    paths = [path for path in (Path(folder) / "train.parquet", Path(folder) / "test.parquet") if path.exists()]
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return [open_image(row["image"]) for row in rows], [row["label"] for row in rows]


# --- their images ---------------------------------------------------------------------------------------------------


def test_rows_are_taken_in_proportion_and_in_their_order():
    counts = [7, 1, 20, 0, 4]
    tables, rows = interleaved(counts)
    places = sorted(((j + 0.5) / n, table, j) for table, n in enumerate(counts) for j in range(n))
    assert [(table, row) for _, table, row in places] == list(zip(tables.tolist(), rows.tolist(), strict=True))
    for first in range(33):
        taken = np.bincount(tables[:first], minlength=5)
        # each is within half a row of the common share, so the sum is within half a row a table
        assert (np.abs(taken - first * np.array(counts) / 32) <= 0.5 + 2.5 * np.array(counts) / 32).all()


def test_all_against_a_loop(domain, opened):
    names = [ABC, ("cat", "ant", "bee"), ABC]
    folders = [domain("grey", 9, 2, (4, 9)), domain("colour", 4, 4, (8, 5, 3), names[1]), domain("small", 5, 0, (3, 3))]
    data = opened(*folders)
    assert (data.inputs.shape, data.inputs.dtype) == ((24, 3, 8, 9), np.uint8)
    assert not data.inputs.flags.writeable
    assert (data.scale, data.train_rows, data.class_names) == (255.0, 18, ABC)
    assert data.domain_names == ("grey", "colour", "small")
    assert data.domains.dtype == data.labels.dtype == np.int64
    files = [files_of(folder) for folder in folders]
    seen = [0, 0, 0]
    for row, table in enumerate(data.domains.tolist()):
        images, labels = files[table]
        image = images[seen[table]].resize((9, 8), Image.Resampling.BILINEAR).convert("RGB")
        assert np.array_equal(data.inputs[row].transpose(1, 2, 0), np.asarray(image))
        assert data.class_names[data.labels[row]] == names[table][labels[seen[table]]]
        seen[table] += 1
    assert data.domains[:18].tolist() == interleaved([9, 4, 5])[0].tolist()
    assert data.domains[18:].tolist() == interleaved([2, 4, 0])[0].tolist()
    # grey domains alone stay grey
    assert opened(folders[0], folders[2]).inputs.shape == (16, 1, 4, 9)


def test_a_folder_of_images_of_several_sizes(tmp_path):
    for number, shape in enumerate([(5, 6), (9, 3, 3), (4, 4)]):
        folder = tmp_path / "set" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros(shape, dtype=np.uint8)).save(folder / f"{number}.png")
    assert "set image-size" in refusal(decoded, str(tmp_path / "set"), tmp_path / "cache")
    five, four = (decoded(str(tmp_path / "set"), tmp_path / "cache", image_size=size) for size in (5, 4))
    assert five.inputs.shape == (3, 3, 5, 5)
    # the same data at another size is another entry
    assert five.key != four.key


def test_digits_are_a_domain(domain, opened, tmp_path):
    ten = tuple(str(number) for number in range(10))
    data = opened(domain("made", 10, 0, (8, 8), ten), "digits")
    alone = decoded("digits", tmp_path / "cache")
    assert data.class_names == ten
    pixels = np.asarray(data.inputs)[data.domains == 1]
    assert np.array_equal(pixels, np.rint(np.asarray(alone.inputs) / 16 * 255))
    assert (pixels.min(), pixels.max()) == (0, 255)
    assert np.array_equal(data.labels[data.domains == 1], alone.labels)


def arrays_of(path, seed, shape, dtype, test=0, names=("ant", "bee")):
    """A file of 6 training rows of random arrays; the rows."""
    rng = np.random.default_rng(seed)
    x = (rng.random((6 + test, *shape)) * 255).astype(dtype)
    y = np.array(names)[np.arange(len(x)) % 2]
    held = {"x": x[:6], "y": y[:6]} | ({"x_test": x[6:], "y_test": y[6:]} if test else {})
    np.savez(path, **held)
    return x


@pytest.mark.parametrize(
    ("shape", "dtype", "scale"),
    [((5,), "float64", 1), ((2, 7), "float32", 1), ((3, 8, 8), "float32", 1), ((4,), "uint8", 255)],
)
def test_arrays_of_one_shape_are_domains_as_they_are(shape, dtype, scale, opened, tmp_path):
    files = [str(tmp_path / f"{name}.npz") for name in ("north", "south")]
    rows = [arrays_of(files[0], 1, shape, dtype), arrays_of(files[1], 2, shape, dtype, 3, ("bee", "ant"))]
    data = opened(*files)
    assert data.inputs.dtype == (np.uint8 if dtype == "uint8" else np.float32)
    assert (data.scale, data.train_rows, data.class_names) == (scale, 12, ("ant", "bee"))
    for table, own in enumerate(rows):
        assert np.array_equal(data.inputs[data.domains == table], own.astype(data.inputs.dtype))
        assert names_of(data, table) == [(("ant", "bee"), ("bee", "ant"))[table][row % 2] for row in range(len(own))]
    spec = DataSpec(",".join(files), 2, "mixed", ways=2, shots=0, min_samples=1)
    clients = [client_data(spec, number, tmp_path / "cache") for number in (0, 1)]
    assert sorted(client.domain for client in clients) == ["north.npz", "south.npz"]


# --- their classes --------------------------------------------------------------------------------------------------


def test_the_union_has_the_first_domain_s_classes_first(domain, opened):
    names = [("cat", "bee"), ("dog", "bee", "ant"), ("eel", "dog")]
    folders = [domain(name, classes=own) for name, own in zip("abc", names, strict=True)]
    data = opened(*folders, classes="union")
    assert data.class_names == ("cat", "bee", "dog", "ant", "eel")
    for table, own in enumerate(names):
        assert names_of(data, table) == [own[row % len(own)] for row in (*range(6), *range(3))]
    # where all have the same, it makes no difference
    same, union = (opened(folders[0], classes=classes) for classes in ("same", "union"))
    assert np.array_equal(same.labels, union.labels)


def unlisted(folder):
    """A domain that only numbers its classes."""
    (Path(folder) / "classes.txt").unlink()
    return folder


def test_numbered_classes_match_by_their_digits(domain, opened):
    data = opened(domain("named", classes=("2", "0", "1")), unlisted(domain("numbered", classes=("0", "1", "2"))))
    assert data.class_names == ("2", "0", "1")
    assert data.labels[data.domains == 1].tolist() == [1, 2, 0] * 3


# --- the cache ------------------------------------------------------------------------------------------------------


def test_made_once_and_anew_when_a_part_has_changed(domain, opened, write, png, caplog, tmp_path):
    caplog.set_level(logging.INFO, "data")

    def count(word):
        return sum(record.getMessage().startswith(word) for record in caplog.records)

    folders = [domain("a"), domain("b")]
    first, again = opened(*folders), opened(*folders)
    assert first.key == again.key
    assert (count("decoded "), count("combined ")) == (2, 1)
    write(Path(folders[1]) / "test.parquet", [png(np.full((6, 6), 9, dtype=np.uint8))], [2])
    changed = opened(*folders)
    assert (count("decoded "), count("combined ")) == (3, 2)
    assert len(changed.labels) == 6 + 6 + 3 + 1
    assert changed.inputs[-2:].max(axis=(1, 2, 3)).tolist().count(9) == 1
    keys = {changed.key, first.key, opened(*folders[::-1]).key, opened(*folders, image_size=3).key}
    assert len(keys | {opened(*folders, classes="union").key}) == 5
    # a damaged entry is made anew out of its parts
    damaged = tmp_path / "cache" / "decoded" / changed.key / "domains.npy"
    expected = changed.domains.tolist()
    damaged.write_bytes(damaged.read_bytes()[:-8])
    assert opened(*folders).domains.tolist() == expected
    assert count("decoded ") == 5


# --- who holds them -------------------------------------------------------------------------------------------------


def test_groups_of_two_domains_are_two(domain, tmp_path):
    folders = [domain("a", 6, 0), domain("b", 6, 0)]
    for folder in folders:
        table = pq.read_table(Path(folder) / "train.parquet")
        pq.write_table(table.append_column("patient", [["p", "p", "q", "q", "r", "r"]]), f"{folder}/train.parquet")
    recipe = Recipe(",".join(folders), Columns(group="patient"))
    data = open_all(recipe, tmp_path / "cache")
    own = [data.groups[data.domains == table].tolist() for table in (0, 1)]
    assert [[each.index(value) for value in each] for each in own] == [[0, 0, 2, 2, 4, 4]] * 2
    assert not set(own[0]) & set(own[1])


def test_a_client_s_own_data_are_one_folder(domain, tmp_path):
    folder = domain("a", shape=(4, 6))
    spec = DataSpec("digits", 2, image_size=5)
    data = client_data(spec, 0, tmp_path / "cache", data_path=folder)
    assert (data.transform.shape, data.domain) == ((1, 5, 5), "")
    for path in (f"{tmp_path}/all/*", f"{folder},{folder}x"):
        assert f"the data path {path!r} names several data sets" in refusal(open_data, spec, tmp_path / "cache", path)
