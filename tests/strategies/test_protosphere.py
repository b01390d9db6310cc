"""Protosphere: its sums are those of all samples together; its pool by hand; whose means cross; what was lost comes
again; what it shares with other methods of one exchange: test_one_exchange.py."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn.functional import normalize

from protosphere.launch.grid import LocalGrid
from protosphere.prototypes.prediction import covariance_of_sums
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.record.folder import RunFolder
from protosphere.strategies.contract import EVERYONE, ClientState
from protosphere.strategies.encoder_space import TEMPERATURES, choose_temperature
from protosphere.strategies.protosphere import spoken_for
from protosphere.strategies.statistics import from_half, pool, statistics_of, to_half
from tests.strategies.in_space import D, K, upload_of
from tests.strategies.in_space import halves as halves_of
from tests.strategies.watched import cut_in, put_back, start, without_time

N = 480
SIZES = {0: 120, 1: 120, 2: 240}


def samples_in_turn(seed=0):
    """Features of Gaussians with one covariance, and labels in turn, so that every stretch holds all classes alike."""
    random = np.random.default_rng(seed)
    labels = np.arange(N) % K
    features = random.normal(size=(K, D))[labels] * 2 + random.normal(size=(N, D)) @ random.normal(size=(D, D))
    return torch.tensor(features), torch.tensor(labels)


def halves(**settings):
    return halves_of("protosphere", SIZES.values(), **settings)


def uploads_of(objective, features, labels):
    uploads, start = {}, 0
    for partition, size in SIZES.items():
        own = slice(start, start + size)
        uploads[partition] = upload_of(objective, features[own], labels[own])
        start += size
    return uploads


NO_SAMPLES = torch.empty(0, D, dtype=torch.float64), torch.empty(0, dtype=torch.int64)


@pytest.mark.parametrize("shrinkage", [1e-9, 0.2])
def test_of_classes_held_alike_it_is_scikit_learn_s_discriminant_of_all_rows(shrinkage):
    features, labels = samples_in_turn()
    server, objective = halves(**{"protosphere.shrinkage": shrinkage, "protosphere.aggregation": "mean"})
    received = server.aggregate(uploads_of(objective, features, labels), {}, 1).downloads[EVERYONE]
    of = normalize(features.double(), dim=1)
    scores = objective.encoded_scores(objective.complete(received, *NO_SAMPLES), of).numpy()
    within = sum(np.cov(of[labels == k].numpy().T, bias=True) for k in range(K)) / K
    shrunk = Fixed((1 - shrinkage) * within + shrinkage * np.trace(within) / D * np.eye(D))
    oracle = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / K] * K, covariance_estimator=shrunk)
    oracle.fit(of.numpy(), labels.numpy())
    expected = oracle.decision_function(of.numpy())
    apart = scores - scores.mean(axis=1, keepdims=True), expected - expected.mean(axis=1, keepdims=True)
    assert np.allclose(*apart, rtol=5e-3, atol=5e-3 * np.abs(apart[1]).max())


class Fixed:
    """A covariance that scikit-learn takes as it is."""

    def __init__(self, covariance):
        self.covariance_ = covariance

    def fit(self, _):
        return self


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 1.0])
def test_the_pool_is_the_weighted_product_of_both_posteriors_with_the_client_s_own_classes_before(weight):
    _, objective = halves()
    model = SimpleNamespace(classify=lambda z: 3 * z[:, :K])
    counts = torch.tensor([30, 10])
    prototypes = PrototypeSet(torch.tensor([0, 2]), torch.zeros(2, D), counts)
    state = ClientState(model, prototypes=prototypes, pool_weight=weight)
    z, scores = torch.randn(6, D), torch.randn(6, K, dtype=torch.float64)
    priors = np.array([30, 0, 10, 0]) + 1 / K
    own = torch.softmax(3 * z[:, :K].double(), dim=1)
    shared = torch.softmax(scores, dim=1).numpy() * priors
    expected = own.numpy() ** (1 - weight) * (shared / shared.sum(axis=1, keepdims=True)) ** weight
    assert np.allclose(objective.pooled(state, z, scores).exp(), expected)
    assert torch.allclose(objective.pooled(state, z, None).exp(), own)
    # of a class that nobody spoke for the space says no more than the client's own priors
    scores[:, 1] = -torch.inf
    found = objective.pooled(state, z, scores)
    assert bool(found.isfinite().all())
    scores[:, 1] = scores[:, [0, 2, 3]].amin(dim=1)
    assert torch.equal(found, objective.pooled(state, z, scores))


@pytest.mark.parametrize(
    ("counts", "fewest", "share", "sent"),
    [
        ([10, 10, 10, 0], 5, 0.5, [0, 1, 2]),
        ([100, 4, 60, 0], 5, 0.5, [0, 2]),  # too few rows
        ([100, 26, 60, 30], 5, 0.5, [0, 2, 3]),  # below half of an even share, which is 54
        ([100, 26, 60, 30], 5, 0.4, [0, 1, 2, 3]),
        ([3, 2, 0, 0], 5, 0.5, [0]),  # none has enough: the largest
        ([3, 3, 1, 0], 1, 0.5, [0, 1]),
        ([0, 0, 0, 0], 5, 0.5, []),
    ],
)
def test_means_of_few_rows_do_not_cross(counts, fewest, share, sent):
    assert spoken_for(torch.tensor(counts), fewest, share).nonzero().flatten().tolist() == sent


def test_who_lost_what_it_was_sent_once_says_so_and_gets_it_again(home):
    class Losing(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            headers = [message.content.config_records.get("config", {}) for message in messages]
            if any(header.get("round") == 3 for header in headers) and messages[0].metadata.message_type == "train":
                (lost,) = home.glob("clients/*/0/received.safetensors")
                lost.unlink()
            return super().push_messages(messages)

    folder = start({"strategy": "protosphere", "rounds": 4, "spiral-points": 60}, grid=Losing)
    lines = RunFolder(folder).lines()
    assert [sorted(line["problems"]) for line in lines] == [[], [], [], ["0"], []]
    assert "round 1 has made" in lines[3]["problems"]["0"]
    down = [line["bytes"]["payload_down"] for line in lines]
    # with the evaluation of round 1, and again with that of round 3
    assert down == [0, down[1], 0, down[1] / 3, 0]
    assert lines[4]["evaluation"]["rules"]["encoder"] == lines[2]["evaluation"]["rules"]["encoder"]


def test_cut_after_an_evaluation_what_was_made_before_is_still_there(home):
    """With half the clients in a round several rounds make something new, which the evaluation brings before the
    checkpoint knows of it."""
    settings = {"strategy": "protosphere", "rounds": 3, "spiral-points": 60, "fraction-train": 0.5}
    with cut_in(2, after_evaluation=True):
        folder = start(settings)
    expected = without_time(folder)
    assert sum(line["bytes"]["payload_down"] > 0 for line in expected) > 1
    put_back(folder, "cut")
    start(settings | {"resume": str(folder)})
    assert without_time(folder) == expected


def test_a_scatter_below_zero_within_the_rounding_ends_no_run():
    """What the border lets through: the least eigenvalue that 16 bits may take from a scatter."""
    server, objective = halves()
    uploads = uploads_of(objective, *samples_in_turn())
    honest = from_half(uploads[2]["scatter"].tensors["scatter"][0].double())
    _, vectors = torch.linalg.eigh(honest)
    tolerance = 0.9 * 2.0**-11 * float(torch.linalg.matrix_norm(honest, 2))
    long, short = (torch.outer(vectors[:, place], vectors[:, place]) for place in (-1, 0))

    forged = 0.95 * float(honest.trace()) * long - tolerance * short
    uploads[2] = {**uploads[2], "scatter": Weights({"scatter": to_half(forged).float()})}
    outcome = server.aggregate(uploads, {}, 1)

    (whitening,) = outcome.downloads[EVERYONE]["discriminant"].tensors["whitening"]
    assert bool(whitening.isfinite().all())


# --- what a client adds of its own -------------------------------------------------------------------------------


def sent_without(labels, missing):
    """What comes down of clients none of which has the class `missing`, its Sigma, and the client half."""
    features, _ = samples_in_turn()
    server, objective = halves(**{"protosphere.shrinkage": 0.1})
    indices = torch.arange(N)[labels != missing]
    uploads = {}
    for partition, own in enumerate(indices.split(len(indices) // 2)):
        uploads[partition] = upload_of(objective, features[own], labels[own])
    outcome = server.aggregate(uploads, {}, 1)
    pooled = pool(statistics_of(outcome.state), K, D, "clipped-mean")
    covariance = covariance_of_sums(pooled.sums, pooled.weights, pooled.moment, 0.1)
    return outcome.downloads[EVERYONE], objective, covariance.numpy()


def test_a_class_that_nobody_sent_has_the_client_s_own_mean_under_the_shared_covariance():
    features, labels = samples_in_turn()
    received, objective, covariance = sent_without(labels, 3)
    own_rows = torch.cat([(labels == 3).nonzero()[:2, 0], (labels == 1).nonzero()[:5, 0]])
    z, own_labels = normalize(features.double(), dim=1), labels[own_rows]
    shared = objective.encoded_scores(objective.complete(received, *NO_SAMPLES), z)
    assert bool(shared[:, 3].isneginf().all())
    assert bool(shared[:, :3].isfinite().all())
    space = objective.complete(received, z[own_rows], own_labels)
    scores = objective.encoded_scores(space, z).numpy()
    others = received["discriminant"].tensors
    mean = z[own_rows[:2]].mean(dim=0).numpy()
    # of the classes that were sent, what the others' discriminant says is the same but for the temperature
    temperature = (scores[:, 1] - scores[:, 0]) / (shared[:, 1] - shared[:, 0]).numpy()
    assert np.allclose(temperature, temperature[0], rtol=1e-3)
    assert temperature[0] == pytest.approx(min(TEMPERATURES, key=lambda t: abs(t - temperature[0])), rel=1e-3)
    # by a library: log densities of Gaussians, whose differences are those of q
    of_class_0 = class_mean_of(others, 0, covariance)
    expected = multivariate_normal(mean, covariance).logpdf(z) - multivariate_normal(of_class_0, covariance).logpdf(z)
    found = (scores[:, 3] - scores[:, 0]) / temperature[0]
    assert np.allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())


def class_mean_of(tensors, label, covariance):
    """mu of a class, of A mu."""
    lower = np.linalg.cholesky(covariance)
    return lower @ tensors["means"][label].double().numpy()


@pytest.mark.parametrize("sure", [0.1, 1.0, 30.0])
def test_the_temperature_is_the_one_by_which_training_samples_are_most_likely_by_a_naive_search(sure):
    random = torch.Generator().manual_seed(3)
    labels = torch.randint(0, K, (40,), generator=random)
    scores = sure * torch.randn(40, K, generator=random, dtype=torch.float64)
    scores[torch.arange(30), labels[:30]] += 2 * sure
    counts = np.bincount(labels, minlength=K)
    likelihoods = []
    for t in TEMPERATURES:
        total = 0.0
        for row, label in zip(scores.numpy(), labels.tolist(), strict=True):
            odds = np.exp(t * row) * (counts + 1 / K)
            total += np.log(odds[label] / odds.sum())
        likelihoods.append(total)
    assert choose_temperature(scores, labels, K) == TEMPERATURES[int(np.argmax(likelihoods))]
