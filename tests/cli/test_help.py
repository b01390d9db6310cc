"""How the command's help is built: not its words, but that they are there, fit, and hold."""

import inspect
import io
import re
import shlex
import sys

import pytest
import typer
from typer.testing import CliRunner

from protosphere.cli.main import app

GROUP = typer.main.get_command(app)
COMMANDS = ["run", "compare", "data", "report", "predict", "export", "privacy"]
COMMANDS += ["methods", "models", "presets", "settings", "status", "doctor", "app-hash", "runs", "new"]


def helped(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0
    return result.stdout


def section(text, title):
    """The lines of one section, and of its entries."""
    found = re.search(rf"^{title}:\n((?:  .*\n|\n(?=  ))+)", text, flags=re.MULTILINE)
    return found.group(1).splitlines() if found else []


def test_commands_stand_in_the_order_of_their_use_and_the_help_of_a_run_fits_a_screen():
    lines = section(helped(), "Commands")
    assert [line.split()[0] for line in lines] == COMMANDS
    assert 24 <= len(helped("run").splitlines()) <= 40


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_does_takes_and_exits_with(name):
    command = GROUP.commands[name]
    text = helped(name)
    assert inspect.cleandoc(command.help).split("\n\n")[0] in text
    assert "Exits 0" in text
    assert max(len(line) for line in text.partition("Examples:")[0].splitlines()) <= 80
    lines = section(text, "Options")
    entries = [line for line in lines if re.match(r"  -", line)]
    assert len(entries) == sum(param.param_type_name == "option" for param in command.params) + 1
    for entry in entries:
        _, words = re.fullmatch(r"  (-\S+(?:, -\S+)?(?: \S+)*?)(?:  +(.*))?", entry).groups()
        follows = lines[lines.index(entry) + 1] if words is None else words
        assert len(follows.strip()) > 5, entry
    examples = [line.strip() for line in section(text, "Examples")]
    assert examples
    for line in examples:
        program, named, *arguments = shlex.split(line.replace("<", "").replace(">", ""))
        assert (program, named) == ("protosphere", name)
        # reads the arguments, runs nothing
        command.make_context(named, arguments)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("rnu", "run"), ("Data", "data"), ("run --clinets 3", "--clients"), ("compare --metrics final", "--metric")],
)
def test_an_unknown_command_or_option_ends_with_the_nearest(typed, meant):
    result = CliRunner().invoke(app, typed.split())
    assert result.exit_code == 2
    assert re.search(rf"No such (command|option).*{meant}", result.stderr)


def test_a_letter_that_the_terminal_lacks_is_no_crash(home, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    GROUP.main(["data", "--clients", "2"], standalone_mode=False)
    sys.stdout.flush()
    # a client without samples of a class
    assert b"|   ? |" in raw.getvalue()
