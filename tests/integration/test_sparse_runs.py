"""Masks and number formats under whole runs: they come by settings alone, and a run stays what it is."""

import json

import pytest
import torch
from safetensors.torch import load_file

from protosphere.client_app import client as client_module
from protosphere.launch.grid import LocalGrid
from protosphere.prototypes.masks import class_masks
from protosphere.record.folder import RunFolder

DIM, CLASSES = 24, 10
SPARSE = {"strategy": "tinyproto-fp", "tinyproto.sparsity-dim": 6, "wire-dtype": "float16", "feature-dim": DIM}
DISAGREEING = 2


class OtherOrder(LocalGrid):
    """Lists its nodes backwards, answers the newest message first."""

    def get_node_ids(self):
        return super().get_node_ids()[::-1]

    def pull_messages(self, message_ids):
        return super().pull_messages(list(message_ids)[::-1])


def received(folder, partition):
    """What a client was sent last, as it keeps it."""
    return load_file(folder.parents[1] / "clients" / folder.name / str(partition) / "received.safetensors")


# --- the same run, however it is run ----------------------------------------------------------------------------


def test_the_order_of_replies_does_not_change_a_sparse_run_and_the_seed_of_its_masks_does(run, metrics):
    """Other workers and a resumption: tests/strategies/test_contract.py."""
    settings = SPARSE | {"rounds": 2, "fraction-train": 0.5, "models": "tiny_cnn,tiny_perceptron"}
    usual = json.dumps(metrics(run(settings)))
    assert json.dumps(metrics(run(settings, grid=OtherOrder))) == usual
    for changed in ({"seed": 1}, {"tinyproto.sparsity-dim": 5}):
        assert json.dumps(metrics(run(settings | changed))) != usual


# --- what arrives -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["tinyproto-fp", "tinyproto-ft"])
def test_downloads_arrive_compressed_and_targets_have_zeros_outside_the_masks(run, strategy):
    own = {"fedtgp.server-epochs": 3} if strategy == "tinyproto-ft" else {}
    client_module._states.clear()
    folder = run(SPARSE | own | {"strategy": strategy})
    tensors, meta = RunFolder(folder).load_checkpoint()
    made, labels = (tensors[f"download/-1/part/prototypes/prototypes/{name}"] for name in ("vectors", "labels"))
    assert made.shape == (len(labels), 6)
    masks = class_masks(CLASSES, DIM, 6, seed=0)[labels]
    states = {partition: state for (_, partition, _), (_, state) in client_module._states.items()}
    assert sorted(states) == [0, 1, 2, 3]
    for partition, state in states.items():
        came = {name.rpartition("/")[2]: tensor for name, tensor in received(folder, partition).items()}
        assert torch.equal(came["labels"], labels)
        assert torch.equal(came["vectors"], made.half().float())
        scale = meta["constants"]["mu"] if strategy == "tinyproto-fp" else 1.0
        assert torch.equal(state.targets.vectors[masks].reshape(-1, 6), scale * came["vectors"])
        assert not state.targets.vectors[~masks].any()
        # the client predicts with its own prototypes, whole
        assert (state.prototypes.vectors != 0).all()


# --- settings that do not agree ------------------------------------------------------------------------------------


def disagreeing(**changed):
    """A grid on which the client DISAGREEING has other settings."""

    class Disagreeing(LocalGrid):
        def _answer(self, message):
            node = self.nodes.get(message.metadata.dst_node_id, {})
            if node.get("partition-id") != DISAGREEING:
                return super()._answer(message)
            usual = self.run_config
            self.run_config = dict(usual) | {name.replace("_", "-"): value for name, value in changed.items()}
            try:
                return super()._answer(message)
            finally:
                self.run_config = usual

    return Disagreeing


@pytest.mark.parametrize("changed", [{"tinyproto.sparsity_dim": 0}, {"wire_dtype": "float32"}, {"seed": 7}])
def test_a_client_of_other_settings_of_messages_is_named_before_round_1(run, changed):
    """Masks of another seed have the same shape, and would be decoded into nonsense."""
    folder = run(SPARSE, grid=disagreeing(**changed))
    (said,) = [line for line in run.said if "is left out" in line]
    assert f"client {DISAGREEING} (node " in said
    assert "it has other settings of messages than the server" in said
    assert DISAGREEING not in {client["partition"] for client in RunFolder(folder).roster()}
