"""The pull, the contrast, the entropy and the dot regression against loops over samples, their gradients, and what
they must not do."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from prototypes.etf import simplex_etf
from prototypes.losses import (
    PULLS,
    dot_regression,
    entropy_spread,
    prototype_contrast,
    prototype_probabilities,
    prototype_pull,
)

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


# --- the contrast against prototypes and the entropy of its answers -----------------------------------


def unit_batch(n=12, K=4, seed=0, absent=(1,)):
    """Unit features and prototypes with labels; the rows of absent classes are far too long."""
    generator = torch.Generator().manual_seed(seed)
    features = normalize(torch.randn(n, D, generator=generator, dtype=torch.float64))
    prototypes = normalize(torch.randn(K, D, generator=generator, dtype=torch.float64))
    present = torch.ones(K, dtype=torch.bool)
    present[list(absent)] = False
    prototypes[~present] = 77.0
    return features, torch.arange(n) % K, prototypes, present


def log_probabilities(z, prototypes, present, temperature):
    """Class -> log softmax, from plain floats, over the present classes."""
    scores = {
        c: sum(a * b for a, b in zip(z.tolist(), prototypes[c].tolist(), strict=True)) / temperature
        for c in present.nonzero().flatten().tolist()
    }
    top = max(scores.values())
    total = top + math.log(sum(math.exp(score - top) for score in scores.values()))
    return {c: score - total for c, score in scores.items()}


@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.5, 3.0])
def test_contrast_is_a_loop_over_samples(temperature):
    features, labels, prototypes, present = unit_batch()
    expected = [
        -log_probabilities(z, prototypes, present, temperature)[y] if present[y] else 0.0
        for z, y in zip(features, labels.tolist(), strict=True)
    ]
    each = prototype_contrast(features, labels, prototypes, present, temperature, "none")
    assert each.tolist() == pytest.approx(expected, rel=1e-11, abs=1e-14)
    mean = prototype_contrast(features, labels, prototypes, present, temperature)
    assert float(mean) == pytest.approx(sum(expected) / int(present[labels].sum()), rel=1e-11)


@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.5, 3.0])
def test_entropy_spread_is_a_loop_over_samples(temperature):
    features, _, prototypes, present = unit_batch()
    terms = [log_probabilities(z, prototypes, present, temperature).values() for z in features]
    expected = -sum(sum(logs) / len(logs) for logs in terms) / len(features)
    assert float(entropy_spread(features, prototypes, present, temperature)) == pytest.approx(expected, rel=1e-11)


def test_with_all_classes_both_are_torchs_cross_entropies():
    features, labels, prototypes, everywhere = unit_batch(absent=())
    logits = features @ prototypes.T / 0.1
    torch.testing.assert_close(
        prototype_contrast(features, labels, prototypes, everywhere, 0.1), cross_entropy(logits, labels)
    )
    uniform = torch.full_like(logits, 1 / 4)
    torch.testing.assert_close(entropy_spread(features, prototypes, everywhere, 0.1), cross_entropy(logits, uniform))


def test_contrast_in_closed_form_on_orthogonal_prototypes():
    everywhere = torch.ones(D, dtype=torch.bool)
    features = prototypes = torch.eye(D, dtype=torch.float64)
    loss = prototype_contrast(features, torch.arange(D), prototypes, everywhere, 0.5)
    assert float(loss) == pytest.approx(math.log(1 + (D - 1) * math.exp(-2)), rel=1e-14)
    spread = entropy_spread(features, prototypes, everywhere, 0.5)
    assert float(spread) == pytest.approx(math.log(math.e**2 + D - 1) - 2 / D, rel=1e-14)


@pytest.mark.parametrize("K", [1, 2, 5])
def test_entropy_spread_is_least_and_ln_k_where_all_prototypes_are_equally_near(K):
    prototypes = torch.eye(K, K + 1, dtype=torch.float64)
    everywhere = torch.ones(K, dtype=torch.bool)
    centre = normalize(torch.ones(1, K + 1, dtype=torch.float64)).requires_grad_()
    spread = entropy_spread(centre, prototypes, everywhere, 0.1)
    assert spread.item() == pytest.approx(math.log(K), abs=1e-14)
    spread.backward()
    torch.testing.assert_close(centre.grad, torch.zeros_like(centre), rtol=0, atol=1e-14)
    elsewhere = normalize(torch.randn(1, K + 1, generator=torch.Generator().manual_seed(K)).double())
    assert float(entropy_spread(elsewhere, prototypes, everywhere, 0.1)) >= math.log(K)


def test_their_gradients_equal_finite_differences():
    features, labels, prototypes, present = unit_batch()
    features.requires_grad_()
    for loss in (
        lambda z: prototype_contrast(z, labels, prototypes, present, 0.5),
        lambda z: prototype_contrast(z, labels, prototypes, present, 0.5, "none"),
        lambda z: entropy_spread(z, prototypes, present, 0.5),
    ):
        assert torch.autograd.gradcheck(loss, (features,))


def test_a_rotation_or_another_order_of_classes_changes_neither():
    features, labels, prototypes, present = unit_batch()
    generator = torch.Generator().manual_seed(1)
    rotation = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64, generator=generator)).Q
    order = torch.randperm(len(present), generator=generator)
    turned = (features @ rotation, order.argsort()[labels], (prototypes @ rotation)[order], present[order])
    torch.testing.assert_close(prototype_contrast(*turned, 0.2), prototype_contrast(*unit_batch(), 0.2))
    expected = entropy_spread(features, prototypes, present, 0.2)
    torch.testing.assert_close(entropy_spread(turned[0], *turned[2:], 0.2), expected)


def test_samples_of_an_absent_class_cost_nothing_and_get_no_gradient_from_the_contrast():
    features, labels, prototypes, present = unit_batch()
    covered = present[labels]
    features.requires_grad_()
    loss = prototype_contrast(features, labels, prototypes, present, 0.1)
    loss.backward()
    assert not features.grad[~covered].any()
    assert features.grad[covered].any(dim=1).all()
    torch.testing.assert_close(
        loss, prototype_contrast(features[covered], labels[covered], prototypes, present, 0.1), rtol=1e-14, atol=0
    )


def test_absent_classes_are_as_if_they_did_not_exist():
    features, labels, prototypes, present = unit_batch()
    covered = present[labels]
    fewer = (features[covered], (labels - (labels > 1).long())[covered], prototypes[present], present[present])
    torch.testing.assert_close(
        prototype_contrast(*fewer, 0.1), prototype_contrast(features, labels, prototypes, present, 0.1)
    )
    torch.testing.assert_close(
        entropy_spread(features, prototypes[present], present[present], 0.1),
        entropy_spread(features, prototypes, present, 0.1),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_any_prototype_both_are_zero_with_a_zero_gradient(dtype):
    features, labels, prototypes, _ = unit_batch()
    nowhere = torch.zeros(4, dtype=torch.bool)
    features = features.to(dtype).requires_grad_()
    nothing = torch.zeros_like(prototypes, dtype=dtype)
    for loss in (
        prototype_contrast(features, labels, nothing, nowhere, 0.1),
        prototype_contrast(features, labels, nothing, nowhere, 0.1, "none").sum(),
        entropy_spread(features, nothing, nowhere, 0.1),
    ):
        assert loss.item() == 0
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way back either
            (gradient,) = torch.autograd.grad(loss, features)
        assert torch.equal(gradient, torch.zeros_like(features))


def test_they_never_wait_for_a_device():
    features, labels, prototypes, present = (each.to("meta") for each in unit_batch())
    features.requires_grad_()
    each = prototype_contrast(features, labels, prototypes, present, 0.1, "none")
    loss = prototype_contrast(features, labels, prototypes, present, 0.1)
    (each.sum() + loss + entropy_spread(features, prototypes, present, 0.1)).backward()
    assert features.grad.shape == features.shape


def test_half_precision_features_against_float32_prototypes():
    features, labels, prototypes, present = unit_batch()
    low = (features.bfloat16(), prototypes.float())
    contrast = prototype_contrast(low[0], labels, low[1], present, 0.5)
    spread = entropy_spread(*low, present, 0.5)
    assert contrast.dtype == spread.dtype == torch.float32
    expected = prototype_contrast(features, labels, prototypes, present, 0.5)
    assert float(contrast) == pytest.approx(float(expected), rel=0.02)
    assert float(spread) == pytest.approx(float(entropy_spread(features, prototypes, present, 0.5)), rel=0.02)


@pytest.mark.parametrize("temperature", [0.0, -0.1, float("nan")])
def test_a_temperature_that_is_not_above_zero_is_named(temperature):
    features, labels, prototypes, present = unit_batch()
    with pytest.raises(ValueError, match=f"temperature of the prototype logits is {temperature}; it must be above 0"):
        prototype_contrast(features, labels, prototypes, present, temperature)
    with pytest.raises(ValueError, match=f"temperature of the prototype logits is {temperature}"):
        entropy_spread(features, prototypes, present, temperature)
    with pytest.raises(ValueError, match=f"temperature of the prototype logits is {temperature}"):
        prototype_probabilities(features, prototypes, present, temperature)


def test_an_unknown_reduction_of_the_contrast_is_named():
    with pytest.raises(ValueError, match="'sum' is unknown; choose one of mean, none"):
        prototype_contrast(*unit_batch(), 0.1, "sum")


# --- class probabilities ------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [(), (1,), (0, 3), (0, 1, 2)])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.5, 3.0])
def test_probabilities_are_a_loop_over_classes(temperature, absent):
    features, _, prototypes, present = unit_batch(absent=absent)
    found = prototype_probabilities(features, prototypes, present, temperature)
    for z, row in zip(features, found.tolist(), strict=True):
        logs = log_probabilities(z, prototypes, present, temperature)
        expected = [math.exp(logs[c]) if c in logs else 0.0 for c in range(4)]
        assert row == pytest.approx(expected, rel=1e-11, abs=1e-300)
        assert sum(row) == pytest.approx(1.0, abs=1e-14)
        assert [row[c] for c in absent] == [0.0] * len(absent), "exactly"


def test_probabilities_where_there_is_no_prototype_are_all_equal():
    features, _, prototypes, _ = unit_batch()
    nowhere = torch.zeros(4, dtype=torch.bool)
    found = prototype_probabilities(features, prototypes, nowhere, 0.1)
    assert torch.equal(found, torch.full((12, 4), 0.25, dtype=torch.float64))


def test_probabilities_keep_to_rotation_and_to_another_order_of_classes():
    features, _, prototypes, present = unit_batch()
    rotation = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).Q
    found = prototype_probabilities(features, prototypes, present, 0.1)
    torch.testing.assert_close(
        prototype_probabilities(features @ rotation, prototypes @ rotation, present, 0.1), found, rtol=1e-10, atol=1e-12
    )
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(
        prototype_probabilities(features, prototypes[order], present[order], 0.1), found[:, order]
    )
    assert prototype_probabilities(features[:0], prototypes, present, 0.1).shape == (0, 4)


def test_half_precision_features_give_probabilities_of_the_prototypes_dtype():
    features, _, prototypes, present = unit_batch()
    found = prototype_probabilities(features.bfloat16(), prototypes.float(), present, 0.5)
    assert found.dtype == torch.float32
    expected = prototype_probabilities(features, prototypes, present, 0.5)
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0)
    assert torch.equal(found[:, 1], torch.zeros(12))


# --- dot regression onto a fixed frame --------------------------------------------------------------------


def frame_batch(n=12, K=4, seed=0):
    """Unit projections, labels and the unit vectors of a simplex frame."""
    random = torch.Generator().manual_seed(seed)
    projections = normalize(torch.randn(n, D, generator=random, dtype=torch.float64))
    return projections, torch.arange(n) % K, simplex_etf(K, D, seed)


def test_dot_regression_is_a_loop_over_samples():
    projections, labels, frame = frame_batch()
    terms = []
    for h, y in zip(projections.tolist(), labels.tolist(), strict=True):
        product = sum(a * b for a, b in zip(h, frame[y].tolist(), strict=True))
        terms.append(0.5 * (product - 1) ** 2)
    assert float(dot_regression(projections, labels, frame)) == pytest.approx(sum(terms) / 12, rel=1e-12)


def test_dot_regression_is_0_on_the_frame_2_opposite_to_it_and_known_between():
    _, labels, frame = frame_batch()
    assert float(dot_regression(frame[labels], labels, frame)) == pytest.approx(0, abs=1e-15)
    assert float(dot_regression(-frame[labels], labels, frame)) == pytest.approx(2, rel=1e-12)
    # every two vectors of a frame of K have the cosine -1/(K-1)
    assert float(dot_regression(frame[(labels + 1) % 4], labels, frame)) == pytest.approx((4 / 3) ** 2 / 2, rel=1e-12)


def test_dot_regression_has_the_gradient_of_finite_differences_and_no_pull_from_other_classes():
    projections, labels, frame = frame_batch()
    projections.requires_grad_()
    assert torch.autograd.gradcheck(lambda h: dot_regression(h, labels, frame), (projections,), eps=1e-6, atol=1e-8)
    dot_regression(projections, labels, frame).backward()
    # each sample is drawn along its own class's vector alone
    own = (projections.grad * frame[labels]).sum(dim=1, keepdim=True) * frame[labels]
    torch.testing.assert_close(projections.grad, own)
    on_place = frame[labels].clone().requires_grad_()
    dot_regression(on_place, labels, frame).backward()
    torch.testing.assert_close(on_place.grad, torch.zeros_like(on_place), rtol=0, atol=1e-15)


def test_dot_regression_never_waits_for_a_device():
    projections, labels, frame = (each.to("meta") for each in frame_batch())
    projections.requires_grad_()
    dot_regression(projections, labels, frame).backward()
    assert projections.grad.shape == projections.shape
