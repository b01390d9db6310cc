"""Golden runs: no figure and no default of any method changes unless somebody means it."""

import json

import pytest

from protosphere.strategies import METHODS
from tests.strategies import golden


@pytest.mark.parametrize("name", METHODS)
def test_a_run_s_figures_and_the_method_s_defaults_are_the_golden_ones(run, name):
    kept = json.loads(golden.path_of(name).read_text())
    folder = run(golden.settings_of(name), clients=golden.CLIENTS)
    changed = golden.changes(kept, golden.golden(name, folder))
    assert not changed, (
        f"of the golden run of {name} changed, from what to what by round:\n  "
        + "\n  ".join(changed)
        + f"\nIf that is meant, renew it: python -m tests.strategies.golden {name}"
    )


def test_every_method_has_golden_figures_and_no_other():
    assert {path.stem for path in golden.FOLDER.glob("*.json")} == set(METHODS)
