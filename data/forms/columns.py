"""The columns of a table that hold inputs, labels, groups and sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protosphere.core.errors import DataError

IMAGE_COLUMNS = ("image", "img")
TEXT_COLUMNS = ("text", "sentence", "content", "document", "note", "input")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "character")


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns. `text`, `label`: "" for the usual names; `group`, `partition`: "" for none.

    Samples with the same value in the column `group` (a patient's id) stay on one side of every split; those with the
    same value in `partition` (a hospital) go to one client.
    """

    text: str = ""
    label: str = ""
    group: str = ""
    partition: str = ""

    @property
    def named(self) -> dict[str, str]:
        """The columns that settings name, by setting."""
        pairs = {
            "text-column": self.text,
            "label-column": self.label,
            "group-column": self.group,
            "partition-column": self.partition,
        }
        return {setting: column for setting, column in pairs.items() if column}

    @property
    def extra(self) -> list[str]:
        """The named columns of groups and sites."""
        return [column for column in (self.group, self.partition) if column]

    def find_label(self, name: str, present: Sequence[str], inputs: str = "") -> str:
        """The label column of a table with the columns `present`; it differs from `inputs`."""
        has = f"its columns are {', '.join(present) or 'none'}"
        names = self.named
        for setting, column in names.items():
            if column not in present:
                raise DataError(f"{setting} is {column!r}, but {name!r} has no such column; {has}: name one of them.")
        if len(set(names.values())) < len(names):
            settings = ", ".join(f"{setting} = {column!r}" for setting, column in names.items())
            raise DataError(f"{settings} name one column of {name!r} twice: name a column for each.")
        if self.label:
            return self.label
        for column in LABEL_COLUMNS:
            if column in present and column not in (*self.extra, inputs):
                return column
        raise DataError(
            f"{name!r} has no label column; {has}: rename the one with the classes to {LABEL_COLUMNS[0]!r}, or set "
            "label-column."
        )


USUAL = Columns()
