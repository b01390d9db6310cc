"""Every record of every message of every method, held against what the method declares: nothing but prototypes and a
few figures leaves a client, and the bytes are those of the formula."""

import json

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord
from safetensors.torch import load_file

from experiments.local_grid import LocalGrid
from strategies import METHODS, load_method, read_settings

DIM, CLASSES, CLIENTS = 12, 10, 4  # d as the fixture `run` sets it, K of the digits
WEIGHTED = {"fedproto.aggregation": "weighted", "disclose-class-counts": True}
CASES = [*((name, {}) for name in METHODS), ("fedproto", WEIGHTED)]
FLOAT32 = 4  # bytes

# payload kind -> array -> (dtypes, shape by the number of rows k)
ARRAYS = {
    "prototypes": {
        "labels": ({"int16"}, lambda k: (k,)),
        "vectors": ({"float32"}, lambda k: (k, DIM)),
    }
}
COUNTS = {"counts": ({"int64"}, lambda k: (k,))}
HEADERS = {
    "instruction": {"run", "round", "evaluate", "trained", "payload"},
    "report": {"partition", "round", "problem", "seconds", "parts"},
    "identity": {
        "partition",
        "partitions",
        "model",
        "parameters",
        "feature_dim",
        "class_names",
        "classes",
        "rows",
        "discloses",
        "problem",
    },
}
RULES = {"local-prototypes", "global-prototypes", "classifier", "discriminant", "majority-class"}


class Recording(LocalGrid):
    """Keeps every message in both directions, as (type, records)."""

    down: list
    up: list

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        type(self).down += [(message.metadata.message_type, message.content) for message in messages]
        return ids

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        assert not any(reply.has_error() for reply in replies)
        type(self).up += [(reply.metadata.message_type, reply.content) for reply in replies]
        return replies


_runs: dict = {}  # each test looks at the same runs


@pytest.fixture(params=CASES, ids=lambda case: case[0] + "-weighted" * bool(case[1]))
def recorded(request, run):
    """A run of few classes a client, of whom half train in a round: (method, options, folder, messages down, up)."""
    name, extra = request.param
    config = {"strategy": name, "rounds": 4, "partition": "pathological", "classes-per-client": 3} | extra
    config |= {"fraction-train": 0.5, "models": "tiny_cnn,tiny_perceptron"}
    if str(config) not in _runs:
        Recording.down, Recording.up = [], []
        folder = run(config, clients=CLIENTS, grid=Recording)
        _runs[str(config)] = folder, Recording.down, Recording.up
    return load_method(name), read_settings(config).options, *_runs[str(config)]


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def classes_of(folder):
    """Classes of each client's training rows, by partition."""
    return {entry["partition"]: entry["classes"] for entry in json.loads((folder / "roster.json").read_text())}


def trained_in(line):
    return sorted(int(partition) for partition, client in line["clients"].items() if "training" in client)


def check_payload(record, kind, counts, most):
    """Arrays of the declared names, dtypes and shapes, at most `most` rows, and not a byte beside them."""
    assert isinstance(record, ArrayRecord)
    fields = ARRAYS[kind] | (COUNTS if counts else {})
    assert set(record) == set(fields)
    rows = record["labels"].shape[0]
    assert 0 < rows <= most
    for name, (dtypes, shape) in fields.items():
        array = record[name]
        assert array.dtype in dtypes
        assert tuple(array.shape) == shape(rows)
        # .npy: the values and a header of 128 bytes
        assert len(array.data) == array.numpy().nbytes + 128
    labels = record["labels"].numpy()
    assert set(labels.tolist()) <= set(range(CLASSES))
    return labels.tolist(), record["vectors"].numpy()


def check_scalars(record, kind, names, longest):
    """Fields of known names that hold a number, or a few."""
    assert isinstance(record, kind)
    assert set(record) <= names
    for value in record.values():
        assert isinstance(value, bool | int | float | str | list)
        assert len(str(value)) < 300
        assert not isinstance(value, list) or len(value) <= longest


def test_what_goes_down_is_what_the_method_declares(recorded):
    method, _, folder, down, _ = recorded
    assert {kind for kind, _ in down} == {MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE}
    with_payload = 0
    for kind, records in down:
        if kind == MessageType.QUERY:
            assert not records
            continue
        header = records["instruction"]
        check_scalars(header, ConfigRecord, HEADERS["instruction"], longest=0)
        assert header["run"] == folder.name
        if method.receives is None or header["round"] == 1:
            assert set(records) == {"instruction"}
            assert header["payload"] == ""
            continue
        assert set(records) == {"instruction", "payload"}
        assert header["payload"] == method.receives
        check_payload(records["payload"], method.receives, counts=False, most=CLASSES)
        with_payload += 1
    assert with_payload == (0 if method.receives is None else 4 * CLIENTS)


