"""epsilon of rho: against a naive search, the analytic Gaussian, printed figures, and an accountant by others."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from protosphere.prototypes.accounting import epsilon_of, rho_of

CASES = [(rho, delta) for rho in (1e-6, 1e-3, 0.0306, 0.2242, 1.2297, 30.0) for delta in (1e-3, 1e-5, 1e-9)]


def naive(rho, delta):
    """The same minimum, by scipy over ln(alpha - 1), from many starts."""

    def bound(t):
        alpha = 1 + math.exp(t)
        return alpha * rho + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)

    return min(minimize_scalar(bound, bounds=(a, a + 2), method="bounded").fun for a in np.arange(-9, 20, 1.0))


def analytic(rho, delta):
    """Exact epsilon of the continuous Gaussian (Balle, Wang 2018, Theorem 8)."""
    ratio = math.sqrt(2 * rho)  # sensitivity over sigma

    def excess(epsilon):
        left, right = norm.logcdf(ratio / 2 - epsilon / ratio), norm.logcdf(-ratio / 2 - epsilon / ratio)
        return math.exp(left) - math.exp(epsilon + right) - delta

    return brentq(excess, 0, 500) if excess(0) > 0 else 0.0


@pytest.mark.parametrize(("rho", "delta"), CASES)
def test_is_the_minimum_and_errs_upwards(rho, delta):
    found, exact = epsilon_of(rho, delta), max(0.0, naive(rho, delta))
    assert exact - 1e-9 <= found <= exact * (1 + 1e-4) + 1e-9
    assert found >= analytic(rho, delta) - 1e-9
    if found >= 1 and delta <= 1e-5:
        assert found <= 1.1 * analytic(rho, delta)


@pytest.mark.parametrize(("epsilon", "rho"), [(1, 0.0306), (3, 0.2242), (8, 1.2297)])
def test_printed_figures(epsilon, rho):
    found = rho_of(epsilon, 1e-5)
    assert round(found, 4) == rho
    assert epsilon_of(found, 1e-5) <= epsilon < epsilon_of(found * (1 + 1e-6), 1e-5)


def test_more_costs_more_and_nothing_costs_nothing():
    assert epsilon_of(0, 1e-5) == 0
    rhos = np.logspace(-8, 3, 60)
    assert (np.diff([epsilon_of(rho, 1e-5) for rho in rhos]) >= 0).all()
    assert (np.diff([epsilon_of(0.1, delta) for delta in (1e-9, 1e-6, 1e-3)]) < 0).all()


@pytest.mark.parametrize("bad", [(-1, 1e-5), (math.nan, 1e-5), (math.inf, 1e-5), (1, 0), (1, 1), (1, math.nan)])
def test_refuses_what_is_no_cost(bad):
    with pytest.raises(ValueError, match="rho"):
        epsilon_of(*bad)
    with pytest.raises(ValueError, match=r"rho|epsilon"):
        rho_of(*bad)


def test_dp_accounting_says_the_same():
    rdp = pytest.importorskip("dp_accounting.rdp")
    import dp_accounting

    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(10.0), 100)
    assert epsilon_of(100 / (2 * 10.0**2), 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_a_hundred_releases_cost_what_dp_accounting_prints():
    assert epsilon_of(100 / (2 * 10.0**2), 1e-5) == pytest.approx(4.7285, rel=1e-3)
