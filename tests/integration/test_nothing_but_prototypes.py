"""Every record of every message of every method, held against what the method declares: nothing but prototypes and a
few figures leaves a client, and the bytes are those of the formula."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord
from safetensors.torch import load_file

from client_app import client as client_module
from data.client_data import Rows
from experiments.runtime.grid import LocalGrid
from prototypes.masks import class_masks
from strategies import METHODS, load_method, read_settings
from strategies.contract import ServerHalf

# a feature-dim that is no other number of these runs; K of the digits
DIM, CLASSES, CLIENTS = 23, 10, 4
WEIGHTED = {"fedproto.aggregation": "weighted", "disclose-class-counts": True}
ENSEMBLE = {"ensemble-every": 2}
# of the four rounds GFPL's second is its only exchange; what comes of it goes down with the third
EXCHANGE, AFTER = 2, 3
MIXTURES = {"gfpl.first-exchange": 2, "gfpl.exchange-every": 2}
SAMPLES = {"gfpl.weighting": "samples", "disclose-class-counts": True}
SENDING = [name for name in METHODS if "prototypes" in read_settings({"strategy": name}).exchange.kinds()]
# of the others docs and roster say what they send
PROMISED = [name for name in METHODS if not read_settings({"strategy": name}).exchange.weights]
# the values that cross with s = 2 have disjoint masks (K s <= d), those with s = 5 have not
CODECS = [
    {"sparsity-dim": 2},
    {"sparsity-dim": 5, "wire-dtype": "int8"},
    {"sparsity-dim": 5, "wire-dtype": "bfloat16"},
    {"wire-dtype": "float16"},
    {"wire-dtype": "int8"},
]
CASES = [
    *((name, {}) for name in PROMISED),
    ("fedproto", WEIGHTED),
    ("fedproto", WEIGHTED | CODECS[1]),
    *((name, codec) for name in SENDING for codec in CODECS),
    ("protonorm", {"wire-dtype": "bfloat16"}),
    *((name, ENSEMBLE) for name in ("local", "fedproto", "fedpagr", "fedproc", "gfpl")),
    ("gfpl", SAMPLES),
    ("gfpl", {"gfpl.dual-classifier": False}),
    ("gfpl", {"gfpl.pseudo-features": 0}),
    ("tinyproto-fp", {"sparsity-dim": 5, "tinyproto.scaling": False}),
]
STORED = {"float32": "float32", "float16": "float16", "bfloat16": "uint16", "int8": "int8"}
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}

# payload kind -> array -> (dtype, shape by the number of rows k), both by the settings
ARRAYS = {
    "prototypes": {
        "labels": lambda settings, k: ("int16", (k,)),
        "vectors": lambda settings, k: (STORED[settings.wire_dtype], (k, settings.sparsity_dim or DIM)),
    },
    "mixtures": {
        "labels": lambda settings, k: ("int16", (k,)),
        "means": lambda settings, k: ("float32", (k, DIM)),
        "variances": lambda settings, k: ("float32", (k, DIM)),
        "weights": lambda settings, k: ("float32", (k,)),
    },
}
COMPONENTS, COMPONENT = 4, 2 * DIM + 1  # of a class at most; values of each: mean, variance, weight
COUNTS = {"counts": lambda settings, k: ("int64", (k,))}
SCALES = {"scales": lambda settings, k: ("float32", (k,))}
HEADERS = {
    "instruction": {
        "run",
        "token",
        "round",
        "evaluate",
        "ensemble",
        "trained",
        "payload",
        "constants",
        "values",
        "codec",
    },
    "report": {"partition", "round", "problem", "remark", "seconds", "parts", "codec"},
    "identity": {
        "method",
        "layouts",
        "partition",
        "partitions",
        "model",
        "parameters",
        "feature_dim",
        "class_names",
        "classes",
        "domain",
        "rows",
        "discloses",
        "problem",
        "codec",
    },
}
# what a method's loss adds to the cross-entropy, where it is no pull
PARTS = {
    "fedpagr": ("prototype-contrast", "entropy-spread"),
    "fedproc": ("prototype-contrast",),
    "gfpl": ("dot-regression",),
}
RULES = {"local-prototypes", "global-prototypes", "classifier", "discriminant", "majority-class"}
OWN_RULES = {"gfpl": {"etf"}}


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


def name_of(case):
    """`fedproto-weighted-s5-int8`."""
    name, extra = case
    words = [name, "weighted" * (WEIGHTED.items() <= extra.items()), "unscaled" * ("tinyproto.scaling" in extra)]
    words += ["ensemble" * ("ensemble-every" in extra), "samples" * ("gfpl.weighting" in extra)]
    words += [key.removeprefix("gfpl.") for key in extra if key in ("gfpl.dual-classifier", "gfpl.pseudo-features")]
    words += [f"s{extra['sparsity-dim']}" if "sparsity-dim" in extra else "", str(extra.get("wire-dtype", ""))]
    return "-".join(word for word in words if word)


@pytest.fixture(params=CASES, ids=name_of)
def recorded(request, run):
    """A run of few classes a client, of whom half train in a round: (run, folder, messages down, up)."""
    name, extra = request.param
    config = {"strategy": name, "rounds": 4, "partition": "pathological", "classes-per-client": 3} | extra
    config |= {"fraction-train": 0.5, "models": "tiny_cnn,tiny_perceptron", "feature-dim": DIM}
    if "fedtgp" in load_method(name).settings:
        config |= {"fedtgp.server-epochs": 3}
    if name == "gfpl":
        config |= MIXTURES
    if str(config) not in _runs:
        _runs[str(config)] = record(run, config)
    return read_settings(config), *_runs[str(config)]


def record(run, config):
    """A run's folder, and all its messages down and up."""
    Recording.down, Recording.up = [], []
    return run(config, clients=CLIENTS, grid=Recording), Recording.down, Recording.up


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def classes_of(folder):
    """Classes of each client's training rows, by partition."""
    return {entry["partition"]: entry["classes"] for entry in json.loads((folder / "roster.json").read_text())}


