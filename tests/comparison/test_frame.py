"""From hand-made runs to a comparison's numbers, held against numpy; and the tables that show them."""

import csv
import io
import json
import re
from dataclasses import replace
from html import escape

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from protosphere.comparison.folder import ComparisonFolder
from protosphere.comparison.frame import (
    MeanStd,
    as_csv,
    collect,
    collect_run,
    curve_of,
    differences_csv,
    summarise,
    value_of,
)
from protosphere.comparison.plots import curves
from protosphere.comparison.report import conclude, write_all
from protosphere.comparison.spec import ComparisonSpec, Entry, Metric, Printed
from protosphere.comparison.tables import Cell, Table, console, labels_for, latex, markdown, tables_of
from protosphere.comparison.trials import Trial
from protosphere.comparison.variants import tuned
from protosphere.core.terms import TERMS
from protosphere.record.metrics_lines import MAJORITY
from protosphere.record.summary import MAJORITY_ALL_CLASSES, MAJORITY_UNWEIGHTED
from protosphere.strategies import known_settings

RULES = ("local-prototypes", "classifier")
METHODS = (Entry("FedProto", {"strategy": "fedproto"}), Entry("Proto_Norm", {"strategy": "protonorm"}))
ACCURACIES = {"FedProto": (0.8, 0.7, 0.9), "Proto_Norm": (0.85, 0.8, 0.81)}
SEEDS = (0, 1, 2)


def comparison(**changes):
    given = {
        "methods": METHODS,
        "datasets": (Entry("CIFAR-10", {"dataset": "cifar10"}), Entry("MNIST", {"dataset": "mnist"})),
        "seeds": SEEDS,
        "metrics": (Metric("", "final"),),
        "paper": (Printed("CIFAR-10", "FedProto", "final", 82.9),),
    }
    return ComparisonSpec("test", **(given | changes))


def line(number, accuracy):
    """A line of metrics.jsonl: a round has 100 bytes of payload and 150 on the wire each way."""
    way = 1 if number else 0
    test = {"mean": accuracy, "std": 0.1, "worst": 0.0}
    sizes = {"payload_up": 100 * way, "payload_down": 100 * way, "wire_up": 150 * way, "wire_down": 150 * way}
    rules = {"local-prototypes": {"test": test}, "classifier": {"test": test | {"mean": accuracy / 2}}}
    return {
        "round": number,
        "bytes": sizes | {"evaluation_wire_up": 10, "evaluation_wire_down": 20},
        "evaluation": {"rules": rules},
        "time": {"round": 2.5},
    }


