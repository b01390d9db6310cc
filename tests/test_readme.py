"""The README's tables against the code."""

import json
import re
from pathlib import Path

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
