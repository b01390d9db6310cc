"""Comparisons in Python: methods on data sets and partitions, with several seeds."""

import os
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from protosphere.arrays import data_of, is_arrays
from protosphere.comparison.execution import Executor, Finished, Processes, environments, run_trials
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import Choice, choose_variants, collect, differences, for_file, means_of
from protosphere.comparison.report import REPORT, Written, write_all
from protosphere.comparison.sources import refuse_changed
from protosphere.comparison.spec import ComparisonSpec, from_table, narrow, with_overrides
from protosphere.comparison.trials import Trial, expand, refuse_unmeasured, with_common_rules
from protosphere.comparison.variants import with_variants
from protosphere.core.errors import RunError, SettingError
from protosphere.core.objects import refuse_objects
from protosphere.core.settings import Scalar, shown
from protosphere.names import Value, plain, settings_of
from protosphere.names import setting as setting_name
from protosphere.own_objects import with_names
from protosphere.results import Report, Run
from protosphere.running import line_printer, refuse_number

if TYPE_CHECKING:
    from protosphere.reports.canvas import Plot

Entry = str | Mapping[str, Value]
ARRAYS = "arrays"  # the label of a data set of arrays
# list of a comparison's file -> the setting that an entry without settings is
MAIN_SETTING = {"methods": "strategy", "datasets": "dataset", "partitions": "partition"}


def compare(
    methods: Sequence[Entry],
    datasets: Sequence[Any] = ("digits",),
    partitions: Sequence[Mapping[str, Value]] = (),
    seeds: Sequence[int] = (0, 1, 2),
    *,
    metric: str | Sequence[str] = "headline",
    baseline: str = "",
    vary: Mapping[str, Sequence[Value]] | None = None,
    choose: str = "",
    cross: bool = False,
    jobs: int | None = None,
    workers: int = 1,
    keep_models: bool = False,
    reports: bool = False,
    results_dir: str | os.PathLike[str] = "",
    quiet: bool = False,
    settings: Mapping[str, Value] | None = None,
    **more: Value,
) -> "Comparison":
    """Run every method on every data set and partition with every seed, as `protosphere compare` does.

    >>> found = protosphere.compare(["local", {"strategy": "protonorm", "protonorm__gamma": 5}], ["spiral"], seeds=[0],
    ...                             clients=2, rounds=1, models="tiny_perceptron", spiral_points=50, quiet=True)
    >>> found.table()["method"].tolist()
    ['local', 'protonorm, gamma 5']

    Args:
        methods: names, or mappings of `strategy`, optionally `label`, and settings of this method, named as in `run`.
        datasets: names, ids, paths or arrays as in `run`; or mappings of `dataset`, optionally `label`, and settings.
        partitions: mappings of the settings that divide the samples, optionally with `label`.
        seeds: different whole numbers from 0.
        metric: one or several metrics, such as `headline`, `final`, `classifier last-5`, `macro` or `domain NAME`;
            docs/compare.md lists them. The first is drawn as curves.
        baseline: the method that the others are compared with; "" for `local` if present, else the first.
        vary: settings of methods with lists of values, of which one varies at a time.
        choose: `validation` to choose one value for each method and row by accuracy on validation samples; "" to show
            all.
        cross: whether the values of all settings in `vary` are combined.
        jobs: number of runs at a time; None for as many as fit on the machine.
        workers: processes of each run, as in `run`.
        keep_models: keep the clients' models for `Run.client`; they need much disk space.
        reports: write a report of each run.
        results_dir: the results folder; "" for that in PROTOSPHERE_HOME.
        quiet: print no lines.
        settings, more: settings of all runs, as in `run`.

    Returns:
        The comparison; a warning names each run that failed.

    Raises:
        SettingError, DataError, ModelError: something cannot work; nothing was started.
        RunError: every run failed.
    """
    lists = {"methods": methods, "datasets": datasets, "partitions": partitions, "seeds": seeds}
    for name, entries in lists.items():
        _refuse_single(name, entries)
    jobs = plain(jobs)
    refuse_number("workers", workers)
    if jobs is not None:
        refuse_number("jobs", jobs)
    common_settings = settings_of(settings, more)
    if "dataset" in common_settings:
        raise SettingError("setting `dataset` is for `run`; a comparison takes a list: datasets=[...].")
    table = {
        "methods": [_table_of("methods", item) for item in methods],
        "datasets": [_table_of("datasets", item) for item in datasets],
        "partitions": [_table_of("partitions", item) for item in partitions],
        "seeds": [plain(seed) for seed in seeds],
        "metric": metric if isinstance(metric, str) else list(metric),
        "baseline": baseline,
        "vary": _values_of(vary) | {"choose": choose, "cross": cross},
        "settings": _without_objects(common_settings),
    }
    spec = from_table("comparison", table)
    spec, trials = resolve(replace(spec, name="-".join(entry.label for entry in spec.datasets)))
    executor = Processes(environments(trials, jobs, workers))
    folder = ComparisonFolder.create(spec, trials, os.fspath(results_dir), jobs)
    try:
        ended, _ = carry_out(
            folder, spec, trials, executor, quiet=quiet, workers=workers, reports=reports, keep_models=keep_models
        )
    except BaseException as error:
        error.add_note(
            f'finished trials are in protosphere.Comparison("{folder.path}"); `protosphere compare --resume '
            f"{shlex.quote(str(folder.path))}` runs the others"
        )
        raise
    failed = [f"{finished.trial.title}: {finished.reason}" for finished in ended if finished.reason]
    if len(failed) == len(trials):
        raise RunError(f"every run of {folder.path} failed, the first with: {failed[0]}")
    for message in failed:
        warnings.warn(message, stacklevel=2)
    return Comparison(folder.path)


