"""Domains: several data sets of one task as one, whose samples know their domain: images, brought to one size and
channel count, arrays of numbers of one shape, or tables of the same columns.

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
from protosphere.data.cache import cached, make_key
from protosphere.data.decode import Recipe, decode, explaining, read_tables
from protosphere.data.forms.folders import SCHEMA, TABLE_SUFFIXES, TEST_SPLITS, Folder, is_visible
from protosphere.data.forms.images import in_bytes, resized
from protosphere.data.forms.sources import locate
from protosphere.data.forms.table_files import count_rows, types_of
from protosphere.data.forms.tables import holds_images
from protosphere.data.forms.texts import Texts, write_texts
from protosphere.data.samples import INPUTS, Samples

_BLOCK = 1000
_LISTED = 5  # labels in a sentence
# no child of `protosphere`, whose lines a run shows
_log = logging.getLogger("data.domains")


# --- which data sets a setting names ---------------------------------------------------------------------------------


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
    domains = []
    for item in items:
        if is_every(item):
            if len(items) > 1:
                raise DataError(
                    f"dataset lists {item!r} among others, but * stands alone: list its subfolders instead."
                )
            domains += [Domain(path.name, str(path)) for path in _subfolders(item)]
        elif is_path(item):
            # a folder or file by its name, a table by its name without the ending
            path = _absolute(item)
            domains.append(Domain((path.stem if path.suffix in TABLE_SUFFIXES else path.name) or item, item))
        else:
            domains.append(Domain(item, item))
    names = [domain.name for domain in domains]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"dataset names two domains {name!r}: rename a folder, so that each has a name of its own.")
    return tuple(domains)


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def _subfolders(every: str) -> list[Path]:
    root = _absolute(every).parent
    if not root.is_dir():
        raise DataError(f"data path {str(root)!r} is no folder: check its spelling, and that this machine has it.")
    # a link that leads nowhere is a domain that is missing, not one to leave out
    folders = sorted(path for path in root.iterdir() if (path.is_dir() or not path.exists()) and is_visible(path))
    if folders and all(path.name in ("train", *TEST_SPLITS) for path in folders):
        raise DataError(
            f"{every!r} takes each subfolder of {str(root)!r} for a domain, but they are the splits of one data set: "
            f"set dataset to {str(root)!r}."
        )
    if not folders:
        raise DataError(f"{str(root)!r} has no subfolders, but {every!r} takes each for a domain: make them there.")
    return folders


def are_tables(dataset: str) -> bool:
    """Whether a `dataset` setting lists tables of numbers, categories or texts. Reads their heads alone.

    Raises:
        DataError: what `locate_all` raises.
    """
    return is_several(dataset) and _is_table(locate_all(dataset)[0])


def locate_all(dataset: str) -> list[str | Folder]:
    """What `locate` says of the data set, or of each of the domains, that a `dataset` setting names: all images or
    arrays, or all tables of one format. Reads no data.

    Raises:
        DataError: what `domains_of` and, naming the domain, `locate` raise; a domain of another form than the first.
    """
    domains = domains_of(dataset)
    if not domains:
        return [locate(dataset)]
    places: list[str | Folder] = []
    forms = []
    for domain in domains:
        with _naming(domain.name):
            place = locate(domain.dataset)
        if place == "spiral":
            raise _describe_unfit(domain.name, "numbers")
        places.append(place)
        forms.append(
            f"a {place.format} table" if isinstance(place, Folder) and _is_table(place) else "images or arrays"
        )
        if forms[-1] != forms[0]:
            raise DataError(
                f"domain {domains[0].name!r} holds {forms[0]}, but {domain.name!r} {forms[-1]}: list data sets of one "
                "form."
            )
    return places


def _is_table(place: str | Folder) -> bool:
    """Whether a place holds a table, and no images in one."""
    if not isinstance(place, Folder) or place.format not in TABLE_SUFFIXES.values():
        return False
    try:
        return place.format == "csv" or not holds_images(types_of(place.train[0]))
    except Exception:
        # whoever reads the whole table says what is wrong with it
        return True


def _describe_unfit(domain: str, content: str) -> DataError:
    return DataError(
        f"domain {domain!r} holds {content}, but domains must be images, arrays or tables: remove it from dataset."
    )


@contextmanager
def _naming(domain: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise type(error)(f"domain {domain!r}: {error}") from error


# --- their samples ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Part:
    """One domain: the samples `train` and `test` (rows, int64) of a data set, of which there is at least one to train.

    Raises:
        DataError: there is none.
    """

    name: str
    samples: Samples
    train: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        if not self.train.size:
            raise DataError(f"domain {self.name!r} has no training sample: give it some, or remove it from dataset.")


def open_all(recipe: Recipe, cache_dir: Path, classes: str = "same") -> Samples:
    """The samples of a recipe whose `dataset` is a single one (then what `decode` gives) or several domains.

    Images are brought to `image_size` or, where that is 0, to the largest height and the largest width among them; to
    three channels if one has them; to pixels of full scale 255. Arrays that are no uint8 images stay as they are, and
    all have one shape and type. Tables are read as the files of one, of the classes of all. Labels are matched by the
    classes' names, in the first domain's order. The domains' training samples come first, interleaved in proportion,
    then their test samples likewise, so that the first ones are of all domains alike. Groups of different domains are
    different groups.

    Args:
        recipe: of all the domains.
        cache_dir: where each domain, and what is made of all, is kept.
        classes: `same`: all domains have the same class names; `union`: the classes of all, the first domain's first.

    Raises:
        DataError: what `decode` and `locate_all` raise (of a domain, naming it), a domain that is neither images nor
            arrays or has no training sample, arrays of another shape or type than the first domain's, and with `same`
            different classes, or, of tables, labels that are not of one task.
    """
    domains = _find_domains(recipe)
    if not domains:
        return decode(recipe, cache_dir)

    def read(target: Path) -> Samples:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=target) as scratch:
            if are_tables(recipe.dataset):
                with explaining(recipe.dataset, cache_dir):
                    parts, class_names = _read_tables(recipe, domains, classes, Path(scratch))
            else:
                parts = [_read_part(recipe, domain, cache_dir) for domain in domains]
                class_names = _match_classes(parts, classes)
            samples = _concatenate(parts, class_names, target)
        names = ", ".join(samples.domain_names)
        _log.info("combined %s: %d samples in %.1f s", names, len(samples.labels), time.perf_counter() - begin)
        return replace(samples, name=short_name(recipe.dataset))

    return cached(cache_dir, key_of_all(recipe, classes), read)


def _find_domains(recipe: Recipe) -> tuple[Domain, ...]:
    return () if recipe.code is not None else domains_of(recipe.dataset)


def key_of_all(recipe: Recipe, classes: str) -> str:
    """That of the cache entry that `open_all` reads.

    Raises:
        DataError: what `locate_all` raises.
    """
    domains = _find_domains(recipe)
    if not domains:
        return recipe.key()
    locate_all(recipe.dataset)
    keys = []
    for domain in domains:
        with _naming(domain.name):
            keys.append([domain.name, replace(recipe, dataset=domain.dataset).key()])
    return make_key(["domains", keys, classes])


def _read_part(recipe: Recipe, domain: Domain, cache_dir: Path) -> Part:
    """A domain of images or arrays."""
    with _naming(domain.name):
        # the key has asked for lists of classes
        samples = decode(replace(recipe, dataset=domain.dataset, listed=""), cache_dir)
    if isinstance(samples.inputs, Texts) or samples.columns:
        raise _describe_unfit(domain.name, "texts or a table of the hub")
    rows = np.arange(len(samples.labels))
    return Part(domain.name, samples, rows[: samples.train_rows], rows[samples.train_rows :])


def _concatenate(parts: Sequence[Part], class_names: tuple[str, ...], target: Path) -> Samples:
    """The samples of all parts as one data set, whose inputs are written to the folder `target`."""
    train = interleaved([len(part.train) for part in parts])[0]
    table = np.concatenate([train, interleaved([len(part.test) for part in parts])[0]])
    source, labels, groups, sites = (np.empty(len(table), np.int64) for _ in range(4))
    number = {name: label for label, name in enumerate(class_names)}
    group_count = 0
    for index, part in enumerate(parts):
        # interleaving keeps each part's own order
        places = table == index
        rows = np.concatenate([part.train, part.test])
        source[places] = rows
        own_numbers = np.array([number[name] for name in part.samples.class_names], np.int64)
        labels[places] = own_numbers[part.samples.labels[rows]]
        if part.samples.groups is not None:
            groups[places] = part.samples.groups[rows] + group_count
            group_count += int(part.samples.groups.max()) + 1
        if part.samples.sites is not None:
            sites[places] = part.samples.sites[rows]

    first = parts[0].samples
    inputs, scale = _join_inputs(parts, table, source, target)
    return Samples(
        first.name,
        inputs,
        labels,
        len(train),
        class_names,
        scale,
        first.columns,
        groups=groups if first.groups is not None else None,
        domains=table,
        domain_names=tuple(part.name for part in parts),
        # tables are read as the files of one, which numbers its sites
        sites=sites if first.sites is not None else None,
        site_names=first.site_names,
    )


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


def _join_inputs(
    parts: Sequence[Part], table: np.ndarray, source: np.ndarray, target: Path
) -> tuple[np.ndarray | Texts, float]:
    """Sample after sample of the parts that `table` numbers, its rows `source`; and the value of a full-scale one.

    Raises:
        DataError: arrays that are no images of bytes, of another shape or type than the first domain's.
    """
    if isinstance(parts[0].samples.inputs, Texts):
        texts = parts[0].samples.inputs
        write_texts((texts[source[row : row + 1]][0] for row in range(len(source))), target)
        return Texts.open(target), 1.0

    arrays = [part.samples.inputs for part in parts if isinstance(part.samples.inputs, np.ndarray)]
    forms = [(str(inputs.dtype), inputs.shape[1:]) for inputs in arrays]
    are_images = all(kind == "uint8" and len(shape) == 3 for kind, shape in forms)
    # grey is brought to colour, and nothing else to another number of channels
    are_images = are_images and len({shape[0] for _, shape in forms} - {1}) < 2
    for part, form in zip(parts, forms, strict=True):
        if form != forms[0] and not are_images:
            both = " and ".join(f"{kind} {shape}" for kind, shape in (forms[0], form))
            raise DataError(
                f"domains {parts[0].name!r} and {part.name!r} hold samples of {both}, but only images as uint8 are "
                "brought to one size: give both one shape and type."
            )

    shape = np.max([inputs.shape[1:] for inputs in arrays], axis=0).tolist()
    joined = np.lib.format.open_memmap(target / INPUTS, mode="w+", dtype=arrays[0].dtype, shape=(len(table), *shape))
    for index, (part, inputs) in enumerate(zip(parts, arrays, strict=True)):
        places = np.flatnonzero(table == index)
        for start in range(0, places.size, _BLOCK):
            some = places[start : start + _BLOCK]
            block = inputs[source[some]]
            if are_images:
                # a grey image is repeated in every channel
                images = in_bytes(np.asarray(block), part.samples.scale)
                block = np.stack([resized(image, *shape[1:]) for image in images])
            joined[some] = block
    joined.flush()
    return joined, 255.0 if are_images else parts[0].samples.scale


# --- their classes ---------------------------------------------------------------------------------------------------


def _match_classes(parts: Sequence[Part], classes: str) -> tuple[str, ...]:
    """The classes of all domains of images or arrays, by name, the first domain's first.

    Raises:
        LabelsError: `classes` is "same", and they differ.
    """
    first = parts[0]
    for part in parts if classes == "same" else ():
        differing = []
        for one, other in ((first, part), (part, first)):
            names = [name for name in one.samples.class_names if name not in other.samples.class_names]
            if names:
                differing.append(f"only {one.name!r} has {', '.join(names)}")
        if differing:
            raise LabelsError(
                f"domains {first.name!r} and {part.name!r} have different classes ({'; '.join(differing)}): name them "
                'alike in each classes.txt, or set classes = "union".'
            )
    return tuple(dict.fromkeys(name for part in parts for name in part.samples.class_names))


def _refuse_other_labels(parts: Sequence[Part]) -> None:
    """Refuse tables whose labels are not of one task: two that no other table has, or one in two spellings.

    A site's table may lack a class, so that its labels need not be those of all.

    Raises:
        LabelsError: it names two tables and their labels.
    """
    labels = {}
    for part in parts:
        labels[part.name] = {part.samples.class_names[label] for label in np.unique(part.samples.labels[part.train])}

    def describe(one: str, other: str, how: str, words: str, other_words: str) -> LabelsError:
        return LabelsError(
            f"{one!r} and {other!r} {how} ({words}; {other_words}): write them alike in all tables, list the classes "
            'in a classes.txt beside each, or set classes = "union".'
        )

    spellings: dict[str, tuple[str, str]] = {}
    for name, domain_labels in labels.items():
        for word in sorted(domain_labels):
            spelling, first = spellings.setdefault(word.casefold().rstrip("."), (word, name))
            if word != spelling:
                raise describe(first, name, "have one label in two spellings", repr(spelling), repr(word))
    for name, domain_labels in labels.items():
        other_names = [other for other in labels if other != name]
        if len(domain_labels) > 1 and all(domain_labels.isdisjoint(labels[other]) for other in other_names):
            examples = [", ".join(map(repr, sorted(labels[side])[:_LISTED])) for side in (name, other_names[0])]
            raise describe(name, other_names[0], "have no label in common", *examples)


# --- tables ----------------------------------------------------------------------------------------------------------


def _read_tables(
    recipe: Recipe, domains: Sequence[Domain], classes: str, target: Path
) -> tuple[list[Part], tuple[str, ...]]:
    """Tables as the files of one, so that all have the same features; and their classes.

    Raises:
        DataError: another list of classes or columns beside a table than beside the first, what `read_tables` raises.
    """
    folders = [place for place in locate_all(recipe.dataset) if isinstance(place, Folder)]
    first = folders[0]
    schemas = [(folder.root / SCHEMA).read_bytes() if (folder.root / SCHEMA).is_file() else b"" for folder in folders]
    for domain, folder, schema in zip(domains, folders, schemas, strict=True):
        if folder.class_names != first.class_names or schema != schemas[0]:
            what = "classes.txt" if folder.class_names != first.class_names else SCHEMA
            raise DataError(
                f"domains {domains[0].name!r} and {domain.name!r} do not have the same {what} beside them: give both "
                "the same, or none."
            )

    train = [sum(map(count_rows, folder.train)) for folder in folders]
    test = [sum(map(count_rows, folder.test)) for folder in folders]
    joined = replace(
        first,
        train=tuple(path for folder in folders for path in folder.train),
        test=tuple(path for folder in folders for path in folder.test),
    )
    samples = read_tables(recipe, joined, target)
    rows = np.split(np.arange(len(samples.labels)), np.cumsum([*train, *test])[:-1])
    tests = rows[len(domains) :]
    parts = []
    for domain, train_rows, test_rows in zip(domains, rows, tests, strict=False):
        parts.append(Part(domain.name, samples, train_rows, test_rows))
    if classes == "same" and not joined.class_names:
        _refuse_other_labels(parts)
    return parts, samples.class_names
