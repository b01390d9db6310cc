"""What the faulty clients say of themselves, beside the run: one line an event, and what crossed, byte by byte."""

import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from safetensors.numpy import load_file, save_file

Event = dict[str, Any]


class Journal:
    """A folder: `events.jsonl`, and a safetensors file for each set of arrays."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def say(self, event: str, partition: int, round_number: int, **values: Any) -> None:
        """Append a line, whole or not at all: many processes write here, and any may be killed."""
        line = {"event": event, "partition": partition, "round": round_number, "time": time.time(), **values}
        handle = os.open(self.folder / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)

    def events(self, event: str = "") -> list[Event]:
        """All lines, or those of one kind, in the order of writing."""
        path = self.folder / "events.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if event in ("", line["event"])]

    def keep(self, **records: ArrayRecord | None) -> str:
        """Put the bytes of arrays away, under `<record>/<array>`; the file's name."""
        bytes_of = {
            f"{name}/{key}": np.frombuffer(bytes(array.data), dtype=np.uint8).copy()
            for name, record in records.items()
            for key, array in (record or {}).items()
        }
        name = f"{time.time_ns()}-{os.getpid()}.safetensors"
        temporary = self.folder / f"{name}.part"
        save_file(bytes_of, temporary)
        os.replace(temporary, self.folder / name)
        return name

    def kept(self, name: str, record: str) -> dict[str, bytes]:
        """The bytes of one record's arrays, by name; nothing where it was not there."""
        found = load_file(self.folder / name)
        return {
            key.removeprefix(f"{record}/"): values.tobytes()
            for key, values in found.items()
            if key.startswith(f"{record}/")
        }


def generations(folder: Path) -> dict[int, str]:
    """The generations of a client's store: round -> digest of the file."""
    return {
        int(re.sub(r"\D", "", path.stem)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("round-*.safetensors"))
    }
