"""A client over several messages: what it starts from, what it keeps, what it gives away."""

import shutil
from dataclasses import replace

import pytest
import torch

from protosphere.client_app import client as client_module
from protosphere.client_app.store import StoreError, size_of
from protosphere.client_app.train import DivergenceError
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.serving.predict import open_trained
from protosphere.wire.payloads import Instruction
from tests.client_app.restored import restored
from tests.payloads import lone, payload

CPU = torch.device("cpu")


def ask(number, came=None, run="a-run"):
    return Instruction(run, number, payload(came))


def targets(labels=(0, 3, 7), dim=8):
    return PrototypeSet(torch.tensor(labels), torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(5)))


def generations(home, partition=0, run="a-run"):
    """Name -> (inode, time) of each generation."""
    folder = home / "clients" / run / str(partition)
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in sorted(folder.glob("round-*"))}


def without_times(report):
    training = report.training and replace(report.training, seconds=0.0)
    evaluation = report.evaluation and replace(report.evaluation, seconds=0.0)
    sent = report.payload and [tensor.numpy().tobytes() for tensor in lone(report.payload).fields().values()]
    return report.partition, report.round, report.problem, training, evaluation, sent


# --- rounds ----------------------------------------------------------------------------------------------------


def test_round_0_evaluates_the_initial_model_and_round_1_trains_without_targets(client, home):
    untrained = client().evaluate(ask(0))
    assert set(untrained.evaluation.correct) == {"classifier", "local-prototypes", "discriminant", "majority-class"}
    assert (untrained.payload, untrained.training) == (None, None)
    report = client().train(ask(1))
    assert report.evaluation is None
    assert set(report.training.parts) == {"cross-entropy", "loss"}
    assert lone(report.payload).counts is None
    assert lone(report.payload).labels.tolist() == list(client().identity().classes)
    assert list(generations(home)) == ["round-000000.safetensors", "round-000001.safetensors"]
    assert not (home / "clients" / "a-run" / "0" / "received.safetensors").exists()


def test_an_evaluation_is_of_the_model_that_the_round_left_and_of_the_targets_that_come_with_it(client):
    client().train(ask(1))
    alone = client().evaluate(ask(1)).evaluation
    assert "global-prototypes" not in alone.correct
    found = client().evaluate(ask(1, targets())).evaluation
    assert "global-prototypes" in found.correct
    assert all(found.correct[rule] == counts for rule, counts in alone.correct.items())
    # a state in memory must not remember the last message's targets
    report = client().train(ask(2))
    assert "prototype-pull" not in report.training.parts
    assert "global-prototypes" not in client().evaluate(ask(2)).evaluation.correct


# --- memory and store ------------------------------------------------------------------------------------------


def rounds(client, settings=None, between=lambda: None):
    """Three rounds; what each reported."""
    reports = []
    for number, came in ((1, None), (2, targets()), (3, targets((1, 2)))):
        reports.append(without_times(client(0, settings).train(ask(number, came))))
        between()
    return reports


@pytest.mark.parametrize(
    "settings",
    [
        {"models": "cnn4", "momentum": 0.9, "weight-decay": 0.01},
        # of images with one channel, and of 1x1 kernels, two layouts in memory look alike
        {"models": "tiny_resnet", "momentum": 0.9, "optimizer-state": "persistent"},
    ],
    ids=["batchnorm", "layout"],
)
def test_a_state_from_the_store_is_the_state_from_memory_to_the_bit(client, home, settings):
    in_memory = rounds(client, settings)
    shutil.rmtree(home / "clients")
    client_module._states.clear()
    assert rounds(client, settings, between=client_module._states.clear) == in_memory


def test_a_state_in_memory_gives_way_to_a_store_that_another_process_wrote(client, home):
    """Workers share no memory: another one trained this client meanwhile."""
    client().train(ask(1))
    stale = client_module._states["a-run", 0, CPU]
    client_module._states.clear()
    client().train(ask(2, targets()))
    expected = client().evaluate(ask(2, targets()))
    client_module._states.clear()
    client_module._states["a-run", 0, CPU] = stale
    assert client().evaluate(ask(2, targets())).evaluation.correct == expected.evaluation.correct
    client_module._states["a-run", 0, CPU] = stale
    again = client().train(ask(3, targets()))
    client_module._states.clear()
    shutil.rmtree(home / "clients")
    *_, uninterrupted = [client().train(ask(n, p)) for n, p in ((1, None), (2, targets()), (3, targets()))]
    assert without_times(again) == without_times(uninterrupted)


