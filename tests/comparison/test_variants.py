"""Varied settings: the variants of a method, how one is chosen, and their plots."""

import shutil

import pandas as pd
import pytest

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import COSTS, choose_variants, collect, validation_of
from protosphere.comparison.plots import by_value, heat_map, makers_of
from protosphere.comparison.report import write_all
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric, load, narrow, read
from protosphere.comparison.tables import tables_of
from protosphere.comparison.trials import expand
from protosphere.comparison.variants import with_variants
from protosphere.core.errors import SettingError
from protosphere.reports.canvas import NothingToPlotError
from tests.comparison.fabricated import line, trials_of, write_run

# test accuracy is best where validation accuracy is worst
VALIDATION = {"3": (0.5, 0.6), "10": (0.9, 0.7), "30": (0.7, 0.7)}
TEST = {"3": (0.9, 0.95), "10": (0.4, 0.5), "30": (0.6, 0.6)}


def varied(*texts, methods="local protonorm", **changes):
    """A comparison in which settings vary."""
    entries = tuple(Entry(name, {"strategy": name}) for name in methods.split())
    datasets = (Entry("digits", {"dataset": "digits"}),)
    return with_variants(ComparisonSpec("test", entries, datasets, seeds=(0, 1), **changes), texts)


def labels(spec):
    return [entry.label for entry in spec.methods]


def labels_of(method, setting, *values):
    return [f"{method}, {setting} = {value}" for value in values]


@pytest.mark.parametrize(
    ("methods", "texts", "cross", "expected"),
    [
        (
            "local protonorm",
            ["protonorm.gamma=1,10.5", 'protonorm.alignment="none","auto"'],
            False,
            ["local", *labels_of("protonorm", "gamma", 1, 10.5), *labels_of("protonorm", "alignment", "none", "auto")],
        ),
        (
            "local protonorm",
            ["protonorm.gamma=1,9", 'protonorm.alignment="none","auto"'],
            True,
            ["local", *(f"protonorm, gamma = {g}, alignment = {a}" for g in (1, 9) for a in ("none", "auto"))],
        ),
        # a shared setting varies for all methods that read it
        (
            "local fedproto",
            ["learning-rate=0.01,0.1"],
            False,
            [*labels_of("local", "learning-rate", 0.01, 0.1), *labels_of("fedproto", "learning-rate", 0.01, 0.1)],
        ),
        (
            "local fedproto fedavg",
            ['client-weights="samples","equal"'],
            False,
            ["local", "fedproto", *labels_of("fedavg", "client-weights", "samples", "equal")],
        ),
        (
            "fedproto tinyproto-fp",
            ["tinyproto.sparsity-dim=0,8"],
            False,
            ["fedproto", *labels_of("tinyproto-fp", "sparsity-dim", 0, 8)],
        ),
    ],
)
def test_a_method_gets_a_variant_for_each_value_that_it_reads(methods, texts, cross, expected):
    spec = varied(*texts, methods=methods, cross=cross)
    assert labels(spec) == expected
    for entry in spec.methods:
        assert entry.settings == {"strategy": entry.varied_of or entry.label} | entry.varied


@pytest.mark.parametrize(
    ("methods", "values", "choose", "baseline"),
    [
        ("local protonorm", "1,10", "", "local"),
        ("protonorm", "1,10", "", "protonorm, gamma = 10"),
        ("protonorm", "1,3", "", "protonorm, gamma = 1"),
        ("protonorm fedproto", "1,3", "validation", "protonorm"),
    ],
)
def test_the_baseline_among_variants_is_the_one_with_the_default(methods, values, choose, baseline):
    assert varied(f"protonorm.gamma={values}", methods=methods, choose=choose).baseline_label == baseline


def test_without_validation_samples_nothing_can_be_chosen():
    spec = with_variants(narrow(load(), methods="protonorm", seeds="0", choose="validation"), ["protonorm.gamma=3,10"])
    with pytest.raises(SettingError, match="validation-share"):
        expand(spec, {"validation-share": 0.0}, {})
    assert [trial.settings["protonorm.gamma"] for trial in expand(spec, {}, {})] == [3.0, 10.0]


def test_a_file_says_what_varies_and_how(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'methods = ["local", "protonorm"]\ndatasets = ["digits"]\n[vary]\nchoose = "validation"\ncross = true\n'
        'protonorm.gamma = [1, 2]\nprotonorm.alignment = ["none", "auto"]\n'
    )
    spec = with_variants(read(file))
    assert (spec.choose, spec.cross, len(spec.methods), spec.baseline_label) == ("validation", True, 5, "local")
    # values of the command line replace those of the file
    spec = with_variants(read(file), ["protonorm.gamma=7,8"])
    assert len(spec.methods) == 5
    assert {entry.varied["protonorm.gamma"] for entry in spec.methods if entry.varied} == {7, 8}


# --- choosing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "expected"), [("selected", 0.9), ("headline", 0.9), ("final", 0.2), ("last-5", (0.9 + 0.5 + 0.2) / 3)]
)
def test_the_validation_accuracy_is_that_of_the_metric_and_of_trained_models(figure, expected):
    lines = [line(number, 0.1) for number in range(4)]
    for each, value in zip(lines, (0.95, 0.9, 0.5, 0.2), strict=True):
        each["evaluation"]["rules"]["classifier"]["validation"] = {"mean": value}
    assert validation_of(lines, Metric("classifier", figure), "local-prototypes") == pytest.approx(expected)
    assert validation_of(lines, Metric("", figure), "local-prototypes") is None
    assert validation_of(lines[:1], Metric("classifier", figure), "classifier") is None


