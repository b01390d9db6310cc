"""The rules without an exchange in a public encoder's space, `encoder-local` and `pool-local`, of every method."""

import functools
from dataclasses import replace

import pytest
import torch
import torchvision
from flwr.app import Context, RecordDict
from torch.nn.functional import normalize

from protosphere.client_app import encoder as encoder_module
from protosphere.client_app.client import Client
from protosphere.core.errors import ModelError, SettingError
from protosphere.launch.grid import run_in_process
from protosphere.models.encoder import Encoder, public_encoder
from protosphere.prototypes.own_discriminant import own_discriminant
from protosphere.record.folder import RunFolder
from protosphere.serving.predict import open_trained
from protosphere.strategies import read_settings
from protosphere.strategies.encoder_space import choose_weight

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


@functools.cache
def once(strategy, encoder="random"):
    """The lines of a run that several tests look at."""
    return lines({"strategy": strategy, "encoder": encoder})[0]


@pytest.mark.parametrize("strategy", ["fedproto", "local", "fedavg", "gfpl", "protosphere"])
def test_where_an_encoder_is_named_or_the_method_has_one_every_method_reports_both(strategy):
    for figures in evaluations(once(strategy, "" if strategy == "protosphere" else "random"))[1:]:
        assert all(shares.keys() >= LOCAL for shares in figures.values())


def test_without_an_encoder_there_is_neither():
    assert not any(
        LOCAL & shares.keys() for figures in evaluations(once("fedproto", "")) for shares in figures.values()
    )


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
        counts = torch.bincount(data.train.labels, minlength=10).double()

        def posteriors(rows, vectors, data=data, state=state, own=own, counts=counts):
            with torch.no_grad():
                of_model = state.module(data.transform(rows.inputs)).double().softmax(dim=1)
            scores = own.class_scores(vectors)
            scores = torch.where(scores.isinf(), scores.masked_fill(scores.isinf(), torch.inf).amin(1, True), scores)
            return of_model, (scores + ((counts + 0.1) / (counts.sum() + 1)).log()).softmax(dim=1)

        validation = posteriors(data.validation, parts[3])

        def pool(weight, pair=validation):
            return (pair[0] ** (1 - weight) * pair[1] ** weight).log()

        asked = directions_of(data.test)
        of_model, of_space = posteriors(data.test, asked)
        weight = choose_weight(pool, data.validation.labels)
        pooled = of_model ** (1 - weight) * of_space**weight
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


def test_the_pools_weight_is_chosen_on_validation_samples_and_kept_for_prediction():
    all_lines, folder = lines({"strategy": "protosphere", "validation-share": 0.3, "rounds": 4, "max-samples": 600})
    weights = []
    for partition in range(CLIENTS):
        node = {"partition-id": partition, "num-partitions": CLIENTS}
        client = Client(Context(1, 2, node, RecordDict(), RunFolder(folder).settings()))
        trained = open_trained(client.store(folder.name).folder, "cpu")
        weights.append(trained.state.pool_weight)
        received, data, state = client.store(folder.name).load_received()[0], client.data, client.restore(folder.name)
        encoder = public_encoder("handcrafted", tuple(data.transform.shape), QUICK["feature-dim"])
        vectors = normalize(encoder.together(data.transform.plain(data.validation.inputs)).double(), dim=1)
        with torch.no_grad():
            z = state.module.features(data.transform(data.validation.inputs))
            train = client.data.train
            of_training = normalize(encoder.together(data.transform.plain(train.inputs)).double(), dim=1)
            space = client.objective.complete(received, of_training, train.labels)
            kept = trained.state.space["discriminant"].tensors
            assert all(torch.equal(kept[name], tensor) for name, tensor in space["discriminant"].tensors.items())
            scores = client.objective.encoded_scores(space, vectors)

            def pool(weight, client=client, state=state, z=z, scores=scores):
                return client.objective.pooled(replace(state, pool_weight=weight), z, scores)

            assert weights[-1] == choose_weight(pool, data.validation.labels)
        share = float((pool(weights[-1]).argmax(dim=1) == data.validation.labels).double().mean())
        assert all_lines[-1]["clients"][str(partition)]["evaluation"]["pool"][1] == pytest.approx(share)
    assert set(weights) != {0.5}


@pytest.mark.parametrize(
    ("settings", "site", "words"),
    [
        ({"encoder": "no.package:Encoder"}, {}, "setting `encoder`"),
        ({}, {"encoder": "./lacking.py"}, "this site's own `--encoder`"),
    ],
)
def test_an_encoder_that_cannot_be_had_is_told_as_the_runs_or_the_sites(settings, site, words):
    run_config = QUICK | {"strategy": "protosphere"} | settings
    node = {"partition-id": 0, "num-partitions": CLIENTS, **site}
    with pytest.raises(ModelError, match=words):
        Client(Context(1, 2, node, RecordDict(), run_config))


def test_a_large_encoder_reads_each_sample_once_for_all_runs(tmp_path, monkeypatch):
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "weights.pth")
    settings = {
        "strategy": "protosphere",
        "encoder": f"resnet18@{tmp_path}/weights.pth",
        "max-samples": 90,
        "rounds": 1,
    }
    first = evaluations(lines(settings)[0])
    features_of_runs = list((tmp_path / "home" / "cache" / "features").iterdir())
    # training, validation and test samples of each client
    assert len(features_of_runs) == 3 * CLIENTS
    monkeypatch.setattr(Encoder, "together", lambda *_, **__: pytest.fail("it was asked again"))
    encoder_module._directions.clear()
    assert evaluations(lines(settings)[0]) == first
