"""Class statistics of clients added up, so that no client of many owns the sum: what `protosphere` and `fedcgs` share.

    client   m_ij of its classes, w_ij that each weighs, S_i the scatter of its n_i = sum_j w_ij rows
    server   s_j = sum_i w_ij m_ij,  n_j = sum_i w_ij,  mu_j = s_j / n_j
             Sigma = sum_i b_i n_i S_i / sum_i b_i n_i  +  sum_ij w_ij (m_ij - mu_j)(m_ij - mu_j)^T / sum_ij w_ij

over the clients whose means do not contradict most others' (protosphere/prototypes/agreement.py); b_i is the share of
a client's scatter that counts. Each of the two sums is divided by the samples that it is of, for a client may count in
one of them alone. A client weighs
HEAVIEST medians at most: a mean of so many rows is as good as known, so that more would add nothing but power. Two who
contradict each other, where nobody can say who is right, each get sums without the other's means; its scatter stays.

A scatter has no class that others could hold it against. Its trace, how much rows vary, counts as SPREAD medians of all
at most, and from NAMED medians on the scatter does not count at all; and in no direction do a client's rows vary more
than SHARE times as much as all others' together, or by more than SHARE times the variance of these, whichever is more.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from protosphere.core.client_names import client_word
from protosphere.core.errors import RunError
from protosphere.prototypes.agreement import FEW, Disagreement, disagreement
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import State
from protosphere.wire.claims import claimed_samples
from protosphere.wire.payloads import EVERYONE, Identity, Payload

Outliers = Literal["leave-out", "keep"]
HEAVIEST = 5.0
SPREAD, NAMED = 2.0, 3.0  # in medians of the trace: what counts of it, and from where on nothing does
SHARE = 2.0
ROUNDING = 1e-6  # of the trace, below which an eigenvalue is 0
RIDGE = 0.01  # of the others' scatter, so that no direction is without any


@dataclass(frozen=True)
class Statistics:
    """What one client tells.

    Attributes:
        means: m_ij, (k_i, d). weights: w_ij, (k_i,) float64. rows: of how many rows each mean is at least, (k_i,).
        scatter: n_i S_i, (d, d) float64.
    """

    means: PrototypeSet
    weights: Tensor
    rows: Tensor
    scatter: Tensor

    @property
    def trace(self) -> float:
        """Of S_i: the mean squared distance of a row from its class mean."""
        return float(self.scatter.trace() / self.weights.sum().clamp(min=1e-12))


@dataclass
class Pooled:
    """Of everybody who was heard.

    Attributes:
        heard: partitions, in the order in which they came; some told nothing.
        told: partition -> its statistics, without the scatter. traces: of the scatters, by partition.
        scatter: the sum of b_i n_i S_i, (d, d) float64, of those who were not left out when they came.
        scatter_samples: the sum of b_i n_i of the same clients, by which `scatter` is to be divided.
        waiting: partition -> n_i S_i of clients too few to be held against each other, until more have come.
        found: who is left out, and who contradicts whom.
        bounded: whether scatters were held against each other.
    """

    scatter: Tensor
    scatter_samples: float = 0.0
    heard: list[int] = field(default_factory=list)
    told: dict[int, Statistics] = field(default_factory=dict)
    traces: dict[int, float] = field(default_factory=dict)
    found: Disagreement = field(default_factory=Disagreement)
    bounded: bool = False
    waiting: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State, dim: int) -> "Pooled":
        """As a state keeps it; nobody where it is empty.

        Raises:
            RunError: an earlier version wrote it.
        """
        no_scatter = torch.zeros(0, 0, dtype=torch.float64)
        if not state:
            return cls(torch.zeros(dim, dim, dtype=torch.float64))
        if "scatter_samples" not in state:
            raise RunError(
                "the checkpoint is of an earlier version, whose sums do not tell of how many samples they are; start a "
                "new run."
            )
        pooled = cls(state["scatter"].clone(), float(state["scatter_samples"][0]), state["heard"].tolist())
        # none where nobody who was heard has a row
        for partition in state["owner"].unique().tolist() if "owner" in state else ():
            is_of_client = state["owner"] == partition
            means = PrototypeSet(state["labels"][is_of_client], state["vectors"][is_of_client])
            pooled.told[partition] = Statistics(
                means, state["shares"][is_of_client], state["rows"][is_of_client], no_scatter
            )
            # a version that did not ask kept none
            if "traces" in state:
                pooled.traces[partition] = float(state["traces"][is_of_client][0])
        if "waiting" in state:
            pooled.waiting = dict(zip(state["waiting"].tolist(), state["scatters"].clone(), strict=True))
        return pooled

    def as_state(self, num_classes: int) -> State:
        """Inverse of `of`, and beside it the sums and weights of all classes."""
        state: State = {
            "heard": torch.tensor(self.heard, dtype=torch.int64),
            "scatter": self.scatter,
            "scatter_samples": torch.tensor([self.scatter_samples], dtype=torch.float64),
        }
        statistics_by_client = sorted(self.told.items())
        if not statistics_by_client:
            return state
        owner = [torch.full((len(statistics.means),), partition) for partition, statistics in statistics_by_client]
        sums, weights, _ = self.sums(num_classes)
        if self.waiting:
            state |= {"waiting": torch.tensor(list(self.waiting)), "scatters": torch.stack([*self.waiting.values()])}
        return state | {
            "owner": torch.cat(owner),
            "labels": torch.cat([statistics.means.labels for _, statistics in statistics_by_client]),
            "vectors": torch.cat([statistics.means.vectors for _, statistics in statistics_by_client]),
            "shares": torch.cat([statistics.weights for _, statistics in statistics_by_client]),
            "rows": torch.cat([statistics.rows for _, statistics in statistics_by_client]),
            "traces": torch.cat(
                [
                    torch.full((len(statistics.means),), self.traces.get(p, 0.0)).double()
                    for p, statistics in statistics_by_client
                ]
            ),
            "sums": sums,
            "weights": weights,
        }

    def hear(
        self, fresh: Sequence[int], read: Callable[[int], Statistics | None], usual: float, outliers: Outliers
    ) -> None:
        """Take in clients that were not heard before, and judge everybody anew.

        Args:
            read: the statistics of one of them, which are asked for three times; None for one without rows.
            usual: the median of clients' samples.
        """
        self.heard += fresh
        waiting, self.waiting = self.waiting, {}
        size = sum(float(statistics.weights.sum()) for statistics in self.told.values())
        no_scatter = torch.zeros(0, 0, dtype=torch.float64)

        def read_semidefinite(partition: int) -> Statistics | None:
            statistics = read(partition)
            return statistics and replace(statistics, scatter=semidefinite(statistics.scatter))

        for partition in fresh:
            statistics = read_semidefinite(partition)
            if statistics is not None:
                self.told[partition] = Statistics(statistics.means, statistics.weights, statistics.rows, no_scatter)
                self.traces[partition] = statistics.trace
                size += float(statistics.weights.sum())
        # of clients whose rows vary, so that of three the median is not that of two
        can_be_held = sum(trace > 0 for trace in self.traces.values()) >= FEW
        self.bounded = outliers == "leave-out" and can_be_held

        def read_scatter(partition: int) -> tuple[Tensor, float]:
            """b_i n_i S_i and b_i n_i."""
            scatter = waiting.get(partition)
            if scatter is None:
                statistics = read_semidefinite(partition)
                assert statistics is not None
                scatter = statistics.scatter
            share = self.believed_share(partition) if self.bounded else 1.0
            return share * scatter, share * float(self.told[partition].weights.sum())

        partitions = [*waiting, *(partition for partition in fresh if partition in self.told)]
        total, usual_scatter, usual_count = self.scatter.clone(), self.scatter.clone(), self.scatter_samples
        for partition in partitions:
            added, samples = read_scatter(partition)
            total += added
            # that the many say how much rows vary
            share = min(1.0, usual / float(self.told[partition].weights.sum()))
            usual_scatter += share * added
            usual_count += share * samples
        if outliers == "leave-out" and usual_count:
            means = {partition: statistics.means for partition, statistics in self.told.items()}
            of_rows = {partition: statistics.rows for partition, statistics in self.told.items()}
            self.found = disagreement(means, of_rows, usual_scatter / usual_count)
        if outliers == "leave-out" and not can_be_held:
            varying = [p for p in partitions if self.traces[p] > 0 and p not in self.found.left_out]
            self.waiting = {partition: read_scatter(partition)[0] for partition in varying}
            for partition in partitions:
                # of single samples there is no scatter that could lie
                if partition not in self.waiting and partition not in self.found.left_out:
                    self.scatter_samples += read_scatter(partition)[1]
            return
        for partition in partitions:
            if partition in self.found.left_out:
                total -= read_scatter(partition)[0]
        for partition in partitions:
            if partition in self.found.left_out:
                continue
            added, samples = read_scatter(partition)
            if self.bounded:
                others_ratio = size / float(self.told[partition].weights.sum()) - 1
                added = bounded_by(added, total - added, SHARE * max(1.0, 1 / max(others_ratio, 1e-12)))
            self.scatter += added
            self.scatter_samples += samples

    def believed_share(self, partition: int) -> float:
        """How much of a client's scatter counts, 0 to 1, beside the traces of all."""
        times = self.traces[partition] / self.usual_trace
        return 0.0 if times > NAMED else min(1.0, SPREAD / max(times, SPREAD))

    @property
    def usual_trace(self) -> float:
        """The median of the traces, of clients whose rows vary."""
        return median([trace for trace in self.traces.values() if trace > 0] or [0.0])

    def sums(self, num_classes: int, without: Iterable[int] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """s_j (K, d), n_j (K,) and M (d, d), in float64, in ascending order of partitions. M is so much that
        (M - sum_j s_j s_j^T / n_j) / sum_j n_j is Sigma: the scatter in it is of as many samples as the means.

        Args:
            without: whose means are not in them, beside those that are left out.
        """
        dim = len(self.scatter)
        sums = torch.zeros(num_classes, dim, dtype=torch.float64)
        weights = torch.zeros(num_classes, dtype=torch.float64)
        scatter, scatter_samples = self.scatter.clone(), self.scatter_samples
        for partition, waiting_scatter in self.waiting.items():
            scatter += waiting_scatter
            scatter_samples += float(self.told[partition].weights.sum())
        moment = torch.zeros_like(scatter)
        for partition, statistics in sorted(self.told.items()):
            if partition in self.found.left_out or partition in without:
                continue
            vectors = statistics.means.vectors.double()
            weighted = statistics.weights.unsqueeze(1) * vectors
            sums[statistics.means.labels] += weighted
            weights[statistics.means.labels] += statistics.weights
            moment += weighted.T @ vectors
        if scatter_samples:
            moment += scatter * (float(weights.sum()) / scatter_samples)
        return sums, weights, moment

    def downloads(
        self, num_classes: int, discriminant: Callable[[Tensor, Tensor, Tensor], Payload]
    ) -> dict[int, Payload]:
        """What is made of the sums: for everyone, and for each who contradicts another without the other's means."""
        downloads = {EVERYONE: discriminant(*self.sums(num_classes))}
        for partition, opponents in self.found.disputes.items():
            downloads[partition] = discriminant(*self.sums(num_classes, without=opponents))
        return downloads

    def warnings(self, strategy: str) -> list[str]:
        """Sentences on who is left out and who contradicts whom."""
        keep = f'look at its labels, its data and its software; `{strategy}.outliers` "keep" takes it in'
        warnings = [
            f"{client_word(partition)} is left out of the shared statistics: its class means lie far from all others' "
            f"({keep})"
            for partition in self.found.far
        ]
        warnings += [
            f"{client_word(partition)} is left out of the shared statistics: its class means contradict those of the "
            f"clients that it can be held against ({keep})"
            for partition in self.found.contradicted
        ]
        warnings += [
            f"the samples of {client_word(partition)} vary {trace / self.usual_trace:.3g} times as much around their "
            f"class means as is usual, and count for the means alone ({keep})"
            for partition, trace in sorted(self.traces.items())
            if self.bounded and trace > NAMED * self.usual_trace and partition not in self.found.left_out
        ]
        return warnings + [
            f"{client_word(partition)} and {client_word(other)} contradict each other on their classes, and nobody "
            "can say who is right: neither gets what the other's means say; look at the labels of both"
            for partition, opponents in sorted(self.found.disputes.items())
            for other in sorted(opponents)
            if partition < other
        ]


def class_means_of(state: State) -> PrototypeSet:
    """mu_j = s_j / n_j of a state that `Pooled.as_state` made with sums, of the classes that somebody has."""
    present = state["weights"] > 0
    means = state["sums"][present] / state["weights"][present].unsqueeze(1)
    return PrototypeSet(present.nonzero().flatten(), means.float())


def semidefinite(scatter: Tensor) -> Tensor:
    """A scatter, (d, d), without the eigenvalues below 0 that rounding on the way, or a client, has given it."""
    slack = ROUNDING * scatter.trace().clamp(min=0) * torch.eye(len(scatter), dtype=scatter.dtype)
    if int(torch.linalg.cholesky_ex(scatter + slack).info) == 0:
        return scatter
    values, vectors = torch.linalg.eigh(scatter)
    return (vectors * values.clamp(min=0)) @ vectors.T


def bounded_by(scatter: Tensor, other_scatter: Tensor, most: float) -> Tensor:
    """A scatter, (d, d), of which no direction holds more than `most` times what the others have there."""
    spread = other_scatter.trace() / len(other_scatter)
    if not bool(spread > 0):
        return scatter
    factor = torch.linalg.cholesky(
        (1 - RIDGE) * other_scatter + RIDGE * spread * torch.eye(len(other_scatter), dtype=other_scatter.dtype)
    )
    half = torch.linalg.solve_triangular(factor, scatter, upper=False)
    relative = torch.linalg.solve_triangular(factor, half.T, upper=False)
    # the eigenvalues add up to the trace, and few clients of many come near
    if float(relative.trace()) <= most:
        return scatter
    values, vectors = torch.linalg.eigh((relative + relative.T) / 2)
    if float(values[-1]) <= most:
        return scatter
    basis = factor @ vectors
    return (basis * values.clamp(max=most)) @ basis.T


def usual_samples(identities: Mapping[int, Identity]) -> float:
    """The median of clients' training samples, of those that have any; 0 where nobody has."""
    claims = claimed_samples(identities)
    return float(median(claims.values())) if claims else 0.0


def impossible_means(means: PrototypeSet, wire_dtype: str) -> str:
    """Of means of unit vectors: what speaks against them, "" for nothing."""
    longest = float(means.vectors.double().norm(dim=1).max()) if len(means) else 0.0
    if longest <= 1 + rounding(means.vectors.shape[1], wire_dtype):
        return ""
    return f"a mean of unit vectors has norm 1 at most, and it holds one of norm {longest:.3g}"


def impossible_scatter(scatter: Tensor, tolerance: float) -> str:
    """Of the scatter of unit vectors around their class means, (d, d): what speaks against it, "" for nothing.

    Args:
        tolerance: what rounding on the way may add to a sum, or take from an eigenvalue.
    """
    trace, least = float(scatter.trace()), float(torch.linalg.eigvalsh(scatter.double())[0])
    if trace > 1 + tolerance:
        return f"the squared distances of unit vectors to their means add up to 1 a row at most, and its to {trace:.3g}"
    if least < -tolerance:
        return f"no rows vary by less than nothing in a direction, and its do by {least:.3g}"
    return ""


def rounding(dim: int, wire_dtype: str) -> float:
    """How much the norm of a unit vector may change on the wire: a value of int8 by a 254th of the largest."""
    return 1e-3 + (dim**0.5 / 254 if wire_dtype == "int8" else 0.0)
