"""The partitions by name: functions that divide a pool among clients, and the division of official test samples.

Each partition has its own generator: [seed, attempt] for `iid`, `dirichlet` and `pathological`, [seed, 0, 2] and [seed,
0, 3] for the others. Clients' splits use [seed, client], the shared test set [seed, 0, 1].
"""

import math
from collections.abc import Callable

import numpy as np

from protosphere.core.errors import DataError
from protosphere.data.partition.few_shots import few_shots
from protosphere.data.partition.splits import largest_remainder
from protosphere.data.partition.table import TABLE, divide_by_table
from protosphere.data.partition.units import Pool
from protosphere.data.samples import Samples
from protosphere.data.spec import DataSpec

IID, DIRICHLET, PATHOLOGICAL = "iid", "dirichlet", "pathological"
WAY_SHOT, MIXED, COLUMN, SITES = "way-shot", "mixed", "column", "sites"
Parts = list[np.ndarray]  # the units of each client, (k,) int64
Partitioner = Callable[[Pool, DataSpec, np.random.Generator], Parts]

# 1001 draws in total: each attempt has a new generator, from which flwr-datasets would draw this often
_ATTEMPTS, _DRAWS = 91, 11


def deal(spec: DataSpec, pool: Pool) -> Parts:
    """The units of each client, for training and, with split = "pooled", for test."""
    partitioner, stream = PARTITIONERS[spec.partition]
    if stream:
        return partitioner(pool, spec, np.random.default_rng([spec.seed, 0, stream]))
    try:
        _refuse_small(pool, spec)
        for attempt in range(_ATTEMPTS):
            rng = np.random.default_rng([spec.seed, attempt])
            order = rng.permutation(len(pool))
            parts = partitioner(Pool(pool.samples, pool.rows, pool.labels[order], None), spec, rng)
            if min(map(len, parts)) >= spec.min_samples:
                return [np.sort(order[part]) for part in parts]
        cause = f"alpha = {spec.alpha}"
        if spec.partition == PATHOLOGICAL:
            cause = f"classes-per-client = {spec.classes_per_client}"
        raise DataError(
            f"no draw of the {spec.partition} partition with {cause} gave each of {spec.clients} clients at least "
            f"min-samples = {spec.min_samples} of {len(pool)} samples: change {cause.split()[0]}, or lower min-samples "
            "or the number of clients."
        )
    except DataError as error:
        if pool.unit_of_row is None:
            raise
        raise DataError(f"{str(error).rstrip('.')}; samples that share a group count as one here.") from error


def _refuse_small(pool: Pool, spec: DataSpec) -> None:
    clients, per_client = spec.clients, spec.classes_per_client
    needed = clients * max(spec.min_samples, 1)
    if len(pool) < needed:
        minimum = f"with min-samples = {spec.min_samples} each " if spec.min_samples > 1 else ""
        raise DataError(
            f"{clients} clients {minimum}need at least {needed} samples, but the data set has {len(pool)}: lower the "
            "number of clients or min-samples, or raise max-samples if it is set."
        )
    num_classes = np.unique(pool.labels).size
    fewest = math.ceil(num_classes / clients)
    if spec.partition == PATHOLOGICAL and not fewest <= per_client <= num_classes:
        raise DataError(
            f"classes-per-client is {per_client}, but it must lie between {fewest}, or {clients} clients leave samples "
            f"to nobody, and {num_classes}, the number of classes that have samples: change it, or clients."
        )


def divide_evenly(pool: Pool, spec: DataSpec, rng: np.random.Generator) -> Parts:
    """`iid`: even parts, as the partitioner of flwr-datasets makes them."""
    return np.array_split(np.arange(len(pool)), spec.clients)


def divide_by_dirichlet(pool: Pool, spec: DataSpec, rng: np.random.Generator) -> Parts:
    """`dirichlet`: class by class, the clients' shares are drawn from Dir(alpha).

    The draws are those of flwr-datasets' partitioner, whose import takes two seconds; it draws again while a client has
    fewer than `min_samples`. With `self_balancing`, a client above an even share gets no samples of later classes.
    """
    generator = np.random.default_rng(int(rng.integers(2**31)))
    even = len(pool) / spec.clients
    for _ in range(_DRAWS):
        parts = [np.empty(0, dtype=np.int64) for _ in range(spec.clients)]
        for label in np.unique(pool.labels):
            positions = np.flatnonzero(pool.labels == label)
            shares = generator.dirichlet(np.full(spec.clients, float(spec.alpha)))
            if spec.self_balancing:
                shares[[part.size > even for part in parts]] = 0
                shares /= shares.sum()
            ends = (np.cumsum(shares) * positions.size).astype(int)[:-1]
            for client, piece in enumerate(np.split(positions, ends)):
                parts[client] = np.concatenate([parts[client], piece])
        if min(map(len, parts)) >= spec.min_samples:
            break
    return parts


def divide_by_class(pool: Pool, spec: DataSpec, rng: np.random.Generator) -> Parts:
    """`pathological`: blocks of clients with the same few classes, in uneven parts, as the generator of HtFLlib,
    ProtoNorm and TinyProto makes them.

    Each class goes to the first clients that have fewer than `classes_per_client` classes; the number of these clients
    is such that all places are filled. Each of them except the last gets a uniformly random number of its samples,
    between a tenth of an even part (or `min_samples` over the number of classes, if that is more) and an even part; the
    last gets the rest.
    """
    classes = np.unique(pool.labels)
    places = np.full(spec.clients, spec.classes_per_client)
    parts: list[list[np.ndarray]] = [[np.empty(0, dtype=np.int64)] for _ in range(spec.clients)]
    for number, label in enumerate(classes):
        client_count = math.ceil(places.sum() / (classes.size - number))
        holders = np.flatnonzero(places)[:client_count]
        positions = np.flatnonzero(pool.labels == label)
        even = positions.size / holders.size
        least = min(max(even / 10, spec.min_samples / classes.size), even)
        sizes = rng.integers(math.floor(least), math.floor(even), holders.size - 1, endpoint=True)
        for holder, part in zip(holders, np.split(positions, np.cumsum(sizes)), strict=True):
            parts[holder].append(part)
        places[holders] -= 1
    return [np.concatenate(client_parts) for client_parts in parts]


