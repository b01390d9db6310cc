"""The data sets that a `dataset` setting names, and the joining of several domains of one task into one data set.

Domains are images, which are brought to one size and channel count, arrays of numbers of one shape, or tables with the
same columns. PFPL's mixed heterogeneity needs them.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from protosphere.core.errors import DataError, LabelsError
from protosphere.core.paths import is_every, is_path, is_several, items_of, listed
from protosphere.data.forms.folders import SCHEMA, TABLE_SUFFIXES, TEST_SPLITS, Folder, is_visible, refuse_unlisted
from protosphere.data.forms.images import in_bytes, resized
from protosphere.data.forms.sources import locate
from protosphere.data.forms.table_files import open_table
from protosphere.data.forms.tables import may_hold_images, open_folder, read_tables
from protosphere.data.forms.texts import Texts, write_texts
from protosphere.data.samples import INPUTS, Samples
from protosphere.data.spec import DataSpec

_BLOCK = 1000
_MOST_LISTED = 5  # labels listed in a sentence


# --- the data sets that a setting names ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Domain:
    """A domain: its name, and its data set as in a `dataset` setting."""

    name: str
    dataset: str


def short_name(dataset: str) -> str:
    """A short name of a `dataset` setting: the last part of a path or hub id, joined by `+` for several; for
    `<folder>/*`, the folder's name. A path without such a part, like `/`, is returned unchanged."""
    names = []
    for item in items_of(dataset):
        # `./` and `..` need the folders above them
        path = _absolute(item) if is_path(item) else Path(item)
        path = path.parent if is_every(item) else path
        if item:
            names.append(path.name or item)
    return "+".join(names)


def domains_of(dataset: str) -> tuple[Domain, ...]:
    """The domains that a `dataset` setting names; none for a single data set. Reads no data."""
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
    # a broken link is a missing domain, not one to ignore
    folders = sorted(path for path in root.iterdir() if (path.is_dir() or not path.exists()) and is_visible(path))
    if not folders:
        raise DataError(f"{str(root)!r} has no subfolders, but {every!r} takes each for a domain: make them there.")
    if all(path.name in ("train", *TEST_SPLITS) for path in folders):
        raise DataError(
            f"{every!r} takes each subfolder of {str(root)!r} for a domain, but they are the splits of one data set: "
            f"set dataset to {str(root)!r}."
        )
    return folders


def are_tables(dataset: str) -> bool:
    """Whether a `dataset` setting lists tables of numbers, categories or texts. Reads only their headers."""
    return is_several(dataset) and _is_table(locate_all(dataset)[0])


def locate_all(dataset: str) -> list[str | Folder]:
    """The location (`locate`) of the data set, or of each domain, that a `dataset` setting names. Reads no data."""
    domains = domains_of(dataset)
    if not domains:
        return [locate(dataset)]
    places = []
    for domain in domains:
        with naming(domain.name):
            places.append(locate(domain.dataset))
    return places


def _is_table(place: str | Folder) -> bool:
    """Whether a location holds a table without images."""
    if not isinstance(place, Folder) or place.format not in TABLE_SUFFIXES.values():
        return False
    try:
        return not may_hold_images(open_table(place.train[0]))
    except Exception:
        # reading the whole table will raise the error
        return True


def _describe_unfit(domain: str, content: str) -> DataError:
    return DataError(f"domain {domain!r} holds {content}: list images and arrays, or tables alone.")


