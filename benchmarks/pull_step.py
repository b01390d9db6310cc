"""What the prototype pull adds to a training step: cross-entropy with it against cross-entropy alone.

Run from the repository root: python -m benchmarks.pull_step
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from protosphere import models
from protosphere.prototypes.losses import PULLS, prototype_pull

REPETITIONS = 5
K, D = 10, 512


class Trainer:
    """One ResNet-8 with its optimiser; `reduction` None is cross-entropy alone."""

    def __init__(self, reduction: str | None, device: torch.device) -> None:
        self.reduction = reduction
        self.model = models.build("resnet8", (3, 32, 32), feature_dim=D, num_classes=K, seed=0).to(device)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.targets = torch.randn(K, D, generator=torch.Generator().manual_seed(1)).to(device)
        self.present = torch.ones(K, dtype=torch.bool, device=device)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimiser.zero_grad()
        z = self.model.features(x)
        loss = nn.functional.cross_entropy(self.model.classify(z), y)
        if self.reduction is not None:
            loss = loss + prototype_pull(z, y, self.targets, self.present, self.reduction)
        loss.backward()
        self.optimiser.step()


def seconds(trainer: Trainer, x: Tensor, y: Tensor) -> float:
    start = time.perf_counter()
    trainer.step(x, y)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40, help="steps of each kind in a repetition")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(arguments.batch, 3, 32, 32, generator=generator).to(device)
    y = torch.randint(0, K, (arguments.batch,), generator=generator).to(device)

    kinds: tuple[str | None, ...] = (None, *PULLS)
    trainers = {kind: Trainer(kind, device) for kind in kinds}
    for trainer in trainers.values():
        for _ in range(5):
            trainer.step(x, y)
    steps: dict[str | None, list[float]] = {kind: [] for kind in kinds}
    ratios: dict[str | None, list[float]] = {kind: [] for kind in kinds}
    for _ in range(REPETITIONS):
        turns: dict[str | None, list[float]] = {kind: [] for kind in kinds}
        # one step of each kind a turn, another kind first each time, so that a busy moment meets all alike
        for number in range(arguments.steps):
            for offset in range(len(kinds)):
                kind = kinds[(number + offset) % len(kinds)]
                turns[kind].append(seconds(trainers[kind], x, y))
        for kind in kinds:
            steps[kind].append(statistics.median(turns[kind]))
            beside = zip(turns[kind], turns[None], strict=True)
            ratios[kind].append(statistics.median(own / plain for own, plain in beside))

    print(
        f"training step, ResNet-8, batch {arguments.batch}, d = {D}, {arguments.threads} thread(s), "
        f"{arguments.device}, median of {REPETITIONS} x {arguments.steps} steps"
    )
    for kind in kinds:
        name = "cross-entropy alone" if kind is None else f"with prototype pull, {kind}"
        target = "" if kind is None else "   target: at most 1.05"
        print(
            f"  {name:34} {1000 * statistics.median(steps[kind]):8.2f} ms   "
            f"ratio {statistics.median(ratios[kind]):.3f}{target}"
        )


if __name__ == "__main__":
    main()