def resolve(
    whole: ComparisonSpec,
    *,
    narrowing: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Scalar] | None = None,
    vary: Sequence[str] = (),
    places: Mapping[str, str] | None = None,
) -> tuple[ComparisonSpec, list[Trial]]:
    """A part of a comparison, with variants as methods, and its trials, checked.

    Args:
        narrowing: arguments of `narrow`.
        overrides: settings of all trials.
        vary: settings with their values, such as `protonorm.gamma=1,10`.
        places: paths of data sets, by their names.

    Raises:
        SettingError, DataError, ModelError: one sentence on the first thing that cannot work.
    """
    overrides = overrides or {}
    spec = with_overrides(narrow(whole, **(narrowing or {})), overrides, vary)
    spec = with_variants(spec, vary, overrides, is_part=spec.methods != whole.methods)
    trials = expand(spec, overrides, places or {}, whole.datasets)
    refuse_unmeasured(spec, trials)
    return with_common_rules(spec, trials), trials


def carry_out(
    folder: ComparisonFolder,
    spec: ComparisonSpec,
    trials: Sequence[Trial],
    executor: Executor,
    *,
    quiet: bool = False,
    workers: int = 1,
    reports: bool = False,
    keep_models: bool = False,
) -> tuple[list[Finished], Written]:
    """Run the trials that are not finished and write all tables.

    Raises:
        SettingError: another process runs trials in the folder, or what finished trials have read has changed.
        Interrupted: a signal arrived.
    """
    with folder.hold():
        finished = [trial for trial in trials if folder.run_of(trial) is not None]
        if len(finished) < len(trials):
            refuse_changed(folder.path, trials, finished)
        say = line_printer(quiet)
        ended = run_trials(folder, trials, executor, say, workers=workers, reports=reports, keep_models=keep_models)
        return ended, write_all(folder, spec, trials)


