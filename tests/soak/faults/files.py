"""Whether everything that a run keeps on disk is whole."""

import json
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import load_file

from protosphere.record.folder import RunFolder


def refuse_broken(folders: Iterable[Path]) -> int:
    """Read every safetensors, JSON and JSON-lines file under the folders; how many there were. Fails for one that is
    cut short, and for a temporary that nobody took away."""
    count = 0
    for folder in folders:
        # Flower's own installation of the app lies beside what is ours
        paths = [path for path in folder.rglob("*") if path.is_file() and "flwr" not in path.parts]
        assert [path for path in paths if path.suffix == ".tmp"] == []
        for path in paths:
            if path.suffix == ".safetensors":
                load_file(path)
            elif path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".jsonl":
                text = path.read_text()
                assert text.endswith("\n"), path
                for line in text.splitlines():
                    json.loads(line)
            else:
                continue
            count += 1
    return count


def finished(folder: Path) -> tuple[int, int]:
    """Of a run's folder: the last round with a line, and the checkpoint's round."""
    lines = [line["round"] for line in RunFolder(folder).lines()]
    return max(lines, default=0), int(RunFolder(folder).load_checkpoint()[1]["round"])
