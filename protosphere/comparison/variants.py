"""Settings that are varied: a method that reads one stands in the plan once a value, and all are run.

One setting is varied at a time, as the papers' figures do, or all are crossed. Each variant stands in all tables. With
`choose = "validation"` it tunes: in each row a method stands once, as the variant whose mean accuracy on validation
samples is highest over the seeds, so that test samples say only what came of it.
"""

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import isclose
from typing import Any

import pandas as pd

from protosphere.comparison.frame import VALIDATION, MeanStd, by_method, summarise
from protosphere.comparison.spec import (
    NOT_HERE,
    OF_A_ROW,
    ComparisonSpec,
    Entry,
    refuse_twice,
    varied_label,
)
from protosphere.comparison.trials import settings_of
from protosphere.core.errors import SettingError
from protosphere.core.settings import Scalar, nearest, shown
from protosphere.plans.assignments import leaves
from protosphere.strategies import known_settings, load_method, settings_read


@dataclass(frozen=True)
class Choice:
    """What was chosen of one method in one row.

    Attributes:
        tried: label of each variant -> its validation accuracy over the seeds.
        chosen: the label, of equal ones the first; empty while a run of them is missing.
    """

    row: str
    method: str
    tried: Mapping[str, MeanStd | None]
    chosen: str

    def values(self, label: str) -> str:
        """What tells a variant from the others of its method: `gamma = 10`."""
        return label.removeprefix(f"{self.method}, ")


# --- before the trials: variants in the place of methods ---------------------------------------------------------


def with_variants(
    comparison: ComparisonSpec,
    texts: Sequence[str] = (),
    overrides: Mapping[str, Scalar] | None = None,
    of_file: Sequence[Entry] = (),
) -> ComparisonSpec:
    """The comparison with each method that reads a varied setting as its variants.

    Its baseline, where that is such a method and its variants are shown, is the one with the setting's default, else
    the first.

    Args:
        texts: such as `protonorm.gamma=3,10,30`; with them those of the comparison's file, which they replace by name.
        overrides: what `-c` says, for all methods.
        of_file: the methods of the comparison's file, some of which may be left out here; what the file varies and no
            other reads is then not varied.

    Raises:
        SettingError: it is no setting with values, no method reads it, or the methods of a row share it.
    """
    overrides = overrides or {}
    of_texts = dict(map(_of_text, texts))
    values_by_setting = _of_file(comparison.vary) | of_texts
    if not values_by_setting:
        if comparison.choose or comparison.cross:
            raise SettingError("choose and cross are of settings that are varied, and none is; name one by [vary].")
        return comparison
    is_part = bool(of_file) and tuple(of_file) != comparison.methods
    may_be_idle = values_by_setting.keys() - of_texts.keys() if is_part else set()
    methods: list[Entry] = []
    for entry, values in _values_by_method(comparison, values_by_setting, overrides, may_be_idle):
        for combination in _combinations(values, comparison.cross) if values else [{}]:
            label = entry.label
            for name, value in combination.items():
                label = varied_label(label, name, value)
            variant = replace(entry, label=label, settings=entry.settings | combination, varied=combination)
            methods.append(replace(variant, varied_of=entry.label) if combination else entry)
    if len(methods) == len(comparison.methods):
        return comparison
    refuse_twice([entry.label for entry in methods])
    baseline = comparison.baseline_label
    variants = [entry for entry in methods if entry.varied_of == baseline]
    # where one is chosen, the table has it by the method's own name
    if variants and not comparison.choose:
        defaults = known_settings(variants[0].settings["strategy"])
        usual = [entry.label for entry in variants if entry.varied.items() <= defaults.items()]
        baseline = usual[0] if usual else variants[0].label
    return replace(comparison, methods=tuple(methods), baseline=baseline)


def settings_varied(comparison: ComparisonSpec) -> list[str]:
    """The settings that are varied, in their order."""
    return list(dict.fromkeys(name for entry in comparison.methods for name in entry.varied))


def _combinations(values: Mapping[str, Sequence[Scalar]], is_crossed: bool) -> Iterator[dict[str, Scalar]]:
    if is_crossed:
        for combination in itertools.product(*values.values()):
            yield dict(zip(values, combination, strict=True))
        return
    for name, of_name in values.items():
        for value in of_name:
            yield {name: value}


