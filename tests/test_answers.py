"""The pages of measured answers: made of the figures that are kept, to the letter."""

import csv
import json
import re

import pytest

from benchmarks import answers
from benchmarks.answers import Answer, page, picture
from protosphere.comparison.paired import difference

HEAD = ["row", "method", "strategy", "seed", "status", "metric: headline", "metric: classifier final"]
HEAD += ["majority-class", "payload_bytes", "rounds"]
QUESTION = """# Is it better? Two methods, nothing tuned.
seeds = [0, 1, 2]
metric = ["headline", "classifier final"]
baseline = "local"
methods = ["local", "protonorm"]
datasets = ["digits"]
"""
FIGURES = {"local": (0.5, 0.6, 0.7), "protonorm": (0.6, 0.7, 0.81)}


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """A question with its figures; one cell is not finished."""
    monkeypatch.setattr(answers, "QUESTIONS", tmp_path)
    monkeypatch.setattr(answers, "RESULTS", tmp_path)
    (tmp_path / "better.toml").write_text(QUESTION)
    (tmp_path / "better.md").write_text("It is.\n")
    about = {"command": "protosphere compare better.toml", "commit": "abc", "machine": "a machine"}
    (tmp_path / "better.json").write_text(json.dumps({"digits": about}))
    with (tmp_path / "better.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        for method, values in FIGURES.items():
            for seed, value in enumerate(values):
                writer.writerow(["digits", method, method, seed, "completed", value, "", 0.2, 4000 * seed, 2])
        writer.writerow(["digits", "protonorm", "protonorm", 3, "missing", *[""] * 5])
    about[answers.PROTOCOL] = Answer("better").protocol("digits")
    (tmp_path / "better.json").write_text(json.dumps({"digits": about}))
    return Answer("better")


def test_a_page_has_the_question_what_came_out_and_the_figures(answer):
    text = page(answer)
    assert text.startswith("# Is it better?\n\nTwo methods, nothing tuned.\n\nIt is.\n")
    found = difference(dict(enumerate(FIGURES["protonorm"])), dict(enumerate(FIGURES["local"])))
    low, high = 100 * found.low, 100 * found.high
    assert f"| `protonorm` | **+10.3 [{low:+.1f}, {high:+.1f}]** | 2.0 |" in text
    assert "| `local` | 60.00 ± 10.00 | 2.0 |" in text
    assert text.count("\n|---|") == 1, "all else is in the CSV, which the page links"
    assert "(../../benchmarks/results/better.csv)" in text
    assert "`protosphere compare better.toml`, commit abc, seeds 0 to 2, a machine." in text


def test_a_row_that_is_kept_later_stands_beside_the_others_and_says_where_it_was_measured(answer, tmp_path):
    (tmp_path / "better.toml").write_text(QUESTION.replace('["digits"]', '["usps", "digits"]'))
    folder = tmp_path / "measured"
    folder.mkdir()
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*HEAD, "seconds", "run"])
        for method, values in FIGURES.items():
            for seed, value in enumerate(values):
                writer.writerow(["usps", method, method, seed, "completed", value, "", 0.2, 0, 2, 7, "runs/one"])
    answers.keep("better", folder, "protosphere compare better.toml --datasets usps", "def")
    both = Answer("better")
    assert both.rows == ["usps", "digits"]
    assert "run" not in both.cells[0]
    assert both.of("digits", "local", "headline") == dict(enumerate(FIGURES["local"]))
    assert both.kilobytes("local") == "0.0 to 2.0"
    told = page(both)
    assert "**Measured** by `protosphere compare better.toml`, in parts, seeds 0 to 2; usps: commit def, " in told
    assert "; digits: commit abc, a machine. Every rule and seed: " in told
    assert "(../../benchmarks/results/better.json)" in told
    before = told.replace("commit def", "commit fed")
    answers.keep("better", folder, "protosphere compare better.toml --datasets usps", "fed")
    assert page(Answer("better")) == before


def test_methods_that_are_measured_anew_stand_beside_the_others_of_their_row(answer, tmp_path):
    folder = tmp_path / "measured"
    folder.mkdir()
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        for seed in range(3):
            writer.writerow(["digits", "protonorm", "protonorm", seed, "completed", 0.9, "", 0.2, 0, 2])
    for commit in ("def", "fed"):
        answers.keep("better", folder, "protosphere compare better.toml", commit)
    both = Answer("better")
    assert both.of("digits", "local", "headline") == dict(enumerate(FIGURES["local"]))
    assert both.of("digits", "protonorm", "headline") == dict.fromkeys(range(3), 0.9)
    assert both.measured["digits"]["commit"] == "fed (protonorm) and abc (the others)"

    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEAD, ["digits", "local", "local", 0, "completed", 0.5, "", 0, 2]])
    (tmp_path / "better.toml").write_text(QUESTION.replace('["digits"]', '["digits"]\n[settings]\nrounds = 5'))
    with pytest.raises(SystemExit, match="is not what the other methods of 'digits' were measured by"):
        answers.keep("better", folder, "protosphere compare better.toml", "new")
    (tmp_path / "better.toml").write_text(QUESTION)
    answers.keep("better", folder, "protosphere compare better.toml", "new")
    assert Answer("better").measured["digits"]["commit"] == "new (local) and fed (protonorm) and abc (the others)"


