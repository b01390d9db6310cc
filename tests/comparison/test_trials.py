"""From a comparison to its trials: the order of settings, and the places of data."""

import itertools
from dataclasses import replace

import pytest

from protosphere.comparing import resolve
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric, Printed, Row, load, narrow
from protosphere.comparison.trials import expand, settings_of, with_common_rules
from protosphere.comparison.variants import with_variants
from protosphere.core.errors import SettingError
from protosphere.strategies import known_settings
from tests.pictures import paint

QUICK = {"max-samples": 400, "feature-dim": 12, "models": "tiny_perceptron", "device": "cpu", "clients": 4}
LOCAL = Entry("Local", {"strategy": "local"})
NORM = Entry("Norm", {"strategy": "protonorm", "protonorm.iterations": 9})
DIGITS = Entry("Digits", {"dataset": "digits"})


def comparison(**changes):
    values = {"methods": (LOCAL, NORM), "datasets": (DIGITS,), "seeds": (0, 5), "settings": QUICK}
    return ComparisonSpec("test", **(values | changes))


def test_each_row_method_and_seed_is_a_trial():
    trials = expand(comparison(partitions=(Entry("even", {"partition": "iid"}), Entry("skewed"))), {}, {})
    groups = itertools.product(("even", "skewed"), ("Local", "Norm"), (0, 5))
    assert [trial.title for trial in trials] == [f"Digits, {p} | {method} | seed {seed}" for p, method, seed in groups]
    assert [trial.name for trial in trials[:2]] == ["digits-even-local-seed0", "digits-even-local-seed5"]
    assert {trial.settings["partition"] for trial in trials[:4]} == {"iid"}
    assert [trial.settings["seed"] for trial in trials[:2]] == [0, 5]
    assert trials[0].settings.keys() == known_settings().keys() - {"results-dir", "resume"}


def test_long_labels_have_different_folders():
    label = "a label of a method that is longer than the name of a folder may be, by {}"
    methods = tuple(Entry(label.format(name), {"strategy": "local"}) for name in ("one", "other"))
    one, other = expand(comparison(methods=methods, seeds=(0,)), {}, {})
    assert one.name != other.name


@pytest.mark.parametrize(
    ("changes", "settings", "labels"),
    [
        # the data set comes from a preset
        ({"datasets": (Entry("CIFAR-10", base="protonorm-cifar10"), DIGITS)}, {"dataset": "digits"}, "CIFAR-10"),
        # the partition leaves it to its default
        ({"partitions": (Entry("skewed", {"partition": "dirichlet"}),)}, {"alpha": 0.9}, "skewed"),
        ({"partitions": (Entry("skewed"), Entry("even", {"partition": "iid"}))}, {"partition": "iid"}, "skewed, even"),
        ({"methods": (Entry("Rule", {"strategy": "local", "inference": "classifier"}),)}, {"inference": "x"}, "Rule"),
    ],
)
def test_a_setting_that_a_label_may_name_is_refused(changes, settings, labels):
    with pytest.raises(SettingError, match=rf"`{next(iter(settings))}` may be what a label .*{labels}"):
        expand(comparison(**changes), settings, {})


def test_a_data_set_outside_of_the_comparison_has_no_path():
    with pytest.raises(SettingError, match=r'--data has "digts" .did you mean `digits`'):
        expand(comparison(), {}, {"digts": "/data"})
    # a row that is not selected
    spirals = Entry("Spirals", {"dataset": "spiral"})
    assert expand(comparison(), {}, {"spiral": "/data"}, (DIGITS, spirals))


# --- metrics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({}, ("classifier", "discriminant")),
        ({"methods": (LOCAL,)}, ("",)),
        ({"methods": (LOCAL, NORM)}, ("",)),  # both have the same rule
        ({"metrics": (Metric("pool"),)}, ("pool",)),
        ({"paper": (Printed("Digits", "Local", "headline", 90.0),)}, ("",)),
    ],
)
def test_methods_of_different_rules_are_compared_by_their_common_rules(changes, rules):
    methods = (LOCAL, *(Entry(name, {"strategy": name}) for name in ("pfpl", "protosphere")))
    spec = comparison(**{"methods": methods, "seeds": (0,)} | changes)
    assert with_common_rules(spec, expand(spec, {}, {})) == replace(spec, metrics=tuple(map(Metric, rules)))


def test_a_rule_that_varies_is_the_metric():
    spec, _ = resolve(narrow(load(), methods="fedproto"), vary=['inference="classifier","local-prototypes"'])
    assert spec.metrics == (Metric(),)


