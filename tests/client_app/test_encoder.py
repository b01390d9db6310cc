"""The rules without an exchange in a public encoder's space, `encoder-local` and `pool-local`, of every method."""

from functools import cache, partial

import pytest
import torch
from flwr.app import Context, RecordDict
from torch.nn.functional import normalize

from protosphere.client_app import encoder as encoder_module
from protosphere.client_app.client import Client
from protosphere.launch.grid import run_in_process
from protosphere.models.encoder import Encoder, public_encoder
from protosphere.prototypes.own_discriminant import own_discriminant
from protosphere.record.folder import RunFolder
from protosphere.strategies.encoder_space import choose_weight, opinion_pool
from tests.client_app.restored import restored

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


def evaluations(of_run):
    """Of each round: client -> its shares, test and validation."""
    return [{client: figures["evaluation"] for client, figures in line["clients"].items()} for line in of_run]


@cache
def once(strategy, encoder="random"):
    """The lines of a run that several tests look at."""
    return lines({"strategy": strategy, "encoder": encoder})[0]


@pytest.mark.parametrize("strategy", ["fedproto", "local", "gfpl", "protosphere"])
def test_where_an_encoder_is_named_or_the_method_has_one_every_method_reports_both(strategy):
    for figures in evaluations(once(strategy, "" if strategy == "protosphere" else "random"))[1:]:
        assert all(shares.keys() >= LOCAL for shares in figures.values())


def test_they_are_the_same_whatever_is_exchanged_and_constant_but_for_the_private_model():
    of_fedproto, of_local = (evaluations(once(name)) for name in ("fedproto", "local"))
    for client in map(str, range(CLIENTS)):
        shares = [figures[client]["encoder-local"] for figures in of_fedproto]
        assert shares == [shares[0]] * len(shares)
        assert shares == [figures[client]["encoder-local"] for figures in of_local]


def test_an_encoder_changes_nothing_else_of_a_run():
    for before, after in zip(once("fedproto", ""), once("fedproto"), strict=True):
        for name in ("payload_up", "payload_down"):
            assert before["bytes"][name] == after["bytes"][name]
        for client, figures in before["clients"].items():
            evaluation = after["clients"][client]["evaluation"]
            assert figures["evaluation"] == {rule: evaluation[rule] for rule in figures["evaluation"]}


def test_they_are_the_discriminant_of_the_clients_own_directions_alone_and_times_its_models_probabilities():
    """The discriminant, the pool and its weight are held against other computations in tests of their own."""
    _, folder = lines(
        {"strategy": "fedproto", "encoder": "random", "validation-share": 0.2, "alpha": 1.0, "max-samples": 600}
    )
    last, weight_matters = RunFolder(folder).lines()[-1]["clients"], False
    for partition in range(CLIENTS):
        node = {"partition-id": partition, "num-partitions": CLIENTS}
        client = Client(Context(1, 2, node, RecordDict(), RunFolder(folder).settings()))
        data, state = client.data, restored(client, folder.name)
        encoder = public_encoder("random", tuple(data.transform.shape), QUICK["feature-dim"])

        def directions_of(rows, data=data, encoder=encoder):
            return normalize(encoder(data.transform.plain(rows.inputs)).double(), dim=1)

        splits = {rows: directions_of(rows) for rows in (data.train, data.validation, data.test)}
        labels = data.train.labels
        own = own_discriminant(splits[data.train], labels, 10, splits[data.validation], data.validation.labels)

        def pool_of(rows, data=data, state=state, own=own, splits=splits):
            with torch.no_grad():
                logits = state.module(data.transform(rows.inputs))
            counts = torch.bincount(data.train.labels, minlength=10).double()
            return partial(opinion_pool, logits, own.class_scores(splits[rows]), counts)

        weight = choose_weight(pool_of(data.validation), data.validation.labels)
        scores = {"encoder-local": own.scores(splits[data.test]), "pool-local": pool_of(data.test)(weight)}
        scores["equal weights"] = pool_of(data.test)(0.5)
        shares = {}
        for rule, rule_scores in scores.items():
            shares[rule] = float((rule_scores.argmax(dim=1) == data.test.labels).double().mean())
        for rule in LOCAL:
            assert last[str(partition)]["evaluation"][rule][0] == pytest.approx(shares[rule])
        weight_matters |= shares["pool-local"] != shares["equal weights"]
    assert weight_matters


def test_a_large_encoder_reads_each_sample_once_for_all_runs(tmp_path, monkeypatch):
    network = "nn.Sequential(nn.Flatten(), nn.Linear(64, 20_000))"
    (tmp_path / "large.py").write_text(f"from torch import nn\ndef encoder(input_shape):\n    return {network}\n")
    settings = {"strategy": "protosphere", "encoder": f"{tmp_path}/large.py", "max-samples": 90, "rounds": 1}
    first = evaluations(lines(settings)[0])
    features_of_runs = list((tmp_path / "home" / "cache" / "features").iterdir())
    # training, validation and test samples of each client
    assert len(features_of_runs) == 3 * CLIENTS
    monkeypatch.setattr(Encoder, "together", lambda *_, **__: pytest.fail("it was asked again"))
    encoder_module._directions.clear()
    assert evaluations(lines(settings)[0]) == first