def test_seeds_that_are_measured_later_join_those_of_the_same_commit_and_machine(answer, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "where", lambda: "commit abc, a machine")
    (tmp_path / "better.toml").write_text(QUESTION.replace("[0, 1, 2]", "[0, 1, 2, 3]"))
    folder = tmp_path / "measured"
    folder.mkdir()
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        for method, seed in (("local", 3), ("protonorm", 3), ("protonorm", 2)):
            writer.writerow(["digits", method, method, seed, "completed", 0.9, "", 0.2, 0, 2])
    answers.keep("better", folder, "protosphere compare better.toml --seeds 0,1,2,3", "abc")
    joined = Answer("better")
    assert joined.of("digits", "local", "headline") == dict(enumerate((*FIGURES["local"], 0.9)))
    assert joined.of("digits", "protonorm", "headline") == {0: 0.6, 1: 0.7, 2: 0.9, 3: 0.9}
    assert [cell["seed"] for cell in joined.cells] == [*"0123", *"0123"]
    assert joined.measured["digits"]["commit"] == "abc"
    joined.refuse_other_protocols()
    # of another program or machine none stays
    monkeypatch.setattr(answers, "where", lambda: "commit abc, another machine")
    answers.keep("better", folder, "protosphere compare better.toml --seeds 3", "abc")
    assert Answer("better").of("digits", "local", "headline") == {3: 0.9}


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ('metric = ["headline"', 'metric = ["headline", "pool final"', True),
        ('"protonorm"]', '"protonorm", "gfpl"]', True),  # nobody has measured it
        ("seeds = [0, 1, 2]", "seeds = [0, 1, 2, 3]", True),  # likewise
        ("seeds = [0, 1, 2]", "seeds = [0, 1]", False),
        ('["digits"]', '["digits"]\n[settings]\nrounds = 5', False),
        ('"protonorm"]', '{label = "protonorm", strategy = "protonorm", protonorm.gamma = 2}]', False),
    ],
)
def test_no_page_is_made_where_the_file_is_not_what_was_measured(answer, tmp_path, before, after, is_same):
    answer.refuse_other_protocols()
    assert before in QUESTION
    (tmp_path / "better.toml").write_text(QUESTION.replace(before, after))
    if is_same:
        Answer("better").refuse_other_protocols()
        return
    with pytest.raises(SystemExit, match="is not what 'digits' was measured by at commit abc"):
        Answer("better").refuse_other_protocols()


def test_a_page_says_where_the_file_was_another_when_it_was_measured(answer, tmp_path):
    measured = json.loads((tmp_path / "better.json").read_text())
    del measured["digits"][answers.PROTOCOL]
    (tmp_path / "better.json").write_text(json.dumps(measured))
    assert "commit abc (with an earlier version of that file), seeds" in page(Answer("better"))


def test_its_picture_has_each_method_but_the_baseline(answer):
    drawn = picture(answer)
    assert "protonorm" in drawn
    assert not re.search(r">\s*local\s*<", drawn)
    assert picture(answer) == drawn


