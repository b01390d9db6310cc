"""The effect of clients that send false class statistics: method x aggregation x number of liars.

    python -m benchmarks.liars
    python -m benchmarks.liars --methods protosphere --alphas 0.5 --dataset ../cifar10 --limit 6000
    python -m benchmarks.liars --store lies    # keeps the figures of docs/threats.md

Ten clients, Dirichlet over classes. A liar knows what the others send. It claims all of their classes and as many
samples as `max-weight-ratio` lets count. Its means are those of other classes, or reflected at the centre of all; its
samples scatter as the others' do, or along the directions in which classes differ, as much as unit vectors can. Each
figure is the worst of these lies: test accuracy of the rule `encoder` in %, mean and 95 % interval over the seeds, on
a quarter of all samples. Several liars tell the same lie. A folder of folders, such as PACS, is dealt by domain, to two
clients each.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from benchmarks.common import described_parser, interval, store_figures, table_head, table_row, where
from protosphere.models.encoder import public_encoder
from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Weights
from protosphere.strategies import read_settings
from protosphere.strategies.contract import EVERYONE, ClientState
from protosphere.strategies.protosphere import scale_of
from protosphere.strategies.statistics import to_half
from protosphere.wire.claims import CappedSampleCounts
from protosphere.wire.layouts import layout_lines
from protosphere.wire.payloads import Identity, Payload

METHODS = ("protosphere", "fedcgs", "fedncm", "fed3r", "fedcof", "fedpft")
AGGREGATIONS = ("mean", "clipped-mean", "geometric-median")
CLAIM = 2**31 - 1
DIM = 64


class Federation:
    """Clients with samples of a data set, as unit vectors of the public encoder.

    Args:
        features: u, (n, d).
        labels: (n,).
        owner: (n,), the client of each training sample, -1 for a test sample.
    """

    def __init__(self, features: Tensor, labels: Tensor, owner: np.ndarray):
        self.features, self.labels = features, labels
        self.num_classes = int(labels.max()) + 1
        self.owner = torch.tensor(owner)
        self.clients = sorted({int(client) for client in owner if client >= 0})

    def accuracy(self, method: str, aggregation: str, liars: int, lie: tuple[str, str], **settings: Any) -> float:
        """Test accuracy of the shared classifier if the last `liars` clients lie."""
        given = {"strategy": method, "encoder": "handcrafted", "feature-dim": DIM, f"{method}.aggregation": aggregation}
        given |= {"disclose-class-counts": True} if method != "protosphere" else {}
        run = read_settings(given | settings)
        objective = run.method.objective(run.settings, run.options, self.num_classes)
        server = run.method.server(run.settings, run.options)
        identities, uploads = {}, {}
        lines = tuple(
            line for part, w in objective.shared(torch.nn.Identity()).items() for line in layout_lines(part, w.layout)
        )
        honest = self.clients[: len(self.clients) - liars]
        forged = forge(method, aggregation, scale_of(run.settings), *self.lie(honest, *lie)) if liars else {}
        for client in self.clients:
            is_held = self.owner == client
            labels = self.labels[is_held]
            samples = int(is_held.sum()) if client in honest else CLAIM
            classes = tuple(labels.unique().tolist()) if client in honest else tuple(range(self.num_classes))
            identities[client] = Identity(
                client, len(self.clients), "net", classes=classes, rows=(samples, 0, 0), layouts=lines
            )
            state = ClientState(
                torch.nn.Identity(), encoded=lambda held=is_held: (self.features[held], self.labels[held])
            )
            upload = objective.upload(state, 1) if client in honest else forged
            if upload is not None:
                uploads[client] = upload
        believed = CappedSampleCounts(identities, run.settings.max_weight_ratio, "samples")
        server.meet(self.num_classes, DIM, believed.identities)
        for client, upload in uploads.items():
            if reason := server.contradiction(client, upload):
                raise RuntimeError(f"client {client} is refused: {reason}")
        capped, _ = believed.uploads(uploads)
        download = server.aggregate(capped, {}, 1).downloads[EVERYONE]
        is_test = self.owner < 0
        directions = torch.nn.functional.normalize(self.features[is_test].double(), dim=1)
        nothing = torch.empty(0, DIM, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
        scores = objective.encoded_scores(objective.complete(download, *nothing), directions)
        assert scores is not None
        return 100 * float((scores.argmax(dim=1) == self.labels[is_test]).double().mean())

    def lie(self, honest: Sequence[int], means_of: str, scatter_of: str) -> tuple[Tensor, Tensor]:
        """False means (K, d) and a scatter (d, d) per sample, computed from the honest clients' samples."""
        is_honest = torch.isin(self.owner, torch.tensor(honest))
        z = torch.nn.functional.normalize(self.features[is_honest].double(), dim=1)
        labels = self.labels[is_honest]
        targets = one_hot(labels, self.num_classes).double()
        means = targets.T @ z / targets.sum(dim=0).clamp(min=1).unsqueeze(1)
        deviations = z - means[labels]
        scatter = deviations.T @ deviations / len(z)
        offsets = means - means.mean(dim=0)
        if scatter_of == "along the classes":
            scatter = 0.99 * offsets.T @ offsets / offsets.square().sum()
        lies = {"exchanged": means.roll(1, 0), "reflected": means.mean(dim=0) - offsets}[means_of]
        return lies / lies.norm(dim=1, keepdim=True).clamp(min=1), scatter


