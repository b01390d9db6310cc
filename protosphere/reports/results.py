"""Reads a run's folder for its report, with checks; the run may have been interrupted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from protosphere.core import plugins
from protosphere.core.client_names import client_names
from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings, check, shown
from protosphere.record.folder import FORMAT, RunFolder
from protosphere.record.metrics_lines import MAJORITY
from protosphere.record.summary import companions, summarise
from protosphere.strategies import Run, load_method, read_settings, unpacked
from protosphere.strategies.contract import Options
from protosphere.strategies.trust import untrusted

if TYPE_CHECKING:
    import pandas as pd

Line = Mapping[str, Any]
OF_A_LINE = {"round": int, "bytes": dict, "problems": dict, "clients": dict, "time": dict}
OF_A_CLIENT = {"partition": int, "model": str, "classes": list, "class_names": list, "rows": list, "domain": str}
OF_A_SUMMARY = {
    "status": str,
    "rounds": int,
    "clients": int,
    "headline": dict,
    "floor": dict,
    "rules": dict,
    "bytes": dict,
    "failures": dict,
    "seconds": float,
    "versions": dict,
}


@dataclass(frozen=True)
class Results:
    """The results of a run.

    Attributes:
        folder: the run's folder.
        run: its settings, checked.
        settings: the settings as stored.
        roster: the clients in partition order, as in roster.json.
        lines: of metrics.jsonl, without metrics by client.
        summary: of the whole run, or of its rounds so far.
        finished: whether the run was completed.
        unknown: the method's code if it was not run; "" if it was, or for a built-in method.
    """

    folder: Path
    run: Run
    settings: Mapping[str, Any]
    roster: Sequence[Mapping[str, Any]]
    lines: Sequence[Line]
    summary: Mapping[str, Any]
    finished: bool
    unknown: str = ""

    @cached_property
    def client_names(self) -> dict[int, str]:
        """The clients' names, by partition; clients without a name are not included."""
        return client_names(self.roster)

    @property
    def name_list(self) -> list[str]:
        """The clients' names in the roster's order, "" for one without."""
        return [self.client_names.get(client["partition"], "") for client in self.roster]

    @property
    def rule(self) -> str:
        """The run's main inference rule."""
        return self.run.inference

    def each_line(self) -> Iterator[Line]:
        """The lines with metrics by client, one at a time."""
        return RunFolder(self.folder).each_line()

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row per round, with its metrics and the accuracies of the models after it."""
        # importing pandas takes half a second, which a starting server should not spend
        from protosphere.reports.frames import over_rounds

        return over_rounds(self.lines, self.rule)

    @property
    def sent(self) -> "pd.DataFrame":
        """Cumulative size of training messages by round."""
        from protosphere.reports.frames import sent_by_round

        return sent_by_round(self.lines)

    @cached_property
    def class_names(self) -> list[str]:
        """K names in label order."""
        return list(self.roster[0]["class_names"])

    @cached_property
    def at_the_end(self) -> dict[int, tuple[float, int]]:
        """Partition -> accuracy by the main rule and number of test samples, for each client in the last evaluation.

        Raises:
            SettingError: its metrics are damaged.
        """
        figures = {}
        last: Line = {"clients": {}}
        for line in self.each_line():
            if line.get("evaluation"):
                last = line
        try:
            for partition, client in last["clients"].items():
                evaluation = client.get("evaluation", {})
                accuracy = evaluation.get(self.rule, [None])[0]
                if accuracy is not None:
                    figures[int(partition)] = float(accuracy), int(evaluation["rows"][0])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise SettingError(
                f"{self.folder} has clients' metrics that cannot be read ({type(error).__name__}: {error}); "
                "restore it from a copy."
            ) from None
        return figures

    def figure(self, name: str) -> "pd.Series[float]":
        """A column of `rounds`, without missing values."""
        return self.rounds.reindex(columns=[name])[name].dropna()


def read_results(folder: Path, trust: bool = False) -> Results:
    """Read a run's folder.

    Args:
        trust: whether a method in the folder may be run; otherwise the folder is read without it.

    Raises:
        SettingError: there is no such folder, it has no finished round, or another version wrote it.
    """
    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder; give the folder of a run, or `latest`.")
    if (folder / "comparison.json").exists():
        raise SettingError(f"{folder} is a comparison; `protosphere compare --resume {folder}` writes its report.")
    if not (folder / "metrics.jsonl").exists() or not (folder / "settings.json").exists():
        raise SettingError(
            f"{folder} holds no run of which a round was finished (settings.json and metrics.jsonl must be there); "
            "give the folder that `protosphere run` names at its end."
        )
    record = RunFolder(folder)
    settings, lines, roster = record.settings(), record.lines(with_clients=False), record.roster()
    # an interrupted run has no summary
    written = record.summary() if (folder / "summary.json").exists() else None
    versions = (written or {}).get("versions")
    version = str(versions.get("protosphere", "")) if isinstance(versions, dict) else ""
    if written is not None and written.get("format", FORMAT) != FORMAT:
        _refuse(folder, f"its format is {shown(written['format'])}, and this program's {FORMAT}", version)
    if not lines or not roster:
        raise SettingError(f"{folder} holds no finished round; let the run finish one first.")
    strategy = str(unpacked(settings).get("strategy", ""))
    is_missing = plugins.is_plugin(strategy) and not plugins.is_here(strategy)
    may_not_run = not trust and bool(untrusted(folder, [("strategy", strategy)]))
    unknown = strategy if is_missing or may_not_run else ""
    try:
        run = _without_method(settings, written, lines) if unknown else read_settings(settings)
    except SettingError as error:
        _refuse(folder, f"settings.json: {str(error).rstrip('.')}", version)
    for number, line in enumerate(lines, start=1):
        _hold(folder, f"line {number} of metrics.jsonl", line, OF_A_LINE, version)
    for entry in roster:
        _hold(folder, "roster.json", entry, OF_A_CLIENT, version)
    if written is not None:
        _hold(folder, "summary.json", written, OF_A_SUMMARY, version)
        summary = dict(written)
    else:
        companion = companions(str(entry.get("companion", "")) for entry in roster)
        each_line = record.each_line()
        summary = summarise(run.settings, run.inference, settings, lines, len(roster), companion, each_line=each_line)
        summary["status"] = "not finished"
    return Results(folder, run, settings, roster, lines, summary, written is not None, unknown)


def _without_method(settings: Mapping[str, Any], written: Mapping[str, Any] | None, lines: Sequence[Line]) -> Run:
    """The run with `local` as its method: the shared settings, and as main rule that of the summary or the first one
    that the clients reported."""
    checked: Settings = check(Settings, {name: value for name, value in unpacked(settings).items() if "." not in name})
    reported = (rule for line in lines for rule in line.get("evaluation", {}).get("rules", {}) if rule != MAJORITY)
    headline = (written or {}).get("headline")
    rule = headline.get("rule") if isinstance(headline, dict) else next(reported, None)
    method = load_method("local")
    return Run(checked, replace(method, inference=str(rule or method.inference)), Options({}))


def _hold(folder: Path, where: str, content: Any, kinds: Mapping[str, type], version: str) -> None:
    if not isinstance(content, Mapping):
        _refuse(folder, f"{where} holds something else", version)
    for name, kind in kinds.items():
        if not isinstance(content.get(name), (int, float) if kind is float else kind):
            _refuse(folder, f"{where} has no `{name}` as it should", version)


def _refuse(folder: Path, why: str, version: str) -> NoReturn:
    by = f"by Protosphere {version}" if version and version != "unknown" else "by an unknown version"
    raise SettingError(
        f"{folder} was not written by this version of Protosphere but {by} ({why}); make its report with that version."
    )
