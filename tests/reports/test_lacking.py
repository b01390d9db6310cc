"""Reports of runs that lack something, at the end of runs, and of folders that cannot be reported."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.core.errors import RunError, SettingError
from protosphere.record.folder import FORMAT
from protosphere.reports import report as report_module
from protosphere.reports.label_distribution import holdings
from protosphere.reports.report import leave_report, write_report
from protosphere.reports.results import read_results
from protosphere.server_app import status
from tests.reports.fabricated import fabricate
from tests.reports.pages import CONFUSION, EVERY, MAP, MARGINS, SEPARATION, outline, pictures

# what is lacking shows in words and in which pictures there are; test_report.py draws
pytestmark = pytest.mark.usefixtures("undrawn")

# --- runs that lack something ---------------------------------------------------------------------------------------


def test_a_run_that_was_cut_says_so(tmp_path):
    folder = fabricate(tmp_path / "run", rounds=2, finished=False)
    write_report(folder)
    assert "is not finished: the report covers its first 2 rounds" in outline(folder).text
    assert pictures(folder) == EVERY


@pytest.mark.parametrize(
    ("strategy", "sentences"),
    [
        ("local", ["local has none; nothing is exchanged", "Map of prototypes: nothing is exchanged"]),
        ("gfpl", ["gfpl sends mixtures down", "no round's uploads were kept"]),
        ("pfpl", ["no round has any", "no round's uploads were kept"]),
    ],
)
def test_what_cannot_be_drawn_is_said(tmp_path, strategy, sentences):
    folder = fabricate(tmp_path / "run", settings={"strategy": strategy, "inference": "classifier"})
    (folder / "prototypes.safetensors").unlink()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line | {"server": {}}) + "\n" for line in lines))
    (folder / "pictures").mkdir()
    (folder / "pictures" / f"{SEPARATION}.svg").write_text("of another time")
    write_report(folder)
    for sentence in sentences:
        assert sentence in outline(folder).text
    assert pictures(folder) == (EVERY | CONFUSION) - {SEPARATION, MARGINS, MAP}


def test_without_an_evaluation_there_is_a_page_all_the_same(tmp_path):
    folder = fabricate(tmp_path / "run", rounds=1, finished=False)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["evaluation"]
        line["clients"] = {}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report(folder)
    assert "there is no evaluation by local-prototypes" in outline(folder).text


def test_pictures_of_somebody_else_s_behind_a_link_stay(tmp_path):
    folder = fabricate(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "logo.svg").touch()
    (folder / "pictures").symlink_to(tmp_path / "mine")
    with pytest.raises(SettingError, match="pictures is a link to "):
        write_report(folder)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["logo.svg"]


# --- the partition -------------------------------------------------------------------------------------------------


def test_a_forged_partition_file_is_not_believed(tmp_path):
    folder = fabricate(tmp_path / "run", classes=2, clients=2)
    for content, exact in (
        ("[]", False),
        ('{"classes": ["class 0", "class 1"], "counts": [[100], [100]]}', False),
        ('{"classes": ["class 0", "class 1"], "counts": [[99, 2], [50, 50]]}', False),
        ('{"classes": ["class 0", "class 1"], "counts": [[99, 2], [50, 49]]}', False),
        ('{"classes": ["class 0", "class 1"], "counts": [[99, 1], [50, 50]]}', True),
    ):
        (folder / "partition.json").write_text(content)
        assert holdings(read_results(folder)).exact is exact


# --- at the end of a run --------------------------------------------------------------------------------------------


@pytest.fixture
def reporting(monkeypatch):
    monkeypatch.setattr(status, "leave_report", leave_report)


def test_a_run_leaves_its_report_and_one_that_fails_after_a_round_too(run, reporting, home, monkeypatch):
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


def test_a_report_that_fails_fails_no_run(run, reporting, monkeypatch):
    def fail(folder, trust):
        raise ZeroDivisionError("by\nnought")

    monkeypatch.setattr(report_module, "write_report", fail)
    folder = run({"rounds": 1, "strategy": "local"})
    assert (folder / "summary.json").exists()
    warnings = [line for line in run.said if line.startswith("warning")]
    assert warnings == [
        "warning: the report could not be written (ZeroDivisionError: by nought); `protosphere report` tries again"
    ]


# --- folders that cannot be reported --------------------------------------------------------------------------------


def change(folder, name, **values):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def only(folder, lines):
    """Lines of a run that is not finished."""
    (folder / "summary.json").unlink()
    (folder / "metrics.jsonl").write_text(lines)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: shutil.rmtree(f), "is not a folder"),
        (lambda f: (f / "metrics.jsonl").unlink(), "holds no run of which a round was finished"),
        (lambda f: (f / "comparison.json").write_text("{}"), r"is a comparison; `protosphere compare --resume .*run`"),
        (lambda f: only(f, ""), "holds no finished round"),
        (lambda f: only(f, "3\n"), "a line has no round"),
        (lambda f: (f / "roster.json").write_text("[{}]"), "roster.json has no `partition`"),
        (lambda f: (f / "summary.json").write_text("{}"), "by an unknown version .*no `status`"),
        (lambda f: change(f, "settings.json", temperature=3), "unknown setting `temperature`"),
        (
            lambda f: change(f, "summary.json", format=FORMAT + 1, versions={"protosphere": "9.1"}),
            rf"by Protosphere 9.1 \(its format is {FORMAT + 1}, and this program's {FORMAT}\)",
        ),
        (lambda f: (f / "prototypes.safetensors").write_text("x"), "prototypes in .* cannot be read"),
    ],
)
def test_a_folder_that_cannot_be_read_is_one_sentence(tmp_path, spoil, words):
    folder = fabricate(tmp_path / "run")
    spoil(folder)
    with pytest.raises(SettingError, match=words) as error:
        write_report(folder)
    assert "\n" not in str(error.value)
    assert not (folder / "report.html").exists()


def of_line(folder, **values):
    """The line of round 1, changed."""
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in [lines[0], lines[1] | values, *lines[2:]]))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda f: of_line(f, bytes={}), "KeyError: 'payload_up'"),
        (lambda f: change(f, "summary.json", headline={"accuracy": "a\nb"}), ""),
    ],
)
def test_a_folder_of_other_types_is_one_sentence_and_nothing_is_written(tmp_path, spoil, kind):
    folder = fabricate(tmp_path / "run")
    spoil(folder)
    before = sorted(folder.rglob("*"))
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert (result.exit_code, result.stdout) == (2, "")
    said = result.stderr.strip().splitlines()[-1]
    assert said.startswith(f"the report of {folder} cannot be made, since its files are not as this program writes the")
    assert said.endswith("); nothing was written.")
    assert f"({kind}" in said
    assert said.isprintable()
    assert sorted(folder.rglob("*")) == before
