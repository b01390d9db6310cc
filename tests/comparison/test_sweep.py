"""Values that are tried out: one method a value in the plan, one row in the tables, chosen on validation rows."""

import json
import math
from dataclasses import replace

import pytest

from protosphere.comparison.figures import figures_of, validation_of, value_of
from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.plan import Comparison, Entry, Metric, load
from protosphere.comparison.report import write_all
from protosphere.comparison.selection import chosen
from protosphere.comparison.sweep import swept, tuned
from protosphere.comparison.trials import cells
from protosphere.core.errors import SettingError
from protosphere.record.summary import outcome
from tests.comparison.test_figures import cells_of, line, write_run

# test accuracy is best where validation accuracy is worst: whoever looked at the test rows would choose the other
VALIDATION = {"3": (0.5, 0.6), "10": (0.9, 0.7), "30": (0.7, 0.7)}
TEST = {"3": (0.9, 0.95), "10": (0.4, 0.5), "30": (0.6, 0.6)}


def plan(*sweeps, methods=("local", "protonorm"), **changes):
    entries = tuple(Entry(name, {"strategy": name}) for name in methods)
    given = {"methods": entries, "datasets": (Entry("digits", {"dataset": "digits"}),), "seeds": (0, 1)} | changes
    return swept(Comparison("test", **given), sweeps)


def labels(comparison):
    return [entry.label for entry in comparison.methods]


def test_methods_that_read_a_setting_become_one_a_choice_of_values():
    found = plan("protonorm.gamma=3,10.5", 'protonorm.alignment="simplex","none"', methods=("local", "protonorm"))
    tried = [(3, "simplex"), (3, "none"), (10.5, "simplex"), (10.5, "none")]
    assert labels(found) == ["local", *(f"protonorm, gamma = {g}, alignment = {a}" for g, a in tried)]
    assert [tuple(entry.settings.values())[1:] for entry in found.methods[1:]] == tried
    assert {entry.of for entry in found.methods[1:]} == {"protonorm"}
    # what all methods read is swept for all: none may be tuned beside others that are not
    assert labels(plan("learning-rate=0.01,0.1")) == [
        f"{name}, learning-rate = {rate}" for name in ("local", "protonorm") for rate in (0.01, 0.1)
    ]
    # and the baseline is the method, whatever was chosen of it
    assert plan("learning-rate=0.01,0.1").baseline_label == "local"


def test_a_file_s_sweep_is_replaced_by_the_command_line_s():
    of_file = {"protonorm": {"gamma": [1, 2]}, "learning-rate": [0.1, 0.2]}
    found = plan("protonorm.gamma=7,8", methods=("protonorm",), sweep=of_file)
    assert [tuple(entry.settings.values())[1:] for entry in found.methods] == [(7, 0.1), (7, 0.2), (8, 0.1), (8, 0.2)]


@pytest.mark.parametrize(
    ("sweep", "named"),
    [
        ("protonorm.gamma", "protonorm.gamma"),
        ("protonorm.gamma=3", "protonorm.gamma"),
        ("protonorm.gamma=3,3", "3"),
        ("protonorm.gamma=a,b", "double quotes"),
        ("protonorm.gamma=[1],[2]", "a number"),
        ("=1,2", "=1,2"),
        ("fedtgp.margin=1,2", "fedtgp.margin"),
        ("protonorm.gama=1,2", "protonorm.gamma"),
        ("alpha=0.1,1.0", "alpha"),
        ("seed=0,1", "seed"),
        ('strategy="local","frame"', "strategy"),
    ],
)
def test_a_sweep_that_is_none_is_refused_by_name(sweep, named):
    with pytest.raises(SettingError, match=named.replace(".", r"\.")):
        plan(sweep)


def test_runs_of_a_sweep_of_many_settings_have_folders_of_their_own():
    tried = ["prototype-weight=0.001,1", "learning-rate=0.01,0.1", "local-epochs=1,5"]
    made = swept(chosen(load(), methods="fedproto", seeds="0"), tried)
    names = [cell.name for cell in cells(made, {"rounds": 1}, {})]
    assert len(set(names)) == 8
    assert all(len(name.encode()) <= 150 for name in names)


