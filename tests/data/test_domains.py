"""Several data sets as one: what a setting names, images and labels against loops, tables as sites."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.core.errors import DataError
from protosphere.core.paths import listed
from protosphere.data.client_data import client_data
from protosphere.data.decode import open_data
from protosphere.data.domains import are_tables, domains_of, interleaved, short_name
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.images import open_image
from protosphere.data.partition.assignment import assignment, domain_of, name_of
from protosphere.data.spec import DataSpec
from tests.data.draws import decoded

ABC = ("ant", "bee", "cat")


def names_of(data, domain):
    """The classes of a domain's rows, in their order."""
    return [data.class_names[label] for label in data.labels[data.domains == domain]]


# --- what a setting names --------------------------------------------------------------------------------------------


def test_a_list_and_all_subfolders_name_their_domains_by_the_last_part_of_a_path(tmp_path, monkeypatch):
    found = domains_of(" /data/mnist/, usps,some/body ,~/more/svhn,./x")
    assert [each.name for each in found] == ["mnist", "usps", "some/body", "svhn", "x"]
    assert [each.dataset for each in found] == ["/data/mnist/", "usps", "some/body", "~/more/svhn", "./x"]
    names = ["alpha", "beta", "gamma,delta"]
    for name in (*reversed(names), ".hidden", "__pycache__"):
        (tmp_path / "all" / name).mkdir(parents=True)
    (tmp_path / "all" / "README.md").write_text("no folder")
    monkeypatch.chdir(tmp_path)
    for every in (str(tmp_path / "all" / "*"), "./all/*"):
        found = domains_of(every)
        assert [(each.name, each.dataset) for each in found] == [(name, f"{tmp_path}/all/{name}") for name in names]


def test_a_folder_with_a_comma_is_one_data_set(domain, opened, tmp_path):
    folder = domain("a,b")
    data = opened(folder)
    assert (data.domains, data.domain_names) == (None, ())
    # what is not there may be a list
    assert listed(folder + "x") == (folder[: -len(",b")], "bx")


def test_a_short_name(tmp_path, monkeypatch):
    (tmp_path / "clinics" / "north").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "clinics" / "north")
    names = {"digits": "digits", "some/body": "body", "/data/mnist/": "mnist", "/data/pacs/*": "pacs", "/": "/"}
    names |= {"mnist, some/body,/data/usps": "mnist+body+usps", "./": "north", "../": "clinics", "./*": "north"}
    assert {dataset: short_name(dataset) for dataset in names} == names


# --- images and arrays -----------------------------------------------------------------------------------------------


def test_rows_are_taken_in_proportion_and_in_their_order():
    counts = [7, 1, 20, 0, 4]
    places = sorted(((j + 0.5) / n, table) for table, n in enumerate(counts) for j in range(n))
    assert interleaved(counts).tolist() == [table for _, table in places]


def files_of(folder):
    """The images of a made domain, as PIL reads them, and their labels: training rows first."""
    paths = [path for path in (Path(folder) / "train.parquet", Path(folder) / "test.parquet") if path.exists()]
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return [open_image("a row", row["image"]) for row in rows], [row["label"] for row in rows]


def test_all_against_a_loop(domain, opened):
    names = [ABC, ("cat", "ant", "bee"), ABC]
    folders = [domain("grey", 9, 2, (4, 9)), domain("colour", 4, 4, (8, 5, 3), names[1]), domain("small", 5, 0, (3, 3))]
    data = opened(*folders)
    assert (data.inputs.shape, data.inputs.dtype) == ((24, 3, 8, 9), np.uint8)
    assert (data.scale, data.train_rows, data.class_names) == (255.0, 18, ABC)
    assert data.domain_names == ("grey", "colour", "small")
    files = [files_of(folder) for folder in folders]
    seen = [0, 0, 0]
    for row, table in enumerate(data.domains.tolist()):
        images, labels = files[table]
        image = images[seen[table]].resize((9, 8), Image.Resampling.BILINEAR).convert("RGB")
        assert np.array_equal(data.inputs[row].transpose(1, 2, 0), np.asarray(image))
        assert data.class_names[data.labels[row]] == names[table][labels[seen[table]]]
        seen[table] += 1
    assert data.domains[:18].tolist() == interleaved([9, 4, 5]).tolist()
    # grey domains alone stay grey
    assert opened(folders[0], folders[2]).inputs.shape == (16, 1, 4, 9)


