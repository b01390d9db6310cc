"""A comparison's tables: what each shows of hand-made runs, and the forms that it is written in."""

import io
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from protosphere.comparing import resolve
from protosphere.comparison.report import conclude
from protosphere.comparison.spec import Entry, Metric, load, narrow
from protosphere.comparison.tables import Table, as_tex, console, labels_for, latex, markdown, notes_below, tables_of
from protosphere.core.errors import SettingError
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
def shown(tmp_path):
    """shown(comparison, missing=(), change=None): its tables by kind; `change` gets the frame of finished trials."""

    def make(made, missing=(), change=None):
        frame = finished(folder_of(tmp_path, made, missing), made)
        return {table.kind: table for table in tables_of(made, frame if change is None else change(frame))}

    return make


def cells(table):
    """Heading of a row of the comparison -> its cells by method, whichever way round the table stands."""
    is_across = table.texts.columns.str.startswith(("CIFAR-10", "MNIST")).any()
    return (table.texts if is_across else table.texts.T).to_dict()


def bold(table):
    return set(table.texts.where(table.bold).stack().dropna())


# --- what each shows ----------------------------------------------------------------------------------------


def test_the_table_of_accuracies(shown):
    found = shown(comparison())
    assert list(found) == ["accuracy", "differences", "cost"]
    table = found["accuracy"]
    # two rows, two methods and the floor: methods go down where they are more
    assert list(table.texts) == ["CIFAR-10", "CIFAR-10, paper", "MNIST"]
    assert [list(texts) for texts in table.texts.itertuples()] == [
        ["FedProto", "80.00 ± 10.00", "82.90", "-"],
        ["Proto_Norm", "82.00 ± 2.65", "", "-"],
        ["majority class", "60.00 ± 10.00", "", "-"],
    ]
    assert not table.bold.any(axis=None)
    said = "test: accuracy in % (final), mean ± sample standard deviation (ddof 1) over 3 seeds."
    assert table.sentence == said
    cost = cells(found["cost"])
    assert list(cost["CIFAR-10, whole run"].values()) == ["0.4 kB / 0.6 kB"] * 2
    # 400 bytes are 100 values, of two rounds
    assert list(cost["CIFAR-10, M values per round"].values()) == ["5e-05"] * 2


def test_methods_stand_in_the_comparisons_order_across_where_rows_are_more(shown):
    metrics = (Metric("", "final"), Metric("classifier", "final"))
    table = shown(comparison(methods=METHODS[::-1], metrics=metrics))["accuracy"].texts
    assert list(table) == ["Proto_Norm", "FedProto", "majority class"]
    headings = [f"{row} ({metric})" for row in ("CIFAR-10", "MNIST") for metric in ("final", "classifier final")]
    assert [name for name in table.index if "paper" not in name] == headings
    assert table["FedProto"]["CIFAR-10 (final), paper"] == "82.90"


def test_missing_seeds_have_their_number_and_one_seed_has_no_spread(shown):
    made = comparison(paper=())
    found = cells(shown(made, {("FedProto", 0), ("FedProto", 1)})["accuracy"])["CIFAR-10"]
    assert list(found.values())[:2] == ["90.00 (1 of 3 seeds)", "82.00 ± 2.65"]
    found = shown(comparison(seeds=(1,), paper=()))
    assert list(cells(found["accuracy"])["CIFAR-10"].values()) == ["70.00", "80.00", "60.00"]
    assert found["accuracy"].sentence.endswith("of one seed.")
    assert cells(found["differences"])["CIFAR-10"] == {"Proto_Norm": "+10.00"}
    assert "One seed gives no interval; chance may explain any difference." in found["differences"].notes


