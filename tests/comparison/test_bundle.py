"""What Flower bundles for the clients: every module of ours, and no test."""

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


def test_a_bundle_is_that_of_the_folder_with_all_that_lies_beside(tmp_path):
    app = tmp_path / "app"
    ours = ("rooms/part.py", "rooms/results/deep.py", "rooms/deep/table.json", ".settings.yaml", "tests/test_it.py")
    for name in (*ours, "rooms/words.txt", "rows.npz", "out/mine.py"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("1\n")
    for name in (".venv/lib/other.py", "env/lib/other.py", "rooms/__pycache__/part.py"):
        (app / name).parent.mkdir(parents=True)
        (app / name).write_text("2\n")
    for name in (".venv", "env"):
        (app / name / "pyvenv.cfg").touch()
    (app / "rooms" / "link.py").symlink_to(app / "rooms" / "part.py")
    (app / ".gitignore").write_text("/out/\n__pycache__/\n")
    (app / "LICENSE").write_text("free\n")
    (app / "pyproject.toml").write_text(PROJECT)
    before = build_fab_from_disk(app)
    copied = copy_app(app, tmp_path / "copied")
    assert build_fab_from_disk(copied) == before
    # no environment, whatever it is called, no link and no data
    files = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
    assert files == {*ours, "out/mine.py", ".gitignore", "LICENSE", "pyproject.toml"}


def test_the_bundle_has_every_module_and_file_of_ours_and_nothing_else(bundled):
    """Flower leaves out files by their names, *_test.py among them, and kinds of files that it does not know."""
    files = {path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()}
    names = {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".pyc" and path.name != "py.typed"}
    assert len(names) > 60
    # presets' partitions are read where a run is started
    assert {name.rpartition("/")[0] for name in names - bundled} <= {"protosphere/presets/partitions"}
    assert [name for name in bundled if name.startswith(("tests/", "benchmarks/", "docs/"))] == []
