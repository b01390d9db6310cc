"""The pull, the contrast, the entropy and the dot regression against loops over samples, their gradients, and what
they must not do."""

import math

import pytest
import torch

from protosphere.prototypes.etf import simplex_etf
from protosphere.prototypes.losses import (
    PULLS,
    dot_regression,
    entropy_spread,
    prototype_contrast,
    prototype_probabilities,
    prototype_pull,
)
from tests.prototypes.reference import units

D, K, N = 5, 4, 12
EVERYWHERE, NOWHERE = torch.ones(K, dtype=torch.bool), torch.zeros(K, dtype=torch.bool)


def batch(absent=(1,)):
    """Unit features and prototypes with labels; the rows of absent classes are far too long."""
    present = EVERYWHERE.clone()
    present[list(absent)] = False
    prototypes = units(K, D, seed=1)
    prototypes[~present] = 77.0
    return units(N, D), torch.arange(N) % K, prototypes, present


# every loss as function(features, labels, prototypes, present)
LOSSES = {reduction: lambda *a, r=reduction: prototype_pull(*a, r) for reduction in PULLS} | {
    "contrast": lambda z, y, p, present: prototype_contrast(z, y, p, present, 0.5),
    "each contrast": lambda z, y, p, present: prototype_contrast(z, y, p, present, 0.5, "none"),
    "entropy": lambda z, y, p, present: entropy_spread(z, p, present, 0.5),
    "dot regression": lambda z, y, p, present: dot_regression(z, y, p),
}
OF_PRESENT = [name for name in LOSSES if name != "dot regression"]
OF_LABELS = [*PULLS, "contrast", "each contrast"]


# --- against loops and torch -------------------------------------------------------------------------------


def dots(z, prototype):
    return sum(a * b for a, b in zip(z.tolist(), prototype.tolist(), strict=True))


@pytest.mark.parametrize("reduction", PULLS)
def test_the_pull_is_a_loop_over_samples(reduction):
    features, labels, targets, present = batch()
    features, terms = 3 * features, []
    for z, y in zip(features, labels.tolist(), strict=True):
        if present[y]:
            squares = [(a - b) ** 2 for a, b in zip(z.tolist(), targets[y].tolist(), strict=True)]
            terms.append({"mse": sum(squares) / D, "l2": sum(squares) ** 0.5, "l2-squared": sum(squares)}[reduction])
    found = prototype_pull(features, labels, targets, present, reduction)
    assert float(found) == pytest.approx(sum(terms) / len(terms), rel=1e-12)


@pytest.mark.parametrize("absent", [(), (1,), (0, 3), (0, 1, 2)])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.5, 3.0])
def test_contrast_entropy_and_probabilities_are_loops_over_samples_and_present_classes(temperature, absent):
    features, labels, prototypes, present = batch(absent)
    contrasts, entropies, probabilities = [], [], []
    for z, y in zip(features, labels.tolist(), strict=True):
        scores = {c: dots(z, prototypes[c]) / temperature for c in range(K) if present[c]}
        top = max(scores.values())
        total = top + math.log(sum(math.exp(score - top) for score in scores.values()))
        contrasts.append(total - scores[y] if present[y] else 0.0)
        entropies.append(sum(total - score for score in scores.values()) / len(scores))
        probabilities += [math.exp(scores[c] - total) if present[c] else 0.0 for c in range(K)]
    each = prototype_contrast(features, labels, prototypes, present, temperature, "none")
    assert each.tolist() == pytest.approx(contrasts, rel=1e-11, abs=1e-14)
    mean = prototype_contrast(features, labels, prototypes, present, temperature)
    assert float(mean) == pytest.approx(sum(contrasts) / int(present[labels].sum()), rel=1e-11)
    spread = entropy_spread(features, prototypes, present, temperature)
    assert float(spread) == pytest.approx(sum(entropies) / N, rel=1e-11)
    found = prototype_probabilities(features, prototypes, present, temperature)
    assert found.flatten().tolist() == pytest.approx(probabilities, rel=1e-11, abs=1e-300)
    assert not found[:, ~present].any(), "exactly"


