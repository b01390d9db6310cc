"""One table of terms for help, reports and docs/concepts.md."""

import re
from pathlib import Path

from protosphere.core.settings import RULES
from protosphere.core.terms import HEADINGS, TERMS, concepts_page
from protosphere.record.summary import FIGURES
from protosphere.strategies import METHODS, load_method
from protosphere.strategies.release import OWN_POOL, OWN_RULE, POOL, RULE

ROOT = Path(__file__).resolve().parents[2]


def of_kind(kind):
    return {term.name for term in TERMS.values() if term.kind == kind}


def test_every_rule_has_a_formula_and_no_other_is_called_one():
    rules = {rule for name in METHODS for rule in load_method(name).rules} | {*RULES, RULE, POOL, OWN_RULE, OWN_POOL}
    assert of_kind("rules") == rules
    assert all(TERMS[rule].formula for rule in rules)


def test_every_figure_of_a_run_is_explained():
    assert {*FIGURES} <= of_kind("figures")
    assert all(TERMS[figure].formula for figure in FIGURES)


def test_the_page_is_the_table():
    page = (ROOT / "docs" / "concepts.md").read_text("utf-8")
    assert page == concepts_page(), "`make settings` writes it anew"
    assert re.findall(r"^### (.*)$", page, re.MULTILINE) == [
        term.name for kind in HEADINGS for term in TERMS.values() if term.kind == kind
    ]


def test_links_to_concepts_lead_to_a_term():
    anchors = {name.lower().replace(" ", "-") for name in (*TERMS, *HEADINGS.values())}
    links = [
        (path.name, anchor)
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for anchor in re.findall(r"concepts\.md#([\w-]+)", path.read_text("utf-8"))
    ]
    assert links, "the pages link the terms that they use"
    assert [link for link in links if link[1] not in anchors] == []
