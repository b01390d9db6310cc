"""The house's floors: imports point down, never into another room's private names, and keep to the agreed outside."""

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from protosphere.core.flower import FIRST_OVER_HTTP, NEWEST, OLDEST
from protosphere.strategies import METHODS
from protosphere.strategies.registry import location

ROOT = Path(__file__).resolve().parents[1]
# from top to bottom; rooms of one floor may not import each other
FLOORS = (
    ("cli",),
    ("protosphere",),
    ("comparison",),
    ("plans", "launch"),
    ("serving",),
    ("server_app", "client_app"),
    ("reports",),
    ("strategies",),
    ("record",),
    ("wire",),
    ("models", "data"),
    ("prototypes", "core"),
)
FLOOR = {room: height for height, rooms in enumerate(reversed(FLOORS)) for room in rooms}
# where the brief of the product wants them; all others lie in protosphere/
AT_THE_ROOT = {"server_app", "client_app", "strategies", "models", "data"}
INSIDE = FLOOR.keys() - AT_THE_ROOT - {"protosphere"}
OUTSIDE_OF_PROTOTYPES = {"torch", "numpy", "scipy", "threadpoolctl"} | sys.stdlib_module_names
PUBLIC_FLOWER = ("flwr.app", "flwr.serverapp", "flwr.clientapp")
# the one file that leans on more of Flower: its private modules, and what it prints and keeps
FLOWER = "protosphere/core/flower.py"
PRIVATE_MODULES = {
    "flwr.cli.build": ("build_fab_from_disk",),
    "flwr.proto.runtime_pb2": ("PullAppMessagesRequest", "PullAppMessagesResponse"),
    "flwr.supercore.exit": ("add_exit_handler",),
    "flwr.supercore.task_identity": ("TaskIdentity",),
    "flwr.superlink.grid": ("InMemoryGrid",),
}
# what stands nowhere else
PHRASES = (
    "finished:completed",
    "status-details",
    "error-message",
    "message_ins",
)


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
        elif isinstance(node, ast.ImportFrom) and node.module == "protosphere" and not node.level:
            # `from protosphere import data` is an import of that room
            for alias in node.names:
                yield Import(node.lineno, f"protosphere.{alias.name}")
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            yield Import(node.lineno, module, tuple(alias.name for alias in node.names))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield Import(node.lineno, argument.value)


