"""What a round costs in a deployment, and what it is made of: SuperLink and SuperNodes as processes, TLS, node keys.

    python -m benchmarks.deployment

Three sites on this machine train three small models on digits. Each message is followed from the server's push to its
reply's arrival, with Flower's own interval between looks for a task (1 s) and with a tenth of it; beside
it an app that does nothing, and the same rounds in simulation. Medians over clients and rounds but the first. Processor
seconds do not depend on what else the machine does; wall seconds do: here all sites share its cores.
Target: what is ours of a client's message, not Flower's, not torch's, not training or evaluation, under 0.3 s.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, own_home, where
from benchmarks.probe.clock import VARIABLE
from protosphere.launch.demo_data import write_sites
from protosphere.launch.deployment import CONNECTION, Deployment, Site
from protosphere.launch.flower_run import launch
from protosphere.launch.grid import run_in_process

MODELS = ("tiny_cnn", "resnet8", "tiny_perceptron")
PACKAGES = ("protosphere", "client_app", "data", "models", "server_app", "strategies")
INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
INTERVALS = ("1.0", "0.1")
EMPTY = """
[project]
name = "empty"
version = "1.0.0"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "protosphere"
[tool.flwr.app.components]
serverapp = "probe.empty:server"
clientapp = "probe.empty:client"
[tool.flwr.app.config]
rounds = 1
clients = 1
"""
OURS = ("import of the app", "settings and data", "model", "store", "messages", "the rest")
ROWS = {
    "wait": "pushed, until a process starts: Flower's polls",
    "flower": "that process: Python, Flower's imports, message and bundle",
    "torch": "import of torch",
    "import of the app": "*import of the app*",
    "settings and data": "*settings and data*",
    "model": "*building the model*",
    "store": "*store: reading and writing*",
    "messages": "*decoding and encoding*",
    "the rest": "*everything else*",
    "evaluation": "evaluation",
    "training": "training, one epoch",
    "reply": "replied, until the server has it: Flower's polls",
    "ours": "**the rows in italics together: ours**",
    "all": "**pushed to arrived**",
}
Seconds = tuple[float, float | None]  # wall; of the processor, None where a message waits


def timed_app(folder: Path) -> Path:
    """The product with a clock around its parts, as an app of its own."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    _add_probe(folder)
    text = (ROOT / "pyproject.toml").read_text()
    for old, new in (
        ("protosphere.server_app.app:app", "probe.timed_server:app"),
        ("protosphere.client_app.app:app", "probe.timed_client:app"),
    ):
        assert old in text
        text = text.replace(old, new)
    # Flower refuses to leave out what is not there
    kept = [line for line in text.splitlines() if not line.startswith("fab-exclude")]
    (folder / "pyproject.toml").write_text("\n".join(kept))
    return folder


def empty_app(folder: Path) -> Path:
    """An app that replies at once."""
    _add_probe(folder)
    (folder / "pyproject.toml").write_text(EMPTY)
    return folder


