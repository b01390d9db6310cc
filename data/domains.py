"""Domains: several data sets of one task as one, whose rows know their domain: images, brought to one size and channel
count, arrays of numbers of one shape, or tables of the same columns.

PFPL's mixed heterogeneity needs them. A `dataset` setting names them as a list with commas, or as the subfolders of a
folder, `<folder>/*`.
"""

import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from protosphere.core.errors import DataError, LabelsError
from protosphere.core.paths import is_every, is_path, is_several, items_of, listed
from protosphere.data.decoded_cache import (
    Decoded,
    Recipe,
    cache_key,
    decode,
    explained,
    kept,
    open_rows,
    read_kept,
    write_about,
    write_rows,
)
from protosphere.data.forms.arrays import Arrays
from protosphere.data.forms.folders import SCHEMA, TABLE_SUFFIXES, TEST_SPLITS, Folder, is_visible, listed_classes
from protosphere.data.forms.images import in_bytes, resized
from protosphere.data.forms.sources import Source, locate
from protosphere.data.forms.table_files import rows_in, types_of
from protosphere.data.forms.tabular import holds_images, is_numbers
from protosphere.data.forms.texts import Texts

_BLOCK = 1000
_LISTED = 5  # labels in a sentence
# no child of `protosphere`, whose lines a run shows
_log = logging.getLogger("data.domains")


@dataclass(frozen=True)
class Domain:
    """One domain: what it is called, and the data set (as a `dataset` setting names one) that it is."""

    name: str
    dataset: str


def short_name(dataset: str) -> str:
    """A `dataset` setting in a word: the last part of a path or hub id, of several joined by `+`; of `<folder>/*` the
    folder's. The path itself where it has no such part, as `/` has none."""
    names = []
    for item in items_of(dataset):
        # `./` and `..` say nothing without the folders above them
        path = _absolute(item) if is_path(item) else Path(item)
        path = path.parent if is_every(item) else path
        if item:
            names.append(path.name or item)
    return "+".join(names)


def domains_of(dataset: str) -> tuple[Domain, ...]:
    """The domains that a `dataset` setting names, none if it is a single data set. Reads no data.

    Raises:
        DataError: an empty item, `*` among several items, a folder without subfolders, two domains of one name.
    """
    items = listed(dataset)
    if not is_several(dataset):
        return ()
    if len(items) == 1:
        domains = [Domain(path.name, str(path)) for path in _subfolders(items[0])]
    else:
        every = next(filter(is_every, items), None)
        if every is not None:
            raise DataError(
                f"dataset lists {every!r} among others, but * stands alone: list its subfolders instead.",
            )
        domains = [Domain(_name_of(item), item) for item in items]
    names = [domain.name for domain in domains]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"dataset names two domains {twice!r}: rename a folder, so that each has a name of its own.",
        )
    return tuple(domains)


def _name_of(item: str) -> str:
    """What one of a list is called: a folder or file by its name, a table by its name without the ending."""
    if not is_path(item):
        return item
    path = _absolute(item)
    return (path.stem if path.suffix in TABLE_SUFFIXES else path.name) or item


def are_tables(dataset: str) -> bool:
    """Whether a `dataset` setting lists tables of numbers, categories or texts. Reads their heads alone.

    Raises:
        DataError: what `locate_all` raises.
    """
    domains = domains_of(dataset)
    return bool(domains) and _is_table(_places(domains)[0])


def locate_all(dataset: str) -> list[str | Folder]:
    """What `locate` says of the data set, or of each of the domains, that a `dataset` setting names. Reads no data.

    Raises:
        DataError: what `domains_of` and, naming the domain, `locate` raise; a domain of another form than the first.
    """
    domains = domains_of(dataset)
    return _places(domains) if domains else [locate(dataset)]


