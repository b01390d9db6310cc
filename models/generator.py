"""Generators of features from noise and a class (FedGen, FedPA, FRAug)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot


class Generator(nn.Module):
    """G of FedGen: (epsilon in [0, 1)^q, y) -> Linear(q + K, h), batch norm, ReLU, Linear(h, d) -> z in R^d.

    Args:
        num_classes: K. dim: d. noise_dim: q. hidden: h.

    Attributes:
        held: (K,), 1 for each class that it was trained on, else 0; float, because it is exchanged with the weights.
    """

    held: Tensor

    def __init__(self, num_classes: int, dim: int, noise_dim: int = 32, hidden: int = 256) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.noise_dim = noise_dim
        self.network = nn.Sequential(
            nn.Linear(noise_dim + num_classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)
        )
        self.register_buffer("held", torch.zeros(num_classes))

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """noise (n, q), labels (n,) int64 -> (n, d)."""
        z: Tensor = self.network(torch.cat([noise, one_hot(labels, self.num_classes).to(noise.dtype)], dim=1))
        return z

    def noise(self, rows: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, q), uniform in [0, 1), on the module's device, from the process's generator unless another is given."""
        # drawn on the CPU, so equal on every device
        return torch.rand(rows, self.noise_dim, generator=generator).to(self.held.device)

    def labels(self, rows: int) -> Tensor:
        """(n,) int64, uniform over the held classes, of which there must be at least one."""
        place = (torch.rand(rows).to(self.held.device) * self.held.sum()).floor()
        return torch.searchsorted(self.held.cumsum(0), place, right=True).clamp(max=self.num_classes - 1)


class FeatureGenerator(nn.Module):
    """G of FRAug: (u in [0, 1)^(d/2), y) -> Linear, batch norm, ReLU, Linear(d, d), batch norm, ReLU -> R^d.

    Args:
        num_classes: K. dim: d.
    """

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.noise_dim = dim // 2
        self.network = nn.Sequential(
            nn.Linear(self.noise_dim + num_classes, dim),
            nn.BatchNorm1d(dim),
            nn.ReLU(),
            nn.Linear(dim, dim),
            nn.BatchNorm1d(dim),
            nn.ReLU(),
        )

    def forward(self, labels: Tensor) -> Tensor:
        """labels (n,) int64 -> (n, d), from noise of the process's generator."""
        hot = one_hot(labels, self.num_classes).to(next(self.parameters()).dtype)
        noise = torch.rand(len(labels), self.noise_dim, dtype=hot.dtype).to(labels.device)
        z: Tensor = self.network(torch.cat([noise, hot], dim=1))
        return z


class FeatureTransformation(nn.Module):
    """Psi of FRAug: (z in R^d, y) -> Linear(d + K, d/2), batch norm, ReLU, Linear(d/2, d), batch norm -> R^d, which is
    added to a real feature.

    Args:
        num_classes: K. dim: d.
    """

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.network = nn.Sequential(
            nn.Linear(dim + num_classes, dim // 2),
            nn.BatchNorm1d(dim // 2),
            nn.ReLU(),
            nn.Linear(dim // 2, dim),
            nn.BatchNorm1d(dim),
        )

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """z (n, d), labels (n,) int64 -> (n, d)."""
        moved: Tensor = self.network(torch.cat([z, one_hot(labels, self.num_classes).to(z.dtype)], dim=1))
        return moved


class ClassTurns(nn.Module):
    """FRAug's running means m_c of a client's features, and its classes in turn.

    Args:
        num_classes: K. dim: d.

    Attributes:
        means: m, (K, d); zeros for a class that has not occurred.
        turn: () int64, the next class.
    """

    means: Tensor
    turn: Tensor

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(num_classes, dim))
        self.register_buffer("turn", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def remember(self, z: Tensor, labels: Tensor, rate: float) -> None:
        """m_c <- (1 - rate) m_c + rate times the batch's mean, for its classes; z (n, d), labels (n,)."""
        hot = one_hot(labels, len(self.means)).to(self.means.dtype)
        rows = hot.sum(dim=0).unsqueeze(1)
        self.means.lerp_(hot.T @ z.to(self.means.dtype) / rows.clamp(min=1), rate * (rows > 0).to(self.means.dtype))

    @torch.no_grad()
    def deal(self, rows: int) -> Tensor:
        """The next labels in turn, (n,) int64; advances the turn."""
        labels: Tensor = (self.turn + torch.arange(rows, device=self.turn.device)) % len(self.means)
        self.turn.copy_((self.turn + rows) % len(self.means))
        return labels
