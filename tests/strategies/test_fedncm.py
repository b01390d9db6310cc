"""FedNCM: its classifier is the nearest class mean of all samples together, however they lie among clients; who is
heard when; what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from protosphere.strategies.contract import EVERYONE, PROTOTYPES
from tests.payloads import lone
from tests.strategies.in_space import K, exchanged, halves, partitions, samples, unit, upload_of

ROUNDS = {"fraction-train": 0.5}  # six of them, by 3 / 0.5


def nearest(features, labels, new):
    """The cosine of new samples to the mean of each class, (n, K)."""
    means = torch.stack([unit(features)[labels == label].mean(dim=0) for label in range(K)])
    return unit(new) @ normalize(means, dim=1).T


@pytest.mark.parametrize("kind", partitions(samples()[1]))
def test_it_is_the_nearest_mean_of_all_samples_however_they_lie_among_clients(kind):
    features, labels = samples()
    received, objective, _ = exchanged("fedncm", partitions(labels)[kind], features, labels)
    new, _ = samples(seed=1)
    # means and weights cross as float32
    np.testing.assert_allclose(objective.encoded_scores(received, unit(new)), nearest(features, labels, new), atol=1e-6)


def test_a_class_that_nobody_has_is_never_answered():
    features, labels = samples(classes=3)
    received, objective, _ = exchanged("fedncm", [labels == 0, labels > 0], features, labels)
    scores = objective.encoded_scores(received, unit(features))
    assert bool(torch.isneginf(scores[:, 3]).all())
    assert set(scores.argmax(dim=1).tolist()) == {0, 1, 2}
    assert objective.encoded_scores(None, unit(features)) is None


def test_where_clients_are_sampled_each_is_heard_once_and_the_order_changes_nothing():
    features, labels = samples()
    server, objective = halves("fedncm", (100,) * 4, **ROUNDS)
    uploads = {p: upload_of(objective, features[p::4], labels[p::4]) for p in range(4)}
    assert upload_of(objective, features, labels, 6) is not None
    assert upload_of(objective, features, labels, 7) is None
    assert server.expected_parts((PROTOTYPES,), {}, 6) == (PROTOTYPES,)
    assert server.expected_parts((PROTOTYPES,), {}, 7) == ()
    first = server.aggregate({p: uploads[p] for p in (1, 3)}, {}, 1)
    # who comes again counts once
    again = {1: uploads[2], 2: uploads[2], 0: uploads[0]}
    second = server.aggregate(again, first.state, 2)
    assert second.state["heard"].tolist() == [1, 3, 2, 0]
    nobody_new = server.aggregate({3: uploads[3]}, second.state, 3)
    assert nobody_new.keeps
    assert nobody_new.downloads == {}
    whole = server.aggregate(uploads, {}, 1)
    weights = [outcome.downloads[EVERYONE]["classifier"].tensors["weight"] for outcome in (second, whole)]
    assert torch.equal(*weights)
    assert not first.warnings
    late = server.aggregate({1: uploads[1]}, {}, 6)
    assert "client 0, client 2, client 3 sent nothing" in late.warnings[0]
    assert "`fraction-train` 1" in late.warnings[0]
    whole_server, _ = halves("fedncm", (100,) * 4)
    (missing,) = whole_server.aggregate({p: uploads[p] for p in (0, 1, 3)}, {}, 1).warnings
    assert "client 2 sent nothing" in missing
    assert "fraction-train" not in missing


def test_classes_of_fewer_samples_stay_at_home():
    labels = torch.tensor([0] * 5 + [1] * 4 + [3])
    features, _ = samples(n=10)
    _, objective = halves("fedncm", **{"fedncm.fewest": 5})
    sent = lone(upload_of(objective, features, labels))
    assert (sent.labels.tolist(), sent.counts.tolist()) == ([0], [5])
    # one with nothing to send is heard all the same
    server, objective = halves("fedncm", (4, 10), **{"fedncm.fewest": 5})
    nothing = upload_of(objective, features[5:9], labels[5:9])
    assert len(lone(nothing)) == 0
    outcome = server.aggregate({0: nothing, 1: upload_of(objective, features, labels)}, {}, 1)
    assert outcome.figures == {"heard": 2}
    assert server.global_prototypes(outcome.state).labels.tolist() == [0]
    assert server.aggregate({}, outcome.state, 2).figures == {"heard": 2}


def test_means_that_no_unit_vectors_have_are_refused():
    features, labels = samples()
    server, objective = halves("fedncm")
    upload = upload_of(objective, features, labels)
    assert server.contradiction(0, upload) == ""
    means = lone(upload)
    assert "norm 1 at most" in server.contradiction(0, {"prototypes": replace(means, vectors=-15 * means.vectors)})


def test_a_run_with_a_guard_keeps_classes_of_few_samples_at_home_and_drops_nobody(run, metrics):
    """Clients of unlike sizes: some send a part of their classes, some none."""
    settings = {"strategy": "fedncm", "dataset": "digits", "encoder": "handcrafted", "rounds": 2, "alpha": 0.1}
    settings |= {"disclose-class-counts": True, "max-samples": 300, "fedncm.fewest": 12}
    lines = metrics(run(settings, clients=6))
    assert not any(line["problems"] for line in lines), lines[0]["problems"]
    whole = metrics(run(settings | {"fedncm.fewest": 1}, clients=6))
    assert 0 < lines[1]["bytes"]["payload_up"] < whole[1]["bytes"]["payload_up"]
    assert lines[1]["server"]["heard"] == 6
    assert whole[-1]["evaluation"]["rules"]["encoder"]["test"]["mean"] > 0.7
