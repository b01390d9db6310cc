"""w-way s-shot (GFPL, section 5.1; PFPL, "Mixed heterogeneous setting"): a few classes a client, a few rows a class."""

from collections.abc import Sequence

import numpy as np

from data import DataError

WAY_SHOT = "way-shot"
_FEWEST_WAYS = 2  # of one class alone every answer is right


def way_shot_rows(
    labels: np.ndarray,
    num_clients: int,
    class_names: Sequence[str],
    *,
    ways: int,
    ways_spread: int,
    shots: int,
    shots_spread: int,
    seed: int,
) -> list[np.ndarray]:
    """Give each client some classes, and of each of them some rows that no other client has.

    A client's number of classes is a uniform integer of [ways − ways_spread, ways + ways_spread]; a draw below 2 or
    above the number of classes counts as that bound. Any set of so many classes that have rows is as likely. Its
    number of rows of a class is a uniform integer of [shots − shots_spread, shots + shots_spread], or 1 below that,
    drawn for each class anew. What nobody drew belongs to nobody.

    Args:
        labels: (n,) int in 0..K−1, the class of each row.
        num_clients: at least 1.
        class_names: K names, for messages.
        ways: w̄, 2 to the number of classes that have rows. ways_spread: ŵ, at least 0.
        shots: s̄, at least 1. shots_spread: ŝ, at least 0.
        seed: at least 0; the same seed and labels give the same rows.

    Returns:
        For each client its row indices, sorted, int64; disjoint, rarely a cover.

    Raises:
        DataError: a value out of its range, or a class with fewer rows than the clients that drew it want.
    """
    present, codes = np.unique(labels, return_inverse=True)
    _check(num_clients, present.size, ways, ways_spread, shots, shots_spread)
    # partition_rows draws from [seed, attempt], assignment from [seed, client] and [seed, 0, 1]
    rng = np.random.default_rng([seed, 0, 2])
    drawn = rng.integers(ways - ways_spread, ways + ways_spread, num_clients, endpoint=True)
    drawn = drawn.clip(_FEWEST_WAYS, present.size)
    shape = (num_clients, present.size)
    places = rng.permuted(np.broadcast_to(np.arange(present.size), shape), axis=1)
    wanted = rng.integers(shots - shots_spread, shots + shots_spread, shape, endpoint=True).clip(1)
    wanted[places >= drawn[:, None]] = 0
    had = np.bincount(codes)
    _refuse_too_few(wanted, had, [class_names[label] for label in present])
    # rows by class and then at random are handed to client after client; the last to hold a class is nobody
    order = np.lexsort((rng.random(codes.size), codes))
    given = np.vstack([wanted, had - wanted.sum(axis=0)])
    holder = np.repeat(np.tile(np.arange(num_clients + 1), present.size), given.T.ravel())
    by_holder = order[np.lexsort((order, holder))]
    return np.split(by_holder, np.cumsum(given.sum(axis=1))[:-1])[:num_clients]


def rows_of_held_classes(labels: np.ndarray, held: np.ndarray) -> list[np.ndarray]:
    """For each client all rows of the classes that it holds, sorted; clients that share a class share its rows.

    Args:
        labels: (m,) int in 0..K−1.
        held: (clients, K) int, rows that each client holds of each class elsewhere.
    """
    return [np.flatnonzero(own[labels]) for own in held > 0]


def _check(num_clients: int, num_classes: int, ways: int, ways_spread: int, shots: int, shots_spread: int) -> None:
    if num_clients < 1:
        raise DataError(f"the number of clients is {num_clients}, but it must be at least 1.")
    if num_classes < _FEWEST_WAYS:
        raise DataError(
            f"the {WAY_SHOT} partition gives each client at least {_FEWEST_WAYS} classes, but the training rows are of "
            f"{num_classes}: raise max-samples if it is set, or give a data set of more classes."
        )
    if not _FEWEST_WAYS <= ways <= num_classes:
        raise DataError(
            f"ways is {ways}, but it must lie between {_FEWEST_WAYS} and {num_classes}, the number of classes that "
            "have training rows."
        )
    for name, value, least in (("ways-spread", ways_spread, 0), ("shots", shots, 1), ("shots-spread", shots_spread, 0)):
        if value < least:
            raise DataError(f"{name} is {value}, but it must be {least} or more.")


def _refuse_too_few(wanted: np.ndarray, had: np.ndarray, names: Sequence[str]) -> None:
    """Refuse if a class lacks rows; the message is about the one that lacks most, the first of equals."""
    lacking = wanted.sum(axis=0) - had
    if lacking.max() <= 0:
        return
    worst = int(lacking.argmax())
    total, clients = int(wanted[:, worst].sum()), np.count_nonzero(wanted[:, worst])
    others = np.count_nonzero(lacking > 0) - 1
    also = f" (and {others} more {'class lacks' if others == 1 else 'classes lack'} rows)" if others else ""
    raise DataError(
        f"class {names[worst]!r} has {had[worst]} training rows, but the {clients} clients that drew it in the "
        f"{WAY_SHOT} partition want {total}{also}: lower the number of clients, shots or ways, raise max-samples if it "
        "is set, or take another seed."
    )
