"""How samples come to clients, by partition: who gets which training samples, and which official test samples.

A dealer deals units: samples, or the groups of samples that stay together. Each draw has a generator of its own, so
that none moves another: partition_rows has [seed, attempt], the splits of clients [seed, client], the shared test set
[seed, 0, 1], and the dealers below [seed, 0, 2] and [seed, 0, 3].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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


class Dealer(Protocol):
    """A partition."""

    def deal(self, pool: Pool) -> list[np.ndarray]:
        """For each client the units of training (and, of split = "pooled", test) samples that it gets, (k,) int64."""

    def deal_tests(self, pool: Pool, parts: list[np.ndarray], tests: Pool) -> list[np.ndarray]:
        """For each client the units of official test samples that it gets."""


@dataclass(frozen=True)
class All:
    """A site's own samples: one client has them all."""

    def deal(self, pool: Pool) -> list[np.ndarray]:
        """All of them."""
        return [np.arange(len(pool.units))]

    def deal_tests(self, pool: Pool, parts: list[np.ndarray], tests: Pool) -> list[np.ndarray]:
        """All of them."""
        return self.deal(tests)


@dataclass(frozen=True)
class Drawn:
    """A partition by classes alone: drawn, or counted in a table. Test samples follow the classes."""

    spec: DataSpec

    def deal(self, pool: Pool) -> list[np.ndarray]:
        """As the partition's name says."""
        spec, samples, units = self.spec, pool.samples, pool.units
        if spec.partition == TABLE:
            rng = np.random.default_rng([spec.seed, 0, 3])
            return table_rows(units.labels, spec.clients, rng, spec.partition_table, samples.class_names)
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

    def deal_tests(self, pool: Pool, parts: list[np.ndarray], tests: Pool) -> list[np.ndarray]:
        """Those of each class in proportion to the clients' samples of it."""
        counts = class_counts(pool.units.labels, parts, len(pool.samples.class_names))
        return deal_test_rows(tests.units.labels, counts, self.spec.seed)


@dataclass(frozen=True)
class FewShots:
    """`way-shot` and `mixed`: a few samples of a few classes, and with `mixed` of one domain. A client is tested on all
    samples of what it holds."""

    spec: DataSpec

    def deal(self, pool: Pool) -> list[np.ndarray]:
        """As the partition's name says."""
        spec, samples = self.spec, pool.samples
        labels = samples.labels[pool.rows]
        draws = {name: getattr(spec, name) for name in ("ways", "ways_spread", "shots", "shots_spread")}
        if spec.partition == MIXED and samples.domains is not None:
            rng = np.random.default_rng([spec.seed, 0, 3])
            domains = samples.domains[pool.rows]
            names = samples.class_names, samples.domain_names
            return few_shot_rows(labels, spec.clients, rng, names[0], domains, names[1], **draws)
        rng = np.random.default_rng([spec.seed, 0, 2])
        return few_shot_rows(labels, spec.clients, rng, samples.class_names, **draws)

    def deal_tests(self, pool: Pool, parts: list[np.ndarray], tests: Pool) -> list[np.ndarray]:
        """All of the classes, and with `mixed` of the domain, that a client holds."""
        samples = pool.samples
        kinds, cells = len(samples.class_names), samples.labels
        if self.spec.partition == MIXED and samples.domains is not None:
            cells = cells_of(samples.labels, samples.domains, kinds)
            kinds *= len(samples.domain_names)
        return rows_of_held_classes(cells[tests.rows], class_counts(cells[pool.rows], parts, kinds))


@dataclass(frozen=True, eq=False)
class BySite:
    """`column` and `sites`: the samples of each site, which `sites` (n,) int64 numbers, to one client: in their order,
    round robin where there are more than clients."""

    spec: DataSpec
    sites: np.ndarray

    def deal(self, pool: Pool) -> list[np.ndarray]:
        """All of a client's sites.

        Raises:
            DataError: fewer sites than clients.
        """
        return self._deal(pool, pool)

    def deal_tests(self, pool: Pool, parts: list[np.ndarray], tests: Pool) -> list[np.ndarray]:
        """All of a client's sites; those without a training sample are nobody's."""
        return self._deal(pool, tests)

    def _deal(self, pool: Pool, dealt: Pool) -> list[np.ndarray]:
        present, clients = np.unique(self.sites[pool.rows]), self.spec.clients
        if len(present) < clients:
            what, where = ("values in partition-column", "it has")
            if self.spec.partition == SITES:
                what, where = ("data sets in dataset", "it lists")
            raise DataError(
                f"{clients} clients need as many {what}, one each, but {where} {len(present)}: set clients to that "
                "number or fewer, or take another partition."
            )
        values = dealt.by_unit(self.sites)
        parts = []
        for client in range(clients):
            parts.append(np.flatnonzero(np.isin(values, present[client::clients])))
        return parts


def sites_of(spec: DataSpec, samples: Samples) -> np.ndarray | None:
    """The number of each sample by which it goes to a client whole; None where the partition draws."""
    return {COLUMN: samples.sites, SITES: samples.domains}.get(spec.partition)


def dealer_of(spec: DataSpec, samples: Samples) -> Dealer:
    """How a partition deals.

    Raises:
        DataError: these samples cannot be dealt so.
    """
    partition = spec.partition
    if partition == WAY_SHOT and samples.train_rows == len(samples.labels):
        raise DataError(
            f"data set {samples.name!r} has no official test samples, which the {WAY_SHOT} partition tests on: give "
            "one that has, or another partition."
        )
    if partition == MIXED and len(samples.domain_names) < 2:
        raise DataError(
            f"the {MIXED} partition gives each client one of several domains, but {samples.name!r} is one: set dataset "
            'to a list ("mnist,usps") or to a "<folder>/*" of several, or take another partition.'
        )
    if partition == COLUMN and samples.sites is None:
        raise DataError(
            "the column partition divides the samples by a table's column, but the data have none: take another."
        )
    if partition == SITES and len(samples.domain_names) < 2:
        raise DataError(
            "the sites partition gives each client one data set of a list, but dataset is one: set it to a list, as "
            '"./berlin.csv,./paris.csv", or take another partition.'
        )
    if samples.groups is not None and partition in (WAY_SHOT, MIXED, TABLE):
        raise DataError(
            f"the {partition} partition divides single samples, but those of {samples.name!r} come in groups: use "
            "another partition, or no group-column."
        )

    sites = sites_of(spec, samples)
    if sites is not None:
        return BySite(spec, sites)
    return FewShots(spec) if partition in (WAY_SHOT, MIXED) else Drawn(spec)
