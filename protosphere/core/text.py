"""Words for people: classes by their names, durations, this program's version, and a stranger's words on one line."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

LONGEST_NAME = 24  # characters
ROOM = 60  # characters for the names of a list
MOST_CLIENTS = 5
MARKS = str.maketrans(dict.fromkeys('"“”„‟«»″', "'"))  # of quotation, which would end one


def class_word(label: int, names: Sequence[str]) -> str:
    """One class: by its name, or by its number where it has none that is known."""
    return f"class '{cut_apart(names, LONGEST_NAME)[label]}'" if 0 <= label < len(names) else f"class {label}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 round`, `2 rounds`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def class_words(labels: Sequence[int], names: Sequence[str], room: int = ROOM) -> str:
    """How many classes, and which: `3 classes: cat, dog, frog`.

    Args:
        room: characters for the names; the first is told in any case.
    """
    if not labels:
        return "no class"
    fitting_names: list[str] = []
    for name in cut_apart([names[label] for label in labels], LONGEST_NAME):
        if fitting_names and len(", ".join([*fitting_names, name])) > room:
            break
        fitting_names.append(name)
    remainder = f" and {len(labels) - len(fitting_names)} more" if len(labels) > len(fitting_names) else ""
    return f"{len(labels)} {'classes' if len(labels) > 1 else 'class'}: {', '.join(fitting_names)}{remainder}"


def one_class(labels_by_partition: Mapping[int, Sequence[int]], names: Sequence[str]) -> str:
    """A sentence without a full stop where accuracy means nothing, else nothing.

    Args:
        labels_by_partition: partition -> labels of its rows; one without any is passed over.
    """
    holders = {partition: labels[0] for partition, labels in sorted(labels_by_partition.items()) if len(labels) == 1}
    if len(names) == 1:
        return f"all data belong to {class_word(0, names)}: every answer is right, so accuracy means nothing"
    if not holders:
        return ""
    class_labels = cut_apart([names[label] for label in holders.values()], LONGEST_NAME)[:MOST_CLIENTS]
    items = [f"{partition}: {word}" for partition, word in zip(holders, class_labels, strict=False)]
    items += [f"{len(holders) - MOST_CLIENTS} more"] if len(holders) > MOST_CLIENTS else []
    subject = f"{len(holders)} clients hold" if len(holders) > 1 else "1 client holds"
    return (
        f"{subject} only one class ({', '.join(items)}): always answering it is right, so its 100 % accuracy means "
        "nothing and raises the mean"
    )


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter."""
    minutes, odd_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {odd_seconds} s" if minutes else f"{odd_seconds} s"


def readable_size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def percent(share: float) -> str:
    """A share of 1 for people."""
    return f"{100 * share:.1f} %"


def own_version() -> str:
    """This program's version; None is known of a checkout that is not installed."""
    try:
        return version("protosphere")
    except PackageNotFoundError:
        return "unknown"


def one_line(text: str, most: int = 0) -> str:
    """Somebody else's words on one line without control characters, cut to `most` characters (0: never)."""
    # of the thousands of words of a report's tables next to none holds any
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(text.split())
    return line if not most or len(line) <= most else f"{line[: most - 1]}…"


def quoted(text: str, most: int) -> str:
    """Somebody else's words, to stand as theirs within a sentence: on one line, cut to `most` characters, in quotation
    marks that they cannot close."""
    return f'"{one_line(text.translate(MARKS), most)}"'


def cut_apart(names: Sequence[str], most: int) -> list[str]:
    """Names for a picture or a table, each on one line of `most` characters: two that differ stay so. Never keys.

    A name that is too long loses its end; those that would then look alike lose their beginning instead, and what
    still looks alike gets a number.
    """
    lines = {name: one_line(name) for name in names}
    counts = Counter(one_line(line, most) for line in lines.values())
    cut_by_name: dict[str, str] = {}
    taken: set[str] = set()
    for name, line in lines.items():
        cut = one_line(line, most)
        if counts[cut] > 1 and len(line) > most:
            cut = f"…{line[1 - most :]}"
        cut_by_name[name] = _make_unique(cut, taken, most)
        taken.add(cut_by_name[name])
    return [cut_by_name[name] for name in names]


def _make_unique(text: str, taken: Collection[str], most: int) -> str:
    """Words that none of the others are."""
    candidate, number = text, 2
    while candidate in taken:
        end = f" ({number})"
        candidate, number = one_line(text, most - len(end)) + end, number + 1
    return candidate
