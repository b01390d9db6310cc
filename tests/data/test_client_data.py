"""From a spec to one client's tensors: every row once, official splits, a site's own data, caches."""

import dataclasses
import errno
import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from protosphere.core.errors import DataError
from protosphere.core.lru_cache import Recent
from protosphere.data import client_data as module
from protosphere.data.client_data import InputTransform, client_data
from protosphere.data.partition.assignment import DataSpec, cached_partition_labels, open_data
from protosphere.data.partition.assignment_file import read_assignment
from tests.data.draws import held_labels

PARTS = ("train", "test", "validation")


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    monkeypatch.setattr(module, "_recent", Recent(module.size_in_bytes))


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One decoded `digits` for all tests of this file."""
    return tmp_path_factory.mktemp("cache")


def rows_of(data):
    """All inputs of a client as bytes with their labels, to find them again."""
    rows = [getattr(data, part) for part in PARTS]
    return [(x.numpy().tobytes(), int(y)) for each in rows for x, y in zip(each.inputs, each.labels, strict=True)]


def first_pixels(*rows):
    """What the rows of made images are filled with, sorted."""
    return sorted(value for each in rows for value in each.inputs[:, 0, 0, 0].tolist())


def test_digits_end_to_end(cache):
    spec = DataSpec("digits", clients=5)
    counts = held_labels(spec, cache)
    assert counts.shape == (5, 10)
    everybody = []
    for partition in range(5):
        data = client_data(spec, partition, cache)
        held = torch.cat([getattr(data, part).labels for part in PARTS])
        assert torch.bincount(held, minlength=10).tolist() == counts[partition].tolist()
        assert set(held.tolist()) == set(data.train.labels.tolist())
        assert data.num_classes == 10
        assert len(data.test) == pytest.approx(len(held) / 4, abs=0.5 + (counts[partition] < 4).sum())
        assert (data.train.inputs.dtype, data.train.labels.dtype) == (torch.uint8, torch.int64)
        inputs = data.transform(data.train.inputs)
        assert inputs.dtype == torch.float32
        assert (inputs.min(), inputs.max()) == (-1, 1)
        everybody += rows_of(data)
    digits = load_digits()
    expected = zip(digits.images.astype(np.uint8), digits.target, strict=True)
    assert sorted(everybody) == sorted((row.tobytes(), int(label)) for row, label in expected)
    assert open_data(spec, cache).class_names == tuple("0123456789")


def test_pooled_mixes_and_official_keeps_the_two_tables_apart_and_deals_every_test_row(parquet_folder, tmp_path):
    spec = DataSpec(str(parquet_folder), clients=2, partition="iid", min_samples=1)
    pooled = [client_data(spec, k, tmp_path / "cache") for k in range(2)]
    assert all(first_pixels(data.train)[0] < 40 and first_pixels(data.train)[-1] >= 100 for data in pooled)
    assert first_pixels(*(getattr(data, part) for data in pooled for part in PARTS)) == [*range(40), *range(100, 112)]
    spec = DataSpec(str(parquet_folder), clients=3, alpha=1.0, min_samples=2, split="official", validation_share=0.2)
    clients = [client_data(spec, k, tmp_path / "cache") for k in range(3)]
    assert first_pixels(*(data.test for data in clients)) == list(range(100, 112))
    trained = first_pixels(*(rows for data in clients for rows in (data.train, data.validation)))
    assert trained == list(range(40))
    assert sum(len(data.validation) for data in clients) > 0
    assert all(set(data.test.labels.tolist()) <= set(data.train.labels.tolist()) for data in clients)
    assert held_labels(spec, tmp_path / "cache").sum(axis=0).tolist() == [13] * 4


def test_max_samples_takes_the_first_rows(parquet_folder, tmp_path):
    spec = DataSpec(str(parquet_folder), clients=2, partition="iid", min_samples=1, max_samples=44)
    pooled = [client_data(spec, k, tmp_path / "cache") for k in range(2)]
    seen = first_pixels(*(getattr(data, part) for data in pooled for part in PARTS))
    assert seen == [*range(40), 100, 101, 102, 103]
    spec = dataclasses.replace(spec, split="official", max_samples=20)
    official = [client_data(spec, k, tmp_path / "cache") for k in range(2)]
    assert sum(len(data.train) + len(data.validation) for data in official) == 20
    # half of the training rows, so half of the test rows
    assert first_pixels(*(data.test for data in official)) == list(range(100, 106))


def test_a_site_s_own_folder_belongs_to_it_alone(image_folder, tmp_path):
    spec = DataSpec("digits", clients=0, split="official")
    own = client_data(spec, 7, tmp_path / "cache", data_path=str(image_folder))
    assert own.class_names == ("ant", "bee", "cat")
    assert (len(own.train), len(own.test), len(own.validation)) == (22, 9, 2)
    assert set((own.test.inputs[:, 0, 0, 0] % 20).tolist()) == {8, 9, 10}
    pooled = client_data(dataclasses.replace(spec, split="pooled"), 7, tmp_path / "cache", data_path=str(image_folder))
    assert (len(pooled.train), len(pooled.test), len(pooled.validation)) == (22, 8, 3)


def test_a_client_may_have_few_rows_or_none_to_train_on(tmp_path, write, png):
    image = png(np.zeros((3, 3), dtype=np.uint8))
    write(tmp_path / "one" / "train.parquet", [image], [2])
    spec = DataSpec("digits", clients=4)
    one = client_data(spec, 0, tmp_path / "cache", data_path=str(tmp_path / "one"))
    assert [len(getattr(one, part)) for part in PARTS] == [1, 0, 0]
    assert one.test.inputs.shape == (0, 1, 3, 3)
    assert one.class_names == ("0", "1", "2")
    write(tmp_path / "none" / "train.parquet", [], np.empty(0, dtype=np.int64))
    write(tmp_path / "none" / "test.parquet", [image, image], [0, 1])
    official = dataclasses.replace(spec, split="official")
    none = client_data(official, 0, tmp_path / "cache", data_path=str(tmp_path / "none"))
    assert [len(getattr(none, part)) for part in PARTS] == [0, 2, 0]
    # Dirichlet with a tiny alpha leaves clients with nothing when that is allowed
    sparse = DataSpec("digits", clients=40, alpha=0.01, min_samples=0)
    counts = held_labels(sparse, tmp_path / "cache").sum(axis=1)
    assert counts.min() == 0
    assert len(client_data(sparse, int(counts.argmin()), tmp_path / "cache").train) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split": "official"}, "data set 'digits' has no official test samples"),
        ({"dataset": "digit"}, "unknown data set 'digit': did you mean 'digits'"),
        ({"clients": 2}, "partition 2 does not exist: 2 clients are numbered from 0"),
        (
            {"clients": 200},
            "200 clients with min-samples = 10 each need at least 2000 samples, but the data set has 1797",
        ),
    ],
)
def test_settings_that_cannot_be_used(cache, change, words):
    spec = dataclasses.replace(DataSpec("digits", clients=5), **change)
    with pytest.raises(DataError, match=words):
        client_data(spec, 2, cache)


def test_a_relative_name_is_no_data_path(cache):
    with pytest.raises(DataError, match="data-path is 'digits'"):
        client_data(DataSpec("digits", 2), 0, cache, data_path="digits")


def test_a_process_keeps_what_it_used_last_within_its_bytes(cache, monkeypatch):
    spec = DataSpec("digits", clients=4, partition="iid")
    first = client_data(spec, 0, cache)
    assert client_data(spec, 0, cache) is first
    size = module.size_in_bytes(first)
    monkeypatch.setattr(module, "_CACHE_BYTES", int(2.5 * size))
    kept = [client_data(spec, k, cache) for k in (0, 1)]
    assert client_data(spec, 0, cache) is kept[0]
    client_data(spec, 2, cache)
    assert client_data(spec, 0, cache) is kept[0]
    assert client_data(spec, 1, cache) is not kept[1]
    monkeypatch.setattr(module, "_CACHE_BYTES", size // 2)
    assert client_data(spec, 3, cache) is not client_data(spec, 3, cache)


def test_a_damaged_assignment_is_worked_out_anew(tmp_path):
    spec = DataSpec("digits", clients=4)
    before = held_labels(spec, tmp_path)
    file = next((tmp_path / "assignments").glob("*.npz"))
    content = file.read_bytes()
    for damaged in (content[:100], content[:-40], b""):
        file.write_bytes(damaged)
        assert np.array_equal(held_labels(spec, tmp_path), before)
        assert file.read_bytes() == content


def test_an_assignment_that_could_not_be_read_once_is_read_when_it_can(tmp_path, monkeypatch):
    held_labels(DataSpec("digits", clients=4), tmp_path)
    file = next((tmp_path / "assignments").glob("*.npz"))
    with monkeypatch.context() as patch:
        patch.setattr(np, "load", refused)
        assert read_assignment(file, 1797) is None
    assert len(read_assignment(file, 1797).train) == 4


def refused(*_):
    raise OSError(errno.EMFILE, "Too many open files")


def test_the_transform_is_the_formula_and_survives_json():
    transform = InputTransform(255.0, (0.5, 0.4, 0.3), (0.5, 0.25, 0.125), (3, 4, 5))
    inputs = torch.randint(0, 256, (7, 3, 4, 5), dtype=torch.uint8)
    got = transform(inputs)
    for row, channel, y, x in ((0, 0, 0, 0), (3, 1, 2, 4), (6, 2, 3, 1)):
        naive = (inputs[row, channel, y, x].item() / 255 - transform.mean[channel]) / transform.std[channel]
        assert got[row, channel, y, x].item() == pytest.approx(naive, abs=1e-5)
    assert InputTransform.from_dict(json.loads(json.dumps(transform.to_dict()))) == transform
    with pytest.raises(DataError, match=r"inputs have the shape \(3, 5, 4\), but the data set has \(3, 4, 5\)"):
        transform(inputs.transpose(2, 3))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_channels_last_in_memory_of_one_channel_too(channels):
    transform = InputTransform(255.0, (0.5,) * channels, (0.5,) * channels, (channels, 4, 5))
    assert transform(torch.zeros(7, channels, 4, 5, dtype=torch.uint8)).stride() == (
        20 * channels,
        1,
        5 * channels,
        channels,
    )


def test_a_transform_made_under_inference_mode_can_be_trained_with():
    transform = InputTransform(1.0, (0.25, 0.75), (3.0, 7.0), (2,))
    with torch.inference_mode():
        transform(torch.zeros(1, 2))
    inputs = torch.ones(4, 2, requires_grad=True)
    (transform(inputs) ** 2).sum().backward()
    assert torch.allclose(inputs.grad, 2 * (1 - torch.tensor([0.25, 0.75])) / torch.tensor([9.0, 49.0]))


def test_a_partition_that_was_worked_out_is_found_as_it_is_and_no_look_up_writes(tmp_path):
    for dataset in ("digits", "/no/such/folder", "no-such-set", "digits,spiral"):
        assert cached_partition_labels(DataSpec(dataset, clients=3), tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()
    spec = DataSpec("digits", clients=3, max_samples=300)
    counts = held_labels(spec, tmp_path)
    found = cached_partition_labels(spec, tmp_path)
    assert np.array_equal(found[0], counts)
    assert found[1] == open_data(spec, tmp_path).class_names
    # decoded, but dealt otherwise
    assert cached_partition_labels(dataclasses.replace(spec, seed=1), tmp_path) is None
