"""Models, methods and data sets as Python objects, and refusals where they cannot be used."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, TensorDataset, random_split

import protosphere
from protosphere.core import objects
from protosphere.plans.run_config import plan
from protosphere.prototypes.aggregation import aggregate
from protosphere.strategies.contract import (
    Method,
    Objective,
    Outcome,
    PullObjective,
    ServerHalf,
    as_state,
    prototype_sets,
    to_everyone,
)

QUICK = {"rounds": 1, "device": "cpu", "quiet": True, "max_samples": 200}
QUICK |= {"local_epochs": 1, "momentum": 0.0}


def local_names():
    """A class and a function that no other process can import, as in a notebook."""

    class Net(nn.Module):
        def __init__(self, num_classes):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes + 3))

        def forward(self, x):
            return self.layers(x)

    def make_mlp(input_shape, feature_dim, **_):
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), feature_dim), nn.ReLU())

    return Net, make_mlp


@pytest.mark.usefixtures("undrawn")
def test_clients_take_classes_functions_modules_and_names_of_models_in_turn():
    torch.manual_seed(3)
    net, make_mlp = local_names()
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run = protosphere.run("local", "digits", models=[net, make_mlp, module, "tiny_cnn", module], clients=5, **QUICK)
    labels = [name.partition(":")[2].rpartition("_")[0] for name in run.settings["models"].split(",")]
    assert labels == ["Net", "make_mlp", "Sequential", "", "Sequential"]
    first, third, fifth = (run.client(number).module.extractor.backbone for number in (0, 2, 4))
    assert isinstance(first, net)
    # a module is copied for each client, and stays as it was
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in before.items())
    assert third[1].weight.shape == before["1.weight"].shape
    assert not torch.equal(third[1].weight, before["1.weight"])
    assert not torch.equal(third[1].weight, fifth[1].weight)
    assert run.report().path.exists()


class Doubled(ServerHalf):
    def aggregate(self, uploads, state, server_round):
        means = aggregate(list(prototype_sets(uploads).values()), "mean")
        doubled = means.with_vectors(2 * means.vectors)
        return Outcome(as_state(doubled), to_everyone(doubled))


class Plain(PullObjective):
    def loss(self, state, batch, phase, round_number):
        # without the pull
        return Objective.loss(self, state, batch, phase, round_number)


class Images(Dataset):
    classes = ("dark", "bright")

    def __init__(self, modes):
        self.modes = modes

    def __len__(self):
        return 80

    def __getitem__(self, row):
        image = Image.fromarray(np.full((9, 10, 3), 200 * (row % 2) + row % 40, np.uint8))
        return image.convert(self.modes[row % len(self.modes)]), row % 2


def test_a_torch_dataset_is_a_data_set(home):
    settings = {"clients": 2, "partition": "iid", "models": "tiny_cnn", **QUICK}
    client = protosphere.run("local", Images(["RGB", "P"]), **settings).client(0)
    assert (client.input_shape, client.class_names) == ((3, 9, 10), ("dark", "bright"))
    (file,) = (home / "arrays").iterdir()
    with np.load(file) as arrays:
        # in the order of the Dataset, with channels last, as PIL has them; colours of a palette are dithered
        expected = np.array([[200 * (row % 2) + row % 40] * 3 for row in range(80)])
        assert abs(arrays["x"].mean(axis=(1, 2)) - expected).max() < 6
        assert arrays["y"].tolist() == [row % 2 for row in range(80)]

    whole = TensorDataset(torch.randn(90, 5), torch.arange(90) % 3)
    train, test = random_split(whole, [60, 30], torch.Generator().manual_seed(0))
    run = protosphere.run("local", (train, test), split="official", **settings | {"models": "tiny_perceptron"})
    assert run.clients[run.clients["round"] == 1]["test_rows"].sum() == 30


# --- methods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "ratio", "pulls"),
    [(Doubled, 2, True), (Method(server=Doubled, objective=Plain), 2, False), (Plain, 1, False)],
    ids=["server half", "method", "objective"],
)
def test_a_method_is_an_object_or_one_of_its_halves(method, ratio, pulls):
    run = protosphere.run(method, "digits", models="tiny_perceptron", clients=2, **QUICK | {"rounds": 2})
    prototypes = run.prototypes()
    means = [prototypes.client_vectors[prototypes.client_labels == label].mean(axis=0) for label in prototypes.labels]
    assert np.allclose(prototypes.vectors, ratio * np.stack(means), rtol=1e-4)
    assert ("loss/prototype-pull" in run.rounds) == pulls


def test_an_objective_without_uploads_exchanges_nothing():
    class Alone(Objective):
        pass

    run = protosphere.run(Alone, "digits", models="tiny_perceptron", clients=2, **QUICK)
    assert run.summary["bytes"]["payload_up"] == 0


# --- other processes --------------------------------------------------------------------------------------------


def test_a_run_of_objects_is_resumed_in_its_process_and_read_in_another(monkeypatch):
    net, make_mlp = local_names()
    method = Method(server=Doubled, objective=Plain)
    settings = {"dataset": "digits", "models": [net, make_mlp], "clients": 2, **QUICK}
    run = protosphere.run(method, **settings)
    resumed = protosphere.run(resume=run.folder, rounds=2, quiet=True)
    whole = protosphere.run(method, **settings | {"rounds": 2})
    assert resumed.rounds["accuracy"].tolist() == whole.rounds["accuracy"].tolist()
    with pytest.raises(protosphere.SettingError, match="setting `models` was"):
        protosphere.run(resume=run.folder, models=[make_mlp, net], rounds=3, quiet=True)
    # another process has no objects
    monkeypatch.setattr(objects, "_objects", {})
    assert len(protosphere.load(run.folder).rounds) == 3
    with pytest.raises(protosphere.Error, match="in another process"):
        run.client(0)
    with pytest.raises(protosphere.Error, match="in another process"):
        protosphere.run(resume=run.folder, rounds=3, quiet=True)
    with pytest.raises(protosphere.SettingError, match="on machines of their own"):
        plan(['models="tiny_cnn,object:Net_00000000"'], remote=True)
