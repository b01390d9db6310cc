"""Uploads of weights beside each other: a change that is far larger than the others' is dropped by name, whatever the
length of the weights; one that goes the other way is said."""

import pytest
import torch
from flwr.app import Array

from protosphere.core.errors import SettingError
from protosphere.prototypes.weights import Weights
from protosphere.record import replies as replies_module
from protosphere.record.replies import Reply, UploadFiles
from protosphere.server_app.features import weight_changes as changes_module
from protosphere.server_app.features.weight_changes import Changes
from protosphere.strategies.contract import Exchange, Spec
from protosphere.strategies.weights import both_ways
from tests.tampered import tampered

CLIENTS = 6
LIAR = 4


def weights(scale=1.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (3, 4), "b.bias": (5,), "norm.running_var": (5,)}
    return {name: scale * torch.randn(shape, generator=draw) for name, shape in shapes.items()}


START = weights(5.0, seed=99)


def uploads(spoil=None, size=0.1):
    """What clients send that began at START; `spoil` makes of one's tensors what it sends instead."""
    found = {}
    for partition in range(CLIENTS):
        change = weights(size, seed=partition)
        tensors = {name: START[name] + change[name] for name in START}
        tensors["norm.running_var"] = tensors["norm.running_var"].abs() * 10.0 ** (2 * partition)
        found[partition] = (
            {name: spoil(name, t) for name, t in tensors.items()} if spoil and partition == LIAR else tensors
        )
    return found


def judged(tmp_path, sent, ratio=20.0, exchange=None, start=START, group=lambda partition: 0):
    changes = Changes(exchange or both_ways("head"), UploadFiles(tmp_path))
    changes.sent = {partition: {"head": Weights(start)} if start else None for partition in sent}
    for partition, tensors in sent.items():
        upload = {"head": Weights(tensors)}
        changes._upload_files.put(partition, upload)
        changes.measure(partition, upload)
    waiting_replies = [Reply(partition, True, waits=True) for partition in sent]
    return changes, changes.without_far(waiting_replies, group, ratio)


SPOILT = {
    "reversed": lambda name, t: -t,
    "19 times as long": lambda name, t: 19.5 * t,
    "one tensor": lambda name, t: t + 50.0 if name == "b.bias" else t,
    "zero": lambda name, t: 0 * t,
}


@pytest.mark.parametrize("start", [START, None], ids=["sent", "round 1"])
@pytest.mark.parametrize("how", [None, *SPOILT])
def test_a_change_far_beyond_the_others_is_dropped_whatever_the_weights_length(tmp_path, how, start):
    _, replies = judged(tmp_path, uploads(SPOILT.get(how)), start=start)
    assert [reply.partition for reply in replies if reply.dropped] == ([LIAR] if how else [])
    for reply in replies:
        assert reply.waits != reply.dropped
    if how:
        (words,) = [reply.problem for reply in replies if reply.problem]
        assert words.startswith("upload dropped: its tensor `")
        assert "`max-norm-ratio` is 20" in words


def test_lengths_are_those_of_loops(tmp_path):
    sent = uploads()
    changes, replies = judged(tmp_path, sent)
    for reply in replies:
        lengths = changes.lengths[reply.partition]
        assert {name for _, name in lengths} == {"a.weight", "b.bias"}  # no running statistic
        for (_, name), length in lengths.items():
            assert length.norm == pytest.approx(float(sent[reply.partition][name].norm()), rel=1e-6)
            assert length.change == pytest.approx(float((sent[reply.partition][name] - START[name]).norm()), rel=1e-5)
    assert set(changes.times) == set(sent)
    assert max(changes.times.values()) > 1


def test_next_to_no_change_of_the_others_makes_no_small_one_too_large(tmp_path):
    sent = uploads(size=1e-6)
    sent[0] = {
        name: tensor + 0.05 for name, tensor in START.items()
    }  # 1 % of the length: rounding on the way is as much
    _, replies = judged(tmp_path, sent)
    assert not [reply for reply in replies if reply.dropped]


@pytest.mark.parametrize("start", [START, None], ids=["sent", "round 1"])
def test_a_site_with_many_more_samples_goes_further_and_is_not_dropped(tmp_path, start):
    """Thirty times as far, by a third of the weights' length; and from a bias that begins at 0, in round 1."""
    sent = uploads(size=0.02)
    for own in sent.values():
        own["b.bias"] = 1e-5 * own["b.bias"]
    big = weights(0.6, seed=LIAR)
    sent[LIAR] = {name: START[name] + big[name] for name in START}
    sent[LIAR]["b.bias"] = 3e-3 * weights(seed=LIAR)["b.bias"]
    begun = start and {**start, "b.bias": torch.zeros(5)}
    _, replies = judged(tmp_path, sent, start=begun)
    assert not [reply.problem for reply in replies if reply.dropped]


@pytest.mark.parametrize("start", [START, None], ids=["sent", "round 1"])
def test_a_tensor_that_the_others_leave_as_it_is_is_watched_too(tmp_path, start):
    sent = uploads()
    for own in sent.values():
        own["a.weight"] = START["a.weight"]
    sent[2]["a.weight"] = 1.001 * START["a.weight"]  # a little is no harm
    sent[LIAR]["a.weight"] = 1000 * START["a.weight"]
    _, replies = judged(tmp_path, sent, start=start)
    (problem,) = [reply.problem for reply in replies if reply.dropped]
    assert "`a.weight` has changed by" in problem
    assert "which most of a round's uploads leave as it is" in problem


