"""What moves on a terminal, and what a pipe gets: whole runs of the command, in a pseudo-terminal and without one."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import sys
import time

import pytest
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.plans import run_config
from protosphere.progress import Display

COMMAND = ["run", "--clients", "3", "-c"]
QUICK = 'strategy="fedproto" rounds=3000 max-samples=400 local-epochs=1 models="tiny_perceptron" device="cpu"'
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(*arguments, until):
    """What the command writes to a terminal of 100 columns, piece by piece; where `until` comes up, it is interrupted
    from the keyboard. And its exit code. A fork of this process, for what takes long is to load torch."""
    pid, terminal = pty.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(Exception):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ |= {"COLUMNS": "100", "TERM": "xterm"}
            run_config.plan = slowly(run_config.plan)
            try:
                app(arguments)
            except SystemExit as ended:
                code = ended.code
            sys.stdout.flush()
        os._exit(code)
    seen = []
    while True:
        try:
            if select.select([terminal], [], [], 120)[0]:
                seen.append(os.read(terminal, 65536).decode(errors="replace"))
        except OSError:
            break
        if not seen or not seen[-1]:
            break
        if until and until in "".join(seen):
            os.write(terminal, b"\x03")
            until = ""
    os.close(terminal)
    return seen, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def slowly(plan):
    """As where the data are large."""

    def planned(*arguments, **options):
        time.sleep(1)
        return plan(*arguments, **options)

    return planned


@pytest.mark.usefixtures("undrawn")
def test_on_a_terminal_a_bar_moves_and_an_interrupted_run_ends_with_its_report_and_the_command_that_goes_on(home):
    seen, code = on_a_terminal(*COMMAND, QUICK, until="round    5/3000")
    assert code == 130
    whole = "".join(seen)
    before = ESCAPES.sub("", whole.partition("results: ")[0])
    assert len(set(re.findall(r"([-/|\\]) reading", before))) > 1, "it turns while nothing else is said"
    bar = r"round \d+/3000, \d+\.\d % .*━.* 0:00:\d\d "
    assert re.search(bar, ESCAPES.sub("", whole)), "accuracy, time so far and left"
    lines = ESCAPES.sub("", whole).replace("\r", "").splitlines()[-4:]
    (folder,) = (home / "results").iterdir()
    # whatever was drawn under the lines is wiped away
    assert "━" not in ESCAPES.sub("", whole.rpartition("\x1b[2K")[2])
    assert re.match(r".*stopped by SIGINT after round \d+\.$", lines[0])
    assert lines[1] == f"report: {folder}/report.html"
    assert "Accuracy" in (folder / "report.html").read_text()
    assert json.loads((folder / "status.json").read_text())["state"] == "stopped"
    program, *arguments = lines[2].removeprefix("resume: ").split()
    assert program == "protosphere"
    done = len((folder / "metrics.jsonl").read_text().splitlines())
    resumed = CliRunner().invoke(app, [*arguments, "-c", f"rounds={done + 1}"])
    assert resumed.exit_code == 0, resumed.output
    assert f"round {done + 1}/{done + 1} |" in resumed.stdout


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
