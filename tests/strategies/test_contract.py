"""The contract of every method: a method is a row, a property a test.

One run a row, of two rounds with a part of its clients, shows most of it: what crossed is kept as the clients sent it
and as the server took it. A new method of the registry is a row by itself.
"""

import functools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from safetensors.torch import load_file

from protosphere import method as m
from protosphere.data.forms.spiral import spiral
from protosphere.launch.grid import LocalGrid
from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record.folder import RunFolder
from protosphere.record.snapshots import newest
from protosphere.strategies import METHODS, load_method, read_settings, settings_read
from protosphere.strategies.fed3r import DISCLOSED
from tests.device import DEVICE
from tests.payloads import lone
from tests.serving.counted import assert_predicts_as_counted
from tests.strategies.needs import ASKED, FEW, first_of_each
from tests.strategies.sets import same
from tests.strategies.watched import (
    CLASSES,
    CLIENTS,
    DIM,
    Reversed,
    Seen,
    copy_run,
    cut_in,
    put_back,
    start,
    watched,
    without_time,
)
from tests.tampered import tampered

OFTEN = {"gfpl.first-exchange": 1, "gfpl.exchange-every": 1}
SERVER = {"fedtgp.server-batch-size": 4}
COUNTED = {"disclose-class-counts": True}
ROWS: dict[str, dict[str, Any]] = {name: ASKED[name] | FEW.get(name, {}) for name in METHODS}
ROWS["gfpl"] |= OFTEN
ROWS["fedtgp"] |= SERVER
ROWS["tinyproto-ft"] |= SERVER
ROWS["fedproto by counts"] = {"strategy": "fedproto", "fedproto.aggregation": "weighted"} | COUNTED
ROWS["gfpl without its exchange"] = {"strategy": "gfpl", "gfpl.pseudo-features": 0, "gfpl.dual-classifier": False}
ROWS["fedgen of all weights"] = {"strategy": "fedgen", "fedgen.share": "all", "models": "perceptron"} | FEW["fedgen"]
ROWS["fedpft of two components"] = ROWS["fedpft"] | {"fedpft.components": 2}

