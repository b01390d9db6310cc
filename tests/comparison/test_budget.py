"""Equal budgets: every method of a row gets as many passes over its clients' samples."""

import pytest

from protosphere.comparison.budget import differ, epochs_of, equal_epochs, left_over
from protosphere.comparison.plan import from_table
from protosphere.comparison.sweep import swept
from protosphere.core.errors import SettingError
from protosphere.models import build
from protosphere.strategies import METHODS, known_settings
from protosphere.strategies.contract import ClientState
from tests.strategies.kin import D, K, objective_of
from tests.strategies.needs import ASKED


def settings(strategy, **changes):
    return known_settings() | {"strategy": strategy} | {name.replace("__", "."): v for name, v in changes.items()}


@pytest.mark.parametrize("strategy", METHODS)
@pytest.mark.parametrize("more", [{}, {"ditto.personal-epochs": 2, "fedrep.head-epochs": 5}], ids=["usual", "set"])
def test_they_are_those_of_the_methods_phases(strategy, more):
    own = {name: value for name, value in more.items() if name.startswith(f"{strategy}.")} | {"local-epochs": 3}
    objective = objective_of(strategy, **ASKED[strategy] | own)
    phases = objective.phases(ClientState(objective.build(build("tiny_perceptron", (5,), D, K, 0), 1)), 1)
    # of rows that a method makes itself there is nothing before something came
    assert sorted(phase.epochs for phase in phases) == sorted(epochs_of(settings(strategy, **own)).values())


def test_all_get_as_many_passes_as_the_method_that_makes_the_most():
    before = {name: settings(name) for name in ("local", "ditto", "fedrep")}
    after = equal_epochs(before)
    assert {name: sum(epochs_of(own).values()) for name, own in after.items()} == dict.fromkeys(before, 11)
    assert epochs_of(after["fedrep"]) == {"fedrep.head-epochs": 10, "local-epochs": 1}
    assert set(epochs_of(after["ditto"]).values()) == {5, 6}
    for name in before:
        changed = {key for key in after[name] if after[name][key] != before[name][key]}
        assert changed <= {"local-epochs", "ditto.personal-epochs", "fedrep.head-epochs"}
    # proportions stay, and what is equal already stays as it was
    few = equal_epochs({"fedrep": settings("fedrep"), "long": settings("local", **{"local-epochs": 33})})
    assert epochs_of(few["fedrep"]) == {"fedrep.head-epochs": 30, "local-epochs": 3}
    assert equal_epochs(after) == after


def test_a_phase_keeps_one_pass_however_small_its_share():
    many = {"fedrep": settings("fedrep", **{"fedrep.head-epochs": 1000}), "local": settings("local")}
    assert epochs_of(equal_epochs(many)["fedrep"]) == {"fedrep.head-epochs": 1000, "local-epochs": 1}


def test_a_pass_counts_by_the_batches_that_it_is_made_of():
    before = {"small": settings("local", **{"batch-size": 8}), "fedproto": settings("fedproto")}
    after = equal_epochs(before | {"odd": settings("local", **{"batch-size": 12})})
    # 1/8 a sample: four passes in batches of 32, one and a half in batches of 12
    assert {name: own["local-epochs"] for name, own in after.items()} == {"small": 1, "fedproto": 4, "odd": 2}


def test_what_is_left_over_is_named():
    assert left_over(["local", "./own.py"]) == "parts of an epoch and of a batch"
    assert left_over(["local", "gfpl"]).endswith(", retraining on pseudo-features after an exchange (`gfpl`)")


@pytest.mark.parametrize(
    ("steps", "differing"), [([], False), ([12], False), ([10, 9], False), ([10, 8.9], True), ([0, 0], False)]
)
def test_budgets_that_differ_by_more_than_a_tenth(steps, differing):
    assert differ(steps) == differing


def planned(**changes):
    table = {"methods": ["local", "ditto"], "datasets": ["spiral"], "seeds": [0], "equal-steps": True} | changes
    return from_table("test", table)


def test_what_cannot_be_made_equal_is_refused():
    with pytest.raises(SettingError, match="`equal-steps` is 1"):
        planned(**{"equal-steps": 1})
    # the label would say a value that is scaled
    for name in ("local-epochs", "ditto.personal-epochs"):
        with pytest.raises(SettingError, match=rf"--sweep {name}.*--equal-steps"):
            swept(planned(), [f"{name}=1,2"])
    assert len(swept(planned(), ["ditto.weight=1,2"]).methods) == 3
