"""Clients that join and leave while a run goes on."""

import json
from dataclasses import replace

import pytest

from protosphere.core.errors import SettingError
from protosphere.server_app.roster import RosterError


@pytest.fixture
def network(federation):
    """network(late={partition: round}, gone={partition: round}): clients whose nodes are listed only between these
    rounds; `.grid.round` is the round that runs."""

    def make(late=(), gone=(), **arguments):
        made = federation(**arguments)
        grid, late, gone = made.grid, dict(late), dict(gone)
        grid.round = 1
        tamper = made.tamper

        def watch(partition, number, kind, report):
            if kind == "evaluate":
                grid.round = number + 1
            return tamper(partition, number, kind, report)

        def listed():
            there = [p for p in grid.nodes if late.get(p, 0) <= grid.round < gone.get(p, 99)]
            return [grid.nodes[p] for p in there]

        made.tamper, grid.get_node_ids = watch, listed
        return made

    return make


def rounds_of(made, partition):
    return [number for p, number, kind, _ in made.asked if p == partition and kind == "train"]


def test_a_run_starts_with_enough_and_takes_who_comes(network, say):
    made = network(late={3: 3})
    made.start({"min-clients": 3, "rounds": 4})
    assert rounds_of(made, 3) == [3, 4]
    assert rounds_of(made, 0) == [1, 2, 3, 4]
    assert "client 3 (scripted) joins in round 3" in say()
    roster = made.strategy.folder.roster()
    assert [entry.get("joined") for entry in roster] == [None, None, None, 3]


def test_too_few_end_the_start_in_a_sentence(network):
    with pytest.raises(RosterError, match="2 of 3 clients answered"):
        network(late={2: 2, 3: 2}).start({"min-clients": 3})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"feature_dim": 99}, "features of width 99"),
        ({"class_names": tuple("wxyz")}, "another class list"),
        ({"partitions": 9}, "one of 9, but the run has 4"),
        ({"problem": "client 3: no data"}, 'it says: "no data"'),
        ({"settings": "another"}, "other settings of messages"),
    ],
)
def test_a_newcomer_that_does_not_fit_stays_outside_and_the_run_goes_on(network, say, change, words):
    made = network(late={3: 2})
    made.identities[3] = replace(made.identities[3], **change)
    made.start({"min-clients": 3, "rounds": 3})
    assert rounds_of(made, 3) == []
    (sentence,) = [line for line in say() if "client 3 is not taken in" in line]
    assert words in sentence
    assert made.strategy.state.last_round == 3


def test_newcomers_cannot_outvote_who_is_there(network):
    """Five of another class list against three."""
    made = network(clients=8, late=dict.fromkeys(range(3, 8), 2))
    for partition in range(3, 8):
        made.identities[partition] = replace(made.identities[partition], class_names=tuple("wxyz"))
    made.start({"min-clients": 3, "rounds": 3})
    assert [rounds_of(made, partition) for partition in range(8)] == [[1, 2, 3]] * 3 + [[]] * 5


@pytest.mark.parametrize(("forget_after", "last"), [(0, 6), (2, 4)])
def test_whoever_is_gone_for_long_enough_is_asked_no_more(network, say, forget_after, last):
    """Its node is missing from round 3 on."""
    made = network(gone={3: 3})
    made.start({"min-clients": 3, "rounds": 6, "forget-after": forget_after})
    sent = {number for p, number, _, _ in made.asked if p == 3 and number <= 6}
    assert max(sent) == (6 if not forget_after else 3)
    left = [entry.get("left") for entry in made.strategy.folder.roster()]
    assert left == [None, None, None, last if forget_after else None]
    assert any("client 3 leaves in round 4; 3 are left" in line for line in say()) == bool(forget_after)


def test_whoever_was_forgotten_comes_back_as_the_same_client_alone(network, say):
    made = network(gone={3: 2})
    listed, grid = made.grid.get_node_ids, made.grid
    # a new node for its partition, from round 5 on
    grid.get_node_ids = lambda: [*listed(), *([grid.nodes[3]] if grid.round >= 5 else [])]
    made.start({"min-clients": 3, "rounds": 6, "forget-after": 1})
    assert rounds_of(made, 3) == [1, 5, 6]
    assert "client 3 (scripted) is back in round 5" in say()


