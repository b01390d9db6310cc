"""What makes features out of noise and a class, beside a client's model (FedGen, FedPA)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot


class Generator(nn.Module):
    """G of FedGen: (epsilon in [0, 1)^q, y) -> Linear(q + K, h), batch norm, ReLU, Linear(h, d) -> z in R^d.

    Args:
        num_classes: K. dim: d. noise_dim: q. hidden: h.

    Attributes:
        held: (K,), 1 for each class that it was trained to make, else 0; float, since it travels with the weights.
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
        """(n, q), uniform in [0, 1), on the module's device; of the process's generator unless another is given."""
        return torch.rand(rows, self.noise_dim, generator=generator, device=self.held.device)

    def labels(self, rows: int, generator: torch.Generator | None = None) -> Tensor:
        """(n,) int64, uniform over the held classes, of which there is one at least."""
        return torch.multinomial(self.held, rows, replacement=True, generator=generator)
