"""Models, methods and data sets that are given as objects, in process; and what is said where they cannot
go."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, TensorDataset, random_split

import protosphere
from protosphere.cli.new import TEMPLATES
from protosphere.core.errors import ModelError
from protosphere.own_objects import with_names
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
from protosphere.strategies.fedproto import METHOD as FEDPROTO

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
    run = protosphere.run("local", "digits", models=[net, make_mlp, module, "tiny_cnn"], clients=4, **QUICK)
    labels = [name.partition(":")[2].rpartition("_")[0] for name in run.settings["models"].split(",")]
    assert labels == ["Net", "make_mlp", "Sequential", ""]
    backbones = [run.client(number).module.extractor for number in range(3)]
    assert isinstance(backbones[0].backbone, net)
    # what was given was copied, and stays as it was
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in before.items())
    weight = backbones[2].backbone[1].weight
    assert weight.shape == before["1.weight"].shape
    assert not torch.equal(weight, before["1.weight"])
    assert run.report().path.exists()


def test_an_object_keeps_its_name_and_another_like_it_gets_another():
    net, make_mlp = local_names()
    again, _ = local_names()
    assert with_names({"models": [net, make_mlp]}) == with_names({"models": [net, make_mlp]})
    assert with_names({"models": net}) != with_names({"models": again})


def test_a_run_s_figures_depend_on_no_object_s_name():
    first, second = (
        protosphere.run("local", "digits", models=local_names()[1], clients=2, **QUICK).rounds for _ in range(2)
    )
    assert first["accuracy"].tolist() == second["accuracy"].tolist()
    assert first["loss"].dropna().tolist() == second["loss"].dropna().tolist() != []


class Maker:
    def __init__(self, width):
        self.width = width

    def __call__(self, feature_dim):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, self.width))


def test_two_makers_of_one_class_give_their_clients_what_each_makes():
    run = protosphere.run("local", "digits", models=[Maker(8), Maker(16)], clients=2, **QUICK)
    assert [run.client(number).module.extractor.backbone[1].out_features for number in range(2)] == [8, 16]


class Doubled(ServerHalf):
    def aggregate(self, uploads, state, server_round):
        means = aggregate(list(prototype_sets(uploads).values()), "mean")
        doubled = means.with_vectors(2 * means.vectors)
        return Outcome(as_state(doubled), to_everyone(doubled))


class Plain(PullObjective):
    def loss(self, state, batch, phase, round_number):
        # without the pull
        return Objective.loss(self, state, batch, phase, round_number)


def ratio(run):
    found = run.prototypes()
    means = [found.client_vectors[found.client_labels == label].mean(axis=0) for label in found.labels]
    return found.vectors / np.stack(means)


def test_a_method_is_an_object_or_one_of_its_halves():
    asked = {"models": "tiny_perceptron", "clients": 2, **QUICK, "rounds": 2}
    for given, twice, pulls in (
        (Doubled, 2, True),
        (Method(server=Doubled, objective=Plain), 2, False),
        (Plain, 1, False),
    ):
        run = protosphere.run(given, "digits", **asked)
        assert np.allclose(ratio(run), twice, rtol=1e-4)
        assert ("loss/prototype-pull" in run.rounds) == pulls
        assert run.name.split("-")[2] in ("Doubled", "Plain")

    class Alone(Objective):
        pass

    run = protosphere.run(Alone, "digits", **asked)
    assert run.summary["bytes"]["payload_up"] == 0


CELL = """
from protosphere.strategies.contract import Method, Objective, PullObjective

class Broken(PullObjective):
    def loss(self, state, batch, phase, round_number):
        return Objective.loss(self, state, batch, phase, round_number).missing
