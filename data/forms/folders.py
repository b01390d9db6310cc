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
LIKE_TRAIN, LIKE_TEST = ("train", "training"), (*TEST_SPLITS, "testing")  # folders of images, in any case
TABLE_SUFFIXES = {".parquet": "parquet", ".csv": "csv"}
TABLES = tuple(TABLE_SUFFIXES.values())
FILE_SUFFIXES = {".npz": "arrays", **TABLE_SUFFIXES}
SCHEMA = "columns.json"  # of a table of numbers (table_schema.py)
CLASSES = "classes.txt"
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
Listed = Literal["", "tables", "all"]


@dataclass(frozen=True)
class Folder:
    """A local folder, or one `file` in it: its training and test files, and their format: that of its tables, "arrays"
    or "images"; the folders of classes lie at this `depth`, 1 below folders of splits."""

    root: Path
    format: str
    train: tuple[Path, ...]
    test: tuple[Path, ...]
    class_names: tuple[str, ...]
    file: Path | None = None
    depth: int = 0

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
        names = (CLASSES, SCHEMA) if self.format in TABLES else (CLASSES,)
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
        if root.is_dir():
            tables = _tables(root) or _tables(root / "data")
            return _table_folder(root, tables) if tables else _image_folder(root)
    except OSError as error:
        raise DataError(f"data path {str(root)!r} cannot be read ({error.strerror}): let its files be read.") from None
    if format_of(root):
        return Folder(root.parent, format_of(root), (root,), (), listed_classes(root.parent), root)
    raise DataError(f"data path {str(root)!r} is a file other than {', '.join(FILE_SUFFIXES)}: name its folder.")


def format_of(path: Path) -> str:
    """The format of a file of tables or arrays; "" for any other file."""
    return FILE_SUFFIXES.get(path.suffix.lower(), "")


def refuse_unlisted(folder: Folder, which: Listed) -> None:
    """Refuse a folder without a `classes.txt`, whose labels or folder names would leave the site as names of classes.
    Those `which` need one are "tables" (and arrays), "all", or none."""
    if not which or (which == "tables" and folder.format == "images") or listed_classes(folder.root):
        return
    raise LabelsError(
        f"{str(folder.root)!r} has no classes.txt: list the classes there, one per line, as at all other sites."
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
    return sorted(path for path in root.glob("*.*") if format_of(path) in TABLES and is_visible(path))


def _table_folder(root: Path, tables: list[Path]) -> Folder:
    # links are not followed, because they may lead anywhere
    for image in root.rglob("*"):
        if _is_image(image, root) and image.parent != root and format_of(tables[0]) != "parquet":
            names = f"a table, {tables[0].name}, and images, {image.relative_to(root)}"
            raise DataError(f"{str(root)!r} holds {names}: move one of the two elsewhere.")

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
        if format_of(path) != format_of(train[0]):
            names = f"({train[0].name}, {path.name})"
            raise DataError(f"{str(root)!r} holds tables of several formats {names}: use one, or move others away.")
    return Folder(root, format_of(train[0]), tuple(train), tuple(test), listed_classes(root))


# --- images ----------------------------------------------------------------------------------------------------------


def _image_folder(root: Path) -> Folder:
    class_names = listed_classes(root)
    folders = {path.name.lower(): path for path in _folders_in(root) if is_visible(path)}
    tests = [folders[name] for name in LIKE_TEST if name in folders]
    trains = [folders[name] for name in LIKE_TRAIN if name in folders]
    has_splits = bool(trains and tests) or (root / "train").is_dir()
    if {path.name for path in folders.values()} <= {*class_names}:
        has_splits = False
    splits = [trains[0], *tests[:1]] if has_splits else [root]

    images = [_images(split) for split in splits]
    if not any(images):
        raise DataError(
            f"{str(root)!r} holds no images, as <class>/<image> or train/<class>/<image>, and no table, as train.csv "
            "or train.parquet: add one of them."
        )
    # An empty class folder counts: with it, a site can declare a class that it lacks.
    names = sorted({class_of(path) for split in splits for path in _folders_in(split) if is_visible(path)})
    for name in names:
        if class_names and name not in class_names:
            raise LabelsError(
                f"{str(root)!r} has a folder {name!r}, which classes.txt lacks: add it there, or remove it."
            )
    test = images[1] if len(images) > 1 else ()
    return Folder(root, "images", images[0], test, class_names or tuple(names), depth=int(has_splits))


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
            raise DataError(f"image {str(path)!r} lies in no class folder: move it to <class>/{path.name}, or away.")
    # `max-samples` takes the first samples, which would all be of one class in the order of names
    return tuple(sorted(images, key=lambda path: hashlib.sha256(os.fsencode(path.relative_to(root))).digest()))
