"""Class masks against counts, naive loops, exhaustive search and known designs; the cutting against Python lists."""

import hashlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from protosphere.prototypes.masks import class_masks, compress, expand


def distances(masks):
    """Hamming distances of all pairs, as integers."""
    return np.rint(pdist(masks.numpy(), "hamming") * masks.shape[1]).astype(int)


def digest(masks):
    return hashlib.sha256(masks.numpy().tobytes()).hexdigest()


def check(K, d, s, seed=0):
    """All that must hold for any (K, d, s)."""
    masks = class_masks(K, d, s, seed)
    assert (masks.dtype, tuple(masks.shape), masks.is_contiguous()) == (torch.bool, (K, d), True)
    assert masks.sum(dim=1).tolist() == [s] * K
    fewest, more = divmod(K * s, d)
    counts = [fewest + 1] * more + [fewest] * (d - more)
    assert sorted(masks.sum(dim=0).tolist(), reverse=True) == counts
    # each dimension separates its r users from the K - r others: no masks can have a higher sum
    assert distances(masks).sum() == sum(r * (K - r) for r in counts)
    uses = Counter(tuple(row) for row in masks.tolist())
    each, more = divmod(K, math.comb(d, s))
    if each == 0:
        assert set(uses.values()) == {1}
    else:
        assert sorted(uses.values()) == [each] * (math.comb(d, s) - more) + [each + 1] * more
    if K * s <= d and K > 1:
        assert set(distances(masks)) == {2 * s}
    return masks


