"""A comparison's plots: the bands of curves, and the intervals of differences. test_variants.py has the others."""

import pandas as pd
import pytest

from protosphere.comparison.plots import differences, draw_curves
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric
from protosphere.reports import canvas
from protosphere.reports.canvas import NothingToPlotError

METHODS = (Entry("local", {"strategy": "local"}), Entry("norm", {"strategy": "protonorm"}))
SPEC = ComparisonSpec("test", METHODS, (Entry("digits", {"dataset": "digits"}),), metrics=(Metric("", "final"),))


def test_bands_end_at_0_and_100_percent():
    curve = pd.DataFrame({"round": [0, 1, 2], "mean": [0.04, 0.5, 0.97], "std": [0.1, 0.1, 0.05]})
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        draw_curves(axes, {"a": curve}, "round", None)
    (band,) = axes.collections
    edges = {(x, round(y, 9)) for x, y in band.get_paths()[0].vertices}
    assert edges == {(0, 0), (0, 14), (1, 40), (1, 60), (2, 92), (2, 100)}


def test_axes_of_bytes_start_just_below_0():
    curves = {}
    for method, payload in {"none": [0, 0], "few": [1e4, 2e4], "many": [1e7, 2e7]}.items():
        curves[method] = pd.DataFrame({"round": [0, 1], "mean": [0.5, 0.6], "std": [0.0, 0.0], "payload": payload})
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        draw_curves(axes, curves, "payload", None)
    left, right = axes.get_xlim()
    assert left == pytest.approx(-0.001)
    assert right == pytest.approx(24)


def test_a_difference_has_an_interval_unless_there_is_one_seed():
    accuracies = {"local": (0.5, 0.52, 0.5), "norm": (0.6, 0.63, 0.59)}
    rows = []
    for method, values in accuracies.items():
        rows += [("digits", method, seed, value) for seed, value in enumerate(values)]
    frame = pd.DataFrame(rows, columns=["row", "method", "seed", "metric: final"])
    plot = differences(SPEC, frame, "digits", "name")
    ((method, mean, low, high),) = plot.numbers.itertuples(index=False, name=None)
    assert method == "norm"
    assert low < mean < high
    assert mean == pytest.approx(10)
    with pytest.raises(NothingToPlotError, match="no two seeds"):
        differences(SPEC, frame[frame["seed"] == 0], "digits", "name")
