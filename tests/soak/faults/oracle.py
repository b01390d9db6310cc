"""What a run must have made of the uploads that survived, worked out from the journal with NumPy alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np

from tests.soak.faults.journal import Event, Journal
from tests.soak.faults.plan import CLEAN, CORRUPTED

Line = Mapping[str, Any]
Upload = dict[int, np.ndarray]  # label -> vector (d,)
REFUSED = "upload dropped: "


def readable(arrays: Mapping[str, bytes], classes: int, dim: int, most_norm: float) -> Upload | None:
    """An upload as it crossed, if it is what was agreed: float32 rows of d finite values, a norm within bounds, int16
    labels that ascend within 0 to K - 1. Bits may have turned over and left it such a one."""
    try:
        labels, vectors = (np.load(BytesIO(arrays[name]), allow_pickle=False) for name in ("labels", "vectors"))
    except Exception:
        # NumPy raises a dozen kinds, and anything unreadable is refused
        return None
    agreed = labels.dtype in (np.int16, np.int32) and labels.ndim == 1 and vectors.dtype == np.float32
    if not agreed or vectors.shape != (len(labels), dim) or len(labels) > classes:
        return None
    values = vectors.astype(np.float64)
    fit = np.isfinite(values).all() and (np.sqrt((values**2).sum(axis=1)) <= most_norm).all()
    ordered = (np.diff(labels.astype(np.int64)) > 0).all() and ((labels >= 0) & (labels < classes)).all()
    return dict(zip(labels.tolist(), vectors, strict=True)) if fit and ordered else None


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
    """Holds a FedProto run (plain mean, every client asked in every round) against its clients' journal.

    Args:
        held: by partition, the classes of its training rows: it may upload no other.
    """

    def __init__(self, journal: Journal, held: Sequence[Iterable[int]], classes: int, dim: int, most_norm: float = 1e4):
        self.journal = journal
        self.clients = len(held)
        self._held = [set(own) for own in held]
        self._agreed = classes, dim, most_norm
        self.begun = _by_round(journal.events("begins"))
        self.sent = _by_round(journal.events("sends"))
        self.found = Found()

    def check(self, lines: Iterable[Line], *, all_arrive: bool) -> Upload:
        """Compare every round's line and what went down after it; the last prototypes.

        Args:
            all_arrive: only the planned faults go wrong. Else clients and servers are killed as well, and a clean
                reply may be missing; but what counted was clean, and what was spoilt never counted.
        """
        prototypes: Upload = {}
        for line in lines:
            if line.get("final"):
                break
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
            readable_upload = self._same(sent)
            if readable_upload is not None and not set(readable_upload) <= self._held[partition]:
                readable_upload = None
            arrived = bool(sent) and (kind == CLEAN or kind in CORRUPTED)
            where = f"round {line['round']}, client {partition}: {kind}, {problem!r}"
            assert problem == "" or not problem.startswith(REFUSED) or (arrived and readable_upload is None), where
            assert problem or (arrived and readable_upload is not None), where
            if all_arrive:
                assert bool(problem) == (not arrived or readable_upload is None), where
            if not problem:
                uploads[partition] = readable_upload
            self._count(kind, problem)
        return uploads

    def _same(self, sent: Sequence[Event]) -> Upload | None:
        """A round that was run again: the same state, the same prototypes, the same upload, to the bit."""
        crossed = [self.journal.kept(event["upload"], "sent") for event in sent]
        assert all(arrays == crossed[0] for arrays in crossed), [(e["partition"], e["round"]) for e in sent]
        return readable(crossed[0], *self._agreed) if crossed else None

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
                arrays = self.journal.kept(event["received"], "received")
                got = readable(arrays, *self._agreed) if arrays else {}
                assert got is not None
                assert_same(got, prototypes)

    def _check_figures(self, line: Line, uploads: Mapping[int, Upload]) -> None:
        problems = line["problems"].values()
        training = line["training"]
        refused = sum(problem.startswith(REFUSED) for problem in problems)
        counted = training["asked"], training["valid"], training["dropped"]
        assert counted == (self.clients, len(uploads), refused), line["round"]
        trained = [p for p in range(self.clients) if line["problems"].get(str(p), REFUSED).startswith(REFUSED)]
        assert sorted(int(p) for p, c in line["clients"].items() if "training" in c) == trained
        if trained:
            reports = [self.sent[partition, line["round"]][-1] for partition in trained]
            assert training["loss"] == _losses(reports)
        if not uploads:
            assert line["server"].get("prototype_norm") is None
            return
        norms = [np.sqrt((mean.astype(np.float64) ** 2).sum()) for mean in means(list(uploads.values())).values()]
        norm = math.fsum(norms) / len(norms)
        # each mean may have been rounded the other way, in each coordinate
        assert abs(line["server"]["prototype_norm"] - norm) <= np.finfo(np.float32).eps * norm


def assert_same(found: Upload, expected: Upload) -> None:
    """Equal but for the last bit of float32: the order of a sum in float64 may decide how a mean is rounded."""
    assert sorted(found) == sorted(expected)
    for label, vector in expected.items():
        assert (np.abs(found[label] - vector) <= np.spacing(np.abs(vector))).all(), label


def _losses(reports: Sequence[Event]) -> dict[str, float]:
    """Parts of the loss over the clients whose report could be read, weighted by their rows."""
    losses = {}
    for name in reports[0]["parts"]:
        having = [(e["training"]["counts"][0], e["training"]["parts"][e["parts"].index(name)]) for e in reports]
        losses[name] = math.fsum(rows * value for rows, value in having) / sum(rows for rows, _ in having)
    return losses


def _by_round(events: Iterable[Event]) -> dict[tuple[int, int], list[Event]]:
    found: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        found.setdefault((event["partition"], event["round"]), []).append(event)
    return found
