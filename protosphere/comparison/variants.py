"""Varied settings: a method that reads one is replaced by a variant for each value.

One setting varies at a time, as in the papers' figures, or all are crossed.
"""

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from protosphere.comparison.spec import NOT_HERE, OF_A_ROW, ComparisonSpec, Entry, refuse_duplicates, varied_label
from protosphere.comparison.trials import settings_of
from protosphere.core.errors import SettingError
from protosphere.core.settings import GONE, Scalar, nearest, refuse_unknown, shown
from protosphere.plans.assignments import leaves
from protosphere.strategies import known_settings, load_method, settings_read

Values = dict[str, list[Scalar]]  # of settings


def with_variants(
    spec: ComparisonSpec,
    texts: Sequence[str] = (),
    overrides: Mapping[str, Scalar] | None = None,
    is_part: bool = False,
) -> ComparisonSpec:
    """The comparison with variants in place of each method that reads a varied setting.

    If the variants of the baseline are all shown, the one with the setting's default, else the first, is the baseline.

    Args:
        texts: such as `protonorm.gamma=3,10,30`; they go before those of the file.
        overrides: the settings of `-c`.
        is_part: whether methods of the file were left out; then no method need read what the file varies.
    """
    values_by_setting = _values_of(spec.vary, texts)
    if not values_by_setting:
        if spec.choose or spec.cross:
            raise SettingError("choose and cross are of settings that are varied, and none is; name one by [vary].")
        return spec
    known_names: set[str] = set()
    for entry in spec.methods:
        known_names |= known_settings(entry.settings["strategy"]).keys()
    for name in values_by_setting:
        if name in GONE:
            refuse_unknown([name], known_names)
        if name not in known_names:
            raise SettingError(f"--vary {name}{nearest(name, sorted(known_names))}: there is no such setting.")
        if name in OF_A_ROW or name in NOT_HERE or name == "strategy":
            raise SettingError(f"--vary {name}: the methods of a row share it; make [[partitions]] of its values.")
    unused_names = set(values_by_setting)
    if is_part:
        unused_names = {text.partition("=")[0].strip() for text in texts}
    methods: list[Entry] = []
    for entry in spec.methods:
        read_names = _settings_read(spec, entry, values_by_setting, overrides or {}) - entry.settings.keys()
        unused_names -= read_names
        values = {name: values for name, values in values_by_setting.items() if name in read_names}
        methods += list(_variants_of(entry, values, spec.cross)) if values else [entry]
    if unused_names:
        raise SettingError(f"--vary {min(unused_names)}: no method of this comparison reads it, or each has its own.")
    refuse_duplicates([entry.label for entry in methods])
    baseline = spec.baseline_label
    variants = [entry for entry in methods if entry.varied_of == baseline]
    if variants and not spec.choose:
        defaults = known_settings(variants[0].settings["strategy"])
        usual = [entry for entry in variants if entry.varied.items() <= defaults.items()]
        baseline = (usual or variants)[0].label
    return replace(spec, methods=tuple(methods), baseline=baseline)


def _variants_of(entry: Entry, values: Values, cross: bool) -> Iterator[Entry]:
    if cross:
        combinations = [
            dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())
        ]
    else:
        combinations = [{name: value} for name, of_name in values.items() for value in of_name]
    for combination in combinations:
        label = entry.label
        for name, value in combination.items():
            label = varied_label(label, name, value)
        settings = entry.settings | combination
        yield replace(entry, label=label, settings=settings, varied_of=entry.label, varied=combination)


def _settings_read(spec: ComparisonSpec, entry: Entry, varied: Values, overrides: Mapping[str, Scalar]) -> set[str]:
    """The settings that a method reads in any row; this may depend on the varied values of its own settings."""
    prefixes = load_method(str(entry.settings["strategy"])).settings
    read: set[str] = set()
    for row in spec.rows:
        settings = settings_of(spec, row, entry, overrides)
        own_names = [name for name in varied if name in settings and name.rpartition(".")[0] in prefixes]
        for values in itertools.product(*(varied[name] for name in own_names)):
            read |= settings_read(settings | dict(zip(own_names, values, strict=True)))
    return read


def _values_of(table: Mapping[str, Any], texts: Sequence[str]) -> Values:
    """The values of each varied setting, from the file's [vary] and the texts of `--vary`."""
    values_by_setting = dict(leaves(table))
    places = dict.fromkeys(values_by_setting, "[vary]:")
    for text in texts:
        name, _, values = text.partition("=")
        places[name.strip()] = "--vary"
        try:
            values_by_setting[name.strip()] = tomllib.loads(f"values = [{values}]")["values"]
        except ValueError:
            values_by_setting[name.strip()] = values
    for name, values in values_by_setting.items():
        is_list = isinstance(values, list) and len(values) > 1
        if not is_list or any(not isinstance(value, bool | int | float | str) for value in values):
            raise SettingError(
                f"{places[name]} {name} has {shown(values)}, but it needs two values or more: numbers, true, false, or "
                "strings in double quotes, as in 'protonorm.gamma=3,10,30'."
            )
        # 1 and 1.0 are the same value; 1 and true are not
        refuse_duplicates([shown(float(value) if type(value) is int else value) for value in values])
    return values_by_setting
