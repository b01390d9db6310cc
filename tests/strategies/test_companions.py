"""Methods with a second model that a setting names: FML and FedMRL against naive computations and their limits."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.strategies.kin import D, client_of, halves_of, meet, rows_of_five

BOTH = {"models": "tiny_perceptron,perceptron"}


def built(name, model="tiny_perceptron", **settings):
    return client_of(name, model, **BOTH | settings)


# --- the companion --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fml", "fedmrl"])
def test_clients_companions_count_alike_over_all_architectures(strategy):
    server, _ = halves_of(strategy, BOTH)
    uploads, models = {}, ("tiny_perceptron", "perceptron")
    for partition, model in enumerate(models):
        objective, state = built(strategy, model)
        with torch.no_grad():
            for p in state.module.companion.parameters():
                p.fill_(3.0 * partition)
        uploads[partition] = objective.upload(state, 1)
    meet(server, uploads, (10, 80), models)
    (mean,) = server.aggregate(uploads, {}, 1).downloads.values()
    for tensor in mean["companion"].tensors.values():
        torch.testing.assert_close(tensor, torch.full_like(tensor, 1.5))
    # what teaches alone goes to those who learn
    keys = [server.download(0, {0: mean}, {}, 2, trains) for trains in (True, False)]
    assert [key is not None for key in keys] == [True, strategy == "fedmrl"]


# --- FML --------------------------------------------------------------------------------------------------------


def test_each_model_of_fml_learns_by_its_own_terms_alone():
    alpha, beta, rows = 0.3, 0.8, rows_of_five()
    objective, state = built("fml", **{"fml.alpha": alpha, "fml.beta": beta, "fml.companion": "perceptron"})
    own, meme = copy.deepcopy(state.module.model), copy.deepcopy(state.module.companion)
    objective.loss(state, rows, objective.phases(state, 1)[0], 1).total.backward()
    logits = {each: each(rows.inputs) for each in (own, meme)}
    for each, other, share in ((own, meme, alpha), (meme, own, beta)):
        known = torch.softmax(logits[other].detach(), dim=1)
        apart = (known * (known.log() - torch.log_softmax(logits[each], dim=1))).sum() / len(rows.labels)
        (share * cross_entropy(logits[each], rows.labels) + (1 - share) * apart).backward()
    for each, expected in ((state.module.model, own), (state.module.companion, meme)):
        for (name, p), q in zip(each.named_parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=name)


# --- FedMRL -----------------------------------------------------------------------------------------------------


def test_the_features_of_fedmrl_are_a_map_of_both_models_and_its_loss_has_two_heads():
    objective, state = built("fedmrl", "perceptron", **{"fedmrl.shared-dim": 2})
    module, rows = state.module, rows_of_five()
    joined = torch.cat([module.companion.extractor(rows.inputs), module.model.extractor(rows.inputs)], dim=1)
    z = joined @ module.projection.weight.T + module.projection.bias
    loss = objective.loss(state, rows, objective.phases(state, 1)[0], 1)
    torch.testing.assert_close(loss.features, z)
    torch.testing.assert_close(state.module.classify(z), module.model.classifier(z))
    first = cross_entropy(module.companion.classifier(z[:, :2]), rows.labels)
    torch.testing.assert_close(loss.total, cross_entropy(module.model.classifier(z), rows.labels) + first)
    loss.total.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in module.parameters())


@pytest.mark.parametrize(("asked", "width"), [(2, 2), (D + 1, D)])
def test_a_companion_is_no_wider_than_the_features_it_joins(asked, width):
    assert built("fedmrl", **{"fedmrl.shared-dim": asked})[1].module.companion.feature_dim == width
