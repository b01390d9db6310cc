"""Several tables as sites: their rows against the files, who gets them, what they are called, what is refused."""

import numpy as np
import pandas as pd
import pytest

from protosphere.data.client_data import client_data
from protosphere.data.domains import are_tables
from protosphere.data.forms.columns import Columns
from protosphere.data.partition.assignment import DataSpec, assignment, domain_of, name_of, open_data
from tests.data.draws import refusal

SIZES = {"berlin": 30, "paris": 12, "rome": 7}


def frame(number, size):
    """A value tells the file and the row: 1000 · file + row."""
    words = ["red", "green"] if number else ["red", "blue"]
    colours = [words[row % 2] for row in range(size)]
    labels = [("no", "yes", "maybe")[row % (3 if number == 1 else 2)] for row in range(size)]
    return pd.DataFrame({"size": [1000.0 * number + row for row in range(size)], "colour": colours, "label": labels})


@pytest.fixture
def sites(tmp_path):
    """sites(suffix, change): a list of tables as a `dataset` setting; `change(name, frame)` may change one."""

    def write(suffix="csv", change=lambda name, frame: frame):
        paths = []
        for number, (name, size) in enumerate(SIZES.items()):
            table, path = change(name, frame(number, size)), tmp_path / f"{name}.{suffix}"
            table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path, index=False)
            paths.append(str(path))
        return ",".join(paths)

    return write


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_each_client_has_the_rows_of_one_file_and_its_name(sites, tmp_path, suffix):
    dataset = sites(suffix)
    assert are_tables(dataset)
    spec = DataSpec(dataset, 3, "sites")
    data = open_data(spec, tmp_path / "cache")
    assert (data.domain_names, data.class_names) == (tuple(SIZES), ("maybe", "no", "yes"))
    assert [(column.name, column.values) for column in data.columns] == [
        ("size", ()),
        ("colour", ("blue", "green", "red")),
    ]
    held = assignment(spec, data, tmp_path / "cache").held
    for number, (name, size) in enumerate(SIZES.items()):
        assert sorted(data.inputs[held[number]][:, 0].tolist()) == [1000.0 * number + row for row in range(size)]
        assert (name_of(spec, data, held[number]), domain_of(data, held[number])) == (name, name)
    # a row's features and label are still those of one row
    table = pd.concat([frame(number, size) for number, size in enumerate(SIZES.values())]).set_index("size")
    for values, label in zip(data.inputs, data.labels, strict=True):
        row = table.loc[float(values[0])]
        assert ("blue", "green", "red")[int(values[1:].argmax())] == row["colour"]
        assert data.class_names[label] == row["label"]
    # interleaved: the first half holds about half of each file
    half = np.bincount(data.domains[: len(data.domains) // 2], minlength=3)
    assert np.abs(half - np.array(list(SIZES.values())) / 2).max() <= 1


def test_numbers_are_scaled_by_each_sites_own_training_rows(sites, tmp_path):
    spec = DataSpec(sites(), 3, "sites")
    for number in range(3):
        data = client_data(spec, number, tmp_path / "cache")
        own = data.train.inputs[:, 0].double()
        assert data.transform.mean[0] == pytest.approx(own.mean().item())
        assert 1000 * number <= data.transform.mean[0] < 1000 * number + 31
        assert data.name == data.domain == list(SIZES)[number]


def test_fewer_clients_get_the_files_in_turn_and_more_are_refused(sites, tmp_path):
    spec = DataSpec(sites(), 2, "sites")
    data = open_data(spec, tmp_path / "cache")
    held = assignment(spec, data, tmp_path / "cache").held
    assert [name_of(spec, data, rows) for rows in held] == ["berlin, rome", "paris"]
    more = DataSpec(spec.dataset, 4, "sites")
    said = refusal(assignment, more, data, tmp_path / "cache")
    assert said.startswith("4 clients need as many data sets in dataset, one each, but it lists 3:")


def test_texts_are_sites_too_and_one_patient_of_two_is_two(sites, tmp_path):
    def notes(name, table):
        texts = [f"{name} {row}" for row in range(len(table))]
        return pd.DataFrame(
            {"text": texts, "label": table["label"], "patient": [row // 3 for row in range(len(table))]}
        )

    spec = DataSpec(sites(change=notes), 3, "sites", columns=Columns(group="patient"))
    data = open_data(spec, tmp_path / "cache")
    held = assignment(spec, data, tmp_path / "cache").held
    for name, rows in zip(SIZES, held, strict=True):
        assert sorted(data.inputs[rows]) == sorted(f"{name} {row}" for row in range(SIZES[name]))
    assert len(np.unique(data.groups)) == sum(-(-size // 3) for size in SIZES.values())


def test_official_test_tables_go_to_their_site(tmp_path):
    for number, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        frame(number, 12).to_csv(tmp_path / name / "train.csv", index=False)
        frame(number, 5).to_csv(tmp_path / name / "test.csv", index=False)
    spec = DataSpec(f"{tmp_path}/a,{tmp_path}/b", 2, "sites", split="official")
    data = open_data(spec, tmp_path / "cache")
    found = assignment(spec, data, tmp_path / "cache")
    for number in range(2):
        assert data.train_rows == 24
        assert sorted(data.inputs[found.test[number]][:, 0].tolist()) == [1000.0 * number + row for row in range(5)]
        assert len(found.train[number]) + len(found.validation[number]) == 12


def test_a_columns_values_name_its_clients(tmp_path):
    table = pd.concat([frame(0, 12).assign(ward=ward) for ward in ("Nord", "Süd", "east", "west", "=1", "x")])
    table.to_csv(tmp_path / "all.csv", index=False)
    for clients, names in ((6, ["=1", "Nord", "Süd", "east", "west", "x"]), (1, ["1, Nord, Süd + 3 more"])):
        spec = DataSpec(str(tmp_path / "all.csv"), clients, "column", columns=Columns(partition="ward"))
        data = open_data(spec, tmp_path / "cache")
        held = assignment(spec, data, tmp_path / "cache").held
        assert [name_of(spec, data, rows) for rows in held] == [name.lstrip("=") for name in names]
        for rows in held if clients > 1 else ():
            assert len(rows) == 12
    drawn = DataSpec(str(tmp_path / "all.csv"), 2, "iid")
    assert name_of(drawn, open_data(drawn, tmp_path / "cache"), np.arange(3)) == ""