class Comparison:
    """The results of a comparison, finished or not.

    Args:
        folder: its folder, its name in the results folder, or `latest`.
        results: the results folder; "" for that in PROTOSPHERE_HOME.
        trust: whether code that lies in the folder may be run.

    Attributes:
        folder: its folder.

    Raises:
        SettingError: there is no such comparison, or it cannot be read.
    """

    def __init__(
        self, folder: str | os.PathLike[str] = "latest", results: str | os.PathLike[str] = "", trust: bool = False
    ):
        self._comparison_folder = ComparisonFolder.find(os.fspath(folder), os.fspath(results))
        self.folder = self._comparison_folder.path.resolve()
        self._trust = trust
        self._spec, self._trials = self._comparison_folder.read(trust)

    def table(self) -> pd.DataFrame:
        """A row for each row of the comparison, method and metric, in their order.

        Columns: `row`, `method`, `metric`, `mean` and `std` over seeds (shares of 1; sample standard deviation, NaN for
        a single seed), the number of finished `seeds`, `payload` and `wire` (mean bytes of training, both directions),
        `seconds`, `gradient_steps` (per client and round); with `choose` also `chosen`, the chosen values of a method.

        >>> list(found.table().columns[:6])
        ['row', 'method', 'metric', 'mean', 'std', 'seeds']
        """
        spec, trials, choices = self._finished()
        table = means_of(spec, trials)
        if choices:
            values = {(choice.row, choice.method): choice.values for choice in choices}
            table["chosen"] = [values.get(labels, "") for labels in zip(table["row"], table["method"], strict=True)]
        return table

    def differences(self) -> pd.DataFrame:
        """A row for each row of the comparison, metric and method but the baseline: its difference to the baseline,
        paired by seed.

        Columns: `row`, `metric`, `method`, `baseline`, common `seeds`, mean `difference` (shares of 1), `low` and
        `high` (95 % t interval; NaN for a single seed), `p` of the paired t-test, and `significant` at 5 % after Holm's
        correction for the methods of a row and metric.

        >>> found.differences()[["method", "baseline", "seeds"]].values.tolist()
        [['protonorm, gamma 5', 'local', 1]]
        """
        spec, trials, _ = self._finished()
        return differences(spec, trials)

    def trials(self) -> pd.DataFrame:
        """A row for each trial with all its metrics, as in table.csv.

        >>> found.trials()["status"].tolist()
        ['completed', 'completed']
        """
        table = for_file(collect(self._comparison_folder, self._spec, self._trials)).infer_objects()
        # a column without any value is one of numbers
        return table.astype({name: float for name in table if table[name].isna().all()})

    def run(self, method: str, seed: int = 0, row: str = "") -> Run:
        """The run of a trial.

        >>> found.run("local").summary["strategy"]
        'local'

        Args:
            method: its label in `table`, or that of a variant in `trials`.
            row: "" for the first.

        Raises:
            SettingError: there is no such run that is finished.
        """
        *_, choices = self._finished()
        variants = {(choice.row, choice.method): choice.chosen for choice in choices}
        row = row or self._spec.rows[0].label
        label = variants.get((row, method)) or method
        for trial in self._trials:
            if (trial.row, trial.method, trial.seed) == (row, label, seed):
                run = self._comparison_folder.run_of(trial)
                if run is not None:
                    return Run(run, self._trust)
        titles = dict.fromkeys(f"{trial.row} | {trial.method}" for trial in self._trials)
        raise SettingError(
            f"no finished run of {method}, seed {seed}, row {row}, is in {self.folder}; it has the trials "
            f"{'; '.join(titles)}."
        )

    def _finished(self) -> tuple[ComparisonSpec, pd.DataFrame, list[Choice]]:
        return choose_variants(self._spec, collect(self._comparison_folder, self._spec, self._trials))

    def plot(self, name: str = "accuracy-over-rounds", row: str = "") -> "Plot":
        """A plot of a row of the comparison, as a matplotlib figure with `numbers`, `caption` and `save`, see `Plot`.

        >>> found.plot().axes[0].get_xlabel()
        'round'

        Args:
            name: `accuracy-over-rounds`, `accuracy-over-bytes`, `differences` (to the baseline, with intervals),
                `accuracy-by-SETTING` for each setting in `vary`, or `accuracy-of-METHOD`, a heat map of two settings
                with `cross`.
            row: "" for the first.

        Raises:
            SettingError: there is no such plot or row, or it has no data.
        """
        from protosphere.comparison.plots import makers_of

        spec, trials, _ = self._finished()
        makers = makers_of(spec)
        rows = [entry.label for entry in spec.rows]
        for word, value, allowed in (("plot", name, [*makers]), ("row", row or rows[0], rows)):
            if value not in allowed:
                raise SettingError(f"{word} is {shown(value)}, but this comparison has: {'; '.join(allowed)}.")
        return makers[name](spec, trials, row or rows[0], name=name)

    def report(self) -> Report:
        """Write tables, pictures and `report.html` anew; a notebook shows the report.

        >>> found.report().path.name
        'report.html'
        """
        write_all(self._comparison_folder, self._spec, self._trials)
        return Report(self.folder / REPORT)

    def __repr__(self) -> str:
        return f"Comparison({self.folder.name!r})"


def _values_of(vary: Mapping[str, Sequence[Value]] | None) -> dict[str, list[Any]]:
    if vary is not None and not isinstance(vary, Mapping):
        raise SettingError(f"vary is {shown(vary)}, but it is a mapping of settings to lists of values.")
    values_by_setting = {}
    for name, values in (vary or {}).items():
        _refuse_single(f"vary of {name}", values)
        values_by_setting[setting_name(name)] = [plain(value) for value in values]
    return values_by_setting


def _refuse_single(name: str, entries: object) -> None:
    """Refuse what is no list, such as a string, whose letters would be the entries."""
    if isinstance(entries, str | Mapping | os.PathLike) or not isinstance(entries, Iterable):
        raise SettingError(f"{name} is {shown(entries)}, but it is a list: give [...], of one entry, too.")


def _table_of(key: str, item: Any) -> dict[str, Any]:
    """An entry as a comparison's file has it; arrays become the path of their file.

    Raises:
        SettingError: an entry is a single array or an object. DataError: arrays are no data set.
    """
    if hasattr(item, "__array__"):
        raise SettingError(f"{key} has an array by itself; give each data set as a pair, as in datasets=[(x, y)].")
    table = dict(item) if isinstance(item, Mapping) and not is_arrays(item) else {MAIN_SETTING[key]: item}
    about = {name: table.pop(name) for name in ("label", "base", "missing") if name in table}
    if key == "datasets" and "dataset" in table:
        if is_arrays(table["dataset"]):
            about.setdefault("label", ARRAYS)
        table["dataset"] = data_of(table["dataset"])
    settings = settings_of(None, table)
    if key == "methods":
        settings = _without_objects(settings)
    if key != "datasets" and "label" not in about:
        # the same method may be there twice, and a partition has no other name
        parts = [str(settings[MAIN_SETTING[key]])] if MAIN_SETTING[key] in settings else []
        for name, value in settings.items():
            if name != MAIN_SETTING[key]:
                parts.append(f"{name.rpartition('.')[2]} {value}")
        about["label"] = ", ".join(parts)
    return about | settings


def _without_objects(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without Python objects, which the processes of trials do not have."""
    named = with_names(settings)
    refuse_objects(named, "a comparison has a process for each run")
    return named
