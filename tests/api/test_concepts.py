"""docs/concepts.md explains each rule and metric that a run reports, and is what the other pages link to."""

import re
from pathlib import Path

from protosphere.core.settings import RULES
from protosphere.record.summary import FIGURES
from protosphere.strategies import METHODS, load_method
from protosphere.strategies.release import OWN_POOL, OWN_RULE, POOL, RULE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "concepts.md").read_text("utf-8")
HEADINGS = re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)


def section(heading):
    """The terms below a heading, each with its text."""
    text = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    return dict(re.findall(r"^### ([^\n]*)\n(.*?)(?=^### |\Z)", text, re.MULTILINE | re.DOTALL))


def without_formula(entries):
    return [name for name, text in entries.items() if not re.search(r"^    \S", text, re.MULTILINE)]


def test_every_rule_has_a_formula_and_no_other_is_called_one():
    rules = {rule for name in METHODS for rule in load_method(name).rules} | {*RULES, RULE, POOL, OWN_RULE, OWN_POOL}
    entries = section("Inference rules")
    assert set(entries) == rules
    assert without_formula(entries) == []


def test_every_figure_of_a_run_is_explained():
    entries = section("Metrics of a run")
    assert {*FIGURES} <= set(entries)
    assert without_formula({name: entries[name] for name in FIGURES}) == []


def test_links_to_concepts_lead_to_a_heading():
    anchors = {name.lower().replace(" ", "-") for name in HEADINGS}
    links = [
        (path.name, anchor)
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for anchor in re.findall(r"concepts\.md#([\w-]+)", path.read_text("utf-8"))
    ]
    assert links, "the pages link the terms that they use"
    assert [link for link in links if link[1] not in anchors] == []
