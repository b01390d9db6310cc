"""What a client says of its number of samples, and what it weighs by it."""

import json
import math
import statistics

import pytest
import torch
from flwr.app import Array

from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.record.folder import RunFolder
from protosphere.wire.claims import CappedSampleCounts, claimed_samples, most_believed, over_claimed
from protosphere.wire.payloads import Identity
from tests.payloads import lone, payload
from tests.tampered import tampered

CLAIM = 2**31 - 1
LIAR = 1


def test_a_multiple_of_the_median_of_those_who_have_samples_is_believed():
    claims = {0: 10, 1: 900, 2: 30, 3: 0, 4: 10**9}
    assert most_believed(claims, 20) == 20 * statistics.median([10, 900, 30, 10**9])
    assert over_claimed(claims, 20) == {4: 20 * 465 / 10**9}
    assert over_claimed({0: 0}, 20) == over_claimed({}, 20) == {}
    assert most_believed({0: 0}, 20) == math.inf
    # one alone is its own median
    assert over_claimed({3: 10**9}, 1) == {}


def identities(*rows):
    return {p: Identity(p, len(rows), classes=(0, 1), rows=(n, 1, 1)) for p, n in enumerate(rows)}


def test_identities_and_counts_are_believed_alike():
    believed = CappedSampleCounts(identities(40, 80, CLAIM), 10, "samples")
    # the median is 80
    assert [believed.identities[p].rows for p in range(3)] == [(40, 1, 1), (80, 1, 1), (800, 1, 1)]
    labels = torch.tensor([0, 1])
    counts = torch.tensor([CLAIM // 4, CLAIM - CLAIM // 4])
    prototypes = PrototypeSet(labels, torch.randn(2, 3), counts)
    assert lone(believed.uploads({2: payload(prototypes)})[0][2]).counts.tolist() == pytest.approx([200, 600])
    assert torch.equal(lone(believed.uploads({2: payload(prototypes)})[0][2]).vectors, prototypes.vectors)
    assert lone(believed.uploads({1: payload(prototypes)})[0][1]) is prototypes
    mixtures = MixtureSet(labels, torch.randn(2, 3), torch.ones(2, 3), torch.ones(2), counts)
    assert lone(believed.uploads({2: payload(mixtures)})[0][2]).counts.tolist() == pytest.approx([200, 600])
    weights = Weights({"w": torch.ones(2)})
    parts = believed.uploads({2: {"prototypes": prototypes, "head": weights}})[0][2]
    assert parts["prototypes"].counts.tolist() == pytest.approx([200, 600])
    assert parts["head"] is weights
    (notice,) = believed.notices()
    assert notice.startswith("client 2 says that it has 2,147,483,647 training samples, more than 10 times")
    assert "weighs as 800 in every mean" in notice


def counted(*counts):
    return {
        p: payload(PrototypeSet(torch.tensor([0]), torch.ones(1, 2), torch.tensor([n]))) for p, n in enumerate(counts)
    }


def counted_mixtures(*counts):
    """Of two components, of whose one class each says the count."""
    labels, ones = torch.tensor([0, 0]), torch.ones(2, 2)
    return {
        p: payload(MixtureSet(labels, ones, ones, torch.full((2,), 0.5), torch.tensor([n, n])))
        for p, n in enumerate(counts)
    }


@pytest.mark.parametrize("counted", [counted, counted_mixtures])
def test_where_samples_are_withheld_counts_are_held_against_the_others_counts(counted):
    hidden = {p: Identity(p, 4, rows=()) for p in range(4)}
    found, said = CappedSampleCounts(hidden, 10, "samples").uploads(counted(30, 50, 70, CLAIM))
    assert [int(upload.counts[0]) for upload in map(lone, found.values())] == [30, 50, 70, 600]
    (words,) = said
    assert words.startswith("the class counts of client 3 add up to 2,147,483,647, more than 10 times")
    found, said = CappedSampleCounts(hidden, 10, "equal").uploads(counted(30, 50, 70, CLAIM))
    assert [int(upload.counts[0]) for upload in map(lone, found.values())] == [60] * 4
    assert said == []


def test_the_median_is_of_the_clients_that_are_present():
    """Who has left with few samples bounds nobody, and who has left with many lets nobody claim more."""
    known = identities(10, 10, 10, 90, 100)
    assert over_claimed(claimed_samples(known), 5) == {3: 50 / 90, 4: 0.5}
    assert over_claimed(claimed_samples(known), 5, present={0, 3, 4}) == {}
    assert over_claimed(claimed_samples(known), 5, present=()) == {3: 50 / 90, 4: 0.5}
    believed = CappedSampleCounts(known, 5, "samples", present={3, 4})
    assert [believed.identities[partition].rows[0] for partition in (3, 4)] == [90, 100]
    believed.update(known, {0, 1, 2, 4})
    # what was sent by who has left still counts, as much as it would now
    assert [believed.identities[partition].rows[0] for partition in (3, 4)] == [50, 50]


def claiming(times):
    """A grid on which a client says that it has so many times its training samples, of every class."""

    def claims(records, partition, number):
        record = records["config"]
        if "classes" in record:
            record["rows"] = [times * record["rows"][0], *record["rows"][1:]]
        metrics = records.get("metrics", {})
        if "training.rows" in metrics:
            metrics["training.rows"] = times * metrics["training.rows"]
            payload = records.get("arrays") or {}
            for name in [name for name in payload if name.rpartition(".")[2] == "counts"]:
                payload[name] = Array(times * payload[name].numpy())

    return tampered(claims, of=LIAR)


BY_SAMPLES = {
    "fedavg": {"models": "tiny_perceptron"},
    "protosphere": {},
    "fedproto": {"fedproto.aggregation": "weighted"},
}


@pytest.mark.parametrize("strategy", BY_SAMPLES)
def test_no_claim_is_worth_more_than_the_ratio_lets_it_be(run, strategy):
    """A claim of a million times its samples is worth what one of `max-weight-ratio` medians is, to the bit (powers
    of two change no digit). The client is named."""
    settings = {"strategy": strategy, "rounds": 2, "partition": "iid", "disclose-class-counts": True}
    settings |= BY_SAMPLES[strategy] | {"max-weight-ratio": 4.0, "max-samples": 160}
    by_claim = {}
    for times in (2**10, 2**20):
        folder = run(settings, clients=4, grid=claiming(times))
        claims = {client["partition"]: client["rows"][0] for client in RunFolder(folder).roster()}
        most = 4 * statistics.median(claims.values())
        claim = claims[LIAR]
        assert claim % times == 0
        assert any(f"client {LIAR} says that it has {claim:,} training samples" in line for line in run.said)
        assert any(f"weighs as {most:,.0f} in every mean" in line for line in run.said)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert not any(line["problems"] for line in lines), lines[0]["problems"]
        by_claim[times] = [(line["evaluation"]["rules"], line.get("training", {}).get("loss")) for line in lines]
    assert by_claim[2**10] == by_claim[2**20]
