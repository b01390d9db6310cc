"""What is compared: a TOML file of methods, data sets, partitions, seeds and a metric, read, checked, and narrowed as
the command line says, with rows that have the names of what they then are."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
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
MACRO = "macro"  # by the run's own rule, which alone tells of each class
FIGURES = ("headline", *FIGURES_OF_RUN, MACRO)
OF_A_RULE = tuple(name for name in FIGURES if name != MACRO)
COMMON_RULES = ("classifier", "discriminant")  # of a private model; what methods are compared by whose own rules differ
ENSEMBLE = "ensemble"
FLOOR = "majority class"  # a line of the tables beside those of the methods
DOMAIN = "domain"
# what stands before a domain's name -> its key in summary.json
DOMAIN_KEYS = {DOMAIN: "domains", "domain-unweighted": "domains-unweighted"}
ENSEMBLE_FIGURES = ("best", "last-5", "final")
# of a trial, or of where it runs; never of a row or a method
NOT_HERE = {
    "seed": "seeds",
    "results-dir": "--results",
    "resume": "--resume",
}
# what the clients of a row are, their data and models, and who is sampled: the same for all its methods
OF_A_ROW = frozenset(
    {"dataset", "classes", "image-size", "text-column", "label-column", "group-column", "max-tokens"}
    | {"partition", "partition-table", "partition-column", "alpha", "self-balancing", "classes-per-client"}
    | {"ways", "ways-spread", "shots", "shots-spread"}
    | {"clients", "min-samples", "max-samples", "split", "test-share", "validation-share"}
    | {"spiral-noise", "spiral-points", "ensemble-every", "shared-test-share"}
    | {"models", "feature-dim", "shared-init", "fraction-train"}
)
Checked = TypeVar("Checked")
USUAL_METHODS = ("local", "frame", "fedproto", "protonorm")
USUAL_SEEDS = (0, 1, 2)
# a key that the file of a comparison had -> what takes its place
GONE = {
    "target": "the CSV of the picture accuracy-over-bytes has the bytes of every evaluation",
    "equal-steps": "`local-epochs` of each method stands in its place",
    "sweep": '[vary] with `choose = "validation"` takes its place, and `cross = true` crosses settings',
}
HOW_TO_VARY = ("choose", "cross")  # that stand in [vary] beside its settings
# where and how patiently a run ran is no matter of what it computed
INDIFFERENT = MAY_DIFFER_ON_RESUME - ENDS
# what a row's label may say of its partition; how few rows a client may get is no part of its name
NAMING = {"partition"} | {name for names in OF_PARTITION.values() for name in names} - {"min-samples"}


@dataclass(frozen=True)
class Metric:
    """A figure of a run's summary: `figure` by the prediction rule `rule`, empty for the method's own.

    The figure `headline` is the one that the run calls so: `selected`, or `final` without validation rows. After one of
    `DOMAIN_KEYS` in the place of a rule it is the name of a domain.
    """

    rule: str = ""
    figure: str = "headline"

    def __str__(self) -> str:
        return f"{self.rule} {self.figure}".strip()

    def rule_of(self, own: str) -> str:
        """The prediction rule that it is by, where that of the method is `own`; the ensemble and a domain have none."""
        return own if self.rule in ("", ENSEMBLE) or self.of_domain else self.rule

    def curve_rule(self, own: str) -> str:
        """What its curve over rounds is by: a prediction rule, where that of the method is `own`, or `ensemble`."""
        return ENSEMBLE if self.rule == ENSEMBLE else self.rule_of(own)

    @property
    def of_domain(self) -> bool:
        """Whether it is of the clients of one domain alone."""
        return self.rule in DOMAIN_KEYS

    @property
    def average(self) -> str:
        """The mean over clients that it is, by its name in metrics.jsonl: weighted by samples, or unweighted."""
        kind = self.rule if self.of_domain else self.figure
        return "plain_mean" if kind.endswith("-unweighted") else "mean"

    @property
    def floor(self) -> str:
        """The majority-class baseline of the same samples, averaged over clients as it is, by its name in a run's
        summary; "" where it counts not every client, not every sample alike, or samples that no client has."""
        if self.of_domain or self.figure == MACRO or self.rule == ENSEMBLE:
            return ""
        return MAJORITY_UNWEIGHTED if self.figure.endswith("-unweighted") else MAJORITY


@dataclass(frozen=True)
class Entry:
    """One method, data set or partition of a comparison: its label in the tables, and the settings that make it.

    `base` is a preset of `protosphere run` that a data set starts from; `missing` says what to do without its data;
    `methods` are settings that a method has on this data set, by its label.
    `varied_of` is the label of the method that this is a variant of, with the settings `varied`; see variants.py.
    """

    label: str
    settings: RunConfig = field(default_factory=dict)
    base: str = ""
    missing: str = ""
    methods: dict[str, RunConfig] = field(default_factory=dict)
    varied_of: str = ""
    varied: RunConfig = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """What it may be called by, besides its label: its strategy, data set or preset."""
        dataset = str(self.settings.get("dataset", ""))
        names = {str(self.settings.get("strategy", "")), dataset, self.base.partition("-")[2]}
        names |= {short_name(dataset)} if dataset else set()
        return sorted(names - {""})


@dataclass(frozen=True)
class Row:
    """A data set and a partition of it: every method of a row sees the same clients."""

    dataset: Entry
    partition: Entry | None = None

    @property
    def label(self) -> str:
        """As the tables name it."""
        return ", ".join(entry.label for entry in (self.dataset, self.partition) if entry)


@dataclass(frozen=True)
class Printed:
    """What a paper's table prints: the accuracy in % of one method in one row, by one metric."""

    row: str
    method: str
    metric: str
    accuracy: Annotated[float, Field(strict=True, ge=0, le=100)]


