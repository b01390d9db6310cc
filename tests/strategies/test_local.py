"""`local`: nothing but figures crosses the wire, and nobody's training depends on anybody else."""

import pytest

from experiments.runtime.grid import LocalGrid
from federation.settings import SettingError
from strategies import read_settings


def test_nothing_but_figures_crosses(run):
    down, up = set(), set()

    class Ear(LocalGrid):
        def push_messages(self, messages):
            down.update(name for message in messages for name in message.content)
            return super().push_messages(messages)

        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            up.update(name for reply in replies for name in reply.content)
            return replies

    run({"strategy": "local", "rounds": 2}, grid=Ear)
    assert down == {"instruction"}
    assert up == {"identity", "report", "training", "evaluation"}


def test_it_trains_as_fedproto_does_without_its_pull(run, metrics):
    """The floor: the same seeds, batches and models, so the same bits as a pull of weight zero."""
    alone = metrics(run({"strategy": "local", "rounds": 3, "learning-rate": 0.1}))
    pulled = metrics(run({"strategy": "fedproto", "rounds": 3, "learning-rate": 0.1, "prototype-weight": 0.0}))
    for ours, theirs in zip(alone, pulled, strict=True):
        for rule in ("local-prototypes", "classifier", "discriminant", "majority-class"):
            assert ours["evaluation"]["rules"][rule] == theirs["evaluation"]["rules"][rule]
        assert ours["bytes"]["payload_up"] == ours["bytes"]["payload_down"] == 0
        if "training" in ours:
            loss = ours["training"]["loss"]
            assert loss["cross-entropy"] == theirs["training"]["loss"]["cross-entropy"]
            assert loss.keys() == {"cross-entropy", "loss"}
            assert (ours["training"]["asked"], ours["training"]["valid"]) == (4, 4)
            assert ours["server"] == {}
    # and it does learn
    tests = [line["evaluation"]["rules"]["classifier"]["test"]["mean"] for line in alone]
    assert tests[-1] > tests[0]


def test_a_client_does_not_depend_on_who_else_takes_part(run, metrics):
    """With a fraction, each client's rounds are those in which it was drawn: other clients' training is no part."""
    every = metrics(run({"strategy": "local", "rounds": 2}))
    some = metrics(run({"strategy": "local", "rounds": 2, "fraction-train": 0.5}))
    first = some[0]["clients"]
    trained = {partition for partition, client in first.items() if "training" in client}
    assert len(trained) == 2
    for partition in every[0]["clients"]:
        after = some[1]["clients"][partition]["evaluation"]
        same_as = every[1] if partition in trained else every[0]
        assert after == same_as["clients"][partition]["evaluation"]


def test_there_are_no_global_prototypes_to_predict_by():
    with pytest.raises(SettingError, match=r"`inference` is \"global-prototypes\", but with `local` it can be"):
        read_settings({"strategy": "local", "inference": "global-prototypes"})
    assert read_settings({"strategy": "local"}).inference == "local-prototypes"
