"""Text for messages: class names, durations, sizes, this program's version, and untrusted text on one line."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

LONGEST_NAME = 24  # longest class name, in characters
ROOM = 80  # characters for a list of names
MOST_CLIENTS = 5
MARKS = str.maketrans(dict.fromkeys('"“”„‟«»″', "'"))  # quotation marks, which would end a quotation
GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "λ": "lambda", "μ": "mu", "π": "pi", "ρ": "rho", "σ": "sigma"}
GREEK |= {"ε": "varepsilon", "τ": "tau", "ω": "omega", "Σ": "Sigma", "Ψ": "Psi"}


def class_word(label: int, names: Sequence[str]) -> str:
    """A class: its name, or its number if the name is unknown."""
    return f"class '{cut_apart(names, LONGEST_NAME)[label]}'" if 0 <= label < len(names) else f"class {label}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 round`, `2 rounds`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def class_words(labels: Sequence[int], names: Sequence[str]) -> str:
    """The number of classes, and the first of their names: `3 classes: cat, dog, frog`."""
    if not labels:
        return "no class"
    short_names = ", ".join(cut_apart([names[label] for label in labels], LONGEST_NAME))
    return f"{len(labels)} {'classes' if len(labels) > 1 else 'class'}: {one_line(short_names, ROOM)}"


def one_class(labels_by_partition: Mapping[int, Sequence[int]], names: Sequence[str]) -> str:
    """A sentence without a full stop if accuracy is meaningless, because clients have a single class; else ""."""
    holders = [partition for partition, labels in sorted(labels_by_partition.items()) if len(labels) == 1]
    if len(names) == 1:
        return f"all data belong to {class_word(0, names)}: every prediction is correct, so accuracy means nothing"
    if not holders:
        return ""
    listed = ", ".join(map(str, holders[:MOST_CLIENTS])) + ", …" * (len(holders) > MOST_CLIENTS)
    return (
        f"the samples of {counted(len(holders), 'client')} ({listed}) are of a single class: always predicting it is "
        "correct, so an accuracy of 100 % means nothing there and raises the mean"
    )


def duration(seconds: float) -> str:
    """Seconds in the two largest units."""
    minutes, odd_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {odd_seconds} s" if minutes else f"{odd_seconds} s"


def readable_size(count: int) -> str:
    """Bytes in a readable unit."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def percent(share: float) -> str:
    """A fraction as a percentage."""
    return f"{100 * share:.1f} %"


def own_version() -> str:
    """This program's version; `unknown` for a checkout that is not installed."""
    try:
        return version("protosphere")
    except PackageNotFoundError:
        return "unknown"


def one_line(text: str, most: int = 0) -> str:
    """Untrusted text on one line without control characters, shortened to `most` characters (0: not shortened)."""
    # fast path: nearly none of a report's thousands of texts contains any
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(text.split())
    return line if not most or len(line) <= most else f"{line[: most - 1]}…"


def quoted(text: str, most: int) -> str:
    """Untrusted text as a quotation of at most `most` characters on one line, which it cannot close."""
    return f'"{one_line(text.translate(MARKS), most)}"'


def cut_apart(names: Sequence[str], most: int) -> list[str]:
    """Names for a plot or a table, each on one line of at most `most` characters; different names stay different.

    A long name loses its end. If names would then be equal, they lose their beginning, and duplicates get a number.
    """
    lines = {name: one_line(name) for name in names}
    counts = Counter(one_line(line, most) for line in lines.values())
    labels: dict[str, str] = {}
    taken: set[str] = set()
    for name, line in lines.items():
        label = one_line(line, most)
        if counts[label] > 1 and len(line) > most:
            label = f"…{line[1 - most :]}"
        unique, number = label, 2
        while unique in taken:
            end = f" ({number})"
            unique, number = one_line(label, most - len(end)) + end, number + 1
        labels[name] = unique
        taken.add(unique)
    return [labels[name] for name in names]
