"""Class statistics as one: the mean is that of all samples; robust centres and scatters by hand; what liars cost."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from protosphere.prototypes.aggregation import class_centres, clipped
from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import EVERYONE
from protosphere.strategies.fedcof import gram_of
from protosphere.strategies.fedpft import bounded_mixtures
from protosphere.strategies.statistics import Statistics, from_half, pool, state_of, statistics_of, to_half
from tests.strategies.in_space import halves, samples, scores_of, unit, upload_of

K, D = 3, 4


def samples_of(seed, count=40):
    random = np.random.default_rng(seed)
    return random.normal(size=(count, D)) + 3, np.arange(count) % K


def statistics(z, labels):
    """Of one client's samples, each class weighing as many as it has."""
    classes = sorted(set(labels.tolist()))
    means = np.stack([z[labels == label].mean(axis=0) for label in classes])
    scatter = sum(np.cov(z[labels == label].T, bias=True) * (labels == label).sum() for label in classes)
    counts = torch.tensor([float((labels == label).sum()) for label in classes]).double()
    vectors = torch.tensor(means, dtype=torch.float64)
    return Statistics(PrototypeSet(torch.tensor(classes), vectors), counts, torch.tensor(scatter))


def test_the_mean_is_that_of_all_samples_and_their_scatter_around_it():
    clients = {5: samples_of(0), 2: samples_of(1, 7), 9: samples_of(2, 100)}
    pooled = pool({p: statistics(*samples) for p, samples in clients.items()}, K, D, "mean")
    z, labels = (np.concatenate(parts) for parts in zip(*clients.values(), strict=True))
    for label in range(K):
        assert np.allclose(pooled.sums[label], z[labels == label].sum(axis=0))
        assert float(pooled.weights[label]) == (labels == label).sum()
    assert np.allclose(pooled.moment, z.T @ z)


