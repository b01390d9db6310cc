"""What Flower bundles for the clients: every module of ours, and no test."""

import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("prototypes", "models", "data", "federation", "strategies", "client_app", "server_app", "experiments", "cli")


@pytest.fixture(scope="module")
def bundled():
    """Names of the bundle's files."""
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT))) as bundle:
        return set(bundle.namelist())


def test_every_module_is_in_the_bundle(bundled):
    """Flower leaves out files by their names, *_test.py among them, and a run then ends at an import."""
    modules = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert len(modules) > 60
    assert modules - bundled == set()


def test_no_test_and_no_benchmark_is_in_the_bundle(bundled):
    assert [name for name in bundled if name.startswith(("tests/", "benchmarks/", "docs/"))] == []
