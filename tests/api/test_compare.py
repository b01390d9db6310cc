"""A comparison from Python: its arguments, and its tables beside its runs."""

import json

import numpy as np
import pytest

import protosphere
from protosphere.comparing import _table_of
from protosphere.comparison.folder import FILE, ComparisonFolder
from protosphere.comparison.spec import ComparisonSpec, Entry
from protosphere.comparison.trials import expand

Y = np.arange(120) % 3
X = np.random.default_rng(3).normal(size=(120, 5)) + Y[:, None]
QUICK = {"clients": 3, "rounds": 2, "models": "tiny_perceptron", "spiral_points": 60, "device": "cpu", "quiet": True}
QUICK |= {"local_epochs": 1, "momentum": 0.0}


@pytest.fixture
def two_rows(tmp_path):
    """A comparison's folder with two rows and one method, and its trials, none of which has run."""
    rows = (Entry("even", {"partition": "iid"}), Entry("skewed", {"partition": "dirichlet"}))
    settings = {"max-samples": 200, "models": "tiny_perceptron", "rounds": 1, "clients": 2}
    methods, datasets = (Entry("local", {"strategy": "local"}),), (Entry("digits", {"dataset": "digits"}),)
    spec = ComparisonSpec("test", methods, datasets, rows, seeds=(0,), settings=settings)
    trials = expand(spec, {}, {})
    return ComparisonFolder.create(spec, trials, str(tmp_path / "results")), trials


def test_without_a_row_a_run_is_of_the_first_row(run, two_rows):
    folder, (even, skewed) = two_rows
    finished = run(skewed.settings | {"results-dir": str(folder.of(skewed))}, clients=2)
    comparison = protosphere.Comparison(folder.path)
    assert comparison.run("local", 0, "digits, skewed").folder == finished
    with pytest.raises(protosphere.SettingError, match="no finished run of local, seed 0, row digits, even, is in"):
        comparison.run("local")
    assert even.row == comparison.table()["row"][0]


def test_runs_of_a_trusted_comparison_are_trusted(run, two_rows):
    folder, (_, trial) = two_rows
    (folder.path / "net.py").write_text(
        "from torch import nn\ndef make(input_shape, feature_dim):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, feature_dim))\n"
    )
    models = {"models": f"{folder.path / 'net.py'}:make"}
    content = json.loads((folder.path / FILE).read_text())
    content["trials"] = [{**entry, "settings": entry["settings"] | models} for entry in content["trials"]]
    (folder.path / FILE).write_text(json.dumps(content))
    run(trial.settings | models | {"results-dir": str(folder.of(trial))}, clients=2)
    with pytest.raises(protosphere.SettingError, match="trust=True"):
        protosphere.Comparison(folder.path)
    comparison = protosphere.Comparison(folder.path, trust=True)
    assert comparison.run("local", 0, "digits, skewed").client(0).model.endswith("net.py:make")


@pytest.mark.integration
def test_a_variant_is_chosen_on_validation_samples():
    arguments = {"methods": ["local", "protonorm"], "datasets": ["spiral"], "seeds": [0], **QUICK}
    arguments |= {"vary": {"protonorm__gamma": [1.0, 9.0]}, "choose": "validation", "metric": "final"}
    comparison = protosphere.compare(**arguments)
    assert comparison.table()["method"].tolist() == ["local", "protonorm"]
    accuracies = comparison.trials().query("method != 'local'").set_index("method")["validation"].to_dict()
    runs = {name: comparison.run(name) for name in accuracies}
    assert accuracies == {name: run.rounds["validation"].dropna().iloc[-1] for name, run in runs.items()}
    best = max(accuracies, key=accuracies.__getitem__)
    assert comparison.table()["chosen"].tolist() == ["", best.removeprefix("protonorm, ")]
    assert comparison.run("protonorm").folder == runs[best].folder


@pytest.mark.integration
def test_a_warning_says_why_runs_failed(tmp_path):
    (tmp_path / "broken.py").write_text(
        "from dataclasses import replace\nfrom protosphere.strategies.local import METHOD as LOCAL\n"
        "class Broken(LOCAL.objective):\n    def loss(self, *everything):\n        raise ArithmeticError('wrong')\n"
        "METHOD = replace(LOCAL, objective=Broken)\n"
    )
    broken = {"strategy": str(tmp_path / "broken.py"), "label": "broken"}
    with pytest.warns(UserWarning, match="broken"):
        comparison = protosphere.compare(["local", broken], ["spiral"], seeds=[0], max_failed_rounds=1, **QUICK)
    assert comparison.table()["seeds"].tolist() == [1, 0]
    assert comparison.trials()["status"].tolist() == ["completed", "missing"]
    with pytest.raises(protosphere.RunError, match="broken"):
        protosphere.compare([broken], ["spiral"], seeds=[0], max_failed_rounds=1, **QUICK)


@pytest.mark.integration
def test_a_comparison_is_read_from_its_folder_with_runs_reports_and_plots():
    comparison = protosphere.compare(
        ["local", {"strategy": "protonorm", "protonorm.gamma": 5}],
        ["spiral"],
        [{"partition": "iid"}, {"alpha": 0.5, "label": "skewed"}],
        seeds=[3, 4],
        metric=["classifier final", "headline"],
        baseline="protonorm, gamma 5",
        **QUICK,
    )
    table = comparison.table()
    # a report is only drawn on request
    first = comparison.run("local", 3, "spiral, iid")
    assert not (first.folder / "report.html").exists()
    assert first.report().path.exists()
    assert comparison.report().path.exists()
    plot = comparison.plot("differences", "spiral, skewed")
    assert (plot.name, plot.numbers["method"].tolist()) == ("differences", ["local"])
    for name in (comparison.folder, comparison.folder.name, "latest"):
        assert protosphere.Comparison(name).table().equals(table)
    for wrong, words in (
        (lambda: protosphere.Comparison("nonesuch"), "nonesuch"),
        (lambda: comparison.run("nothing", 3), "nothing"),
        (lambda: comparison.plot("loss"), 'plot is "loss", but this comparison has: differences; accuracy-over-rounds'),
        (lambda: protosphere.load(comparison.folder), "Comparison"),
    ):
        with pytest.raises(protosphere.SettingError, match=words):
            wrong()


def test_equal_arrays_are_stored_once(home):
    arguments = {name: value for name, value in QUICK.items() if name not in ("spiral_points", "quiet")}
    moved = {"dataset": {"x": X + 1, "y": Y}, "label": "moved"}
    entries = [_table_of("datasets", data) for data in ((X, Y), (X.copy(), Y.copy()), moved)]
    first, again, other = (entry["dataset"] for entry in entries)
    assert first == again != other
    assert [entry["label"] for entry in entries] == ["arrays", "arrays", "moved"]
    # a run uses the same file
    run = protosphere.run("local", (X, Y), quiet=True, **arguments)
    assert run.settings["dataset"] == first
    assert {str(path) for path in (home / "arrays").iterdir()} == {first, other}