"""


def test_a_method_of_a_notebook_s_cell_fails_by_its_line():
    names = {"__name__": "__main__"}
    exec(compile(CELL, "/tmp/ipykernel_7/cell.py", "exec"), names)
    with pytest.raises(protosphere.RunError, match=r"AttributeError.*\(/tmp/ipykernel_7/cell.py, line 6\)"):
        protosphere.run(names["Broken"], "digits", models="tiny_perceptron", clients=2, **QUICK)


def test_the_settings_of_a_method_that_is_an_object_are_known_and_refused_by_name():
    names = {"__name__": "cell"}
    exec((TEMPLATES / "method.py").read_text(), names)
    asked = {"dataset": "digits", "models": "tiny_perceptron", "clients": 2, **QUICK}
    run = protosphere.run(names["METHOD"], **asked, mymethod__memory=0.9)
    assert run.settings["mymethod.memory"] == 0.9
    with pytest.raises(protosphere.SettingError, match=r"`mymethod.memory` is 1, but"):
        protosphere.run(names["METHOD"], **asked, mymethod__memory=1)


def test_what_can_be_imported_is_named_by_that_and_goes_everywhere():
    assert with_names({"strategy": FEDPROTO}) == {"strategy": "protosphere.strategies.fedproto:METHOD"}
    assert with_names({"models": nn.Flatten}) == {"models": "torch.nn.modules.flatten:Flatten"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"strategy": 3}, "`strategy` is an object of type int, but a method is a name, a Method"),
        ({"strategy": nn.Linear}, "`strategy` is the class Linear, but"),
        ({"models": [3]}, "`models` has an object of type int"),
        ({"models": lambda: 3}, "it gives a int"),
        (
            {"models": lambda: nn.Flatten(), "workers": 2},
            "2 workers are processes of their own; put it into a file",
        ),
        (
            {"strategy": Method(Doubled, Plain), "workers": 2},
            'the object "Doubled", which the process that was given it',
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(asked, words):
    with pytest.raises(protosphere.Error, match=words) as caught:
        protosphere.run(**({"strategy": "local", "dataset": "digits", "clients": 2, **QUICK} | asked))
    assert str(caught.value).endswith(".")


def test_a_comparison_s_processes_have_no_objects(home):
    for asked in ({"methods": ["local"], "models": lambda: nn.Flatten()}, {"methods": [Doubled]}):
        with pytest.raises(protosphere.SettingError, match="but a comparison has a process for each run; put it into"):
            protosphere.compare(**asked, quiet=True)
    assert not (home / "results").exists()


ELSEWHERE = """
import sys, protosphere
from protosphere.reports import canvas
run = protosphere.load(sys.argv[1])
print(len(run.rounds), run.summary["strategy"])
canvas.svg = lambda plot: "<svg></svg>"
run.report()
for what in (lambda: run.client(0), lambda: protosphere.run(resume=run.folder, rounds=2, quiet=True)):
    try:
        what()
    except protosphere.Error as error:
        print(error)
"""


def test_such_a_run_is_resumed_in_its_process_and_read_in_another():
    net, make_mlp = local_names()
    method = Method(server=Doubled, objective=Plain)
    asked = {"dataset": "digits", "models": [net, make_mlp], "clients": 2, **QUICK}
    run = protosphere.run(method, **asked)
    process = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(run.folder)], env=os.environ, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    first, *errors = process.stdout.splitlines()
    assert first.startswith("2 object:Doubled_")
    assert len(errors) == 2
    for error in errors:
        assert "is an object that was given to protosphere.run in another process" in error
    resumed = protosphere.run(resume=run.folder, rounds=2, quiet=True)
    whole = protosphere.run(method, **asked | {"rounds": 2})
    assert resumed.rounds["accuracy"].tolist() == whole.rounds["accuracy"].tolist()
    with pytest.raises(protosphere.SettingError, match="setting `models` was"):
        protosphere.run(resume=run.folder, models=[make_mlp, net], rounds=3, quiet=True)


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
    assert run.summary["headline"]["accuracy"] > 0.4
    (file,) = (home / "arrays").iterdir()
    with np.load(file) as arrays:
        # in the order of the Dataset, channels last as PIL has them; of a palette the colours, which are dithered
        wanted = np.array([[200 * (row % 2) + row % 40] * 3 for row in range(80)])
        assert (arrays["x"][::2, 0, 0] == wanted[::2]).all()
        assert abs(arrays["x"].mean(axis=(1, 2)) - wanted).max() < 6
        assert arrays["y"].tolist() == [row % 2 for row in range(80)]

    x = torch.randn(90, 5)
    whole = TensorDataset(x, torch.arange(90) % 3)
    train, test = random_split(whole, [60, 30], torch.Generator().manual_seed(0))
    run = protosphere.run("local", (train, test), split="official", **asked | {"models": "tiny_perceptron"})
    rows = run.clients[run.clients["round"] == 1][["test_rows"]].sum().item()
    assert rows == 30


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Images(["RGB", "L"]), "is given items of several shapes or types: give a torch Dataset"),
        (TensorDataset(torch.rand(4, 3), torch.rand(4)), "fails at item 0 .*no whole number"),
        (TensorDataset(torch.rand(4, 3)), "fails at item 0"),
        (TensorDataset(torch.rand(0, 3), torch.rand(0)), "is given a Dataset without items"),
        ((Images(["L"]), 3), "is given a int: give a torch Dataset"),
    ],
)
def test_a_dataset_that_cannot_be_is_refused_by_its_item(dataset, words):
    with pytest.raises(protosphere.DataError, match=words):
        protosphere.run("local", dataset, clients=2, models="tiny_perceptron", **QUICK)


def test_an_object_of_another_process_is_none():
    from protosphere.core import plugins

    with pytest.raises(ModelError, match=r"put it into a file and name that, as in \./mine.py:NAME"):
        plugins.load("object:Net_00000000", "model")
    assert not plugins.is_here("object:Net_00000000")
    with pytest.raises(protosphere.SettingError, match="clients of --on superlink are on machines of their own"):
        plan(['models="tiny_cnn,object:Net_00000000"'], remote=True)
    with pytest.raises(protosphere.ModelError, match=r"another process.*\./mine.py:NAME\.$"):
        plan(['models="tiny_cnn,object:Net_00000000"'], clients=2)
    assert plugins.stem("object:make_mlp_00000000") == "make_mlp"
