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
    for words in (
        "digits: 1797 samples (1797 train + 0 test)",
        "  1397 samples belong to no client\n",
        "max-samples = 400",
    ):
        assert words in result.stdout
    assert not re.search(" name |note:", result.stdout)
    assert result.stdout.endswith("written: map.svg\n")
    lines = result.stdout.replace("·", "0").splitlines()
    rows = [list(map(int, line.split())) for line in lines if re.fullmatch(r"[\d ]*\d[\d ]*", line)]
    run = plan([settings], clients=4, trains=False).run_config
    assert rows == [
        [client.partition, client.train, client.validation, client.test, client.classes, *client.counts]
        for client in view(read_settings(run).settings, 4).clients
    ]


def test_long_lists_are_cut_with_a_note(tmp_path):
    columns = [f"c{number}" for number in range(25)]
    lines = [",".join([*columns, "label"])]
    lines += [",".join([*["1.5"] * 25, f"class-{row % 24:02}"]) for row in range(24 * 40)]
    (tmp_path / "wide.csv").write_text("\n".join(lines) + "\n")
    result = data("--clients", "32", "-c", 'dataset="./wide.csv" partition="pathological" classes-per-client=1')
    assert result.exit_code == 0, result.output
    assert re.search(r"^  classes: 24 \(class-00, .*class-19, …\)$", result.stdout, re.MULTILINE)
    assert re.search(r"^  number columns: 25 \(c0, .*c19, …\)$", result.stdout, re.MULTILINE)
    assert "belong to no client" not in result.stdout
    assert len(re.findall(r"^ +\d+( +\d+){4} *$", result.stdout, re.MULTILINE)) == 30
    *_, note, clients, classes = result.stdout.splitlines()
    assert note.startswith("note: the samples of 32 clients (0, 1, 2, 3, 4, …) are of a single class")
    assert clients == "The first 30 of 32 clients; --picture draws all."
    assert classes == "--picture draws each client's samples of the 24 classes."