LIES = [(means, scatter) for means in ("exchanged", "reflected") for scatter in ("as the others'", "along the classes")]


def forge(method: str, aggregation: str, scale: float, means: Tensor, scatter: Tensor) -> Payload:
    """A method's upload with these means, this scatter and a claim of CLAIM samples.

    Args:
        scale: the factor of scatters in `protosphere`.
    """
    num_classes = len(means)
    labels, share = torch.arange(num_classes), CLAIM // num_classes
    counts = torch.full((num_classes,), share)
    prototypes = PrototypeSet(labels, means.float(), None if method == "protosphere" else counts)
    # the second moment of unit vectors that the means leave over
    room = max(0.0, 1 - float(means.square().sum() / num_classes))
    scatter = scatter * min(1.0, room / max(float(scatter.trace()), 1e-12))
    moment = (scatter + means.T @ means / num_classes).float()
    if method == "protosphere":
        return {"prototypes": prototypes, "scatter": Weights({"scatter": (scale * to_half(scatter)).float()})}
    if method == "fedcgs":
        return {"prototypes": prototypes, "moment": Weights({"moment": moment})}
    if method == "fed3r":
        sums = {"sums": Weights({"gram": moment, "targets": (means / num_classes).float()})}
        return sums if aggregation == "mean" else {"prototypes": prototypes, **sums}
    if method == "fedpft":
        left = (1 - means.square().sum(dim=1, keepdim=True)).clamp(min=1e-6)
        variances = left.clamp(max=float(scatter.trace())).expand_as(means) / means.shape[1]
        return {"mixtures": MixtureSet(labels, means.float(), variances.float(), torch.ones(num_classes), counts)}
    return {"prototypes": prototypes}


