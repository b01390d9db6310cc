"""Words for people: classes by their names, durations, this program's version, and a stranger's words on one line."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

LONGEST_NAME = 24  # characters
ROOM = 60  # characters for the names of a list
MOST_CLIENTS = 5


def class_word(label: int, names: Sequence[str]) -> str:
    """One class: by its name, or by its number where it has none that is known."""
    return f"class '{_brief(names[label])}'" if 0 <= label < len(names) else f"class {label}"


def class_words(labels: Sequence[int], names: Sequence[str], room: int = ROOM) -> str:
    """How many classes, and which: `3 classes: cat, dog, frog`.

    Args:
        room: characters for the names; the first is told in any case.
    """
    if not labels:
        return "no class"
    told: list[str] = []
    for label in labels:
        name = _brief(names[label])
        if told and len(", ".join([*told, name])) > room:
            break
        told.append(name)
    rest = f" and {len(labels) - len(told)} more" if len(labels) > len(told) else ""
    return f"{len(labels)} {'classes' if len(labels) > 1 else 'class'}: {', '.join(told)}{rest}"


def one_class(held: Mapping[int, Sequence[int]], names: Sequence[str]) -> str:
    """A sentence without a full stop where accuracy means nothing, else nothing.

    Args:
        held: partition -> labels of its rows; one without any is passed over.
    """
    holders = {partition: labels[0] for partition, labels in sorted(held.items()) if len(labels) == 1}
    if len(names) == 1:
        return f"all data are of {class_word(0, names)}: whatever is answered is right, and accuracy means nothing"
    if not holders:
        return ""
    told = [f"{partition}: {_brief(names[label])}" for partition, label in list(holders.items())[:MOST_CLIENTS]]
    told += [f"{len(holders) - MOST_CLIENTS} more"] if len(holders) > MOST_CLIENTS else []
    who = f"{len(holders)} clients hold" if len(holders) > 1 else "1 client holds"
    return (
        f"{who} one class alone ({', '.join(told)}): always answering it is right, so that its 100 % accuracy means "
        "nothing and raises the mean"
    )


def _brief(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def own_version() -> str:
    """This program's version; None is known of a checkout that is not installed."""
    try:
        return version("protosphere")
    except PackageNotFoundError:
        return "unknown"


def one_line(words: str, most: int = 0) -> str:
    """Somebody else's words on one line without control characters, cut to `most` characters (0: never)."""
    line = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    return line if not most or len(line) <= most else f"{line[: most - 1]}…"


def without_middle(name: str, most: int) -> str:
    """A name of at most `most` characters: what is longer keeps its begin and its end, which tell it from others."""
    end = (most - 1) // 3
    return name if len(name) <= most else f"{name[: most - 1 - end]}…{name[len(name) - end :]}"
