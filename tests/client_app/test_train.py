"""The training loop against naive loops written out here: by sample, by parameter, by hand."""

import math

import pytest
import torch

from protosphere.client_app.evaluate import evaluate
from protosphere.client_app.store import Store
from protosphere.client_app.train import DivergenceError, batches, train
from protosphere.core.seeds import generator
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import Loss, Phase
from tests.payloads import payload

STREAM = ("seed", "client", 0, "round", 1)


def chunks(rows, size, seed=0):
    return list(batches(rows, size, generator("test", seed), torch.device("cpu")))


def receive(made, labels=(0, 2), scale=1.0):
    """Give the state targets as a round's message would."""
    vectors = torch.randn(len(labels), made.settings.feature_dim, generator=torch.Generator().manual_seed(7))
    received = PrototypeSet(torch.tensor(labels), vectors)
    made.state.targets = made.objective.targets(made.state, payload(received))
    made.state.table = made.state.targets.table(made.objective.num_classes)
    return {label: scale * vector for label, vector in zip(labels, vectors, strict=True)}


SIZES = {(10, 4): [4, 4, 2], (8, 4): [4, 4], (9, 4): [4, 5], (5, 4): [5], (3, 2): [3], (4, 32): [4], (2, 2): [2]}


@pytest.mark.parametrize(("rows", "size"), SIZES)
def test_every_row_comes_once_an_epoch_and_no_batch_holds_one(rows, size):
    found = chunks(rows, size)
    assert [len(chunk) for chunk in found] == SIZES[rows, size]
    assert sorted(torch.cat(found).tolist()) == list(range(rows))
    assert [chunk.tolist() for chunk in chunks(1, 4)] == [[0, 0]], "a single row comes twice"


def naive_order(rows, size, epoch):
    order = torch.randperm(rows, generator=generator(*STREAM, "train", epoch)).tolist()
    found = [order[start : start + size] for start in range(0, rows, size)]
    if len(found[-1]) == 1:
        last = found.pop()
        found[-1] = found[-1] + last
    return found


def naive_pull(z, labels, targets, reduction):
    terms = []
    for row, label in zip(z, labels.tolist(), strict=True):
        if label in targets:
            squares = sum((row[i] - targets[label][i]) ** 2 for i in range(len(row)))
            terms.append({"mse": squares / len(row), "l2": squares**0.5, "l2-squared": squares}[reduction])
    return sum(terms) / len(terms) if terms else torch.zeros(())


def naive_training(made, targets, epochs, momenta=None):
    """SGD with momentum and weight decay by its formula; gives the momentum of each parameter."""
    settings, module, rows = made.settings, made.state.module, made.data.train
    parameters = list(module.parameters())
    momenta = momenta or [None] * len(parameters)
    module.train()
    for epoch in range(epochs):
        for index in naive_order(len(rows), settings.batch_size, epoch):
            inputs, labels = (rows.inputs[index] / 2.0 - 0.5) / 1.5, rows.labels[index]
            z = module.features(inputs)
            logits = module.classify(z)
            loss = -sum(logits[i].log_softmax(0)[label] for i, label in enumerate(labels.tolist())) / len(index)
            loss = loss + settings.prototype_weight * naive_pull(z, labels, targets, settings.prototype_loss)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                    step = gradient + settings.weight_decay * parameter
                    momenta[i] = step if momenta[i] is None else settings.momentum * momenta[i] + step
                    parameter -= settings.learning_rate * momenta[i]
    return momenta


def assert_same_weights(found, expected):
    for (name, one), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


METHODS = {
    "local": {"strategy": "local"},
    "l2": {"strategy": "fedproto", "prototype-loss": "l2", "prototype-weight": 1.0},
    "l2-squared": {"strategy": "fedproto", "prototype-loss": "l2-squared", "prototype-weight": 0.3},
    "protonorm": {"strategy": "protonorm", "protonorm.gamma": 3.0, "prototype-weight": 1.0},
    "momentum": {"strategy": "fedproto", "momentum": 0.9, "weight-decay": 0.05, "learning-rate": 0.03},
}


@pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_training_equals_a_naive_loop(parts, settings, norm):
    settings = settings | {"local-epochs": 2}
    made, naive = parts(settings, norm=norm), parts(settings, norm=norm)
    targets = {}
    if settings["strategy"] != "local":
        targets = receive(made, scale=settings.get("protonorm.gamma", 1.0))
    started = [parameter.clone() for parameter in made.state.module.parameters()]
    made.state.module.eval()  # as the evaluation on arrival leaves it
    train(made.objective, made.state, made.data, STREAM, 1)
    naive_training(naive, targets, epochs=2)
    assert_same_weights(made.state.module, naive.state.module)
    assert not any(map(torch.equal, started, made.state.module.parameters()))


