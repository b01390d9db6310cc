"""Code that a received folder names: it runs where this home has run it itself, or on its reader's word, and nowhere
else."""

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import protosphere
from protosphere.cli.main import app
from protosphere.comparison.folder import ComparisonFolder
from protosphere.core import plugins
from protosphere.core.errors import ModelError, SettingError
from protosphere.core.home import stores
from protosphere.data.user_code import own_code
from protosphere.launch.grid import run_in_process
from protosphere.launch.run_config import plan
from protosphere.record.folder import RunFolder
from protosphere.server_app.opening import open_folder
from protosphere.serving.predict import open_trained
from protosphere.strategies import as_of_today, known_settings, read_settings
from protosphere.strategies.trust import named, untrusted
from tests.reports.fabricated import fabricate
from tests.reports.pages import outline
from tests.strategies.test_adding_a_method import QUICK, printed, project

__all__ = ["project"]
MARK = "from pathlib import Path\nPath({mark!r}).touch()\n"


@pytest.fixture
def evil(home, tmp_path, monkeypatch):
    """A received run's folder with the method that it names, and what that leaves when it is run."""
    folder, mark = fabricate(tmp_path / "20250101-000000-evil-digits"), tmp_path / "mark"
    monkeypatch.chdir(folder)
    # as `python -m` finds modules
    monkeypatch.syspath_prepend(folder)
    (folder / "evil.py").write_text(MARK.format(mark=str(mark)) + printed("adding-a-method.md"))
    rename(folder, strategy="./evil.py")
    return folder, mark


def rename(folder, name="settings.json", **changes):
    settings = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(settings | changes))


@pytest.mark.usefixtures("undrawn")
def test_a_report_is_made_without_a_received_folders_method_and_says_so(evil, home):
    folder, mark = evil
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert (result.exit_code, mark.exists()) == (0, False), result.output
    page = outline(folder).text
    assert "made without the method's code, ./evil.py, which this PROTOSPHERE_HOME has never run" in page
    assert "local-prototypes" in page
    assert CliRunner().invoke(app, ["report", "--trust", str(folder)]).exit_code == 0
    assert mark.exists()
    assert "has never run" not in outline(folder).text


@pytest.mark.usefixtures("undrawn")
def test_the_api_reads_results_without_it_as_well(evil):
    folder, mark = evil
    found = protosphere.load(folder)
    assert found.summary["headline"]["rule"] == "local-prototypes"
    found.report()
    assert len(found.rounds) > 1
    assert not mark.exists()
    protosphere.load(folder, trust=True).report()
    assert mark.exists()


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.usefixtures("undrawn")
def test_a_cut_or_private_run_has_its_report_without_the_method_too(evil, finished):
    folder, mark = evil
    (folder / "summary.json").unlink(missing_ok=True)
    if finished:
        rename(folder, **{"privacy": "release", "privacy-epsilon": 1.0})
    (folder / "prototypes.safetensors").unlink()
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    assert "its exchange is unknown" in outline(folder).text
    assert not mark.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "./evil.py"},
        {"models": "tiny_cnn, ./evil.py:Net"},
        {"partition": "./evil.py:deal"},
        {"dataset": "./evil.py"},
        {"dataset": "evil:rows"},
        {"encoder": "./evil.py"},
    ],
)
def test_a_run_of_a_received_folder_is_not_gone_on_with(evil, changes):
    folder, mark = evil
    rename(folder, **({"strategy": "protonorm"} | changes))
    name = next(iter(changes))
    (folder / "checkpoint.safetensors").touch()
    with pytest.raises(SettingError, match=rf"`{name}` = .*evil.* has not run itself; .*--trust") as told:
        plan(resume=str(folder))
    assert str(folder) in str(told.value)
    assert not mark.exists()


HIDDEN = (
    {"strategy": "./evil.py", "own-settings": json.dumps({"strategy": "protonorm"})},
    {"strategy": "protonorm", "own-settings": json.dumps({"strategy": "./evil.py"})},
    {"strategy": "protonorm", "own-settings": json.dumps({"": 1})},
)


