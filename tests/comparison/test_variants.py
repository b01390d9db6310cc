"""Settings that are varied: which methods stand in the plan for them, what is refused, and how one is chosen."""

import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import collect, validation_of, value_of
from protosphere.comparison.plots import by_value, crossed_methods, heat_map, points_by
from protosphere.comparison.report import write_all
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric, from_table, load, narrow
from protosphere.comparison.spec import read as read_plan
from protosphere.comparison.trials import expand
from protosphere.comparison.variants import choose_variants, settings_varied, with_variants
from protosphere.core.errors import SettingError
from protosphere.record.summary import outcome
from protosphere.reports.canvas import NothingToPlotError
from tests.comparison.fabricated import line, trials_of, write_run

# test accuracy is best where validation accuracy is worst: whoever looked at the test rows would choose the other
VALIDATION = {"3": (0.5, 0.6), "10": (0.9, 0.7), "30": (0.7, 0.7)}
TEST = {"3": (0.9, 0.95), "10": (0.4, 0.5), "30": (0.6, 0.6)}


def plan(*texts, methods=("local", "protonorm"), **changes):
    entries = tuple(Entry(name, {"strategy": name}) for name in methods)
    given = {"methods": entries, "datasets": (Entry("digits", {"dataset": "digits"}),), "seeds": (0, 1)}
    return with_variants(ComparisonSpec("test", **given | {"choose": "validation", "cross": True} | changes), texts)


def labels(comparison):
    return [entry.label for entry in comparison.methods]


def test_methods_that_read_a_setting_become_one_a_choice_of_values():
    found = plan("protonorm.gamma=3,10.5", 'protonorm.alignment="simplex","none"', methods=("local", "protonorm"))
    tried = [(3, "simplex"), (3, "none"), (10.5, "simplex"), (10.5, "none")]
    assert labels(found) == ["local", *(f"protonorm, gamma = {g}, alignment = {a}" for g, a in tried)]
    assert [tuple(entry.settings.values())[1:] for entry in found.methods[1:]] == tried
    assert {entry.varied_of for entry in found.methods[1:]} == {"protonorm"}
    # what all methods read is swept for all: none may be tuned beside others that are not
    assert labels(plan("learning-rate=0.01,0.1")) == [
        f"{name}, learning-rate = {rate}" for name in ("local", "protonorm") for rate in (0.01, 0.1)
    ]
    # and the baseline is the method, whatever was chosen of it
    assert plan("learning-rate=0.01,0.1").baseline_label == "local"


def test_variants_of_many_settings_have_folders_of_their_own():
    tried = ["prototype-weight=0.001,1", "learning-rate=0.01,0.1", "local-epochs=1,5"]
    made = with_variants(narrow(load(), methods="fedproto", seeds="0", cross=True), tried)
    names = [cell.name for cell in expand(made, {"rounds": 1}, {})]
    assert len(set(names)) == 8
    assert all(len(name.encode()) <= 150 for name in names)


def test_without_validation_rows_nothing_can_be_chosen():
    made = with_variants(narrow(load(), methods="protonorm", seeds="0", choose="validation"), ["protonorm.gamma=3,10"])
    with pytest.raises(SettingError, match="validation-share"):
        expand(made, {"validation-share": 0.0}, {})
    assert [cell.settings["protonorm.gamma"] for cell in expand(made, {}, {})] == [3.0, 10.0]


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
        found = trials_of(made)
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
    once, kept, (choice,) = choose_variants(made, collect(folder, made, found))
    assert labels(once) == ["local", "protonorm"]
    assert choice.chosen == "protonorm, gamma = 10"
    assert kept.query("method == 'protonorm'").set_index("seed")["metric: headline"].to_dict() == {0: 0.4, 1: 0.5}
    accuracies, apart, tried, _ = write_all(folder, made, found).tables
    shown = accuracies.texts["digits"]
    assert shown["protonorm"] == "45.00 ± 7.07"
    assert set(shown.index) == {"local", "protonorm", "majority class"}
    assert "digits: validation chose gamma = 10 of protonorm among 3." in accuracies.notes
    assert list(apart.texts.index) == ["digits"]
    assert tried.texts["digits"][tried.bold["digits"]].to_dict() == {"protonorm, gamma = 10": "80.00 ± 14.14"}
    assert tried.texts["digits"]["protonorm, gamma = 30"] == "70.00 ± 0.00"
    page = (folder.path / "report.html").read_text()
    assert "<strong>80.00 ± 14.14</strong>" in page
    assert "1 data set, 2 methods, 2 seeds (0, 1)" in page, "methods that the tables show, not their variants"
    # every cell stays in the file of all figures
    assert len((folder.path / "table.csv").read_text().splitlines()) == 1 + len(found)
    # kept and read again it is the same plan, which is not expanded anew
    assert ComparisonFolder(folder.path).read()[0] == made