def test_a_run_without_min_clients_takes_nobody_later(network, say):
    made = network(clients=3)
    grid = made.grid
    made.identities[3] = replace(made.identities[0], partition=3)
    listed = grid.get_node_ids
    grid.nodes[3] = 42
    made.rows[3], made.held[3] = made.rows[0], made.held[0]
    grid.get_node_ids = lambda: [node for node in listed() if node != 42 or grid.round > 1]
    made.start({"rounds": 3, "clients": 3})
    assert rounds_of(made, 3) == []
    assert any("is none of this run's" in line for line in say())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min-clients": 5, "clients": 4}, "`min-clients` 5 must not exceed `clients` 4"),
        ({"forget-after": 2}, "`forget-after` is 2, but `min-clients` is 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(run, settings, words):
    with pytest.raises(SettingError, match=words):
        run(settings)


def test_a_resumed_run_takes_who_is_there_again(network):
    made = network(late={3: 2})
    with pytest.raises(KeyboardInterrupt):
        made.start({"min-clients": 3, "rounds": 5}, on_round=_stop_after(3))
    folder = made.strategy.folder if hasattr(made, "strategy") else None
    assert folder is not None
    made.asked.clear()
    made.grid.round = 4
    resumed = made.start({"min-clients": 3, "rounds": 5, "resume": str(folder.path)})
    assert rounds_of(made, 3) == [4, 5]
    assert [entry.get("joined") for entry in resumed.folder.roster()] == [None, None, None, 2]
    assert json.loads((folder.path / "summary.json").read_text())


def cut_after(made, number, settings):
    """The folder of a run that ends in the middle, after this round."""
    with pytest.raises(KeyboardInterrupt):
        made.start(settings, on_round=_stop_after(number))
    made.asked.clear()
    made.grid.round = number + 1
    return str(made.strategy.folder.path)


def hide(made, partition, until):
    """Flower does not list the node of a partition before this round."""
    grid, listed = made.grid, made.grid.get_node_ids
    grid.get_node_ids = lambda: [n for n in listed() if n != grid.nodes[partition] or grid.round >= until]


def test_who_is_absent_at_a_resume_comes_back_as_itself(network, say):
    settings = {"min-clients": 2, "rounds": 6}
    made = network()
    folder = cut_after(made, 2, settings)
    hide(made, 0, until=5)
    resumed = made.start(settings | {"resume": folder})
    assert rounds_of(made, 0) == [5, 6]
    assert "client 0 (scripted) is back in round 5" in say()
    assert [entry.get("joined") for entry in resumed.folder.roster()] == [None] * 4


def test_another_client_does_not_take_the_place_of_one_that_is_absent_at_a_resume(network, say):
    settings = {"min-clients": 2, "rounds": 5}
    made = network()
    folder = cut_after(made, 2, settings)
    hide(made, 0, until=4)
    made.identities[0] = replace(made.identities[0], model="another")
    resumed = made.start(settings | {"resume": folder})
    assert rounds_of(made, 0) == []
    assert any("client 0 is not taken in" in line and "its model was" in line for line in say())
    assert [entry["model"] for entry in resumed.folder.roster()] == ["scripted"] * 4


def test_a_resumed_run_waits_for_enough_of_its_own_clients(network):
    settings = {"min-clients": 3, "rounds": 5}
    made = network(clients=6, late={3: 99, 4: 99, 5: 99})
    folder = cut_after(made, 2, settings)
    # one of its own and three others
    made.grid.get_node_ids = lambda: [made.grid.nodes[p] for p in (0, 3, 4, 5)]
    with pytest.raises(RosterError, match="of 3 clients answered"):
        made.start(settings | {"resume": folder})


def test_where_all_have_left_whoever_comes_has_to_fit_in_with_those_who_were_there(network):
    made = network(clients=3)
    roster = made.start({"min-clients": 3, "rounds": 1}).roster
    stranger = replace(made.identities[0], partition=1, class_names=tuple("wxyz"))
    roster.nodes.clear()
    assert "another client than the one" in roster.misfit(stranger)
    del roster.identities[1]
    assert "another class list" in roster.misfit(stranger)


def _stop_after(number):
    def on_round(line):
        if line["round"] == number:
            raise KeyboardInterrupt

    return on_round
