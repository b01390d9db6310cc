"""The bundle that Flower makes for the clients: every module, and no test."""

import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from protosphere.launch.flower import copy_app

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """
[project]
name = "small"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "tests"
fab-exclude = ["tests/**", ".gitignore"]
[tool.flwr.app.components]
serverapp = "rooms.part:server"
clientapp = "rooms.part:client"
"""
ROOMS = ("protosphere", "client_app", "data", "models", "server_app", "strategies")


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """Names of the bundle's files, as `protosphere run` has it made."""
    app = copy_app(ROOT, tmp_path_factory.mktemp("app") / "app")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        return set(bundle.namelist())


def test_the_bundle_of_a_copied_app_is_that_of_its_folder(tmp_path):
    app = tmp_path / "app"
    code = {"rooms/part.py", "rooms/results/deep.py", "rooms/deep/table.json", ".settings.yaml", "tests/test_it.py"}
    code |= {"out/mine.py", "LICENSE"}
    data = {"rooms/words.txt", "rows.npz", "rooms/__pycache__/part.py"}
    environments = {".venv/lib/other.py", ".venv/pyvenv.cfg", "env/lib/other.py", "env/pyvenv.cfg"}
    for name in code | data | environments:
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("1\n")
    (app / "rooms" / "link.py").symlink_to(app / "rooms" / "part.py")
    (app / ".gitignore").write_text("/out/\n__pycache__/\n")
    (app / "pyproject.toml").write_text(PROJECT)
    before = build_fab_from_disk(app)
    copy = copy_app(app, tmp_path / "copy")
    assert build_fab_from_disk(copy) == before
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert files == code | {".gitignore", "pyproject.toml"}


def test_the_bundle_has_every_module_and_no_test(bundled):
    """Flower leaves out files by their names, such as *_test.py, and files of unknown kinds."""
    files = {path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()}
    names = {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".pyc" and path.name != "py.typed"}
    assert len(names) > 60
    # partitions of presets are only read where a run starts
    assert {name.rpartition("/")[0] for name in names - bundled} <= {"protosphere/presets/partitions"}
    assert [name for name in bundled if name.startswith(("tests/", "benchmarks/", "docs/"))] == []
