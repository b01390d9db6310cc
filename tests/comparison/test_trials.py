"""From a comparison to its cells: what lies over what, and where data lie."""

from dataclasses import replace

import pytest

from protosphere.comparison.execution import SETTINGS, prepare
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric, Printed, Row
from protosphere.comparison.trials import expand, settings_of, with_common_rules
from protosphere.comparison.variants import with_variants
from protosphere.core.errors import SettingError
from protosphere.plans.run_config import plan
from protosphere.strategies import known_settings
from tests.pictures import paint

QUICK = {"max-samples": 400, "feature-dim": 12, "models": "tiny_perceptron", "device": "cpu", "clients": 4}
LOCAL = Entry("Local", {"strategy": "local"})
NORM = Entry("Norm", {"strategy": "protonorm", "protonorm.iterations": 9})
DIGITS = Entry("Digits", {"dataset": "digits"})


def comparison(**changes):
    given = {"methods": (LOCAL, NORM), "datasets": (DIGITS,), "seeds": (0, 5), "settings": QUICK}
    return ComparisonSpec("test", **(given | changes))


# --- what lies over what ------------------------------------------------------------------------------


def test_every_row_method_and_seed_is_a_cell():
    found = expand(comparison(partitions=(Entry("even", {"partition": "iid"}), Entry("skewed"))), {}, {})
    assert [cell.title for cell in found] == [
        f"Digits, {partition} | {method} | seed {seed}"
        for partition in ("even", "skewed")
        for method in ("Local", "Norm")
        for seed in (0, 5)
    ]
    assert [cell.name for cell in found[:2]] == ["digits-even-local-seed0", "digits-even-local-seed5"]
    assert {cell.settings["partition"] for cell in found[:4]} == {"iid"}
    assert [cell.settings["seed"] for cell in found[:2]] == [0, 5]
    assert found[0].settings.keys() == known_settings().keys() - {"results-dir", "resume"}


@pytest.mark.parametrize(
    ("changes", "metrics"),
    [
        ({}, ("classifier", "discriminant")),
        ({"methods": (LOCAL,)}, ("",)),
        ({"methods": (LOCAL, NORM)}, ("",)),  # of one rule
        ({"metrics": (Metric("pool"),)}, ("pool",)),
        ({"paper": (Printed("Digits", "Local", "headline", 90.0),)}, ("",)),
    ],
)
def test_methods_whose_own_rules_differ_are_compared_by_rules_that_all_have(changes, metrics):
    """`local` asks its prototypes, `pfpl` its classifier, `protosphere` its pool."""
    methods = (LOCAL, *(Entry(name, {"strategy": name}) for name in ("pfpl", "protosphere")))
    made = comparison(**{"methods": methods, "seeds": (0,)} | changes)
    found = with_common_rules(made, expand(made, {}, {}))
    assert found == replace(made, metrics=tuple(Metric(rule) for rule in metrics))


def test_later_layers_lie_over_earlier_ones():
    """The preset, common settings, the data set, the partition, the method, what the command line says."""
    names = ["rounds", "batch-size", "feature-dim", "alpha", "test-share", "learning-rate", "momentum"]
    common, dataset, partition, method, overrides = (
        dict.fromkeys(names[number:], 0.1 + number / 100) for number in range(1, 6)
    )
    made = comparison(settings={"protonorm.gamma": 1.0} | common)
    row = Row(Entry("d", dataset, base="protonorm-cifar100"), Entry("p", partition))
    found = settings_of(made, row, Entry("m", method | {"strategy": "protonorm"}), overrides)
    # rounds are the preset's; each layer decides what no later one does
    assert [found[name] for name in names] == [300, *(0.1 + number / 100 for number in (1, 2, 3, 4, 5, 5))]
    assert (found["protonorm.gamma"], found["clients"], found["dataset"]) == (1.0, 20, "cifar100")


