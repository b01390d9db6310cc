"""Class counts: where a method scales by them, no number of any message gives one away; where it declares them, the
same walk over all numbers finds them."""

import itertools
import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from safetensors.torch import load_file

from protosphere.client_app import client as client_module
from protosphere.data.client_data import Rows
from tests.integration.recorded import case_name, lines, recording

# partition -> class -> n_ij: primes above every other whole number that a client tells, and above what a byte holds
HELD = {0: {0: 131, 3: 211}, 1: {1: 139, 2: 257, 7: 401}, 2: {4: 149, 5: 173, 6: 307, 8: 163}, 3: {8: 433, 9: 179}}
SCALED = [
    {"strategy": "tinyproto-fp", "wire-dtype": "float16"},
    {"strategy": "tinyproto-fp", "tinyproto.sparsity-dim": 5},
    {"strategy": "tinyproto-ft"},
    {"strategy": "tinyproto-ft", "tinyproto.sparsity-dim": 5, "wire-dtype": "float16"},
]
PER_ROW = {"tinyproto-fp": 0.9, "tinyproto-ft": 0.6}  # mu times the rows of a class of a client


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
    scalars = [number for place, number in numbers if number and not place.startswith("arrays/")]
    for count in counts.values():
        pairs = ((a, b) for a in scalars for b in scalars)
        found += [("a ratio", f"{a} / {b}") for a, b in pairs if math.isclose(a / b, count, rel_tol=1e-9)]
    return found


_runs: dict = {}  # the tests look at the same runs


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
        if (found := _runs.get(str(settings))) is not None:
            return found
        monkeypatch.setattr(client_module, "client_data", client_data)
        # seconds of a real clock equal a disguise by chance now and then: these are whole multiples of 1/32
        monkeypatch.setattr(time, "perf_counter", map((1 / 32).__mul__, itertools.count()).__next__)
        folder, _, up = recording(run, {"rounds": 2, "partition": "iid"} | settings)
        mine = {partition: [] for partition in HELD}
        for _, records in up:
            mine[records["config"]["partition"]].append(records)
        check_counts(folder)
        return _runs.setdefault(str(settings), (folder, mine))

    return start


def check_counts(folder):
    """The clients did hold what this test is about."""
    for partition, counts in HELD.items():
        store = folder.parents[1] / "clients" / folder.name / str(partition)
        kept = load_file(store / "round-000002.safetensors")
        labels, found = kept["prototypes/labels"].tolist(), kept["prototypes/counts"].tolist()
        assert dict(zip(labels, found, strict=True)) == counts


@pytest.mark.parametrize("settings", SCALED, ids=case_name)
def test_no_message_of_a_scaled_run_holds_a_class_count(sent, settings):
    folder, messages = sent(settings)
    mu = lines(folder)[1]["server"]["mu"]
    rows = sum(sum(counts.values()) for counts in HELD.values())
    assert mu == pytest.approx(PER_ROW[settings["strategy"]] * 11 / rows, rel=1e-12)
    for partition, counts in HELD.items():
        # its identity, two rounds of training and three evaluations
        assert len(messages[partition]) == 6
        assert sum("arrays" in records for records in messages[partition]) == 2
        for records in messages[partition]:
            assert given_away(records, counts, mu) == []


def test_counts_that_a_method_declares_are_found_by_the_same_walk(sent):
    settings = {"strategy": "fedproto", "fedproto.aggregation": "weighted", "disclose-class-counts": True}
    _, messages = sent(settings)
    for partition, counts in HELD.items():
        found = [each for records in messages[partition] for each in given_away(records, counts, 0.1)]
        assert {f"n of class {label}" for label in counts} <= {what for _, what in found}
        assert {place for place, _ in found} == {"arrays/prototypes.counts"}


@pytest.mark.parametrize("place", ["array", "list", "scalar", "text", "ratio"])
def test_the_walk_finds_a_count_in_every_place_and_disguise(sent, place):
    _, messages = sent(SCALED[0])
    counts, mu = HELD[1], 0.06 / 250
    (records,) = [records for records in messages[1] if "arrays" in records and records["config"]["round"] == 1]
    assert given_away(records, counts, mu) == []
    for what, value in disguises(counts, mu).items():
        arrays, metrics, config = (dict(records[name]) for name in ("arrays", "metrics", "config"))
        if place == "array":
            arrays["prototypes.scales"] = Array(np.array([1.0, value, 2.0], dtype=np.float32))
        elif place == "list":
            metrics["evaluation.rows"] = [1.0, float(value)]
        elif place == "scalar":
            config["seconds"] = float(value)
        elif place == "text":
            config["problem"] = f"of {value:.17f} rows, none was good."
        elif what.startswith("n of"):
            metrics |= {"training.target_norm": value * 0.321, "training.seconds": 0.321}
        else:
            continue
        told = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics), "config": ConfigRecord(config)}
        found = given_away(told, counts, mu)
        assert found
        assert place == "ratio" or what in {name for _, name in found}