def test_without_validation_rows_nothing_can_be_chosen():
    made = swept(chosen(load(), methods="protonorm", seeds="0"), ["protonorm.gamma=3,10"])
    with pytest.raises(SettingError, match="validation-share"):
        cells(made, {"validation-share": 0.0}, {})
    assert [cell.settings["protonorm.gamma"] for cell in cells(made, {}, {})] == [3.0, 10.0]


@pytest.mark.parametrize(
    ("figure", "expected"), [("selected", 0.9), ("headline", 0.9), ("final", 0.2), ("last-5", (0.9 + 0.5 + 0.2) / 3)]
)
def test_the_validation_figure_is_the_metric_s_own_and_never_of_the_untrained_models(figure, expected):
    """Before training the variants of one learning rate are the same model."""
    lines = [line(number, 0.1) for number in range(4)]
    for each, value in zip(lines, (0.95, 0.9, 0.5, 0.2), strict=True):
        each["evaluation"]["rules"]["classifier"]["validation"] = {"mean": value}
    assert validation_of(lines, Metric("classifier", figure), "local-prototypes") == pytest.approx(expected)
    assert validation_of(lines, Metric("", figure), "local-prototypes") is None
    assert validation_of(lines[:1], Metric("classifier", figure), "classifier") is None


@pytest.mark.parametrize("name", ["photos", "final", "last-5"])
def test_a_domain_s_figure_is_of_the_headline_s_round_and_so_is_its_validation(name):
    lines = [line(number, 0.1) | {"clients": {}} for number in range(4)]
    for each, value in zip(lines, (0.95, 0.9, 0.5, 0.2), strict=True):
        each["evaluation"]["rules"]["classifier"]["validation"] = {"mean": value}
        each["evaluation"]["domains"] = {name: {"classifier": {"test": {"mean": value, "plain_mean": value}}}}
    rounds = outcome("classifier", lines, math.inf)
    # on these lines a domain's test accuracy is the validation accuracy of its round
    for word in ("domain", "domain-unweighted"):
        shown = value_of(rounds, Metric(word, name))
        assert validation_of(lines, Metric(word, name), "classifier") == shown == 0.9


@pytest.fixture
def run(tmp_path):
    """run(comparison, missing): a folder with a run for every cell but one, and the cells."""

    def make(made, missing=None):
        found = cells_of(made)
        folder = ComparisonFolder.create(made, found, str(tmp_path / "results"))
        for cell in found:
            value = cell.method.rpartition(" = ")[2]
            if (value, cell.seed) == missing:
                continue
            place = folder.of(cell) / "run"
            write_run(place, cell.settings, TEST.get(value, (0.3, 0.35))[cell.seed])
            *others, last = [json.loads(text) for text in (place / "metrics.jsonl").read_text().splitlines()]
            validation = VALIDATION.get(value, (0.3, 0.3))[cell.seed]
            last["evaluation"]["rules"]["local-prototypes"]["validation"] = {"mean": validation}
            (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*others, last]))
        return folder, found

    return make


def test_what_stands_in_the_tables_was_chosen_on_validation_rows(run):
    made = plan("protonorm.gamma=3,10,30")
    folder, found = run(made)
    once, kept, (choice,) = tuned(made, figures_of(folder, made, found))
    assert labels(once) == ["local", "protonorm"]
    assert choice.chosen == "protonorm, gamma = 10"
    assert kept.query("method == 'protonorm'").set_index("seed")["metric: headline"].to_dict() == {0: 0.4, 1: 0.5}
    accuracies, apart, tried, _ = write_all(folder, made, found).grids
    shown = {row[0].text: row[1].text for row in accuracies.lines}
    assert shown["protonorm"] == "45.00 ± 7.07"
    assert shown.keys() == {"local", "protonorm", "majority class"}
    assert any("gamma = 10, chosen on validation samples among 3" in note for note in accuracies.notes)
    assert apart.lines[0][0].text == "digits"
    bold = [row[0].text for row in tried.lines if any(cell.best for cell in row)]
    assert bold == ["protonorm, gamma = 10"]
    assert "70.00 ± 0.00" in [cell.text for row in tried.lines for cell in row]
    # every cell stays in the file of all figures
    assert len((folder.path / "table.csv").read_text().splitlines()) == 1 + len(found)
    # kept and read again it is the same plan, which is not expanded anew
    assert ComparisonFolder(folder.path).read()[0] == made


