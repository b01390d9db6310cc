"""`protosphere data`: its tables, JSON, the picture, exit codes."""

import json
import re

import pytest
from typer.testing import CliRunner

from protosphere.cli.main import app


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, home):
    """A working directory of the test's own, and a terminal of a known width."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def invoke():
    """invoke(*arguments): the result of `protosphere data ...`."""
    return lambda *arguments: CliRunner().invoke(app, ["data", *arguments])


def rows_of(output, pattern):
    """The numbers of each line that begins as `pattern` says."""
    return [list(map(int, re.findall(r"\d+", line))) for line in output.splitlines() if re.match(pattern, line)]


def test_the_tables_hold_the_numbers_of_the_json(invoke):
    arguments = ("--clients", "4", "-c", 'partition="iid" max-samples=400')
    told = json.loads(invoke(*arguments, "--json").stdout)
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "digits: 1797 samples (1797 train + 0 test)" in result.stdout
    assert "  1397 samples belong to no client" in result.stdout
    assert "samples per client: 100 to 100, median 100; classes per client: 10 to 10, median 10" in result.stdout
    names = ("partition", "train", "validation", "test", "classes")
    assert rows_of(result.stdout, r" +(\d+ +){5}$") == [[client[name] for name in names] for client in told["clients"]]
    counts = [row[1:] for row in rows_of(result.stdout.replace("·", "0"), r" +(\d+ +){11}$")]
    assert counts == [client["counts"] for client in told["clients"]]
    assert [client["partition"] for client in told["clients"]] == [0, 1, 2, 3]
    assert told["partition"]["max-samples"] == 400
    assert told["rows_of_nobody"] == 1397


# what a plan refuses is in tests/test_refusals.py
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--clients", "2000"], "2000 clients with min-samples = 10 each need at least 20000 samples"),
        (["--picture", "map.jpg"], "--picture is 'map.jpg'"),
    ],
)
def test_a_mistake_is_one_sentence(invoke, arguments, words):
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
