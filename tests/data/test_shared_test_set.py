"""The shared test set: rows that no client holds."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from protosphere.core.errors import DataError
from protosphere.data.partition import assignment as assignment_module
from protosphere.data.partition.assignment import DataSpec, assignment, open_data
from protosphere.data.samples import Samples
from protosphere.data.shared_test_set import SharedTestSpec, shared_labels, shared_rows
from tests.data.draws import alike

CPU = torch.device("cpu")
N, TRAIN = 400, 300


def table(copies=0, seed=0):
    """N rows of unlike contents in four classes of unlike sizes; of the first `copies` rows one more lies elsewhere."""
    rng = np.random.default_rng(seed)
    content = np.arange(N, dtype=np.int32)
    if copies:
        content[rng.permutation(np.arange(copies, N))[:copies]] = content[:copies]
    labels = rng.choice(4, size=N, p=(0.4, 0.3, 0.2, 0.1))
    inputs = content.reshape(-1, 1).view(np.uint8)
    return Samples("made", inputs, labels, TRAIN, tuple("abcd"), 255.0, key=f"table-{copies}-{seed}")


def spec_of(share, **changes):
    return replace(DataSpec("made", clients=5, alpha=1.0, min_samples=5, shared_test_share=share, seed=3), **changes)


def used_rows(split, max_samples):
    """The rows that a run uses, and those of them among which the shared ones are chosen."""
    if split == "pooled":
        used = np.arange(max_samples or N)
        return used, used
    train = min(max_samples, TRAIN) if max_samples else TRAIN
    tests = np.arange(TRAIN, TRAIN + round((N - TRAIN) * train / TRAIN))
    return np.concatenate([np.arange(train), tests]), tests


# --- set aside --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_samples", "share"), [(0, 0.35), (210, 0.1)])
@pytest.mark.parametrize("partition", ["iid", "dirichlet", "pathological"])
@pytest.mark.parametrize("split", ["pooled", "official"])
def test_shared_rows_are_nobodys_stratified_and_as_many_as_asked(split, partition, share, max_samples, tmp_path):
    data = table()
    who = assignment(spec_of(share, split=split, partition=partition, max_samples=max_samples), data, tmp_path)
    used, among = used_rows(split, max_samples)
    everybody = np.concatenate([who.shared, *who.held])
    assert len(set(everybody.tolist())) == everybody.size, "a row has two places"
    assert set(everybody.tolist()) == set(used.tolist()), "a row has no place"
    assert set(who.shared.tolist()) <= set(among.tolist())
    assert who.shared.size == int(share * among.size + 0.5)
    assert who.shared.tolist() == sorted(who.shared.tolist())
    for label in range(4):
        quota = share * (data.labels[among] == label).sum()
        assert abs((data.labels[who.shared] == label).sum() - quota) < 1


def test_other_seeds_set_other_rows_aside_and_the_cache_gives_the_same_back(tmp_path, monkeypatch):
    data = table()
    first = assignment(spec_of(0.2), data, tmp_path)
    assert assignment(spec_of(0.2, seed=4), data, tmp_path).shared.tolist() != first.shared.tolist()
    elsewhere = assignment(spec_of(0.2), data, tmp_path / "another")
    monkeypatch.setattr(assignment_module, "_assign", lambda *_: pytest.fail("it is in the cache"))
    for again in (assignment(spec_of(0.2), data, tmp_path), elsewhere):
        assert np.array_equal(again.shared, first.shared)
        for part in ("train", "test", "validation"):
            assert alike(getattr(again, part), getattr(first, part))


@pytest.mark.parametrize("split", ["pooled", "official"])
def test_a_row_that_has_a_copy_is_never_set_aside(split, tmp_path):
    """Nor the copy, on whichever side of the official split: a client trains on the other."""
    data = table(copies=60)
    counts = Counter(bytes(row) for row in data.inputs)
    who = assignment(spec_of(0.3, split=split), data, tmp_path)
    assert max(counts.values()) == 2
    assert who.shared.size > 20
    assert all(counts[bytes(data.inputs[row])] == 1 for row in who.shared)


def test_a_copy_that_the_run_does_not_use_is_none(tmp_path):
    data = table()
    data.inputs[200:] = data.inputs[:200]
    assert assignment(spec_of(0.1, max_samples=200), data, tmp_path).shared.size == 20
    with pytest.raises(DataError, match="gives the shared test set no sample"):
        assignment(spec_of(0.1), data, tmp_path)


def test_a_site_with_its_own_data_sets_nothing_aside_and_a_share_of_no_row_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"own data-path cannot set samples aside .* `ensemble-every` to 0"):
        assignment(spec_of(0.1), table(), tmp_path, own=True)
    assert assignment(spec_of(0.0), table(), tmp_path, own=True).shared.size == 0
    with pytest.raises(
        DataError, match=r"shared-test-share = 0.001 of 400 samples gives the shared test set no sample"
    ):
        assignment(spec_of(0.001), table(), tmp_path)


# --- answers and rows -------------------------------------------------------------------------------------------


def test_server_and_clients_see_the_same_rows(decoded_cache):
    where = SharedTestSpec(DataSpec("digits", clients=4, shared_test_share=0.1, max_samples=400), decoded_cache)
    labels, (rows, found) = shared_labels(where), shared_rows(where, CPU)
    data = open_data(where.spec, decoded_cache)
    chosen = assignment(where.spec, data, decoded_cache).shared
    assert chosen.size == 40
    assert labels.labels.dtype == torch.int64
    assert labels.labels.tolist() == rows.labels.tolist() == data.labels[chosen].tolist()
    assert np.array_equal(rows.inputs.numpy(), data.inputs[chosen])
    assert labels.num_classes == 10
    assert labels.fingerprint == found
    assert shared_rows(where, CPU)[0] is rows, "a process keeps them"
    other = replace(where, spec=replace(where.spec, seed=9))
    assert shared_labels(other).fingerprint != found
