"""What a resumed run must find as it was left, and who may write in its folder."""

import shutil

import pytest
from flwr.app import MetricRecord

from protosphere.core.errors import RunError, SettingError
from protosphere.record.folder import RunFolder
from tests.tampered import tampered

LIAR = 1


def test_a_folder_has_one_server_at_a_time(run, metrics):
    folder = run()
    with RunFolder(folder).lock(), pytest.raises(SettingError, match="a run that has not ended; wait for it, or stop"):
        run({"resume": str(folder), "rounds": 3})
    assert len(metrics(folder)) == 3
    assert (folder / "summary.json").exists()
    # and is free again as soon as that one ends
    assert len(metrics(run({"resume": str(folder), "rounds": 3}))) == 4
    assert RunFolder(folder).settings()["rounds"] == 3


def test_a_lost_store_is_said_and_never_replaced_by_an_initial_model(run, home):
    folder = run()
    kept = home / "kept"
    shutil.move(home / "clients" / folder.name, kept)
    with pytest.raises(RunError, match=r"does not hold the model of round 2, .* bring the folder .* back") as raised:
        run({"resume": str(folder), "rounds": 6})
    assert "\n" not in str(raised.value)
    assert not list((home / "clients" / folder.name).glob("*/round-*"))
    shutil.rmtree(home / "clients" / folder.name, ignore_errors=True)
    shutil.move(kept, home / "clients" / folder.name)
    run({"resume": str(folder), "rounds": 6})


def test_one_lost_store_leaves_the_others_their_run(run, home, metrics):
    folder = run()
    shutil.rmtree(home / "clients" / folder.name / "3")
    run({"resume": str(folder), "rounds": 3})
    line = metrics(folder)[3]
    assert line["training"]["valid"] == 3
    assert line["problems"].keys() == {"3"}


def test_lost_lines_are_said_and_the_rest_is_left_alone(run):
    folder = run()

    def content():
        # the log says why the run was not resumed
        changing = ("metrics.jsonl", "run.log")
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name not in changing}

    before = content()
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(SettingError, match="no longer holds a line for each of the 2 finished rounds"):
        run({"resume": str(folder), "rounds": 2})
    assert content() == before
    assert not (folder / "metrics.jsonl").exists()
    assert "no longer holds a line" in (folder / "run.log").read_text().splitlines()[-1]


def forging(name, value):
    """A grid on which a figure of client LIAR's is another than it was."""

    def forge(records, partition, number):
        if name in records.get("metrics", ()):
            records["metrics"] = MetricRecord(dict(records["metrics"]) | {name: value})

    return tampered(forge, of=LIAR)


@pytest.mark.parametrize(
    ("record", "claim", "words"),
    [
        ("evaluation", [10**6, 10**6], "it claims (1000000, 1000000) test and validation samples"),
        ("training", 10**6, "it claims 1000000 training samples"),
    ],
)
def test_a_reply_of_rows_that_a_client_does_not_have_is_dropped(run, metrics, record, claim, words):
    lines = metrics(run(grid=forging(f"{record}.rows", claim)))
    assert all(record not in line["clients"].get(str(LIAR), {}) for line in lines)
    assert words in lines[1]["problems"][str(LIAR)]
    # a client that lies about one thing is believed in nothing of that reply
    assert lines[1]["training"]["valid"] == (3 if record == "training" else 4)


def test_runs_of_one_second_in_two_results_folders_share_no_stores(run, home, tmp_path, monkeypatch):
    monkeypatch.setattr("protosphere.record.folder.time.time", lambda: 1_800_000_000.0)
    names = [run({"results-dir": str(tmp_path / name), "seed": seed}).name for seed, name in enumerate("ab")]
    assert len(set(names)) == 2
    assert {path.name for path in (home / "clients").iterdir()} == set(names)