def test_dot_regression_is_a_loop_over_samples_0_on_the_frame_and_2_opposite_to_it():
    projections, labels, frame = units(N, D), torch.arange(N) % K, simplex_etf(K, D, 0)
    terms = [0.5 * (dots(h, frame[y]) - 1) ** 2 for h, y in zip(projections, labels.tolist(), strict=True)]
    assert float(dot_regression(projections, labels, frame)) == pytest.approx(sum(terms) / N, rel=1e-12)
    assert float(dot_regression(frame[labels], labels, frame)) == pytest.approx(0, abs=1e-15)
    assert float(dot_regression(-frame[labels], labels, frame)) == pytest.approx(2, rel=1e-12)
    # every two vectors of a frame of K have the cosine -1/(K-1)
    other = frame[(labels + 1) % K]
    assert float(dot_regression(other, labels, frame)) == pytest.approx((K / (K - 1)) ** 2 / 2, rel=1e-12)


# --- what holds for every loss -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name):
    features, *rest = batch()
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, *rest), (features.requires_grad_(),))


@pytest.mark.parametrize("name", OF_LABELS)
def test_samples_of_an_absent_class_change_nothing_and_get_no_gradient(name):
    features, labels, prototypes, present = batch()
    covered = present[labels]
    features.requires_grad_()
    loss = LOSSES[name](features, labels, prototypes, present)
    loss.sum().backward()
    assert not features.grad[~covered].any()
    assert features.grad[covered].any(dim=1).all()
    alone = LOSSES[name](features[covered], labels[covered], prototypes, present)
    torch.testing.assert_close(loss if loss.ndim == 0 else loss[covered], alone, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", OF_PRESENT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_any_prototype_all_are_zero_with_a_zero_gradient(name, dtype):
    features, labels, prototypes, _ = batch()
    features = features.to(dtype).requires_grad_()
    loss = LOSSES[name](features, labels, torch.zeros_like(prototypes, dtype=dtype), NOWHERE)
    assert not loss.any()
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way back either
        (gradient,) = torch.autograd.grad(loss.sum(), features)
    assert torch.equal(gradient, torch.zeros_like(features))


def test_l2_on_its_target_has_a_gradient_of_zero_and_no_nan():
    _, labels, targets, _ = batch(absent=())
    on_place = targets[labels].clone().requires_grad_()
    prototype_pull(on_place, labels, targets, EVERYWHERE, "l2").backward()
    assert torch.equal(on_place.grad, torch.zeros_like(on_place))


@pytest.mark.parametrize("name", LOSSES)
def test_no_step_depends_on_values_so_none_waits_for_a_device(name):
    # tensors of the meta device have no values: reading one, or masking by one, raises
    features, *rest = (each.to("meta") for each in batch())
    features.requires_grad_()
    LOSSES[name](features, *rest).sum().backward()
    assert features.grad.shape == features.shape


@pytest.mark.parametrize("name", OF_PRESENT)
def test_half_precision_features_against_float32_prototypes(name):
    features, labels, prototypes, present = batch()
    low = LOSSES[name](features.bfloat16(), labels, prototypes.float(), present)
    assert low.dtype == torch.float32
    expected = LOSSES[name](features, labels, prototypes, present)
    torch.testing.assert_close(low.double(), expected, rtol=0.03, atol=1e-3)


# --- the ends of the probabilities, and refusals -----------------------------------------------------------


def test_probabilities_are_equal_without_a_prototype_have_its_dtype_and_may_be_of_no_row():
    features, _, prototypes, present = batch()
    found = prototype_probabilities(features, prototypes, NOWHERE, 0.1)
    assert torch.equal(found, torch.full((N, K), 0.25, dtype=torch.float64))
    low = prototype_probabilities(features.bfloat16(), prototypes.float(), present, 0.5)
    assert low.dtype == torch.float32
    expected = prototype_probabilities(features, prototypes, present, 0.5)
    torch.testing.assert_close(low.double(), expected, rtol=0.05, atol=0)
    assert prototype_probabilities(features[:0], prototypes, present, 0.1).shape == (0, K)


def test_an_unknown_reduction_is_named():
    with pytest.raises(ValueError, match=r"'sum'.*mse, l2, l2-squared"):
        prototype_pull(*batch(), "sum")
    with pytest.raises(ValueError, match=r"'sum'.*mean, none"):
        prototype_contrast(*batch(), 0.1, "sum")
