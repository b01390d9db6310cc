"""The files of a local data set: tables, arrays or images, for training and for test, and the class names."""

import hashlib
import os
import re
import unicodedata
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from protosphere.core.errors import DataError, LabelsError

TEST_SPLITS = ("test", "validation", "valid", "val")
LIKE_TRAIN, LIKE_TEST = ("train", "training"), (*TEST_SPLITS, "testing")  # in upper or lower case
TABLE_SUFFIXES = {".parquet": "parquet", ".csv": "csv"}
FILE_SUFFIXES = {".npz": "arrays", **TABLE_SUFFIXES}
SCHEMA = "columns.json"  # of a table of numbers (table_schema.py)
CLASSES = "classes.txt"
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
Listed = Literal["", "tables", "all"]


@dataclass(frozen=True)
class Folder:
    """A local folder, or one `file` in it: its training and test files, and their format: that of its tables, "arrays"
    or "images"."""

    root: Path
    format: str
    train: tuple[Path, ...]
    test: tuple[Path, ...]
    class_names: tuple[str, ...]
    file: Path | None = None

    @property
    def name(self) -> str:
        """The path that was given: the folder, or the file."""
        return str(self.file or self.root)

    @property
    def schema(self) -> Path | None:
        """The columns.json beside the tables, if there is one."""
        path = self.root / SCHEMA
        return path if path.is_file() else None

    def state(self) -> list[tuple[str, int, int]]:
        """Name, size in bytes and modification time in ns of every file that the data are read from."""
        files = [*self.train, *self.test]
        names = (CLASSES, SCHEMA) if self.format in TABLE_SUFFIXES.values() else (CLASSES,)
        files += [self.root / name for name in names if (self.root / name).is_file()]
        state = []
        for path in files:
            try:
                status = path.stat()
                change = status.st_size, status.st_mtime_ns
            except OSError:
                # the reader refuses a broken link
                change = -1, -1
            state.append((str(path.relative_to(self.root)), *change))
        return state


def read_folder(root: Path) -> Folder:
    """Find the tables, arrays or images in a folder, without reading them."""
    if not root.exists():
        raise DataError(f"data path {str(root)!r} does not exist: check its spelling, and that this machine has it.")
    try:
        _refuse_overlooked(root)
        if root.is_dir():
            tables = _tables(root) or _tables(root / "data")
            return _table_folder(root, tables) if tables else _image_folder(root)
    except OSError as error:
        raise DataError(f"data path {str(root)!r} cannot be read ({error.strerror}): let its files be read.") from None
    if root.suffix in FILE_SUFFIXES:
        return Folder(root.parent, FILE_SUFFIXES[root.suffix], (root,), (), listed_classes(root.parent), root)
    raise DataError(
        f"data path {str(root)!r} is a file, but a data set is a folder or one file of {', '.join(FILE_SUFFIXES)}: "
        "name the folder that holds it."
    )


def _refuse_overlooked(root: Path) -> None:
    """Refuse files that would be silently ignored: suffixes in capitals, and JSON lines."""
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
    """Refuse a folder without a `classes.txt`, if labels or folder names would leave the site.

    Args:
        which: the folders that need one: "tables" (and arrays), "all", or none.
    """
    if not which or (which == "tables" and folder.format == "images") or listed_classes(folder.root):
        return
    raise LabelsError(
        f"{str(folder.root)!r} has no classes.txt: list the classes there, one per line in label order, the same at "
        "all sites, so that no label or folder leaves the site as the name of a class."
    )


def listed_classes(root: Path) -> tuple[str, ...]:
    """The classes in the `classes.txt` of a folder, in label order; none where there is no such file."""
    path = root / CLASSES
    if not path.is_file():
        return ()
    try:
        # some editors start a file with a byte order mark
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LabelsError(f"{path} cannot be read ({error}); it names a class per line, in UTF-8.") from None
    class_names = tuple(unicodedata.normalize("NFC", line.strip()) for line in lines if line.strip())
    if len(set(class_names)) < len(class_names):
        raise LabelsError(f"{str(path)!r} names a class twice: give each class one line, in label order.")
    return class_names


