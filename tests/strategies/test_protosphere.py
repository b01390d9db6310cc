"""Protosphere: its sums are those of all rows together; its pool by hand; whose means cross; who is heard once."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn.functional import normalize

from protosphere.core.errors import RunError, SettingError
from protosphere.launch.grid import LocalGrid
from protosphere.prototypes.prediction import covariance_of_sums
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.features.download_once import DownloadOnce
from protosphere.strategies import read_settings
from protosphere.strategies.contract import EVERYONE, ClientState
from protosphere.strategies.encoder_space import TEMPERATURES, choose_temperature
from protosphere.strategies.protosphere import spoken_for
from protosphere.strategies.statistics import HEAVIEST, Pooled, bounded_by, semidefinite
from protosphere.wire.codec import Codec
from protosphere.wire.payloads import Identity, Instruction, Report
from protosphere.wire.weights import layout_lines
from tests.strategies.watched import start

K, D, N = 4, 5, 480
SIZES = {0: 120, 1: 120, 2: 240}


def rows(seed=0):
    """Features of Gaussians with one covariance, and labels in turn, so that every stretch holds all classes alike."""
    random = np.random.default_rng(seed)
    labels = np.arange(N) % K
    features = random.normal(size=(K, D))[labels] * 2 + random.normal(size=(N, D)) @ random.normal(size=(D, D))
    return torch.tensor(features), torch.tensor(labels)


def halves(sizes=SIZES, **settings):
    run = read_settings({"strategy": "protosphere", "feature-dim": D} | settings)
    server = run.method.server(run.settings, run.options)
    objective = run.method.objective(run.settings, run.options, K)
    lines = tuple(line for part, w in objective.shared(None).items() for line in layout_lines(part, w.layout))
    server.meet(Codec(K, D), {p: Identity(p, 9, "net", rows=(n, 90 - n, 5), layouts=lines) for p, n in sizes.items()})
    return server, objective


def uploads_of(objective, features, labels, round_number=1):
    ends = np.cumsum([0, *SIZES.values()])
    own = {p: slice(ends[p], ends[p + 1]) for p in SIZES}
    states = {p: ClientState(None, encoded=lambda s=s: (features[s], labels[s])) for p, s in own.items()}
    return {p: objective.upload(state, round_number) for p, state in states.items()}


NO_SAMPLES = torch.empty(0, D, dtype=torch.float64), torch.empty(0, dtype=torch.int64)


@pytest.mark.parametrize("shrinkage", [1e-9, 0.2])
def test_of_classes_held_alike_it_is_scikit_learn_s_discriminant_of_all_rows(shrinkage):
    features, labels = rows()
    server, objective = halves(**{"protosphere.shrinkage": shrinkage})
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


def test_how_rows_are_dealt_changes_nothing_but_the_weights_of_unlike_classes():
    """Sigma and mu by loops over clients, classes and rows."""
    features, labels = rows(1)
    labels = torch.where((torch.arange(N) < 120) & (labels == 3), 0, labels)  # the first client lacks a class
    server, objective = halves(**{"protosphere.shrinkage": 1e-9, "protosphere.outliers": "keep"})
    uploads = uploads_of(objective, features, labels)
    state = server.aggregate(uploads, {}, 1).state
    of, ends = normalize(features.double(), dim=1), np.cumsum([0, *SIZES.values()])
    sums, weights = np.zeros((K, D)), np.zeros(K)
    moment = np.zeros((D, D))
    for p, n in SIZES.items():
        own, y = of[ends[p] : ends[p + 1]].numpy(), labels[ends[p] : ends[p + 1]].numpy()
        sent = sorted(set(y.tolist()))
        for k in sent:
            mean = own[y == k].mean(axis=0)
            sums[k] += n / len(sent) * mean
            weights[k] += n / len(sent)
            moment += n / len(sent) * np.outer(mean, mean)
            for row in own[y == k]:
                moment += np.outer(row - mean, row - mean)
    found = Pooled.of(state, D).sums(K)
    assert np.allclose(found[0], sums, rtol=1e-5, atol=1e-4)
    assert np.allclose(found[1], weights)
    assert np.allclose(found[2], moment, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 1.0])
def test_the_pool_is_the_weighted_product_of_both_posteriors_with_the_client_s_own_classes_before(weight):
    _, objective = halves()

    class Head:
        def classify(self, z):
            return 3 * z[:, :K]

    counts = torch.tensor([30, 10])
    prototypes = PrototypeSet(torch.tensor([0, 2]), torch.zeros(2, D), counts)
    state = ClientState(Head(), prototypes=prototypes, pool_weight=weight)
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
    ("counts", "fewest", "sent"),
    [
        ([10, 10, 10, 0], 5, [0, 1, 2]),
        ([100, 4, 60, 0], 5, [0, 2]),  # too few rows
        ([100, 26, 60, 30], 5, [0, 2, 3]),  # below half of an even share, which is 54
        ([3, 2, 0, 0], 5, [0]),  # none has enough: the largest
        ([3, 3, 1, 0], 1, [0, 1]),
        ([0, 0, 0, 0], 5, []),
    ],
)
def test_means_of_few_rows_do_not_cross(counts, fewest, sent):
    assert spoken_for(torch.tensor(counts), fewest).nonzero().flatten().tolist() == sent


def test_what_crosses_tells_no_class_counts_and_half_a_scatter():
    _, objective = halves()
    upload = uploads_of(objective, *rows())[0]
    means, scatter = upload["prototypes"], upload["scatter"]
    assert means.counts is None
    assert [*scatter.tensors["scatter"].shape] == [1, D * (D + 1) // 2]
    assert torch.equal(scatter.tensors["scatter"], scatter.tensors["scatter"].half().float())


def test_a_client_is_heard_once_and_later_ones_are_added():
    features, labels = rows()
    server, objective = halves(**{"fraction-train": 0.5, "protosphere.exchanges": 3})
    uploads = uploads_of(objective, features, labels)
    assert [server.uploads_due(number) for number in (1, 3, 4)] == [True, True, False]
    assert uploads_of(objective, features, labels, 4) == dict.fromkeys(SIZES)
    whole = server.aggregate(uploads, {}, 1).state
    first = server.aggregate({p: uploads[p] for p in (0, 2)}, {}, 1)
    then = server.aggregate({p: uploads[p] for p in (0, 1)}, first.state, 2)
    assert then.figures["heard"] == 3
    both = zip(Pooled.of(then.state, D).sums(K), Pooled.of(whole, D).sums(K), strict=True)
    assert all(torch.allclose(*each) for each in both)
    assert halves(**{"fraction-train": 0.1})[0].uploads_due(30)
    assert not halves()[0].uploads_due(2)


def test_what_came_once_judges_in_every_round(home):
    folder = start({"strategy": "protosphere", "rounds": 4, "spiral-points": 60})
    lines = RunFolder(folder).lines()
    assert [line["bytes"]["payload_down"] > 0 for line in lines] == [False, True, False, False, False]
    measured = [line["evaluation"]["rules"].get("encoder") for line in lines]
    assert measured[0] is None
    assert all(each == measured[1] for each in measured[2:])
    assert measured[1] is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"privacy": "release", "encoder": "random"}, ["privacy", "protosphere"]),
        ({"encoder": "what"}, ["encoder"]),
        ({"inference": "received"}, ["inference", "pool"]),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(settings, words):
    with pytest.raises(SettingError) as refused:
        read_settings({"strategy": "protosphere"} | settings)
    assert all(word in str(refused.value) for word in words)


def test_who_lost_what_it_was_sent_once_says_so_and_gets_it_again(home):
    class Losing(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            if any(message.content.config_records.get("instruction", {}).get("round") == 4 for message in messages):
                (lost,) = home.glob("clients/*/0/received.safetensors")
                lost.unlink()
            return super().push_messages(messages)

    folder = start({"strategy": "protosphere", "rounds": 6, "spiral-points": 60}, grid=Losing)
    lines = RunFolder(folder).lines()
    assert [sorted(line["problems"]) for line in lines] == [[], [], [], ["0"], [], [], []]
    assert "round 1 has made" in lines[3]["problems"]["0"]
    down = [line["bytes"]["payload_down"] for line in lines]
    assert down == [0, down[1], 0, 0, down[1] / 3, 0, 0]
    assert lines[5]["evaluation"]["rules"]["encoder"] == lines[2]["evaluation"]["rules"]["encoder"]


def test_who_answers_has_what_was_offered_and_who_does_not_gets_it_again():
    run = SimpleNamespace(settings=None, exchange=SimpleNamespace(once=True))
    feature, report = DownloadOnce(run, None), Report(0, 1)
    download = {"payload": PrototypeSet.empty(2)}

    def offer(feature, partition, payload=True):
        told = feature.instruct(partition, Instruction("run", 1, True, **(download if payload else {})))
        return told.made, payload and told.payload is None

    assert offer(feature, 0, payload=False) == (0, False)
    feature.review([Reply(0, True, report)])
    feature.made = 1
    assert [offer(feature, p) for p in (0, 1)] == [(1, False)] * 2
    feature.review([Reply(0, True, report), Reply(1, True, problem="late")])
    kept = DownloadOnce(run, None)
    kept.load(json.loads(json.dumps(feature.state())), {})
    assert [offer(kept, p) for p in (0, 1)] == [(1, True), (1, False)]
    kept.review([Reply(0, True, problem="lost")])
    assert offer(kept, 0) == (1, False)
    kept.review([Reply(0, True, report)])
    kept.made = 2
    assert offer(kept, 0) == (2, False)


def test_the_bound_of_a_message_is_no_temperature():
    features, labels = rows()
    of = normalize(features.double(), dim=1)
    found = []
    for bound in (1e9, 1e4, 20.0):
        server, objective = halves(**{"max-prototype-norm": bound, "protosphere.shrinkage": 1e-9})
        received = server.aggregate(uploads_of(objective, features, labels), {}, 1).downloads[EVERYONE]
        norms = [float(tensor.norm()) for tensor in received["discriminant"].tensors.values()]
        assert max(norms) <= bound
        found.append(objective.encoded_scores(objective.complete(received, *NO_SAMPLES), of))
    largest = found[0].abs().max()
    assert largest > 20
    assert all(torch.allclose(each, found[0], atol=float(5e-3 * largest)) for each in found)


def test_of_a_client_without_rows_nothing_is_added_and_who_was_not_heard_is_named():
    features, labels = rows()
    server, objective = halves()
    nothing = ClientState(None, encoded=lambda: (torch.empty(0, D), torch.empty(0, dtype=torch.int64)))
    empty = objective.upload(nothing, 1)
    alone = server.aggregate({1: empty}, {}, 1)
    assert (alone.downloads, alone.figures["heard"]) == ({}, 1)
    assert "client 0, client 2 sent no statistics" in alone.warnings[0]
    uploads = uploads_of(objective, features, labels)
    with_it = server.aggregate({0: uploads[0], 1: empty, 2: uploads[2]}, {}, 1)
    without = server.aggregate({0: uploads[0], 2: uploads[2]}, {}, 1)
    assert with_it.warnings == ()
    assert torch.equal(with_it.state["scatter"], without.state["scatter"])
    assert torch.equal(with_it.state["sums"], without.state["sums"])
    # who comes after one without rows
    later = server.aggregate({0: uploads[0], 2: uploads[2]}, alone.state, 2)
    assert torch.equal(later.state["sums"], without.state["sums"])
    with pytest.raises(RunError, match="earlier version"):
        server.aggregate({0: uploads[0]}, {"heard": torch.tensor([1]), "sums": torch.zeros(K, D)}, 2)
    # nobody new: what went down stays as it was
    again = server.aggregate({0: uploads[0]}, with_it.state, 2)
    assert (again.downloads, again.keeps) == ({}, True)


# --- clients who contradict the others ---------------------------------------------------------------------------


def federation_of(number, **settings):
    """Uploads of clients that each hold all classes, with a server that knows them."""
    random = np.random.default_rng(4)
    centres = 6 * random.normal(size=(K, D)) + 20
    server, objective = halves(**settings)
    sizes = dict.fromkeys(range(number), 60)
    layouts = server.identities[0].layouts
    identities = {
        p: Identity(p, number, "net", classes=tuple(range(K)), rows=(n, 0, 0), layouts=layouts)
        for p, n in sizes.items()
    }
    server.meet(Codec(K, D), identities)
    uploads = {}
    for p, n in sizes.items():
        labels = np.arange(n) % K
        features = torch.tensor(centres[labels] + random.normal(size=(n, D))).float()
        uploads[p] = objective.upload(ClientState(None, encoded=lambda f=features, y=labels: (f, torch.tensor(y))), 1)
    return server, uploads


def turned(upload):
    """Each class has the mean of another."""
    parts = upload
    own = parts["prototypes"]
    return {**parts, "prototypes": PrototypeSet(own.labels, own.vectors.roll(1, 0))}


def means_of(download):
    return download["discriminant"].tensors["means"]


def test_who_contradicts_the_others_is_left_out_and_named():
    server, uploads = federation_of(5)
    honest = server.aggregate(uploads, {}, 1)
    assert honest.warnings == ()
    assert set(honest.downloads) == {EVERYONE}
    found = server.aggregate({**uploads, 3: turned(uploads[3])}, {}, 1)
    (warning,) = found.warnings
    assert "client 3 is left out" in warning
    assert "protosphere.outliers" in warning
    without = server.aggregate({p: upload for p, upload in uploads.items() if p != 3}, {}, 1)
    assert torch.equal(means_of(found.downloads[EVERYONE]), means_of(without.downloads[EVERYONE]))
    server, uploads = federation_of(5, **{"protosphere.outliers": "keep"})
    kept = server.aggregate({**uploads, 3: turned(uploads[3])}, {}, 1)
    assert kept.warnings == ()
    assert not torch.allclose(means_of(kept.downloads[EVERYONE]), means_of(without.downloads[EVERYONE]))


def test_who_comes_later_is_judged_by_those_who_came_before():
    server, uploads = federation_of(5, **{"fraction-train": 0.5, "protosphere.exchanges": 2})
    first = server.aggregate({p: uploads[p] for p in (0, 1, 2)}, {}, 1)
    then = server.aggregate({3: turned(uploads[3]), 4: uploads[4]}, first.state, 2)
    assert any("client 3 is left out" in each for each in then.warnings)
    honest = server.aggregate({p: uploads[p] for p in (0, 1, 2, 4)}, {}, 1)
    assert torch.allclose(means_of(then.downloads[EVERYONE]), means_of(honest.downloads[EVERYONE]), rtol=1e-3)


def test_two_who_contradict_each_other_each_get_the_sums_without_the_other():
    server, uploads = federation_of(4)
    some = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}

    def of(upload, labels):
        parts = upload
        return {**parts, "prototypes": PrototypeSet(torch.tensor(labels), parts["prototypes"].vectors[labels])}

    sent = {p: of(uploads[p], labels) for p, labels in some.items()}
    found = server.aggregate({**sent, 1: turned(sent[1])}, {}, 1)
    assert set(found.downloads) == {EVERYONE, 0, 1}
    assert "client 0 and client 1 contradict each other" in found.warnings[0]
    known = found.downloads[0]["discriminant"].tensors["known"]
    assert bool((known > 0).all())
    assert not torch.allclose(means_of(found.downloads[0]), means_of(found.downloads[1]))
    # of two alone nobody can say that they do
    pair = server.aggregate({0: sent[0], 1: turned(sent[1])}, {}, 1)
    assert set(pair.downloads) == {EVERYONE}
    later = server.aggregate({2: sent[2], 3: sent[3]}, pair.state, 2)
    assert set(later.downloads) == {EVERYONE, 0, 1}


def covariance_by_loops(uploads, opponents=(), shares=None):
    """Sigma of clients of 60 samples, of what they sent: what samples vary by around their means, over the samples of
    clients whose scatter counts, and what means vary by around that of their class, over those of clients whose means
    are used."""
    shares = shares or dict.fromkeys(uploads, 1.0)
    rows, columns = np.triu_indices(D)
    within, samples = np.zeros((D, D)), 0.0
    means_by_class = {label: [] for label in range(K)}
    for p, upload in uploads.items():
        scatter = np.zeros((D, D))
        scatter[rows, columns] = upload["scatter"].tensors["scatter"][0].double().numpy() / 2.0**12
        scatter[columns, rows] = scatter[rows, columns]
        within += shares[p] * 60 * scatter
        samples += shares[p] * 60
        if p in opponents:
            continue
        means = upload["prototypes"]
        for label, mean in zip(means.labels.tolist(), means.vectors.double().numpy(), strict=True):
            means_by_class[label].append((60 / len(means), mean))
    between, weights = np.zeros((D, D)), 0.0
    for pairs in means_by_class.values():
        total = sum(weight for weight, _ in pairs)
        centre = sum(weight * mean for weight, mean in pairs) / total
        weights += total
        for weight, mean in pairs:
            between += weight * np.outer(mean - centre, mean - centre)
    return within / samples + between / weights


def covariance_sent(download):
    """Sigma, of the A with A Sigma A^T = 1 that came down."""
    rows, columns = np.triu_indices(D)
    upper = np.zeros((D, D))
    upper[rows, columns] = download["discriminant"].tensors["whitening"][0].double().numpy()
    inverse = np.linalg.inv(upper.T)
    return inverse @ inverse.T


def test_where_two_dispute_the_covariance_is_divided_by_the_samples_that_it_is_of():
    """Each gets the scatters of all and the means of all but the other."""
    server, uploads = federation_of(4, **{"protosphere.shrinkage": 1e-9})
    some = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    sent = {}
    for p, labels in some.items():
        means = uploads[p]["prototypes"]
        sent[p] = {**uploads[p], "prototypes": PrototypeSet(torch.tensor(labels), means.vectors[labels])}
    sent[1] = turned(sent[1])
    downloads = server.aggregate(sent, {}, 1).downloads
    for p, opponent in ((0, 1), (1, 0)):
        expected = covariance_by_loops(sent, opponents=[opponent])
        np.testing.assert_allclose(
            covariance_sent(downloads[p]), expected, rtol=0.02, atol=0.02 * np.trace(expected) / D
        )


def test_where_a_scatter_does_not_count_its_samples_do_not_divide_the_others():
    server, uploads = federation_of(6, **{"protosphere.shrinkage": 1e-9})
    uploads[2] = with_scatter(uploads[2], lambda half: 100 * half)
    received = server.aggregate(uploads, {}, 1).downloads[EVERYONE]
    expected = covariance_by_loops(uploads, shares=dict.fromkeys(uploads, 1.0) | {2: 0.0})
    np.testing.assert_allclose(covariance_sent(received), expected, rtol=0.02, atol=0.02 * np.trace(expected) / D)


def with_scatter(upload, change):
    parts = upload
    return {**parts, "scatter": Weights({"scatter": change(parts["scatter"].tensors["scatter"])})}


def scatter_after(server, uploads):
    outcome = server.aggregate(uploads, {}, 1)
    return outcome.state["scatter"], outcome.warnings


@pytest.mark.parametrize("times", [1.5, 2.9, 100.0])
def test_a_scatter_counts_as_two_medians_at_most_and_far_beyond_not_at_all(times):
    """Its means are honest, and the trace of 1 that rows can have is many times that of the others."""
    server, uploads = federation_of(6)
    honest, _ = scatter_after(server, {p: u for p, u in uploads.items() if p != 2})
    found, warnings = scatter_after(server, {**uploads, 2: with_scatter(uploads[2], lambda half: times * half)})
    share = float((found - honest).trace() / honest.trace()) * 5
    assert share == pytest.approx(min(times, 2) if times < 3 else 0, rel=0.15)
    assert bool(warnings) == (times > 3)
    if warnings:
        assert "the samples of client 2 vary " in warnings[0]
        assert "count for the means alone" in warnings[0]
    server, uploads = federation_of(6, **{"protosphere.outliers": "keep"})
    kept, _ = scatter_after(server, {**uploads, 2: with_scatter(uploads[2], lambda half: times * half)})
    assert float((kept - honest).trace() / honest.trace()) * 5 == pytest.approx(times, rel=0.15)


def test_a_scatter_in_one_direction_outweighs_no_more_than_twice_the_others_there():
    server, uploads = federation_of(6)
    others, _ = scatter_after(server, {p: u for p, u in uploads.items() if p != 2})

    def narrow(half):
        rows, columns = torch.triu_indices(D, D)
        trace = half[0][rows == columns].sum()
        return torch.where((rows == 0) & (columns == 0), trace, 0.0).unsqueeze(0).to(half.dtype)

    found, _ = scatter_after(server, {**uploads, 2: with_scatter(uploads[2], narrow)})
    added = found - others
    limit = 2 * (0.99 * others + 0.01 * others.trace() / D * torch.eye(D))
    assert float(torch.linalg.eigvalsh(limit - added).min()) > -1e-3 * float(others.trace())
    assert float(added.trace()) < 0.99 * 2 * float(others.trace()) / 5


@pytest.mark.parametrize("times", [2.9, 100.0])
def test_a_scatter_that_came_when_two_were_heard_counts_no_more_once_others_have_come(times):
    server, uploads = federation_of(6, **{"fraction-train": 0.34})
    honest, _ = scatter_after(server, {p: u for p, u in uploads.items() if p != 0})
    uploads[0] = with_scatter(uploads[0], lambda half: times * half)
    outcome = server.aggregate({p: uploads[p] for p in (0, 1)}, {}, 1)
    outcome = server.aggregate({p: uploads[p] for p in (2, 3)}, outcome.state, 2)
    outcome = server.aggregate({p: uploads[p] for p in (4, 5)}, outcome.state, 3)
    share = float((outcome.state["scatter"] - honest).trace() / honest.trace()) * 5
    assert share == pytest.approx(2 if times < 3 else 0, abs=0.3)
    assert bool(outcome.warnings) == (times > 3)
    # nor where the third has one sample a class, which do not vary
    still = with_scatter(uploads[2], torch.zeros_like)
    outcome = server.aggregate({p: uploads[p] for p in (0, 1)}, {}, 1)
    outcome = server.aggregate({2: still, 3: uploads[3]}, outcome.state, 2)
    outcome = server.aggregate({p: uploads[p] for p in (4, 5)}, outcome.state, 3)
    share = float((outcome.state["scatter"] - honest).trace() / honest.trace()) * 5 + 1
    # twice that of client 3, which is above the mean
    assert share == pytest.approx(2.5 if times < 3 else 0, abs=0.1)


def test_a_scatter_below_zero_within_the_rounding_ends_no_run():
    """What the border lets through: the least eigenvalue that 16 bits may take from a scatter."""
    server, uploads = federation_of(6)

    def low(half):
        rows, columns = torch.triu_indices(D, D)
        values = torch.zeros(D, D, dtype=torch.float64)
        values[rows, columns] = half[0].double()
        scatter = values + values.triu(1).T
        _, vectors = torch.linalg.eigh(scatter)
        tolerance = 0.9 * 2.0**-11 * float(torch.linalg.matrix_norm(scatter, 2))
        trace = float(scatter.trace())
        forged = 1.9 * trace * torch.outer(vectors[:, -1], vectors[:, -1]) - 2 * tolerance * torch.outer(
            vectors[:, 0], vectors[:, 0]
        )
        forged.diagonal().mul_(0.5)
        return forged[rows, columns].unsqueeze(0).to(half.dtype)

    outcome = server.aggregate({**uploads, 2: with_scatter(uploads[2], low)}, {}, 1)
    assert float(torch.linalg.eigvalsh(outcome.state["scatter"])[0]) > -1e-6 * float(outcome.state["scatter"].trace())


def test_what_is_no_scatter_loses_what_lies_below_zero_and_no_more():
    draw = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(5, 5, generator=draw, dtype=torch.float64))
    values = torch.tensor([4.0, 2.0, 1.0, -0.5, -1e-3], dtype=torch.float64)
    expected = (basis * values.clamp(min=0)) @ basis.T
    torch.testing.assert_close(semidefinite((basis * values) @ basis.T), expected)
    whole = (basis * values.abs()) @ basis.T
    assert semidefinite(whole) is whole
    nothing = torch.zeros(3, 3, dtype=torch.float64)
    assert torch.equal(semidefinite(nothing), nothing)


@pytest.mark.parametrize("most", [0.5, 2.0, 50.0])
def test_a_bounded_scatter_is_the_nearest_by_loops_over_directions(most):
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 4, generator=draw, dtype=torch.float64)
    others = rows.T @ rows
    scatter = torch.diag(torch.tensor([400.0, 1.0, 30.0, 0.0], dtype=torch.float64))
    found = bounded_by(scatter, others, most)
    against = 0.99 * others + 0.01 * others.trace() / 4 * torch.eye(4, dtype=torch.float64)
    values = torch.linalg.eigvals(torch.linalg.solve(against, found)).real.sort().values
    expected = torch.linalg.eigvals(torch.linalg.solve(against, scatter)).real.clamp(max=most).sort().values
    torch.testing.assert_close(values, expected, atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(found, found.T)
    assert torch.equal(bounded_by(scatter, others, 1e6), scatter)
    assert torch.equal(bounded_by(scatter, torch.zeros(4, 4, dtype=torch.float64), most), scatter)


def test_no_client_counts_more_than_a_few_medians():
    server, uploads = federation_of(5)
    honest = Pooled.of(server.aggregate(uploads, {}, 1).state, D).sums(K)[1]
    claim = {p: replace(each, rows=(2**31 - 1, 0, 0)) if p == 2 else each for p, each in server.identities.items()}
    server.meet(Codec(K, D), claim)
    found = Pooled.of(server.aggregate(uploads, {}, 1).state, D).sums(K)[1]
    assert torch.allclose(found, honest * (4 + HEAVIEST) / 5)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda means, half: (-15 * means, half), "norm 1 at most"),
        (lambda means, half: (means, -half), "vary by less than nothing"),
        (lambda means, half: (means, 1e4 * half), "add up to 1"),
    ],
)
def test_statistics_that_no_rows_have_are_refused(lie, words):
    features, labels = rows()
    server, objective = halves()
    for partition, upload in uploads_of(objective, features, labels).items():
        assert server.impossible(partition, upload) == ""
        own, half = upload["prototypes"], upload["scatter"].tensors["scatter"]
        vectors, half = lie(own.vectors, half)
        told = {"prototypes": PrototypeSet(own.labels, vectors), "scatter": Weights({"scatter": half})}
        assert words in server.impossible(partition, told)


# --- what a client adds of its own -------------------------------------------------------------------------------


def sent_without(labels, missing):
    """What comes down of clients none of which has the class `missing`, its Sigma, and the client half."""
    features, _ = rows()
    server, objective = halves(**{"protosphere.shrinkage": 0.1})
    indices = torch.arange(N)[labels != missing]
    halves_of = indices[: len(indices) // 2], indices[len(indices) // 2 :]
    uploads = {
        p: objective.upload(ClientState(None, encoded=lambda i=i: (features[i], labels[i])), 1)
        for p, i in enumerate(halves_of)
    }
    outcome = server.aggregate(uploads, {}, 1)
    pooled = Pooled.of(outcome.state, D)
    covariance = covariance_of_sums(*pooled.sums(K), 0.1)
    return outcome.downloads[EVERYONE], objective, covariance.numpy()


def test_a_class_that_nobody_sent_has_the_client_s_own_mean_under_the_shared_covariance():
    features, labels = rows()
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


def test_of_no_samples_there_is_nothing_to_temper():
    assert choose_temperature(torch.empty(0, K, dtype=torch.float64), NO_SAMPLES[1], K) == 1.0
    _, objective = halves()
    assert objective.complete(None, *NO_SAMPLES) is None


def test_before_anything_is_known_a_client_s_own_means_are_no_classifier():
    features, labels = rows()
    _, objective = halves()
    nothing = objective.shared(None)
    z = normalize(features.double(), dim=1)
    for samples in (NO_SAMPLES, (z[:9], labels[:9])):
        assert objective.encoded_scores(objective.complete(nothing, *samples), z) is None


def test_what_a_client_kept_of_an_earlier_version_judges_as_it_did():
    # which sent the classifier itself
    features, labels = rows()
    _, objective = halves()
    random = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(K, D, generator=random), torch.randn(K, generator=random)
    known = torch.tensor([1.0, 0.0, 1.5, 1.0])
    kept = {"discriminant": Weights({"bias": bias, "known": known, "weight": weight})}
    z = normalize(features.double(), dim=1)
    expected = np.exp(0.5) * (z.numpy() @ weight.numpy().T + bias.numpy())
    expected[:, 1] = -np.inf
    for samples in (NO_SAMPLES, (z, labels)):
        scores = objective.encoded_scores(objective.complete(kept, *samples), z)
        assert np.allclose(scores.numpy(), expected)