def divide_by_site(pool: Pool, spec: DataSpec, rng: np.random.Generator) -> Parts:
    """`column` and `sites`: all units of a site go to one client, in turn if there are more sites than clients."""
    return _deal_sites(pool, pool, spec)


def _deal_sites(pool: Pool, target: Pool, spec: DataSpec) -> Parts:
    """Divide the units of `target` by the sites that have training samples in `pool`."""
    sites = sites_of(spec, pool.samples)
    assert sites is not None
    present, clients = np.unique(sites[pool.rows]), spec.clients
    if len(present) < clients:
        what = "data sets in dataset" if spec.partition == SITES else "values in partition-column"
        raise DataError(
            f"{clients} clients need as many {what}, one each, but there are {len(present)}: set clients to that "
            "number or fewer, or take another partition."
        )
    values = target.by_unit(sites)
    return [np.flatnonzero(np.isin(values, present[client::clients])) for client in range(clients)]


# each with the number of its generator, 0 for one generator per attempt
PARTITIONERS: dict[str, tuple[Partitioner, int]] = {
    IID: (divide_evenly, 0),
    DIRICHLET: (divide_by_dirichlet, 0),
    PATHOLOGICAL: (divide_by_class, 0),
    WAY_SHOT: (few_shots, 2),
    MIXED: (few_shots, 3),
    TABLE: (divide_by_table, 3),
    COLUMN: (divide_by_site, 3),
    SITES: (divide_by_site, 3),
}


def deal_tests(spec: DataSpec, pool: Pool, parts: Parts, tests: Pool) -> Parts:
    """The official test units of each client: those of its sites; with `way-shot` and `mixed`, all of the classes (and
    the domain) that it has; otherwise those of each class in proportion to the clients' training units.

    Args:
        pool, parts: the training units and their division.
        tests: the test units.
    """
    samples = pool.samples
    if spec.partition in (COLUMN, SITES):
        return _deal_sites(pool, tests, spec)
    num_classes = len(samples.class_names)
    if spec.partition in (WAY_SHOT, MIXED):
        cells, count = samples.labels, num_classes
        if spec.partition == MIXED and samples.domains is not None:
            cells, count = samples.domains * num_classes + cells, num_classes * len(samples.domain_names)
        train_counts = class_counts(cells[pool.rows], parts, count)
        return [np.flatnonzero(mask[cells[tests.rows]]) for mask in train_counts > 0]
    return deal_in_proportion(tests.labels, class_counts(pool.labels, parts, num_classes), spec.seed)


def deal_in_proportion(test_labels: np.ndarray, train_counts: np.ndarray, seed: int) -> Parts:
    """Divide the test rows of each class in proportion to the clients' training rows of that class.

    Args:
        test_labels: (m,) int in 0..K−1. train_counts: (clients, K) int.
        seed: decides which rows each client gets, and which client gets the last row of equal remainders.

    Returns:
        For each client, its sorted positions in `test_labels`. A class that no client has is not used.
    """
    rng = np.random.default_rng(seed)
    parts: list[list[np.ndarray]] = [[np.empty(0, dtype=np.int64)] for _ in train_counts]
    for label in np.flatnonzero(train_counts.sum(axis=0)):
        rows = rng.permutation(np.flatnonzero(test_labels == label))
        counts = train_counts[:, label]
        room = np.where(counts > 0, rows.size, 0)
        shares = largest_remainder(counts / counts.sum() * rows.size, rows.size, room, rng.random(counts.size))
        for client, part in enumerate(np.split(rows, np.cumsum(shares)[:-1])):
            parts[client].append(part)
    return [np.sort(np.concatenate(client_parts)) for client_parts in parts]


def class_counts(labels: np.ndarray, parts: Parts, num_classes: int) -> np.ndarray:
    """The number of rows of each class (columns) that each client (rows) has: (clients, num_classes) int64."""
    counts = [np.bincount(labels[part], minlength=num_classes) for part in parts]
    return np.array(counts, dtype=np.int64).reshape(len(parts), num_classes)


def sites_of(spec: DataSpec, samples: Samples) -> np.ndarray | None:
    """The site of each sample; None if the partition is random."""
    return {COLUMN: samples.sites, SITES: samples.domains}.get(spec.partition)


def refuse_undealable(spec: DataSpec, samples: Samples) -> None:
    """Refuse samples that the partition cannot divide."""
    partition = spec.partition
    problem = ""
    if partition == WAY_SHOT and samples.train_rows == len(samples.labels):
        problem = f"tests on official test samples, but data set {samples.name!r} has none: give one that has"
    elif partition in (MIXED, SITES) and len(samples.domain_names) < 2:
        problem = (
            f'divides by data set or domain, but {samples.name!r} is one: set dataset to a list ("mnist,usps" or '
            '"./berlin.csv,./paris.csv"), or to a "<folder>/*" of several'
        )
    elif partition == COLUMN and samples.sites is None:
        problem = "divides the samples by a table's column, but the data have none: name one in partition-column"
    elif samples.groups is not None and partition in (WAY_SHOT, MIXED, TABLE):
        problem = f"divides single samples, but those of {samples.name!r} come in groups: use no group-column"
    if problem:
        raise DataError(f"the {partition} partition {problem}, or take another partition.")
