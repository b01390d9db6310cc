"""The comparison's file: what it may say, what it is narrowed to, and what is wrong with it."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from protosphere.comparison.spec import OF_A_ROW, Metric, Row, load, narrow, parse_metric, read
from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings
from protosphere.data.partition.assignment import DataSpec

FILE = """
title = "A table"
seeds = [3, 1]
metric = ["last-5", "ensemble final"]
target = 0.75
methods = ["local", { label = "Norm", strategy = "protonorm", protonorm.gamma = 5.0 }]

[settings]
rounds = 4
protonorm.iterations = 7

[[datasets]]
label = "Digits"
dataset = "digits"

[[datasets]]
label = "CIFAR-10"
base = "protonorm-cifar10"
missing = "ask for it"

[[partitions]]
label = "skewed"
alpha = 0.1

[[partitions]]
label = "even"
partition = "iid"

[[paper]]
dataset = "Digits"
partition = "even"
metric = "ensemble final"
accuracy = { Norm = 88.56 }
"""


@pytest.fixture
def file(tmp_path):
    """file(text): a comparison of that text, with `replaced` old words by new ones."""

    def write(text=FILE, **replaced):
        for old, new in replaced.items():
            text = text.replace(old, new)
        (tmp_path / "table.toml").write_text(text)
        return tmp_path / "table.toml"

    return write


def test_a_file_says_all_of_a_comparison(file):
    found = read(file())
    assert (found.name, found.title, found.seeds, found.target) == ("table", "A table", (3, 1), 0.75)
    assert found.metrics == (Metric("", "last-5"), Metric("ensemble", "final"))
    assert found.settings == {"rounds": 4, "protonorm.iterations": 7}
    assert [(m.label, m.settings) for m in found.methods] == [
        ("local", {"strategy": "local"}),
        ("Norm", {"strategy": "protonorm", "protonorm.gamma": 5.0}),
    ]
    assert [row.label for row in found.rows] == ["Digits, skewed", "Digits, even", "CIFAR-10, skewed", "CIFAR-10, even"]
    assert found.datasets[1].base == "protonorm-cifar10"
    assert found.datasets[1].missing == "ask for it"
    (printed,) = found.paper
    assert (printed.row, printed.method, printed.metric, printed.accuracy) == (
        "Digits, even",
        "Norm",
        "ensemble final",
        88.56,
    )


def test_the_docs_show_a_file_that_works(file):
    page = (Path(__file__).resolve().parents[2] / "docs" / "compare.md").read_text()
    found = read(file(page.split("```toml\n")[1].split("```")[0]))
    assert [row.label for row in found.rows][::3] == ["CIFAR-10, skewed", "Own photos, mild"]
    assert found.paper[0].method == found.methods[1].label


def test_without_a_file_the_floor_the_control_and_two_methods_on_digits():
    found = load()
    assert [method.label for method in found.methods] == ["local", "frame", "fedproto", "protonorm"]
    assert found.rows == [Row(found.datasets[0])]
    assert (found.rows[0].label, found.seeds, found.metrics) == ("digits", (0, 1, 2), (Metric(),))


def test_a_data_set_has_settings_of_a_method_and_a_paper_prints_of_a_varied_value(file):
    text = file().read_text()
    text = text.replace(
        'missing = "ask for it"\n', 'missing = "ask for it"\nmethods.Norm = { protonorm.gamma = 7.0 }\n'
    )
    text = text.replace(" protonorm.gamma = 5.0 }", " protonorm.iterations = 3 }").replace(
        "[settings]", "[vary]\nprotonorm.epsilon = [0.1, 0.2]\n[settings]"
    )
    text = text.replace("{ Norm = 88.56 }", '{ local = 88.56, "Norm, epsilon = 0.2" = 80.5 }')
    found = read(file(text))
    assert [dataset.methods for dataset in found.datasets] == [{}, {"Norm": {"protonorm.gamma": 7.0}}]
    assert [(each.method, each.accuracy) for each in found.paper] == [("local", 88.56), ("Norm, epsilon = 0.2", 80.5)]
    for wrong, said in (
        ("methods.Nrom = { protonorm.gamma = 7.0 }", '`methods` of CIFAR-10 has "Nrom"'),
        ("methods.Norm = { alpha = 7.0 }", "setting `alpha` stands in `methods`"),
        ('methods.Norm = { strategy = "local" }', "setting `strategy` stands in `methods`"),
        ("methods = 3", "`methods` of a data set is a table"),
    ):
        with pytest.raises(SettingError, match=re.escape(said)):
            read(file(text.replace("methods.Norm = { protonorm.gamma = 7.0 }", wrong)))


# --- narrowing ----------------------------------------------------------------------------------------


def test_a_method_of_ones_own_is_chosen_by_its_path(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from protosphere.strategies.fedproto import METHOD")
    found = narrow(read(file()), methods="norm,./mine.py")
    assert [method.label for method in found.methods] == ["Norm", "./mine.py"]
    assert found.methods[1].settings == {"strategy": "./mine.py"}
    with pytest.raises(SettingError, match=r"'gone\.py' cannot be read"):
        narrow(read(file()), methods="norm,./gone.py")


def test_a_part_is_chosen_by_label_data_set_or_strategy(file):
    found = narrow(read(file()), methods="norm,fedproto", datasets="cifar10", partitions="even", seeds="7,0")
    assert [(m.label, m.settings["strategy"]) for m in found.methods] == [
        ("Norm", "protonorm"),
        ("fedproto", "fedproto"),
    ]
    assert [row.label for row in found.rows] == ["CIFAR-10, even"]
    assert found.seeds == (7, 0)
    assert narrow(read(file()), methods="protonorm").methods[0].label == "Norm"
    assert narrow(read(file()), datasets="digits").datasets[0].label == "Digits"
    whole = read(file())
    assert narrow(whole) == whole


@pytest.mark.parametrize(
    ("two", "asked", "found"),
    [(("γ = 1.0", "γ = 10"), "γ=10", "γ = 10"), (("a+", "A"), "A", "A")],
    ids=["a number is not another one", "an exact label goes before one like it"],
)
def test_a_label_is_found_among_those_like_it(file, two, asked, found):
    first, second = two
    methods = (
        f'{{ label = "{first}", strategy = "fedproto" }}, {{ label = "{second}", strategy = "protonorm" }}, "local"'
    )
    assert [each.label for each in narrow(read(file(**{'"local"': methods})), methods=asked).methods] == [found]


def test_what_makes_a_row_is_known_to_the_settings():
    assert {name.replace("-", "_") for name in OF_A_ROW} <= Settings.model_fields.keys()
    of_rows = {field.name for field in fields(DataSpec)} - {"seed", "columns", "listed", "secret", "code"}
    assert {name.replace("_", "-") for name in of_rows} <= OF_A_ROW


def test_metric_and_target_are_replaced(file):
    found = narrow(read(file()), metric="best,classifier client-best", target=0.5)
    assert (found.metrics, found.target) == ((Metric("", "best"), Metric("classifier", "client-best")), 0.5)


def test_own_data_need_no_file():
    found = narrow(load(), datasets="digits,../photos", own_data=True)
    assert [(row.label, row.dataset.settings) for row in found.rows] == [
        ("digits", {"dataset": "digits"}),
        ("photos", {"dataset": "../photos"}),
    ]
    assert found.name == "digits-photos"


def test_a_metric_is_written_as_it_is_read_and_no_other_is_one():
    for text in (
        "headline",
        "classifier headline",
        "final",
        "classifier best",
        "etf last-5",
        "ensemble best",
        "macro",
        "domain mnist-m",
    ):
        assert str(parse_metric(text)) == text
    # a domain is called by its folder
    for word in ("domain", "domain-unweighted"):
        assert parse_metric(f"{word} Real World") == Metric(word, "Real World")
    for text in ("", "a b c", 3, "classifier macro", "domain", "domain-unweighted"):
        with pytest.raises(SettingError, match="metric is"):
            parse_metric(text)


def test_the_baseline_is_the_one_named_else_local_else_the_first():
    found = narrow(load(), methods="fedproto,local,protonorm")
    assert found.baseline_label == "local"
    assert narrow(load(), methods="fedproto,protonorm").baseline_label == "fedproto"
    assert narrow(load(), methods="fedproto,local", baseline="FEDPROTO").baseline_label == "fedproto"
    with pytest.raises(SettingError, match=r"--baseline .*`fedproto`"):
        narrow(load(), methods="fedproto,local", baseline="fedprot")
