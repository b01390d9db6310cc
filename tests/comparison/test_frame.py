"""From hand-made runs to a comparison's numbers and files, against numpy."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import (
    MeanStd,
    collect,
    curve_of,
    differences,
    differences_csv,
    for_file,
    gains_of_exchange,
    means_of,
    summarise,
    value_of,
)
from protosphere.comparison.plots import curves
from protosphere.comparison.report import conclude, write_all
from protosphere.comparison.spec import Entry, Metric
from protosphere.reports.frames import as_csv
from tests.comparison.fabricated import CIFAR, SEEDS, comparison, finished, folder_of, line, trials_of


@pytest.mark.parametrize("values", [(0.8, 0.7, 0.9), (0.1, 0.1), (0.2, None, 0.6, 0.4)])
def test_mean_and_deviation_are_those_of_a_sample(values):
    known = np.array([value for value in values if value is not None])
    over_seeds = summarise(values)
    assert over_seeds.mean == pytest.approx(known.mean(), rel=1e-12)
    assert over_seeds.std == pytest.approx(known.std(ddof=1), rel=1e-12)
    assert over_seeds.seeds == known.size
    assert summarise(values[:1]) == MeanStd(values[0], None, 1)
    assert summarise([None]) is summarise([]) is None


def test_means_are_those_of_the_finished_trials(tmp_path):
    spec = comparison()
    table = means_of(spec, finished(folder_of(tmp_path, spec, {("FedProto", 2)}), spec))
    assert table[["row", "method", "seeds"]].values.tolist() == [
        *(["CIFAR-10", "FedProto", 2], ["CIFAR-10", "Proto_Norm", 3]),
        *(["MNIST", "FedProto", 0], ["MNIST", "Proto_Norm", 0]),
    ]
    assert table["mean"].tolist() == pytest.approx([0.75, 0.82, np.nan, np.nan], nan_ok=True)
    assert table["std"].iloc[1] == pytest.approx(np.std([0.85, 0.8, 0.81], ddof=1))
    assert table["wire"].tolist() == pytest.approx([600, 600, np.nan, np.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (Metric(), 0.8),
        (Metric("", "client-best"), 0.99),
        (Metric("", "selected"), None),
        (Metric("classifier", "final"), 0.4),
        (Metric("ensemble", "last-5"), 0.2),
        (Metric("discriminant", "final"), None),
        (Metric("", "final-unweighted"), 0.45),
        (Metric("", "macro"), 0.55),
        (Metric("domain", "usps"), 0.6),
        (Metric("domain", "svhn"), None),
        (Metric("domain-unweighted", "usps"), 0.65),
    ],
    ids=str,
)
def test_a_metric_is_a_value_of_the_summary(tmp_path, metric, value):
    spec = comparison()
    summary = json.loads((folder_of(tmp_path, spec).run_of(trials_of(spec)[0]) / "summary.json").read_text())
    assert value_of(summary, metric) == value


def test_no_cell_of_the_csv_files_is_a_formula_to_a_spreadsheet(tmp_path):
    evil = '=HYPERLINK("http://x","y")'
    spec = comparison(
        methods=(Entry(evil, {"strategy": "fedproto"}), Entry("+1", {"strategy": "protonorm"})),
        datasets=(Entry("@x", {"dataset": "cifar10"}),),
        paper=(),
    )
    folder = ComparisonFolder(folder_of(tmp_path, comparison()).path)
    for text in (
        as_csv(for_file(collect(folder, spec, trials_of(spec)))),
        differences_csv(spec, finished(folder, spec)),
    ):
        cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]
        assert f"'{evil}" in cells


# --- curves --------------------------------------------------------------------------------------------------


def test_a_curve_has_the_bytes_of_training_up_to_each_evaluation():
    # evaluated every other round, and the ensemble in rounds of its own
    lines = [line(0, 0.3), {"round": 1, "bytes": line(1, 0.5)["bytes"]}, line(2, 0.5) | {"ensemble": {"accuracy": 0.7}}]
    curve = curve_of(lines, Metric(), "local-prototypes")
    assert list(curve.itertuples(name=None)) == [(0, 0.3, 0, 0), (2, 0.5, 400, 600)]
    assert curve_of(lines, Metric("classifier"), "local-prototypes")["accuracy"].tolist() == [0.15, 0.25]
    ensemble = curve_of(lines, Metric("ensemble", "final"), "local-prototypes")
    assert list(ensemble.itertuples(name=None)) == [(2, 0.7, 400, 600)]


@pytest.mark.parametrize(
    ("metric", "accuracies"),
    [
        (Metric("domain", "usps"), [0.7]),
        (Metric("domain-unweighted", "usps"), [0.6]),
        (Metric("domain", "svhn"), []),
        (Metric("classifier", "final-unweighted"), [0.4]),
    ],
    ids=str,
)
def test_a_curve_is_averaged_over_clients_as_its_metric_is(metric, accuracies):
    figures = {"mean": 0.5, "plain_mean": 0.4, "std": 0.1, "worst": 0.2}
    evaluation = {"rules": {"classifier": {"test": figures}}}
    evaluation["domains"] = {"usps": {"classifier": {"test": figures | {"mean": 0.7, "plain_mean": 0.6}}}}
    lines = [line(1, 0.5) | {"evaluation": evaluation}]
    assert curve_of(lines, metric, "classifier")["accuracy"].tolist() == accuracies


def test_curves_are_means_over_seeds_of_common_evaluations(tmp_path):
    spec = comparison()
    runs = finished(folder_of(tmp_path, spec), spec).query("method == 'FedProto'")["curve"].tolist()
    curve = curves(runs)
    assert curve["mean"].tolist() == pytest.approx([0.1, 0.4, 0.8])
    assert curve["std"].iloc[2] == pytest.approx(np.std([0.8, 0.7, 0.9], ddof=1))
    assert curve["wire"].tolist() == [0, 300, 600]
    assert curves([runs[0], runs[1][:2], runs[2]])["round"].tolist() == [0, 1]


# --- differences ---------------------------------------------------------------------------------------------


def test_a_difference_is_significant_after_holms_correction_within_its_row():
    """One method is far from the baseline, and one would be significant alone."""
    methods = tuple(Entry(name, {"strategy": "local"}) for name in ("base", "far", "near", "same"))
    spec = comparison(methods=methods, datasets=(CIFAR,), paper=())
    gaps = {"base": (0, 0, 0), "far": (0.1, 0.1001, 0.1002), "near": (0.01, 0.013, 0.019), "same": (0, 0.02, -0.01)}
    lines = []
    for name, values in gaps.items():
        lines += [("CIFAR-10", name, seed, 0.5 + gap) for seed, gap in enumerate(values)]
    frame = pd.DataFrame(lines, columns=["row", "method", "seed", "metric: final"]).assign(strategy="local", encoder="")
    table = differences(spec, frame).set_index("method")
    assert table["p"]["far"] < 0.05 / 3
    assert 0.05 / 2 < table["p"]["near"] < 0.05
    assert table["significant"].to_dict() == {"far": True, "near": False, "same": False}
    rows = list(csv.DictReader(differences_csv(spec, frame).splitlines()))
    assert [row["significant"] for row in rows] == ["True", "False", "False"]
    two_methods = frame[frame["method"].isin(["base", "near"])]
    spec_of_two = comparison(methods=(methods[0], methods[2]), paper=())
    two_rows = differences(spec_of_two, pd.concat([two_methods, two_methods.assign(row="MNIST")]))
    assert two_rows["significant"].tolist() == [True, True]


def test_the_exchange_is_measured_against_local_with_the_same_encoder():
    encoders = {"ours": "a", "ours (B)": "b", "ours (C)": "c", "alone (B)": "b", "alone": "a"}
    strategies = {name: "local" if name.startswith("alone") else "protosphere" for name in encoders}
    methods = tuple(Entry(name, {"strategy": strategies[name]}) for name in encoders)
    spec = comparison(methods=methods, datasets=(CIFAR,), paper=())
    means = {"ours": 0.61, "ours (B)": 0.8, "ours (C)": 0.9, "alone (B)": 0.75, "alone": 0.55}
    lines = []
    for seed in SEEDS:
        for name, encoder in encoders.items():
            pool = None if name.startswith("alone") else means[name]
            lines.append(("CIFAR-10", name, seed, strategies[name], encoder, pool, means[name]))
    columns = ["row", "method", "seed", "strategy", "encoder", "pool final", "pool-local final"]
    frame = pd.DataFrame(lines, columns=columns)
    gains = gains_of_exchange(spec, frame).set_index("method")
    assert gains["difference"].round(9).to_dict() == {"ours": 0.06, "ours (B)": 0.05}
    assert gains["baseline"].tolist() == ["alone: pool-local", "alone (B): pool-local"]


def test_the_encoder_of_a_trial_is_the_named_one_or_the_methods_own(tmp_path):
    methods = (
        Entry("local", {"strategy": "local"}),
        Entry("named", {"strategy": "local", "encoder": "handcrafted"}),
        Entry("own", {"strategy": "protosphere"}),
    )
    spec = comparison(methods=methods, datasets=(CIFAR,), seeds=(0,), paper=())
    trials = trials_of(spec)
    frame = collect(ComparisonFolder.create(spec, trials, str(tmp_path)), spec, trials)
    assert frame["encoder"].tolist() == ["", "handcrafted", "handcrafted"]


# --- files --------------------------------------------------------------------------------------------------


def test_the_csv_has_every_figure_of_every_trial(tmp_path):
    spec = comparison()
    frame = collect(folder_of(tmp_path, spec, {("FedProto", 1)}), spec, trials_of(spec))
    rows = list(csv.DictReader(as_csv(for_file(frame)).splitlines()))
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


def test_all_files_are_written_from_finished_trials(tmp_path):
    spec = comparison(title="A <b> & c")
    folder = folder_of(tmp_path, spec)
    written = write_all(folder, spec, trials_of(spec))
    names = ["table.csv", "differences.csv", "table.md", "table.tex", "report.html"]
    assert [path.name for path in written.paths] == names
    page = (folder.path / "report.html").read_text()
    assert "A &lt;b&gt; &amp; c" in page
    assert "6 of 12 trials finished: 2 data sets, 2 methods, 3 seeds (0, 1, 2). " in page
    sentence = "On CIFAR-10 Proto_Norm reaches 82.00 ± 2.65 % (final), FedProto 80.00 ± 10.00 %: +2.0 points, which"
    assert sentence in page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    plots = ("accuracy-over-bytes", "accuracy-over-rounds", "differences")
    files = [f"{name}-row1.{ending}" for name in plots for ending in ("csv", "svg")]
    assert sorted(path.name for path in (folder.path / "pictures").iterdir()) == files
    numbers = pd.read_csv(folder.path / "pictures" / "accuracy-over-bytes-row1.csv").query("method == 'FedProto'")
    assert numbers[["payload (bytes)", "wire (bytes)"]].values.tolist() == [[0, 0], [200, 300], [400, 600]]


def test_a_conclusion_says_what_chance_explains(tmp_path):
    for changes, words in (
        ({"baseline": "Proto_Norm"}, "no other method of 2 is above"),
        ({"seeds": (0,)}, "points, of one seed, which chance may explain."),
    ):
        spec = comparison(**changes)
        assert words in conclude(spec, finished(folder_of(tmp_path, spec), spec))
