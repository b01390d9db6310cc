"""The tables of the README and of docs/ against the code, and the pages as a site."""

import json
import operator
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path

from protosphere.cli import settings_tables
from protosphere.cli.settings_tables import all_settings, with_defaults, with_rows
from protosphere.strategies import METHODS, known_settings
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
METHODS_PAGE = (ROOT / "docs" / "methods.md").read_text()


def test_every_setting_is_listed_once_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \| `([^`]*)`(?:;| \|)", SETTINGS, flags=re.MULTILINE)
    names = [name for name, _ in rows]
    assert len(names) == len(set(names))
    assert not known_settings().keys() ^ set(names), "docs/settings.md needs a row of each setting, and of no other"
    assert {name: json.loads(default) for name, default in rows} == known_settings()


def test_every_default_lies_in_the_range_that_is_printed() -> None:
    compared = {"≥": operator.ge, ">": operator.gt, "≤": operator.le, "<": operator.lt, "[": operator.ge}
    compared |= {"(": operator.gt, "]": operator.le, ")": operator.lt}
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \| `([0-9.e+-]+)`; ([^|]*) \|", SETTINGS, flags=re.MULTILINE)
    limits = 0
    for name, default, allowed in rows:
        # of `mixed` another one holds than else
        words = allowed.partition(";")[0]
        found = re.findall(r"([≥>≤<]) ([0-9.e]+)", words)
        if interval := re.match(r"([\[(])([0-9.-]+), ([0-9.-]+)([\])])", words):
            low, least, most, high = interval.groups()
            found = [(low, least), (high, most)]
        assert all(compared[sign](float(default), float(limit)) for sign, limit in found), name
        limits += len(found)
    assert limits > len(rows)


def test_tables_of_methods_are_those_of_the_registry() -> None:
    families, methods = settings_tables.families_table(), settings_tables.methods_table()
    assert families in METHODS_PAGE
    assert methods in METHODS_PAGE
    assert sorted(re.findall(r"^\| `([a-z0-9-]+)` \|", methods, flags=re.MULTILINE)) == sorted(METHODS)
    rows = [line.split("|")[2] for line in families.splitlines()]
    assert sorted(re.findall(r"`([a-z0-9-]+)`", " ".join(rows))) == sorted(METHODS)


def test_the_readme_is_short() -> None:
    # the bars of its table are no words
    assert len([word for word in README.split() if word != "|"]) <= 730


def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    log = tmp_path / "said"

    def build() -> None:
        from sphinx.cmd.build import main

        with log.open("w") as said, redirect_stdout(said), redirect_stderr(said):
            sys.exit(main(["--fail-on-warning", "--keep-going", "--quiet", str(ROOT / "docs"), str(tmp_path)]))

    # a fork, for what takes long is to load what the docstrings are of
    process = get_context("fork").Process(target=build)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0, log.read_text()
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages <= {page.stem for page in tmp_path.glob("*.html")}
    # what searches needs no server
    assert (tmp_path / "searchindex.js").exists()


def test_every_linked_file_exists() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_a_commit_is_looked_at_as_make_lint_looks_at_all() -> None:
    hooks = re.findall(r"entry: \.venv/bin/(.+)", (ROOT / ".pre-commit-config.yaml").read_text())
    target = (ROOT / "Makefile").read_text().split("\nlint: ")[1].split("\n\n")[0]
    lines = re.findall(r"\$\(BIN\)/(.+)", target)
    # pre-commit adds the files, where make says all of them
    assert hooks == [line.removesuffix(" .") for line in lines]


def test_contributing_names_files_that_exist() -> None:
    words = re.findall(r"`([a-z_]+/[\w./]*)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(words) > 20
    assert not [word for word in words if not (ROOT / word).exists()]


def test_make_settings_finds_nothing_to_do_and_mends_what_is_off() -> None:
    settings = all_settings()
    project = (ROOT / "pyproject.toml").read_text()
    assert with_rows(SETTINGS, settings) == SETTINGS
    assert with_defaults(project, settings) == project
    # another default, a setting that is missing, one that nobody knows
    off = project.replace("\nrounds = 20\n", "\nrounds = 21\n").replace("energy-exponent = 0.0\n", "none-such = 1\n")
    assert with_defaults(off, settings) == project
    assert with_rows(SETTINGS.replace("| `rounds` | `20`; ", "| `rounds` | `21`; "), settings) == SETTINGS
