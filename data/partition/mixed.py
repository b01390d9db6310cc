"""Mixed heterogeneity (PFPL): each client one domain, and of that a few classes with a few rows, or all, of each."""

from collections.abc import Sequence

import numpy as np

from protosphere.core.errors import DataError
from protosphere.data.partition.way_shot import FEWEST_WAYS, check_ways, draw_wanted, hand_out, refuse_too_few

MIXED = "mixed"


def mixed_rows(
    labels: np.ndarray,
    domains: np.ndarray,
    num_clients: int,
    rng: np.random.Generator,
    class_names: Sequence[str],
    domain_names: Sequence[str],
    *,
    ways: int,
    ways_spread: int,
    shots: int,
    shots_spread: int,
) -> list[np.ndarray]:
    """Give each client one domain, some of its classes, and of each of them some rows that no other client has.

    The domains are dealt evenly: each to as many clients as any other, or to one more. A client's classes are drawn
    as in way_shot_rows, among those that have rows in its domain. So are its rows of a class, among those of its
    domain; or, with `shots` 0, the clients that drew a class of a domain share all its rows evenly (as many each, or
    one more), and `shots_spread` does not matter.

    Args:
        labels: (n,) int in 0..K−1, the class of each row.
        domains: (n,) int in 0..D−1, the domain of each row.
        num_clients: at least D. rng: decides the rows.
        class_names: K names, for messages. domain_names: D names, 2 at least.
        ways: w̄, 2 to the number of classes of the domain that has most. ways_spread: ŵ, at least 0.
        shots: s̄, at least 0. shots_spread: ŝ, at least 0.

    Returns:
        For each client its row indices, sorted, int64; disjoint, rarely a cover.

    Raises:
        DataError: fewer clients than domains, more `ways` than classes, a domain with rows of fewer than 2 classes, or
            a class of a domain with fewer rows than the clients that drew it want.
    """
    if num_clients < len(domain_names):
        raise DataError(
            f"the {MIXED} partition gives each client one domain, but there are {num_clients} clients for "
            f"{len(domain_names)} domains: raise the number of clients, or take domains out of dataset."
        )
    present, codes = np.unique(cells_of(labels, domains, len(class_names)), return_inverse=True)
    domain_of_cell, label_of_cell = np.divmod(present, len(class_names))
    classes = np.bincount(domain_of_cell, minlength=len(domain_names))
    if classes.min() < FEWEST_WAYS:
        raise DataError(
            f"the {MIXED} partition gives each client at least {FEWEST_WAYS} classes, but the samples of domain "
            f"{domain_names[int(classes.argmin())]!r} are of {classes.min()}: raise max-samples if it is set, or give "
            "a domain of more classes.",
        )
    check_ways(ways, int(classes.max()))
    domain_of_client = rng.permutation(np.resize(rng.permutation(len(domain_names)), num_clients))
    allowed = domain_of_client[:, None] == domain_of_cell
    demand = draw_wanted(allowed, ways, ways_spread, max(shots, 1), shots_spread if shots else 0, rng)
    had = np.bincount(codes)
    lower = "clients, shots or ways"
    if not shots:
        demand, lower = _evenly(demand > 0, had, rng), "clients or ways"
    pairs = zip(label_of_cell, domain_of_cell, strict=True)
    names = [f"class {class_names[label]!r} of domain {domain_names[domain]!r}" for label, domain in pairs]
    refuse_too_few(demand, had, names, MIXED, rows="rows", lower=lower)
    return hand_out(demand, codes, rng)


def cells_of(labels: np.ndarray, domains: np.ndarray, num_classes: int) -> np.ndarray:
    """A number for the class and the domain of each row: domain · K + class, (n,) int64."""
    return domains * num_classes + labels


def _evenly(drew: np.ndarray, had: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many of the `had` (cells,) rows each client gets of the cells that it `drew` (clients, cells): all are
    shared, the odd ones at random; one row each where there are fewer rows than clients, which is then too many."""
    turn = np.where(drew, rng.random(drew.shape), np.inf).argsort(axis=0).argsort(axis=0)
    share, odd = np.divmod(had, drew.sum(axis=0).clip(1))
    return np.where(drew, (share + (turn < odd)).clip(1), 0)
