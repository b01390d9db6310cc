"""The data sets that a `dataset` setting names, and the joining of several domains of one task into one data set.

Domains are images, which are brought to one size and channel count, arrays of numbers of one shape, or tables with the
same columns. PFPL's mixed heterogeneity needs them.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from protosphere.core.errors import DataError, LabelsError
from protosphere.core.paths import is_every, is_path, is_several, items_of, listed
from protosphere.data.forms.folders import SCHEMA, TABLE_SUFFIXES, TEST_SPLITS, Folder, is_visible, refuse_unlisted
from protosphere.data.forms.images import in_bytes, resized
from protosphere.data.forms.sources import locate
from protosphere.data.forms.table_files import open_table
from protosphere.data.forms.tables import may_hold_images, open_folder, read_tables
from protosphere.data.forms.texts import Texts
from protosphere.data.samples import INPUTS, Samples
from protosphere.data.spec import DataSpec

T = TypeVar("T")
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
    return list(for_each(domains, locate).values()) if domains else [locate(dataset)]


def for_each(domains: Sequence[Domain], read: Callable[[str], T]) -> dict[str, T]:
    """What `read` returns for the data set of each domain, by the domain's name, which an error names."""
    results = {}
    for domain in domains:
        with naming(domain.name):
            results[domain.name] = read(domain.dataset)
    return results


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


def join_arrays(spec: DataSpec, data_sets: dict[str, Samples], target: Path) -> Samples:
    """Join domains of images or arrays, by name, into one data set; inputs are written to the folder `target`.

    Images are resized to `image_size` or, if that is 0, to the largest height and width among them; to three channels
    if any has them; and to a full scale of 255. Other arrays are unchanged, and must have one shape and type. Classes
    and sites are matched by name. Groups of different domains are different groups.
    """
    for name, samples in data_sets.items():
        if isinstance(samples.inputs, Texts) or samples.columns:
            raise _describe_unfit(name, "texts or a table")
    train_counts = {name: samples.train_rows for name, samples in data_sets.items()}
    table = _mix(train_counts, [len(samples.labels) - samples.train_rows for samples in data_sets.values()])
    class_names = _match_classes(data_sets, spec.classes)
    site_names = tuple(dict.fromkeys(name for samples in data_sets.values() for name in samples.site_names))
    labels, groups, sites = np.zeros_like(table), np.zeros_like(table), np.zeros_like(table)
    group_count = 0
    for index, samples in enumerate(data_sets.values()):
        numbers = np.array([class_names.index(name) for name in samples.class_names], np.int64)
        labels[table == index] = numbers[samples.labels]
        if samples.groups is not None:
            groups[table == index] = samples.groups + group_count
            group_count += int(samples.groups.max()) + 1
        if samples.sites is not None:
            numbers = np.array([site_names.index(name) for name in samples.site_names], np.int64)
            sites[table == index] = numbers[samples.sites]
    inputs, scale = _join_inputs(data_sets, table, target)
    return Samples(
        short_name(spec.dataset),
        inputs,
        labels,
        sum(train_counts.values()),
        class_names,
        scale,
        groups=groups if group_count else None,
        domains=table,
        domain_names=tuple(data_sets),
        sites=sites if site_names else None,
        site_names=site_names,
    )


def join_tables(spec: DataSpec, target: Path) -> Samples:
    """Join tables, read as files of one table so that features agree; texts are written to the folder `target`."""
    places = locate_all(spec.dataset)
    names = tuple(domain.name for domain in domains_of(spec.dataset))
    sources = []
    for name, place in zip(names, places, strict=True):
        if not isinstance(place, Folder) or not _is_table(place):
            raise _describe_unfit(name, "no table, but the first one does")
        with naming(name):
            refuse_unlisted(place, spec.listed)
        sources.append(open_folder(place))
    first = sources[0]
    for name, source in zip(names, sources, strict=True):
        schemas = [folder.schema.read_bytes() if folder.schema else b"" for folder in (first, source)]
        if source.class_names != first.class_names or schemas[0] != schemas[1]:
            what = "classes.txt" if source.class_names != first.class_names else SCHEMA
            raise DataError(f"domains {names[0]!r} and {name!r} differ in {what}: give both the same, or none.")

    parts = [replace(part, domain=index) for index, source in enumerate(sources) for part in source.parts]
    parts.sort(key=lambda part: part.is_test)
    samples = read_tables(replace(first, name=short_name(spec.dataset), parts=parts), spec, target)
    domains = samples.domains
    assert domains is not None
    if spec.classes == "same" and not first.class_names:
        _refuse_other_labels(samples, names)
    train_counts, test_counts = (
        np.bincount(part, minlength=len(names)).tolist() for part in np.split(domains, [samples.train_rows])
    )
    table = _mix(dict(zip(names, train_counts, strict=True)), test_counts)
    if samples.groups is not None:
        samples = replace(samples, groups=samples.groups * len(names) + domains)
    rows = np.empty_like(table)
    # row j of a domain goes to the domain's j-th place in the table
    rows[np.argsort(table, kind="stable")] = np.argsort(domains, kind="stable")
    return replace(samples.take(rows), domain_names=names)