def test_what_goes_up_is_what_the_method_declares(recorded):
    method, options, folder, _, up = recorded
    counts = method.sends_counts(options)
    classes, uploads = classes_of(folder), 0
    for kind, records in up:
        if kind == MessageType.QUERY:
            assert set(records) == {"identity"}
            check_scalars(records["identity"], ConfigRecord, HEADERS["identity"], longest=CLASSES)
            assert len(records["identity"]["rows"]) == 3
            continue
        # no list is as long as a client's classes but the loss's parts, which are named
        check_scalars(records["report"], ConfigRecord, HEADERS["report"], longest=3)
        assert set(records["report"]["parts"]) <= {"cross-entropy", "prototype-pull", "loss"}
        allowed = {"report", "evaluation"}
        if kind == MessageType.TRAIN:
            allowed |= {"training"} | ({"payload"} if method.sends else set())
            check_scalars(records["training"], MetricRecord, {"counts", "figures", "parts"}, longest=4)
            lengths = {name: len(records["training"][name]) for name in ("counts", "figures", "parts")}
            assert lengths == {"counts": 2, "figures": 4, "parts": len(records["report"]["parts"])}
        assert set(records) == allowed
        check_scalars(records["evaluation"], MetricRecord, RULES | {"rows", "seconds"}, longest=2)
        if "payload" in records:
            held = classes[records["report"]["partition"]]
            labels, _ = check_payload(records["payload"], method.sends, counts, most=len(held))
            assert labels == held
            uploads += 1
    assert uploads == (0 if method.sends is None else 4 * CLIENTS // 2)


def test_what_goes_up_is_small_beside_weights_and_samples(recorded):
    """Held against the sizes of what must not leave: a model, or one digit a row."""
    _, _, folder, _, up = recorded
    roster = {entry["partition"]: entry for entry in json.loads((folder / "roster.json").read_text())}
    for kind, records in up:
        if kind == MessageType.QUERY:
            continue
        client = roster[records["report"]["partition"]]
        arrays = [array for record in records.array_records.values() for array in record.values()]
        values = sum(int(np.prod(array.shape)) for array in arrays)
        numbers = [value for record in records.metric_records.values() for value in record.values()]
        scalars = sum(len(value) if isinstance(value, list) else 1 for value in numbers)
        assert scalars <= 24
        assert values <= len(client["classes"]) * (DIM + 2)
        assert 20 * (values + scalars) < client["parameters"]


def test_an_upload_is_the_prototypes_that_the_client_keeps(recorded):
    method, options, folder, _, up = recorded
    if method.sends is None:
        return
    newest = {}
    for kind, records in up:
        if kind == MessageType.TRAIN:
            newest[records["report"]["partition"]] = records["report"]["round"], records["payload"]
    for partition, (number, payload) in newest.items():
        store = folder.parents[1] / "clients" / folder.name / str(partition)
        kept = load_file(store / f"round-{number:06d}.safetensors")
        assert np.array_equal(payload["vectors"].numpy(), kept["prototypes/vectors"].numpy())
        assert np.array_equal(payload["labels"].numpy(), kept["prototypes/labels"].numpy())
        if method.sends_counts(options):
            assert np.array_equal(payload["counts"].numpy(), kept["prototypes/counts"].numpy())


def test_the_payload_is_the_formulas_to_the_byte(recorded):
    """Sum over the sampled of (K_i + K_r) s values; K_r, the classes with a prototype when the round starts."""
    method, _, folder, _, _ = recorded
    classes, known = classes_of(folder), set()
    sends, receives = method.sends is not None, method.receives is not None
    sizes = []
    for line in lines(folder):
        sampled = trained_in(line)
        others = CLIENTS - len(sampled)
        assert line["bytes"]["payload_up"] == sends * sum(len(classes[p]) for p in sampled) * DIM * FLOAT32
        assert line["bytes"]["payload_down"] == receives * len(sampled) * len(known) * DIM * FLOAT32
        assert line["bytes"]["evaluate_only_payload_up"] == 0
        assert line["bytes"]["evaluate_only_payload_down"] == receives * others * len(known) * DIM * FLOAT32
        sizes.append(len(known))
        known |= {label for partition in sampled for label in classes[partition]}
    assert sizes[0] == 0
    assert 0 < sizes[1] < CLASSES, "a first round that reports every class tests too little"
    assert sizes[1] < sizes[-1]


def test_the_wire_is_the_payload_and_little_more(recorded):
    _, _, folder, down, up = recorded
    for line in lines(folder):
        sizes, sampled = line["bytes"], len(trained_in(line))
        for way, figures in (("up", sizes["evaluation_wire_up"]), ("down", 0)):
            payload, wire = sizes[f"payload_{way}"], sizes[f"wire_{way}"]
            assert payload <= wire - figures <= 1.05 * payload + 4096 * sampled
            payload, wire = sizes[f"evaluate_only_payload_{way}"], sizes[f"evaluate_only_wire_{way}"]
            assert payload <= wire <= 1.05 * payload + 4096 * (CLIENTS - sampled)
    for way, messages in (("down", down), ("up", up)):
        carried = sum(records["payload"]["vectors"].numpy().nbytes for _, records in messages if "payload" in records)
        counted = (
            line["bytes"][f"{prefix}payload_{way}"] for line in lines(folder) for prefix in ("", "evaluate_only_")
        )
        assert carried == sum(counted)
