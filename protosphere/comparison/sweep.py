"""Settings of methods that are tried out. A method that reads one stands in the plan once a value, and all are run.

A sweep chooses on validation rows, so that the test rows say only what came of it: in the tables a method (`Entry.of`
names it) stands once, in each row with the values whose mean validation accuracy over the seeds is highest. A setting
that is varied is to be seen: a method (`Entry.varied_of` names it) stands in all tables once a value, one setting at a
time, and nothing is chosen.
"""

import itertools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Any

import pandas as pd

from protosphere.comparison.figures import VALIDATION, Spread, by_method, spread
from protosphere.comparison.plan import NOT_HERE, OF_A_ROW, Comparison, Entry, refuse_twice, varied_label
from protosphere.comparison.trials import settings_of
from protosphere.core.errors import SettingError
from protosphere.core.settings import Scalar, nearest, shown
from protosphere.strategies import known_settings, load_method, settings_read

SWEEP, VARY = "--sweep", "--vary"
Variants = Callable[[Entry, Mapping[str, Sequence[Scalar]]], list[Entry]]


@dataclass(frozen=True)
class Choice:
    """What was chosen of one method in one row.

    Attributes:
        tried: label of each variant -> its validation accuracy over the seeds.
        chosen: the label, of equal ones the first; empty while a run of them is missing.
    """

    row: str
    method: str
    tried: Mapping[str, Spread | None]
    chosen: str

    @property
    def ties(self) -> list[str]:
        """The labels of the variants that are as good as the one chosen, this one included; none where it is alone."""
        best = self.tried.get(self.chosen)
        if best is None:
            return []
        equal = [label for label, spread in self.tried.items() if spread and isclose(spread.mean, best.mean)]
        return equal if len(equal) > 1 else []

    def values(self, label: str) -> str:
        """What tells a variant from the others of its method: `gamma = 10`."""
        return label.removeprefix(f"{self.method}, ")


def swept(
    comparison: Comparison, sweep_texts: Sequence[str] = (), overrides: Mapping[str, Scalar] | None = None
) -> Comparison:
    """The comparison with each method that reads a swept setting as one method for every choice of values.

    Args:
        sweep_texts: such as `protonorm.gamma=3,10,30`; with them those of the comparison's file, which they replace by
            name.
        overrides: what `-c` says, for all methods.

    Raises:
        SettingError: a sweep is none, no method reads its setting, or the methods of a row share it.
    """
    sweeps = values_of(comparison.sweep, sweep_texts, SWEEP, "sweep")
    if not sweeps:
        return comparison
    methods = expanded(comparison, sweeps, SWEEP, overrides or {}, _all_combinations)
    # by the method's own name, which none of its variants has
    return replace(comparison, methods=methods, baseline=comparison.baseline_label)


def varied(
    comparison: Comparison, texts: Sequence[str] = (), overrides: Mapping[str, Scalar] | None = None
) -> Comparison:
    """The comparison with each method that reads a varied setting as one method for each of its values.

    Args:
        texts: such as `protonorm.gamma=1,10,100`; with them those of the comparison's file, which they replace by name.
        overrides: what `-c` says, for all methods.

    Raises:
        SettingError: it is no setting with values, no method reads it, or the methods of a row share it.
    """
    values_by_setting = values_of(comparison.vary, texts, VARY, "vary")
    if not values_by_setting:
        return comparison
    methods = expanded(comparison, values_by_setting, VARY, overrides or {}, _one_at_a_time)
    return replace(comparison, methods=methods, baseline=_baseline(comparison, methods))


def settings_varied(comparison: Comparison) -> list[str]:
    """The settings that are varied, in their order."""
    return list(dict.fromkeys(name for entry in comparison.methods for name in entry.varied))


def expanded(
    comparison: Comparison,
    values_by_setting: Mapping[str, Sequence[Scalar]],
    option: str,
    overrides: Mapping[str, Scalar],
    variants: Variants,
) -> tuple[Entry, ...]:
    """The methods, of which each that reads one of the settings stands once for each of its variants.

    Args:
        variants: of a method and the settings that it reads, with their values.

    Raises:
        SettingError: no method reads a setting, or the methods of a row share it.
    """
    refuse_of_a_row(comparison, values_by_setting, option)
    methods: list[Entry] = []
    read: set[str] = set()
    setting_names: set[str] = set()
    for entry in comparison.methods:
        names = read_by(comparison, entry, values_by_setting, overrides)
        setting_names |= names
        method_values = {
            name: values for name, values in values_by_setting.items() if name in names and name not in entry.settings
        }
        read |= method_values.keys()
        methods += variants(entry, method_values) if method_values else [entry]
    if idle := sorted(values_by_setting.keys() - read):
        hint = nearest(idle[0], sorted(setting_names))
        raise SettingError(f"{option} {idle[0]}{hint}: no method of this comparison reads it, or each has its own.")
    refuse_twice([entry.label for entry in methods])
    return tuple(methods)


def values_of(table: Mapping[str, Any], texts: Sequence[str], option: str, key: str) -> dict[str, list[Scalar]]:
    """The settings that a comparison tries with their values, of its file and of the command line, which goes before.

    Args:
        table: as the file has it under `key`. texts: of the `option`, such as `protonorm.gamma=3,10,30`.

    Raises:
        SettingError: what is no setting with two values or more.
    """
    return dict(_of_file(table, key)) | dict(_of_words(text, option) for text in texts)


