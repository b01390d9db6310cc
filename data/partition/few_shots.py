"""The partitions `way-shot` (GFPL, section 5.1) and `mixed` (PFPL, "Mixed heterogeneous setting"): a few classes per
client and a few samples per class, and with `mixed` all from one domain."""

from collections.abc import Sequence

import numpy as np

from protosphere.core.errors import DataError
from protosphere.data.partition.units import Pool
from protosphere.data.spec import DataSpec

FEWEST_WAYS = 2  # with a single class, every prediction is correct


def few_shots(pool: Pool, spec: DataSpec, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each client some classes, and some samples of each of them that no other client has.

    A client's number of classes is a uniform integer from max(2, ways − ways_spread) to ways + ways_spread, or to the
    number of classes if that is lower. All sets of that many classes with samples are equally likely. Its number of
    samples, equal for each of its classes, is a uniform integer from max(1, shots − shots_spread) to shots +
    shots_spread. Samples that no client draws are not used.

    With `mixed`, each client has one domain and draws from its classes; the numbers of clients per domain differ by at
    most one. With `shots` 0, the clients that draw a class of a domain share all its samples evenly.

    Returns:
        For each client its positions in the pool, sorted, int64; disjoint, rarely a cover.
    """
    samples = pool.samples
    class_names = samples.class_names
    is_mixed = spec.partition == "mixed" and samples.domains is not None
    domain_names = samples.domain_names if is_mixed else ()
    if not is_mixed and not spec.shots:
        raise DataError("shots is 0, but it must be 1 or more.")
    if spec.clients < len(domain_names):
        raise DataError(
            f"the mixed partition gives each client one domain, but there are {spec.clients} clients for "
            f"{len(domain_names)} domains: raise the number of clients, or take domains out of dataset."
        )
    # a cell is a class, or a class of a domain
    cells = pool.labels
    if is_mixed and samples.domains is not None:
        cells = samples.domains[pool.rows] * len(class_names) + cells
    present, codes = np.unique(cells, return_inverse=True)
    domain_of_cell, label_of_cell = np.divmod(present, len(class_names))
    num_classes = np.bincount(domain_of_cell, minlength=max(len(domain_names), 1))
    _refuse_few_classes(spec, num_classes, domain_names)

    allowed = np.ones((spec.clients, present.size), dtype=bool)
    if is_mixed:
        domain_of_client = rng.permutation(np.resize(rng.permutation(len(domain_names)), spec.clients))
        allowed = domain_of_client[:, None] == domain_of_cell
    demand = _draw_demand(allowed, spec, rng)
    available = np.bincount(codes)
    if not spec.shots:
        demand = _share_evenly(demand > 0, available, rng)
    # the cell with the largest shortage
    worst = int((demand.sum(axis=0) - available).argmax())
    needed = int(demand[:, worst].sum())
    if needed > available[worst]:
        name = f"class {class_names[label_of_cell[worst]]!r}"
        if is_mixed:
            name += f" of domain {domain_names[domain_of_cell[worst]]!r}"
        raise DataError(
            f"{name} has {available[worst]} samples, but the {np.count_nonzero(demand[:, worst])} clients that drew it "
            f"in the {spec.partition} partition want {needed}: lower the number of clients, shots or ways, raise "
            "max-samples if it is set, or take another seed."
        )
    return _hand_out(demand, codes, rng)


def _refuse_few_classes(spec: DataSpec, num_classes: np.ndarray, domain_names: Sequence[str]) -> None:
    """Refuse domains, or a data set, of too few classes, `num_classes` (D,), for `ways`."""
    fewest, most = int(num_classes.min()), int(num_classes.max())
    if fewest < FEWEST_WAYS:
        what = "training samples"
        if domain_names:
            what = f"samples of domain {domain_names[int(num_classes.argmin())]!r}"
        raise DataError(
            f"the {spec.partition} partition gives each client at least {FEWEST_WAYS} classes, but the {what} are of "
            f"{fewest}: raise max-samples if it is set, or give data of more classes."
        )
    if not FEWEST_WAYS <= spec.ways <= most:
        raise DataError(
            f"ways is {spec.ways}, but it must lie between {FEWEST_WAYS} and {most}, the number of classes that have "
            "training samples."
        )


def _draw_demand(allowed: np.ndarray, spec: DataSpec, rng: np.random.Generator) -> np.ndarray:
    """Draw how many samples of each cell each client wants: (clients, cells) int64.

    Args:
        allowed: (clients, cells) bool, the cells that a client may draw, at least 2 each.
    """
    clients, cells = allowed.shape
    most = np.minimum(spec.ways + spec.ways_spread, allowed.sum(axis=1))
    fewest = np.minimum(max(FEWEST_WAYS, spec.ways - spec.ways_spread), most)
    ways = rng.integers(fewest, most, clients, endpoint=True)
    places = rng.permuted(np.broadcast_to(np.arange(cells), allowed.shape), axis=1)
    # cells that a client may not draw come last
    ranks = np.where(allowed, places, cells).argsort(axis=1).argsort(axis=1)
    shots, spread = (spec.shots, spec.shots_spread) if spec.shots else (1, 0)
    shots_by_client: np.ndarray = rng.integers(max(1, shots - spread), shots + spread, (clients, 1), endpoint=True)
    return np.where(ranks < ways[:, None], shots_by_client, 0)


def _share_evenly(is_sharing: np.ndarray, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The number of the `available` (cells,) samples for each client, (clients, cells), of the cells that it shares.

    All samples are shared, and remainders go to random clients; a client gets at least one, even if there are fewer
    samples than clients.
    """
    turn = np.where(is_sharing, rng.random(is_sharing.shape), np.inf).argsort(axis=0).argsort(axis=0)
    share, odd = np.divmod(available, is_sharing.sum(axis=0).clip(1))
    return np.where(is_sharing, (share + (turn < odd)).clip(1), 0)


def _hand_out(demand: np.ndarray, codes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each client the requested number of samples of each cell, at random, and each sample to one client.

    Args:
        demand: (clients, cells) int, at most the number of samples per cell.
        codes: (n,) int in 0..cells−1, the cell of each sample.
    """
    clients, cells = demand.shape
    available = np.bincount(codes, minlength=cells)
    # samples, sorted by cell and then randomly, go to one client after another; the last holder of a cell gets the
    # rest, which is unused
    order = np.lexsort((rng.random(codes.size), codes))
    counts = np.vstack([demand, available - demand.sum(axis=0)])
    holder = np.repeat(np.tile(np.arange(clients + 1), cells), counts.T.ravel())
    by_holder = order[np.lexsort((order, holder))]
    return np.split(by_holder, np.cumsum(counts.sum(axis=1))[:-1])[:clients]
