"""One client among many: too long, pointing away, or spoilt on the wire. What the others learn does not change."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from flwr.app import Error
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from protosphere.core.errors import RunError
from protosphere.launch.grid import LocalGrid
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.features.outliers import Outliers
from protosphere.strategies import METHODS, read_settings
from protosphere.wire.payloads import Report
from tests.payloads import lone, payload
from tests.strategies.needs import ASKED
from tests.tampered import tampered

LIAR = 1


def reply(partition, norm, classes=(0, 1)):
    vectors = torch.zeros(len(classes), 3)
    vectors[-1, 0] = norm
    return Reply(partition, True, Report(partition, 1, payload(PrototypeSet(torch.tensor(classes), vectors))))


def kept(outliers, norms, units=None, ratio=20.0, allowed=0.0):
    """Who is left of clients whose longest vectors have these norms."""
    replies = [reply(p, norm) for p, norm in enumerate(norms)]
    vectors = {each.partition: lone(each.report.payload) for each in replies}
    replies = outliers.without_long(replies, vectors, units or {}, ratio, allowed)
    assert all(
        each.dropped and each.report and "`max-norm-ratio`" in each.problem for each in replies if not each.valid
    )
    return [each.partition for each in replies if each.valid]


@pytest.mark.parametrize(
    ("before", "norms", "how", "left"),
    [
        ([], [1.0, 1.2, 0.8, 21.0], {}, [0, 1, 2, 3]),  # the median is 1.1
        ([], [1.0, 1.2, 0.8, 22.1], {}, [0, 1, 2]),
        ([], [1.0, 1.2, 0.8, 9e3], {"ratio": 1e4}, [0, 1, 2, 3]),
        ([], [1.0, 50.0], {}, [0, 1]),  # of two nobody can say which, in a first round
        ([1.0, 9.0, 1.1], [1.0, 50.0], {}, [0]),  # of the third the last is remembered
        ([1.0, 9.0, 1.1], [1e-6, 0.9], {}, [0, 1]),  # one that sends next to nothing makes nobody's too long
        ([1.0], [21.0], {}, [0]),  # nobody is compared with himself alone
        ([0.02, 0.02, 0.02], [1.0, 1.0, 1.0], {}, [0, 1, 2]),  # where all grow, the measure grows with them
        ([], [1.0, 1.0, 1.0, 30.0], {"allowed": 30.0}, [0, 1, 2, 3]),
        ([], [40.0, 300.0, 5000.0], {"units": {0: 40.0, 1: 300.0, 2: 5000.0}}, [0, 1, 2]),
        ([], [40.0, 300.0, 5000.0], {"units": {0: 40.0, 1: 300.0, 2: 200.0}}, [0, 1]),
        ([], [0.0, 0.0, 5.0], {}, [0, 1, 2]),
    ],
)
def test_an_upload_is_too_long_beside_the_others_or_the_last_rounds(before, norms, how, left):
    assert kept(Outliers(lengths=dict(enumerate(before))), norms, **how) == left


def test_what_is_remembered_survives_a_checkpoint():
    outliers = Outliers({3: 1.0, 11: 2.0}, [0.1 + 0.2], {12: 2, 3: 1}, {4: 2}, (4, 19.5))
    kept = json.loads(json.dumps(outliers.as_json()))
    assert Outliers.from_json(kept) == outliers
    # of a version that did not watch these
    assert Outliers.from_json({name: kept[name] for name in ("lengths", "norms", "away")}).farthest is None


def watched(outliers, vectors, models=None, against=None, changes=None):
    models = models or dict.fromkeys(vectors, "net")
    return outliers.warnings(vectors, against or {}, changes or {}, models, {}, None, 0.0)


def of_directions(signs, lengths):
    """A prototype of two classes of each client, along one axis."""
    return {
        p: PrototypeSet(torch.arange(2), torch.tensor([[sign * length, 0.0], [0.0, sign * length]]))
        for p, (sign, length) in enumerate(zip(signs, lengths, strict=True))
    }


def test_who_is_long_beside_its_own_model_is_named_and_not_who_stays_where_it_was():
    """The long client turns the target; clients of its model, which are short beside the others, do not follow."""
    models = {p: "small" if p in (0, 1, 2) else "large" for p in range(8)}
    vectors = of_directions([-1, -1, 1, 1, 1, 1, 1, 1], [0.2, 0.2, 3.9, 1, 1, 1, 1, 1])
    outliers, said = Outliers(), []
    for _ in range(4):
        said += watched(outliers, vectors, models)
    assert [line.split(" are ")[0] for line in said] == ["the prototypes of client 2"] * 2
    assert "19.5 times as long as is usual for its model" in said[0]
    # without it, who points away is named
    vectors[2] = vectors[0].with_vectors(vectors[0].vectors.abs())
    for _ in range(3):
        said = watched(outliers, vectors, models)
    assert [f"client {p} have pointed away" in line for p, line in enumerate(said)] == [True, True]


def test_of_two_clients_of_a_model_neither_is_long():
    assert not watched(Outliers(), of_directions([1] * 4, [1, 30, 1, 30]), {0: "a", 1: "a", 2: "b", 3: "b"})


def test_whose_weights_change_against_the_others_three_times_in_a_row_is_named():
    outliers = Outliers()
    said = [watched(outliers, {}, against={0: False, 1: True, 2: False}) for _ in range(3)]
    assert said[:2] == [[], []]
    (words,) = said[2]
    assert words.startswith("the weights of client 1 have changed against the others' 3 times in a row")
    assert not watched(outliers, {}, against={1: False})
    assert outliers.away[1] == 0


def test_a_round_that_most_uploads_do_not_survive_asks_who_stood_out_before():
    outliers = Outliers()
    good = [Reply(p, True, Report(p, 1, None)) for p in range(4)]
    bad = [replace(each, problem="diverged") for each in good]
    assert outliers.alone(bad) == []  # nothing came before
    watched(outliers, {}, changes={0: 1.1, 1: 15.0, 2: 0.9})
    assert outliers.alone(good[:2] + bad[2:]) == []
    (words,) = outliers.alone(bad[:3] + good[3:])
    assert words.startswith("3 of 4 clients' uploads cannot be used.")
    assert "client 1 was 15 times as far from the others as is usual" in words
    # who was late says nothing of what was sent
    assert outliers.alone([*good[:2], *(Reply(p, True, problem="no reply in time") for p in range(2, 6))]) == []
    watched(outliers, {}, changes={0: 1.1, 1: 2.0})
    assert outliers.alone(bad) == []


def changed(change, who=(LIAR,), from_round=1):
    """Clients of which these send change(their upload) from a round on."""

    def tamper(partition, round_number, kind, report):
        if kind != "train" or partition not in who or round_number < from_round:
            return report
        return replace(report, payload=payload(change(lone(report.payload))))

    return tamper


def scaled(factor):
    return lambda prototypes: prototypes.with_vectors(factor * prototypes.vectors)


@pytest.mark.parametrize("strategy", ["fedproto", "protonorm", "tinyproto-fp", "pfpl"])
def test_a_long_upload_is_dropped_by_name_and_the_others_are_not(federation, strategy):
    """The run is the one in which that client uploads nothing."""
    settings = {"strategy": strategy} | ({"protonorm.gamma": 1.0} if strategy == "protonorm" else {})
    lines = federation(5, tamper=changed(scaled(900.0))).start(settings).folder.lines()
    expected = federation(5, tamper=changed(lambda prototypes: None)).start(settings).folder.lines()
    for line, other in zip(lines[:-1], expected[:-1], strict=True):
        assert set(line["problems"]) == {str(LIAR)}
        assert line["problems"][str(LIAR)].startswith("upload dropped: its longest vector has norm ")
        assert line["training"]["valid"] == 4
        assert line["server"] == other["server"]


def test_a_rise_below_the_ratio_is_said_with_the_longest_client(federation, say):
    federation(5, tamper=changed(scaled(12.0), from_round=3)).start({"rounds": 3})
    (said,) = [line for line in say() if "has risen" in line]
    assert said.startswith("warning: round 3: the mean norm of the prototypes has risen from ")
    assert f"those of client {LIAR} are the longest" in said


def test_targets_of_a_method_s_own_length_are_no_rise(federation, say):
    """ProtoNorm draws features out to gamma: 100 times their length in one round, of all clients."""
    federation(5, tamper=changed(scaled(50.0), range(5), from_round=2)).start(
        {"strategy": "protonorm", "protonorm.gamma": 100.0}
    )
    assert not [line for line in say() if "risen" in line or "dropped" in line]


def test_who_points_away_three_rounds_in_a_row_is_named(run):
    """Real features, so that honest clients agree; the liar flips signs in all rounds, another client in two."""

    def flip(records, partition, number):
        if "payload" in records and (partition == LIAR or (partition, number) in ((3, 2), (3, 3))):
            vectors = records["payload"]["vectors"]
            records["payload"]["vectors"] = type(vectors)(-vectors.numpy())

    settings = {"strategy": "fedproto", "partition": "iid", "rounds": 6}
    run(settings, clients=5, grid=tampered(flip))
    away = [line for line in run.said if "pointed away" in line]
    assert [line.split(":")[1].strip() for line in away] == ["round 3", "round 6"]
    assert all(f"of client {LIAR} have pointed away" in line for line in away)
    run(settings, clients=5)
    assert not [line for line in run.said if "pointed away" in line]


# --- uploads without a class, and odd ones that are legal -------------------------------------------------------


# of prototypes alone; beside weights a real client sends them
WITH_UPLOADS = [name for name in METHODS if read_settings(ASKED[name]).exchange.kinds() == {"prototypes"}]


def test_an_upload_of_no_class_is_refused_also_as_the_only_one(federation):
    with pytest.raises(RunError, match="it holds no class, though the client has 20 training samples"):
        federation(1, tamper=changed(lambda prototypes: PrototypeSet.empty(3), range(1))).start(
            {"max-failed-rounds": 2}
        )


ODD = {
    "zeros": lambda vectors: 0 * vectors,
    "one direction": lambda vectors: torch.ones_like(vectors),
    "denormal": lambda vectors: 1e-42 * vectors,
    "as long as may be": lambda vectors: 9e3 * vectors / vectors.norm(dim=1, keepdim=True),
    "one class": lambda vectors: vectors[:1],
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("strategy", WITH_UPLOADS)
def test_no_legal_upload_ends_a_run_otherwise_than_by_a_sentence(federation, strategy, odd):
    def change(prototypes):
        vectors = ODD[odd](prototypes.vectors)
        return PrototypeSet(prototypes.labels[: len(vectors)], vectors)

    # the one sentence that there may be: a contrastive training that such lengths make diverge
    with suppress(RunError):
        federation(3, tamper=changed(change, range(3))).start({"strategy": strategy, "rounds": 2})


# --- messages that Flower cannot read ---------------------------------------------------------------------------


def remote(spoil):
    """A grid that builds replies out of Flower's serialised objects, as over the network; the liar's pass through
    `spoil(bytes, its index)`."""

    class Remote(LocalGrid):
        simulated = False
        raised = 0

        def pull_messages(self, message_ids):
            return [self._crossed(message) for message in super().pull_messages(message_ids)]

        def _crossed(self, message):
            node = self.nodes[message.metadata.src_node_id]
            objects = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
            if node["partition-id"] == LIAR:
                objects = {key: spoil(content, index) for index, (key, content) in enumerate(objects.items())}
            try:
                crossed = inflate_object_from_contents(message.object_id, objects)
            except Exception:
                Remote.raised += 1
                raise
            crossed.metadata.__dict__["_message_id"] = message.metadata.message_id
            return crossed

    return Remote


def test_malformed_objects_are_their_sender_s_failure(run, metrics):
    """Bits flipped in every record: Flower raises for most; the other clients' rounds are the same to the bit."""
    grid = remote(lambda content, index: content[:-3])
    settings = {"strategy": "fedproto", "rounds": 3, "start-timeout": 5.0}

    class AfterTheStart(grid):
        def _crossed(self, message):
            return message if message.metadata.message_type == "query" else super()._crossed(message)

    lines = metrics(run(settings, clients=3, grid=AfterTheStart))
    assert grid.raised
    for line in lines[:-1]:
        assert set(line["problems"]) == {str(LIAR)}
        assert "malformed" in line["problems"][str(LIAR)]
        assert line["training"]["valid"] == 2


