"""From words on the command line to a checked run: parsing, merging, paths, resuming."""

import json
import os
from codecs import BOM_UTF8

import numpy as np
import pytest

from protosphere.comparison.spec import read as read_plan
from protosphere.core.errors import DataError, SettingError
from protosphere.data.forms.folders import listed_classes
from protosphere.plans import run_config
from protosphere.plans.assignments import read_assignments, read_toml
from protosphere.plans.run_config import plan
from protosphere.record.folder import RunFolder
from protosphere.server_app.opening import open_folder
from protosphere.strategies import known_settings, read_settings
from tests.pictures import paint

AUTHORS_TABLE = "protonorm-cifar10-dirichlet-0.1.csv"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, home):
    """A working directory of the test's own, with its PROTOSPHERE_HOME in it."""
    monkeypatch.chdir(tmp_path)


def change(folder, changes):
    """Settings of a run's folder, as another version or hand has left them."""
    (folder / "settings.json").write_text(json.dumps(RunFolder(folder).settings() | changes))


# --- reading ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  \t ", {}),
        ("rounds=5 alpha=0.5 seed=-3", {"rounds": 5, "alpha": 0.5, "seed": -3}),
        ("shared-init=false protonorm.gamma=1e2", {"shared-init": False, "protonorm.gamma": 100.0}),
        ("models='a b' rounds=1 rounds=2\n", {"models": "a b", "rounds": 2}),
        ('dataset="a=b \\"c\\" é"', {"dataset": 'a=b "c" é'}),
    ],
)
def test_assignments_are_typed_like_toml(text, expected):
    assert repr(read_assignments(text)) == repr(expected)


def test_a_toml_file_may_have_tables(tmp_path):
    (tmp_path / "mine.toml").write_text('rounds = 3\nprotonorm.gamma = 2\n[fedproto]\naggregation = "median"\n')
    assert read_assignments("mine.toml") == {"rounds": 3, "protonorm.gamma": 2, "fedproto.aggregation": "median"}


def test_files_with_a_byte_order_mark_are_read(tmp_path):
    (tmp_path / "mine.toml").write_bytes('rounds = 3\r\nown-settings = "ü"\r\n'.encode("utf-8-sig"))
    assert read_toml(tmp_path / "mine.toml") == {"rounds": 3, "own-settings": "ü"}
    (tmp_path / "table.toml").write_bytes(BOM_UTF8 + b'methods = ["local"]\r\ndatasets = ["digits"]\r\n')
    assert read_plan(tmp_path / "table.toml").methods[0].label == "local"
    (tmp_path / "classes.txt").write_bytes(BOM_UTF8 + b"cat\r\ndog\r\n")
    assert listed_classes(tmp_path) == ("cat", "dog")


# --- merging ----------------------------------------------------------------------------------------


def test_without_arguments_a_plan_has_the_defaults_and_ten_clients():
    run_plan = plan()
    assert (run_plan.run_config, run_plan.clients) == (known_settings() | {"clients": 10}, 10)


def test_later_values_override_earlier_ones(tmp_path):
    (tmp_path / "mine.toml").write_text("rounds = 3\nalpha = 0.7\nseed = 1\n")
    run_plan = plan(["rounds=2 alpha=0.2 clients=7", "mine.toml", "seed=9"], preset="spiral", clients=4)
    expected = {"rounds": 3, "alpha": 0.7, "seed": 9, "clients": 4, "dataset": "spiral", "feature-dim": 2}
    assert {name: run_plan.run_config[name] for name in expected} == expected
    assert (run_plan.clients, plan(["clients=7"]).clients, plan(["clients=0"]).clients) == (4, 7, 10)


def test_the_authors_table_is_that_of_the_methods_page():
    """20 clients, 102 holdings, 6,000 images of each class."""
    rows = [
        line.split(",")[1:] for line in (run_config.PRESETS / "partitions" / AUTHORS_TABLE).read_text().splitlines()
    ]
    counts = np.array(rows[1:], dtype=int)
    assert counts.shape == (20, 10)
    assert (counts > 0).sum() == 102
    assert (counts.sum(axis=0) == 6000).all()


def test_another_partition_drops_the_table_of_the_preset():
    settings = plan(['partition="iid"'], preset="protonorm-cifar10").run_config
    assert (settings["partition"], settings["partition-table"]) == ("iid", "")
    assert plan(['alpha=0.5 partition="dirichlet"'], preset="protonorm-cifar10").run_config["alpha"] == 0.5


def test_another_strategy_drops_the_settings_of_the_presets_method():
    settings = plan(['strategy="fedproto"'], preset="protonorm-cifar10").run_config
    assert settings["protonorm.gamma"] == known_settings()["protonorm.gamma"]
    assert (settings["rounds"], settings["strategy"]) == (300, "fedproto")


# --- paths ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ("{here}/all/one", "{here}/all/one"),
        ("./all/one, digits,~/all/two", "{here}/all/one,digits,{here}/all/two"),
        ("../{name}/all/*", "{here}/all/*"),
        ("./in, out/one", "{here}/in, out/one"),
        # a folder of this name is no data set of this name
        ("digits", "digits"),
    ],
)
def test_paths_of_data_are_resolved_from_the_working_directory(dataset, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "digits").mkdir()
    for name in ("all/one", "all/two", "in, out/one"):
        paint(tmp_path / name, "0123456789", 2)
    dataset, expected = (text.format(here=tmp_path, name=tmp_path.name) for text in (dataset, expected))
    settings = f'dataset="{dataset}" partition="iid" min-samples=1'
    assert plan([settings], clients=2).run_config["dataset"] == expected


