"""From words on the command line to a checked run: parsing, merging, paths, each mistake by its sentence."""

import itertools
import json
import os
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from data import DataError
from experiments.runtime import run_config
from experiments.runtime.run_config import plan, preset_names, read_assignments, read_toml
from federation.settings import SettingError
from models import ModelError
from runs.folder import RunFolder
from strategies import known_settings

AUTHORS_TABLE = "protonorm-cifar10-dirichlet-0.1.csv"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, home):
    """A working directory of the test's own, with its PROTOSPHERE_HOME in it."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cut_run(home):
    """A run of six clients in the results folder, cut after its first round."""
    folder = home / "results" / "20260101-000000-local-digits"
    folder.mkdir(parents=True)
    settings = known_settings() | {"strategy": "local", "clients": 6, "rounds": 5, "alpha": 0.5}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "roster.json").write_text(json.dumps([{}] * 6))
    RunFolder(folder).save_checkpoint({}, {"round": 3})
    return folder


# --- reading ----------------------------------------------------------------------------------------


def test_assignments_are_typed_like_toml():
    text = """rounds=5 alpha=0.5 shared-init=false strategy="fedproto" protonorm.gamma=1e2 models='a b' seed=-3"""
    found = read_assignments(text)
    assert found == {
        "rounds": 5,
        "alpha": 0.5,
        "shared-init": False,
        "strategy": "fedproto",
        "protonorm.gamma": 100.0,
        "models": "a b",
        "seed": -3,
    }
    assert [type(value) for value in found.values()] == [int, float, bool, str, float, str, int]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("  \t ", {}),
        ('dataset="a=b \\"c\\" é"', {"dataset": 'a=b "c" é'}),
        ('models="resnet8,mobilenet_v2"  rounds=1\n', {"models": "resnet8,mobilenet_v2", "rounds": 1}),
        ("rounds=1 rounds=2", {"rounds": 2}),
    ],
)
def test_assignments_at_the_edges(text, found):
    assert read_assignments(text) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "strategy=fedproto",
            "fedproto is no value for `strategy`: give a number, true, false, or a string in double quotes, as in "
            "-c 'strategy=\"fedproto\"'.",
        ),
        (
            "rounds=5 seed",
            "cannot read 'seed' in -c 'rounds=5 seed': give key=value pairs with a space between them, strings in "
            "double quotes, as in -c 'rounds=5 strategy=\"fedproto\"'.",
        ),
        (
            'strategy="fedproto"rounds=5',
            "cannot read 'strategy=\"fedproto\"rounds=5' in -c 'strategy=\"fedproto\"rounds=5': give key=value pairs "
            "with a space between them, strings in double quotes, as in -c 'rounds=5 strategy=\"fedproto\"'.",
        ),
        (
            "models=[1]",
            "setting `models` is [1], but a setting is a number, true, false or a string; a list is a string with "
            'commas, as in "resnet8,mobilenet_v2".',
        ),
        (
            "max-samples=9223372036854775808",
            "setting `max-samples` is 9223372036854775808, but a whole number must fit into 64 bits.",
        ),
    ],
)
def test_what_is_no_assignment_is_refused(text, sentence):
    with pytest.raises(SettingError) as caught:
        read_assignments(text)
    assert str(caught.value) == sentence


def test_a_toml_file_may_have_tables(tmp_path):
    (tmp_path / "mine.toml").write_text('rounds = 3\nprotonorm.gamma = 2\n[fedproto]\naggregation = "median"\n')
    assert read_assignments("mine.toml") == {
        "rounds": 3,
        "protonorm.gamma": 2,
        "fedproto.aggregation": "median",
    }


def test_a_toml_file_that_cannot_be_read(tmp_path):
    with pytest.raises(
        SettingError, match=r"^the settings file nope.toml cannot be read \(No such file or directory\)\.$"
    ):
        read_toml(Path("nope.toml"))
    (tmp_path / "bad.toml").write_text("rounds = \n")
    with pytest.raises(SettingError, match=r"^the settings file bad.toml is not valid TOML \(Invalid value .*\)\.$"):
        read_toml(Path("bad.toml"))
    (tmp_path / "latin.toml").write_bytes(b'dataset = "\xe9"')
    with pytest.raises(
        SettingError, match=r"^the settings file latin.toml cannot be read \(invalid continuation byte\)\.$"
    ):
        read_toml(Path("latin.toml"))


# --- merging ----------------------------------------------------------------------------------------


def test_nothing_asked_is_the_defaults_with_ten_clients():
    made = plan()
    assert made.run_config == known_settings() | {"clients": 10}
    assert made.clients == 10


def test_later_wins(tmp_path):
    (tmp_path / "mine.toml").write_text("rounds = 3\nalpha = 0.7\nseed = 1\n")
    made = plan(["rounds=2 alpha=0.2", "mine.toml", "seed=9"], preset="spiral", clients=4)
    wanted = {"rounds": 3, "alpha": 0.7, "seed": 9, "clients": 4, "dataset": "spiral", "feature-dim": 2}
    assert {name: made.run_config[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("assignments", "flag", "clients"), [(["clients=7"], None, 7), (["clients=7"], 3, 3), (["clients=0"], None, 10)]
)
def test_clients_are_a_setting_too(assignments, flag, clients):
    made = plan(assignments, clients=flag)
    assert (made.clients, made.run_config["clients"]) == (clients, clients)


def femnist(folder):
    """A folder of images of 62 classes, as a table; of each as many as the clients that draw it want."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=62)})
    for split, count in (("train", 500), ("test", 1)):
        images = [Image.new("L", (8, 8), 4 * label) for label in range(62)]
        rows = {"image": images * count, "label": list(range(62)) * count}
        datasets.Dataset.from_dict(rows, features).to_parquet(folder / f"{split}.parquet")
    return folder


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_whole(name, tmp_path):
    settings = run_config.read_preset(name)
    given = []
    if name == "fedpagr-mimic-iv":
        # its data are those of whoever holds access
        notes = [f"p{row // 2},note {row},class {row // 2 % 6}" for row in range(6000)]
        (tmp_path / "notes.csv").write_text("\n".join(["subject_id,text,label", *notes]) + "\n")
        settings["dataset"] = str(tmp_path)
        given = [f'dataset="{tmp_path}"']
    if name == "gfpl-femnist":
        # the hub's copy has no test rows
        settings["dataset"] = str(femnist(tmp_path))
        given = [f'dataset="{tmp_path}"']
    if name == "pfpl-pacs":
        # its domains are a user's own folders
        for domain in ("art_painting", "cartoon", "photo", "sketch"):
            for split, label, number in itertools.product(("train", "test"), range(7), range(5)):
                place = tmp_path / "pacs" / domain / split / f"class{label}"
                place.mkdir(parents=True, exist_ok=True)
                Image.new("L", (8, 8), number).save(place / f"{number}.png")
        settings["dataset"] = str(tmp_path / "pacs" / "*")
        given = [f'dataset="{tmp_path}/pacs/*"']
    made = plan(given, preset=name)
    # the scale of ProtoNorm's control stands in the preset for those who choose that
    settings = {key: value for key, value in settings.items() if not key.startswith("frame.")}
    assert made.run_config == known_settings() | settings
    assert made.clients == settings["clients"]


