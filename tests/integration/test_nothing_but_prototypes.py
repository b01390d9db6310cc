"""Every record of every message of every method, held against what the method declares: nothing but prototypes and a
few figures leaves a client, and the bytes are those of the formula."""

import math
import re

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord
from safetensors.torch import load_file

from prototypes.masks import class_masks
from strategies import METHODS, load_method, read_settings
from strategies.contract import ServerHalf
from tests.integration.recorded import CLASSES, DIM, classes_of, decoded, kind_of, lines, recording, trained_in

CLIENTS = 4
WEIGHTED = {"fedproto.aggregation": "weighted", "disclose-class-counts": True}
ENSEMBLE = {"ensemble-every": 2}
# of the four rounds GFPL's second is its only exchange; what comes of it goes down with the third
EXCHANGE, AFTER = 2, 3
MIXTURES = {"gfpl.first-exchange": 2, "gfpl.exchange-every": 2}
SAMPLES = {"gfpl.weighting": "samples", "disclose-class-counts": True}
EXCHANGES = {name: read_settings({"strategy": name}).exchange for name in METHODS}
# of the others docs and roster say what they send
PROMISED = [name for name, exchange in EXCHANGES.items() if not exchange.weights and exchange.pointwise]
SENDING = [name for name in PROMISED if "prototypes" in EXCHANGES[name].kinds()]
# the values that cross with s = 2 have disjoint masks (K s <= d), those with s = 5 have not
CODEC = {"sparsity-dim": 5, "wire-dtype": "int8"}
CODECS = [{"sparsity-dim": 2}, *({"sparsity-dim": 5, "wire-dtype": name} for name in ("bfloat16", "float16"))]
CASES = [
    *((name, {}) for name in PROMISED),
    *((name, CODEC) for name in SENDING),
    *(("fedproto", codec) for codec in CODECS),
    ("fedproto", WEIGHTED),
    ("tinyproto-ft", {"wire-dtype": "int8"}),
    ("protonorm", {"wire-dtype": "bfloat16"} | ENSEMBLE),
    *((name, ENSEMBLE) for name in ("local", "fedproc", "gfpl")),
    ("gfpl", SAMPLES),
    ("gfpl", {"gfpl.dual-classifier": False}),
    ("gfpl", {"gfpl.pseudo-features": 0}),
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
    "instruction": {"run", "token", "round", "evaluate", "ensemble", "trained", "payload", "constants", "values"}
    | {"codec"},
    "report": {"partition", "round", "problem", "remark", "seconds", "parts", "codec"},
    "identity": {
        "method",
        "layouts",
        "companion",
        "partition",
        "partitions",
        "model",
        "parameters",
        "feature_dim",
        "class_names",
    }
    | {"class_counts", "classes", "domain", "rows", "discloses", "problem", "codec"},
}
# what a method's loss adds to the cross-entropy, where it is no pull
PARTS = {
    "fedpagr": ("prototype-contrast", "entropy-spread"),
    "fedproc": ("prototype-contrast",),
    "gfpl": ("dot-regression",),
}
RULES = {"local-prototypes", "global-prototypes", "classifier", "discriminant", "majority-class"}
OWN_RULES = {"gfpl": {"etf"}}


_runs: dict = {}  # each test looks at the same runs


def name_of(case):
    """`fedproto-sparsity-dim=5-wire-dtype=int8`."""
    return "-".join([case[0], *(f"{key}={value}" for key, value in case[1].items())])


@pytest.fixture(params=CASES, ids=name_of)
def recorded(request, run):
    """A run of few classes a client, of whom half train in a round: (run, folder, messages down, up)."""
    name, extra = request.param
    config = {"strategy": name, "rounds": 4, "partition": "pathological", "classes-per-client": 3} | extra
    config |= {"fraction-train": 0.5, "models": "tiny_cnn,tiny_perceptron"}
    if "fedtgp" in load_method(name).settings:
        config |= {"fedtgp.server-epochs": 3}
    if name == "gfpl":
        config |= MIXTURES
    if str(config) not in _runs:
        _runs[str(config)] = recording(run, config)
    return read_settings(config), *_runs[str(config)]


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
        return  # its rounds are the contract's
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
