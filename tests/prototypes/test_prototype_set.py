"""PrototypeSet: what it accepts, its table, its update; class means against a loop over samples."""

import pytest
import torch

from prototypes.prototype_set import PrototypeSet, class_means


def make(labels, dim=3, counts=None, fill=None, dtype=torch.float32):
    rows = torch.arange(len(labels) * dim, dtype=dtype).reshape(len(labels), dim)
    if fill is not None:
        rows = torch.full_like(rows, fill)
    return PrototypeSet(
        torch.tensor(labels, dtype=torch.int64),
        rows,
        None if counts is None else torch.tensor(counts, dtype=torch.int64),
    )


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


def test_non_finite_vectors_are_not_its_business():
    assert len(PrototypeSet(torch.tensor([3]), torch.tensor([[float("nan")]]))) == 1


def test_empty_set():
    empty = PrototypeSet.empty(4, dtype=torch.float64)
    assert (len(empty), empty.dim, empty.vectors.dtype, empty.counts) == (0, 4, torch.float64, None)
    vectors, present = empty.table(3)
    assert vectors.shape == (3, 4)
    assert not present.any()


def test_table_puts_rows_at_their_labels():
    vectors, present = make([1, 4]).table(6)
    assert present.tolist() == [False, True, False, False, True, False]
    assert vectors[1].tolist() == [0, 1, 2]
    assert vectors[4].tolist() == [3, 4, 5]
    assert not vectors[~present].any()


def test_table_names_a_label_beyond_the_classes():
    with pytest.raises(ValueError, match=r"label 4.*4 classes"):
        make([1, 4]).table(4)


def test_update_is_the_union_and_the_newer_rows_win():
    older = make([0, 2, 5], counts=[1, 2, 3], fill=1.0)
    newer = make([1, 2], counts=[7, 8], fill=9.0)
    both = older.updated_by(newer)
    assert both.labels.tolist() == [0, 1, 2, 5]
    assert both.vectors[:, 0].tolist() == [1, 9, 9, 1]
    assert both.counts.tolist() == [1, 7, 8, 3]
    assert older.vectors[1, 0] == 1


@pytest.mark.parametrize("bare", ["older", "newer"])
def test_update_keeps_counts_only_if_both_have_them(bare):
    older, newer = make([0], counts=[1]), make([1], counts=[2])
    if bare == "older":
        older = older.without_counts()
    else:
        newer = newer.without_counts()
    assert older.updated_by(newer).counts is None


def test_update_of_and_by_nothing():
    some = make([0, 3])
    for both in (some.updated_by(PrototypeSet.empty(3)), PrototypeSet.empty(3).updated_by(some)):
        assert both.labels.tolist() == [0, 3]
        assert torch.equal(both.vectors, some.vectors)


def test_update_refuses_another_dimension():
    with pytest.raises(ValueError, match=r"3 dimensions.*of 5"):
        make([0]).updated_by(make([0], dim=5))


def test_with_vectors_without_counts_and_to():
    some = make([0, 3], counts=[4, 5])
    assert some.with_vectors(torch.zeros(2, 7)).dim == 7
    assert some.with_vectors(torch.zeros(2, 7)).counts is some.counts
    with pytest.raises(ValueError, match="2 labels but 3"):
        some.with_vectors(torch.zeros(3, 3))
    assert some.without_counts().counts is None
    wide = some.to(dtype=torch.float64)
    assert (wide.vectors.dtype, wide.labels.dtype, wide.counts.dtype) == (
        torch.float64,
        torch.int64,
        torch.int64,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_sphere_keeps_directions_and_what_has_none(dtype):
    rows = torch.tensor([[3.0, 0.0, -4.0], [0.0, 0.0, 0.0], [1e-8, 0.0, 0.0], [1e6, 1e6, 0.0]], dtype=dtype)
    some = PrototypeSet(torch.tensor([0, 2, 3, 7]), rows, torch.tensor([4, 5, 6, 7]))
    on_it = some.on_sphere()
    root = 0.5**0.5
    expected = torch.tensor([[0.6, 0, -0.8], [0, 0, 0], [1, 0, 0], [root, root, 0]], dtype=dtype)
    torch.testing.assert_close(on_it.vectors, expected, rtol=1e-6, atol=0)
    assert on_it.labels is some.labels
    assert on_it.counts is some.counts
    assert float(some.vectors[0, 0]) == 3
    assert len(PrototypeSet.empty(3).on_sphere()) == 0
    # once is enough
    torch.testing.assert_close(on_it.on_sphere().vectors, on_it.vectors, rtol=1e-6, atol=0)


def test_on_sphere_at_the_ends_of_a_dtype():
    for dtype, values in ((torch.float16, [6e4, 6e-8, 0.0]), (torch.float32, [3e38, 1e-44, 0.0])):
        rows = torch.tensor(values, dtype=dtype).unsqueeze(1) * torch.tensor([[1.0, 0.0]], dtype=dtype)
        units = PrototypeSet(torch.arange(3), rows).on_sphere().vectors
        assert units.tolist() == [[1, 0], [1, 0], [0, 0]]
        assert units.dtype == dtype


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


def test_class_means_sum_in_float64():
    # in float32 the ones would vanish beside 2^24
    features = torch.cat([torch.full((1, 1), 2.0**24), torch.ones(2**12, 1)])
    means = class_means(features, torch.zeros(len(features), dtype=torch.int64), 1)
    expected = (2.0**24 + 2**12) / (2**12 + 1)
    assert float(means.vectors) == pytest.approx(expected, rel=1e-7)


def test_class_means_of_nothing():
    means = class_means(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 5)
    assert (len(means), means.dim, len(means.counts)) == (0, 3, 0)


@pytest.mark.parametrize("label", [-1, 3])
def test_class_means_name_a_label_out_of_range(label):
    with pytest.raises(ValueError, match=rf"{label}.*3 classes"):
        class_means(torch.zeros(2, 3), torch.tensor([1, label]), 3)


def test_class_means_refuse_mismatched_rows():
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(4,\)"):
        class_means(torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64), 3)
