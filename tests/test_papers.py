"""docs/papers.md: every preset is on it, every command on it is one, and it takes as many runs as the page says."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protosphere import comparing
from protosphere.cli.main import app
from protosphere.comparison.spec import comparison_names
from protosphere.comparison.trials import settings_of
from protosphere.core.errors import SettingError
from protosphere.plans.run_config import preset_names
from protosphere.reports import partition_preview
from protosphere.strategies import read_settings, refuse_foreign

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "papers.md").read_text()
COMMANDS = re.findall(r"`protosphere ([^`]+)`", PAGE)
HERE = "the command was understood"


def counted_runs():
    """Command -> the number of runs in its line of a table."""
    found = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        commands = re.findall(r"`protosphere (compare[^`]+)`", cells[1]) if len(cells) == 3 else []
        if commands and (number := re.match(r"(\d+)[: ]", cells[2])):
            (command,) = commands
            found[command] = int(number[1])
    return found


def test_every_comparison_is_on_the_page_and_every_preset_on_it_is_one():
    of_compare, of_others = [], []
    for command in COMMANDS:
        words = shlex.split(command)
        (of_compare if words[0] == "compare" else of_others).append(words[words.index("--preset") + 1])
    assert set(of_compare) == set(comparison_names())
    assert set(of_others) <= set(preset_names())
    # a preset that stands in words is one, too
    named = re.findall(r"`((?:protonorm|tinyproto|gfpl|fedpagr|pfpl)-[\w.-]+)`", PAGE)
    assert set(named) <= {*comparison_names(), *preset_names()}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood_and_its_runs_have_settings_that_can_be(command, monkeypatch, tmp_path):
    """Up to where the data would be opened, which are not here."""
    met = []

    def stop(*what, **_):
        met.append(what)
        raise SettingError(HERE)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "expand", stop)
    monkeypatch.setattr(partition_preview, "view", stop)
    result = CliRunner().invoke(app, shlex.split(command))
    assert HERE in result.output, result.output
    if not command.startswith("compare"):
        return
    comparison, overrides, *_ = met[0]
    for row in comparison.rows:
        for method in comparison.methods:
            found = settings_of(comparison, row, method, overrides)
            read_settings(found)
            refuse_foreign(found)
    runs = len(comparison.rows) * len(comparison.methods) * len(comparison.seeds)
    assert counted_runs().get(command, runs) == runs


def test_the_number_of_runs_stands_in_every_line_with_a_comparison():
    lines = [line for line in PAGE.splitlines() if "`protosphere compare" in line and line.startswith("|")]
    assert len(counted_runs()) == len(lines)
