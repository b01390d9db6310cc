"""Run folders of any size, written without a run, for reports."""

import json
from pathlib import Path

import numpy as np
import torch

from protosphere.record import snapshots
from protosphere.record.folder import RunFolder
from protosphere.record.summary import summarise
from protosphere.strategies import known_settings, read_settings

RULES = ("classifier", "local-prototypes", "majority-class")
SIZES = ("payload_up", "payload_down", "wire_up", "wire_down", "evaluation_wire_up", "evaluation_wire_down")
MODELS = ("tiny_cnn", "tiny_perceptron", "resnet8")


def fabricate(folder: Path, clients=4, classes=5, rounds=3, dim=6, finished=True, settings=None, **roster):
    """A run's folder. `roster` replaces values of every client in the roster."""
    folder.mkdir(parents=True)
    config = known_settings() | {"strategy": "protonorm", "rounds": rounds, "feature-dim": dim} | (settings or {})
    (folder / "settings.json").write_text(json.dumps(config))
    rng = np.random.default_rng(clients + classes + rounds)
    identities = [identity(partition, clients, classes, dim, rng) | roster for partition in range(clients)]
    (folder / "roster.json").write_text(json.dumps(identities))
    lines = [line(number, rounds, clients, rng, classes) for number in range(rounds + 1)]
    if not finished:
        lines[-1].pop("confusion", None)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    record = RunFolder(folder)
    vectors = torch.from_numpy(rng.standard_normal((clients * classes, dim)).astype(np.float32))
    labels = torch.arange(classes)
    tensors = {
        "global/labels": labels,
        "global/vectors": vectors.view(clients, classes, dim).mean(0),
        "local/clients": torch.arange(clients).repeat_interleave(classes),
        "local/labels": labels.repeat(clients),
        "local/vectors": vectors,
    }
    snapshots.save(folder, tensors, {"round": rounds, "clients": clients, "left_out": 0})
    if finished:
        run = read_settings(config)
        record.write_summary(summarise(run.settings, run.inference, config, lines, clients))
    return folder


def change_json(path, **values):
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_lines(folder, change):
    """Replace each line of metrics.jsonl by `change(line)`."""
    path = folder / "metrics.jsonl"
    lines = [change(json.loads(text)) for text in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(content) + "\n" for content in lines))


def identity(partition, clients, classes, dim, rng):
    labels = sorted(rng.choice(classes, size=max(1, classes // 2), replace=False).tolist())
    texts = dict.fromkeys(("settings", "encoder", "problem", "domain"), "")
    return texts | {
        "partition": partition,
        "partitions": clients,
        "model": MODELS[partition % len(MODELS)],
        "parameters": 1000,
        "feature_dim": dim,
        "class_names": [f"class {label}" for label in range(classes)],
        "classes": labels,
        "rows": [60, 10, 30],
        "discloses": ["the classes it holds"],
    }


def line(number, rounds, clients, rng, classes):
    accuracies = {rule: rng.uniform(0.3, 0.9, clients) for rule in RULES}
    of_clients = {}
    for partition in range(clients):
        evaluation = {rule: [round(float(values[partition]), 4), None] for rule, values in accuracies.items()}
        of_clients[str(partition)] = {"evaluation": evaluation | {"rows": [30, 10]}}
    seconds = {str(partition): 0.1 for partition in range(clients)}
    content = {
        "round": number,
        "bytes": dict.fromkeys(SIZES, 1000 * clients),
        "problems": {},
        "clients": of_clients,
        "evaluation": {"rules": {rule: {"test": spread(values)} for rule, values in accuracies.items()}},
        "time": {"round": 0.3 * clients, "train": seconds, "evaluate": seconds, "client": seconds},
    }
    if number == 0:
        return content
    if number == rounds:
        models = {model: triples(classes, shift) for shift, model in enumerate(MODELS[:clients])}
        content |= {"last": True, "confusion": {"rule": "local-prototypes", "models": models}}
    separation = {"classes": classes}
    separation |= dict.fromkeys(("distance_min", "distance_mean", "distance_bound"), 1.0 + 1 / number)
    separation |= dict.fromkeys(("angle_min", "angle_mean", "angle_bound"), 90.0)
    content["time"]["server"] = 0.05
    loss = {"cross-entropy": 2.0 / number, "pull": 0.1 * number, "loss": 2.0 / number + number}
    return content | {"training": {"asked": clients, "loss": loss}, "server": {"separation": separation}}


def triples(classes, shift):
    """Three samples of each class are right, and one or two are taken for the next class."""
    cells = [[label, label, 3] for label in range(classes)]
    if classes > 1:
        cells += [[label, (label + 1) % classes, 1 + shift % 2] for label in range(classes)]
    return sorted(cells)


def spread(values):
    values = np.asarray(values)
    mean = float(values.mean())
    return {
        "mean": mean,
        "plain_mean": mean,
        "std": float(values.std()),
        "worst": float(values.min()),
        "worst_tenth": float(values.min()),
        "clients": len(values),
        "rows": 30 * len(values),
    }
