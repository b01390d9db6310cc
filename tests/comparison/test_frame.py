"""From hand-made runs to a comparison's numbers and files, held against numpy."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import (
    MeanStd,
    as_csv,
    collect,
    curve_of,
    differences,
    differences_csv,
    gains_of_exchange,
    means_of,
    select_means,
    summarise,
    value_of,
    without_control,
)
from protosphere.comparison.plots import curves
from protosphere.comparison.report import conclude, write_all
from protosphere.comparison.spec import Entry, Metric
from protosphere.comparison.trials import expand
from tests.comparison.fabricated import CIFAR, SEEDS, comparison, finished, folder_of, line, trials_of


@pytest.mark.parametrize("values", [(0.8, 0.7, 0.9), (0.1, 0.1), (0.2, None, 0.6, 0.4)])
def test_mean_and_spread_are_numpys_sample_ones(values):
    known = np.array([value for value in values if value is not None])
    found = summarise(values)
    assert found.mean == pytest.approx(known.mean(), rel=1e-12)
    assert found.std == pytest.approx(known.std(ddof=1), rel=1e-12)
    assert found.seeds == known.size
    assert summarise(values[:1]) == MeanStd(values[0], None, 1), "of one there is no spread"
    assert summarise([None]) is summarise([]) is None


def test_means_are_those_of_the_finished_trials(tmp_path):
    made = comparison()
    table = means_of(made, finished(folder_of(tmp_path, made, {("FedProto", 2)}), made))
    assert table[["row", "method", "seeds"]].values.tolist() == [
        *(["CIFAR-10", "FedProto", 2], ["CIFAR-10", "Proto_Norm", 3]),
        *(["MNIST", "FedProto", 0], ["MNIST", "Proto_Norm", 0]),
    ]
    assert table["mean"].tolist() == pytest.approx([0.75, 0.82, np.nan, np.nan], nan_ok=True)
    assert table["std"].iloc[1] == pytest.approx(np.std([0.85, 0.8, 0.81], ddof=1))
    assert table["wire"].tolist() == pytest.approx([600, 600, np.nan, np.nan], nan_ok=True)


def test_a_metric_is_a_rule_and_a_figure_of_the_summary(tmp_path):
    made = comparison()
    place = folder_of(tmp_path, made)
    summary = json.loads((place.run_of(trials_of(made)[0]) / "summary.json").read_text())
    values = {
        Metric(): 0.8,
        Metric("", "client-best"): 0.99,
        Metric("", "selected"): None,
        Metric("classifier", "final"): 0.4,
        Metric("ensemble", "last-5"): 0.2,
        Metric("discriminant", "final"): None,
        Metric("", "final-unweighted"): 0.45,
        Metric("", "macro"): 0.55,
        Metric("domain", "usps"): 0.6,
        Metric("domain", "svhn"): None,
        Metric("domain-unweighted", "usps"): 0.65,
    }
    assert {metric: value_of(summary, metric) for metric in values} == values
    assert value_of({}, Metric("ensemble", "best")) is None
    del summary["classes"]
    assert value_of(summary, Metric("", "macro")) is None, "where clients do not report classes"


def test_a_curve_has_the_bytes_of_training_up_to_each_evaluation():
    lines = [line(0, 0.3), line(1, 0.5), line(2, 0.4)]
    assert list(curve_of(lines, "local-prototypes").itertuples(name=None)) == [
        *((0, 0.3, 0, 0), (1, 0.5, 200, 300), (2, 0.4, 400, 600))
    ]
    assert curve_of(lines, "classifier")["accuracy"].tolist() == [0.15, 0.25, 0.2]
    assert curve_of(lines, "discriminant").empty
    # evaluated every other round, and the ensemble on its own rounds
    sparse = [line(0, 0.3), {"round": 1, "bytes": lines[1]["bytes"]}, line(2, 0.5) | {"ensemble": {"accuracy": 0.7}}]
    assert list(curve_of(sparse, "local-prototypes").itertuples(name=None)) == [(0, 0.3, 0, 0), (2, 0.5, 400, 600)]
    assert list(curve_of(sparse, "ensemble").itertuples(name=None)) == [(2, 0.7, 400, 600)]


@pytest.mark.parametrize(
    ("metric", "accuracies"),
    [
        (Metric("domain", "usps"), [0.7]),
        (Metric("domain-unweighted", "usps"), [0.6]),
        (Metric("domain", "svhn"), []),
        (Metric("classifier", "final"), [0.5]),
        (Metric("classifier", "final-unweighted"), [0.4]),
    ],
    ids=str,
)
def test_a_curve_is_averaged_over_clients_as_its_metric_is(metric, accuracies):
    figures = {"mean": 0.5, "plain_mean": 0.4, "std": 0.1, "worst": 0.2}
    evaluation = {"rules": {"classifier": {"test": figures}}}
    evaluation["domains"] = {"usps": {"classifier": {"test": figures | {"mean": 0.7, "plain_mean": 0.6}}}}
    lines = [line(1, 0.5) | {"evaluation": evaluation}]
    assert curve_of(select_means(metric, lines), "classifier")["accuracy"].tolist() == accuracies


def test_curves_are_means_over_seeds_of_the_evaluations_that_all_have(tmp_path):
    made = comparison()
    found = finished(folder_of(tmp_path, made), made).query("method == 'FedProto'")["curve"].tolist()
    curve = curves(found)
    assert curve["mean"].tolist() == pytest.approx([0.1, 0.4, 0.8])
    assert curve["std"].iloc[2] == pytest.approx(np.std([0.8, 0.7, 0.9], ddof=1))
    assert curve["wire"].tolist() == [0, 300, 600]
    assert curves([found[0], found[1][:2], found[2]])["round"].tolist() == [0, 1]


def test_a_difference_is_significant_where_holms_correction_leaves_it():
    """Three methods of which one is far from the baseline and one would be significant by itself alone."""
    methods = tuple(Entry(name, {"strategy": "local"}) for name in ("base", "far", "near", "same"))
    made = comparison(methods=methods, datasets=(CIFAR,), paper=())
    gaps = {"base": (0, 0, 0), "far": (0.1, 0.1001, 0.1002), "near": (0.01, 0.013, 0.019), "same": (0, 0.02, -0.01)}
    lines = [("CIFAR-10", name, seed, 0.5 + gap) for name, values in gaps.items() for seed, gap in enumerate(values)]
    frame = pd.DataFrame(lines, columns=["row", "method", "seed", "metric: final"]).assign(strategy="local", encoder="")
    table = differences(made, frame).set_index("method")
    assert table["p"]["far"] < 0.05 / 3
    assert 0.05 / 2 < table["p"]["near"] < 0.05, "significant, if it were the only one"
    assert table["significant"].to_dict() == {"far": True, "near": False, "same": False}
    written = list(csv.DictReader(differences_csv(made, frame).splitlines()))
    assert [row["significant"] for row in written] == ["True", "False", "False"]
    # a correction is within one row: by a second row of the same figures a method that is significant alone stays so
    two = frame[frame["method"].isin(["base", "near"])]
    made_of_two = comparison(methods=(methods[0], methods[2]), paper=())
    both = differences(made_of_two, pd.concat([two, two.assign(row="MNIST")]))
    assert both["significant"].tolist() == [True, True]


def test_the_exchange_is_measured_against_local_with_the_same_encoder():
    """Without such a row of `local` nothing is told, and that is said."""
    labels = {"ours": "a", "ours (B)": "b", "ours (C)": "c", "alone (B)": "b", "alone": "a"}
    strategies = {name: "local" if name.startswith("alone") else "protosphere" for name in labels}
    methods = tuple(Entry(name, {"strategy": strategies[name]}) for name in labels)
    made = comparison(methods=methods, datasets=(CIFAR,), paper=())
    means = {"ours": 0.61, "ours (B)": 0.8, "ours (C)": 0.9, "alone (B)": 0.75, "alone": 0.55}
    lines = []
    for seed in SEEDS:
        for name, encoder in labels.items():
            pool = None if name.startswith("alone") else means[name]
            lines.append(("CIFAR-10", name, seed, strategies[name], encoder, pool, means[name]))
    columns = ["row", "method", "seed", "strategy", "encoder", "pool final", "pool-local final"]
    frame = pd.DataFrame(lines, columns=columns)
    gains = gains_of_exchange(made, frame).dropna(subset="difference").set_index("method")
    assert gains["difference"].round(9).to_dict() == {"ours": 0.06, "ours (B)": 0.05}
    assert gains["baseline"].tolist() == ["alone: pool-local", "alone (B): pool-local"]
    assert without_control(made, frame) == ["pool-local"]
    assert without_control(made, frame[frame["method"] != "ours (C)"]) == []


@pytest.mark.parametrize("place", ["overrides", "settings", "datasets", "partitions", "methods", ""])
def test_the_encoder_is_that_of_the_trial_wherever_it_is_named(tmp_path, place):
    """Where nothing names one it is the method's own."""
    named = {"encoder": "handcrafted"}
    given = {
        "settings": {},
        "datasets": (Entry("digits", {"dataset": "digits"} | (named if place == "datasets" else {})),),
        "partitions": (Entry("iid", {"partition": "iid"} | (named if place == "partitions" else {})),),
        "methods": tuple(
            Entry(name, {"strategy": name} | (named if place == "methods" else {})) for name in ("local", "protosphere")
        ),
    }
    if place == "settings":
        given["settings"] = named
    made = comparison(**given, seeds=(0,), paper=())
    trials = expand(made, named if place == "overrides" else {}, {})
    frame = collect(ComparisonFolder.create(made, trials, str(tmp_path)), made, trials)
    assert frame["encoder"].tolist() == ["handcrafted" if place else "", "handcrafted"]


