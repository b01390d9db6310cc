"""A full disk: the server stops at once and says so, and what it resumes is the run that was never cut, to the bit."""

import resource
import signal
from pathlib import Path

import pytest

from protosphere.client_app import client as client_module
from protosphere.core.errors import SettingError
from protosphere.launch.grid import LocalGrid
from protosphere.record.folder import RunFolder

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


def test_clients_that_cannot_save_stop_the_run_before_the_round_counts(run, metrics, full):
    whole = metrics(run(SETTINGS | {"rounds": 4}))
    client_module._states.clear()

    class Filling(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            rounds = {m.content["config"]["round"] for m in messages if "config" in m.content}
            full(rounds == {3})
            return super().push_messages(messages)

    with pytest.raises(SettingError, match=r"folder .* cannot be written \(File too large\); free space there"):
        run(SETTINGS | {"rounds": 4}, grid=Filling)
    full(False)
    folder = next(line for line in run.said if line.startswith("results: ")).removeprefix("results: ")
    # two rounds are there, and none in which clients failed
    assert [(line["round"], line["problems"]) for line in RunFolder(Path(folder)).lines()] == [
        (0, {}),
        (1, {}),
        (2, {}),
    ]
    client_module._states.clear()
    resumed = run(SETTINGS | {"rounds": 4, "resume": folder})
    assert metrics(resumed) == whole


def test_files_that_go_while_the_disk_is_tried_do_no_harm(tmp_path, home):
    """A client renames its half-written file in the moment between listing and looking."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    stores = home / "clients" / "run" / "0"
    stores.mkdir(parents=True)
    # a link that leads nowhere is there when listed, and gone when looked at
    (stores / "round-000001.1.tmp").symlink_to(stores / "gone")
    folder.refuse_full_disk()
