"""The command's help: its examples are commands, and any terminal can show what is printed."""

import io
import re
import shlex
import sys

import pytest
import typer
from typer.testing import CliRunner

from protosphere.cli.main import app

GROUP = typer.main.get_command(app)


def helped(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0
    return result.stdout


def section(text, title):
    """The lines of one section, and of its entries."""
    found = re.search(rf"^{title}:\n((?:  .*\n|\n(?=  ))+)", text, flags=re.MULTILINE)
    return found.group(1).splitlines() if found else []


@pytest.mark.parametrize("name", GROUP.commands)
def test_the_examples_of_a_command_are_understood_by_it(name):
    lines = section(helped(name), "Examples")
    assert lines
    for line in lines:
        program, named, *arguments = shlex.split(line.strip().replace("<", "").replace(">", ""))
        assert (program, named) == ("protosphere", name)
        # reads the arguments, runs nothing
        GROUP.commands[name].make_context(named, arguments)


@pytest.mark.parametrize("name", ["", *GROUP.commands])
def test_every_argument_has_a_text_and_nothing_is_escaped(name):
    text = helped(*name.split())
    assert "\\[" not in text
    entries = [line for line in section(text, "Arguments") if re.match(r"  \S", line)]
    command = GROUP.commands.get(name, GROUP)
    assert len(entries) == sum(param.param_type_name == "argument" for param in command.params)
    for entry in entries:
        assert re.match(r"  \S+  +[A-Z`]", entry), entry


def test_a_letter_that_the_terminal_lacks_is_no_crash(home, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    GROUP.main(["data", "--clients", "2"], standalone_mode=False)
    sys.stdout.flush()
    # a client without samples of a class
    assert b"|   ? |" in raw.getvalue()


def test_the_help_of_a_run_fits_a_screen():
    assert 24 <= len(helped("run").splitlines()) <= 40
