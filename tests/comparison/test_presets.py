"""The papers' tables as presets: no setting and no printed figure changes by accident.

Every preset was compared with its paper and protocol, cell by cell. `presets.json` has a digest of each part of each
preset, with the defaults that it leaves out. `python -m tests.comparison.test_presets` renews it.
"""

import hashlib
import json
from pathlib import Path

from protosphere.comparison.spec import comparison_names, load
from protosphere.comparison.trials import settings_of
from protosphere.plans.run_config import preset_names, read_preset

FILE = Path(__file__).with_name("presets.json")
PACKAGE = str(Path(read_preset.__code__.co_filename).resolve().parents[1])


def digest(content):
    """A digest that depends neither on the order of settings nor on the place of this checkout."""
    text = json.dumps(content, sort_keys=True).replace(PACKAGE, ".")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digests_of(name):
    """The digests of a comparison's preset: of its head, of its printed figures, and of the methods of each row."""
    spec = load(preset=name)
    head = {"seeds": spec.seeds, "metrics": list(map(str, spec.metrics)), "vary": spec.vary}
    digests = {"head": digest(head)}
    digests["paper"] = digest([[each.row, each.metric, each.method, each.accuracy] for each in spec.paper])
    for row in spec.rows:
        digests[row.label] = digest({method.label: settings_of(spec, row, method) for method in spec.methods})
    return digests


def digests_of_runs():
    return {name: digest(read_preset(name)) for name in preset_names()}


def test_presets_of_runs_are_those_that_were_compared_with_the_papers():
    assert digests_of_runs() == json.loads(FILE.read_text())["runs"]


def test_presets_of_tables_are_those_that_were_compared_with_the_papers():
    digests = json.loads(FILE.read_text())["tables"]
    assert [*digests] == comparison_names()
    for name in digests:
        assert digests_of(name) == digests[name], name


if __name__ == "__main__":
    content = {"runs": digests_of_runs(), "tables": {name: digests_of(name) for name in comparison_names()}}
    FILE.write_text(json.dumps(content, indent=0, ensure_ascii=False) + "\n")
