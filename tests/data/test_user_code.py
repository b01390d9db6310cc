"""The partition `column`, somebody's own partition, and somebody's own data set."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset

from protosphere.core.errors import DataError
from protosphere.data.forms.columns import Columns
from protosphere.data.partition.assignment import DataSpec, assignment, open_data
from protosphere.data.user_code import dealt_by_code, own_code, read_code

N = 60
WARD = np.array([("north", "south", "east", "west")[i % 7 % 4] for i in range(N)])
LABELS = np.arange(N) % 3


@dataclass(frozen=True)
class Code:
    """Somebody's callable, here."""

    gives: Any
    name: str = "mine:deal"

    def __call__(self, *arguments):
        return self.gives(*arguments) if callable(self.gives) else self.gives


@pytest.fixture
def spec(tmp_path):
    """spec(**more): rows of a table with a column of wards, and their numbers in another one."""

    def make(test=0, **more):
        frame = pd.DataFrame({"a": np.arange(N) / N, "ward": WARD, "number": np.arange(N) % 11 * 100, "label": LABELS})
        frame["patient"] = np.arange(N) % 7
        frame.iloc[test:].to_csv(tmp_path / "train.csv", index=False)
        if test:
            frame.iloc[:test].to_csv(tmp_path / "test.csv", index=False)
        return DataSpec(str(tmp_path), **({"partition": "column", "clients": 4} | more))

    return make


def dealt(spec, cache):
    data = open_data(spec, cache)
    return data, assignment(spec, data, cache)


def test_one_value_a_client_and_more_values_than_clients_round_robin(spec, tmp_path):
    data, who = dealt(spec(columns=Columns(partition="ward")), tmp_path / "cache")
    assert [set(WARD[rows]) for rows in who.held] == [{"east"}, {"north"}, {"south"}, {"west"}]
    assert sorted(np.concatenate(who.held).tolist()) == list(range(N))
    assert [column.name for column in data.columns] == ["a", "number", "patient"]
    three = dealt(spec(columns=Columns(partition="ward"), clients=3), tmp_path / "cache")[1]
    assert [set(WARD[rows]) for rows in three.held] == [{"east", "west"}, {"north"}, {"south"}]
    # numbers in their own order, not in that of their signs
    numbers = dealt(spec(columns=Columns(partition="number"), clients=11), tmp_path / "cache")[1]
    order = sorted(map(str, range(0, 1100, 100)))
    assert [{f"{value}" for value in rows % 11 * 100} for rows in numbers.held] == [{value} for value in order]
    with pytest.raises(DataError, match="5 clients need as many values in partition-column, one each, but it has 4"):
        dealt(spec(columns=Columns(partition="ward"), clients=5), tmp_path / "cache")


def test_official_test_rows_go_where_their_value_does(spec, tmp_path):
    asked = spec(test=20, columns=Columns(partition="ward"), split="official")
    _, who = dealt(asked, tmp_path / "cache")
    ward = np.concatenate([WARD[20:], WARD[:20]])
    for rows, value in zip(who.test, ("east", "north", "south", "west"), strict=True):
        assert rows.tolist() == [row for row in range(40, 60) if ward[row] == value]
    # every test row of the values is somebody's
    assert sum(map(len, who.test)) == 20


def test_groups_stay_together_and_one_with_several_values_is_refused(spec, tmp_path):
    asked = spec(columns=Columns(group="patient", partition="ward"))
    # a patient's number decides on the ward here
    _, who = dealt(asked, tmp_path / "cache")
    for part in (who.train, who.test, who.validation):
        for client, rows in enumerate(part):
            others = np.concatenate([who.held[client][~np.isin(who.held[client], rows)], [-1]])
            assert not set(rows % 7) & set(others[others >= 0] % 7)
    with pytest.raises(DataError, match="several values in partition-column"):
        dealt(spec(columns=Columns(group="patient", partition="number")), tmp_path / "cache")


def test_images_have_no_column(image_folder, tmp_path):
    with pytest.raises(DataError, match="partition-column"):
        open_data(DataSpec(str(image_folder), 2, "column", columns=Columns(partition="ward")), tmp_path / "cache")
    plain = DataSpec("digits", 2, "column")
    with pytest.raises(DataError, match="the data have none"):
        assignment(plain, open_data(plain, tmp_path / "cache"), tmp_path / "cache")


HALVES = """
import numpy as np

def partition(labels, groups, clients, seed):
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), clients)
"""


