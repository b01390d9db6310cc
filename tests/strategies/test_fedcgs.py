"""FedCGS: its discriminant is scikit-learn's on all rows together, however they are dealt; what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.covariance import empirical_covariance, shrunk_covariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from protosphere.core.errors import SettingError
from protosphere.prototypes.prediction import covariance_of_sums, linear_discriminant
from protosphere.prototypes.release import B, contributions
from protosphere.prototypes.weights import Weights
from protosphere.strategies import read_settings
from protosphere.strategies.contract import EVERYONE, ClientState
from protosphere.strategies.fedcgs import layouts
from protosphere.wire.claims import CappedSampleCounts
from protosphere.wire.layouts import layout_lines
from protosphere.wire.payloads import Identity
from tests.strategies.needs import ASKED

K, D, N = 4, 5, 400


def rows(seed=0, n=N, classes=K):
    """Features u of Gaussians with one covariance, and labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    mixing = random.normal(size=(D, D))
    features = random.normal(size=(classes, D))[labels] * 2 + random.normal(size=(n, D)) @ mixing
    return torch.tensor(features), torch.tensor(labels)


def halves_of(classes=K, lines=None, sizes=(5,) * 9, **settings):
    run = read_settings(ASKED["fedcgs"] | {"feature-dim": D} | settings)
    server = run.method.server(run.settings, run.options)
    objective = run.method.objective(run.settings, run.options, classes)
    if lines is None:
        lines = tuple(line for part, w in objective.shared(None).items() for line in layout_lines(part, w.layout))
    identities = {p: Identity(p, 9, "net", rows=(size, 0, 0), layouts=lines) for p, size in enumerate(sizes)}
    server.meet(classes, D, identities)
    return server, objective


def outcome_of(deal, features, labels, classes=K, **settings):
    """What the server makes of clients that hold these rows each, and the objective that judges by it."""
    server, objective = halves_of(classes, sizes=[len(labels[own]) for own in deal], **settings)
    uploads = {}
    for partition, own in enumerate(deal):
        state = ClientState(None, encoded=lambda own=own: (features[own], labels[own]))
        uploads[partition] = objective.upload(state, 1)
        assert objective.upload(state, 2) is None
    uploads = {partition: upload for partition, upload in uploads.items() if upload is not None}
    return server.aggregate(uploads, {}, 1).downloads[EVERYONE], objective


def as_sent(features):
    """The directions of rows as they are added up."""
    return contributions(features)[:, :-1].double() / B


def deals(labels):
    """The same rows at one client, dealt in turn, by class, and to clients one of whom has none."""
    every = torch.arange(len(labels))
    return {
        "one": [every],
        "in turn": [every[i::3] for i in range(3)],
        "by class": [every[labels == label] for label in range(K)],
        "unevenly": [every[:7], every[:0], every[7:300], every[300:]],
    }