def room_of(module: str) -> str:
    """The room that a module lies in; "" of what is not ours. `protosphere.method` is what methods see of theirs, and
    `python -m protosphere` is the command line."""
    top, _, rest = module.partition(".")
    below = rest.partition(".")[0]
    if below == "method":
        return "strategies"
    if below == "__main__":
        return "cli"
    return "" if top != "protosphere" else below if below in FLOOR else top


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def within(module: str, packages: tuple[str, ...] | str) -> bool:
    """Whether a module is one of these packages or lies in one."""
    packages = (packages,) if isinstance(packages, str) else packages
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def files(root: Path) -> list[Path]:
    return sorted(path for room in FLOOR if room not in INSIDE for path in (root / room).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax, which is read once for all tests."""
    return ast.parse(path.read_text())


def violations(root: Path) -> list[str]:
    """What every file of every room does against the rules of the house, as `file:line: what`."""
    found = []
    for path in files(root):
        place = path.relative_to(root).as_posix()
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        module = module if module.startswith("protosphere.") else f"protosphere.{module}"
        room, tree = room_of(module), tree_of(path)

        def note(line: int, what: str, place: str = place) -> None:
            found.append(f"{place}:{line}: {what}")

        for each in imports(tree, module.rpartition(".")[0]):
            target = room_of(each.module)
            whole = [each.module, *(f"{each.module}.{name}" for name in each.names)]
            if target in FLOOR and target != room:
                if FLOOR[target] >= FLOOR[room]:
                    note(each.line, f"{room} imports {target}, which is not below it")
                if any(is_private(part) for part in [*each.module.split("."), *each.names]):
                    note(each.line, f"private name of {target}: {whole[-1]}")
            outside = "" if target else each.module.split(".")[0]
            if outside in FLOOR:
                note(each.line, f"a room without the one name: {each.module}")
            elif room == "prototypes" and outside and outside not in OUTSIDE_OF_PROTOTYPES:
                note(each.line, f"prototypes imports {outside}")
            if within(each.module, "flwr") and not within(each.module, PUBLIC_FLOWER) and place != FLOWER:
                note(each.line, f"Flower beyond its public modules: {each.module}")
    return found


NO_NAMES = {"local", "protosphere"}  # a word, and the project's own name


def method_names_in_client(root: Path, methods: Iterable[str]) -> list[str]:
    """Where client_app names a method: an import of its module, or its name as a whole string constant."""
    found = []
    modules = {location(name)[0] for name in methods}
    for path in sorted((root / "client_app").rglob("*.py")):
        tree = tree_of(path)
        for each in imports(tree, "protosphere.client_app"):
            if {each.module, *(f"{each.module}.{name}" for name in each.names)} & modules:
                found.append(f"{path.name}:{each.line}: imports {each.module}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in set(methods) - NO_NAMES:
                found.append(f'{path.name}:{node.lineno}: "{node.value}"')
    return found


def test_the_house_keeps_its_rules():
    assert violations(ROOT) == []


def test_the_picture_of_the_house_is_drawn_from_its_imports():
    from tests.architecture import PICTURE, imported_rooms, picture

    assert PICTURE.read_text() == picture(imported_rooms(ROOT)), "draw it anew: python -m tests.architecture"


def test_no_method_is_named_in_the_client():
    assert method_names_in_client(ROOT, METHODS) == []


def test_every_room_is_there_and_shipped():
    places = {room: ROOT / "protosphere" / room if room in INSIDE else ROOT / room for room in FLOOR}
    assert all(list(place.glob("*.py")) for place in places.values())
    below = {path.parent.name for path in (ROOT / "protosphere").glob("*/__init__.py")}
    assert below == INSIDE
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["packages"]) == AT_THE_ROOT | {"protosphere"}
    assert wheel["sources"] == {room: f"protosphere/{room}" for room in AT_THE_ROOT}
    typed = {f"typed/protosphere/{room}" for room in AT_THE_ROOT}
    assert set(project["tool"]["mypy"]["files"]) == typed | {"protosphere", "deploy"}
    assert all((ROOT / each).resolve() == ROOT / Path(each).name for each in typed)


def test_one_file_leans_on_more_of_flower_than_its_public_modules():
    tree = tree_of(ROOT / FLOWER)
    used = [each for each in imports(tree, "protosphere.core") if within(each.module, "flwr")]
    private = {each.module: each.names for each in used if not within(each.module, PUBLIC_FLOWER)}
    assert private == PRIVATE_MODULES
    # nothing of Flower is loaded with it
    top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    assert not [each.module for each in imports(top, "protosphere.core") if within(each.module, "flwr")]


def test_the_scripts_and_benchmarks_keep_to_it_too():
    scripts = {*(ROOT / "deploy").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")}
    # they replace functions of Flower's; tests/deploy/test_executor.py and test_supernode.py hold what they lean on
    start_flower_s_programs = {ROOT / "deploy" / name for name in ("executor.py", "supernode.py")}
    for path in sorted(scripts - start_flower_s_programs):
        for each in imports(tree_of(path), path.parent.name):
            assert not within(each.module, "flwr") or within(each.module, PUBLIC_FLOWER), f"{path}:{each.line}"


def test_what_flower_prints_and_keeps_is_spelt_in_that_file_alone():
    told = (ROOT / FLOWER).read_text()
    assert [phrase for phrase in PHRASES if phrase not in told] == []
    for path in (*files(ROOT), *(ROOT / "deploy").rglob("*.py")):
        if path != ROOT / FLOWER:
            strings = [node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)]
            spelt = [text for text in strings if isinstance(text, str) and any(each in text for each in PHRASES)]
            assert spelt == [], path


def test_the_range_of_flower_is_what_was_tried():
    # look at that file beside a new Flower before this range may change
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (required,) = [name for name in project["dependencies"] if name.startswith("flwr[")]
    (first, oldest), (second, newest) = OLDEST, NEWEST
    assert required == f"flwr[simulation]>={first}.{oldest},<{second}.{newest + 1}"
    assert oldest < FIRST_OVER_HTTP[1] <= newest


# --- the walker itself, on houses built to fall -------------------------------------------------------------

BAD = [
    ("protosphere/core/x.py", "from protosphere.strategies import METHODS", "core imports strategies"),
    ("client_app/x.py", "from strategies import METHODS", "a room without the one name: strategies"),
    ("protosphere/core/deep/x.py", "def f():\n    from ...cli import main", "core imports cli"),
    ("protosphere/core/x.py", "importlib.import_module('protosphere.strategies.local')", "core imports strategies"),
    ("protosphere/wire/x.py", "from protosphere.prototypes.sphere import _helper", "private name of prototypes"),
    ("protosphere/prototypes/x.py", "import pandas", "prototypes imports pandas"),
    ("data/x.py", "def f():\n    from flwr import server", "beyond its public modules: flwr"),
]
GOOD = """
import protosphere.core.seeds
from protosphere.prototypes import sphere
from protosphere.strategies.other import _shared_in_the_room
from flwr.serverapp.strategy import Strategy
"""


def build(root, place, text):
    path = root / place
    path.parent.mkdir(parents=True)
    path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(("place", "text", "words"), BAD)
def test_the_walker_sees(tmp_path, place, text, words):
    (found,) = violations(build(tmp_path, place, text))
    assert found.startswith(f"{place}:")
    assert words in found


def test_the_walker_lets_pass(tmp_path):
    assert violations(build(tmp_path, "strategies/x.py", GOOD)) == []


def test_a_method_named_in_the_client_is_seen(tmp_path):
    text = "from protosphere.strategies import fedproto\nname == 'protonorm'\nx = 'local-prototypes'"
    assert len(method_names_in_client(build(tmp_path, "client_app/x.py", text), METHODS)) == 2
