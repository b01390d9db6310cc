"""What the server takes of clients whose samples are withheld."""

import json

from flwr.app import MetricRecord

from protosphere.record.folder import RunFolder
from tests.tampered import tampered

LIAR = 1
PRIVATE = {
    "strategy": "fedproto",
    "rounds": 1,
    "max-samples": 160,
    "privacy": "release",
    "encoder": "handcrafted",
    "report": False,
}


def with_figures(records, partition, number):
    """A client that says how well it does, and on how many samples."""
    if "report" not in records:
        return
    rows = [10**9, 10**9]
    records["evaluation"] = MetricRecord({"classifier": rows, "local-prototypes": rows, "rows": rows, "seconds": 0.0})
    records["report"]["parts"] = ["loss"]
    records["training"] = MetricRecord({"counts": [10**9, 1], "figures": [0.0, 0.0, 0.0], "parts": [1e50]})


def test_figures_that_one_client_tells_are_not_the_run_s(run):
    folder = run(PRIVATE, grid=tampered(with_figures, of=LIAR))
    line, final = RunFolder(folder).lines()
    for each in (line, final):
        assert "evaluation" not in each
        assert each["problems"] == {str(LIAR): "figures dropped: under `privacy` a client keeps them"}
    assert "loss" not in line["training"]
    # its release counts as the others' do
    assert line["training"]["valid"] == 4
    assert json.loads((folder / "summary.json").read_text())["headline"]["accuracy"] is None


def test_figures_that_a_simulation_measures_are_taken(run):
    line, final = RunFolder(run(PRIVATE | {"privacy-measure": True})).lines()
    assert final["evaluation"]["rules"]["classifier"]["test"]["clients"] == 4
    assert line["training"]["loss"]["loss"] > 0
    assert not line["problems"]
    assert not final["problems"]
