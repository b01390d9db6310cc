"""What a site has released of its table, and what that has cost: nothing leaves that is not written down before.

    privacy/ledger.jsonl                a line a release: time, run, unit, encoder, sigma^2, rho, delta, its key, and
                                        the digest of all that is before it
    privacy/head.json                   how many lines there are, and their digest, so that lines that go are missed
    privacy/releases/<key>.safetensors  the release itself, which is sent again whenever the same is asked for
    privacy/site.key                    what deals the site's rows to training and test (0600)

A crash loses budget and never privacy: the line is on the disk before the noise is drawn, and the release before it is
sent. head.json is written between these two: it may lack the last line, and never has one that the ledger lacks. The
ledger is no part of a client's state: going back a round gives nothing back.
"""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from torch import Tensor

from protosphere.core.checksums import read_sealed, sealed
from protosphere.core.errors import ToldError
from protosphere.core.files import LARGEST_RECORD, read_whole, replacing, sync
from protosphere.core.tensor_files import NAME, read_tensors, write_tensors
from protosphere.prototypes.accounting import epsilon_of
from protosphere.prototypes.discrete_gaussian import draw
from protosphere.prototypes.release import Shape, noisy

TEXTS, NUMBERS = ("time", "run", "unit", "encoder", "key"), ("variance", "rho", "delta")
RENEWED = "renewed"
BEFORE = "before"  # in a line: the digest of all lines before it; those of earlier versions have none
KEY_BYTES = 32


class LedgerError(ToldError):
    """A release that must not be made; one sentence for a person. No row of the table decides on it."""