def test_the_majority_class_is_of_the_samples_and_clients_of_the_figure_beside_it(shown):
    floors = {
        Metric("", "final"): "60.00 ± 10.00",
        Metric("", "best"): "60.00 ± 10.00",
        Metric("", "client-best"): "60.00 ± 10.00",
        Metric("", "final-unweighted"): "40.00 ± 10.00",
        Metric("", "client-best-unweighted"): "40.00 ± 10.00",
        Metric("ensemble", "final"): "-",
        Metric("", "macro"): "-",
        Metric("domain", "usps"): "-",
    }
    found = cells(shown(comparison(metrics=tuple(floors), paper=()))["accuracy"])
    assert {metric: found[f"CIFAR-10 ({metric})"]["majority class"] for metric in floors} == floors


def test_values_a_round_are_shown_where_all_seeds_sent_float32(tmp_path):
    made = comparison(paper=())
    place = folder_of(tmp_path, made)
    for trial in trials_of(made):
        # of one method one seed alone sent another format, of the other none
        mixed = trial.method == "FedProto" and trial.seed == 1
        settings = {"wire-dtype": "float16" if mixed else "float32"}
        change_summary(place.of(trial) / "run", lambda summary, settings=settings: summary.update(settings=settings))
    cost = cells(tables_of(made, finished(place, made))[-1])
    assert list(cost["CIFAR-10, M values per round"].values()) == ["-", "5e-05"]
    assert list(cost["CIFAR-10, whole run"].values()) == ["0.4 kB / 0.6 kB"] * 2


def test_differences_are_to_the_baseline_seed_by_seed(shown):
    made = comparison(paper=(), baseline="Proto_Norm")
    table = shown(made, {("FedProto", 2)})["differences"]
    assert "difference to Proto_Norm in percentage points (final), paired by seed" in table.sentence
    # -5 and -10 points; t(0.975, 1) = 12.706
    assert cells(table)["CIFAR-10"] == {"FedProto": "-7.50 [-39.27, +24.27] (2 of 3 seeds)"}
    # of all seeds nothing is said of their number, which the first table has
    whole = shown(made)["differences"]
    assert cells(whole)["CIFAR-10"] == {"FedProto": "-2.00 [-26.47, +22.47]"}
    assert not whole.bold.any(axis=None)
    equal = shown(made, change=lambda frame: frame.assign(**{"metric: final": 0.5}))["differences"]
    assert cells(equal)["CIFAR-10"] == {"FedProto": "+0.00"}


def test_accuracies_by_one_rule_stand_above_what_each_methods_own_rule_gives(tmp_path):
    made = comparison(paper=(), baseline="FedProto", metrics=(Metric("classifier"),))
    place = folder_of(tmp_path, made)

    def by_classifier(summary):
        summary["headline"] |= {"rule": "classifier", "accuracy": summary["rules"]["classifier"]["final"]}

    same = tables_of(made, finished(place, made))
    assert "Every method's own inference rule is local-prototypes." in same[0].notes
    for trial in trials_of(made):
        if trial.method == "Proto_Norm":
            change_summary(place.of(trial) / "run", by_classifier)
    accuracies, own, apart, _ = tables_of(made, finished(place, made))
    # half of what the nearest prototype gives
    name = "CIFAR-10 (classifier headline)"
    assert list(cells(accuracies)[name].values())[:2] == ["40.00 ± 5.00", "41.00 ± 1.32"]
    assert cells(apart)[name] == {"Proto_Norm": interval(np.array([0.05, 0.1, -0.09]) / 2)}
    assert own.kind == "own-rules"
    assert cells(own)["CIFAR-10"] == {
        "FedProto": "80.00 ± 10.00 (local-prototypes)",
        "Proto_Norm": "41.00 ± 1.32 (classifier)",
    }
    named = replace(made, metrics=(Metric("classifier", "final"),))
    tables = tables_of(named, finished(place, named))
    assert "own-rules" not in [table.kind for table in tables]
    assert not any("own inference rule" in note for note in tables[0].notes)