@pytest.mark.parametrize("metric", ["pool final", "ensemble final"])
def test_a_metric_that_no_trial_will_have_is_refused(metric):
    with pytest.raises(SettingError, match=metric):
        resolve(narrow(load(), methods="local", metric=metric))


@pytest.mark.parametrize(
    ("methods", "metric", "settings"),
    [
        ("local,protosphere", "pool final", {"encoder": "handcrafted"}),
        ("local", "ensemble final", {"ensemble-every": 2, "shared-test-share": 0.1}),
        # one of two metrics suffices
        ("local", "pool final,classifier final", {}),
    ],
)
def test_a_metric_that_some_trial_will_have_is_accepted(methods, metric, settings):
    resolve(narrow(load(), methods=methods, metric=metric), overrides=settings)


# --- the order of settings ------------------------------------------------------------------------------------


def test_later_settings_override_earlier_ones():
    """In the order preset, common settings, data set, partition, method, command line."""
    names = ["rounds", "batch-size", "feature-dim", "alpha", "test-share", "learning-rate", "momentum"]
    levels = [dict.fromkeys(names[number:], 0.1 + number / 100) for number in range(1, 6)]
    common, dataset, partition, method, overrides = levels
    spec = comparison(settings={"protonorm.gamma": 1.0} | common)
    row = Row(Entry("d", dataset, base="protonorm-cifar100"), Entry("p", partition))
    settings = settings_of(spec, row, Entry("m", method | {"strategy": "protonorm"}), overrides)
    assert [settings[name] for name in names] == [300, *(0.1 + number / 100 for number in (1, 2, 3, 4, 5, 5))]
    assert (settings["protonorm.gamma"], settings["clients"], settings["dataset"]) == (1.0, 20, "cifar100")


def test_the_methods_own_settings_override_those_of_a_data_set():
    of_norm = {"protonorm.gamma": 3.0, "protonorm.iterations": 4}
    other = Entry("Other", {"strategy": "protonorm"})
    datasets = (replace(DIGITS, methods={"Norm": of_norm}), Entry("B", {"dataset": "digits"}))
    spec = comparison(methods=(LOCAL, NORM, other), datasets=datasets)
    first, second = spec.rows
    assert settings_of(spec, first, NORM)["protonorm.iterations"] == 9
    gammas = [
        settings_of(spec, first, NORM)["protonorm.gamma"],
        settings_of(spec, first, other)["protonorm.gamma"],
        settings_of(spec, second, NORM)["protonorm.gamma"],
        settings_of(spec, first, NORM, {"protonorm.gamma": 2.0})["protonorm.gamma"],
    ]
    assert gammas == [3, 10, 10, 2]
    # variants have them, too
    for entry in with_variants(spec, ["protonorm.epsilon=0.1,0.2", "protonorm.gamma=5,6"]).methods:
        if entry.varied_of == "Norm":
            gamma = settings_of(spec, first, entry)["protonorm.gamma"]
            assert gamma == entry.varied.get("protonorm.gamma", 3.0)


def test_settings_of_other_methods_are_left_out():
    spec = comparison(settings=QUICK | {"protonorm.gamma": 3.0})
    (row,) = spec.rows
    assert settings_of(spec, row, NORM, {"protonorm.epsilon": 0.5})["protonorm.gamma"] == 3.0
    settings = settings_of(spec, row, LOCAL, {"protonorm.epsilon": 0.5})
    assert (settings["protonorm.gamma"], settings["protonorm.epsilon"]) == (10.0, 0.0001)
    with pytest.raises(SettingError, match=r"Digits \| Odd \| seed 0: setting `protonorm.gamma` is 3.0, but `local`"):
        expand(comparison(methods=(Entry("Odd", {"strategy": "local", "protonorm.gamma": 3.0}),)), {}, {})


def test_data_sets_are_read_from_the_given_places(tmp_path, monkeypatch):
    folder = tmp_path / "photos"
    paint(folder / "train", "abc", 20)
    paint(tmp_path / "syn" / "train", "abc", 20)
    monkeypatch.chdir(tmp_path)
    places = {"cifar100": "photos", "femnist": str(folder), "usps": str(folder), "syn": str(tmp_path / "syn")}
    femnist = Entry("F", {"dataset": "~/no such folder/femnist"})
    # one of several domains lies elsewhere
    several = Entry("S", {"dataset": "~/no such folder/usps,~/syn", "partition": "mixed", "shots": 0})
    rows = (Entry("C", base="protonorm-cifar100"), DIGITS, femnist, several)
    trials = expand(comparison(datasets=rows, seeds=(0,), methods=(LOCAL,)), {"rounds": 1}, places)
    paths = [str(folder), "digits", str(folder), f"{folder},{places['syn']}"]
    assert [trial.settings["dataset"] for trial in trials] == paths