def test_digits_are_a_domain_and_numbered_classes_match_by_their_digits(domain, opened, tmp_path):
    names = tuple(map(str, range(9, -1, -1)))
    data = opened(domain("made", 10, 0, (8, 8), names), "digits")
    independent = decoded("digits", tmp_path / "cache")
    assert data.class_names == names
    pixels = np.asarray(data.inputs)[data.domains == 1]
    assert np.array_equal(pixels, np.rint(np.asarray(independent.inputs) / 16 * 255))
    assert np.array_equal(data.labels[data.domains == 1], 9 - independent.labels)


@pytest.mark.parametrize(
    ("shape", "dtype", "scale"), [((5,), "float64", 1), ((3, 8, 8), "float32", 1), ((4,), "uint8", 255)]
)
def test_arrays_of_one_shape_are_domains_as_they_are(shape, dtype, scale, opened, tmp_path):
    files, rows = [str(tmp_path / f"{name}.npz") for name in ("north", "south")], []
    for seed, (file, names) in enumerate(zip(files, (["ant", "bee"], ["bee", "ant"]), strict=True)):
        rows.append((np.random.default_rng(seed).random((6, *shape)) * 255).astype(dtype))
        np.savez(file, x=rows[-1], y=np.array(names * 3))
    data = opened(*files)
    assert (data.scale, data.train_rows, data.class_names) == (scale, 12, ("ant", "bee"))
    for table, values in enumerate(rows):
        assert np.array_equal(data.inputs[data.domains == table], values.astype(data.inputs.dtype))
        assert names_of(data, table) == (["ant", "bee"], ["bee", "ant"])[table] * 3


def test_the_union_has_the_first_domain_s_classes_first(domain, opened):
    names = [("cat", "bee"), ("dog", "bee", "ant"), ("eel", "dog")]
    data = opened(*(domain(name, classes=each) for name, each in zip("abc", names, strict=True)), classes="union")
    assert data.class_names == ("cat", "bee", "dog", "ant", "eel")
    for table, each in enumerate(names):
        assert names_of(data, table) == [each[row % len(each)] for row in (*range(6), *range(3))]


def test_made_once_and_anew_when_a_part_has_changed(domain, opened, write, png, caplog):
    caplog.set_level(logging.INFO, "data")
    folders = [domain("a"), domain("b")]
    first, again = opened(*folders), opened(*folders)
    assert (first.key, len(caplog.records)) == (again.key, 3)
    write(Path(folders[1]) / "test.parquet", [png(np.full((6, 6), 9, dtype=np.uint8))], [2])
    changed = opened(*folders)
    assert len(caplog.records) == 5
    assert changed.inputs[-2:].max(axis=(1, 2, 3)).tolist().count(9) == 1
    keys = {changed.key, first.key, opened(*folders[::-1]).key, opened(*folders, image_size=3).key}
    assert len(keys | {opened(*folders, classes="union").key}) == 5


def test_groups_of_two_domains_are_two(domain, opened):
    folders = [domain("a", 6, 0), domain("b", 6, 0)]
    for folder in folders:
        table = pq.read_table(Path(folder) / "train.parquet")
        pq.write_table(table.append_column("patient", [["p", "p", "q", "q", "r", "r"]]), f"{folder}/train.parquet")
    data = opened(*folders, columns=Columns(group="patient"))
    groups = [data.groups[data.domains == table].tolist() for table in (0, 1)]
    assert [[each.index(value) for value in each] for each in groups] == [[0, 0, 2, 2, 4, 4]] * 2
    assert not set(groups[0]) & set(groups[1])