def refuse_of_a_row(comparison: Comparison, settings: Iterable[str], option: str) -> None:
    """Refuse to try values of what is no method's own.

    Raises:
        SettingError: the methods of a row share it, or --equal-steps decides it.
    """
    for name in settings:
        if name in OF_A_ROW or name in NOT_HERE or name == "strategy":
            raise SettingError(
                f"{option} {name}: the methods of a row share it, or it makes no run of its own; make [[partitions]] "
                "or rows of its values instead."
            )
    epochs = {name for entry in comparison.methods for name in load_method(str(entry.settings["strategy"])).epochs}
    if comparison.equal_steps and (scaled := sorted(epochs.intersection(settings))):
        raise SettingError(
            f"{option} {scaled[0]}: --equal-steps sets the epochs of every method; leave one of them out."
        )


def read_by(
    comparison: Comparison, entry: Entry, sweeps: Mapping[str, Sequence[Scalar]], overrides: Mapping[str, Scalar]
) -> set[str]:
    """What a method reads in any row, by any choice of its own settings that are swept: they may decide it."""
    rows = [settings_of(comparison, row, entry, overrides) for row in comparison.rows]
    prefixes = load_method(str(entry.settings["strategy"])).settings
    method_sweeps = {n: values for n, values in sweeps.items() if n in rows[0] and n.rpartition(".")[0] in prefixes}
    choices = [dict(zip(method_sweeps, values, strict=True)) for values in itertools.product(*method_sweeps.values())]
    return {name for row in rows for choice in choices for name in settings_read(row | choice)}


def tuned(comparison: Comparison, frame: pd.DataFrame) -> tuple[Comparison, pd.DataFrame, list[Choice]]:
    """The comparison with each swept method once, its finished cells with those of what was chosen under its name, and
    what was chosen.

    Args:
        frame: of all cells.
    """
    frame = frame[frame["status"] == "completed"]
    of_variant = {entry.label: entry.of for entry in comparison.methods if entry.of}
    choices = [
        _choice(frame, comparison, row.label, of)
        for row in comparison.rows
        for of in dict.fromkeys(of_variant.values())
    ]
    label_of = {(choice.row, choice.chosen): choice.method for choice in choices}
    labels = []
    for row, method in zip(frame["row"], frame["method"], strict=True):
        labels.append(label_of.get((row, method)) if method in of_variant else method)
    once = frame.assign(method=labels).dropna(subset="method")
    methods = {
        entry.of or entry.label: replace(entry, label=entry.of or entry.label, of="") for entry in comparison.methods
    }
    return replace(comparison, methods=tuple(methods.values())), once, choices


def _of_words(text: str, option: str) -> tuple[str, list[Scalar]]:
    name, sign, values = text.partition("=")
    try:
        listed: Any = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        listed = None
    return _sweep(name.strip() if sign else "", listed, f"{option} is {text!r}")


def _of_file(table: Any, key: str, prefix: str = "") -> Iterator[tuple[str, list[Scalar]]]:
    if not isinstance(table, dict):
        raise SettingError(f"`{key}` is a table: write [{key}] and a setting and the list of its values a line.")
    for name, values in table.items():
        if isinstance(values, dict):
            yield from _of_file(values, key, f"{prefix}{name}.")
        else:
            yield _sweep(prefix + name, values, f"`{prefix}{name}` in [{key}] is {shown(values)}")


def _sweep(name: str, values: Any, problem: str) -> tuple[str, list[Scalar]]:
    if not name or not isinstance(values, list) or len(values) < 2:
        raise SettingError(
            f"{problem}, but it is a setting and two values or more, strings in double quotes, as in "
            "'protonorm.gamma=3,10,30'."
        )
    if any(not isinstance(value, bool | int | float | str) for value in values):
        raise SettingError(f"{problem}, but a value is a number, true, false or a string.")
    refuse_twice([shown(value) for value in values])
    return name, values


def _all_combinations(entry: Entry, sweeps: Mapping[str, Sequence[Scalar]]) -> list[Entry]:
    variants = []
    for values in itertools.product(*sweeps.values()):
        settings = dict(zip(sweeps, values, strict=True))
        label = ", ".join(f"{name.rpartition('.')[2]} = {value}" for name, value in settings.items())
        variants.append(
            replace(entry, label=f"{entry.label}, {label}", settings=entry.settings | settings, of=entry.label)
        )
    return variants


def _one_at_a_time(entry: Entry, values_by_setting: Mapping[str, Sequence[Scalar]]) -> list[Entry]:
    return [
        replace(
            entry,
            label=varied_label(entry.label, name, value),
            settings=entry.settings | {name: value},
            varied_of=entry.label,
            varied={name: value},
        )
        for name, values in values_by_setting.items()
        for value in values
    ]


def _baseline(comparison: Comparison, methods: Sequence[Entry]) -> str:
    """The label of what the others are held against; of a varied method the one with the setting's default, else the
    first."""
    label = comparison.baseline_label
    variants = [entry for entry in methods if entry.varied_of == label]
    if not variants:
        return label
    defaults = known_settings(variants[0].settings["strategy"])
    usual = [entry for entry in variants if all(defaults.get(name) == value for name, value in entry.varied.items())]
    return (usual or variants)[0].label


def _choice(frame: pd.DataFrame, comparison: Comparison, row: str, of: str) -> Choice:
    runs = by_method(frame, comparison, row)
    tried = {entry.label: spread(runs[entry.label][VALIDATION]) for entry in comparison.methods if entry.of == of}
    return Choice(row, of, tried, best_of(tried, len(comparison.seeds)))


def best_of(tried: Mapping[str, Spread | None], seeds: int) -> str:
    """The label of the highest accuracy, of equal ones the first; empty while one of them lacks a seed."""
    means = {label: spread.mean for label, spread in tried.items() if spread and spread.seeds == seeds}
    if not means or len(means) < len(tried):
        return ""
    best = max(means.values())
    # sums of the same accuracies may differ in their last digit
    return next(label for label, mean in means.items() if isclose(mean, best))
