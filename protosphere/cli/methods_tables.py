"""`make settings`: writes the tables of docs/methods.md from the registry."""

import re
from pathlib import Path

from protosphere.strategies import METHODS, load_method
from protosphere.strategies.registry import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "methods.md"
FAMILIES_HEAD = "| family | methods | what is exchanged |"
METHODS_HEAD = "| method | source | what goes up | what comes down | extra work | predicts by |"


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


def main() -> None:
    """Rewrite the page."""
    page = PAGE.read_text("utf-8")
    for table in (families_table(), methods_table()):
        page = with_table(page, table)
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
