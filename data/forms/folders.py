"""What lies in a local folder: tables or images, for training and for test, and the classes' names."""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from protosphere.core.errors import DataError, LabelsError

TEST_SPLITS = ("test", "validation", "valid", "val")
LIKE_TRAIN, LIKE_TEST = ("train", "training"), (*TEST_SPLITS, "testing")  # in any case
TABLE_SUFFIXES = {".parquet": "parquet", ".csv": "csv"}
FILE_SUFFIXES = {".npz": "arrays", **TABLE_SUFFIXES}
Listed = Literal["", "tables", "all"]
_HELD = {"images": ("images", "name of a folder"), "arrays": ("arrays", "label")}
SCHEMA = "columns.json"  # of a table of numbers (table_schema.py)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class Folder:
    """A local folder, or one file in it: its training and test files, of one format (that of its tables, "arrays" or
    "images"), and when they last changed."""

    root: Path
    format: str
    train: tuple[Path, ...]
    test: tuple[Path, ...]
    class_names: tuple[str, ...]
    file: Path | None = None

    @property
    def name(self) -> str:
        """What was named: the folder, or the one file."""
        return str(self.file or self.root)

    @property
    def splits(self) -> dict[str, tuple[Path, ...]]:
        """The files of each split; a test split without files is none."""
        return {"train": self.train} | ({"test": self.test} if self.test else {})

    def state(self) -> list[tuple[str, int, int]]:
        """Name, size in bytes and time of change in ns of every file that the data are read from."""
        files = [*self.train, *self.test]
        for name in ("classes.txt", SCHEMA) if self.format in TABLE_SUFFIXES.values() else ("classes.txt",):
            if (self.root / name).is_file():
                files.append(self.root / name)
        return [(str(path.relative_to(self.root)), *_state(path)) for path in files]


def _state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        # a link to nowhere is for whoever reads it
        return -1, -1
    return status.st_size, status.st_mtime_ns


def read_folder(root: Path) -> Folder:
    """Find the tables or the images in a folder, without reading them.

    Raises:
        DataError: the folder does not exist, holds neither tables nor images or both, tables of several formats, or
            does not fit its `classes.txt`.
    """
    if not root.exists():
        raise DataError(f"data path {str(root)!r} does not exist: check its spelling, and that this machine has it.")
    try:
        return _find(root)
    except OSError as error:
        raise DataError(f"data path {str(root)!r} cannot be read ({error.strerror}): let its files be read.") from None


def _find(root: Path) -> Folder:
    _refuse_overlooked(root)
    if root.is_dir():
        tables = _tables(root) or _tables(root / "data")
        return _table_folder(root, tables) if tables else _image_folder(root)
    if root.suffix in FILE_SUFFIXES:
        # a file that is a data set by itself, its classes named by a `classes.txt` beside it
        kind = FILE_SUFFIXES[root.suffix]
        return Folder(root.parent, kind, (root,), (), listed_classes(root.parent), root)
    raise DataError(
        f"data path {str(root)!r} is a file, but a data set is a folder or one file of {', '.join(FILE_SUFFIXES)}: "
        "name the folder that holds it.",
    )


def _refuse_overlooked(root: Path) -> None:
    """Refuse tables beside others that would be missed in silence: JSON lines, which earlier versions read, and files
    whose name ends in capitals."""
    files = [root]
    if root.is_dir():
        files = [path for path in (*root.glob("*.*"), *root.glob("data/*.*")) if is_visible(path)]
    for path in files:
        if path.suffix not in FILE_SUFFIXES and path.suffix.lower() in FILE_SUFFIXES:
            raise DataError(f"{str(path)!r} is not read for the capitals at its end: call it *{path.suffix.lower()}.")
        if path.suffix == ".jsonl" or (path == root and path.suffix == ".json"):
            raise DataError(
                f"{str(path)!r} is no CSV or parquet file: JSON lines are no longer read; "
                "`pandas.read_json(FILE, lines=True).to_parquet(OTHER)` converts them."
            )


def refuse_unlisted(folder: Folder, which: Listed) -> None:
    """Refuse a folder whose classes nobody has listed: they would be made of whatever a table's label column holds, or
    of the names of subfolders.

    Args:
        which: "tables": of tables alone; "all": of images, too; "": of neither.

    Raises:
        DataError: the folder has no `classes.txt`.
    """
    if not which or (which == "tables" and folder.format == "images") or listed_classes(folder.root):
        return
    content, leaves = _HELD.get(folder.format, ("a table", "label"))
    raise LabelsError(
        f"{str(folder.root)!r} holds {content}, but no classes.txt: list the classes there, one a line in label order, "
        f"the same at all sites, so that no {leaves} leaves the site as the name of a class.",
    )


def listed_classes(root: Path) -> tuple[str, ...]:
    """The classes that the `classes.txt` of a folder names, in label order; none where there is no such file.

    Raises:
        DataError: it cannot be read, or names a class twice.
    """
    names = root / "classes.txt"
    try:
        # some editors begin a file with a mark
        listed = tuple(names.read_text("utf-8-sig").split("\n")) if names.is_file() else ()
    except (OSError, UnicodeDecodeError) as error:
        raise LabelsError(f"{names} cannot be read ({error}); it names a class a line, in UTF-8.") from None
    class_names = tuple(unicodedata.normalize("NFC", line.strip()) for line in listed if line.strip())
    if len(set(class_names)) < len(class_names):
        raise LabelsError(f"{str(names)!r} names a class twice: give each class one line, in label order.")
    return class_names