def test_equal_variants_are_named_in_the_table_and_under_it(run, monkeypatch):
    monkeypatch.setitem(VALIDATION, "3", (0.8, 0.8))
    made = plan("protonorm.gamma=3,10,30")
    folder, found = run(made)
    accuracies, _, tried, _ = write_all(folder, made, found).tables
    assert "digits: validation chose gamma = 3 of protonorm among 3." in accuracies.notes
    assert "digits: gamma = 10 of protonorm ties; the first counts." in accuracies.notes
    assert tried.texts["digits"].to_dict() == {
        "protonorm, gamma = 3": "80.00 ± 0.00 (tie)",
        "protonorm, gamma = 10": "80.00 ± 14.14 (tie)",
        "protonorm, gamma = 30": "70.00 ± 0.00",
    }
    assert list(tried.texts.index[tried.bold["digits"]]) == ["protonorm, gamma = 3"]


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
    # a method's own settings may decide it: in its entry, in those of all, on the command line, in what is varied
    uniform = Entry("uniform", {"strategy": "fedavg", "fedavg.weighting": "uniform"})
    made = {
        "methods": (uniform, Entry("fedavg", {"strategy": "fedavg"})),
        "datasets": (Entry("d", {"dataset": "digits"}),),
    }
    found = with_variants(ComparisonSpec("test", **made), [WEIGHTS]).methods
    assert [entry.varied_of for entry in found] == ["", "fedavg", "fedavg"]
    weighted = {"fedproto.aggregation": "weighted"}
    alone = ComparisonSpec("test", **made | {"methods": (Entry("fedproto", {"strategy": "fedproto"}),)}, cross=True)
    assert len(with_variants(replace(alone, settings=weighted), [WEIGHTS]).methods) == 2
    assert len(with_variants(alone, [WEIGHTS], weighted).methods) == 2
    assert len(with_variants(alone, [WEIGHTS, 'fedproto.aggregation="mean","weighted"']).methods) == 4


def test_while_a_run_is_missing_nothing_is_chosen(run):
    made = plan("protonorm.gamma=3,10,30")
    folder, found = run(made, missing=("30", 1))
    accuracies = write_all(folder, made, found).tables[0]
    assert accuracies.texts["digits"]["protonorm"] == "-"
    assert "digits: nothing is chosen of protonorm without all trials." in accuracies.notes


# --- what is shown ---


def usual(*methods):
    plan = load()
    return (
        plan
        if not methods
        else type(plan)(**{**vars(plan), "methods": [m for m in plan.methods if m.label in methods]})
    )


def test_each_setting_is_varied_by_itself_and_what_does_not_read_it_stays_once():
    found = with_variants(usual(), ["protonorm.gamma=1, 10", 'protonorm.alignment="none", "auto"'])
    assert labels(found) == [
        *("local", "frame", "fedproto", "protonorm, gamma = 1", "protonorm, gamma = 10"),
        *("protonorm, alignment = none", "protonorm, alignment = auto"),
    ]
    assert settings_varied(found) == ["protonorm.gamma", "protonorm.alignment"]
    by_label = {entry.label: entry.settings for entry in found.methods}
    assert by_label["protonorm, gamma = 1"] == {"strategy": "protonorm", "protonorm.gamma": 1}
    # a setting that all methods share is varied for all that read it
    pulled = [f"{name}, prototype-weight = {value}" for name in ("frame", "fedproto", "protonorm") for value in (1, 9)]
    assert labels(with_variants(usual(), ["prototype-weight=1,9"])) == ["local", *pulled]
    assert with_variants(usual()) == usual()


def test_the_baseline_of_a_varied_method_is_the_one_with_the_default(tmp_path):
    alone = usual("fedproto", "protonorm")
    assert with_variants(alone, ["protonorm.gamma=1,10"]).baseline == "fedproto"
    only = usual("protonorm")
    assert with_variants(only, ["protonorm.gamma=1,10"]).baseline == "protonorm, gamma = 10"
    assert with_variants(only, ["protonorm.gamma=1,3"]).baseline == "protonorm, gamma = 1"