@dataclass(frozen=True)
class Limit:
    """The most that may ever be spent on a site's table, by the site's own word."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Asked:
    """A release that a run asks for.

    Attributes:
        facts: all that decides what is released, apart from the rows: public, and never a fingerprint of the table.
        run: its name. unit: row or group. encoder: its name.
        variance: sigma^2 of the noise. delta: the run's.
    """

    facts: Mapping[str, Any]
    run: str
    unit: str
    encoder: str
    shape: Shape
    variance: int
    delta: float

    @property
    def key(self) -> str:
        """The name of the release, the same for all runs that ask for the same."""
        shape = [self.shape.num_classes, self.shape.dim, self.shape.moments]
        content = [dict(self.facts), self.unit, self.encoder, shape, self.variance]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def rho(self) -> float:
        """What it costs."""
        return self.shape.rho(self.variance)


class Ledger:
    """The ledger in a folder. All that looks at it or changes it holds its lock.

    Args:
        limit: what may be spent; None in a simulation, whose tables are nobody's.
    """

    def __init__(self, folder: Path, limit: Limit | None = None):
        self.folder = folder
        self.limit = limit
        self._lines = folder / "ledger.jsonl"
        self._head = folder / "head.json"
        self._releases = folder / "releases"
        self._site_key = folder / "site.key"

    def release(self, asked: Asked, sums: Callable[[], Tensor]) -> Tensor:
        """The stored release with that key, or a new one, which is paid for first: (K, w) int64.

        Args:
            sums: works V out, once it is known that the release may be made; an error of it costs nothing.

        Raises:
            LedgerError: the limit does not allow it, the table was released by another unit, or the ledger cannot be
                read or written.
        """
        with self._held():
            if (found := self._stored(asked)) is not None:
                return found
            self._refuse(asked)
            exact = sums()
            self._append({**self._line(asked), "variance": asked.variance, "rho": asked.rho, "delta": asked.delta})
            self._write(asked, noisy(exact, asked.variance, draw))
            found = self._stored(asked)
            assert found is not None
            return found

    def refuse(self, asked: Asked) -> None:
        """Say, before a run begins, that `release` would refuse; nothing is made or spent.

        Raises:
            LedgerError: as `release`.
        """
        with self._held():
            if self._stored(asked) is None:
                self._refuse(asked)

    def entries(self) -> list[dict[str, Any]]:
        """All lines, the oldest first.

        Raises:
            LedgerError: the ledger cannot be read, is gone, or lacks a release that is there.
        """
        # first, since a line is older than its release, and than the head that counts it
        stored = sorted(path.stem for path in self._releases.glob("*.safetensors"))
        counted, digest = self._counted()
        if not self._lines.exists():
            if stored or self._site_key.exists() or counted:
                raise self._unreadable("it is gone")
            return []
        try:
            *lines, rest = read_whole(self._lines, LARGEST_RECORD).split(b"\n")
            found = [_checked(json.loads(line)) for line in lines]
        except (OSError, ValueError) as error:
            raise self._unreadable(str(error)) from None
        if rest:
            raise self._unreadable("its last line was cut short")
        if counted > len(lines):
            raise self._unreadable(f"it has {len(lines)} lines, and {counted} were written")
        digests = _digests(lines)
        if digest != digests[counted]:
            raise self._unreadable("a line is not as it was written")
        for entry, before in zip(found, digests, strict=False):
            if entry.get(BEFORE, before) != before:
                raise self._unreadable(f"a line before that of {entry['time']} is not as it was written")
        if any(BEFORE in entry for entry in found) and not self._head.exists():
            raise self._unreadable(f"{self._head.name} is gone")
        found = [{name: value for name, value in entry.items() if name != BEFORE} for entry in found]
        paid = {entry.get("key") for entry in found}
        if unpaid := [key for key in stored if key not in paid]:
            raise self._unreadable(f"the release {unpaid[0]} is not in it")
        return found

    def spent(self) -> float:
        """rho of all releases.

        Raises:
            LedgerError: of `entries`.
        """
        return math.fsum(entry["rho"] for entry in self.entries() if RENEWED not in entry)

    def renew(self) -> None:
        """Forget the stored releases: the next run that asks makes new ones of the rows as they are then, and pays.

        Raises:
            LedgerError: of `entries`, or the folder cannot be written.
        """
        with self._held():
            self.entries()
            self._append({"time": _now(), RENEWED: True})
            try:
                for path in self._releases.glob("*.safetensors"):
                    path.unlink()
                sync(self._releases)
            except FileNotFoundError:
                return
            except OSError as error:
                raise self._unwritable(error) from None

    def site_key(self) -> bytes:
        """A secret of the site's, made when it is first asked for: it deals rows, so that none moves another.

        Raises:
            LedgerError: it cannot be read or written.
        """
        path = self._site_key
        with self._held():
            try:
                if not path.exists():
                    # so that a ledger which is gone is missed
                    self._lines.touch()
                    with replacing(path) as temporary:
                        place = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                        with os.fdopen(place, "wb") as file:
                            file.write(secrets.token_bytes(KEY_BYTES))
                    sync(self.folder)
                found = path.read_bytes()
            except OSError as error:
                raise self._unwritable(error) from None
        if len(found) != KEY_BYTES:
            raise self._unreadable(f"{path.name} does not have {KEY_BYTES} bytes")
        return found

    # --- steps, in the order of `release` ---------------------------------------------------------------

    @contextmanager
    def _held(self) -> Iterator[None]:
        try:
            self._releases.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / "lock")
            lock.acquire()
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            yield
        finally:
            lock.release()

    def _stored(self, asked: Asked) -> Tensor | None:
        paid = [entry for entry in self.entries() if entry.get("key") == asked.key]
        if wrong := [entry for entry in paid if not math.isclose(entry["rho"], asked.rho, rel_tol=1e-9)]:
            raise self._unreadable(f"its rho {wrong[0]['rho']:.6g} of {wrong[0]['time']} is not {asked.rho:.6g}")
        path = self._path(asked)
        if not path.exists():
            return None
        try:
            found = read_tensors(path)[0]["release"]
        except (OSError, KeyError, SafetensorError) as error:
            raise self._unreadable(f"the release {path.name} cannot be read: {error}") from None
        if found.dtype != torch.int64 or found.shape != (asked.shape.num_classes, asked.shape.width):
            raise self._unreadable(f"the release {path.name} has another shape than it was made with")
        return found

    def _refuse(self, asked: Asked) -> None:
        entries = [entry for entry in self.entries() if RENEWED not in entry]
        other = next((entry["unit"] for entry in entries if entry["unit"] != asked.unit), None)
        if other is not None:
            raise LedgerError.public(f'it has released this table by {other}; `privacy-unit` must stay "{other}".')
        if self.limit is None:
            return
        spent = math.fsum(entry["rho"] for entry in entries)
        most, delta = self.limit.epsilon, self.limit.delta
        so_far, asked_for = epsilon_of(spent, delta), epsilon_of(asked.rho, delta)
        together = epsilon_of(spent + asked.rho, delta)
        if together > most:
            raise LedgerError.public(
                f"it has spent ε = {so_far:.3g} of the {most:g} (δ = {delta:g}) that this site "
                f"allows; this run asks for {asked_for:.3g} more: {together:.3g} in all."
            )

    def _line(self, asked: Asked) -> dict[str, Any]:
        return {"time": _now(), "run": asked.run, "unit": asked.unit, "encoder": asked.encoder, "key": asked.key}

    def _counted(self) -> tuple[int, str]:
        """How many lines the head counts, and their digest; no line where there is no head."""
        try:
            head = read_sealed(self._head)
            counted, digest = head["lines"], head["sha256"]
            if not isinstance(counted, int) or counted < 0 or not isinstance(digest, str):
                raise ValueError("it is no head of a ledger")
        except FileNotFoundError:
            return 0, _digests([])[0]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unreadable(f"{self._head.name}: {error}") from None
        return counted, digest

    def _count(self, lines: list[bytes]) -> None:
        for cut_short in self.folder.glob(f".{self._head.name}.*.tmp"):
            cut_short.unlink()
        with replacing(self._head) as temporary:
            head = {"lines": len(lines), "sha256": _digests(lines)[-1]}
            temporary.write_text(json.dumps(sealed(head)) + "\n", "utf-8")

    def _append(self, line: Mapping[str, Any]) -> None:
        """A line, on the disk and counted when this returns; or none of it. An error may leave a line that is not
        counted: budget that is lost."""
        try:
            lines = self._lines.read_bytes().split(b"\n")[:-1] if self._lines.exists() else []
            if not self._head.exists():
                # before a line that says what is before it, so that a head that is gone is missed
                self._count(lines)
            added = json.dumps({**line, BEFORE: _digests(lines)[-1]}).encode()
            with self._lines.open("ab") as file:
                before = file.tell()
                try:
                    file.write(added + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.truncate(self._lines, before)
                    raise
            sync(self.folder)
            self._count([*lines, added])
        except OSError as error:
            raise self._unwritable(error) from None

    def _write(self, asked: Asked, release: Tensor) -> None:
        try:
            for cut_short in self._releases.glob("*.tmp"):
                cut_short.unlink()
            with replacing(self._path(asked)) as temporary:
                write_tensors(temporary, {"release": release}, {NAME: asked.key})
            sync(self._releases)
        except (OSError, SafetensorError) as error:
            raise self._unwritable(error) from None

    def _path(self, asked: Asked) -> Path:
        return self._releases / f"{asked.key}.safetensors"

    def _unreadable(self, why: str) -> LedgerError:
        return LedgerError(
            f"the privacy ledger {self._lines} cannot be trusted ({why}), so nothing is released; bring the folder "
            f"back from a copy, or mend the line, in which what was spent must stay, and take {self._head.name} and "
            f"`{BEFORE}` of each line away.",
            told="its privacy ledger cannot be read, so it releases nothing",
        )

    def _unwritable(self, error: Exception) -> LedgerError:
        reason = getattr(error, "strerror", None) or error
        return LedgerError(
            f"the privacy ledger in {self.folder} cannot be written ({reason}), so nothing is released; free space "
            "there, or set PROTOSPHERE_HOME to a folder of yours and take the ledger with you.",
            told="its privacy ledger cannot be written, so it releases nothing",
        )


def _checked(entry: Any) -> dict[str, Any]:
    """A line as it was read.

    Raises:
        ValueError: it is none that this program wrote.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("time"), str):
        raise ValueError("a line is no entry")
    names = entry.keys() - {BEFORE}
    if names == {"time", RENEWED}:
        return entry
    texts, numbers = [entry.get(name) for name in TEXTS], [entry.get(name) for name in NUMBERS]
    whole = names == {*TEXTS, *NUMBERS} and all(isinstance(text, str) for text in texts)
    if not whole or not all(isinstance(n, int | float) and 0 < n < math.inf for n in numbers):
        raise ValueError("a line is no release")
    # which of the two forms it had the line does not say; `_stored` knows it of what is asked again
    costs = [Shape(1, 1, moments).rho(entry["variance"]) for moments in (False, True)]
    if not any(math.isclose(entry["rho"], cost, rel_tol=1e-9) for cost in costs):
        raise ValueError(
            f"its rho {entry['rho']:.6g} of {entry['time']} is not what noise of the variance {entry['variance']} "
            f"costs, {costs[0]:.6g}, or {costs[1]:.6g} with squares"
        )
    return entry


def _digests(lines: Sequence[bytes]) -> list[str]:
    """Of all that is before each line, and of all lines."""
    running = hashlib.sha256()
    found = [running.hexdigest()]
    for line in lines:
        running.update(line + b"\n")
        found.append(running.hexdigest())
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
