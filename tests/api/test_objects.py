"""Models, methods and data sets that are given as objects, in process; and what is said where they cannot
go."""

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
    """Classes and functions that no other process can import, as those of a notebook."""

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
def test_classes_functions_modules_and_names_are_dealt_to_clients_in_turn():
    torch.manual_seed(3)
    net, make_mlp = local_names()
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run = protosphere.run("local", "digits", models=[net, make_mlp, module, "tiny_cnn", module], clients=5, **QUICK)
    labels = [name.partition(":")[2].rpartition("_")[0] for name in run.settings["models"].split(",")]
    assert labels == ["Net", "make_mlp", "Sequential", "", "Sequential"]
    backbones = [run.client(number).module.extractor for number in (0, 1, 2, 4)]
    assert isinstance(backbones[0].backbone, net)
    # what was given was copied, and stays as it was
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in before.items())
    weight = backbones[2].backbone[1].weight
    assert weight.shape == before["1.weight"].shape
    assert not torch.equal(weight, before["1.weight"])
    # one module is a model of its own at each client
    assert not torch.equal(weight, backbones[3].backbone[1].weight)
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
    asked = {"clients": 2, "partition": "iid", "models": "tiny_cnn", **QUICK}
    run = protosphere.run("local", Images(["RGB", "P"]), **asked)
    client = run.client(0)
    assert (client.input_shape, client.class_names) == ((3, 9, 10), ("dark", "bright"))
    (file,) = (home / "arrays").iterdir()
    with np.load(file) as arrays:
        # in the order of the Dataset, channels last as PIL has them; of a palette the colours, which are dithered
        wanted = np.array([[200 * (row % 2) + row % 40] * 3 for row in range(80)])
        assert abs(arrays["x"].mean(axis=(1, 2)) - wanted).max() < 6
        assert arrays["y"].tolist() == [row % 2 for row in range(80)]

    whole = TensorDataset(torch.randn(90, 5), torch.arange(90) % 3)
    train, test = random_split(whole, [60, 30], torch.Generator().manual_seed(0))
    run = protosphere.run("local", (train, test), split="official", **asked | {"models": "tiny_perceptron"})
    assert run.clients[run.clients["round"] == 1]["test_rows"].sum() == 30


# --- methods ----------------------------------------------------------------------------------------------------


def test_a_method_is_an_object_or_one_of_its_halves():
    class Alone(Objective):
        pass

    asked = {"models": "tiny_perceptron", "clients": 2, **QUICK, "rounds": 2}
    for given, ratio, pulls in (
        (Doubled, 2, True),
        (Method(server=Doubled, objective=Plain), 2, False),
        (Plain, 1, False),
    ):
        run = protosphere.run(given, "digits", **asked)
        found = run.prototypes()
        means = [found.client_vectors[found.client_labels == label].mean(axis=0) for label in found.labels]
        assert np.allclose(found.vectors, ratio * np.stack(means), rtol=1e-4)
        assert ("loss/prototype-pull" in run.rounds) == pulls
    assert protosphere.run(Alone, "digits", **asked).summary["bytes"]["payload_up"] == 0


# --- where objects cannot go ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"strategy": 3}, "a method is a name, a Method"),
        ({"models": lambda: 3}, "it returns a int"),
        ({"models": lambda: nn.Flatten(), "workers": 2}, "put it into a file"),
        ({"dataset": TensorDataset(torch.rand(4, 3), torch.rand(4))}, "fails at item 0 .*no whole number"),
        ({"dataset": (Images(["L"]), 3)}, "is given a int"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(asked, words):
    given = {"strategy": "local", "dataset": "digits", "clients": 2, "models": "tiny_perceptron", **QUICK}
    with pytest.raises(protosphere.Error, match=words):
        protosphere.run(**(given | asked))


@pytest.mark.parametrize("asked", [{"methods": ["local"], "models": lambda: nn.Flatten()}, {"methods": [Doubled]}])
def test_a_comparison_s_processes_have_no_objects(home, asked):
    with pytest.raises(protosphere.SettingError, match="a comparison has a process for each run"):
        protosphere.compare(**asked, quiet=True)
    assert not (home / "results").exists()


def test_such_a_run_is_resumed_in_its_process_and_read_in_another(monkeypatch):
    net, make_mlp = local_names()
    method = Method(server=Doubled, objective=Plain)
    asked = {"dataset": "digits", "models": [net, make_mlp], "clients": 2, **QUICK}
    run = protosphere.run(method, **asked)
    resumed = protosphere.run(resume=run.folder, rounds=2, quiet=True)
    whole = protosphere.run(method, **asked | {"rounds": 2})
    assert resumed.rounds["accuracy"].tolist() == whole.rounds["accuracy"].tolist()
    with pytest.raises(protosphere.SettingError, match="setting `models` was"):
        protosphere.run(resume=run.folder, models=[make_mlp, net], rounds=3, quiet=True)
    # as another process has it
    monkeypatch.setattr(objects, "_objects", {})
    assert len(protosphere.load(run.folder).rounds) == 3
    for what in (lambda: run.client(0), lambda: protosphere.run(resume=run.folder, rounds=3, quiet=True)):
        with pytest.raises(protosphere.Error, match="in another process"):
            what()
    with pytest.raises(protosphere.SettingError, match="on machines of their own"):
        plan(['models="tiny_cnn,object:Net_00000000"'], remote=True)