def features_of(dataset: str, limit: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """u (n, DIM), labels (n,) and the domain of each sample, in a random order."""
    if dataset == "digits":
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        inputs, domains = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, np.zeros(len(labels))
    else:
        pixels, labels, domains = read_images(Path(dataset))
        inputs = torch.tensor(pixels).float() / 255
    order = np.random.default_rng(0).permutation(len(labels))[:limit]
    encoder = public_encoder("handcrafted", tuple(inputs.shape[1:]), DIM)
    features = torch.cat([encoder.together(batch) for batch in inputs[order].split(500)])
    return features, torch.tensor(labels)[order], domains[order]


def read_images(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images (n, 3, h, w), labels and domains of a folder with train and test.parquet, or of a folder of such."""
    import pyarrow.parquet as pq
    from PIL import Image

    pixels: list[np.ndarray] = []
    labels: list[int] = []
    domains: list[int] = []
    folders = (
        [folder] if (folder / "train.parquet").exists() else sorted(path for path in folder.iterdir() if path.is_dir())
    )
    for number, place in enumerate(folders):
        for split in ("train", "test"):
            table = pq.read_table(place / f"{split}.parquet")
            for cell in table["image"].to_pylist():
                pixels.append(np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")).transpose(2, 0, 1))
            labels += table["label"].to_pylist()
            domains += [number] * len(table)
    return np.stack(pixels), np.array(labels), np.array(domains)


def deal(labels: Tensor, domains: np.ndarray, alpha: float, clients: int, seed: int) -> np.ndarray:
    """The client of each sample, -1 for the test quarter; with several domains, each domain has two clients."""
    rng = np.random.default_rng(seed)
    owner = np.full(len(labels), -1)
    is_train = np.ones(len(labels), dtype=bool)
    is_train[rng.permutation(len(labels))[: len(labels) // 4]] = False
    several = len(np.unique(domains)) > 1
    for domain in np.unique(domains):
        first, number = (2 * int(domain), 2) if several else (0, clients)
        for label in range(int(labels.max()) + 1):
            samples = rng.permutation(np.flatnonzero(is_train & (domains == domain) & (labels.numpy() == label)))
            ends = (np.cumsum(rng.dirichlet([alpha] * number))[:-1] * len(samples)).astype(int)
            for client, part in enumerate(np.split(samples, ends)):
                owner[part] = first + client
    return owner


def main() -> None:
    """Print the table as Markdown."""
    parser = described_parser(__doc__)
    parser.add_argument("--dataset", default="digits", help="digits, or a folder of images")
    parser.add_argument("--limit", type=int, default=6000)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--aggregations", nargs="+", choices=AGGREGATIONS, default=AGGREGATIONS)
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.05, 0.1, 0.5, 1.0])
    parser.add_argument("--liars", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--fewest", type=int, help="samples of a class for its mean to be sent")
    parser.add_argument("--share", type=float, help="the same as a share of the average class size (protosphere)")
    parser.add_argument("--store", metavar="NAME", help="keep the figures as benchmarks/results/programs/NAME.csv")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    features, labels, domains = features_of(options.dataset, options.limit)
    print(f"{where()} | {options.dataset}, {len(labels)} samples\n", flush=True)
    print(
        table_head(
            "method", "aggregation", "α", "nobody lies", *(f"liars: {number}" for number in options.liars), left=2
        )
    )
    for method in options.methods:
        settings: dict[str, Any] = {}
        if options.fewest:
            settings[f"{method}.fewest"] = options.fewest
        if options.share is not None:
            settings[f"{method}.share"] = options.share
        for alpha in options.alphas:
            for aggregation in options.aggregations:
                columns: dict[int, list[float]] = {number: [] for number in (0, *options.liars)}
                for seed in options.seeds:
                    federation = Federation(features, labels, deal(labels, domains, alpha, 10, seed))
                    for number in columns:
                        lies = LIES if number else LIES[:1]
                        accuracy = min(
                            federation.accuracy(method, aggregation, number, lie, **settings) for lie in lies
                        )
                        columns[number].append(accuracy)
                        rows.append(
                            {
                                "method": method,
                                "aggregation": aggregation,
                                "alpha": alpha,
                                "liars": number,
                                "seed": seed,
                                "accuracy": accuracy,
                            }
                        )
                figures = [interval(values) for values in columns.values()]
                print(table_row([method, aggregation, alpha, *figures]), flush=True)
    if options.store:
        store_figures(options.store, pd.DataFrame(rows))


if __name__ == "__main__":
    main()
