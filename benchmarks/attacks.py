"""What one client, or three of ten, can do to the others: attack x method x aggregation.

    python -m benchmarks.attacks
    python -m benchmarks.attacks --rows "FedProto, mean" ProtoNorm --attacks flip --seeds 0

Digits, ten clients, Dirichlet 0.1, 10 rounds. The liars train like the others and spoil what they upload, from round 1
on: `scale`: the opposite vectors, of length 990,000; `within`: the opposite vectors, 15 times as long, which a bound of
20 times the median may let pass; `flip`: the opposite vectors; `swap`: each class gets the vector of the class before.
Weights are spoilt like vectors, but for `swap`; `back`, of weights: 15 times as far as training went from what
was sent, but the other way. Of claims:
`claim`: an honest upload with a claim of 2^31 - 1 training samples; `takeover`, of class statistics: that claim, all
classes, random means of norm 1, no scatter; `scatter`, of these, too: that claim, its own means, and a scatter as large
as rows of norm 1 can have, alike in all directions.
Test accuracy at the end over the honest clients' rows, by the method's own rule and by the nearest global prototype;
and what the operator saw.
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, Message

from benchmarks.common import own_home, percent, where
from protosphere.launch.grid import LocalGrid, run_in_process
from protosphere.launch.run_config import plan
from protosphere.strategies import read_settings
from protosphere.strategies.protosphere import SCALE

CLIENTS = 10
LIARS = {1: (4,), 3: (1, 4, 9)}
TASK = "rounds=10"
ROWS = {
    **{
        f"FedProto, {how}": f'strategy="fedproto" fedproto.aggregation="{how}"'
        for how in ("mean", "median", "trimmed-mean", "geometric-median")
    },
    "ProtoNorm": 'strategy="protonorm"',
    "TinyProto-FP": 'strategy="tinyproto-fp" sparsity-dim=6',
    "FedPAGR": 'strategy="fedpagr" momentum=0.9',
    "PFPL": 'strategy="pfpl"',
    "GFPL": 'strategy="gfpl" momentum=0.5 gfpl.first-exchange=2 gfpl.exchange-every=2',
    **{
        f"FedAvg, {how}": f'strategy="fedavg" models="tiny_cnn" weights.aggregation="{how}"'
        for how in ("mean", "median", "trimmed-mean", "geometric-median")
    },
    "FedGen": 'strategy="fedgen"',
    "FedCGS": 'strategy="fedcgs" privacy-encoder="handcrafted" disclose-class-counts=true',
    "protosphere": 'strategy="protosphere"',
    "protosphere, all kept": 'strategy="protosphere" protosphere.outliers="keep"',
}
SPOILT = ("scale", "within", "flip", "swap", "back")
STATISTICS = ("scatter", "moment")
VECTORS, WEIGHTS = ("vectors", "means"), ("values", "small")  # of a payload's arrays
ATTACKS = (*SPOILT, "claim", "takeover", "scatter")
CLAIM = 2**31 - 1
SEEN = {
    "claim": r"says that it has [\d,]+ training",
    "left out": r"is left out of the shared statistics",
    "contradict each other": r"contradict each other",
    "rows vary": r"times as much around their class",
    "upload dropped": r"upload dropped",
    "norm has risen": r"has risen",
    "points away": r"have pointed away|have changed against",
    "long": r"times as long as is usual",
    "collapse": r"features collapse",
    "client diverged": r"diverged",
}


def spoilt(vectors: np.ndarray, attack: str) -> np.ndarray:
    """What a liar makes of its vectors (k, d)."""
    if attack == "swap":
        return np.roll(vectors, 1, axis=0)
    longest = np.linalg.norm(vectors.reshape(len(vectors), -1), axis=1).max()
    factor = {"scale": 9.9e5 / max(longest, 1e-9), "within": 15.0, "flip": 1.0}[attack]
    return (-factor * vectors).astype(vectors.dtype)


def spoil(payload: Any, sent: Any, attack: str) -> None:
    """Spoil an upload in place, as it lies on the wire; `sent` is what the client was sent, None for nothing."""
    for name in list(payload):
        part, _, field = name.rpartition(".")
        values = payload[name].numpy()
        if part in STATISTICS:
            # of rows, and no weights of a model
            continue
        if field in VECTORS and attack != "back":
            payload[name] = Array(spoilt(values, attack))
        elif field in WEIGHTS and attack == "back" and sent is not None and name in sent:
            start = sent[name].numpy()
            payload[name] = Array((start - 15.0 * (values - start)).astype(values.dtype))
        elif field in WEIGHTS and attack not in ("back", "swap"):
            # each tensor would do: the arrays hold all of them
            payload[name] = Array(spoilt(values.reshape(1, -1), attack).reshape(values.shape))


def grid_of(attack: str, liars: Sequence[int]) -> type[LocalGrid]:
    """A grid on which the liars' uploads are spoilt on their way."""

    class Spoiling(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            self.sent = {message.metadata.dst_node_id: message.content.get("payload") for message in messages}
            return super().push_messages(messages)

        def pull_messages(self, message_ids: Any) -> list[Message]:
            replies = super().pull_messages(message_ids)
            for reply in replies:
                if not reply.has_content():
                    continue
                content = reply.content
                if "identity" in content and content["identity"]["partition"] in liars and attack not in SPOILT:
                    claim(content["identity"], attack)
                if "report" not in content or content["report"]["partition"] not in liars:
                    continue
                if attack not in SPOILT:
                    claim_again(content, attack)
                elif "payload" in content:
                    spoil(content["payload"], self.sent.get(reply.metadata.src_node_id), attack)
            return replies

    return Spoiling


def claim(identity: Any, attack: str) -> None:
    """A liar says who it is: with many training samples, and of all classes for a takeover."""
    if attack == "takeover":
        identity["classes"] = list(range(len(identity["class_names"])))
    identity["rows"] = [CLAIM, *identity["rows"][1:]]
    if identity["class_counts"]:
        identity["class_counts"] = shares_of_claim(len(identity["classes"]))


def shares_of_claim(classes: int) -> list[int]:
    """The claim as samples of each class."""
    return [CLAIM - (classes - 1) * (CLAIM // classes), *[CLAIM // classes] * (classes - 1)]


def claim_again(content: Any, attack: str) -> None:
    """A liar's reply says the same as its identity."""
    if "training" in content:
        content["training"]["counts"] = [CLAIM, content["training"]["counts"][1]]
    if "payload" not in content:
        return
    payload = content["payload"]
    for name in [name for name in payload if name.endswith("labels")]:
        prefix = name.removesuffix("labels")
        labels = payload[name].numpy()
        if attack == "takeover":
            vectors = payload[f"{prefix}vectors"].numpy()
            means = np.random.default_rng(0).normal(size=(10, vectors.shape[1])).astype(vectors.dtype)
            # as class means of directions may be
            means /= np.linalg.norm(means, axis=1, keepdims=True)
            labels = np.arange(10, dtype=labels.dtype)
            payload[name] = Array(labels)
            payload[f"{prefix}vectors"] = Array(means)
        if f"{prefix}counts" in payload:
            counts = payload[f"{prefix}counts"].numpy()
            payload[f"{prefix}counts"] = Array(np.array(shares_of_claim(len(labels)), dtype=counts.dtype))
    if attack == "takeover":
        for name in ("scatter.values", "moment.values"):
            if name in payload:
                payload[name] = Array(np.zeros_like(payload[name].numpy()))
    if attack == "scatter":
        dim = payload["prototypes.vectors"].numpy().shape[1]
        write_scatter(payload, 0.99 * np.eye(dim) / dim)


def write_scatter(payload: Any, scatter: np.ndarray) -> None:
    """In place: S (d, d) beside the means that are there; as half of it, or as the second moment of all rows."""
    vectors = payload["prototypes.vectors"].numpy().astype(np.float64)
    if "scatter.values" in payload:
        half = SCALE * scatter[np.triu_indices(len(scatter))]
        payload["scatter.values"] = Array(half.astype(payload["scatter.values"].numpy().dtype))
    else:
        counts = payload["prototypes.counts"].numpy()
        moment = scatter + vectors.T @ (counts[:, None] / counts.sum() * vectors)
        values = payload["moment.values"].numpy()
        payload["moment.values"] = Array(moment.reshape(values.shape).astype(values.dtype))


def accuracy_of(task: str, settings: str, seed: int, grid: type[LocalGrid], liars: Sequence[int]) -> float:
    """Of one run, by its own rule over the rows of all but the liars."""
    wanted = plan([task, f"{settings} seed={seed}"], clients=CLIENTS)
    with own_home():
        folder = run_in_process(wanted.run_config, clients=CLIENTS, show=lambda line: None, grid_of=grid)
        last = (folder / "metrics.jsonl").read_text().splitlines()[-1]
    honest = [own["evaluation"] for number, own in json.loads(last)["clients"].items() if int(number) not in liars]
    accuracy = _mean(honest, read_settings(wanted.run_config).inference)
    assert accuracy is not None
    return accuracy


def attacked(task: str, settings: str, seed: int, attack: str, liars: Sequence[int]) -> dict[str, Any]:
    """One run: the honest clients' accuracies, and how often which warning came. Without `attack` the same clients
    count, and nobody lies."""
    wanted = plan([task, f"{settings} seed={seed}"], clients=CLIENTS)
    rule = read_settings(wanted.run_config).inference
    said: list[str] = []
    grid = grid_of(attack, liars) if attack else LocalGrid
    with own_home():
        folder = run_in_process(wanted.run_config, clients=CLIENTS, show=said.append, grid_of=grid)
        last = (folder / "metrics.jsonl").read_text().splitlines()[-1]
    clients = json.loads(last)["clients"]
    honest = [found["evaluation"] for number, found in clients.items() if int(number) not in liars]
    return {
        **{name: _mean(honest, rule if name == "own" else name) for name in ("own", "global-prototypes")},
        "seen": Counter(name for name, words in SEEN.items() for line in said if re.search(words, line)),
        "named": Counter(
            int(number) for line in said for number in re.findall(r"of client (\d+) have (?:pointed|changed)", line)
        ),
    }


def _mean(evaluations: list[dict[str, Any]], rule: str) -> float | None:
    """Test accuracy over all rows of the clients that have the rule."""
    known = [(each[rule][0], each["rows"][0]) for each in evaluations if rule in each and each["rows"][0]]
    return sum(share * rows for share, rows in known) / sum(rows for _, rows in known) if known else None


def _seen(runs: Sequence[dict[str, Any]], liars: Sequence[int]) -> str:
    """What was said, how often a run on average; and who was named as pointing away."""
    total: Counter[str] = sum((run["seen"] for run in runs), Counter())
    words = [f"{name} ({count / len(runs):.1f})" for name, count in total.items()]
    named = set().union(*(run["named"] for run in runs))
    wrong = sorted(named - set(liars))
    return ", ".join(words + ([f"wrongly named {wrong}"] if wrong else [])) or "nothing"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("-c", "--set", default="", help="settings of the task, over those above")
    options = parser.parse_args()
    task = f"{TASK} {options.set}"
    print(f"{where()} | {CLIENTS} clients, seeds {options.seeds}, {task}\n", flush=True)
    print("| method | attack | liars | own rule | global-prototypes | said (times a run) |\n|---|---|---|---|---|---|")
    began = time.monotonic()
    for name in options.rows:
        for attack in ("", *options.attacks):
            for number, liars in LIARS.items():
                runs = [attacked(task, ROWS[name], seed, attack, liars) for seed in options.seeds]
                cells = [percent([run[rule] for run in runs]) for rule in ("own", "global-prototypes")]
                said = _seen(runs, liars if attack else ())
                print(f"| {name} | {attack or 'none'} | {number} | {' | '.join(cells)} | {said} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
