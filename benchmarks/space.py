"""What part of `protosphere` is its space, and what part the exchange: the linear discriminant in the space of
`handcrafted`, by a client's own rows alone, by everybody's, and by what crosses without class counts.

    python -m benchmarks.space digits ../usps ../mnist_m

Ten clients, Dirichlet 0.5 and 0.1; accuracy on a client's test rows, with its own classes' shares before, mean ±
sample standard deviation over seeds; and without them, which is the rule `encoder`. No model is trained.
"""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.common import own_home, percent, where
from protosphere.core.settings import Scalar
from protosphere.data.client_data import ClientData, Rows, client_data
from protosphere.data.from_settings import data_spec
from protosphere.models.encoder import Encoder, public_encoder
from protosphere.prototypes.discriminant import covariance_of_sums, linear_discriminant
from protosphere.strategies import read_settings
from protosphere.strategies.encoder_space import directions
from protosphere.strategies.protosphere import spoken_for

CLIENTS, DIM, FEWEST, SHRINKAGE = 10, 64, 5, 0.01
Statistics = tuple[Tensor, Tensor, Tensor]  # class means (K, d), counts (K,), scatter (d, d) a row


def clients_of(dataset: str, alpha: float, seed: int, most: int) -> list[ClientData]:
    """The clients' rows of a run of these settings."""
    asked: dict[str, Scalar] = {"dataset": dataset, "alpha": alpha, "seed": seed, "max-samples": most}
    spec = data_spec(read_settings(asked).settings, CLIENTS)
    with own_home() as home:
        return [client_data(spec, number, home / "cache") for number in range(CLIENTS)]


def features(encoder: Encoder, data: ClientData, rows: Rows) -> Tensor:
    """z^ of rows, (n, d)."""
    chunks = [encoder.together(data.transform.plain(some)) for some in rows.inputs.split(256)]
    return directions(torch.cat(chunks))


def statistics(z: Tensor, labels: Tensor, classes: int) -> Statistics:
    """Of one client."""
    counts = torch.bincount(labels, minlength=classes).double()
    means = torch.zeros(classes, z.shape[1], dtype=torch.float64).index_add_(0, labels, z)
    means /= counts.clamp_min(1).unsqueeze(1)
    apart = z - means[labels]
    return means, counts, apart.T @ apart / len(z)


def discriminant(known: list[tuple[Tensor, Statistics]]) -> tuple[Tensor, Tensor]:
    """W (K, d) and b (K,), minus infinity where nobody knows a class, of clients' (weights w_ij (K,), statistics)."""
    sums = sum(w.unsqueeze(1) * means for w, (means, _, _) in known)
    weights = sum(w for w, _ in known)
    moment = sum(w.sum() * scatter + (means.T * w) @ means for w, (means, _, scatter) in known)
    assert isinstance(sums, Tensor)
    assert isinstance(weights, Tensor)
    assert isinstance(moment, Tensor)
    held = weights > 0
    covariance = covariance_of_sums(sums, weights, moment, SHRINKAGE)
    rows, offsets = linear_discriminant(
        sums[held] / weights[held].unsqueeze(1), torch.ones(int(held.sum())), covariance
    )
    weight, bias = torch.zeros_like(sums), torch.full_like(weights, -torch.inf)
    weight[held], bias[held] = rows, offsets
    return weight, bias


def shares(counts: Tensor) -> Tensor:
    """w_ij without class counts."""
    sent = spoken_for(counts, FEWEST).double()
    return counts.sum() * sent / sent.sum()


def accuracies(clients: list[ClientData]) -> Iterator[tuple[str, float]]:
    """(who knows, mean accuracy over clients in %)."""
    classes, first = clients[0].num_classes, clients[0]
    encoder = public_encoder("handcrafted", tuple(first.transform.plain.shape), DIM)
    own = [statistics(features(encoder, each, each.train), each.train.labels, classes) for each in clients]
    tests = [(features(encoder, each, each.test), each.test.labels) for each in clients]
    priors = [((counts + 1 / classes) / (counts.sum() + 1)).log() for _, counts, _ in own]
    alone = [discriminant([(each[1], each)]) for each in own]
    everybody = discriminant([(each[1], each) for each in own])
    crossing = discriminant([(shares(each[1]), each) for each in own])
    for name, judges, before in (
        ("own rows alone", alone, priors),
        ("all rows, with counts", [everybody] * CLIENTS, priors),
        ("what crosses, without counts", [crossing] * CLIENTS, priors),
        ("what crosses, rule `encoder`", [crossing] * CLIENTS, [torch.zeros(classes)] * CLIENTS),
    ):
        right = [
            float(((z @ w.T + b + prior).argmax(dim=1) == labels).double().mean())
            for (z, labels), (w, b), prior in zip(tests, judges, before, strict=True)
            if len(labels)
        ]
        yield name, sum(right) / len(right)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", help="names, or paths to folders")
    parser.add_argument("--max-samples", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(where())
    head: list[str] = []
    for dataset in asked.datasets:
        for alpha in (0.1, 0.5):
            found: dict[str, list[float | None]] = {}
            for seed in range(asked.seeds):
                for name, accuracy in accuracies(clients_of(dataset, alpha, seed, asked.max_samples)):
                    found.setdefault(name, []).append(accuracy)
            if not head:
                head = list(found)
                print(f"| data | alpha | {' | '.join(head)} |\n|---|---|{'---|' * len(head)}")
            words = " | ".join(percent(found[name]) for name in head)
            print(f"| {dataset.rstrip('/').rpartition('/')[2]} | {alpha} | {words} |", flush=True)


if __name__ == "__main__":
    main()
