"""`protosphere new method`: the file that it writes, which docs/adding-a-method.md links, and runs."""

import math
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import protosphere
from protosphere.cli.main import app
from protosphere.cli.new import TEMPLATES
from protosphere.models import build
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies import read_settings
from protosphere.strategies.contract import Batch, ClientState

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-method.md"


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new", "method", "mymethod.py"])
    assert done.exit_code == 0, done.output
    return tmp_path / "mymethod.py", done.stdout


def test_it_is_the_template_that_the_page_links(written):
    file, _ = written
    (link,) = re.findall(r"\]\((\S+/method\.py)\)", PAGE.read_text())
    assert file.read_text() == (TEMPLATES / "method.py").read_text() == (PAGE.parent / link).read_text()


def test_the_printed_command_runs_both_halves_of_the_method(written):
    (words,) = re.findall(r"^run it: +protosphere run -c '(.*)'$", written[1], flags=re.MULTILINE)
    quick = 'rounds=3 models="tiny_perceptron" device="cpu" max-samples=400'
    run = CliRunner().invoke(app, ["run", "--clients", "2", "-c", f"{words} {quick}"])
    assert run.exit_code == 0, run.output
    losses = protosphere.load().rounds.reindex(columns=["loss/cross-entropy", "loss/cosine"])
    assert losses.loc[1:2, "loss/cosine"].isna().tolist() == [True, False]
    assert (losses.loc[3] > 0).all()


def test_its_equations_are_those_of_naive_loops(written):
    torch.manual_seed(5)
    run = read_settings({"strategy": str(written[0]), "mymethod.memory": 0.8, "mymethod.weight": 0.3})
    server = run.method.server(run.settings, run.options)
    server.num_classes, server.dim = 4, 3
    averages: dict[int, list[float]] = {}
    state = {}
    for labels in ([0, 2], [1, 2], [2]):
        uploads = {
            client: {"prototypes": PrototypeSet(torch.tensor(labels), torch.randn(len(labels), 3))} for client in (0, 1)
        }
        outcome = server.aggregate(uploads, state, 1)
        state = outcome.state
        for place, label in enumerate(labels):
            mean = [
                sum(float(upload["prototypes"].vectors[place, axis]) for upload in uploads.values()) / 2
                for axis in range(3)
            ]
            old = averages.get(label)
            averages[label] = mean if old is None else [0.8 * a + 0.2 * b for a, b in zip(old, mean, strict=True)]
    sent = outcome.downloads[-1]["prototypes"]
    assert sent.labels.tolist() == [0, 1, 2]
    for label, vector in zip(sent.labels.tolist(), sent.vectors.tolist(), strict=True):
        assert vector == pytest.approx(averages[label], rel=1e-5)

    client = ClientState(build("tiny_perceptron", (5,), 64, 4, 1).double())
    table = torch.randn(4, 64, dtype=torch.float64)
    client.table = table, torch.tensor([True, False, True, True])
    objective = run.method.objective(run.settings, run.options, 4)
    batch = Batch(torch.randn(9, 5, dtype=torch.float64), torch.randint(0, 4, (9,)))
    (phase,) = objective.phases(client, 2)
    loss = objective.loss(client, batch, phase, 2)
    distance = 0.0
    for z, label in zip(loss.features.tolist(), batch.labels.tolist(), strict=True):
        if label != 1:
            target = table[label].tolist()
            dot = sum(a * b for a, b in zip(z, target, strict=True))
            distance += 1 - dot / (math.hypot(*z) * math.hypot(*target))
    assert float(loss.parts["cosine"]) == pytest.approx(distance / 9)
    assert float(loss.total) == pytest.approx(float(loss.parts["cross-entropy"]) + 0.3 * distance / 9)