def test_every_value_of_a_setting_is_a_line_and_the_chosen_one_is_by_validation_samples(answer, tmp_path):
    (tmp_path / "better.toml").write_text(f'{QUESTION}[vary]\nchoose = "validation"\nprotonorm.gamma = [3, 10]\n')
    # the value that is worse on test samples is the better one on validation samples
    figures = {"local": (0.5, ""), "protonorm, gamma = 3": (0.6, 0.9), "protonorm, gamma = 10": (0.7, 0.8)}
    with (tmp_path / "better.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*HEAD, "validation"])
        for method, (tested, held_out) in figures.items():
            for seed in range(3):
                writer.writerow(["digits", method, "", seed, "completed", tested, "", 0.2, 0, 2, held_out])
    assert answer.chosen("digits") == {"protonorm, gamma = 3"}
    table = [line.split("|") for line in page(answer).splitlines() if line.startswith("| `")]
    figures_of = {line[1].strip(): line[2].strip() for line in table}
    assert figures_of["`protonorm, gamma=3`"] == "**+10.0 [+10.0, +10.0]** *chosen*"
    assert figures_of["`protonorm, gamma=10`"] == "**+20.0 [+20.0, +20.0]**"
    assert figures_of["`local`"] == "50.00 ± 0.00"


@pytest.mark.parametrize("is_controlled", [True, False])
def test_what_the_exchange_adds_is_the_pool_less_that_of_local(tmp_path, monkeypatch, is_controlled):
    monkeypatch.setattr(answers, "QUESTIONS", tmp_path)
    monkeypatch.setattr(answers, "RESULTS", tmp_path)
    rules = [answers.MODEL, answers.OWN, answers.OWN_POOL, answers.SPACE, answers.POOLED]
    metrics = ", ".join(f'"{rule}"' for rule in rules)
    (tmp_path / "space.toml").write_text(
        f'# Does it add?\nseeds = [0, 1]\nmetric = [{metrics}]\nbaseline = "protosphere"\n'
        'methods = ["protosphere", "fedncm", "local"]\ndatasets = ["digits"]\n'
    )
    (tmp_path / "space.json").write_text(json.dumps({"digits": {"command": "c", "commit": "abc", "machine": "m"}}))
    figures = {"protosphere": [(0.5, 0.7, 0.72, 0.8, 0.85), (0.6, 0.6, 0.62, 0.7, 0.75)]}
    figures["fedncm"] = [("", "", "", 0.5, ""), ("", "", "", 0.4, "")]
    if is_controlled:
        figures["local"] = [(0.4, 0.7, 0.75, "", ""), (0.4, 0.6, 0.65, "", "")]
    with (tmp_path / "space.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*HEAD[:5], *(f"metric: {rule}" for rule in rules), *HEAD[-2:]])
        for method, values in figures.items():
            for seed, row in enumerate(values):
                writer.writerow(["digits", method, method, seed, "completed", *row, 4000, 2])
    monkeypatch.setitem(answers.TABLES, "space", answers.exchange_table)
    text = page(Answer("space"))
    # 10 points more than `local` by the same rule, not 13 more than its own run; and 5 more than its best part
    adds = "**+10.0 [+10.0, +10.0]** | " if is_controlled else ""
    assert f"| digits | 65.00 | 80.00 | {adds}**+5.0 [+5.0, +5.0]** shared |" in text
    assert ("`pool` minus the `pool-local` of `local`, seed by seed" in text) == is_controlled
    assert ("its control, `pool-local` of `local`, was not measured" in text) != is_controlled
    assert "+13.0" not in text
    assert "| digits | **75.00** | 45.00 |" in text


def test_a_table_by_rule_has_each_method_and_marks_what_is_ahead(answer, monkeypatch):
    monkeypatch.setitem(answers.TABLES, "better", answers.tables_by_rule)
    text = page(answer)
    assert "| method | `headline` | `classifier final` | kB per round |" in text
    assert "| `local` | 60.00 ± 10.00 | - | 2.0 |" in text
    assert "| `protonorm` | **70.33 ± 10.50** | - | 2.0 |" in text
    assert "\n\nMajority-class baseline: 20.00 ± 0.00." in text


def test_a_rule_by_which_all_methods_are_alike_is_a_sentence(answer, tmp_path, monkeypatch):
    monkeypatch.setitem(answers.TABLES, "better", answers.tables_by_rule)
    stored = (tmp_path / "better.csv").read_text()
    (tmp_path / "better.csv").write_text(stored.replace(",,0.2,", ",0.4,0.2,"))
    text = page(Answer("better"))
    assert "| method | `headline` | kB per round |" in text
    assert "\n\n`classifier final`: 40.00 ± 0.00 for every method. Majority-class baseline: 20.00 ± 0.00." in text


@pytest.mark.parametrize("name", [each.name for each in answers.answers()])
def test_a_page_is_what_the_script_makes_of_the_kept_figures(name):
    Answer(name).refuse_other_protocols()
    assert (answers.PAGES / f"{name}.md").read_text("utf-8") == page(Answer(name))
    assert (answers.PAGES / f"{name}.svg").exists()


def test_the_one_table_has_a_line_a_method_with_its_rules(answer, tmp_path, monkeypatch):
    # the same once more, of more bytes: 0, 2 and 10 kB per round
    for ending in ("toml", "json", "csv"):
        text = (tmp_path / f"better.{ending}").read_text()
        (tmp_path / f"heavier.{ending}").write_text(text.replace(",8000,", ",20000,"))
    monkeypatch.setattr(answers, "ONE_TABLE", ["better", "heavier", "not measured"])
    monkeypatch.setattr(answers, "MODEL_RULES", ["headline", "classifier final"])
    for rule in ("OWN", "OWN_POOL"):
        monkeypatch.setattr(answers, rule, "headline")
    before, after = "# Page\n\n" + answers.MARKS[0], answers.MARKS[1] + "\nThe end.\n"
    text = answers.with_one_table(before + "| old |\n" + after)
    assert text.startswith(before)
    assert text.endswith(after)
    assert "old" not in text
    lines = text.splitlines()
    assert lines[3] == "| method | inference rule | digits | digits | kB per round |"
    assert "| majority class |  | 20.00 | 20.00 | 0.0 |" in lines
    assert "| `protonorm` | `headline` / `classifier final` | 70.33 / - | 70.33 / - | 2.0 to 4.0 |" in lines
    assert answers.with_one_table(text) == text


@pytest.mark.parametrize("page_file", answers.SHOWING, ids=lambda path: path.name)
def test_the_one_table_is_what_the_script_makes(page_file):
    text = page_file.read_text("utf-8")
    assert text == answers.with_one_table(text)
