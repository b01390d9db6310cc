"""Parses settings, `key=value` or a TOML file, and checks each by itself. Neither torch nor a method is loaded, so
errors appear immediately."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.core.settings import Scalar, refuse_alone, shown

# one `key=value`: the value in quotes of either kind, or up to the next space
ASSIGNMENT = re.compile(r"""\s*([A-Za-z0-9_.-]+)=("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"']\S*)(?=\s|$)""")
RunConfig = dict[str, Scalar]


def read_all(texts: Sequence[str]) -> RunConfig:
    """Settings from several texts; later ones take precedence."""
    settings: RunConfig = {}
    for text in texts:
        settings |= read_assignments(text)
    refuse_alone(settings)
    return settings


def read_assignments(text: str) -> RunConfig:
    """Settings from Flower's syntax `key=value table.key="x y"`, or from a TOML file if `text` ends in `.toml`."""
    if text.endswith(".toml"):
        return read_toml(Path(text).expanduser())
    settings: RunConfig = {}
    position = 0
    while text[position:].strip():
        match = ASSIGNMENT.match(text, position)
        if not match:
            raise SettingError(
                f"cannot read {text[position:].strip()!r} in -c {text!r}: give key=value pairs with a space between "
                "them and none around the =, strings in double quotes, as in -c 'rounds=5 strategy=\"fedproto\"'."
            )
        position = match.end()
        name, value = match.groups()
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        # raised also for a number with more digits than Python reads
        except ValueError:
            raise SettingError(
                f"{value} is no value for `{name}`: give a number, true, false, or a string in double quotes, as in "
                f"-c '{name}=\"{value.strip(chr(34) + chr(39))}\"'."
            ) from None
        settings[name] = scalar(name, parsed)
    return settings


def read_toml(path: Path) -> RunConfig:
    """Settings from a TOML file; a name in a table is prefixed with the table's name and a dot."""
    return flatten(load_toml(path, "settings"))


def load_toml(path: Path, kind: str) -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        kind: a name for the file in errors.
    """
    try:
        # some editors start a file with a byte order mark
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise SettingError(f"the {kind} file {path} cannot be read ({reason}).") from None
    except ValueError as error:
        raise SettingError(f"the {kind} file {path} is not valid TOML ({error}).") from None


def flatten(table: Mapping[str, Any]) -> RunConfig:
    """Settings from a TOML table; nested ones get dotted names."""
    return {name: scalar(name, value) for name, value in leaves(table)}


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values in a TOML table and its subtables, by dotted names."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def scalar(name: str, value: Any) -> Scalar:
    if not isinstance(value, bool | int | float | str):
        raise SettingError(
            f"setting `{name}` is {shown(value)}, but a setting is a number, true, false or a string; a list is a "
            'string with commas, as in "resnet8,mobilenet_v2".'
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise SettingError(f"setting `{name}` is {value}, but a whole number must fit into 64 bits.")
    return value