def trained_in(line):
    return sorted(int(partition) for partition, client in line["clients"].items() if "training" in client)


def check_payload(record, kind, run, counts, most):
    """Arrays of the declared names, types and shapes, at most `most` rows, and not a byte beside them."""
    assert isinstance(record, ArrayRecord)
    fields = ARRAYS[kind] | (COUNTS if counts else {}) | (SCALES if run.settings.wire_dtype == "int8" else {})
    assert set(record) == set(fields)
    rows = record["labels"].shape[0]
    assert 0 < rows <= most
    for name, form in fields.items():
        array = record[name]
        assert (array.dtype, tuple(array.shape)) == form(run.settings, rows)
        # .npy: the values and a header of 128 bytes
        assert len(array.data) == array.numpy().nbytes + 128
    labels = record["labels"].numpy()
    assert set(labels.tolist()) <= set(range(CLASSES))
    return labels.tolist()


def kind_of(specs):
    """Of the one part; None for nothing."""
    return specs[0].kind if specs else None


def check_scalars(record, kind, names, longest):
    """Fields of known names that hold a number, some words, or a few of them."""
    assert isinstance(record, kind)
    assert set(record) <= names
    for value in record.values():
        assert isinstance(value, bool | int | float | str | list)
        items = value if isinstance(value, list) else [value]
        assert len(items) <= longest or not isinstance(value, list)
        assert all(len(str(item)) < 100 for item in items)


def fingerprint_of(run):
    """What each message says of its codec, as a pattern."""
    settings = run.settings
    whole = f"K={CLASSES} d={DIM} s={settings.sparsity_dim or DIM} format={settings.wire_dtype}"
    kind = run.exchange.up[0].kind if run.exchange.up else ""
    added = "16bits" if scales(run) else "shares/64" if kind == "mixtures" and not run.exchange.counts else ""
    masks = r" seed=0 masks=[0-9a-f]{8}" if settings.sparsity_dim else ""
    return whole + masks + (f" up.{kind}={added}" if added else "")


