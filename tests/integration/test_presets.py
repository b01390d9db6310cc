"""A preset's constants train: a paper's learning rate, pull and weights, as read here, must not drive models apart."""

import json

import pytest

from protosphere.plans.run_config import preset_names, read_preset
from protosphere.strategies import load_method

# the constants alone; the data, the models and the length are those of a test
TASK = {"dataset": "digits", "image-size": 16, "models": "tiny_cnn", "device": "cpu"}
TASK |= {
    "rounds": 3,
    "evaluate-every": 3,
    "max-samples": 80,
    "partition": "iid",
    "split": "pooled",
    "inference": "classifier",
}
OF_THE_DATA = ("partition-table", "alpha", "clients", "ways", "ways-spread", "shots", "shots-spread", "ensemble-every")
TEXTS = "fedpagr-mimic-iv"
EVERY_ROUND = {"gfpl.first-exchange": 1, "gfpl.exchange-every": 1}  # else three rounds hold no exchange


def constants(name):
    """Of a preset, without what stands there for those who choose another method."""
    read = {key: value for key, value in read_preset(name).items() if key not in (*TASK, *OF_THE_DATA)}
    read |= {key: value for key, value in EVERY_ROUND.items() if key in read}
    own = load_method(str(read["strategy"])).settings
    return {key: value for key, value in read.items() if "." not in key or key.partition(".")[0] in own}


# a preset for each set of constants
CHOSEN = {json.dumps(constants(name), sort_keys=True): name for name in preset_names() if name != TEXTS}


@pytest.mark.parametrize("name", CHOSEN.values())
def test_by_a_preset_s_constants_nobody_diverges(run, name):
    summary = json.loads((run(TASK | constants(name), clients=2) / "summary.json").read_text())
    assert summary["failures"] == {}
    assert summary["rounds"] == TASK["rounds"]
