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
    if "seconds" not in records["config"]:
        return
    rows = [10**9, 10**9]
    evaluation = {"evaluation.rows": rows, "evaluation.seconds": 0.0}
    correct = {"correct.classifier": rows, "correct.local-prototypes": rows}
    training = {"training.rows": 10**9, "training.steps": 1, "loss.loss": 1e50}
    figures = dict.fromkeys(("training.gradient_ratio", "training.target_norm", "training.seconds"), 0.0)
    records["metrics"] = MetricRecord(evaluation | correct | training | figures)


def test_figures_that_one_client_tells_are_not_the_run_s(run):
    folder = run(PRIVATE, grid=tampered(with_figures, of=LIAR))
    untrained, line = RunFolder(folder).lines()
    words = "figures dropped: under `privacy` a client keeps them"
    assert [each["problems"] for each in (untrained, line)] == [{str(LIAR): words}] * 2
    assert not any("evaluation" in each for each in (untrained, line))
    assert "loss" not in line["training"]
    # its release counts as the others' do
    assert line["training"]["valid"] == 4
    assert json.loads((folder / "summary.json").read_text())["headline"]["accuracy"] is None


def test_figures_that_a_simulation_measures_are_taken(run):
    untrained, line = RunFolder(run(PRIVATE | {"privacy-measure": True})).lines()
    for each in (untrained, line):
        assert each["evaluation"]["rules"]["classifier"]["test"]["clients"] == 4
        assert not each["problems"]
    assert line["training"]["loss"]["loss"] > 0
