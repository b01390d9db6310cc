"""Who a client says it is, what it leaves for others to read, and what it refuses."""

import itertools
from dataclasses import replace

import pytest
import torch
from PIL import Image

from protosphere.client_app import client as client_module
from protosphere.core.errors import SettingError
from protosphere.data.client_data import Rows
from protosphere.wire.payloads import Instruction
from tests.pictures import paint


def ask(number):
    return Instruction("a-run", number)


def test_a_client_says_who_it_is(client):
    made = client(2, {"models": "tiny_cnn,tiny_perceptron"})
    who = made.identity()
    train, validation, test = made.data.train, made.data.validation, made.data.test
    assert (who.partition, who.partitions, who.model) == (2, 4, "tiny_cnn")
    assert who.parameters == sum(p.numel() for p in made._new_state().module.parameters())
    assert who.feature_dim == 8
    assert who.class_names == tuple("0123456789")
    assert who.classes == tuple(sorted(set(train.labels.tolist())))
    assert who.rows == (len(train), len(validation), len(test))
    assert "prototypes of its classes" in who.discloses
    assert not any("counts" in item for item in who.discloses)
    assert who.problem == ""


def test_a_client_without_training_rows_evaluates_only(client, monkeypatch):
    whole = client_module.client_data

    def without_training_rows(*arguments):
        data = whole(*arguments)
        return replace(data, train=Rows(data.train.inputs[:0], data.train.labels[:0]))

    monkeypatch.setattr(client_module, "client_data", without_training_rows)
    assert (client().identity().rows[0], client().identity().classes) == (0, ())
    assert set(client().evaluate(ask(1)).evaluation.correct) == {"classifier"}


# --- what it refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "0", -1, True, 1.0])
def test_a_node_config_without_whole_numbers_is_refused(client, value):
    for name in ("partition-id", "num-partitions"):
        with pytest.raises(SettingError) as raised:
            client(**{name.replace("-", "_"): value})
        assert f"{name}={value!r}" in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "own", "tells"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"confusion": "always"}, True, True),
        ({"confusion": "never"}, False, False),
        ({"strategy": "tinyproto-fp"}, False, False),
        ({"strategy": "frame", "privacy": "release"}, False, False),
    ],
)
def test_what_is_taken_for_what_is_told_where_class_counts_are_no_secret_and_said_so(
    client, tmp_path, settings, own, tells
):
    node = {"data-path": paint(tmp_path / "site", ("a", "b"), 12)} if own else {}
    made = client(0, {"max-samples": 0 if own else 400} | settings, **node)
    assert any("confusion matrix" in words for words in made.identity().discloses) is tells
    # whatever the server asks
    for last in (True, False):
        evaluation = made.evaluate(Instruction("run", 3, last=last)).evaluation
        if settings.get("privacy"):
            assert evaluation is None
        else:
            assert sum(evaluation.confusion) == (evaluation.rows[0] if tells and last else 0)


def test_a_client_names_its_domain(client, tmp_path):
    bare = client(0).identity()
    assert bare.domain == ""
    assert "its domain" not in bare.discloses
    mixed = {"dataset": domains(tmp_path), "partition": "mixed", "ways": 2, "ways-spread": 0, "shots": 0}
    mixed |= {"max-samples": 0, "models": "tiny_perceptron"}
    named = [client(p, mixed).identity() for p in range(4)]
    assert sorted(who.domain for who in named) == ["photo", "photo", "sketch", "sketch"]
    assert all("its domain" in who.discloses for who in named)
    # a real client's own data have the name that its node config gives them; what was dealt keeps its own
    own = client(1, {"max-samples": 0}, **{"data-path": str(tmp_path / "all" / "photo"), "domain": " clinic-a "})
    assert own.identity().domain == "clinic-a"
    assert client(0, mixed, domain="other").identity().domain == named[0].domain


def domains(folder):
    """Two domains of two classes of grey images, eight of each."""
    for domain, label, number in itertools.product(("photo", "sketch"), ("ant", "bee"), range(8)):
        place = folder / "all" / domain / label
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 10 * number).save(place / f"{number}.png")
    return str(folder / "all" / "*")


def test_the_device_of_the_node_config_goes_before_the_setting_and_is_refused_where_it_cannot_be(client, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert client(0, {"device": "cuda"}, device="cpu").device == torch.device("cpu")
    for settings, node, named in (
        ({"device": "cuda"}, {}, '`device` is "cuda"'),
        ({"device": "cpu"}, {"device": "cuda:0"}, '--node-config has device "cuda:0"'),
        ({}, {"device": 0}, "--node-config has device 0"),
        ({"device": "auto", "precision": "bf16"}, {}, '`precision` is "bf16"'),
    ):
        with pytest.raises(SettingError) as raised:
            client(0, settings, **node)
        assert named in str(raised.value)
