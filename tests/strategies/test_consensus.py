"""FedPAGR and FedProc against their papers written out: what the server makes, what a client trains and predicts
with."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from protosphere.core.errors import SettingError
from protosphere.models import build
from protosphere.prototypes.losses import entropy_spread, prototype_contrast
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.refinement import class_sums, mean_directions, refine
from protosphere.strategies.contract import EVERYONE, Batch, ClientState, Phase, as_state
from tests.payloads import lone, payload, payloads
from tests.strategies.sets import class_means, in_part

K, D = 5, 8
FEDPAGR, FEDPROC = {"strategy": "fedpagr"}, {"strategy": "fedproc"}


def prototypes(seed, labels=range(K), length=1.0):
    random = torch.Generator().manual_seed(seed)
    vectors = normalize(torch.randn(len(labels), D, generator=random, dtype=torch.float64))
    return PrototypeSet(torch.tensor(labels), (length * vectors).float())


def client_half(halves, settings, received):
    """An objective and its state in eval mode, as a client has them once it received."""
    objective = halves(settings, K, D).objective
    state = ClientState(objective.build(build("tiny_perceptron", (1, 8, 8), D, K, 0), 3))
    objective.receive(state, payload(received), 1)
    state.targets = objective.targets(state, payload(received))
    state.table = state.targets.table(K)
    state.module.eval()
    return objective, state


def batch_of():
    random = torch.Generator().manual_seed(4)
    return Batch(torch.randn(11, 1, 8, 8, generator=random), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 2, 4, 3]))


# --- FedPAGR ----------------------------------------------------------------------------------------------------

# by name: the paper's values, and others
REFINEMENT = {
    "separation-weight": (0.5, 2.0),
    "margin": (0.3, -0.2),
    "steps": (5, 7),
    "server-learning-rate": (0.01, 0.05),
    "server-momentum": (0.9, 0.5),
}


@pytest.mark.parametrize("place", [0, 1], ids=["paper", "other"])
def test_the_step_is_the_refinement_of_the_normalised_means_to_the_bit(halves, place):
    """Over two rounds; tests/prototypes has both written out. A class that nobody reports has no agreement."""
    options = {f"fedpagr.{name}": values[place] for name, values in REFINEMENT.items()}
    given = {name.removeprefix("server-").replace("-", "_"): v[place] for name, v in REFINEMENT.items()}
    server = halves(FEDPAGR | (options if place else {}), K, D).server
    state = server.begin().state
    for number in (1, 2):
        # of six clients, around one direction and of any length; class 4 is nobody's
        made = class_means(in_part(6, range(4)), D, number, 1.0)
        sets = {partition: sent.with_vectors((partition + 1) * sent.vectors) for partition, sent in made.items()}
        sums, counts = class_sums(list(sets.values()), K)
        assert counts.tolist() == [4, 4, 4, 4, 0]
        start = mean_directions(sums, counts, state["vectors"])
        refined = refine(start, sums, counts, **given)
        outcome = server.aggregate(payloads(sets), state, number)
        (download,), state = map(lone, outcome.downloads.values()), outcome.state
        assert download.labels.tolist() == list(range(K))
        assert torch.equal(state["vectors"], download.vectors)
        assert torch.equal(state["vectors"], refined.points)
        # the steps did something
        assert float((refined.points - start).norm(dim=1).max()) > 0.01
        for when, parts in (("before", refined.before), ("after", refined.after)):
            assert {name: outcome.figures[f"{name}_{when}"] for name in asdict(parts)} == asdict(parts)


def test_receiving_anchors_the_classifier(halves):
    """W = P and b = 0, whatever was there; P of unit rows, however long they came."""
    came = prototypes(7, length=2.5)
    objective, state = client_half(halves, FEDPAGR, came)
    expected = came.on_sphere().vectors
    assert torch.equal(state.module.classifier.weight, expected)
    assert torch.equal(state.module.classifier.bias, torch.zeros(K))
    assert torch.equal(state.targets.vectors, expected)
    # logits are the cosines
    z = objective.features(state, batch_of().inputs)
    torch.testing.assert_close(state.module.classify(z), z @ expected.T)


@pytest.mark.parametrize(("beta", "weight"), [(0.1, 0.1), (0.7, 2.0)])
def test_the_loss_is_the_papers(halves, beta, weight):
    """Its terms are held against loops in tests/prototypes/test_losses.py."""
    options = {"fedpagr.temperature": beta, "fedpagr.entropy-weight": weight}
    objective, state = client_half(halves, FEDPAGR | options, prototypes(7, length=2.5))
    with torch.no_grad():
        state.module.classifier.bias.copy_(torch.linspace(-1, 1, K))
        state.module.classifier.weight.mul_(1.7)
    batch = batch_of()
    loss = objective.loss(state, batch, Phase("train", []), 2)
    z, given = loss.features, prototypes(7).on_sphere().table(K)
    expected = {
        "cross-entropy": cross_entropy(state.module.classifier(z), batch.labels),
        "prototype-contrast": prototype_contrast(z, batch.labels, *given, temperature=beta),
        "entropy-spread": entropy_spread(z, *given, temperature=beta),
    }
    assert loss.parts.keys() == expected.keys()
    for name, part in expected.items():
        torch.testing.assert_close(loss.parts[name], part)
    whole = expected["cross-entropy"] + expected["prototype-contrast"] + weight * expected["entropy-spread"]
    torch.testing.assert_close(loss.total, whole)
    torch.testing.assert_close(loss.features.norm(dim=1), torch.ones(len(batch.labels)))


def test_what_is_uploaded_are_directions_and_zeros_stay_zeros(halves):
    objective, state = client_half(halves, FEDPAGR, prototypes(7))
    vectors = torch.tensor([[3.0, 0, 0, 4, 0, 0, 0, 0], [0.0] * 8, [0.01] * 8])
    state.prototypes = PrototypeSet(torch.tensor([0, 2, 3]), vectors, torch.tensor([5, 6, 7]))
    sent = lone(objective.upload(state, 1))
    expected = torch.tensor([[0.6, 0, 0, 0.8, 0, 0, 0, 0], [0.0] * 8, [8**-0.5] * 8])
    torch.testing.assert_close(sent.vectors, expected)
    # and the client keeps its own means
    assert torch.equal(state.prototypes.vectors, vectors)


def test_a_client_predicts_with_what_it_trained_with(halves):
    """Whatever comes later; one that never trained, with what came last. The store keeps it."""
    came = prototypes(7, length=2.5)
    objective, state = client_half(halves, FEDPAGR, came)
    kept = {name: tensor.clone() for name, tensor in state.extra.items()}
    for newest in (prototypes(8), None):
        assert torch.equal(objective.targets(state, payload(newest)).vectors, came.on_sphere().vectors)
    assert kept.keys() == state.extra.keys() == as_state(came).keys()
    assert all(torch.equal(tensor, state.extra[name]) for name, tensor in kept.items())
    stranger = ClientState(state.module)
    torch.testing.assert_close(
        objective.targets(stranger, payload(prototypes(8, length=3.0))).vectors, prototypes(8).vectors
    )
    assert objective.targets(stranger, None) is None
    assert not stranger.extra


# --- FedProc ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("round_number", "held"), [(1, (0, 3)), (2, (0, 1, 2, 3, 4)), (8, (0, 3)), (8, (2,))])
@pytest.mark.parametrize("temperature", [0.5, 0.07])
def test_the_loss_is_the_curriculum(halves, round_number, temperature, held):
    """alpha_t = t / T with t = 0 in round 1; cross-entropy with weight 1 for a sample without a prototype. The contrast
    is held against loops in tests/prototypes/test_losses.py."""
    given, batch = prototypes(5, held, length=0.3), batch_of()
    settings = FEDPROC | {"fedproc.temperature": temperature, "rounds": 8}
    objective, state = client_half(halves, settings, given)
    loss = objective.loss(state, batch, Phase("train", []), round_number)

    z, directions = loss.features, given.on_sphere().table(K)
    plain = cross_entropy(state.module.classifier(z), batch.labels, reduction="none")
    contrast = prototype_contrast(z, batch.labels, *directions, temperature, "none")
    alpha, covered = (round_number - 1) / 8, torch.isin(batch.labels, given.labels)
    total = torch.where(covered, alpha * plain + (1 - alpha) * contrast, plain)

    torch.testing.assert_close(loss.total, total.mean())
    assert loss.parts.keys() == {"cross-entropy", "prototype-contrast"}
    torch.testing.assert_close(loss.parts["cross-entropy"], plain.mean())
    torch.testing.assert_close(loss.parts["prototype-contrast"], contrast[covered].mean())


def test_the_server_takes_means_to_which_no_upload_counts_longer_than_1(halves):
    """Row by row: what is no longer, a zero vector too, counts as it came. No mean of unit vectors is longer."""
    server = halves(FEDPROC, K, D).server
    sent = prototypes(7, range(4), length=0.9).vectors
    sent[1] *= 40
    sent[2] = 0
    upload, other = PrototypeSet(torch.arange(4), sent.clone()), PrototypeSet(torch.tensor([1, 3]), 0.5 * sent[[3, 0]])

    found = lone(server.aggregate(payloads({4: upload, 6: other}), {}, 1).downloads[EVERYONE])

    within = sent.double()
    within[1] /= within[1].norm()
    expected = [within[0], (within[1] + other.vectors[0]) / 2, within[2], (within[3] + other.vectors[1]) / 2]
    torch.testing.assert_close(found.vectors.double(), torch.stack(expected), rtol=1e-6, atol=1e-7)
    # nobody's upload is changed
    assert torch.equal(upload.vectors, sent)


def test_a_release_is_on_the_scale_of_privacy_scale_and_its_means_keep_their_lengths(halves):
    """Two means of 0.3 and 0.9 in directions 60 degrees apart: cut to 1 each on that scale, both would weigh alike."""
    settings = FEDPROC | {"privacy": "release", "privacy-scale": 10.0, "encoder": "handcrafted"}
    server = halves(settings, K, D).server
    one, other = torch.zeros(1, D), torch.zeros(1, D)
    one[0, 0], other[0, 0], other[0, 1] = 0.3, 0.45, 0.9 * math.sin(math.pi / 3)
    sets = {p: PrototypeSet(torch.tensor([0]), 10 * vectors) for p, vectors in ((0, one), (1, other))}
    found = lone(server.aggregate(payloads(sets), {}, 1).downloads[EVERYONE]).vectors
    np.testing.assert_allclose(found, (one + other) / 2, rtol=1e-6)


@pytest.mark.parametrize(("rounds", "given"), [(2, {}), (3, {"num_rounds": 9})])
def test_a_resumed_run_of_fedproc_keeps_its_rounds(federation, rounds, given):
    """Whether they are said by the setting or by the argument."""
    first = federation(3).start(FEDPROC | {"rounds": 3}).folder.path
    before = {file: file.read_bytes() for file in first.rglob("*") if file.is_file()}
    again = federation(3)
    with pytest.raises(SettingError, match=r"setting `rounds` is [249], but the run was started for 3.*`fedproc`"):
        again.start(FEDPROC | {"resume": str(first), "rounds": rounds}, **given)
    assert not again.asked
    assert {file: file.read_bytes() for file in first.rglob("*") if file.is_file()} == before