def open_all(recipe: Recipe, cache_dir: Path, classes: str = "same") -> Decoded:
    """The decoded data set of a recipe whose `dataset` is a single one (then what `decode` gives) or several domains.

    Images are brought to `image_size` or, where that is 0, to the largest height and the largest width among them; to
    three channels if one has them; to pixels of full scale 255. Arrays that are no uint8 images stay as they are, and
    all have one shape and type. Tables are read as the files of one, of the classes of all. Labels
    are matched by the classes' names, in the first domain's order; or in that of a `classes.txt` beside the subfolders,
    which names the classes of all domains, and those of a domain that only numbers its own. The domains' training rows
    come first, interleaved in proportion, then their test rows likewise, so that
    the first rows are of all domains alike. Groups of different domains are different groups.

    Args:
        recipe: of all the domains.
        cache_dir: where each domain, and what is made of all, is kept.
        classes: `same`: all domains have the same class names; `union`: the classes of all, the first domain's first.

    Raises:
        DataError: what `decode` and `locate_all` raise (of a domain, naming it), a domain that is neither images nor
            arrays or has no training row, arrays of another shape or type than the first domain's, classes that a
            `classes.txt` for all does not name, and with `same` different classes, or, of tables, labels that are not
            of one task.
    """
    domains = () if recipe.code is not None else domains_of(recipe.dataset)
    if not domains:
        return decode(recipe, cache_dir)
    key, common = _key_of_all(recipe, domains, classes)
    if _is_table(locate(domains[0].dataset)):

        def write(partial: Path) -> None:
            with explained(recipe.dataset, cache_dir):
                _combine_tables(recipe, domains, classes, common, partial)

        return kept(cache_dir, key, write)
    return kept(cache_dir, key, lambda partial: _combine(recipe, domains, classes, common, partial, cache_dir))


def kept_all(recipe: Recipe, cache_dir: Path, classes: str = "same") -> Decoded | None:
    """What `open_all` gives if the cache in `cache_dir` holds it whole, else None.

    Raises:
        DataError: what `locate_all` raises.
    """
    domains = () if recipe.code is not None else domains_of(recipe.dataset)
    key = _key_of_all(recipe, domains, classes)[0] if domains else recipe.key()
    return read_kept(cache_dir, key)


def _key_of_all(recipe: Recipe, domains: Sequence[Domain], classes: str) -> tuple[str, tuple[str, ...]]:
    """The cache entry of several domains, and the classes that are listed for all of them."""
    common = listed_classes(_absolute(recipe.dataset).parent) if len(listed(recipe.dataset)) == 1 else ()
    keys = []
    _places(domains)
    for domain in domains:
        with _naming(domain.name):
            keys.append(replace(recipe, dataset=domain.dataset, listed="" if common else recipe.listed).key())
    names = tuple(domain.name for domain in domains)
    return cache_key(["domains", names, keys, classes, common]), common