# --- files --------------------------------------------------------------------------------------------------


def test_the_csv_has_every_figure_of_every_trial(tmp_path):
    made = comparison()
    place = folder_of(tmp_path, made, {("FedProto", 1)})
    rows = list(csv.DictReader(as_csv(collect(place, made, trials_of(made))).splitlines()))
    assert [row["status"] for row in rows] == ["completed", "missing", *["completed"] * 4, *["missing"] * 6]
    expected = {"row": "CIFAR-10", "method": "FedProto", "strategy": "fedproto", "seed": "0", "clients": "2"}
    expected |= {"metric: final": "0.8", "paper: final": str(82.9 / 100), "majority-class": "0.5", "validation": ""}
    expected |= {"classifier final": "0.4", "ensemble best": "0.3", "rule": "local-prototypes"}
    expected |= {"domain usps": "0.6", "domain-unweighted usps": "0.65", "test_samples": "90", "macro f1": "0.5"}
    expected |= {"local-prototypes selected": "", "payload_bytes": "400", "wire_bytes": "600", "seconds": "12.3"}
    expected |= {"run": "trials/cifar-10-fedproto-0/run"}
    assert {name: rows[0][name] for name in expected} == expected
    names = {"row", "method", "strategy", "seed", "status", "paper: final"}
    assert {name for name, value in rows[1].items() if value} == names, "a missing trial has no figure"


