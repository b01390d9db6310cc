"""The home of a run whose clients move between machines: known by the folder of the run's clients."""

import socket

import pytest

from protosphere.core.home import OtherHomeError, refuse_other, stores

RUN = "20260101-000000-fedproto-digits-0123abcd"


def test_the_home_in_which_the_run_was_started_is_the_runs(home):
    stores(RUN).mkdir(parents=True)
    refuse_other(RUN)
    assert [*stores(RUN).iterdir()] == []


@pytest.mark.parametrize("spoil", [None, "another run", "a file"])
def test_another_home_is_refused_by_host_and_place(home, spoil):
    if spoil == "another run":
        stores(RUN.replace("abcd", "abce")).mkdir(parents=True)
    elif spoil == "a file":
        stores(RUN).parent.mkdir(parents=True)
        stores(RUN).write_text("")
    before = sorted(home.rglob("*"))
    with pytest.raises(OtherHomeError) as refused:
        refuse_other(RUN)
    assert socket.gethostname() in str(refused.value)
    assert str(home) in str(refused.value)
    assert sorted(home.rglob("*")) == before
