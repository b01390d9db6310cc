"""FedPAGR's refinement against loops over clients and class pairs, finite differences and plain numpy."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.refinement import (
    class_sums,
    mean_directions,
    refine,
    refinement_loss,
)
from tests.prototypes.reference import units

D = 6
K = 5
NOBODYS = K - 1


def client_sets(clients=7, seed=0, dtype=torch.float64, length=1.0):
    """Ragged uploads around one direction, so that cosines exceed the margins; the last class is nobody's."""
    generator = torch.Generator().manual_seed(seed)
    sets = []
    for _ in range(clients):
        held = torch.rand(K, generator=generator) < 0.6
        held[0], held[NOBODYS] = True, False
        labels = held.nonzero().flatten()
        noise = torch.randn(len(labels), D, generator=generator, dtype=torch.float64)
        sets.append(PrototypeSet(labels, (length * normalize(noise + 1)).to(dtype)))
    return sets


def problem(seed=0, clients=7):
    """Start, sums and counts of a round; the class that nobody reported starts at its previous prototype."""
    sums, counts = class_sums(client_sets(clients, seed), K)
    return mean_directions(sums, counts, normalize(units(K, D, seed=seed + 50) + 0.2)), sums, counts


def naive_loss(points, sets, weight, margin):
    """Eq. 4 as it is printed, over clients and ordered pairs of classes."""
    total = points.new_zeros(())
    for each in sets:
        for label, vector in zip(each.labels.tolist(), each.vectors, strict=True):
            total = total + 1 - (vector * points[label]).sum()
    for c in range(len(points)):
        for other in range(len(points)):
            if c != other:
                total = total + weight * ((points[c] * points[other]).sum() - margin).clamp(min=0)
    return total


# --- sums and means of the uploads ----------------------------------------------------------------------


def test_sums_are_a_loop_over_clients_whatever_the_lengths_of_their_prototypes():
    sets = client_sets(length=3.7)
    sums, counts = class_sums(sets, K)
    expected, numbers = np.zeros((K, D)), [0] * K
    for each in sets:
        for label, vector in zip(each.labels.tolist(), each.vectors.numpy(), strict=True):
            expected[label] += vector / np.linalg.norm(vector)
            numbers[label] += 1
    np.testing.assert_allclose(sums.numpy(), expected, rtol=0, atol=1e-14)
    assert counts.tolist() == numbers
    assert counts.dtype == torch.int64
    assert not sums[NOBODYS].any()


def test_a_row_of_zeros_counts_as_not_reported():
    labels = torch.tensor([0, 2])
    first = PrototypeSet(labels, torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    sums, counts = class_sums([first, PrototypeSet(labels[:1], torch.tensor([[0.0, -2.0]])), PrototypeSet.empty(2)], 3)
    assert counts.tolist() == [1, 0, 1]
    torch.testing.assert_close(sums, torch.tensor([[0.0, -1.0], [0.0, 0.0], [0.6, 0.8]]).double())


def test_means_are_normalised_sums_and_the_previous_prototype_where_nobody_reported():
    sums, counts = class_sums(client_sets(), K)
    previous = units(K, D).float()
    means = mean_directions(sums, counts, previous)
    assert means.dtype == torch.float32
    expected = (sums[:NOBODYS] / sums[:NOBODYS].norm(dim=1, keepdim=True)).float()
    torch.testing.assert_close(means[:NOBODYS], expected)
    assert torch.equal(means[NOBODYS], previous[NOBODYS])


def test_clients_that_contradict_each_other_leave_the_previous_prototype_where_it_was():
    vector = units(1, D, seed=3).float()
    apart = [PrototypeSet(torch.tensor([1]), vector), PrototypeSet(torch.tensor([1]), -vector)]
    # three at 120 degrees: float32 leaves a sum of about 1e-8, whose direction means nothing
    angles = torch.tensor([0.3 + 2 * math.pi * third / 3 for third in range(3)])
    rows = torch.nn.functional.pad(torch.stack([angles.cos(), angles.sin()], dim=1), (0, D - 2))
    star = [PrototypeSet(torch.tensor([2]), row[None]) for row in rows]
    sums, counts = class_sums(apart + star, 3)
    assert counts.tolist() == [0, 2, 3]
    assert sums[2].any()
    previous = units(3, D).float()
    start = mean_directions(sums, counts, previous)
    assert torch.equal(start, previous)
    # no point agrees with both better than another: the term is constant, without a gradient
    alone = refine(start[1:2], sums[1:2], counts[1:2], steps=20)
    torch.testing.assert_close(alone.points, start[1:2])
    assert alone.before.agreement == alone.after.agreement == 2


# --- the loss -----------------------------------------------------------------------------------------


def test_a_weak_majority_does_have_a_direction():
    vector = units(1, D)
    labels = torch.tensor([0])
    sums, counts = class_sums([PrototypeSet(labels, row[None]) for row in (vector[0], -vector[0], vector[0])], 1)
    torch.testing.assert_close(mean_directions(sums, counts, units(1, D, seed=9)), vector)


@pytest.mark.parametrize("weight", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("margin", [-0.2, 0.1, 0.3, 0.9])
def test_loss_and_gradient_are_those_of_a_loop_over_clients_and_ordered_pairs(weight, margin):
    sets = client_sets()
    sums, counts = class_sums(sets, K)
    points = normalize(units(K, D) + 0.3).requires_grad_()
    loss = refinement_loss(points, sums, counts, weight, margin)
    expected = naive_loss(points, sets, weight, margin)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    (gradient,) = torch.autograd.grad(loss, points)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, points)[0], rtol=1e-12, atol=1e-13)


