"""The comparison's file: what it may say, what it is narrowed to, and what is wrong with it."""

from pathlib import Path

import pytest

from protosphere.comparison.spec import Metric, Row, load, narrow, parse_metric, read
from protosphere.core.errors import SettingError

FILE = """
title = "A table"
seeds = [3, 1]
metric = ["last-5", "ensemble final"]
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
    assert (found.name, found.title, found.seeds) == ("table", "A table", (3, 1))
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


# --- narrowing ----------------------------------------------------------------------------------------


def test_a_part_is_chosen_by_label_data_set_strategy_or_path(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from protosphere.strategies.fedproto import METHOD")
    whole = read(file())
    found = narrow(
        whole, methods="norm,fedproto,./mine.py", datasets="cifar10", partitions="even", seeds="7,0", metric="best"
    )
    assert [(m.label, m.settings["strategy"]) for m in found.methods] == [
        *(("Norm", "protonorm"), ("fedproto", "fedproto"), ("./mine.py", "./mine.py"))
    ]
    assert [row.label for row in found.rows] == ["CIFAR-10, even"]
    assert (found.seeds, found.metrics) == ((7, 0), (Metric("", "best"),))
    assert narrow(whole) == whole
    with pytest.raises(SettingError, match=r"'gone\.py' cannot be read"):
        narrow(whole, methods="norm,./gone.py")


def test_without_a_file_there_are_four_methods_on_any_data():
    found = load()
    assert [method.label for method in found.methods] == ["local", "frame", "fedproto", "protonorm"]
    assert (found.rows, found.seeds, found.metrics) == ([Row(found.datasets[0])], (0, 1, 2), (Metric(),))
    own = narrow(found, datasets="digits,../photos", own_data=True)
    assert [(row.label, row.dataset.settings["dataset"]) for row in own.rows] == [
        *(("digits", "digits"), ("photos", "../photos"))
    ]
    assert own.name == "digits-photos"


@pytest.mark.parametrize(
    "text",
    ["headline", "classifier best", "ensemble best", "macro", "domain mnist-m", "domain-unweighted Real World"],
)
def test_a_metric_is_written_as_it_is_read(text):
    assert str(parse_metric(text)) == text


@pytest.mark.parametrize(
    ("methods", "baseline", "expected"),
    [
        ("fedproto,local,protonorm", "", "local"),
        ("fedproto,protonorm", "", "fedproto"),
        ("fedproto,local", "FEDPROTO", "fedproto"),
    ],
)
def test_the_baseline_is_the_one_named_else_local_else_the_first(methods, baseline, expected):
    assert narrow(load(), methods=methods, baseline=baseline).baseline_label == expected


def test_the_docs_show_a_file_that_works(file):
    page = (Path(__file__).resolve().parents[2] / "docs" / "compare.md").read_text()
    found = read(file(page.split("```toml\n")[1].split("```")[0]))
    assert [row.label for row in found.rows][::3] == ["CIFAR-10, skewed", "Own photos, mild"]
    assert found.paper[0].method == found.methods[1].label
