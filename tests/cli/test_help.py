"""The help of the command line is quick, complete and valid on any terminal."""

import io
import re
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from protosphere.cli.main import app
from tests.cli.conftest import ROOT

GROUP = typer.main.get_command(app)


def help_of(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0
    return result.stdout


def section(text, title):
    """The lines of one section, and of its entries."""
    match = re.search(rf"^{title}:\n((?:  .*\n|\n(?=  ))+)", text, flags=re.MULTILINE)
    return match.group(1).splitlines() if match else []


@pytest.mark.parametrize("name", GROUP.commands)
def test_examples_of_a_command_are_valid(name):
    lines = section(help_of(name), "Examples")
    assert lines
    for line in lines:
        program, command, *arguments = shlex.split(line.strip().replace("<", "").replace(">", ""))
        assert (program, command) == ("protosphere", name)
        # parses the arguments and runs nothing
        GROUP.commands[name].make_context(command, arguments)


@pytest.mark.parametrize("name", ["", *GROUP.commands])
def test_every_argument_has_a_text_and_nothing_is_escaped(name):
    text = help_of(*name.split())
    assert "\\[" not in text
    entries = [line for line in section(text, "Arguments") if re.match(r"  \S", line)]
    command = GROUP.commands.get(name, GROUP)
    assert len(entries) == sum(param.param_type_name == "argument" for param in command.params)
    for entry in entries:
        assert re.match(r"  \S+  +[A-Z`]", entry), entry


def test_a_letter_that_the_terminal_lacks_is_replaced(home, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    GROUP.main(["data", "--clients", "2"], standalone_mode=False)
    sys.stdout.flush()
    assert b"|   ? |" in raw.getvalue()


def test_help_is_quick_because_it_imports_no_torch():
    code = (
        "import sys; sys.argv = ['protosphere', 'run', '--help']; "
        "from protosphere.cli.main import app; app(standalone_mode=False); "
        "print([name for name in ('torch', 'flwr', 'ray', 'pydantic', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "--preset" in done.stdout


def test_the_help_of_a_run_fits_a_screen():
    assert 24 <= len(help_of("run").splitlines()) <= 40
