"""Figures by client as a tidy table."""

import pandas as pd

import protosphere
from protosphere.record import client_tables
from protosphere.record.folder import RunFolder
from tests.strategies.watched import start

THIRD = 1 / 3
LINE = {
    "round": 7,
    "clients": {
        "10": {"evaluation": {"classifier": [THIRD, None], "rows": [3, 0]}},
        "0": {"training": {"loss": {"loss": THIRD, "pull": 2.0}, "rows": 2**40, "prototype_norm": None, "steps": 4}},
        "2": {
            "training": {"loss": {}, "rows": 5},
            "evaluation": {"classifier": [0.1, 0.2], "majority-class": [0.3, 0.4], "mean": [0.5, 0.6], "rows": [1, 2]},
        },
    },
    "problems": {"3": "late"},
    "time": {"round": 0.1, "train": {"0": 0.25}},
}
ROSTER = [
    {"partition": 0, "model": "cnn", "name": "north"},
    {"partition": 2, "model": "mlp", "name": ""},
    {"partition": 3, "model": "mlp", "name": ""},
    {"partition": 10, "model": "cnn", "name": ""},
]


def test_a_row_is_a_client_in_a_round_and_a_column_a_figure():
    (rows,) = client_tables.rows_of_run([LINE], ROSTER, "mean")
    assert [(row["round"], row["client"], row["model"]) for row in rows] == [
        (7, 0, "cnn"),
        (7, 2, "mlp"),
        (7, 3, "mlp"),
        (7, 10, "cnn"),
    ]
    trained, both, late, evaluated = rows
    assert (
        trained.items() >= {"loss": THIRD, "loss/pull": 2.0, "train_rows": 2**40, "steps": 4, "seconds": 0.25}.items()
    )
    assert "prototype_norm" not in trained
    assert both.items() >= {"accuracy": 0.5, "validation": 0.6, "accuracy/classifier": 0.1, "train_rows": 5}.items()
    assert both.items() >= {"majority-class": 0.3, "test_rows": 1, "validation_rows": 2}.items()
    assert late["problem"] == "late"
    assert evaluated["accuracy/classifier"] == THIRD
    assert "accuracy" not in evaluated


def test_figures_that_some_rounds_lack_have_one_column(tmp_path):
    rounds = [
        [{"round": 0, "client": 0, "accuracy": 1}],
        [],
        [{"round": 1, "client": 0, "accuracy": None}, {"round": 1, "client": 1, "accuracy": 0.5, "problem": "late"}],
    ]
    client_tables.write(tmp_path / "t.parquet", rounds)
    table = pd.read_parquet(tmp_path / "t.parquet")
    assert table["round"].tolist() == [0, 1, 1]
    assert table["accuracy"].dropna().tolist() == [1.0, 0.5]
    assert table["problem"].dropna().tolist() == ["late"]


def test_of_clients_that_keep_their_figures_there_are_columns_and_no_rows(tmp_path):
    client_tables.write(tmp_path / "t.parquet", [[], []])
    table = pd.read_parquet(tmp_path / "t.parquet")
    assert (len(table), list(table.columns)) == (0, ["round", "client", "name", "model"])


def test_a_run_ends_with_the_table_and_a_resumed_one_has_that_of_a_run_that_was_never_cut(home):
    settings = {"evaluate-every": 1}
    whole, resumed = start(settings | {"rounds": 2}), start(settings | {"rounds": 1})
    assert len(pd.read_parquet(resumed / client_tables.FILE)) == 6
    assert start(settings | {"rounds": 2, "resume": str(resumed)}) == resumed
    tables = [pd.read_parquet(folder / client_tables.FILE).drop(columns="seconds") for folder in (whole, resumed)]
    pd.testing.assert_frame_equal(*tables)
    assert len(tables[0]) == 9
    frame = protosphere.load(whole).clients.drop(columns="seconds")
    pd.testing.assert_frame_equal(tables[0], frame, check_dtype=False, check_like=True)
    RunFolder(whole).truncate(1)
    assert not (whole / client_tables.FILE).exists()
