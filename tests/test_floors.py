"""The house's floors: imports point down, never into another room's private names, and keep to the agreed outside."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from strategies import METHODS

ROOT = Path(__file__).resolve().parents[1]
# from top to bottom; rooms of one floor may not import each other
FLOORS = (
    ("protosphere",),
    ("cli",),
    ("experiments",),
    ("serving",),
    ("server_app", "client_app"),
    ("reports",),
    ("strategies",),
    ("runs",),
    ("federation",),
    ("models", "data"),
    ("prototypes",),
)
FLOOR = {room: height for height, rooms in enumerate(reversed(FLOORS)) for room in rooms}
OUTSIDE_OF_PROTOTYPES = {"torch", "numpy", "scipy", "threadpoolctl"} | sys.stdlib_module_names
OLD_FLOWER = ("flwr.server", "flwr.client")
PRIVATE_FLOWER = "flwr.supercore"
KEEPER_OF_THE_PRIVATE_IMPORT = "experiments/runtime/grid.py"
FLOWER_RANGE = "flwr[simulation]>=1.39,<1.40"


@dataclass(frozen=True)
class Import:
    """One import of a module, or of names from it, with what is used of it by attribute."""

    line: int
    module: str
    names: tuple[str, ...] = ()


def imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """All imports of a file, wherever they stand, relative and dynamic ones included.

    Args:
        package: the dotted name of the package that the file lies in.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            yield Import(node.lineno, module, tuple(alias.name for alias in node.names))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield Import(node.lineno, argument.value)


