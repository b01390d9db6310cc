"""A comparison: methods, data sets, partitions, seeds and metrics, read from a TOML file and narrowed by the command
line. A mistake is a SettingError of one sentence."""

import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.settings import (
    ENDS,
    MAY_DIFFER_ON_RESUME,
    RULES,
    Scalar,
    nearest,
    refuse_unknown,
    shown,
    unknown,
)
from protosphere.data.domains import short_name
from protosphere.plans.assignments import RunConfig, flatten, leaves, load_toml
from protosphere.plans.run_config import preset_names
from protosphere.record.metrics_lines import MAJORITY
from protosphere.record.summary import FIGURES as FIGURES_OF_RUN
from protosphere.record.summary import MAJORITY_UNWEIGHTED
from protosphere.reports.partition_preview import OF_PARTITION
from protosphere.strategies import METHODS, known_settings, load_method
from protosphere.strategies.release import OWN_POOL, OWN_RULE, RULE

PRESETS = Path(__file__).parents[1] / "presets" / "compare"
USUAL_METHODS = ("local", "frame", "fedproto", "protonorm")
USUAL_SEEDS = (0, 1, 2)
MACRO = "macro"  # exists only for a run's own rule
FIGURES = ("headline", *FIGURES_OF_RUN, MACRO)
ENSEMBLE = "ensemble"
ENSEMBLE_FIGURES = ("best", "last-5", "final")
FLOOR = "majority class"  # a line of the tables, so no method may have this label
# the word before a domain's name -> its key in summary.json
DOMAIN_KEYS = {"domain": "domains", "domain-unweighted": "domains-unweighted"}
# settings that differ by run or machine -> the option that sets them
NOT_HERE = {"seed": "seeds", "results-dir": "--results", "resume": "--resume"}
# settings that all methods of a row share
OF_A_ROW = frozenset(
    {"dataset", "classes", "image-size", "text-column", "label-column", "group-column", "max-tokens"}
    | {"partition", "partition-table", "partition-column", "alpha", "self-balancing", "classes-per-client"}
    | {"ways", "ways-spread", "shots", "shots-spread"}
    | {"clients", "min-samples", "max-samples", "split", "test-share", "validation-share"}
    | {"spiral-noise", "spiral-points", "ensemble-every", "shared-test-share"}
    | {"models", "feature-dim", "shared-init", "fraction-train"}
)
# a removed key of the file -> what takes its place
GONE = {
    "target": "the CSV of the picture accuracy-over-bytes has the bytes of every evaluation",
    "equal-steps": "set `local-epochs` for each method",
    "sweep": '[vary] with `choose = "validation"` takes its place, and `cross = true` crosses settings',
}
# settings that do not change what a run computes
INDIFFERENT = MAY_DIFFER_ON_RESUME - ENDS
# settings that the label of a partition may name
OF_A_PARTITION = {"partition"} | {name for names in OF_PARTITION.values() for name in names} - {"min-samples"}
# keys of a comparison's file, and of its [[paper]]
KEYS = (
    "methods",
    "datasets",
    "partitions",
    "seeds",
    "metric",
    "baseline",
    "title",
    "note",
    "settings",
    "vary",
    "paper",
)
PAPER_KEYS = ("dataset", "partition", "metric", "accuracy")
Checked = TypeVar("Checked")
Container = TypeVar("Container", list[Any], dict[str, Any])


@dataclass(frozen=True)
class Metric:
    """A figure of a run's summary under an inference rule; an empty rule is the method's own.

    `headline` is `selected`, or `final` without validation samples. If the rule is one of `DOMAIN_KEYS`, the figure is
    the name of a domain.
    """

    rule: str = ""
    figure: str = "headline"

    def __str__(self) -> str:
        return f"{self.rule} {self.figure}".strip()

    @property
    def of_domain(self) -> bool:
        """Whether it covers the clients of one domain only."""
        return self.rule in DOMAIN_KEYS

    def rule_of(self, method_rule: str) -> str:
        """The rule of a private model under which it is measured, given the method's own rule."""
        return method_rule if self.rule in ("", ENSEMBLE) or self.of_domain else self.rule

    @property
    def average(self) -> str:
        """The key in metrics.jsonl of its mean over clients: weighted by samples, or unweighted."""
        name = self.rule if self.of_domain else self.figure
        return "plain_mean" if name.endswith("-unweighted") else "mean"

    @property
    def floor(self) -> str:
        """The key in a run's summary of the majority-class accuracy on the same samples; "" if there is none."""
        if self.of_domain or self.figure == MACRO or self.rule == ENSEMBLE:
            return ""
        return MAJORITY_UNWEIGHTED if self.figure.endswith("-unweighted") else MAJORITY


