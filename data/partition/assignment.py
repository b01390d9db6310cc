"""The samples that each client trains, tests and validates on: computed once per machine, and equal on all."""

import hashlib
import json
import logging
import zipfile
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from protosphere.core.client_names import plain_client_name
from protosphere.core.errors import DataError
from protosphere.core.files import replacing
from protosphere.core.home import home
from protosphere.core.settings import Settings
from protosphere.data.cache import entry, once
from protosphere.data.decode import data_key, open_data
from protosphere.data.partition.partitioners import (
    COLUMN,
    class_counts,
    deal,
    deal_tests,
    refuse_undealable,
    sites_of,
)
from protosphere.data.partition.splits import occurs_once, secret_split, stratified_split
from protosphere.data.partition.table import TABLE, table_digest
from protosphere.data.partition.units import Pool
from protosphere.data.samples import Samples
from protosphere.data.spec import DataSpec, data_spec

FORMAT = 6
_MOST_LISTED = 5  # classes listed in a sentence


@dataclass(frozen=True, eq=False)
class Assignment:
    """The rows of the decoded data set that each client trains, tests and validates on, sorted; and those of the shared
    test set, which no client has.

    Each row is used once, except for the official test rows of `way-shot` and `mixed`, which go to every client with
    their class (and domain).
    """

    train: list[np.ndarray]
    test: list[np.ndarray]
    validation: list[np.ndarray]
    shared: np.ndarray

    @property
    def rows_by_client(self) -> list[np.ndarray]:
        """All rows of each client."""
        return [self.rows_of(client) for client in range(len(self.train))]

    def rows_of(self, client: int) -> np.ndarray:
        """All rows of one client."""
        return np.concatenate([self.train[client], self.test[client], self.validation[client]])


def assignment(spec: DataSpec, data: Samples, cache_dir: Path, *, single: bool = False) -> Assignment:
    """The assignment of `data`, stored in the cache; the first process computes it, others wait.

    Args:
        single: whether a single client has all rows as its own, and no partitioner runs.
    """
    if single and spec.shared_test_share:
        raise DataError(
            "a client with its own data-path cannot give samples to the ensemble's shared test set; set "
            "`ensemble-every` to 0."
        )

    def make(file: Path) -> Assignment:
        rows = _assign(spec, data, single)
        parts = [*rows.train, *rows.test, *rows.validation, rows.shared]
        with replacing(file) as partial, partial.open("wb") as stream:
            np.savez(stream, rows=np.concatenate(parts), lengths=np.array([len(part) for part in parts]))
        return rows

    file = _file(spec, data, Path(cache_dir), single)
    return once(cache_dir, file, lambda path: read_assignment(path, len(data.labels)), make)


def cached_partition_labels(spec: DataSpec, cache_dir: Path) -> tuple[np.ndarray, tuple[str, ...]] | None:
    """The number of rows of each class that every client has in total, (clients, K) int64, and the class names; None if
    this machine has not computed it yet. Downloads, decodes and writes nothing."""
    try:
        data = Samples.load(entry(cache_dir, data_key(spec)))
    except DataError:
        return None
    rows = read_assignment(_file(spec, data, cache_dir, single=False), len(data.labels)) if data else None
    if data is None or rows is None:
        return None
    return class_counts(data.labels, rows.rows_by_client, len(data.class_names)), data.class_names


def shared_test_set(settings: Settings, clients: int) -> tuple[Samples, np.ndarray]:
    """The data set of a simulation, and the rows of the ensemble's shared test set: samples that every client predicts
    and no client trains on."""
    spec, cache = data_spec(settings, clients), home() / "cache"
    data = open_data(spec, cache)
    return data, assignment(spec, data, cache).shared


def domain_of(data: Samples, rows: np.ndarray) -> str:
    """The domain of all these rows; "" if there are no domains or several."""
    numbers = np.unique(data.domains[rows]) if data.domains is not None else np.empty(0, dtype=np.int64)
    return data.domain_names[numbers[0]] if numbers.size == 1 else ""


def name_of(spec: DataSpec, data: Samples, rows: np.ndarray) -> str:
    """The name of a client with these rows: the values of the column, or the data sets, that it has; "" where the
    partition has no names."""
    sites = sites_of(spec, data)
    names = data.site_names if spec.partition == COLUMN else data.domain_names
    if sites is None or not names:
        return ""
    return plain_client_name(", ".join(names[number] for number in np.unique(sites[rows])))


# --- the work --------------------------------------------------------------------------------------------------------


def _assign(spec: DataSpec, data: Samples, single: bool) -> Assignment:
    # with a secret, no row may decide whether the client takes part
    is_secret, is_official = single and spec.independent, spec.split == "official"
    if not single:
        refuse_undealable(spec, data)
    if is_official and not is_secret:
        _refuse_official(data)
    train, official, shared = _select(spec, data)
    if is_secret and data.groups is not None:
        official = official[~np.isin(data.groups[official], data.groups[: data.train_rows])]

    pool = Pool.of(data, train)
    parts = [np.arange(len(pool))] if single else deal(spec, pool)
    shares = 0.0 if is_official else spec.test_share, spec.validation_share
    rows = Assignment([], [], [], shared)
    for client, part in enumerate(parts):
        if is_secret:
            sides = secret_split(pool, spec.secret, *shares)
        else:
            seed = int(np.random.SeedSequence([spec.seed, client]).generate_state(1)[0])
            positions = stratified_split(pool.labels[part], *shares, seed)
            sides = part[positions[0]], part[positions[1]], part[positions[2]]
        for side, units in zip((rows.train, rows.test, rows.validation), sides, strict=True):
            side.append(pool.rows_of(units))
    if is_official:
        tests = Pool.of(data, official)
        test_parts = [np.arange(len(tests))] if single else deal_tests(spec, pool, parts, tests)
        rows.test[:] = [tests.rows_of(units) for units in test_parts]
        if not single:
            _refuse_untested(data, train, official, rows)
    return rows


