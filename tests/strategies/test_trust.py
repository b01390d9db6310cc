"""Code that a received folder names: it runs where this home has run it itself, or on its reader's word, and nowhere
else."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import protosphere
from cli.main import app
from experiments.compare.folder import ComparisonFolder
from experiments.runtime.grid import run_in_process
from experiments.runtime.run_config import plan
from federation.homes import stores
from federation.own_code import own_code
from federation.settings import SettingError
from models import plugins
from serving.predict import open_trained
from strategies.trust import named, untrusted
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


def test_a_report_is_made_without_a_received_folders_method_and_says_so(evil, home):
    folder, mark = evil
    for hidden in (False, True):
        if hidden:
            rename(folder, strategy="protonorm", **{"own-settings": json.dumps({"strategy": "./evil.py"})})
        result = CliRunner().invoke(app, ["report", str(folder)])
        assert (result.exit_code, mark.exists()) == (0, False), result.output
        page = outline(folder).text
        assert "made without the method's code, ./evil.py, which this PROTOSPHERE_HOME has not run itself" in page
        assert "local-prototypes" in page
    rename(folder, strategy="./evil.py", **{"own-settings": ""})
    assert CliRunner().invoke(app, ["report", "--trust", str(folder)]).exit_code == 0
    assert mark.exists()
    assert "has not run itself" not in outline(folder).text


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
def test_a_cut_or_private_run_has_its_report_without_the_method_too(evil, finished):
    folder, mark = evil
    (folder / "summary.json").unlink(missing_ok=True)
    if finished:
        rename(folder, **{"privacy": "release", "privacy-epsilon": 1.0})
    (folder / "prototypes.safetensors").unlink()
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    assert "what is exchanged is not known" in outline(folder).text
    assert not mark.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "./evil.py"},
        {"models": "tiny_cnn, ./evil.py:Net"},
        {"partition": "./evil.py:deal"},
        {"dataset": "./evil.py"},
        {"dataset": "evil:rows"},
        {"privacy-encoder": "./evil.py"},
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


def test_nor_a_comparison_read(evil, tmp_path):
    _, mark = evil
    entry = {"label": "x", "settings": {"strategy": "./evil.py"}}
    comparison = {"name": "x", "title": "", "settings": {}, "methods": [entry], "datasets": [], "partitions": []}
    comparison |= {"seeds": [0], "metrics": [], "paper": []}
    kept = {"format": 1, "version": "x", "comparison": comparison, "cells": [], "jobs": None}
    (tmp_path / "comparison.json").write_text(json.dumps(kept))
    with pytest.raises(SettingError, match="has not run itself"):
        ComparisonFolder(tmp_path).read()
    assert not mark.exists()
    ComparisonFolder(tmp_path).read(trust=True)


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


def test_a_models_name_with_a_comma_is_one_file(evil, home):
    """Settings list models; a client has one, whose name must not be read as two that are known."""
    folder, _ = evil
    (folder / "known.py").write_text("model = 1\n")
    plugins.load("./known.py", "model")
    assert untrusted([("model", "x,known.py")]) == [("model", "x,known.py")]
    assert untrusted([("models", "./known.py"), ("models", "hf:bert"), ("strategy", "hf:bert")]) == [
        ("strategy", "hf:bert")
    ]


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
