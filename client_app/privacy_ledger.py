"""What a site has released of its table, and what that has cost: nothing leaves that is not written down before.

    privacy/ledger.jsonl                a line a release: time, run, unit, encoder, sigma^2, rho, delta and its key
    privacy/releases/<key>.safetensors  the release itself, which is sent again whenever the same is asked for
    privacy/site.key                    what deals the site's rows to training and test (0600)

A crash loses budget and never privacy: the line is on the disk before the noise is drawn, and the release before it is
sent. The ledger is no part of a client's state: going back a round gives nothing back.
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
BEFORE = "before"  # in lines of earlier versions: a digest that nobody reads any more
KEY_BYTES = 32


class LedgerError(UserError):
    """A release that must not be made; one sentence for a person. No row of the table decides on it."""

    public = "its privacy budget is spent, or its ledger cannot be used: ask for a smaller `privacy-epsilon`"


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
        self._releases = folder / "releases"
        self._site_key = folder / "site.key"

    def release(self, request: Asked, sums: Callable[[], Tensor]) -> Tensor:
        """The stored release with that key, or a new one, which is paid for first: (K, w) int64.

        Args:
            sums: works V out, once it is known that the release may be made; an error of it costs nothing.

        Raises:
            LedgerError: the limit does not allow it, the table was released by another unit, or the ledger cannot be
                read or written.
        """
        with self._lock():
            if (release := self._load_release(request)) is not None:
                return release
            self._refuse(request)
            exact = sums()
            self._append(
                {**self._make_line(request), "variance": request.variance, "rho": request.rho, "delta": request.delta}
            )
            self._write(request, noisy(exact, request.variance, draw))
            release = self._load_release(request)
            assert release is not None
            return release

    def refuse(self, request: Asked) -> None:
        """Say, before a run begins, that `release` would refuse; nothing is made or spent.

        Raises:
            LedgerError: as `release`.
        """
        with self._lock():
            if self._load_release(request) is None:
                self._refuse(request)

    def entries(self) -> list[dict[str, Any]]:
        """All lines, the oldest first.

        Raises:
            LedgerError: the ledger cannot be read, is gone, or lacks a release that is there.
        """
        # first, since a line is older than its release
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
        """Forget the stored releases: the next run that asks makes new ones of the rows as they are then, and pays.

        Raises:
            LedgerError: of `entries`, or the folder cannot be written.
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
        """A secret of the site's, made when it is first asked for: it deals rows, so that none moves another.

        Raises:
            LedgerError: it cannot be read or written.
        """
        path = self._site_key
        with self._lock():
            try:
                if not path.exists():
                    # so that a ledger which is gone is missed
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
        paid_entries = [entry for entry in self.entries() if entry.get("key") == request.key]
        if wrong_entries := [
            entry for entry in paid_entries if not math.isclose(entry["rho"], request.rho, rel_tol=1e-9)
        ]:
            raise self._make_unreadable_error(
                f"its rho {wrong_entries[0]['rho']:.6g} of {wrong_entries[0]['time']} is not {request.rho:.6g}"
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

    def _make_line(self, request: Asked) -> dict[str, Any]:
        return {
            "time": _now(),
            "run": request.run,
            "unit": request.unit,
            "encoder": request.encoder,
            "key": request.key,
        }

    def _append(self, line: Mapping[str, Any]) -> None:
        """A line, on the disk when this returns; or none of it."""
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
    """A line as it was read.

    Raises:
        ValueError: it is none that this program wrote.
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
    # which of the two forms it had the line does not say; `_load_release` knows it of what is asked again
    costs = [Shape(1, 1, moments).rho(entry["variance"]) for moments in (False, True)]
    if not any(math.isclose(entry["rho"], cost, rel_tol=1e-9) for cost in costs):
        raise ValueError(
            f"its rho {entry['rho']:.6g} of {entry['time']} is not what noise of the variance {entry['variance']} "
            f"costs, {costs[0]:.6g}, or {costs[1]:.6g} with squares"
        )
    return entry


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