def test_a_partition_of_ones_own(spec, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(HALVES)
    asked = spec(partition=str(file), dealer=own_code(str(file), "partition"), clients=3)
    _, who = dealt(asked, tmp_path / "cache")
    expected = np.array_split(np.random.default_rng(0).permutation(N), 3)
    assert [sorted(rows.tolist()) for rows in who.held] == [sorted(own.tolist()) for own in expected]
    other = dealt(replace(asked, seed=1), tmp_path / "cache")[1]
    assert [rows.tolist() for rows in other.held] != [rows.tolist() for rows in who.held]
    # a patient's rows are dealt as one, and split as one
    file.write_text(
        "def partition(labels, groups, clients, seed):\n    return [(groups % 3 == n).nonzero()[0] for n in range(3)]"
    )
    grouped = replace(asked, dealer=own_code(str(file), "partition"), columns=Columns(group="patient"))
    data, who = dealt(grouped, tmp_path / "cache")
    assert [sorted(rows.tolist()) for rows in who.held] == [
        np.flatnonzero(data.groups % 3 == n).tolist() for n in range(3)
    ]


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (lambda *_: "ab", "a str"),
        (lambda *_: [[0], [1], [2]], "3 arrays, but there are 2 clients"),
        (lambda *_: [[0], []], "client 1 no sample"),
        (lambda *_: [[0], [N]], f"client 1 row {N} of {N}"),
        (lambda *_: [[0], [-1]], "client 1 row -1"),
        (lambda *_: [[0, 3], [3]], "row 3 twice"),
        (lambda *_: [[0.5], [1]], "float64"),
        (lambda *_: [[0, 1], [7]], "divides a group"),
    ],
)
def test_what_deals_nothing_is_refused(gives, words):
    groups = np.arange(N) % 7 if "group" in words else None
    with pytest.raises(DataError, match=words):
        dealt_by_code(Code(gives), LABELS, groups, 2, 0)


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
    found = read_code(Code(lambda: (Rows(7), Rows(3))))
    assert (found.inputs.shape, found.train_rows, found.class_names) == ((10, 1, 8, 8), 7, Rows.classes)
    assert found.inputs[:, 0, 0, 0].tolist() == [*range(7), *range(3)]
    assert found.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (lambda: 5, "a int"),
        (lambda: (Rows(3), Rows(3), Rows(3)), "a tuple"),
        (lambda: Rows(0), "without items"),
        (lambda: Rows(5, bad=3), "item 3 .*broken"),
        (lambda: [(torch.zeros(3), 0), (torch.zeros(4), 1)], "several shapes"),
        (lambda: [(torch.zeros(3), 0), (torch.zeros(3), 0.5)], "item 1 .*0.5"),
        (lambda: [(torch.zeros(3), 0), (torch.tensor([0, np.nan, 0]), 1)], r"nan at x\[1, 1\]"),
    ],
)
def test_what_is_no_dataset_is_refused(gives, words):
    with pytest.raises(DataError, match=words):
        read_code(Code(gives))


def test_code_is_named_by_its_content(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def dataset():\n    return [((1.0, 2.0), 0), ((3.0, 4.0), 1)]\n")
    first = own_code(str(file), "dataset")
    assert (first.name, read_code(first).inputs.tolist()) == ("mine.py", [[1.0, 2.0], [3.0, 4.0]])
    spec = DataSpec(str(file), 1, code=first)
    assert len(open_data(spec, tmp_path / "cache").labels) == 2
    file.write_text("def dataset():\n    return [((1.0, 2.0), 0), ((3.0, 4.0), 1), ((5.0, 6.0), 1)]\n")
    again = own_code(str(file), "dataset")
    assert again != first
    assert len(open_data(replace(spec, code=again), tmp_path / "cache").labels) == 3
    for columns, words in ((Columns(group="ward"), "group-column"), (Columns(partition="ward"), "partition-column")):
        with pytest.raises(DataError, match=f"{words} is 'ward', but .* is no table"):
            open_data(replace(spec, columns=columns), tmp_path / "cache")
    assert len(open_data(replace(spec, columns=Columns(label="outcome")), tmp_path / "cache").labels) == 3
    assert own_code("digits", "dataset") is None
    with pytest.raises(DataError, match="nowhere"):
        own_code("nowhere.at_all:rows", "dataset")
    with pytest.raises(DataError, match=r"mine\.py:gone"):
        own_code(f"{file}:gone", "dataset")()
