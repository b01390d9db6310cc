"""From a comparison to its trials: a run each, of one method in one row with one seed, with every setting resolved."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from protosphere.comparison.spec import COMMON_RULES, ENSEMBLE, NOT_HERE, ComparisonSpec, Entry, Metric, Row
from protosphere.core import plugins
from protosphere.core.errors import DataError, ModelError, SettingError
from protosphere.core.home import home
from protosphere.core.paths import is_path, listed
from protosphere.core.settings import Scalar, nearest, plain_name, refuse_unknown, shown
from protosphere.data.decode import open_data
from protosphere.data.domains import short_name
from protosphere.data.forms.sources import HUB
from protosphere.data.spec import data_spec
from protosphere.plans.assignments import RunConfig
from protosphere.plans.run_config import (
    DEFAULT_CLIENTS,
    fitted,
    laid_over,
    plan,
    read_preset,
    with_place,
)
from protosphere.strategies import known_settings, load_method, read_settings

# a trial's run says these itself
PLACES = ("results-dir", "resume")
LONGEST = 60  # bytes of a label in the name of a trial's folder


@dataclass(frozen=True)
class Trial:
    """One run of a comparison.

    Attributes:
        name: of its folder.
        row, method: labels.
        settings: all of the run's, by name, but for where its results go.
    """

    name: str
    row: str
    method: str
    seed: int
    settings: RunConfig

    @property
    def clients(self) -> int:
        """How many are simulated."""
        return int(self.settings["clients"])

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.row} | {self.method} | seed {self.seed}"


def expand(
    comparison: ComparisonSpec,
    overrides: Mapping[str, Scalar],
    data: Mapping[str, str],
    known: Sequence[Entry] = (),
) -> list[Trial]:
    """Every trial, checked as `protosphere run` checks a run: none fails for want of data or by a wrong setting.

    Decodes the data into the cache.

    Args:
        overrides: what `-c` says, for all trials.
        data: where data sets lie, by the name that the comparison has for them.
        known: data sets that `data` may name though this part of the comparison leaves them out.

    Raises:
        SettingError, DataError, ModelError: one sentence on the first thing that cannot work.
    """
    _refuse_overrides(comparison, overrides)
    data = {name: os.path.abspath(Path(place).expanduser()) for name, place in data.items()}
    planned: list[tuple[Row, Entry, RunConfig]] = []
    items: set[str] = set()
    for row in comparison.rows:
        for method in comparison.methods:
            settings = settings_of(comparison, row, method, overrides)
            domains, dataset = _placed(str(settings["dataset"]), data)
            items |= set(domains)
            planned.append((row, method, settings | {"dataset": dataset}))
    for entry in known:
        settings = (read_preset(entry.base) if entry.base else {}) | entry.settings
        dataset = str(settings.get("dataset", ""))
        items |= {dataset, *listed(dataset)}
    _refuse_idle(data, items)
    _refuse_missing([(row, settings) for row, _, settings in planned])
    trial_by_folder: dict[str, Trial] = {}
    for row, method, settings in planned:
        given_names = set().union(*_layers(comparison, row, method, overrides))
        if "clients" not in given_names:
            # where nobody says how many, the data may
            settings["clients"] = 0
        settings = fitted(settings, given_names)[0]
        settings["clients"] = settings["clients"] or DEFAULT_CLIENTS
        for seed in comparison.seeds:
            name = "-".join(_slug(part) for part in (row.label, method.label, f"seed{seed}"))
            if name in trial_by_folder:
                raise SettingError(
                    f"two runs would have the folder {name}: give rows and methods labels that differ more."
                )
            trial = _check_trial(Trial(name, row.label, method.label, seed, settings | {"seed": seed}))
            if comparison.choose and method.varied_of and not float(trial.settings["validation-share"]) > 0:
                raise SettingError(
                    f"{trial.title}: a variant is chosen on validation samples, and setting `validation-share` is 0; "
                    "give it a share, such as 0.1."
                )
            trial_by_folder[name] = trial
    return list(trial_by_folder.values())


def refuse_unmeasured(comparison: ComparisonSpec, trials: Sequence[Trial]) -> None:
    """Refuse metrics of which no trial would have any, before hours have gone into them.

    Raises:
        SettingError: it names the first metric, and what it needs.
    """
    rules = {rule for trial in trials for rule in read_settings(trial.settings).rules}
    if any(int(trial.settings["ensemble-every"]) for trial in trials):
        rules.add(ENSEMBLE)
    for metric in comparison.metrics:
        if metric.of_domain or not metric.rule or metric.rule in rules:
            return
    metric = comparison.metrics[0]
    need = "`ensemble-every` above 0" if metric.rule == ENSEMBLE else "a method with that rule, or an `encoder`"
    raise SettingError(f"no trial of this comparison has the metric {shown(str(metric))}, which needs {need}.")


def with_common_rules(comparison: ComparisonSpec, trials: Sequence[Trial]) -> ComparisonSpec:
    """The comparison by the rules that all its methods have, where it names no metric and their own rules differ: an
    accuracy by one rule less an accuracy by another would compare rules, and not methods. What a paper prints is of its
    own rules."""
    runs = [read_settings(trial.settings) for trial in trials]
    # whoever varies the rule compares rules
    if any("inference" in method.varied for method in comparison.methods):
        return comparison
    if comparison.metrics != (Metric(),) or comparison.paper or len({run.inference for run in runs}) == 1:
        return comparison
    rules = [rule for rule in COMMON_RULES if all(rule in run.rules for run in runs)]
    return replace(comparison, metrics=tuple(Metric(rule) for rule in rules) or comparison.metrics)


def settings_of(
    comparison: ComparisonSpec, row: Row, method: Entry, overrides: Mapping[str, Scalar] | None = None
) -> RunConfig:
    """Every setting of a method in a row, as the comparison says it; nothing is checked, shrunk or looked for.

    Settings of other methods fall away, but for those that are made for the method itself, which are a mistake there.
    """
    strategy = plugins.absolute(str(method.settings["strategy"]))
    prefixes = load_method(strategy).settings

    def drop_foreign(settings: Mapping[str, Scalar]) -> RunConfig:
        return {n: v for n, v in settings.items() if "." not in n or n.rpartition(".")[0] in prefixes}

    merged: RunConfig = dict(known_settings(strategy))
    *of_all, of_method, above = _layers(comparison, row, method, overrides or {})
    for layer in (*map(drop_foreign, of_all), of_method, drop_foreign(above)):
        merged = laid_over(merged, layer)
    merged["strategy"] = strategy
    merged["clients"] = merged["clients"] or DEFAULT_CLIENTS
    return merged


def _layers(
    comparison: ComparisonSpec, row: Row, method: Entry, overrides: Mapping[str, Scalar]
) -> tuple[Mapping[str, Scalar], ...]:
    """What is laid over the defaults, one over the other: the data set's preset, the comparison's common settings, the
    data set's, the partition's, the method's over the data set's for this method, `overrides`."""
    base = read_preset(row.dataset.base) if row.dataset.base else {}
    partition = row.partition.settings if row.partition else {}
    # whichever variant of it this is
    label = method.varied_of or method.label
    of_method = row.dataset.methods.get(label, {}) | method.settings
    return base, comparison.settings, row.dataset.settings, partition, of_method, overrides


def toml(settings: Mapping[str, Scalar]) -> str:
    """Settings as a file that `protosphere run -c` reads."""
    return "".join(
        # JSON writes strings, numbers and booleans as TOML reads them
        f"{json.dumps(name)} = {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in settings.items()
    )


def not_default(settings: Mapping[str, Scalar]) -> RunConfig:
    """The settings that differ from their defaults."""
    defaults = known_settings(settings.get("strategy", ""))
    return {name: value for name, value in settings.items() if defaults.get(name) != value}


def _refuse_overrides(comparison: ComparisonSpec, overrides: Mapping[str, Scalar]) -> None:
    defaults = known_settings()
    prefixes: set[str] = set()
    for method in comparison.methods:
        defaults |= known_settings(method.settings["strategy"])
        prefixes |= load_method(str(method.settings["strategy"])).settings.keys()
    refuse_unknown(overrides, defaults)
    for name, remedy in (NOT_HERE | {"seed": "--seeds", "strategy": "--methods"}).items():
        if name in overrides:
            raise SettingError(f"setting `{name}` differs by run or machine; use {remedy} for it.")
    for name in overrides:
        # it would do nothing, unnoticed
        if "." in name and name.rpartition(".")[0] not in prefixes:
            raise SettingError(f"setting `{name}` is read by no method of this comparison; take it out.")
    in_rows = {"dataset"}.union(*(entry.settings for entry in comparison.datasets))
    if len(comparison.datasets) > 1 and (differing := sorted(overrides.keys() & in_rows)):
        raise SettingError(
            f"setting `{differing[0]}` is what the data sets of this comparison differ in; choose some of them by "
            "--datasets, or say by --data where they lie."
        )
    for method in comparison.methods:
        if differing := sorted(overrides.keys() & method.settings.keys()):
            raise SettingError(
                f"setting `{differing[0]}` is one of the method {shown(method.label)}, whose name may say it; change "
                "the file instead."
            )


def _placed(dataset: str, data: Mapping[str, str]) -> tuple[list[str], str]:
    """The domains of a data set by their names in the settings, or itself where `data` has a place for all of it; and
    the data set with the places where they lie."""
    is_placed = dataset in data or short_name(dataset) in data
    items = [dataset] if is_placed else list(listed(dataset))
    places = []
    for item in items:
        place = data.get(item) or data.get(short_name(item)) or item
        if item.endswith("/*") and not place.endswith("/*"):
            # a folder of domains stays one
            place += "/*"
        places.append(with_place(place))
    return items, ",".join(places)


def _refuse_idle(data: Mapping[str, str], items: Set[str]) -> None:
    """A name that no trial has is a slip."""
    names = sorted({short_name(item) for item in items})
    for name in data:
        if name not in items and name not in names:
            raise SettingError(
                f"--data has {shown(name)}{nearest(name, names)}, but the comparison's data sets are "
                f"{', '.join(names)}."
            )


def _refuse_missing(row_settings: Sequence[tuple[Row, RunConfig]]) -> None:
    """Open every data set once; name all that is not available, and how to get them."""
    opened: set[str] = set()
    lacking: list[str] = []
    for row, settings in row_settings:
        checked = read_settings(settings).settings
        spec = data_spec(checked, checked.clients)
        key = f"{spec.dataset} {spec.image_size} {spec.columns} {spec.classes}"
        if key in opened:
            continue
        opened.add(key)
        try:
            open_data(spec, home() / "cache")
        except DataError as error:
            lacking.append(_describe_missing(row.dataset, checked.dataset, str(error)))
    if lacking:
        raise SettingError(
            f"{'; '.join(dict.fromkeys(lacking))}. Nothing was started; --datasets runs the rows whose data are here."
        )


def _describe_missing(entry: Entry, dataset: str, reason: str) -> str:
    """What is missing, why, and how to get it."""
    items = listed(dataset)
    gone = [item for item in items if item in HUB or (is_path(item) and not Path(item).expanduser().exists())]
    how = entry.missing or f"put it in a folder and say --data {short_name((*gone, *items)[0])}=FOLDER"
    return f"the data set of {entry.label} is not available: {reason.rstrip('.')}; {how.rstrip('.')}"


def _check_trial(trial: Trial) -> Trial:
    """The trial with all that `protosphere run` would make of its settings: absolute paths, floats for ints."""
    cell_settings = {name: value for name, value in trial.settings.items() if name not in PLACES}
    try:
        planned = plan(more=cell_settings)
    except (SettingError, DataError, ModelError) as error:
        raise type(error)(f"{trial.title}: {error}") from None
    settings = {name: value for name, value in planned.run_config.items() if name not in PLACES}
    return replace(trial, settings=settings)


def _slug(text: str) -> str:
    # an ablation's "λ_S = 0" must not look like "λ_E = 0"
    named = text.replace("λ", "lambda").replace("β", "beta").replace("α", "alpha").replace("γ", "gamma")
    # a number keeps its point
    slug = plain_name(named.lower(), len(named.encode()) + LONGEST, sign=".")
    if len(slug.encode()) <= LONGEST:
        return slug
    # variants differ at their ends
    digest = hashlib.sha256(slug.encode()).hexdigest()[:8]
    return f"{plain_name(slug, LONGEST - len(digest) - 1, sign='.')}-{digest}"
