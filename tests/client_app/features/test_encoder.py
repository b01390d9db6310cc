"""The rules without an exchange in a public encoder's space, `encoder-local` and `pool-local`, of every method."""

import pytest
import torch
from flwr.app import Context, RecordDict
from torch.nn.functional import normalize

from protosphere.client_app.client import Client
from protosphere.core.errors import SettingError
from protosphere.launch.grid import run_in_process
from protosphere.models.encoder import public_encoder
from protosphere.prototypes.own_discriminant import own_discriminant
from protosphere.record.folder import RunFolder
from protosphere.strategies import read_settings

QUICK = {"models": "tiny_perceptron", "feature-dim": 10, "max-samples": 300, "rounds": 2, "device": "cpu", "clients": 3}
CLIENTS = 3
LOCAL = {"encoder-local", "pool-local"}


@pytest.fixture(autouse=True)
def home_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "home"))


def lines(settings):
    """Those of a run's metrics."""
    folder = run_in_process(QUICK | settings, clients=CLIENTS, show=lambda line: None)
    return RunFolder(folder).lines(), folder


def evaluations(settings):
    """Of each round: client -> its shares, test and validation."""
    return [
        {client: figures["evaluation"] for client, figures in line["clients"].items()} for line in lines(settings)[0]
    ]


@pytest.mark.parametrize("strategy", ["fedproto", "local", "fedavg", "gfpl", "protosphere"])
def test_where_an_encoder_is_named_or_the_method_has_one_every_method_reports_both(strategy):
    settings = {"strategy": strategy} | ({} if strategy == "protosphere" else {"encoder": "random"})
    for figures in evaluations(settings)[1:]:
        assert all(shares.keys() >= LOCAL for shares in figures.values())


def test_without_an_encoder_there_is_neither():
    assert not any(
        LOCAL & shares.keys() for figures in evaluations({"strategy": "fedproto"}) for shares in figures.values()
    )


def test_they_are_the_same_whatever_is_exchanged_and_constant_but_for_the_private_model():
    of_fedproto, of_local = (evaluations({"strategy": name, "encoder": "random"}) for name in ("fedproto", "local"))
    for client in map(str, range(CLIENTS)):
        shares = [figures[client]["encoder-local"] for figures in of_fedproto]
        assert shares == [shares[0]] * len(shares)
        assert shares == [figures[client]["encoder-local"] for figures in of_local]


def test_an_encoder_changes_nothing_else_of_a_run():
    plain, encoded = lines({"strategy": "fedproto"})[0], lines({"strategy": "fedproto", "encoder": "random"})[0]
    for before, after in zip(plain, encoded, strict=True):
        for name in ("payload_up", "payload_down"):
            assert before["bytes"][name] == after["bytes"][name]
        for client, figures in before["clients"].items():
            evaluation = after["clients"][client]["evaluation"]
            assert figures["evaluation"] == {rule: evaluation[rule] for rule in figures["evaluation"]}


def test_they_are_the_discriminant_of_the_clients_own_directions_alone_and_times_its_models_probabilities():
    _, folder = lines({"strategy": "fedproto", "encoder": "random", "validation-share": 0.2})
    last = RunFolder(folder).lines()[-1]["clients"]
    for partition in range(CLIENTS):
        node = {"partition-id": partition, "num-partitions": CLIENTS}
        client = Client(Context(1, 2, node, RecordDict(), RunFolder(folder).settings()))
        data, state = client.data, client.restore(folder.name)
        encoder = public_encoder("random", tuple(data.transform.shape), QUICK["feature-dim"])

        def directions_of(rows, data=data, encoder=encoder):
            return normalize(encoder(data.transform.plain(rows.inputs)).double(), dim=1)

        parts = directions_of(data.train), data.train.labels, 10, directions_of(data.validation), data.validation.labels
        own = own_discriminant(*parts)
        asked = directions_of(data.test)
        with torch.no_grad():
            posterior = state.module(data.transform(data.test.inputs)).double().softmax(dim=1)
        counts = torch.bincount(data.train.labels, minlength=10).double()
        scores = own.class_scores(asked)
        scores = torch.where(scores.isinf(), scores.masked_fill(scores.isinf(), torch.inf).amin(1, True), scores)
        in_space = (scores.exp() * (counts + 0.1) / (counts.sum() + 1)).double()
        pooled = posterior * in_space / in_space.sum(dim=1, keepdim=True)
        expected = {"encoder-local": own.scores(asked), "pool-local": pooled}
        for rule, rule_scores in expected.items():
            share = float((rule_scores.argmax(dim=1) == data.test.labels).double().mean())
            assert last[str(partition)]["evaluation"][rule][0] == pytest.approx(share)


def test_no_client_predicts_by_them():
    with pytest.raises(SettingError, match='`inference` is "pool-local"'):
        read_settings({"strategy": "protosphere", "inference": "pool-local"})


@pytest.mark.parametrize("name", ["encoder", "privacy-encoder"])
def test_the_encoder_goes_by_its_old_name_too(name):
    assert read_settings({"strategy": "fedproto", name: "handcrafted"}).settings.encoder == "handcrafted"


def test_two_encoders_by_both_names_are_refused():
    with pytest.raises(SettingError, match="by its old name `privacy-encoder`"):
        read_settings({"strategy": "fedproto", "encoder": "handcrafted", "privacy-encoder": "random"})
