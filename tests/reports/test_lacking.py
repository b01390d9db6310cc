"""Reports of runs without some data, at the end of runs, and of folders that cannot be reported."""

import json
import shutil

import numpy as np
import pytest

from protosphere.core.errors import RunError, SettingError
from protosphere.record.folder import FORMAT
from protosphere.reports import label_distribution
from protosphere.reports import report as report_module
from protosphere.reports.plots import draw
from protosphere.reports.report import leave_report, write_report
from protosphere.reports.results import read_prototypes, read_results
from protosphere.server_app import status
from tests.reports.fabricated import change_json, change_lines, fabricate
from tests.reports.pages import CONFUSION, EVERY, MAP, MARGINS, SEPARATION, outline, pictures

# words and names of pictures show what is missing; test_report.py draws
pytestmark = pytest.mark.usefixtures("undrawn")


# --- runs without some data -----------------------------------------------------------------------------------------


def test_the_report_of_a_cut_run_says_so(tmp_path):
    folder = fabricate(tmp_path / "run", rounds=2, finished=False)
    write_report(folder)
    assert "is not finished: the report covers its first 2 rounds" in outline(folder).text
    assert pictures(folder) == EVERY


def test_plots_without_data_are_left_out(tmp_path):
    folder = fabricate(tmp_path / "run", settings={"strategy": "local", "inference": "classifier"})
    (folder / "prototypes.safetensors").unlink()
    change_lines(folder, lambda line: line | {"server": {}})
    (folder / "pictures").mkdir()
    (folder / "pictures" / f"{SEPARATION}.svg").write_text("of an earlier report")
    write_report(folder)
    assert pictures(folder) == (EVERY | CONFUSION) - {SEPARATION, MARGINS, MAP}
    for name, reason in ((SEPARATION, "no round has any"), (MAP, "nothing is exchanged"), ("alignment", "thomson")):
        with pytest.raises(SettingError, match=reason):
            draw(name, read_results(folder), read_prototypes(folder))


def test_without_an_evaluation_there_is_a_page_without_accuracies(tmp_path):
    folder = fabricate(tmp_path / "run", rounds=1, finished=False)

    def drop(line):
        del line["evaluation"]
        return line | {"clients": {}}

    change_lines(folder, drop)
    write_report(folder)
    assert "No accuracy is known" in outline(folder).text
    assert "accuracy-over-rounds" not in pictures(folder)


def test_pictures_behind_a_link_are_not_touched(tmp_path):
    folder = fabricate(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "logo.svg").touch()
    (folder / "pictures").symlink_to(tmp_path / "mine")
    with pytest.raises(SettingError, match="pictures is a link to "):
        write_report(folder)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["logo.svg"]


@pytest.mark.parametrize(
    ("counts", "names", "exact"),
    [
        ([[99, 1], [50, 50]], ("class 0", "class 1"), True),
        ([[99, 2], [50, 49]], ("class 0", "class 1"), False),
        ([[100, 0], [50, 50]], ("class 0", "class 1"), False),
        ([[100], [100]], ("class 0",), False),
        ([[99, 1], [50, 50]], ("class 1", "class 0"), False),
    ],
)
def test_cached_counts_of_other_clients_are_not_used(tmp_path, monkeypatch, counts, names, exact):
    folder = fabricate(tmp_path / "run", classes=2, clients=2)
    roster = json.loads((folder / "roster.json").read_text())
    (folder / "roster.json").write_text(json.dumps([client | {"classes": [0, 1]} for client in roster]))
    cached = np.array(counts), names
    monkeypatch.setattr(label_distribution, "cached_partition_labels", lambda spec, cache: cached)
    counts_by_class, is_exact = label_distribution.counts_by_class(read_results(folder))
    assert is_exact is exact
    assert counts_by_class.tolist() == (counts if exact else [[1, 1], [1, 1]])


# --- at the end of a run --------------------------------------------------------------------------------------------


@pytest.fixture
def reporting(monkeypatch):
    monkeypatch.setattr(status, "leave_report", leave_report)


def test_finished_and_failed_runs_leave_a_report(run, reporting, home, monkeypatch):
    folder = run({"rounds": 1, "strategy": "protonorm"})
    assert "1 of 1 rounds" in outline(folder).text
    assert pictures(folder) == EVERY | CONFUSION

    def fail(*arguments):
        raise RunError("no more of this.")

    monkeypatch.setattr("protosphere.server_app.strategy.PrototypeStrategy._round", fail)
    with pytest.raises(RunError, match="no more"):
        run({"rounds": 1, "strategy": "protonorm"})
    (folder,) = set((home / "results").iterdir()) - {folder}
    assert "is not finished" in outline(folder).text


def test_a_report_that_fails_does_not_fail_the_run(run, reporting, monkeypatch):
    def fail(folder):
        raise ZeroDivisionError("by\nnought")

    monkeypatch.setattr(report_module, "write_report", fail)
    folder = run({"rounds": 1, "strategy": "local"})
    assert (folder / "summary.json").exists()
    (warning,) = [line for line in run.said if line.startswith("warning")]
    assert "could not be written (ZeroDivisionError: by nought); `protosphere report`" in warning


# --- folders that cannot be reported --------------------------------------------------------------------------------


def replace_lines(folder, lines):
    """The lines of an unfinished run."""
    (folder / "summary.json").unlink()
    (folder / "metrics.jsonl").write_text(lines)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "no run with a finished round"),
        (lambda f: (f / "metrics.jsonl").unlink(), "no run with a finished round"),
        (lambda f: (f / "comparison.json").write_text("{}"), r"is a comparison; `protosphere compare --resume .*run`"),
        (lambda f: replace_lines(f, ""), "no run with a finished round"),
        (lambda f: replace_lines(f, "3\n"), "a line has no round"),
        (lambda f: (f / "roster.json").write_text("[{}]"), "not as this version .*class_names"),
        (lambda f: (f / "summary.json").write_text("{}"), "not as this version .*format"),
        (lambda f: change_json(f / "settings.json", temperature=3), "unknown setting `temperature`"),
        (lambda f: change_json(f / "summary.json", format=FORMAT + 1, versions={"protosphere": "9"}), "Protosphere 9 "),
        (lambda f: (f / "prototypes.safetensors").write_text("x"), "prototypes in .* cannot be read"),
        (lambda f: change_lines(f, lambda line: line | {"evaluation": {"rules": 3}}), "not as this version .*int"),
        (lambda f: change_json(f / "summary.json", headline={"rule": "a", "accuracy": "a\nb"}), "not as this version"),
    ],
)
def test_an_unreadable_folder_is_refused_in_one_sentence_and_stays_as_it_is(tmp_path, spoil, words):
    folder = fabricate(tmp_path / "run")
    spoil(folder)
    before = sorted(folder.rglob("*"))
    with pytest.raises(SettingError, match=words) as error:
        write_report(folder)
    assert str(error.value).isprintable()
    assert sorted(folder.rglob("*")) == before
