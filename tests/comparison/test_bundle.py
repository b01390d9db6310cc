"""What Flower bundles for the clients: every module of ours, and no test."""

import io
import shutil
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from protosphere.launch.flower import FlowerError, copy_app

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
    app = copy_app(ROOT, tmp_path_factory.mktemp("app"))
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        return set(bundle.namelist())


def test_a_bundle_is_that_of_the_folder_with_all_that_lies_beside(tmp_path):
    app = tmp_path / "app"
    for name in ("rooms/part.py", "rooms/deep/table.json", "rooms/words.txt", "out/mine.py", "tests/test_it.py"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("1\n")
    for name in (".venv/lib/other.py", "env/lib/other.py", "rooms/__pycache__/part.py"):
        (app / name).parent.mkdir(parents=True)
        (app / name).write_text("2\n")
    (app / "env" / "pyvenv.cfg").touch()
    (app / "rooms" / "link.py").symlink_to(app / "rooms" / "part.py")
    (app / ".gitignore").write_text("/out/\n__pycache__/\n")
    (app / "LICENSE").write_text("free\n")
    (app / "pyproject.toml").write_text(PROJECT)
    before = build_fab_from_disk(app)
    (app / "own" / "tmp").mkdir(parents=True)
    copied = copy_app(app, app / "own" / "tmp" / "copied")
    assert build_fab_from_disk(copied) == before
    left = {path.relative_to(copied).as_posix() for path in copied.rglob("*.py")}
    assert left == {"rooms/part.py", "out/mine.py", "tests/test_it.py"}


def test_a_file_that_cannot_be_copied_is_named(tmp_path, monkeypatch):
    app = tmp_path / "app"
    app.mkdir()
    (app / "secret.py").touch()

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    def gone(*_):
        raise FileNotFoundError(2, "No such file or directory")

    # of another run, which went meanwhile
    monkeypatch.setattr(shutil, "copyfile", gone)
    copy_app(app, tmp_path / "without")
    monkeypatch.setattr(shutil, "copyfile", refused)
    with pytest.raises(FlowerError, match=r"secret\.py cannot be copied .* \(Permission denied\); let it be read"):
        copy_app(app, tmp_path / "copied")


def test_every_module_is_in_the_bundle(bundled):
    """Flower leaves out files by their names, *_test.py among them, and a run then ends at an import."""
    modules = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert len(modules) > 60
    assert modules - bundled == set()


def test_every_file_that_a_server_reads_is_in_the_bundle(bundled):
    """Flower's bundle holds files of a few kinds; presets' partitions are read where a run is started."""
    files = {path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()}
    others = {path for path in files if path.suffix not in (".py", ".pyc") and path.name != "py.typed"}
    left_out = {path.relative_to(ROOT).as_posix() for path in others} - bundled
    assert {path.rpartition("/")[0] for path in left_out} <= {"protosphere/presets/partitions"}


def test_no_test_and_no_benchmark_is_in_the_bundle(bundled):
    assert [name for name in bundled if name.startswith(("tests/", "benchmarks/", "docs/"))] == []