@pytest.mark.parametrize("kept", ["fresh", "persistent"])
def test_momentum_survives_a_round_and_the_store_only_where_asked(parts, tmp_path, kept):
    settings = {"strategy": "local", "momentum": 0.9, "optimizer-state": kept}
    made, naive = parts(settings), parts(settings)
    train(made.objective, made.state, made.data, STREAM, 1)
    store = Store(tmp_path)
    store.save(1, made.state)
    loaded = parts(settings, seed=9)
    store.load_into(loaded.state, 1, torch.device("cpu"))
    train(loaded.objective, loaded.state, loaded.data, STREAM, 2)
    momenta = naive_training(naive, {}, epochs=1)
    naive_training(naive, {}, epochs=1, momenta=momenta if kept == "persistent" else None)
    assert_same_weights(loaded.state.module, naive.state.module)
    assert bool(loaded.state.optimiser) == (kept == "persistent")


def test_prototypes_are_measured_after_training_in_eval_mode_over_all_rows(parts):
    made = parts(train=(0, 0, 1, 3) * 80 + (3,), norm=True)
    train(made.objective, made.state, made.data, STREAM, 1)
    module, rows = made.state.module, made.data.train
    assert not module.training
    with torch.no_grad():
        z = torch.cat([module.features(((x / 2.0 - 0.5) / 1.5).unsqueeze(0)) for x in rows.inputs]).double()
    found = made.state.prototypes
    assert found.labels.tolist() == [0, 1, 3]
    assert found.counts.tolist() == [160, 80, 81]
    for label, vector in zip((0, 1, 3), found.vectors.double(), strict=True):
        torch.testing.assert_close(vector, z[rows.labels == label].mean(dim=0), rtol=1e-5, atol=1e-6)


def test_divergence_names_the_loss_the_epoch_and_the_phase(parts):
    made = parts({"strategy": "local", "local-epochs": 9})
    whole, steps = made.objective.loss, []

    def spoilt_in_the_third_epoch(*arguments):
        found = whole(*arguments)
        steps.append(1)
        if len(steps) != 12:  # five batches an epoch: 21 rows by 4, the last of five
            return found
        bad = found.total * math.nan
        return Loss(bad, {"cross-entropy": bad}, found.features)

    made.objective.loss = spoilt_in_the_third_epoch
    with pytest.raises(DivergenceError, match="cross-entropy is not finite in epoch 3 of phase `train`; lower `learn"):
        train(made.objective, made.state, made.data, STREAM, 1)
    assert len(steps) == 15  # one look an epoch, and none after it


# parts of the model -> what the step makes of them; of the last, which stay finite, the features are not
SPOILT = {
    **dict.fromkeys([("extractor.0.weight",), ("classifier.bias",), ("extractor.1.running_var",)], math.inf),
    ("extractor.3.weight", "extractor.3.bias"): 3e38,
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("later", [False, True])
def test_a_model_that_the_last_step_spoilt_is_not_kept_and_told_before_the_next_phase(parts, spoilt, later):
    """The loss of the last step is that of the model before it: finite, though the step ruined the model."""
    made = parts({"strategy": "local", "batch-size": 32}, norm=True)
    finite = math.isfinite(SPOILT[spoilt])

    class Spoiling(torch.optim.SGD):
        def step(self):
            for name in spoilt:
                made.state.module.state_dict()[name].fill_(SPOILT[spoilt])

    parameters = list(made.state.module.parameters())
    first = Phase("first", parameters, optimiser=lambda p: Spoiling(p, lr=0.1), rate="a-rate")
    more = [Phase("second", parameters)] if later and not finite else []
    made.objective.phases = lambda state, number: [first, *more]
    said = f"`{spoilt[0]}` is not finite after training in phase `first`; lower `a-rate`$"
    with pytest.raises(DivergenceError, match="the features are not finite" if finite else said):
        train(made.objective, made.state, made.data, STREAM, 1)


@pytest.mark.parametrize("strategy", ["fedproto", "fedrep", "ditto"])
def test_prototypes_from_training_are_means_of_the_features_that_batches_had(parts, monkeypatch, strategy):
    made = parts({"strategy": strategy, "prototypes-from": "training", "local-epochs": 2})
    seen = {}
    whole = type(made.objective).loss

    def loss(self, state, batch, phase, round_number):
        found = whole(self, state, batch, phase, round_number)
        if phase.name == "global":
            # of ditto: the companion, which is not the model that prototypes are for
            return found
        for z, label in zip(found.features.detach().double(), batch.labels.tolist(), strict=True):
            seen.setdefault(label, []).append(z)
        return found

    monkeypatch.setattr(type(made.objective), "loss", loss)
    made.objective.receive(made.state, None, 1)
    train(made.objective, made.state, made.data, ("stream",), 1)
    found = made.state.prototypes
    assert found.labels.tolist() == sorted(seen) == [0, 1, 2]
    assert found.counts.tolist() == [7, 7, 7], "of the rows, not of what epochs met"
    for label, vector in zip(found.labels.tolist(), found.vectors, strict=True):
        torch.testing.assert_close(vector, torch.stack(seen[label]).mean(dim=0).float())
    rules = evaluate(made.objective, made.state, made.data).correct
    assert "local-prototypes" in rules
    assert "discriminant" not in rules