def test_memory_holds_the_states_used_last_within_its_bound(client):
    for partition in range(4):
        client(partition).train(ask(1))
    assert [key[:2] for key in client_module._states] == [("a-run", partition) for partition in range(4)]
    sizes = [size_of(state) for _, state in client_module._states.values()]
    weights = sum(tensor.nbytes for tensor in client_module._states["a-run", 0, CPU][1].module.state_dict().values())
    assert sizes[0] > weights, "prototypes and their covariance count, too"
    assert client_module._states.total == sum(sizes)
    client(1).evaluate(ask(1))
    client_module._states.shrink(sizes[1] + sizes[3])
    assert [key[:2] for key in client_module._states] == [("a-run", 3), ("a-run", 1)]
    assert client_module._states.total == sizes[1] + sizes[3]
    client(0, {"state-memory": 0}).evaluate(ask(1))
    assert [key[:2] for key in client_module._states] == [("a-run", 0)]  # the newest always stays: it is in use


def test_a_store_that_lost_what_the_server_has_seen_is_a_problem_not_a_fresh_start(client, home):
    client().train(ask(1))
    client().train(replace(ask(2, targets()), last_trained_round=1))
    shutil.rmtree(home / "clients")
    with pytest.raises(StoreError, match="does not hold the model of round 2"):
        client().train(replace(ask(3, targets()), last_trained_round=2))
    assert not generations(home)


# --- divergence ------------------------------------------------------------------------------------------------


def test_a_client_that_diverges_says_so_and_still_evaluates_what_it_had(client, home):
    wild = {"learning-rate": 1e6, "local-epochs": 4}
    report = client(0, wild).train(ask(1))
    assert report.problem.startswith("client 0 (tiny_perceptron) diverged in round 1: ")
    assert "not finite" in report.problem
    assert report.payload is None
    assert report.training is None
    assert list(generations(home)) == ["round-000000.safetensors"]
    before = client(0, wild).evaluate(ask(0)).evaluation.correct
    assert client(0, wild).evaluate(ask(1)).evaluation.correct == before


def test_after_a_divergence_the_client_goes_on_from_its_last_good_state(client, home, monkeypatch):
    good = client().train(ask(1))
    kept = generations(home)
    whole = client_module.train

    def spoil(objective, state, *arguments):
        whole(objective, state, *arguments)
        for parameter in state.module.parameters():
            torch.nn.init.constant_(parameter, float("nan"))
        state.extra["spoilt"] = torch.ones(1)
        raise DivergenceError("it went wrong")

    with monkeypatch.context() as patch:
        patch.setattr(client_module, "train", spoil)
        report = client().train(ask(2, targets()))
    assert report.problem == "client 0 (tiny_perceptron) diverged in round 2: it went wrong"
    assert generations(home) == kept
    assert not client_module._states
    went_on = client().train(ask(3, targets()))
    client_module._states.clear()
    shutil.rmtree(home / "clients")
    assert without_times(client().train(ask(1))) == without_times(good)
    assert without_times(client().train(ask(3, targets()))) == without_times(went_on)


# --- a second model that the run names ------------------------------------------------------------------------------


def test_a_round_that_no_evaluation_follows_leaves_no_prototypes_and_a_look_from_outside_measures_them(client, home):
    often = client(settings={"strategy": "local"}).train(ask(1, run="often"))
    rare = {"strategy": "local", "evaluate-every": 2, "rounds": 5}
    assert client(settings=rare).train(ask(1)).training.prototype_norm is None
    trained = open_trained(home / "clients" / "a-run" / "0")
    assert trained.rules() == ("classifier",)
    late = restored(client(settings=rare), "a-run")
    expected = restored(client(), "often")
    assert torch.equal(late.prototypes.vectors, expected.prototypes.vectors)
    assert torch.equal(late.covariance, expected.covariance)
    assert client(settings=rare).train(ask(2)).training.prototype_norm > 0 < often.training.prototype_norm
