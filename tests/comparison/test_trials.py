"""From a comparison to its cells: what lies over what, where data lie, and how a run is made smaller."""

from dataclasses import replace

import pytest

from protosphere.comparison import trials as compare_cells
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.jobs import SETTINGS, prepare
from protosphere.comparison.plan import Comparison, Entry, Metric, Printed, parse_metric
from protosphere.comparison.scale import scaled
from protosphere.comparison.sweep import varied
from protosphere.comparison.trials import cells, not_default, scaled_words, settings_of, toml, with_common_rules
from protosphere.core.errors import SettingError
from protosphere.core.home import home
from protosphere.data.from_settings import data_spec
from protosphere.data.partition.assignment import assignment, open_data
from protosphere.plans.run_config import plan, read_toml
from protosphere.strategies import known_settings, read_settings
from tests.pictures import paint

QUICK = {"max-samples": 400, "feature-dim": 12, "models": "tiny_perceptron", "device": "cpu", "clients": 4}
LOCAL = Entry("Local", {"strategy": "local"})
NORM = Entry("Norm", {"strategy": "protonorm", "protonorm.iterations": 9})
DIGITS = Entry("Digits", {"dataset": "digits"})


def comparison(**changes):
    given = {"methods": (LOCAL, NORM), "datasets": (DIGITS,), "seeds": (0, 5), "settings": QUICK}
    return Comparison("test", **(given | changes))


# --- what lies over what ------------------------------------------------------------------------------


def test_every_row_method_and_seed_is_a_cell():
    found = cells(comparison(partitions=(Entry("even", {"partition": "iid"}), Entry("skewed"))), {}, {})
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


def test_methods_whose_own_rules_differ_are_compared_by_rules_that_all_have():
    """`local` asks its prototypes, `pfpl` its classifier, `protosphere` its pool."""
    names = ("local", "pfpl", "protosphere")
    methods = tuple(Entry(name, {"strategy": name}) for name in names)
    common = (Metric("classifier"), Metric("discriminant"))
    printed = Printed("Digits", "local", "headline", 90.0)
    for changes, metrics in (
        ({}, common),
        ({"methods": methods[:1]}, (Metric(),)),
        ({"methods": (methods[0], NORM)}, (Metric(),)),  # one rule
        ({"methods": (methods[1], replace(LOCAL, settings=LOCAL.settings | {"inference": "classifier"}))}, (Metric(),)),
        ({"metrics": (Metric("", "final"),)}, (Metric("", "final"),)),
        ({"metrics": (Metric("pool", "final"),)}, (Metric("pool", "final"),)),
        ({"paper": (printed,)}, (Metric(),)),
    ):
        made = comparison(**{"methods": methods, "seeds": (0,)} | changes)
        found = with_common_rules(made, cells(made, {}, {}))
        assert found == replace(made, metrics=metrics)
    assert [str(metric) for metric in common] == ["classifier headline", "discriminant headline"]
    assert tuple(map(parse_metric, map(str, common))) == common


def test_later_layers_lie_over_earlier_ones():
    """The preset, common settings, the data set, the partition, the method, what the command line says."""
    names = ["rounds", "batch-size", "feature-dim", "alpha", "test-share", "learning-rate", "momentum"]
    layers = [
        {"protonorm.gamma": 1.0} | dict.fromkeys(names[1:], 0.11),
        dict.fromkeys(names[2:], 0.12),
        dict.fromkeys(names[3:], 0.13),
        dict.fromkeys(names[4:], 0.14),
        dict.fromkeys(names[5:], 0.15),
    ]
    common, dataset, partition, method, overrides = layers
    made = comparison(settings=common)
    row = compare_cells.Row(Entry("d", dataset, base="protonorm-cifar100"), Entry("p", partition))
    found = settings_of(made, row, Entry("m", method | {"strategy": "protonorm"}), overrides)
    # rounds are the preset's; each layer decides what no later one does
    assert [found[name] for name in names] == [300, 0.11, 0.12, 0.13, 0.14, 0.15, 0.15]
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
    for entry in varied(made, ["protonorm.epsilon=0.1,0.2", "protonorm.gamma=5,6"]).methods:
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
        cells(comparison(methods=(Entry("Odd", {"strategy": "local", "protonorm.gamma": 3.0}),)), {}, {})


