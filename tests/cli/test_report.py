"""`protosphere report`: a finished run's report anew, and what it says of folders that hold none."""

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


def test_it_says_where_the_report_is(home, monkeypatch):
    folder = fabricate(home / "results" / "20250101-000000-protonorm-digits", clients=2, rounds=1)
    (folder / "checkpoint.safetensors").touch()
    monkeypatch.chdir(home)
    for name in (folder, folder.name, "latest", folder.relative_to(home)):
        (folder / "report.html").unlink(missing_ok=True)
        result = report(name)
        assert (result.exit_code, result.stdout) == (0, f"report: {folder}/report.html\n"), result.output
        assert (folder / "report.html").exists()


def test_what_is_no_run_and_no_client_with_metrics_is_one_sentence(tmp_path):
    for arguments in (("--state", tmp_path), (), ("latest", "--state", tmp_path), (tmp_path,)):
        result = report(*arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize("content", [b"[]\n", b"\xff\n", b"no JSON\n", None])
def test_metrics_that_cannot_be_read_are_one_sentence(tmp_path, content):
    file = tmp_path / "figures.jsonl"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(b'{"round": 1}\n' + content)
    result = report("--state", tmp_path)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert f"{file} cannot be read as a client's metrics" in result.stderr


def test_a_client_that_is_nowhere_is_said_to_be(tmp_path):
    result = report("--state", tmp_path / "gone")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "there is no such folder" in result.stderr


def test_what_clients_keep_to_themselves_is_said_in_place_of_a_table(home, capsys):
    settings = {"strategy": "fedproto", "rounds": 1, "privacy": "release", "encoder": "random"}
    folder = start(settings)
    print_summary(folder)
    told = capsys.readouterr().out
    assert told.startswith("accuracy: withheld by the clients (`privacy`)")
    assert "inference rule" not in told
    state = home / "clients" / folder.name / "0"
    lines = report("--state", state).stdout.splitlines()
    assert json.loads(lines[0])["correct"]["classifier"]
