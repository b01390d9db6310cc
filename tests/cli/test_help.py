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
COMMANDS += ["methods", "models", "presets", "settings", "glossary", "status", "doctor", "app-hash", "runs", "new"]


def helped(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0
    return result.stdout


def section(text, title):
    """The lines of one section, and of its entries."""
    found = re.search(rf"^{title}:\n((?:  .*\n|\n(?=  ))+)", text, flags=re.MULTILINE)
    return found.group(1).splitlines() if found else []


def test_commands_stand_in_the_order_of_their_use_with_whole_summaries():
    lines = section(helped(), "Commands")
    assert [line.split()[0] for line in lines] == COMMANDS
    for line in lines:
        assert line.endswith(".")
        assert not line.endswith("..")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_does_takes_and_exits_with(name):
    command = GROUP.commands[name]
    text = helped(name)
    summary = inspect.cleandoc(command.help).split("\n\n")[0]
    assert "\n" not in summary
    assert summary in text
    assert "Exits 0" in text
    # Typer escapes brackets for an output that this is not
    assert "\\" not in text
    assert max(len(line) for line in text.partition("Examples:")[0].splitlines()) <= 80


def test_the_help_of_a_run_fits_a_screen():
    assert 24 <= len(helped("run").splitlines()) <= 40


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_words_and_says_what_it_takes(name):
    lines = section(helped(name), "Options")
    entries = [line for line in lines if re.match(r"  -", line)]
    assert len(entries) == sum(param.param_type_name == "option" for param in GROUP.commands[name].params) + 1
    for entry in entries:
        names, words = re.fullmatch(r"  (-\S+(?:, -\S+)?(?: \S+)*?)(?:  +(.*))?", entry).groups()
        follows = lines[lines.index(entry) + 1] if words is None else words
        assert len(follows.strip()) > 5, names
        assert not re.search(r" (TEXT|INTEGER|FLOAT|PATH)\b", names.replace("--text TEXT", "")), names


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_examples_are_lines_that_the_command_reads(name):
    lines = [line.strip() for line in section(helped(*filter(None, [name])), "Examples")]
    assert lines
    for line in lines:
        program, command, *arguments = shlex.split(line.replace("<", "").replace(">", ""))
        assert program == "protosphere"
        assert command == name or not name
        if command == "COMMAND":
            continue
        # reads the arguments, runs nothing
        GROUP.commands[command].make_context(command, arguments)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rnu", "run"),
        ("comapre", "compare"),
        ("Data", "data"),
        ("reports", "report"),
        ("run --clinets 3", "--clients"),
        ("data --pictrue a.svg", "--picture"),
        ("compare --metrics final", "--metric"),
        ("export --ouput m.pt2", "--output"),
    ],
)
def test_an_unknown_command_or_option_ends_with_the_nearest(typed, meant):
    result = CliRunner().invoke(app, typed.split())
    assert result.exit_code == 2
    unknown = typed.split()[-2] if "--" in typed else typed
    assert re.search(rf"No such (command|option):? '?{unknown}'?\.? .*{meant}", result.stderr)
    assert result.stderr.count("Did you mean") == 1


def test_a_letter_that_the_terminal_lacks_is_no_crash(home, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    GROUP.main(["data", "--clients", "2"], standalone_mode=False)
    sys.stdout.flush()
    # a client without samples of a class
    assert b"|   ? |" in raw.getvalue()
