"""ProtoNorm: unit directions as far apart as they can be go down, and the client alone scales them."""

import pytest
import torch

from protosphere.core.seeds import derive
from protosphere.prototypes.alignment import align
from protosphere.strategies.contract import EVERYONE, ClientState
from tests.payloads import lone, payloads
from tests.strategies.sets import class_means


def uploads(classes, dim, clients=3, seed=0):
    return class_means(dict.fromkeys(range(clients), tuple(classes)), dim, seed, 2.0)


def mean_of(sets):
    """Class means by plain loops in float64; every client holds the same classes here."""
    rows = [s.vectors.double() for s in sets.values()]
    return (sum(rows) / len(rows)).float()


def made(halves, settings, sets, num_classes, dim, state=None, server_round=1):
    both = halves({"strategy": "protonorm"} | settings, num_classes, dim)
    outcome = both.server.aggregate(payloads(sets), state or {}, server_round)
    return outcome, lone(outcome.downloads[EVERYONE])


def test_it_aligns_the_directions_of_the_mean(halves):
    """The same call on a plain mean gives the same bits, and the scale of a client's space does not matter."""
    sets = uploads(range(6), 5)
    _, download = made(halves, {"seed": 3}, sets, 6, 5, server_round=4)
    expected = align(mean_of(sets), "auto", seed=derive(3, "round", 4, "alignment"), num_classes=6).points
    assert torch.equal(download.vectors, expected)
    larger = {p: s.with_vectors(s.vectors * 1024) for p, s in sets.items()}
    _, scaled = made(halves, {"seed": 3}, larger, 6, 5, server_round=4)
    torch.testing.assert_close(scaled.vectors, download.vectors, rtol=0, atol=1e-6)


def test_a_class_not_reported_enters_with_its_last_aligned_direction(halves):
    first, before = made(halves, {}, uploads((0, 1, 2, 4), 5), 6, 5)
    second_sets = uploads((1, 2, 5), 5, seed=9)
    _, after = made(halves, {}, second_sets, 6, 5, state=first.state, server_round=2)
    assert after.labels.tolist() == [0, 1, 2, 4, 5]
    entering = dict(zip((0, 1, 2, 4), before.vectors, strict=True)) | dict(
        zip((1, 2, 5), mean_of(second_sets), strict=True)
    )
    rows = [entering[label] for label in (0, 1, 2, 4, 5)]
    expected = align(torch.stack(rows), "auto", seed=derive(0, "round", 2, "alignment"), num_classes=6).points
    assert torch.equal(after.vectors, expected)


def test_by_algorithm_2_round_1_has_a_random_direction_for_each_class(halves):
    """Seeded unit vectors, which a class that nobody reports goes on with."""
    settings = {"protonorm.initial-directions": "random", "seed": 3}

    def directions(seed):
        server = halves({"strategy": "protonorm"} | settings | {"seed": seed}, 6, 5).server
        return lone(server.begin().downloads[EVERYONE]).vectors

    both = halves({"strategy": "protonorm"} | settings, 6, 5)
    beginning = both.server.begin()
    sent = lone(beginning.downloads[EVERYONE])
    assert sent.labels.tolist() == list(range(6))
    torch.testing.assert_close(sent.vectors.norm(dim=1), torch.ones(6), rtol=0, atol=1e-6)
    assert torch.equal(sent.vectors, directions(3))
    assert not torch.allclose(sent.vectors, directions(4))
    targets = both.objective.targets(ClientState(None), beginning.downloads[EVERYONE])
    torch.testing.assert_close(targets.vectors, 10 * sent.vectors)
    sets = uploads((0, 2), 5)
    _, after = made(halves, settings, sets, 6, 5, state=beginning.state)
    rows = sent.vectors.clone()
    rows[[0, 2]] = mean_of(sets)
    expected = align(rows, "auto", seed=derive(3, "round", 1, "alignment"), num_classes=6).points
    assert torch.equal(after.vectors, expected)
    assert not halves({"strategy": "protonorm"}, 6, 5).server.begin().downloads


@pytest.mark.parametrize("solver", ["auto", "none"])
def test_a_zero_prototype_gets_a_direction_and_a_warning_with_its_class(halves, solver):
    sets = uploads((0, 2, 5), 5, clients=1)
    sets[0].vectors[1] = 0
    outcome, download = made(halves, {"protonorm.alignment": solver}, sets, 6, 5)
    (warning,) = outcome.warnings
    assert warning.startswith("the prototype of class 2 is zero")
    torch.testing.assert_close(download.vectors.norm(dim=1), torch.ones(3), rtol=0, atol=1e-6)
    assert float(torch.pdist(download.vectors).min()) > 0.01
    again = made(halves, {"protonorm.alignment": solver}, sets, 6, 5)[1]
    assert torch.equal(again.vectors, download.vectors)
