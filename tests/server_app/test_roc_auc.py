"""The area under the ROC curve of a run: asked for at every evaluation, where the setting says so alone."""

import pytest

from protosphere.reports.report import write_report
from protosphere.reports.results import read_results
from tests.reports.pages import outline, pictures


@pytest.mark.parametrize("strategy", ["fedproto", "protosphere", "fedavg", "fedncm"])
def test_each_evaluation_has_the_mean_by_samples(run, metrics, strategy, request):
    encoder = {"encoder": "random", "disclose-class-counts": True} if strategy == "fedncm" else {}
    folder = run({"rounds": 2, "strategy": strategy, "roc-auc": True} | encoder)
    lines, rule = metrics(folder), read_results(folder).rule
    # before the first exchange a rule of the method's own has nothing to judge by
    judged = [line for line in lines if rule in line.get("evaluation", {"rules": {}})["rules"]]
    told = [line["roc_auc"] for line in judged]
    assert [line for line in lines if "roc_auc" in line] == judged
    assert not any(line["problems"] for line in lines)
    for line, each in zip(judged, told, strict=True):
        rows = {client: line["clients"][client]["evaluation"]["rows"][0] for client in each["by_client"]}
        mean = sum(rows[client] * area for client, area in each["by_client"].items()) / sum(rows.values())
        assert each["mean"] == pytest.approx(mean)
        assert each["worst"] == min(each["by_client"].values())
        assert each["clients"] == len(rows) > 1
    # each client's model is its own: better than by chance
    assert strategy != "fedproto" or told[-1]["mean"] > 0.5
    results = read_results(folder)
    assert all(any("ROC" in words for words in client["discloses"]) for client in results.roster)
    if strategy != "fedproto":
        request.getfixturevalue("undrawn")
    write_report(folder)
    assert "roc-auc-over-rounds" in pictures(folder)
    assert "ROC AUC over rounds" in outline(folder).text


def test_a_run_that_does_not_ask_has_none(run, metrics):
    folder = run({"rounds": 1, "strategy": "fedproto"})
    assert not any("roc_auc" in line for line in metrics(folder))
    assert not any("ROC" in words for client in read_results(folder).roster for words in client["discloses"])
