"""Figures by client: beside the line, and back to the digit."""

import io
import json

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
                "loss": {"loss": THIRD, "#": 1e-300, "a/ü": 2.0, "a": 0.5, "{}": 0.1},
                "rows": 2**40,
                "prototype_norm": None,
            }
        },
        "10": {"evaluation": {"classifier": [THIRD, None], "rows": [3, 0]}},
        "2": {"training": {"loss": {}, "rows": 5}, "evaluation": {"classifier": [0.1, 0.2, 1.0], "rows": [1, 2, 3]}},
    },
    "time": {
        "round": 0.1,
        "server": THIRD,
        "train": {"0": THIRD},
        "evaluate": {},
        "client": {"0": 0.5, "10": 0.25, "3": 1e-9},
    },
}


def test_a_line_comes_back_from_its_columns(tmp_path):
    short, rows = client_tables.split_line(LINE)
    assert short == LINE | {"clients": {}, "time": {"round": 0.1, "server": THIRD}}
    assert list(rows) == ["0", "10", "2", "3"]
    folder = tmp_path / client_tables.FOLDER
    folder.mkdir()
    client_tables.write(folder / "a.parquet", 7, rows)
    found = client_tables.join_line(short | {client_tables.NAMED: "a.parquet"}, folder / "a.parquet")
    expected = json.loads(json.dumps(LINE))
    # None and missing are one
    del expected["clients"]["0"]["training"]["prototype_norm"]
    assert (set(found), set(found["time"])) == (set(LINE), set(LINE["time"]))
    assert found == expected
    assert found["clients"] is not found["clients"]  # nothing is kept
    table = pd.read_parquet(folder)
    assert table["partition"].tolist() == [0, 2, 3, 10]
    assert set(table["round"]) == {7}
    assert table["time/train"].dropna().tolist() == [THIRD]


def in_lines(folder):
    """The run with all figures in its lines and no tables."""

    def plain(part):
        return {name: plain(value) for name, value in part.items()} if hasattr(part, "items") else part

    lines = [plain(line) for line in RunFolder(folder).lines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in (folder / client_tables.FOLDER).iterdir():
        path.unlink()


@pytest.fixture
def cut(home):
    """A run that was cut after its first round and goes on."""
    settings = {"rounds": 2, "evaluate-every": 1}
    folder = start(settings | {"rounds": 1})
    for file in ("left.parquet", ".round-000002.parquet.1.tmp"):
        (folder / client_tables.FOLDER / file).write_bytes(b"of a server that was killed")
    assert start(settings | {"resume": str(folder)}) == folder
    return folder


def files(folder):
    return sorted((folder / client_tables.FOLDER).iterdir())


@pytest.mark.usefixtures("undrawn")
def test_a_run_leaves_a_file_per_round_and_one_that_has_its_figures_in_lines_reads_the_same(cut, monkeypatch):
    assert [path.name for path in files(cut)] == [f"round-00000{number}.parquet" for number in (0, 1, 2)]
    text = [json.loads(line) for line in (cut / "metrics.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in text] == [{}] * 3
    old = start({"rounds": 1, "evaluate-every": 1})
    assert start({"rounds": 2, "evaluate-every": 1, "resume": str(old)}) == old
    in_lines(old)
    assert without_time(cut) == without_time(old)
    summaries = [RunFolder(folder).summary() for folder in (old, cut)]
    assert summaries[0]["rules"] == summaries[1]["rules"]
    pages = [write_report(folder).with_name("pictures") for folder in (old, cut)]
    assert (
        pages[0].joinpath("accuracy-over-bytes.csv").read_text()
        == pages[1].joinpath("accuracy-over-bytes.csv").read_text()
    )
    own = [protosphere.load(folder).clients.drop(columns="seconds") for folder in (old, cut)]
    pd.testing.assert_frame_equal(*own, check_dtype=False, check_like=True)
    assert CliRunner().invoke(app, ["runs", "compare", str(old), str(cut)]).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(client_tables, "read", lambda *_: pytest.fail("a file is read that nobody asks for"))
        assert protosphere.load(cut).summary == summaries[1]
    # and goes on
    assert start({"rounds": 3, "evaluate-every": 1, "resume": str(old)}) == old
    assert without_time(old)[:3] == without_time(cut)
    assert [path.name for path in files(old)] == [f"round-00000{number}.parquet" for number in (3,)]


def test_a_damaged_file_is_refused_where_it_is_read(cut):
    compared = ["runs", "compare", str(cut), str(cut)]
    *_, last = files(cut)
    whole = last.read_bytes()

    def is_refused():
        shown = CliRunner().invoke(app, compared)
        return shown.exit_code == 2 and cut.name in shown.stderr and shown.stdout == ""

    # wherever it is: the digest in the line is of all bytes
    for place in range(0, len(whole), 97):
        last.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(SettingError, match=r"cannot be read \(its bytes are not those that were written\)"):
            _ = RunFolder(cut).lines()[-1]["clients"]
    assert is_refused()
    last.write_bytes(whole)
    # lines of an earlier version have none
    lines = [json.loads(line) for line in (cut / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line[client_tables.DIGEST], line["digest"]
    (cut / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert CliRunner().invoke(app, compared).exit_code == 0
    # there the pages have checksums
    last.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    assert is_refused()
    for column, damage in (
        ("partition", None),
        ("clients/evaluation/rows/#", None),
        ("clients/evaluation/rows/#", 1e6 + 0.5),
        ("clients/evaluation/rows/0", np.nan),
    ):
        table = pd.read_parquet(io.BytesIO(whole))
        table = table.drop(columns=column) if damage is None else table.assign(**{column: damage})
        table.to_parquet(last)
        assert is_refused(), column
    last.write_bytes(b"")
    assert is_refused()
    last.unlink()
    assert is_refused()