@dataclass(frozen=True)
class ComparisonSpec:
    """A comparison as its file says it.

    Attributes:
        name: short, for folders.
        baseline: label of the method that the others are held against; empty for the usual one, see `beside`.
        settings: common to all.
        vary: settings with lists of values, as its file has them; see variants.py.
        choose: `validation` where one variant of each method is chosen; "" where all are shown.
        cross: whether varied settings are combined, and not varied one at a time.
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
    def _refuse_twice(self) -> Self:
        for entries in (self.methods, self.datasets, self.partitions):
            refuse_twice([entry.label for entry in entries])
        refuse_twice(list(map(str, self.seeds)))
        refuse_twice(list(map(str, self.metrics)))
        # a line of every table
        refuse_twice([*(entry.label for entry in self.methods), FLOOR])
        return self

    @property
    def baseline_label(self) -> str:
        """Label of the method that the others are held against: `baseline`, else that which trains alone, else the
        first."""
        return self.baseline or self.control_label or self.methods[0].label

    @property
    def control_label(self) -> str:
        """Label of the method that trains alone, `local`; the baseline where several do, empty where none does."""
        labels = [entry.label for entry in self.methods if entry.settings.get("strategy") == "local"]
        return self.baseline if self.baseline in labels else next(iter(labels), "")

    @property
    def rows(self) -> list[Row]:
        """Every data set by every partition."""
        return [Row(dataset, partition) for dataset in self.datasets for partition in self.partitions or (None,)]


_LONGEST_SEED = 20  # digits; a seed is below 2**63


def comparison_names() -> list[str]:
    """The presets that there are."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load(file: str = "", preset: str = "", methods: Sequence[str] = ()) -> ComparisonSpec:
    """A comparison from a file, from a preset, or the usual one: local, FedProto and ProtoNorm on digits.

    Args:
        methods: names, for a file that has no `methods`.

    Raises:
        SettingError: both, an unknown preset, or a file that is no comparison.
    """
    if file and preset:
        raise SettingError("a comparison file and --preset exclude each other; give one of them.")
    if preset:
        if preset not in comparison_names():
            raise SettingError(unknown("comparison", preset, comparison_names()))
        return read(PRESETS / f"{preset}.toml")
    if file:
        return read(Path(os.path.expanduser(file)), methods)
    entries = tuple(entry_of(name, "methods") for name in USUAL_METHODS)
    return ComparisonSpec("digits", entries, (entry_of("digits", "datasets"),))


