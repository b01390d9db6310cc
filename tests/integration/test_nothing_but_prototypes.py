"""Every record of every message of a run, held against what its method declares: nothing but prototypes and a few
figures leaves a client, in the number format and under the masks that were agreed.

Which arrays cross of every method, and how many bytes that are, is the contract's (tests/strategies/test_contract.py).
"""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord
from safetensors.torch import load_file

from protosphere.prototypes.masks import class_masks
from protosphere.strategies import read_settings
from protosphere.strategies.contract import ServerHalf
from tests.integration.recorded import CLASSES, DIM, classes_of, decoded, kind_of, lines, recording, trained_in

CLIENTS = 4
# ProtoNorm begins with directions by a setting alone, TinyProto with a constant
BEGIN_WITHOUT_DOWNLOADS = ("protonorm", "tinyproto-fp", "tinyproto-ft")
COUNTED = {"disclose-class-counts": True}
ENSEMBLE = {"ensemble-every": 2}
# of its four rounds GFPL's second is its only exchange; what comes of it goes down with the third
EXCHANGE, AFTER = 2, 3
MIXTURES = {"strategy": "gfpl", "rounds": 4, "gfpl.first-exchange": 2, "gfpl.exchange-every": 2}
CASES = [
    {"strategy": "local"} | ENSEMBLE,
    {"strategy": "fedproto"},
    {"strategy": "fedproto", "fedproto.aggregation": "weighted"} | COUNTED,
    {"strategy": "protonorm", "wire-dtype": "float16"} | ENSEMBLE,
    # the values that cross with s = 2 have disjoint masks (K s <= d), those with s = 5 have not
    {"strategy": "tinyproto-fp", "tinyproto.sparsity-dim": 2, "tinyproto.scaling": False},
    {"strategy": "tinyproto-fp", "tinyproto.sparsity-dim": 5, "wire-dtype": "float16"},
    {"strategy": "tinyproto-ft", "wire-dtype": "float16", "fedtgp.server-epochs": 3},
    {"strategy": "fedpagr"},
    {"strategy": "fedproc"} | ENSEMBLE,
    MIXTURES | ENSEMBLE,
]
STORED = {"float32": "float32", "float16": "float16"}
COMPONENTS = 4  # of a class at most
HEADERS = {
    "instruction": "run round last trained made",
    "report": "partition round problem seconds",
    "identity": "name method layouts companion partition partitions model parameters feature_dim class_names"
    " classes domain rows discloses problem settings encoder flower",
}
TRAINING = "rows steps gradient_ratio target_norm seconds prototype_norm"
RULES = "local-prototypes global-prototypes classifier discriminant majority-class etf"
_runs: dict = {}  # each test looks at the same runs


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case.values())))
def recorded(request, run):
    """A run of few classes a client, of whom half train in a round: (run, folder, messages down, up)."""
    config = {"rounds": 2, "partition": "pathological", "classes-per-client": 3, "fraction-train": 0.5} | request.param
    config["models"] = "perceptron,tiny_perceptron"
    if str(config) not in _runs:
        _runs[str(config)] = recording(run, config)
    return read_settings(config), *_runs[str(config)]


def check_config(records, name, longest):
    """Fields of known names that hold a number, some words, or a few of them; no list is as long as a client's rows."""
    assert isinstance(records["config"], ConfigRecord)
    assert set(records["config"]) == set(HEADERS[name].split())
    check_scalars(records["config"].values(), longest)


def check_metrics(records, agreed, longest):
    """Numbers of known names alone: part -> its names, None for any."""
    assert isinstance(records["metrics"], MetricRecord)
    for key in records["metrics"]:
        part, _, name = key.partition(".")
        assert part in agreed
        assert agreed[part] is None or name in agreed[part].split()
    check_scalars(records["metrics"].values(), longest)


def check_scalars(values, longest):
    for value in values:
        items = value if isinstance(value, list) else [value]
        assert all(isinstance(item, bool | int | float | str) and len(str(item)) < 140 for item in items)
        assert len(items) <= longest