@pytest.mark.parametrize(("d", "s"), [(d, s) for d in range(1, 7) for s in range(1, d + 1)])
def test_tiny_families_around_the_number_of_masks(d, s):
    every = math.comb(d, s)
    for K in {1, 2, every // 2 + 1, every - 2, every - 1, every, every + 1, 2 * every - 1, 2 * every, 3 * every + 2}:
        if K >= 1:
            for seed in range(2):
                check(K, d, s, seed)


@pytest.mark.parametrize(
    ("K", "d", "s"),
    [
        *[(34, 7, 3), (35, 7, 3), (36, 7, 4), (27, 8, 2), (69, 8, 4), (70, 8, 4), (17, 12, 5), (60, 50, 35), (3, 9, 3)],
        *[(10, 500, 50), (11, 500, 50), (300, 40, 2), (190, 20, 18), (1, 1, 1), (5, 1, 1), (1, 6, 4), (7, 6, 6)],
    ],
)
def test_rows_columns_mean_distance_and_uses(K, d, s):
    check(K, d, s)


def test_the_least_distance_at_the_papers_dimensions():
    assert distances(check(100, 500, 50)).min() >= 86


def best_least_distance(K, d, s):
    """By looking at every balanced family."""
    every = np.array([[c in chosen for c in range(d)] for chosen in itertools.combinations(range(d), s)])
    best = 0
    for family in itertools.combinations(every, K):
        masks = np.array(family)
        if np.ptp(masks.sum(axis=0)) <= 1:
            best = max(best, distances(torch.from_numpy(masks)).min())
    return best


@pytest.mark.parametrize(("K", "d", "s"), [(3, 5, 2), (4, 5, 2), (3, 5, 3), (4, 6, 2), (4, 6, 3), (5, 5, 2), (7, 5, 3)])
def test_small_families_are_the_best_there_are(K, d, s):
    best = best_least_distance(K, d, s)
    for seed in range(3):
        assert distances(class_masks(K, d, s, seed)).min() == best


@pytest.mark.parametrize(("K", "d", "s"), [(7, 7, 3), (7, 7, 4), (12, 9, 3), (13, 13, 4)])
def test_finite_planes_are_found(K, d, s):
    """Lines of a projective or affine plane (of a complement) share at most one point: no masks are farther apart."""
    assert distances(class_masks(K, d, s, seed=0)).min() == 2 * (min(s, d - s) - 1)


def test_the_same_on_every_platform_and_in_every_version():
    # A pin, beside the tests of what the masks are: a server and clients of another version derive them apart, so
    # a change of this digest changes the protocol.
    expected = "3cf63308fa33b8ff20bc349824616800aebaa0e4f85d770ad31327ba0127858b"
    assert digest(class_masks(40, 60, 9, seed=2**40 + 1)) == expected


@pytest.mark.parametrize(("K", "d", "s"), [(4, 30, 6), (20, 30, 6), (20, 30, 24), (10, 5, 2), (23, 5, 2)])
def test_another_seed_gives_other_masks(K, d, s):
    # both 32-bit words of the seed count
    seeds = [0, 1, 2**32, 2**32 + 1, 2**63 - 1]
    assert len({digest(class_masks(K, d, s, seed)) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_compress_and_expand_equal_loops_and_undo_each_other(dtype):
    masks = class_masks(6, 10, 3, seed=1)
    vectors = torch.randn(6, 10, generator=torch.Generator().manual_seed(0)).to(dtype)
    held, values = (masks.clone(), vectors.clone()), compress(vectors, masks)
    expected = [
        [value for value, one in zip(row, mask, strict=True) if one]
        for row, mask in zip(vectors.tolist(), masks.tolist(), strict=True)
    ]
    assert (values.tolist(), values.dtype) == (expected, dtype)
    values_before = values.clone()
    sparse = expand(values, masks)
    assert sparse.dtype == dtype
    assert torch.equal(sparse, vectors * masks)
    assert torch.equal(compress(sparse, masks), values)
    for now, before in zip((masks, vectors, values), (*held, values_before), strict=True):
        assert torch.equal(now, before)


def test_compress_ignores_what_the_mask_hides_even_nan():
    vectors = torch.tensor([[1.0, float("nan"), 3.0], [float("nan"), 5.0, 6.0]])
    masks = torch.tensor([[True, False, True], [False, True, True]])
    assert compress(vectors, masks).tolist() == [[1, 3], [5, 6]]
    assert expand(compress(vectors, masks), masks).tolist() == [[1, 0, 3], [0, 5, 6]]


def test_rows_of_a_class_subset_take_their_masks_along_and_gradients_pass():
    masks, held = class_masks(8, 12, 4, seed=0), torch.tensor([6, 1, 3])
    vectors = torch.randn(8, 12, dtype=torch.float64, requires_grad=True)
    assert torch.equal(compress(vectors[held], masks[held]), compress(vectors, masks)[held])
    assert torch.autograd.gradcheck(lambda v: expand(compress(v, masks), masks), vectors)
    none = masks[:0]
    assert compress(torch.zeros(0, 12), none).shape == (0, 0)
    assert expand(torch.zeros(0, 2, dtype=torch.float16), none).shape == (0, 12)
    assert expand(torch.zeros(0, 0), none).dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_masks_of_the_cpu_serve_vectors_on_cuda():
    masks, vectors = class_masks(6, 10, 3, seed=1), torch.randn(6, 10)
    values = compress(vectors.cuda(), masks)
    assert torch.equal(values.cpu(), compress(vectors, masks))
    assert torch.equal(expand(values, masks.cuda()).cpu(), vectors * masks)


MASKS = class_masks(2, 6, 2, seed=0)
UNEQUAL = torch.tensor([[True, True, False], [True, False, False]])
FIT = r"shape \({}, ?.*\) do not fit masks of shape \(2, 6\)"
WRONG = [
    *((compress, shape, MASKS, FIT.format(shape[0])) for shape in ((3, 6), (2, 5), (10,), (2, 6, 1))),
    *((expand, shape, MASKS, FIT.format(shape[0])) for shape in ((3, 2), (2,), (2, 2, 1))),
    *((expand, (2, width), MASKS, f"Rows of {width} values .* 2 ones; .*sparsity-dim") for width in (1, 3)),
    *((call, shape, UNEQUAL, "from 1 to 2 ones") for call, shape in ((compress, (2, 3)), (expand, (2, 2)))),
]


@pytest.mark.parametrize(("call", "shape", "masks", "named"), WRONG)
def test_what_does_not_fit_the_masks_is_named(call, shape, masks, named):
    with pytest.raises(ValueError, match=named):
        call(torch.zeros(shape), masks)
