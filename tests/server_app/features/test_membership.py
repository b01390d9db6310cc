"""Clients that join and leave while a run goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from protosphere.core.errors import SettingError
from protosphere.launch.run_config import plan
from protosphere.record.folder import RunFolder
from protosphere.record.provenance import origins
from protosphere.reports.report import write_report
from protosphere.server_app.features.membership import Change, read_changes
from protosphere.server_app.roster import RosterError
from tests.strategies.needs import ASKED, FEW, NEEDS
from tests.strategies.watched import SMALL

# The lowest partition comes late, so that who names a group after it would rename it.
CHANGES = ["3,0,joins", "3,2,leaves", "5,2,joins"]
SOON = ["2,0,joins", "2,2,leaves", "3,2,joins"]


@pytest.fixture
def changes(tmp_path):
    """changes(lines): the path of a file of them."""

    def write(lines=tuple(CHANGES)):
        path = tmp_path / "membership.csv"
        path.write_text("\n".join(["round,client,change", *lines]) + "\n")
        return str(path)

    return write


def of(method, changes):
    return SMALL | ASKED[method] | FEW.get(method, {}) | {"rounds": 5, "learning-rate": 0.001, "membership": changes()}


_whole: dict = {}


@pytest.fixture
def whole(run, changes):
    """whole(method): the folder of a run with these changes, once for all tests, and what was said of it."""

    def once(method):
        if method not in _whole:
            _whole[method] = run(of(method, changes)), list(run.said)
        return _whole[method]

    return once


# --- in a simulation, by a file ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("round,client,change\n4,1,leaves\n")])
def test_a_resumed_run_has_the_changes_that_it_was_started_with(run, metrics, cut, changes, whole, spoil):
    settings = of("fedproto", changes)
    lines = metrics(whole("fedproto")[0])
    cut(settings, "_aggregate", lambda strategy, number, replies: number == 4)
    spoil(Path(settings["membership"]))
    assert metrics(run(settings | {"resume": "latest"})) == lines


def test_of_a_run_that_kept_none_the_file_is_read(run, metrics, cut, changes, whole, home):
    settings = of("fedproto", changes)
    lines = metrics(whole("fedproto")[0])
    cut(settings, "_aggregate", lambda strategy, number, replies: number == 4)
    newest = max(home.glob("results/*/membership.json"), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()
    assert metrics(run(settings | {"resume": "latest"})) == lines


def test_the_roster_has_who_came_and_went_and_the_terminal_names_them(whole):
    folder, lines = whole("fedproto")
    entries = {entry["partition"]: entry for entry in RunFolder(folder).roster()}
    assert [(p, entry.get("joined"), entry.get("left")) for p, entry in sorted(entries.items())] == [
        (0, 3, None),
        (1, None, None),
        (2, None, None),  # it is back
        (3, None, None),
    ]
    said = "\n".join(lines)
    for sentence in ("client 0 (tiny_perceptron) joins in round 3", "client 2 leaves in round 3; 3 are left"):
        assert sentence in said
    assert "client 2 (tiny_perceptron) is back in round 5" in said


def test_a_newcomers_untrained_model_counts_in_no_round_before_it_came(whole, metrics):
    lines = {line["round"]: line for line in metrics(whole("fedproto")[0])}
    evaluated = {p for p, client in lines[3]["clients"].items() if "evaluation" in client}
    assert (lines[3]["evaluation"]["of_round"], evaluated) == (2, {"1", "3"})


def test_of_a_method_that_sends_once_a_newcomer_is_heard_when_it_comes(run, metrics, whole):
    lines = {line["round"]: line for line in metrics(whole("protosphere")[0])}
    heard = {number: line["server"].get("heard") for number, line in lines.items() if "server" in line}
    assert (heard[1], heard[3]) == (3, 4)
    # the others send no second time
    sent = {number: line["bytes"]["payload_up"] for number, line in lines.items()}
    assert 0 < sent[3] < sent[1] / 2
    assert sent[2] == sent[4] == 0
    # and what is made of all is what is made where all are there from the start
    late = RunFolder(whole("protosphere")[0]).load_checkpoint()[0]
    always = RunFolder(run(SMALL | ASKED["protosphere"] | {"rounds": 5, "learning-rate": 0.001})).load_checkpoint()[0]
    assert late["state/sums"].shape == always["state/sums"].shape
    assert float((late["state/sums"] - always["state/sums"]).abs().max()) < 1e-9


@pytest.mark.parametrize("method", NEEDS)
def test_a_newcomer_is_added_to_the_sums_of_the_others(run, changes, method):
    settings = of(method, lambda: changes(SOON)) | {"rounds": 3}
    late = RunFolder(run(settings)).load_checkpoint()[0]
    always = RunFolder(run({name: value for name, value in settings.items() if name != "membership"}))
    tensors = always.load_checkpoint()[0]
    names = [name for name in tensors if name.startswith("download/-1/")]
    assert names
    for name in names:
        assert late[name].shape == tensors[name].shape
        assert float((late[name] - tensors[name]).abs().max()) <= 1e-3 * float(tensors[name].abs().max())


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["2,7,joins"], "names client 7, but the run's are 0 to 3"),
        (["2,1,leaves", "3,1,leaves"], "client 1 leaves in round 3, but it is not there"),
        (["2,1,joins", "3,1,joins"], "client 1 joins in round 3, but it is there already"),
        (["2,1,join"], 'line 2 of .* is "2,1,join"'),
        (["2,1,leaves", "2,1,joins"], "two changes of client 1 in round 2"),
        (["0,1,joins"], "line 2"),
        (["2,1"], "line 2"),
        (["two,1,joins"], "line 2"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(run, home, changes, lines, words):
    with pytest.raises(SettingError, match=words):
        run({"membership": changes(lines)})
    assert not [*home.rglob("metrics.jsonl")]


def test_a_file_must_be_there_and_have_a_header(tmp_path):
    with pytest.raises(SettingError, match="cannot be read"):
        read_changes(str(tmp_path / "none.csv"))
    # before anything of a run is started
    with pytest.raises(SettingError, match="cannot be read"):
        plan([f'membership="{tmp_path / "none.csv"}"'], clients=3)
    path = tmp_path / "bare.csv"
    path.write_text("3,4,joins\n")
    with pytest.raises(SettingError, match="the first line"):
        read_changes(str(path))
    path.write_text("\ufeffround, client, change\r\n3,4,joins\r\n\r\n1,0,leaves\r\n", encoding="utf-8")
    assert read_changes(str(path)) == [Change(1, 0, "leaves"), Change(3, 4, "joins")]


def test_somebody_has_to_be_there_from_the_start(run, changes):
    with pytest.raises(RosterError, match="no client is there"):
        run({"membership": changes([f"2,{partition},joins" for partition in range(4)])})


# --- over a network, by who answers -----------------------------------------------------------------------------


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
        ({"codec": "another"}, "another codec"),
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
        ({"min-clients": 2, "membership": "/x.csv"}, "take one of the two out"),
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


def test_who_comes_and_goes_is_no_start_of_the_run(whole):
    assert len(origins(whole("fedproto")[0])) == 1


def test_a_run_that_nobody_is_left_of_says_so(run, changes):
    run({"rounds": 3, "membership": changes([f"2,{p},leaves" for p in range(4)] + ["3,1,joins"])})
    assert any("no client is left" in line for line in run.said)


def _stop_after(number):
    def on_round(line):
        if line["round"] == number:
            raise KeyboardInterrupt

    return on_round


@pytest.mark.usefixtures("undrawn")
def test_the_report_says_who_took_part_when(run, changes):
    page = write_report(run(of("fedproto", lambda: changes(["3,0,joins", "4,2,leaves"])))).read_text()
    assert "takes part" in page
    for words in ("from round 3", "until round 4", "always"):
        assert words in page
