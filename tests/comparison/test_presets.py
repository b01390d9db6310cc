"""The papers' tables as presets: no setting and no printed figure of any changes unless somebody means it.

The tables in `presets.json` were held against the papers and their protocols, cell by cell. Of the presets of single
runs and of the defaults, which are files themselves, it has digests. `python -m tests.comparison.test_presets` renews
it, and the diff shows what changed.
"""

import hashlib
import json
from pathlib import Path

from protosphere.comparison.spec import comparison_names, load
from protosphere.comparison.trials import settings_of
from protosphere.plans.run_config import preset_names, read_preset
from protosphere.strategies import known_settings, load_method

KEPT = Path(__file__).with_name("presets.json")
HERE = str(Path(read_preset.__code__.co_filename).resolve().parents[1])


def table(name):
    """Of a comparison's preset: what the methods of a row share of its settings, and what each has of its own, in every
    row and beside that in some."""
    comparison = load(preset=name)
    rows, own = {}, {method.label: {} for method in comparison.methods}
    for row in comparison.rows:
        found = {method.label: not_default(settings_of(comparison, row, method)) for method in comparison.methods}
        rows[row.label] = shared(found)
        for label, settings in found.items():
            own[label][row.label] = without(settings, rows[row.label])
    methods = {}
    for label, by_row in own.items():
        everywhere = shared(by_row)
        rest = {row: without(settings, everywhere) for row, settings in by_row.items()}
        methods[label] = everywhere | {row: settings for row, settings in rest.items() if settings}
    paper = {}
    for each in comparison.paper:
        paper.setdefault(f"{each.row} | {each.metric}", {})[each.method] = each.accuracy
    vary = {"vary": comparison.vary} if comparison.vary else {}
    return vary | {
        "seeds": list(comparison.seeds),
        "metrics": [str(metric) for metric in comparison.metrics],
        "paper": paper,
        "rows": rows,
        "methods": methods,
    }


def shared(settings):
    """What is the same in all of several settings."""
    first, *others = settings.values()
    return {name: value for name, value in first.items() if all(o.get(name, "default") == value for o in others)}


def not_default(settings):
    """The settings that differ from their defaults."""
    return without(settings, known_settings(settings["strategy"]))


def without(settings, common):
    """What is not among those in common, by name and value."""
    return {name: value for name, value in settings.items() if name not in common or common[name] != value}


def everything():
    """All presets, and the defaults of the settings that they may leave out."""
    found = {"tables": {name: table(name) for name in comparison_names()}}
    found["runs"] = {name: digest(read_preset(name)) for name in preset_names()}
    methods = {method.settings["strategy"] for name in comparison_names() for method in load(preset=name).methods}
    own = {group for name in methods for group in load_method(name).settings}
    defaults = {name: value for name, value in known_settings().items() if "." not in name or name.split(".")[0] in own}
    found["defaults"] = {"of all": digest(defaults)}
    return without_place(found)


def digest(settings):
    """Of settings, in whatever order."""
    return hashlib.sha256(json.dumps(without_place(settings), sort_keys=True).encode()).hexdigest()


def without_place(content):
    """As JSON has it, wherever this checkout lies."""
    return json.loads(json.dumps(content).replace(HERE, "."))


def written(value, depth=0):
    """As JSON, of which what lies deepest stands on one line."""
    if depth > 3 or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    inner = ",\n".join(f"{json.dumps(k, ensure_ascii=False)}: {written(v, depth + 1)}" for k, v in value.items())
    return "{\n" + inner + "\n}"


def test_presets_are_as_they_were_held_against_the_papers():
    found, kept = everything(), json.loads(KEPT.read_text())
    for kind in found:
        assert list(found[kind]) == list(kept[kind])
        for name in found[kind]:
            assert found[kind][name] == kept[kind][name], name


if __name__ == "__main__":
    KEPT.write_text(written(everything()) + "\n")