def test_presets_hold_the_papers_values():
    assert preset_names() == [
        "fedpagr-cifar10",
        "fedpagr-cifar100",
        "fedpagr-fashion-mnist",
        "fedpagr-mimic-iv",
        "fedpagr-tiny-imagenet",
        "gfpl-cifar10",
        "gfpl-cifar100",
        "gfpl-femnist",
        "gfpl-mnist",
        "pfpl-digits",
        "pfpl-pacs",
        "protonorm-cifar10",
        "protonorm-cifar100",
        "spiral",
        "tinyproto-cifar10",
        "tinyproto-cifar100",
    ]
    table = {"clients": 20, "alpha": 0.1, "rounds": 300, "learning-rate": 0.01, "batch-size": 32}
    table |= {"models": "papers-protonorm", "split": "pooled", "test-share": 0.25, "validation-share": 0.0}
    table |= {"prototype-loss": "mse"}
    theirs = {"partition": "table", "partition-table": str(run_config.PRESETS / "partitions" / AUTHORS_TABLE)}
    dealt = {10: theirs | {"prototype-weight": 10.0}, 100: {"partition": "dirichlet", "prototype-weight": 20.0}}
    for classes, gamma in ((10, 100.0), (100, 200.0)):
        made = plan(preset=f"protonorm-cifar{classes}").run_config
        wanted = table | dealt[classes] | {"dataset": f"cifar{classes}", "feature-dim": 512}
        wanted |= {"protonorm.gamma": gamma, "protonorm.alignment": "thomson", "protonorm.iterations": 100}
        assert {name: made[name] for name in wanted} == wanted
        control = plan(['strategy="frame"'], preset=f"protonorm-cifar{classes}").run_config
        assert (control["frame.gamma"], control["strategy"]) == (gamma, "frame")
        made = plan(preset=f"tinyproto-cifar{classes}").run_config
        wanted = table | dealt[classes] | {"dataset": f"cifar{classes}", "feature-dim": 500, "sparsity-dim": 50}
        wanted |= {"strategy": "tinyproto-fp", "tinyproto.mu": 0.0, "tinyproto.sum": True, "tinyproto.scaling": True}
        assert {name: made[name] for name in wanted} == wanted


