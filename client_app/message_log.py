"""What a site keeps of its own messages: a line each in `messages.jsonl` of the client's store, for its own page.

    round, trains     which message it answered
    received, sent    bytes by record; of the payload by part
    rows, correct     what the reply said of the evaluation, by rule
    loss              what it said of the training, by part

Sizes and figures that have left the machine in any case. A simulation keeps none.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from protosphere.core.files import open_to_append, sealed
from protosphere.wire.payloads import Report
from protosphere.wire.sizes import bytes_by_part

log = logging.getLogger("protosphere")

FILE = "messages.jsonl"


def note(folder: Path, received: RecordDict, sent: RecordDict, report: Report, trains: bool) -> None:
    """Add a reply to a client's store. A disk that is full costs the line and no round."""
    line: dict[str, Any] = {
        "round": report.round,
        "trains": trains,
        "received": bytes_by_part(received),
        "sent": bytes_by_part(sent),
    }
    if report.evaluation is not None:
        line |= {"rows": report.evaluation.rows, "correct": report.evaluation.correct}
    if report.training is not None:
        line |= {"loss": report.training.parts}
    if report.problem:
        line |= {"problem": report.problem}
    append(folder, FILE, line, "record of messages")


def append(folder: Path, name: str, line: Mapping[str, Any], what: str) -> None:
    """Add a line of JSON to a file of a client's store; a disk that takes none is said in the site's log alone.

    Args:
        what: the file holds, for that.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_to_append(folder / name) as file:
            file.write(json.dumps(sealed(line)) + "\n")
    except OSError as error:
        log.error("the %s in %s cannot be written: %s", what, folder, error)