def write_run(folder, settings, accuracy, floor=0.5):
    """A finished run whose accuracy rises to `accuracy` in two rounds."""
    folder.mkdir(parents=True)
    lines = [line(0, 0.1), line(1, accuracy / 2), line(2, accuracy)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (folder / "settings.json").write_text(json.dumps(settings))
    values = {"selected": None, "selected_round": None, "best": accuracy, "client-best": 0.99, "last-5": 0.4}
    values |= {"client-best-unweighted": 0.98, "final-unweighted": 0.45, "clients": 2}
    rules = {"local-prototypes": accuracy, "classifier": accuracy / 2}
    summary = {
        "status": "completed",
        "clients": 2,
        "rounds": 2,
        "headline": {"rule": "local-prototypes", "figure": "final", "accuracy": accuracy, "rows": 90},
        "floor": {MAJORITY: floor, MAJORITY_UNWEIGHTED: floor - 0.2, MAJORITY_ALL_CLASSES: floor - 0.4},
        "rules": {rule: values | {"final": final, "all-classes": 0.3} for rule, final in rules.items()},
        "ensemble": {"best": 0.3, "last-5": 0.2, "final": 0.25, "rows": 10},
        "domains": {"usps": {"local-prototypes": 0.6}},
        "domains-unweighted": {"usps": {"local-prototypes": 0.65}},
        "classes": {"rule": "local-prototypes", "macro": {"accuracy": 0.55, "f1": 0.5}},
        "bytes": {"payload_up": 200, "payload_down": 200, "wire_up": 300, "wire_down": 300, "evaluation_wire_up": 30},
        "seconds": 12.34,
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def trials_of(made):
    known = {name: value for name, value in known_settings().items() if name not in ("results-dir", "resume")}
    return [
        Trial(
            re.sub(r"[^a-z0-9-]+", "-", f"{row.label}-{method.label}-{seed}".lower()),
            row.label,
            method.label,
            seed,
            known | method.settings | {"seed": seed, "clients": 2},
        )
        for row in made.rows
        for method in made.methods
        for seed in made.seeds
    ]


@pytest.fixture
def folder(tmp_path):
    """folder(comparison, missing=()): a comparison's folder with a run for every cell of CIFAR-10."""

    def make(made, missing=()):
        cells = trials_of(made)
        found = ComparisonFolder.create(made, cells, str(tmp_path / "results"))
        for cell in cells:
            if cell.row == "CIFAR-10" and (cell.method, cell.seed) not in missing:
                accuracy = ACCURACIES[cell.method][cell.seed]
                write_run(found.of(cell) / "run", cell.settings, accuracy, 0.5 + 0.1 * cell.seed)
        return found

    return make


def finished(folder, made):
    """The frame of the finished cells, on which tables and pictures are made."""
    return tuned(made, collect(folder, made, trials_of(made)))[1]


def tables(folder, made):
    return tables_of(made, finished(folder, made))


def test_a_second_model_that_all_clients_have_is_a_note_of_every_table(folder):
    made = comparison()
    found = finished(folder(made), made)
    beside = found.copy()
    beside.loc[0, "companion"] = "the companion cnn4 (12 parameters)"
    for grid in tables_of(made, beside):
        assert "CIFAR-10, FedProto: with the companion cnn4 (12 parameters)" in grid.notes
    assert not any("companion" in note for grid in tables_of(made, found) for note in grid.notes)


# --- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [(0.8, 0.7, 0.9), (0.1, 0.1), (0.2, None, 0.6, 0.4)])
def test_mean_and_spread_are_numpys_sample_ones(values):
    known = np.array([value for value in values if value is not None])
    found = summarise(values)
    assert found.mean == pytest.approx(known.mean(), rel=1e-12)
    assert found.std == pytest.approx(known.std(ddof=1), rel=1e-12)
    assert found.seeds == known.size
    assert summarise(values[:1]) == MeanStd(values[0], None, 1), "of one there is no spread"
    assert summarise([None]) is summarise([]) is None


def test_a_metric_is_a_rule_and_a_figure_of_the_summary(folder):
    made = comparison()
    cell, place = trials_of(made)[0], folder(made)
    summary = json.loads((place.run_of(cell) / "summary.json").read_text())
    values = {
        Metric(): 0.8,
        Metric("", "client-best"): 0.99,
        Metric("", "selected"): None,
        Metric("classifier", "final"): 0.4,
        Metric("ensemble", "last-5"): 0.2,
        Metric("discriminant", "final"): None,
        Metric("", "final-unweighted"): 0.45,
        Metric("", "macro"): 0.55,
        Metric("domain", "usps"): 0.6,
        Metric("domain", "svhn"): None,
        Metric("domain-unweighted", "usps"): 0.65,
        Metric("domain-unweighted", "svhn"): None,
    }
    assert {metric: value_of(summary, metric) for metric in values} == values
    assert value_of({}, Metric("ensemble", "best")) is None
    del summary["classes"]
    assert value_of(summary, Metric("", "macro")) is None, "where clients do not tell of classes"


def test_bytes_and_seconds_to_an_accuracy_are_those_before_its_evaluation():
    """Without the messages of evaluations."""
    lines = [line(0, 0.3), line(1, 0.5), line(2, 0.4), line(3, 0.6)]
    expected = [(0, 0.3, 0, 0, 0), (1, 0.5, 200, 300, 2.5), (2, 0.4, 400, 600, 5), (3, 0.6, 600, 900, 7.5)]
    assert list(curve_of(lines, "local-prototypes").itertuples(name=None)) == expected
    assert curve_of(lines, "classifier")["accuracy"].tolist() == [0.15, 0.25, 0.2, 0.3]
    assert curve_of(lines, "discriminant").empty
    # evaluated every other round, and the ensemble on its own rounds
    sparse = [line(0, 0.3), {"round": 1, "bytes": lines[1]["bytes"], "time": {"round": 1.0}}, line(2, 0.5)]
    sparse[2]["ensemble"] = {"accuracy": 0.7}
    points = {rule: list(curve_of(sparse, rule).itertuples(name=None)) for rule in ("local-prototypes", "ensemble")}
    assert points["local-prototypes"] == [(0, 0.3, 0, 0, 0), (2, 0.5, 400, 600, 3.5)]
    assert points["ensemble"] == [(2, 0.7, 400, 600, 3.5)]


@pytest.mark.parametrize(
    ("target", "reached"),
    [(0.05, (1, 200, 300)), (0.4, (1, 200, 300)), (0.8, (2, 400, 600)), (0.81, None), (None, None)],
)
def test_the_target_is_reached_at_the_first_evaluation_at_or_above_it(folder, target, reached):
    made = comparison(target=target)
    cell, place = trials_of(made)[0], folder(made)
    found = collect_run(place.run_of(cell), made)
    names = ("target_round", "target_payload_bytes", "target_wire_bytes")
    assert tuple(found.get(name) for name in names) == (reached or (None, None, None))
    # the untrained models were at 0.1 already
    assert found["curve"]["accuracy"].iloc[0] > 0.05
    assert (found["payload_bytes"], found["wire_bytes"]) == (400, 600)
    assert (found["majority-class"], found["majority-class-unweighted"], found["seconds"]) == (0.5, 0.3, 12.34)


def test_curves_are_means_over_seeds_of_the_evaluations_that_all_have(folder):
    made = comparison()
    found = finished(folder(made), made).query("method == 'FedProto'")["curve"].tolist()
    curve = curves(found)
    assert curve["round"].tolist() == [0, 1, 2]
    assert curve["mean"].tolist() == pytest.approx([0.1, 0.4, 0.8])
    assert curve["std"].iloc[2] == pytest.approx(np.std([0.8, 0.7, 0.9], ddof=1))
    assert curve["wire"].tolist() == [0, 300, 600]
    assert curve["seconds"].tolist() == [0, 2.5, 5]
    shorter = [found[0], found[1][:2], found[2]]
    assert curves(shorter)["round"].tolist() == [0, 1]


# --- tables -------------------------------------------------------------------------------------------------


def test_the_table_of_accuracies(folder):
    made = comparison(seeds=SEEDS)
    accuracies, _, sizes = tables(folder(made), made)
    # two rows, two methods and the floor: methods go down where they are more
    assert accuracies.head == ["", "CIFAR-10", "paper", "MNIST"]
    text = [[cell.text for cell in each] for each in accuracies.lines]
    assert text == [
        ["FedProto", "80.00 ± 10.00", "82.90", "-"],
        ["Proto_Norm", "82.00 ± 2.65", "", "-"],
        ["majority class", "60.00 ± 10.00", "", "-"],
    ]
    # two points ahead in the mean, and behind on a seed
    assert not any(cell.best for each in accuracies.lines for cell in each)
    assert "mean ± sample standard deviation (ddof 1) over 3 seeds" in accuracies.title
    assert "paper: values printed in the paper, not measured here" in accuracies.notes
    assert sizes.head == ["", "FedProto", "Proto_Norm"]
    assert [cell.text for cell in sizes.lines[0]] == ["CIFAR-10, whole run", "0.4 kB / 0.6 kB", "0.4 kB / 0.6 kB"]
    # 400 bytes are 100 values, of two rounds
    assert [cell.text for cell in sizes.lines[1]] == ["CIFAR-10, M values per round", "5e-05", "5e-05"]


def texts(grid):
    """What a table shows of each row of the comparison, whichever way round it stands."""
    if grid.head[1] in ("FedProto", "Proto_Norm"):
        return {line[0].text: [cell.text for cell in line[1:]] for line in grid.lines}
    lines = [[cell.text for cell in line] for line in grid.lines]
    return {name: list(column) for name, *column in zip(grid.head, *lines, strict=True)}


def test_values_a_round_are_told_where_all_seeds_sent_float32(folder):
    made = comparison(paper=())
    place = folder(made)
    for cell in trials_of(made):
        if cell.row == "CIFAR-10":
            # of one method one seed alone sent another format, of the other none
            mixed = cell.method == "FedProto" and cell.seed == 1
            path = place.of(cell) / "run" / "summary.json"
            settings = {"settings": {"wire-dtype": "float16" if mixed else "float32"}}
            path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    text = texts(tables(place, made)[-1])
    assert text["CIFAR-10, M values per round"] == ["-", "5e-05"]
    assert text["CIFAR-10, whole run"] == ["0.4 kB / 0.6 kB"] * 2


def test_missing_seeds_are_told_and_one_seed_has_no_spread(folder):
    made = comparison(paper=())
    text = [each[1].text for each in tables(folder(made, {("FedProto", 0), ("FedProto", 1)}), made)[0].lines]
    assert text[:2] == ["90.00 (1 of 3 seeds)", "82.00 ± 2.65"]
    made = comparison(seeds=(1,), paper=())
    accuracies = tables(folder(made), made)[0]
    assert [each[1].text for each in accuracies.lines] == ["70.00", "80.00", "60.00"]
    assert accuracies.title.endswith("one seed")


def test_rows_go_down_where_they_are_more(folder):
    made = comparison(metrics=(Metric("", "final"), Metric("classifier", "final")))
    accuracies = tables(folder(made), made)[0]
    assert accuracies.head == ["", "FedProto", "paper", "Proto_Norm", "majority class"]
    names = ["CIFAR-10 (final)", "CIFAR-10 (classifier final)", "MNIST (final)", "MNIST (classifier final)"]
    assert [each[0].text for each in accuracies.lines] == names
    # and where they are as many
    square = comparison(datasets=(*made.datasets, Entry("USPS", {"dataset": "usps"})), paper=())
    assert tables(folder(square), square)[0].head == ["", "FedProto", "Proto_Norm", "majority class"]
    assert [each[2].text for each in accuracies.lines] == ["82.90", "", "", ""]


def test_bytes_to_the_target_with_the_seeds_that_reached_it(folder):
    made = comparison(target=0.8)
    text = texts(tables(folder(made), made)[-1])
    assert text["CIFAR-10, to 80 %"] == ["0.4 kB / 0.6 kB, round 2 (2 of 3 seeds)", "0.4 kB / 0.6 kB, round 2"]
    assert text["MNIST, to 80 %"] == ["-", "-"]
    # a run counts once, by however many metrics it is judged
    both = comparison(target=0.8, metrics=(Metric("", "final"), Metric("classifier", "final")))
    assert texts(tables(folder(both), both)[-1]) == text


@pytest.mark.parametrize(
    ("metric", "rule"),
    [
        (Metric("", "final"), "each method's own rule"),
        (Metric("classifier", "final"), "classifier"),
        (Metric("ensemble", "final"), "ensemble"),
        (Metric("domain-unweighted", "usps"), "each method's own rule"),
    ],
)
def test_the_rule_of_a_metrics_curve_is_told_beside_the_bytes_to_the_target(folder, metric, rule):
    made = comparison(target=0.8, metrics=(metric,), paper=())
    assert metric.curve_rule("each method's own rule") == rule
    cost = tables(folder(made), made)[-1]
    assert any(f"whose mean accuracy by {rule} reaches it" in note for note in cost.notes)


def test_markdown_latex_and_the_console_show_the_same_with_what_is_apart_in_bold(folder, monkeypatch):
    monkeypatch.setitem(ACCURACIES, "FedProto", (0.80, 0.75, 0.75))
    made = comparison()
    found = tables(folder(made), made)
    text = markdown(found)
    assert "|  | CIFAR-10 | paper | MNIST |\n|---|---:|---:|---:|\n" in text
    assert "| CIFAR-10 | **+5.33 [+3.90, +6.77]** |" in text
    assert "| Proto_Norm | **82.00 ± 2.65** |  | - |" in text
    named = markdown([Table("cost", "t", ["", "a|b"], [[Cell("**<i>"), Cell("1", True)]])])
    assert named == "t\n\n|  | a\\|b |\n|---|---:|\n| \\*\\*\\<i> | **1** |\n"
    text = latex(found)
    assert r"Proto\_Norm & \textbf{82.00 $\pm$ 2.65} &  & - \\" in text
    assert r"\begin{tabular}{lrrr}" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\end{table}")] == [3, 3, 3, 3]
    assert "accuracy in \\% (final)" in text
    captions = re.findall(r"\\caption\{(.*)\}", text)
    assert len(captions) == 3
    assert all(caption[0].isupper() for caption in captions)
    text = latex(found, labels_for(found, "Table 1: P_N"))
    assert re.findall(r"\\label\{(.*)\}", text) == [
        f"tab:table-1-p-n-{kind}" for kind in ("accuracy", "differences", "cost")
    ]
    assert r"\caption{Mine, 3 \%}" in latex(found[:1], ["tab:a"], r"Mine, 3 \%")
    terminal = Console(width=100, record=True, color_system="standard", file=io.StringIO())
    terminal.print(console(found[0]))
    text = terminal.export_text(styles=True)
    assert re.search(r"\x1b\[1m *82\.00 ± 2\.65", text)
    assert not re.search(r"\x1b\[1m *76\.67", text)
    assert "76.67 ± 2.89" in text


def test_latex_shows_the_letters_and_signs_that_are_meant():
    texts = ["-7.50 [-39.27, +24.27]", "5e-05", "CIFAR-10 <last-5>", "a|b > c", "λ=-1", "-", "γ - 2", "x-.5 −3"]
    written = [
        "$-$7.50 [$-$39.27, +24.27]",
        "5e$-$05",
        "CIFAR-10 $<$last-5$>$",
        "a$|$b $>$ c",
        r"$\lambda$=$-$1",
        "-",
        r"$\gamma$ - 2",
        "x-.5 $-$3",
    ]
    shown = [Cell(text) for text in texts]
    text = latex([Table("cost", "from <a> by -3 % on CIFAR-10", ["", *texts[1:]], [shown])])
    assert f"{' & '.join(written)} \\\\" in text
    assert f"\\toprule\n & {' & '.join(written[1:])} \\\\" in text
    assert r"\caption{From $<$a$>$ by $-$3 \% on CIFAR-10.}" in text


def test_of_several_tables_each_note_stands_once_below_all(folder):
    made = comparison(note="a note of the file", target=0.8)
    place = folder(made)
    found = write_all(place, made, trials_of(made)).tables
    notes = list(dict.fromkeys(note for grid in found for note in grid.notes))
    assert "a note of the file" in notes
    assert len(notes) < sum(len(grid.notes) for grid in found), "some are of several tables"
    for name in ("table.md", "report.html"):
        text = (place.path / name).read_text()
        last_table = text.rindex("|---") if name == "table.md" else text.index(found[-1].lines[-1][0].text)
        for note in notes:
            written = note if name == "table.md" else escape(note)
            assert text.count(written) == 1, (name, note)
            assert text.index(written) > last_table, (name, note)
    # a table of LaTeX is taken out by itself
    assert latex(found).count("A note of the file") == len(found)


def test_differences_are_to_the_baseline_seed_by_seed(folder):
    made = comparison(paper=(), baseline="Proto_Norm")
    apart = tables(folder(made, {("FedProto", 2)}), made)[1]
    assert "difference to Proto_Norm" in apart.title
    # -5 and -10 points; t(0.975, 1) = 12.706
    assert [cell.text for cell in apart.lines[0]] == ["CIFAR-10", "-7.50 [-39.27, +24.27] (2 of 3 seeds)"]
    # of all seeds nothing is said of their number, which the first table has
    whole = tables(folder(made), made)[1]
    assert [cell.text for cell in whole.lines[0]] == ["CIFAR-10", "-2.00 [-26.47, +22.47]"]
    rows = list(csv.DictReader(differences_csv(made, finished(folder(made), made)).splitlines()))
    assert [(row["row"], row["method"], row["seeds"]) for row in rows] == [
        ("CIFAR-10", "FedProto", "3"),
        ("MNIST", "FedProto", "0"),
    ]
    assert float(rows[0]["difference"]) == pytest.approx(-0.02)
    single = comparison(paper=(), seeds=(1,))
    assert [cell.text for cell in tables(folder(single), single)[1].lines[0]] == ["CIFAR-10", "+10.00"]


def test_bold_among_many_methods_is_what_holms_correction_leaves(folder):
    """Two methods of which one is far from the baseline and one would be significant by itself alone."""
    methods = [Entry(name, {"strategy": "local"}) for name in ("base", "far", "near", "same")]
    made = comparison(
        methods=tuple(methods), datasets=(Entry("CIFAR-10", {"dataset": "cifar10"}),), paper=(), seeds=(0, 1, 2)
    )
    gaps = {"base": (0, 0, 0), "far": (0.1, 0.1001, 0.1002), "near": (0.01, 0.013, 0.019), "same": (0, 0.02, -0.01)}
    lines = [
        {"row": "CIFAR-10", "method": name, "seed": seed, "metric: final": 0.5 + gap}
        for name, values in gaps.items()
        for seed, gap in enumerate(values)
    ]
    rows = list(csv.DictReader(differences_csv(made, pd.DataFrame(lines)).splitlines()))
    p_values = {row["method"]: float(row["p"]) for row in rows}
    assert p_values["far"] < 0.05 / 3
    assert 0.05 / 2 < p_values["near"] < 0.05, "significant, if it were the only one"
    assert {row["method"]: row["significant"] for row in rows} == {"far": "True", "near": "False", "same": "False"}
    frame = pd.DataFrame(lines).assign(companion=None, test_samples=90, gradient_steps=1.0, **{"majority-class": 0.1})
    frame = frame.assign(payload_bytes=1, wire_bytes=1, values=1.0, target_round=None, rule="classifier")
    grid = tables_of(made, frame)[1]
    shown = {line[0].text: line[1] for line in grid.lines}
    assert {name: cell.best for name, cell in shown.items()} == {"far": True, "near": False, "same": False}
    assert any("Holm-corrected for the number of methods" in note for note in grid.notes)


def test_methods_stand_in_the_comparison_s_order(folder):
    made = comparison(methods=METHODS[::-1])
    table = tables(folder(made), made)[0]
    names = [*table.head, *(line[0].text for line in table.lines)]
    assert [name for name in names if name in ACCURACIES] == ["Proto_Norm", "FedProto"]


def test_the_number_of_test_samples_is_a_note_of_every_table(folder):
    made = comparison()
    for grid in tables(folder(made), made):
        assert any(note.startswith("test samples of all clients together: CIFAR-10 90; seeds") for note in grid.notes)
    single = comparison(seeds=(1,))
    assert "test samples of all clients together: CIFAR-10 90" in tables(folder(single), single)[0].notes


def with_own_rule(place, made, method, rule):
    """The runs of a method as ones whose own rule is this."""
    for cell in trials_of(made):
        path = place.of(cell) / "run" / "summary.json"
        if cell.method == method and path.exists():
            summary = json.loads(path.read_text())
            summary["headline"] |= {"rule": rule, "accuracy": summary["rules"][rule]["final"]}
            path.write_text(json.dumps(summary))


def test_accuracies_by_one_rule_stand_beside_what_each_methods_own_rule_gives(folder):
    made = comparison(paper=(), baseline="FedProto", metrics=(Metric("classifier"),))
    place = folder(made)
    with_own_rule(place, made, "Proto_Norm", "classifier")
    accuracies, differences, _ = tables(place, made)
    # half of what is given by the nearest prototype
    name = "CIFAR-10 (classifier headline)"
    assert texts(accuracies)[name][:2] == ["40.00 ± 5.00", "41.00 ± 1.32"]
    # (0.85, 0.8, 0.81) less (0.8, 0.7, 0.9), and half of that; t(0.975, 2) = 4.302653
    gaps = np.array([0.05, 0.1, -0.09]) / 2
    half = 4.302653 * gaps.std(ddof=1) / np.sqrt(3)
    expected = f"{100 * gaps.mean():+.2f} [{100 * (gaps.mean() - half):+.2f}, {100 * (gaps.mean() + half):+.2f}]"
    assert texts(differences)[name] == [expected]
    told = "CIFAR-10: accuracy in % by each method's own inference rule: "
    told += "FedProto (local-prototypes) 80.00 ± 10.00; Proto_Norm (classifier) 41.00 ± 1.32"
    assert accuracies.notes.count(told) == 1
    rows = list(csv.DictReader(as_csv(collect(place, made, trials_of(made))).splitlines()))
    assert [row["rule"] for row in rows][:6] == ["local-prototypes"] * 3 + ["classifier"] * 3


def test_a_metric_without_a_rule_is_by_own_rules_that_are_named(folder):
    made = comparison(paper=())
    place = folder(made)
    assert "every method's own inference rule: local-prototypes" in tables(place, made)[0].notes
    with_own_rule(place, made, "Proto_Norm", "classifier")
    told = "CIFAR-10: each method's own inference rule: FedProto (local-prototypes); Proto_Norm (classifier)"
    assert told in tables(place, made)[0].notes
    named = replace(made, metrics=(Metric("classifier", "final"),))
    assert not any("own inference rule" in note for note in tables(place, named)[0].notes)


def test_a_domain_that_no_run_has_is_said_and_beside_a_part_stands_no_majority_class(folder):
    """The majority class is of all clients' samples alike."""
    metrics = (Metric("", "final"), Metric("", "macro"), Metric("domain", "usps"), Metric("domain", "svhn"))
    metrics += (Metric("domain-unweighted", "svhn"),)
    made = comparison(metrics=metrics, datasets=(Entry("CIFAR-10", {"dataset": "cifar10"}),), paper=())
    found = tables(folder(made), made)
    for grid in found:
        assert [note for note in grid.notes if "domain" in note] == [
            "no client is of the domain svhn: their domains are usps"
        ]
    shown = texts(found[0])
    floors = {name: cells[-1] for name, cells in shown.items() if name.startswith("CIFAR-10")}
    assert floors == {
        "CIFAR-10 (final)": "60.00 ± 10.00",
        "CIFAR-10 (macro)": "-",
        "CIFAR-10 (domain usps)": "-",
        "CIFAR-10 (domain svhn)": "-",
        "CIFAR-10 (domain-unweighted svhn)": "-",
    }
    without = finished(folder(made), made).drop(columns="domain usps")
    assert "no client is of the domain usps: no data set here names any" in tables_of(made, without)[0].notes


@pytest.mark.parametrize(
    ("figure", "floor"),
    [
        ("final", "60.00 ± 10.00"),
        ("best", "60.00 ± 10.00"),
        ("client-best", "60.00 ± 10.00"),
        ("final-unweighted", "40.00 ± 10.00"),
        ("client-best-unweighted", "40.00 ± 10.00"),
        ("all-classes", "20.00 ± 10.00"),
        ("ensemble final", "-"),
    ],
)
def test_the_majority_class_is_of_the_samples_and_clients_of_the_figure_beside_it(folder, figure, floor):
    metric = Metric(*figure.split()) if " " in figure else Metric("classifier", figure)
    made = comparison(metrics=(metric,), paper=())
    shown = texts(tables(folder(made), made)[0])
    assert shown[f"CIFAR-10 ({metric})"][-1] == floor


def test_budgets_that_differ_by_more_than_a_tenth_are_a_note_of_every_table(folder):
    made = comparison()
    place = folder(made)
    found = collect(place, made, trials_of(made))

    def with_steps(**steps):
        told = found.assign(gradient_steps=found["method"].map(steps).astype(object))
        return told[told["status"] == "completed"]

    for grid in tables_of(made, with_steps(FedProto=12, Proto_Norm=24)):
        assert (
            "CIFAR-10: budgets differ (FedProto 12, Proto_Norm 24 gradient steps per client per round)"
        ) in grid.notes
    alike = tables_of(made, with_steps(FedProto=11, Proto_Norm=12))
    assert not any("budgets" in note for grid in alike for note in grid.notes)
    cost = texts(alike[-1])
    assert cost["CIFAR-10, steps"] == ["11", "12"]
    assert cost["MNIST, steps"] == ["-", "-"]
    text = as_csv(with_steps(FedProto=11, Proto_Norm=12))
    assert [row["gradient_steps"] for row in csv.DictReader(text.splitlines())][:6] == ["11"] * 3 + ["12"] * 3


# --- files --------------------------------------------------------------------------------------------------


def test_the_csv_has_every_figure_of_every_cell(folder):
    made = comparison(target=0.8)
    place = folder(made, {("FedProto", 1)})
    text = as_csv(collect(place, made, trials_of(made)))
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 12
    assert [row["status"] for row in rows[:6]] == ["completed", "missing", *["completed"] * 4]
    first = rows[0]
    expected = {"row": "CIFAR-10", "method": "FedProto", "strategy": "fedproto", "seed": "0", "clients": "2"}
    expected |= {"metric: final": "0.8", "paper: final": str(82.9 / 100), "majority-class": "0.5", "validation": ""}
    expected |= {"classifier final": "0.4", "ensemble best": "0.3"}
    expected |= {"domain usps": "0.6", "domain-unweighted usps": "0.65"}
    expected |= {"test_samples": "90", "macro accuracy": "0.55", "macro f1": "0.5"}
    expected |= {"local-prototypes selected": "", "payload_bytes": "400", "wire_bytes": "600", "seconds": "12.3"}
    expected |= {"target_round": "2", "target_payload_bytes": "400", "target_wire_bytes": "600"}
    expected |= {"run": "trials/cifar-10-fedproto-0/run"}
    assert {name: first[name] for name in expected} == expected
    assert all(None not in row and None not in row.values() for row in rows)
    names = {"row", "method", "strategy", "seed", "status", "paper: final"}
    assert {name for name, value in rows[1].items() if value} == names, "a missing cell has no figure"


def test_all_files_are_written_from_what_is_finished(folder, tmp_path):
    made = comparison(title="A <b> & c")
    place = folder(made)
    (place.of(trials_of(made)[0]) / "run" / "report.html").write_text("")
    written = write_all(place, made, trials_of(made))
    assert [path.name for path in written.paths] == [
        "table.csv",
        "differences.csv",
        "table.md",
        "table.tex",
        "report.html",
    ]
    page = (place.path / "report.html").read_text()
    assert "A &lt;b&gt; &amp; c" in page
    # the title's metric has the glossary's words, and loses no space to them
    title = f'accuracy in % (<abbr title="{escape(TERMS["final"].tooltip)}">final</abbr>), '
    assert title in page
    assert "trials finished: 2 data sets, 2 methods, 3 seeds (0, 1, 2). " in page
    # of bytes and steps
    assert ">Cost</h2>" in page
    assert 'href="trials/cifar-10-fedproto-0/run/report.html"' in page
    assert page.count("<figure") == 4, "of the row that has runs"
    assert "<script" not in page
    assert "On CIFAR-10 Proto_Norm reaches 82.00 ± 2.65 % (final), FedProto 80.00 ± 10.00 %: +2.0 points, which" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    names = []
    for name in ("accuracy-over-bytes", "accuracy-over-rounds", "accuracy-over-seconds", "differences"):
        names += [f"{name}-row1.{ending}" for ending in ("csv", "svg")]
    assert sorted(path.name for path in (place.path / "pictures").iterdir()) == names
    assert all(f'href="pictures/accuracy-over-{kind}-row1.csv"' in page for kind in ("bytes", "rounds", "seconds"))
    with (place.path / "pictures" / "accuracy-over-bytes-row1.csv").open(newline="") as file:
        own = [row for row in csv.DictReader(file) if row["method"] == "FedProto"]
    curve = curves(finished(place, made).query("method == 'FedProto'")["curve"].tolist())
    for name in ("payload", "wire"):
        assert [float(row[f"{name} (bytes)"]) for row in own] == curve[name].tolist()
        assert f"{name} so far, kB" in (place.path / "pictures" / "accuracy-over-bytes-row1.svg").read_text()
    above = comparison(baseline="Proto_Norm")
    conclusion = conclude(above, finished(place, above))
    assert conclusion.startswith("On CIFAR-10 Proto_Norm reaches 82.00 ± 2.65 % (final); no other method of 2 is")
    before = {path: path.read_bytes() for path in written.paths}
    assert {path: path.read_bytes() for path in write_all(place, made, trials_of(made)).paths} == before
    one = replace(made, datasets=made.datasets[:1], partitions=(Entry("iid"), Entry("skewed")), seeds=(0,), paper=())
    write_all(place, one, trials_of(one))
    page = (place.path / "report.html").read_text()
    assert "0 of 4 trials finished: 1 data set, 2 partitions, 2 methods, 1 seed (0). " in page


def test_no_cell_of_the_csvs_is_a_formula_to_a_spreadsheet(folder):
    evil = '=HYPERLINK("http://x","y")'
    made = comparison(
        methods=(Entry(evil, {"strategy": "fedproto"}), Entry("+1", {"strategy": "protonorm"})),
        datasets=(Entry("@x", {"dataset": "cifar10"}),),
        paper=(),
    )
    place = ComparisonFolder(folder(comparison()).path)
    for text in (as_csv(collect(place, made, trials_of(made))), differences_csv(made, finished(place, made))):
        rows = list(csv.reader(text.splitlines()))
        assert len(rows) > 1
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@"))]
        assert any(cell == f"'{evil}" for row in rows for cell in row)


def test_what_the_exchange_adds_is_a_rule_less_what_local_has_by_it_without_an_exchange(folder):
    made = comparison(methods=(*METHODS, Entry("Alone", {"strategy": "local"})), paper=())
    found = finished(folder(made, {("Alone", seed) for seed in SEEDS}), made)
    alone = found[found["method"] == "FedProto"].assign(method="Alone")
    found = pd.concat([found, alone], ignore_index=True)
    assert not any("what the exchange adds" in grid.title for grid in tables_of(made, found))
    pool, own_control, control = [0.9, 0.8, 0.95], [0.8, 0.78, 0.84], [0.85, 0.8, 0.84]
    for name, method, values in (
        ("pool final", "FedProto", pool),
        ("pool-local final", "FedProto", own_control),
        ("pool-local final", "Alone", control),
        ("encoder-local final", "Alone", control),
    ):
        if name not in found:
            found[name] = None
        found.loc[found["method"] == method, name] = values
    grid = next(grid for grid in tables_of(made, found) if "what the exchange adds" in grid.title)
    gaps = np.subtract(pool, control)
    # t(0.975, 2) = 4.302653
    half = 4.302653 * gaps.std(ddof=1) / np.sqrt(3)
    expected = f"{100 * gaps.mean():+.2f} [{100 * (gaps.mean() - half):+.2f}, {100 * (gaps.mean() + half):+.2f}]"
    (line,) = grid.lines
    # the others have no such rule, and no method has the rule `encoder`
    assert grid.head == ["", "FedProto"]
    assert [cell.text for cell in line] == ["CIFAR-10 (pool final)", expected]
    assert "its local counterpart, taken from Alone (encoder minus encoder-local, pool minus pool-local)" in grid.title
    told = list(csv.DictReader(differences_csv(made, found).splitlines()))[-1]
    assert (told["metric"], told["method"], told["baseline"]) == ("pool final", "FedProto", "Alone: pool-local")
    assert float(told["difference"]) == pytest.approx(gaps.mean())
    # both know how often a client has each class; of the rule `encoder` the client's own alone does
    assert not any("class shares" in note for note in grid.notes)
    assert not any("its control is missing" in note for note in grid.notes)
    found["encoder final"] = found["pool final"]
    grid = next(grid for grid in tables_of(made, found) if "what the exchange adds" in grid.title)
    assert any("encoder-local uses the client's class shares and encoder does not" in n for n in grid.notes)


def test_where_local_has_no_control_none_of_another_run_takes_its_place(folder):
    made = comparison(paper=())
    found = finished(folder(made), made)
    for name in ("pool final", "pool-local final", "encoder final"):
        found[name] = 0.5
    found["encoder-local final"] = None
    alone = replace(made, methods=(METHODS[0], Entry("Proto_Norm", {"strategy": "local"})))
    bare = found.assign(**{"pool-local final": found["pool-local final"].where(found["method"] == "FedProto")})
    missing = (
        "what the exchange adds is not shown, because its control is missing: encoder-local and pool-local of `local`; "
    )
    for plan, frame, remedy in (
        (made, found, "add `local` to the methods"),
        (alone, bare, "name an `encoder` for all methods"),
    ):
        assert not any("what the exchange adds" in grid.title for grid in tables_of(plan, frame))
        assert missing + remedy in tables_of(plan, frame)[0].notes
        assert "pool" not in differences_csv(plan, frame)


def test_equal_figures_differ_by_nothing(folder):
    made = comparison(paper=())
    found = finished(folder(made), made)
    found["metric: final"] = 0.5
    apart = next(grid for grid in tables_of(made, found) if "difference to" in grid.title)
    assert apart.lines[0][1].text == "+0.00"