def test_every_preset_states_lambda_and_its_loss():
    for name in preset_names():
        settings = run_config.read_preset(name)
        assert {"prototype-weight", "prototype-loss"} <= settings.keys(), name


def test_the_authors_table_is_that_of_the_methods_page():
    """20 clients, 102 holdings, 6,000 images of each class."""
    rows = [
        line.split(",")[1:] for line in (run_config.PRESETS / "partitions" / AUTHORS_TABLE).read_text().splitlines()
    ]
    counts = np.array(rows[1:], dtype=int)
    assert counts.shape == (20, 10)
    assert (counts > 0).sum() == 102
    assert (counts.sum(axis=0) == 6000).all()


def test_another_partition_leaves_the_table_behind():
    made = plan(['partition="iid"'], preset="protonorm-cifar10").run_config
    assert (made["partition"], made["partition-table"]) == ("iid", "")


def test_an_alpha_that_a_table_would_pass_over_is_refused():
    with pytest.raises(SettingError, match=r"^setting `alpha` is 0.5, but rows are dealt by a partition table"):
        plan(["alpha=0.5"], preset="protonorm-cifar10")
    assert plan(['alpha=0.5 partition="dirichlet"'], preset="protonorm-cifar10").run_config["alpha"] == 0.5


def test_a_table_is_sought_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(",".join(["client", *map(str, range(10))]) + "\n" + "0" + ",9" * 10 + "\n")
    made = plan(['partition="table" partition-table="mine.csv"'], clients=1).run_config
    assert made["partition-table"] == str(tmp_path / "mine.csv")
    with pytest.raises(DataError, match="has 1 rows, but it needs one for each of the run's 2 clients"):
        plan(['partition="table" partition-table="mine.csv"'], clients=2)


def test_fedpagrs_presets_hold_the_papers_values():
    table = {"clients": 20, "alpha": 0.1, "rounds": 400, "fraction-train": 0.5, "momentum": 0.9, "batch-size": 32}
    table |= {"models": "papers-fedpagr", "feature-dim": 512, "learning-rate": 0.01, "fedpagr.temperature": 0.1}
    table |= {"fedpagr.entropy-weight": 0.1, "fedpagr.separation-weight": 0.5}
    for name, margin, steps in (("cifar10", 0.3, 5), ("fashion-mnist", 0.3, 5), ("cifar100", 0.1, 3)):
        made = plan(preset=f"fedpagr-{name}").run_config
        wanted = table | {"fedpagr.margin": margin, "fedpagr.steps": steps}
        assert {setting: made[setting] for setting in wanted} == wanted
        # its last five evaluations are the paper's: rounds 320 to 400
        assert (made["rounds"] - 320) / made["evaluate-every"] == 4 == (400 - 320) / made["ensemble-every"]