@pytest.mark.parametrize(
    ("overrides", "changes", "said"),
    [
        ({"runds": 3}, {}, "unknown setting `runds` (did you mean `rounds`?)"),
        ({"strategy": "local"}, {}, "setting `strategy` differs by run or machine; use --methods for it."),
        ({"seed": 1}, {}, "use --seeds for it."),
        ({"results-dir": "/x"}, {}, "use --results for it."),
        ({"fedtgp.margin": 1.0}, {}, "setting `fedtgp.margin` is read by no method of this comparison"),
        ({"rounds": 0}, {}, "setting `rounds` is 0, but it should be"),
        ({"dataset": "digits"}, {"datasets": (DIGITS, Entry("S", {"dataset": "spiral"}))}, "`dataset` is what the"),
        (
            {},
            {"methods": (LOCAL, Entry("local!", {"strategy": "local"}))},
            "two runs would have the folder digits-local",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(overrides, changes, said):
    with pytest.raises(SettingError) as caught:
        cells(comparison(**changes), overrides, {})
    assert said in str(caught.value)


def test_the_settings_file_of_a_cell_says_the_same_again(tmp_path):
    odd = {"rounds": 3, "learning-rate": 1e-5, "shared-init": False, "models": 'a"b\\c,ü', "protonorm.gamma": 2.0}
    (tmp_path / "cell.toml").write_text(toml(odd), "utf-8")
    assert read_toml(tmp_path / "cell.toml") == odd
    found = cells(comparison(), {"rounds": 7}, {})[-1].settings
    assert not_default(found) == QUICK | {"strategy": "protonorm", "protonorm.iterations": 9, "rounds": 7, "seed": 5}


def test_a_cell_s_run_has_the_partition_and_models_that_were_asked_for_though_they_are_the_defaults(tmp_path):
    sites = [tmp_path / name for name in ("berlin.csv", "paris.csv")]
    for site in sites:
        site.write_text("x,label\n" + "".join(f"{row},{row % 2}\n" for row in range(80)))
    together = {"dataset": ",".join(map(str, sites)), "partition": "dirichlet", "alpha": 10.0, "clients": 4}
    asked = comparison(datasets=(Entry("Sites", together),), partitions=(), settings={"models": "tiny_perceptron"})
    found = cells(asked, {}, {})[0]
    folder = ComparisonFolder.create(asked, [found], str(tmp_path / "results"))
    prepare(folder, found)
    own = plan([str(folder.of(found) / SETTINGS)]).run_config
    assert {name: own[name] for name in found.settings} == found.settings
    assert own["partition"] == "dirichlet"


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
    found = cells(comparison(datasets=rows, seeds=(0,), methods=(LOCAL,)), {"rounds": 1}, places)
    wanted = [str(folder), "digits", str(folder), f"{folder},{places['syn']}"]
    assert [cell.settings["dataset"] for cell in found] == wanted


def test_a_name_that_no_row_has_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r'--data has "digit" \(did you mean `digits`\?\), but .* are digits\.'):
        cells(comparison(), {}, {"digit": str(tmp_path)})


def test_what_is_missing_is_named_with_the_way_to_get_it(monkeypatch):
    def refuse(spec, cache):
        raise compare_cells.DataError(f"data set {spec.dataset!r} could not be fetched.")

    monkeypatch.setattr(compare_cells, "open_data", refuse)
    rows = (Entry("C10", base="protonorm-cifar10"), Entry("F", base="gfpl-femnist", missing="ask the authors."))
    with pytest.raises(SettingError) as caught:
        cells(comparison(datasets=rows, settings={}), {}, {})
    for words in (
        "the data set of C10 (on the Hugging Face hub: uoft-cs/cifar10) is not available",
        "say --data cifar10=FOLDER",
        "the data set of F is not available: data set '~/femnist' could not be fetched; ask the authors.",
    ):
        assert words in str(caught.value)


# --- smaller ----------------------------------------------------------------------------------------------


def whole(**settings):
    return known_settings() | {"clients": 20, "rounds": 300, "feature-dim": 12, "models": "tiny_perceptron"} | settings


def test_rounds_rows_and_clients_shrink_in_proportion():
    """The digits have 1,797 rows."""
    settings, words = scaled(whole(), 0.25, [0])
    assert [settings[name] for name in ("rounds", "max-samples", "clients")] == [75, 449, 5]
    assert words == "scaled by 0.25: 75 of 300 rounds, 449 of 1,797 rows, 5 of 20 clients"


def test_what_is_counted_in_rounds_shrinks_with_them():
    given = whole(**{"strategy": "gfpl", "rounds": 100, "evaluate-every": 20, "ensemble-every": 0, "batch-size": 4})
    settings, words = scaled(given, 0.1, [0])
    assert [settings[n] for n in ("rounds", "evaluate-every", "ensemble-every")] == [10, 2, 0]
    assert [settings[n] for n in ("gfpl.first-exchange", "gfpl.exchange-every", "batch-size")] == [1, 1, 4]
    assert words.endswith("evaluate-every 2 for 20, gfpl.first-exchange 1 for 10, gfpl.exchange-every 1 for 10")
    # another method's are left at their defaults, which are all that it may have
    assert scaled(whole(strategy="local"), 0.1, [0])[0]["gfpl.exchange-every"] == 10


def test_two_rounds_and_two_clients_are_left_at_least_and_architectures_without_a_client_are_told():
    settings, words = scaled(whole(**{"min-replies": 10}), 0.02, [0, 1])
    assert [settings[n] for n in ("rounds", "clients", "min-replies")] == [6, 2, 2]
    assert words.endswith("2 of 20 clients, min-replies 2 for 10")
    assert scaled(whole(rounds=10), 0.02, [0])[0]["rounds"] == 2
    assert scaled(whole(rounds=1, clients=1), 0.1, [0])[1] == "scaled by 0.1: 180 of 1,797 rows"
    assert ", 3 of 5 architectures" in scaled(whole(models="tiny,perceptron"), 0.15, [0])[1]
    assert "architectures" not in scaled(whole(models="tiny,perceptron"), 0.25, [0])[1]
    assert "architectures" not in scaled(whole(models="tiny,perceptron", clients=2), 0.5, [0])[1]


def test_as_many_clients_stay_as_the_partition_needs():
    """Ten classes, two a client: fewer than five clients leave rows to nobody."""
    settings, _ = scaled(whole(**{"partition": "pathological", "classes-per-client": 2}), 0.1, [0, 1])
    assert settings["clients"] == 5
    for seed in (0, 1):
        spec = data_spec(read_settings(settings | {"seed": seed}).settings, 5)
        dealt = assignment(spec, open_data(spec, home() / "cache"), home() / "cache")
        assert sum(map(len, dealt.held)) == 180


def test_as_many_rows_stay_as_the_partition_needs():
    """Four rows cannot be shared by two clients of ten rows at least."""
    settings, words = scaled(whole(), 0.002, [0, 1, 2])
    assert settings["clients"] == 2
    assert 20 <= settings["max-samples"] <= 128
    assert f"{settings['max-samples']} of 1,797 rows" in words
    with pytest.raises(
        SettingError, match="no part of the clients can share the data set digits: 2 clients with min-s"
    ):
        scaled(whole(**{"min-samples": 1000}), 0.1, [0])


def test_every_method_of_a_row_is_made_smaller_alike():
    found = cells(comparison(settings=QUICK | {"rounds": 10, "clients": 8}), {}, {}, 0.5)
    task = [{name: cell.settings[name] for name in ("rounds", "clients", "max-samples")} for cell in found]
    assert task == [{"rounds": 5, "clients": 4, "max-samples": 200}] * 4
    assert [cell.settings["seed"] for cell in found] == [0, 5, 0, 5]
    assert {cell.scaled for cell in found} == {"scaled by 0.5: 5 of 10 rounds, 200 of 400 rows, 4 of 8 clients"}
    assert scaled_words(found) == ["Digits: scaled by 0.5: 5 of 10 rounds, 200 of 400 rows, 4 of 8 clients"]
    assert scaled_words(cells(comparison(), {}, {})) == []


def test_a_partition_table_is_scaled_by_a_dirichlet_draw_in_its_place(tmp_path):
    """A table counts all rows of all clients: a tenth of it is no table."""
    given = whole(**{"partition": "table", "partition-table": str(tmp_path / "nowhere.csv"), "alpha": 0.1})
    settings, words = scaled(given, 0.25, [0])
    assert (settings["partition"], settings["partition-table"]) == ("dirichlet", "")
    assert words.endswith("partition dirichlet for table")