def test_of_many_uploads_some_make_the_centre(tmp_path, monkeypatch):
    monkeypatch.setattr(changes_module, "SAMPLED", 3)
    _, replies = judged(tmp_path, uploads(SPOILT["reversed"]), start=None)
    assert [reply.partition for reply in replies if reply.dropped] == [LIAR]


@pytest.mark.parametrize("members", [1, 2])
def test_of_two_nobody_is_the_odd_one(tmp_path, members):
    sent = {p: tensors for p, tensors in uploads(SPOILT["reversed"]).items() if p >= LIAR + 2 - members - 1}
    _, replies = judged(tmp_path, {p: sent[p] for p in list(sent)[:members]})
    assert not [reply for reply in replies if reply.dropped]
    _, replies = judged(tmp_path, uploads(SPOILT["reversed"]), group=lambda partition: partition // 2)
    assert not [reply for reply in replies if reply.dropped]


def test_weights_that_do_not_come_down_again_and_what_is_a_change_itself(tmp_path):
    once = Exchange((Spec("weights", "head", waits=True),), ())
    changes, _ = judged(tmp_path, uploads(SPOILT["reversed"]), exchange=once)
    assert list(changes.lengths.values()) == [{}] * CLIENTS  # sums, which their method judges
    # as a whole: nobody knows how long the weights are that it changes
    change = Spec("weights", "head", waits=True, change=True)
    _, replies = judged(tmp_path, uploads(lambda name, t: 30 * t), exchange=Exchange((change,), (change,)))
    assert [reply.partition for reply in replies if reply.dropped] == [LIAR]


@pytest.mark.parametrize("values", [1, 7, 2**22])
def test_who_goes_against_the_others_is_found_in_pieces_of_any_size(tmp_path, monkeypatch, values):
    monkeypatch.setattr(replies_module, "MOST_VALUES", values)
    common, sent = weights(1.0, seed=7), {}
    for partition in range(CLIENTS):
        own, sign = weights(0.1, seed=partition), -1.0 if partition == LIAR else 1.0
        sent[partition] = {name: START[name] + sign * common[name] + own[name] for name in START}
    changes, replies = judged(tmp_path, sent)
    against = changes.against_others(replies, lambda partition: 0)
    assert against == {partition: partition == LIAR for partition in range(CLIENTS)}
    # the figures behind it, by loops
    members = {reply.partition: changes.lengths[reply.partition] for reply in replies}
    cosines, lengths = changes._compare_with_others(members)
    flat = {
        p: torch.cat([(t[name] - START[name]).reshape(-1).double() for name in ("a.weight", "b.bias")])
        for p, t in sent.items()
    }
    for place, partition in enumerate(sent):
        others = torch.stack([v / v.norm() for p, v in flat.items() if p != partition]).mean(dim=0)
        cosine = float(flat[partition] @ others / flat[partition].norm() / others.norm())
        assert float(cosines[place]) == pytest.approx(cosine, abs=1e-6)
        assert float(lengths[place]) == pytest.approx(float(others.norm()), abs=1e-6)


def test_where_the_others_do_not_agree_nobody_points_away(tmp_path):
    """Directions at random: the mean of five has a length all the same, and one of six lies across from it."""
    sent = {}
    for partition in range(CLIENTS):
        own = weights(0.1, seed=partition)
        sent[partition] = {name: START[name] + own[name] for name in START}
    # the last goes against the sum of the others
    sent[CLIENTS - 1] = {
        name: START[name] - sum(sent[p][name] - START[name] for p in range(CLIENTS - 1)) for name in START
    }
    changes, replies = judged(tmp_path, sent)
    assert not any(changes.against_others(replies, lambda partition: 0).values())


def test_a_client_that_changes_nothing_stands_against_nobody(tmp_path):
    sent = uploads()
    sent[2] = dict(START)
    changes, replies = judged(tmp_path, sent)
    assert changes.against_others(replies, lambda partition: 0)[2] is False


def test_uploads_wait_in_no_folder_that_a_link_leads_to(tmp_path):
    upload_files, mine = UploadFiles(tmp_path), tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    (tmp_path / "uploads").symlink_to(mine)
    for do in (upload_files.clear, lambda: upload_files.put(0, {"head": Weights(START)})):
        with pytest.raises(SettingError, match="uploads is a link to elsewhere; take it away"):
            do()
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


# --- whole runs ---------------------------------------------------------------------------------------------------


def spoiling(factor):
    """A grid on which one client's weights are multiplied on their way."""

    def spoil(records, partition, number):
        payload = records.get("payload", {})
        for name in [name for name in payload if name.rpartition(".")[2] in ("values", "small")]:
            payload[name] = Array(factor * payload[name].numpy())

    return tampered(spoil, of=LIAR)


def test_weights_reversed_or_19_times_as_long_end_no_run_and_blame_nobody_else(run):
    settings = {"strategy": "fedavg", "models": "tiny_cnn", "partition": "iid", "rounds": 3}
    for factor in (19.5, -1.0):
        run(settings, clients=CLIENTS, grid=spoiling(factor))
        named = [line for line in run.said if "warning" in line and "client" in line]
        assert len(named) == 3
        assert all(f"client {LIAR}: upload dropped: its tensor `" in line for line in named)
    run(settings, clients=CLIENTS)
    assert not [line for line in run.said if "dropped" in line or "against" in line]