def _one_line(label: str) -> str:
    return " ".join(label.split())


@dataclass(frozen=True)
class Entry:
    """A method, data set or partition: its label in the tables and its settings.

    Attributes:
        base: of a data set: the preset of `protosphere run` to start from.
        missing: of a data set: how to get its data.
        methods: of a data set: settings for single methods, by label.
        varied_of: label of the method of which this is a variant, with the settings `varied`.
    """

    label: Annotated[str, AfterValidator(_one_line), Field(min_length=1)]
    settings: RunConfig = field(default_factory=dict)
    base: str = ""
    missing: str = ""
    methods: dict[str, RunConfig] = field(default_factory=dict)
    varied_of: str = ""
    varied: RunConfig = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Other names by which it can be selected: its strategy, data set or preset."""
        dataset = str(self.settings.get("dataset", ""))
        names = {str(self.settings.get("strategy", "")), dataset, self.base.partition("-")[2]}
        if dataset:
            names.add(short_name(dataset))
        return names - {""}


@dataclass(frozen=True)
class Row:
    """One data set with one partition; all methods of a row see the same clients."""

    dataset: Entry
    partition: Entry | None = None

    @property
    def label(self) -> str:
        """Its name in the tables."""
        return f"{self.dataset.label}, {self.partition.label}" if self.partition else self.dataset.label


@dataclass(frozen=True)
class Printed:
    """The accuracy in % that a paper prints for one row, method and metric."""

    row: str
    method: str
    metric: str
    accuracy: Annotated[float, Field(strict=True, ge=0, le=100)]


@dataclass(frozen=True)
class ComparisonSpec:
    """A comparison as its file describes it.

    Attributes:
        name: short name for folders.
        settings: settings of all trials.
        baseline: label of the method that the others are compared with; see `baseline_label`.
        vary: settings with lists of values.
        choose: `validation` to choose one variant of each method; "" to show all.
        cross: whether varied settings are combined instead of varied one at a time.
    """

    name: str
    methods: Annotated[tuple[Entry, ...], Field(min_length=1)]
    datasets: Annotated[tuple[Entry, ...], Field(min_length=1)]
    partitions: tuple[Entry, ...] = ()
    seeds: Annotated[tuple[Annotated[int, Field(strict=True, ge=0)], ...], Field(min_length=1)] = USUAL_SEEDS
    metrics: Annotated[tuple[Metric, ...], Field(min_length=1)] = (Metric(),)
    settings: RunConfig = field(default_factory=dict)
    paper: tuple[Printed, ...] = ()
    title: str = ""
    note: str = ""
    baseline: str = ""
    vary: dict[str, Any] = field(default_factory=dict)
    choose: Literal["", "validation"] = ""
    cross: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _refuse_duplicates(self) -> Self:
        refuse_duplicates([*(entry.label for entry in self.methods), FLOOR])
        for items in (self.datasets, self.partitions):
            refuse_duplicates([entry.label for entry in items])
        refuse_duplicates(list(map(str, self.seeds)))
        refuse_duplicates(list(map(str, self.metrics)))
        return self

    @property
    def baseline_label(self) -> str:
        """Label of the method that the others are compared with: `baseline`, else `local`, else the first method."""
        return self.baseline or self.control_label or self.methods[0].label

    @property
    def control_label(self) -> str:
        """Label of the method `local`; the baseline if there are several, "" if there is none."""
        labels = [entry.label for entry in self.methods if entry.settings.get("strategy") == "local"]
        return self.baseline if self.baseline in labels else next(iter(labels), "")

    @property
    def rows(self) -> list[Row]:
        """Each data set with each partition."""
        return [Row(dataset, partition) for dataset in self.datasets for partition in self.partitions or (None,)]


# --- reading -----------------------------------------------------------------------------------------------------


def comparison_names() -> list[str]:
    """The presets of `protosphere compare`."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load(file: str = "", preset: str = "") -> ComparisonSpec:
    """A comparison from a file or a preset, by default four methods on digits."""
    if file and preset:
        raise SettingError("a comparison file and --preset exclude each other; give one of them.")
    if preset:
        if preset not in comparison_names():
            raise SettingError(unknown("comparison", preset, comparison_names()))
        return read(PRESETS / f"{preset}.toml")
    if file:
        return read(Path(os.path.expanduser(file)))
    return from_table("digits", {"methods": list(USUAL_METHODS), "datasets": ["digits"]})


