"""A public encoder that another data set has trained, as a file of one's own: what `privacy-encoder` can name.

python -m benchmarks.public_encoder usps usps-encoder      # writes usps-encoder/encoder.py and its weights
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from protosphere.core.home import home
from protosphere.core.seeds import derive, generator
from protosphere.data.decoded_cache import decoded
from protosphere.models import build

MODEL, WIDTH, SIZE, BATCH = "tiny_cnn", 64, 28, 32
FILE = '''"""The extractor of a {model} that learnt {classes} classes of other data, at {size}x{size} pixels."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import interpolate

from protosphere.models import build


class Encoder(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.channels = channels
        model = build("{model}", (1, {size}, {size}), {width}, {classes}, 0)
        model.load_state_dict(torch.load(Path(__file__).with_name("weights.pt"), weights_only=True))
        self.extractor = model.extractor

    def forward(self, x):
        grey = x.mean(dim=1, keepdim=True)
        return self.extractor(interpolate(grey, ({size}, {size}), mode="bilinear", antialias=True))


def encoder(input_shape):
    return Encoder(input_shape[0])
'''


def grey(pixels: Tensor) -> Tensor:
    """(n, C, H, W) from 0 to 1 to (n, 1, SIZE, SIZE) from -1 to 1."""
    whole = interpolate(pixels.mean(dim=1, keepdim=True), (SIZE, SIZE), mode="bilinear", antialias=True)
    return whole * 2 - 1


def write(dataset: str, folder: Path, epochs: int = 3, only: Sequence[int] = ()) -> Path:
    """Train on all rows, or those of the classes `only`; the file to name, which may be moved with its folder."""
    data = decoded(dataset, home() / "cache")
    inputs = grey(torch.from_numpy(data.inputs.copy()).float() / data.scale)
    labels, classes = torch.from_numpy(data.labels.copy()), len(data.class_names)
    if only:
        held = torch.isin(labels, torch.tensor(only))
        inputs, labels, classes = inputs[held], torch.searchsorted(torch.tensor(sorted(only)), labels[held]), len(only)
    model = build(MODEL, (1, SIZE, SIZE), WIDTH, classes, derive("public encoder"))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    order = generator("public encoder", "order")
    for _ in range(epochs):
        for batch in torch.randperm(len(labels), generator=order).split(BATCH):
            optimiser.zero_grad()
            cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimiser.step()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / "encoder.py").write_text(FILE.format(model=MODEL, size=SIZE, width=WIDTH, classes=classes))
    return folder / "encoder.py"


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--classes", type=int, nargs="+", default=[], help="rows of these alone")
    asked = parser.parse_args()
    torch.manual_seed(0)
    print(write(asked.dataset, asked.folder, asked.epochs, asked.classes))


if __name__ == "__main__":
    main()
