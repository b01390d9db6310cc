"""docs/deployment.md, followed to the letter where it needs no other machine."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()


def blocks(step):
    """The shell commands of a step, block by block."""
    section = re.search(rf"^\*\*{step}\. .*?(?=^\*\*{step + 1}\. )", PAGE, flags=re.MULTILINE | re.DOTALL)[0]
    return re.findall(r"^```bash\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)


def test_the_connection_of_step_3_stands_beside_the_default_that_a_plain_run_needs(tmp_path):
    checkout = tmp_path / "check out"
    shutil.copytree(ROOT / "deploy", checkout / "deploy")
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "flwr"):
        (programs / name).write_text(f'#!/bin/sh\nexec {Path(sys.executable).parent / name} "$@"\n')
        (programs / name).chmod(0o755)
    environment = os.environ | {"HOME": str(tmp_path)}
    environment.pop("FLWR_HOME", None)
    made, at_a_site, _ = blocks(1)
    lines = made + at_a_site + blocks(3)[0]
    done = subprocess.run(["sh", "-euc", lines], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    config = tomllib.loads((tmp_path / ".flwr" / "config.toml").read_text())["superlink"]
    assert config[config["default"]], "what `flwr run .` takes is there"
    assert config["clinics"]["root-certificates"] == str(checkout / "credentials" / "ca.crt")