def read(path: Path) -> ComparisonSpec:
    """Read and check a comparison's file."""
    table = load_toml(path, "comparison")
    try:
        return from_table(path.stem, table)
    except SettingError as error:
        raise SettingError(f"{path.name}: {error}") from None


def from_table(name: str, table: Mapping[str, Any]) -> ComparisonSpec:
    """A comparison from the content of its file."""
    for key in GONE.keys() & table.keys():
        raise SettingError(f"key `{key}` is gone: {GONE[key]}; take it out.")
    _refuse_keys(table, KEYS)
    values = {key: value for key, value in table.items() if key in ("seeds", "title", "note")}
    for key in ("methods", "datasets", "partitions"):
        values[key] = [entry_of(item, key) for item in _value_of(table, key, list)]
    metric = table.get("metric", "headline")
    texts = [metric] if isinstance(metric, str) else _value_of(table, "metric", list)
    values["metrics"] = [parse_metric(str(text)) for text in texts]
    values["settings"] = flat(_value_of(table, "settings", dict))
    if "strategy" in values["settings"]:
        raise SettingError("setting `strategy` stands in [settings]; name it in `methods`.")
    values["vary"] = dict(_value_of(table, "vary", dict))
    for key in ("choose", "cross"):
        if key in values["vary"]:
            values[key] = values["vary"].pop(key)
    spec = checked(ComparisonSpec, {"name": name, **values})
    datasets = []
    for dataset in spec.datasets:
        methods = {}
        for label, settings in dataset.methods.items():
            method = pick(label, spec.methods, f"`methods` of {dataset.label}", by_label=True).label
            if method in methods:
                raise SettingError(f"`methods` of {dataset.label} has {shown(method)} twice; join its settings.")
            methods[method] = settings
        datasets.append(replace(dataset, methods=methods))
    baseline = str(table.get("baseline", ""))
    if baseline:
        baseline = pick(baseline, spec.methods, "`baseline`", by_label=True).label
    printed: list[Printed] = []
    for paper_table in _value_of(table, "paper", list):
        printed += _printed_of(paper_table, spec)
    return replace(spec, datasets=tuple(datasets), paper=tuple(printed), baseline=baseline)


