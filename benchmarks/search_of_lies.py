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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

from benchmarks.attacks import (
    CLIENTS,
    ROWS,
    outcome,
    part_of,
    tampering,
    write_array,
    write_claim,
    write_identity,
    write_scatter,
)
from benchmarks.common import described_parser, table_head, table_row, where
from protosphere.launch.grid import LocalGrid

METHODS = {"protosphere": ROWS["protosphere"], "fedcgs": ROWS["FedCGS"]}
SHARES = (0.3, 0.5, 0.7, 1.0, 1.3)
SCATTERS = ("none", "own", "own, wide", "between")
WIDE_TRACE = 2.9 * 0.07  # the usual one, on the digits' directions, 2.9 times


@dataclass(frozen=True)
class Statistics:
    """Classes (k,), their means (k, d), and of a lie its scatter (d, d) and what it is."""

    labels: np.ndarray
    means: np.ndarray
    scatter: np.ndarray | None = None
    description: str = ""


def note_upload(uploads: dict[int, Statistics], content: Any, _: Any) -> None:
    """What a client sends."""
    if "payload" in content:
        labels, means = (content["payload"][f"prototypes.{name}"].numpy() for name in ("labels", "vectors"))
        uploads[content["report"]["partition"]] = Statistics(labels, means.astype(np.float64))


def write_lie(liar: int, lie: Statistics, content: Any, _: Any) -> None:
    """Into an answer of the liar's, in place."""
    if identity := part_of(content, "identity", (liar,)):
        write_identity(identity, lie.labels.tolist())
    if not part_of(content, "report", (liar,)):
        return
    if "payload" in content:
        write_array(content["payload"], "prototypes.labels", lie.labels)
        write_array(content["payload"], "prototypes.vectors", lie.means)
    write_claim(content)
    if "payload" in content and lie.scatter is not None:
        write_scatter(content["payload"], lie.scatter)


def random_lie(random: Random, uploads: Mapping[int, Statistics], liar: int) -> Statistics:
    """One of all lies."""
    others = [upload for partition, upload in uploads.items() if partition != liar]
    classes = sorted({int(label) for upload in others for label in upload.labels})
    means = {
        label: np.mean([upload.means[upload.labels == label][0] for upload in others if label in upload.labels], axis=0)
        for label in classes
    }
    labels = sorted(random.sample(classes, random.randint(1, min(4, len(classes)))))
    moved = set(random.sample(labels, random.randint(1, len(labels))))
    share, kind = random.choice(SHARES), random.choice(SCATTERS)
    lies = []
    for label in labels:
        target = random.choice([other for other in classes if other != label])
        mean = means[label] + (share * (means[target] - means[label]) if label in moved else 0)
        lies.append(mean / max(1.0, float(np.linalg.norm(mean))))
    table = np.stack([means[label] for label in classes])
    centred = table - table.mean(axis=0)
    between = centred.T @ centred
    dim = table.shape[1]
    scatter = {
        "none": np.zeros((dim, dim)),
        "own": None,
        "own, wide": WIDE_TRACE * np.eye(dim) / dim,
        "between": WIDE_TRACE * between / np.trace(between),
    }[kind]
    description = f"classes {labels}, of which {sorted(moved)} by {share:g}, scatter {kind}"
    return Statistics(np.array(labels), np.stack(lies), scatter, description)


def accuracy(settings: list[str], grid: type[LocalGrid], liar: int) -> float:
    """Of one run over the honest clients' rows, by the method's own rule."""
    share = outcome(settings, grid, (liar,)).own_rule
    assert share is not None
    return share


def main() -> None:
    """Print the table as Markdown."""
    parser = described_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--tries", type=int, default=40)
    parser.add_argument("-c", "--set", default="", help="settings of the task, over those above")
    options = parser.parse_args()
    task = f"rounds=1 {options.set}"
    print(f"{where()} | {CLIENTS} clients, {options.tries} lies a seed, {task}\n", flush=True)
    print(table_head("method", "seed", "liar", "nobody lies", "worst lie", "mean of all lies", "what it was", left=7))
    for method in options.methods:
        for seed in options.seeds:
            settings = [task, f"{METHODS[method]} seed={seed}"]
            uploads: dict[int, Statistics] = {}
            outcome(settings, tampering(partial(note_upload, uploads)), ())
            holders = np.bincount(np.concatenate([upload.labels for upload in uploads.values()]))
            liar = min(number for number, upload in uploads.items() if (holders[upload.labels] > 1).all())
            honest = accuracy(settings, LocalGrid, liar)
            random = Random(seed)
            lies = [random_lie(random, uploads, liar) for _ in range(options.tries)]
            shares = [accuracy(settings, tampering(partial(write_lie, liar, lie)), liar) for lie in lies]
            worst, description = min(zip(shares, (lie.description for lie in lies), strict=True))
            figures = [f"{100 * share:.1f}" for share in (honest, worst, float(np.mean(shares)))]
            print(table_row([method, seed, liar, *figures, description]), flush=True)


if __name__ == "__main__":
    main()
