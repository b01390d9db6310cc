"""Settings that are varied: which methods stand in the plan for them, and what is refused."""

import pandas as pd
import pytest

from protosphere.comparison.pictures import picture_by, points_by
from protosphere.comparison.plan import from_table, load
from protosphere.comparison.plan import read as read_plan
from protosphere.comparison.selection import chosen
from protosphere.comparison.sweep import settings_varied, swept, varied
from protosphere.core.errors import SettingError


def usual(*methods):
    plan = load()
    return (
        plan
        if not methods
        else type(plan)(**{**vars(plan), "methods": [m for m in plan.methods if m.label in methods]})
    )


def labels(comparison):
    return [entry.label for entry in comparison.methods]


def test_each_setting_is_varied_by_itself_and_what_does_not_read_it_stays_once():
    found = varied(usual(), ["protonorm.gamma=1, 10", 'protonorm.alignment="none", "auto"'])
    assert labels(found) == [
        *("local", "frame", "fedproto", "protonorm, gamma = 1", "protonorm, gamma = 10"),
        *("protonorm, alignment = none", "protonorm, alignment = auto"),
    ]
    assert settings_varied(found) == ["protonorm.gamma", "protonorm.alignment"]
    by_label = {entry.label: entry.settings for entry in found.methods}
    assert by_label["protonorm, gamma = 1"] == {"strategy": "protonorm", "protonorm.gamma": 1}
    # a setting that all methods share is varied for all that read it
    pulled = [f"{name}, prototype-weight = {value}" for name in ("frame", "fedproto", "protonorm") for value in (1, 9)]
    assert labels(varied(usual(), ["prototype-weight=1,9"])) == ["local", *pulled]
    assert varied(usual()) == usual()


def test_the_baseline_of_a_varied_method_is_the_one_with_the_default(tmp_path):
    alone = usual("fedproto", "protonorm")
    assert varied(alone, ["protonorm.gamma=1,10"]).baseline == "fedproto"
    only = usual("protonorm")
    assert varied(only, ["protonorm.gamma=1,10"]).baseline == "protonorm, gamma = 10"
    assert varied(only, ["protonorm.gamma=1,3"]).baseline == "protonorm, gamma = 1"


