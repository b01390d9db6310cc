"""What a run keeps of what its clients take for what."""

import pytest

from protosphere.record.confusion import MANY, OTHER, by_class, confusion_figures, per_class, together

COUNTS = {
    0: [[0, 0, 3], [0, 1, 1], [1, 1, 2]],
    1: [[0, 1, 4], [1, 0, 1], [1, 1, 1]],
    2: [[0, 0, 5]],
}
MODELS = {0: "a", 1: "b", 2: "a"}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_counts_are_summed_by_architecture_in_whatever_order_they_come(order):
    found = confusion_figures({partition: COUNTS[partition] for partition in order}, "classifier", MODELS)["confusion"]
    assert found["rule"] == "classifier"
    assert found["models"] == {"a": [[0, 0, 8], [0, 1, 1], [1, 1, 2]], "b": [[0, 1, 4], [1, 0, 1], [1, 1, 1]]}
    assert found["clients"]["2"] == [[0, 0, 5]]
    every = together(found["models"].values())
    assert every == [[0, 0, 8], [0, 1, 5], [1, 0, 1], [1, 1, 3]]
    told = per_class([{"round": 1}, {"confusion": found}])["classes"]
    assert told["all"] == {"0": {"accuracy": 8 / 13, "rows": 13}, "1": {"accuracy": 3 / 4, "rows": 4}}
    assert told["models"]["b"]["0"] == {"accuracy": 0.0, "rows": 4}


def test_what_is_wrong_may_be_told_of_each_class_alone():
    triples = [[0, 0, 3], [0, OTHER, 1], [2, 2, 2], [2, OTHER, 2]]
    assert {label: each["accuracy"] for label, each in by_class(triples).items()} == {"0": 0.75, "2": 0.5}


@pytest.mark.parametrize(("clients", "kept"), [(MANY - 1, True), (MANY, False)])
def test_of_many_clients_the_sums_alone_are_kept(clients, kept):
    found = confusion_figures({0: [[0, 0, 1], [1, 1, 1]]}, "classifier", dict.fromkeys(range(clients), "a"))
    assert ("clients" in found["confusion"]) == kept


def test_where_nobody_tells_there_is_nothing():
    assert confusion_figures({}, "classifier", {0: "a"}) == {}
    assert per_class([{"round": 1}]) == {}
