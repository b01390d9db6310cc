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
from protosphere.server_app.opening import open_folder
from protosphere.serving.predict import open_trained
from protosphere.strategies import known_settings, read_settings
from protosphere.strategies.trust import untrusted
from tests.reports.fabricated import fabricate
from tests.reports.pages import outline
from tests.strategies.test_adding_a_method import QUICK, printed, project

__all__ = ["project"]
MARK = "from pathlib import Path\nPath({mark!r}).touch()\n"


@pytest.fixture
def evil(home, tmp_path, monkeypatch):
    """A received run's folder with the method that it names, and the file that the method leaves when it runs."""
    folder, mark = fabricate(tmp_path / "20250101-000000-evil-digits"), tmp_path / "mark"
    monkeypatch.chdir(folder)
    # as `python -m` finds modules
    monkeypatch.syspath_prepend(folder)
    (folder / "evil.py").write_text(MARK.format(mark=str(mark)) + printed("adding-a-method.md"))
    change_settings(folder, strategy="./evil.py")
    (folder / "checkpoint.safetensors").touch()
    return folder, mark


def change_settings(folder, **changes):
    path = folder / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.usefixtures("undrawn")
def test_a_received_run_is_reported_without_its_methods_code(evil):
    folder, mark = evil
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    assert "evil on digits" in outline(folder).text
    assert protosphere.load(folder).summary["headline"]["rule"] == "local-prototypes"
    # nor where the run is not finished, and its rule is not written anywhere
    (folder / "summary.json").unlink()
    assert protosphere.load(folder).summary["headline"]["rule"] == "classifier"
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strategy", "./evil.py"),
        ("models", "tiny_cnn, ./evil.py:Net"),
        ("dataset", "./evil.py"),
        ("dataset", "evil:rows"),
        ("encoder", "./evil.py"),
    ],
)
def test_a_received_run_is_not_resumed_with_its_code(evil, name, value):
    folder, mark = evil
    change_settings(folder, **({"strategy": "protonorm"} | {name: value}))
    with pytest.raises(SettingError, match=rf"names code that lies in it, `{name}` = .*evil.*--trust"):
        plan(resume=str(folder))
    assert not mark.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "./evil.py", "own-settings": json.dumps({"strategy": "protonorm"})},
        {"strategy": "protonorm", "own-settings": json.dumps({"strategy": "./evil.py"})},
    ],
)
def test_own_settings_take_no_shared_ones_place(evil, changes, tmp_path):
    """Otherwise the check would look at one method, and the loader would load another."""
    folder, mark = evil
    change_settings(folder, **changes)
    compared = comparison_folder(tmp_path / "compared", trials=[{"settings": known_settings() | changes}])
    for read in (
        lambda: plan(resume=str(folder)),
        lambda: protosphere.load(folder).report(),
        lambda: ComparisonFolder(compared).read(),
    ):
        with pytest.raises(SettingError, match="`own-settings` holds `strategy`, which is no setting of a method"):
            read()
    assert not mark.exists()


def test_a_resumed_run_loads_the_method_that_was_asked_for_and_no_other(evil):
    """On a SuperLink's machine, whose folder nobody looked at before."""
    folder, mark = evil
    asked = {"strategy": "protonorm", "rounds": 3, "feature-dim": 6, "resume": str(folder)}
    with pytest.raises(SettingError, match=r"setting `strategy` was \"./evil.py\" and is now \"protonorm\""):
        open_folder(read_settings(asked), asked)
    assert not mark.exists()


def comparison_folder(folder, methods=({},), trials=()):
    comparison = {"name": "x", "title": "", "settings": {}, "datasets": [{"label": "x"}], "partitions": []}
    comparison |= {"methods": [{"label": "x", "settings": settings} for settings in methods]}
    comparison |= {"seeds": [0], "metrics": [{}], "paper": []}
    trial = {"name": "c", "row": "x", "method": "x", "seed": 0}
    stored = {"format": FORMAT, "version": "x", "comparison": comparison, "trials": [trial | each for each in trials]}
    folder.mkdir(exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(stored | {"jobs": None}))
    return folder


def test_a_received_comparison_runs_neither_its_own_code_nor_that_of_a_trial_s_run(evil, tmp_path):
    folder, mark = evil
    comparison_folder(tmp_path, methods=[{"strategy": "./evil.py"}])
    with pytest.raises(SettingError, match="code that lies in it"):
        ComparisonFolder(tmp_path).read()

    settings = {name: value for name, value in known_settings().items() if name not in ("results-dir", "resume")}
    compared = comparison_folder(tmp_path / "compared", trials=[{"settings": settings}])
    shutil.copytree(folder, compared / "trials" / "c" / folder.name)
    with pytest.raises(SettingError, match=r'is not a run of this comparison: its setting `strategy` is "./evil\.py"'):
        protosphere.Comparison(compared).table()
    assert not mark.exists()


def test_predict_runs_code_elsewhere_on_this_machine_and_refuses_what_lies_in_the_folder(project: Path, tmp_path):
    config = QUICK | {"strategy": str(project / "shrunk.py"), "models": f"{project / 'mynet.py'}:wide", "rounds": 1}
    folder = run_in_process(config, clients=2, show=lambda line: None)
    received = shutil.copytree(stores(folder.name) / "0", tmp_path / "received")
    open_trained(received)
    shutil.copy(project / "mynet.py", received)
    client = json.loads((received / "client.json").read_text())
    (received / "client.json").write_text(json.dumps(client | {"model": f"{received / 'mynet.py'}:wide"}))
    result = CliRunner().invoke(app, ["predict", "--state", str(received), "x.png"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "names code that lies in it, `model` = " in result.stderr
    open_trained(received, trust=True)


def test_where_a_name_leads_tells_whether_it_lies_in_the_folder(evil, tmp_path):
    folder, _ = evil
    (folder / "x,known.py").touch()
    (tmp_path / "link.py").symlink_to(folder / "evil.py")
    # settings list models; a client has one, whose name must not be read as two
    assert untrusted(folder, [("model", "x,known.py")]) == [("model", "x,known.py")]
    assert untrusted(folder, [("models", "hf:bert"), ("strategy", "sys:path")]) == []
    # out of the folder and back
    assert untrusted(folder, [("strategy", str(tmp_path / "link.py"))])


def test_nothing_runs_to_tell_where_a_module_lies(evil, monkeypatch):
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