def _refuse_keys(table: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in table.keys() - set(keys):
        remark = ", and settings for all trials stand in [settings]" if keys is KEYS else ""
        raise SettingError(f"unknown key `{key}`{nearest(key, keys)}; {', '.join(keys)} are known{remark}.")


def _value_of(table: Mapping[str, Any], key: str, kind: type[Container]) -> Container:
    """A list or table of the file; empty if it is not there."""
    value = table.get(key, kind())
    if not isinstance(value, kind):
        raise SettingError(f"`{key}` is {shown(value)}, but it is a {'list' if kind is list else 'table'}.")
    return value


def checked(kind: Callable[..., Checked], values: Mapping[str, Any]) -> Checked:
    """`kind(**values)`, for a dataclass of pydantic."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, SettingError):
        raise reason
    name = str(first["loc"][0])
    key = "metric" if name == "metrics" else name
    if first["type"] in ("too_short", "missing"):
        raise SettingError(f"`{key}` is missing or empty; give at least one.")
    raise SettingError(f"`{key}` is {shown(values[name])}: {first['msg']}.")


def entry_of(item: Any, key: str) -> Entry:
    """A method, data set or partition from its name, or from a table of its label and settings."""
    if isinstance(item, str) and key == "methods":
        item = {"label": item, "strategy": item}
    elif isinstance(item, str) and key == "datasets":
        item = {"label": short_name(item), "dataset": item}
    if not isinstance(item, dict):
        raise SettingError(f"`{key}` has {shown(item)}, but its items are tables with a label and settings.")
    keys = ("label", "base", "missing", "methods") if key == "datasets" else ("label",)
    values: dict[str, Any] = {name: item[name] for name in keys if name in item}
    settings = flat({name: value for name, value in item.items() if name not in keys})
    strategy, dataset = str(settings.get("strategy", "")), str(settings.get("dataset", ""))
    base = str(values.get("base", ""))
    if key == "methods":
        load_method(strategy)
        _refuse_shared(settings)
    elif strategy:
        raise SettingError(f"setting `strategy` stands in `{key}`; name it in `methods`.")
    if key == "datasets" and not base and not dataset:
        raise SettingError(f"the data set {shown(item)} names neither `dataset` nor `base`.")
    if base and base not in preset_names():
        raise SettingError(unknown("base", base, preset_names()))
    if "methods" in values:
        tables = _value_of(values, "methods", dict)
        values["methods"] = {label: flat(_value_of(tables, label, dict)) for label in tables}
        for method_settings in values["methods"].values():
            _refuse_shared(method_settings, {"strategy"})
    usual_label = strategy or base or (short_name(dataset) if dataset else "")
    return checked(Entry, {"label": usual_label, "settings": settings} | values)


def flat(table: Mapping[str, Any]) -> RunConfig:
    """Settings of a TOML table, nested ones by their dotted names."""
    settings = flatten(table)
    refuse_unknown(settings, known_settings(settings.get("strategy", "")))
    for name in NOT_HERE.keys() & settings.keys():
        raise SettingError(f"setting `{name}` differs by run or machine; use {NOT_HERE[name]} for it.")
    return settings


def _refuse_shared(settings: RunConfig, others: Set[str] = frozenset()) -> None:
    for name in sorted((OF_A_ROW | others) & settings.keys()):
        raise SettingError(
            f"setting `{name}` stands in `methods`, but it is the same for all methods of a row; make [[partitions]] "
            "of its values, or name it in `datasets` or [settings]."
        )


def parse_metric(text: str) -> Metric:
    """A metric from `last-5`, `classifier last-5`, `ensemble last-5`, `domain mnist` or `domain-unweighted mnist`."""
    first, _, remainder = text.strip().partition(" ")
    if first in DOMAIN_KEYS:
        if not remainder:
            raise SettingError(f'metric is {shown(text)}, but it needs the name of a domain: "{first} mnist".')
        return Metric(first, remainder.strip())
    rule, figure = (first, remainder.strip()) if remainder else ("", first)
    rules_of_methods = [rule for name in METHODS for rule in load_method(name).rules]
    rules = dict.fromkeys(["", *RULES, *rules_of_methods, RULE, OWN_RULE, OWN_POOL, ENSEMBLE])
    if rule not in rules:
        raise SettingError(f"metric is {shown(text)}: {unknown('rule', rule, [*rules, *DOMAIN_KEYS][1:])}")
    allowed: Sequence[str] = FIGURES
    if rule == ENSEMBLE:
        allowed = ENSEMBLE_FIGURES
    elif rule:
        allowed = [name for name in FIGURES if name != MACRO]
    if figure not in allowed:
        raise SettingError(f"metric is {shown(text)}: {unknown('figure', figure, allowed)}")
    return Metric(rule, figure)


def varied_label(label: str, setting: str, value: Any) -> str:
    """The label of a method with a value of a varied setting."""
    return f"{label}, {setting.rpartition('.')[2]} = {value}"


def _printed_of(table: Mapping[str, Any], spec: ComparisonSpec) -> list[Printed]:
    """A [[paper]] of the file, whose methods may be variants."""
    if not isinstance(table, Mapping):
        raise SettingError(f"`paper` has {shown(table)}, but its items are tables.")
    _refuse_keys(table, PAPER_KEYS)
    methods = list(spec.methods)
    for method in spec.methods:
        for name, values in leaves(spec.vary):
            for value in values if isinstance(values, list) else []:
                methods.append(Entry(varied_label(method.label, name, value)))
    row = Row(pick(str(table.get("dataset", "")), spec.datasets, "`dataset` in `paper`", by_label=True))
    if spec.partitions:
        partition = str(table.get("partition", ""))
        row = Row(row.dataset, pick(partition, spec.partitions, "`partition` in `paper`", by_label=True))
    metric = str(parse_metric(str(table.get("metric", spec.metrics[0]))))
    if not table.get("accuracy"):
        raise SettingError("`accuracy` in `paper` is missing or empty; give the paper's values by method.")
    printed = []
    for name, accuracy in _value_of(table, "accuracy", dict).items():
        label = pick(name, methods, "`accuracy` in `paper`", by_label=True).label
        values = {"row": row.label, "method": label, "metric": metric, "accuracy": accuracy}
        printed.append(checked(Printed, values))
    return printed


def pick(name: str, entries: Sequence[Entry], where: str, by_label: bool = False) -> Entry:
    """The entry with this label, else with this other name, in upper or lower case.

    Args:
        where: the place of the name, for the error.
        by_label: whether only labels count: several methods may have one strategy.
    """
    for entry in entries:
        if name == entry.label:
            return entry
    for entry in entries:
        if name.casefold() == entry.label.casefold():
            return entry
    for entry in entries:
        if not by_label and name.casefold() in map(str.casefold, entry.names):
            return entry
    labels = [entry.label for entry in entries]
    known_names = [*labels, *(other for entry in entries for other in sorted(entry.names))]
    raise SettingError(
        f"{where} has {shown(name)}{nearest(name, known_names)}; one of {', '.join(labels) or 'none'} is allowed."
    )


def refuse_duplicates(labels: Sequence[str]) -> None:
    """Refuse a label that occurs twice."""
    for label in labels:
        if labels.count(label) > 1:
            raise SettingError(f"{shown(label)} is there twice; give each a label of its own.")


# --- narrowing by the command line --------------------------------------------------------------------------------


def narrow(
    spec: ComparisonSpec,
    *,
    methods: str = "",
    datasets: str = "",
    partitions: str = "",
    seeds: str = "",
    metric: str = "",
    baseline: str = "",
    choose: str = "",
    cross: bool = False,
    own_data: bool = False,
) -> ComparisonSpec:
    """A part of a comparison, or the comparison with other seeds or metrics. Lists are comma-separated.

    Args:
        methods: labels, or any strategies, also as paths.
        datasets: labels or data sets of the comparison; with `own_data` any data sets.
    """
    changes: dict[str, Any] = {"choose": choose or spec.choose, "cross": cross or spec.cross}
    if methods:
        strategies = {entry.settings["strategy"] for entry in spec.methods}
        candidates = [*spec.methods, *(Entry(name, {"strategy": name}) for name in METHODS if name not in strategies)]
        labels = [entry.label for entry in spec.methods]
        changes["methods"] = []
        for name in split_names(methods):
            is_new = plugins.is_plugin(name) and name not in labels
            changes["methods"].append(entry_of(name, "methods") if is_new else pick(name, candidates, "--methods"))
    if datasets and own_data:
        changes["datasets"] = [entry_of(name, "datasets") for name in split_names(datasets)]
        changes["name"] = "-".join(entry.label for entry in changes["datasets"])
    elif datasets:
        changes["datasets"] = [pick(name, spec.datasets, "--datasets") for name in split_names(datasets)]
    if partitions:
        changes["partitions"] = [pick(name, spec.partitions, "--partitions") for name in split_names(partitions)]
    if seeds:
        # text that is no number is refused with the whole list
        changes["seeds"] = [int(text) if re.fullmatch("[0-9]{1,18}", text) else text for text in split_names(seeds)]
    if metric:
        changes["metrics"] = [parse_metric(name) for name in split_names(metric)]
    narrowed = checked(ComparisonSpec, vars(spec) | changes)
    if baseline:
        return replace(narrowed, baseline=pick(baseline, narrowed.methods, "--baseline").label)
    # --methods may leave out the file's baseline
    is_left = narrowed.baseline in [entry.label for entry in narrowed.methods]
    return narrowed if is_left else replace(narrowed, baseline="")


def split_names(text: str) -> list[str]:
    """The names of a comma-separated list.

    >>> split_names("local, frame (sends nothing)")
    ['local', 'frame (sends nothing)']
    """
    return [item.strip() for item in text.split(",") if item.strip()]


def with_overrides(spec: ComparisonSpec, overrides: Mapping[str, Scalar], vary: Sequence[str] = ()) -> ComparisonSpec:
    """The comparison with a note on the settings of the command line, named after the data set if they name one, and
    without a paper's values, which were measured with other settings.

    Args:
        vary: the texts of `--vary`, such as `protonorm.gamma=3,10,30`.
    """
    changes: dict[str, Any] = {}
    notes = [f"{spec.note.rstrip('.')}."] if spec.note else []
    settings = [f"{name} = {value}" for name, value in overrides.items() if name not in INDIFFERENT]
    if settings:
        notes.append(f"Trials that read them have {', '.join(settings)}.")
    if spec.paper and (settings or vary):
        notes.append("The paper's values are left out: they were measured with other settings.")
        changes["paper"] = ()
    if len(notes) > bool(spec.note):
        changes["note"] = " ".join(notes)
    if "dataset" in overrides and len(spec.datasets) == 1:
        (dataset,) = spec.datasets
        label = short_name(str(overrides["dataset"]))
        changes["datasets"] = (replace(dataset, label=label),)
        changes["name"] = label if spec.name == dataset.label else spec.name
    return replace(spec, **changes)