def _tables(root: Path) -> list[Path]:
    paths = [path for path in root.glob("*.*") if path.suffix in TABLE_SUFFIXES]
    return sorted(path for path in paths if is_visible(path))


def _table_folder(root: Path, tables: list[Path]) -> Folder:
    # without a look into links, which may lead anywhere
    for image in root.rglob("*"):
        if _is_image(image, root) and image.parent != root and tables[0].suffix != ".parquet":
            raise DataError(
                f"{str(root)!r} holds a table, {tables[0].name}, and images, {image.relative_to(root)}: move one of "
                "the two elsewhere.",
            )

    by_split: dict[str, list[Path]] = {}
    for path in tables:
        by_split.setdefault(re.split(r"[^a-z]", path.stem.lower())[0], []).append(path)
    test = next((by_split[name] for name in TEST_SPLITS if name in by_split), [])
    other_paths = [path for name, paths in by_split.items() if name not in TEST_SPLITS for path in paths]
    train = by_split.get("train") or sorted(other_paths)
    if not train:
        names = ", ".join(path.name for path in tables)
        raise DataError(f"{str(root)!r} has no training table, only {names}: name one train{tables[0].suffix}.")
    for path in (*train, *test):
        if path.suffix != train[0].suffix:
            raise DataError(
                f"{str(root)!r} holds tables of several formats ({train[0].name}, {path.name}): write them all in one, "
                "or move away what is no table of the data set.",
            )
    return Folder(root, TABLE_SUFFIXES[train[0].suffix], tuple(train), tuple(test), listed_classes(root))


def _image_folder(root: Path) -> Folder:
    roots = [root]
    _refuse_like_splits(root)
    if (root / "train").is_dir():
        tests = [root / name for name in TEST_SPLITS if (root / name).is_dir()]
        roots = [root / "train", *tests[:1]]
    images = [_images(split_root) for split_root in roots]
    if not any(images):
        raise DataError(
            f"{str(root)!r} holds no images: expected train.parquet and test.parquet, or image files as "
            "train/<class>/<image> and test/<class>/<image>, or as <class>/<image>, or texts as train.csv or "
            "train.parquet.",
        )
    # An empty class folder counts: so a site can say that it lacks a class that others have.
    folders = {class_of(path) for split in roots for path in _folders_in(split) if is_visible(path)}
    class_names = listed_classes(root)
    for name in sorted(folders):
        if class_names and name not in class_names:
            raise LabelsError(
                f"{str(root)!r} has a folder {name!r}, but classes.txt names no such class: add it there or remove the "
                "folder.",
            )
    test = images[1] if len(images) > 1 else ()
    return Folder(root, "images", images[0], test, class_names or tuple(sorted(folders)))


def _refuse_like_splits(root: Path) -> None:
    """Refuse folders that are called nearly as splits are, of which classes would be made, or which would be left out.

    Raises:
        DataError: it names them.
    """
    names = [path.name for path in _folders_in(root) if is_visible(path)]
    likely_train = [name for name in names if name.lower() in LIKE_TRAIN]
    likely_test = [name for name in names if name.lower() in LIKE_TEST]
    has_splits = "train" in names and not {*TEST_SPLITS}.isdisjoint(names)
    if likely_train and likely_test and not has_splits and not {*names} <= {*listed_classes(root)}:
        raise DataError(
            f"{str(root)!r} has the folders {', '.join(names)}, which seem to be the splits of one data set: call them "
            "train and test, or list them in classes.txt if they are classes."
        )


def class_of(folder: Path) -> str:
    """The class that a folder of images is named by; some systems write an accent as a letter of its own."""
    return unicodedata.normalize("NFC", folder.name)


def is_visible(path: Path) -> bool:
    """Whether a file or folder is not hidden: its name starts neither with a dot nor with two underscores."""
    return not path.name.startswith((".", "__"))


def _folders_in(root: Path) -> list[Path]:
    """The folders in another one, sorted; links may be among them, but none that leads back to it."""
    place = root.resolve()
    folders = [path for path in root.iterdir() if path.is_dir()]
    return sorted(path for path in folders if not (path.is_symlink() and place.is_relative_to(path.resolve())))


def _image_files(root: Path) -> Iterator[Path]:
    # a walk follows a link where it begins, and no other: class folders may be links
    for path in chain(root.iterdir(), *(folder.rglob("*") for folder in _folders_in(root))):
        if _is_image(path, root):
            yield path


def _is_image(path: Path, root: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and is_visible_below(root, path)


def is_visible_below(root: Path, path: Path) -> bool:
    """Whether neither a file in a folder, nor a folder between the two, is hidden."""
    return all(map(is_visible, map(Path, path.relative_to(root).parts)))


def _images(root: Path) -> tuple[Path, ...]:
    """The image files below the class folders of `root`, in an order that mixes the classes but never changes."""
    files = list(_image_files(root))
    for path in files:
        if path.parent == root:
            raise DataError(
                f"image {str(path)!r} lies in no class folder: move it to <class>/{path.name} or out of {str(root)!r}.",
            )
    # `max-samples` takes the first rows: in the order of the names they would all be of one class.
    return tuple(sorted(files, key=lambda path: hashlib.sha256(os.fsencode(path.relative_to(root))).digest()))