def interleaved(counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of several tables in one order that takes them in proportion and keeps each table's own order.

    Args:
        counts: rows of each table.

    Returns:
        Two (sum of counts,) int64 arrays: the table of each row, and its number there. Row j of n lies at (j + ½)/n;
        of equal places the first table's comes first.
    """
    sizes = np.asarray(counts, dtype=np.int64)
    tables = np.repeat(np.arange(sizes.size), sizes)
    rows = np.concatenate([np.arange(size) for size in sizes])
    order = np.lexsort((tables, (2 * rows + 1) / (2 * sizes[tables])))
    return tables[order], rows[order]


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def _subfolders(every: str) -> list[Path]:
    root = _absolute(every).parent
    if not root.is_dir():
        raise DataError(
            f"data path {str(root)!r} is no folder: check its spelling, and that this machine has it.",
        )
    # a link that leads nowhere is a domain that is missing, not one to leave out
    folders = sorted(path for path in root.iterdir() if (path.is_dir() or not path.exists()) and is_visible(path))
    if folders and all(path.name in ("train", *TEST_SPLITS) for path in folders):
        raise DataError(
            f"{every!r} takes each subfolder of {str(root)!r} for a domain, but they are the splits of one data set: "
            f"set dataset to {str(root)!r}.",
        )
    if not folders:
        raise DataError(
            f"{str(root)!r} has no subfolders, but {every!r} takes each for a domain: make them there.",
        )
    return folders


@contextmanager
def _naming(domain: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise type(error)(f"domain {domain!r}: {error}") from error


def _places(domains: Sequence[Domain]) -> list[str | Folder]:
    """Where the domains lie, which are all images or arrays, or all tables of one format."""
    places: list[str | Folder] = []
    for domain in domains:
        with _naming(domain.name):
            places.append(locate(domain.dataset))
        if places[-1] == "spiral":
            raise _make_unfit_error(domain.name, "numbers")
    forms = [place.format if isinstance(place, Folder) and _is_table(place) else "" for place in places]
    other = next((number for number, form in enumerate(forms) if form != forms[0]), None)
    if other is not None:
        kinds = [(form and f"a {form} table") or "images or arrays" for form in (forms[0], forms[other])]
        raise DataError(
            f"domain {domains[0].name!r} holds {kinds[0]}, but {domains[other].name!r} {kinds[1]}: list data sets of "
            "one form.",
        )
    return places


def _is_table(place: str | Folder) -> bool:
    """Whether a place holds a table, and no images in one."""
    if not isinstance(place, Folder) or place.format not in TABLE_SUFFIXES.values():
        return False
    try:
        return place.format != "parquet" or not holds_images(types_of(place.train[0]))
    except Exception:
        # whoever reads the whole table says what is wrong with it
        return True


def _make_unfit_error(domain: str, content: str) -> DataError:
    return DataError(
        f"domain {domain!r} holds {content}, but domains must be images, arrays or tables: take it out of dataset.",
    )


def _combine_tables(
    recipe: Recipe, domains: Sequence[Domain], classes: str, common: tuple[str, ...], partial: Path
) -> None:
    """Write tables as one data set to the folder `partial`: as files of one, so that all have the same features."""
    begin = time.perf_counter()
    folders = [place for place in _places(domains) if isinstance(place, Folder)]
    names = tuple(domain.name for domain in domains)
    _refuse_other_lists(folders, names)
    if is_numbers(folders[0], recipe.columns, bool(recipe.listed)):
        _refuse_other_columns(folders, names)
    splits = [[path for folder in folders for path in files(folder)] for files in (_train_of, _test_of)]
    whole = replace(folders[0], train=tuple(splits[0]), test=tuple(splits[1]))
    whole = replace(whole, class_names=common or whole.class_names)
    train, test = ([sum(map(rows_in, files(folder))) for folder in folders] for files in (_train_of, _test_of))
    empty = next((name for name, count in zip(names, train, strict=True) if not count), None)
    if empty is not None:
        raise DataError(f"domain {empty!r} has no training sample: give it some, or take it out of dataset.")
    with tempfile.TemporaryDirectory(dir=partial) as unpacked:
        rows = open_rows(recipe, whole, Path(unpacked))
        if classes == "same" and not whole.class_names:
            tables = np.split(rows.labels[: rows.train_rows], np.cumsum(train)[:-1])
            _refuse_other_labels([{rows.class_names[label] for label in np.unique(part)} for part in tables], names)
        table, order = _proportional(train, test)
        write_rows(recipe, _reordered(rows, order, table, recipe.columns.group), whole.name, partial, table, names)
    _log.info("combined %s: %d samples in %.1f s", ", ".join(names), len(order), time.perf_counter() - begin)


def _refuse_other_labels(labels: Sequence[set[str]], names: Sequence[str]) -> None:
    """Refuse tables whose labels are not of one task: two that no other table has, or one in two spellings.

    Raises:
        LabelsError: it names two tables and their labels.
    """

    def refuse(one: int, other: int, how: str, word: str, other_word: str) -> None:
        raise LabelsError(
            f"{names[one]!r} and {names[other]!r} {how} ({word}; {other_word}): write them alike in all tables, list "
            'the classes in a classes.txt beside each, or set classes = "union".'
        )

    spellings: dict[str, tuple[str, int]] = {}
    for number, own in enumerate(labels):
        for word in sorted(own):
            known, first = spellings.setdefault(word.casefold().rstrip("."), (word, number))
            if word != known:
                refuse(first, number, "have one label in two spellings", repr(known), repr(word))
    for number, own in enumerate(labels):
        others = [other for other in range(len(labels)) if other != number]
        if len(own) > 1 and all(own.isdisjoint(labels[other]) for other in others):
            words = [", ".join(map(repr, sorted(labels[n])[:_LISTED])) for n in (number, others[0])]
            refuse(number, others[0], "have no label in common", *words)


def _train_of(folder: Folder) -> tuple[Path, ...]:
    return folder.train


def _test_of(folder: Folder) -> tuple[Path, ...]:
    return folder.test


def _proportional(train: Sequence[int], test: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that lie table after table, training rows first, in the order of `interleaved`: the table of each, and its
    number before."""
    tables, order, used = [], [], 0
    for counts in (train, test):
        table, row = interleaved(counts)
        begins = used + np.cumsum([0, *counts])[:-1]
        tables.append(table)
        order.append(begins[table] + row)
        used += sum(counts)
    return np.concatenate(tables), np.concatenate(order)


def _reordered(rows: Arrays | Source, order: np.ndarray, table: np.ndarray, group: str) -> Arrays | Source:
    """Rows in another order of their training and test parts, where groups of different tables are different."""
    extra = {name: values[order] for name, values in rows.extra.items()}
    if group:
        extra[group] = np.unique(extra[group], return_inverse=True)[1] * (int(table.max()) + 1) + table
    if isinstance(rows, Arrays):
        return replace(rows, inputs=rows.inputs[order], labels=rows.labels[order], extra=extra)
    parts = {"train": order[: rows.train_rows], "test": order[rows.train_rows :] - rows.train_rows}
    tables = {split: part.select(parts[split]) for split, part in rows.tables.items()}
    return replace(rows, tables=tables, labels=rows.labels[order], extra=extra)


def _refuse_other_lists(folders: Sequence[Folder], names: Sequence[str]) -> None:
    """Refuse tables that have other lists of classes or columns beside them: they are read as one."""
    for what, lists in (
        ("classes.txt", [folder.class_names for folder in folders]),
        (SCHEMA, [_content(folder.root / SCHEMA) for folder in folders]),
    ):
        other = next((name for name, content in zip(names, lists, strict=True) if content != lists[0]), None)
        if other is not None:
            raise DataError(
                f"domains {names[0]!r} and {other!r} do not have the same {what} beside them: give both the same, or "
                "none.",
            )


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _refuse_other_columns(folders: Sequence[Folder], names: Sequence[str]) -> None:
    """Refuse tables of numbers of which one lacks a column that another has; a columns.json says which ones count."""
    if (folders[0].root / SCHEMA).is_file():
        return
    columns = [list(types_of(folder.train[0])) for folder in folders]
    for name, own in zip(names, columns, strict=True):
        for other, theirs in zip(names, columns, strict=True):
            lacking = next((column for column in theirs if column not in own), None)
            if lacking is not None:
                raise DataError(
                    f"domain {name!r} has no column {lacking!r}, which {other!r} has; its columns are "
                    f"{', '.join(own)}: give all the same columns, or name those to use in a {SCHEMA} beside them.",
                )


def _combine(
    recipe: Recipe, domains: Sequence[Domain], classes: str, common: tuple[str, ...], partial: Path, cache_dir: Path
) -> None:
    """Write the domains as one data set to the folder `partial`."""
    begin = time.perf_counter()
    parts = [_part(recipe, domain, cache_dir) for domain in domains]
    names = tuple(domain.name for domain in domains)
    images = _are_images(parts, names)
    parts = [_name_classes(part, name, common) for part, name in zip(parts, names, strict=True)] if common else parts
    class_names = common or _class_names(parts, names, classes)
    number = {name: label for label, name in enumerate(class_names)}
    train = [part.train_rows for part in parts]
    test = [len(part.labels) - part.train_rows for part in parts]
    table = np.concatenate([interleaved(train)[0], interleaved(test)[0]])
    labels = np.empty(table.size, dtype=np.int64)
    groups = np.empty(table.size, dtype=np.int64)
    used = 0
    for index, part in enumerate(parts):
        mask = table == index
        labels[mask] = np.array([number[name] for name in part.class_names], dtype=np.int64)[part.labels]
        if part.groups is not None:
            groups[mask] = part.groups + used
            used += int(part.groups.max()) + 1
    np.save(partial / "labels.npy", labels)
    np.save(partial / "domains.npy", table)
    if recipe.columns.group:
        np.save(partial / "groups.npy", groups)
    _write_inputs(parts, table, images, partial / "inputs.npy")
    write_about(
        partial, short_name(recipe.dataset), sum(train), class_names, 255.0 if images else parts[0].scale, names
    )
    _log.info("combined %s: %d samples in %.1f s", ", ".join(names), labels.size, time.perf_counter() - begin)


def _part(recipe: Recipe, domain: Domain, cache_dir: Path) -> Decoded:
    with _naming(domain.name):
        # the key has asked for lists of classes, or there is one for all domains
        part = decode(replace(recipe, dataset=domain.dataset, listed=""), cache_dir)
    if isinstance(part.inputs, Texts) or part.columns:
        raise _make_unfit_error(domain.name, "texts on a hub" if isinstance(part.inputs, Texts) else "a table")
    if not part.train_rows:
        raise DataError(
            f"domain {domain.name!r} has no training sample: give it some, or take it out of dataset.",
        )
    return part


def _are_images(parts: Sequence[Decoded], names: Sequence[str]) -> bool:
    """Whether all are images of bytes, which can be brought to one size; other arrays must have one shape and type.

    Raises:
        DataError: the first that differs from the first domain.
    """
    forms = [(str(part.inputs.dtype), part.inputs.shape[1:]) for part in parts if not isinstance(part.inputs, Texts)]
    images = all(kind == "uint8" and len(shape) == 3 for kind, shape in forms)
    # grey is brought to colour, and nothing else to another number of channels
    if images and len({shape[0] for _, shape in forms} - {1}) < 2:
        return True
    for name, form in zip(names, forms, strict=True):
        if form != forms[0]:
            forms_text = " and ".join(f"{kind} {shape}" for kind, shape in (forms[0], form))
            raise DataError(
                f"domains {names[0]!r} and {name!r} hold samples of {forms_text}, but only images as uint8 are brought "
                "to one size: give both one shape and type.",
            )
    return False


def _name_classes(part: Decoded, domain: str, common: tuple[str, ...]) -> Decoded:
    """A domain whose classes are among those of the `classes.txt` for all, which names them where they are numbers."""
    class_names = part.class_names
    unknown = next((name for name in class_names if name not in common), None)
    if unknown is None:
        return part
    if class_names != tuple(map(str, range(len(class_names)))):
        raise LabelsError(
            f"domain {domain!r} has a class {unknown!r} that the classes.txt beside it does not name: add it there, or "
            "rename it.",
        )
    if len(class_names) > len(common):
        raise LabelsError(
            f"domain {domain!r} has {len(class_names)} numbered classes, but the classes.txt beside it names "
            f"{len(common)}: give it a line for each, in label order.",
        )
    return replace(part, class_names=common[: len(class_names)])


def _class_names(parts: Sequence[Decoded], names: Sequence[str], classes: str) -> tuple[str, ...]:
    first = parts[0].class_names
    if classes == "union":
        return tuple(dict.fromkeys(name for part in parts for name in part.class_names))
    for name, part in zip(names, parts, strict=True):
        sides = {
            names[0]: [class_name for class_name in first if class_name not in part.class_names],
            name: [class_name for class_name in part.class_names if class_name not in first],
        }
        if any(sides.values()):
            differing = "; ".join(f"only {side!r} has {', '.join(some)}" for side, some in sides.items() if some)
            raise LabelsError(
                f"domains {names[0]!r} and {name!r} have different classes ({differing}): name them alike in each "
                'classes.txt, or set classes = "union".',
            )
    return first


def _write_inputs(parts: Sequence[Decoded], table: np.ndarray, are_images: bool, target: Path) -> None:
    """The rows of all parts, each where `table` has its part's number, in their order; images brought to one size."""
    arrays = [part.inputs for part in parts if isinstance(part.inputs, np.ndarray)]
    shape = np.max([inputs.shape[1:] for inputs in arrays], axis=0).tolist()
    target_inputs = np.lib.format.open_memmap(target, mode="w+", dtype=arrays[0].dtype, shape=(table.size, *shape))
    for index, inputs in enumerate(arrays):
        rows = np.flatnonzero(table == index)
        for start in range(0, rows.size, _BLOCK):
            block = inputs[start : start + _BLOCK]
            if are_images:
                # a grey image is repeated in every channel
                images = in_bytes(np.asarray(block), parts[index].scale)
                block = np.stack([resized(image, *shape[1:]) for image in images])
            target_inputs[rows[start : start + _BLOCK]] = block
    target_inputs.flush()