@pytest.mark.parametrize("changes", HIDDEN)
def test_own_settings_take_no_shared_ones_place(evil, changes, tmp_path):
    """What is looked at before code runs, and what is loaded, would be two."""
    folder, mark = evil
    rename(folder, **changes)
    (folder / "checkpoint.safetensors").touch()
    compared = compare_folder(tmp_path / "compared", cells=[{"settings": known_settings() | changes}])
    words = "`own-settings` holds `(strategy)?`, which is no setting of a method of your own"
    for read in (
        lambda: plan(resume=str(folder)),
        lambda: plan(resume=str(folder), remote=True),
        lambda: protosphere.load(folder).report(),
        lambda: protosphere.Comparison(compared),
        lambda: ComparisonFolder(compared).read(),
        lambda: as_of_today(RunFolder(folder).settings()),
    ):
        with pytest.raises(SettingError, match=words):
            read()
    for command in (["report", str(folder)], ["compare", "--resume", str(compared)], ["run", "--resume", str(folder)]):
        result = CliRunner().invoke(app, command)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert not mark.exists()


def test_what_a_version_kept_is_brought_up_to_date_with_what_was_packed():
    packed = {"strategy": "fedprox", "own-settings": json.dumps({"fedprox.mu": 0.25})}
    assert as_of_today(packed) == known_settings() | {"strategy": "fedprox", "fedprox.mu": 0.25}


def test_a_resumed_run_loads_the_method_that_was_asked_for_and_no_other(evil):
    """On a SuperLink's machine, whose folder nobody looked at before."""
    folder, mark = evil
    (folder / "checkpoint.safetensors").touch()
    asked = {"strategy": "protonorm", "rounds": 3, "feature-dim": 6, "resume": str(folder)}
    with pytest.raises(SettingError, match=r"setting `strategy` was \"./evil.py\" and is now \"protonorm\""):
        open_folder(read_settings(asked), asked)
    assert not mark.exists()


def compare_folder(folder, methods=({},), cells=()):
    comparison = {"name": "x", "title": "", "settings": {}, "datasets": [{"label": "x"}], "partitions": []}
    comparison |= {"methods": [{"label": "x", "settings": settings} for settings in methods]}
    comparison |= {"seeds": [0], "metrics": [{}], "paper": []}
    cell = {"name": "c", "row": "x", "method": "x", "seed": 0}
    kept = {"format": 1, "version": "x", "comparison": comparison, "cells": [cell | each for each in cells]}
    folder.mkdir(exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(kept | {"jobs": None}))
    return folder


def test_nor_a_comparison_read(evil, tmp_path):
    _, mark = evil
    compare_folder(tmp_path, methods=[{"strategy": "./evil.py"}])
    with pytest.raises(SettingError, match="has not run itself"):
        ComparisonFolder(tmp_path).read()
    assert not mark.exists()
    ComparisonFolder(tmp_path).read(trust=True)


def test_nor_is_code_run_that_a_cells_run_names(evil, tmp_path):
    """The comparison's file names none."""
    folder, mark = evil
    settings = {name: value for name, value in known_settings().items() if name not in ("results-dir", "resume")}
    compared = compare_folder(tmp_path / "compared", cells=[{"settings": settings}])
    run = shutil.copytree(folder, compared / "cells" / "c" / folder.name)
    for changes in ({}, {"own-settings": json.dumps({"protosphere.x": 1})}):
        rename(run, **changes)
        for read in (
            lambda: protosphere.Comparison(compared).table(),
            lambda: ComparisonFolder(compared).run_of(ComparisonFolder(compared).read()[1][0]),
        ):
            with pytest.raises(
                SettingError, match=r'no run of this comparison: its setting `strategy` is "./evil\.py"'
            ):
                read()
    assert not mark.exists()


