"""docs/api.md: made of the docstrings, whole, and true: its examples run."""

import ast
import doctest
import inspect
import re

import numpy as np
import pytest
import torch

import protosphere
from protosphere import api_docs

PAGE = api_docs.PAGE.read_text()
# its runs have processes of their own
FIRST, COMPARE, REST = re.split(r"(?=^## `(?:compare|Error)`)", PAGE, flags=re.MULTILINE)


def hold(text):
    """Run the examples of a page's part."""
    plain = re.sub(r"^```.*$", "", text, flags=re.MULTILINE)
    names = {"np": np, "torch": torch, "protosphere": protosphere}
    test = doctest.DocTestParser().get_doctest(plain, names, "api.md", "docs/api.md", 0)
    assert test.examples
    found = doctest.DocTestRunner(verbose=False).run(test)
    assert found.failed == 0
    assert found.attempted == len(test.examples)


def test_the_page_is_that_of_the_docstrings():
    assert api_docs.page() == PAGE


def test_every_public_name_is_there_once_with_words_and_types():
    listed = [name for names in protosphere.PLACES.values() for name in names]
    assert sorted(listed) == sorted(protosphere.__all__)
    for name in listed:
        found = getattr(protosphere, name)
        assert PAGE.count(f"# `{name}`") == 1
        if name == "Error":
            assert {each.__name__ for each in found} == {each for each in listed if each.endswith("Error")} - {"Error"}
        elif inspect.isclass(found) and not issubclass(found, Exception):
            members = ast.parse(inspect.getsource(found)).body[0].body
            public = [each for each in members if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
            assert all(ast.get_docstring(each) and each.returns for each in public)
    with pytest.raises(AttributeError, match="nothing"):
        _ = protosphere.nothing


def test_its_examples_run():
    hold(FIRST)


@pytest.mark.integration
def test_its_examples_of_a_comparison_run():
    hold(COMPARE)
