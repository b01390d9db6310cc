"""Checks what a run has left: `check.py FOLDER CLIENTS`. Needs nothing but Python: it runs outside the image."""

import json
import sys
from pathlib import Path


def check(folder: Path, clients: int) -> str:
    """The outcome of the one run in `folder`, in a line.

    Raises:
        ValueError: there is no such run, clients are missing, or it is no better than the majority class.
    """
    summary_files = sorted(folder.glob("*/summary.json"))
    if len(summary_files) != 1:
        raise ValueError(
            f"{folder} holds {len(summary_files)} summaries of runs instead of one; look at the services' logs."
        )
    summary = json.loads(summary_files[0].read_text("utf-8"))
    took_part = len(json.loads(summary_files[0].with_name("roster.json").read_text("utf-8")))
    headline, floor = summary["headline"], summary["floor"]["majority-class"]
    if not took_part == headline["clients"] == clients:
        raise ValueError(
            f"{took_part} clients took part in {summary_files[0].parent} and {headline['clients']} were evaluated, "
            f"instead of {clients}; look at the log of the one that is missing."
        )
    if headline["accuracy"] <= floor:
        raise ValueError(
            f"{summary_files[0].parent}: accuracy {headline['accuracy']:.3f}, no better than the floor {floor:.3f}."
        )
    return f"{summary_files[0].parent.name}: {clients} clients, accuracy {headline['accuracy']:.3f}, floor {floor:.3f}"


if __name__ == "__main__":
    try:
        print(check(Path(sys.argv[1]), int(sys.argv[2])))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"deploy/docker/check.py: {error!r}" if isinstance(error, KeyError) else str(error))