def test_a_file_says_what_is_varied_and_the_command_line_goes_before(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('methods = ["local", "protonorm"]\ndatasets = ["digits"]\n[vary]\nprotonorm.gamma = [1, 2, 3]\n')
    plan = read_plan(file)
    assert labels(varied(plan))[1:] == [f"protonorm, gamma = {value}" for value in (1, 2, 3)]
    assert labels(varied(plan, ["protonorm.gamma=7,8"]))[1:] == [f"protonorm, gamma = {value}" for value in (7, 8)]


def test_a_figure_of_a_paper_is_of_a_variant_and_not_of_the_method_that_it_replaces(tmp_path):
    """No table would show it."""
    file = tmp_path / "mine.toml"
    text = """
        methods = ["local", { label = "Norm", strategy = "protonorm" }]
        datasets = ["digits"]
        [vary]
        protonorm.gamma = [1, 2]
        [[paper]]
        dataset = "digits"
        accuracy = { local = 12.0, PRINTED = 88.56 }
    """
    file.write_text(text.replace("PRINTED", '"Norm, gamma = 2"'))
    assert [printed.method for printed in varied(read_plan(file)).paper] == ["local", "Norm, gamma = 2"]
    # --methods leaves the file's other figures where they are
    assert labels(varied(chosen(read_plan(file), methods="Norm"))) == ["Norm, gamma = 1", "Norm, gamma = 2"]
    file.write_text(text.replace("PRINTED", "Norm"))
    words = r'has "Norm", but \[vary\] puts "Norm, gamma = 1", "Norm, gamma = 2" in its place, and .* 88.56: name one'
    with pytest.raises(SettingError, match=f"{words} of these, or .* with `protonorm.gamma` of its own"):
        varied(read_plan(file))
    # who varies it on the command line has no file to mend
    assert labels(varied(read_plan(file), ["protonorm.gamma=7,8"]))[1:] == ["Norm, gamma = 7", "Norm, gamma = 8"]
    # `local` does not read it
    file.write_text(text.replace("PRINTED", '"local, gamma = 2"'))
    with pytest.raises(SettingError, match=r'has "local, gamma = 2", which .* does not read the setting'):
        varied(read_plan(file))
    # the remedy
    own = '{ label = "ours", strategy = "protonorm" }, { label = "Norm", strategy = "protonorm", protonorm.gamma = 5 }'
    file.write_text(text.replace("PRINTED", "Norm").replace('{ label = "Norm", strategy = "protonorm" }', own))
    assert {printed.method for printed in varied(read_plan(file)).paper} <= set(labels(varied(read_plan(file))))


def test_a_varied_method_is_swept_for_each_of_its_values():
    found = swept(varied(usual("local", "protonorm"), ["protonorm.gamma=1,10"]), ["learning-rate=0.1,0.01"])
    assert {entry.of for entry in found.methods} == {"local", "protonorm, gamma = 1", "protonorm, gamma = 10"}
    assert settings_varied(found) == ["protonorm.gamma"]
    with pytest.raises(SettingError, match=r"--sweep protonorm.gamma.*no method of this comparison reads it"):
        swept(varied(usual("protonorm"), ["protonorm.gamma=1,10"]), ["protonorm.gamma=1,2"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("protonorm.gamma", "--vary is 'protonorm.gamma', but it is a setting and two values or more"),
        ("protonorm.gamma=1", "two values or more"),
        ("protonorm.gamma=1,1", "there twice"),
        ("protonorm.gama=1,2", "did you mean `protonorm.gamma`"),
        ("alpha=0.1,1", "--vary alpha: the methods of a row share it"),
        ("seed=1,2", "--vary seed"),
        ("fedtgp.margin=1,2", "no method of this comparison reads it"),
    ],
)
def test_what_cannot_be_varied_is_refused(text, words):
    with pytest.raises(SettingError, match=words):
        varied(usual(), [text])


@pytest.mark.parametrize(
    ("preset", "methods", "expected"),
    [
        ("protonorm-table5", "FedTGP", [f"FedTGP, gamma = {value}" for value in (1.0, 1.1, 1.2, 1.3, 1.4)]),
        ("protonorm-table4", "ProtoNorm (release)", ["ProtoNorm (release)"]),
        ("protonorm-figure2", "Local, FedProto", ["Local", "FedProto"]),
        ("protonorm-figure2", "ProtoNorm", ["ProtoNorm, gamma = 1", "ProtoNorm, gamma = 10"]),
    ],
)
def test_what_a_file_varies_of_a_method_that_is_left_out_is_left_out(preset, methods, expected):
    assert labels(varied(chosen(load(preset=preset), methods=methods))) == expected
    with pytest.raises(SettingError, match="no method of this comparison reads it"):
        varied(chosen(load(preset=preset), methods=methods), ["gfpl.components=1,2"])


def test_what_all_methods_share_is_left_out_too_where_no_method_that_stays_reads_it():
    table = {"methods": ["local", "fedproto"], "datasets": ["digits"]}
    made = from_table("mine", table | {"vary": {"prototype-weight": [0.1, 1.0]}})
    assert labels(varied(chosen(made, methods="local"))) == ["local"]
    assert len(labels(varied(chosen(made, methods="fedproto")))) == 2
    slip = from_table("mine", table | {"vary": {"prototype-wait": [0.1, 1.0]}})
    with pytest.raises(SettingError, match="did you mean `prototype-weight`"):
        varied(chosen(slip, methods="fedproto"))


def test_a_curve_has_its_method_s_values_and_waits_for_none():
    plan = varied(usual("local", "protonorm"), ["protonorm.gamma=10,1"])
    rows = [
        ("digits", label, seed, accuracy)
        for label, accuracies in {"local": (0.5, 0.7), "protonorm, gamma = 10": (0.8, 0.9)}.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    frame = pd.DataFrame(rows, columns=["row", "method", "seed", "metric: headline"])
    points = points_by(plan, frame, "digits", "protonorm.gamma")
    assert points["local"][""].mean == pytest.approx(0.6)
    assert list(points["protonorm"]) == [10, 1]
    assert points["protonorm"][10].mean == pytest.approx(0.85)
    assert points["protonorm"][1] is None
    drawn = picture_by(plan, frame, "digits", "protonorm.gamma", "vary")
    assert [row[1] for row in drawn.numbers[1:]] == ["", 10]
    assert "highest protonorm 85.0 % at 10" in drawn.alt
    assert "no trial is finished" in picture_by(plan, frame[:2], "digits", "protonorm.gamma", "vary")
