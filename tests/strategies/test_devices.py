"""Every kind of client where it trains on an accelerator, which tests/said.py only says is there: nothing meets what
lies elsewhere, nothing is drawn by another device's generator, no batch waits for the device, and an epoch waits once
for each part of its loss."""

import json

import pytest
import torch

from protosphere.client_app import train as trainer
from protosphere.launch.grid import run_in_process
from protosphere.plans.run_config import plan
from protosphere.strategies import METHODS, load_method
from tests.said import Said, Saying
from tests.strategies.needs import FEW, NEEDS, first_of_each

QUICK = 'dataset="spiral" models="tiny_perceptron" spiral-points=9 rounds=2 batch-size=8 feature-dim=8 state-memory=0'
QUICK += " local-epochs=1 momentum=0.0 evaluate-every=2"
IMAGES = 'dataset="digits" feature-dim=10 max-samples=64 models="tiny_cnn,tiny_resnet" batch-size=8'
LACKING = {"cuda": (), "mps": (torch.float64,)}
# whose targets are those of others; who keep more than a model, which comes back from the disk where there are two
OF_TWO = ("feddistill", "fedkd", "fedpagr")
MORE = {name: NEEDS.get(name, {}) | FEW.get(name, {}) for name in METHODS}
# of methods that compute in float64 beside the batches, each in its way
ON_MPS = ("fedproto", "feddistill", "fedrod", "fednh")


def functions_of(name):
    half = load_method(name).objective
    own = ("build", "phases", "loss", "targets", "receive", "upload", "shared", "summarise")
    return tuple(getattr(half, function, None) for function in own)


ON_CUDA = first_of_each(METHODS, functions_of)


@pytest.fixture
def waited(monkeypatch):
    """How often a batch made the host wait, a number for each batch but an epoch's last."""
    found, whole, look = [], trainer.batches, trainer.stop_if_not_finite

    def batches(*given):
        before = None
        for index in whole(*given):
            now = sum(Said.saying.waits.values())
            found.extend([now - before] if before is not None else [])
            before = now
            yield index

    def looked(sums, *given):
        before = sum(Said.saying.waits.values())
        look(sums, *given)
        assert sum(Said.saying.waits.values()) - before == len(sums)

    monkeypatch.setattr(trainer, "batches", batches)
    monkeypatch.setattr(trainer, "stop_if_not_finite", looked)
    return found


@pytest.mark.parametrize(
    ("kind", "method", "more"),
    [
        *(("cuda", name, " ".join(f"{n}={json.dumps(v)}" for n, v in MORE[name].items())) for name in ON_CUDA),
        *(("mps", name, "") for name in ON_MPS),
        ("mps", "fedproto", 'prototypes-from="training" optimizer-state="persistent" momentum=0.9'),
        ("mps", "fedproto", 'wire-dtype="float16"'),
        ("mps", "fedproto", "ensemble-every=2 shared-test-share=0.2"),
        ("mps", "gfpl", f"{IMAGES} gfpl.first-exchange=1 gfpl.exchange-every=1"),
    ],
)
def test_every_kind_of_client_trains_on_an_accelerator(kind, method, more, waited, monkeypatch, tmp_path):
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path))
    clients = 2 if method in OF_TWO else 1
    wanted = plan([f'{QUICK} strategy="{method}" device="{kind}" {more}'], clients=clients)
    with Saying(kind, LACKING[kind]):
        folder = run_in_process(wanted.run_config, clients=clients, workers=1, show=lambda line: None)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["problems"] for line in lines] == [{}] * 3
    assert lines[1]["training"]["valid"] == clients
    assert len(waited) >= 4
    assert set(waited) <= ({0} if kind == "cuda" else {0, 2})
    # where there is no float64 the gradient ratio of a training's first batch waits for its two
    assert waited.count(2) <= 2 * len(lines[:2])
