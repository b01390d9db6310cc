"""Aggregation of class statistics, shared by `protosphere`, `fedcgs` and `fed3r`.

    client   m_ij of its classes, their weights w_ij, and S_i, the scatter of its n_i = sum_j w_ij samples around them
    server   mu_j: the mean of m_ij weighted by w_ij, or a robust centre (protosphere/prototypes/aggregation.py)
             T_i = S_i + sum_j w_ij (m_ij - mu_j)(m_ij - mu_j)^T / n_i
             Sigma = sum_i n_i t_i T_i / sum_i n_i

t_i is 1 with "mean". With a robust centre and at least three clients, t_i is min(1, median trace of all T / trace of
T_i), so that no client's scatter exceeds the median.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.aggregation import FEW, class_centres
from protosphere.strategies.by_client import pack_parts, unpack_parts
from protosphere.strategies.one_exchange import OneExchange

ROUNDING = 1e-3  # tolerance for the norm of a unit vector after rounding on the wire


@dataclass(frozen=True)
class Statistics:
    """Statistics of one client.

    Attributes:
        means: m_ij, (k_i, d).
        weights: w_ij, (k_i,) float64.
        scatter: n_i S_i, (d, d) float64.
    """

    means: m.PrototypeSet
    weights: Tensor
    scatter: Tensor


@dataclass(frozen=True)
class Pooled:
    """Statistics of all clients.

    Attributes:
        sums: w_j mu_j, (K, d) float64.
        weights: w_j = sum_i w_ij, (K,) float64; 0 for a class without samples.
        moment: M, (d, d) float64, with Sigma = (M - sum_j w_j mu_j mu_j^T) / sum_j w_j.
    """

    sums: Tensor
    weights: Tensor
    moment: Tensor


def pool(clients: Mapping[int, Statistics], num_classes: int, dim: int, how: m.ClassAggregation) -> Pooled:
    """Aggregate the clients' statistics by ascending partition, so that the order of arrival has no effect."""
    ordered = [clients[partition] for partition in sorted(clients)]
    labels = torch.cat([torch.zeros(0, dtype=torch.int64), *(client.means.labels for client in ordered)])
    vectors = torch.cat([torch.zeros(0, dim).double(), *(client.means.vectors.double() for client in ordered)])
    weights = torch.cat([torch.zeros(0).double(), *(client.weights for client in ordered)])
    class_weights = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, labels, weights)
    centres = class_centres(labels, vectors, weights, num_classes, how)

    scatters, start = [], 0
    for client in ordered:
        rows = slice(start, start + len(client.means))
        start = rows.stop
        deviations = vectors[rows] - centres[labels[rows]]
        scatters.append(client.scatter + deviations.T @ (weights[rows].unsqueeze(1) * deviations))
    shares = torch.ones(len(ordered), dtype=torch.float64)
    if how != "mean" and len(ordered) >= FEW:
        sizes = torch.stack([client.weights.sum() for client in ordered])
        traces = torch.stack([scatter.trace() for scatter in scatters]) / sizes
        # single samples of a class have no variance and are no measure for others
        if bool((traces > 0).any()):
            shares = (traces[traces > 0].median() / traces.clamp(min=1e-300)).clamp(max=1)
    within = torch.zeros(dim, dim, dtype=torch.float64)
    for share, scatter in zip(shares.tolist(), scatters, strict=True):
        within += share * scatter
    sums = class_weights.unsqueeze(1) * centres
    return Pooled(sums, class_weights, within + sums.T @ centres)


class PooledServer(OneExchange):
    """Server half: the statistics of all clients that have sent so far, and a classifier of them."""

    def read(self, partition: int, upload: m.Payload) -> Statistics:
        """A client's statistics from its upload."""
        raise NotImplementedError

    def classifier(self, pooled: Pooled) -> m.Payload:
        """The download."""
        raise NotImplementedError

    def learn(self, uploads: Mapping[int, m.Payload], state: m.State) -> tuple[m.Outcome, Tensor]:
        """Pool the statistics of new and earlier clients."""
        clients = statistics_of(state)
        for partition, upload in uploads.items():
            if len(m.prototypes_of(upload)):
                clients[partition] = self.read(partition, upload)
        pooled = pool(clients, self.num_classes, self.dim, self.aggregation)
        present = pooled.weights > 0
        if not clients:
            return m.Outcome(state_of(clients, pooled), {}, keeps=True), present
        means = (pooled.sums[present] / pooled.weights[present].unsqueeze(1)).float()
        prototypes = m.PrototypeSet(present.nonzero().flatten(), means)
        downloads = {m.EVERYONE: self.classifier(pooled)}
        return m.Outcome(state_of(clients, pooled), downloads, prototypes=prototypes), present


def statistics_of(state: m.State) -> dict[int, Statistics]:
    """Partition -> its statistics, as stored by `state_of`; partitions without samples are missing."""
    means = unpack_parts(m.PrototypeSet, state)
    if not means:
        return {}
    weights = state["shares"].split([len(client_means) for client_means in means.values()])
    clients = zip(means, weights, state["scatters"], strict=True)
    return {partition: Statistics(means[partition], shares, from_half(half)) for partition, shares, half in clients}


def state_of(clients: Mapping[int, Statistics], pooled: Pooled) -> m.State:
    """The statistics as a method's state."""
    state = {"sums": pooled.sums, "weights": pooled.weights}
    if not clients:
        return state
    state |= pack_parts({partition: client.means for partition, client in clients.items()})
    state["shares"] = torch.cat([client.weights for client in clients.values()])
    state["scatters"] = torch.cat([to_half(client.scatter) for client in clients.values()])
    return state


def to_half(matrix: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix (d, d), row by row: (1, d (d + 1) / 2)."""
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns].unsqueeze(0)


def from_half(half: Tensor) -> Tensor:
    """Inverse of `to_half`, from (d (d + 1) / 2,)."""
    upper = triangle(half, int((2 * half.numel()) ** 0.5))
    return upper + upper.triu(1).T


def triangle(half: Tensor, dim: int) -> Tensor:
    """The upper triangular matrix (d, d) with these values, row by row."""
    matrix = torch.zeros(dim, dim, dtype=half.dtype)
    rows, columns = torch.triu_indices(dim, dim)
    matrix[rows, columns] = half
    return matrix


def refute_means(means: m.PrototypeSet) -> str:
    """Why no unit vectors have these means; "" if some can."""
    longest = float(means.vectors.double().norm(dim=1).max()) if len(means) else 0.0
    if longest <= 1 + ROUNDING:
        return ""
    return f"a mean of unit vectors has norm 1 at most, and it holds one of norm {longest:.3g}"


def refute_scatter(scatter: Tensor, tolerance: float) -> str:
    """Why no unit vectors have this scatter (d, d) around their class means; "" if some can.

    Args:
        tolerance: rounding error that may be added to a sum or taken from an eigenvalue.
    """
    trace, least = float(scatter.trace()), float(torch.linalg.eigvalsh(scatter.double())[0])
    if trace > 1 + tolerance:
        return f"the squared distances of unit vectors to their means add up to 1 per row at most, its to {trace:.3g}"
    if least < -tolerance:
        return f"the variance in each direction is at least 0, and its least is {least:.3g}"
    return ""
