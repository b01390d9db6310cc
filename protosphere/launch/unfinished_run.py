"""What a run that did not come to its end leaves: how far it is, a report of that, the command that goes on with it."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from protosphere.core.errors import SettingError
from protosphere.record.folder import RunFolder
from protosphere.reports.report import leave_report


def stopped(name: str, folder: Path | None) -> str:
    """A sentence on a run that the signal `name` ended.

    Args:
        folder: the run's; None when it came to none.
    """
    if folder is not None and not folder.is_dir():
        return f"stopped by {name}."
    last_round = _find_last_round(folder) if folder else 0
    when = f"after round {last_round}" if last_round else "before a round was finished"
    return f"stopped by {name} {when}."


def left_of(folder: Path | None, options: Sequence[str] = (), *, elsewhere: str = "", cut: bool = False) -> list[str]:
    """Lines with the place of the report and the command that goes on, as far as there is something to go on with.

    Args:
        options: further words of the command.
        elsewhere: of a run on another machine, where its folder may lie, the number that Flower knows it by.
        cut: nobody in the run could write its report any more: it is written here.
    """

    def again(run: str) -> str:
        return f"resume: {shlex.join(['protosphere', 'run', *options, '--resume', run])}"

    if folder is None and elsewhere:
        return [again(elsewhere)]
    if folder is None:
        return []
    if folder.is_dir() and cut:
        record = RunFolder(folder)
        with suppress(SettingError):
            record.write_status(record.status() | {"state": "stopped"})
        if _find_last_round(folder):
            leave_report(folder)
    lines = []
    if (folder / "report.html").exists():
        lines.append(f"report: {folder / 'report.html'}")
    if (folder / "checkpoint.safetensors").exists():
        lines.append(again(str(folder)))
    return lines


def _find_last_round(folder: Path) -> int:
    """The last finished round."""
    try:
        return max((line["round"] for line in RunFolder(folder).lines() if not line.get("final")), default=0)
    except (SettingError, KeyError):
        return 0
