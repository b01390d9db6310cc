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

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, Message

from benchmarks.common import described_parser, own_home, percent, table_head, table_row, where
from protosphere.launch.grid import LocalGrid, run_in_process
from protosphere.launch.run_config import plan
from protosphere.record.folder import RunFolder
from protosphere.strategies import read_settings
from protosphere.strategies.protosphere import SCALE

CLIENTS = 10
LIARS = {1: (4,), 3: (1, 4, 9)}
AGGREGATIONS = ("mean", "median", "trimmed-mean", "geometric-median")
ROWS = {
    **{f"FedProto, {how}": f'strategy="fedproto" fedproto.aggregation="{how}"' for how in AGGREGATIONS},
    "ProtoNorm": 'strategy="protonorm"',
    "TinyProto-FP": 'strategy="tinyproto-fp" sparsity-dim=6',
    "FedPAGR": 'strategy="fedpagr" momentum=0.9',
    "PFPL": 'strategy="pfpl"',
    "GFPL": 'strategy="gfpl" momentum=0.5 gfpl.first-exchange=2 gfpl.exchange-every=2',
    **{f"FedAvg, {how}": f'strategy="fedavg" models="tiny_cnn" weights.aggregation="{how}"' for how in AGGREGATIONS},
    "FedGen": 'strategy="fedgen"',
    "FedCGS": 'strategy="fedcgs" encoder="handcrafted" disclose-class-counts=true',
    "protosphere": 'strategy="protosphere"',
    "protosphere, all kept": 'strategy="protosphere" protosphere.outliers="keep"',
}
SPOILING = ("scale", "within", "flip", "swap", "back")
ATTACKS = (*SPOILING, "claim", "takeover", "scatter")
STATISTICS = ("scatter", "moment")
VECTORS, WEIGHTS = ("vectors", "means"), ("values", "small")  # of a payload's arrays
CLAIM = 2**31 - 1
WARNINGS = {
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
NAMED = re.compile(r"of client (\d+) have (?:pointed|changed)")
Tamper = Callable[[Any, Any], None]  # of a reply's content, in place, beside the payload that its client was sent


def tampering(tamper: Tamper) -> type[LocalGrid]:
    """A grid on which replies are changed on their way."""

    class Tampering(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            self.sent = {message.metadata.dst_node_id: message.content.get("payload") for message in messages}
            return super().push_messages(messages)

        def pull_messages(self, message_ids: Any) -> list[Message]:
            replies = super().pull_messages(message_ids)
            for reply in replies:
                if reply.has_content():
                    tamper(reply.content, self.sent.get(reply.metadata.src_node_id))
            return replies

    return Tampering


def part_of(content: Any, name: str, clients: Collection[int]) -> Any:
    """A record of a reply, `identity` or `report`, if it comes from one of these clients."""
    return content[name] if name in content and content[name]["partition"] in clients else None


def attack_content(attack: str, liars: Collection[int], content: Any, sent: Any) -> None:
    """Spoil a liar's upload, or write its claim."""
    identity, report = (part_of(content, name, liars) for name in ("identity", "report"))
    if attack in SPOILING:
        if report and "payload" in content:
            spoil(content["payload"], sent, attack)
        return
    if identity:
        labels = range(len(identity["class_names"])) if attack == "takeover" else identity["classes"]
        write_identity(identity, list(labels))
    if report:
        write_claim(content, attack)


def spoil(payload: Any, sent: Any, attack: str) -> None:
    """Spoil an upload as it lies on the wire; `sent` is what the client was sent, None for nothing."""
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


def spoilt(vectors: np.ndarray, attack: str) -> np.ndarray:
    """What a liar makes of its vectors (k, d)."""
    if attack == "swap":
        return np.roll(vectors, 1, axis=0)
    longest = np.linalg.norm(vectors.reshape(len(vectors), -1), axis=1).max()
    factor = {"scale": 9.9e5 / max(longest, 1e-9), "within": 15.0, "flip": 1.0}[attack]
    return (-factor * vectors).astype(vectors.dtype)


def write_identity(identity: Any, labels: list[int]) -> None:
    """A liar says who it is: with many training samples, of these classes."""
    identity["classes"] = labels
    identity["rows"] = [CLAIM, *identity["rows"][1:]]
    if identity["class_counts"]:
        identity["class_counts"] = claimed_counts(len(labels))


def claimed_counts(classes: int) -> list[int]:
    """The claim as samples of each class."""
    return [CLAIM - (classes - 1) * (CLAIM // classes), *[CLAIM // classes] * (classes - 1)]


def write_claim(content: Any, attack: str = "claim") -> None:
    """A liar's reply says the same as its identity."""
    if "training" in content:
        content["training"]["counts"] = [CLAIM, content["training"]["counts"][1]]
    payload = content.get("payload", {})
    for prefix in [name.removesuffix("labels") for name in payload if name.endswith("labels")]:
        if attack == "takeover":
            means = np.random.default_rng(0).normal(size=(10, payload[f"{prefix}vectors"].numpy().shape[1]))
            # as class means of directions may be
            write_array(payload, f"{prefix}vectors", means / np.linalg.norm(means, axis=1, keepdims=True))
            write_array(payload, f"{prefix}labels", np.arange(10))
        if f"{prefix}counts" in payload:
            counts = claimed_counts(len(payload[f"{prefix}labels"].numpy()))
            write_array(payload, f"{prefix}counts", np.array(counts))
    if attack == "takeover":
        for name in (f"{part}.values" for part in STATISTICS if f"{part}.values" in payload):
            write_array(payload, name, np.zeros_like(payload[name].numpy()))
    if attack == "scatter" and payload:
        dim = payload["prototypes.vectors"].numpy().shape[1]
        write_scatter(payload, 0.99 * np.eye(dim) / dim)


def write_array(payload: Any, name: str, values: np.ndarray) -> None:
    """In place, in the type that is there."""
    payload[name] = Array(values.astype(payload[name].numpy().dtype))


def write_scatter(payload: Any, scatter: np.ndarray) -> None:
    """In place: S (d, d) beside the means that are there; as half of it, or as the second moment of all rows."""
    if "scatter.values" in payload:
        write_array(payload, "scatter.values", SCALE * scatter[np.triu_indices(len(scatter))])
        return
    vectors = payload["prototypes.vectors"].numpy().astype(np.float64)
    counts = payload["prototypes.counts"].numpy()
    moment = scatter + vectors.T @ (counts[:, None] / counts.sum() * vectors)
    write_array(payload, "moment.values", moment.reshape(payload["moment.values"].numpy().shape))


@dataclass(frozen=True)
class Outcome:
    """The honest clients' accuracies in one run, and what it said."""

    own_rule: float | None
    by_global: float | None
    log: list[str]


def outcome(settings: Sequence[str], grid: type[LocalGrid], liars: Collection[int]) -> Outcome:
    """Of one run over the rows of all but the liars."""
    config = plan(settings, clients=CLIENTS).run_config
    log: list[str] = []
    with own_home():
        folder = run_in_process(config, clients=CLIENTS, show=log.append, grid_of=grid)
        last = RunFolder(folder).lines()[-1]
    honest = [line["evaluation"] for number, line in last["clients"].items() if int(number) not in liars]
    own_rule, by_global = (mean_accuracy(honest, r) for r in (read_settings(config).inference, "global-prototypes"))
    return Outcome(own_rule, by_global, log)


def mean_accuracy(evaluations: Sequence[Mapping[str, Any]], rule: str) -> float | None:
    """Test accuracy over all rows of the clients that have the rule."""
    pairs = [(line[rule][0], line["rows"][0]) for line in evaluations if rule in line and line["rows"][0]]
    return sum(share * rows for share, rows in pairs) / sum(rows for _, rows in pairs) if pairs else None


def warnings(outcomes: Sequence[Outcome], liars: Collection[int]) -> str:
    """What was said, how often a run on average; and which honest client was named as pointing away."""
    lines = [line for run in outcomes for line in run.log]
    total = Counter(name for name, pattern in WARNINGS.items() for line in lines if re.search(pattern, line))
    texts = [f"{name} ({count / len(outcomes):.1f})" for name, count in total.items()]
    wrong = sorted({int(number) for line in lines for number in NAMED.findall(line)} - set(liars))
    return ", ".join(texts + ([f"wrongly named {wrong}"] if wrong else [])) or "nothing"


def main() -> None:
    """Print the table as Markdown."""
    parser = described_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("-c", "--set", default="", help="settings of the task, over those above")
    options = parser.parse_args()
    task = f"rounds=10 {options.set}"
    print(f"{where()} | {CLIENTS} clients, seeds {options.seeds}, {task}\n", flush=True)
    print(table_head("method", "attack", "liars", "own rule", "global-prototypes", "said (times a run)", left=6))
    for row in options.rows:
        for attack in ("", *options.attacks):
            for number, liars in LIARS.items():
                # where nobody lies the same clients count
                grid = tampering(partial(attack_content, attack, liars)) if attack else LocalGrid
                outcomes = [outcome([task, f"{ROWS[row]} seed={seed}"], grid, liars) for seed in options.seeds]
                cells = percent([run.own_rule for run in outcomes]), percent([run.by_global for run in outcomes])
                said = warnings(outcomes, liars if attack else ())
                print(table_row([row, attack or "none", number, *cells, said]), flush=True)


if __name__ == "__main__":
    main()