def test_a_client_s_own_data_are_one_folder(domain, tmp_path):
    folder = domain("a", shape=(4, 6))
    spec = DataSpec("digits", 2, image_size=5)
    data = client_data(spec, 0, tmp_path / "cache", data_path=folder)
    assert (data.transform.shape, data.domain) == ((1, 5, 5), "")
    for path in (f"{tmp_path}/all/*", f"{folder},{folder}x"):
        with pytest.raises(DataError, match="names several data sets"):
            open_data(spec, tmp_path / "cache", path)


# --- tables as sites -------------------------------------------------------------------------------------------------

SIZES = {"berlin": 30, "paris": 12, "rome": 7}


def frame(number, size):
    """A value tells the file and the row: 1000 · file + row."""
    words = ["red", "green"] if number else ["red", "blue"]
    colours = [words[row % 2] for row in range(size)]
    labels = [("no", "yes", "maybe")[row % (3 if number == 1 else 2)] for row in range(size)]
    return pd.DataFrame({"size": [1000.0 * number + row for row in range(size)], "colour": colours, "label": labels})


def write_sites(root, suffix="csv", change=lambda name, table: table):
    """A list of tables as a `dataset` setting; `change` may change each."""
    paths = []
    for number, (name, size) in enumerate(SIZES.items()):
        table, path = change(name, frame(number, size)), root / f"{name}.{suffix}"
        table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path, index=False)
        paths.append(str(path))
    return ",".join(paths)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_each_client_has_the_rows_of_one_file_and_its_name(tmp_path, suffix):
    dataset = write_sites(tmp_path, suffix)
    assert are_tables(dataset)
    spec = DataSpec(dataset, 3, "sites")
    data = open_data(spec, tmp_path / "cache")
    assert (data.domain_names, data.class_names) == (tuple(SIZES), ("maybe", "no", "yes"))
    assert [column.values for column in data.columns] == [(), ("blue", "green", "red")]
    held = assignment(spec, data, tmp_path / "cache").rows_by_client
    for number, (name, size) in enumerate(SIZES.items()):
        assert sorted(data.inputs[held[number]][:, 0].tolist()) == [1000.0 * number + row for row in range(size)]
        assert (name_of(spec, data, held[number]), domain_of(data, held[number])) == (name, name)
        # numbers are scaled by each site's own training rows
        client = client_data(spec, number, tmp_path / "cache")
        assert client.transform.mean[0] == pytest.approx(client.train.inputs[:, 0].double().mean().item())
    # a row's features and label are still those of one row
    table = pd.concat([frame(number, size) for number, size in enumerate(SIZES.values())]).set_index("size")
    for values, label in zip(data.inputs, data.labels, strict=True):
        row = table.loc[float(values[0])]
        assert ("blue", "green", "red")[int(values[1:].argmax())] == row["colour"]
        assert data.class_names[label] == row["label"]
    # fewer clients get the files in turn, and more are refused
    held = assignment(DataSpec(dataset, 2, "sites"), data, tmp_path / "cache").rows_by_client
    assert [name_of(spec, data, rows) for rows in held] == ["berlin, rome", "paris"]
    with pytest.raises(DataError, match="4 clients need as many data sets"):
        assignment(DataSpec(dataset, 4, "sites"), data, tmp_path / "cache")


