"""`protosphere predict` and `protosphere export`: what they print, and how they exit."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.serving.predict import open_trained, predict


@pytest.fixture
def invoke():
    """invoke(*arguments): the result of `protosphere ...`."""
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def trained(run, home, tmp_path):
    """A client's folder, and images that it can classify; one has a name that looks like markup."""
    folder = run({"rounds": 2, "alpha": 1.0, "strategy": "protonorm"}, clients=2)
    images = [tmp_path / name for name in ("one.png", "[red]two.png", "three.gif")]
    random = np.random.default_rng(0)
    for path in images:
        Image.fromarray(random.integers(0, 256, (20, 30), dtype=np.uint8)).save(path)
    return SimpleNamespace(state=home / "clients" / folder.name / "0", images=images, run=folder.name)


def test_a_line_of_json_for_each_image(invoke, trained):
    result = invoke("predict", "--state", trained.state, "--rule", "discriminant", "--json", *trained.images)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    expected = list(predict(open_trained(trained.state, "cpu"), "discriminant", trained.images))
    for line, path, answer in zip(lines, trained.images, expected, strict=True):
        assert line == {
            "input": str(path),
            "rule": "discriminant",
            "class": str(answer.label),
            "label": answer.label,
            "score": answer.score,
            "confidence": answer.confidence,
            "runner_up": str(answer.runner_up),
            "runner_up_score": answer.runner_up_score,
        }


def test_a_table_by_the_clients_own_rule(invoke, trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    result = invoke("predict", "--state", trained.state, *trained.images)
    assert result.exit_code == 0
    first, *rows = result.stdout.splitlines()
    assert first == f"client 0 of run {trained.run}, tiny_perceptron by local-prototypes"
    found = [row.split() for row in rows if "two.png" in row or "one.png" in row or "three.gif" in row]
    answers = predict(open_trained(trained.state, "cpu"), "local-prototypes", trained.images)
    assert found == [
        [answer.source, str(answer.label), "-", f"{answer.score:.4g}", str(answer.runner_up)] for answer in answers
    ]
    shares = invoke("predict", "--state", trained.state, "--rule", "classifier", trained.images[0])
    assert " % " in shares.stdout


def test_one_broken_image_costs_only_itself(invoke, trained, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    result = invoke("predict", "--state", trained.state, "--json", broken, trained.images[0])
    assert result.exit_code == 1
    assert [json.loads(line)["input"] for line in result.stdout.splitlines()] == [str(trained.images[0])]
    assert result.stderr.startswith(f"{broken} is no readable image")
    assert len(result.stderr.splitlines()) == 1
    alone = invoke("predict", "--state", trained.state, broken)
    assert (alone.exit_code, alone.stdout) == (1, "")


def test_bad_input_is_one_sentence(invoke, trained, tmp_path):
    cases = [
        (["--state", tmp_path / "none", trained.images[0]], "there is no folder"),
        (["--state", trained.state.parent, trained.images[0]], "is the folder of a run"),
        (["--state", tmp_path, trained.images[0]], "holds no client.json"),
        (["--state", trained.state, "--rule", "oracle", trained.images[0]], "rule 'oracle' cannot be applied"),
        (["--state", trained.state, "--device", "abacus", trained.images[0]], 'device is "abacus"'),
        (["--state", trained.state], "there is nothing to classify"),
        (["--state", trained.state, "--text", "words"], "reads images"),
    ]
    for arguments, said in cases:
        result = invoke("predict", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_export_writes_a_program_and_says_so(invoke, trained, tmp_path):
    output = tmp_path / "model.pt2"
    result = invoke("export", "--state", trained.state, "--output", output, "--rule", "classifier")
    assert (result.exit_code, result.stderr) == (0, "")
    size = output.stat().st_size
    assert result.stdout == f"wrote {output}: tiny_perceptron by classifier, {size} bytes\n"
    scores, features = torch.export.load(output).module()(torch.zeros(3, 1, 8, 8))
    assert (scores.shape, features.shape) == ((3, 10), (3, 12))
    again = invoke("export", "--state", trained.state, "--output", output)
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr == f"{output} is there already; give --force to replace it, or another --output.\n"
    assert invoke("export", "--state", trained.state, "--output", output, "--force").exit_code == 0
    refused = invoke("export", "--state", trained.state.parent, "--output", tmp_path / "other.pt2")
    assert refused.exit_code == 2
    assert "is the folder of a run" in refused.stderr
