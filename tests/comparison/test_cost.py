"""The estimate of a comparison's cost, before it starts."""

import pytest
from typer.testing import CliRunner

from protosphere import comparing
from protosphere.cli import compare as command
from protosphere.cli.main import app
from protosphere.comparison import cost
from protosphere.comparison.cost import Cost, estimate
from protosphere.comparison.report import Written
from protosphere.comparison.spec import ComparisonSpec, Entry
from protosphere.comparison.trials import expand

QUICK = {"max-samples": 200, "feature-dim": 12, "models": "tiny_perceptron", "device": "cpu", "clients": 2}


@pytest.mark.integration
def test_it_is_the_cost_of_one_round_times_all_rounds(home):
    methods = tuple(Entry(name, {"strategy": name}) for name in ("local", "fedproto"))
    digits = (Entry("digits", {"dataset": "digits"}),)
    spec = ComparisonSpec("test", methods, digits, seeds=(0, 1), settings=QUICK | {"rounds": 50})
    estimated = estimate(spec, expand(spec, {}, {}), jobs=2)
    assert (estimated.trials, estimated.jobs) == (4, 2)
    # 200 rounds of some milliseconds, two at a time
    assert 0 < estimated.hours < 0.5
    assert estimated.size > 4 * 10_000
    assert not list((home / "clients").glob("*"))
    assert str(estimated).startswith("4 trials, 2 at a time: about ")
    assert "2 hours" in str(Cost(1, 1.6, 1, 5))


@pytest.mark.parametrize(
    ("words", "is_terminal", "asks"), [([], True, True), (["--yes"], True, False), ([], False, False)]
)
def test_a_preset_asks_only_on_a_terminal(home, monkeypatch, words, is_terminal, asks):
    calls = []
    monkeypatch.setattr(command, "_is_terminal", lambda: is_terminal)
    monkeypatch.setattr(cost, "estimate", lambda *values: Cost(1, 2.0, 1, 5))
    monkeypatch.setattr(
        comparing, "carry_out", lambda *values, **of_runs: calls.append(values) or ([], Written((), "", ()))
    )
    arguments = ["--preset", "protonorm-figure2", "--seeds", "0", "--methods", "Local", *words]
    result = CliRunner().invoke(app, ["compare", *arguments], input="n\n")
    assert ("1 trials, 1 at a time: about 2 hours" in result.stdout) == asks
    assert (len(calls), result.exit_code) == ((0, 1) if asks else (1, 0))
