"""Which client trains, tests and validates on which rows: worked out once per machine, the same everywhere."""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from protosphere.core.client_names import joined_names
from protosphere.core.errors import DataError
from protosphere.core.paths import is_path, is_several
from protosphere.data.cache import one_writer
from protosphere.data.decode import Recipe, decode
from protosphere.data.domains import open_all, read_cached_all
from protosphere.data.forms.columns import USUAL, Columns
from protosphere.data.forms.folders import Listed
from protosphere.data.partition.assignment_file import Assignment, read_assignment, write_assignment
from protosphere.data.partition.column import COLUMN, SITES, column_clients, column_rows, unit_values
from protosphere.data.partition.groups import Units, shared_group, units_of
from protosphere.data.partition.mixed import MIXED, cells_of, mixed_rows
from protosphere.data.partition.partitioners import class_counts, deal_test_rows, partition_rows, split_rows
from protosphere.data.partition.row_hashes import occurs_once
from protosphere.data.partition.secret_split import secret_split
from protosphere.data.partition.table import TABLE, table_digest, table_rows
from protosphere.data.partition.way_shot import WAY_SHOT, rows_of_held_classes, way_shot_rows
from protosphere.data.samples import Samples
from protosphere.data.user_code import OwnCode, dealt_by_code

FORMAT = 4
_LISTED = 5  # classes in a sentence


@dataclass(frozen=True)
class DataSpec:
    """What decides every client's rows; names and meaning are those of the settings, which have been checked as such.

    `split`: `pooled` puts train and test rows together, deals them to the clients, and each client splits its own
    (ProtoNorm, TinyProto); `official` deals the training rows and gives each client its share of the official test
    rows. `max_samples`: 0 for all; else the first rows only, train first (`official`: the first training rows and the
    same share of the test rows). `shared_test_share` of those rows (`official`: of the test rows) belongs to no client:
    it is the shared test set of the ensemble.

    The partition `way-shot` leaves most training rows to nobody and needs `official`: a client is tested on all test
    rows of its own classes, on which other clients may be tested, too. `mixed` gives each client rows of one of several
    domains, like `way-shot` where `shots` is above 0; with `official` the test rows are those of its own domain's
    classes that it holds. `table` deals as the CSV file at `partition_table` counts rows, `column` each value of
    `columns.partition` to one client, `sites` each data set of a list (with `official` the test rows likewise), and
    `dealer` is somebody's own callable, named by `partition`; `code` one that gives the rows, named by `dataset`
    or a client's own path.
    With `normalise` each client scales channels by its own training rows (client_data.py).

    `classes` and `image_size` are of the data set itself (domains.py): whether all domains must have the same classes,
    and the pixels a side to which images are brought, 0 for what they are or the largest domain's. `listed`: of
    which local folders a classes.txt is asked, since they are a site's. `secret`: of a site whose own rows are split by
    what each of them is alone (secret_split.py), "" for a stratified split.

    Where the data have groups (patients), the rows of a group stay together on every side of every split: shares and
    `min_samples` then count groups, each of which has a row at least, and a group counts as of its most frequent class.
    """

    dataset: str
    clients: int
    partition: str = "dirichlet"
    alpha: float = 0.1
    self_balancing: bool = False
    classes_per_client: int = 2
    ways: int = 3
    ways_spread: int = 1
    shots: int = 100
    shots_spread: int = 1
    min_samples: int = 10
    max_samples: int = 0
    partition_table: str = ""
    split: str = "pooled"
    test_share: float = 0.25
    validation_share: float = 0.1
    shared_test_share: float = 0.0
    seed: int = 0
    spiral_noise: float = 0.2
    spiral_points: int = 1000
    columns: Columns = USUAL
    classes: str = "same"
    image_size: int = 0
    listed: Listed = ""
    secret: str = ""
    dealer: OwnCode | None = None
    code: OwnCode | None = None
    normalise: bool = False


def open_data(spec: DataSpec, cache_dir: Path, data_path: str | None = None) -> Samples:
    """The decoded data set of `spec`, or the one at `data_path`, from the cache in `cache_dir`.

    Raises:
        DataError: what open_all raises; a `data_path` that is no path or names several data sets.
    """
    recipe = _recipe(spec, spec.dataset if data_path is None else data_path)
    if data_path is None:
        return open_all(recipe, Path(cache_dir), spec.classes)
    # nobody deals these
    recipe = replace(recipe, columns=replace(recipe.columns, partition=""))
    if spec.code is not None:
        return decode(recipe, Path(cache_dir))
    if not is_path(data_path):
        raise DataError(
            f"data-path is {data_path!r}, but a path must start with /, ./, ../ or ~.",
        )
    if is_several(data_path):
        raise DataError(
            f"the data path {data_path!r} names several data sets, but a client's own data are one folder: name that.",
        )
    return decode(recipe, Path(cache_dir))


