"""GFPL's server and settings: what it fuses and keeps, when mixtures cross, what is refused and told before round 1."""

from dataclasses import replace

import pytest
import torch

from protosphere.prototypes.fusion import fuse
from protosphere.strategies import read_settings
from protosphere.strategies.contract import EVERYONE
from tests.payloads import lone, payload, payloads
from tests.strategies.sets import mixtures, same

K, D = 4, 6
GFPL = {"strategy": "gfpl"}
OFTEN = GFPL | {"gfpl.first-exchange": 2, "gfpl.exchange-every": 2}
SAMPLES = {"gfpl.weighting": "samples", "disclose-class-counts": True}
SINGLE = {"gfpl.dual-classifier": False}


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"gfpl.threshold": 1.3}, (1.3, True, "uniform")),
        ({"gfpl.threshold": 5.0, "gfpl.threshold-per-dimension": False}, (5.0, False, "uniform")),
        ({"gfpl.threshold": 1.3} | SAMPLES, (1.3, True, "samples")),
    ],
)
def test_the_server_sends_what_fusion_makes_and_tells_the_components(halves, settings, how):
    counts = {1: 30, 2: 2, 3: 9} if how[2] == "samples" else {}
    uploads = {p: mixtures([0, 0, p], seed=p, counts=counts and dict.fromkeys((0, p), counts[p])) for p in (1, 2, 3)}
    outcome = halves(GFPL | settings, K, D).server.aggregate(payloads(uploads), {}, 10)
    expected = fuse(uploads, *how)
    assert set(outcome.downloads) == {EVERYONE}
    assert same(lone(outcome.downloads[EVERYONE]), expected)
    assert expected.counts is None
    assert outcome.figures == {"components_before": 9, "components_after": len(expected)}
    # something fused, and something did not; and each of the three settings matters
    assert 4 < len(expected) < 9
    others = [(how[0], not how[1], how[2]), (0.0, *how[1:])] + ([(*how[:2], "uniform")] if counts else [])
    assert not any(same(fuse(uploads, *other), expected) for other in others)


def test_a_class_that_nobody_uploaded_keeps_its_mixture(halves):
    strategy = halves(GFPL | {"gfpl.threshold": 0.0}, K, D).server
    first = strategy.aggregate(payloads({0: mixtures([0, 0, 2], seed=1), 1: mixtures([2, 3], seed=2)}), {}, 10)
    second = strategy.aggregate(payloads({1: mixtures([1, 3, 3, 3], seed=3)}), first.state, 20)
    before, after = lone(first.downloads[EVERYONE]), lone(second.downloads[EVERYONE])
    assert after.labels.tolist() == [0, 0, 1, 2, 2, 3, 3, 3]
    for label in (0, 2):
        for name in ("means", "variances", "weights"):
            kept = getattr(after, name)[after.labels == label]
            assert torch.equal(kept, getattr(before, name)[before.labels == label])
    # the figures are of what was fused now
    assert second.figures == {"components_before": 4, "components_after": 4}


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "counts", "told"),
    [
        ({}, False, ["single samples", "about how many samples a class has"]),
        (SAMPLES, True, ["single samples"]),  # where the exact numbers go up, there is no about
        (SAMPLES | {"gfpl.pseudo-features": 0}, False, []),
    ],
)
def test_what_mixtures_disclose_is_said_as_far_as_it_is_sent(settings, counts, told):
    exchange = read_settings(GFPL | {"gfpl.components": 7} | settings).exchange
    assert len(exchange.discloses) == len(told)
    assert all(words in said for words, said in zip(told, exchange.discloses, strict=True))
    assert all("of 7 or fewer" in said for said in exchange.discloses[:1])
    assert (exchange.counts, bool(exchange.up)) == (counts, bool(told))


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"rounds": 20, "gfpl.first-exchange": 11}, 20),
        ({"rounds": 21, "gfpl.first-exchange": 11}, None),
        ({"rounds": 30, "gfpl.exchange-every": 31}, 31),
        ({"rounds": 10, "gfpl.pseudo-features": 0}, None),
    ],
)
def test_a_run_that_never_uses_a_mixture_says_so_at_the_start(halves, settings, first):
    said = halves(GFPL | settings, K, D).server.notices()
    assert len(said) == (first is not None)
    for line in said:
        assert f"round {first} " in line
        assert all(f"`{name}`" in line for name in ("rounds", "gfpl.first-exchange", "gfpl.exchange-every"))


# --- the schedule, by scripted clients ------------------------------------------------------------------------------

HELD = {0: (0, 1), 1: (1, 2), 2: (2, 3), 3: (3,)}
ROWS = 20  # training rows of a scripted client


def upload(partition, number, counts=False):
    labels = sorted(HELD[partition] * 2)
    counted = {label: ROWS // len(HELD[partition]) for label in labels} if counts else None
    return mixtures(labels, 3, 10 * number + partition, counted)


def scripted(federation, settings=None, change=None, rounds=7):
    """A run of four scripted clients with exchanges in rounds 2, 4 and 6; change(partition, round, records or report)
    -> what is answered in an exchange in its place."""
    settings = settings or {}

    def tamper(partition, number, kind, report):
        if kind != "train":
            return report
        due = number % 2 == 0
        mixture = upload(partition, number, "gfpl.weighting" in settings) if due else None
        honest = replace(report, payload=payload(mixture))
        return change(partition, number, honest) if change else honest

    group = federation(4, tamper=tamper, held=HELD, kind="mixtures")
    group.start(OFTEN | SINGLE | {"rounds": rounds} | settings)
    return group


def test_an_exchange_of_nothing_leaves_what_was_there(federation):
    """Before there was anything, nothing comes down; later the mixtures of the exchange before. What comes when it is
    not due is dropped."""

    def change(partition, number, report):
        if (partition, number) == (1, 3):
            return replace(report, payload=payload(upload(1, 2)))
        return replace(report, payload=None) if number in (2, 6) else report

    group = scripted(federation, change=change)
    came = {number: lone(sent.payload) for _, number, kind, sent in group.asked if kind == "train"}
    assert came[3] is None
    expected = fuse({partition: upload(partition, 4) for partition in range(4)}, 0.7)
    assert same(came[5], expected)
    assert same(came[7], expected)
    lines = group.strategy.folder.lines()[1:]
    assert [line["training"]["dropped"] for line in lines] == [0, 4, 1, 0, 0, 4, 0]
    assert list(lines[2]["problems"]) == ["1"]


def test_counts_are_held_against_the_rows_of_the_roster(federation):
    def lie(partition, number, report):
        wrong = mixtures(sorted(HELD[0] * 2), 3, 20, {0: 11, 1: 10})
        return replace(report, payload=payload(wrong)) if (partition, number) == (0, 2) else report

    line = scripted(federation, SAMPLES, lie, rounds=3).strategy.folder.lines()[2]
    assert "do not add up to its 20 training samples" in line["problems"]["0"]
    assert (line["training"]["valid"], line["training"]["dropped"]) == (3, 1)