def _add_probe(folder: Path) -> None:
    shutil.copytree(ROOT / "benchmarks" / "probe", folder / "probe", ignore=shutil.ignore_patterns("__pycache__"))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def in_deployment(folder: Path, interval: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """The lines that both apps' clocks wrote, under `timed` and `empty`."""
    roots = write_sites(folder / "data", len(MODELS))
    sites = [
        Site(i, {"data": str(root), "model": model, "device": "cpu"})
        for i, (root, model) in enumerate(zip(roots, MODELS, strict=True))
    ]
    times = folder / "times.jsonl"
    deployment = Deployment(folder, sites, environment={INTERVAL: interval, VARIABLE: str(times)})
    config = {"rounds": rounds, "clients": len(MODELS)}
    apps = {
        "timed": (timed_app(folder / "timed"), config | {"dataset": "digits-of-three-sites"}),
        "empty": (empty_app(folder / "empty"), config),
    }
    found = {}
    try:
        deployment.start()
        for name, (app, settings) in apps.items():
            times.write_text("")
            with _environment(deployment.environment):
                outcome = launch(settings, clients=len(MODELS), show=lambda line: None, app=app, connection=CONNECTION)
            if not outcome.ok:
                raise SystemExit(f"the run failed: {outcome.message}")
            found[name] = [json.loads(line) for line in times.read_text().splitlines()]
    finally:
        deployment.stop()
    return found


def messages(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The training messages of all rounds but the first, each with what is known of it."""
    whole: dict[str, dict[str, Any]] = {}
    for line in lines:
        whole.setdefault(line["message"], {})[line["what"]] = line
    training = [m for m in whole.values() if m["pushed"]["kind"] == "train"]
    first = min(m["pushed"]["push"] for m in training)
    return [m for m in training if m["pushed"]["push"] > first]


def round_seconds(found: Sequence[Mapping[str, Any]]) -> float:
    """Median over rounds, from the push to the last reply."""
    rounds: dict[int, list[Mapping[str, Any]]] = {}
    for message in found:
        rounds.setdefault(message["pushed"]["push"], []).append(message)
    return statistics.median(
        max(m["arrived"]["at"] for m in sent) - min(m["pushed"]["at"] for m in sent) for sent in rounds.values()
    )


def parts(message: Mapping[str, Any]) -> dict[str, Seconds]:
    """What one client's message was spent on."""
    client, pushed, arrived = message["client"], message["pushed"]["at"], message["arrived"]["at"]
    found: dict[str, Seconds] = {
        "wait": (client["start"][0] - pushed, None),
        "flower": _between(client["start"], client["flower"]),
        "reply": (arrived - client["ended"][0], None),
        "all": (arrived - pushed, None),
    }
    if "parts" not in client:
        return found
    found |= {
        "torch": _between(client["flower"], client["torch"]),
        "import of the app": _between(client["torch"], client["ours"]),
        **{part: tuple(seconds) for part, seconds in client["parts"].items()},
    }
    wall, cpu = (sum(found[part][i] or 0.0 for part in OURS) for i in (0, 1))
    return found | {"ours": (wall, cpu)}


def _between(began: Sequence[float], ended: Sequence[float]) -> Seconds:
    return ended[0] - began[0], ended[1] - began[1]


def column(found: Sequence[Mapping[str, Any]], which: int) -> dict[str, str]:
    """Medians over messages by row, of wall (0) or processor (1) seconds."""
    by_row: dict[str, list[float]] = {}
    for message in found:
        for part, seconds in parts(message).items():
            if (value := seconds[which]) is not None:
                by_row.setdefault(part, []).append(value)
    return {part: f"{statistics.median(values):.3f}" for part, values in by_row.items()}


def in_simulation(rounds: int) -> dict[str, float]:
    """Median seconds of a round over Ray and in this process, one client at a time."""
    config = {"rounds": rounds, "clients": len(MODELS), "models": ",".join(MODELS), "alpha": 1.0, "device": "cpu"}
    clients = len(MODELS)
    with own_home():
        outcome = launch(config, clients=clients, show=lambda line: None)
        if not outcome.ok or outcome.folder is None:
            raise SystemExit(f"the run failed: {outcome.message}")
        folders = {
            "over Ray": outcome.folder,
            "in one process": run_in_process(config, clients=clients, show=lambda line: None),
        }
        return {name: _recorded(folder) for name, folder in folders.items()}


def _recorded(folder: Path) -> float:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["time"]["round"] for line in lines[1:] if not line.get("final"))


def show(measured: Mapping[str, Mapping[str, Any]], simulated: Mapping[str, float]) -> None:
    """Both tables, in Markdown."""
    heads = [f"{name}, every {interval} s" for name in ("our app", "empty app") for interval in INTERVALS]
    columns = [column(measured[interval][name], 0) for name in ("timed", "empty") for interval in INTERVALS]
    heads.insert(2, f"processor, every {INTERVALS[-1]} s")
    columns.insert(2, column(measured[INTERVALS[-1]]["timed"], 1))
    print(f"\n| seconds of a message, median | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for row, words in ROWS.items():
        print(f"| {words} | {' | '.join(each.get(row, '-') for each in columns)} |")
    print("\n| a round, three clients | seconds, median |\n|---|---|")
    for name, words in (("timed", "our app"), ("empty", "empty app")):
        for interval in INTERVALS:
            print(f"| deployment, {words}, every {interval} s | {round_seconds(measured[interval][name]):.2f} |")
    for name, seconds in simulated.items():
        print(f"| simulation {name} | {seconds:.2f} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    print(where(), f"| load {os.getloadavg()[0]:.1f} before", flush=True)
    measured = {}
    for interval in INTERVALS:
        with tempfile.TemporaryDirectory() as folder:
            lines = in_deployment(Path(folder), interval, rounds)
        measured[interval] = {name: messages(each) for name, each in lines.items()}
    show(measured, in_simulation(rounds))


if __name__ == "__main__":
    main()