def _recipe(spec: DataSpec, dataset: str) -> Recipe:
    points = spec.spiral_noise, spec.spiral_points, spec.seed
    return Recipe(dataset, spec.columns, *points, spec.image_size, spec.listed, bool(spec.secret), spec.code)


def cached_partition_labels(spec: DataSpec, cache_dir: Path) -> tuple[np.ndarray, tuple[str, ...]] | None:
    """How many rows of each class every client holds in all, (clients, K) int64, and the class names, if this machine
    has worked it out before; else None.

    Downloads, decodes and writes nothing.
    """
    try:
        data = read_cached_all(_recipe(spec, spec.dataset), cache_dir, spec.classes)
    except DataError:
        return None
    if data is None:
        return None
    row_assignment = read_assignment(_file(spec, data, cache_dir, own=False), len(data.labels))
    if row_assignment is None:
        return None
    return class_counts(data.labels, row_assignment.held, len(data.class_names)), data.class_names


def assignment(spec: DataSpec, data: Samples, cache_dir: Path, *, own: bool = False) -> Assignment:
    """Who holds which rows of `data`; with `own` a single client holds them all and no partitioner runs.

    Kept in `cache_dir` under the data's and the settings' hash; the first process works it out, others wait.

    Raises:
        DataError: what partition_rows, way_shot_rows, mixed_rows and table_rows raise, a data set or domain without
            official test rows or with a group on both sides of its official split, `way-shot` with groups, `mixed`
            with groups or without domains, `table` with groups, a shared test set out of a single site's own data.
    """
    if own and spec.shared_test_share:
        raise DataError(
            "a client with its own data-path cannot set samples aside for the others; set `ensemble-every` to 0."
        )
    file = _file(spec, data, Path(cache_dir), own)
    row_assignment = read_assignment(file, len(data.labels))
    if row_assignment is not None:
        return row_assignment
    with one_writer(cache_dir, file):
        row_assignment = read_assignment(file, len(data.labels))
        if row_assignment is None:
            row_assignment = _assign(spec, data, own)
            write_assignment(file, row_assignment)
    return row_assignment


def _file(spec: DataSpec, data: Samples, cache_dir: Path, own: bool) -> Path:
    table = table_digest(spec.partition_table) if spec.partition == TABLE and not own else ""
    about = {name: value for name, value in asdict(spec).items() if value is not None}
    del about["normalise"]  # it does not decide whose rows are whose
    if not spec.columns.partition:
        del about["columns"]["partition"]
    content = json.dumps([FORMAT, data.key, own, about, table], sort_keys=True)
    return cache_dir / "assignments" / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.npz"


def _assign(spec: DataSpec, data: Samples, own: bool) -> Assignment:
    total, train_rows = len(data.labels), data.train_rows
    official = spec.split == "official"
    few = spec.partition in (WAY_SHOT, MIXED) and not own
    way_shot = few and spec.partition == WAY_SHOT
    if few or (spec.partition in (TABLE, COLUMN, SITES) and not own):
        _refuse_for_few(spec.partition, data)
    if not (own and spec.secret):
        # there no row decides whether its client takes part
        if official:
            _refuse_without_test_rows(data)
        _refuse_shared_groups(data, official)
    available = train_rows if official else total
    used = min(spec.max_samples, available) if spec.max_samples else available
    # as large a part of the test rows as of the training rows; a site may have no training row at all
    tested = round((total - train_rows) * (used / train_rows if train_rows else 1)) if official else 0
    pool, official_test = np.arange(used), np.arange(train_rows, train_rows + tested)
    shared = _set_aside(data, official_test if official else pool, np.concatenate([pool, official_test]), spec)
    pool, official_test = np.setdiff1d(pool, shared), np.setdiff1d(official_test, shared)
    units = _units(data, pool)
    parts = [np.arange(len(units))] if own else _deal_rows(spec, units, data, pool)
    test_share = 0.0 if official else spec.test_share
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    validation: list[np.ndarray] = []
    for client, part in enumerate(parts):
        seed = int(np.random.SeedSequence([spec.seed, client]).generate_state(1)[0])
        shares = test_share, spec.validation_share
        if own and spec.secret:
            rows = list(secret_split(data, pool, units, spec.secret, *shares))
        else:
            rows = [part[chosen] for chosen in split_rows(units.labels[part], *shares, seed)]
        for target, chosen in zip((train, test, validation), rows, strict=True):
            target.append(pool[units.rows(chosen)])
    unheld = [np.empty(0, dtype=np.int64) for _ in train]
    if official:
        tests = _units(data, official_test)
        if own:
            dealt = [np.arange(len(tests))]
        elif (dealt_by := _dealt_by(spec, data)) is not None:
            clients = column_clients(dealt_by[pool], spec.clients, spec.partition)
            values = unit_values(dealt_by[official_test], tests.of_row, len(tests))
            dealt = column_rows(values, clients, spec.clients)
        elif few:
            cells, kinds = _cells(spec, data)
            dealt = rows_of_held_classes(cells[official_test], class_counts(cells[pool], parts, kinds))
        else:
            counts = class_counts(units.labels, parts, len(data.class_names))
            dealt = deal_test_rows(tests.labels, counts, spec.seed)
        test = [official_test[tests.rows(chosen)] for chosen in dealt]
        if way_shot:
            unheld = [np.setdiff1d(official_test, rows) for rows in test]
        if not own:
            _refuse_untested(data, pool, official_test, test)
    return Assignment(train, test, validation, unheld, shared)