@contextmanager
def naming(domain: str) -> Iterator[None]:
    """While inside, an error names the domain."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"domain {domain!r}: {error}") from error


# --- their samples ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Part:
    """A domain: the `rows` of a data set; the first `train_rows` of them are training samples."""

    name: str
    samples: Samples
    rows: np.ndarray
    train_rows: int


def join_arrays(spec: DataSpec, domains: Sequence[Domain], data_sets: Sequence[Samples], target: Path) -> Samples:
    """Join domains of images or arrays into one data set; inputs are written to the folder `target`.

    Images are resized to `image_size` or, if that is 0, to the largest height and width among them; to three channels
    if any has them; and to a full scale of 255. Other arrays are unchanged, and must have one shape and type.
    """
    parts = []
    for domain, samples in zip(domains, data_sets, strict=True):
        if isinstance(samples.inputs, Texts) or samples.columns:
            raise _describe_unfit(domain.name, "texts or a table")
        parts.append(Part(domain.name, samples, np.arange(len(samples.labels)), samples.train_rows))
    return _concatenate(spec, parts, target)


def join_tables(spec: DataSpec, domains: Sequence[Domain], target: Path) -> Samples:
    """Join tables, read as files of one table so that features agree; inputs are written to `target`."""
    sources = []
    for domain, place in zip(domains, locate_all(spec.dataset), strict=True):
        if not isinstance(place, Folder) or not _is_table(place):
            raise _describe_unfit(domain.name, "no table, but the first one does")
        with naming(domain.name):
            refuse_unlisted(place, spec.listed)
        sources.append(open_folder(place))
    first = sources[0]
    for domain, source in zip(domains, sources, strict=True):
        schemas = [folder.schema.read_bytes() if folder.schema else b"" for folder in (first, source)]
        if source.class_names != first.class_names or schemas[0] != schemas[1]:
            what = "classes.txt" if source.class_names != first.class_names else SCHEMA
            raise DataError(
                f"domains {domains[0].name!r} and {domain.name!r} do not have the same {what} beside them: give both "
                "the same, or none."
            )

    train = [(index, part) for index, source in enumerate(sources) for part in source.train]
    test = [(index, part) for index, source in enumerate(sources) for part in source.test]
    joined = replace(
        first,
        name=short_name(spec.dataset),
        train=[part for _, part in train],
        test=[part for _, part in test],
        domain_of_part=[index for index, _ in (*train, *test)],
    )
    parts = []
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        samples = read_tables(joined, spec.columns, Path(scratch), image_size=spec.image_size, site=bool(spec.listed))
        for index, domain in enumerate(domains):
            rows = np.flatnonzero(samples.domains == index)
            parts.append(Part(domain.name, samples, rows, int((rows < samples.train_rows).sum())))
        if spec.classes == "same" and not joined.class_names:
            _refuse_other_labels(parts)
        return _concatenate(spec, parts, target)


def _concatenate(spec: DataSpec, parts: Sequence[Part], target: Path) -> Samples:
    """Join the samples of all parts into one data set; inputs are written to the folder `target`.

    Training samples come first, then test samples, both interleaved in proportion, so that the first samples represent
    all domains. Classes are matched by name. Groups of different domains are different groups.
    """
    for part in parts:
        if not part.train_rows:
            raise DataError(f"domain {part.name!r} has no training sample: give it some, or remove it from dataset.")
    class_names = _match_classes(parts, spec.classes)
    train = interleaved([part.train_rows for part in parts])
    table = np.concatenate([train, interleaved([len(part.rows) - part.train_rows for part in parts])])
    source, labels, groups, sites = (np.zeros(len(table), np.int64) for _ in range(4))
    number = {name: label for label, name in enumerate(class_names)}
    group_count = 0
    for index, part in enumerate(parts):
        # interleaving keeps the order within each part
        places = table == index
        rows = part.rows
        source[places] = rows
        numbers = np.array([number[name] for name in part.samples.class_names], np.int64)
        labels[places] = numbers[part.samples.labels[rows]]
        if part.samples.groups is not None:
            groups[places] = part.samples.groups[rows] + group_count
            group_count += int(part.samples.groups.max()) + 1
        if part.samples.sites is not None:
            sites[places] = part.samples.sites[rows]

    first = parts[0].samples
    inputs, scale = _join_inputs(parts, table, source, target)
    return Samples(
        short_name(spec.dataset),
        inputs,
        labels,
        len(train),
        class_names,
        scale,
        first.columns,
        groups=groups if first.groups is not None else None,
        domains=table,
        domain_names=tuple(part.name for part in parts),
        sites=sites if first.sites is not None else None,
        # only tables have sites, and all tables are read as one
        site_names=first.site_names,
    )


def interleaved(counts: Sequence[int]) -> np.ndarray:
    """The table of each row, (sum of counts,) int64, in an order that takes the rows of several tables in proportion.

    Row j of a table of n rows has the position (j + ½)/n; ties go to the first table.

    Args:
        counts: rows of each table.
    """
    sizes = np.asarray(counts, dtype=np.int64)
    tables = np.repeat(np.arange(sizes.size), sizes)
    rows = np.concatenate([np.arange(size) for size in sizes])
    order = np.lexsort((tables, (2 * rows + 1) / (2 * sizes[tables])))
    return tables[order]


def _join_inputs(
    parts: Sequence[Part], table: np.ndarray, source: np.ndarray, target: Path
) -> tuple[np.ndarray | Texts, float]:
    """Join the inputs of the parts that `table` numbers, at their rows `source`; also returns the value of a full-scale
    input."""
    if isinstance(parts[0].samples.inputs, Texts):
        texts = parts[0].samples.inputs
        write_texts((texts[source[row : row + 1]][0] for row in range(len(source))), target)
        return Texts.open(target), 1.0

    arrays = [part.samples.inputs for part in parts if isinstance(part.samples.inputs, np.ndarray)]
    forms = [(str(inputs.dtype), inputs.shape[1:]) for inputs in arrays]
    are_images = all(kind == "uint8" and len(shape) == 3 for kind, shape in forms)
    # grey images can become colour images; other channel counts must be equal
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
    """The classes of all domains, by name, in the first domain's order."""
    first = parts[0]
    names = dict.fromkeys(first.samples.class_names)
    for part in parts:
        differing = []
        for one, other in ((first, part), (part, first)):
            lacking = [name for name in one.samples.class_names if name not in other.samples.class_names]
            if lacking:
                differing.append(f"only {one.name!r} has {', '.join(lacking)}")
        if differing and classes == "same":
            raise LabelsError(
                f"domains {first.name!r} and {part.name!r} have different classes ({'; '.join(differing)}): name them "
                'alike in each classes.txt, or set classes = "union".'
            )
        names |= dict.fromkeys(part.samples.class_names)
    return tuple(names)


