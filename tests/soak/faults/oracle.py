"""What a run must have made of the uploads that survived, worked out from the journal with NumPy alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np

from tests.soak.faults.journal import Event, Journal
from tests.soak.faults.plan import CLEAN

Line = Mapping[str, Any]
Upload = dict[int, np.ndarray]  # label -> vector (d,)


def read(arrays: Mapping[str, bytes]) -> Upload:
    """A payload as it crossed, by label."""
    if not arrays:
        return {}
    labels, vectors = (
        np.load(BytesIO(arrays[name]), allow_pickle=False) for name in ("prototypes.labels", "prototypes.vectors")
    )
    return dict(zip(labels.tolist(), vectors, strict=True))


def means(uploads: Sequence[Upload]) -> Upload:
    """Class-wise mean over those that hold a class, rounded to float32."""
    labels = sorted({label for upload in uploads for label in upload})
    return {
        label: np.mean([u[label] for u in uploads if label in u], axis=0, dtype=np.float64).astype(np.float32)
        for label in labels
    }


@dataclass
class Found:
    """What a whole run came to, by the journal: for reports and for assertions on the whole."""

    survived: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    silent: int = 0
    unchanged: list[int] = field(default_factory=list)


class Oracle:
    """Holds a FedProto run (plain mean, every client asked in every round) against its clients' journal."""

    def __init__(self, journal: Journal, clients: int):
        self.journal = journal
        self.clients = clients
        self.begun = _by_round(journal.events("begins"))
        self.sent = _by_round(journal.events("sends"))
        self.found = Found()

    def check(self, lines: Iterable[Line], *, all_arrive: bool) -> Upload:
        """Compare every round's line and what went down after it; the last prototypes.

        Args:
            all_arrive: only the planned faults go wrong. Else clients and servers are killed as well, and a clean
                reply may be missing; but what counted was clean.
        """
        prototypes: Upload = {}
        for line in lines:
            if not line["round"]:
                continue
            self._check_received(line["round"], prototypes)
            uploads = self._survivors(line, all_arrive)
            self._check_figures(line, uploads)
            if not uploads:
                self.found.unchanged.append(line["round"])
            prototypes = prototypes | means(list(uploads.values()))
        return prototypes

    def _survivors(self, line: Line, all_arrive: bool) -> dict[int, Upload]:
        uploads = {}
        for partition in range(self.clients):
            problem = line["problems"].get(str(partition), "")
            sent = self.sent.get((partition, line["round"]), [])
            kind = self.begun[partition, line["round"]][-1]["kind"] if (partition, line["round"]) in self.begun else ""
            arrived = bool(sent) and kind == CLEAN
            where = f"round {line['round']}, client {partition}: {kind}, {problem!r}"
            # a client whose upload counted may fail in the evaluation of the same round
            counted = "training" in line["clients"].get(str(partition), {})
            assert problem or counted, where
            assert arrived or not counted, where
            if all_arrive:
                assert bool(problem) == (not arrived), where
            upload = self._same(sent)
            if counted:
                uploads[partition] = upload
            self._count(kind, problem)
        return uploads

    def _same(self, sent: Sequence[Event]) -> Upload:
        """A round that was run again: the same state, the same prototypes, the same upload, to the bit."""
        crossed = [self.journal.kept(event["upload"], "sent") for event in sent]
        assert all(arrays == crossed[0] for arrays in crossed), [(e["partition"], e["round"]) for e in sent]
        return read(crossed[0]) if crossed else {}

    def _count(self, kind: str, problem: str) -> None:
        if not problem:
            self.found.survived += 1
        if kind not in ("", CLEAN):
            self.found.faults[kind] = self.found.faults.get(kind, 0) + 1
        elif problem:
            self.found.silent += 1

    def _check_received(self, round_number: int, prototypes: Upload) -> None:
        """What clients got at the beginning of a round is what the one before has made."""
        for (_, of_round), events in self.begun.items():
            for event in events if of_round == round_number else ():
                assert_same(read(self.journal.kept(event["received"], "received")), prototypes)

    def _check_figures(self, line: Line, uploads: Mapping[int, Upload]) -> None:
        training = line["training"]
        counted = training["asked"], training["valid"], training["dropped"]
        assert counted == (self.clients, len(uploads), 0), line["round"]
        assert sorted(int(p) for p, c in line["clients"].items() if "training" in c) == sorted(uploads)
        if not uploads:
            return
        assert training["loss"] == _losses([self.sent[partition, line["round"]][-1] for partition in sorted(uploads)])


def assert_same(found: Upload, expected: Upload) -> None:
    """Equal but for the last bit of float32: the order of a sum in float64 may decide how a mean is rounded."""
    assert sorted(found) == sorted(expected)
    for label, vector in expected.items():
        assert (np.abs(found[label] - vector) <= np.spacing(np.abs(vector))).all(), label


def _losses(reports: Sequence[Event]) -> dict[str, float]:
    """Parts of the loss over the clients that counted, weighted by their rows."""
    losses = {}
    for name in reports[0]["losses"]:
        having = [(event["rows"], event["losses"][name]) for event in reports]
        losses[name.removeprefix("loss.")] = math.fsum(rows * value for rows, value in having) / sum(
            rows for rows, _ in having
        )
    return losses


def _by_round(events: Iterable[Event]) -> dict[tuple[int, int], list[Event]]:
    found: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        found.setdefault((event["partition"], event["round"]), []).append(event)
    return found