def test_what_the_exchange_adds_is_a_rule_less_what_local_has_by_it_without_an_exchange(shown, tmp_path):
    made = comparison(methods=(*METHODS, Entry("Alone", {"strategy": "local"})), paper=())
    pool, control = [0.9, 0.8, 0.95], [0.85, 0.8, 0.84]

    def measured(frame, pool=pool):
        """A rule of FedProto, whose own runs have a control, too; and the controls of `local`."""
        alone = frame[frame["method"] == "FedProto"].assign(method="Alone", strategy="local")
        frame = pd.concat([frame, alone], ignore_index=True)
        frame.loc[frame["method"] == "FedProto", ["pool final", "pool-local final"]] = np.transpose(
            [pool, [0.8, 0.7, 0.8]]
        )
        controls = ["pool-local final", "encoder-local final"]
        frame.loc[frame["method"] == "Alone", controls] = np.transpose([control, control])
        return frame

    missing = {("Alone", seed) for seed in SEEDS}
    assert "gains" not in shown(made, missing)
    table = shown(made, missing, measured)["gains"]
    assert cells(table) == {"CIFAR-10 (pool final)": {"FedProto": interval(np.subtract(pool, control))}}
    assert "taken from Alone" in table.sentence
    # of the rule `encoder` the client's own control alone knows how often a client has each class
    assert not any("class shares" in note for note in table.notes)
    encoder = shown(made, missing, lambda frame: measured(frame).assign(**{"encoder final": 0.5}))["gains"]
    assert any("class shares" in note for note in encoder.notes)
    # below the best classifier the exchange is not what came out
    place = folder_of(tmp_path / "again", made, missing)
    said = [conclude(made, measured(finished(place, made), pool=figures)) for figures in (pool, [0.7, 0.7, 0.6])]
    assert said[0] == (
        "On CIFAR-10 FedProto reaches 88.33 ± 7.64 % (pool final); its exchange adds 5.3 points, which chance may "
        "explain. Below are the other rows."
    )
    assert "exchange" not in said[1]


@pytest.mark.parametrize(("strategy", "remedy"), [("protonorm", "Add `local`"), ("local", "Name an `encoder`")])
def test_where_local_has_no_control_none_of_another_run_takes_its_place(shown, strategy, remedy):
    made = comparison(methods=(METHODS[0], Entry("Proto_Norm", {"strategy": strategy})), paper=())

    def bare(frame):
        frame = frame.assign(**dict.fromkeys(("pool final", "pool-local final", "encoder final"), 0.5))
        return frame.assign(**{"pool-local final": frame["pool-local final"].where(frame["method"] == "FedProto")})

    found = shown(made, change=bare)
    assert "gains" not in found
    notes = " ".join(found["accuracy"].notes)
    assert "`local` lacks encoder-local and pool-local." in notes
    assert remedy in notes


# --- forms --------------------------------------------------------------------------------------------------


def of_texts(texts):
    frame = pd.DataFrame(texts)
    return Table("cost", "From <a> by -3 % on CIFAR-10.", frame, pd.DataFrame(False, frame.index, frame.columns))


