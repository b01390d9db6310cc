"""Settings that are varied: which methods stand in the plan for them, what is refused, and how one is chosen."""

import json
import shutil

import pandas as pd
import pytest

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import collect, validation_of
from protosphere.comparison.plots import by_value, heat_map, makers_of
from protosphere.comparison.report import write_all
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric, load, narrow
from protosphere.comparison.spec import read as read_plan
from protosphere.comparison.tables import tables_of
from protosphere.comparison.trials import expand
from protosphere.comparison.variants import choose_variants, with_variants
from protosphere.core.errors import SettingError
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


def varied(name, setting, *values):
    return [f"{name}, {setting} = {value}" for value in values]


@pytest.mark.parametrize(
    ("methods", "texts", "crossed", "expected"),
    [
        # one at a time, or crossed; who reads neither stays once
        (
            *("local protonorm", ["protonorm.gamma=1,10.5", 'protonorm.alignment="none","auto"'], False),
            ["local", *varied("protonorm", "gamma", 1, 10.5), *varied("protonorm", "alignment", "none", "auto")],
        ),
        (
            *("local protonorm", ["protonorm.gamma=1,9", 'protonorm.alignment="none","auto"'], True),
            ["local", *(f"protonorm, gamma = {g}, alignment = {a}" for g in (1, 9) for a in ("none", "auto"))],
        ),
        # a setting that methods share is varied for all that read it
        (
            *("local fedproto", ["learning-rate=0.01,0.1"], False),
            [*varied("local", "learning-rate", 0.01, 0.1), *varied("fedproto", "learning-rate", 0.01, 0.1)],
        ),
        ("local fedproto", ["prototype-weight=1,9"], False, ["local", *varied("fedproto", "prototype-weight", 1, 9)]),
        (
            *("fedproto tinyproto-fp", ["tinyproto.sparsity-dim=0,8"], False),
            ["fedproto", *varied("tinyproto-fp", "sparsity-dim", 0, 8)],
        ),
        # who weighs clients alike anyway is not trained again
        (
            *("local fedproto fedavg", ['client-weights="samples","equal"'], False),
            ["local", "fedproto", *varied("fedavg", "client-weights", "samples", "equal")],
        ),
    ],
)
def test_a_method_becomes_one_for_each_value_that_it_reads(methods, texts, crossed, expected):
    found = plan(*texts, methods=methods.split(), cross=crossed)
    assert labels(found) == expected
    for entry in found.methods:
        assert entry.settings == {"strategy": entry.varied_of or entry.label} | entry.varied


def test_what_no_method_reads_is_refused():
    with pytest.raises(SettingError, match="no method of this comparison reads it"):
        plan("prototype-weight=1,10", methods=("local", "fedavg"))


@pytest.mark.parametrize(
    ("methods", "values", "choose", "baseline"),
    [
        ("local protonorm", "1,10", "", "local"),
        ("protonorm", "1,10", "", "protonorm, gamma = 10"),
        ("protonorm", "1,3", "", "protonorm, gamma = 1"),
        ("protonorm fedproto", "1,3", "validation", "protonorm"),
    ],
)
def test_the_baseline_of_a_varied_method_is_the_one_with_the_default(methods, values, choose, baseline):
    assert plan(f"protonorm.gamma={values}", methods=methods.split(), choose=choose).baseline_label == baseline


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


def test_of_equal_variants_the_first_is_chosen_and_while_a_run_is_missing_none_is(run, monkeypatch):
    monkeypatch.setitem(VALIDATION, "3", (0.8, 0.8))
    made = plan("protonorm.gamma=3,10,30")
    folder, found = run(made)
    once, kept, choices = choose_variants(made, collect(folder, made, found))
    accuracies, _, tried, _ = tables_of(once, kept, choices)
    assert "digits: validation chose gamma = 3 of protonorm among 3." in accuracies.notes
    assert tried.texts["digits"]["protonorm, gamma = 10"] == "80.00 ± 14.14"
    assert list(tried.texts.index[tried.bold["digits"]]) == ["protonorm, gamma = 3"]
    shutil.rmtree(folder.of(found[-1]))
    once, kept, choices = choose_variants(made, collect(folder, made, found))
    accuracies = tables_of(once, kept, choices)[0]
    assert accuracies.texts["digits"]["protonorm"] == "-"
    assert "digits: nothing is chosen of protonorm without all trials." in accuracies.notes


# --- what a file says, and what is drawn ------------------------------------------------------------------------

HEAD = 'methods = ["local", "protonorm"]\ndatasets = ["digits"]\n[vary]\n'


def test_a_file_says_what_is_varied_how_it_chooses_and_crosses(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(HEAD + "protonorm.gamma = [1, 2, 3]\n")
    assert labels(with_variants(read_plan(file)))[1:] == varied("protonorm", "gamma", 1, 2, 3)
    # the command line goes before
    assert labels(with_variants(read_plan(file), ["protonorm.gamma=7,8"]))[1:] == varied("protonorm", "gamma", 7, 8)
    crossed = 'choose = "validation"\ncross = true\nprotonorm.gamma = [1, 2]\nprotonorm.alignment = ["none", "auto"]\n'
    file.write_text(HEAD + crossed)
    found = with_variants(read_plan(file))
    assert (found.choose, found.cross, len(found.methods), found.baseline_label) == ("validation", True, 5, "local")


def accuracies_of(made, accuracies):
    """The frame of finished trials, of each method's accuracies by seed."""
    rows = []
    for method, values in accuracies.items():
        rows += [("digits", method, seed, accuracy) for seed, accuracy in enumerate(values)]
    return pd.DataFrame(rows, columns=["row", "method", "seed", "metric: headline"])


def test_two_settings_that_are_crossed_have_a_heat_map():
    made = plan("protonorm.gamma=1,10", "learning-rate=0.1,0.2", choose="")
    accuracy_by_label = {label: (0.5 + 0.01 * number,) for number, label in enumerate(labels(made))}
    frame = accuracies_of(made, accuracy_by_label)
    drawn = makers_of(made)["accuracy-of-protonorm"](made, frame, "digits", name="map")
    assert list(drawn.numbers) == ["learning-rate", "protonorm.gamma", "mean (%)"]
    for rate, gamma, share in drawn.numbers.itertuples(index=False, name=None):
        label = f"protonorm, gamma = {gamma:g}, learning-rate = {rate}"
        assert share == pytest.approx(100 * accuracy_by_label[label][0])
    assert len(drawn.numbers) == 4
    with pytest.raises(NothingToPlotError, match="no trial is finished"):
        heat_map(made, frame[:1], "digits", "protonorm", "map")


def test_a_curve_has_its_method_s_values_and_waits_for_none():
    made = plan("protonorm.gamma=10,1", choose="", cross=False)
    frame = accuracies_of(made, {"local": (0.5, 0.7), "protonorm, gamma = 10": (0.8, 0.9)})
    drawn = by_value(made, frame, "digits", "protonorm.gamma", "vary")
    assert drawn.numbers["protonorm.gamma"].tolist() == ["", 10]
    assert drawn.numbers["mean (%)"].tolist() == pytest.approx([60, 85])
    assert "highest protonorm 85.0 % at 10" in drawn.alt
    with pytest.raises(NothingToPlotError, match="no trial is finished"):
        by_value(made, frame[:2], "digits", "protonorm.gamma", "vary")
