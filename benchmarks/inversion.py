"""What can be reconstructed of a client's samples from what it sends, method by method.

    python -m benchmarks.inversion --data ../shared/data    # measures; writes the page, its picture and the figures

The attacker is the server. It has the public encoder, public samples of the same kind (one half of Fashion-MNIST's
training samples), and a decoder that it trains on these: features to images. Private samples are of the other half.

    class means     a mean of n samples of a class (fedncm, fedcof, fedcgs, protosphere; of fedpft a component's mean)
                    is decoded as if it were one sample
    G = sum z z^T   (fed3r) spans the samples' features where they are fewer than d: a sample is looked for by its
                    distance from that span
    prototypes      of a private extractor (fedproto and its heirs), decoded by a decoder of the attacker's own
                    extractor of the same architecture, trained on the public samples

`found` is the share of means of whose n samples one is the private sample nearest to the reconstruction, among all
private samples of that class; `chance` is that share for a guess. `excess` is by how many dB the reconstruction is
nearer to the nearest of its own n samples than to the nearest of n others of the same class.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from benchmarks.common import ROOT, described_parser, table_head, table_row, where
from protosphere.core.home import home
from protosphere.core.settings import Settings
from protosphere.data.from_settings import data_spec
from protosphere.data.partition.assignment import open_data
from protosphere.models.encoder import Encoder, public_encoder

D, K = 64, 10
SIZES = (1, 2, 5, 20)
GROUPS, SHOWN = 300, 6
EPOCHS, BATCH = 40, 128
PAGE, PICTURE = ROOT / "docs" / "inversion.md", ROOT / "docs" / "images" / "inversion.png"
FIGURES = ROOT / "benchmarks" / "results" / "inversion.json"
SPACES = {
    "handcrafted": "the `handcrafted` encoder",
    "trained": "a network trained on MNIST",
    "private": "a private extractor",
}


@dataclass(frozen=True)
class Samples:
    """Images (n, 1, H, W) from -1 to 1, and labels (n,)."""

    images: Tensor
    labels: Tensor

    def __getitem__(self, index: Any) -> "Samples":
        return Samples(self.images[index], self.labels[index])


def read(folder: Path, seed: int) -> Samples:
    """The training samples of a data set, in an order of the seed's."""
    spec = data_spec(Settings(dataset=str(folder)), 1)
    data = open_data(spec, home() / "cache")
    images = torch.from_numpy(data.inputs[: data.train_rows].astype("float32")) / data.scale * 2 - 1
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return Samples(images[order], torch.from_numpy(data.labels[: data.train_rows])[order])


def network() -> nn.Sequential:
    """An extractor of 28 x 28 grey images: (n, 1, 28, 28) -> (n, d)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 49, D)),
    )


def decoder(size: int) -> nn.Sequential:
    """(n, d) -> (n, size)."""
    return nn.Sequential(
        nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, size), nn.Tanh()
    )


def fit(module: nn.Module, loss: Callable[[Tensor], Tensor], count: int, epochs: int, seed: int) -> nn.Module:
    """Train by Adam on batches of indices."""
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(count, generator=random).split(BATCH):
            optimiser.zero_grad()
            loss(batch).backward()
            optimiser.step()
    return module.eval()


def trained_decoder(features: Tensor, images: Tensor, seed: int) -> nn.Module:
    """A decoder of features (n, d) to images (n, size)."""
    torch.manual_seed(seed)
    decode = decoder(images.shape[1])
    return fit(decode, lambda batch: mse_loss(decode(features[batch]), images[batch]), len(images), EPOCHS, seed)


def trained_extractor(samples: Samples, seed: int) -> Callable[[Tensor], Tensor]:
    """Features of an extractor that has learnt to classify these samples: images -> directions (n, d)."""
    torch.manual_seed(seed)
    extractor, head = network(), nn.Linear(D, K)
    both = nn.Sequential(extractor, nn.ReLU(), head)
    fit(
        both,
        lambda batch: cross_entropy(both(samples.images[batch]), samples.labels[batch]),
        len(samples.labels),
        5,
        seed,
    )

    @torch.no_grad()
    def features(images: Tensor) -> Tensor:
        return normalize(torch.cat([extractor(chunk) for chunk in images.split(512)]), dim=1)

    return features


def handcrafted_features(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Directions by the encoder that `protosphere` has by default."""
    encoder: Encoder = public_encoder("handcrafted", shape, D)
    return lambda images: normalize(torch.cat([encoder.together(chunk) for chunk in images.split(512)]), dim=1)


