"""Figures of many clients: beside the line, and back to the digit."""

import io
import json
import struct

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import protosphere
from protosphere.cli.main import app
from protosphere.core.errors import SettingError
from protosphere.record import client_tables
from protosphere.record.folder import RunFolder
from protosphere.reports.report import write_report
from tests.strategies.watched import start, without_time

THIRD = 1 / 3
LINE = {
    "round": 7,
    "training": {"asked": 3, "loss": {"loss": THIRD}},
    "clients": {
        "0": {
            "training": {
                "loss": {"loss": THIRD, "#": 1e-300, "a/ü": 2.0, "a": 0.5},
                "rows": 2**40,
                "prototype_norm": None,
            }
        },
        "10": {"evaluation": {"classifier": [THIRD, None], "rows": [3, 0]}},
        "2": {"training": {"loss": {}, "rows": 5}, "evaluation": {"classifier": [0.1, 0.2, 1.0], "rows": [1, 2, 3]}},
    },
    "time": {"round": 0.1, "server": THIRD, "train": {"0": THIRD}, "client": {"0": 0.5, "10": 0.25, "3": 1e-9}},
}


def test_a_line_comes_back_from_its_columns(tmp_path):
    short, rows = client_tables.parted(LINE, many=4)
    assert short == LINE | {"clients": {}, "time": {"round": 0.1, "server": THIRD}}
    assert list(rows) == ["0", "10", "2", "3"]
    folder = tmp_path / client_tables.FOLDER
    folder.mkdir()
    client_tables.write(folder / "a.parquet", 7, rows)
    found = client_tables.whole(short | {client_tables.NAMED: "a.parquet"}, folder / "a.parquet")
    expected = json.loads(json.dumps(LINE))
    # None and missing are one
    del expected["clients"]["0"]["training"]["prototype_norm"]
    assert (list(found), list(found["time"])) == (list(LINE), list(LINE["time"]))
    assert found == expected
    assert found["clients"] is not found["clients"]  # nothing is kept
    assert client_tables.parted(LINE, many=5) == (LINE, {})
    table = pd.read_parquet(folder)
    assert table["partition"].tolist() == [0, 2, 3, 10]
    assert set(table["round"]) == {7}
    assert table["time/train"].dropna().tolist() == [THIRD]


def test_a_run_of_many_has_the_figures_of_one_of_few_also_when_it_is_cut_and_goes_on(home, monkeypatch):
    settings = {"rounds": 2, "evaluate-every": 1}
    few = start(settings)
    monkeypatch.setattr(client_tables.parted, "__defaults__", (3,))
    many = start(settings | {"rounds": 1})
    for file in ("left.parquet", ".round-000002.parquet.1.tmp"):
        (many / client_tables.FOLDER / file).write_bytes(b"of a server that was killed")
    assert start(settings | {"resume": str(many)}) == many
    names = [f"round-00000{number}.parquet" for number in (1, 2, 3)]
    assert sorted(path.name for path in (many / client_tables.FOLDER).iterdir()) == names
    text = [json.loads(line) for line in (many / "metrics.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in text] == [{}] * 3
    assert without_time(many) == without_time(few)
    summaries = [RunFolder(folder).summary() for folder in (few, many)]
    assert summaries[0]["rules"] == summaries[1]["rules"]
    pages = [write_report(folder).with_name("pictures") for folder in (few, many)]
    assert pages[0].joinpath("accuracy-bytes.csv").read_text() == pages[1].joinpath("accuracy-bytes.csv").read_text()
    own = [protosphere.load(folder).clients.drop(columns="seconds") for folder in (few, many)]
    pd.testing.assert_frame_equal(*own, check_dtype=False, check_like=True)
    with monkeypatch.context() as patch:
        patch.setattr(client_tables, "read", lambda *_: pytest.fail("a file is read that nobody asks for"))
        assert protosphere.load(many).summary == summaries[1]
    compared = ["runs", "compare", str(few), str(many)]
    assert CliRunner().invoke(app, compared).exit_code == 0
    last = many / client_tables.FOLDER / names[2]
    whole = last.read_bytes()
    # a page is damaged, then a column is gone: the first is seen when it is read, the schema is whole
    last.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    for _ in range(2):
        shown = CliRunner().invoke(app, compared)
        assert (shown.exit_code, names[2] in shown.stderr, shown.stdout) == (2, True, "")
        last.write_bytes(whole)
        pd.read_parquet(last).drop(columns="partition").to_parquet(last)
    # what tells of the pages has a digest as well, in the line
    last.write_bytes(whole)
    for place in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole), 37):
        last.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(SettingError, match=r"cannot be read \(its bytes are not those that were written\)"):
            RunFolder(many).lines()
    # lines of an earlier version have none
    lines = [json.loads(line) for line in (many / "metrics.jsonl").read_text().splitlines()]
    without = [
        {name: value for name, value in line.items() if name not in (client_tables.DIGEST, "digest")} for line in lines
    ]
    (many / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in without))
    last.write_bytes(whole)
    assert without_time(many) == without_time(few)
    pd.read_parquet(last).drop(columns="partition").to_parquet(last)
    # what a page holds is summed, so that another byte is no other figure; least and most stand in its head as well
    trained = many / client_tables.FOLDER / names[1]
    written, seconds = trained.read_bytes(), sorted(RunFolder(many).lines()[1]["time"]["train"].values())
    middle = struct.pack("<d", seconds[len(seconds) // 2])
    assert middle in written
    trained.write_bytes(written.replace(middle, middle[:3] + bytes([middle[3] ^ 255]) + middle[4:]))
    with pytest.raises(SettingError, match=names[1]):
        dict(RunFolder(many).lines()[1]["time"]["train"])
    for column, damage in (("clients/evaluation/rows/#", None), ("clients/evaluation/rows/0", np.nan)):
        table = pd.read_parquet(io.BytesIO(whole))
        table = table.drop(columns=column) if damage is None else table.assign(**{column: damage})
        table.to_parquet(last)
        shown = CliRunner().invoke(app, compared)
        assert (shown.exit_code, str(many.name) in shown.stderr, shown.stdout) == (2, True, "")
    (many / client_tables.FOLDER / names[1]).write_bytes(b"")
    with pytest.raises(SettingError, match=names[1]):
        RunFolder(many).lines()
