"""A comparison's tables: what each shows of hand-made runs, and its forms."""

import io
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from protosphere.comparison.spec import Entry, Metric
from protosphere.comparison.tables import Table, console, latex, markdown, notes_below, tables_of
from tests.comparison.fabricated import (
    ACCURACIES,
    METHODS,
    SEEDS,
    change_summary,
    comparison,
    finished,
    folder_of,
    trials_of,
)

T_OF_2 = 4.302653  # the 97.5 % quantile of Student's t with two degrees of freedom


def interval(gaps):
    """A mean difference with its interval, as a table shows it."""
    half = T_OF_2 * np.std(gaps, ddof=1) / np.sqrt(3)
    mean = np.mean(gaps)
    return f"{100 * mean:+.2f} [{100 * (mean - half):+.2f}, {100 * (mean + half):+.2f}]"


@pytest.fixture
def tables(tmp_path):
    """tables(spec, missing=(), change=None): tables by kind; `change` gets the frame of finished trials."""

    def make(spec, missing=(), change=None):
        frame = finished(folder_of(tmp_path, spec, missing), spec)
        return {table.kind: table for table in tables_of(spec, frame if change is None else change(frame))}

    return make


def cells(table):
    """Heading of a row of the comparison -> its cells by method, whichever way round the table stands."""
    is_across = table.texts.columns.str.startswith(("CIFAR-10", "MNIST")).any()
    return (table.texts if is_across else table.texts.T).to_dict()


# --- what each shows ----------------------------------------------------------------------------------------


def test_the_tables_of_accuracies_and_costs(tables):
    by_kind = tables(comparison())
    assert list(by_kind) == ["accuracy", "differences", "cost"]
    table = by_kind["accuracy"]
    assert list(table.texts) == ["CIFAR-10", "CIFAR-10, paper", "MNIST"]
    assert [list(texts) for texts in table.texts.itertuples()] == [
        ["FedProto", "80.00 ± 10.00", "82.90", "-"],
        ["Proto_Norm", "82.00 ± 2.65", "", "-"],
        ["majority class", "60.00 ± 10.00", "", "-"],
    ]
    assert not table.bold.any(axis=None)
    sentence = "test: accuracy in % (final), mean ± sample standard deviation (ddof 1) over 3 seeds."
    assert table.sentence == sentence
    cost = cells(by_kind["cost"])
    assert list(cost["CIFAR-10, whole run"].values()) == ["0.4 kB / 0.6 kB"] * 2
    # 400 bytes are 100 values, of two rounds
    assert list(cost["CIFAR-10, M values per round"].values()) == ["5e-05"] * 2


def test_methods_keep_their_order_and_are_columns_if_there_are_more_rows(tables):
    metrics = (Metric("", "final"), Metric("classifier", "final"))
    table = tables(comparison(methods=METHODS[::-1], metrics=metrics))["accuracy"].texts
    assert list(table) == ["Proto_Norm", "FedProto", "majority class"]
    headings = [f"{row} ({metric})" for row in ("CIFAR-10", "MNIST") for metric in ("final", "classifier final")]
    assert [name for name in table.index if "paper" not in name] == headings
    assert table["FedProto"]["CIFAR-10 (final), paper"] == "82.90"


def test_missing_seeds_are_counted_and_one_seed_has_no_deviation(tables):
    table = tables(comparison(paper=()), {("FedProto", 0), ("FedProto", 1)})["accuracy"]
    assert list(cells(table)["CIFAR-10"].values())[:2] == ["90.00 (1 of 3 seeds)", "82.00 ± 2.65"]
    by_kind = tables(comparison(seeds=(1,), paper=()))
    assert list(cells(by_kind["accuracy"])["CIFAR-10"].values()) == ["70.00", "80.00", "60.00"]
    assert cells(by_kind["differences"])["CIFAR-10"] == {"Proto_Norm": "+10.00"}
    assert "One seed gives no interval; chance may explain any difference." in by_kind["differences"].notes


