"""FedNH and FedFA: what each computes, against naive loops."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from protosphere.client_app.store import lay_out
from protosphere.models.split import SplitModel
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import Batch, ClientState, Phase
from tests.strategies.kin import halves_of, meet

K, D = 3, 5
HELD = ((0, 1), (0, 2), (0,))  # classes of each client; in ABSENT nobody reports class 1
ROWS = (10, 20, 70)
METHODS = ("fednh", "fedfa")


def halves(name, **settings):
    return halves_of(name, settings, K, D)


def client(objective, seed=0):
    torch.manual_seed(seed)
    extractor = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, D))
    return ClientState(objective.build(SplitModel(extractor, D, K), seed))


def uploads_of(objective, held=HELD):
    """Clients' uploads, with prototypes of any directions and lengths."""
    random = torch.Generator().manual_seed(7)
    sent = {}
    for partition, labels in enumerate(held):
        vectors = 3 * torch.randn(len(labels), D, generator=random)
        prototypes = PrototypeSet(torch.tensor(labels), vectors)
        sent[partition] = {**objective.shared(client(objective, partition).module), "prototypes": prototypes}
    return sent


def rounds(name, *held, **settings):
    """The server's class vectors at the start and after each round, (K, D) arrays, and the uploads of the last."""
    server, objective = halves(name, **settings)
    uploads = uploads_of(objective)
    state = meet(server, uploads, ROWS, num_classes=K, dim=D).begin().state
    seen = [state["vectors"].numpy()]
    for each in held:
        uploads = uploads_of(objective, each)
        outcome = server.aggregate(uploads, state, 1)
        state = outcome.state
        seen.append(state["vectors"].numpy())
        torch.testing.assert_close(outcome.downloads[0]["prototypes"].vectors, state["vectors"].float())
    return seen, uploads


def unit(vector):
    return vector / np.linalg.norm(vector)


def test_fednh_smooths_its_prototypes_towards_the_clients_directions():
    (before, after), uploads = rounds("fednh", HELD, **{"fednh.smoothing": 0.6})
    for label in range(K):
        total = np.zeros(D)
        for upload in uploads.values():
            sent = dict(zip(upload["prototypes"].labels.tolist(), upload["prototypes"].vectors.double(), strict=True))
            if label in sent:
                # of directions: a client that sends them longer weighs no more
                total += unit(sent[label].numpy())
        np.testing.assert_allclose(after[label], unit(0.6 * before[label] + 0.4 * unit(total)), atol=1e-6)


@pytest.mark.parametrize("epochs", [1, 5])
def test_fedfa_moves_its_anchors_as_the_mean_of_client_anchors_would(epochs):
    """Authors: each client moves the anchors of its classes every epoch, the server takes the mean of all by rows."""
    (before, after), uploads = rounds("fedfa", HELD, **{"fedfa.momentum": 0.3, "local-epochs": epochs})
    expected = np.zeros((K, D))
    for partition, upload in uploads.items():
        own = before.copy()
        for label, vector in zip(upload["prototypes"].labels.tolist(), upload["prototypes"].vectors, strict=True):
            for _ in range(epochs):
                own[label] = 0.3 * own[label] + 0.7 * vector.double().numpy()
        expected += ROWS[partition] / sum(ROWS) * own
    np.testing.assert_allclose(after, expected, atol=1e-6)
    (before, after), _ = rounds("fedfa", HELD, **{"fedfa.momentum": 1.0})
    np.testing.assert_array_equal(after, before)


def test_fednh_keeps_a_prototype_where_reports_cancel():
    server, objective = halves("fednh", **{"fednh.smoothing": 0.0})
    sent = uploads_of(objective)
    state = meet(server, sent, ROWS, num_classes=K, dim=D).begin().state
    opposite = {0: torch.ones(1, D), 1: -torch.ones(1, D)}
    uploads = {p: sent[p] | {"prototypes": PrototypeSet(torch.tensor([0]), v)} for p, v in opposite.items()}
    assert torch.equal(server.aggregate(uploads, state, 1).state["vectors"], state["vectors"])


# --- the client halves ------------------------------------------------------------------------------------------


def batch():
    random = torch.Generator().manual_seed(1)
    return Batch(torch.randn(7, 4, generator=random), torch.tensor([0, 0, 0, 0, 2, 2, 0]))


def test_fednh_classifies_by_scaled_cosines_and_trains_the_scale_alone():
    _, objective = halves("fednh", **{"fednh.scale": 4.0})
    state, rows = client(objective), batch()
    z = objective.features(state, rows.inputs)
    expected = 4 * normalize(state.module.features(rows.inputs), dim=1) @ state.module.classifier.prototypes.T
    torch.testing.assert_close(state.module.classify(z), expected)
    objective.loss(state, rows, Phase("train", []), 1).total.backward()
    assert state.module.classifier.scale.grad.abs() > 0
    assert {name for name, _ in state.module.classifier.named_parameters()} == {"scale"}
    assert set(objective.shared(state.module)["scale"].tensors) == {"classifier.scale"}


def test_fednh_takes_the_prototypes_that_came_and_uploads_directions():
    _, objective = halves("fednh")
    state = client(objective)
    came = PrototypeSet(torch.arange(K), 2 * torch.eye(K, D))
    payload = {**objective.shared(client(objective, 1).module), "prototypes": came}
    before = state.module.classifier.prototypes.clone()
    arrived = objective.evaluation_state(state, payload)
    assert torch.equal(arrived.module.classifier.prototypes, torch.eye(K, D))
    assert torch.equal(state.module.classifier.prototypes, before)
    objective.receive(state, payload, 2)
    assert torch.equal(state.module.classifier.prototypes, torch.eye(K, D))
    state.prototypes = PrototypeSet(torch.tensor([0, 2]), torch.rand(2, D), torch.tensor([3, 4]))
    sent = objective.upload(state, 2)["prototypes"]
    torch.testing.assert_close(sent.vectors.norm(dim=1), torch.ones(2))
    assert sent.counts is None


def test_fedfa_s_loss_is_that_of_loops_and_its_calibration_moves_the_head_alone():
    _, objective = halves("fedfa", **{"fedfa.anchor-weight": 0.7})
    state, rows = client(objective), batch()
    anchors = torch.randn(K, D, generator=torch.Generator().manual_seed(3))
    payload = {"prototypes": PrototypeSet(torch.arange(K), anchors)}
    lay_out(objective, state, payload, torch.device("cpu"))
    loss = objective.loss(state, rows, Phase("train", []), 2)
    z = state.module.features(rows.inputs)
    pull = 0.0
    for label in range(K):
        found = [math.dist(z[i].tolist(), anchors[label].tolist()) ** 2 for i in range(7) if rows.labels[i] == label]
        pull += sum(found) / len(found) / K if found else 0.0
    calibration = cross_entropy(state.module.classify(anchors), torch.arange(K))
    plain = cross_entropy(state.module.classify(z), rows.labels)
    assert float(loss.parts["anchor"].detach()) == pytest.approx(pull, rel=1e-5)
    torch.testing.assert_close(loss.total, plain + 0.7 * pull + calibration)
    loss.parts["calibration"].backward()
    assert all(p.grad is None for p in state.module.extractor.parameters())
    assert state.module.classifier.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", METHODS)
def test_a_class_that_nobody_reported_stays(name):
    (_, first, second), _ = rounds(name, HELD, ((0,), (0, 2), (0,)))
    np.testing.assert_array_equal(first[1], second[1])
    assert not np.array_equal(first[2], second[2])