def test_gfpls_presets_hold_the_papers_values():
    table = {"strategy": "gfpl", "clients": 20, "partition": "way-shot", "ways": 3, "shots": 100, "split": "official"}
    table |= {"learning-rate": 0.01, "momentum": 0.5, "validation-share": 0.0, "fraction-train": 1.0, "local-epochs": 1}
    table |= {"gfpl.components": 4, "gfpl.dual-classifier": True, "gfpl.dot-weight": 2.0, "gfpl.pseudo-features": 16}
    table |= {"gfpl.threshold": 1.0, "gfpl.threshold-per-dimension": False, "gfpl.weighting": "uniform"}
    table |= {"gfpl.first-exchange": 10, "gfpl.exchange-every": 10}
    table |= {"gfpl.retrain-learning-rate": 0.01, "gfpl.retrain-momentum": 0.5}
    for name, model, dim, batch, spread, rounds in (
        ("mnist", "cnn2_narrow", 50, 4, 2, 80),
        ("femnist", "cnn2", 80, 4, 1, 110),
        ("cifar10", "resnet18", 128, 32, 1, 100),
        ("cifar100", "resnet18", 128, 32, 2, 80),
    ):
        made = known_settings() | read_toml(run_config.PRESETS / f"gfpl-{name}.toml")
        wanted = table | {"models": model, "feature-dim": dim, "batch-size": batch, "rounds": rounds}
        wanted |= {"ways-spread": spread, "shots-spread": spread}
        assert {setting: made[setting] for setting in wanted} == wanted


def test_pfpls_presets_hold_the_papers_values():
    table = {"strategy": "pfpl", "clients": 20, "partition": "mixed", "ways": 3, "shots": 0, "models": "resnet18"}
    table |= {"rounds": 100, "local-epochs": 1, "learning-rate": 0.01, "momentum": 0.9, "weight-decay": 1e-5}
    table |= {
        "batch-size": 4,
        "prototype-weight": 1.0,
        "prototype-loss": "l2-squared",
        "pfpl.alpha": 0.5,
        "pfpl.weighting": "similarity",
    }
    for name in ("digits", "pacs"):
        made = known_settings() | read_toml(run_config.PRESETS / f"pfpl-{name}.toml")
        assert {setting: made[setting] for setting in table} == table


def test_another_strategy_leaves_a_presets_method_behind():
    made = plan(['strategy="fedproto"'], preset="protonorm-cifar10").run_config
    assert made["protonorm.gamma"] == known_settings()["protonorm.gamma"]
    assert (made["rounds"], made["strategy"]) == (300, "fedproto")


def test_what_is_asked_for_by_hand_is_not_left_behind():
    with pytest.raises(SettingError, match=r"^setting `protonorm\.gamma` is 3, but `fedproto` "):
        plan(['strategy="fedproto" protonorm.gamma=3'], preset="protonorm-cifar10")


