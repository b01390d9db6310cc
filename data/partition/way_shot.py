"""w-way s-shot (GFPL, section 5.1; PFPL, "Mixed heterogeneous setting"): a few classes a client, a few rows a class."""

from collections.abc import Sequence

import numpy as np

from protosphere.core.errors import DataError

WAY_SHOT = "way-shot"
FEWEST_WAYS = 2  # of one class alone every answer is right


def way_shot_rows(
    labels: np.ndarray,
    num_clients: int,
    rng: np.random.Generator,
    class_names: Sequence[str],
    *,
    ways: int,
    ways_spread: int,
    shots: int,
    shots_spread: int,
) -> list[np.ndarray]:
    """Give each client some classes, and of each of them some rows that no other client has.

    A client's number of classes is a uniform integer from max(2, ways − ways_spread) to ways + ways_spread, or to the
    number of classes where that is less. Any set of so many classes that have rows is as likely. Its number of rows,
    the same of each of its classes, is a uniform integer from max(1, shots − shots_spread) to shots + shots_spread.
    What nobody drew belongs to nobody.

    Args:
        labels: (n,) int in 0..K−1, the class of each row.
        num_clients: at least 1. rng: decides the rows.
        class_names: K names, for messages.
        ways: w̄, 2 to the number of classes that have rows. ways_spread: ŵ, at least 0.
        shots: s̄, at least 1. shots_spread: ŝ, at least 0.

    Returns:
        For each client its row indices, sorted, int64; disjoint, rarely a cover.

    Raises:
        DataError: `shots` 0, more `ways` than classes, or a class with fewer rows than the clients that drew it want.
    """
    present, codes = np.unique(labels, return_inverse=True)
    if not shots:
        raise DataError("shots is 0, but it must be 1 or more.")
    if present.size < FEWEST_WAYS:
        raise DataError(
            f"the {WAY_SHOT} partition gives each client at least {FEWEST_WAYS} classes, but the training samples are "
            f"of {present.size}: raise max-samples if it is set, or give a data set of more classes."
        )
    check_ways(ways, present.size)
    allowed = np.ones((num_clients, present.size), dtype=bool)
    demand = draw_wanted(allowed, ways, ways_spread, shots, shots_spread, rng)
    had = np.bincount(codes)
    refuse_too_few(demand, had, [f"class {class_names[label]!r}" for label in present], WAY_SHOT)
    return hand_out(demand, codes, rng)


def draw_wanted(
    allowed: np.ndarray, ways: int, ways_spread: int, shots: int, shots_spread: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw how many rows of each cell (a class, or a class of a domain) each client wants: (clients, cells) int64.

    Args:
        allowed: (clients, cells) bool, the cells that a client may draw, at least 2 each.
        ways, ways_spread, shots, shots_spread: as of way_shot_rows; a client draws a cell for each way.
    """
    clients, cells = len(allowed), len(allowed.T)
    most = np.minimum(ways + ways_spread, allowed.sum(axis=1))
    fewest = np.minimum(max(FEWEST_WAYS, ways - ways_spread), most)
    drawn = rng.integers(fewest, most, clients, endpoint=True)
    places = rng.permuted(np.broadcast_to(np.arange(cells), allowed.shape), axis=1)
    # what a client may not draw comes last of all
    ranks = np.where(allowed, places, cells).argsort(axis=1).argsort(axis=1)
    shots_by_client = rng.integers(max(1, shots - shots_spread), shots + shots_spread, clients, endpoint=True)
    demand = np.repeat(shots_by_client[:, None], cells, axis=1)
    demand[ranks >= drawn[:, None]] = 0
    return demand


def hand_out(demand: np.ndarray, codes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each client as many rows of each cell as it wants, at random and each row to one client.

    Args:
        demand: (clients, cells) int, of no cell more than there are.
        codes: (n,) int in 0..cells−1, the cell of each row.

    Returns:
        For each client its row indices, sorted, int64.
    """
    clients, cells = demand.shape
    had = np.bincount(codes, minlength=cells)
    # rows by cell and then at random are handed to client after client; the last to hold a cell is nobody
    order = np.lexsort((rng.random(codes.size), codes))
    counts = np.vstack([demand, had - demand.sum(axis=0)])
    holder = np.repeat(np.tile(np.arange(clients + 1), cells), counts.T.ravel())
    by_holder = order[np.lexsort((order, holder))]
    return np.split(by_holder, np.cumsum(counts.sum(axis=1))[:-1])[:clients]


def rows_of_held_classes(labels: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """For each client all rows of the classes that it holds, sorted; clients that share a class share its rows.

    Args:
        labels: (m,) int in 0..K−1.
        counts: (clients, K) int, rows that each client holds of each class elsewhere.
    """
    return [np.flatnonzero(mask[labels]) for mask in counts > 0]


def check_ways(ways: int, num_classes: int) -> None:
    """Refuse a number of classes a client that no client can have.

    Raises:
        DataError: `ways` is below 2 or above `num_classes`, those that have rows.
    """
    if not FEWEST_WAYS <= ways <= num_classes:
        raise DataError(
            f"ways is {ways}, but it must lie between {FEWEST_WAYS} and {num_classes}, the number of classes that "
            "have training samples."
        )


def refuse_too_few(
    demand: np.ndarray,
    had: np.ndarray,
    cells: Sequence[str],
    partition: str,
    *,
    rows: str = "training samples",
    lower: str = "clients, shots or ways",
) -> None:
    """Refuse if a cell lacks rows; the message is about the one that lacks most, the first of equals.

    Args:
        demand: (clients, cells) int. had: (cells,) int.
        cells, partition, rows, lower: words of the message: what each cell is called, which partition this is, of what
            rows, and what may be too high.

    Raises:
        DataError: a cell has fewer rows than all clients together want.
    """
    lacking = demand.sum(axis=0) - had
    if lacking.max() <= 0:
        return
    worst = int(lacking.argmax())
    total, clients = int(demand[:, worst].sum()), np.count_nonzero(demand[:, worst])
    other_count = np.count_nonzero(lacking > 0) - 1
    also = (
        f" (and {other_count} more {'class lacks' if other_count == 1 else 'classes lack'} samples)"
        if other_count
        else ""
    )
    want = f"the {clients} clients that drew it in the {partition} partition want {total}"
    remedy = f"lower the number of {lower}, raise max-samples if it is set, or take another seed"
    raise DataError(
        f"{cells[worst]} has {had[worst]} {rows}, but {want}{also}: {remedy}.",
    )
