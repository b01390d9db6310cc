"""FedDistill: mean outputs of the others by loops, its loss by hand."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, softmax

from protosphere.models.split import SplitModel
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import Batch, ClientState, Phase
from tests.payloads import lone, payload, payloads
from tests.strategies.kin import halves_of as both_halves

K, D = 4, 3
HELD = {0: (0, 1), 1: (1, 2), 4: (1, 3)}


def halves_of(**settings):
    return both_halves("feddistill", settings, K, D)


def network():
    torch.manual_seed(2)
    return SplitModel(torch.nn.Linear(5, D), D, K)


def uploads():
    random = torch.Generator().manual_seed(1)
    return {
        p: PrototypeSet(torch.tensor(labels), torch.rand(len(labels), K, generator=random).softmax(dim=1))
        for p, labels in HELD.items()
    }


@pytest.mark.parametrize("teacher", ["others", "all"])
def test_a_target_is_the_mean_of_all_other_holders(teacher):
    server, _ = halves_of(**{"feddistill.teacher": teacher})
    sent = uploads()
    outcome = server.aggregate(payloads(sent), {}, 1)
    for partition in (*HELD, 9):
        got = lone(outcome.downloads[server.download(partition, outcome.downloads, {}, 2, True)])
        for label in range(K):
            of = [
                sent[p].vectors[HELD[p].index(label)].double().numpy()
                for p in HELD
                if label in HELD[p] and (teacher == "all" or p != partition)
            ]
            found = got.vectors[got.labels == label]
            # a class that it holds alone, or nobody does
            assert len(found) == (1 if of else 0)
            if of:
                np.testing.assert_allclose(found[0].numpy(), np.mean(of, axis=0), rtol=1e-6)


def test_what_is_no_distribution_is_made_one_so_that_no_loss_is_without_a_bound():
    server, objective = halves_of()
    sent = uploads() | {5: PrototypeSet(torch.tensor([1, 2]), torch.full((2, K), -4.0))}
    sent[5].vectors[0, 0] = 9e3
    outcome = server.aggregate(payloads(sent), {}, 1)
    for download in map(lone, outcome.downloads.values()):
        assert bool((download.vectors >= 0).all())
        torch.testing.assert_close(download.vectors.sum(dim=1), torch.ones(len(download)))
    state = ClientState(network())
    objective.receive(state, payload(PrototypeSet(torch.tensor([0]), torch.tensor([[-1e4, 3.0, 1.0, 0.0]]))), 2)
    assert bool((state.received["teacher"].tensors["targets"] >= 0).all())


def test_the_upload_is_the_mean_output_of_each_class():
    _, objective = halves_of()
    state = ClientState(network())
    assert lone(objective.upload(state, 1)) is None
    z, labels = torch.randn(7, D), torch.tensor([0, 0, 2, 2, 2, 3, 0])
    state.features = (z, labels)
    sent = lone(objective.upload(state, 1))
    assert (sent.labels.tolist(), sent.counts) == ([0, 2, 3], None)
    every = softmax(state.module.classify(z).detach(), dim=1)
    for label, vector in zip(sent.labels.tolist(), sent.vectors, strict=True):
        torch.testing.assert_close(vector, every[labels == label].mean(dim=0))


def test_the_loss_adds_the_cross_entropy_to_the_targets_of_rows_that_have_one():
    _, objective = halves_of(**{"feddistill.weight": 2.0})
    state = ClientState(network())
    batch = Batch(torch.randn(5, 5), torch.tensor([0, 1, 2, 0, 1]))
    phase = Phase("train", [])
    assert set(objective.loss(state, batch, phase, 1).parts) == {"cross-entropy"}
    came = PrototypeSet(torch.tensor([0, 2]), torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]]))
    objective.receive(state, payload(came), 2)
    loss = objective.loss(state, batch, phase, 2)
    logits = state.module.classify(state.module.features(batch.inputs))
    wanted = {0: came.vectors[0], 2: came.vectors[1]}
    terms = []
    for row, label in enumerate(batch.labels.tolist()):
        if label in wanted:
            terms.append(-(wanted[label] * logits[row].log_softmax(dim=0)).sum())
    expected = cross_entropy(logits, batch.labels) + 2 * torch.stack(terms).mean()
    torch.testing.assert_close(loss.total, expected)
    # no row of the batch has a target: nothing is added, and nothing is NaN
    objective.receive(state, payload(PrototypeSet(torch.tensor([3]), came.vectors[:1])), 2)
    assert float(objective.loss(state, batch, phase, 2).parts["distillation"]) == 0
    assert objective.targets(state, payload(came)) is None
