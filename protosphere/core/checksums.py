"""JSON objects that are held against a digest: a flipped bit in a number would be read as another figure.

The digest (SHA-256) stands in the object itself as its last entry, `digest`, and is of its content: who lays the file
out anew changes nothing. A list has one in each of its entries, a file of lines one a line.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from protosphere.core.files import LARGEST_RECORD, read_whole

log = logging.getLogger("protosphere")

DIGEST = "digest"
KIND = "sha256:"
CHANGED = (
    "is not as it was written: a damaged disk or a cut copy does that, and an editor; bring it back from a copy, or, "
    f"where you changed it yourself, take its `{DIGEST}` out"
)
CUT = "was cut, or is zeros at its end: a damaged disk or a cut copy does that; bring it back from a copy"


# the first file without a digest, of tensors or of JSON, that this process has read: a run has many, and one line says
# it of all
_undigested: list[Path] = []


class DamagedError(OSError):
    """A file that is not as it was written; the message is a part of a sentence."""


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """An object with its digest, to be written as JSON."""
    return {**content, DIGEST: _of(json.loads(json.dumps(content)))}


def read_sealed(path: Path) -> Any:
    """What a file of JSON holds, `opened`.

    Raises:
        DamagedError: it is not what was written.
        OSError, ValueError: it cannot be read.
    """
    return opened(json.loads(read_whole(path, LARGEST_RECORD)), path)


def read_sealed_lines(path: Path, last: Literal["whole", "cut", "any"] = "cut") -> list[Any]:
    """The lines of a file of JSON, each `opened`.

    Args:
        last: what the last one may be: `whole` where all of it was written; `cut`, the beginning of a line, which a
            crash leaves, and which is left out; `any`, also what a damaged disk leaves, left out likewise.

    Raises:
        DamagedError: a line is not what was written, or the last one is not what it may be.
        OSError, ValueError: it cannot be read.
    """
    # by "\n" alone: other ends of a line, which a flipped bit makes of it, are none
    *lines, tail = read_whole(path, LARGEST_RECORD).decode("utf-8").split("\n")
    if _is_whole(tail):
        lines.append(tail)
    elif tail and (last == "whole" or (last == "cut" and not _is_cut_short(tail))):
        raise DamagedError(CUT)
    return [opened(json.loads(line), path) for line in lines]


def _is_whole(text: str) -> bool:
    """Whether nothing but its end is missing to a line."""
    try:
        return json.JSONDecoder().raw_decode(text)[1] == len(text)
    except ValueError:
        return False


def _is_cut_short(text: str) -> bool:
    """Whether it is the beginning of a line: without zeros, which a lost page leaves, and with nothing in the place of
    the line's end."""
    try:
        json.JSONDecoder().raw_decode(text)
    except ValueError:
        return "\0" not in text
    return False


def opened(content: Any, path: Path, notice: bool = True) -> Any:
    """What was sealed, without its digest, or each entry of a list; what has none comes with a notice, once a process.

    Args:
        path: where it was read, for the notice.
        notice: whether there is to be one.

    Raises:
        DamagedError: it is not what was written.
    """
    if isinstance(content, list):
        return [opened(entry, path, notice) for entry in content]
    if not isinstance(content, dict):
        return content
    if DIGEST not in content:
        # one whose name is damaged is none that is missing
        if any(isinstance(value, str) and value.startswith(KIND) for value in content.values()):
            raise DamagedError(CHANGED)
        if notice:
            tell_of_no_digest(path)
        return content
    bare = {name: value for name, value in content.items() if name != DIGEST}
    if content[DIGEST] != _of(bare):
        raise DamagedError(CHANGED)
    return bare


def tell_of_no_digest(path: Path) -> None:
    """The one notice, by the first file of a process, whatever its kind."""
    if not _undigested:
        log.warning(
            "%s has no digest: an earlier version wrote it, so that damage would not be noticed; of further such files "
            "nothing is said",
            path,
        )
        _undigested.append(path)


def _of(content: Mapping[str, Any]) -> str:
    return KIND + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
