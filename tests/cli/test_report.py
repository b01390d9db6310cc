"""`protosphere report`: writes a run's report again, or prints a client's metrics."""

import json

import pytest
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.cli.summary import print_summary
from tests.reports.fabricated import fabricate
from tests.strategies.watched import start

pytestmark = pytest.mark.usefixtures("undrawn")


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_it_prints_the_place_of_the_report(home, monkeypatch):
    folder = fabricate(home / "results" / "20250101-000000-protonorm-digits", clients=2, rounds=1)
    (folder / "checkpoint.safetensors").touch()
    monkeypatch.chdir(home)
    for name in (folder.relative_to(home), "latest"):
        (folder / "report.html").unlink(missing_ok=True)
        result = report(name)
        assert (result.exit_code, result.stdout) == (0, f"report: {folder}/report.html\n"), result.output
        assert (folder / "report.html").exists()


@pytest.mark.parametrize("content", [b"[]\n", b"\xff\n", b"no JSON\n", None])
def test_metrics_of_a_client_that_cannot_be_read_are_refused(tmp_path, content):
    file = tmp_path / "figures.jsonl"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(b'{"round": 1}\n' + content)
    result = report("--state", tmp_path)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert f"{file} cannot be read as a client's metrics" in result.stderr


def test_metrics_that_clients_withhold_are_printed_from_their_own_folder(home, capsys):
    folder = start({"strategy": "fedproto", "rounds": 1, "privacy": "release", "encoder": "random"})
    print_summary(folder)
    output = capsys.readouterr().out
    assert output.startswith("accuracy: withheld by the clients (`privacy`)")
    assert "inference rule" not in output
    lines = report("--state", home / "clients" / folder.name / "0").stdout.splitlines()
    assert json.loads(lines[0])["correct"]["classifier"]
