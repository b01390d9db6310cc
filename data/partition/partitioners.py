"""Who holds which rows: partitions by name, and the split of one client's rows."""

import math

import numpy as np

from protosphere.core.errors import DataError

# draws of one generator, and generators: 1001 draws in all; so many draws has one partitioner of flwr-datasets
_DRAWS, _ATTEMPTS = 11, 91


def partition_rows(
    labels: np.ndarray,
    num_partitions: int,
    scheme: str,
    *,
    alpha: float,
    self_balancing: bool,
    classes_per_client: int,
    min_samples: int,
    seed: int,
) -> list[np.ndarray]:
    """Deal all rows to clients: every row goes to exactly one client.

    `iid` deals a shuffled table evenly. `dirichlet` draws, class by class, the clients' shares from Dir(alpha),
    and is repeated until every client has `min_samples` rows. `pathological` gives blocks of clients
    `classes_per_client` classes each, in uneven parts (`pathological_parts`).

    Args:
        labels: (n,) int, the class of each row.
        num_partitions: number of clients, 1 to n.
        scheme: one of these three.
        alpha: concentration of the Dirichlet distribution, above 0: small is skewed.
        self_balancing: whether a client that has more than an even share of all rows gets none of the classes to come
            (`dirichlet`).
        classes_per_client: classes of a client (`pathological`), 1 to the number of classes.
        min_samples: rows that each client holds at least; 0 allows clients without a row.
        seed: at least 0; the same seed and labels give the same partition.

    Returns:
        For each client its row indices, sorted, int64.

    Raises:
        DataError: too few rows or classes, or no partition that meets `min_samples`.
    """
    labels = np.asarray(labels)
    num_classes = np.unique(labels).size
    _check(labels.size, num_classes, num_partitions, scheme, classes_per_client, min_samples)
    for attempt in range(_ATTEMPTS):
        rng = np.random.default_rng([seed, attempt])
        order = rng.permutation(labels.size)
        if scheme == "pathological":
            parts = pathological_parts(labels[order], num_partitions, classes_per_client, min_samples, rng)
        else:
            # these draw the numbers that flwr-datasets' partitioners draw, without the two seconds of their imports
            generator = np.random.default_rng(int(rng.integers(2**31)))
            if scheme == "iid":
                parts = np.array_split(np.arange(labels.size), num_partitions)
            else:
                parts = _dirichlet_parts(labels[order], num_partitions, alpha, self_balancing, min_samples, generator)
        if min(map(len, parts)) >= min_samples:
            return [np.sort(order[part]) for part in parts]
    draws, setting, remedy = {
        "dirichlet": (_ATTEMPTS * _DRAWS, f"alpha = {alpha}", "raise alpha"),
        "pathological": (_ATTEMPTS, f"classes-per-client = {classes_per_client}", "change classes-per-client"),
    }[scheme]
    raise DataError(
        f"none of {draws} draws of the {scheme} partition with {setting} gave each of {num_partitions} clients at "
        f"least min-samples = {min_samples} of {labels.size} samples: {remedy}, or lower min-samples or the number of "
        "clients."
    )


def _check(
    rows: int,
    num_classes: int,
    num_partitions: int,
    scheme: str,
    classes_per_client: int,
    min_samples: int,
) -> None:
    if rows < num_partitions * max(min_samples, 1):
        minimum = f"with min-samples = {min_samples} each " if min_samples > 1 else ""
        raise DataError(
            f"{num_partitions} clients {minimum}need at least {num_partitions * max(min_samples, 1)} samples, but the "
            f"data set has {rows}: lower the number of clients or min-samples, or raise max-samples if it is set."
        )
    if scheme == "pathological":
        if not 1 <= classes_per_client <= num_classes:
            raise DataError(
                f"classes-per-client is {classes_per_client}, but it must lie between 1 and {num_classes}, the number "
                "of classes that have samples."
            )
        if num_partitions * classes_per_client < num_classes:
            raise DataError(
                f"{num_partitions} clients with classes-per-client = {classes_per_client} hold at most "
                f"{num_partitions * classes_per_client} of {num_classes} classes, so that samples would belong to no "
                f"client: raise classes-per-client to {math.ceil(num_classes / num_partitions)} or the number of "
                "clients."
            )


