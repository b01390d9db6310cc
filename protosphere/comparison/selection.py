"""A part of a comparison, as the command line chooses it: some methods, data sets, partitions, other seeds; and rows
that are called after the settings that it makes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from protosphere.comparison.folder import INDIFFERENT
from protosphere.comparison.spec import (
    ComparisonSpec,
    Entry,
    checked,
    entry_of,
    parse_metric,
    pick,
    plain,
    varied_values,
)
from protosphere.comparison.variants import read_by
from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.settings import Scalar, shown
from protosphere.data.domains import short_name
from protosphere.plans.run_config import leaves
from protosphere.reports.partition_preview import OF_PARTITION
from protosphere.strategies import METHODS

# what a row's label may say of its partition; how few rows a client may get is no part of its name
NAMING = {"partition"} | {name for names in OF_PARTITION.values() for name in names} - {"min-samples"}


def chosen(
    comparison: ComparisonSpec,
    *,
    methods: str = "",
    datasets: str = "",
    partitions: str = "",
    seeds: str = "",
    metric: str = "",
    target: float | None = None,
    baseline: str = "",
    choose: str = "",
    cross: bool = False,
    own_data: bool = False,
) -> ComparisonSpec:
    """A part of a comparison, or it with other seeds, metric or target. Lists are comma-separated.

    Args:
        methods: labels, or names of strategies, which may be ones that the comparison lacks; or paths of one's own.
        datasets: labels or data sets of the comparison; with `own_data` any data sets.

    Raises:
        SettingError: a name that is not there, with the nearest one; a seed or metric that is none.
    """
    changes: dict[str, Any] = {}
    lists = {"methods": methods, "datasets": datasets, "partitions": partitions, "seeds": seeds, "metric": metric}
    for option, text in lists.items():
        if text and not listed(text):
            raise SettingError(f"--{option} is {shown(text)}, which names none; leave it out for all.")
    if methods:
        # any method may be named, also one that the comparison lacks
        own = {entry.settings["strategy"] for entry in comparison.methods}
        others = [Entry(name, {"strategy": name}) for name in METHODS if name not in own]
        every = [*comparison.methods, *others]
        changes["methods"] = [_pick_method(name, every) for name in listed(methods, comparison.methods)]
        changes["vary"] = _varied_by(changes["methods"], comparison)
    if datasets and own_data:
        changes["datasets"] = [entry_of(name, "datasets") for name in listed(datasets)]
        changes["name"] = "-".join(entry.label for entry in changes["datasets"])
    elif datasets:
        changes["datasets"] = _picked(datasets, comparison.datasets, "--datasets")
    if partitions:
        changes["partitions"] = _picked(partitions, comparison.partitions, "--partitions")
    if seeds:
        changes["seeds"] = [int(seed) if seed.isascii() and seed.isdigit() else seed for seed in listed(seeds)]
    if metric:
        changes["metrics"] = [parse_metric(name) for name in listed(metric)]
    if target is not None:
        changes["target"] = target
    if choose:
        changes["choose"] = choose
    if cross:
        changes["cross"] = True
    narrowed = checked(partial(replace, comparison), changes)
    if baseline:
        return replace(narrowed, baseline=pick(baseline, narrowed.methods, "--baseline").label)
    if narrowed.baseline not in ("", *(entry.label for entry in narrowed.methods)):
        # --methods leaves the file's out
        return replace(narrowed, baseline="")
    return narrowed


def _pick_method(name: str, entries: Sequence[Entry]) -> Entry:
    if plugins.is_plugin(name) and name not in [entry.label for entry in entries]:
        return entry_of(name, "methods")
    return pick(name, entries, "--methods")


def _varied_by(chosen_methods: Sequence[Entry], comparison: ComparisonSpec) -> Any:
    """What the comparison's file varies, without settings that none but methods that are left out read.

    Raises:
        SettingError: a value that is varied cannot be.
    """
    table = comparison.vary
    if not table:
        return table
    left_out = [entry for entry in comparison.methods if entry not in chosen_methods]
    tried = varied_values(table)

    def read_by_any(entries: Sequence[Entry]) -> set[str]:
        names: set[str] = set()
        for entry in entries:
            names |= read_by(comparison, entry, tried, {}) - entry.settings.keys()
        return names

    idle = read_by_any(left_out) - read_by_any(chosen_methods)
    return {name: values for name, values in leaves(table) if name not in idle}


def _picked(names: str, entries: Sequence[Entry], option: str) -> list[Entry]:
    return [pick(name, entries, option) for name in listed(names, entries)]


def named(comparison: ComparisonSpec, overrides: Mapping[str, Scalar], tried: Sequence[str] = ()) -> ComparisonSpec:
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
    if "dataset" in overrides and len(comparison.datasets) == 1:
        (old,) = comparison.datasets
        label = short_name(str(overrides["dataset"]))
        changes["datasets"] = (replace(old, label=label),)
        changes["name"] = label if comparison.name == old.label else comparison.name
    entries = [*comparison.datasets, *comparison.partitions]
    entry_settings = {name for entry in entries for name in entry.settings} - {"dataset"}
    telling = {name: value for name, value in overrides.items() if name in NAMING | entry_settings}
    if telling and len(comparison.partitions) > 1:
        labels = ", ".join(entry.label for entry in comparison.partitions)
        raise SettingError(
            f"setting `{next(iter(telling))}` may be what the labels of the partitions say ({labels}), or is what they "
            "differ in; choose one of them by --partitions, which then gets a name of what it is, or change the file."
        )
    if telling:
        partition = comparison.partitions[0] if comparison.partitions else Entry("")
        changes["partitions"] = (replace(partition, label=_name_partition({**partition.settings, **telling})),)
    return replace(comparison, **changes)


def _name_partition(settings: Mapping[str, Scalar]) -> str:
    """A partition's name: what decides it, without what another kind of partition would ask for."""
    kind = settings.get("partition")
    unread_names = NAMING - {"partition", *OF_PARTITION.get(str(kind), NAMING)}
    parts = [str(kind)] if kind is not None else []
    for name, value in settings.items():
        if name != "partition" and name not in unread_names:
            # of a file its name will do
            parts.append(f"{name} {Path(value).name if isinstance(value, str) else value}")
    return ", ".join(parts)


def listed(text: str, entries: Sequence[Entry] = ()) -> list[str]:
    """What a list with commas holds; labels of `entries` that hold commas themselves are found whole, the longest
    first.

    >>> listed("local, frame (control, sends nothing)", [Entry("frame (control, sends nothing)")])
    ['local', 'frame (control, sends nothing)']
    """
    parts = [item.strip() for item in text.split(",") if item.strip()]
    plain_labels = {plain(entry.label) for entry in entries}
    names = []
    while parts:
        length = next((n for n in range(len(parts), 1, -1) if plain("".join(parts[:n])) in plain_labels), 1)
        names.append(", ".join(parts[:length]))
        parts = parts[length:]
    return names
