"""Masks and number formats under whole runs: they come by settings alone, and a run stays what it is."""

import pytest
import torch
from safetensors.torch import load_file

from protosphere.client_app import client as client_module
from protosphere.prototypes.masks import class_masks
from protosphere.record.folder import RunFolder
from protosphere.strategies import read_settings

DIM, CLASSES = 24, 10
SPARSE = {"strategy": "tinyproto-fp", "tinyproto.sparsity-dim": 6, "wire-dtype": "float16", "feature-dim": DIM}


def received(folder, partition):
    """What a client was sent last, as it keeps it."""
    return load_file(folder.parents[1] / "clients" / folder.name / str(partition) / "received.safetensors")


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


@pytest.mark.parametrize("changed", [{"tinyproto.sparsity-dim": 0}, {"wire-dtype": "float32"}, {"seed": 7}])
def test_other_settings_of_messages_have_another_digest(changed):
    """Masks of another seed have the same shape, and would be decoded into nonsense."""
    assert read_settings(SPARSE | changed).digest != read_settings(SPARSE).digest