METHOD_OF = {row: load_method(settings["strategy"]) for row, settings in ROWS.items()}
OF_WEIGHTS = ("extractor", "backbone", "head", "companion", "companion-update", "scale", "generator", "discriminant")
# what is sent in the first round alone; and in the first rounds, where not all clients train in each
IN_ROUND_1 = ("fedcgs",)
ONCE = (*IN_ROUND_1, "protosphere", "fedncm", "fed3r", "fedcof", "fedpft")
ROUNDS = 2
WHOLE = {
    "rounds": ROUNDS,
    "fraction-train": 0.5,  # two of three
    "models": "tiny_perceptron,perceptron",
    "momentum": 0.9,
    "optimizer-state": "persistent",
}


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory, decoded_cache):
    """One PROTOSPHERE_HOME for this file, whose tests share runs."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "cache").symlink_to(decoded_cache, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOSPHERE_HOME", str(folder))
        yield folder


@functools.cache
def whole(row):
    """The run of a row, once for all properties, and cut in its last round."""
    with cut_in(ROUNDS):
        return watched(WHOLE | of_one(row) | ROWS[row], Seen())


def of_one(row):
    """One architecture where the method refuses two."""
    one = getattr(METHOD_OF[row].server, "one_architecture", False)
    return {"models": "perceptron"} if one else {}


every_row = pytest.mark.parametrize("row", ROWS)


@every_row
def test_what_either_half_sends_is_what_the_other_takes(row):
    """To the bit, as float32."""
    seen = whole(row)
    uploads = {key: made for key, made in seen.made.items() if made is not None}
    assert seen.took.keys() == uploads.keys()
    assert all(same(seen.took[key], made) for key, made in uploads.items())
    assert seen.came.keys() == seen.sent.keys()
    assert all(same(came, seen.sent[key]) for key, came in seen.came.items())


@every_row
def test_each_client_uploads_all_parts_of_its_exchange_and_of_the_classes_that_it_holds(row):
    seen, exchange = whole(row), read_settings(ROWS[row]).exchange
    roster = {client["partition"]: client for client in RunFolder(seen.folder).roster()}
    # of the last round's mixtures nothing comes down
    last = ROUNDS if ROWS[row]["strategy"] == "gfpl" and exchange.up else ROUNDS + 1
    last = 2 if ROWS[row]["strategy"] in IN_ROUND_1 else last
    assert {number for _, number in seen.took} == (set(range(1, last)) if exchange.up else set())
    for (partition, _), upload in seen.took.items():
        names = {spec.name for spec in exchange.up}
        assert names.issuperset(upload)
        assert len(upload) == (1 if exchange.either else len(names))
        if not exchange.weights:
            part = lone(upload)
            assert part.labels.unique().tolist() == roster[partition]["classes"]
            assert (part.counts is not None) == exchange.counts
            assert part.dim == (CLASSES if exchange.up[0].width == "classes" else DIM)


def size_of(payload, halved=(), spherical=()):
    """Bytes by the formula: four a value, of the values alone; two of matrices and class vectors in parts that are
    `halved`; one variance a component of those that are `spherical`."""
    return sum(size_of_part(part, name in halved, name in spherical) for name, part in (payload or {}).items())


def size_of_part(part, halved, spherical):
    if isinstance(part, PrototypeSet):
        # outputs have K values, features d
        return (2 if halved else 4) * len(part) * part.dim
    if isinstance(part, MixtureSet):
        return 4 * len(part) * (DIM + 2 if spherical else 2 * DIM + 1)
    return sum((2 if halved and tensor.dim() > 1 else 4) * tensor.numel() for tensor in part.tensors.values())


@every_row
def test_the_bytes_that_are_reported_are_those_of_what_crossed(row):
    seen, exchange = whole(row), read_settings(ROWS[row]).exchange
    halved = {spec.name for spec in (*exchange.up, *exchange.down) if spec.dtype == "float16"}
    spherical = {part.name for part in exchange.up if part.kind == "mixtures" and part.width == 1}
    for line in seen.lines()[1:]:
        number, found = line["round"], line["bytes"]
        made = [upload for (_, of), upload in seen.made.items() if of == number]
        assert found["payload_up"] == sum(size_of(upload, halved, spherical) for upload in made)
        # of what is sent once the evaluation brings the most
        kinds = {True, False} if exchange.once else {True}
        sent_in_round = [sent for (_, of, trains), sent in seen.sent.items() if of == number and trains in kinds]
        assert found["payload_down"] == sum(size_of(sent, halved) for sent in sent_in_round)
    assert any(map(size_of, seen.came.values())) == bool(exchange.down)


@every_row
def test_what_a_client_discloses_is_what_crosses(row):
    seen, exchange = whole(row), read_settings(ROWS[row]).exchange
    crossed = {re.sub(r"^(prototypes|mixtures)\.", "", name) for name in seen.arrays["up"]}
    told = read_settings(ROWS[row]).confusion
    sends_constants = METHOD_OF[row].counts_own_rounds or row.startswith("tinyproto")
    constants = {"metrics"} if sends_constants else set()
    assert {"config"} | ({"arrays"} if exchange.down else set()) <= seen.records["down"]
    assert seen.records["down"] <= {"config", *(["arrays"] if exchange.down else []), *constants}
    assert seen.records["up"] == {"config", "metrics", *(["arrays"] if exchange.up else [])}
    by_words = {
        "prototypes of its classes": "vectors",
        "the mean outputs of its model for its classes": "vectors",
        "mixtures of its classes": "means",
        "its class counts": "counts",
        "the second moment of its samples' features, of all classes together": "moment.values",
        DISCLOSED: "sums.values",
        "how its samples' features vary around the means of their classes, of all classes together": "scatter.values",
        **{f"the trained weights of its {part}": f"{part}.values" for part in OF_WEIGHTS},
    }
    assert set(seen.said) == set(range(CLIENTS))
    for said in seen.said.values():
        assert {array for words, array in by_words.items() if words in said} == crossed & {*by_words.values()}
        assert set(exchange.discloses) <= set(said)
        assert any("confusion matrix" in words for words in said) == told
    beside = {
        "labels",
        "variances",
        "weights",
        "companion-update.shapes",
        "moment.small",
        "scatter.small",
        "sums.small",
        *(f"{part}.small" for part in OF_WEIGHTS),
    }
    assert crossed - {*by_words.values()} <= beside
    # and no counts ever come down
    assert "counts" not in seen.arrays["down"]


@every_row
def test_a_method_says_whether_it_pulls(row):
    """By which a comparison knows who reads a setting that is varied."""
    run = read_settings(WHOLE | of_one(row) | ROWS[row])
    pulled = any("prototype-pull" in line["training"]["loss"] for line in RunFolder(whole(row).folder).lines()[1:])
    assert pulled == issubclass(METHOD_OF[row].objective, m.Pulled)
    read = settings_read(ROWS[row])
    assert ({"prototype-weight", "prototype-loss"} <= read) == pulled
    assert ("wire-dtype" in read) == bool(run.exchange.kinds() - {"mixtures"})
    assert ("share-buffers" in read) == run.exchange.weights


@every_row
def test_with_a_part_of_the_clients_they_alone_train_and_upload_and_all_are_evaluated(row):
    seen = whole(row)
    for line in seen.lines()[1:]:
        trained = {p for p, client in line["clients"].items() if "training" in client}
        assert (len(trained), line["training"]["asked"], line["training"]["valid"], line["problems"]) == (2, 2, 2, {})
        assert {str(p) for p, number in seen.made if number == line["round"]} == trained
        assert {p for p, client in line["clients"].items() if "evaluation" in client} == set(map(str, range(CLIENTS)))
    rules = set(seen.lines()[-1]["evaluation"]["rules"])
    usual = set(read_settings(ROWS[row]).rules) | {"majority-class"}
    # GFPL's own rule goes with its frame
    assert rules == usual - ({"etf"} if ROWS[row].get("gfpl.dual-classifier") is False else set())


# --- cut and resumed -------------------------------------------------------------------------------------------


def left_by(folder):
    """Every tensor that the server and the clients of a run end with, to the bit."""
    found = RunFolder(folder).load_checkpoint()[0]
    for path in sorted((folder.parents[1] / "clients" / folder.name).rglob("*.safetensors")):
        found |= {f"{path.parent.name}/{path.name}/{name}": tensor for name, tensor in load_file(path).items()}
    return {name: (tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes()) for name, tensor in found.items()}


BY_WORKERS = "gfpl"  # of the others this process goes on, which remembers nothing either


@pytest.mark.parametrize("row", METHODS)
def test_cut_in_a_round_and_resumed_is_as_never_cut_to_the_bit(row):
    """Nodes answer in another order, and each worker finds what another has left."""
    seen, settings = whole(row), WHOLE | of_one(row) | ROWS[row]
    folder = seen.folder
    ended = copy_run(folder, "ended")
    put_back(folder, "cut")
    assert len(RunFolder(folder).lines()) == ROUNDS
    workers = 2 if row == BY_WORKERS else 1
    resumed = start(settings | {"resume": str(folder)}, workers=workers, grid=Reversed)
    assert resumed == folder
    assert without_time(resumed) == without_time(ended)
    assert left_by(resumed) == left_by(ended)


DEAF = [name for name in METHODS if "client-weights" not in settings_read(ROWS[name])]
RARE = [row for row in ROWS if not METHOD_OF[row].reads_prototypes]


def one_of_each(rows, ways):
    """Of rows whose methods share all of these functions, and their rules, the first."""
    return first_of_each(rows, lambda row: (ways(METHOD_OF[row]), METHOD_OF[row].inference, METHOD_OF[row].rules))


def aggregation_of(method):
    """Of class statistics sent once, `aggregate` is the family's and `learn` the method's."""
    return method.server.aggregate, getattr(method.server, "learn", None)


def round_of(method):
    return method.objective.upload, method.objective.receive, aggregation_of(method)


@pytest.mark.parametrize("row", one_of_each(RARE, round_of))
def test_who_is_evaluated_rarely_trains_sends_and_scores_the_same(row):
    """Methods that read no prototypes are measured before evaluations alone: at the end of a round on which one
    follows, and else, by a client that has not trained since, when it is asked."""
    seen, run = whole(row), read_settings(ROWS[row])
    assert {spec.kind for spec in run.exchange.up} <= {"weights"}
    # who does not read the weights of clients is the same by any of these, too
    more = {"client-weights": "equal"} if row in DEAF else {}
    rare = watched(WHOLE | of_one(row) | ROWS[row] | {"evaluate-every": 2, "state-memory": 0} | more, Seen())
    assert rare.took.keys() == seen.took.keys()
    assert all(same(rare.took[key], seen.took[key]) for key in seen.took)
    always = {line["round"]: line for line in seen.lines()}
    for line in rare.lines():
        other = always[line["round"]]
        assert line.get("evaluation") == (None if line["round"] == 1 else other["evaluation"])
        if line["round"]:
            assert line["training"]["loss"] == other["training"]["loss"]
    assert "prototype_norm" not in rare.lines()[1]["training"]


# those that are evaluated rarely are asked above
ALSO_DEAF = [name for name in DEAF if name not in RARE and "tinyproto" not in name]


@pytest.mark.parametrize("row", one_of_each(ALSO_DEAF, aggregation_of))
def test_who_does_not_read_the_weights_of_clients_is_the_same_by_any(row):
    """Of clients with different numbers of samples."""
    seen = whole(row)
    assert len({client["rows"][0] for client in RunFolder(seen.folder).roster()}) > 1
    alike = without_time(start(WHOLE | of_one(row) | ROWS[row] | {"client-weights": "equal"}))
    assert [what_it_comes_to(line) for line in alike] == [what_it_comes_to(line) for line in seen.lines()]


def what_it_comes_to(line):
    return line.get("training", {}).get("loss"), line["evaluation"]["rules"]


# --- lies, one kind a round ------------------------------------------------------------------------------------

LIAR = 1
EVALUATED = 4  # every so many rounds
VALUES = ("vectors", "means", "values")


def changed(arrays, change, names=VALUES):
    """`change` on the arrays that hold values."""
    return {name: change(array) if name.rpartition(".")[2] in names else array for name, array in arrays.items()}


def infinite(values):
    # a part of small tensors alone has no others
    values[..., :1] = np.inf
    return values


LIES = {
    "no upload": lambda arrays: None,
    "values that are not finite": lambda arrays: changed(arrays, infinite),
    "values beyond the bound": lambda arrays: changed(arrays, lambda values: np.float32(1e9) * (1 + np.abs(values))),
    "another type": lambda arrays: changed(arrays, lambda values: values.astype(np.float64)),
    "no rows": lambda arrays: {name: array[:0] for name, array in arrays.items()},
    "another array": lambda arrays: arrays | {"more.values": np.ones((2, 2), np.float32)},
    # weights have no classes: there a part of another name
    "unknown classes": lambda arrays: (
        changed(arrays, lambda labels: labels + CLASSES, ("labels",))
        if any(name.endswith(".labels") for name in arrays)
        else {name.replace(".", "s."): array for name, array in arrays.items()}
    ),
}


def lie(records, partition, number):
    """The uploads of one client pass through the lie of the round."""
    if "training.rows" not in records.get("metrics", ()):
        return
    told = [*LIES.values(), lambda arrays: arrays][number - 1]
    arrays = {}
    if "arrays" in records:
        arrays = {name: np.array(array.numpy()) for name, array in records["arrays"].items()}
        del records["arrays"]
    elif number <= len(LIES):
        # where nothing is to come, something comes
        arrays, told = {"prototypes.vectors": np.ones((1, DIM), np.float32)}, dict
    if changed_arrays := told(arrays):
        records["arrays"] = ArrayRecord({n: Array(np.ascontiguousarray(a)) for n, a in changed_arrays.items()})


def checks_of(name):
    """How the uploads of a method are checked: parts of equal form, by the same functions."""
    exchange, server = read_settings(ROWS[name]).exchange, METHOD_OF[name].server
    forms = tuple(replace(part, name="") for part in exchange.up)
    return (forms, exchange.counts, exchange.either, getattr(server, "contradiction", None), server.expected_parts)


@pytest.mark.parametrize("name", first_of_each(METHODS, checks_of))
def test_a_lie_costs_its_round_s_upload_and_nothing_else(name):
    settings = {"rounds": len(LIES) + 1, "evaluate-every": EVALUATED} | ROWS[name]
    seen = watched(settings, Seen(), tampered(lie, of=LIAR))
    exchange = read_settings(ROWS[name]).exchange
    for line in seen.lines()[1 : len(LIES) + 1]:
        number = line["round"]
        assert set(line["problems"]) == {str(LIAR)}, (number, line["problems"])
        assert line["problems"][str(LIAR)].startswith("upload dropped: ")
        assert (line["training"]["valid"], line["training"]["dropped"]) == (2, 1)
        due = bool(exchange.up) and (number == 1 or name not in ONCE)
        # what it trained and evaluated counts
        assert "training" in line["clients"][str(LIAR)]
        assert ("evaluation" in line["clients"][str(LIAR)]) == (number % EVALUATED == 0)
        assert {partition for partition, of in seen.took if of == number} == ({0, 2} if due else set())
    assert all(same(upload, seen.made[key]) for key, upload in seen.took.items())
    honest = seen.lines()[len(LIES) + 1]
    assert (honest["training"]["valid"], honest["problems"]) == (3, {})


# --- clients that come and go, each of one class ---------------------------------------------------------------

PRESENT = 3
# the lowest partition comes late, so that who names a group after it would rename it
THERE = {1: {1, 2}, 2: {0, 1}, 3: {0, 1, 2}}


class Moving(LocalGrid):
    """Lists the nodes that are there in the round that comes, as over a network: partition 0 comes in round 2, in which
    2 has gone, and in round 3 all are there."""

    simulated = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.round = 1

    def get_node_ids(self):
        there = THERE[min(self.round, len(THERE))]
        return [node for node, config in self.nodes.items() if config["partition-id"] in there]

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == "evaluate":
                self.round = int(message.content["config"]["round"]) + 1
        return super().push_messages(messages)


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """Of the spiral's six arms as many as clients, in a file."""
    path = tmp_path_factory.mktemp("data") / "arms.npz"
    positions, labels = spiral(30, 0.2, 0)
    np.savez(path, x=positions[labels < PRESENT], y=labels[labels < PRESENT])
    return {"dataset": str(path)}


