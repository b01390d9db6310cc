"""Names of sites, from their tables to the terminal, the roster, the report and the frames."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import protosphere
from protosphere import comparing
from protosphere.cli.main import app
from protosphere.comparison.spec import from_table
from protosphere.reports.report import write_report

HOSTILE = '<b>Mary</b> & "Co"'


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """A working directory with a table a site, and one of all with their names in a column."""
    monkeypatch.chdir(tmp_path)
    rng, parts = np.random.default_rng(3), []
    for number, name in enumerate(("berlin", "paris", "rome")):
        size = rng.normal(number, 1, 40)
        label = np.where(size + rng.normal(0, 0.5, 40) > 1, "yes", "no")
        label[:2] = "yes", "no"
        table = pd.DataFrame({"size": size, "colour": rng.choice(["red", "blue"], 40), "label": label})
        table.to_csv(f"{name}.csv", index=False)
        parts.append(table.assign(hospital=(HOSTILE, "=1+1", "Roma")[number]))
    pd.concat(parts).to_csv("all.csv", index=False)


def test_a_list_of_tables_is_a_run_of_sites_by_their_names():
    words = 'dataset="berlin.csv,paris.csv,rome.csv" strategy="fedproto" rounds=2'
    done = CliRunner().invoke(app, ["run", "-c", words])
    assert done.exit_code == 0, done.output
    assert "  names: client 0 (berlin), 1 (paris), 2 (rome)" in done.output
    assert "3 tables are 3 sites: berlin, paris, rome" in done.output
    assert "models: tiny_perceptron for every client, since the data are rows of numbers" in done.output
    run = protosphere.load("latest")
    roster = json.loads((run.folder / "roster.json").read_text())
    assert [client["name"] for client in roster] == ["berlin", "paris", "rome"]
    frame = run.clients
    assert list(frame.columns[:4]) == ["round", "client", "name", "model"]
    assert {*zip(frame["client"], frame["name"], strict=True)} == {(0, "berlin"), (1, "paris"), (2, "rome")}
    settings = [run.settings[name] for name in ("models", "partition", "clients")]
    assert settings == ["tiny_perceptron", "sites", 3]


@pytest.mark.usefixtures("undrawn")
def test_values_of_a_column_are_names_and_hostile_ones_are_harmless():
    run = protosphere.run("fedproto", "./all.csv", partition_column="hospital", rounds=1, quiet=True)
    names = ["b Mary /b & Co", "1+1", "Roma"]
    assert run.clients.groupby("client")["name"].first().tolist() == names
    page = write_report(run.folder).read_text()
    escaped = html.escape(names[0])
    assert f"({escaped})</th>" in page
    assert not re.search(r"<b>Mary|=1\+1", page)
    tables = list((run.folder / "pictures").glob("*.csv"))
    assert tables
    for file in tables:
        assert not re.search(r"(^|,)\"?[=@]", file.read_text(), re.MULTILINE)


def test_under_privacy_clients_have_no_names(run):
    settings = {"dataset": str(Path.cwd() / "all.csv"), "partition": "column", "partition-column": "hospital"}
    settings |= {"max-samples": 0, "strategy": "protonorm", "privacy": "release", "encoder": "random"}
    folder = run(settings, clients=3)
    assert [client["name"] for client in json.loads((folder / "roster.json").read_text())] == ["", "", ""]
    assert not any("Roma" in line for line in run.said)


def test_a_list_of_tables_with_another_partition_is_no_list_of_sites():
    files = ["./berlin.csv", "./paris.csv"]
    run = protosphere.run("local", files, partition="iid", clients=4, rounds=1, models="perceptron", quiet=True)
    assert (run.settings["partition"], run.settings["models"]) == ("iid", "perceptron")
    assert run.clients["name"].unique().tolist() == [f"client {number}" for number in range(4)]


def test_a_comparison_of_tables_has_the_defaults_of_a_run():
    spec = from_table("test", {"methods": ["local"], "datasets": ["./berlin.csv,./paris.csv"], "seeds": [0]})
    (trial,) = comparing.resolve(spec)[1]
    settings = [trial.settings[name] for name in ("models", "partition", "clients")]
    assert settings == ["tiny_perceptron", "sites", 2]