# --- paths ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["./pictures", "../{here}/pictures", "{absolute}/pictures", "~/pictures"])
def test_data_paths_are_resolved_from_the_working_directory(given, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a", "b"):
        (tmp_path / "pictures" / "train" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("L", (8, 8)).save(tmp_path / "pictures" / "train" / name / f"{number}.png")
    given = given.format(here=tmp_path.name, absolute=tmp_path)
    assert plan([f'dataset="{given}" min-samples=1 partition="iid"'], clients=2).run_config["dataset"] == str(
        tmp_path / "pictures"
    )


def paint(folder):
    """Ten grey classes, as those of digits."""
    for number in range(20):
        (folder / str(number % 10)).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(folder / str(number % 10) / f"{number}.png")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("./all/one, digits,~/all/two", "{here}/all/one,digits,{here}/all/two"),
        ("./all/*", "{here}/all/*"),
        ("../{name}/all/*", "{here}/all/*"),
        ("~/all/*", "{here}/all/*"),
    ],
)
def test_each_path_of_several_data_sets_is_resolved(given, found, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("one", "two"):
        paint(tmp_path / "all" / name)
    given, found = (text.format(here=tmp_path, name=tmp_path.name) for text in (given, found))
    assert plan([f'dataset="{given}" partition="iid" min-samples=1'], clients=2).run_config["dataset"] == found


def test_folders_with_commas(tmp_path, monkeypatch):
    paint(tmp_path / "in, out" / "one")
    config = plan(['dataset="./in, out/one" partition="iid" min-samples=1'], clients=2).run_config
    assert config["dataset"] == str(tmp_path / "in, out" / "one")
    monkeypatch.chdir(tmp_path / "in, out")
    with pytest.raises(SettingError, match=r"`dataset` lists \".*in, out/one\", whose comma would part it in the list"):
        plan(['dataset="./one,digits"'])
    with pytest.raises(DataError, match="a list with an empty item"):
        plan(['dataset="./one,,digits"'])


def test_names_of_data_sets_are_no_paths(tmp_path):
    (tmp_path / "digits").mkdir()
    assert plan(['dataset="digits"']).run_config["dataset"] == "digits"


@pytest.mark.parametrize("given", ["./shared", "../{here}/shared", "{absolute}/shared", "~/shared"])
def test_the_shared_test_set_is_resolved_from_the_working_directory(given, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for number in range(10):
        (tmp_path / "shared" / str(number)).mkdir(parents=True)
        Image.new("L", (8, 8), number).save(tmp_path / "shared" / str(number) / "0.png")
    given = given.format(here=tmp_path.name, absolute=tmp_path)
    made = plan([f'shared-test-path="{given}" ensemble-every=1'], clients=2).run_config
    assert made["shared-test-path"] == str(tmp_path / "shared")


def test_a_shared_test_set_that_is_not_there_is_sought_here_and_an_empty_one_nowhere(tmp_path):
    with pytest.raises(SettingError, match=rf"test set: shared-test-path: data path '{tmp_path}/digits' does not"):
        plan(['shared-test-path="digits" ensemble-every=1'], clients=2)
    assert plan(["ensemble-every=1"], clients=2).run_config.get("shared-test-path", "") == ""


def test_the_results_folder_is_resolved_and_not_made(tmp_path):
    assert plan(results="out").run_config["results-dir"] == str(tmp_path / "out")
    assert plan(['results-dir="more/out"']).run_config["results-dir"] == str(tmp_path / "more" / "out")
    assert plan(['results-dir="a"'], results="b").run_config["results-dir"] == str(tmp_path / "b")
    assert plan().run_config["results-dir"] == ""
    assert not any((tmp_path / name).exists() for name in ("out", "more", "a", "b", "home/results"))


# --- resuming ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["latest", "20260101-000000-local-digits", "home/results/20260101-000000-local-digits", "{absolute}"]
)
def test_a_resumed_run_keeps_its_settings(name, cut_run):
    made = plan(["rounds=9"], resume=name.format(absolute=cut_run))
    assert made.clients == 6
    old = json.loads((cut_run / "settings.json").read_text())
    assert made.run_config == old | {"rounds": 9, "resume": str(cut_run)}


def test_resume_as_a_setting_is_the_same(cut_run):
    assert plan(['resume="latest"']) == plan(resume="latest")


def test_clients_of_a_plain_flower_run_come_from_its_roster(cut_run):
    settings = json.loads((cut_run / "settings.json").read_text()) | {"clients": 0}
    (cut_run / "settings.json").write_text(json.dumps(settings))
    made = plan(resume="latest")
    assert (made.clients, made.run_config["clients"]) == (6, 0)


def test_results_tells_where_to_look_for_a_run(cut_run, tmp_path):
    os.rename(cut_run.parent, tmp_path / "moved")
    assert plan(resume="latest", results="moved").run_config["resume"] == str(tmp_path / "moved" / cut_run.name)


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        (
            {"assignments": ["alpha=1.0"], "resume": "latest"},
            "cannot resume {run}: setting `alpha` was 0.5 and is now 1.0",
        ),
        (
            {"clients": 3, "resume": "latest"},
            "cannot resume {run}: setting `clients` was 6 and is now 3",
        ),
        (
            {"resume": "nope"},
            'setting `resume` is "nope", but ',
        ),
        (
            {"resume": "latest", "preset": "spiral"},
            "--preset and --resume exclude each other: a resumed run keeps its settings.",
        ),
    ],
)
def test_what_cannot_be_resumed(keywords, sentence, cut_run):
    with pytest.raises(SettingError) as caught:
        plan(**keywords)
    assert str(caught.value).startswith(sentence.format(run=cut_run))


