"""The partitions `way-shot` (GFPL, section 5.1) and `mixed` (PFPL, "Mixed heterogeneous setting"): a few classes a
client, a few samples a class, and with `mixed` all of one domain."""

from collections.abc import Sequence

import numpy as np

from protosphere.core.errors import DataError

WAY_SHOT, MIXED = "way-shot", "mixed"
FEWEST_WAYS = 2  # of one class alone every answer is right


def few_shot_rows(
    labels: np.ndarray,
    num_clients: int,
    rng: np.random.Generator,
    class_names: Sequence[str],
    domains: np.ndarray | None = None,
    domain_names: Sequence[str] = (),
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

    With domains each client has one, and draws of its classes and rows; each domain goes to as many clients as any
    other, or to one more. With `shots` 0 the clients that drew a class of a domain share all its rows evenly (as many
    each, or one more), and `shots_spread` does not matter.

    Args:
        labels: (n,) int in 0..K−1, the class of each row.
        num_clients: at least 1, or as many as domains. rng: decides the rows.
        class_names: K names, for messages.
        domains: (n,) int in 0..D−1, the domain of each row, of those that `domain_names` name; None for `way-shot`.
        ways: w̄, 2 to the number of classes that have rows. ways_spread: ŵ, at least 0.
        shots: s̄, at least 1, or 0 with domains. shots_spread: ŝ, at least 0.

    Returns:
        For each client its row indices, sorted, int64; disjoint, rarely a cover.

    Raises:
        DataError: `shots` 0 without domains, fewer clients than domains, rows of fewer than two classes, more `ways`
            than classes, or a class with fewer rows than the clients that drew it want.
    """
    partition = WAY_SHOT if domains is None else MIXED
    if domains is None and not shots:
        raise DataError("shots is 0, but it must be 1 or more.")
    if num_clients < len(domain_names):
        raise DataError(
            f"the {MIXED} partition gives each client one domain, but there are {num_clients} clients for "
            f"{len(domain_names)} domains: raise the number of clients, or take domains out of dataset."
        )
    cells = labels if domains is None else cells_of(labels, domains, len(class_names))
    present, codes = np.unique(cells, return_inverse=True)
    domain_of_cell, label_of_cell = np.divmod(present, len(class_names))
    classes = np.bincount(domain_of_cell, minlength=max(len(domain_names), 1))
    _refuse_few_classes(classes, ways, partition, domain_names)

    allowed = np.ones((num_clients, present.size), dtype=bool)
    if domains is not None:
        domain_of_client = rng.permutation(np.resize(rng.permutation(len(domain_names)), num_clients))
        allowed = domain_of_client[:, None] == domain_of_cell
    demand = _draw_demand(allowed, ways, ways_spread, max(shots, 1), shots_spread if shots else 0, rng)
    available = np.bincount(codes)
    if not shots:
        demand = _share_evenly(demand > 0, available, rng)
    # of all cells the one that lacks most
    worst = int((demand.sum(axis=0) - available).argmax())
    needed = int(demand[:, worst].sum())
    if needed > available[worst]:
        name = f"class {class_names[label_of_cell[worst]]!r}"
        if domains is not None:
            name += f" of domain {domain_names[domain_of_cell[worst]]!r}"
        clients = np.count_nonzero(demand[:, worst])
        lower = "clients, shots or ways" if shots else "clients or ways"
        raise DataError(
            f"{name} has {available[worst]} samples, but the {clients} clients that drew it in the {partition} "
            f"partition want {needed}: lower the number of {lower}, raise max-samples if it is set, or take another "
            "seed."
        )
    return _hand_out(demand, codes, rng)


def cells_of(labels: np.ndarray, domains: np.ndarray, num_classes: int) -> np.ndarray:
    """A number for the class and the domain of each row: domain · K + class, (n,) int64."""
    return domains * num_classes + labels


def rows_of_held_classes(labels: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """For each client all rows of the classes that it holds, sorted; clients that share a class share its rows.

    Args:
        labels: (m,) int in 0..K−1.
        counts: (clients, K) int, rows that each client holds of each class elsewhere.
    """
    return [np.flatnonzero(mask[labels]) for mask in counts > 0]


def _refuse_few_classes(classes: np.ndarray, ways: int, partition: str, domain_names: Sequence[str]) -> None:
    """Refuse `classes` (D,) that are too few, or `ways` that no client can have."""
    if classes.min() < FEWEST_WAYS:
        what, source = "training samples", "data set"
        if domain_names:
            what, source = f"samples of domain {domain_names[int(classes.argmin())]!r}", "domain"
        raise DataError(
            f"the {partition} partition gives each client at least {FEWEST_WAYS} classes, but the {what} are of "
            f"{classes.min()}: raise max-samples if it is set, or give a {source} of more classes."
        )
    if not FEWEST_WAYS <= ways <= classes.max():
        raise DataError(
            f"ways is {ways}, but it must lie between {FEWEST_WAYS} and {classes.max()}, the number of classes that "
            "have training samples."
        )


def _draw_demand(
    allowed: np.ndarray, ways: int, ways_spread: int, shots: int, shots_spread: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw how many rows of each cell (a class, or a class of a domain) each client wants: (clients, cells) int64.

    Args:
        allowed: (clients, cells) bool, the cells that a client may draw, at least 2 each.
    """
    clients, cells = len(allowed), allowed.shape[1]
    most = np.minimum(ways + ways_spread, allowed.sum(axis=1))
    fewest = np.minimum(max(FEWEST_WAYS, ways - ways_spread), most)
    drawn = rng.integers(fewest, most, clients, endpoint=True)
    places = rng.permuted(np.broadcast_to(np.arange(cells), allowed.shape), axis=1)
    # what a client may not draw comes last of all
    ranks = np.where(allowed, places, cells).argsort(axis=1).argsort(axis=1)
    shots_by_client = rng.integers(max(1, shots - shots_spread), shots + shots_spread, clients, endpoint=True)
    demand: np.ndarray = np.repeat(shots_by_client[:, None], cells, axis=1)
    demand[ranks >= drawn[:, None]] = 0
    return demand


def _share_evenly(drew: np.ndarray, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many of the `available` (cells,) rows each client gets of the cells that it `drew` (clients, cells): all are
    shared, the odd ones at random; one row each where there are fewer rows than clients, which is then too many."""
    turn = np.where(drew, rng.random(drew.shape), np.inf).argsort(axis=0).argsort(axis=0)
    share, odd = np.divmod(available, drew.sum(axis=0).clip(1))
    return np.where(drew, (share + (turn < odd)).clip(1), 0)


def _hand_out(demand: np.ndarray, codes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each client as many rows of each cell as it wants, at random and each row to one client.

    Args:
        demand: (clients, cells) int, of no cell more than there are.
        codes: (n,) int in 0..cells−1, the cell of each row.
    """
    clients, cells = demand.shape
    available = np.bincount(codes, minlength=cells)
    # rows by cell and then at random are handed to client after client; the last to hold a cell is nobody
    order = np.lexsort((rng.random(codes.size), codes))
    counts = np.vstack([demand, available - demand.sum(axis=0)])
    holder = np.repeat(np.tile(np.arange(clients + 1), cells), counts.T.ravel())
    by_holder = order[np.lexsort((order, holder))]
    return np.split(by_holder, np.cumsum(counts.sum(axis=1))[:-1])[:clients]
