"""Code that lies in a received folder runs on its reader's word and not without."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import protosphere
from protosphere.cli.main import app
from protosphere.comparison.folder import FORMAT, ComparisonFolder
from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.home import stores
from protosphere.data.user_code import own_code
from protosphere.launch.grid import run_in_process
from protosphere.plans.run_config import plan
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


@pytest.mark.parametrize("state", ["whole", "cut", "private"])
@pytest.mark.usefixtures("undrawn")
def test_results_are_read_and_reported_without_a_received_folders_method_unless_it_is_trusted(evil, state):
    folder, mark = evil
    if state != "whole":
        (folder / "summary.json").unlink(missing_ok=True)
        (folder / "prototypes.safetensors").unlink()
    if state == "private":
        rename(folder, **{"privacy": "release", "privacy-epsilon": 1.0})

    result = CliRunner().invoke(app, ["report", str(folder)])
    found = protosphere.load(folder)
    found.report()

    assert (result.exit_code, mark.exists()) == (0, False), result.output
    page = outline(folder).text
    assert "made without the method's code, ./evil.py, which lies in the run's folder" in page
    assert ("its exchange is unknown" in page) == (state != "whole")
    assert len(found.rounds) > 1
    if state == "whole":
        assert found.summary["headline"]["rule"] == "local-prototypes"
        assert CliRunner().invoke(app, ["report", "--trust", str(folder)]).exit_code == 0
        assert "made without" not in outline(folder).text
        assert mark.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "./evil.py"},
        {"models": "tiny_cnn, ./evil.py:Net"},
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
    with pytest.raises(SettingError, match=rf"names code that lies in it, `{name}` = .*evil.*--trust") as told:
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
    kept = {"format": FORMAT, "version": "x", "comparison": comparison, "trials": [cell | each for each in cells]}
    folder.mkdir(exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(kept | {"jobs": None}))
    return folder


def test_nor_is_a_comparison_read_or_code_run_that_a_cells_run_alone_names(evil, tmp_path):
    folder, mark = evil
    compare_folder(tmp_path, methods=[{"strategy": "./evil.py"}])
    with pytest.raises(SettingError, match="code that lies in it"):
        ComparisonFolder(tmp_path).read()
    assert not mark.exists()
    ComparisonFolder(tmp_path).read(trust=True)

    settings = {name: value for name, value in known_settings().items() if name not in ("results-dir", "resume")}
    compared = compare_folder(tmp_path / "compared", cells=[{"settings": settings}])
    run = shutil.copytree(folder, compared / "trials" / "c" / folder.name)
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


def test_predict_runs_code_elsewhere_on_this_machine_and_refuses_what_lies_in_the_folder(project: Path, tmp_path):
    config = QUICK | {"strategy": str(project / "shrunk.py"), "models": f"{project / 'mynet.py'}:wide", "rounds": 1}
    folder = run_in_process(config, clients=2, show=lambda line: None)
    store = stores(folder.name) / "0"
    open_trained(store)
    received = shutil.copytree(store, tmp_path / "received")
    open_trained(received)
    assert not untrusted(folder, named(json.loads((folder / "settings.json").read_text())))
    shutil.copy(project / "mynet.py", received)
    client = json.loads((received / "client.json").read_text())
    client.pop("digest")
    (received / "client.json").write_text(json.dumps(client | {"model": f"{received / 'mynet.py'}:wide"}))
    result = CliRunner().invoke(app, ["predict", "--state", str(received), "x.png"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "names code that lies in it, `model` = " in result.stderr
    open_trained(received, trust=True)


def test_what_lies_in_the_folder_is_told_by_where_it_leads(evil, tmp_path):
    folder, _ = evil
    (folder / "x,known.py").touch()
    (tmp_path / "link.py").symlink_to(folder / "evil.py")
    # settings list models; a client has one, whose name must not be read as two
    assert untrusted(folder, [("model", "x,known.py")]) == [("model", "x,known.py")]
    assert untrusted(folder, [("models", "hf:bert"), ("strategy", "sys:path")]) == []
    # out of the folder and back
    assert untrusted(folder, [("strategy", str(tmp_path / "link.py"))])


def test_nothing_is_run_to_tell_where_a_module_lies(evil, monkeypatch):
    folder, mark = evil
    package = folder / "pack_of_evil"
    package.mkdir()
    (package / "__init__.py").write_text(MARK.format(mark=str(mark)))
    (package / "part.py").write_text("model = 1\n")
    name = "pack_of_evil.part:model"
    assert untrusted(folder, [("model", name)]) == [("model", name)]
    # a package's own code runs before that of a module that is not there
    assert untrusted(folder, [("model", "pack_of_evil.nowhere:model")])
    own_code(name)
    assert not mark.exists()
    plugins.load(name, "model")
    assert mark.exists()
    sys.modules.pop("pack_of_evil"), sys.modules.pop(name.partition(":")[0])
