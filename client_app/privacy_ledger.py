"""Records what a site has released from its table, and the privacy cost. Every release is recorded before it is sent.

    privacy/ledger.jsonl                one line per release: time, run, unit, encoder, sigma^2, rho, delta and its key
    privacy/releases/<key>.safetensors  the release itself, sent again on every equal request
    privacy/site.key                    the secret that decides the split of samples (0600)

A crash can waste budget but never privacy: the line is on disk before the noise is drawn, and the release is on disk
before it is sent. The ledger is not part of a client's state: going back a round refunds nothing.
"""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from torch import Tensor

from protosphere.core.errors import UserError
from protosphere.core.files import (
    NAME,
    read_tensors,
    replacing,
    sync,
    write_tensors,
)
from protosphere.prototypes.accounting import epsilon_of
from protosphere.prototypes.discrete_gaussian import draw
from protosphere.prototypes.release import Shape, noisy

TEXTS, NUMBERS = ("time", "run", "unit", "encoder", "key"), ("variance", "rho", "delta")
RENEWED = "renewed"
BEFORE = "before"  # a digest in lines of earlier versions, no longer read
KEY_BYTES = 32


class LedgerError(UserError):
    """A release that must not be made. Whether it is raised does not depend on any sample of the table."""

    public = "its privacy budget is spent, or its ledger cannot be used: ask for a smaller `privacy-epsilon`"


@dataclass(frozen=True)
class Limit:
    """The total budget for a site's table, as set by the site."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Asked:
    """A release requested by a run.

    Attributes:
        facts: everything that determines the release except the samples. It is public and never contains a fingerprint
            of the table.
        run: the run's name. unit: row or group. encoder: the encoder's name.
        variance: sigma^2 of the noise. delta: the run's delta.
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
        """The name of the release; it is equal for equal requests of different runs."""
        shape = [self.shape.num_classes, self.shape.dim, self.shape.moments]
        content = [dict(self.facts), self.unit, self.encoder, shape, self.variance]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def rho(self) -> float:
        """The cost of the release."""
        return self.shape.rho(self.variance)


