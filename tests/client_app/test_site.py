"""Which columns a site's tables have, and what its classes are called: the site alone says so."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protosphere.core.errors import DataError, SettingError
from tests.client_app.sites import images_of

PINS = {"label_column": "diagnosis", "group_column": "patient"}


@pytest.fixture
def scans(tmp_path):
    """scans(classes): a table of 24 images, its labels in `diagnosis`, with other columns that might be taken."""

    def write(classes="ill\nwell\n", name="scans"):
        place = tmp_path / name
        place.mkdir(parents=True, exist_ok=True)
        numbers = list(range(24))
        columns = {"diagnosis": [i % 2 for i in numbers], "patient": [i // 2 for i in numbers], "born": numbers}
        pq.write_table(pa.table({"image": images_of(24), "label": [0] * 24} | columns), place / "train.parquet")
        if classes:
            (place / "classes.txt").write_text(classes)
        return str(place)

    return write


def test_a_site_s_columns_are_its_own(client, scans):
    data = client(**PINS, data_path=scans()).data
    assert data.class_names == ("ill", "well")
    assert sorted(set(data.train.labels.tolist())) == [0, 1]
    # of the usual name, where the site names none
    assert set(client(data_path=scans()).data.train.labels.tolist()) == {0}
    # patients have two rows each, which stay together
    assert {len(part) % 2 for part in (data.train, data.test, data.validation)} == {0}


@pytest.mark.parametrize("setting", ["label-column", "text-column", "group-column"])
def test_a_run_that_names_another_column_is_refused_whatever_the_table_has(client, scans, setting):
    for pins, named in ((PINS, "born"), (PINS, "label"), (PINS, "no such column"), ({}, "born")):
        with pytest.raises(SettingError) as refused:
            client(0, {setting: named}, **pins, data_path=scans())
        assert f'`{setting}` is "{named}"' in str(refused.value)
    same = {name.replace("_", "-"): column for name, column in PINS.items()}
    assert client(0, same, **PINS, data_path=scans()).data.class_names == ("ill", "well")


def test_labels_never_become_the_names_of_classes(client, scans, monkeypatch):
    bare = scans(classes="", name="bare")
    for simulation in (True, False):
        monkeypatch.setattr("protosphere.client_app.site._here", simulation)
        with pytest.raises(DataError, match=r"bare' has no classes.txt: list the classes there"):
            client(**PINS, data_path=bare)
    # the run's own data in a simulation; the same elsewhere is whatever lies there, also where it was decoded before
    own = {"dataset": bare, "label-column": "born", "partition": "iid", "min-samples": 1}
    monkeypatch.setattr("protosphere.client_app.site._here", True)
    assert client(0, own).data.class_names == tuple(map(str, range(24)))
    monkeypatch.setattr("protosphere.client_app.site._here", False)
    with pytest.raises(DataError, match=r"bare' has no classes.txt"):
        client(0, own)
