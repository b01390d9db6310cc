"""docs/api.md: whole; the examples of the docstrings that it shows run."""

import ast
import doctest
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import protosphere

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text("utf-8")
# what the file of a method uses comes below
PAGE = PAGE.partition("## What the file of a method uses")[0]
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


def test_every_public_name_stands_on_the_page_once_and_has_words_and_types():
    listed = re.findall(r"^\.\. auto\w+:: (\w+)$", PAGE, re.MULTILINE)
    assert listed == LISTED
    assert sorted(listed) == sorted(protosphere.__all__)
    for name in listed:
        found = getattr(protosphere, name)
        if name == "Error":
            assert {each.__name__ for each in found} == {each for each in listed if each.endswith("Error")} - {"Error"}
            continue
        assert inspect.getdoc(found)
        if inspect.isclass(found) and not issubclass(found, Exception):
            members = ast.parse(inspect.getsource(found)).body[0].body
            public = [each for each in members if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
            assert all(ast.get_docstring(each) and each.returns for each in public)
    with pytest.raises(AttributeError, match="nothing"):
        _ = protosphere.nothing


def test_the_examples_of_the_docstrings_run():
    hold([name for name in LISTED if name not in COMPARING and name != "Error"])


@pytest.mark.integration
def test_the_examples_of_a_comparison_run():
    hold(COMPARING)
