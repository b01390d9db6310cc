"""Somebody's own data set: a callable in a file, and the torch Dataset that it gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from protosphere.core.errors import CodeError, DataError
from protosphere.data.decode import open_data
from protosphere.data.forms.columns import Columns
from protosphere.data.spec import DataSpec
from protosphere.data.user_code import own_code, read_items


class Rows(Dataset):
    """Grey images with their classes."""

    classes = ("ant", "bee", "cat")

    def __init__(self, count, bad=-1):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        if row == self.bad:
            raise RuntimeError("broken")
        return torch.full((1, 8, 8), row, dtype=torch.uint8), row % 3


def test_a_dataset_is_read_once_in_its_order():
    found = read_items([Rows(7), Rows(3)], "it gives")
    assert found["x"][:, 0, 0, 0].tolist() == [*range(7)]
    assert (found["y_test"].tolist(), found["classes"].tolist()) == ([0, 1, 2], ["ant", "bee", "cat"])


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ([5], "a int"),
        ([Rows(3)] * 3, "tuple of 3"),
        ([Rows(0)], "without items"),
        ([Rows(5, bad=3)], "item 3 .*broken"),
        ([[(torch.zeros(3), 0), (torch.zeros(4), 1)]], "several shapes"),
        ([[(torch.zeros(3), 0), (torch.zeros(3), 0.5)]], "item 1 .*0.5"),
    ],
)
def test_what_is_no_dataset_is_refused(given, word):
    with pytest.raises(CodeError, match=word):
        read_items(given, "it gives")


def test_code_is_named_by_its_content(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def dataset():\n    return [((1.0, 2.0), 0), ((3.0, 4.0), 1)]\n")
    first = own_code(str(file))
    spec = DataSpec(str(file), 1, code=first)
    data = open_data(spec, tmp_path / "cache")
    assert (data.name, np.asarray(data.inputs).tolist()) == ("mine.py", [[1.0, 2.0], [3.0, 4.0]])

    file.write_text("def dataset():\n    return [((1.0, 2.0), 0), ((3.0, 4.0), 1), ((5.0, 6.0), 1)]\n")
    again = own_code(str(file))
    assert again != first
    assert len(open_data(replace(spec, code=again), tmp_path / "cache").labels) == 3
    with pytest.raises(DataError, match="group-column"):
        open_data(replace(spec, code=again, columns=Columns(group="ward")), tmp_path / "cache")

    # a class number is a position, whatever the classes are called
    file.write_text(
        "class Rows(list):\n    classes = ['1', '2', '3']\n"
        "def dataset():\n    return Rows([((1.0,), 0), ((2.0,), 1), ((3.0,), 2)])\n"
    )
    data = open_data(replace(spec, code=own_code(str(file))), tmp_path / "cache")
    assert (data.class_names, data.labels.tolist()) == (("1", "2", "3"), [0, 1, 2])

    assert own_code("digits") is None
    with pytest.raises(CodeError, match="nowhere"):
        own_code("nowhere.at_all:rows")
    with pytest.raises(DataError, match=r"mine\.py:gone"):
        own_code(f"{file}:gone")()