def test_texts_are_sites_too_and_one_patient_of_two_is_two(tmp_path):
    def notes(name, table):
        rows = range(len(table))
        return pd.DataFrame(
            {"text": [f"{name} {r}" for r in rows], "label": table["label"], "who": [r // 3 for r in rows]}
        )

    spec = DataSpec(write_sites(tmp_path, change=notes), 3, "sites", columns=Columns(group="who"))
    data = open_data(spec, tmp_path / "cache")
    held = assignment(spec, data, tmp_path / "cache").rows_by_client
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
    who = assignment(spec, data, tmp_path / "cache")
    assert data.train_rows == 24
    for number in range(2):
        assert sorted(data.inputs[who.test[number]][:, 0].tolist()) == [1000.0 * number + row for row in range(5)]
        assert len(who.train[number]) + len(who.validation[number]) == 12


# --- the values of a column as clients -------------------------------------------------------------------------------

N = 60
WARD = np.array([("Nord", "Süd", "=1", "west")[i % 7 % 4] for i in range(N)])
IN_ORDER = ("=1", "Nord", "Süd", "west")


@pytest.fixture
def dealt(tmp_path):
    """dealt(test rows, **spec): a table of wards, patients and numbers, who holds its rows, and the clients' names."""

    def make(test=0, group="", partition="ward", **more):
        table = pd.DataFrame({"a": np.arange(N) / N, "ward": WARD, "number": np.arange(N) % 11 * 100})
        table = table.assign(label=np.arange(N) % 3, patient=np.arange(N) % 7)
        table.iloc[test:].to_csv(tmp_path / "train.csv", index=False)
        if test:
            table.iloc[:test].to_csv(tmp_path / "test.csv", index=False)
        columns = Columns(group=group, partition=partition)
        spec = DataSpec(str(tmp_path), **({"clients": 4, "partition": "column", "columns": columns} | more))
        data = open_data(spec, tmp_path / "cache")
        who = assignment(spec, data, tmp_path / "cache")
        return data, who, [name_of(spec, data, rows) for rows in who.rows_by_client]

    return make


def test_each_client_has_one_value_of_a_column_and_more_values_than_clients_are_dealt_in_turn(dealt):
    data, who, names = dealt()
    assert [set(WARD[rows]) for rows in who.rows_by_client] == [{ward} for ward in IN_ORDER]
    assert sorted(np.concatenate(who.rows_by_client).tolist()) == list(range(N))
    # no spreadsheet takes a name for a formula
    assert names == [ward.lstrip("=") for ward in IN_ORDER]
    assert [column.name for column in data.columns] == ["a", "number", "patient"]
    assert [set(WARD[rows]) for rows in dealt(clients=3)[1].rows_by_client] == [{"=1", "west"}, {"Nord"}, {"Süd"}]
    assert dealt(clients=1)[2] == ["1, Nord, Süd, west"]
    with pytest.raises(DataError, match="5 clients need as many values"):
        dealt(clients=5)


def test_official_test_rows_go_to_the_client_of_their_value(dealt):
    who = dealt(test=20, split="official")[1]
    ward = np.concatenate([WARD[20:], WARD[:20]])
    for rows, value in zip(who.test, IN_ORDER, strict=True):
        assert rows.tolist() == [row for row in range(40, 60) if ward[row] == value]


def test_groups_stay_together_within_a_value_and_one_with_several_values_is_refused(dealt):
    who = dealt(group="patient")[1]
    for part in (who.train, who.test, who.validation):
        for client, rows in enumerate(part):
            others = who.rows_by_client[client][~np.isin(who.rows_by_client[client], rows)]
            assert not set(rows % 7) & set(others % 7)
    with pytest.raises(DataError, match="several values"):
        dealt(group="patient", partition="number")


def test_sites_of_several_files_of_arrays_are_matched_by_name(tmp_path, opened):
    sites_by_file = {"one": ["east", "west"] * 3, "other": ["north", "west", "west"] * 2}
    for name, sites in sites_by_file.items():
        inputs = np.full((6, 2), len(name)) + np.arange(6)[:, None] / 10
        np.savez(tmp_path / f"{name}.npz", x=inputs, y=np.arange(6) % 2, site=np.array(sites))
    data = opened(f"{tmp_path}/one.npz", f"{tmp_path}/other.npz", columns=Columns(partition="site"))
    assert data.site_names == ("east", "west", "north")
    site_by_input = {}
    for name, sites in sites_by_file.items():
        for row, site in enumerate(sites):
            site_by_input[round(len(name) + row / 10, 1)] = site
    for x, site in zip(data.inputs[:, 0].tolist(), data.sites.tolist(), strict=True):
        assert data.site_names[site] == site_by_input[round(x, 1)]