def read(path: Path, methods: Sequence[str] = ()) -> ComparisonSpec:
    """Read and check a comparison file.

    Args:
        methods: names, where the file has no `methods`.

    Raises:
        SettingError: one sentence on the first thing in it that cannot be.
    """
    table = load_toml(path, "comparison")
    try:
        _refuse_commas(table)
        return from_table(path.stem, {"methods": list(methods)} | table)
    except SettingError as error:
        raise SettingError(f"{path.name}: {error}") from None


def _refuse_commas(table: Mapping[str, Any]) -> None:
    """Refuse a label that `--methods` and the like would part in two."""
    for key in ("methods", "datasets", "partitions"):
        items = table.get(key)
        for item in items if isinstance(items, list) else []:
            label = item.get("label") if isinstance(item, dict) else None
            if isinstance(label, str) and "," in label:
                raise SettingError(
                    f"`label` in `{key}` is {shown(label)}, whose comma would part it in a list such as --{key}; write "
                    'it without, as in "ProtoNorm (γ = 20)".'
                )


def parse_metric(text: str) -> Metric:
    """`last-5`, `classifier last-5`, `ensemble last-5`, `domain mnist` or `domain-unweighted mnist`.

    Raises:
        SettingError: an unknown rule or figure, with the nearest one.
    """
    parts = text.split() if isinstance(text, str) else []
    if parts and parts[0] in DOMAIN_KEYS:
        if len(parts) == 1:
            raise SettingError(f'metric is {shown(text)}, but it needs the name of a domain: "{parts[0]} mnist".')
        # a folder's name, which may have spaces
        return Metric(parts[0], text.strip().removeprefix(parts[0]).strip())
    method_rules = (rule for name in METHODS for rule in load_method(name).rules)
    rules = (*dict.fromkeys((*RULES, *method_rules, RULE, OWN_RULE, OWN_POOL)), ENSEMBLE)
    if not 1 <= len(parts) <= 2:
        raise SettingError(f"metric is {shown(text)}, but it is a figure, or an inference rule and a figure.")
    rule, figure = parts if len(parts) == 2 else ["", parts[0]]
    if rule and rule not in rules:
        raise SettingError(f"metric is {shown(text)}: {unknown('rule', rule, (*rules, *DOMAIN_KEYS))}")
    allowed: tuple[str, ...] = OF_A_RULE if rule else FIGURES
    if rule == ENSEMBLE:
        allowed = ENSEMBLE_FIGURES
    if figure not in allowed:
        raise SettingError(f"metric is {shown(text)}: {unknown('figure', figure, allowed)}")
    return Metric(rule, figure)


def flat(table: Mapping[str, Any]) -> RunConfig:
    """Settings out of a TOML table, nested ones by their dotted names.

    Raises:
        SettingError: an unknown setting, or one whose value is a list.
    """
    settings = flatten(dict(table))
    refuse_unknown(settings, known_settings(settings.get("strategy", "")))
    for name in NOT_HERE.keys() & settings.keys():
        raise SettingError(f"setting `{name}` differs by run or machine; use {NOT_HERE[name]} for it.")
    return settings


def checked(kind: Callable[..., Checked], values: Mapping[str, Any]) -> Checked:
    """What `kind` makes of these values: a comparison, or a part of one.

    Raises:
        SettingError: one sentence that names the first that cannot be, and what is allowed.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first.get("ctx", {}).get("error")
        if isinstance(reason, SettingError):
            raise reason from None
        name = str(first["loc"][0])
        key = "metric" if name == "metrics" else name.replace("_", "-")
        if first["type"] == "extra_forbidden":
            key, table = str(first["loc"][-1]), PaperTable if name == "paper" else FileTable
            keys = list(table.model_fields)
            raise SettingError(
                f"unknown key `{key}`{nearest(key, keys)}; {', '.join(keys)} are known, and settings for all trials "
                "stand in [settings]."
            ) from None
        if first["type"] in ("too_short", "missing"):
            if len(first["loc"]) > 1:
                raise SettingError(f"`{key}` lacks `{first['loc'][-1]}`; give each of its tables one.") from None
            raise SettingError(f"`{key}` is missing or empty, but a comparison needs one at least.") from None
        raise SettingError(f"`{key}` is {shown(values[name])}, but it {first['msg'].removeprefix('Input ')}.") from None


class PaperTable(BaseModel):
    """A `[[paper]]` of a file: what a paper prints in one row by one metric, by method."""

    model_config = ConfigDict(extra="forbid", strict=True)
    dataset: str = ""
    partition: str = ""
    metric: str = ""
    accuracy: dict[str, Any]


class FileTable(BaseModel):
    """What a comparison's file holds."""

    model_config = ConfigDict(extra="forbid", strict=True)
    methods: list[Any]
    datasets: list[Any]
    partitions: list[Any] = []
    seeds: list[Any] = list(USUAL_SEEDS)
    metric: str | list[str] = "headline"
    baseline: str = ""
    title: str = ""
    note: str = ""
    settings: dict[str, Any] = {}
    vary: dict[str, Any] = {}
    paper: list[PaperTable] = []


