"""A comparison: methods by data sets by partitions by seeds."""

import html
import io
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
from protosphere.comparison.frame import collect, differences, for_file, means_of
from protosphere.comparison.report import REPORT, Written, write_all
from protosphere.comparison.sources import refuse_changed
from protosphere.comparison.spec import ComparisonSpec, from_table, name_rows, narrow
from protosphere.comparison.trials import Trial, expand, refuse_unmeasured, with_common_rules
from protosphere.comparison.variants import Choice, choose_variants, with_variants
from protosphere.core.errors import RunError, SettingError
from protosphere.core.home import results_root
from protosphere.core.objects import refuse_objects
from protosphere.core.settings import Scalar, shown
from protosphere.names import Value, plain, settings_of
from protosphere.names import setting as setting_name
from protosphere.own_objects import with_names
from protosphere.progress import line_printer
from protosphere.results import Report, Run
from protosphere.running import refuse_workers

if TYPE_CHECKING:
    from protosphere.reports.canvas import Plot

Entry = str | Mapping[str, Value]
ARRAYS = "arrays"
LABELS = ("label", "base", "missing")


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
    """Run every method on every data set and partition with every seed, each run in a process of its own, as
    `protosphere compare` does. All methods of a row get the same partition, initial models and client selection.

    >>> found = protosphere.compare(["local", {"strategy": "protonorm", "protonorm__gamma": 5}], ["spiral"], seeds=[0],
    ...                             clients=2, rounds=1, models="tiny_perceptron", spiral_points=50, quiet=True)
    >>> found.table()["method"].tolist()
    ['local', 'protonorm, gamma 5']

    Arrays are kept once for all runs, in a file called by their content, as `run` keeps them:

    >>> x = np.random.default_rng(0).normal(size=(120, 5))
    >>> own = protosphere.compare(["local", "fedproto"], [(x, x[:, 0] > 0)], seeds=[0], clients=2, rounds=1,
    ...                           models="tiny_perceptron", quiet=True)
    >>> own.table()["row"].tolist()
    ['arrays', 'arrays']

    Args:
        methods: names, or mappings of `strategy`, perhaps a `label`, and settings of that method, named as in `run`.
        datasets: names, ids or paths, or arrays as `run` takes them; or mappings of `dataset`, any of these, perhaps a
            `label`, which several arrays need, and settings.
        partitions: mappings of the settings that decide who holds which samples, perhaps with a `label`; none for the
            settings' own.
        seeds: different whole numbers from 0 on.
        metric: what is compared: `headline`, `selected`, `best`, `client-best`, `client-best-unweighted`, `last-5`,
            `final` or `final-unweighted`, perhaps after a rule (`classifier last-5`); `macro`; `domain NAME` or
            `domain-unweighted NAME`; the first of several makes the curves. `headline` alone is by the rules
            `classifier` and `discriminant` where the methods' own rules differ.
        baseline: the method that `Comparison.differences` holds the others against; "" for `local`, else the first.
        vary: settings of methods, each with values that stand side by side, one setting at a time.
        choose: `validation` for the one of a method's values whose accuracy on validation samples is highest, in each
            row for itself; "" to show them all.
        cross: whether the values of all settings in `vary` are combined.
        jobs: runs at a time; None for what the machine holds.
        workers: of each run, as `run` takes them.
        keep_models: keep the clients' models, for `Run.client`; they take much room.
        reports: give each run a report of its own, which `Run.report` makes at any time.
        results_dir: the results folder; "" for that in PROTOSPHERE_HOME.
        quiet: print no line for each run that ends.
        settings, more: settings of all runs, as those of `run`.

    Returns:
        The comparison, with all that was finished; of runs that failed a warning says why.

    Raises:
        SettingError, DataError, ModelError: before anything starts, what cannot work.
        RunError: every run failed.
    """
    lists = {"methods": methods, "datasets": datasets, "partitions": partitions, "seeds": seeds}
    for name, entries in lists.items():
        _refuse_single(name, entries)
    jobs = plain(jobs)
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int)):
        raise SettingError(f"jobs is {shown(jobs)}, but it is a whole number.")
    refuse_workers(workers)
    common_settings = settings_of(settings, more)
    if "dataset" in common_settings:
        raise SettingError("setting `dataset` is for `run`; a comparison takes a list: datasets=[...].")
    table = {
        "methods": [_method_entry(entry) for entry in methods],
        "datasets": [_data_entry(entry) for entry in datasets],
        "partitions": [_label_entry(entry) for entry in partitions],
        "seeds": [plain(seed) for seed in seeds],
        "metric": metric if isinstance(metric, str) else list(metric),
        "baseline": baseline,
        "vary": _values("vary", vary) | {"choose": choose, "cross": cross},
        "settings": _nameable(common_settings),
    }
    spec = from_table("comparison", table)
    spec = replace(spec, name="-".join(entry.label for entry in spec.datasets))
    spec, trials = resolve(spec)
    executor = Processes(environments(trials, jobs, workers))
    folder = ComparisonFolder.create(spec, trials, os.fspath(results_dir), jobs)
    try:
        ended, _ = carry_out(
            folder, spec, trials, executor, quiet=quiet, workers=workers, reports=reports, keep_models=keep_models
        )
    except BaseException as error:
        error.add_note(
            f'what there is of it: protosphere.Comparison("{folder.path}"); `protosphere compare --resume '
            f"{shlex.quote(str(folder.path))}` goes on"
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
    """The part of a comparison that is asked for, with rows and variants by their names, and its trials, checked.

    Args:
        narrowing: arguments of `narrow`.
        overrides: settings for all trials.
        vary: settings with their values, such as `protonorm.gamma=1,10`.
        places: where data sets lie, by their names.

    Raises:
        SettingError, DataError, ModelError: one sentence on the first thing that cannot work.
    """
    overrides = overrides or {}
    spec = name_rows(narrow(whole, **(narrowing or {})), overrides, vary)
    spec = with_variants(spec, vary, overrides, whole.methods)
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
    """Run the trials that are not finished, with a line for each that ends, and write the tables, for `compare` and for
    the command.

    Returns:
        How the trials of this session ended, and what was written.

    Raises:
        SettingError: another process runs trials in the folder, or what the trials read has changed.
        Interrupted: a signal came in.
    """
    say = line_printer(quiet)
    with folder.hold():
        finished = [trial for trial in trials if folder.run_of(trial) is not None]
        if len(finished) < len(trials):
            refuse_changed(folder.path, trials, finished)
        ended = run_trials(folder, trials, executor, say, workers=workers, reports=reports, keep_models=keep_models)
        return ended, write_all(folder, spec, trials)


class Comparison:
    """A comparison's results, read from its folder.

    Args:
        folder: its folder, its name in the results folder, or `latest`; finished or not.
        results: the results folder; "" for that in PROTOSPHERE_HOME.
        trust: whether code that lies in the folder may be run.

    Attributes:
        folder: where it lies.

    Raises:
        SettingError: there is no such comparison, or it cannot be read.
    """

    def __init__(
        self, folder: str | os.PathLike[str] = "latest", results: str | os.PathLike[str] = "", trust: bool = False
    ):
        try:
            self._comparison_folder = ComparisonFolder.find(os.fspath(folder), os.fspath(results))
        except SettingError:
            raise SettingError(
                f"no comparison is {shown(os.fspath(folder))}, by folder or by name in "
                f"{results_root(os.fspath(results))}; `protosphere runs` lists them."
            ) from None
        self.folder = self._comparison_folder.path.resolve()
        self._trust = trust
        self._comparison, self._trials = self._comparison_folder.read(trust)

    def table(self) -> pd.DataFrame:
        """A row for each method, row of the comparison and metric: mean and deviation over seeds, bytes, seconds.

        In their order, a method whose variant was chosen once: `row`, `method`, `metric`, `mean` and `std` over
        seeds (shares of 1; the standard deviation of a sample, not a number for a single seed), `seeds` that are
        finished, `payload` and `wire` (mean bytes of training, both ways), `seconds`, `gradient_steps` (a client's in
        a round); with `choose` also `chosen`, the values that a method stands there with.

        >>> list(found.table().columns[:6])
        ['row', 'method', 'metric', 'mean', 'std', 'seeds']
        """
        comparison, trials, choices = self._finished()
        table = means_of(comparison, trials)
        if choices:
            values = {(choice.row, choice.method): choice.values(choice.chosen) for choice in choices}
            table["chosen"] = [values.get(labels, "") for labels in zip(table["row"], table["method"], strict=True)]
        return table

    def differences(self) -> pd.DataFrame:
        """A row for each method but the baseline, row of the comparison and metric: the `difference` to the baseline
        over the seeds that both have, with `low` and `high`, the ends of its 95 % interval by a paired t test.

        Columns are `row`, `metric`, `method`, `baseline`, the `seeds` that both have, mean `difference` (shares of 1),
        `low` and `high` (not a number for a single seed). `p` is the test's, `significant` whether it rejects equality
        at 5 % after Holm's correction for the methods of a row and metric.

        >>> found.differences()[["method", "baseline", "seeds"]].values.tolist()
        [['protonorm, gamma 5', 'local', 1]]
        """
        comparison, trials, _ = self._finished()
        return differences(comparison, trials)

    def trials(self) -> pd.DataFrame:
        """A row for each run with every figure, as in table.csv.

        `row`, `method`, `strategy`, `seed`, `status`, accuracies as shares of 1, bytes, `seconds`, `run`.

        >>> found.trials()["status"].tolist()
        ['completed', 'completed']
        """
        frame = collect(self._comparison_folder, self._comparison, self._trials)
        # by way of text, which gives each column its type; names as they are, since no spreadsheet sees them here
        text = io.StringIO(for_file(frame).to_csv(index=False))
        # a method may be called 1, or None
        labels = dict.fromkeys(("row", "method", "strategy"), str)
        return pd.read_csv(text, dtype=labels, keep_default_na=False, na_values=[""])

    def run(self, method: str, seed: int = 0, row: str = "") -> Run:
        """The run of a trial.

        >>> found.run("local").summary["strategy"]
        'local'

        Args:
            method: its label; of one with variants that in `table`, for what was chosen, or in `trials`.
            row: "" for the first.

        Raises:
            SettingError: there is none such that is finished.
        """
        *_, choices = self._finished()
        variant_of = {(choice.row, choice.method): choice.chosen for choice in choices}
        row = row or self._comparison.rows[0].label
        label = variant_of.get((row, method)) or method
        for trial in self._trials:
            if (trial.row, trial.method, trial.seed) == (row, label, seed):
                run = self._comparison_folder.run_of(trial)
                if run is not None:
                    return Run(run, self._trust)
        methods = "; ".join(dict.fromkeys(trial.method for trial in self._trials))
        seeds = ", ".join(str(number) for number in sorted({trial.seed for trial in self._trials}))
        raise SettingError(
            f"no finished run of {method}, seed {seed}, row {row}, is in {self.folder}; its methods are {methods}; its "
            f"seeds {seeds}; its rows {'; '.join(dict.fromkeys(trial.row for trial in self._trials))}."
        )

    def _finished(self) -> tuple[ComparisonSpec, pd.DataFrame, list[Choice]]:
        """The comparison with each method once where one was chosen, its finished trials, and what was chosen."""
        return choose_variants(self._comparison, collect(self._comparison_folder, self._comparison, self._trials))

    def plot(self, name: str = "accuracy-over-rounds", row: str = "") -> "Plot":
        """A plot of a row of the comparison, as a matplotlib figure with `numbers`, `caption` and `save`, see `Plot`.

        >>> found.plot().axes[0].get_xlabel()
        'round'
        >>> tried = protosphere.compare(["local", "protonorm"], ["spiral"], seeds=[0], clients=2, rounds=1, quiet=True,
        ...                             models="tiny_perceptron", spiral_points=50, vary={"protonorm.gamma": [1, 10]})
        >>> tried.plot("accuracy-by-protonorm.gamma").numbers["protonorm.gamma"].tolist()
        ['', 1, 10]

        Args:
            name: `accuracy-over-rounds`, `accuracy-over-bytes`, `differences` (to the baseline, with intervals),
                `accuracy-by-SETTING` for each setting in `vary`, or `accuracy-of-METHOD`, a heat map of two settings
                with `cross`.
            row: "" for the first.

        Raises:
            SettingError: there is no such plot or row, or nothing of it to draw.
        """
        from protosphere.comparison.plots import makers_of

        once, trials, _ = self._finished()
        makers = makers_of(once)
        name = _find("plot", name, list(makers))
        label = _find("row", row, [entry.label for entry in once.rows])
        return makers[name](once, trials, label, name=name)

    def report(self) -> Report:
        """Write tables, pictures and `report.html` anew, and give that; a notebook shows it.

        >>> found.report().path.name
        'report.html'
        """
        write_all(self._comparison_folder, self._comparison, self._trials)
        return Report(self.folder / REPORT)

    def __repr__(self) -> str:
        return f"Comparison({self.folder.name!r})"

    def _repr_html_(self) -> str:
        table_html: str = self.table().to_html(index=False, float_format=lambda value: f"{value:.4g}", na_rep="")
        return f"{table_html}<p>{html.escape(self.folder.name)}</p>"


def _find(word: str, name: str, names: Sequence[str]) -> str:
    """One of these names, "" for the first.

    Raises:
        SettingError: it is none of them, or there are none.
    """
    if not names or name not in ("", *names):
        raise SettingError(f"{word} is {shown(name)}, but this comparison has: {'; '.join(names) or 'none'}.")
    return name or names[0]


def _values(name: str, table: Mapping[str, Sequence[Value]] | None) -> dict[str, list[Any]]:
    """Settings with lists of values, as a comparison's file would have them."""
    if table is not None and not isinstance(table, Mapping):
        raise SettingError(f"{name} is {shown(table)}, but it is a mapping of settings to lists of values.")
    for key, values in (table or {}).items():
        _refuse_single(f"{name} of {key}", values)
    return {setting_name(key): [plain(value) for value in values] for key, values in (table or {}).items()}


def _refuse_single(name: str, entries: object) -> None:
    """Refuse one of what there may be several: of a word every letter would be one."""
    if isinstance(entries, str | Mapping | os.PathLike) or not isinstance(entries, Iterable):
        raise SettingError(f"{name} is {shown(entries)}, but it is a list: give [...], of one entry, too.")


def _data_entry(item: Any) -> Any:
    """A data set as a comparison's file would have it; arrays as the path of their file.

    Raises:
        SettingError: a sequence that is neither names nor arrays. DataError: arrays that are no data set.
    """
    if hasattr(item, "__array__"):
        raise SettingError("datasets has an array by itself; give each data set as a pair, as in datasets=[(x, y)].")
    entry = dict(item) if isinstance(item, Mapping) and not is_arrays(item) else {"dataset": item}
    if is_arrays(entry.get("dataset")) and "label" not in entry:
        # what their file is called has no meaning for anybody
        entry = {"label": ARRAYS} | entry
    if "dataset" in entry:
        entry["dataset"] = data_of(entry["dataset"])
    return _entry(entry if len(entry) > 1 else entry.get("dataset", entry))


def _method_entry(entry: Any) -> Any:
    """A method as a comparison's file would have it; objects are refused, since a trial has a process of its own."""
    if not isinstance(entry, str | Mapping):
        entry = {"strategy": entry}
    if isinstance(entry, Mapping) and "strategy" in entry:
        entry = _nameable(dict(entry))
    return _label_entry(entry)


def _nameable(settings: dict[str, Any]) -> dict[str, Any]:
    named = with_names(settings)
    refuse_objects(named, "a comparison has a process for each run")
    return named


def _entry(item: Entry) -> Any:
    """As a comparison's file would have it."""
    if not isinstance(item, Mapping):
        return plain(item)
    labels = {name: value for name, value in item.items() if name in LABELS}
    return labels | settings_of(None, {name: value for name, value in item.items() if name not in LABELS})


def _label_entry(item: Entry) -> Any:
    """With a label of its settings: the same method may stand there twice, and a partition has no other name."""
    entry = _entry(item)
    if not isinstance(entry, dict) or "label" in entry:
        return entry
    kinds = ("strategy", "partition")
    parts = [str(entry[name]) for name in kinds if name in entry]
    for name, value in entry.items():
        if name not in kinds:
            parts.append(f"{name.rpartition('.')[2]} {value}")
    return entry | {"label": ", ".join(parts)}
