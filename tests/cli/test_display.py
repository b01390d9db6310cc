"""What moves on a terminal; what a pipe gets, the tests of the commands have."""

import json
import os
import pty
import re
import select
import sys

from protosphere.progress import Display
from tests.waiting import PATIENCE

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read_until(terminal, pattern):
    """What a terminal got until this came up in its text."""
    seen = ""
    while not re.search(pattern, ESCAPES.sub("", seen), re.DOTALL):
        assert select.select([terminal], [], [], PATIENCE)[0], seen
        seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


def test_on_a_terminal_a_bar_moves_under_the_lines_and_is_wiped_away(tmp_path, monkeypatch):
    status = {"round": 2, "rounds": 3000, "latest": {"accuracy": 0.915}}
    (tmp_path / "status.json").write_text(json.dumps(status))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal, other_end = pty.openpty()
    with open(other_end, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        with Display() as display:
            display.stage("reading")
            # it turns while nothing else is said
            read_until(terminal, r"([-/|\\]) reading.*(?!\1)[-/|\\] reading")
            display.opened(tmp_path)
            display.line("round    2/3000 |  91.5 %")
            # accuracy, time so far and left
            read_until(terminal, r"round    2/3000 \|  91\.5 %.*round 2/3000, 91\.5 % .*━.* 0:00:\d\d ")
        seen = os.read(terminal, 65536).decode(errors="replace")
    os.close(terminal)
    # whatever was drawn under the lines
    assert "━" not in ESCAPES.sub("", seen.rpartition("\x1b[2K")[2])


def test_on_a_terminal_that_knows_nothing_there_is_text_alone(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal, other_end = pty.openpty()
    with open(other_end, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        with Display() as display:
            display.stage("reading")
            display.line("round   1/2 |  50.0 %")
        assert os.read(terminal, 65536).decode() == "round   1/2 |  50.0 %\r\n"
    os.close(terminal)