def _values_by_method(
    comparison: ComparisonSpec,
    values_by_setting: Mapping[str, list[Scalar]],
    overrides: Mapping[str, Scalar],
    may_be_idle: Set[str],
) -> list[tuple[Entry, dict[str, list[Scalar]]]]:
    """Each method with those of the settings that it reads and does not set itself, with their values.

    Args:
        may_be_idle: settings that no method need read.

    Raises:
        SettingError: no method reads one, the methods of a row share it, or there is none of that name.
    """
    known_names: set[str] = set()
    for entry in comparison.methods:
        known_names |= known_settings(entry.settings["strategy"]).keys()
    for name in values_by_setting:
        if name not in known_names:
            raise SettingError(f"--vary {name}{nearest(name, sorted(known_names))}: there is no such setting.")
        if name in OF_A_ROW or name in NOT_HERE or name == "strategy":
            raise SettingError(
                f"--vary {name}: the methods of a row share it, or it makes no run of its own; make [[partitions]] or "
                "rows of its values instead."
            )
    idle = set(values_by_setting) - may_be_idle
    values_by_method = []
    for entry in comparison.methods:
        read_names = _read_by(comparison, entry, values_by_setting, overrides) - entry.settings.keys()
        values_by_method.append(
            (entry, {name: values_by_setting[name] for name in values_by_setting if name in read_names})
        )
        idle -= read_names
    if idle:
        raise SettingError(f"--vary {min(idle)}: no method of this comparison reads it, or each has its own.")
    return values_by_method


def _read_by(
    comparison: ComparisonSpec, entry: Entry, tried: Mapping[str, Sequence[Scalar]], overrides: Mapping[str, Scalar]
) -> set[str]:
    """What a method reads in any row, by any choice of its own settings that are tried: they may decide it.

    Raises:
        SettingError: a value that is tried cannot be.
    """
    prefixes = load_method(str(entry.settings["strategy"])).settings
    read: set[str] = set()
    for row in comparison.rows:
        settings = settings_of(comparison, row, entry, overrides)
        own_names = [name for name in tried if name in settings and name.rpartition(".")[0] in prefixes]
        for values in itertools.product(*(tried[name] for name in own_names)):
            read |= settings_read(settings | dict(zip(own_names, values, strict=True)))
    return read


def _of_text(text: str) -> tuple[str, list[Scalar]]:
    name, sign, values = text.partition("=")
    try:
        listed: Any = tomllib.loads(f"values = [{values}]")["values"]
    except ValueError:
        listed = None
    name = name.strip() if sign else ""
    _refuse_no_values(name, listed, f"--vary is {text!r}")
    return name, listed


def _of_file(table: Any) -> dict[str, list[Scalar]]:
    values_by_setting = dict(leaves(table))
    for name, values in values_by_setting.items():
        _refuse_no_values(name, values, f"`{name}` in [vary] is {shown(values)}")
    return values_by_setting


def _refuse_no_values(name: str, values: Any, problem: str) -> None:
    if not name or not isinstance(values, list) or len(values) < 2:
        raise SettingError(
            f"{problem}, but it is a setting and two values or more, strings in double quotes, as in "
            "'protonorm.gamma=3,10,30'."
        )
    if any(not isinstance(value, bool | int | float | str) for value in values):
        raise SettingError(f"{problem}, but a value is a number, true, false or a string.")
    # 1 and 1.0 are one value, and true is another
    are_numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in values]
    refuse_twice([shown(float(v) if is_number else v) for v, is_number in zip(values, are_numbers, strict=True)])


# --- after the trials: one variant of each method ----------------------------------------------------------------


def choose_variants(
    comparison: ComparisonSpec, trials: pd.DataFrame
) -> tuple[ComparisonSpec, pd.DataFrame, list[Choice]]:
    """Where variants are chosen, the comparison with each method once, its finished trials with those of the variant
    chosen under the method's name, and what was chosen; else the comparison and its finished trials.

    Args:
        trials: all of them.
    """
    trials = trials[trials["status"] == "completed"]
    if not comparison.choose:
        return comparison, trials, []
    methods = {}
    for entry in comparison.methods:
        label = entry.varied_of or entry.label
        methods[label] = replace(entry, label=label, varied_of="", varied={})
    choices = []
    names = {}
    for row in comparison.rows:
        runs = by_method(trials, comparison, row.label)
        tried: dict[str, dict[str, MeanStd | None]] = {}
        for entry in comparison.methods:
            if entry.varied_of:
                tried.setdefault(entry.varied_of, {})[entry.label] = summarise(runs[entry.label][VALIDATION])
            else:
                names[row.label, entry.label] = entry.label
        for method, accuracies in tried.items():
            best = best_of(accuracies, len(comparison.seeds))
            choices.append(Choice(row.label, method, accuracies, best))
            names[row.label, best] = method
    labels = [names.get(labels) for labels in zip(trials["row"], trials["method"], strict=True)]
    once = trials.assign(method=labels).dropna(subset="method")
    return replace(comparison, methods=tuple(methods.values())), once, choices


def best_of(tried: Mapping[str, MeanStd | None], seeds: int) -> str:
    """The label of the highest accuracy, of equal ones the first; empty while one of them lacks a seed."""
    means = {label: accuracy.mean for label, accuracy in tried.items() if accuracy and accuracy.seeds == seeds}
    if not means or len(means) < len(tried):
        return ""
    best = max(means.values())
    # sums of the same accuracies may differ in their last digit
    return next(label for label, mean in means.items() if isclose(mean, best))
