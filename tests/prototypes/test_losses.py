"""The prototype pull against a loop over samples, its gradients, and what it must not do."""

import pytest
import torch

from prototypes.losses import PULLS, prototype_pull

D = 5


def batch(n=12, K=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, D, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, K, (n,), generator=generator)
    targets = torch.randn(K, D, generator=generator, dtype=torch.float64)
    present = torch.tensor([True, False, True, True][:K])
    targets[~present] = 0
    return features, labels, targets, present


def naive(features, labels, targets, present, reduction):
    terms = []
    for z, y in zip(features, labels.tolist(), strict=True):
        if present[y]:
            squares = [(float(a) - float(b)) ** 2 for a, b in zip(z, targets[y], strict=True)]
            terms.append({"mse": sum(squares) / D, "l2": sum(squares) ** 0.5, "l2-squared": sum(squares)}[reduction])
    return sum(terms) / len(terms)


@pytest.mark.parametrize("reduction", PULLS)
def test_equals_a_loop_over_samples(reduction):
    arguments = batch()
    assert float(prototype_pull(*arguments, reduction)) == pytest.approx(naive(*arguments, reduction), rel=1e-12)


def test_mse_is_torchs_where_every_class_has_a_target_and_the_default():
    features, labels, targets, _ = batch()
    everywhere = torch.ones(4, dtype=torch.bool)
    expected = torch.nn.functional.mse_loss(features, targets[labels])
    torch.testing.assert_close(prototype_pull(features, labels, targets, everywhere), expected)
    torch.testing.assert_close(prototype_pull(features, labels, targets, everywhere, "l2-squared"), D * expected)


@pytest.mark.parametrize("reduction", PULLS)
def test_gradient_equals_finite_differences(reduction):
    features, labels, targets, present = batch()
    features.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: prototype_pull(z, labels, targets, present, reduction), (features,), eps=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("reduction", PULLS)
def test_samples_without_a_target_change_nothing_and_get_no_gradient(reduction):
    features, labels, targets, present = batch()
    pulled = present[labels]
    assert pulled.any()
    assert not pulled.all()
    features.requires_grad_()
    loss = prototype_pull(features, labels, targets, present, reduction)
    loss.backward()
    assert not features.grad[~pulled].any()
    assert features.grad[pulled].any(dim=1).all()
    alone = prototype_pull(features[pulled], labels[pulled], targets, present, reduction)
    torch.testing.assert_close(loss, alone)


@pytest.mark.parametrize("reduction", PULLS)
def test_without_any_target_it_is_zero_with_a_zero_gradient(reduction):
    features, labels, targets, present = batch()
    features.requires_grad_()
    loss = prototype_pull(features, labels, torch.zeros_like(targets), torch.zeros_like(present), reduction)
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(features.grad, torch.zeros_like(features))


@pytest.mark.parametrize("reduction", PULLS)
def test_a_feature_on_its_target_has_a_finite_gradient(reduction):
    _, labels, targets, present = batch()
    features = targets[labels].clone().requires_grad_()
    prototype_pull(features, labels, targets, present, reduction).backward()
    assert torch.equal(features.grad, torch.zeros_like(features))


@pytest.mark.parametrize("reduction", PULLS)
def test_no_step_of_it_depends_on_values_so_it_never_waits_for_a_device(reduction):
    # tensors of the meta device have no values: reading one, or masking by one, raises
    features, labels, targets, present = (each.to("meta") for each in batch())
    features.requires_grad_()
    prototype_pull(features, labels, targets, present, reduction).backward()
    assert features.grad.shape == features.shape


@pytest.mark.parametrize("reduction", PULLS)
def test_half_precision_features_against_float32_targets(reduction):
    features, labels, targets, present = batch()
    low = prototype_pull(features.bfloat16(), labels, targets.float(), present, reduction)
    assert low.dtype == torch.float32
    expected = prototype_pull(features, labels, targets, present, reduction)
    assert float(low) == pytest.approx(float(expected), rel=0.02)


def test_an_unknown_reduction_is_named():
    with pytest.raises(ValueError, match=r"'sum'.*mse, l2, l2-squared"):
        prototype_pull(*batch(), "sum")
