"""What is taken for what over a whole run: told once, at the end, and nothing else is another for it."""

import json

import pytest


@pytest.mark.parametrize("settings", [{}, {"strategy": "fedavg", "fraction-train": 0.5, "evaluate-every": 5}], ids=str)
def test_it_comes_with_the_last_evaluation_and_changes_no_other_figure(run, metrics, settings):
    told, silent = (run(settings | {"confusion": which}) for which in ("auto", "never"))
    lines, plain = metrics(told), metrics(silent)
    last = lines[-1].pop("confusion")
    sizes = [each[-1]["bytes"].pop("evaluation_wire_up") for each in (lines, plain)]
    assert sizes[0] > sizes[1]
    assert lines == plain
    assert not any("confusion" in line for line in lines)
    rule = last["rule"]
    for partition, triples in last["clients"].items():
        accuracies = lines[-1]["clients"][partition]["evaluation"]
        right = sum(rows for true, predicted, rows in triples if true == predicted)
        total = sum(rows for *_, rows in triples)
        assert (total, right / total) == (accuracies["rows"][0], accuracies[rule][0])
    assert len(last["clients"]) == 4
    classes = json.loads((told / "summary.json").read_text())["classes"]
    assert (
        sum(each["rows"] for each in classes["all"].values()) == lines[-1]["evaluation"]["rules"][rule]["test"]["rows"]
    )
    assert "classes" not in json.loads((silent / "summary.json").read_text())
