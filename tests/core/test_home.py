"""The home of a run whose clients move between machines: known by the run's token, and no other passes for it."""

import socket

import pytest

from protosphere.core.home import OtherHomeError, mark, refuse_other, stores

RUN, TOKEN = "20260101-000000-fedproto-digits", "0123456789abcdef"


def test_the_home_that_was_marked_is_the_runs_and_keeps_no_token(home):
    mark(RUN, TOKEN)
    refuse_other(RUN, TOKEN)
    mark(RUN, TOKEN)  # a resumed run does so again
    refuse_other(RUN, TOKEN)
    (kept,) = stores(RUN).iterdir()
    assert TOKEN not in kept.read_text()


@pytest.mark.parametrize(
    ("marked", "spoil"),
    [
        (None, None),
        (("another-run", TOKEN), None),
        ((RUN, "another token"), None),
        ((RUN, TOKEN), b""),
        ((RUN, TOKEN), b"\xff\xfe"),
        ((RUN, TOKEN), TOKEN.encode()),
    ],
)
def test_another_home_is_refused_by_host_and_place(home, marked, spoil):
    if marked:
        mark(*marked)
    if spoil is not None:
        next(stores(RUN).iterdir()).write_bytes(spoil)
    before = sorted(home.rglob("*"))
    with pytest.raises(OtherHomeError) as refused:
        refuse_other(RUN, TOKEN)
    assert socket.gethostname() in str(refused.value)
    assert str(home) in str(refused.value)
    assert TOKEN not in str(refused.value)
    assert sorted(home.rglob("*")) == before