def test_a_data_sets_settings_of_a_method_are_that_methods_alone_and_lie_under_its_own():
    of_norm = {"protonorm.gamma": 3.0, "protonorm.iterations": 4}
    other = Entry("Other", {"strategy": "protonorm"})
    made = comparison(
        methods=(LOCAL, NORM, other),
        datasets=(replace(DIGITS, methods={"Norm": of_norm}), Entry("B", {"dataset": "digits"})),
    )
    first, second = made.rows
    assert (
        settings_of(made, first, NORM)["protonorm.gamma"],
        settings_of(made, first, NORM)["protonorm.iterations"],
    ) == (3, 9)
    assert (
        settings_of(made, first, other)["protonorm.gamma"] == settings_of(made, second, NORM)["protonorm.gamma"] == 10.0
    )
    assert settings_of(made, first, NORM, {"protonorm.gamma": 2.0})["protonorm.gamma"] == 2.0
    # of each value that is varied, too, but for the setting itself
    for entry in with_variants(made, ["protonorm.epsilon=0.1,0.2", "protonorm.gamma=5,6"]).methods:
        if entry.varied_of == "Norm":
            gamma = settings_of(made, first, entry)["protonorm.gamma"]
            assert gamma == entry.varied.get("protonorm.gamma", 3.0)


def test_settings_of_other_methods_fall_away_but_not_a_methods_own():
    made = comparison(settings=QUICK | {"protonorm.gamma": 3.0})
    row = made.rows[0]
    assert settings_of(made, row, NORM, {"protonorm.epsilon": 0.5})["protonorm.gamma"] == 3.0
    found = settings_of(made, row, LOCAL, {"protonorm.epsilon": 0.5})
    assert (found["protonorm.gamma"], found["protonorm.epsilon"]) == (10.0, 0.0001)
    with pytest.raises(SettingError, match=r"Digits \| Odd \| seed 0: setting `protonorm.gamma` is 3.0, but `local`"):
        expand(comparison(methods=(Entry("Odd", {"strategy": "local", "protonorm.gamma": 3.0}),)), {}, {})


def test_a_trials_settings_file_says_the_same_again_defaults_that_were_asked_for_too(tmp_path):
    """A partition and models that nobody asks for would be chosen by the data."""
    for site in ("berlin.csv", "paris.csv"):
        (tmp_path / site).write_text("x,label\n" + "".join(f"{row},{row % 2}\n" for row in range(80)))
    sites = ",".join(str(tmp_path / site) for site in ("berlin.csv", "paris.csv"))
    given = Entry("Sites", {"dataset": sites, "partition": "dirichlet", "alpha": 10.0, "clients": 4})
    asked = comparison(datasets=(given,), settings={"models": "tiny_perceptron", "learning-rate": 1e-5})
    trial = expand(asked, {"rounds": 7}, {})[-1]
    folder = ComparisonFolder.create(asked, [trial], str(tmp_path / "results"))
    prepare(folder, trial)
    own = plan([str(folder.of(trial) / SETTINGS)]).run_config
    assert {name: own[name] for name in trial.settings} == trial.settings
    assert (own["partition"], own["seed"], own["rounds"]) == ("dirichlet", 5, 7)


# --- where data lie ---------------------------------------------------------------------------------------


def test_data_sets_are_found_where_the_command_says(tmp_path, monkeypatch):
    folder = tmp_path / "photos"
    paint(folder / "train", "abc", 20)
    paint(tmp_path / "syn" / "train", "abc", 20)
    monkeypatch.chdir(tmp_path)
    places = {"cifar100": "photos", "femnist": str(folder), "usps": str(folder), "syn": str(tmp_path / "syn")}
    femnist = Entry("F", {"dataset": "~/no such folder/femnist"})
    # one domain of several lies elsewhere
    several = Entry("S", {"dataset": "~/no such folder/usps,~/syn", "partition": "mixed", "shots": 0})
    rows = (Entry("C", base="protonorm-cifar100"), DIGITS, femnist, several)
    found = expand(comparison(datasets=rows, seeds=(0,), methods=(LOCAL,)), {"rounds": 1}, places)
    wanted = [str(folder), "digits", str(folder), f"{folder},{places['syn']}"]
    assert [cell.settings["dataset"] for cell in found] == wanted