def training_of(method):
    return method.objective.build, method.objective.loss, method.objective.upload, aggregation_of(method)


@pytest.mark.parametrize("name", one_of_each(METHODS, training_of))
def test_every_method_goes_on_with_who_is_there_each_of_one_class(name, arms):
    alone = {"partition": "pathological", "classes-per-client": 1, "min-clients": 2, "forget-after": 1}
    # slower, or whoever sees one class alone runs away
    settings = {"rounds": len(THERE), "learning-rate": 0.001} | ROWS[name] | arms | alone
    folder = start(settings, clients=PRESENT, grid=Moving)
    lines = without_time(folder)
    assert [line["problems"] for line in lines] == [{}] * (len(THERE) + 1)
    trained = [{int(p) for p, client in line["clients"].items() if "training" in client} for line in lines[1:]]
    assert dict(enumerate(trained, 1)) == THERE
    assert [line["training"]["valid"] for line in lines[1:]] == [len(there) for there in THERE.values()]
    assert [len(client["classes"]) for client in RunFolder(folder).roster()] == [1] * PRESENT


PREDICTS = ("build", "features", "scores", "targets", "shared", "evaluation_state")
PREDICTS += ("complete", "encoded_scores", "pooled")


def prediction_of(method):
    return tuple(getattr(method.objective, name, None) for name in PREDICTS)


