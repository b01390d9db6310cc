"""Images, as files hold them: pixels, channels and sizes, of folders and of parquet; and the spiral's plane."""

import io
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.core.errors import DataError
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.spiral import spiral
from tests.data.draws import decoded


def test_pixels_are_those_of_the_files(tmp_path, write, png):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (5, 7, 3), dtype=np.uint8) for _ in range(6)]
    files = [png(image) for image in images[:3]] + [png(image, "JPEG") for image in images[3:]]
    write(tmp_path / "set" / "train.parquet", files, [0, 1] * 3)
    data = decoded(str(tmp_path / "set"), tmp_path / "cache")
    assert data.inputs.shape == (6, 3, 5, 7)
    for row, file in enumerate(files):
        assert np.array_equal(data.inputs[row].transpose(1, 2, 0), np.asarray(Image.open(io.BytesIO(file))))
    assert not data.inputs.flags.writeable


@pytest.mark.parametrize(("modes", "channels"), [("L RGB", 3), ("L P", 3), ("1 RGBA", 3), ("L 1", 1), ("LA L", 1)])
def test_a_mixture_of_grey_and_colour_becomes_colour_and_grey_stays_one_channel(tmp_path, modes, channels):
    for row, mode in enumerate(modes.split()):
        folder = tmp_path / "set" / f"class{row}"
        folder.mkdir(parents=True)
        Image.new("RGB" if channels == 3 else "L", (3, 3), "white").convert(mode).save(folder / "a.PNG")
    data = decoded(str(tmp_path / "set"), tmp_path / "cache")
    assert data.inputs.shape == (2, channels, 3, 3)
    assert (data.inputs == 255).all()


def test_a_pixel_may_have_16_bits_in_all(tmp_path):
    """BMP files of 5, 6 and 5 bits for the three channels."""
    pixels = struct.pack("<16H", *[0xF800] * 16)
    sizes = struct.pack("<IiiHHIIiiII", 40, 4, 4, 1, 16, 3, len(pixels), 0, 0, 0, 0)
    head = sizes + struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    start = 14 + len(head)
    (tmp_path / "set" / "red").mkdir(parents=True)
    file = struct.pack("<2sIHHI", b"BM", start + len(pixels), 0, 0, start) + head + pixels
    (tmp_path / "set" / "red" / "a.bmp").write_bytes(file)
    assert decoded(str(tmp_path / "set"), tmp_path / "cache").inputs[0, :, 0, 0].tolist() == [255, 0, 0]