def check_payload(record, spec, run, counts, most):
    """Arrays of the declared names, types and shapes, at most `most` rows, and not a byte beside them."""
    assert isinstance(record, ArrayRecord)
    rows = record[f"{spec}.labels"].shape[0]
    assert 0 < rows <= most
    width = ones_of(run) or DIM
    forms = {"labels": ("int16", (rows,))}
    if spec == "prototypes":
        forms["vectors"] = STORED[run.settings.wire_dtype], (rows, width)
    else:
        forms |= dict.fromkeys(("means", "variances"), ("float32", (rows, DIM))) | {"weights": ("float32", (rows,))}
    forms |= {"counts": ("int64", (rows,))} if counts else {}
    check_arrays(record, {f"{spec}.{name}": form for name, form in forms.items()})
    labels = record[f"{spec}.labels"].numpy().tolist()
    assert set(labels) <= set(range(CLASSES))
    return labels


def check_arrays(record, forms):
    assert {name: (array.dtype, tuple(array.shape)) for name, array in record.items()} == forms
    for array in record.values():
        # .npy: the values and a header of 128 bytes
        assert len(array.data) == array.numpy().nbytes + 128


def ones_of(run):
    """s, the values of a prototype that cross; 0 for all."""
    return max((getattr(option, "sparsity_dim", 0) for option in run.options.values.values()), default=0)


def scales(run):
    """Whether the method multiplies by class counts."""
    return any(getattr(option, "scaling", False) for option in run.options.values.values())


def asked_for_answers(run, kind, number):
    """In the evaluation of every n-th round, and of the last."""
    every = run.settings.ensemble_every
    return kind == MessageType.EVALUATE and every > 0 and (number % every == 0 or number == run.settings.rounds)


def is_due(run, way, kind, number):
    """Whether a message of this round carries what the method sends that way."""
    trains = kind == MessageType.TRAIN
    if kind_of(run.exchange.up) == "mixtures":
        return trains and number == (EXCHANGE if way == "up" else AFTER)
    if way == "up":
        return bool(run.exchange.up) and trains
    # those that begin with prototypes of all classes, and the others once something was uploaded
    begins = run.method.server.begin is not ServerHalf.begin and run.settings.strategy not in BEGIN_WITHOUT_DOWNLOADS
    return bool(run.exchange.down) and (number > trains or begins)


def tells_confusion(run, number):
    """In the last evaluation, and where the method hides class counts never."""
    return number == run.settings.rounds and not run.exchange.hides_counts


def test_what_goes_down_is_what_the_method_declares(recorded):
    run, folder, down, _ = recorded
    spec = kind_of(run.exchange.down)
    assert {kind for kind, _ in down} == {MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE}
    for kind, records in down:
        if kind == MessageType.QUERY:
            assert not records
            continue
        header = records["config"]
        due = is_due(run, "down", kind, header["round"])
        constants = {"constants": "mu"} if scales(run) else {}
        assert set(records) == {"config", *(["arrays"] if due else []), *(["metrics"] if constants else [])}
        check_config(records, "instruction", longest=2)
        if constants:
            check_metrics(records, constants, longest=1)
        assert header["run"] == folder.name
        assert header["last"] == (kind == MessageType.EVALUATE and header["round"] == run.settings.rounds)
        if due:
            # two clients upload in GFPL's exchange
            most = 2 * COMPONENTS * CLASSES if spec == "mixtures" else CLASSES
            check_payload(records["arrays"], spec, run, counts=False, most=most)