# --- the refinement -----------------------------------------------------------------------------------


def numpy_refinement(start, sums, steps, learning_rate, momentum, weight, margin):
    """SGD with momentum as torch defines it (v = mu v + g, w -= lr v) by the hand-derived gradient."""
    free, velocity = np.array(start), 0.0
    for _ in range(steps):
        lengths = np.linalg.norm(free, axis=1, keepdims=True)
        points = free / lengths
        above = points @ points.T > margin
        np.fill_diagonal(above, False)
        outer = -sums + 2 * weight * above @ points
        tangent = outer - (outer * points).sum(axis=1, keepdims=True) * points
        velocity = momentum * velocity + tangent / lengths
        free = free - learning_rate * velocity
    return free / np.linalg.norm(free, axis=1, keepdims=True)


PAPER = {"steps": 5, "learning_rate": 0.01, "momentum": 0.9, "weight": 0.5, "margin": 0.3}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "change",
    [
        {"steps": 1},
        {},
        {"steps": 3, "margin": 0.1},
        {"steps": 40, "learning_rate": 0.05, "momentum": 0.5, "weight": 2.0, "margin": -0.1},
        # from elsewhere clients alone draw to their mean directions
        {"steps": 30, "weight": 0.0},
    ],
)
def test_refinement_is_numpys_gradient_descent_with_the_papers_values_as_defaults(seed, change):
    start, sums, counts = problem(seed)
    start = normalize(start + 0.3 * units(K, D, seed=8)) if change.get("weight") == 0 else start
    given = {"separation_weight" if name == "weight" else name: value for name, value in change.items()}
    found = refine(start, sums, counts, **given)
    expected = numpy_refinement(start.numpy(), sums.numpy(), **PAPER | change)
    np.testing.assert_allclose(found.points.numpy(), expected, rtol=0, atol=1e-12)
    assert float((found.points - start).norm()) > 1e-3


@pytest.mark.parametrize(("classes", "count"), [(0, 0), (1, 0), (1, 4)])
def test_one_class_alone_goes_nowhere_and_has_no_cosine(classes, count):
    start = units(classes, D)
    found = refine(start, count * start, torch.full((classes,), count), steps=30, margin=-1)
    torch.testing.assert_close(found.points, start)
    assert found.after.separation == 0
    assert found.after.agreement == pytest.approx(0, abs=1e-14)
    assert found.after.largest_cosine is None


# --- errors -------------------------------------------------------------------------------------------


def test_rows_without_a_direction_broken_rows_and_parts_that_do_not_fit_are_named():
    start, sums, counts = problem()
    for what in (0.0, math.nan, math.inf):
        broken = start.clone()
        broken[2] = what
        with pytest.raises(ValueError, match="Row 2 of the 5 prototypes to refine is zero or not finite"):
            refine(broken, sums, counts)
    for parts in ((start, sums[1:], counts), (start, sums, counts[1:]), (start.long(), sums, counts), (start[0],) * 3):
        with pytest.raises(ValueError, match=r"do not go with sums of shape .* one row per class"):
            refine(*parts)
    sums[1, 3] = math.nan
    with pytest.raises(ValueError, match=r"Row 1 of the 5 prototypes to refine .* or its sum is not finite"):
        refine(start, sums, counts)
