"""Commands that are watched: every process that comes of them is known, and whether it is gone."""

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress

import psutil
import pytest

from tests.waiting import PATIENCE, comes


def assignments(settings):
    """Settings as `-c` takes them."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


class Watched:
    """A command, with all processes that come of it noted by walking parents while it runs."""

    def __init__(self, command, **options):
        self.output = ""
        self.seen = {}
        self._ended = threading.Event()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options
        )
        self._walker = threading.Thread(target=self._walk, daemon=True)
        self._walker.start()

    def finish(self):
        """Wait for its end; gives the exit code."""
        try:
            self.output += self.process.communicate(timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.output += self.process.communicate(timeout=PATIENCE)[0]
            pytest.fail(f"stuck for {PATIENCE} s:\n{self.output[-4000:]}")
        self._ended.set()
        self._walker.join()
        return self.process.returncode

    def left(self):
        """Those that live on after PATIENCE; what ends by itself until then is no fault."""
        comes(lambda: not self.alive())
        return self.alive()

    def alive(self):
        """Those that live now."""
        return alive(self.seen)

    def _walk(self):
        # a look takes a twentieth of this on a small machine
        while not self._ended.wait(0.3):
            self.seen = descendants(self.process.pid, self.seen)


def members(deployment, partition=None):
    """Ids of the processes of a deployment's site, or of its SuperLink."""
    process = deployment.processes.get(partition)
    return set(descendants(process.pid)) - {process.pid} if process else set()


def everybody(deployment):
    """Ids of all of its processes."""
    return set().union(*(members(deployment, partition) for partition in deployment.processes))


def kill(deployment, partition=None):
    """End a site's SuperNode, or the SuperLink, and all that came of it, by SIGKILL."""
    watcher = deployment.processes.get(partition)
    # until it has ended: a look at all processes may miss one, and the watcher of a living one never ends
    while watcher is not None and watcher.poll() is None:
        for pid in members(deployment, partition):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def descendants(root, known=()):
    """All that came of a process, by walking parents, with what was found before: {pid: when it began}."""
    table, known = living(), dict(known)
    kin = {root} | alive(known, table)
    while new := {pid for pid, (parent, _) in table.items() if parent in kin and pid not in kin}:
        kin |= new
    return known | {pid: table[pid][1] for pid in kin & table.keys()}


def alive(known, table=None):
    """Those of `known` that still live, by what `living` has said, or says now."""
    table = living() if table is None else table
    return {pid for pid, began in known.items() if pid in table and table[pid][1] == began}


def living():
    """Every living process, by its id: its parent, and when it began."""
    table = {}
    for process in psutil.process_iter(["ppid", "create_time", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE:
            table[process.pid] = (process.info["ppid"], process.info["create_time"])
    return table
