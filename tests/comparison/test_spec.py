"""The comparison's file, and the parts that the command line selects. tests/test_refusals.py has what is refused."""

from pathlib import Path

import pytest

from protosphere.comparison.spec import Entry, Metric, Printed, load, narrow, parse_metric, read
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
methods.norm = { protonorm.gamma = 6.0 }

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
def spec(tmp_path):
    """The comparison of `FILE`."""
    (tmp_path / "table.toml").write_text(FILE)
    return read(tmp_path / "table.toml")


def test_a_file_describes_a_comparison(spec):
    assert (spec.name, spec.title, spec.seeds) == ("table", "A table", (3, 1))
    assert spec.metrics == (Metric("", "last-5"), Metric("ensemble", "final"))
    assert spec.settings == {"rounds": 4, "protonorm.iterations": 7}
    assert spec.methods == (
        Entry("local", {"strategy": "local"}),
        Entry("Norm", {"strategy": "protonorm", "protonorm.gamma": 5.0}),
    )
    assert spec.datasets == (
        # the method by its label, however it is spelt
        Entry("Digits", {"dataset": "digits"}, methods={"Norm": {"protonorm.gamma": 6.0}}),
        Entry("CIFAR-10", base="protonorm-cifar10", missing="ask for it"),
    )
    assert [row.label for row in spec.rows] == ["Digits, skewed", "Digits, even", "CIFAR-10, skewed", "CIFAR-10, even"]
    assert spec.paper == (Printed("Digits, even", "Norm", "ensemble final", 88.56),)


def test_a_part_is_selected_by_label_data_set_strategy_or_path(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from protosphere.strategies.fedproto import METHOD")
    part = narrow(
        spec, methods="norm,fedproto,./mine.py", datasets="cifar10", partitions="even", seeds="7,0", metric="best"
    )
    assert [(entry.label, entry.settings["strategy"]) for entry in part.methods] == [
        *(("Norm", "protonorm"), ("fedproto", "fedproto"), ("./mine.py", "./mine.py"))
    ]
    assert [row.label for row in part.rows] == ["CIFAR-10, even"]
    assert (part.seeds, part.metrics) == ((7, 0), (Metric("", "best"),))
    assert narrow(spec) == spec
    with pytest.raises(SettingError, match=r"'gone\.py' cannot be read"):
        narrow(spec, methods="norm,./gone.py")


def test_without_a_file_four_methods_run_on_any_data():
    spec = narrow(load(), datasets="digits,../photos", own_data=True)
    assert [method.label for method in spec.methods] == ["local", "frame", "fedproto", "protonorm"]
    assert (spec.name, spec.seeds, spec.metrics) == ("digits-photos", (0, 1, 2), (Metric(),))
    assert [(row.label, row.dataset.settings["dataset"]) for row in spec.rows] == [
        *(("digits", "digits"), ("photos", "../photos"))
    ]


@pytest.mark.parametrize(
    "text", ["headline", "classifier best", "ensemble best", "macro", "domain mnist-m", "domain-unweighted Real World"]
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


def test_the_file_in_the_docs_works(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "compare.md").read_text()
    (tmp_path / "table.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    spec = read(tmp_path / "table.toml")
    assert [row.label for row in spec.rows][::3] == ["CIFAR-10, skewed", "Own photos, mild"]
    assert spec.paper[0].method == spec.methods[1].label
