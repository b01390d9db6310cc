"""What Flower bundles for the clients: every module of ours, and no test."""

import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from protosphere.launch.flower import copy_app

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protosphere", "client_app", "data", "models", "server_app", "strategies")


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """Names of the bundle's files, as `protosphere run` has it made."""
    app = copy_app(ROOT, tmp_path_factory.mktemp("app") / "app")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        return set(bundle.namelist())


def test_the_bundle_has_every_module_and_file_of_ours_and_nothing_else(bundled):
    """Flower leaves out files by their names, *_test.py among them, and kinds of files that it does not know."""
    files = {path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()}
    names = {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".pyc" and path.name != "py.typed"}
    assert len(names) > 60
    # presets' partitions are read where a run is started
    assert {name.rpartition("/")[0] for name in names - bundled} <= {"protosphere/presets/partitions"}
    assert [name for name in bundled if name.startswith(("tests/", "benchmarks/", "docs/"))] == []
