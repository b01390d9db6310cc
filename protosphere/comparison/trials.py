"""The trials of a comparison: one run for each row, method and seed, with all settings resolved."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protosphere.comparison.spec import (
    ENSEMBLE,
    INDIFFERENT,
    NOT_HERE,
    OF_A_PARTITION,
    ComparisonSpec,
    Entry,
    Metric,
    Row,
)
from protosphere.core import plugins
from protosphere.core.errors import DataError, ModelError, SettingError
from protosphere.core.home import home
from protosphere.core.paths import is_path, listed
from protosphere.core.settings import Scalar, nearest, plain_name, refuse_unknown, shown
from protosphere.core.text import GREEK
from protosphere.data.decode import open_data
from protosphere.data.domains import short_name
from protosphere.data.forms.sources import HUB
from protosphere.data.spec import DataSpec, data_spec
from protosphere.plans.assignments import RunConfig
from protosphere.plans.fitting_defaults import fitted
from protosphere.plans.run_config import DEFAULT_CLIENTS, laid_over, plan, read_preset, with_place
from protosphere.strategies import known_settings, load_method, read_settings

# each trial's run sets these
PLACES = ("results-dir", "resume")
COMMON_RULES = ("classifier", "discriminant")  # that all methods with private models have
LONGEST = 60  # bytes of a label in the name of a trial's folder


@dataclass(frozen=True)
class Trial:
    """One run of a comparison.

    Attributes:
        name: name of its folder.
        row, method: labels.
        settings: all settings of the run but `PLACES`.
    """

    name: str
    row: str
    method: str
    seed: int
    settings: RunConfig

    @property
    def clients(self) -> int:
        """Number of simulated clients."""
        return int(self.settings["clients"])

    @property
    def title(self) -> str:
        """A name for people."""
        return f"{self.row} | {self.method} | seed {self.seed}"


def expand(
    spec: ComparisonSpec, overrides: Mapping[str, Scalar], data: Mapping[str, str], known: Sequence[Entry] = ()
) -> list[Trial]:
    """All trials, checked as `protosphere run` checks a run. Decodes the data into the cache.

    Args:
        overrides: the settings of `-c`.
        data: paths of data sets, by their names in the comparison.
        known: data sets of the whole comparison, which `data` may name.
    """
    _refuse_overrides(spec, overrides)
    planned: list[tuple[Row, Entry, RunConfig]] = []
    for row in spec.rows:
        for method in spec.methods:
            planned.append((row, method, settings_of(spec, row, method, overrides)))
    problems: dict[tuple[str, ...], str] = {}
    _refuse_unknown_data(data, [str(settings["dataset"]) for _, _, settings in planned], known)
    for row, _, settings in planned:
        settings["dataset"] = _with_paths(str(settings["dataset"]), data)
        run = read_settings(settings).settings
        data_of_row = data_spec(run, run.clients)
        # rows that differ in their partition alone have one data set
        key = data_of_row.dataset, str(data_of_row.image_size), str(data_of_row.columns), data_of_row.classes
        if key not in problems:
            problems[key] = _problem_of_data(row.dataset, data_of_row)
    if any(problems.values()):
        sentences = "; ".join(dict.fromkeys(filter(None, problems.values())))
        raise SettingError(f"{sentences}. Nothing was started; --datasets runs the rows whose data are here.")
    trials: list[Trial] = []
    for row, method, settings in planned:
        given_names = set().union(*_layers(spec, row, method, overrides))
        if "clients" not in given_names:
            # the data may imply the number
            settings["clients"] = 0
        settings = fitted(settings, given_names)[0]
        settings["clients"] = settings["clients"] or DEFAULT_CLIENTS
        for seed in spec.seeds:
            name = "-".join(_slug(part) for part in (row.label, method.label, f"seed{seed}"))
            trial = _checked_trial(Trial(name, row.label, method.label, seed, settings | {"seed": seed}))
            if spec.choose and method.varied_of and not float(trial.settings["validation-share"]) > 0:
                raise SettingError(
                    f"{trial.title}: a variant is chosen on validation samples, and setting `validation-share` is 0; "
                    "give it a share, such as 0.1."
                )
            trials.append(trial)
    names = [trial.name for trial in trials]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"two trials would have the folder {name}: give rows and methods labels that differ.")
    return trials


def refuse_unmeasured(spec: ComparisonSpec, trials: Sequence[Trial]) -> None:
    """Refuse metrics of which no trial will have any."""
    rules = {rule for trial in trials for rule in read_settings(trial.settings).rules}
    if any(int(trial.settings["ensemble-every"]) for trial in trials):
        rules.add(ENSEMBLE)
    if not any(metric.of_domain or not metric.rule or metric.rule in rules for metric in spec.metrics):
        metric = spec.metrics[0]
        need = "`ensemble-every` above 0" if metric.rule == ENSEMBLE else "a method with that rule, or an `encoder`"
        raise SettingError(f"no trial of this comparison has the metric {shown(str(metric))}, which needs {need}.")


def with_common_rules(spec: ComparisonSpec, trials: Sequence[Trial]) -> ComparisonSpec:
    """The comparison with metrics of the rules that all methods have, if it names no metric and the methods' own rules
    differ. It is unchanged if the rule itself varies, or if it has a paper's values, which are by methods' own
    rules."""
    runs = [read_settings(trial.settings) for trial in trials]
    if any("inference" in method.varied for method in spec.methods):
        return spec
    if spec.metrics != (Metric(),) or spec.paper or len({run.inference for run in runs}) == 1:
        return spec
    rules = [rule for rule in COMMON_RULES if all(rule in run.rules for run in runs)]
    return replace(spec, metrics=tuple(Metric(rule) for rule in rules) or spec.metrics)


def settings_of(
    spec: ComparisonSpec, row: Row, method: Entry, overrides: Mapping[str, Scalar] | None = None
) -> RunConfig:
    """All settings of a method in a row, unchecked.

    Settings of other methods are left out, but not those that stand at the method itself: these are a mistake.
    """
    strategy = plugins.absolute(str(method.settings["strategy"]))
    prefixes = load_method(strategy).settings

    def without_foreign(settings: Mapping[str, Scalar]) -> RunConfig:
        return {n: v for n, v in settings.items() if "." not in n or n.rpartition(".")[0] in prefixes}

    merged: RunConfig = dict(known_settings(strategy))
    *of_all, of_method, above = _layers(spec, row, method, overrides or {})
    for layer in (*map(without_foreign, of_all), of_method, without_foreign(above)):
        merged = laid_over(merged, layer)
    merged["strategy"] = strategy
    merged["clients"] = merged["clients"] or DEFAULT_CLIENTS
    return merged


def _layers(
    spec: ComparisonSpec, row: Row, method: Entry, overrides: Mapping[str, Scalar]
) -> tuple[Mapping[str, Scalar], ...]:
    """The settings over the defaults; later ones override earlier ones."""
    base = read_preset(row.dataset.base) if row.dataset.base else {}
    partition = row.partition.settings if row.partition else {}
    of_method = row.dataset.methods.get(method.varied_of or method.label, {}) | method.settings
    return base, spec.settings, row.dataset.settings, partition, of_method, overrides


def _refuse_overrides(spec: ComparisonSpec, overrides: Mapping[str, Scalar]) -> None:
    """Refuse settings of `-c` that are unknown or unread, or that the label of a method, partition or one of several
    data sets may name."""
    defaults = known_settings()
    prefixes: set[str] = set()
    for method in spec.methods:
        defaults |= known_settings(method.settings["strategy"])
        prefixes |= load_method(str(method.settings["strategy"])).settings.keys()
    refuse_unknown(overrides, defaults)
    options = NOT_HERE | {"seed": "--seeds", "strategy": "--methods"}
    entries = [*spec.methods, *spec.partitions]
    # what labels may name: a data set may come from a preset, and a partition leave a setting to its default
    in_labels = set(OF_A_PARTITION) if spec.partitions else set()
    if len(spec.datasets) > 1:
        entries += spec.datasets
        in_labels.add("dataset")
    in_labels = in_labels.union(*(entry.settings for entry in entries)) - INDIFFERENT
    for name in overrides:
        if name in options:
            raise SettingError(f"setting `{name}` differs by run or machine; use {options[name]} for it.")
        if "." in name and name.rpartition(".")[0] not in prefixes:
            raise SettingError(f"setting `{name}` is read by no method of this comparison; take it out.")
        if name in in_labels:
            labels = ", ".join(entry.label for entry in entries)
            raise SettingError(
                f"setting `{name}` may be what a label of the comparison says ({labels}); select by --methods, "
                "--datasets or --partitions, say by --data where data lie, or change the file."
            )


def _with_paths(dataset: str, data: Mapping[str, str]) -> str:
    """A data set, or each of its domains, as the path that `data` has for it."""
    items = [dataset] if dataset in data or short_name(dataset) in data else listed(dataset)
    paths = []
    for item in items:
        path = data.get(item) or data.get(short_name(item))
        if path is None:
            paths.append(with_place(item))
            continue
        path = os.path.abspath(Path(path).expanduser())
        # a folder of domains remains one
        paths.append(f"{path}/*" if item.endswith("/*") and not path.endswith("/*") else path)
    return ",".join(paths)


def _refuse_unknown_data(data: Mapping[str, str], datasets: Sequence[str], known: Sequence[Entry]) -> None:
    items = {item for dataset in datasets for item in (dataset, *listed(dataset))}
    for entry in known:
        settings = (read_preset(entry.base) if entry.base else {}) | entry.settings
        items |= set(listed(str(settings.get("dataset", ""))))
    names = sorted({short_name(item) for item in items if item})
    for name in data:
        if name not in items and name not in names:
            raise SettingError(
                f"--data has {shown(name)}{nearest(name, names)}, but the comparison's data sets are "
                f"{', '.join(names)}."
            )


def _problem_of_data(entry: Entry, data: DataSpec) -> str:
    """Why a data set is not available, and how to get it; "" if it is."""
    try:
        open_data(data, home() / "cache")
    except DataError as error:
        items = listed(data.dataset)
        gone = [item for item in items if item in HUB or (is_path(item) and not Path(item).expanduser().exists())]
        usual = f"put it in a folder and say --data {short_name([*gone, *items][0])}=FOLDER"
        remedy = (entry.missing or usual).rstrip(".")
        return f"the data set of {entry.label} is not available: {str(error).rstrip('.')}; {remedy}"
    return ""


def _checked_trial(trial: Trial) -> Trial:
    """The trial with the settings that `protosphere run` makes of its own: absolute paths, floats for integers."""
    try:
        planned = plan(more={name: value for name, value in trial.settings.items() if name not in PLACES})
    except (SettingError, DataError, ModelError) as error:
        raise type(error)(f"{trial.title}: {error}") from None
    return replace(trial, settings={name: value for name, value in planned.run_config.items() if name not in PLACES})


def _slug(text: str) -> str:
    """A label as part of a folder's name, with a digest if it is long."""
    for letter, name in GREEK.items():
        text = text.replace(letter, name)
    slug = plain_name(text.lower(), len(text.encode()) + LONGEST, sign=".")
    if len(slug.encode()) <= LONGEST:
        return slug
    digest = hashlib.sha256(slug.encode()).hexdigest()[:8]
    return f"{plain_name(slug, LONGEST - len(digest) - 1, sign='.')}-{digest}"