def _refuse_other_labels(parts: Sequence[Part]) -> None:
    """Refuse tables whose labels belong to different tasks: two spellings of one label, or no label in common with any
    other table. A site's table may lack a class, so its labels need not be all labels."""
    labels: dict[str, set[str]] = {}
    for part in parts:
        numbers = np.unique(part.samples.labels[part.rows[: part.train_rows]])
        labels[part.name] = {part.samples.class_names[number] for number in numbers}
    spellings: dict[str, tuple[str, str]] = {}
    for name, site_labels in labels.items():
        for word in sorted(site_labels):
            spelling, first = spellings.setdefault(word.casefold().rstrip("."), (word, name))
            if word != spelling:
                raise _describe_labels(first, name, "have one label in two spellings", [spelling], [word])
    for name, site_labels in labels.items():
        other_names = [other for other in labels if other != name]
        if len(site_labels) > 1 and all(site_labels.isdisjoint(labels[other]) for other in other_names):
            raise _describe_labels(name, other_names[0], "have no label in common", site_labels, labels[other_names[0]])


def _describe_labels(one: str, other: str, how: str, *sides: Sequence[str] | set[str]) -> LabelsError:
    lists = "; ".join(", ".join(map(repr, sorted(labels)[:_MOST_LISTED])) for labels in sides)
    return LabelsError(
        f"{one!r} and {other!r} {how} ({lists}): write them alike in all tables, list the classes in a classes.txt "
        'beside each, or set classes = "union".'
    )