def test_the_majority_class_is_that_of_the_samples_and_clients_of_its_metric(tables):
    floors = {
        Metric("", "final"): "60.00 ± 10.00",
        Metric("", "client-best"): "60.00 ± 10.00",
        Metric("", "final-unweighted"): "40.00 ± 10.00",
        Metric("ensemble", "final"): "-",
        Metric("", "macro"): "-",
        Metric("domain", "usps"): "-",
    }
    by_kind = cells(tables(comparison(metrics=tuple(floors), paper=()))["accuracy"])
    assert {metric: by_kind[f"CIFAR-10 ({metric})"]["majority class"] for metric in floors} == floors


def test_values_a_round_are_shown_where_all_seeds_sent_float32(tmp_path):
    spec = comparison(paper=())
    folder = folder_of(tmp_path, spec)
    for trial in trials_of(spec):
        is_float16 = trial.method == "FedProto" and trial.seed == 1
        settings = {"wire-dtype": "float16" if is_float16 else "float32"}
        change_summary(folder.of(trial) / "run", lambda summary, settings=settings: summary.update(settings=settings))
    cost = cells(tables_of(spec, finished(folder, spec))[-1])
    assert list(cost["CIFAR-10, M values per round"].values()) == ["-", "5e-05"]


def test_differences_are_to_the_baseline_paired_by_seed(tables):
    spec = comparison(paper=(), baseline="Proto_Norm")
    table = tables(spec, {("FedProto", 2)})["differences"]
    assert "difference to Proto_Norm in percentage points (final), paired by seed" in table.sentence
    # -5 and -10 points; t(0.975, 1) = 12.706
    assert cells(table)["CIFAR-10"] == {"FedProto": "-7.50 [-39.27, +24.27] (2 of 3 seeds)"}
    whole = tables(spec)["differences"]
    assert cells(whole)["CIFAR-10"] == {"FedProto": "-2.00 [-26.47, +22.47]"}
    assert not whole.bold.any(axis=None)
    equal = tables(spec, change=lambda frame: frame.assign(**{"metric: final": 0.5}))["differences"]
    assert cells(equal)["CIFAR-10"] == {"FedProto": "+0.00"}


def test_a_note_names_the_methods_own_rules(tmp_path):
    spec = comparison(paper=())
    folder = folder_of(tmp_path, spec)
    for trial in trials_of(spec):
        if trial.method == "Proto_Norm":
            change_summary(folder.of(trial) / "run", lambda summary: summary["headline"].update(rule="classifier"))
    notes = tables_of(spec, finished(folder, spec))[0].notes
    assert "classifier is the own inference rule of Proto_Norm." in notes
    named = replace(spec, metrics=(Metric("classifier", "final"),))
    assert not [note for note in tables_of(named, finished(folder, named))[0].notes if "own inference rule" in note]


def test_the_exchange_adds_a_rule_minus_its_counterpart_of_local(tables):
    spec = comparison(methods=(*METHODS, Entry("Alone", {"strategy": "local"})), paper=())
    pool, control = [0.9, 0.8, 0.95], [0.85, 0.8, 0.84]

    def with_rules(frame):
        """FedProto has a rule with an exchange and its control; so has `local`, other figures of the control."""
        alone = frame[frame["method"] == "FedProto"].assign(method="Alone", strategy="local")
        frame = pd.concat([frame, alone], ignore_index=True)
        is_fedproto, is_alone = frame["method"] == "FedProto", frame["method"] == "Alone"
        frame.loc[is_fedproto, ["pool final", "encoder final"]] = np.transpose([pool, pool])
        frame.loc[is_fedproto, "pool-local final"] = [0.8, 0.7, 0.8]
        frame.loc[is_alone, ["pool-local final", "encoder-local final"]] = np.transpose([control, control])
        return frame

    missing = {("Alone", seed) for seed in SEEDS}
    assert "gains" not in tables(spec, missing)
    table = tables(spec, missing, with_rules)["gains"]
    gain = {"FedProto": interval(np.subtract(pool, control))}
    assert cells(table) == {"CIFAR-10 (encoder final)": gain, "CIFAR-10 (pool final)": gain}
    assert "taken from Alone" in table.sentence
    assert any("class shares" in note for note in table.notes)