# --- tables ----------------------------------------------------------------------------------------------------------


def _tables(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*.*") if path.suffix in TABLE_SUFFIXES and is_visible(path))


def _table_folder(root: Path, tables: list[Path]) -> Folder:
    # links are not followed, because they may lead anywhere
    for image in root.rglob("*"):
        if _is_image(image, root) and image.parent != root and tables[0].suffix != ".parquet":
            raise DataError(
                f"{str(root)!r} holds a table, {tables[0].name}, and images, {image.relative_to(root)}: move one of "
                "the two elsewhere."
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
                "or move away what is no table of the data set."
            )
    return Folder(root, TABLE_SUFFIXES[train[0].suffix], tuple(train), tuple(test), listed_classes(root))


# --- images ----------------------------------------------------------------------------------------------------------


def _image_folder(root: Path) -> Folder:
    class_names = listed_classes(root)
    names = [path.name for path in _folders_in(root) if is_visible(path)]
    has_train = (root / "train").is_dir()
    tests = [root / name for name in TEST_SPLITS if has_train and (root / name).is_dir()]
    likely_train = any(name.lower() in LIKE_TRAIN for name in names)
    likely_test = any(name.lower() in LIKE_TEST for name in names)
    if likely_train and likely_test and not tests and not {*names} <= {*class_names}:
        raise DataError(
            f"{str(root)!r} has the folders {', '.join(names)}, which seem to be the splits of one data set: call them "
            "train and test, or list them in classes.txt if they are classes."
        )

    splits = [root / "train", *tests[:1]] if has_train else [root]
    images = [_images(split) for split in splits]
    if not any(images):
        raise DataError(
            f"{str(root)!r} holds no images: expected train.parquet and test.parquet, or image files as "
            "train/<class>/<image> and test/<class>/<image>, or as <class>/<image>, or texts as train.csv or "
            "train.parquet."
        )
    # An empty class folder counts: with it, a site can declare a class that it lacks.
    folders = sorted({class_of(path) for split in splits for path in _folders_in(split) if is_visible(path)})
    for name in folders:
        if class_names and name not in class_names:
            raise LabelsError(
                f"{str(root)!r} has a folder {name!r}, but classes.txt names no such class: add it there or remove the "
                "folder."
            )
    test = images[1] if tests else ()
    return Folder(root, "images", images[0], test, class_names or tuple(folders))


def class_of(folder: Path) -> str:
    """The class that a folder of images is named after; some systems decompose accented letters."""
    return unicodedata.normalize("NFC", folder.name)


def is_visible(path: Path) -> bool:
    """Whether a file or folder is visible: its name starts neither with a dot nor with two underscores."""
    return not path.name.startswith((".", "__"))


def is_visible_below(root: Path, path: Path) -> bool:
    """Whether a file in a folder, and all folders between the two, are visible."""
    return all(map(is_visible, map(Path, path.relative_to(root).parts)))


def _is_image(path: Path, root: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and is_visible_below(root, path)


def _folders_in(root: Path) -> list[Path]:
    """The subfolders of a folder, sorted. Links are included, except those that lead back to the folder."""
    place = root.resolve()
    folders = [path for path in root.iterdir() if path.is_dir()]
    return sorted(path for path in folders if not (path.is_symlink() and place.is_relative_to(path.resolve())))


def _images(root: Path) -> tuple[Path, ...]:
    """The image files below the class folders of `root`, in a fixed order that mixes the classes."""
    # a walk follows a link at its start only: class folders may be links
    paths = chain(root.iterdir(), *(folder.rglob("*") for folder in _folders_in(root)))
    images = [path for path in paths if _is_image(path, root)]
    for path in images:
        if path.parent == root:
            raise DataError(
                f"image {str(path)!r} lies in no class folder: move it to <class>/{path.name} or out of {str(root)!r}."
            )
    # `max-samples` takes the first samples, which would all be of one class in the order of names
    return tuple(sorted(images, key=lambda path: hashlib.sha256(os.fsencode(path.relative_to(root))).digest()))
