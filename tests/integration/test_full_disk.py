"""A full disk: clients that cannot save their models are named, and go on once there is space."""

import resource
import signal

import pytest

from protosphere.launch.grid import LocalGrid

LIMIT = 40_000  # bytes of a file: enough for a line, a checkpoint, a report; not for a client's model
SETTINGS = {"strategy": "protonorm", "models": "tiny_cnn", "feature-dim": 64}


@pytest.fixture
def full():
    """full(bool): whether files of this process end at LIMIT, as on a disk whose last blocks are taken."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def switch(on):
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT if on else before[0], before[1]))

    yield switch
    switch(False)
    signal.signal(signal.SIGXFSZ, ignored)


def test_clients_that_cannot_save_are_named_and_go_on_from_what_they_had(run, metrics, full):
    class Filling(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            rounds = {m.content["config"]["round"] for m in messages if "config" in m.content}
            full(rounds == {3})
            return super().push_messages(messages)

    lines = metrics(run(SETTINGS | {"rounds": 4}, grid=Filling))
    assert [line["training"]["valid"] for line in lines[1:]] == [4, 4, 0, 4]
    assert [len(line["problems"]) for line in lines] == [0, 0, 0, 4, 0]
    assert all("cannot be written" in problem for problem in lines[3]["problems"].values())