class EntryTable(BaseModel):
    """A method or a partition of a file; what is beside its label is a setting."""

    model_config = ConfigDict(extra="allow", strict=True)
    label: str = ""


class DataTable(EntryTable):
    """A data set of a file."""

    base: str = ""
    missing: str = ""
    methods: dict[str, dict[str, Any]] = {}


def from_table(name: str, table: Mapping[str, Any]) -> ComparisonSpec:
    """A comparison from what its file holds.

    Args:
        name: short, for folders. table: as TOML has it.

    Raises:
        SettingError: one sentence on the first thing in it that cannot be.
    """
    for key in GONE.keys() & table.keys():
        raise SettingError(f"key `{key}` is gone: {GONE[key]}; take it out.")
    file = checked(FileTable, table)
    settings = flat(file.settings)
    if "strategy" in settings:
        raise SettingError("setting `strategy` stands in [settings]; name it in `methods`.")
    texts = [file.metric] if isinstance(file.metric, str) else file.metric
    values = {
        "name": name,
        "methods": [entry_of(item, "methods") for item in file.methods],
        "datasets": [entry_of(item, "datasets") for item in file.datasets],
        "partitions": [entry_of(item, "partitions") for item in file.partitions],
        "seeds": file.seeds,
        "metrics": [parse_metric(text) for text in texts],
        "settings": settings,
        "title": file.title,
        "note": file.note,
        "vary": {key: value for key, value in file.vary.items() if key not in HOW_TO_VARY},
    }
    comparison = checked(ComparisonSpec, values | {key: file.vary[key] for key in HOW_TO_VARY if key in file.vary})
    for dataset in comparison.datasets:
        for label in dataset.methods:
            pick(label, comparison.methods, f"`methods` of {dataset.label}", by_label=True)
    baseline = file.baseline and pick(file.baseline, comparison.methods, "`baseline`", by_label=True).label
    printed = [line for paper_table in file.paper for line in _read_printed(paper_table, comparison)]
    return replace(comparison, paper=tuple(printed), baseline=baseline)


def entry_of(item: Any, key: str) -> Entry:
    """A method, data set or partition from its name, or from a table of its label and settings."""
    if isinstance(item, str) and key == "methods":
        item = {"label": item, "strategy": item}
    elif isinstance(item, str) and key == "datasets":
        item = {"label": short_name(item), "dataset": item}
    if not isinstance(item, dict):
        raise SettingError(f"`{key}` has {shown(item)}, but its items are tables with a label and settings.")
    table = checked(DataTable if key == "datasets" else EntryTable, item)
    settings = flat(table.model_extra or {})
    if key == "methods":
        load_method(str(settings.get("strategy", "")))
        _refuse_shared(settings)
    elif "strategy" in settings:
        raise SettingError(f"setting `strategy` stands in `{key}`; name it in `methods`.")
    # one line, as a table's cell needs it
    label = " ".join(table.label.split())
    if not isinstance(table, DataTable):
        label = label or str(settings.get("strategy", ""))
        if not label:
            raise SettingError(f"`{key}` has {shown(item)} without a label; give it one.")
        return Entry(label, settings)
    if table.base and table.base not in preset_names():
        raise SettingError(unknown("base", table.base, preset_names()))
    if not table.base and "dataset" not in settings:
        raise SettingError(f"the data set {shown(item)} names neither `dataset` nor `base`.")
    settings_by_method = {name: flat(method_settings) for name, method_settings in table.methods.items()}
    for method_settings in settings_by_method.values():
        _refuse_shared(method_settings, {"strategy"})
    label = label or table.base or short_name(str(settings["dataset"]))
    return Entry(label, settings, table.base, table.missing, settings_by_method)