def test_a_malformed_answer_at_the_start_is_said_and_asked_again(run):
    answers = iter([True])

    class Once(remote(lambda content, index: content[:-3])):
        def _crossed(self, message):
            of_liar = self.nodes[message.metadata.src_node_id]["partition-id"] == LIAR
            spoilt = message.metadata.message_type == "query" and of_liar and next(answers, False)
            return super()._crossed(message) if spoilt else message

    run({"strategy": "local", "rounds": 1, "start-timeout": 30.0}, clients=2, grid=Once)
    assert any("could not say who it is: its reply is malformed" in line for line in run.said)


def test_a_dead_worker_is_fatal_in_simulation_alone(federation):
    """Elsewhere any client could send that code."""

    def die(partition, round_number, kind, report):
        return Error(0, "whatever") if (partition, round_number, kind) == (LIAR, 2, "train") else report

    lines = federation(3, tamper=die).start().folder.lines()
    assert [line["problems"] for line in lines[:3]] == [{}, {str(LIAR): 'an error came back: "whatever"'}, {}]


def test_an_answer_that_names_another_question_ends_nothing(run):
    """Over the network a client writes the id of the message that it answers itself."""

    class Renaming(remote(lambda content, index: content)):
        def _crossed(self, message):
            crossed = super()._crossed(message)
            if self.nodes[message.metadata.src_node_id]["partition-id"] == LIAR:
                crossed.metadata.__dict__["_reply_to_message_id"] = "someone-else"
            return crossed

    folder = run({"strategy": "fedproto", "rounds": 2}, clients=5, grid=Renaming)
    assert RunFolder(folder).lines()[0]["training"]["valid"] == 5


def test_claimed_rows_lift_no_limit_beyond_what_is_believed(federation, say):
    """One of ten claims a billion rows and sends its vectors as many times as long, the wrong way round."""
    rows = dict.fromkeys(range(10), (20, 4, 6)) | {LIAR: (10**9, 4, 6)}
    strategy = federation(10, tamper=changed(scaled(-1e9)), rows=rows).start({"strategy": "tinyproto-fp", "rounds": 2})
    assert any(f"client {LIAR} says that it has 1,000,000,000 training samples" in line for line in say())
    assert [line["training"]["dropped"] for line in RunFolder(strategy.folder.path).lines()[:2]] == [1, 1]
    assert strategy.half.constants["mu"] > 0.9 / (20 * 20)