# methods whose client halves predict by other functions; and rows with settings of their own
PREDICTING = [*one_of_each(METHODS, prediction_of), *(row for row in ROWS if row not in METHODS)]


@pytest.mark.skipif(DEVICE != "cpu", reason="what is predicted on a CPU is what was counted there")
@pytest.mark.parametrize("row", PREDICTING)
def test_the_folder_of_a_client_alone_predicts_as_its_last_evaluation_counted(row, tmp_path, monkeypatch):
    assert_predicts_as_counted(whole(row).folder, CLIENTS, ROWS[row], tmp_path, monkeypatch)


@every_row
def test_the_number_of_classes_and_d_are_checked_before_any_client_is_met(row):
    """As a run from the command line does before it starts."""
    asked = read_settings(ROWS[row])
    asked.method.server(asked.settings, asked.options).check(CLASSES, 32)


@pytest.mark.parametrize("name", ["fedcgs", "protosphere", "fedpa"])
def test_a_report_shows_class_means_that_do_not_go_down_as_such(name):
    folder = RunFolder(whole(name).folder)
    tensors, about = newest(folder.path)
    assert about["round"] == (1 if name in IN_ROUND_1 else ROUNDS)
    state = {key.removeprefix("state/"): value for key, value in folder.load_checkpoint()[0].items()}
    if "sums" in state:
        known = state["weights"] > 0
        state["labels"] = known.nonzero().flatten()
        state["vectors"] = (state["sums"][known] / state["weights"][known].unsqueeze(1)).float()
    assert len(state["labels"]) > 0
    assert tensors["global/labels"].tolist() == state["labels"].tolist()
    assert tensors["global/vectors"].tolist() == state["vectors"].tolist()