def test_all_files_are_written_from_what_is_finished(tmp_path):
    made = comparison(title="A <b> & c")
    place = folder_of(tmp_path, made)
    (place.of(trials_of(made)[0]) / "run" / "report.html").write_text("")
    written = write_all(place, made, trials_of(made))
    names = ["table.csv", "differences.csv", "table.md", "table.tex", "report.html"]
    assert [path.name for path in written.paths] == names
    page = (place.path / "report.html").read_text()
    for words in (
        "A &lt;b&gt; &amp; c",
        "6 of 12 trials finished: 2 data sets, 2 methods, 3 seeds (0, 1, 2). ",
        'href="trials/cifar-10-fedproto-0/run/report.html"',
        "On CIFAR-10 Proto_Norm reaches 82.00 ± 2.65 % (final), FedProto 80.00 ± 10.00 %: +2.0 points, which",
    ):
        assert words in page, words
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    # of the row that has runs
    plots = ("accuracy-over-bytes", "accuracy-over-rounds", "differences")
    files = [f"{name}-row1.{ending}" for name in plots for ending in ("csv", "svg")]
    assert sorted(path.name for path in (place.path / "pictures").iterdir()) == files
    with (place.path / "pictures" / "accuracy-over-bytes-row1.csv").open(newline="") as file:
        own = [row for row in csv.DictReader(file) if row["method"] == "FedProto"]
    assert [(row["payload (bytes)"], row["wire (bytes)"]) for row in own] == [
        ("0.0", "0.0"),
        ("200.0", "300.0"),
        ("400.0", "600.0"),
    ]


def test_a_conclusion_says_what_chance_explains(tmp_path):
    above, single = comparison(baseline="Proto_Norm"), comparison(seeds=(0,))
    assert "no other method of 2 is above" in conclude(above, finished(folder_of(tmp_path, above), above))
    assert "of one seed, which chance may explain." in conclude(single, finished(folder_of(tmp_path, single), single))


def test_no_cell_of_the_csvs_is_a_formula_to_a_spreadsheet(tmp_path):
    evil = '=HYPERLINK("http://x","y")'
    made = comparison(
        methods=(Entry(evil, {"strategy": "fedproto"}), Entry("+1", {"strategy": "protonorm"})),
        datasets=(Entry("@x", {"dataset": "cifar10"}),),
        paper=(),
    )
    place = ComparisonFolder(folder_of(tmp_path, comparison()).path)
    for text in (as_csv(collect(place, made, trials_of(made))), differences_csv(made, finished(place, made))):
        rows = list(csv.reader(text.splitlines()))
        assert len(rows) > 1
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@"))]
        assert any(cell == f"'{evil}" for row in rows for cell in row)
