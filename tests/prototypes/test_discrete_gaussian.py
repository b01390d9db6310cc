"""The sampler: against the exact mass, wide ones by their moments, and deaf to every seed."""

import multiprocessing
import random

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from protosphere.prototypes import discrete_gaussian
from protosphere.prototypes.discrete_gaussian import draw


@pytest.fixture
def seeded(monkeypatch):
    """The same algorithm on bits that are the same every time, so that no test fails by chance."""
    monkeypatch.setattr(discrete_gaussian, "randbelow", random.Random(7).randrange)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("variance", [1, 100])
def test_draws_have_the_exact_mass(variance):
    drawn = np.array([draw(variance) for _ in range(30_000)])
    reach = int(4 * variance**0.5) + 1
    values = np.arange(-40 * reach, 40 * reach + 1)
    mass = np.exp(-(values.astype(float) ** 2) / (2 * variance))
    inside = np.abs(values) <= reach
    expected = np.append(mass[inside], mass[~inside].sum()) / mass.sum() * len(drawn)
    seen = [*(int((drawn == value).sum()) for value in values[inside]), int((np.abs(drawn) > reach).sum())]
    assert chisquare(seen, expected).pvalue > 1e-3


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("sigma", [6_800, 10**12])
def test_wide_draws_by_their_moments(sigma):
    drawn = np.array([draw(sigma**2) for _ in range(20_000)]) / sigma
    assert abs(drawn.mean()) < 0.02
    assert drawn.var() == pytest.approx(1, rel=0.02)
    assert (drawn**4).mean() == pytest.approx(3, rel=0.06)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02


def some(_=None):
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return [draw(10**12) for _ in range(20)]


def test_no_seed_reaches_it_and_no_worker_repeats_another():
    # a fork has all that this process has drawn from; one that is spawned begins with less
    with multiprocessing.get_context("fork").Pool(2) as pool:
        drawn = [*map(some, range(2)), *pool.map(some, range(4), chunksize=1)]
    assert len({value for each in drawn for value in each}) == 6 * 20


def test_opendps_draws_are_of_the_same_distribution():
    dp = pytest.importorskip("opendp.prelude")
    from scipy.stats import ks_2samp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    theirs = dp.m.make_gaussian(*space, scale=6_800.0)([0] * 20_000)
    assert ks_2samp(theirs, [draw(6_800**2) for _ in range(20_000)]).pvalue > 1e-6