def pathological_parts(
    labels: np.ndarray,
    num_partitions: int,
    classes_per_client: int,
    min_samples: int,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Deal classes to blocks of clients, in uneven parts, as the generator of HtFLlib, ProtoNorm and TinyProto does.

    Class after class goes to the first clients that have fewer than `classes_per_client`: to as many of them as
    there are places for each class. All of them but the last get a number of its rows that is uniform between a tenth
    of an even part (or `min_samples` over the number of classes, if that is more) and an even part; the last gets
    the rest.

    Args:
        labels: (n,) int, the class of each row, in the order in which rows are dealt.
        min_samples: not a bound: a client may get fewer rows.

    Returns:
        For each client its positions in `labels`, int64.
    """
    classes = np.unique(labels)
    places = np.full(num_partitions, classes_per_client)
    parts: list[list[np.ndarray]] = [[np.empty(0, dtype=np.int64)] for _ in range(num_partitions)]
    for number, label in enumerate(classes):
        client_count = math.ceil(places.sum() / (classes.size - number))
        holders = np.flatnonzero(places)[:client_count]
        positions = np.flatnonzero(labels == label)
        even = positions.size / holders.size
        least = min(max(even / 10, min_samples / classes.size), even)
        sizes = rng.integers(math.floor(least), math.floor(even), holders.size - 1, endpoint=True)
        for holder, part in zip(holders, np.split(positions, np.cumsum(sizes)), strict=True):
            parts[holder].append(part)
        places[holders] -= 1
    return [np.concatenate(client_parts) for client_parts in parts]


def _dirichlet_parts(
    labels: np.ndarray,
    num_partitions: int,
    alpha: float,
    self_balancing: bool,
    min_samples: int,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    """Positions in `labels` (n,) for each client; those of the last draw where none gives everyone `min_samples`."""
    even = labels.size / num_partitions
    for _ in range(_DRAWS):
        parts = [np.empty(0, dtype=np.int64) for _ in range(num_partitions)]
        for label in np.unique(labels):
            positions = np.flatnonzero(labels == label)
            shares = generator.dirichlet(np.full(num_partitions, float(alpha)))
            if self_balancing:
                shares[[part.size > even for part in parts]] = 0
                shares /= shares.sum()

            ends = (np.cumsum(shares) * positions.size).astype(int)[:-1]
            for client, piece in enumerate(np.split(positions, ends)):
                parts[client] = np.concatenate([parts[client], piece])

        if min(map(len, parts)) >= min_samples:
            break
    return parts


def _largest_remainder(quotas: np.ndarray, total: int, room: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Whole numbers (k,) near `quotas` that sum to `total` if `room` allows it (Hamilton's apportionment).

    Each gets the whole part of its quota; what is left goes, one each, to the largest remainders that have room, and
    again so while there is room. Of equal remainders the larger entry of `ties` comes first, then the lower index.
    """
    seats = np.minimum(np.floor(quotas + 1e-9).astype(np.int64), room)
    remainders = np.round(quotas - seats, 9)
    ranking = np.lexsort((np.arange(quotas.size), -ties, -remainders))
    while (missing := total - int(seats.sum())) > 0:
        ranking = ranking[seats[ranking] < room[ranking]]
        if not ranking.size:
            break
        seats[ranking[:missing]] += 1
    return seats


def split_rows(
    labels: np.ndarray, test_share: float, validation_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split one client's rows into train, test and validation, stratified by class.

    The test part has round(share · m) rows, dealt to the classes by largest remainder; then the validation part
    likewise. Each class keeps at least one training row, so a class of one row is a training row; test goes before
    validation where both want the last free row of a class.

    Args:
        labels: (m,) int.
        test_share, validation_share: each at least 0, together below 1.
        seed: at least 0; decides which rows of a class go where.

    Returns:
        Three sorted int64 arrays of positions in `labels`: a disjoint cover of 0..m−1.
    """
    labels = np.asarray(labels)
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    test = _largest_remainder(counts * test_share, math.floor(labels.size * test_share + 0.5), counts - 1, counts)
    validation = _largest_remainder(
        counts * validation_share,
        math.floor(labels.size * validation_share + 0.5),
        counts - 1 - test,
        counts,
    )
    order = np.lexsort((np.random.default_rng(seed).random(labels.size), codes))
    codes = codes[order]
    rank = np.arange(labels.size) - (np.cumsum(counts) - counts)[codes]
    in_test = rank < test[codes]
    in_validation = ~in_test & (rank < (test + validation)[codes])
    return np.sort(order[~in_test & ~in_validation]), np.sort(order[in_test]), np.sort(order[in_validation])


def deal_test_rows(test_labels: np.ndarray, train_counts: np.ndarray, seed: int) -> list[np.ndarray]:
    """Deal an official test split: each class's rows in proportion to the clients' training rows of that class.

    Args:
        test_labels: (m,) int in 0..K−1.
        train_counts: (clients, K) int, rows that each client holds of each class in the official training split.
        seed: at least 0; decides which rows, and who gets the last row of equal remainders.

    Returns:
        For each client its sorted positions in `test_labels`. A class that no client holds is dealt to nobody.
    """
    rng = np.random.default_rng(seed)
    dealt: list[list[np.ndarray]] = [[] for _ in train_counts]
    for label in np.flatnonzero(train_counts.sum(axis=0)):
        rows = rng.permutation(np.flatnonzero(test_labels == label))
        counts = train_counts[:, label]
        room = np.where(counts > 0, rows.size, 0)
        shares = _largest_remainder(counts / counts.sum() * rows.size, rows.size, room, rng.random(counts.size))
        for client, part in enumerate(np.split(rows, np.cumsum(shares)[:-1])):
            dealt[client].append(part)
    return [np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts])) for parts in dealt]


def class_counts(labels: np.ndarray, parts: list[np.ndarray], num_classes: int) -> np.ndarray:
    """Rows of each class (columns) that each client (rows) holds: (clients, num_classes) int64."""
    counts = [np.bincount(labels[part], minlength=num_classes) for part in parts]
    return np.array(counts, dtype=np.int64).reshape(len(parts), num_classes)
