"""A simulation whose clients' newest files are not on the disk yet when the power goes."""

import os

import pytest

from protosphere.client_app import client
from protosphere.core.files import unsettled
from tests.strategies.needs import ASKED

SETTINGS = {"fraction-train": 0.5, "evaluate-clients": "sampled", "rounds": 4, "models": "tiny_perceptron"}


@pytest.mark.parametrize(("method", "what_is_left"), [("protosphere", "names"), ("fedavg", "nothing")])
def test_a_run_whose_power_was_cut_in_a_round_goes_on_to_the_bit(run, metrics, cut, method, what_is_left):
    settings = ASKED[method] | SETTINGS
    whole = metrics(run(settings))
    lost = []

    def is_due(strategy, server_round, replies):
        if server_round == 3:
            lost.extend(unsettled.paths)
        return server_round == 3

    cut(settings, "_aggregate", is_due)
    assert lost
    for path in lost:
        if not path.exists():
            continue
        if what_is_left == "names":
            os.truncate(path, 0)
        else:
            path.unlink()
    # the process is gone, too
    client._states.clear()
    assert metrics(run(settings | {"resume": "latest"})) == whole