def test_a_comma_in_a_list_of_folders_is_refused(tmp_path, monkeypatch):
    paint(tmp_path / "in, out" / "one", "0123456789", 2)
    monkeypatch.chdir(tmp_path / "in, out")
    with pytest.raises(SettingError, match=r"`dataset` lists \".*in, out/one\", whose comma would split it"):
        plan(['dataset="./one,digits"'])


def test_other_paths_are_resolved_and_not_created(tmp_path):
    (tmp_path / "mine.csv").write_text(",".join(["client", *map(str, range(10))]) + "\n" + "0" + ",9" * 10 + "\n")
    table = 'partition="table" partition-table="mine.csv"'
    assert plan([table], clients=1).run_config["partition-table"] == str(tmp_path / "mine.csv")
    with pytest.raises(DataError, match="has 1 rows, but it needs one for each of the run's 2 clients"):
        plan([table], clients=2)
    assert plan(['encoder="hf:./encoder"'], trains=False).run_config["encoder"] == f"hf:{tmp_path / 'encoder'}"
    for settings, results, expected in (
        ([], "out", "out"),
        (['results-dir="a/b"'], "", "a/b"),
        (['results-dir="a"'], "b", "b"),
    ):
        assert plan(settings, results=results).run_config["results-dir"] == str(tmp_path / expected)
    assert plan().run_config["results-dir"] == ""
    assert not any((tmp_path / name).exists() for name in ("out", "a", "b", "home/results"))


# --- resuming ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["latest", "20260101-000000-local-digits", "home/results/20260101-000000-local-digits", "{absolute}"]
)
def test_a_resumed_run_keeps_its_settings(name, cut_run):
    run_plan = plan(["rounds=9"], resume=name.format(absolute=cut_run))
    assert run_plan.clients == 6
    old = RunFolder(cut_run).settings()
    assert run_plan.run_config == old | {"rounds": 9, "resume": str(cut_run)}


@pytest.mark.parametrize("foreign", [{"ditto.personal-epochs": 1}, {"gone.setting": 2}])
def test_settings_of_other_methods_do_not_hinder_a_resumed_run(foreign, cut_run):
    """Another version had other defaults for them, and not all settings of this one."""
    today = json.loads((cut_run / "settings.json").read_text())
    stored = {name: value for name, value in today.items() if name != "client-weights"} | foreign
    (cut_run / "settings.json").write_text(json.dumps(stored))
    run_plan = plan(["rounds=9"], resume="latest")
    assert run_plan.run_config == today | {"rounds": 9, "resume": str(cut_run)}
    # the server does the same
    assert open_folder(read_settings(run_plan.run_config), run_plan.run_config).path == cut_run
    # the settings of its own method are kept and cannot change
    (cut_run / "settings.json").write_text(json.dumps(stored | {"strategy": "ditto", "ditto.personal-epochs": 1}))
    assert plan(resume="latest").run_config["ditto.personal-epochs"] == 1
    with pytest.raises(SettingError, match=r"`ditto\.personal-epochs` was 1 and is now 2"):
        plan(["ditto.personal-epochs=2"], resume="latest")
    (cut_run / "settings.json").write_text(json.dumps(stored))
    with pytest.raises(SettingError, match=r"setting `ditto\.personal-epochs` was 0 and is now 2"):
        plan(["ditto.personal-epochs=2"], resume="latest")


def test_the_number_of_clients_of_a_plain_flower_run_is_that_of_its_roster(cut_run):
    change(cut_run, {"clients": 0})
    run_plan = plan(resume="latest")
    assert (run_plan.clients, run_plan.run_config["clients"]) == (6, 0)
    # as many rounds as it has finished are no fewer
    assert plan(["rounds=3"], resume="latest").run_config["rounds"] == 3


def test_a_run_is_looked_up_in_the_results_folder(cut_run, tmp_path):
    os.rename(cut_run.parent, tmp_path / "moved")
    assert plan(resume="latest", results="moved").run_config["resume"] == str(tmp_path / "moved" / cut_run.name)


# --- mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roster", "words"),
    [(None, "cannot be read"), ("[{", "cannot be read"), ("{}", "holds no list"), ("[]", "names no")],
)
def test_a_roster_without_a_number_of_clients_is_refused(roster, words, cut_run):
    change(cut_run, {"clients": 0})
    (cut_run / "roster.json").unlink()
    if roster is not None:
        (cut_run / "roster.json").write_text(roster)
    with pytest.raises(SettingError, match=rf"^{cut_run}/roster.json .*{words}"):
        plan(resume="latest")


def test_a_stored_setting_of_another_type_is_refused(cut_run):
    change(cut_run, {"clients": "six"})
    with pytest.raises(SettingError, match=r'^setting `clients` is "six", but it should be a valid integer'):
        plan(resume="latest")


def test_the_note_on_many_tables_names_five(tmp_path):
    for number in range(7):
        rows = "".join(f"{row},{row % 2}\n" for row in range(80))
        (tmp_path / f"site{number}.csv").write_text("x,label\n" + rows)
    run_plan = plan([f'dataset="{",".join(f"site{number}.csv" for number in range(7))}"'])
    assert run_plan.clients == 7
    assert run_plan.notes[0].startswith("7 tables are 7 sites: site0, site1, site2, site3, site4 and 2 more (partition")
