"""A cell as a node of a Ray cluster performs it; Ray itself is `make ray-check`'s."""

import os
import shutil
import socket

import pytest

from protosphere.comparison.folder import FILE, ComparisonFolder
from protosphere.comparison.plan import Comparison, Entry
from protosphere.comparison.ray_tasks import order_of, perform
from protosphere.comparison.trials import cells

QUICK = {"rounds": 1, "max-samples": 200, "feature-dim": 12, "models": "tiny_perceptron", "device": "cpu", "clients": 2}
LOCAL = Entry("Local", {"strategy": "local"})
BROKEN = Entry("Broken", {"strategy": "fedproto", "learning-rate": 1e30, "max-failed-rounds": 1})


@pytest.fixture
def asked(tmp_path, home):
    """asked(method, keep): the comparison's folder, its cell, and what a node is told of it."""

    def make(method=LOCAL, keep=False):
        comparison = Comparison(
            "test", (method,), (Entry("Digits", {"dataset": "digits"}),), seeds=(0,), settings=QUICK
        )
        (cell,) = cells(comparison, {}, {})
        folder = ComparisonFolder.create(comparison, [cell], str(tmp_path / "results"))
        folder.of(cell).mkdir(parents=True)
        return folder, cell, order_of(folder, cell, reports=False, keep_models=keep)

    return make


@pytest.mark.parametrize("keep", [False, True])
def test_a_cell_leaves_its_run_in_the_comparison_and_no_model_on_the_node_unless_asked(asked, home, keep):
    folder, cell, order = asked(keep=keep)
    assert perform(order) == ""
    run = folder.run_of(cell)
    assert run is not None
    assert [path.name for path in (home / "clients").iterdir()] == ([run.name] if keep else [])
    said = (folder.of(cell) / "output.log").read_text().splitlines()
    assert said[0] == f"on {socket.gethostname()}, process {os.getpid()}"
    assert said[1:] == (run / "run.log").read_text().splitlines()


def test_a_cell_that_fails_says_why(asked, home):
    folder, cell, order = asked(BROKEN)
    reason = perform(order)
    assert "valid replies" in reason
    assert reason in (folder.of(cell) / "output.log").read_text()
    assert folder.run_of(cell) is None
    assert not list((home / "clients").iterdir())


@pytest.mark.parametrize("spoil", ["gone", "another comparison", "no cell"])
def test_a_node_without_the_comparison_s_folder_refuses_by_its_name_and_leaves_nothing(asked, spoil):
    folder, cell, order = asked()
    if spoil == "gone":
        shutil.rmtree(folder.path)
    elif spoil == "another comparison":
        (folder.path / FILE).write_text("{}")
    else:
        folder.of(cell).rmdir()
    before = sorted(folder.path.rglob("*"))
    reason = perform(order)
    assert str(folder.path) in reason
    assert socket.gethostname() in reason
    assert sorted(folder.path.rglob("*")) == before
