"""The shared test set: rows that no client holds, and the refusal of one that a client trains on."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protosphere.core.errors import DataError
from protosphere.data.decoded_cache import Decoded
from protosphere.data.partition import assignment as assignment_module
from protosphere.data.partition.assignment import DataSpec, assignment, open_data
from protosphere.data.shared_test_set import SharedTestSpec, refuse_unfit, shared_labels, shared_rows
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
    return Decoded(f"table-{copies}-{seed}", "made", inputs, labels, TRAIN, tuple("abcd"), 255.0)


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
    with pytest.raises(DataError, match=r"own data-path cannot set samples aside .* set shared-test-path"):
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


@pytest.mark.parametrize(("whole", "first", "n"), [(False, 100, 12), (True, 0, 40)])
def test_a_path_gives_its_test_table_where_it_has_one_and_else_all_of_it(parquet_folder, tmp_path, whole, first, n):
    if whole:
        (parquet_folder / "test.parquet").unlink()
    where = SharedTestSpec(DataSpec("digits", clients=2), tmp_path / "cache", str(parquet_folder))
    assert shared_rows(where, CPU)[0].inputs[:, 0, 0, 0].tolist() == list(range(first, first + n))
    assert shared_labels(where).labels.tolist() == [i % 4 for i in range(n)]
    assert shared_labels(where).num_classes == 4


@pytest.mark.parametrize("ask", [shared_labels, lambda w: shared_rows(w, CPU), lambda w: refuse_unfit(w, 0)])
def test_a_path_that_is_none_or_leads_nowhere_is_named_by_its_setting(ask, tmp_path):
    """A data set has a path, too: the sentence must not send a reader to that one."""
    where = SharedTestSpec(DataSpec("digits", clients=2), tmp_path / "cache", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"^shared-test-path: .*nowhere' does not exist"):
        ask(where)
    for path in ("nowhere", "digits", "a/b", " /data"):
        with pytest.raises(DataError, match=f"^shared-test-path is '{path}'"):
            ask(replace(where, path=path))


# --- overlap ----------------------------------------------------------------------------------------------------


def paint(folder, names, values, suffix="png"):
    """Grey images, one a value; the class of a value is value mod the number of names."""
    for value in values:
        place = folder / names[value % len(names)]
        place.mkdir(parents=True, exist_ok=True)
        shape = np.full((6, 6), value, dtype=np.uint8)
        shape[0, 0] = 255 - value
        Image.fromarray(shape).save(place / f"{value:03d}.{suffix}")
    return folder


@pytest.fixture
def sites(tmp_path):
    """sites(shared values, own values, names, suffix) -> (SharedTestSpec with a path, the client's data-path)."""

    def make(shared, own, names=("ant", "bee"), suffix="png", shared_names=("ant", "bee")):
        where = paint(tmp_path / "shared", shared_names, shared)
        site = paint(tmp_path / "site" / "train", names, own, suffix).parent
        spec = DataSpec("digits", clients=2, validation_share=0.0)
        return SharedTestSpec(spec, tmp_path / "cache", str(where)), str(site)

    return make


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff"])
def test_copies_of_training_rows_are_counted_whatever_file_they_lie_in(sites, suffix):
    # the folders hold 0 2 4 6 | 1 3 5 and 20 4 | 5 21
    where, site = sites(range(7), (4, 5, 20, 21), suffix=suffix)
    paint(Path(site) / "test", ("ant", "bee"), (30, 31))
    said = refusal(replace(where, spec=replace(where.spec, split="official")), site)
    assert said.startswith(
        f"the shared test set {where.path!r} overlaps this client's training samples: 2 of its 7 rows"
    )
    assert "row 2 first" in said


def refusal(where, site=None, partition=0):
    """Why a client, of the run's data or of a site's own, is refused."""
    with pytest.raises(DataError) as caught:
        refuse_unfit(where, partition, site)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_that_are_merely_alike_and_rows_of_the_sites_own_test_table_are_no_overlap(sites, write, png, tmp_path):
    where, site = sites(range(7), (20, 21, 22, 23))
    refuse_unfit(where, 0, site)
    paint(Path(site) / "test", ("ant", "bee"), (2, 3))
    official = replace(where, spec=replace(where.spec, split="official"))
    refuse_unfit(official, 0, site)
    # a site without training rows trains on nothing
    write(tmp_path / "empty" / "train.parquet", [], [])
    write(
        tmp_path / "empty" / "test.parquet", [png(np.full((6, 6), value, dtype=np.uint8)) for value in (1, 2)], [0, 1]
    )
    (tmp_path / "empty" / "classes.txt").write_text("ant\nbee\n")
    refuse_unfit(official, 0, str(tmp_path / "empty"))


@pytest.mark.parametrize("names", [("ant", "cow"), ("ant", "bee", "cow")])
def test_other_classes_are_refused(sites, names):
    where, site = sites(range(7), range(20, 26), names=names)
    assert f"has the classes ant, bee, but this client's data {', '.join(names)}: " in refusal(where, site)


FORMS = {"1×6×6": (6, 6), "1×5×6": (5, 6), "1×6×5": (6, 5), "1×12×12": (12, 12), "3×6×6": (6, 6, 3), "texts": None}


def fill(folder, form):
    """Two rows of two classes in a folder: images of this shape, or texts; and what a message calls them."""
    folder.mkdir()
    if not FORMS[form]:
        (folder / "train.csv").write_text("text,label\na note,ant\nanother,bee\n")
        return str(folder), "texts"
    for value, name in ((50, "ant"), (51, "bee")):
        (folder / name).mkdir()
        Image.fromarray(np.full(FORMS[form], value, dtype=np.uint8)).save(folder / name / "one.png")
    return str(folder), f"inputs {form} of full scale 255"


@pytest.mark.parametrize(("theirs", "mine"), [(a, b) for a in FORMS for b in FORMS if a != b and "1×6×6" in (a, b)])
def test_rows_of_another_shape_or_kind_are_refused(theirs, mine, tmp_path):
    (path, held), (site, own) = fill(tmp_path / "shared", theirs), fill(tmp_path / "site", mine)
    where = SharedTestSpec(DataSpec("digits", clients=2, min_samples=1), tmp_path / "cache", path)
    said = refusal(where, site)
    assert said.startswith(
        f"the shared test set {path!r} holds {held}, but this client's data {own}: point shared-test-"
    )


def test_another_scale_is_refused(decoded_cache, tmp_path, monkeypatch):
    """The digits go to 16: images of their shape would be sixteen times as bright to a model."""
    monkeypatch.setitem(FORMS, "1×8×8", (8, 8))
    where = SharedTestSpec(DataSpec("digits", clients=2), decoded_cache, fill(tmp_path / "shared", "1×8×8")[0])
    assert "1×8×8 of full scale 255, but this client's data inputs 1×8×8 of full scale 16:" in refusal(where)


def test_rows_set_aside_overlap_with_nobody_and_a_client_of_the_same_data_does(decoded_cache, tmp_path):
    spec = DataSpec("digits", clients=4, shared_test_share=0.1, max_samples=400)
    for partition in range(4):
        refuse_unfit(SharedTestSpec(spec, decoded_cache), partition)
    folder = paint(tmp_path / "all" / "train", ("ant", "bee"), range(0, 40)).parent
    spec = DataSpec(str(folder), clients=2, partition="iid", min_samples=1)
    train = assignment(spec, open_data(spec, tmp_path), tmp_path).train
    for partition in range(2):
        said = refusal(SharedTestSpec(spec, tmp_path, str(folder)), partition=partition)
        assert f"{train[partition].size} of its 40 rows" in said
        assert f"row {train[partition][0]} first" in said
