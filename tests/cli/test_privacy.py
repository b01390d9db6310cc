"""`protosphere privacy`: the ledger's lines, their sum, and renewal."""

import torch
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.client_app.privacy_ledger import Asked, Ledger
from protosphere.prototypes.accounting import epsilon_of, rho_of
from protosphere.prototypes.release import Shape

SHAPE = Shape(2, 3)


def privacy(*arguments):
    return CliRunner().invoke(app, ["privacy", *map(str, arguments)])


def spend(folder, number):
    request = Asked(
        {"number": number}, f"run-{number}", "row", "random", SHAPE, SHAPE.variance(rho_of(1.0, 1e-5)), 1e-5
    )
    Ledger(folder / "privacy").release(request, lambda: torch.zeros(2, 4, dtype=torch.int64))
    return request.rho


def test_it_prints_each_release_and_their_total_cost(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path))
    assert (privacy().exit_code, f"{tmp_path} has no release" in privacy().stdout) == (0, True)
    assert not (tmp_path / "privacy").exists()
    rho = sum(spend(tmp_path, number) for number in range(3))
    *lines, last = privacy().stdout.splitlines()
    assert last.startswith(f"{tmp_path / 'privacy'}: ")
    assert [line.split()[-1] for line in lines] == ["run-0", "run-1", "run-2"]
    assert all("ε = 1 a row" in line for line in lines)
    assert f"ε = {epsilon_of(rho, 1e-5):.3g} " in last
    assert f"ε = {epsilon_of(rho, 1e-9):.3g} " in privacy("--delta", "1e-9", "--state", tmp_path).stdout


def test_a_renewal_is_a_line_and_a_damaged_ledger_is_refused(tmp_path):
    spend(tmp_path, 0)
    assert "renewed" in privacy("--renew", "--state", tmp_path).stdout
    assert not list((tmp_path / "privacy" / "releases").iterdir())
    spend(tmp_path, 0)
    assert len(privacy("--state", tmp_path).stdout.splitlines()) == 4
    (tmp_path / "privacy" / "ledger.jsonl").write_text("{")
    for arguments in ([], ["--renew"]):
        result = privacy("--state", tmp_path, *arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
