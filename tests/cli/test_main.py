"""The command as a whole: quick to help, no traceback for a mistake, its version."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import main
from cli.main import app

ROOT = Path(main.__file__).resolve().parents[1]


def test_help_is_quick_because_it_imports_no_torch():
    code = (
        "import sys; sys.argv = ['protosphere', 'run', '--help']; "
        "from cli.main import app; app(standalone_mode=False); "
        "print([name for name in ('torch', 'flwr', 'ray', 'pydantic', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "--preset" in done.stdout


@pytest.mark.parametrize("installed", [True, False])
def test_version(installed, monkeypatch):
    def version(name):
        if installed:
            return "1.2.3"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("cli.main.version", version)
    result = CliRunner().invoke(app, ["--version"])
    expected = "protosphere 1.2.3" if installed else "protosphere (from a checkout that is not installed)"
    assert (result.exit_code, result.stdout) == (0, f"{expected}\n")