# --- mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        (
            {"assignments": ["lerning-rate=1.0"]},
            "unknown setting `lerning-rate` (did you mean `learning-rate`?)",
        ),
        (
            {"assignments": ["protonorm.gama=1.0"]},
            "unknown setting `protonorm.gama` (did you mean `protonorm.gamma`?)",
        ),
        (
            {"preset": "spirall"},
            "unknown preset `spirall` (did you mean `spiral`?); one of fedpagr-cifar10, fedpagr-cifar100, "
            "fedpagr-fashion-mnist, fedpagr-mimic-iv, fedpagr-tiny-imagenet, gfpl-cifar10, gfpl-cifar100, "
            "gfpl-femnist, gfpl-mnist, pfpl-digits, pfpl-pacs, protonorm-cifar10, protonorm-cifar100, spiral, "
            "tinyproto-cifar10, tinyproto-cifar100 is allowed.",
        ),
        ({"clients": 0}, "--clients is 0, but a run needs at least 1."),
        ({"assignments": ["clients=-2"]}, "setting `clients` is -2, but "),
        ({"assignments": ["feature-dim=1"]}, "setting `feature-dim` is 1, but "),
        ({"assignments": ["rounds=true"]}, "setting `rounds` is true, but "),
        ({"assignments": ["results-dir=3"]}, "setting `results-dir` is 3, but "),
        (
            {"assignments": ['strategy="local" protonorm.gamma=1.5']},
            "setting `protonorm.gamma` is 1.5, but `local` ",
        ),
        (
            {"assignments": ['dataset="./nope"']},
            "data path '{here}/nope' does not exist",
        ),
        (
            {"results": "a-file/below"},
            "the results folder {here}/a-file/below cannot be written (Not a directory); give --results a folder of "
            "yours.",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(keywords, sentence, tmp_path):
    (tmp_path / "a-file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((SettingError, DataError)) as caught:
        plan(**keywords)
    # the floors below may say more after the words that are asked for here
    assert str(caught.value).startswith(sentence.format(here=tmp_path))
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("assignment", ['strategy="fedprot"', 'models="resnet9"', 'dataset="digit"', 'partition="iit"'])
def test_unknown_names_are_refused_by_name(assignment):
    value = assignment.partition("=")[2].strip('"')
    with pytest.raises((SettingError, DataError, ModelError), match=value):
        plan([assignment])


def test_rounds_that_are_finished_cannot_be_taken_back(cut_run):
    assert plan(["rounds=3"], resume="latest").run_config["rounds"] == 3
    with pytest.raises(SettingError) as caught:
        plan(["rounds=2"], resume="latest")
    assert str(caught.value) == f"setting `rounds` is 2, but {cut_run} has finished 3; resume with that many or more."


@pytest.mark.parametrize(
    ("roster", "said"),
    [(None, "cannot be read"), ("[{", "cannot be read"), ("{}", "holds no list"), ("[]", "names no")],
)
def test_a_roster_that_tells_no_number_of_clients(roster, said, cut_run):
    settings = json.loads((cut_run / "settings.json").read_text()) | {"clients": 0}
    (cut_run / "settings.json").write_text(json.dumps(settings))
    (cut_run / "roster.json").unlink()
    if roster is not None:
        (cut_run / "roster.json").write_text(roster)
    with pytest.raises(SettingError, match=said) as caught:
        plan(resume="latest")
    assert str(caught.value).startswith(str(cut_run / "roster.json"))
    assert str(caught.value).endswith("; start a new run.")


def test_an_old_setting_of_another_type_is_a_sentence(cut_run):
    settings = json.loads((cut_run / "settings.json").read_text()) | {"clients": "six"}
    (cut_run / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(SettingError, match=r'^setting `clients` is "six", but it should be a valid integer'):
        plan(resume="latest")
