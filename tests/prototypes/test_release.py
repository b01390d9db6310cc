"""A release: its sensitivity on hostile tables, in integers; its finishing by hand; an audit that sees wrong noise."""

import math
import random

import pytest
import torch

from protosphere.prototypes import discrete_gaussian
from protosphere.prototypes.accounting import epsilon_of, rho_of
from protosphere.prototypes.release import HALF, B, Shape, class_sums, contributions, finished, noisy

HOSTILE = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, -1e30, 3.4e38, 1e-45, 1.0]


def naive(row, moments):
    """One row's numbers, by Python's own."""
    if not all(map(math.isfinite, row)) or not any(row):
        whole = [0] * len(row)
    else:
        scaled = [value / max(map(abs, row)) for value in row]
        whole = [int(B * value / math.hypot(*scaled)) for value in scaled]
    return [*whole, *([value * value // B for value in whole] if moments else []), HALF]


@pytest.mark.parametrize("moments", [False, True])
def test_equals_a_naive_loop(moments):
    rows = torch.randn(200, 7, generator=torch.Generator().manual_seed(1)) * 10 ** torch.arange(-3.0, 4.0)
    found = contributions(rows, moments)
    expected = torch.tensor([naive(row, moments) for row in rows.tolist()])
    # a value is lost below one step of 2^-20 of the largest
    assert int((found[:, :7] - expected[:, :7]).abs().max()) <= 1
    assert (found[:, -1] == HALF).all()
    if moments:
        assert torch.equal(found[:, 7:14], found[:, :7] ** 2 // B)


def test_a_row_is_its_own_in_any_batch():
    rows = torch.randn(257, 33, generator=torch.Generator().manual_seed(2))
    together = contributions(rows)
    assert torch.equal(together, torch.cat([contributions(row[None]) for row in rows]))
    assert torch.equal(together, contributions(rows.t().contiguous().t()))


def hostile(rng, rows, d):
    kind = rng.randrange(4)
    if kind == 0:
        return [[rng.choice(HOSTILE) for _ in range(d)] for _ in range(rows)]
    if kind == 1:
        return [[rng.gauss(0, 1) * 10 ** rng.uniform(-30, 30) for _ in range(d)] for _ in range(rows)]
    if kind == 2:
        return [[rng.gauss(0, 1) for _ in range(d)]] * rows
    return [[1.0] + [0.0] * (d - 1)] * rows


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_row_or_group_more_moves_the_sum_by_no_more_than_the_sensitivity(moments, grouped):
    rng = random.Random(3)
    for _ in range(250):
        d, classes = rng.choice([1, 2, 5, 16]), rng.choice([1, 3])
        shape = Shape(classes, d, moments)
        more, rest = (rng.randint(1, 6) if grouped else 1), rng.randint(0, 3)
        features = torch.tensor(hostile(rng, more + rest, d), dtype=rng.choice([torch.float32, torch.float64]))
        labels = torch.tensor([rng.randrange(-1, classes + 1) for _ in range(more + rest)])
        groups = torch.tensor([9] * more + list(range(rest))) if grouped else None
        whole = class_sums(features, labels, shape, groups)
        without = class_sums(features[more:], labels[more:], shape, None if groups is None else groups[more:])
        assert int(((whole - without) ** 2).sum()) <= shape.squared_sensitivity


def test_the_sum_has_no_order_and_leaves_unknown_labels_out():
    generator = torch.Generator().manual_seed(4)
    features, labels = torch.randn(60, 5, generator=generator), torch.arange(60) % 4 - 1
    order = torch.randperm(60, generator=generator)
    for groups in (None, torch.arange(60) % 7):
        found = class_sums(features, labels, Shape(2, 5), groups)
        shuffled = class_sums(features[order], labels[order], Shape(2, 5), None if groups is None else groups[order])
        assert torch.equal(found, shuffled)
    assert class_sums(features, labels, Shape(2, 5))[:, -1].tolist() == [15 * HALF] * 2


def test_a_group_counts_as_one_row_and_its_mean_is_cut_towards_zero():
    features = torch.tensor([[1.0, 0.0], [0.0, -1.0], [0.0, -1.0]])
    found = class_sums(features, torch.tensor([0, 0, 1]), Shape(2, 2), torch.zeros(3, dtype=torch.int64))
    assert found.tolist() == [[B // 3, -(B // 3), 2 * HALF // 3], [0, -(B // 3), HALF // 3]]


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("epsilon", [0.1, 3.0, 50.0])
def test_noise_is_as_wide_as_its_price(moments, epsilon):
    shape, rho = Shape(3, 4, moments), rho_of(epsilon, 1e-5)
    variance = shape.variance(rho)
    assert shape.squared_sensitivity / (2 * variance) <= rho < shape.squared_sensitivity / (2 * (variance - 1))
    assert shape.rho(variance) >= shape.squared_sensitivity / (2 * variance)


def test_finishing_by_hand():
    # one standard deviation of a count is 2 sigma / B = 1 row: what has 2.81 or fewer of 4 classes is absent
    variance, shape = (B // 2) ** 2, Shape(4, 2, moments=True)
    rows = [[0, 0, 0, 0, int(2.8 * HALF)], [30 * B, 0, 12 * B, 0, 10 * HALF], [3 * B, 4 * B, 5 * B, 8 * B, 10 * HALF]]
    found, variances = finished(torch.tensor([*rows, [0, 0, 0, 0, -5 * HALF]]), variance, shape, scale=10.0)
    assert found.labels.tolist() == [1, 2]
    assert found.counts.tolist() == [10, 10]
    # a mean of 3 is cut to norm 1; variances are floored and at most 1
    assert torch.allclose(found.vectors, torch.tensor([[10.0, 0.0], [3.0, 4.0]]))
    assert torch.allclose(variances, torch.tensor([[0.2, 1 / 2000], [0.41, 0.64]]), atol=1e-3)
    rows[0][-1] = int(2.82 * HALF)
    assert finished(torch.tensor(rows), variance, Shape(4, 2, moments=True))[0].labels.tolist() == [0, 1, 2]
    nothing, _ = finished(torch.zeros(4, 5, dtype=torch.int64), variance, shape)
    assert (len(nothing), nothing.dim) == (0, 2)


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_noise_alone_passes_for_a_class_in_one_of_a_hundred_releases(num_classes):
    shape, releases = Shape(num_classes, 1), 20_000
    variance = shape.variance(rho_of(3.0, 1e-5))
    noise = torch.randn(releases, num_classes, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    counts = (math.sqrt(variance) * noise).round() / HALF
    share = float((counts > shape.least_count(variance)).any(dim=1).double().mean())
    assert 0.007 < share < 0.013


# --- the audit: what does a canary's score tell? -------------------------------------------------------------

AT_LEAST = {"right": 0.8, "narrow": 1.0, "uncounted": 1.0}


@pytest.mark.parametrize("fault", list(AT_LEAST))
def test_an_audit_finds_what_was_promised_and_every_fault(monkeypatch, fault):
    """4,000 releases with and without a canary row: its score is Gaussian; 99 % below its shift stands a rho."""
    monkeypatch.setattr(discrete_gaussian, "randbelow", random.Random(11).randrange)
    shape, epsilon, runs = Shape(2, 4), 3.0, 4_000
    variance = shape.variance(rho_of(epsilon, 1e-5))
    if fault == "narrow":
        variance = int(variance / 1.2**2)
    if fault == "uncounted":
        variance = variance * 4 // 5  # as if a row's share of the counts were none of its norm
    canary = class_sums(torch.tensor([[1.0, 2.0, -1.0, 0.5]]), torch.tensor([1]), shape)
    rest = class_sums(torch.randn(20, 4, generator=torch.Generator().manual_seed(6)), torch.arange(20) % 2, shape)
    direction = canary.double().flatten()

    def scores(table):
        drawn = [noisy(table, variance, discrete_gaussian.draw).double().flatten() for _ in range(runs)]
        return torch.stack(drawn) @ direction

    without, having = scores(rest), scores(rest + canary)
    spread = torch.cat([without - without.mean(), having - having.mean()]).std()
    shift = float((having.mean() - without.mean()) / spread) - 2.326 * math.sqrt(2 / runs)
    found = epsilon_of(shift**2 / 2, 1e-5)
    assert found >= AT_LEAST[fault] * epsilon
    assert (found <= epsilon) == (fault == "right")
