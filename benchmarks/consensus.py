"""FedPAGR and its baselines: local and ensemble accuracy (its Table 1), and its ablations by settings alone (Table 2).

    python -m benchmarks.consensus --dataset ../fashion_mnist                 (a folder with train.parquet)
    python -m benchmarks.consensus --dataset ../cifar10 --rows ablations
    python -m benchmarks.consensus --dataset ../cifar10 -c 'device="cuda" max-samples=0 rounds=400 batch-size=32'
                                                                              (the paper's protocol, on a GPU)

20 clients with the paper's five architectures, Dirichlet 0.1, half of them a round, d = 512, SGD 0.01, momentum 0.9.
Scaled to two cores: 1,000 images, 12 rounds, batches of 16. Local is the test accuracy by the method's own rule, and by
the discriminant; ensemble is that of all clients' mean class probabilities on a tenth of the images, which no client
holds. All at the end of the run: nothing is chosen on test data.
"""

import time

from benchmarks.common import percent, summary_of, table_parser, where

TASK = (
    'models="papers-fedpagr" max-samples=1000 partition="dirichlet" alpha=0.1 feature-dim=512 fraction-train=0.5 '
    "learning-rate=0.01 momentum=0.9 batch-size=16 rounds=12 evaluate-every=4 ensemble-every=12 shared-test-share=0.1"
)
METHODS = {
    "Local": 'strategy="local"',
    "FedProto": 'strategy="fedproto"',
    "FedTGP": 'strategy="fedtgp"',
    "FedProc": 'strategy="fedproc"',
    "FedPAGR": 'strategy="fedpagr"',
}
ABLATIONS = {
    "λ_S = 0": 'strategy="fedpagr" fedpagr.separation-weight=0.0',
    "λ_E = 0": 'strategy="fedpagr" fedpagr.entropy-weight=0.0',
    "T = 1": 'strategy="fedpagr" fedpagr.steps=1',
    "λ_S = 1": 'strategy="fedpagr" fedpagr.separation-weight=1.0',
    "λ_E = 0.05": 'strategy="fedpagr" fedpagr.entropy-weight=0.05',
    "T = 3": 'strategy="fedpagr" fedpagr.steps=3',
    "T = 10": 'strategy="fedpagr" fedpagr.steps=10',
    "β = 0.5": 'strategy="fedpagr" fedpagr.temperature=0.5',
    "β removed": 'strategy="fedpagr" fedpagr.alignment=false',
    "m = 0.1": 'strategy="fedpagr" fedpagr.margin=0.1',
    "m = 0.5": 'strategy="fedpagr" fedpagr.margin=0.5',
}
GROUPS = {"methods": list(METHODS), "ablations": list(ABLATIONS)}
ROWS = METHODS | ABLATIONS


def main() -> None:
    """Run every row on every seed, say each figure as it comes, and print the table as Markdown."""
    parser = table_parser(__doc__, "cifar10", [0, 1, 2], [*GROUPS, *ROWS], ["methods"])
    options = parser.parse_args()
    settings = [TASK, f'dataset="{options.dataset}"', *options.set]
    rows = [name for asked in options.rows for name in GROUPS.get(asked, [asked])]
    print(where(), f"| {options.clients} clients, seeds {options.seeds}, {' '.join(settings)}\n", flush=True)
    found: dict[str, list[list[float]]] = {name: [] for name in rows}
    floors: list[float] = []
    for seed in options.seeds:
        for name in rows:
            began = time.monotonic()
            run = summary_of([*settings, f"{ROWS[name]} seed={seed}"], options.clients, options.workers)
            rules, own = run["rules"], run["headline"]["rule"]
            found[name].append([rules[own]["final"], rules["discriminant"]["final"], run["ensemble"]["final"]])
            floors.append(run["floor"]["majority-class"])
            figures = "local {:.4f}, discriminant {:.4f}, ensemble {:.4f}".format(*found[name][-1])
            print(
                f"seed {seed}, {name}: {figures}, floor {floors[-1]:.4f}, {time.monotonic() - began:.0f} s", flush=True
            )
    print("\n| | local, own rule | local, discriminant | ensemble |\n|---|---|---|---|")
    for name, figures in found.items():
        print(f"| {name} |", " | ".join(percent(column) for column in zip(*figures, strict=True)), "|")
    print(f"\nalways the client's majority class: {percent(floors)}")


if __name__ == "__main__":
    main()