def scales(run):
    """Whether the method multiplies by class counts."""
    return any(getattr(option, "scaling", False) for option in run.options.values.values())


def asked_for_answers(run, number):
    """In every n-th round from the first, and after the last of the four."""
    every = run.settings.ensemble_every
    return every > 0 and ((number - 1) % every == 0 or number == 5)


def check_answers(record):
    """Probabilities as float16 for each of the shared rows (a tenth of 400), 64 bits of fingerprint, no more."""
    assert isinstance(record, ArrayRecord)
    forms = {"probabilities": ("float16", (40, CLASSES)), "fingerprint": ("uint64", (1,))}
    assert {name: (array.dtype, tuple(array.shape)) for name, array in record.items()} == forms
    for array in record.values():
        assert len(array.data) == array.numpy().nbytes + 128
    sums = record["probabilities"].numpy().astype(np.float64).sum(axis=1)
    assert np.abs(sums - 1).max() < 0.01


def begins(run):
    """Whether the method has prototypes of all classes before anything was uploaded."""
    return run.method.server.begin is not ServerHalf.begin


def exchanges(run):
    """Whether the run has an exchange at all: GFPL's ablation has none, and `local` sends nothing."""
    return bool(run.exchange.up)


def gfpl_of(run):
    """GFPL's settings, or None."""
    return next((option for option in run.options.values.values() if hasattr(option, "pseudo_features")), None)


def is_due_up(run, number):
    """Whether those who train in this round upload."""
    return exchanges(run) and (gfpl_of(run) is None or number == EXCHANGE)


def is_due_down(run, kind, number):
    """Whether a message of this round carries what the method sends down."""
    if gfpl_of(run) is not None:
        return exchanges(run) and kind == MessageType.TRAIN and number == AFTER
    return bool(run.exchange.down) and (number > 1 or begins(run))


