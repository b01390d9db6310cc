"""Which columns of a table hold inputs, labels, groups and sites."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protosphere.core.errors import DataError

IMAGE_COLUMNS = ("image", "img")
TEXT_COLUMNS = ("text", "sentence", "content", "document", "note", "input")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "character")


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns. `text`, `label`: "" for the usual names; `group`, `partition`: "" for none.

    Rows that share a value in the column `group` (a patient's id) never come to two sides of a split; those that share
    one in `partition` (a hospital) come to one client.
    """

    text: str = ""
    label: str = ""
    group: str = ""
    partition: str = ""

    @property
    def named(self) -> dict[str, str]:
        """Setting to column, for those that are named."""
        pairs = {
            "text-column": self.text,
            "label-column": self.label,
            "group-column": self.group,
            "partition-column": self.partition,
        }
        return {setting: column for setting, column in pairs.items() if column}

    @property
    def extra(self) -> list[str]:
        """The columns of groups and sites that are named."""
        return [column for column in (self.group, self.partition) if column]


USUAL = Columns()


def refuse_absent(name: str, present: Iterable[str], columns: Columns) -> None:
    """Refuse columns of settings that a table lacks, or that are one and the same.

    Raises:
        DataError: it names the first.
    """
    present = list(present)
    for setting, column in columns.named.items():
        if column not in present:
            raise DataError(
                f"{setting} is {column!r}, but {name!r} has no such column; {list_columns(present)}: name one of them."
            )
    column_names = list(columns.named.values())
    if len(set(column_names)) < len(column_names):
        settings = ", ".join(f"{setting} = {column!r}" for setting, column in columns.named.items())
        raise DataError(f"{settings} name one column of {name!r} twice: name a column for each.")


def find_label(name: str, present: Iterable[str], taken: Iterable[str]) -> str:
    """The first column of a usual name of labels that is not `taken`.

    Raises:
        DataError: none has such a name; it names all that are present.
    """
    present, taken = list(present), list(taken)
    for column in LABEL_COLUMNS:
        if column in present and column not in taken:
            return column
    raise DataError(
        f"{name!r} has no label column; {list_columns(present)}: name the one with the classes {LABEL_COLUMNS[0]}, or "
        "set label-column."
    )


def list_columns(present: Iterable[str]) -> str:
    """The columns of a table, for a sentence."""
    names = ", ".join(present)
    return f"its columns are {names}" if names else "it has no columns"
