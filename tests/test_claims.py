"""The page of the papers' claims, and the tests behind its words."""

import itertools
import random

import pytest
from scipy import stats

from benchmarks.answers import PAGES
from benchmarks.claims import written
from protosphere.comparison.paired import p_value, rejected


def test_the_page_is_what_the_stored_figures_give():
    assert (PAGES / "claims.md").read_text() == written()


def test_the_p_value_is_that_of_a_paired_t_test():
    draw = random.Random(0)
    for seeds in (3, 5, 12):
        gaps = [draw.gauss(0.5, 1) for _ in range(seeds)]
        assert p_value(gaps) == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue, rel=1e-9)
    assert (p_value([0.0, 0.0, 0.0]), p_value([2.0, 2.0, 2.0])) == (1, 0)


def test_holms_procedure_is_the_closed_test_of_bonferronis():
    """A hypothesis is rejected where every set of hypotheses that holds it is, each at level / size by its smallest."""
    draw = random.Random(1)
    for _ in range(200):
        p_values = [draw.random() ** 3 / 5 for _ in range(5)]
        sets = [group for size in range(1, 6) for group in itertools.combinations(range(5), size)]
        closed = [
            all(min(p_values[i] for i in group) <= 0.05 / len(group) for group in sets if number in group)
            for number in range(5)
        ]
        assert rejected(p_values) == closed
