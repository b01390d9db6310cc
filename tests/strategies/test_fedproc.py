"""FedProc against a loop over samples: the curriculum by round, who gets which term, and that its length is fixed."""

import math
import statistics

import numpy as np
import pytest
import torch

from protosphere.core.errors import SettingError
from protosphere.models import build
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import EVERYONE, Batch, ClientState, Phase
from tests.payloads import lone, payload, payloads

K, D = 5, 8
FEDPROC = {"strategy": "fedproc"}


def client_half(halves, settings=None, received=None):
    """An objective and its state in eval mode, as a client has them once it received."""
    objective = halves(FEDPROC | (settings or {}), K, D).objective
    state = ClientState(objective.build(build("tiny_perceptron", (1, 8, 8), D, K, 0), 3))
    objective.receive(state, payload(received), 1)
    state.targets = objective.targets(state, payload(received))
    state.table = None if state.targets is None else state.targets.table(K)
    state.module.eval()
    return objective, state


def batch_of(labels):
    random = torch.Generator().manual_seed(4)
    return Batch(torch.randn(len(labels), 1, 8, 8, generator=random), torch.tensor(labels))


def received(labels):
    random = torch.Generator().manual_seed(5)
    return PrototypeSet(torch.tensor(labels), 0.3 * torch.randn(len(labels), D, generator=random))


def log_softmax_at(logits, index):
    return logits[index] - math.log(sum(math.exp(value) for value in logits.values()))


def naive_terms(state, given, z, label, temperature):
    """A sample's cross-entropy, and its contrast against the directions that came; None without its prototype."""
    module = state.module
    w, b = module.classifier.weight.detach().double().tolist(), module.classifier.bias.detach().tolist()
    own = {c: sum(x * y for x, y in zip(w[c], z, strict=True)) + b[c] for c in range(K)}
    plain, labels = -log_softmax_at(own, label), given.labels.tolist()
    if label not in labels:
        return plain, None
    cosines = {}
    for c, vector in zip(labels, given.vectors.double().tolist(), strict=True):
        length = math.sqrt(sum(value * value for value in vector))
        cosines[c] = sum(x * y for x, y in zip(vector, z, strict=True)) / length / temperature
    return plain, -log_softmax_at(cosines, label)


# --- the loss -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("round_number", "held"), [(1, (0, 3)), (2, (0, 1, 2, 3, 4)), (8, (0, 3)), (8, (2,))])
@pytest.mark.parametrize("options", [{}, {"fedproc.temperature": 0.07}], ids=["paper", "sharp"])
def test_the_loss_is_the_curriculum_by_a_loop_over_samples(halves, round_number, options, held):
    """alpha_t = t / T with t = 0 in round 1; cross-entropy with weight 1 for a sample without a prototype."""
    given, labels = received(held), [0, 1, 2, 3, 4, 0, 1, 2, 2, 4, 3]
    objective, state = client_half(halves, options | {"rounds": 8}, given)
    loss = objective.loss(state, batch_of(labels), Phase("train", []), round_number)
    alpha, total, plains, contrasts = (round_number - 1) / 8, [], [], []
    for z, label in zip(loss.features.detach().double().tolist(), labels, strict=True):
        plain, contrast = naive_terms(state, given, z, label, options.get("fedproc.temperature", 0.5))
        plains.append(plain)
        contrasts += [] if contrast is None else [contrast]
        total.append(plain if contrast is None else alpha * plain + (1 - alpha) * contrast)
    assert loss.total.item() == pytest.approx(statistics.mean(total), rel=1e-5)
    expected = {"cross-entropy": statistics.mean(plains), "prototype-contrast": statistics.mean(contrasts)}
    assert {name: part.item() for name, part in loss.parts.items()} == pytest.approx(expected, rel=1e-5)


# --- the server ---------------------------------------------------------------------------------------------------


