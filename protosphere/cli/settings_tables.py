"""`make settings`: writes the defaults in pyproject.toml and the tables of docs/settings.md and docs/methods.md.

A default and its description are defined once, in the class of the settings. In pyproject.toml, whole tables are
replaced; in the page, each row is replaced in place.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from protosphere.core.settings import Settings
from protosphere.core.text import GREEK
from protosphere.strategies import METHODS, load_method
from protosphere.strategies.registry import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/settings.md"
FAMILIES_HEAD = "| family | methods | what is exchanged |"
METHODS_HEAD = "| method | source | what goes up | what comes down | extra work | predicts by |"
TABLE = "tool.flwr.app.config"
AFTER_TABLES = "\n[tool.ruff]\n"  # start of a table in pyproject.toml
# a row of the page starts with the setting's name
ROW = re.compile(r"\| `([a-z0-9-]+(?:\.[a-z0-9-]+)?)` \| `")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
BY_TYPE = ("true, false", "text")  # the type that the default shows already
# a symbol, not a setting's name
GREEK_NAME = re.compile(rf"(?<![`.\w-])(?:{'|'.join(GREEK.values())})(?![\w`-]*[a-z]{{2}}|`)")
HUGE = 2**31  # a limit without practical effect is not shown


@dataclass(frozen=True)
class Setting:
    """One setting: its full name, default, allowed values and a line on its meaning."""

    name: str
    default: Any
    allowed: str
    meaning: str

    @property
    def value(self) -> str:
        """The default as in TOML and JSON."""
        return json.dumps(self.default, ensure_ascii=False)

    @property
    def row(self) -> str:
        """Its row in the page."""
        allowed = "" if self.allowed in BY_TYPE else f"; {self.allowed}"
        return f"| `{self.name}` | `{self.value}`{allowed} | {self.meaning.replace('|', chr(92) + '|')} |"


def all_settings() -> dict[str, list[Setting]]:
    """The settings by prefix, the shared ones under ""."""
    shared = []
    for name, field in Settings.model_fields.items():
        allowed = _describe_allowed(field.annotation, field.metadata)
        description = " ".join((field.description or "").split())
        shared.append(Setting(name.replace("_", "-"), field.default, allowed, description))
    settings_by_prefix = {"": shared}
    for prefix, kind in sorted({item for name in METHODS for item in load_method(name).settings.items()}, key=str):
        defaults = kind()
        settings_by_prefix[prefix] = [
            Setting(
                f"{prefix}.{entry.name.replace('_', '-')}",
                getattr(defaults, entry.name),
                _describe_allowed(*_unwrap(entry.type)),
                _meaning(kind.__doc__ or "", entry.name),
            )
            for entry in fields(kind)
        ]
    return settings_by_prefix


def without_markup(text: str) -> str:
    """Text without Markdown's links and code, because a terminal shows neither."""
    return LINK.sub(r"\1", text).replace("`", "")


def _unwrap(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type, and the metadata of its `Annotated`."""
    return (get_args(kind)[0], kind.__metadata__) if hasattr(kind, "__metadata__") else (kind, ())


def _describe_allowed(kind: Any, metadata: Any) -> str:
    """The values that a type allows, for the page."""
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if kind is bool:
        return BY_TYPE[0]
    checks = [check for item in metadata for check in (item, *getattr(item, "metadata", ()))]
    limits = {name: getattr(c, name) for c in checks for name in ("ge", "gt", "le", "lt") if hasattr(c, name)}
    limits = {name: limit for name, limit in limits.items() if limit < HUGE}
    least = limits.get("ge", limits.get("gt"))
    most = limits.get("le", limits.get("lt"))
    if least is not None and most is not None:
        opening, closing = "[" if "ge" in limits else "(", "]" if "le" in limits else ")"
        return f"{opening}{least:g}, {most:g}{closing}"
    if least is not None:
        return f"{'≥' if 'ge' in limits else '>'} {least:g}"
    return BY_TYPE[1]


def _meaning(documented: str, name: str) -> str:
    """The description of one attribute, with Greek names as letters."""
    match = re.search(rf"^\s*(?:\w+, )*{name}(?:, \w+)*: (.+(?:\n {{12,}}.+)*)", documented, re.MULTILINE)
    text = " ".join(match[1].split()) if match else ""
    letters = {name: letter for letter, name in GREEK.items()}
    text = GREEK_NAME.sub(lambda found: letters[found[0]], text)
    # lower case for the first letter, except for a symbol: C, T_s
    first = text[:1].lower() if text[1:2].islower() else text[:1]
    return first + text[1:].rstrip(".")


def with_defaults(text: str, settings: Mapping[str, list[Setting]]) -> str:
    """pyproject.toml with its tables of settings replaced."""
    tables = []
    for prefix, entries in settings.items():
        lines = [f"[{TABLE}.{prefix}]" if prefix else f"[{TABLE}]"]
        lines += [f"{entry.name.rpartition('.')[2]} = {entry.value}" for entry in entries]
        tables.append("\n".join(lines) + "\n")
    before, _, tail = text.partition(f"[{TABLE}]\n")
    _, after_tables, after = tail.partition(AFTER_TABLES)
    return before + "\n".join(tables) + after_tables + after


def with_rows(text: str, settings: Mapping[str, list[Setting]]) -> str:
    """settings.md with each setting's row replaced; the order of rows is kept, and a new one must be added by hand."""
    by_name = {setting.name: setting for entries in settings.values() for setting in entries}
    lines = []
    for line in text.split("\n"):
        match = ROW.match(line)
        lines.append(by_name[match[1]].row if match and match[1] in by_name else line)
    return "\n".join(lines)


def families_table() -> str:
    """One row per family: its methods, and what is exchanged."""
    rows = [FAMILIES_HEAD, "|---|---|---|"]
    for family, exchanged in FAMILIES.items():
        names = ", ".join(f"`{name}`" for name, entry in METHODS.items() if entry.family == family)
        rows.append(f"| {family} | {names} | {exchanged} |")
    return "\n".join(rows) + "\n"


def methods_table() -> str:
    """One row per method, family by family."""
    rows = [METHODS_HEAD, "|---" * 6 + "|"]
    for family in FAMILIES:
        for name, entry in METHODS.items():
            if entry.family != family:
                continue
            rule = f"`{load_method(name).inference}`"
            cells = (f"`{name}`", entry.source, entry.up, entry.down, entry.cost or "-", rule)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def with_table(page: str, table: str) -> str:
    """Replace a page's table that has the same header as this one."""
    head = re.escape(table.partition("\n")[0])
    return re.sub(rf"^{head}\n(?:\|.*\n)*", lambda _: table, page, count=1, flags=re.MULTILINE)


def with_methods(text: str, settings: Mapping[str, list[Setting]]) -> str:
    """methods.md with its two tables replaced."""
    return with_table(with_table(text, families_table()), methods_table())


def main() -> None:
    """Rewrite the files that differ."""
    settings = all_settings()
    for name, change in CHANGES.items():
        path = ROOT / name
        before = path.read_text("utf-8")
        after = change(before, settings)
        if after != before:
            path.write_text(after, "utf-8")
            print(f"{name} is brought up to date")


CHANGES = {"pyproject.toml": with_defaults, PAGE: with_rows, "docs/methods.md": with_methods}

if __name__ == "__main__":
    main()