class Ledger:
    """The ledger in a folder. All reads and changes hold its lock.

    Args:
        limit: the budget; None in a simulation, where no site owns the tables.
    """

    def __init__(self, folder: Path, limit: Limit | None = None):
        self.folder = folder
        self.limit = limit
        self._lines = folder / "ledger.jsonl"
        self._releases = folder / "releases"
        self._site_key = folder / "site.key"

    def release(self, request: Asked, sums: Callable[[], Tensor]) -> Tensor:
        """The stored release with that key, or a new one, whose cost is recorded first: (K, w) int64.

        Args:
            sums: computes V after the release was allowed; an error in it costs nothing.

        Raises:
            LedgerError: the limit does not allow it, the table was released with another unit, or the ledger cannot be
                read or written.
        """
        with self._lock():
            if (release := self._load_release(request)) is not None:
                return release
            self._refuse(request)
            exact = sums()
            self._append(
                {
                    "time": _now(),
                    "run": request.run,
                    "unit": request.unit,
                    "encoder": request.encoder,
                    "key": request.key,
                    "variance": request.variance,
                    "rho": request.rho,
                    "delta": request.delta,
                }
            )
            self._write(request, noisy(exact, request.variance, draw))
            release = self._load_release(request)
            assert release is not None
            return release

    def refuse(self, request: Asked) -> None:
        """Refuse before the run what `release` would refuse later; nothing is made or spent.

        Raises:
            LedgerError: as in `release`.
        """
        with self._lock():
            if self._load_release(request) is None:
                self._refuse(request)

    def entries(self) -> list[dict[str, Any]]:
        """All lines, the oldest first.

        Raises:
            LedgerError: the ledger cannot be read, is gone, or lacks a release that is there.
        """
        # read first, since a line precedes its release
        stored_keys = sorted(path.stem for path in self._releases.glob("*.safetensors"))
        if not self._lines.exists():
            if stored_keys or self._site_key.exists():
                raise self._make_unreadable_error("it is gone")
            return []
        try:
            *lines, remainder = self._lines.read_bytes().split(b"\n")
            entries = [_check_entry(json.loads(line)) for line in lines]
        except (OSError, ValueError) as error:
            raise self._make_unreadable_error(str(error)) from None
        if remainder:
            raise self._make_unreadable_error("its last line was cut short")
        paid_keys = {entry.get("key") for entry in entries}
        if unpaid_keys := [key for key in stored_keys if key not in paid_keys]:
            raise self._make_unreadable_error(f"the release {unpaid_keys[0]} is not in it")
        return entries

    def spent(self) -> float:
        """rho of all releases.

        Raises:
            LedgerError: of `entries`.
        """
        return math.fsum(entry["rho"] for entry in self.entries() if RENEWED not in entry)

    def renew(self) -> None:
        """Delete the stored releases: the next run that requests one makes it from the samples at that time, and pays
        for it.

        Raises:
            LedgerError: as in `entries`, or the folder cannot be written.
        """
        with self._lock():
            self.entries()
            self._append({"time": _now(), RENEWED: True})
            try:
                for path in self._releases.glob("*.safetensors"):
                    path.unlink()
                sync(self._releases)
            except FileNotFoundError:
                return
            except OSError as error:
                raise self._make_unwritable_error(error) from None

    def site_key(self) -> bytes:
        """A secret of the site, created on first use. It decides the split of samples, so that no sample changes the
        split of another.

        Raises:
            LedgerError: it cannot be read or written.
        """
        path = self._site_key
        with self._lock():
            try:
                if not path.exists():
                    # so that a lost ledger is noticed
                    self._lines.touch()
                    with replacing(path) as temporary:
                        place = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                        with os.fdopen(place, "wb") as file:
                            file.write(secrets.token_bytes(KEY_BYTES))
                    sync(self.folder)
                key = path.read_bytes()
            except OSError as error:
                raise self._make_unwritable_error(error) from None
        if len(key) != KEY_BYTES:
            raise self._make_unreadable_error(f"{path.name} does not have {KEY_BYTES} bytes")
        return key

    # --- steps, in the order of `release` ---------------------------------------------------------------

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            self._releases.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / "lock")
            lock.acquire()
        except OSError as error:
            raise self._make_unwritable_error(error) from None
        try:
            yield
        finally:
            lock.release()

    def _load_release(self, request: Asked) -> Tensor | None:
        for entry in self.entries():
            if entry.get("key") == request.key and not math.isclose(entry["rho"], request.rho, rel_tol=1e-9):
                raise self._make_unreadable_error(
                    f"its rho {entry['rho']:.6g} of {entry['time']} is not {request.rho:.6g}"
                )
        path = self._path(request)
        if not path.exists():
            return None
        try:
            release = read_tensors(path)[0]["release"]
        except (OSError, KeyError, SafetensorError) as error:
            raise self._make_unreadable_error(f"the release {path.name} cannot be read: {error}") from None
        if release.dtype != torch.int64 or release.shape != (request.shape.num_classes, request.shape.width):
            raise self._make_unreadable_error(f"the release {path.name} has another shape than it was made with")
        return release

    def _refuse(self, request: Asked) -> None:
        entries = [entry for entry in self.entries() if RENEWED not in entry]
        other_unit = next((entry["unit"] for entry in entries if entry["unit"] != request.unit), None)
        if other_unit is not None:
            raise LedgerError(f'it has released this table by {other_unit}; `privacy-unit` must stay "{other_unit}".')
        if self.limit is None:
            return
        spent = math.fsum(entry["rho"] for entry in entries)
        most_epsilon, delta = self.limit.epsilon, self.limit.delta
        so_far, asked_for = epsilon_of(spent, delta), epsilon_of(request.rho, delta)
        together = epsilon_of(spent + request.rho, delta)
        if together > most_epsilon:
            raise LedgerError(
                f"it has spent ε = {so_far:.3g} of the {most_epsilon:g} (δ = {delta:g}) that this site "
                f"allows; this run asks for {asked_for:.3g} more: {together:.3g} in all."
            )

    def _append(self, line: Mapping[str, Any]) -> None:
        """Append a line, which is on disk when this returns; or nothing at all."""
        try:
            with self._lines.open("a", encoding="utf-8") as file:
                before = os.fstat(file.fileno()).st_size
                try:
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.truncate(self._lines, before)
                    raise
            sync(self.folder)
        except OSError as error:
            raise self._make_unwritable_error(error) from None

    def _write(self, request: Asked, release: Tensor) -> None:
        try:
            for cut_short in self._releases.glob("*.tmp"):
                cut_short.unlink()
            with replacing(self._path(request)) as temporary:
                write_tensors(temporary, {"release": release}, {NAME: request.key})
            sync(self._releases)
        except (OSError, SafetensorError) as error:
            raise self._make_unwritable_error(error) from None

    def _path(self, request: Asked) -> Path:
        return self._releases / f"{request.key}.safetensors"

    def _make_unreadable_error(self, why: str) -> LedgerError:
        return LedgerError(
            f"the privacy ledger {self._lines} cannot be trusted ({why}), so nothing is released; restore the "
            "folder from a copy, or repair the line without changing what was spent.",
        )

    def _make_unwritable_error(self, error: Exception) -> LedgerError:
        reason = getattr(error, "strerror", None) or error
        return LedgerError(
            f"the privacy ledger in {self.folder} cannot be written ({reason}), so nothing is released; free space "
            "there, or set PROTOSPHERE_HOME to a writable folder and take the ledger with you.",
        )


def _check_entry(entry: Any) -> dict[str, Any]:
    """Check a line of the file.

    Raises:
        ValueError: this program did not write it.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("time"), str):
        raise ValueError("a line is no entry")
    entry.pop(BEFORE, None)
    names = entry.keys()
    if names == {"time", RENEWED}:
        return entry
    texts, numbers = [entry.get(name) for name in TEXTS], [entry.get(name) for name in NUMBERS]
    has_all_fields = names == {*TEXTS, *NUMBERS} and all(isinstance(text, str) for text in texts)
    if not has_all_fields or not all(isinstance(n, int | float) and 0 < n < math.inf for n in numbers):
        raise ValueError("a line is no release")
    # the line does not say which of two forms the release has; `_load_release` checks it on the next request
    costs = [Shape(1, 1, moments).rho(entry["variance"]) for moments in (False, True)]
    if not any(math.isclose(entry["rho"], cost, rel_tol=1e-9) for cost in costs):
        raise ValueError(
            f"its rho {entry['rho']:.6g} of {entry['time']} is not what noise of the variance {entry['variance']} "
            f"costs, {costs[0]:.6g}, or {costs[1]:.6g} with squares"
        )
    return entry


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