# --- the closed form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 0.7])
def test_of_exact_sums_it_is_scikit_learn_s_discriminant(shrinkage):
    features, labels = rows()
    counts = torch.bincount(labels, minlength=K)
    sums = torch.zeros(K, D, dtype=torch.float64).index_add_(0, labels, features)
    covariance = covariance_of_sums(sums, counts, features.T @ features, shrinkage)
    weight, bias = linear_discriminant(sums / counts.unsqueeze(1), counts, covariance)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage or None).fit(features.numpy(), labels)
    np.testing.assert_allclose(covariance, theirs.covariance_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(weight, theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(bias, theirs.intercept_, rtol=1e-6)


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 0.7])
def test_the_total_covariance_is_scikit_learn_s_and_that_within_classes_and_between_them(shrinkage):
    features, labels = rows()
    counts = torch.bincount(labels, minlength=K)
    sums = torch.zeros(K, D, dtype=torch.float64).index_add_(0, labels, features)
    total = covariance_of_sums(sums, counts, features.T @ features, shrinkage, around_the_mean=True)
    theirs = shrunk_covariance(empirical_covariance(features.numpy()), shrinkage)
    np.testing.assert_allclose(total, theirs, rtol=1e-6, atol=1e-9)
    within = covariance_of_sums(sums, counts, features.T @ features, shrinkage)
    offsets = (sums / counts.unsqueeze(1) - features.mean(dim=0)) * (counts / len(labels)).sqrt().unsqueeze(1)
    between = (offsets.T @ offsets).numpy()
    np.testing.assert_allclose(total - within, shrunk_covariance(between, shrinkage), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("deal", deals(rows()[1]))
def test_by_the_total_covariance_clients_judge_by_the_one_of_all_rows(deal):
    """However rows are dealt: the Gaussian discriminant with scikit-learn's covariance of all directions."""
    features, labels = rows()
    chosen = {"fedcgs.covariance": "total", "fedcgs.shrinkage": 0.1}
    received, objective = outcome_of(deals(labels)[deal], features, labels, **chosen)
    new = as_sent(rows(seed=1)[0]).numpy()
    known = as_sent(features).numpy()
    inverse = np.linalg.inv(shrunk_covariance(empirical_covariance(known), 0.1))
    scores = []
    for label in range(K):
        own = known[labels.numpy() == label]
        offsets = new - own.mean(axis=0)
        scores.append(np.log(len(own) / len(known)) - np.einsum("nd,de,ne->n", offsets, inverse, offsets) / 2)
    expected = torch.softmax(torch.tensor(np.array(scores).T), dim=1)
    found = torch.softmax(objective.encoded_scores(received, torch.tensor(new)), dim=1)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("deal", deals(rows()[1]))
def test_however_rows_are_dealt_clients_judge_as_if_all_lay_together(deal):
    features, labels = rows()
    received, objective = outcome_of(deals(labels)[deal], features, labels, **{"fedcgs.shrinkage": 0.1})
    new, _ = rows(seed=1)
    found = torch.softmax(objective.encoded_scores(received, as_sent(new)), dim=1)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(as_sent(features).numpy(), labels)
    # sums cross as float32
    np.testing.assert_allclose(found, theirs.predict_proba(as_sent(new).numpy()), atol=2e-5)


def test_where_clients_weigh_alike_it_is_the_discriminant_of_samples_that_weigh_so():
    """`client-weights` "equal": a sample of a client of n weighs median / n, by loops over samples."""
    features, labels = rows()
    deal = deals(labels)["unevenly"]
    sizes = [len(own) for own in deal]
    median = np.median([size for size in sizes if size])
    settings = {"fedcgs.shrinkage": 0.0, "client-weights": "equal"}
    server, objective = halves_of(sizes=sizes, **settings)
    believed = CappedSampleCounts(server.identities, 20, "equal")
    server.meet(K, D, believed.identities)
    uploads = {}
    for partition, own in enumerate(deal):
        upload = objective.upload(ClientState(None, encoded=lambda own=own: (features[own], labels[own])), 1)
        if upload is not None:
            uploads[partition] = upload
    received = server.aggregate(believed.uploads(uploads)[0], {}, 1).downloads[EVERYONE]
    known, weights = as_sent(features).numpy(), np.zeros(N)
    for own in deal:
        weights[own] = median / max(len(own), 1)
    means = np.stack(
        [np.average(known[labels == label], axis=0, weights=weights[labels == label]) for label in range(K)]
    )
    covariance = np.zeros((D, D))
    for row, label, weight in zip(known, labels.tolist(), weights, strict=True):
        covariance += weight / weights.sum() * np.outer(row - means[label], row - means[label])
    new, scores = as_sent(rows(seed=1)[0]).numpy(), []
    for label in range(K):
        offsets = new - means[label]
        share = weights[labels == label].sum() / weights.sum()
        scores.append(np.log(share) - np.einsum("nd,de,ne->n", offsets, np.linalg.inv(covariance), offsets) / 2)
    expected = torch.softmax(torch.tensor(np.array(scores).T), dim=1)
    found = torch.softmax(objective.encoded_scores(received, torch.tensor(new)), dim=1)
    np.testing.assert_allclose(found, expected, atol=2e-5)


# --- what few, or hostile, clients make of it ------------------------------------------------------------------


def test_a_class_that_nobody_has_is_never_answered_and_one_that_somebody_has_by_all():
    features, labels = rows(classes=3)
    received, objective = outcome_of([labels == 0, labels == 1, labels == 2], features, labels)
    scores = objective.encoded_scores(received, as_sent(features))
    assert bool(torch.isneginf(scores[:, 3]).all())
    assert set(scores.argmax(dim=1).tolist()) == {0, 1, 2}
    assert objective.encoded_scores(None, as_sent(features)) is None


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", ["one row", "a row a class", "the same rows", "no direction", "a dimension less"])
def test_few_or_equal_rows_leave_a_finite_discriminant(kind, shrinkage):
    features, labels = {
        "one row": (torch.ones(1, D), torch.zeros(1, dtype=torch.int64)),
        "a row a class": (rows(n=K)[0], torch.arange(K)),
        "the same rows": (torch.ones(20, D), torch.arange(20) % 2),
        "no direction": (torch.full((8, D), torch.nan), torch.arange(8) % 2),
        "a dimension less": (rows()[0] * torch.tensor([1, 1, 1, 1, 0]), rows()[1]),
    }[kind]
    received, objective = outcome_of([slice(None)], features, labels, **{"fedcgs.shrinkage": shrinkage})
    assert max(float(tensor.norm()) for tensor in received["discriminant"].tensors.values()) <= 1e4
    known = objective.encoded_scores(received, as_sent(features))[:, labels.unique()]
    assert bool(known.isfinite().all())
    if kind in ("a row a class", "a dimension less"):
        right = (objective.encoded_scores(received, as_sent(features)).argmax(dim=1) == labels).double().mean()
        assert right > 0.6


def test_a_client_that_sends_no_moment_of_its_rows_leaves_it_finite():
    features, labels = rows()
    server, objective = halves_of()
    upload = objective.upload(ClientState(None, encoded=lambda: (features, labels)), 1)
    lie = {**upload, "moment": Weights({"moment": -9e3 * torch.eye(D)})}
    received = server.aggregate({0: upload, 1: lie}, {}, 1).downloads[EVERYONE]
    assert all(bool(tensor.isfinite().all()) for tensor in received["discriminant"].tensors.values())


@pytest.mark.parametrize("part", ["moment", "discriminant"])
def test_other_dimensions_are_refused_before_round_1(part):
    other = layouts(K, D) | {part: layouts(K + 1, D + 1)[part]}
    with pytest.raises(SettingError, match=rf"Client 0: it has another {part}"):
        halves_of(lines=tuple(line for name, layout in other.items() for line in layout_lines(name, layout)))


def test_where_clients_are_sampled_it_says_whose_rows_are_missing():
    assert halves_of()[0].notices() == ()
    assert "`fraction-train`" in halves_of(**{"fraction-train": 0.5})[0].notices()[0]


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda means, moment: (-15 * means, moment), "norm 1 at most"),
        (lambda means, moment: (means, 0 * moment), "vary by less than nothing"),
        (lambda means, moment: (0.9 * means.roll(1, 0), 3 * moment), "add up to 1"),
    ],
)
def test_statistics_that_no_rows_have_are_refused(lie, words):
    features, labels = rows()
    server, objective = halves_of(sizes=(N,))
    upload = objective.upload(ClientState(None, encoded=lambda: (features, labels)), 1)
    assert server.contradiction(0, upload) == ""
    own, moment = upload["prototypes"], upload["moment"].tensors["moment"]
    vectors, moment = lie(own.vectors, moment)
    told = {"prototypes": replace(own, vectors=vectors), "moment": Weights({"moment": moment})}
    assert words in server.contradiction(0, told)


def test_moments_that_float16_has_rounded_end_no_honest_run(run, metrics):
    """On digits: the means that cross are another rounding than the second moment's."""
    settings = {"strategy": "fedcgs", "dataset": "digits", "encoder": "handcrafted", "rounds": 2}
    folder = run(settings | {"disclose-class-counts": True, "wire-dtype": "float16"}, clients=10)
    assert not any(line["problems"] for line in metrics(folder))
    assert metrics(folder)[-1]["evaluation"]["rules"]["encoder"]["test"]["mean"] > 0.8
