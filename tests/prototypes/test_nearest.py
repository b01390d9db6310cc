"""The nearest-prototype rule against a double loop."""

import math

import torch

from protosphere.prototypes.prediction import nearest_scores


def test_equals_a_double_loop_and_skips_absent_classes():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    vectors = torch.randn(30, 6, generator=generator, dtype=torch.float64)
    present = torch.rand(30, generator=generator) < 0.7
    vectors[~present] = 0
    scores = nearest_scores(z, vectors, present)
    for i in range(len(z)):
        for j in range(len(vectors)):
            expected = -math.dist(z[i].tolist(), vectors[j].tolist()) if present[j] else -math.inf
            assert math.isclose(scores[i, j], expected, rel_tol=1e-12)


def test_close_prototypes_far_from_the_origin_are_told_apart_in_float32():
    # many rows: the size at which a distance by matrix product would be chosen
    vectors = torch.full((40, 8), 100.0) + 1e-3 * torch.arange(40.0).unsqueeze(1)
    scores = nearest_scores(vectors.clone(), vectors, torch.ones(40, dtype=torch.bool))
    assert scores.argmax(dim=1).tolist() == list(range(40))
    assert scores.diagonal().tolist() == [0.0] * 40


def test_no_present_class_and_no_sample():
    absent = nearest_scores(torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(4, dtype=torch.bool))
    assert absent.tolist() == [[-math.inf] * 4] * 2
    assert nearest_scores(torch.zeros(0, 3), torch.zeros(4, 3), torch.ones(4, dtype=torch.bool)).shape == (0, 4)


def test_half_precision_features():
    z = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16)
    scores = nearest_scores(z, torch.eye(2), torch.ones(2, dtype=torch.bool))
    assert scores.dtype == torch.float32
    assert scores.argmax() == 0
