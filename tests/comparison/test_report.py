"""A comparison's pictures: what they have an axis for."""

import numpy as np
import pandas as pd
import pytest

from protosphere.comparison.report import fill
from protosphere.reports import canvas


def curve(payload):
    return pd.DataFrame({"round": [0, 1, 2], "mean": [0.5, 0.6, 0.7], "std": np.nan, "payload": payload})


def test_a_method_that_sends_nothing_stands_at_zero_of_a_scale_of_orders():
    with canvas.figure() as drawing:
        axes = drawing.add_subplot()
        fill(axes, {"local": curve([0, 0, 0]), "fedproto": curve([0, 2000, 400_000])}, "payload")
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


@pytest.mark.parametrize(("payload", "scale"), [([0, 0, 0], "linear"), ([0, 500, 1000], "linear")])
def test_a_scale_of_orders_is_for_orders(payload, scale):
    with canvas.figure() as drawing:
        axes = drawing.add_subplot()
        fill(axes, {"a": curve(payload)}, "payload")
    assert axes.get_xscale() == scale
    assert axes.get_xlim()[0] < 0