def test_predict_knows_what_this_home_ran_and_refuses_it_elsewhere_or_changed(project: Path, tmp_path, monkeypatch):
    config = QUICK | {"strategy": str(project / "shrunk.py"), "models": f"{project / 'mynet.py'}:wide", "rounds": 1}
    folder = run_in_process(config, clients=2, show=lambda line: None)
    kept = stores(folder.name) / "0"
    # where it was run: no word is needed, for the report neither
    open_trained(kept)
    assert not untrusted(named(json.loads((folder / "settings.json").read_text())))
    moved = shutil.copytree(stores(folder.name), tmp_path / "received") / "0"
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "another"))
    for name, words in (("strategy", "shrunk.py"), ("model", "mynet.py")):
        with pytest.raises(SettingError, match=rf"`{name}` = .*{words}.* has not run itself"):
            open_trained(moved)
        plugins.load(str(project / words), "METHOD" if name == "strategy" else "wide")
    open_trained(moved)
    (project / "mynet.py").write_text((project / "mynet.py").read_text() + "\n")
    result = CliRunner().invoke(app, ["predict", "--state", str(moved), "x.png"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "`model` = " in result.stderr
    open_trained(moved, trust=True)


@pytest.mark.parametrize("companion", ["", "stranger:small"])
def test_predict_builds_no_companion_of_a_strangers(project, tmp_path, monkeypatch, companion):
    code = printed("adding-a-model.md").replace("def wide", "def small")
    for name in ("mynet.py", "stranger.py"):
        (project / name).write_text(code)
    monkeypatch.syspath_prepend(project)
    own = "tiny_perceptron" if companion else f"{project / 'mynet.py'}:small,tiny_perceptron"
    config = QUICK | {"strategy": "fml", "fml.companion": companion, "models": own, "rounds": 1}
    folder = run_in_process(config, clients=2, show=lambda line: None)
    kept = stores(folder.name) / "1"
    open_trained(kept)
    moved = shutil.copytree(stores(folder.name), tmp_path / "received") / "1"
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "another"))
    with pytest.raises(SettingError, match=r"`companion` = .*small.* has not run itself"):
        open_trained(moved)
    open_trained(moved, trust=True)
    settings = json.loads((folder / "settings.json").read_text())
    assert any("small" in code for _, code in named(settings))


def test_a_models_name_with_a_comma_is_one_file(evil, home):
    """Settings list models; a client has one, whose name must not be read as two that are known."""
    folder, _ = evil
    (folder / "known.py").write_text("model = 1\n")
    plugins.load("./known.py", "model")
    assert untrusted([("model", "x,known.py")]) == [("model", "x,known.py")]
    assert untrusted([("models", "./known.py"), ("models", "hf:bert"), ("strategy", "hf:bert")]) == [
        ("strategy", "hf:bert")
    ]


@pytest.mark.parametrize("name", ["__main__:METHOD", "sys:path", "time:sleep", "zipimport:zipimporter"])
def test_what_has_no_file_is_never_known(home, name):
    """Neither the program that asks nor a module of Python's own: to have run one is not to know the other."""
    assert not plugins.ran_here(name)
    with suppress(ModelError):
        plugins.load(name, "METHOD")
    assert not plugins.ran_here(name)
    assert untrusted([("strategy", name)]) == [("strategy", name)]
    assert not list((home / plugins.RAN).glob("*"))


def test_a_file_that_cannot_be_read_is_not_known_by_another(evil):
    folder, _ = evil
    (folder / "a_folder.py").mkdir()
    for name in ("./a_folder.py", "./nowhere.py"):
        with pytest.raises(ModelError):
            plugins.load(name, "METHOD")
        plugins._remember(name)
        assert not plugins.ran_here(name)


def test_nothing_is_run_to_tell_what_a_module_is(evil, monkeypatch):
    folder, mark = evil
    package = folder / "pack_of_evil"
    package.mkdir()
    (package / "__init__.py").write_text(MARK.format(mark=str(mark)))
    (package / "part.py").write_text("model = 1\n")
    monkeypatch.syspath_prepend(folder)
    name = "pack_of_evil.part:model"
    assert not plugins.ran_here(name)
    own_code(name, "dataset")
    assert not mark.exists()
    assert not plugins.ran_here("nowhere_to_be_found.part:model")
    plugins.load(name, "model")
    assert mark.exists()
    assert plugins.ran_here(name)
    # its package is run before it
    (package / "__init__.py").write_text("x = 2\n")
    assert not plugins.ran_here(name)
    sys.modules.pop("pack_of_evil"), sys.modules.pop(name.partition(":")[0])