def short(labels, rng, length=None):
    """Prototypes of these lengths, else of lengths from 0.1 to 0.9."""
    vectors = rng.standard_normal((len(labels), D))
    lengths = rng.uniform(0.1, 0.9, (len(labels), 1)) if length is None else length
    vectors *= lengths / np.linalg.norm(vectors, axis=1, keepdims=True)
    return PrototypeSet(torch.tensor(labels), torch.from_numpy(vectors).float())


def test_the_server_takes_means_and_keeps_what_nobody_reported(halves):
    """Of means of unit vectors, which are no longer than 1."""
    strategy = halves(FEDPROC, K, D).server
    assert not strategy.begin().downloads
    rng = np.random.default_rng(3)
    held = {1: {0: (0, 1), 1: (1, 2), 2: (1,)}, 2: {0: (0, 2), 3: (0,)}}
    state, expected = {}, {}
    for number, of_client in held.items():
        sets = {p: short(labels, rng) for p, labels in of_client.items()}
        outcome = strategy.aggregate(payloads(sets), state, number)
        for label in {label for labels in of_client.values() for label in labels}:
            rows = [s.vectors[s.labels.tolist().index(label)].tolist() for s in sets.values() if label in s.labels]
            expected[label] = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        state, download = outcome.state, lone(outcome.downloads[EVERYONE])
        assert download.labels.tolist() == [0, 1, 2]
        np.testing.assert_allclose(download.vectors, [expected[label] for label in (0, 1, 2)], rtol=1e-6, atol=1e-7)


def test_an_upload_longer_than_any_mean_of_unit_vectors_counts_as_one_of_length_1(halves):
    """Row by row: what is no longer, a zero vector too, is taken as it came, and nobody's upload is changed."""
    strategy, rng = halves(FEDPROC, K, D).server, np.random.default_rng(7)
    sent = short((0, 1, 2, 3), rng).vectors
    sent[1] = 40 * sent[1] / sent[1].norm()
    sent[2] = 0
    sent[3] = 0.5 * sent[3] / sent[3].norm()
    upload = PrototypeSet(torch.tensor([0, 1, 2, 3]), sent.clone())
    found = lone(strategy.aggregate(payloads({4: upload}), {}, 1).downloads[EVERYONE])
    assert torch.equal(found.vectors[[0, 2, 3]], sent[[0, 2, 3]])
    np.testing.assert_allclose(found.vectors[1], sent[1].double() / math.dist(sent[1].tolist(), [0.0] * D), rtol=1e-6)
    assert torch.equal(upload.vectors, sent)


def test_a_release_is_on_the_scale_of_privacy_scale_and_its_means_keep_their_lengths(halves):
    """Two means of 0.3 and 0.9 in directions 60 degrees apart: cut to 1 each on that scale, both would weigh alike."""
    settings = FEDPROC | {"privacy": "release", "privacy-scale": 10.0, "encoder": "handcrafted"}
    strategy = halves(settings, K, D).server
    one, other = torch.zeros(1, D), torch.zeros(1, D)
    one[0, 0], other[0, 0], other[0, 1] = 0.3, 0.45, 0.9 * math.sin(math.pi / 3)
    sets = {p: PrototypeSet(torch.tensor([0]), 10 * vectors) for p, vectors in ((0, one), (1, other))}
    found = lone(strategy.aggregate(payloads(sets), {}, 1).downloads[EVERYONE]).vectors
    np.testing.assert_allclose(found, (one + other) / 2, rtol=1e-6)


# --- settings and whole runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "given"), [(2, {}), (3, {"num_rounds": 9})])
def test_a_resumed_run_keeps_its_rounds(federation, rounds, given):
    """Whether they are said by the setting or by the argument."""
    first = federation(3).start(FEDPROC | {"rounds": 3}).folder.path
    before = {file: file.read_bytes() for file in first.rglob("*") if file.is_file()}
    again = federation(3)
    with pytest.raises(SettingError, match=r"setting `rounds` is [249], but the run was started for 3.*`fedproc`"):
        again.start(FEDPROC | {"resume": str(first), "rounds": rounds}, **given)
    assert not again.asked
    assert {file: file.read_bytes() for file in first.rglob("*") if file.is_file()} == before