def test_points_outside_three_median_distances_are_moved_to_that_distance():
    # the geometric median of a square and of its centre is the centre
    square = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    points = torch.tensor([*square, [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(clipped(points), points)
    far = torch.cat([points[:4] * 2, torch.tensor([[0.0, 30.0], [0.0, -30.0]], dtype=torch.float64)])
    assert torch.allclose(clipped(far), torch.cat([far[:4], far[4:] / 5]), atol=1e-6)


@pytest.mark.parametrize("how", ["clipped-mean", "geometric-median"])
def test_of_two_holders_a_class_has_their_weighted_mean_and_of_three_a_robust_centre(how):
    labels = torch.tensor([0, 0, 1, 1, 1])
    vectors = torch.tensor([[0.0, 0], [3, 3], [0, 0], [0, 0], [9, 9]]).double()
    weights = torch.tensor([2.0, 1, 1, 1, 500]).double()
    centres = class_centres(labels, vectors, weights, 3, how)
    assert torch.allclose(centres[0], torch.ones(2).double())
    # the median distance from the median is 0
    assert torch.allclose(centres[1], torch.zeros(2).double(), atol=1e-9)
    assert torch.equal(centres[2], torch.zeros(2).double())


def test_with_robust_centres_no_client_scatters_more_than_the_median():
    clients = {p: statistics(*samples_of(p)) for p in range(5)}
    wide = Statistics(clients[4].means, clients[4].weights, 1000 * clients[4].scatter)
    pooled = pool(clients | {4: wide}, K, D, "clipped-mean")
    centres = pooled.sums / pooled.weights.unsqueeze(1)
    terms = []
    for client in (clients | {4: wide}).values():
        term = client.scatter.clone()
        for label, vector, weight in zip(client.means.labels, client.means.vectors, client.weights, strict=True):
            term += weight * torch.outer(vector - centres[label], vector - centres[label])
        terms.append(term)
    usual = np.median([float(term.trace()) for term in terms])
    expected = sum(term * min(1.0, usual / float(term.trace())) for term in terms)
    within = pooled.moment - pooled.sums.T @ centres
    assert torch.allclose(within, expected)
    assert float(within.trace()) < 5 * usual * 1.000001


def test_a_state_has_what_it_was_made_of():
    clients = {4: statistics(*samples_of(0)), 1: statistics(*samples_of(1, 2))}
    pooled = pool(clients, K, D, "mean")
    read = statistics_of(state_of(clients, pooled))
    assert read.keys() == clients.keys()
    for partition, client in clients.items():
        assert torch.equal(read[partition].means.vectors, client.means.vectors)
        assert torch.equal(read[partition].weights, client.weights)
        assert torch.allclose(read[partition].scatter, client.scatter)
    assert torch.equal(from_half(to_half(pooled.moment)[0]).triu(), pooled.moment.triu())
    assert statistics_of(state_of({}, pool({}, K, D, "mean"))) == {}


def test_mixtures_are_moved_whole_and_made_as_narrow_as_is_usual():
    def mixture(shift, spread):
        means = torch.tensor([[1.0 + shift, 0.0], [-1.0 + shift, 0.0]])
        return MixtureSet(
            torch.tensor([0, 0]), means, torch.full((2, 2), spread), torch.tensor([0.5, 0.5]), torch.tensor([8, 8])
        )

    clients = {0: mixture(0.0, 1.0), 1: mixture(0.0, 1.0), 2: mixture(50.0, 9.0)}
    bounded = bounded_mixtures(clients, "geometric-median")
    assert torch.allclose(bounded[0].means, clients[0].means, atol=1e-5)
    # of variance 1 + 2 is usual and 1 + 18 is not: both shrink by 3 / 19
    assert torch.allclose(bounded[2].variances, torch.full((2, 2), 9 * 3 / 19))
    assert torch.allclose(bounded[2].means[:, 0].abs(), torch.full((2,), (3 / 19) ** 0.5), atol=1e-5)
    # of two holders both stay as they are
    assert torch.equal(bounded_mixtures({0: clients[0], 2: clients[2]}, "clipped-mean")[2].means, clients[2].means)


def test_a_class_of_two_holders_varies_with_a_robust_centre_as_without():
    vectors = torch.tensor([[0.6, 0.0], [0.0, 0.6]])
    clients = [PrototypeSet(torch.tensor([0]), vectors[k : k + 1], torch.tensor([n])) for k, n in enumerate((10, 1))]
    centre = class_centres(torch.tensor([0, 0]), vectors, torch.tensor([10.0, 1.0]).double(), 1, "geometric-median")
    assert torch.allclose(gram_of(clients, 0.1, centre), gram_of(clients, 0.1))


def test_with_robust_centres_fed3r_takes_clients_that_keep_small_classes_at_home():
    labels = torch.tensor([0] * 40 + [1, 2, 3])
    features, _ = samples(n=43)
    settings = {"fed3r.fewest": 5, "fed3r.aggregation": "clipped-mean", "disclose-class-counts": True}
    server, objective = halves("fed3r", (43,), **settings)
    upload = upload_of(objective, features, labels)

    assert server.contradiction(0, upload) == ""
    state = server.aggregate({0: upload}, {}, 1).state

    z = unit(features[:40])
    assert torch.allclose(state["sums"][0], z.sum(dim=0), atol=1e-4)
    assert torch.allclose(from_half(state["scatters"][0]), (z - z.mean(0)).T @ (z - z.mean(0)), atol=1e-4)


def dealt_digits(alpha=1.0, clients=10):
    """Digits as unit vectors and labels by client, dealt by Dirichlet over classes; the last entry is for tests."""
    images, labels = load_digits(return_X_y=True)
    z = images - images.mean(axis=0)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    random = np.random.default_rng(1)
    owner = np.full(len(labels), clients)
    for label in range(10):
        rows = random.permutation(np.flatnonzero(labels == label))[len(labels) // 40 :]
        ends = (np.cumsum(random.dirichlet([alpha] * clients))[:-1] * len(rows)).astype(int)
        for client, part in enumerate(np.split(rows, ends)):
            owner[part] = client
    return [(z[owner == client], labels[owner == client]) for client in range(clients + 1)]


def accuracy_of(pooled, z, labels):
    """Test accuracy in % of the linear discriminant of pooled statistics."""
    centres = pooled.sums / pooled.weights.clamp(min=1e-9).unsqueeze(1)
    within = (pooled.moment - pooled.sums.T @ centres) / pooled.weights.sum()
    weights = torch.linalg.solve(within + 1e-3 * torch.eye(len(within)), centres.T)
    scores = torch.tensor(z) @ weights - 0.5 * (centres.T * weights).sum(dim=0)
    return 100 * float((scores.argmax(dim=1) == torch.tensor(labels)).double().mean())


@pytest.mark.parametrize("reflected", [False, True])
@pytest.mark.parametrize("along_the_classes", [False, True])
def test_a_liar_that_knows_what_the_others_send_costs_robust_means_little(reflected, along_the_classes):
    *clients, (z, labels) = dealt_digits()
    honest = {client: statistics(*samples) for client, samples in enumerate(clients) if len(samples[1])}
    everything = statistics(np.concatenate([z for z, _ in clients[:-1]]), np.concatenate([y for _, y in clients[:-1]]))
    means = everything.means.vectors
    middle = means.mean(dim=0)
    scatter = everything.scatter
    if along_the_classes:
        offsets = means - middle
        scatter = offsets.T @ offsets / offsets.square().sum() * float(scatter.trace())
    lies = 2 * middle - means if reflected else means.roll(1, 0)
    claim = 5 * float(np.median([len(labels) for _, labels in clients])) / 10
    liar = Statistics(PrototypeSet(torch.arange(10), lies), torch.full((10,), claim).double(), scatter)

    def accuracy(states, how):
        return accuracy_of(pool(states, 10, z.shape[1], how), z, labels)

    without = accuracy(honest, "mean")
    with_liar = honest | {max(honest): liar}
    assert accuracy(with_liar, "mean") < without - (2 if reflected else 8)
    for how in ("clipped-mean", "geometric-median"):
        assert accuracy(honest, how) > without - 1
        assert accuracy(with_liar, how) > without - 3.5


@pytest.mark.parametrize("method", ["protosphere", "fedcgs", "fedncm", "fed3r", "fedcof", "fedpft"])
def test_every_method_pools_as_its_setting_says(method):
    """One client of five calls every class by another's name, and has as many samples as the others together."""
    features, labels = samples(n=200, classes=4, dim=5)
    sizes = [40] * 4 + [160]
    settings = {"fedpft.epochs": 20} if method == "fedpft" else {}
    settings |= {"disclose-class-counts": True} if method == "fed3r" else {}

    def accuracy(aggregation):
        server, objective = halves(method, sizes, **{f"{method}.aggregation": aggregation}, **settings)
        uploads = {}
        for client in range(4):
            own = slice(40 * client, 40 * client + 40)
            uploads[client] = upload_of(objective, features[own], labels[own])
        uploads[4] = upload_of(objective, features[:160], (labels[:160] + 1) % 4)
        down = server.aggregate(uploads, {}, 1).downloads[EVERYONE]
        return float((scores_of(objective, down, features[160:]).argmax(dim=1) == labels[160:]).double().mean())

    assert accuracy("geometric-median") > accuracy("mean") + 0.2
