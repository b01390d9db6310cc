"""The worst of many random lies that one client of ten can tell with class statistics, when it knows what all others
sent.

    python -m benchmarks.search_of_lies
    python -m benchmarks.search_of_lies --methods fedcgs --tries 20 --seeds 0 -c alpha=1

Digits, ten clients, Dirichlet 0.1, one round. The liar is the lowest partition that holds no class alone. It claims
2^31 - 1 samples and one to four classes; of some of these it moves the others' mean by a share of the way to another
class's (0.3 to 1.3), the others it tells as they are; its scatter is none, its own, its own at 2.9 times the usual
trace, or as much in the directions in which the others' class means differ. Test accuracy over the honest clients'
rows, by the method's own rule: without a liar, with the worst lie, and what that was.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from flwr.app import Array, Message

from benchmarks.attacks import CLAIM, CLIENTS, ROWS, accuracy_of, shares_of_claim, write_scatter
from benchmarks.common import where
from protosphere.launch.grid import LocalGrid

METHODS = {"protosphere": ROWS["protosphere"], "fedcgs": ROWS["FedCGS"]}
SHARES = (0.3, 0.5, 0.7, 1.0, 1.3)
SCATTERS = ("none", "own", "own, wide", "between")
USUAL_TRACE = 0.07  # on the digits' directions


@dataclass
class Statistics:
    """What a client sent: its classes, (k,), and their means, (k, d)."""

    labels: np.ndarray
    means: np.ndarray


@dataclass(frozen=True)
class Lie:
    """What the liar says: classes and their means (k, d), its scatter (d, d), and all that in words."""

    labels: np.ndarray
    means: np.ndarray
    scatter: np.ndarray | None
    words: str


def listening(heard: dict[int, Statistics]) -> type[LocalGrid]:
    """A grid that notes what clients send."""

    class Listening(LocalGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            replies = super().pull_messages(message_ids)
            for reply in replies:
                content: Any = reply.content if reply.has_content() else {}
                if "payload" in content:
                    payload = content["payload"]
                    labels, means = (payload[f"prototypes.{name}"].numpy() for name in ("labels", "vectors"))
                    heard[content["report"]["partition"]] = Statistics(labels, means.astype(np.float64))
            return replies

    return Listening


def lying(liar: int, lie: Lie) -> type[LocalGrid]:
    """A grid on which one client's messages say something else."""

    class Lying(LocalGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            replies = super().pull_messages(message_ids)
            for reply in replies:
                if reply.has_content():
                    tell(reply.content, liar, lie)
            return replies

    return Lying


def tell(content: Any, liar: int, lie: Lie) -> None:
    """Write the lie into an answer of the liar's, in place."""
    counts = shares_of_claim(len(lie.labels))
    if "identity" in content and content["identity"]["partition"] == liar:
        identity = content["identity"]
        identity["classes"], identity["rows"] = lie.labels.tolist(), [CLAIM, *identity["rows"][1:]]
        if identity["class_counts"]:
            identity["class_counts"] = counts
    if "report" not in content or content["report"]["partition"] != liar:
        return
    if "training" in content:
        content["training"]["counts"] = [CLAIM, content["training"]["counts"][1]]
    if "payload" not in content:
        return
    payload = content["payload"]
    for name, values in (("labels", lie.labels), ("vectors", lie.means), ("counts", np.array(counts))):
        if f"prototypes.{name}" in payload:
            dtype = payload[f"prototypes.{name}"].numpy().dtype
            payload[f"prototypes.{name}"] = Array(values.astype(dtype))
    if lie.scatter is not None:
        write_scatter(payload, lie.scatter)


def drawn_lie(random: Random, heard: Mapping[int, Statistics], liar: int) -> Lie:
    """One of all lies."""
    others = [own for partition, own in heard.items() if partition != liar]
    known = sorted({int(label) for own in others for label in own.labels})
    means = {j: np.mean([own.means[own.labels == j][0] for own in others if j in own.labels], axis=0) for j in known}
    labels = sorted(random.sample(known, random.randint(1, min(4, len(known)))))
    moved = set(random.sample(labels, random.randint(1, len(labels))))
    share, kind = random.choice(SHARES), random.choice(SCATTERS)
    told = []
    for label in labels:
        target = random.choice([other for other in known if other != label])
        mean = means[label] + (share * (means[target] - means[label]) if label in moved else 0)
        told.append(mean / max(1.0, float(np.linalg.norm(mean))))
    table = np.stack([means[label] for label in known])
    apart = table - table.mean(axis=0)
    between = apart.T @ apart
    dim = table.shape[1]
    scatter = {
        "none": np.zeros((dim, dim)),
        "own": None,
        "own, wide": 2.9 * USUAL_TRACE * np.eye(dim) / dim,
        "between": 2.9 * USUAL_TRACE * between / np.trace(between),
    }[kind]
    words = f"classes {labels}, of which {sorted(moved)} by {share:g}, scatter {kind}"
    return Lie(np.array(labels), np.stack(told), scatter, words)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--tries", type=int, default=40)
    parser.add_argument("-c", "--set", default="", help="settings of the task, over those above")
    options = parser.parse_args()
    task = f"rounds=1 {options.set}"
    print(f"{where()} | {CLIENTS} clients, {options.tries} lies a seed, {task}\n", flush=True)
    columns = ("method", "seed", "liar", "nobody lies", "worst lie", "mean of all lies", "what it was")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)
    began = time.monotonic()
    for method in options.methods:
        for seed in options.seeds:
            heard: dict[int, Statistics] = {}
            accuracy_of(task, METHODS[method], seed, listening(heard), ())
            holders = np.bincount(np.concatenate([own.labels for own in heard.values()]))
            liar = min(p for p, own in heard.items() if (holders[own.labels] > 1).all())
            honest = accuracy_of(task, METHODS[method], seed, LocalGrid, (liar,))
            random = Random(seed)
            lies = [drawn_lie(random, heard, liar) for _ in range(options.tries)]
            found = [(accuracy_of(task, METHODS[method], seed, lying(liar, lie), (liar,)), lie.words) for lie in lies]
            worst, words = min(found)
            mean = sum(accuracy for accuracy, _ in found) / len(found)
            cells = [f"{100 * value:.1f}" for value in (honest, worst, mean)]
            print(f"| {method} | {seed} | {liar} | {' | '.join(cells)} | {words} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
