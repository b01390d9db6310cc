"""The partition `table`: what the file counts is what clients get, and a file that does not fit is refused."""

from dataclasses import replace

import numpy as np
import pytest

from protosphere.core.errors import DataError
from protosphere.data.partition.assignment import DataSpec, assignment, open_data
from protosphere.data.partition.partitioners import class_counts
from protosphere.data.partition.table import table_rows, write_table
from tests.data.draws import disjoint

NAMES = ("cat", "dog", "frog, green")
LABELS = np.repeat([0, 1, 2], [10, 20, 5])
COUNTS = np.array([[3, 0, 5], [7, 20, 0]])


@pytest.fixture
def table(tmp_path):
    """table(counts, names) -> the path of a file that `write_table` wrote, or of these words."""

    def make(counts=COUNTS, names=NAMES):
        path = tmp_path / "table.csv"
        path.write_text(counts, "utf-8") if isinstance(counts, str) else write_table(path, counts, names)
        return str(path)

    return make


OTHER_ORDER = '\ufeffclient,dog,"frog, green",cat\r\n0,0,5,3\r\n1,20,0,7\r\n\r\n'


@pytest.mark.parametrize("counts", [COUNTS, OTHER_ORDER])
def test_each_client_gets_what_the_table_counts_and_no_row_twice_whatever_the_order_of_columns(table, counts):
    parts = table_rows(LABELS, 2, np.random.default_rng(3), table(counts), NAMES)
    assert class_counts(LABELS, parts, 3).tolist() == COUNTS.tolist()
    assert all((np.diff(part) > 0).all() for part in parts)
    assert disjoint(parts).size == COUNTS.sum()
    path = table(np.array([[5, 10, 2], [5, 10, 3]]))
    deal = [
        np.concatenate(table_rows(LABELS, 2, np.random.default_rng(seed), path, NAMES)).tolist() for seed in (0, 0, 1)
    ]
    assert deal[0] == deal[1] != deal[2]


HEAD = 'client,cat,dog,"frog, green"\n'
BAD = {
    "client,cat,dog\n0,1,1\n1,1,1\n": r"the columns client, cat, dog, but it needs 'client' and then",
    "0,3,0,5\n1,7,20,0\n": r"the columns 0, 3, 0, 5, but it needs 'client'",
    "": r"the columns of no name",
    HEAD + "0,1,1,1\n": r"has 1 rows, but it needs one for each of the run's 2 clients",
    HEAD + "1,1,1,1\n0,1,1,1\n": r"does not number the clients from 0 to 1 in that order",
    HEAD + "0," + "1" * 200_000: r"is no CSV file \(field larger than",
    HEAD + '0,1,"1"1,1\n': r"is no CSV file",
    HEAD + "0,1,1,1\n1,1,x,1\n": r"does not hold a whole number for each of 4 columns for client 1",
    HEAD + "0,1,1,1\n1,1,-1,1\n": r"columns for client 1",
    HEAD + "0,1,1,1\n1,1,1\n": r"columns for client 1",
    HEAD + "0,1,1,1\n1,0,0,0\n": r"gives client 1 no sample",
    HEAD + "0,1,1,1\n1,1,20,1\n": r"asks for 21 samples of class 'dog', but 20 are there",
}


@pytest.mark.parametrize(("content", "refusal"), BAD.items(), ids=BAD.values())
def test_what_does_not_fit_is_refused_by_a_sentence(content, refusal, table):
    with pytest.raises(DataError, match=refusal) as raised:
        table_rows(LABELS, 2, np.random.default_rng(0), table(content), NAMES)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"client,\xff\n", "it is not UTF-8")])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, reason):
    path = tmp_path / "nope.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"nope.csv' cannot be read \({reason}"):
        table_rows(LABELS, 2, np.random.default_rng(0), str(path), NAMES)


def test_clients_split_what_the_table_gave_them_and_another_file_deals_anew(tmp_path):
    names = tuple(map(str, range(10)))
    counts = np.arange(40).reshape(4, 10) + 1
    path = tmp_path / "table.csv"
    write_table(path, counts, names)
    spec = DataSpec("digits", 4, "table", partition_table=str(path))
    data = open_data(spec, tmp_path / "cache")
    who = assignment(spec, data, tmp_path / "cache")
    assert class_counts(data.labels, who.held, 10).tolist() == counts.tolist()
    # the same name, other content: what was worked out before is not taken for it
    write_table(path, counts[::-1], names)
    again = assignment(spec, data, tmp_path / "cache")
    assert class_counts(data.labels, again.held, 10).tolist() == counts[::-1].tolist()
    with pytest.raises(DataError, match="has 4 rows, but it needs one for each of the run's 5 clients"):
        assignment(replace(spec, clients=5), data, tmp_path / "cache")


@pytest.mark.parametrize("names", [("a\u2028b", "c"), ("a\nb", "c"), ('a"b', "c,d")])
def test_what_is_written_is_read_whatever_the_classes_are_called(tmp_path, names):
    counts = np.array([[3, 1], [2, 4]])
    write_table(tmp_path / "table.csv", counts, names)
    labels = np.repeat([0, 1], 6)
    rows = table_rows(labels, 2, np.random.default_rng(0), str(tmp_path / "table.csv"), names)
    assert class_counts(labels, rows, 2).tolist() == counts.tolist()
