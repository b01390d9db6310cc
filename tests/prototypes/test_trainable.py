"""FedTGP's trainable prototypes: the loss against a loop, closed forms, its gradients, and what training does."""

import math
from functools import partial

import pytest
import torch

from protosphere.prototypes.trainable import (
    TrainablePrototypes,
    adaptive_margin,
    collapsed_loss,
    contrastive_loss,
    margin_contrast,
    train_prototypes,
)

D = 6


def batch(n=14, K=5, seed=0, dtype=torch.float64):
    """Vectors, labels, prototypes and the present classes; class 1 is absent."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.ones(K, dtype=torch.bool)
    present[1] = False
    labels = present.nonzero().flatten()[torch.randint(0, K - 1, (n,), generator=generator)]
    vectors = torch.randn(n, D, generator=generator, dtype=dtype)
    return vectors, labels, torch.randn(K, D, generator=generator, dtype=dtype), present


def naive(vectors, labels, prototypes, margin, present):
    total = 0.0
    classes = present.nonzero().flatten().tolist()
    for vector, label in zip(vectors.tolist(), labels.tolist(), strict=True):
        scores = {j: -math.dist(vector, prototypes[j].tolist()) - (margin if j == label else 0) for j in classes}
        top = max(scores.values())
        total += top + math.log(sum(math.exp(score - top) for score in scores.values())) - scores[label]
    return total / len(vectors)


@pytest.mark.parametrize("margin", [0.0, 0.1, 3.7, 100.0])
def test_loss_is_a_loop_over_vectors_and_classes(margin):
    vectors, labels, prototypes, present = batch()
    loss = contrastive_loss(vectors, labels, prototypes, margin, present)
    assert loss.shape == ()
    assert float(loss) == pytest.approx(naive(vectors, labels, prototypes, margin, present), rel=1e-12)


@pytest.mark.parametrize("margin", [0.0, 1.3])
def test_gradients_equal_finite_differences(margin):
    vectors, labels, prototypes, present = batch()
    assert torch.autograd.gradcheck(
        lambda x, p: contrastive_loss(x, labels, p, margin, present),
        (vectors.requires_grad_(), prototypes.requires_grad_()),
    )


def test_small_distances_far_from_the_origin_are_right_to_float32():
    generator = torch.Generator().manual_seed(0)
    # numbers that float32 holds exactly, so that any error is the distances'
    prototypes = 4096 + torch.randint(0, 2000, (4, D), generator=generator) / 2048
    labels = torch.arange(4)
    vectors = prototypes + torch.randint(-9, 10, (4, D), generator=generator) / 2048
    present = torch.ones(4, dtype=torch.bool)
    loss = contrastive_loss(vectors, labels, prototypes, 0.25, present)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(naive(vectors, labels, prototypes, 0.25, present), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_vector_on_its_prototype_pulls_nothing_there_and_pushes_the_other(dtype):
    prototypes = torch.tensor([[1.0, 2.0], [4.0, 6.0]], dtype=dtype, requires_grad=True)
    vectors = prototypes.detach()[:1].clone().requires_grad_()
    both = torch.ones(2, dtype=torch.bool)
    contrastive_loss(vectors, torch.tensor([0]), prototypes, 4.0, both).backward()
    # distances 0 and 5 with margin 4: scores -4 and -5; the direction to the other prototype is (3, 4) / 5
    probability = 1 / (1 + math.exp(5 - 4))
    expected = -probability * torch.tensor([0.6, 0.8], dtype=dtype)
    torch.testing.assert_close(prototypes.grad, torch.stack([torch.zeros(2, dtype=dtype), expected]))
    torch.testing.assert_close(vectors.grad, -expected[None])


@pytest.mark.parametrize("what", [0.0, 1e30, math.inf, math.nan])
def test_absent_classes_change_nothing_and_get_no_gradient(what):
    vectors, labels, prototypes, present = batch()
    expected = contrastive_loss(vectors, labels, prototypes, 1.3, present)
    prototypes[~present] = what
    prototypes.requires_grad_()
    loss = contrastive_loss(vectors, labels, prototypes, 1.3, present)
    assert torch.equal(loss, expected)
    loss.backward()
    assert torch.equal(prototypes.grad[~present], torch.zeros(1, D, dtype=torch.float64))
    assert prototypes.grad[present].any(dim=1).all()
    # as if the class did not exist
    fewer = contrastive_loss(vectors, labels - (labels > 1).long(), prototypes[present], 1.3, present[present])
    assert torch.equal(fewer, expected)


@pytest.mark.parametrize("K", [1, 2, 10, 100])
@pytest.mark.parametrize("margin", [0.0, 0.5, 7.0, 100.0, 1000.0])
def test_collapsed_loss_is_the_loss_of_prototypes_that_coincide(K, margin):
    generator = torch.Generator().manual_seed(K)
    vectors = torch.randn(8, D, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, K, (8,), generator=generator)
    present = torch.ones(K, dtype=torch.bool)
    for point in (vectors[0], torch.zeros(D, dtype=torch.float64), 1000 * vectors[1]):
        loss = contrastive_loss(vectors, labels, point.expand(K, D), margin, present)
        assert float(loss) == pytest.approx(collapsed_loss(K, margin), rel=1e-11, abs=1e-15)


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([[0.0], [1.0], [3.0], [7.0]], 4.0),  # gaps 1, 1, 2, 4
        ([[7.0], [0.0], [3.0], [1.0]], 4.0),
        ([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]], 5.0),  # gaps 0, 0, 5
        ([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]], 0.0),
        ([[0.0], [500.0]], 100.0),
        ([[1.0]], 100.0),  # of one class or none it is the limit
        ([], 100.0),
        ([[4096.0, 0.0], [4096.0 + 2**-10, 0.0]], 2**-10),  # close means far from the origin
    ],
)
def test_margin_in_closed_form(means, expected):
    assert adaptive_margin(torch.tensor(means).reshape(len(means), -1 if means else D), 100.0) == expected


def train(module, vectors, labels, present, epochs=1, batch_size=8):
    """One call with plain SGD; its rounds are written out in tests/strategies/test_trained_prototypes.py."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    shape = {"epochs": epochs, "batch_size": batch_size, "generator": torch.Generator()}
    return train_prototypes(module, optimiser, vectors, labels, present, partial(margin_contrast, margin=2.0), **shape)


@pytest.mark.parametrize(("epochs", "batch_size"), [(0, 8), (1, 0)])
def test_no_epochs_or_empty_batches_are_refused(epochs, batch_size):
    vectors, labels, _, present = batch()
    with pytest.raises(ValueError, match=f"for {epochs} epochs in batches of {batch_size}"):
        train(TrainablePrototypes(5, D, seed=0), vectors, labels, present, epochs, batch_size)
