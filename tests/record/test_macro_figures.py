"""Figures that take every class alike, against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score

from protosphere.record.confusion import OTHER, macro, per_class


def triples_of(true, predicted):
    pairs, counts = np.unique(np.stack([true, predicted]), axis=1, return_counts=True)
    return [[int(a), int(b), int(count)] for (a, b), count in zip(pairs.T, counts, strict=True)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_macro_figures_are_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    K, number = int(rng.integers(2, 12)), int(rng.integers(1, 60))
    # rare classes, classes that nobody predicts, and such as only predictions have
    true = rng.choice(K, number, p=rng.dirichlet(np.full(K, 0.4)))
    predicted = np.where(rng.random(number) < 0.5, true, rng.integers(0, K, number))
    found = macro(triples_of(true, predicted))
    assert found["accuracy"] == pytest.approx(balanced_accuracy_score(true, predicted), abs=1e-12)
    labels = np.unique(true)
    assert found["f1"] == pytest.approx(f1_score(true, predicted, labels=labels, average="macro"), abs=1e-12)


def test_both_figures_are_of_the_classes_that_have_test_rows():
    """Of the third class there is no row, and one was taken for it."""
    true, predicted = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 2, 1, 1])
    found = macro(triples_of(true, predicted))
    assert found == {"accuracy": pytest.approx((2 / 3 + 1) / 2), "f1": pytest.approx((4 / 5 + 1) / 2)}
    assert f1_score(true, predicted, average="macro") == pytest.approx((4 / 5 + 1) / 3)


def test_where_counts_do_not_tell_there_is_none():
    assert macro([]) == {"accuracy": None, "f1": None}
    assert macro([[0, 0, 3], [0, OTHER, 1], [1, OTHER, 2]]) == {"accuracy": 0.375, "f1": None}
    assert per_class([{}]) == {}


def test_a_summary_has_them_over_all_clients():
    models = {"a": [[0, 0, 2], [1, 0, 1]], "b": [[1, 1, 3]]}
    classes = per_class([{"confusion": {"rule": "classifier", "models": models}}])["classes"]
    assert classes["macro"] == {"accuracy": (1 + 0.75) / 2, "f1": pytest.approx((4 / 5 + 6 / 7) / 2)}
