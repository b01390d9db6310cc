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
from protosphere.data.cache import one_writer, read_cached
from protosphere.data.decode import Recipe, decode
from protosphere.data.domains import key_of_all, open_all
from protosphere.data.forms.columns import USUAL, Columns
from protosphere.data.forms.folders import Listed
from protosphere.data.partition.assignment_file import Assignment, read_assignment, write_assignment
from protosphere.data.partition.dealing import COLUMN, Pool, deal, deal_tests, refuse_undealable, sites_of
from protosphere.data.partition.groups import shared_group
from protosphere.data.partition.partitioners import class_counts, split_rows
from protosphere.data.partition.row_hashes import occurs_once
from protosphere.data.partition.secret_split import secret_split
from protosphere.data.partition.table import TABLE, table_digest
from protosphere.data.samples import Samples
from protosphere.data.user_code import OwnCode

FORMAT = 5
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
    `columns.partition` to one client, `sites` each data set of a list (with `official` the test rows likewise). `code`
    is somebody's own callable that gives the rows, named by `dataset` or a client's own path.

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
    code: OwnCode | None = None


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
        data = read_cached(cache_dir, key_of_all(_recipe(spec, spec.dataset), spec.classes))
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
        DataError: what partition_rows, few_shot_rows and table_rows raise, a data set or domain without
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
    if not spec.columns.partition:
        del about["columns"]["partition"]
    content = json.dumps([FORMAT, data.key, own, about, table], sort_keys=True)
    return cache_dir / "assignments" / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.npz"


def _assign(spec: DataSpec, data: Samples, own: bool) -> Assignment:
    if not own:
        refuse_undealable(spec, data)
    if not (own and spec.secret):
        # there no row decides whether its client takes part
        _refuse_official(spec, data)
    train, official, shared = _select(spec, data)
    if own and spec.secret and data.groups is not None:
        # for others that is refused
        official = official[~np.isin(data.groups[official], data.groups[: data.train_rows])]
    pool = Pool.of(data, train)
    parts = [np.arange(len(pool.units))] if own else deal(spec, pool)
    assigned = [_split(spec, pool, part, client, own) for client, part in enumerate(parts)]
    trains, tests, validations = (list(side) for side in zip(*assigned, strict=True))
    if spec.split == "official":
        test_pool = Pool.of(data, official)
        dealt = [np.arange(len(test_pool.units))] if own else deal_tests(spec, pool, parts, test_pool)
        tests = [official[test_pool.units.rows(unit_numbers)] for unit_numbers in dealt]
        if not own:
            _refuse_untested(data, train, official, tests)
    return Assignment(trains, tests, validations, shared)


def _select(spec: DataSpec, data: Samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows that are dealt and split, the official test rows that are dealt (none of split = "pooled"), and the
    shared test set, which nobody gets."""
    total, train_rows = len(data.labels), data.train_rows
    is_official = spec.split == "official"
    available = train_rows if is_official else total
    used = min(spec.max_samples, available) if spec.max_samples else available
    tested = 0
    if is_official:
        # as large a part of the test rows as of the training rows; a site may have no training row at all
        tested = round((total - train_rows) * (used / train_rows if train_rows else 1))

    pool, official = np.arange(used), np.arange(train_rows, train_rows + tested)
    shared = _set_aside(data, official if is_official else pool, np.concatenate([pool, official]), spec)
    return np.setdiff1d(pool, shared), np.setdiff1d(official, shared), shared


def _split(spec: DataSpec, pool: Pool, part: np.ndarray, client: int, own: bool) -> list[np.ndarray]:
    """A client's training, test and validation rows, of the units that it has got."""
    shares = 0.0 if spec.split == "official" else spec.test_share, spec.validation_share
    if own and spec.secret:
        splits = secret_split(pool.samples, pool.rows, pool.units, spec.secret, *shares)
    else:
        seed = int(np.random.SeedSequence([spec.seed, client]).generate_state(1)[0])
        positions = split_rows(pool.units.labels[part], *shares, seed)
        splits = (part[positions[0]], part[positions[1]], part[positions[2]])
    return [pool.rows[pool.units.rows(units)] for units in splits]


def domain_of(data: Samples, rows: np.ndarray) -> str:
    """The one domain of which all these rows are, "" where there are none or several."""
    domain_numbers = np.unique(data.domains[rows]) if data.domains is not None else np.empty(0, dtype=np.int64)
    return data.domain_names[domain_numbers[0]] if domain_numbers.size == 1 else ""


def name_of(spec: DataSpec, data: Samples, rows: np.ndarray) -> str:
    """What the partition calls a client with these rows: the values of the column, or the data sets, that it has got;
    "" where the partition has no names."""
    sites = sites_of(spec, data)
    names = data.site_names if spec.partition == COLUMN else data.domain_names
    if sites is None or not names:
        return ""
    return joined_names([names[number] for number in np.unique(sites[rows])])


def _refuse_official(spec: DataSpec, data: Samples) -> None:
    """Refuse split = "official" of a data set, or one with a domain, that no client could be tested on, or whose groups
    are on both sides."""
    if spec.split != "official":
        return
    what = f"data set {data.name!r}"
    lacking = data.train_rows == len(data.labels)
    if data.domains is not None:
        tested = np.bincount(data.domains[data.train_rows :], minlength=len(data.domain_names))
        lacking, what = not tested.all(), f"domain {data.domain_names[int(tested.argmin())]!r}"
    if lacking:
        raise DataError(f'{what} has no official test samples: set split = "pooled", and each client splits its own.')
    shared = None if data.groups is None else shared_group(data.groups, data.train_rows)
    if shared is not None:
        raise DataError(
            f"row {shared[1] - data.train_rows} of the test table of {data.name!r} has the group of row {shared[0]} of "
            'the train table: drop the rows of that group from one of them, or set split = "pooled", where each client '
            "splits its own groups."
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


def _set_aside(data: Samples, among: np.ndarray, used: np.ndarray, spec: DataSpec) -> np.ndarray:
    """The rows of the shared test set: a stratified share of the rows `among`, of those whose content no other row
    that is `used` repeats (of a group's rows: of any of them), so that no client trains on a copy either."""
    if not spec.shared_test_share:
        return np.empty(0, dtype=np.int64)
    units = Pool.of(data, among).units
    fresh = units.whole(np.flatnonzero(np.isin(among, used[occurs_once(data.inputs, used)])))
    seed = int(np.random.SeedSequence([spec.seed, 0, 1]).generate_state(1)[0])
    chosen_units = split_rows(units.labels[fresh], spec.shared_test_share, 0.0, seed)[1]
    if not chosen_units.size:
        raise DataError(
            f"shared-test-share = {spec.shared_test_share} of {among.size} samples gives the shared test set no "
            "sample: raise it, or max-samples."
        )
    return among[units.rows(fresh[chosen_units])]