def test_what_goes_down_is_what_the_method_declares(recorded):
    run, folder, down, _ = recorded
    assert {kind for kind, _ in down} == {MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE}
    with_payload = 0
    for kind, records in down:
        if kind == MessageType.QUERY:
            assert not records
            continue
        header = records["instruction"]
        check_scalars(header, ConfigRecord, HEADERS["instruction"], longest=1)
        assert header["run"] == folder.name
        assert header["constants"] == (["mu"] if scales(run) else [])
        assert len(header["values"]) == len(header["constants"])
        assert re.fullmatch(fingerprint_of(run), header["codec"])
        assert header["ensemble"] == asked_for_answers(run, header["round"])
        if not is_due_down(run, kind, header["round"]):
            assert set(records) == {"instruction"}
            assert header["payload"] == ""
            continue
        assert set(records) == {"instruction", "payload"}
        assert header["payload"] == kind_of(run.exchange.down)
        # two clients upload in GFPL's exchange
        most = 2 * COMPONENTS * CLASSES if kind_of(run.exchange.down) == "mixtures" else CLASSES
        check_payload(records["payload"], kind_of(run.exchange.down), run, counts=False, most=most)
        with_payload += 1
    if gfpl_of(run) is not None:
        assert with_payload == (CLIENTS // 2 if exchanges(run) else 0)
        return
    assert with_payload == (0 if not run.exchange.down else (5 if begins(run) else 4) * CLIENTS)


def test_what_goes_up_is_what_the_method_declares(recorded):
    run, folder, _, up = recorded
    counts = run.exchange.counts
    classes, uploads, answers = classes_of(folder), 0, 0
    for kind, records in up:
        if kind == MessageType.QUERY:
            assert set(records) == {"identity"}
            # the longest list is of sentences on what is disclosed
            check_scalars(records["identity"], ConfigRecord, HEADERS["identity"], longest=CLASSES + 1)
            assert len(records["identity"]["classes"]) <= len(records["identity"]["class_names"]) == CLASSES
            assert len(records["identity"]["rows"]) == 3
            assert records["identity"]["domain"] == ""
            assert re.fullmatch(fingerprint_of(run), records["identity"]["codec"])
            continue
        # no list is as long as a client's classes but the loss's parts, which are named
        parts = {"cross-entropy", *PARTS.get(run.settings.strategy, ("prototype-pull",)), "loss"}
        parts |= {f"retrain-{part}" for part in parts} if kind_of(run.exchange.up) == "mixtures" else set()
        check_scalars(records["report"], ConfigRecord, HEADERS["report"], longest=len(parts))
        assert set(records["report"]["parts"]) <= parts
        assert re.fullmatch(fingerprint_of(run), records["report"]["codec"])
        allowed = {"report", "evaluation"}
        if kind == MessageType.TRAIN:
            allowed |= {"training"} | ({"payload"} if is_due_up(run, records["report"]["round"]) else set())
            check_scalars(records["training"], MetricRecord, {"counts", "figures", "parts"}, longest=max(4, len(parts)))
            lengths = {name: len(records["training"][name]) for name in ("counts", "figures", "parts")}
            assert lengths == {"counts": 2, "figures": 4, "parts": len(records["report"]["parts"])}
        if "ensemble" in records:
            # legal only where the run asks for it, and in the rounds in which it does
            assert asked_for_answers(run, records["report"]["round"])
            check_answers(records["ensemble"])
            allowed |= {"ensemble"}
            answers += 1
        assert set(records) == allowed
        rules = RULES | OWN_RULES.get(run.settings.strategy, set())
        check_scalars(records["evaluation"], MetricRecord, rules | {"rows", "seconds"}, longest=2)
        if "payload" in records:
            held = classes[records["report"]["partition"]]
            most = (COMPONENTS if kind_of(run.exchange.up) == "mixtures" else 1) * len(held)
            labels = check_payload(records["payload"], kind_of(run.exchange.up), run, counts, most=most)
            assert labels == sorted(labels)
            assert (sorted(set(labels)) if kind_of(run.exchange.up) == "mixtures" else labels) == held
            uploads += 1
    assert uploads == sum(is_due_up(run, number) for number in range(1, 5)) * CLIENTS // 2
    # rounds 1 and 3 and the end; before anything was received FedProc can predict no class
    rounds = 0 if not run.settings.ensemble_every else 2 if run.settings.strategy == "fedproc" else 3
    assert answers == rounds * CLIENTS


def lengths_in(records):
    """Every extent of every array and list of a message."""
    for record in records.values():
        for value in record.values():
            if isinstance(record, ArrayRecord):
                yield from (*value.shape, value.numpy().size)
            elif isinstance(value, list):
                yield len(value)


def test_with_masks_nothing_has_the_size_of_a_prototype(recorded):
    run, _, down, up = recorded
    lengths = {length for _, records in (*down, *up) for length in lengths_in(records)}
    sends = exchanges(run)
    assert (DIM in lengths) == (sends and not run.settings.sparsity_dim)
    assert not run.settings.sparsity_dim or run.settings.sparsity_dim in lengths


def test_what_goes_up_is_small_beside_weights_and_samples(recorded):
    """Held against the sizes of what must not leave: a model, or one digit a row."""
    run, folder, _, up = recorded
    width = run.settings.sparsity_dim or DIM
    roster = {entry["partition"]: entry for entry in json.loads((folder / "roster.json").read_text())}
    for kind, records in up:
        if kind == MessageType.QUERY:
            continue
        client = roster[records["report"]["partition"]]
        # answers are a benchmark's measurement, and as large as the shared test set
        named = records.array_records.items()
        arrays = [array for name, record in named if name != "ensemble" for array in record.values()]
        values = sum(int(np.prod(array.shape)) for array in arrays)
        numbers = [value for record in records.metric_records.values() for value in record.values()]
        scalars = sum(len(value) if isinstance(value, list) else 1 for value in numbers)
        # retraining has a loss and parts of its own
        assert scalars <= 24 + (3 if kind_of(run.exchange.up) == "mixtures" else 0)
        rows, beside = (COMPONENTS, COMPONENT) if kind_of(run.exchange.up) == "mixtures" else (1, width)
        assert values <= len(client["classes"]) * rows * (beside + 3)
        assert 20 * (values + scalars) < client["parameters"]


def decoded(payload, wire_dtype):
    """The values that an upload holds, and their largest rounding error, both float64."""
    stored = payload["vectors"].numpy()
    if wire_dtype == "int8":
        steps = payload["scales"].numpy()[:, None].astype(np.float64)
        return stored * steps, np.broadcast_to(0.5001 * steps, stored.shape)
    if wire_dtype == "bfloat16":
        values = (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return values, np.abs(values) * 2.0**-8
    values = stored.astype(np.float64)
    return values, np.abs(values) * 2.0**-10 + 2.0**-24 if wire_dtype == "float16" else np.zeros(values.shape)


def test_an_upload_is_the_prototypes_that_the_client_keeps(recorded):
    """Under the masks, in the number format; times the counts where the method scales, or of length 1."""
    run, folder, _, up = recorded
    if kind_of(run.exchange.up) != "prototypes":
        return
    ones, newest = run.settings.sparsity_dim, {}
    for kind, records in up:
        if kind == MessageType.TRAIN:
            newest[records["report"]["partition"]] = records["report"]["round"], records["payload"]
    for partition, (number, payload) in newest.items():
        store = folder.parents[1] / "clients" / folder.name / str(partition)
        kept = load_file(store / f"round-{number:06d}.safetensors")
        labels, counts = kept["prototypes/labels"].numpy(), kept["prototypes/counts"].numpy()
        assert np.array_equal(payload["labels"].numpy(), labels)
        whole = kept["prototypes/vectors"].numpy()
        whole = whole * counts[:, None].astype(np.float32) if scales(run) else whole
        if run.settings.strategy == "fedpagr":
            lengths = np.linalg.norm(whole.astype(np.float64), axis=1, keepdims=True)
            whole = (whole / lengths).astype(np.float32)
        if ones:
            masks = class_masks(CLASSES, DIM, ones, seed=0).numpy()
            whole = np.stack([vector[masks[label]] for vector, label in zip(whole, labels, strict=True)])
        values, error = decoded(payload, run.settings.wire_dtype)
        # scaled uploads are rounded to 16 significant bits first; a norm may differ by its last digit
        rounding = 2.0**-16 if scales(run) else 2.0**-23 if run.settings.strategy == "fedpagr" else 0.0
        error = error + np.abs(whole) * rounding
        assert (np.abs(values - whole) <= error).all()
        assert np.abs(whole).max() > 0
        if run.exchange.counts:
            assert np.array_equal(payload["counts"].numpy(), counts)


def test_the_payload_is_the_formulas_to_the_byte(recorded):
    """Sum over the sampled of (K_i + K_r) s values; K_r, the classes with a prototype when the round starts. PFPL sends
    a client that has uploaded its own K_i."""
    run, folder, _, _ = recorded
    if gfpl_of(run) is not None:
        return  # below
    classes, known = classes_of(folder), set(range(CLASSES)) if begins(run) else set()
    sends, receives = bool(run.exchange.up), bool(run.exchange.down)
    row, sizes = (run.settings.sparsity_dim or DIM) * BYTES[run.settings.wire_dtype], []
    uploaded = set()

    def coming(partitions):
        own = uploaded if run.settings.strategy == "pfpl" else set()
        return receives * sum(len(classes[p]) if p in own else len(known) for p in partitions)

    for line in lines(folder):
        sampled = trained_in(line)
        assert line["bytes"]["payload_up"] == sends * sum(len(classes[p]) for p in sampled) * row
        assert line["bytes"]["payload_down"] == coming(sampled) * row
        assert line["bytes"]["evaluate_only_payload_up"] == 0
        assert line["bytes"]["evaluate_only_payload_down"] == coming(set(range(CLIENTS)) - set(sampled)) * row
        uploaded |= set(sampled)
        sizes.append(len(known))
        known |= {label for partition in sampled for label in classes[partition]}
    if begins(run):
        assert sizes == [CLASSES] * 5
        return
    assert sizes[0] == 0
    assert 0 < sizes[1] < CLASSES, "a first round that reports every class tests too little"
    assert sizes[1] < sizes[-1]


def test_the_wire_is_the_payload_and_little_more(recorded):
    """By at most 5 % and 4 KB a message for float32; the others' overhead is reported."""
    run, folder, down, up = recorded
    share = 1.05 if run.settings.wire_dtype == "float32" else math.inf
    for line in lines(folder):
        sizes, sampled = line["bytes"], len(trained_in(line))
        for way, figures in (("up", sizes["evaluation_wire_up"]), ("down", 0)):
            payload, wire = sizes[f"payload_{way}"], sizes[f"wire_{way}"]
            assert payload <= wire - figures
            assert not payload or wire - figures <= share * payload + 4096 * sampled
            payload, wire = sizes[f"evaluate_only_payload_{way}"], sizes[f"evaluate_only_wire_{way}"]
            assert payload <= wire
            assert not payload or wire <= share * payload + 4096 * (CLIENTS - sampled)
    for way, messages in (("down", down), ("up", up)):
        carried = sum(
            array.numpy().nbytes
            for _, records in messages
            if "payload" in records
            for name, array in records["payload"].items()
            if name not in ("labels", "scales", "counts")
        )
        counted = (
            line["bytes"][f"{prefix}payload_{way}"] for line in lines(folder) for prefix in ("", "evaluate_only_")
        )
        assert carried == sum(counted)


# --- mixtures -------------------------------------------------------------------------------------------------

GFPL_CASES = [case for case in CASES if case[0] == "gfpl"]


@pytest.mark.parametrize("recorded", GFPL_CASES, ids=name_of, indirect=True)
def test_an_upload_of_mixtures_is_of_the_features_whose_means_the_client_keeps(recorded):
    """min(n, n_ij) components a class, whose mean is the class's."""
    run, folder, _, up = recorded
    checked, stores = 0, folder.parents[1] / "clients" / folder.name
    for kind, records in up:
        if kind != MessageType.TRAIN or "payload" not in records:
            continue
        path = stores / str(records["report"]["partition"]) / f"round-{EXCHANGE:06d}.safetensors"
        payload = {name: array.numpy().astype(np.float64) for name, array in records["payload"].items()}
        if not path.exists():
            continue  # two later rounds have taken its place
        kept = load_file(path)
        labels, counts = kept["prototypes/labels"].numpy(), kept["prototypes/counts"].numpy()
        assert payload["labels"].tolist() == np.repeat(labels, counts.clip(max=COMPONENTS)).tolist()
        for label, count, mean in zip(labels, counts, kept["prototypes/vectors"].numpy(), strict=True):
            own = payload["labels"] == label
            assert payload["weights"][own].sum() == pytest.approx(1, abs=1e-6)
            # where counts stay, weights are rounded to shares of 1/(16 n), which moves the mean that much
            apart = 0 if run.exchange.counts else np.abs(payload["means"][own] - mean).max() / 16
            pooled = payload["weights"][own] @ payload["means"][own]
            np.testing.assert_allclose(pooled, mean, rtol=1e-3, atol=1e-4 + apart)
            if run.exchange.counts:
                assert set(payload["counts"][own]) == {count}
        checked += 1
    assert checked > 0 or not exchanges(run)


@pytest.mark.parametrize("recorded", GFPL_CASES, ids=name_of, indirect=True)
def test_the_payload_of_mixtures_is_the_formulas_to_the_byte(recorded):
    """Means, variances and weights of each component: up in the exchange, down to those who train in the next round."""
    run, folder, _, up = recorded
    sent = [records["payload"]["labels"].shape[0] for _, records in up if "payload" in records]
    written = lines(folder)
    for line in written:
        sizes, number = line["bytes"], line["round"]
        assert sizes["payload_up"] == (COMPONENT * 4 * sum(sent) if is_due_up(run, number) else 0)
        fused = written[EXCHANGE - 1]["server"]["components_after"] if exchanges(run) and number == AFTER else 0
        assert sizes["payload_down"] == len(trained_in(line)) * COMPONENT * 4 * fused
        assert sizes["evaluate_only_payload_up"] == sizes["evaluate_only_payload_down"] == 0
    if exchanges(run):
        assert len(sent) == CLIENTS // 2
        assert written[EXCHANGE - 1]["server"]["components_before"] == sum(sent)


@pytest.mark.parametrize("dual", [True, False])
def test_outside_an_exchange_and_the_round_after_no_array_crosses_at_all(run, dual):
    """Not one byte of an array in any other message, evaluate-only messages included."""
    config = {"strategy": "gfpl", "gfpl.dual-classifier": dual, "rounds": 7, "fraction-train": 0.5}
    _, down, up = record(run, config | MIXTURES | {"models": "tiny_perceptron", "feature-dim": DIM})
    carried = {}
    for way, header, messages in (("down", "instruction", down), ("up", "report", up)):
        for kind, records in messages:
            number = records[header]["round"] if header in records else 0
            arrays = [array for found in records.array_records.values() for array in found.values()]
            key = way, kind, number
            carried[key] = carried.get(key, 0) + sum(len(array.data) for array in arrays)
    with_arrays = {key for key, size in carried.items() if size}
    exchange = {("up", MessageType.TRAIN, number) for number in (2, 4, 6)}
    assert with_arrays == exchange | {("down", MessageType.TRAIN, number) for number in (3, 5, 7)}
    # every kind of message was there: two ways, of clients that trained or not, and of the end
    for way in ("down", "up"):
        assert {(way, MessageType.TRAIN, number) for number in range(1, 8)} <= set(carried)
        assert {(way, MessageType.EVALUATE, number) for number in range(1, 9)} <= set(carried)
        assert (way, MessageType.QUERY, 0) in carried


# --- class counts ---------------------------------------------------------------------------------------------

# partition -> class -> n_ij: primes above every other whole number that a client tells, and above what int8 holds
HELD = {
    0: {0: 131, 3: 211},
    1: {1: 139, 2: 257, 7: 401},
    2: {4: 149, 5: 173, 6: 307, 8: 163},
    3: {8: 433, 9: 179},
}
SCALED = [
    (name, codec)
    for name in ("tinyproto-fp", "tinyproto-ft")
    for codec in ({}, {"sparsity-dim": 5}, {"sparsity-dim": 5, "wire-dtype": "int8"})
]


def disguises(counts, mu):
    """name -> number: every n_ij of a client, and what would give it away as good as itself."""
    total, found, running = sum(counts.values()), {}, 0
    for label, count in counts.items():
        running += count
        shapes = {
            "n": count,
            "1/n": 1 / count,
            "share": count / total,
            "rest": total - count,
            "log n": math.log(count),
            "log share": math.log(count / total),
            "root": math.sqrt(count),
            "mu n": mu * count,
            "running sum": running,
        }
        found |= {f"{name} of class {label}": value for name, value in shapes.items() if value != total}
    return found


def numbers_of(records):
    """(place, number) of every number in a message: in arrays, lists, scalars and texts."""
    for name, record in records.items():
        for key, value in record.items():
            if isinstance(record, ArrayRecord):
                values = value.numpy().astype(np.float64).ravel().tolist()
            else:
                values = [number for item in (value if isinstance(value, list) else [value]) for number in _read(item)]
            yield from ((f"{name}/{key}", number) for number in values)


def _read(item):
    if isinstance(item, str):
        return [float(number) for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)", item)]
    return [] if isinstance(item, bool) else [float(item)]


def given_away(records, counts, mu):
    """[(place, what)] of all numbers of a message that are a count or its disguise, or two of its scalars whose ratio
    is a count."""
    known, found = disguises(counts, mu), []
    numbers = list(numbers_of(records))
    for place, number in numbers:
        # float32 rounds by 6e-8
        found += [(place, what) for what, value in known.items() if math.isclose(number, value, rel_tol=2e-7)]
    scalars = [number for place, number in numbers if number and not place.startswith("payload/")]
    for count in counts.values():
        pairs = ((a, b) for a in scalars for b in scalars)
        found += [("a ratio", f"{a} / {b}") for a, b in pairs if math.isclose(a / b, count, rel_tol=1e-9)]
    return found


@pytest.fixture
def sent(run, monkeypatch):
    """sent(settings) -> (folder, {partition: its messages}) of a run whose clients hold HELD."""
    whole = client_module.client_data

    def client_data(spec, partition, *rest):
        data = whole(spec, partition, *rest)
        chosen = []
        for label, count in HELD[partition].items():
            own = (data.train.labels == label).nonzero().flatten()
            chosen.append(own[torch.arange(count) % len(own)])
        index = torch.cat(chosen)
        return replace(data, train=Rows(data.train.inputs[index], data.train.labels[index]))

    def start(settings):
        monkeypatch.setattr(client_module, "client_data", client_data)
        config = {"rounds": 2, "partition": "iid", "feature-dim": DIM} | settings
        folder, _, up = record(run, config)
        mine = {partition: [] for partition in HELD}
        for _, records in up:
            who = records["identity"] if "identity" in records else records["report"]
            mine[who["partition"]].append(records)
        return folder, mine

    return start


def check_counts(folder):
    """The clients did hold what this test is about."""
    for partition, counts in HELD.items():
        store = folder.parents[1] / "clients" / folder.name / str(partition)
        kept = load_file(store / "round-000002.safetensors")
        labels, found = kept["prototypes/labels"].tolist(), kept["prototypes/counts"].tolist()
        assert dict(zip(labels, found, strict=True)) == counts


@pytest.mark.parametrize(("strategy", "codec"), SCALED, ids=map(name_of, SCALED))
def test_no_message_of_a_scaled_run_holds_a_class_count(sent, strategy, codec):
    folder, messages = sent({"strategy": strategy} | codec)
    check_counts(folder)
    mu = lines(folder)[0]["server"]["mu"]
    assert mu == pytest.approx(
        {"tinyproto-fp": 0.9, "tinyproto-ft": 0.6}[strategy]
        * 11
        / sum(sum(counts.values()) for counts in HELD.values()),
        rel=1e-12,
    )
    for partition, counts in HELD.items():
        # its identity, two rounds and the final evaluation
        assert len(messages[partition]) == 4
        assert sum("payload" in records for records in messages[partition]) == 2
        for records in messages[partition]:
            assert given_away(records, counts, mu) == []


def test_counts_that_a_method_declares_are_found_by_the_same_walk(sent):
    folder, messages = sent({"strategy": "fedproto"} | WEIGHTED)
    check_counts(folder)
    for partition, counts in HELD.items():
        found = {what for records in messages[partition] for _, what in given_away(records, counts, 0.1)}
        assert {f"n of class {label}" for label in counts} <= found
        places = {place for records in messages[partition] for place, _ in given_away(records, counts, 0.1)}
        assert places == {"payload/counts"}


@pytest.mark.parametrize("place", ["array", "list", "scalar", "text", "ratio"])
def test_the_walk_finds_a_count_in_every_place_and_disguise(sent, place):
    _, messages = sent({"strategy": "tinyproto-fp", "wire-dtype": "int8"})
    counts, mu = HELD[1], 0.06 / 250
    (records,) = [records for records in messages[1] if "payload" in records and records["report"]["round"] == 1]
    assert given_away(records, counts, mu) == []
    for what, value in disguises(counts, mu).items():
        scales, training, report = (dict(records[name]) for name in ("payload", "training", "report"))
        if place == "array":
            scales["scales"] = type(scales["scales"])(np.array([1.0, value, 2.0], dtype=np.float32))
        elif place == "list":
            training["figures"] = [*training["figures"][:-1], float(value)]
        elif place == "scalar":
            report["seconds"] = float(value)
        elif place == "text":
            report["problem"] = f"of {value:.17f} rows, none was good."
        elif what.startswith("n of"):
            training["figures"] = [0.5, value * 0.321, 0.321, 1.0]
        else:
            continue
        told = {"payload": ArrayRecord(scales), "training": MetricRecord(training), "report": ConfigRecord(report)}
        found = given_away(told, counts, mu)
        assert found
        assert place == "ratio" or what in {name for _, name in found}
