"""Small data sets on disk, made with PIL, in the forms that a user's folder can have."""

import io
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.data.decode import open_data
from protosphere.data.spec import DataSpec


def pixels(row, channels=3, size=6):
    """An image whose first pixel is its row number, so that a test can tell which one it got."""
    shape = (size, size, 3) if channels == 3 else (size, size)
    return np.full(shape, row % 256, dtype=np.uint8)


def encode(array, file_format="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, file_format)
    return buffer.getvalue()


def deep_colours():
    """A PNG of 4×4 pixels with 16 bits in each of three channels, which Pillow does not write."""
    rows = b"".join(b"\0" + bytes(4 * 3 * 2) for _ in range(4))
    content = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return content


def write_table(path, images, labels, image_column="image", label_column="label"):
    path.parent.mkdir(parents=True, exist_ok=True)
    column = [{"bytes": image, "path": f"{row}.png"} for row, image in enumerate(images)]
    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({image_column: pa.array(column, image_type), label_column: labels}), path)


@pytest.fixture
def parquet_folder(tmp_path):
    """40 training and 12 test rows of 4 classes; training row i is filled with i, test row i with 100 + i."""
    root = tmp_path / "parquet"
    write_table(root / "train.parquet", [encode(pixels(i)) for i in range(40)], [i % 4 for i in range(40)])
    write_table(root / "test.parquet", [encode(pixels(100 + i)) for i in range(12)], [i % 4 for i in range(12)])
    (root / "classes.txt").write_text("ant\nbee\ncat\ndog\n")
    return root


@pytest.fixture
def image_folder(tmp_path):
    """Three classes with 8 training images and 3 test images each, grey; image i of class k is filled with 20 k + i."""
    root = tmp_path / "images [of] *things"
    for k, name in enumerate(("ant", "bee", "cat")):
        for split, rows in (("train", range(8)), ("test", range(8, 11))):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in rows:
                # a name with `test` in it must not make it a test image
                Image.fromarray(pixels(20 * k + i, channels=1)).save(folder / f"test_{i}.png")
    return root


@pytest.fixture
def write():
    """write(path, images, labels): a parquet table of encoded images."""
    return write_table


@pytest.fixture
def png():
    """png(array): an image's file content; `png(array, "JPEG")` likewise."""
    return encode


@pytest.fixture
def domain(tmp_path, write, png):
    """domain(name, train, test, shape, classes): the folder of a made domain of random images, label i of row i counted
    around the classes."""

    def make(name, train=6, test=3, shape=(6, 6), classes=("ant", "bee", "cat")):
        rng = np.random.default_rng(list(name.encode()))
        root = tmp_path / "all" / name
        for split, rows in (("train", train), ("test", test)):
            if rows or split == "train":
                images = [png(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(rows)]
                write(root / f"{split}.parquet", images, np.arange(rows) % len(classes))
        (root / "classes.txt").write_text("\n".join(classes))
        return str(root)

    return make


@pytest.fixture
def opened(tmp_path):
    """opened(*data sets, classes="same", **recipe): what they are together."""
    return lambda *items, **spec: open_data(DataSpec(",".join(items), **spec), tmp_path / "cache")
