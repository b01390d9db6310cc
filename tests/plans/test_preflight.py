"""What is refused before a run starts, and what is left for the clients to say."""

import pytest
import torch
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

import protosphere
from protosphere.cli.main import app
from protosphere.client_app.client import Client
from protosphere.core.errors import DataError, ModelError, SettingError
from protosphere.plans.preflight import check, refuse_unwritable
from protosphere.strategies import read_settings
from tests.pictures import paint


def test_clients_find_data_and_partition_in_the_cache(home, monkeypatch):
    settings = {"dataset": "spiral", "spiral-points": 40, "models": "tiny_perceptron", "min-samples": 2, "seed": 8}
    check(read_settings(settings), 3)
    # a simulation's clients: a site's own would want its classes listed
    monkeypatch.setattr("protosphere.client_app.site._here", True)
    # were anything of the specification another, there would be something to work out
    for name in ("protosphere.data.decode._read", "protosphere.data.partition.assignment._assign"):
        monkeypatch.setattr(name, lambda *_: pytest.fail("not in the cache"))
    client = Client(Context(1, 1, {"partition-id": 2, "num-partitions": 3}, RecordDict(), settings))
    assert len(client.data.train) > 0


def test_bf16_without_cuda_is_refused_before_there_is_a_folder(home, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = {"precision": "bf16", "dataset": "spiral", "models": "tiny_perceptron"}
    words = 'precision="bf16" dataset="spiral" models="tiny_perceptron" rounds=1'
    done = CliRunner().invoke(app, ["run", "--clients", "2", "-c", words, "--on", "flower"])
    assert done.exit_code == 2
    assert '`precision` is "bf16", which needs CUDA, but this machine has none; use "float32".' in done.stderr
    with pytest.raises(SettingError, match='`precision` is "bf16", which needs CUDA, but this machine has none'):
        protosphere.run(clients=2, quiet=True, settings=settings)
    assert not list(home.glob("results/*"))
    # of a cluster's machines this one knows nothing
    check(read_settings(settings), 2, here=False)


def test_a_model_that_cannot_be_built_is_named_without_a_client(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text("def picky(input_shape): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=r"^model 'own_networks:picky' does not fit inputs .* returns a NoneType"):
        check(read_settings({"models": "own_networks:picky"}), 4)
    flat = {"dataset": "spiral", "spiral-points": 40, "models": "tiny_perceptron,tiny_cnn", "min-samples": 2}
    with pytest.raises(ModelError, match=r"^model 'tiny_cnn' does not fit inputs of shape \(2,\)"):
        check(read_settings(flat), 2)
    # the second model is no client's
    check(read_settings(flat), 1)


def test_domains_are_checked_before_a_run_starts(tmp_path):
    folder = paint(tmp_path / "painted", "0123456789", 2)
    settings = {"dataset": f"{folder},digits", "partition": "mixed", "shots": 0, "ways": 2, "ways-spread": 0}
    check(read_settings(settings), 2, here=False)
    with pytest.raises(DataError, match="domain 'painted' has no official test samples"):
        check(read_settings(settings | {"split": "official"}), 2)
    with pytest.raises(DataError, match="1 clients for 2 domains"):
        check(read_settings(settings), 1)
    other = paint(tmp_path / "other", "0123456789"[:9], 2)
    with pytest.raises(DataError, match=r"have different classes \(only 'painted' has 9\)"):
        check(read_settings(settings | {"dataset": f"{folder},{other}"}), 2)
    check(read_settings(settings | {"dataset": f"{folder},{other}", "classes": "union", "image-size": 12}), 2)


@pytest.mark.parametrize("settings", [{"ensemble-every": 1}, {"shared-test-share": 0.001, "ensemble-every": 0}])
def test_samples_are_only_shared_with_an_ensemble(settings):
    check(read_settings({"max-samples": 400} | settings), 4)


@pytest.mark.parametrize("there", ["", "results", "results/deep"])
def test_the_check_of_the_results_folder_leaves_no_file(there, tmp_path):
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    refuse_unwritable(tmp_path / "results" / "deep", "results folder", "give --results a folder of yours")
    assert sorted(tmp_path.rglob("*")) == before
