"""Files that are mended between two runs of one process, as in a notebook: the second run has what they hold then."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

LABELS = np.arange(60) % 2
CODE = """
import torch
def data():
    return torch.utils.data.TensorDataset(torch.arange(60.0).view(-1, 1) * {factor}, torch.arange(60) % 2)
"""


def write_frame(path, factor):
    frame = pd.DataFrame({"a": np.arange(60.0) * factor, "label": LABELS})
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    return str(path)


def write_tables(folder, factor):
    return ",".join(write_frame(folder / f"{name}.csv", factor) for name in ("north", "south"))


def write_arrays(folder, factor):
    np.savez(folder / "one.npz", x=np.arange(60.0)[:, None] * factor, y=LABELS)
    return str(folder / "one.npz")


def write_images(folder, factor):
    for number, label in enumerate(LABELS):
        place = folder / "images" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number * factor, np.uint8)).save(place / f"{number}.png")
    return str(folder / "images")


def write_code(folder, factor):
    (folder / "mine.py").write_text(CODE.format(factor=factor))
    return f"{folder / 'mine.py'}:data"


FORMS = {
    "csv": lambda folder, factor: write_frame(folder / "one.csv", factor),
    "parquet": lambda folder, factor: write_frame(folder / "one.parquet", factor),
    "jsonl": lambda folder, factor: write_frame(folder / "one.jsonl", factor),
    "sites": write_tables,
    "arrays": write_arrays,
    "images": write_images,
    "code": write_code,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_file_is_read_anew(form, run, metrics, tmp_path):
    def figures(factor):
        settings = {"dataset": FORMS[form](tmp_path, factor), "partition": "iid", "normalise": False, "rounds": 1}
        return metrics(run(settings, clients=2))

    first = figures(1)
    assert figures(1) == first
    assert figures(3) != first