def domain_of(data: Samples, rows: np.ndarray) -> str:
    """The one domain of which all these rows are, "" where there are none or several."""
    domain_numbers = np.unique(data.domains[rows]) if data.domains is not None else np.empty(0, dtype=np.int64)
    return data.domain_names[domain_numbers[0]] if domain_numbers.size == 1 else ""


def name_of(spec: DataSpec, data: Samples, rows: np.ndarray) -> str:
    """What the partition calls a client with these rows: the values of the column, or the data sets, that it has got;
    "" where the partition has no names."""
    dealt_by = _dealt_by(spec, data)
    names = data.site_names if spec.partition == COLUMN else data.domain_names
    if dealt_by is None or not names:
        return ""
    return joined_names([names[number] for number in np.unique(dealt_by[rows])])


def _dealt_by(spec: DataSpec, data: Samples) -> np.ndarray | None:
    """The number of each row by which it goes to a client whole; None where the partition draws."""
    return {COLUMN: data.sites, SITES: data.domains}.get(spec.partition)


def _units(data: Samples, rows: np.ndarray) -> Units:
    return units_of(data.labels[rows], None if data.groups is None else data.groups[rows])


def _cells(spec: DataSpec, data: Samples) -> tuple[np.ndarray, int]:
    """Of what each row is that a client is tested on all or nothing of, and how many kinds of that there are: its
    class, and with `mixed` also its domain."""
    if spec.partition != MIXED or data.domains is None:
        return data.labels, len(data.class_names)
    kinds = len(data.class_names) * len(data.domain_names)
    return cells_of(data.labels, data.domains, len(data.class_names)), kinds


def _deal_rows(spec: DataSpec, units: Units, data: Samples, pool: np.ndarray) -> list[np.ndarray]:
    draws = {name: getattr(spec, name) for name in ("ways", "ways_spread", "shots", "shots_spread", "seed")}
    if spec.partition == MIXED and data.domains is not None:
        domains = data.domains[pool]
        return mixed_rows(units.labels, domains, spec.clients, data.class_names, data.domain_names, **draws)
    if spec.partition == WAY_SHOT:
        return way_shot_rows(units.labels, spec.clients, data.class_names, **draws)
    if (dealt_by := _dealt_by(spec, data)) is not None:
        values = unit_values(dealt_by[pool], units.of_row, len(units))
        return column_rows(values, column_clients(values, spec.clients, spec.partition), spec.clients)
    if spec.dealer is not None:
        groups = None if data.groups is None else data.groups[pool]
        rows = dealt_by_code(spec.dealer, data.labels[pool], groups, spec.clients, spec.seed)
        return rows if units.of_row is None else [np.unique(units.of_row[client_rows]) for client_rows in rows]
    if spec.partition == TABLE:
        return table_rows(units.labels, spec.partition_table, spec.clients, data.class_names, spec.seed)
    try:
        return partition_rows(
            units.labels,
            spec.clients,
            spec.partition,
            alpha=spec.alpha,
            self_balancing=spec.self_balancing,
            classes_per_client=spec.classes_per_client,
            min_samples=spec.min_samples,
            seed=spec.seed,
        )
    except DataError as error:
        if units.of_row is None:
            raise
        raise DataError(f"{str(error).rstrip('.')}; samples that share a group count as one here.") from error


