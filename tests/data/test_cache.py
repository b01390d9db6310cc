"""The decoded cache: once per machine, whole or not at all, and pixels as they are in the files."""

import io
import json
import logging
import struct
import sys
from multiprocessing import get_context

import numpy as np
import pytest
from PIL import Image

from tests.data.draws import decoded


def ask(number, all_there, files, cache, said):
    """One of several processes, which begin when all are there; it writes to a file of its own."""
    sys.stdout = sys.stderr = (said / str(number)).open("w", buffering=1)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, force=True)
    all_there.wait(60)
    data = decoded(files, cache)
    print("rows", len(data.labels), int(data.inputs.sum()))


@pytest.fixture
def decodes(caplog):
    """How many decodes the log has counted in this process."""
    caplog.set_level(logging.INFO, "data.decode")
    return lambda: sum(record.getMessage().startswith("decoded ") for record in caplog.records)


def test_pixels_are_those_of_the_files(tmp_path, write, png):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (5, 7, 3), dtype=np.uint8) for _ in range(6)]
    files = [png(image) for image in images[:3]] + [png(image, "JPEG") for image in images[3:]]
    write(tmp_path / "set" / "train.parquet", files, [0, 1] * 3)
    data = decoded(str(tmp_path / "set"), tmp_path / "cache")
    assert data.inputs.shape == (6, 3, 5, 7)
    for row, file in enumerate(files):
        assert np.array_equal(data.inputs[row].transpose(1, 2, 0), np.asarray(Image.open(io.BytesIO(file))))
    assert np.array_equal(data.inputs[0].transpose(1, 2, 0), images[0])
    assert not data.inputs.flags.writeable


@pytest.mark.parametrize(
    ("modes", "channels"),
    [("L RGB", 3), ("RGB L", 3), ("L P", 3), ("1 RGBA", 3), ("L 1", 1), ("LA L", 1)],
)
def test_a_mixture_of_grey_and_colour_becomes_colour_and_grey_stays_one_channel(tmp_path, modes, channels):
    for row, mode in enumerate(modes.split()):
        folder = tmp_path / "set" / f"class{row}"
        folder.mkdir(parents=True)
        Image.new("RGB" if channels == 3 else "L", (3, 3), "white").convert(mode).save(folder / "a.png")
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
    data = decoded(str(tmp_path / "set"), tmp_path / "cache")
    assert data.inputs[0, :, 0, 0].tolist() == [255, 0, 0]


def test_six_processes_decode_once(parquet_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    said = tmp_path / "said"
    said.mkdir()
    # forks, for what takes long is to load torch
    fork = get_context("fork")
    asked = fork.Barrier(6), str(parquet_folder), tmp_path / "cache", said
    processes = [fork.Process(target=ask, args=(number, *asked)) for number in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    outputs = [path.read_text() for path in said.iterdir()]
    assert [process.exitcode for process in processes] == [0] * 6, outputs
    assert len(outputs) == 6
    lines = [line for said in outputs for line in said.splitlines()]
    assert sum("decoded" in line and "52 samples in" in line for line in lines) == 1
    assert len({line for line in lines if line.startswith("rows 52")}) == 1
    assert sum(line.startswith("rows 52") for line in lines) == 6
    # nothing is written anywhere but in the cache folder, and no copy of the files stays there
    assert not (tmp_path / "user").exists()
    kept = {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert kept == {".npy", ".json", ".lock"}


def test_a_damaged_cache_is_made_anew(parquet_folder, tmp_path, decodes):
    cache = tmp_path / "cache"
    first = decoded(str(parquet_folder), cache)
    expected = np.array(first.inputs)
    folder = cache / "decoded" / first.key
    del first

    def shorten(name):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-10])

    damages = [
        lambda: shorten("inputs.npy"),
        lambda: shorten("labels.npy"),
        # as a power cut leaves it
        lambda: (folder / "labels.npy").write_bytes(b""),
        lambda: (folder / "inputs.npy").write_bytes(b""),
        lambda: shorten("about.json"),
        lambda: (folder / "inputs.npy").unlink(),
        lambda: (folder / "about.json").write_text(json.dumps({"sizes": {}})),
        lambda: (folder / "about.json").write_text("[]"),
    ]
    for count, damage in enumerate(damages, start=2):
        damage()
        again = decoded(str(parquet_folder), cache)
        assert decodes() == count
        assert np.array_equal(again.inputs, expected)
        del again


def test_what_a_killed_process_left_does_no_harm(parquet_folder, tmp_path):
    cache = tmp_path / "cache"
    key = decoded(str(parquet_folder), tmp_path / "elsewhere").key
    left = cache / "decoded" / f"{key}.partial"
    left.mkdir(parents=True)
    (left / "inputs.npy").write_bytes(b"half of it")
    assert len(decoded(str(parquet_folder), cache).labels) == 52
    assert not left.exists()
