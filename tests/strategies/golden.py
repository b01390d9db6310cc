"""Golden runs: the figures of three rounds of every method as they are, so that what changes them shows as a diff.

    python -m tests.strategies.golden              writes golden/<method>.json of all methods anew
    python -m tests.strategies.golden fedavg pfpl  of these alone

Rounded to what is the same on machines with other kernels; a changed default is seen among the settings, too.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from protosphere.launch.grid import run_in_process
from protosphere.server_app import status
from protosphere.strategies import METHODS, known_settings, load_method
from tests.device import PLACE, PRECISION
from tests.strategies.needs import ASKED

FOLDER = Path(__file__).with_suffix("")
CLIENTS = 3
SETTINGS = {
    "rounds": 3,
    "dataset": "spiral",
    "spiral-points": 40,
    "max-samples": 0,
    "models": "tiny_perceptron",
    "feature-dim": 12,
    "fraction-train": 0.7,
    "local-epochs": 1,
    "momentum": 0.0,
    "prototype-weight": 10.0,
} | PLACE
# by its own schedule nothing would cross in three rounds; what dropout draws is another on every kind of device, and so
# may be the number of singular values of an energy, but for one
MORE = {
    "gfpl": {"gfpl.first-exchange": 1, "gfpl.exchange-every": 1},
    "fedpagr": {"fedpagr.dropout": 0.0},
    "fedproc": {"fedproc.dropout": 0.0},
    "fedkd": {"fedkd.start-energy": 0.01, "fedkd.end-energy": 0.01},
}
DECIMALS, STEP = 3, 0.04  # of figures; how far an accuracy may be off: two of about sixty test rows
NEAR, SHARE = 2e-3, 5e-3  # how far any other figure may be off: absolutely, and as a share
WIDER = 1 if PRECISION == "float32" else 10  # by this factor where products have 8 binary digits


def settings_of(name: str) -> dict[str, Any]:
    """Of the golden run of a method."""
    return ASKED[name] | SETTINGS | MORE.get(name, {})


def golden(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What is kept of a run: the method's own settings as they are by default, and a figure a round."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    own = {
        key: value for key, value in known_settings().items() if key.rpartition(".")[0] in load_method(name).settings
    }
    figures: dict[str, list[Any]] = {}
    for line in lines:
        # round 0 trains nobody
        found = {f"bytes {way}": line["bytes"][f"payload_{way}"] for way in ("up", "down") if line["round"]}
        found |= {f"accuracy {rule}": of["test"]["mean"] for rule, of in line["evaluation"]["rules"].items()}
        training = line.get("training", {})
        found |= {f"loss {part}": value for part, value in training.get("loss", {}).items()}
        found |= {key.replace("_", " "): training[key] for key in ("prototype_norm", "target_norm") if key in training}
        server = line.get("server", {})
        found |= {f"server {key}": v for key, v in server.items() if isinstance(v, int | float | str)}
        for key, value in found.items():
            figures.setdefault(key, []).append(round(value, DECIMALS) if isinstance(value, float) else value)
    return {"settings": own, "figures": figures}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """A line for each setting and figure that is another now."""
    said = []
    for part, near in (("settings", lambda name, one, other: one == other), ("figures", _near)):
        for name in sorted(before[part].keys() | after[part].keys()):
            old, new = before[part].get(name), after[part].get(name)
            if old is None or new is None or not near(name, old, new):
                said.append(f"{name}: {json.dumps(old)} -> {json.dumps(new)}")
    return said


def _near(name: str, old: list[Any], new: list[Any]) -> bool:
    return len(old) == len(new) and all(_alike(name, one, other) for one, other in zip(old, new, strict=True))


def _alike(name: str, one: Any, other: Any) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, int | float)) or name.startswith("bytes"):
        return bool(one == other)
    return abs(one - other) <= WIDER * (STEP if name.startswith("accuracy") else max(NEAR, SHARE * abs(one)))


def path_of(name: str) -> Path:
    """Where a method's golden figures are kept."""
    return FOLDER / f"{name}.json"


def main(names: list[str], show: Callable[[str], None] = print) -> None:
    """Write the files anew, and say what changed."""
    torch.set_num_threads(1)
    status.leave_report = lambda folder: None
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ["PROTOSPHERE_HOME"] = home
        for name in names or METHODS:
            folder = run_in_process(settings_of(name), clients=CLIENTS, show=lambda line: None)
            found, path = golden(name, folder), path_of(name)
            for line in changes(json.loads(path.read_text()), found) if path.exists() else ["new"]:
                show(f"{name}: {line}")
            path.write_text(_written(found))


def _written(found: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON with a line for each setting and figure."""
    parts = []
    for part, values in found.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
        parts.append(f' "{part}": {{\n{lines}\n }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
