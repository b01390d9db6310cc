"""Finished runs of the same settings enter a comparison, and no others."""

import json
import os

import pytest

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.plan import Comparison, Entry
from protosphere.comparison.report import write_all
from protosphere.comparison.reuse import reuse
from protosphere.comparison.trials import cells
from protosphere.core.home import stores
from protosphere.record.folder import RunFolder

SETTINGS = {"max-samples": 200, "models": "tiny_perceptron", "feature-dim": 12, "rounds": 1, "clients": 2}
MADE = Comparison(
    "test",
    (Entry("Local", {"strategy": "local"}),),
    (Entry("Digits", {"dataset": "digits"}),),
    seeds=(0, 4),
    settings=SETTINGS,
)


@pytest.fixture
def done(run):
    """A finished run of seed 0."""
    return run(SETTINGS | {"strategy": "local"}, clients=2)


@pytest.fixture
def empty(done):
    """The comparison beside it, before any cell is run; and its cells."""
    found = cells(MADE, {}, {})
    return ComparisonFolder.create(MADE, found, str(done.parent)), found


def test_a_run_of_the_same_settings_is_taken_and_stays_where_it_is(done, empty):
    folder, found = empty
    assert reuse(folder, found) == [(found[0], done)]
    accuracies = write_all(folder, MADE, found).grids[0]
    assert "(1 of 2 seeds)" in accuracies.lines[0][1].text
    # once taken it is a finished cell
    assert reuse(folder, found) == []
    # the comparison's end does not take the other run's models
    folder.discard(found[0])
    assert list(stores(done.name).glob("*/client.json"))
    # from another comparison, too
    assert reuse(folder, found)
    again = ComparisonFolder.create(MADE, found, str(done.parent))
    (done / "summary.json").unlink()
    assert reuse(again, found)[0][1].is_relative_to(folder.path)


def test_a_copy_that_was_cut_is_no_finished_run(done, empty):
    folder, found = empty
    os.mkfifo(done / "pipe")
    with pytest.raises(OSError, match="pipe"):
        reuse(folder, found)
    assert folder.run_of(found[0]) is None
    (done / "pipe").unlink()
    assert reuse(folder, found) == [(found[0], done)]
    assert folder.run_of(found[0]) is not None


@pytest.mark.parametrize(
    "changes",
    [{"status": "cut"}, {"rounds": 5}, {"versions": {}}],
    ids=["not completed", "ended early", "another version"],
)
def test_a_run_that_is_not_of_the_same_whole_is_left(done, empty, changes):
    summary = json.loads((done / "summary.json").read_text())
    (done / "summary.json").write_text(json.dumps(summary | changes))
    assert reuse(*empty) == []


def test_other_settings_are_left_and_where_it_ran_does_not_matter(done, empty):
    settings = RunFolder(done).settings()
    (done / "settings.json").write_text(json.dumps(settings | {"learning-rate": 0.5}))
    assert reuse(*empty) == []
    (done / "settings.json").write_text(json.dumps(settings | {"device": "cuda:3", "results-dir": "/elsewhere"}))
    assert reuse(*empty)


@pytest.mark.parametrize(
    "own",
    [
        {"models": "/home/me/net.py"},
        {"dataset": "mine:rows"},
        {"partition": "/home/me/deal.py:by_ward"},
        {"encoder": "/home/me/features.py:encode"},
        {"fml.companion": "mine:net"},
    ],
)
def test_somebody_s_own_code_is_run_anew(done, empty, own):
    folder, found = empty
    settings = RunFolder(done).settings() | own
    (done / "settings.json").write_text(json.dumps(settings))
    found[0].settings.update(own)
    assert reuse(folder, found) == []


def test_a_hub_s_text_model_is_nobody_s_own_code(done, empty):
    folder, found = empty
    settings = RunFolder(done).settings() | {"models": "hf:bert"}
    (done / "settings.json").write_text(json.dumps(settings))
    found[0].settings.update(models="hf:bert")
    assert reuse(folder, found)