def test_markdown_latex_and_the_console_show_the_same_with_what_is_apart_in_bold(shown, monkeypatch):
    monkeypatch.setitem(ACCURACIES, "FedProto", (0.80, 0.75, 0.75))
    found = list(shown(comparison()).values())
    assert bold(found[1]) == {"+5.33 [+3.90, +6.77]"}
    text = markdown(found)
    assert "|  | CIFAR-10 | CIFAR-10, paper | MNIST |\n|---|---:|---:|---:|\n" in text
    assert "| CIFAR-10 | **+5.33 [+3.90, +6.77]** |" in text
    assert "| Proto_Norm | 82.00 ± 2.65 |  | - |" in text
    named = of_texts({"a|b": {"**<i>": "1"}})
    named.bold.loc[:, :] = True
    assert "|  | a\\|b |\n|---|---:|\n| \\*\\*\\<i> | **1** |\n" in markdown([named])
    text = latex(found, labels_for(found, "Table 1: P_N"))
    assert r"Proto\_Norm & 82.00 $\pm$ 2.65 &  & - \\" in text
    assert r"CIFAR-10 & \textbf{+5.33 [+3.90, +6.77]} \\" in text
    assert r"\begin{tabular}{lrrr}" in text
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\centering", r"\end{table}"):
        assert text.count(rule) == 3
    captions = re.findall(r"\\caption\{(.*)\}", text)
    assert captions[0].startswith(r"Test: accuracy in \% (final), mean $\pm$ sample")
    assert len(captions) == 3
    kinds = ("accuracy", "differences", "cost")
    assert re.findall(r"\\label\{(.*)\}", text) == [f"tab:table-1-p-n-{kind}" for kind in kinds]
    terminal = Console(width=120, record=True, color_system="standard", file=io.StringIO())
    for table in found[:2]:
        terminal.print(console(table))
    text = terminal.export_text(styles=True)
    assert re.search(r"\x1b\[1m *\+5\.33 \[", text)
    assert not re.search(r"\x1b\[1m *82\.00", text)
    assert "82.00 ± 2.65" in text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("-7.50 [-39.27, +24.27]", "$-$7.50 [$-$39.27, +24.27]"),
        ("5e-05", "5e$-$05"),
        ("CIFAR-10 <last-5>", "CIFAR-10 $<$last-5$>$"),
        ("a|b > c", "a$|$b $>$ c"),
        ("λ=-1", r"$\lambda$=$-$1"),
        ("-", "-"),
        ("γ - 2 ± ε", r"$\gamma$ - 2 $\pm$ $\varepsilon$"),
        ("Ω, Σ, Α, ο, ϑ", r"$\Omega$, $\Sigma$, $\mathrm{A}$, $\mathrm{o}$, $\vartheta$"),
        ("x-.5 −3", "x-.5 $-$3"),
        # both would be an argument of the line's end before them
        ("[ours] a", "{}[ours] a"),
        ("*", "{}*"),
        (r"50 % & a_b {c} \d~^", r"50 \% \& a\_b \{c\} \textbackslash{}d\textasciitilde{}\textasciicircum{}"),
    ],
)
def test_latex_shows_the_letters_and_signs_that_are_meant(text, written):
    assert as_tex(text) == written
    table = latex([of_texts({text: {text: text}})])
    assert f"{written} & {written} \\\\" in table
    assert rf" & {written} \\" in table
    assert r"\caption{From $<$a$>$ by $-$3 \% on CIFAR-10.}" in table
    # nothing but ASCII is left that LaTeX's first fonts lack
    assert table.isascii()


def test_figures_of_different_clients_are_said_to_be_that(tmp_path):
    made = comparison()
    place = folder_of(tmp_path, made)

    def sampled(summary):
        summary["headline"]["rows"] = 40
        summary["rules"]["local-prototypes"] |= {"clients": 1, "complete": False}

    change_summary(place.run_of(trials_of(made)[0]), sampled)
    notes = notes_below(tables_of(made, finished(place, made)))
    assert "CIFAR-10: methods were measured on different clients, which their differences mix up." in notes
    assert [note for note in notes if "FedProto: no round evaluated all 2 clients" in note]


@pytest.mark.parametrize(
    ("metrics", "settings", "word"),
    [
        ("pool final", {}, "pool final.*or an `encoder`"),
        ("ensemble final", {}, "ensemble final.*`ensemble-every` above 0"),
        ("pool final", {"encoder": "handcrafted"}, ""),
        ("ensemble final", {"ensemble-every": 2, "shared-test-share": 0.1}, ""),
        ("pool final,classifier final", {}, ""),
    ],
)
def test_a_metric_that_no_trial_would_have_is_refused_before_they_start(metrics, settings, word):
    whole = narrow(load(), methods="local,protosphere" if "encoder" in settings else "local", metric=metrics)
    if not word:
        resolve(whole, overrides=settings)
        return
    with pytest.raises(SettingError, match=word):
        resolve(whole, overrides=settings)


def test_rules_that_are_varied_are_compared_by_themselves():
    spec, _ = resolve(narrow(load(), methods="fedproto"), vary=['inference="classifier","local-prototypes"'])
    assert spec.metrics == (Metric(),)
