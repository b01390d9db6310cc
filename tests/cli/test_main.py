"""The command as a whole: quick to help, no traceback for a mistake, its version."""

import subprocess
import sys
from pathlib import Path

from protosphere.cli import main

ROOT = Path(main.__file__).resolve().parents[2]


def test_help_is_quick_because_it_imports_no_torch():
    code = (
        "import sys; sys.argv = ['protosphere', 'run', '--help']; "
        "from protosphere.cli.main import app; app(standalone_mode=False); "
        "print([name for name in ('torch', 'flwr', 'ray', 'pydantic', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "--preset" in done.stdout