def test_what_goes_up_is_what_the_method_declares(recorded):
    run, folder, _, up = recorded
    classes, spec = classes_of(folder), kind_of(run.exchange.up)
    for kind, records in up:
        if kind == MessageType.QUERY:
            assert set(records) == {"config"}
            # the longest list is of sentences on what is disclosed
            check_config(records, "identity", longest=CLASSES + 3)
            assert len(records["config"]["rows"]) == 3
            continue
        report, trains = records["config"], kind == MessageType.TRAIN
        due = is_due(run, "up", kind, report["round"])
        # before anything was received FedProc can predict no class
        silent = run.settings.strategy == "fedproc" and report["round"] == 0
        answers = asked_for_answers(run, kind, report["round"]) and not silent
        assert set(records) == {"config", "metrics", *(["arrays"] if due or answers else [])}
        check_config(records, "report", longest=1)
        confusion = " confusion" if tells_confusion(run, report["round"]) else ""
        evaluation = {"evaluation": f"rows seconds{confusion}", "correct": RULES}
        agreed = {"training": TRAINING, "loss": None} if trains else evaluation
        check_metrics(records, agreed, longest=CLASSES**2 if confusion else 3)
        arrays = dict(records.get("arrays", {}))
        if answers:
            # of each shared row (a tenth of 400)
            probabilities = arrays.pop("ensemble.probabilities")
            check_arrays({"probabilities": probabilities}, {"probabilities": ("float16", (40, CLASSES))})
            assert np.abs(probabilities.numpy().astype(np.float64).sum(axis=1) - 1).max() < 0.01
        if due:
            held = classes[report["partition"]]
            most = (COMPONENTS if spec == "mixtures" else 1) * len(held)
            labels = check_payload(ArrayRecord(arrays), spec, run, run.exchange.counts, most=most)
            assert labels == sorted(labels)
            assert sorted(set(labels)) == held


def test_an_upload_is_the_prototypes_that_the_client_keeps(recorded):
    """Under the masks, in the number format; times the counts where the method scales, or of length 1."""
    run, folder, _, up = recorded
    if kind_of(run.exchange.up) != "prototypes":
        return
    newest = {records["config"]["partition"]: records for kind, records in up if kind == MessageType.TRAIN}
    for partition, records in newest.items():
        payload, number = records["arrays"], records["config"]["round"]
        store = folder.parents[1] / "clients" / folder.name / str(partition)
        kept = load_file(store / f"round-{number:06d}.safetensors")
        labels, counts = kept["prototypes/labels"].numpy(), kept["prototypes/counts"].numpy()
        assert np.array_equal(payload["prototypes.labels"].numpy(), labels)
        whole = kept["prototypes/vectors"].numpy()
        whole = whole * counts[:, None].astype(np.float32) if scales(run) else whole
        if run.settings.strategy == "fedpagr":
            lengths = np.linalg.norm(whole.astype(np.float64), axis=1, keepdims=True)
            whole = (whole / lengths).astype(np.float32)
        if ones := ones_of(run):
            masks = class_masks(CLASSES, DIM, ones, seed=0).numpy()
            whole = np.stack([vector[masks[label]] for vector, label in zip(whole, labels, strict=True)])
        values, error = decoded(payload, run.settings.wire_dtype)
        # scaled uploads are rounded to 16 significant bits first; a norm may differ by its last digit
        rounding = 2.0**-16 if scales(run) else 2.0**-23 if run.settings.strategy == "fedpagr" else 0.0
        assert (np.abs(values - whole) <= error + np.abs(whole) * rounding).all()
        assert np.abs(whole).max() > 0
        if run.exchange.counts:
            assert np.array_equal(payload["prototypes.counts"].numpy(), counts)


def test_the_bytes_reported_are_the_arrays_and_the_wire_is_little_more(recorded):
    """By at most 5 % and 4 KB a message for float32; the others' overhead is reported."""
    run, folder, down, up = recorded
    share = 1.05 if run.settings.wire_dtype == "float32" else np.inf
    for line in lines(folder):
        sizes, sampled = line["bytes"], len(trained_in(line))
        for way in ("up", "down"):
            payload, wire = sizes[f"payload_{way}"], sizes[f"wire_{way}"]
            assert payload <= wire
            assert not payload or wire <= share * payload + 4096 * sampled
    for way, messages in (("down", down), ("up", up)):
        # what comes down to be evaluated with is no payload of the training
        trains = [records for kind, records in messages if kind == MessageType.TRAIN]
        payloads = [records["arrays"] for records in trains if "arrays" in records]
        others = ("labels", "counts", "probabilities")
        values = [a.numpy().nbytes for p in payloads for n, a in p.items() if n.partition(".")[2] not in others]
        assert sum(values) == sum(line["bytes"][f"payload_{way}"] for line in lines(folder))
