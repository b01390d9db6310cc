"""The examples in the docstrings of the Python API run."""

import doctest
import inspect

import numpy as np
import pytest
import torch

import protosphere

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
    results = doctest.DocTestRunner(verbose=False).run(test)
    assert results.failed == 0
    assert results.attempted == len(test.examples)


@pytest.mark.usefixtures("undrawn")
def test_the_examples_of_the_docstrings_run():
    hold([name for name in LISTED if name not in COMPARING and name != "Error"])


@pytest.mark.integration
def test_the_examples_of_a_comparison_run():
    hold(COMPARING)
