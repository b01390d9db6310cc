"""What a client's store may hold at each of its messages, whatever was killed in between."""

from collections.abc import Iterable, Mapping, Sequence

from tests.soak.faults.journal import Event

KEPT = 2
Held = tuple[int, ...]  # rounds of a store's generations, ascending


def check_stores(events: Iterable[Event], at_the_end: Mapping[int, Mapping[int, str]]) -> None:
    """A client begins each round from the last that it finished before: a kill loses what was in training, nothing
    else. A round that is trained again leaves the same model, to the bit.

    Args:
        events: all of the journal.
        at_the_end: partition -> the generations that its store now holds, with their digests.
    """
    by_client: dict[int, list[Event]] = {}
    for event in events:
        by_client.setdefault(event["partition"], []).append(event)
    for partition, own in by_client.items():
        _check_digests(own, at_the_end[partition])
        possible = _walk(own)
        held = tuple(sorted(at_the_end[partition]))
        assert held in possible, (partition, held, possible)


def _walk(events: Sequence[Event]) -> set[Held]:
    """What may be there after the last event."""
    # the evaluation of the untrained models has made that of round 0, where the client heard of it
    possible: set[Held] = {(), (0,)}
    kept: Held = ()
    for event in events:
        where = event, possible
        if event["event"] == "begins":
            held = tuple(event["held"])
            assert held in possible, where
            kept = tuple(made_in for made_in in held if made_in < event["round"]) or (0,)
            # cut before the store was touched, before the model was kept, or after
            possible = {held, kept, _with(kept, event["round"])}
        elif event["event"] == "sends":
            held = tuple(sorted(map(int, event["held"])))
            assert held == _with(kept, event["round"]), where
            possible = {held}
    return possible


def _with(kept: Held, round_number: int) -> Held:
    return (*kept, round_number)[-KEPT:]


def _check_digests(events: Sequence[Event], at_the_end: Mapping[int, str]) -> None:
    seen: dict[int, str] = {}
    said = [event["held"] for event in events if event["event"] == "sends"]
    for held in (*said, at_the_end):
        for made_in, digest in held.items():
            assert seen.setdefault(int(made_in), digest) == digest, (events[0]["partition"], made_in)
