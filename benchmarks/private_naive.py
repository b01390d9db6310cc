"""Why noise on the prototypes of a trained model would prove nothing: what leaving one row out does to them.

    python -m benchmarks.private_naive
    python -m benchmarks.private_naive --dataset mnist --rows 1000 --epochs 5

A model is trained twice, with the same seed and the same batches, once without one row; features are cut to norm 1. A
naive proof bounds the change of the class sums by 1, the row's own part. Beside it a public encoder that no row has
trained: there the bound holds.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from benchmarks.common import where
from protosphere.core.home import home
from protosphere.core.seeds import derive, generator
from protosphere.data.decoded_cache import decoded
from protosphere.models import build
from protosphere.models.encoder import public_encoder

WIDTH = 64


def trained_features(inputs: Tensor, labels: Tensor, batches: Sequence[Tensor], epochs: int, classes: int) -> Tensor:
    """Features of all `inputs` (n, d), of norm 1 at most, by a model that was trained on these batches of rows."""
    model = build("tiny_cnn", tuple(inputs.shape[1:]), WIDTH, classes, derive("naive"))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in batches:
            optimiser.zero_grad()
            cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimiser.step()
    model.eval()
    with torch.no_grad():
        return normalize(model.features(inputs), dim=1)


def sums(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Class sums, (K, d)."""
    return one_hot(labels, classes).T.double() @ features.double()


def main() -> None:
    """Print the change for an ordinary row, a mislabelled blank one, and one of ten times the range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5)
    asked = parser.parse_args()
    data = decoded(asked.dataset, Path(home()) / "cache")
    classes = len(data.class_names)
    inputs = torch.from_numpy(data.inputs[: asked.rows] / data.scale).float() * 2 - 1
    labels = torch.from_numpy(data.labels[: asked.rows])
    print(f"{where()}\n{asked.dataset}, {len(labels)} rows, {asked.epochs} epochs")
    print(f"{'row left out':<28}{'trained features':>18}{'public encoder':>16}")
    batches = torch.randperm(len(labels), generator=generator("naive", "order")).split(32)
    without = [batch[batch != 0] for batch in batches]
    encoder = public_encoder("random", tuple(inputs.shape[1:]), WIDTH)
    for name, row, label in (
        ("an ordinary one", inputs[0].clone(), int(labels[0])),
        ("blank, mislabelled", torch.full_like(inputs[0], -1.0), (int(labels[0]) + 1) % classes),
        ("ten times the range", 10 * inputs[0], int(labels[0])),
    ):
        inputs[0], labels[0] = row, label
        fixed = normalize(encoder(inputs), dim=1)
        full, less = (trained_features(inputs, labels, each, asked.epochs, classes) for each in (batches, without))
        moved = [
            float((sums(one, labels, classes) - sums(other[1:], labels[1:], classes)).norm())
            for one, other in ((full, less), (fixed, fixed))
        ]
        print(f"{name:<28}{moved[0]:>18.2f}{moved[1]:>16.2f}")


if __name__ == "__main__":
    main()
