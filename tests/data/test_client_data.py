"""From a spec to one client's tensors: every row once, official splits, a site's own data, the shared test set."""

import errno
import hashlib
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from protosphere.core.errors import DataError
from protosphere.data.augment import augmented, refuse_unfit
from protosphere.data.client_data import InputTransform, client_data
from protosphere.data.partition.assignment import assignment, cached_partition_labels, read_assignment
from protosphere.data.partition.splits import content_hashes, occurs_once
from protosphere.data.samples import Samples
from protosphere.data.spec import DataSpec
from tests.data.draws import held_labels, made

PARTS = ("train", "test", "validation")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One decoded `digits` for all tests of this file."""
    return tmp_path_factory.mktemp("cache")


def first_pixels(*rows):
    """What the rows of made images are filled with, sorted."""
    return sorted(value for each in rows for value in each.inputs[:, 0, 0, 0].tolist())


def test_digits_end_to_end(cache):
    spec = DataSpec("digits", clients=5)
    counts = held_labels(spec, cache)
    everybody = []
    for partition in range(5):
        data = client_data(spec, partition, cache)
        held = torch.cat([getattr(data, part).labels for part in PARTS])
        assert torch.bincount(held, minlength=10).tolist() == counts[partition].tolist()
        assert set(held.tolist()) == set(data.train.labels.tolist())
        assert len(data.test) == pytest.approx(len(held) / 4, abs=0.5 + (counts[partition] < 4).sum())
        assert (data.train.inputs.dtype, data.train.labels.dtype) == (torch.uint8, torch.int64)
        inputs = data.transform(data.train.inputs)
        assert (inputs.dtype, inputs.min(), inputs.max()) == (torch.float32, -1, 1)
        for rows in (getattr(data, part) for part in PARTS):
            everybody += [(x.numpy().tobytes(), int(y)) for x, y in zip(rows.inputs, rows.labels, strict=True)]
    digits = load_digits()
    expected = zip(digits.images.astype(np.uint8), digits.target, strict=True)
    assert sorted(everybody) == sorted((row.tobytes(), int(label)) for row, label in expected)


def test_pooled_mixes_and_official_keeps_the_two_tables_apart_and_deals_every_test_row(parquet_folder, tmp_path):
    spec = DataSpec(str(parquet_folder), clients=2, partition="iid", min_samples=1)
    pooled = [client_data(spec, k, tmp_path / "cache") for k in range(2)]
    assert all(first_pixels(data.train)[0] < 40 and first_pixels(data.train)[-1] >= 100 for data in pooled)
    assert first_pixels(*(getattr(data, part) for data in pooled for part in PARTS)) == [*range(40), *range(100, 112)]
    spec = replace(spec, clients=3, partition="dirichlet", alpha=1.0, split="official", validation_share=0.2)
    clients = [client_data(spec, k, tmp_path / "cache") for k in range(3)]
    assert first_pixels(*(data.test for data in clients)) == list(range(100, 112))
    assert first_pixels(*(rows for data in clients for rows in (data.train, data.validation))) == list(range(40))
    assert all(set(data.test.labels.tolist()) <= set(data.train.labels.tolist()) for data in clients)


def test_max_samples_takes_the_first_rows(parquet_folder, tmp_path):
    spec = DataSpec(str(parquet_folder), clients=2, partition="iid", min_samples=1, max_samples=44)
    pooled = [client_data(spec, k, tmp_path / "cache") for k in range(2)]
    seen = first_pixels(*(getattr(data, part) for data in pooled for part in PARTS))
    assert seen == [*range(40), 100, 101, 102, 103]
    spec = replace(spec, split="official", max_samples=20)
    official = [client_data(spec, k, tmp_path / "cache") for k in range(2)]
    assert sum(len(data.train) + len(data.validation) for data in official) == 20
    # half of the training rows, so half of the test rows
    assert first_pixels(*(data.test for data in official)) == list(range(100, 106))


def test_a_site_s_own_folder_belongs_to_it_alone(image_folder, tmp_path):
    sizes = {}
    for split in ("official", "pooled"):
        spec = DataSpec("digits", clients=0, split=split)
        client = client_data(spec, 7, tmp_path / "cache", data_path=str(image_folder))
        assert client.class_names == ("ant", "bee", "cat")
        # images are scaled by constants
        assert client.transform == client.transform.plain == InputTransform(255.0, (0.5,), (0.5,), (1, 6, 6))
        sizes[split] = [len(getattr(client, part)) for part in PARTS]
    assert sizes == {"official": [22, 9, 2], "pooled": [22, 8, 3]}
    with pytest.raises(DataError, match="data-path is 'digits'"):
        client_data(spec, 0, tmp_path / "cache", data_path="digits")
    with pytest.raises(DataError, match="no official test samples"):
        client_data(DataSpec("digits", 5, split="official"), 0, tmp_path / "cache")
    with pytest.raises(DataError, match="partition 2 does not exist"):
        client_data(DataSpec("digits", 2), 2, tmp_path / "cache")


def test_a_client_may_have_few_rows_or_none_to_train_on(tmp_path, write, png):
    image = png(np.zeros((3, 3), dtype=np.uint8))
    write(tmp_path / "one" / "train.parquet", [image], [2])
    write(tmp_path / "none" / "train.parquet", [], np.empty(0, dtype=np.int64))
    write(tmp_path / "none" / "test.parquet", [image, image], [0, 1])
    for name, split, sizes in (("one", "pooled", [1, 0, 0]), ("none", "official", [0, 2, 0])):
        spec = DataSpec("digits", clients=4, split=split)
        data = client_data(spec, 0, tmp_path / "cache", data_path=str(tmp_path / name))
        assert [len(getattr(data, part)) for part in PARTS] == sizes
        assert data.test.inputs.shape[1:] == (1, 3, 3)
    # Dirichlet with a tiny alpha leaves clients with nothing when that is allowed
    sparse = DataSpec("digits", clients=40, alpha=0.01, min_samples=0)
    counts = held_labels(sparse, tmp_path / "cache").sum(axis=1)
    assert counts.min() == 0
    assert len(client_data(sparse, int(counts.argmin()), tmp_path / "cache").train) == 0


def test_a_damaged_assignment_is_worked_out_anew_and_one_that_could_not_be_read_is_read_later(tmp_path, monkeypatch):
    spec = DataSpec("digits", clients=4)
    before = held_labels(spec, tmp_path)
    file = next((tmp_path / "assignments").glob("*.npz"))
    content = file.read_bytes()
    for damaged in (content[:100], content[:-40], b""):
        file.write_bytes(damaged)
        assert np.array_equal(held_labels(spec, tmp_path), before)
        assert file.read_bytes() == content

    def refuse(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(np, "load", refuse)
        assert read_assignment(file, 1797) is None
    assert len(read_assignment(file, 1797).train) == 4


def test_a_partition_that_was_worked_out_is_found_as_it_is_and_no_look_up_writes(tmp_path):
    for dataset in ("digits", "/no/such/folder", "no-such-set", "digits,spiral"):
        assert cached_partition_labels(DataSpec(dataset, clients=3), tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()
    spec = DataSpec("digits", clients=3, max_samples=300)
    counts = held_labels(spec, tmp_path)
    found = cached_partition_labels(spec, tmp_path)
    assert np.array_equal(found[0], counts)
    assert found[1] == tuple("0123456789")
    # decoded, but dealt otherwise
    assert cached_partition_labels(replace(spec, seed=1), tmp_path) is None


# --- what a model sees ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_the_transform_is_the_formula_survives_json_and_gives_channels_last(channels):
    mean, std = (0.5, 0.4, 0.3)[:channels], (0.5, 0.25, 0.125)[:channels]
    transform = InputTransform(255.0, mean, std, (channels, 4, 5))
    inputs = torch.randint(0, 256, (7, channels, 4, 5), dtype=torch.uint8)
    with torch.inference_mode():
        transform(inputs[:1])
    expected = (inputs / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    got = transform(inputs)
    assert torch.allclose(got, expected, atol=1e-5)
    assert got.stride() == (20 * channels, 1, 5 * channels, channels)
    assert InputTransform.from_dict(json.loads(json.dumps(transform.to_dict()))) == transform
    with pytest.raises(DataError, match=r"inputs have the shape \(., 5, 4\)"):
        transform(inputs.transpose(2, 3))
    # what was made under inference mode can be trained with
    floats = inputs.float().requires_grad_()
    transform(floats).sum().backward()
    assert floats.grad.isfinite().all()


@pytest.mark.parametrize(("augment", "kinds"), [("flip", 2), ("crop", 9), ("flip-crop", 18)])
def test_an_image_is_as_likely_to_be_any_flip_or_window_of_itself(augment, kinds):
    image = torch.arange(1, 5, dtype=torch.uint8).view(1, 1, 2, 2)
    found = augmented(image.repeat(4000, 1, 1, 1), augment, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(image[0, 0], (1, 1, 1, 1))
    places = [(1, 1)] if augment == "flip" else [(down, right) for down in range(3) for right in range(3)]
    expected = set()
    for whole in (padded, padded.flip(1)) if "flip" in augment else (padded,):
        expected |= {tuple(whole[down : down + 2, right : right + 2].flatten().tolist()) for down, right in places}
    assert (len(expected), found.dtype) == (kinds, torch.uint8)
    counts = Counter(tuple(each) for each in found.flatten(1).tolist())
    assert counts.keys() == expected
    assert sum((count - 4000 / kinds) ** 2 / (4000 / kinds) for count in counts.values()) < 50


def test_other_data_than_images_are_not_augmented():
    refuse_unfit("none", 1)
    refuse_unfit("flip", 3)
    for augment, axes in (("flip", 1), ("crop", 0)):
        with pytest.raises(DataError, match="augment"):
            refuse_unfit(augment, axes)


# --- a site's secret split --------------------------------------------------------------------------------------------

SECRET, OTHER = "07" * 32, "08" * 32


@pytest.mark.parametrize("grouped", [False, True])
def test_of_a_secret_split_a_unit_less_moves_no_other_and_order_says_nothing(grouped, tmp_path):
    rng = np.random.default_rng(0)
    content = rng.permutation(600).astype(np.float32)
    groups = rng.integers(60, size=600) if grouped else None

    def sides(rows, name, secret=SECRET):
        """content -> side."""
        own_groups = None if groups is None else groups[rows]
        data = Samples("made", content[rows, None], rows % 3, len(rows), ("a", "b", "c"), groups=own_groups, key=name)
        who = assignment(DataSpec("made", 1, secret=secret), data, tmp_path, single=True)
        found = {}
        for part in PARTS:
            found |= {float(data.inputs[row, 0]): part for row in getattr(who, part)[0]}
        assert len(found) == len(rows)
        return found

    every = np.arange(600)
    whole = sides(every, "whole")
    for gone in range(3):
        less = sides(every[groups != gone] if grouped else np.delete(every, gone), f"without {gone}")
        assert less == {value: side for value, side in whole.items() if value in less}
    assert sides(rng.permutation(600), "shuffled") == whole
    assert sides(every, "whole", OTHER) != whole
    shares = [list(whole.values()).count(part) / 600 for part in PARTS]
    assert np.allclose(shares, [0.65, 0.25, 0.1], atol=0.2 if grouped else 0.06)


# --- the shared test set, and copies of its rows ----------------------------------------------------------------------

CPU = torch.device("cpu")


def table(copies=0):
    """400 rows of four classes of unlike sizes; of the first `copies` rows one more lies elsewhere."""
    rng = np.random.default_rng(0)
    data = made(rng.choice(4, size=400, p=(0.4, 0.3, 0.2, 0.1)), train_rows=300)
    if copies:
        data.inputs[rng.permutation(np.arange(copies, 400))[:copies]] = data.inputs[:copies]
    return data


def shared_spec(share, **changes):
    return replace(DataSpec("made", clients=5, alpha=1.0, min_samples=5, shared_test_share=share, seed=3), **changes)


@pytest.mark.parametrize(("max_samples", "share"), [(0, 0.35), (210, 0.1)])
@pytest.mark.parametrize("split", ["pooled", "official"])
def test_shared_rows_are_nobodys_stratified_and_as_many_as_asked(split, share, max_samples, tmp_path):
    data = table()
    who = assignment(shared_spec(share, split=split, max_samples=max_samples), data, tmp_path)
    used = among = np.arange(max_samples or 400)
    if split == "official":
        among = np.arange(300, 370 if max_samples else 400)
        used = np.concatenate([np.arange(max_samples or 300), among])
    everybody = np.concatenate([who.shared, *who.rows_by_client])
    assert sorted(everybody.tolist()) == used.tolist()
    assert set(who.shared.tolist()) <= set(among.tolist())
    assert who.shared.size == int(share * among.size + 0.5)
    for label in range(4):
        quota = share * (data.labels[among] == label).sum()
        assert abs((data.labels[who.shared] == label).sum() - quota) < 1


@pytest.mark.parametrize("split", ["pooled", "official"])
def test_a_row_that_has_a_copy_is_never_set_aside(split, tmp_path):
    """Nor the copy, on whichever side of the official split: a client trains on the other."""
    data = table(copies=60)
    counts = Counter(bytes(row) for row in data.inputs)
    who = assignment(shared_spec(0.3, split=split), data, tmp_path)
    assert max(counts.values()) == 2
    assert who.shared.size > 20
    assert all(counts[bytes(data.inputs[row])] == 1 for row in who.shared)


def test_a_copy_that_the_run_does_not_use_is_none_and_no_row_at_all_is_refused(tmp_path):
    data = table()
    data.inputs[200:] = data.inputs[:200]
    assert assignment(shared_spec(0.1, max_samples=200), data, tmp_path).shared.size == 20
    with pytest.raises(DataError, match="gives the shared test set no sample"):
        assignment(shared_spec(0.1), data, tmp_path)
    with pytest.raises(DataError, match="own data-path"):
        assignment(shared_spec(0.1), table(), tmp_path, single=True)


def test_no_row_of_a_group_is_set_aside_if_another_row_is_copied(tmp_path):
    data = made(np.zeros(40, dtype=np.int64), groups=np.arange(40) // 2)
    data.inputs[20:40:2] = data.inputs[0]
    spec = DataSpec("made", clients=1, min_samples=1, shared_test_share=0.5)
    shared = assignment(spec, data, tmp_path).shared
    # the groups of rows 2 to 19 are free of copies: half of nine, rounded up
    assert len(set(shared // 2)) == 5
    assert (shared.min() >= 2, shared.max() < 20) == (True, True)


def test_a_rows_hash_is_blake2b_of_its_content():
    def digest(content):
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")

    inputs = np.arange(10_000, dtype=np.int32).reshape(-1, 1)
    rows = np.random.default_rng(1).permutation(10_000)
    assert content_hashes(inputs, rows).tolist() == [digest(inputs[row].tobytes()) for row in rows]
    # -0.0 equals 0.0, and the caller's array stays as it is
    zeros = np.array([[0.0, 1.5], [-0.0, 1.5], [0.0, -1.5]], np.float32)
    assert occurs_once(zeros, np.arange(3)).tolist() == [False, False, True]
    assert np.signbit(zeros[1, 0])