def test_the_notes_name_clients_that_differ(tmp_path):
    spec = comparison(paper=())
    folder = folder_of(tmp_path, spec)

    def sample(summary):
        summary["headline"]["rows"] = 40
        summary["rules"]["local-prototypes"] |= {"clients": 1, "complete": False}

    change_summary(folder.run_of(trials_of(spec)[0]), sample)
    notes = notes_below(tables_of(spec, finished(folder, spec)))
    assert "CIFAR-10: figures are of 40 to 90 test samples." in notes
    assert "CIFAR-10: methods were measured on different clients, which their differences mix up." in notes
    assert [note for note in notes if "FedProto: no round evaluated all 2 clients" in note]


# --- forms --------------------------------------------------------------------------------------------------


def table_of(texts):
    frame = pd.DataFrame(texts)
    return Table("cost", "From <a> by -3 % on CIFAR-10.", frame, pd.DataFrame(True, frame.index, frame.columns))


def test_all_forms_show_the_same_cells_and_significant_ones_in_bold(tables, monkeypatch):
    monkeypatch.setitem(ACCURACIES, "FedProto", (0.80, 0.75, 0.75))
    by_kind = list(tables(comparison()).values())
    text = markdown(by_kind)
    assert "|  | CIFAR-10 | CIFAR-10, paper | MNIST |\n|---|---:|---:|---:|\n" in text
    assert "| CIFAR-10 | **+5.33 [+3.90, +6.77]** |" in text
    assert "| Proto_Norm | 82.00 ± 2.65 |  | - |" in text
    text = latex(by_kind, "Table 1: P_N")
    assert r"Proto\_Norm & 82.00 $\pm$ 2.65 &  & - \\" in text
    assert r"CIFAR-10 & \textbf{+5.33 [+3.90, +6.77]} \\" in text
    assert r"\begin{tabular}{lrrr}" in text
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\centering", r"\end{table}"):
        assert text.count(rule) == 3
    captions = re.findall(r"\\caption\{(.*)\}", text)
    assert captions[0].startswith(r"Test: accuracy in \% (final), mean $\pm$ sample")
    kinds = ("accuracy", "differences", "cost")
    assert re.findall(r"\\label\{(.*)\}", text) == [f"tab:table-1-p-n-{kind}" for kind in kinds]
    terminal = Console(width=120, record=True, color_system="standard", file=io.StringIO())
    for table in by_kind[:2]:
        terminal.print(console(table))
    text = terminal.export_text(styles=True)
    assert re.search(r"\x1b\[1m *\+5\.33 \[", text)
    assert re.search(r"(?<!\x1b\[1m) *82\.00 ± 2\.65", text)


def test_markdown_escapes_its_signs():
    assert "|  | a\\|b |\n|---|---:|\n| \\*\\*\\<i> | **1** |\n" in markdown([table_of({"a|b": {"**<i>": "1"}})])


def test_latex_shows_letters_and_signs_as_they_are():
    written = {
        "-7.50 [-39.27, +24.27]": "$-$7.50 [$-$39.27, +24.27]",
        "CIFAR-10 <last-5>": "CIFAR-10 $<$last-5$>$",
        "-": "-",
        "γ - 2 ± λ=-1": r"$\gamma$ - 2 $\pm$ $\lambda$=$-$1",
        # it would be an argument of the line's end before it
        "[ours] a": "{}[ours] a",
        r"50 % & a_b {c} \d~^|": r"50 \% \& a\_b \{c\} \textbackslash{}d\textasciitilde{}\textasciicircum{}$|$",
    }
    table = latex([table_of({"a": {text: text for text in written}})])
    for text in written.values():
        assert rf"{text} & \textbf{{{text}}}" in table
    assert r"\caption{From $<$a$>$ by $-$3 \% on CIFAR-10.}" in table
    assert table.isascii()