def _refuse_shared(settings: RunConfig, others: Set[str] = frozenset()) -> None:
    """Refuse what all methods of a row share, and `others`, among a method's settings."""
    if differing := sorted((OF_A_ROW | others) & settings.keys()):
        raise SettingError(
            f"setting `{differing[0]}` stands in `methods`, but it is the same for all methods of a row; make "
            "[[partitions]] of its values, or name it in `datasets` or [settings]."
        )


def varied_label(label: str, setting: str, value: Any) -> str:
    """What a method is called with a value of a setting that is varied."""
    return f"{label}, {setting.rpartition('.')[2]} = {value}"


def varied_values(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lists of a table such as [vary] by the names of their settings; what is none is refused where it is tried."""
    return {name: values for name, values in leaves(table) if isinstance(values, list)}


def _read_printed(table: PaperTable, comparison: ComparisonSpec) -> Iterator[Printed]:
    """A paper's figures, each with a row, a method and a metric that are there."""
    # a value that [vary] makes a method of
    methods = list(comparison.methods)
    for method in comparison.methods:
        for name, values in varied_values(comparison.vary).items():
            methods += [Entry(varied_label(method.label, name, value)) for value in values]
    dataset = pick(table.dataset, comparison.datasets, "`dataset` in `paper`", by_label=True)
    partition = None
    if comparison.partitions:
        partition = pick(table.partition, comparison.partitions, "`partition` in `paper`", by_label=True)
    metric = str(parse_metric(table.metric or str(comparison.metrics[0])))
    for name, accuracy in table.accuracy.items():
        label = pick(name, methods, "`accuracy` in `paper`", by_label=True).label
        line = {"row": Row(dataset, partition).label, "method": label, "metric": metric, "accuracy": accuracy}
        yield checked(Printed, line)


def pick(name: str, entries: Sequence[Entry], where: str, by_label: bool = False) -> Entry:
    """The first entry of that label, else the first that may be called so; case and signs matter only for a tie.

    Args:
        where: the name stands.
        by_label: whether no other name will do.

    Raises:
        SettingError: there is none, with the nearest.
    """
    for same in (str, plain):
        for entry in entries:
            if same(name) == same(entry.label):
                return entry
    for entry in entries:
        if not by_label and plain(name) in map(plain, entry.names):
            return entry
    labels = list(dict.fromkeys(entry.label for entry in entries))
    known_names = [*labels, *(other for entry in entries for other in entry.names)]
    raise SettingError(
        f"{where} has {shown(name)}{nearest(name, known_names)}; one of {', '.join(labels) or 'none'} is allowed."
    )


def plain(name: str) -> str:
    """A name without case, spaces and signs; a number keeps its point."""
    return "".join(letter for letter in name.casefold() if letter.isalnum() or letter == ".")


def refuse_twice(labels: Sequence[str]) -> None:
    """Labels name rows, columns and folders.

    Raises:
        SettingError: one is there twice.
    """
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise SettingError(f"{shown(twice)} is there twice; give each a label of its own.")


# --- a part of it, with the names that it then has ---------------------------------------------------------------


def narrow(
    comparison: ComparisonSpec,
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
    """A part of a comparison, or it with other seeds or metric. Lists are comma-separated.

    Args:
        methods: labels, or names of strategies, which may be ones that the comparison lacks; or paths of one's own.
        datasets: labels or data sets of the comparison; with `own_data` any data sets.

    Raises:
        SettingError: a name that is not there, with the nearest one; a seed or metric that is none.
    """
    lists = {"methods": methods, "datasets": datasets, "partitions": partitions, "seeds": seeds, "metric": metric}
    names = {option: split_names(text) for option, text in lists.items()}
    for option, text in lists.items():
        if text and not names[option]:
            raise SettingError(f"--{option} is {shown(text)}, which names none; leave it out for all.")
    changes: dict[str, Any] = {"choose": choose or comparison.choose, "cross": cross or comparison.cross}
    if methods:
        # any method may be named, also one that the comparison lacks
        known_names = {entry.settings["strategy"] for entry in comparison.methods}
        other_entries = [Entry(name, {"strategy": name}) for name in METHODS if name not in known_names]
        changes["methods"] = [_pick_method(name, [*comparison.methods, *other_entries]) for name in names["methods"]]
    if datasets and own_data:
        changes["datasets"] = [entry_of(name, "datasets") for name in names["datasets"]]
        changes["name"] = "-".join(entry.label for entry in changes["datasets"])
    elif datasets:
        changes["datasets"] = [pick(name, comparison.datasets, "--datasets") for name in names["datasets"]]
    if partitions:
        changes["partitions"] = [pick(name, comparison.partitions, "--partitions") for name in names["partitions"]]
    if seeds:
        changes["seeds"] = [_seed_of(seed) for seed in names["seeds"]]
    if metric:
        changes["metrics"] = [parse_metric(name) for name in names["metric"]]
    narrowed = checked(partial(replace, comparison), changes)
    if baseline:
        return replace(narrowed, baseline=pick(baseline, narrowed.methods, "--baseline").label)
    # --methods may leave the file's out
    is_there = narrowed.baseline in [entry.label for entry in narrowed.methods]
    return narrowed if is_there else replace(narrowed, baseline="")


def _seed_of(text: str) -> int | str:
    """A seed of the command line; what is no number is refused with the seeds of a file."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST_SEED
    return int(text) if is_number else text


def _pick_method(name: str, entries: Sequence[Entry]) -> Entry:
    if plugins.is_plugin(name) and name not in [entry.label for entry in entries]:
        return entry_of(name, "methods")
    return pick(name, entries, "--methods")


def split_names(text: str) -> list[str]:
    """What a list with commas holds.

    >>> split_names("local, frame (sends nothing)")
    ['local', 'frame (sends nothing)']
    """
    return [item.strip() for item in text.split(",") if item.strip()]


def name_rows(comparison: ComparisonSpec, overrides: Mapping[str, Scalar], tried: Sequence[str] = ()) -> ComparisonSpec:
    """The comparison with the labels of what the settings of the command line make of its rows: no table may say of one
    data set or partition what is true of another. What a paper prints is not of other settings or budgets, and is left
    out.

    Args:
        tried: what `--vary` says, such as `protonorm.gamma=3,10,30`.

    Raises:
        SettingError: rows have names of their own that would no longer be true.
    """
    changes: dict[str, Any] = {}
    differing = sorted((overrides.keys() | {text.partition("=")[0].strip() for text in tried}) - INDIFFERENT)
    if comparison.paper and differing:
        remark = f"the paper's values are left out: they were not measured with {', '.join(differing)} as set here"
        changes |= {"paper": (), "note": ". ".join(filter(None, (comparison.note.rstrip("."), remark)))}
    of_partitions = {"partition"}.union(*(entry.settings for entry in comparison.partitions)) | NAMING
    if comparison.partitions and (named := sorted(overrides.keys() & of_partitions)):
        labels = ", ".join(entry.label for entry in comparison.partitions)
        raise SettingError(
            f"setting `{named[0]}` may be what the labels of the partitions say ({labels}), or is what they differ in; "
            "choose some of them by --partitions, or change the file."
        )
    of_datasets = set().union(*(entry.settings for entry in comparison.datasets)) - {"dataset"}
    name_parts = []
    for name, value in overrides.items():
        if name in NAMING | of_datasets and value != "":
            # of a file its name will do, and of a partition its kind
            text = Path(value).name if isinstance(value, str) else str(value)
            name_parts.append(text if name == "partition" else f"{name} {text}")
    datasets = []
    for entry in comparison.datasets:
        label = entry.label
        if "dataset" in overrides and len(comparison.datasets) == 1:
            label = short_name(str(overrides["dataset"]))
            changes["name"] = label if comparison.name == entry.label else comparison.name
        datasets.append(replace(entry, label=", ".join([label, *name_parts])))
    return replace(comparison, datasets=tuple(datasets), **changes)
