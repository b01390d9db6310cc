"""Each mutant can still be made; whether its tests notice it is asked by `make mutants`."""

import pytest

from tests.mutations.__main__ import ROOT
from tests.mutations.mutants import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_its_line_stands_once(name: str) -> None:
    mutant = MUTANTS[name]
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.before) == 1
    assert mutant.after != mutant.before
    for killer in mutant.killers.partition(" -k ")[0].split():
        assert (ROOT / killer.partition("::")[0]).exists()
