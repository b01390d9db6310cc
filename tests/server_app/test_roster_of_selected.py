"""Clients that say who they are when they are first selected (`meet-clients = "selected"`)."""

import json
from dataclasses import replace

import pytest

from protosphere.core.errors import SettingError
from protosphere.core.files import sealed
from protosphere.core.settings import Settings, check
from protosphere.launch.grid import LocalGrid
from protosphere.record.folder import RunFolder
from protosphere.server_app.agreement import RosterError
from protosphere.server_app.queries import Queries
from protosphere.server_app.roster_of_selected import RosterOfSelected
from tests.server_app.test_roster import identity
from tests.strategies.needs import ASKED

SOME = {"clients": 12, "partition": "iid", "fraction-train": 0.25, "evaluate-clients": "sampled", "rounds": 4}
SOME |= {"models": "tiny_perceptron"}
SELECTED = SOME | {"meet-clients": "selected"}


def figures(lines):
    """Of each round what is computed: who comes later has no place among the clients of the first rounds."""
    return [{name: line[name] for name in line if name not in ("time", "clients_sha256")} for line in lines]


def who(lines):
    return [sorted(map(int, line["clients"])) for line in lines]


_met: dict = {}


@pytest.fixture
def met_when_selected(run, metrics):
    """met_when_selected(method): the lines of a run of twelve, once for all tests."""

    def lines(method):
        _met[method] = _met.get(method) or metrics(run(ASKED[method] | SELECTED, clients=12))
        return _met[method]

    return lines


@pytest.mark.parametrize("method", ["fedproto", "gfpl", "fedavg"])
def test_a_run_has_the_figures_of_one_that_met_all_at_the_start(run, metrics, met_when_selected, method):
    met = met_when_selected(method)
    assert figures(met) == figures(metrics(run(ASKED[method] | SOME, clients=12)))
    assert len(who(met)[0]) == 3


@pytest.fixture
def queried(monkeypatch):
    """The partitions that were asked who they are, in that order."""
    partitions, push = [], LocalGrid.push_messages

    def noting(grid, messages):
        messages = list(messages)
        partitions.extend(
            grid.nodes[message.metadata.dst_node_id]["partition-id"]
            for message in messages
            if message.metadata.message_type == "query"
        )
        return push(grid, messages)

    monkeypatch.setattr(LocalGrid, "push_messages", noting)
    return partitions


def test_nobody_is_asked_who_is_not_selected_and_nobody_twice(run, metrics, queried):
    folder = run(ASKED["fedproto"] | SELECTED | {"clients": 40, "fraction-train": 0.05}, clients=40)
    selected = {partition for partitions in who(metrics(folder)) for partition in partitions}
    assert 2 < len(selected) <= 8
    assert sorted(queried) == sorted(selected)
    assert {entry["partition"] for entry in RunFolder(folder).roster()} == selected


@pytest.mark.parametrize("method", ["fedproto", "protosphere"])
def test_a_resumed_run_goes_on_to_the_bit(run, metrics, cut, method):
    settings = ASKED[method] | SELECTED | {"clients": 4, "fraction-train": 0.5}
    whole = metrics(run(settings))
    assert len({partition for partitions in who(whole) for partition in partitions}) > 2
    cut(settings, "_aggregate", lambda strategy, number, replies: number == 3)
    assert metrics(run(settings | {"resume": "latest"})) == whole


def test_who_does_not_fit_in_is_left_out_and_the_others_go_on(run, metrics, met_when_selected, monkeypatch):
    settings = ASKED["fedproto"] | SELECTED
    first, second = who(met_when_selected("fedproto"))[:2]
    stranger = min({*second} - {*first})
    pull = Queries.pull

    def with_another_width(queries, grid):
        return [
            (node, replace(identity, feature_dim=3) if identity.partition == stranger else identity)
            for node, identity in pull(queries, grid)
        ]

    monkeypatch.setattr(Queries, "pull", with_another_width)
    lines = metrics(run(settings, clients=12))
    assert who(lines)[1] == sorted({*second} - {stranger})
    assert any(f"client {stranger} is not taken in: it has features of width 3" in line for line in run.said)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"evaluate-clients": "all"}, '"all"; set it to "sampled"'),
        ({"evaluate-clients": "sampled", "min-clients": 2}, "take `membership` and"),
    ],
)
def test_what_meets_all_clients_is_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        check(Settings, {"meet-clients": "selected", **settings})


def test_over_a_network_it_is_refused():
    roster = RosterOfSelected(check(Settings, {"meet-clients": "selected", "evaluate-clients": "sampled"}))
    with pytest.raises(RosterError, match="simulations in one process"):
        roster.gather(object())


def test_who_has_nothing_to_train_on_takes_nobody_s_place(run, metrics, met_when_selected, monkeypatch):
    settings = ASKED["fedproto"] | SELECTED
    first, second = who(met_when_selected("fedproto"))[:2]
    idle = {first[0], min({*second} - {*first})}
    pull = Queries.pull

    def without_training_samples(queries, grid):
        return [
            (node, replace(identity, rows=(0, *identity.rows[1:])) if identity.partition in idle else identity)
            for node, identity in pull(queries, grid)
        ]

    monkeypatch.setattr(Queries, "pull", without_training_samples)
    lines = metrics(run(settings, clients=12))
    assert who(lines)[0] == sorted({*first} - idle)
    assert all(len(partitions) >= 2 and idle.isdisjoint(partitions) for partitions in who(lines))
    assert who(lines)[-1] == who(lines)[-2]


def test_the_roster_of_a_round_is_written_without_doing_those_again_who_are_in_it(tmp_path, monkeypatch):
    identities = {partition: identity(partition) for partition in range(3)}
    roster = RosterOfSelected(check(Settings, SELECTED))
    roster.identities = dict(identities)
    folder = RunFolder(tmp_path)
    folder.write_roster(roster.as_json())
    done = []

    def noting(entry):
        done.append(entry["partition"])
        return sealed(entry)

    monkeypatch.setattr("protosphere.record.folder.sealed", noting)
    roster.identities[2] = replace(identities[2], name="Clinic North")
    roster.identities[7] = identity(7)
    roster.joined[1] = 4
    folder.write_roster(roster.as_json())
    assert done == [1, 2, 7]
    assert (folder.path / "roster.json").read_text() == (
        json.dumps([sealed(entry) for entry in roster.as_json()], indent=2) + "\n"
    )
    assert folder.roster() == json.loads(json.dumps(roster.as_json()))
