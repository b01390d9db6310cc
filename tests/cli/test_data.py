"""`protosphere data`: its table, the picture, exit codes."""

import re

import pytest
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.plans.run_config import plan
from protosphere.reports.partition_preview import view
from protosphere.strategies import read_settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, home):
    """A working directory of the test's own."""
    monkeypatch.chdir(tmp_path)


def data(*arguments):
    return CliRunner().invoke(app, ["data", *arguments])


def test_the_table_has_the_numbers_of_the_partition():
    settings = 'partition="iid" max-samples=400'
    result = data("--clients", "4", "-c", settings, "--picture", "map.svg")
    assert result.exit_code == 0, result.output
    assert "digits: 1797 samples (1797 train + 0 test)" in result.stdout
    assert "  no client's samples: 1397" in result.stdout
    assert "max-samples = 400" in result.stdout
    assert result.stdout.endswith("written: map.svg\n")
    lines = result.stdout.replace("·", "0").splitlines()
    rows = [list(map(int, line.split())) for line in lines if re.fullmatch(r"[\d ]*\d[\d ]*", line)]
    run = plan([settings], clients=4, trains=False).run_config
    assert rows == [
        [client.partition, client.train, client.validation, client.test, client.classes, *client.counts]
        for client in view(read_settings(run).settings, 4).clients
    ]


# what a plan refuses is in tests/test_refusals.py
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--clients", "2000"], "2000 clients with min-samples = 10 each need at least 20000 samples"),
        (["--picture", "map.jpg"], "--picture is 'map.jpg'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words):
    result = data(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
