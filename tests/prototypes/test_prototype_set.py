"""PrototypeSet: what it accepts, its table, its update; class means against a loop over samples."""

import pytest
import torch

from protosphere.prototypes.prototype_set import PrototypeSet, class_means


def make(labels, dim=3, counts=None, fill=None):
    rows = torch.arange(len(labels) * dim, dtype=torch.float32).reshape(len(labels), dim)
    rows = rows if fill is None else torch.full_like(rows, fill)
    counts = None if counts is None else torch.tensor(counts, dtype=torch.int64)
    return PrototypeSet(torch.tensor(labels, dtype=torch.int64), rows, counts)


@pytest.mark.parametrize(
    ("labels", "vectors", "counts", "named"),
    [
        (torch.tensor([0, 1], dtype=torch.int32), torch.zeros(2, 3), None, "int32"),
        (torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 3), None, r"\(1, 1\)"),
        (torch.tensor([0]), torch.zeros(3), None, r"\(3,\)"),
        (torch.tensor([0]), torch.zeros(1, 3, dtype=torch.int64), None, "int64"),
        (torch.tensor([0, 1]), torch.zeros(3, 3), None, "2 labels but 3 vectors"),
        (torch.tensor([0, 0]), torch.zeros(2, 3), None, r"\[0, 0\]"),
        (torch.tensor([2, 1]), torch.zeros(2, 3), None, r"\[2, 1\]"),
        (torch.tensor([-1, 1]), torch.zeros(2, 3), None, "label -1"),
        (torch.tensor([0, 1]), torch.zeros(2, 3), torch.tensor([1]), r"\(1,\)"),
        (torch.tensor([0]), torch.zeros(1, 3), torch.tensor([1.0]), "float32"),
        (torch.tensor([0, 1]), torch.zeros(2, 3), torch.tensor([4, 0]), "count of 0"),
    ],
)
def test_parts_that_do_not_fit_are_named(labels, vectors, counts, named):
    with pytest.raises(ValueError, match=named):
        PrototypeSet(labels, vectors, counts)


def test_table_puts_rows_at_their_labels():
    vectors, present = make([1, 4]).table(6)
    assert present.tolist() == [False, True, False, False, True, False]
    assert vectors[[1, 4]].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not vectors[~present].any()
    with pytest.raises(ValueError, match=r"label 4.*4 classes"):
        make([1, 4]).table(4)
    empty = PrototypeSet.empty(4, dtype=torch.float64)
    assert (len(empty), empty.dim, empty.vectors.dtype, empty.counts) == (0, 4, torch.float64, None)
    assert empty.table(3)[0].shape == (3, 4)
    assert not empty.table(3)[1].any()


def test_update_is_the_union_and_the_newer_rows_win():
    older, newer = make([0, 2, 5], counts=[1, 2, 3], fill=1.0), make([1, 2], counts=[7, 8], fill=9.0)
    both = older.updated_by(newer)
    assert both.labels.tolist() == [0, 1, 2, 5]
    assert both.vectors[:, 0].tolist() == [1, 9, 9, 1]
    assert both.counts.tolist() == [1, 7, 8, 3]
    assert older.vectors[1, 0] == 1
    # counts stay only if both have them
    assert older.updated_by(newer.without_counts()).counts is None
    assert older.without_counts().updated_by(newer).counts is None
    for same in (older.updated_by(PrototypeSet.empty(3)), PrototypeSet.empty(3).updated_by(older)):
        assert same.labels.tolist() == [0, 2, 5]
        assert torch.equal(same.vectors, older.vectors)
    with pytest.raises(ValueError, match=r"3 dimensions.*of 5"):
        older.updated_by(make([0], dim=5))


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(torch.float16, 6e-8, 6e4), (torch.float32, 1e-44, 3e38), (torch.float64, 1e-8, 1e6)]
)
def test_on_sphere_keeps_directions_to_the_ends_of_a_dtype_and_what_has_none(dtype, low, high):
    rows = torch.tensor([[3.0, 0.0, -4.0], [0.0, 0.0, 0.0], [low, 0.0, 0.0], [0.0, high, 0.0]], dtype=dtype)
    some = PrototypeSet(torch.tensor([0, 2, 3, 7]), rows, torch.tensor([4, 5, 6, 7]))
    on_it = some.on_sphere()
    expected = torch.tensor([[0.6, 0, -0.8], [0, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=dtype)
    # once is enough
    for found in (on_it.vectors, on_it.on_sphere().vectors):
        torch.testing.assert_close(found, expected, rtol=1e-3 if dtype == torch.float16 else 1e-6, atol=0)
    assert on_it.labels is some.labels
    assert on_it.counts is some.counts
    assert float(some.vectors[0, 0]) == 3
    assert len(PrototypeSet.empty(3).on_sphere()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_class_means_equal_a_loop_over_samples(dtype):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(57, 5, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, 4, (57,), generator=generator) * 2
    means = class_means(features, labels, 9)
    assert means.labels.tolist() == sorted(set(labels.tolist()))
    assert means.vectors.dtype == dtype
    for label, mean, count in zip(means.labels, means.vectors, means.counts, strict=True):
        rows = [row.double() for row, own in zip(features, labels, strict=True) if own == label]
        assert count == len(rows)
        torch.testing.assert_close(mean, (sum(rows) / len(rows)).to(dtype))


def test_class_means_sum_in_float64_and_may_be_of_nothing():
    # in float32 the ones would vanish beside 2^24
    features = torch.cat([torch.full((1, 1), 2.0**24), torch.ones(2**12, 1)])
    means = class_means(features, torch.zeros(len(features), dtype=torch.int64), 1)
    assert float(means.vectors) == pytest.approx((2.0**24 + 2**12) / (2**12 + 1), rel=1e-7)
    none = class_means(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 5)
    assert (len(none), none.dim, len(none.counts)) == (0, 3, 0)


@pytest.mark.parametrize(
    ("labels", "words"), [([1, -1], r"-1.*3 classes"), ([1, 3], r"3.*3 classes"), ([0] * 4, r"\(2, 3\).*\(4,\)")]
)
def test_class_means_name_labels_that_do_not_fit(labels, words):
    with pytest.raises(ValueError, match=words):
        class_means(torch.zeros(2, 3), torch.tensor(labels), 3)
