"""A comparison's plots: axes, bands, bars, and what they are of."""

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


@pytest.fixture
def axes():
    with canvas.figure() as plot:
        yield plot.add_subplot()


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
