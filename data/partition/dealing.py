"""How samples come to clients, by partition: who gets which training samples, and which official test samples.

Dealt are units: samples, or the groups of samples that stay together. Each draw has a generator of its own, so that
none moves another: partition_rows has [seed, attempt], the splits of clients [seed, client], the shared test set
[seed, 0, 1], and the partitions below [seed, 0, 2] and [seed, 0, 3].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from protosphere.core.errors import DataError
from protosphere.data.partition.few_shots import MIXED, WAY_SHOT, cells_of, few_shot_rows, rows_of_held_classes
from protosphere.data.partition.groups import Units
from protosphere.data.partition.partitioners import class_counts, deal_test_rows, partition_rows
from protosphere.data.partition.table import TABLE, table_rows
from protosphere.data.samples import Samples

if TYPE_CHECKING:
    from protosphere.data.partition.assignment import DataSpec

COLUMN, SITES = "column", "sites"
Parts = list[np.ndarray]  # for each client the units that it gets, (k,) int64


@dataclass(frozen=True, eq=False)
class Pool:
    """What is dealt: the samples `rows` (m,) int64 of a data set, as units."""

    samples: Samples
    rows: np.ndarray
    units: Units

    @classmethod
    def of(cls, samples: Samples, rows: np.ndarray) -> Pool:
        """The pool of some samples."""
        groups = None if samples.groups is None else samples.groups[rows]
        return cls(samples, rows, Units.of(samples.labels[rows], groups))

    def by_unit(self, values: np.ndarray) -> np.ndarray:
        """Of values (n,) of all samples the one of each unit, (u,).

        Raises:
            DataError: samples of a group have several.
        """
        values = values[self.rows]
        if self.units.of_row is None:
            return values
        by_unit = np.zeros(len(self.units), dtype=values.dtype)
        by_unit[self.units.of_row] = values
        if not np.array_equal(by_unit[self.units.of_row], values):
            raise DataError(
                "samples that share a group have several values in partition-column, but a group goes to one client: "
                "name another group-column, or none."
            )
        return by_unit


def deal(spec: DataSpec, pool: Pool) -> Parts:
    """The training (and, of split = "pooled", test) samples of each client.

    Raises:
        DataError: these samples cannot be dealt so.
    """
    samples, units, seed = pool.samples, pool.units, spec.seed
    sites = sites_of(spec, samples)
    if sites is not None:
        return _deal_sites(spec, sites, pool, pool)
    if spec.partition == TABLE:
        rng = np.random.default_rng([seed, 0, 3])
        return table_rows(units.labels, spec.clients, rng, spec.partition_table, samples.class_names)
    if spec.partition in (WAY_SHOT, MIXED):
        draws = {name: getattr(spec, name) for name in ("ways", "ways_spread", "shots", "shots_spread")}
        domains, rng = None, np.random.default_rng([seed, 0, 2])
        if spec.partition == MIXED and samples.domains is not None:
            domains, rng = samples.domains[pool.rows], np.random.default_rng([seed, 0, 3])
        domain_names = () if domains is None else samples.domain_names
        return few_shot_rows(units.labels, spec.clients, rng, samples.class_names, domains, domain_names, **draws)
    try:
        return partition_rows(
            units.labels,
            spec.clients,
            spec.partition,
            alpha=spec.alpha,
            self_balancing=spec.self_balancing,
            classes_per_client=spec.classes_per_client,
            min_samples=spec.min_samples,
            seed=seed,
        )
    except DataError as error:
        if units.of_row is None:
            raise
        raise DataError(f"{str(error).rstrip('.')}; samples that share a group count as one here.") from error


def deal_tests(spec: DataSpec, pool: Pool, parts: Parts, tests: Pool) -> Parts:
    """The official test samples of each client: of its sites; with `way-shot` and `mixed` all of the classes, and of
    the domain, that it holds; else those of each class in proportion to the clients' training samples of it.

    Args:
        pool, parts: what is dealt to train on, and how. tests: what is dealt to test on.
    """
    samples = pool.samples
    sites = sites_of(spec, samples)
    if sites is not None:
        return _deal_sites(spec, sites, pool, tests)
    cells, kinds = samples.labels, len(samples.class_names)
    if spec.partition not in (WAY_SHOT, MIXED):
        return deal_test_rows(tests.units.labels, class_counts(pool.units.labels, parts, kinds), spec.seed)
    if spec.partition == MIXED and samples.domains is not None:
        cells = cells_of(samples.labels, samples.domains, kinds)
        kinds *= len(samples.domain_names)
    return rows_of_held_classes(cells[tests.rows], class_counts(cells[pool.rows], parts, kinds))


def sites_of(spec: DataSpec, samples: Samples) -> np.ndarray | None:
    """The number of each sample by which it goes to a client whole; None where the partition draws."""
    return {COLUMN: samples.sites, SITES: samples.domains}.get(spec.partition)


def _deal_sites(spec: DataSpec, sites: np.ndarray, pool: Pool, dealt: Pool) -> Parts:
    """`column` and `sites`: those of `dealt` of each site, which `sites` (n,) int64 numbers, to one client: in their
    order, round robin where there are more than clients. Sites without a training sample are nobody's.

    Raises:
        DataError: fewer sites than clients.
    """
    present, clients = np.unique(sites[pool.rows]), spec.clients
    if len(present) < clients:
        what = "data sets in dataset" if spec.partition == SITES else "values in partition-column"
        raise DataError(
            f"{clients} clients need as many {what}, one each, but there are {len(present)}: set clients to that "
            "number or fewer, or take another partition."
        )
    values = dealt.by_unit(sites)
    return [np.flatnonzero(np.isin(values, present[client::clients])) for client in range(clients)]


def refuse_undealable(spec: DataSpec, samples: Samples) -> None:
    """Refuse samples that the partition cannot divide.

    Raises:
        DataError: what they lack.
    """
    partition = spec.partition
    problem = ""
    if partition == WAY_SHOT and samples.train_rows == len(samples.labels):
        problem = f"tests on official test samples, but data set {samples.name!r} has none: give one that has"
    elif partition == MIXED and len(samples.domain_names) < 2:
        problem = (
            f"gives each client one of several domains, but {samples.name!r} is one: set dataset to a list "
            '("mnist,usps") or to a "<folder>/*" of several'
        )
    elif partition == COLUMN and samples.sites is None:
        problem = "divides the samples by a table's column, but the data have none: name one in partition-column"
    elif partition == SITES and len(samples.domain_names) < 2:
        problem = (
            "gives each client one data set of a list, but dataset is one: set it to a list, as "
            '"./berlin.csv,./paris.csv"'
        )
    elif samples.groups is not None and partition in (WAY_SHOT, MIXED, TABLE):
        problem = f"divides single samples, but those of {samples.name!r} come in groups: use no group-column"
    if problem:
        raise DataError(f"the {partition} partition {problem}, or take another partition.")
