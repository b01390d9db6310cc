"""FedCOF: the scatter of clients' means is a class's covariance without bias; its classifier is the paper's formula by
loops; few clients a class; less crosses than with second moments."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import EVERYONE
from protosphere.strategies.fedcof import LEAST_VARIANCE, mean_variance, scatter_of
from tests.strategies.in_space import D, K, N, exchanged, halves, partitions, samples, unit, upload_of


def by_loops(clients, gamma, classes=K, dim=D):
    """W^T of clients' (z, labels), each w_c of length 1, as the paper's algorithm goes."""
    gram, total, everything, sums = np.zeros((dim, dim)), 0, np.zeros(dim), np.zeros((classes, dim))
    variance = 0.0
    for label in range(classes):
        own = [z[y == label] for z, y in clients if (y == label).any()]
        if own:
            together = np.concatenate(own)
            variance += ((together - together.mean(axis=0)) ** 2).sum() / (sum(len(z) for z, _ in clients) * dim)
    for label in range(classes):
        own = [z[y == label] for z, y in clients if (y == label).any()]
        number = sum(map(len, own))
        if not number:
            continue
        sums[label] = sum(z.sum(axis=0) for z in own)
        covariance = gamma * variance * np.eye(dim)
        for z in own:
            deviation = z.mean(axis=0) - sums[label] / number
            covariance += len(z) * np.outer(deviation, deviation) / max(len(own) - 1, 1)
        gram += (number - 1) * covariance
        total, everything = total + number, everything + sums[label]
    gram += np.outer(everything, everything) / total
    weight = np.linalg.solve(gram, sums.T).T
    return weight / np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), 1e-12)


@pytest.mark.parametrize("gamma", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("kind", partitions(samples()[1]))
def test_the_classifier_is_the_paper_s_formula_by_loops(kind, gamma):
    features, labels = samples()
    lists = partitions(labels)[kind]
    received, objective, _ = exchanged("fedcof", lists, features, labels, **{"fedcof.gamma": gamma})
    clients = [(unit(features[indices]).numpy(), labels[indices].numpy()) for indices in lists]
    new = unit(samples(seed=1)[0])
    expected = new.numpy() @ by_loops(clients, gamma).T
    np.testing.assert_allclose(objective.encoded_scores(received, new), expected, atol=1e-5)


@pytest.mark.parametrize("sizes", [(5,) * 8, (1, 2, 40), (3, 3), (1,) * 30], ids=["alike", "unlike", "two", "one each"])
def test_over_random_splits_the_scatter_has_the_covariance_as_its_mean(sizes):
    """Of a known Gaussian, within five standard errors in each direction."""
    random = np.random.default_rng(0)
    mixing = random.normal(size=(3, 3))
    covariance, draws = mixing @ mixing.T, 4000
    means = np.stack([random.normal(size=(draws, size, 3)).mean(axis=1) for size in sizes], axis=1) @ mixing.T + 7
    found = [scatter_of(each, torch.tensor(sizes)).numpy() for each in torch.from_numpy(means)]
    error = np.std(found, axis=0) / draws**0.5
    assert (np.abs(np.mean(found, axis=0) - covariance) < 5 * error).all()
    # so many draws would tell a factor of (K_c - 1) / K_c
    biased = (len(sizes) - 1) / len(sizes) * np.mean(found, axis=0)
    assert not (np.abs(biased - covariance) < 5 * error).all()


def test_the_variance_within_classes_follows_from_means_of_unit_vectors():
    features, labels = samples()
    z = unit(features)
    counts = torch.bincount(labels, minlength=K).double()
    sums = torch.zeros(K, D, dtype=torch.float64).index_add_(0, labels, z)
    within = z - (sums / counts.unsqueeze(1))[labels]
    assert mean_variance(sums, counts) == pytest.approx(float(within.square().mean()))
    # of classes that do not vary
    assert mean_variance(normalize(sums, dim=1), torch.ones(K)) == LEAST_VARIANCE


def test_with_many_clients_it_is_nearer_to_what_second_moments_give_than_to_the_nearest_mean():
    """Of Gaussians that differ where they vary little, 100 clients of 40 samples, each w_c of length 1."""
    random = np.random.default_rng(1)
    labels = torch.tensor(random.integers(0, K, 6000))
    offsets = np.pad(random.normal(size=(K, 4)) * 0.3, ((0, 0), (6, 0)))
    spread = np.array([1.5] * 6 + [0.15] * 4)
    features = torch.tensor(offsets[labels] + random.normal(size=(6000, 10)) * spread)
    lists = [torch.arange(4000)[i::100] for i in range(100)]
    right = {}
    for strategy, settings in (
        ("fedncm", {}),
        ("fed3r", {"fed3r.normalise": True}),
        ("fedcof", {"fedcof.gamma": 0.01}),
    ):
        received, objective, _ = exchanged(strategy, lists, features[:4000], labels[:4000], **settings)
        scores = objective.encoded_scores(received, unit(features[4000:]))
        right[strategy] = float((scores.argmax(dim=1) == labels[4000:]).double().mean())
    assert right["fedcof"] > right["fedncm"] + 0.1
    assert right["fedcof"] > right["fed3r"] - 0.1


def test_it_sends_d_squared_values_fewer_than_with_second_moments():
    features, labels = samples()
    values = {}
    for strategy in ("fedcof", "fedncm", "fed3r"):
        upload = upload_of(halves(strategy)[1], features, labels)
        values[strategy] = sum(
            tensor.numel()
            for part in upload.values()
            for name, tensor in part.fields().items()
            if name not in ("labels", "counts")
        )
    assert values["fed3r"] - values["fedcof"] == D * D
    assert values["fedcof"] == values["fedncm"] == K * D


def test_classes_of_one_client_are_named_and_stay_apart():
    features, labels = samples()
    _, _, outcome = exchanged("fedcof", partitions(labels)["in turn"], features, labels)
    assert outcome.warnings == ()
    # classes 0 and 1 at one client each, the others at two
    client = torch.where(labels < 2, labels, torch.arange(N) % 2)
    lists = [(client == number).nonzero().flatten() for number in (0, 1)]
    received, objective, outcome = exchanged("fedcof", lists, features, labels)
    assert outcome.warnings[0].startswith("one client alone sent the mean of class 0, class 1: ")
    scores = objective.encoded_scores(received, unit(features))
    assert set(scores.argmax(dim=1).tolist()) == set(range(K))


@pytest.mark.parametrize("kind", ["one sample", "one sample a class", "one class a client", "a class less"])
def test_few_samples_or_clients_leave_a_finite_classifier(kind):
    features, labels = samples()
    if kind.startswith("one sample"):
        labels = torch.arange(1 if kind == "one sample" else K)
        features = features[: len(labels)]
    if kind == "a class less":
        labels = labels.clamp(max=K - 2)
    lists = [(labels == label).nonzero().flatten() for label in labels.unique()]
    received, objective, outcome = exchanged("fedcof", lists, features, labels)
    scores = objective.encoded_scores(received, unit(features))
    assert bool(scores[:, labels.unique()].isfinite().all())
    if kind == "one sample a class":
        assert bool((scores.argmax(dim=1) == labels).all())
    assert outcome.warnings
    if kind == "a class less":
        assert bool(torch.isneginf(scores[:, K - 1]).all())


def test_where_clients_are_sampled_each_is_heard_once_and_classes_are_named_at_the_end():
    features, labels = samples()
    server, objective = halves("fedcof", (100,) * 4, **{"fraction-train": 0.5})
    uploads = {p: upload_of(objective, features[p::4], labels[p::4]) for p in range(4)}
    first = server.aggregate({1: uploads[1]}, {}, 1)
    assert first.warnings == ()
    second = server.aggregate({p: uploads[p] for p in (0, 1, 2, 3)}, first.state, 6)
    assert second.warnings == ()
    whole = server.aggregate(uploads, {}, 1)
    weights = [outcome.downloads[EVERYONE]["classifier"].tensors["weight"] for outcome in (second, whole)]
    assert torch.equal(*weights)
    alone = server.aggregate({1: uploads[1]}, {}, 6).warnings
    assert "client 0, client 2, client 3 sent nothing" in alone[0]
    assert "one client alone" in alone[1]


def test_of_a_release_means_count_in_units_of_samples():
    """Noise may make them longer than any sample."""
    private = {"privacy": "release", "privacy-scale": 10.0, "disclose-class-counts": False}
    server, _ = halves("fedcof", (100,) * 3, **private)
    plain, objective = halves("fedcof", (100,) * 3)
    features, labels = samples()
    uploads = {p: upload_of(objective, features[p::3], labels[p::3]) for p in range(3)}
    scaled = {
        p: {"prototypes": PrototypeSet(u["prototypes"].labels, 10 * u["prototypes"].vectors, u["prototypes"].counts)}
        for p, u in uploads.items()
    }
    assert server.contradiction(0, scaled[0]) == ""
    weights = [
        half.aggregate(payloads, {}, 1).downloads[EVERYONE]["classifier"].tensors["weight"]
        for half, payloads in ((server, scaled), (plain, uploads))
    ]
    np.testing.assert_allclose(*weights, atol=1e-5)
