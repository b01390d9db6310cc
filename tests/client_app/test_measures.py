"""What an evaluation tells beside accuracies, against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, roc_auc_score

from protosphere.client_app.evaluate import count_confusion, macro_auc
from protosphere.record import confusion


def test_where_a_client_has_every_class_it_is_scikit_learns_macro_average():
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.arange(5), rng.integers(0, 5, 60)])
    scores = rng.dirichlet(np.ones(5), len(labels))
    found = macro_auc(torch.from_numpy(labels), torch.from_numpy(scores))
    assert found == pytest.approx(roc_auc_score(labels, scores, multi_class="ovr", average="macro"), abs=1e-12)


def test_classes_that_a_client_has_not_or_alone_count_in_none():
    scores = torch.tensor([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.7, 0.3, 0.0]])
    # class 2 has no sample
    labels = torch.tensor([0, 1, 1])
    assert (
        macro_auc(labels, scores)
        == (roc_auc_score([1, 0, 0], scores[:, 0]) + roc_auc_score([0, 1, 1], scores[:, 1])) / 2
    )
    assert macro_auc(torch.tensor([1, 1, 1]), scores) is None
    assert macro_auc(labels, scores.index_fill(0, torch.tensor([1]), float("nan"))) is None


@pytest.mark.parametrize("most", [100, 3], ids=["matrix", "per class"])
def test_the_confusion_matrix_is_scikit_learns(monkeypatch, most):
    monkeypatch.setattr(confusion, "MOST_CLASSES", most)
    rng = np.random.default_rng(4)
    labels, predictions = rng.integers(0, 4, 90), rng.integers(0, 4, 90)
    expected = confusion_matrix(labels, predictions, labels=range(4))
    if most == 3:
        right = np.diag(expected)
        expected = np.stack([right, expected.sum(axis=1) - right], axis=1)
    found = count_confusion(torch.from_numpy(labels), torch.from_numpy(predictions), 4)
    assert found == tuple(expected.reshape(-1).tolist())
