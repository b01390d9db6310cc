"""One import name: beside somebody's own packages of our rooms' names, from a checkout, a wheel and an editable
installation; and no module of ours is ever there twice."""

import importlib
import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from protosphere.core.errors import SettingError
from protosphere.strategies import load_method
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
AT_THE_ROOT = ("client_app", "data", "models", "server_app", "strategies")
ORDERS = ("from models import Net\nimport protosphere\n", "import protosphere\nfrom models import Net\n")
# of an editable installation without what loads torch
USE = """
import protosphere.cli.main
import data, cli, models
assert models.Net is Net and data.WHOSE == cli.WHOSE == "theirs"
from protosphere import data as ours
assert protosphere.data is ours is not data
print(ours.__file__)
"""
OF_A_WHEEL = """
from protosphere import models as ours, strategies
assert protosphere.models is ours is not models
protosphere.run
for name in strategies.METHODS:
    strategies.load_method(name)
"""


def made(place: Path, kind: str) -> Path:
    """A Python of its own, whose packages are ours of that kind, and for all others those of this one."""
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    (wheel,) = builder.build(directory=str(place / "dist"), versions=[kind])
    venv.create(place / "venv", symlinks=True)
    (own,) = (place / "venv" / "lib").glob("*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(own)
    # its own .pth files are not read: this checkout is not there by them
    (own / "zz_others.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    return place / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def pythons(tmp_path_factory):
    return {
        "wheel": made(tmp_path_factory.mktemp("wheel"), "standard"),
        "editable": made(tmp_path_factory.mktemp("editable"), "editable"),
    }


def run(python: Path, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([python, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture
def somebodys(tmp_path):
    """A folder with packages of three of our names."""
    for name in ("models", "data", "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("class Net: ...\nWHOSE = 'theirs'\n")
    return tmp_path


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_a_script_beside_packages_of_such_names_imports_both(somebodys, pythons, kind):
    python = pythons[kind]
    (somebodys / "mine.py").write_text(ORDERS[kind == "wheel"] + USE + OF_A_WHEEL * (kind == "wheel"))
    ran = run(python, "mine.py", cwd=somebodys)
    assert ran.returncode == 0, ran.stderr
    of = python.parents[1] if kind == "wheel" else ROOT
    assert Path(ran.stdout.strip()).is_relative_to(of)
    version = run(python, "-m", "protosphere", "--version", cwd=somebodys)
    assert (version.returncode, version.stderr) == (0, "")


def test_a_wheel_holds_one_name(pythons):
    (own,) = (pythons["wheel"].parents[1] / "lib").glob("*/site-packages")
    tops = {path.name for path in own.iterdir()} - {"zz_others.pth"}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"protosphere"}
    below = {path.parent.name for path in (own / "protosphere").glob("*/__init__.py")}
    assert below >= {*AT_THE_ROOT, "cli", "core", "record"}
    assert not below & {"tests", "benchmarks", "deploy"}
    assert (own / "protosphere" / "presets" / "spiral.toml").is_file()


@pytest.mark.parametrize("name", AT_THE_ROOT)
def test_under_a_bare_name_none_is_imported(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    with pytest.raises(ImportError, match=f"^this is protosphere.{name}: import it by that"):
        importlib.import_module(name)


def test_a_method_file_with_bare_names_is_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    (tmp_path / "mine.py").write_text("from strategies.local import METHOD\n")
    with pytest.raises(
        SettingError, match=r"mine\.py.* this is protosphere\.strategies: import it by that name.*line 1"
    ):
        load_method(str(tmp_path / "mine.py"))


def test_a_method_file_gets_the_very_objects(tmp_path):
    (tmp_path / "mine.py").write_text("from protosphere.strategies.local import METHOD\n")
    assert load_method(str(tmp_path / "mine.py")) is load_method("local")