def test_a_file_says_what_is_varied_and_the_command_line_goes_before(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('methods = ["local", "protonorm"]\ndatasets = ["digits"]\n[vary]\nprotonorm.gamma = [1, 2, 3]\n')
    plan = read_plan(file)
    assert labels(with_variants(plan))[1:] == [f"protonorm, gamma = {value}" for value in (1, 2, 3)]
    assert labels(with_variants(plan, ["protonorm.gamma=7,8"]))[1:] == [
        f"protonorm, gamma = {value}" for value in (7, 8)
    ]


def test_how_a_file_chooses_and_crosses(tmp_path):
    file = tmp_path / "mine.toml"
    head = 'methods = ["local", "protonorm"]\ndatasets = ["digits"]\n[vary]\n'
    file.write_text(
        head + 'choose = "validation"\ncross = true\nprotonorm.gamma = [1, 2]\nprotonorm.alignment = ["none", "auto"]\n'
    )
    found = with_variants(read_plan(file))
    assert (found.choose, found.cross, len(found.methods), found.baseline_label) == ("validation", True, 5, "local")
    for words, said in (
        ('choose = "test"\nprotonorm.gamma = [1, 2]', "`choose` is"),
        ("cross = true", "none is"),
        ("cross = 1", "`cross` is 1"),
    ):
        file.write_text(head + words)
        with pytest.raises(SettingError, match=said):
            with_variants(read_plan(file))
    file.write_text(head.replace("vary", "sweep"))
    with pytest.raises(SettingError, match=r"key `sweep` is gone: \[vary\] with"):
        read_plan(file)


def test_two_settings_that_are_crossed_have_a_heat_map():
    plan = with_variants(
        replace(usual("local", "protonorm"), cross=True), ["protonorm.gamma=1,10", "learning-rate=0.1,0.2"]
    )
    rows = [("digits", entry.label, 0, 0.5 + 0.01 * number) for number, entry in enumerate(plan.methods)]
    frame = pd.DataFrame(rows, columns=["row", "method", "seed", "metric: headline"])
    assert crossed_methods(plan) == ["protonorm"]
    drawn = heat_map(plan, frame, "digits", "protonorm", "map")
    assert list(drawn.numbers) == ["learning-rate", "protonorm.gamma", "mean (%)"]
    by_values = {(gamma, rate): share for rate, gamma, share in drawn.numbers.itertuples(index=False, name=None)}
    assert by_values == {
        (entry.varied["protonorm.gamma"], entry.varied["learning-rate"]): pytest.approx(100 * accuracy)
        for entry, (*_, accuracy) in zip(plan.methods, rows, strict=True)
        if len(entry.varied) == 2
    }
    with pytest.raises(NothingToPlotError, match="no trial is finished"):
        heat_map(plan, frame[:1], "digits", "protonorm", "map")


@pytest.mark.parametrize(
    ("preset", "methods", "expected"),
    [
        ("protonorm-table5", "FedTGP", [f"FedTGP, gamma = {value}" for value in (1.0, 1.1, 1.2, 1.3, 1.4)]),
        ("protonorm-table4", "ProtoNorm (release)", ["ProtoNorm (release)"]),
        ("protonorm-figure2", "Local, FedProto", ["Local", "FedProto"]),
        ("protonorm-figure2", "ProtoNorm", ["ProtoNorm, gamma = 1", "ProtoNorm, gamma = 10"]),
    ],
)
def test_what_a_file_varies_of_a_method_that_is_left_out_is_left_out(preset, methods, expected):
    whole = load(preset=preset)
    assert labels(with_variants(narrow(whole, methods=methods), of_file=whole.methods)) == expected
    with pytest.raises(SettingError, match="no method of this comparison reads it"):
        with_variants(narrow(whole, methods=methods), ["gfpl.components=1,2"], of_file=whole.methods)


def test_what_all_methods_share_is_left_out_too_where_no_method_that_stays_reads_it():
    table = {"methods": ["local", "fedproto"], "datasets": ["digits"]}
    made = from_table("mine", table | {"vary": {"prototype-weight": [0.1, 1.0]}})
    assert labels(with_variants(narrow(made, methods="local"), of_file=made.methods)) == ["local"]
    assert len(labels(with_variants(narrow(made, methods="fedproto"), of_file=made.methods))) == 2
    slip = from_table("mine", table | {"vary": {"prototype-wait": [0.1, 1.0]}})
    with pytest.raises(SettingError, match="did you mean `prototype-weight`"):
        with_variants(narrow(slip, methods="fedproto"), of_file=slip.methods)


def test_a_curve_has_its_method_s_values_and_waits_for_none():
    plan = with_variants(usual("local", "protonorm"), ["protonorm.gamma=10,1"])
    rows = [
        ("digits", label, seed, accuracy)
        for label, accuracies in {"local": (0.5, 0.7), "protonorm, gamma = 10": (0.8, 0.9)}.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    frame = pd.DataFrame(rows, columns=["row", "method", "seed", "metric: headline"])
    points = points_by(plan, frame, "digits", "protonorm.gamma")
    assert points["local"][""].mean == pytest.approx(0.6)
    assert list(points["protonorm"]) == [10, 1]
    assert points["protonorm"][10].mean == pytest.approx(0.85)
    assert points["protonorm"][1] is None
    drawn = by_value(plan, frame, "digits", "protonorm.gamma", "vary")
    assert drawn.numbers["protonorm.gamma"].tolist() == ["", 10]
    assert "highest protonorm 85.0 % at 10" in drawn.alt
    with pytest.raises(NothingToPlotError, match="no trial is finished"):
        by_value(plan, frame[:2], "digits", "protonorm.gamma", "vary")