def private_uses(tree: ast.Module, room: str) -> Iterator[tuple[int, str]]:
    """Private names of modules of another room, reached by attribute."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = getattr(node, "module", None)
            for alias in node.names:
                whole = f"{origin}.{alias.name}" if origin else alias.name
                modules[alias.asname or alias.name.split(".")[0]] = whole.split(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            base = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            owner = modules.get(base.id) if isinstance(base, ast.Name) else None
            if owner in FLOOR and owner != room:
                yield node.lineno, ast.unparse(node)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def within(module: str, packages: tuple[str, ...] | str) -> bool:
    """Whether a module is one of these packages or lies in one."""
    packages = (packages,) if isinstance(packages, str) else packages
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def files(root: Path) -> list[Path]:
    return sorted(path for room in FLOOR for path in (root / room).rglob("*.py"))


def violations(root: Path) -> list[str]:
    """What every file of every room does against the rules of the house, as `file:line: what`."""
    found = []
    for path in files(root):
        place = path.relative_to(root).as_posix()
        room, tree = place.split("/")[0], ast.parse(path.read_text())

        def note(line: int, what: str, place: str = place) -> None:
            found.append(f"{place}:{line}: {what}")

        for each in imports(tree, ".".join(path.relative_to(root).parent.parts)):
            target = each.module.split(".")[0]
            # `from flwr import server` imports the module flwr.server
            whole = [each.module, *(f"{each.module}.{name}" for name in each.names)]
            if target in FLOOR and target != room:
                if FLOOR[target] >= FLOOR[room]:
                    note(each.line, f"{room} imports {target}, which is not below it")
                if any(is_private(part) for part in [*each.module.split("."), *each.names]):
                    note(each.line, f"private name of {target}: {whole[-1]}")
            if room == "prototypes" and target not in OUTSIDE_OF_PROTOTYPES | FLOOR.keys():
                note(each.line, f"prototypes imports {target}")
            if any(within(module, OLD_FLOWER) for module in whole):
                note(each.line, f"deprecated Flower: {each.module}")
            if any(within(module, PRIVATE_FLOWER) for module in whole) and place != KEEPER_OF_THE_PRIVATE_IMPORT:
                note(each.line, f"private Flower: {each.module}")
        for line, use in private_uses(tree, room):
            note(line, f"private name of another room: {use}")
    return found


NO_NAMES = {"local", "protosphere"}  # a word, and the project's own name


def method_names_in_client(root: Path, methods: dict[str, str]) -> list[str]:
    """Where client_app names a method: an import of its module, or its name as a whole string constant."""
    found = []
    for path in sorted((root / "client_app").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for each in imports(tree, "client_app"):
            if {each.module, *(f"{each.module}.{name}" for name in each.names)} & set(methods.values()):
                found.append(f"{path.name}:{each.line}: imports {each.module}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in methods.keys() - NO_NAMES:
                found.append(f'{path.name}:{node.lineno}: "{node.value}"')
    return found


def test_the_house_keeps_its_rules():
    assert violations(ROOT) == []


def test_no_method_is_named_in_the_client():
    assert method_names_in_client(ROOT, METHODS) == []


def test_every_room_is_there_and_shipped():
    assert all(list((ROOT / room).glob("*.py")) for room in FLOOR)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == FLOOR.keys()
    assert set(project["tool"]["mypy"]["files"]) == FLOOR.keys()


def test_the_private_import_belongs_to_this_range_of_flower():
    # look at `flwr.supercore.task_identity` of a new Flower before this range may change
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [name for name in project["dependencies"] if name.startswith("flwr[")] == [FLOWER_RANGE]
    text = (ROOT / KEEPER_OF_THE_PRIVATE_IMPORT).read_text()
    used = [each for each in imports(ast.parse(text), "experiments") if within(each.module, PRIVATE_FLOWER)]
    assert [(each.module, each.names) for each in used] == [("flwr.supercore.task_identity", ("TaskIdentity",))]


# --- the walker itself, on houses built to fall -------------------------------------------------------------

BAD = [
    ("federation/x.py", "from strategies import METHODS", "federation imports strategies"),
    ("data/x.py", "import models.split as split", "data imports models"),
    ("client_app/x.py", "import server_app", "client_app imports server_app"),
    ("federation/deep/x.py", "def f():\n    if True:\n        from cli import main", "federation imports cli"),
    (
        "federation/x.py",
        "import importlib\nimportlib.import_module('strategies.local')",
        "federation imports strategies",
    ),
    ("federation/x.py", "from prototypes.sphere import _helper", "private name of prototypes"),
    ("federation/x.py", "import prototypes.sphere\nprototypes.sphere._helper()", "prototypes.sphere._helper"),
    ("federation/x.py", "from prototypes.sphere import Thing\nThing._made()", "Thing._made"),
    ("prototypes/x.py", "import flwr", "prototypes imports flwr"),
    ("strategies/x.py", "from flwr.server.strategy import FedAvg", "deprecated Flower"),
    ("client_app/x.py", "import flwr.client", "deprecated Flower"),
    ("federation/x.py", "from flwr.supercore.task_identity import TaskIdentity", "private Flower"),
]


def build(root, place, text):
    path = root / place
    path.parent.mkdir(parents=True)
    path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(("place", "text", "said"), BAD)
def test_the_walker_sees(tmp_path, place, text, said):
    found = violations(build(tmp_path, place, text))
    assert len(found) == 1
    assert found[0].startswith(f"{place}:")
    assert said in found[0]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("strategies/x.py", "import federation.seeds\nfrom prototypes import sphere\nsphere.public()"),
        ("strategies/x.py", "from strategies.other import _shared_in_the_room\nfrom strategies import other\nother._x"),
        ("strategies/x.py", "from . import base\nfrom .base import Thing"),
        ("experiments/x.py", "import server_app.app\nimport client_app.app\nimport data"),
        ("experiments/runtime/grid.py", "from flwr.supercore.task_identity import TaskIdentity"),
        ("prototypes/x.py", "from __future__ import annotations\nimport math, numpy as np\nfrom scipy import linalg"),
        ("client_app/x.py", "from flwr.clientapp import ClientApp\nfrom flwr.serverapp import Grid\nself._x = 1"),
        ("cli/x.py", "from data import __version__\n'import server_app'"),
    ],
)
def test_the_walker_lets_pass(tmp_path, place, text):
    assert violations(build(tmp_path, place, text)) == []


def test_the_walker_resolves_relative_imports(tmp_path):
    # `from ...` out of a room reaches the next one
    found = violations(
        build(tmp_path, "federation/deep/x.py", "from ...strategies import base\nfrom ..seeds import derive")
    )
    assert len(found) == 1
    assert "federation imports strategies" in found[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from strategies.fedproto import FedProto", 1),
        ("from strategies import fedproto", 1),
        ("import strategies.fedproto", 1),
        ("if name == 'fedproto':\n    pass", 1),
        ("x = {'fedproto': 1, 'protonorm': 2}", 2),
        ("from strategies import read_settings\nx = 'local'\ny = 'local-prototypes'\nz = 'as fedproto does'", 0),
    ],
)
def test_a_method_named_in_the_client_is_seen(tmp_path, text, names):
    assert len(method_names_in_client(build(tmp_path, "client_app/x.py", text), METHODS)) == names
