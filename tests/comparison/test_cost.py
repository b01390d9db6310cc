"""What a comparison says that it costs, before it starts."""

import pytest
from typer.testing import CliRunner

from protosphere import comparing
from protosphere.cli import compare as command
from protosphere.cli.main import app
from protosphere.comparison import cost
from protosphere.comparison.cost import Cost
from protosphere.comparison.report import Written


@pytest.mark.parametrize(
    ("words", "is_terminal", "asks"), [([], True, True), (["--yes"], True, False), ([], False, False)]
)
def test_a_preset_asks_on_a_terminal_alone(home, monkeypatch, words, is_terminal, asks):
    ran = []
    monkeypatch.setattr(command, "_is_terminal", lambda: is_terminal)
    monkeypatch.setattr(cost, "estimate", lambda *given: Cost(1, 2.0, 1, 5))
    monkeypatch.setattr(
        comparing, "carry_out", lambda *given, **of_runs: ran.append(given) or ([], Written((), "", ()))
    )
    arguments = ["--preset", "protonorm-figure2", "--seeds", "0", "--methods", "Local", *words]
    result = CliRunner().invoke(app, ["compare", *arguments], input="n\n")
    assert ("1 trials, 1 at a time: about 2 hours" in result.stdout) == asks
    assert (len(ran), result.exit_code) == ((0, 1) if asks else (1, 0))
