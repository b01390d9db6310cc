"""JSON objects that are held against a digest: a flipped bit in a number would be read as another figure.

The digest (SHA-256) stands in the object itself as its last entry, `digest`, and is of its content: who lays the file
out anew changes nothing. A list has one in each of its entries, a file of lines one a line.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.tensor_files import DIGEST, DamagedError

log = logging.getLogger("protosphere")

KIND = "sha256:"
CHANGED = (
    "is not as it was written: a damaged disk or a cut copy does that, and an editor; bring it back from a copy, or, "
    f"where you changed it yourself, take its `{DIGEST}` out"
)
_told: set[Path] = set()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """An object with its digest, to be written as JSON."""
    return {**content, DIGEST: _of(json.loads(json.dumps(content)))}


def opened(content: Any, path: Path) -> Any:
    """What was sealed, without its digest, or each entry of a list; what has none comes with a notice, once a folder.

    Args:
        path: where it was read, for the notice.

    Raises:
        DamagedError: it is not what was written.
    """
    if isinstance(content, list):
        return [opened(each, path) for each in content]
    if not isinstance(content, dict):
        return content
    if DIGEST not in content:
        # one whose name is damaged is none that is missing
        if any(isinstance(value, str) and value.startswith(KIND) for value in content.values()):
            raise DamagedError(CHANGED)
        if path.parent not in _told:
            _told.add(path.parent)
            log.warning("%s has no digest: an earlier version wrote it, so that damage would not be noticed", path)
        return content
    bare = {name: value for name, value in content.items() if name != DIGEST}
    if content[DIGEST] != _of(bare):
        raise DamagedError(CHANGED)
    return bare


def _of(content: Mapping[str, Any]) -> str:
    return KIND + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
