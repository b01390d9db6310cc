"""docs/api.md: made of the docstrings, and whole; the examples of these run."""

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
LISTED = [name for names in protosphere.PLACES.values() for name in names]
COMPARING = protosphere.PLACES["protosphere.comparing"]


def hold(names):
    """Run the examples of these names' docstrings, one after the other."""
    items = [getattr(protosphere, name) for name in names]
    texts = []
    for item in items:
        members = vars(item).items() if inspect.isclass(item) else ()
        public = [value for name, value in members if not name.startswith("_")]
        documented = [item, *(value for value in public if isinstance(value, property) or inspect.isroutine(value))]
        texts += [inspect.getdoc(each) or "" for each in documented]
    text = "\n\n".join(texts)
    names = {"np": np, "torch": torch, "protosphere": protosphere}
    test = doctest.DocTestParser().get_doctest(text, names, "protosphere", "protosphere", 0)
    assert test.examples
    found = doctest.DocTestRunner(verbose=False).run(test)
    assert found.failed == 0
    assert found.attempted == len(test.examples)


def test_the_page_is_that_of_the_docstrings():
    assert api_docs.page() == PAGE


def test_every_public_name_is_there_once_with_words_and_types():
    assert sorted(LISTED) == sorted(protosphere.__all__)
    for name in LISTED:
        found = getattr(protosphere, name)
        assert len(re.findall(rf"^(?:## `{name}`|- `{name}`: [A-Z].+)$", PAGE, re.MULTILINE)) == 1
        if name == "Error":
            assert {each.__name__ for each in found} == {each for each in LISTED if each.endswith("Error")} - {"Error"}
        elif inspect.isclass(found) and not issubclass(found, Exception):
            members = ast.parse(inspect.getsource(found)).body[0].body
            public = [each for each in members if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
            assert all(ast.get_docstring(each) and each.returns for each in public)
            section = PAGE.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
            assert all(re.search(rf"^- `{each.name}\b", section, re.MULTILINE) for each in public)
    with pytest.raises(AttributeError, match="nothing"):
        _ = protosphere.nothing


def test_the_examples_of_the_docstrings_run():
    hold([name for name in LISTED if name not in COMPARING and name != "Error"])


@pytest.mark.integration
def test_the_examples_of_a_comparison_run():
    hold(COMPARING)