def _select(spec: DataSpec, data: Samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows that are divided and split, the official test rows (none with split = "pooled"), and the shared test
    set, which no client gets."""
    total, train_rows = len(data.labels), data.train_rows
    is_official = spec.split == "official"
    available = train_rows if is_official else total
    used = min(spec.max_samples, available) if spec.max_samples else available
    tested = 0
    if is_official:
        # the same share of the test rows as of the training rows; a site may have no training row at all
        tested = round((total - train_rows) * (used / train_rows if train_rows else 1))

    pool, official = np.arange(used), np.arange(train_rows, train_rows + tested)
    shared = np.empty(0, dtype=np.int64)
    if spec.shared_test_share:
        shared = _set_aside(data, official if is_official else pool, np.concatenate([pool, official]), spec)
    return np.setdiff1d(pool, shared), np.setdiff1d(official, shared), shared


def _set_aside(data: Samples, among: np.ndarray, used: np.ndarray, spec: DataSpec) -> np.ndarray:
    """The shared test set: a stratified share of the rows `among`, without rows that repeat another `used` row, and
    without their groups, so that no client trains on a copy."""
    pool = Pool.of(data, among)
    fresh = pool.whole_units(np.flatnonzero(np.isin(among, used[occurs_once(data.inputs, used)])))
    seed = int(np.random.SeedSequence([spec.seed, 0, 1]).generate_state(1)[0])
    units = stratified_split(pool.labels[fresh], spec.shared_test_share, 0.0, seed)[1]
    if not units.size:
        raise DataError(
            f"shared-test-share = {spec.shared_test_share} of {among.size} samples gives the shared test set no "
            "sample: raise it, or max-samples."
        )
    return pool.rows_of(fresh[units])


def _refuse_official(data: Samples) -> None:
    """Refuse a data set or a domain without official test samples, and test samples that share a group with training
    samples."""
    what, lacking = f"data set {data.name!r}", data.train_rows == len(data.labels)
    if data.domains is not None:
        tested = np.bincount(data.domains[data.train_rows :], minlength=len(data.domain_names))
        what, lacking = f"domain {data.domain_names[int(tested.argmin())]!r}", not tested.all()
    if lacking:
        raise DataError(f'{what} has no official test samples: set split = "pooled", and each client splits its own.')
    if data.groups is None:
        return
    train, test = data.groups[: data.train_rows], data.groups[data.train_rows :]
    rows = np.flatnonzero(np.isin(test, train))
    if rows.size:
        first = int(np.flatnonzero(train == test[rows[0]])[0])
        raise DataError(
            f"row {rows[0]} of the test table of {data.name!r} has the group of row {first} of the train table: drop "
            'the rows of that group from one of them, or set split = "pooled", where each client splits its own groups.'
        )


def _refuse_untested(data: Samples, pool: np.ndarray, official: np.ndarray, rows: Assignment) -> None:
    """Refuse official test samples if no client is tested on any, and name classes without a training sample."""
    only_tested = np.setdiff1d(data.labels[official], data.labels[pool])
    names = ", ".join(repr(data.class_names[label]) for label in only_tested[:_MOST_LISTED])
    names += ", …" if only_tested.size > _MOST_LISTED else ""
    if official.size and not any(part.size for part in rows.test):
        raise DataError(
            f"no client can be tested: of the {official.size} official test samples of data set {data.name!r} none is "
            f"of a class that a client holds{f' ({names} are in the test table alone)' * bool(names)}; correct the "
            'labels of the test table, or set split = "pooled".'
        )
    if only_tested.size:
        logging.getLogger("protosphere").warning(
            "warning: data set %r has classes in its test table alone, on which nobody is tested: %s", data.name, names
        )


# --- the file --------------------------------------------------------------------------------------------------------


def _file(spec: DataSpec, data: Samples, cache_dir: Path, single: bool) -> Path:
    table = table_digest(spec.partition_table) if spec.partition == TABLE and not single else ""
    content = json.dumps([FORMAT, data.key, single, asdict(spec), table], sort_keys=True)
    return cache_dir / "assignments" / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.npz"


def read_assignment(file: Path, total: int) -> Assignment | None:
    """Read an assignment file; the result must not be modified. None if it is missing, incomplete, or has more rows
    than `total`."""
    try:
        stat = file.stat()
        return _read(file, total, (stat.st_ino, stat.st_mtime_ns, stat.st_size))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


# With 10,000 clients it takes 75 ms, and each of them asks for its own part. A failure is not kept: it may be a limit
# on open files.
@lru_cache(maxsize=2)
def _read(file: Path, total: int, stamp: tuple[int, int, int]) -> Assignment:
    with np.load(file) as stored:
        rows, lengths = stored["rows"], stored["lengths"]
    if lengths.sum() != rows.size or lengths.size % 3 != 1 or (rows.size and rows.max() >= total):
        raise ValueError("it is not whole, or of other data")
    rows.setflags(write=False)
    *parts, shared = np.split(rows, np.cumsum(lengths)[:-1])
    clients = len(parts) // 3
    return Assignment(parts[:clients], parts[clients : 2 * clients], parts[2 * clients :], shared)
