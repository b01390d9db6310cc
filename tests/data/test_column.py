"""The partition `column`: each value of a table's column, or of an array, is a client."""

import numpy as np
import pandas as pd
import pytest

from protosphere.core.errors import DataError
from protosphere.data.decode import open_data
from protosphere.data.forms.columns import Columns
from protosphere.data.partition.assignment import assignment, name_of
from protosphere.data.spec import DataSpec

N = 60
WARD = np.array([("Nord", "Süd", "=1", "west")[i % 7 % 4] for i in range(N)])
IN_ORDER = ("=1", "Nord", "Süd", "west")


@pytest.fixture
def dealt(tmp_path):
    """dealt(test rows, **spec): a table of wards, patients and numbers, and who holds its rows."""

    def make(test=0, group="", partition="ward", **more):
        frame = pd.DataFrame({"a": np.arange(N) / N, "ward": WARD, "number": np.arange(N) % 11 * 100})
        frame = frame.assign(label=np.arange(N) % 3, patient=np.arange(N) % 7)
        frame.iloc[test:].to_csv(tmp_path / "train.csv", index=False)
        if test:
            frame.iloc[:test].to_csv(tmp_path / "test.csv", index=False)
        columns = Columns(group=group, partition=partition)
        spec = DataSpec(str(tmp_path), **({"clients": 4, "partition": "column", "columns": columns} | more))
        data = open_data(spec, tmp_path / "cache")
        who = assignment(spec, data, tmp_path / "cache")
        return data, who, [name_of(spec, data, rows) for rows in who.held]

    return make


def test_one_value_a_client_and_more_values_than_clients_round_robin(dealt):
    data, who, names = dealt()
    assert [set(WARD[rows]) for rows in who.held] == [{ward} for ward in IN_ORDER]
    assert sorted(np.concatenate(who.held).tolist()) == list(range(N))
    # no spreadsheet takes a name for a formula
    assert names == [ward.lstrip("=") for ward in IN_ORDER]
    assert [column.name for column in data.columns] == ["a", "number", "patient"]
    assert [set(WARD[rows]) for rows in dealt(clients=3)[1].held] == [{"=1", "west"}, {"Nord"}, {"Süd"}]
    assert dealt(clients=1)[2] == ["1, Nord, Süd + 1 more"]
    with pytest.raises(DataError, match="5 clients need as many values"):
        dealt(clients=5)


def test_official_test_rows_go_where_their_value_does(dealt):
    who = dealt(test=20, split="official")[1]
    ward = np.concatenate([WARD[20:], WARD[:20]])
    for rows, value in zip(who.test, IN_ORDER, strict=True):
        assert rows.tolist() == [row for row in range(40, 60) if ward[row] == value]


def test_groups_stay_together_and_one_with_several_values_is_refused(dealt):
    # a patient's number decides on the ward here
    who = dealt(group="patient")[1]
    for part in (who.train, who.test, who.validation):
        for client, rows in enumerate(part):
            others = who.held[client][~np.isin(who.held[client], rows)]
            assert not set(rows % 7) & set(others % 7)
    with pytest.raises(DataError, match="several values"):
        dealt(group="patient", partition="number")