def test_equal_variants_are_named_in_the_table_and_under_it(run, monkeypatch):
    monkeypatch.setitem(VALIDATION, "3", (0.8, 0.8))
    made = plan("protonorm.gamma=3,10,30")
    folder, found = run(made)
    accuracies, _, tried, _ = write_all(folder, made, found).grids
    (words,) = [note for note in accuracies.notes if "chosen" in note]
    assert words.endswith(
        "gamma = 3, chosen on validation samples among 3; equal to gamma = 10: the first of them is taken"
    )
    texts = {line[0].text: line[1].text for line in tried.lines}
    assert texts["protonorm, gamma = 3"] == "80.00 ± 0.00 (tie)"
    assert texts["protonorm, gamma = 10"] == "80.00 ± 14.14 (tie)"
    assert texts["protonorm, gamma = 30"] == "70.00 ± 0.00"
    assert [line[0].text for line in tried.lines if line[1].best] == ["protonorm, gamma = 3"]


def test_a_method_is_not_trained_again_for_a_setting_that_it_does_not_read():
    found = plan("learning-rate=0.01,0.1", "prototype-weight=1,10", methods=("local", "fedproto", "fedavg"))
    assert labels(found) == [
        "local, learning-rate = 0.01",
        "local, learning-rate = 0.1",
        *(f"fedproto, learning-rate = {rate}, prototype-weight = {w}" for rate in (0.01, 0.1) for w in (1, 10)),
        "fedavg, learning-rate = 0.01",
        "fedavg, learning-rate = 0.1",
    ]
    assert labels(plan('wire-dtype="float32","float16"')) == [
        "local",
        "protonorm, wire-dtype = float32",
        "protonorm, wire-dtype = float16",
    ]
    with pytest.raises(SettingError, match="no method of this comparison reads it"):
        plan("prototype-weight=1,10", methods=("local", "fedavg"))
    # nor for one of another method
    assert labels(plan("tinyproto.sparsity-dim=0,8", methods=("fedproto", "tinyproto-fp"))) == [
        *("fedproto", "tinyproto-fp, sparsity-dim = 0", "tinyproto-fp, sparsity-dim = 8"),
    ]
    assert len(labels(plan('wire-dtype="float32","float16"', methods=("gfpl", "fedproto")))) == 3


WEIGHTS = 'client-weights="samples","equal"'


def test_who_weighs_clients_alike_anyway_is_not_trained_again_for_their_weights():
    assert labels(plan(WEIGHTS, methods=("local", "fedproto", "fedavg"))) == [
        *("local", "fedproto", "fedavg, client-weights = samples", "fedavg, client-weights = equal")
    ]
    # a method's own settings may decide it: in its entry, in those of all, on the command line, in the sweep itself
    uniform = Entry("uniform", {"strategy": "fedavg", "fedavg.weighting": "uniform"})
    made = {
        "methods": (uniform, Entry("fedavg", {"strategy": "fedavg"})),
        "datasets": (Entry("d", {"dataset": "digits"}),),
    }
    assert [entry.of for entry in swept(Comparison("test", **made), [WEIGHTS]).methods] == ["", "fedavg", "fedavg"]
    weighted = {"fedproto.aggregation": "weighted"}
    alone = Comparison("test", **made | {"methods": (Entry("fedproto", {"strategy": "fedproto"}),)})
    assert len(swept(replace(alone, settings=weighted), [WEIGHTS]).methods) == 2
    assert len(swept(alone, [WEIGHTS], weighted).methods) == 2
    assert len(swept(alone, [WEIGHTS, 'fedproto.aggregation="mean","weighted"']).methods) == 4


def test_while_a_run_is_missing_nothing_is_chosen(run):
    made = plan("protonorm.gamma=3,10,30")
    folder, found = run(made, missing=("30", 1))
    accuracies = write_all(folder, made, found).grids[0]
    assert {row[0].text: row[1].text for row in accuracies.lines}["protonorm"] == "-"
    assert any("nothing is chosen" in note for note in accuracies.notes)