def choice_among(accuracies, folder):
    """A comparison that chooses among three values, its folder with a run for each trial, and its trials.

    Args:
        accuracies: value -> validation accuracy by seed.
    """
    spec = varied("protonorm.gamma=3,10,30", choose="validation")
    trials = trials_of(spec)
    folder = ComparisonFolder.create(spec, trials, str(folder))
    for trial in trials:
        value = trial.method.rpartition(" = ")[2]
        test, validation = TEST.get(value, (0.3, 0.35)), accuracies.get(value, (0.3, 0.3))
        write_run(folder.of(trial) / "run", trial.settings, test[trial.seed], validation=validation[trial.seed])
    return spec, folder, trials


@pytest.mark.usefixtures("undrawn")
def test_the_tables_show_the_variant_with_the_best_validation_accuracy(tmp_path):
    spec, folder, trials = choice_among(VALIDATION, tmp_path)
    accuracies, differences, variants, _ = write_all(folder, spec, trials).tables
    assert accuracies.texts["digits"].to_dict() == {
        "local": "32.50 ± 3.54",
        "protonorm": "45.00 ± 7.07",
        "majority class": "50.00 ± 0.00",
    }
    assert "digits: validation chose gamma = 10 of protonorm among 3." in accuracies.notes
    assert list(differences.texts.index) == ["digits"]
    assert variants.texts["digits"][variants.bold["digits"]].to_dict() == {"protonorm, gamma = 10": "80.00 ± 14.14"}
    page = (folder.path / "report.html").read_text()
    assert "<strong>80.00 ± 14.14</strong>" in page
    assert "1 data set, 2 methods, 2 seeds (0, 1)" in page, "the methods of the tables, not their variants"
    assert len((folder.path / "table.csv").read_text().splitlines()) == 1 + len(trials)
    assert ComparisonFolder(folder.path).read()[0] == spec


def test_the_first_of_equal_variants_is_chosen_and_none_while_a_trial_is_missing(tmp_path):
    spec, folder, trials = choice_among(VALIDATION | {"3": (0.8, 0.8)}, tmp_path)
    tables = tables_of(*choose_variants(spec, collect(folder, spec, trials)))
    variants = tables[2]
    assert variants.texts["digits"]["protonorm, gamma = 10"] == "80.00 ± 14.14"
    assert list(variants.texts.index[variants.bold["digits"]]) == ["protonorm, gamma = 3"]
    shutil.rmtree(folder.of(trials[-1]))
    accuracies = tables_of(*choose_variants(spec, collect(folder, spec, trials)))[0]
    assert accuracies.texts["digits"]["protonorm"] == "-"
    assert "digits: nothing is chosen of protonorm without all trials." in accuracies.notes


# --- plots ---------------------------------------------------------------------------------------------------


def frame_of(accuracies):
    """The frame of finished trials, from each method's accuracies by seed."""
    rows = []
    for method, values in accuracies.items():
        rows += [("digits", method, seed, accuracy) for seed, accuracy in enumerate(values)]
    frame = pd.DataFrame(rows, columns=["row", "method", "seed", "metric: headline"])
    return frame.assign(**dict.fromkeys(COSTS.values(), 0.0))


def test_two_crossed_settings_have_a_heat_map():
    spec = varied("protonorm.gamma=1,10", "learning-rate=0.1,0.2", cross=True)
    accuracies = {label: (0.5 + 0.01 * number,) for number, label in enumerate(labels(spec))}
    plot = makers_of(spec)["accuracy-of-protonorm"](spec, frame_of(accuracies), "digits", name="map")
    assert list(plot.numbers) == ["learning-rate", "protonorm.gamma", "mean (%)"]
    assert len(plot.numbers) == 4
    for rate, gamma, share in plot.numbers.itertuples(index=False, name=None):
        label = f"protonorm, gamma = {gamma:g}, learning-rate = {rate}"
        assert share == pytest.approx(100 * accuracies[label][0])
    with pytest.raises(NothingToPlotError, match="no trial is finished"):
        heat_map(spec, frame_of(accuracies)[:1], "digits", "protonorm", "map")


def test_a_curve_has_the_finished_values_of_a_method():
    spec = varied("protonorm.gamma=10,1")
    frame = frame_of({"local": (0.5, 0.7), "protonorm, gamma = 10": (0.8, 0.9)})
    with pytest.raises(NothingToPlotError, match="no trial is finished"):
        by_value(spec, frame[:2], "digits", "protonorm.gamma", "vary")
    plot = by_value(spec, frame, "digits", "protonorm.gamma", "vary")
    assert plot.numbers["protonorm.gamma"].tolist() == ["", 10]
    assert plot.numbers["mean (%)"].tolist() == pytest.approx([60, 85])


@pytest.mark.parametrize(
    ("text", "line", "points"),
    [("protonorm.gamma=100,1,10", "-", [1, 10, 100]), ('protonorm.alignment="thomson","riesz"', "None", [0, 1])],
)
def test_numbers_make_a_curve_and_words_stand_side_by_side(text, line, points):
    spec = varied(text)
    setting = text.partition("=")[0]
    accuracies = {label: (0.5 + 0.01 * number,) for number, label in enumerate(labels(spec)) if "=" in label}
    plot = by_value(spec, frame_of(accuracies), "digits", setting, "vary")
    curve = next(curve for curve in plot.axes[0].lines if len(curve.get_xdata()) == len(points))
    assert list(curve.get_xdata()) == points
    assert curve.get_linestyle() == line
