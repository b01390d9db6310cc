"""The README's tables against the code."""

import json
import re
import tomllib
from pathlib import Path

from experiments.settings_tables import all_settings, with_defaults, with_rows
from strategies import METHODS, known_settings

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_every_setting_is_listed_once_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \| `([^`]*)` \|", README, flags=re.MULTILINE)
    names = [name for name, _ in rows]
    assert sorted(names) == sorted(known_settings())
    assert {name: json.loads(default) for name, default in rows} == known_settings()


def test_every_method_has_a_row() -> None:
    table = README.split("## Methods")[1].split("## Settings")[0]
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", table, flags=re.MULTILINE)) == sorted(METHODS)


def test_every_linked_file_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_make_settings_finds_nothing_to_do_and_mends_what_is_off() -> None:
    settings = all_settings()
    project = (ROOT / "pyproject.toml").read_text()
    assert with_rows(README, settings) == README
    assert with_defaults(project, settings) == project
    off = project.replace("gamma = 10.0\nalignment", "gamma = 9.0\nalignment").replace("epsilon = 1e-4\n", "")
    assert tomllib.loads(with_defaults(off, settings)) == tomllib.loads(project)
    # a row that is gone, a setting that nobody knows, another default
    row = next(line for line in README.splitlines() if line.startswith("| `protonorm.stop` |"))
    less = README.replace(row + "\n", "").replace("| `rounds` | `20` |", "| `rounds` | `21` |")
    less = less.replace("**`protonorm`**", "| `none.such` | `1` | a | b |\n\n**`protonorm`**")
    again = with_rows(less, settings)
    assert '| `protonorm.stop` | `"none"` | `none`, `force`, `tangential` | when `thomson` may stop earlier' in again
    assert "| `rounds` | `20` |" in again
    assert "none.such" not in again
