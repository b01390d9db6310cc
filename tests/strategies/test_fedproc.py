"""FedProc: the curriculum by round, who gets which term, and that its length is fixed."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from protosphere.core.errors import SettingError
from protosphere.models import build
from protosphere.prototypes.losses import prototype_contrast
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


# --- the loss -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("round_number", "held"), [(1, (0, 3)), (2, (0, 1, 2, 3, 4)), (8, (0, 3)), (8, (2,))])
@pytest.mark.parametrize("options", [{}, {"fedproc.temperature": 0.07}], ids=["paper", "sharp"])
def test_the_loss_is_the_curriculum(halves, round_number, options, held):
    """alpha_t = t / T with t = 0 in round 1; cross-entropy with weight 1 for a sample without a prototype. The contrast
    is held against loops in tests/prototypes/test_losses.py."""
    given, batch = received(held), batch_of([0, 1, 2, 3, 4, 0, 1, 2, 2, 4, 3])
    objective, state = client_half(halves, options | {"rounds": 8}, given)
    loss = objective.loss(state, batch, Phase("train", []), round_number)

    z, directions = loss.features, given.on_sphere().table(K)
    plain = cross_entropy(state.module.classifier(z), batch.labels, reduction="none")
    contrast = prototype_contrast(z, batch.labels, *directions, options.get("fedproc.temperature", 0.5), "none")
    alpha, covered = (round_number - 1) / 8, torch.isin(batch.labels, given.labels)
    total = torch.where(covered, alpha * plain + (1 - alpha) * contrast, plain)

    torch.testing.assert_close(loss.total, total.mean())
    assert loss.parts.keys() == {"cross-entropy", "prototype-contrast"}
    torch.testing.assert_close(loss.parts["cross-entropy"], plain.mean())
    torch.testing.assert_close(loss.parts["prototype-contrast"], contrast[covered].mean())


# --- the server ---------------------------------------------------------------------------------------------------


def test_the_server_takes_means_to_which_no_upload_counts_longer_than_1(halves):
    """Row by row: what is no longer, a zero vector too, counts as it came. No mean of unit vectors is longer."""
    strategy = halves(FEDPROC, K, D).server
    random = torch.Generator().manual_seed(7)
    sent = 0.9 * torch.nn.functional.normalize(torch.randn(4, D, generator=random), dim=1)
    sent[1] *= 40
    sent[2] = 0
    upload, other = PrototypeSet(torch.arange(4), sent.clone()), PrototypeSet(torch.tensor([1, 3]), 0.5 * sent[[3, 0]])

    found = lone(strategy.aggregate(payloads({4: upload, 6: other}), {}, 1).downloads[EVERYONE])

    assert not strategy.begin().downloads
    within = sent.double()
    within[1] /= within[1].norm()
    expected = [within[0], (within[1] + other.vectors[0]) / 2, within[2], (within[3] + other.vectors[1]) / 2]
    torch.testing.assert_close(found.vectors.double(), torch.stack(expected), rtol=1e-6, atol=1e-7)
    # nobody's upload is changed
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