def test_a_folder_of_classes(image_folder, tmp_path):
    (image_folder / "train" / "bee" / "notes.txt").write_text("no image")
    (image_folder / "train" / ".hidden").mkdir()
    (image_folder / "train" / "empty").mkdir()
    # a class may be a link to another disk, and none that leads back
    (image_folder / "train" / "cat").rename(tmp_path / "cats")
    (image_folder / "train" / "cat").symlink_to(tmp_path / "cats")
    (image_folder / "train" / "up").symlink_to(image_folder)
    (image_folder / "train" / "again").symlink_to(image_folder / "train")
    data = decoded(str(image_folder), tmp_path / "cache")
    assert (data.inputs.shape, data.train_rows) == ((33, 1, 6, 6), 24)
    assert data.class_names == ("ant", "bee", "cat", "empty")
    filled = data.inputs[:, 0, 0, 0]
    assert np.array_equal(filled // 20, data.labels)
    assert sorted((filled[:24] % 20).tolist()) == sorted([*range(8)] * 3)
    # the first rows are not of one class alone
    assert len(set(data.labels[:12].tolist())) == 3
    # classes.txt gives the order of all sites
    (image_folder / "classes.txt").write_text("empty\r\ncat\r\nbee\r\nant\r\n")
    data = decoded(str(image_folder), tmp_path / "cache")
    assert np.array_equal(data.labels, 3 - data.inputs[:, 0, 0, 0] // 20)


def test_images_of_several_sizes_are_brought_to_one_that_is_set(tmp_path):
    for number, shape in enumerate([(5, 6), (9, 3, 3), (4, 4)]):
        folder = tmp_path / "set" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros(shape, dtype=np.uint8)).save(folder / f"{number}.png")
    with pytest.raises(DataError, match="set image-size"):
        decoded(str(tmp_path / "set"), tmp_path / "cache")
    five, four = (decoded(str(tmp_path / "set"), tmp_path / "cache", image_size=size) for size in (5, 4))
    assert five.inputs.shape == (3, 3, 5, 5)
    # the same data at another size is another entry
    assert five.key != four.key


def test_parquet_in_shards_with_names_of_classes(parquet_folder, tmp_path):
    root = tmp_path / "sh[a]rds" / "data"
    root.mkdir(parents=True)
    table = pq.read_table(parquet_folder / "train.parquet")
    table = table.set_column(1, "label", pa.array(["ant", "bee"] * 20))
    pq.write_table(table.slice(0, 25), root / "train-00000-of-00002.parquet")
    pq.write_table(table.slice(25), root / "train-00001-of-00002.parquet")
    pq.write_table(table.slice(0, 5), root / "validation-00000-of-00001.parquet")
    data = decoded(str(root.parent), tmp_path / "cache")
    assert data.inputs[:, 0, 0, 0].tolist() == [*range(40), *range(5)]
    assert (data.class_names, data.train_rows) == (("ant", "bee"), 40)


def test_parquet_with_images_and_texts_is_what_is_asked_for(tmp_path, png):
    picture = {"bytes": png(np.zeros((2, 2, 3), dtype=np.uint8)), "path": "a.png"}
    table = {"image": [picture] * 3, "text": list("xyz"), "label": [0, 1, 0], "other": [1, 1, 0], "who": [5, 5, 6]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    columns = Columns(label="other", group="who")
    images = decoded(str(tmp_path / "a.parquet"), tmp_path / "cache", columns=columns)
    assert (images.inputs.shape, images.labels.tolist(), images.groups.tolist()) == ((3, 3, 2, 2), [1, 1, 0], [0, 0, 1])
    texts = decoded(str(tmp_path / "a.parquet"), tmp_path / "cache", columns=Columns(text="text"))
    assert texts.inputs[np.arange(3)] == ["x", "y", "z"]


# --- the spiral ------------------------------------------------------------------------------------------------------


def test_the_spiral_without_noise_is_the_printed_formula():
    n = 11
    positions, arms = spiral(n, 0.0, seed=3)
    expected = []
    for k in range(6):
        for i in range(1, n + 1):
            r = 1 + (i - 1) * 9 / (n - 1)
            omega = k / 3 * np.pi + (i - 1) * k / (3 * (n - 1)) * np.pi
            expected.append((k, r * np.sin(omega), r * np.cos(omega)))
    got = sorted(zip(arms.tolist(), *positions.T.tolist(), strict=True), key=lambda row: (row[0], np.hypot(*row[1:])))
    assert np.allclose(got, expected, atol=1e-5)
    # rows are mixed
    assert np.bincount(spiral(100, 0.2, 0)[1][:120], minlength=6).min() > 5


@pytest.mark.parametrize(("noise", "best"), [(0.2, 0.88), (1.0, 0.39)])
def test_the_best_possible_accuracy_on_the_spiral_is_the_one_known(noise, best):
    # with equal spreads the best rule is the arm with the nearest angle at that radius
    positions, arms = spiral(20_000, noise, seed=1)
    along = (np.linalg.norm(positions, axis=1) - 1) / 9
    angle = np.arctan2(positions[:, 0], positions[:, 1])
    middle = np.arange(6)[None] * np.pi / 3 * (1 + along[:, None])
    nearest = np.abs(np.angle(np.exp(1j * (angle[:, None] - middle)))).argmin(axis=1)
    assert (nearest == arms).mean() == pytest.approx(best, abs=0.01)


def test_the_spiral_depends_on_its_settings_and_one_point_is_no_arm(tmp_path):
    datas = []
    for points, noise, seed in ((20, 0.0, 0), (21, 0.0, 0), (20, 0.1, 0), (20, 0.0, 1)):
        datas.append(decoded("spiral", tmp_path, spiral_points=points, spiral_noise=noise, seed=seed))
        assert (datas[-1].inputs.shape, datas[-1].inputs.dtype) == ((6 * points, 2), np.float32)
    assert len({data.key for data in datas}) == 4
    with pytest.raises(DataError, match="spiral-points is 1"):
        spiral(1, 0.2, 0)