def means_of_classes(features: Tensor, labels: Tensor, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Groups of `size` private samples of one class: their mean, their indices, and as many others of the class."""
    random = torch.Generator().manual_seed(seed)
    for number in range(GROUPS):
        of_class = (labels == number % K).nonzero().flatten()
        drawn = of_class[torch.randperm(len(of_class), generator=random)[: 2 * size]]
        yield features[drawn[:size]].mean(dim=0), drawn[:size], drawn[size:]


def psnr(image: Tensor, others: Tensor) -> float:
    """dB of the nearest of other images, of values from -1 to 1."""
    return float((10 * torch.log10(4 / (others - image).square().flatten(1).mean(dim=1))).max())


@torch.no_grad()
def attack(decode: nn.Module, features: Tensor, private: Samples, seed: int) -> dict[int, dict[str, float]]:
    """Size of a group -> what its mean gives away."""
    flat = private.images.flatten(1)
    figures = {}
    for size in SIZES:
        found, chance, excess = 0, 0.0, 0.0
        for mean, own, others in means_of_classes(features, private.labels, size, seed):
            image = decode(mean[None])[0]
            of_class = (private.labels == private.labels[own[0]]).nonzero().flatten()
            nearest = of_class[(flat[of_class] - image).square().sum(dim=1).argmin()]
            found += bool((own == nearest).any())
            chance += size / len(of_class)
            excess += psnr(image, flat[own]) - psnr(image, flat[others])
        figures[size] = {"found": found / GROUPS, "chance": chance / GROUPS, "excess": excess / GROUPS}
    return figures


def span(features: Tensor, count: int, seed: int) -> dict[str, float]:
    """How far own and other samples lie from the span of G = Z^T Z of `count` samples, relative to their length."""
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    own, others = features[order[:count]].double(), features[order[count : count + 500]].double()
    values, axes = torch.linalg.eigh(own.T @ own)
    basis = axes[:, values > 1e-9 * values.max()]

    def distance(rows: Tensor) -> Tensor:
        return (rows - rows @ basis @ basis.T).norm(dim=1) / rows.norm(dim=1)

    inside, outside = distance(own), distance(others)
    told = (inside[:, None] < outside[None] - 1e-9).double().mean()
    return {"rank": basis.shape[1], "own": float(inside.max()), "others": float(outside.median()), "told": float(told)}


@torch.no_grad()
def decoded(decode: nn.Module, features: Tensor, private: Samples, seed: int) -> list[tuple[Tensor, list[Tensor]]]:
    """For some classes one private sample, and the reconstructions of means of n that hold it."""
    columns = []
    for label in range(SHOWN):
        of_class = (private.labels == label).nonzero().flatten()
        drawn = of_class[torch.randperm(len(of_class), generator=torch.Generator().manual_seed(seed))]
        means = [features[drawn[:size]].mean(dim=0) for size in SIZES]
        columns.append((private.images[drawn[0]], [decode(mean[None])[0] for mean in means]))
    return columns


def draw(pictures: dict[str, list[tuple[Tensor, list[Tensor]]]]) -> None:
    """One row a size and space, below the samples themselves."""
    import matplotlib.pyplot as plt

    lines = ["a sample", *(f"{space}, mean of {size}" for space in pictures for size in SIZES)]
    drawing, axes = plt.subplots(len(lines), SHOWN, figsize=(1.1 * SHOWN + 2, 1.05 * len(lines)))
    for column in range(SHOWN):
        images = [next(iter(pictures.values()))[column][0]]
        images += [image for columns in pictures.values() for image in columns[column][1]]
        for row, image in enumerate(images):
            place = axes[row, column]
            place.imshow(image.reshape(28, 28), cmap="gray", vmin=-1, vmax=1)
            place.set(xticks=[], yticks=[])
            if not column:
                place.set_ylabel(lines[row], rotation=0, ha="right", va="center")
    drawing.tight_layout()
    drawing.savefig(PICTURE, dpi=80)


def page(figures: dict[str, Any]) -> str:
    """docs/inversion.md."""
    means, spans = figures["means"], figures["span"]
    of_means = [table_head("mean of", *(f"{size} samples" if size > 1 else "1 sample" for size in SIZES))]
    for space, by_size in means.items():
        cells = [f"{100 * values['found']:.1f}, {values['excess']:+.2f}" for values in by_size.values()]
        of_means.append(table_row([SPACES[space], *cells]))
    chances = next(iter(means.values())).values()
    of_means.append(table_row(["by chance", *(f"{100 * values['chance']:.1f}" for values in chances)]))
    of_spans = [table_head("samples of the client", *next(iter(spans.values())))]
    for space, by_count in spans.items():
        cells = [
            f"{100 * values['told']:.1f} ({values['others']:.2f})" if values["rank"] < D else "by chance"
            for values in by_count.values()
        ]
        of_spans.append(table_row([SPACES[space], *cells]))
    return f"""# What can be reconstructed of a client's samples from what it sends?

The server trains a decoder, from features to images, on public samples of the same kind. Fashion-MNIST, d = {D}.

**Class means** (`fedncm`, `fedcof`, `fedcgs`, `protosphere`; of `fedpft` a component's mean): in %, how often the
nearest private sample of the class is one of those in the mean; and by how many dB the reconstruction is nearer to its
own samples than to as many others.

{chr(10).join(of_means)}

**Answer.** A mean of one sample is that sample, as far as the encoder keeps it; a mean of twenty shows what the class
looks like and hardly anything of a single sample. So `fewest` is 5 for `protosphere`; set it for the other methods too
wherever samples are somebody's own (their papers send all means, and so do their defaults here). The features of a
private extractor the server cannot compute: its decoder is of one of its own, of the same architecture. That is not a
proof; `privacy = "release"` has one.

![Samples, and what is decoded of means of 1, 2, 5 and 20 samples](images/inversion.png)

*A private sample of each of {SHOWN} classes; below it what is decoded of the means that hold it.*

**Sums of squares** (`fed3r`: G = Σ z zᵀ): how often, in %, a sample of the client lies nearer to the span of G than
another does; in brackets the others' median distance, of 1 at most (own samples have 0).

{chr(10).join(of_spans)}

**Answer.** "Was this sample at that client?" is answered with certainty while n < d. `fed3r.fewest` leaves classes of
few samples out, but only more samples than dimensions take the answer away. FedCGS sends the second moment too, and
`protosphere` the scatter around the class means, which has a dimension fewer a class.

**Measured** by `python -m benchmarks.inversion --data ../shared/data`, seed {figures["seed"]}, {GROUPS} means of each
size, {figures["where"]}.
"""


def main() -> None:
    """Measure, and write the page."""
    parser = described_parser(__doc__)
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data", help="the folder with fashion_mnist and mnist"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="store_true", help="the page alone, from the kept figures")
    arguments = parser.parse_args()
    if arguments.page:
        PAGE.write_text(page(json.loads(FIGURES.read_text())))
        return
    seed = arguments.seed
    fashion, mnist = (read(arguments.data / name, seed) for name in ("fashion_mnist", "mnist"))
    half = len(fashion.labels) // 2
    public, private = fashion[:half], fashion[half:]
    shape = tuple(private.images.shape[1:])
    own = trained_extractor(private, seed + 1)
    # space -> of the attacker, of the client
    encoders = {"handcrafted": (handcrafted_features(shape),) * 2, "trained": (trained_extractor(mnist, seed),) * 2}
    encoders["private"] = (trained_extractor(public, seed + 2), own)
    figures: dict[str, Any] = {"where": where(), "seed": seed, "means": {}, "span": {}}
    pictures = {}
    for space, (attackers, clients) in encoders.items():
        of_public, of_private = attackers(public.images), clients(private.images)
        decode = trained_decoder(of_public, public.images.flatten(1), seed)
        figures["means"][space] = attack(decode, of_private, private, seed)
        pictures[space] = decoded(decode, of_private, private, seed)
        if space != "private":
            figures["span"][space] = {count: span(of_private, count, seed) for count in (10, 30, 60, 200)}
    draw(pictures)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    PAGE.write_text(page(figures))


if __name__ == "__main__":
    main()
