"""A comparison's plots: axes, bands, bars, and what they are of."""

import numpy as np
import pandas as pd
import pytest

from protosphere.comparison.plots import differences, draw_curves
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric
from protosphere.reports import canvas
from protosphere.reports.canvas import NothingToPlotError

METHODS = (
    Entry("local", {"strategy": "local"}),
    *(
        Entry(f"norm, gamma = {value}", {"strategy": "protonorm"}, varied_of="norm", varied={"protonorm.gamma": value})
        for value in (1, 3, 100)
    ),
)
MADE = ComparisonSpec("test", METHODS, (Entry("digits", {"dataset": "digits"}),), metrics=(Metric("", "final"),))


def curve(payload):
    return pd.DataFrame({"round": [0, 1, 2], "mean": [0.5, 0.6, 0.7], "std": np.nan, "payload": payload})


@pytest.fixture
def axes():
    with canvas.figure() as plot:
        yield plot.add_subplot()


def test_a_method_that_sends_nothing_stands_at_zero_of_a_scale_of_orders(axes):
    draw_curves(axes, {"local": curve([0, 0, 0]), "fedproto": curve([0, 2000, 400_000])}, "payload", None)
    low, high = axes.get_xlim()
    places = axes.transData.transform([(0, 50), (2, 50), (400, 50)])[:, 0]
    local, end, fedproto = axes.lines
    assert axes.get_xscale() == "symlog"
    assert low < 0 < 400 < high
    # as far from the first bytes as orders are from each other, and not on top of them
    assert (places[1] - places[0]) / (places[2] - places[0]) > 0.15
    assert list(local.get_xdata()) == [0, 0, 0]
    assert list(fedproto.get_xdata()) == [0, 2, 400]
    # its accuracy at the end, from one side to the other
    assert (list(end.get_xdata()), list(end.get_ydata())) == ([0, 1], [70, 70])


def test_bands_end_at_none_and_all_of_the_samples(axes):
    """A standard deviation over seeds says nothing of accuracies that cannot be."""
    near = pd.DataFrame({"round": [0, 1, 2], "mean": [0.04, 0.5, 0.97], "std": [0.1, 0.1, 0.05]})
    draw_curves(axes, {"a": near}, "round", None)
    (drawn,) = axes.collections
    edges = drawn.get_paths()[0].vertices
    assert {(x, round(y, 9)) for x, y in edges} == {(0, 0), (0, 14), (1, 40), (1, 60), (2, 92), (2, 100)}


def frame(accuracies):
    rows = [
        ("digits", method, seed, value) for method, values in accuracies.items() for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["row", "method", "seed", "metric: final"])


def test_a_difference_has_its_interval_and_one_seed_has_none():
    figures = frame({"local": (0.5, 0.52, 0.5), "norm, gamma = 1": (0.6, 0.63, 0.59)})
    plot = differences(MADE, figures, "digits", "name")
    ((method, mean, low, high),) = plot.numbers.itertuples(index=False, name=None)
    assert method == "norm, gamma = 1"
    assert low < mean < high
    assert mean == pytest.approx(10)
    with pytest.raises(NothingToPlotError, match="no two seeds"):
        differences(MADE, figures[figures["seed"] == 0], "digits", "name")
