"""The decoded cache: once per machine, whole or not at all, and anew where a file has changed."""

import json
import logging
import sys
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.data.draws import decoded
from tests.waiting import PATIENCE


def ask(number, all_there, files, cache, said):
    """One of several processes, which begin when all are there; it writes to a file of its own."""
    sys.stdout = sys.stderr = (said / str(number)).open("w", buffering=1)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, force=True)
    all_there.wait(PATIENCE)
    data = decoded(files, cache)
    print("rows", len(data.labels), int(data.inputs.sum()))


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
        process.join(PATIENCE)
    outputs = [path.read_text() for path in said.iterdir()]
    assert [process.exitcode for process in processes] == [0] * 6, outputs
    lines = [line for said in outputs for line in said.splitlines()]
    assert sum("decoded" in line and "52 samples in" in line for line in lines) == 1
    answers = [line for line in lines if line.startswith("rows 52")]
    assert (len(answers), len(set(answers))) == (6, 1)
    # nothing is written anywhere but in the cache folder, and no copy of the files stays there
    assert not (tmp_path / "user").exists()
    kept = {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert kept == {".npy", ".json", ".lock"}


def test_a_damaged_entry_is_made_anew(parquet_folder, tmp_path, caplog):
    caplog.set_level(logging.INFO, "data.decode")
    cache = tmp_path / "cache"
    first = decoded(str(parquet_folder), cache)
    expected, folder = np.array(first.inputs), cache / "decoded" / first.key
    del first

    def shorten(name):
        (folder / name).write_bytes((folder / name).read_bytes()[:-10])

    damages = [
        lambda: shorten("inputs.npy"),
        lambda: shorten("labels.npy"),
        # as a power cut leaves it
        lambda: (folder / "labels.npy").write_bytes(b""),
        lambda: shorten("about.json"),
        lambda: (folder / "inputs.npy").unlink(),
        lambda: (folder / "about.json").write_text(json.dumps({"sizes": {}})),
        lambda: (folder / "about.json").write_text("[]"),
    ]
    for count, damage in enumerate(damages, start=2):
        damage()
        again = decoded(str(parquet_folder), cache)
        assert sum(record.getMessage().startswith("decoded ") for record in caplog.records) == count
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


# --- files that are mended between two runs of one process, as in a notebook ------------------------------------------

LABELS = np.arange(60) % 2


def write_frame(path, factor):
    pd.DataFrame({"a": np.arange(60.0) * factor, "label": LABELS}).to_csv(path, index=False)
    return str(path)


def write_arrays(path, factor):
    np.savez(path, x=np.arange(60.0)[:, None] * factor, y=LABELS)
    return str(path)


def write_images(folder, factor):
    for number, label in enumerate(LABELS):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number * factor, np.uint8)).save(folder / str(label) / f"{number}.png")
    return str(folder)


def write_code(path, factor):
    path.write_text(f"def data():\n    return [((float(row) * {factor},), row % 2) for row in range(60)]\n")
    return f"{path}:data"


FORMS = {
    "csv": lambda folder, factor: write_frame(folder / "one.csv", factor),
    "sites": lambda folder, factor: ",".join(write_frame(folder / f"{name}.csv", factor) for name in ("a", "b")),
    "arrays": lambda folder, factor: write_arrays(folder / "one.npz", factor),
    "images": lambda folder, factor: write_images(folder / "images", factor),
    "code": lambda folder, factor: write_code(folder / "mine.py", factor),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_file_is_read_anew(form, run, metrics, tmp_path):
    def figures(factor):
        settings = {"dataset": FORMS[form](tmp_path, factor), "partition": "iid", "rounds": 1}
        return metrics(run(settings, clients=2))

    assert figures(3) != figures(1)