def _mix(train_counts: Mapping[str, int], test_counts: Sequence[int]) -> np.ndarray:
    """The domain of each row: training rows come first, then test rows, both interleaved in proportion, so that the
    first samples represent all domains. Each domain's rows keep their order."""
    for name, count in train_counts.items():
        if not count:
            raise DataError(f"domain {name!r} has no training sample: give it some, or remove it from dataset.")
    return np.concatenate([interleaved(list(train_counts.values())), interleaved(test_counts)])


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


def _join_inputs(data_sets: Mapping[str, Samples], table: np.ndarray, target: Path) -> tuple[np.ndarray, float]:
    """Join the inputs of all domains, which `table` numbers; also returns the value of a full-scale input."""
    arrays = {name: samples.inputs for name, samples in data_sets.items() if isinstance(samples.inputs, np.ndarray)}
    forms = {name: (str(inputs.dtype), inputs.shape[1:]) for name, inputs in arrays.items()}
    first = next(iter(forms))
    are_images = all(kind == "uint8" and len(shape) == 3 for kind, shape in forms.values())
    # grey images can become colour images; other channel counts must be equal
    are_images = are_images and len({shape[0] for _, shape in forms.values()} - {1}) < 2
    for name, form in forms.items():
        if form != forms[first] and not are_images:
            both = " and ".join(f"{kind} {shape}" for kind, shape in (forms[first], form))
            problem = f"hold {both}, but only uint8 images are resized"
            raise DataError(f"domains {first!r} and {name!r} {problem}: give both one shape and type.")

    shape = np.max([inputs.shape[1:] for inputs in arrays.values()], axis=0).tolist()
    kind = arrays[first].dtype
    joined = np.lib.format.open_memmap(target / INPUTS, mode="w+", dtype=kind, shape=(len(table), *shape))
    for index, (name, inputs) in enumerate(arrays.items()):
        places = np.flatnonzero(table == index)
        for start in range(0, places.size, _BLOCK):
            block = np.asarray(inputs[start : start + _BLOCK])
            if are_images:
                # a grey image is repeated in every channel
                images = in_bytes(block, data_sets[name].scale)
                block = np.stack([resized(image, *shape[1:]) for image in images])
            joined[places[start : start + _BLOCK]] = block
    joined.flush()
    return joined, 255.0 if are_images else data_sets[first].scale


# --- their classes ---------------------------------------------------------------------------------------------------


def _match_classes(data_sets: Mapping[str, Samples], classes: str) -> tuple[str, ...]:
    """The classes of all domains, by name, in the first domain's order."""
    first = next(iter(data_sets))
    names = dict.fromkeys(data_sets[first].class_names)
    for name, samples in data_sets.items():
        differing = []
        for one, other in ((first, name), (name, first)):
            lacking = [word for word in data_sets[one].class_names if word not in data_sets[other].class_names]
            if lacking:
                differing.append(f"only {one!r} has {', '.join(lacking)}")
        if differing and classes == "same":
            problem = f"domains {first!r} and {name!r} have different classes ({'; '.join(differing)})"
            raise LabelsError(f'{problem}: name them alike in each classes.txt, or set classes = "union".')
        names |= dict.fromkeys(samples.class_names)
    return tuple(names)


def _refuse_other_labels(samples: Samples, names: Sequence[str]) -> None:
    """Refuse tables whose labels belong to different tasks: two spellings of one label, or no label in common with any
    other table. A site's table may lack a class, so its labels need not be all labels."""
    assert samples.domains is not None
    labels: dict[str, set[str]] = {}
    for index, name in enumerate(names):
        numbers = np.unique(samples.labels[: samples.train_rows][samples.domains[: samples.train_rows] == index])
        labels[name] = {samples.class_names[number] for number in numbers}
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