def _refuse_for_few(partition: str, data: Samples) -> None:
    """What `way-shot`, `mixed` and `table`, which give out some rows, cannot be dealt of."""
    if partition == WAY_SHOT and data.train_rows == len(data.labels):
        raise DataError(
            f"data set {data.name!r} has no official test samples, which the {WAY_SHOT} partition tests on: give one "
            "that has, or another partition.",
        )
    if partition == MIXED and len(data.domain_names) < 2:
        raise DataError(
            f"the {MIXED} partition gives each client one of several domains, but {data.name!r} is one: set dataset "
            'to a list ("mnist,usps") or to a "<folder>/*" of several, or take another partition.',
        )
    if partition == COLUMN and data.sites is None:
        raise DataError(
            "the column partition divides the samples by a table's column, but the data have none: take another."
        )
    if partition == SITES and len(data.domain_names) < 2:
        raise DataError(
            "the sites partition gives each client one data set of a list, but dataset is one: set it to a list, as "
            '"./berlin.csv,./paris.csv", or take another partition.'
        )
    if data.groups is not None and partition not in (COLUMN, SITES):
        raise DataError(
            f"the {partition} partition divides single samples, but those of {data.name!r} come in groups: use another "
            "partition, or no group-column.",
        )


def _refuse_without_test_rows(data: Samples) -> None:
    """Refuse a data set, or one with a domain, that no client could be tested on."""
    what = f"data set {data.name!r}"
    lacking = data.train_rows == len(data.labels)
    if data.domains is not None:
        tested = np.bincount(data.domains[data.train_rows :], minlength=len(data.domain_names))
        lacking, what = not tested.all(), f"domain {data.domain_names[int(tested.argmin())]!r}"
    if lacking:
        raise DataError(
            f'{what} has no official test samples: set split = "pooled", and each client splits its own.',
        )


def _refuse_untested(data: Samples, pool: np.ndarray, official_test: np.ndarray, test: Sequence[np.ndarray]) -> None:
    """Refuse official test samples on which no client is tested; classes that have no training sample are named.

    Raises:
        DataError: no client has a test sample.
    """
    only_tested = np.setdiff1d(data.labels[official_test], data.labels[pool])
    names = ", ".join(repr(data.class_names[label]) for label in only_tested[:_LISTED])
    more = ", …" if only_tested.size > _LISTED else ""
    if official_test.size and not any(rows.size for rows in test):
        raise DataError(
            f"no client can be tested: of the {official_test.size} official test samples of data set {data.name!r} "
            f"none is of a class that a client holds{f' ({names}{more} are in the test table alone)' * bool(names)}; "
            'correct the labels of the test table, or set split = "pooled".'
        )
    if only_tested.size:
        logging.getLogger("protosphere").warning(
            "warning: data set %r has classes in its test table alone, on which nobody is tested: %s%s",
            data.name,
            names,
            more,
        )


def _refuse_shared_groups(data: Samples, official: bool) -> None:
    shared = shared_group(data.groups, data.train_rows) if official and data.groups is not None else None
    if shared is not None:
        raise DataError(
            f"row {shared[1] - data.train_rows} of the test table of {data.name!r} has the group of row {shared[0]} of "
            'the train table: drop the rows of that group from one of them, or set split = "pooled", where each client '
            "splits its own groups.",
        )


def _set_aside(data: Samples, among: np.ndarray, used: np.ndarray, spec: DataSpec) -> np.ndarray:
    """The rows of the shared test set: a stratified share of the rows `among`, of those whose content no other row
    that is `used` repeats (of a group's rows: of any of them), so that no client trains on a copy either."""
    if not spec.shared_test_share:
        return np.empty(0, dtype=np.int64)
    units = _units(data, among)
    fresh = units.whole(np.flatnonzero(np.isin(among, used[occurs_once(data.inputs, used)])))
    seed = int(np.random.SeedSequence([spec.seed, 0, 1]).generate_state(1)[0])
    chosen = split_rows(units.labels[fresh], spec.shared_test_share, 0.0, seed)[1]
    if not chosen.size:
        raise DataError(
            f"shared-test-share = {spec.shared_test_share} of {among.size} samples gives the shared test set no "
            "sample: raise it, or max-samples."
        )
    return among[units.rows(fresh[chosen])]
