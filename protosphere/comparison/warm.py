"""Runs of a comparison without the start of a process each: one process loads all that a run needs, and becomes each
run by a fork, so that every run begins as if it were the first, whatever became of those before.

The template trains nothing and starts no thread. Over a pipe it takes commands to run, and says which run has begun and
which ended how.
"""

import atexit
import gc
import importlib
import os
import pkgutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from protosphere.launch import processes

ROOMS = ("core", "prototypes", "wire", "record", "data", "models", "strategies", "client_app", "server_app")
COMMANDS = "protosphere.cli.main"
OTHERS = ("protosphere.launch.grid", COMMANDS)
# torchvision brings torch's compiler, whose objects make every process' end long
LATE = "protosphere.models.vision"
# of others, what a run loads late
LIBRARIES = ("pandas", "pyarrow.parquet", "scipy.optimize", "safetensors.torch", "tqdm.rich")
LOOK = 0.1  # seconds after which the template looks again whether a run has ended


def can_fork() -> bool:
    """Whether this system's forks are safe, and another process' death can be waited for."""
    return sys.platform == "linux"


class Child:
    """A run that was forked; as a `subprocess.Popen` has it."""

    def __init__(self, template: "Template", pid: int):
        self._template = template
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        self._template.hear(0.0, self)
        return self.returncode

    def wait(self, timeout: float) -> None:
        """Until it has ended, for so many seconds at most."""
        self._template.hear(timeout, self)

    def terminate(self) -> None:
        """SIGTERM."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


class Template:
    """The process that becomes runs, as the one that asks for them sees it."""

    def __init__(self) -> None:
        self._connection, end = Pipe()
        self._children: dict[int, Child] = {}
        command = [sys.executable, "-m", "protosphere.comparison.warm", str(end.fileno())]
        environment = os.environ | {"PYTHONPATH": processes.import_path()}
        self._process = processes.start(command, env=environment, cwd="/", pass_fds=(end.fileno(),))
        end.close()

    def start(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], output: Path) -> Child | None:
        """`protosphere ARGUMENTS` in a session of its own; None where the template is gone.

        Args:
            output: a file for all that it says.
        """
        order = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "output": str(output)}
        try:
            self._connection.send(order)
            child = None
            while child is None:
                child = self._receive()
        except (OSError, EOFError):
            self._lose()
            return None
        return child

    def hear(self, seconds: float, child: Child) -> None:
        """Take in which runs have ended, for so many seconds or until this one has."""
        deadline = time.monotonic() + seconds
        try:
            while child.returncode is None and self._connection.poll(max(0.0, deadline - time.monotonic())):
                self._receive()
        except (OSError, EOFError):
            self._lose()

    def close(self) -> None:
        """End the template, even while it loads, and with it the runs that are still on."""
        self._connection.close()
        processes.stop(self._process)

    def _receive(self) -> Child | None:
        """Wait for a message: a run that has begun, or None where one has ended."""
        pid, code = self._connection.recv()
        if code is None:
            self._children[pid] = Child(self, pid)
            return self._children[pid]
        self._children.pop(pid).returncode = code
        return None

    def _lose(self) -> None:
        # nobody will say how they end
        for child in self._children.values():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            child.returncode = -signal.SIGKILL
        self._children.clear()


def serve(orders: "Connection[Any, Any]") -> None:
    """The template's own life: until the other end of the connection closes."""
    # who asked may be killed while it loads, or between an order and its answer
    with suppress(EOFError, ConnectionError):
        while True:
            for pid, code in _ended_children():
                orders.send((pid, code))
            if not orders.poll(LOOK):
                continue
            order = orders.recv()
            with warnings.catch_warnings():
                # Python 3.12 warns of threads, whoever's they are
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                orders.close()
                _become(order)
            orders.send((pid, None))


def _ended_children() -> Iterator[tuple[int, int]]:
    """The id and the exit code of each run that has ended since the last look."""
    # without a child there is none to ask for
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def _become(order: Mapping[str, Any]) -> None:
    """Be the run, and end with it."""
    os.setsid()
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.stdin = os.fdopen(0)
    # as with PYTHONUNBUFFERED: how far it is can be read at any time
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    # by name, as a command line has it: commands stand above comparisons
    app = importlib.import_module(COMMANDS).app
    sys.argv = ["protosphere", *order["arguments"]]
    code = 1
    try:
        app(order["arguments"])
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code)


def _end(code: int) -> None:
    """As multiprocessing ends a fork: with all that is due, but without taking apart what the template has loaded,
    which costs half a second."""
    # joins what is no daemon; it is not in the types of the library, and multiprocessing calls it so too
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def load() -> None:
    """Import what a run needs, so that each has it from the start. Nothing of it begins a thread of Python's; those of
    OpenBLAS and of Arrow's allocator are prepared for a fork by these themselves."""
    for room in ROOMS:
        package = importlib.import_module(f"protosphere.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            _import(module.name)
    for name in (*OTHERS, *LIBRARIES):
        _import(name)
    # garbage is searched for among each run's own objects alone, and no page of these is copied for it
    gc.freeze()


def _import(name: str) -> None:
    # without what an extra would have brought
    with suppress(ImportError):
        if name != LATE:
            importlib.import_module(name)


if __name__ == "__main__":
    from protosphere.core.startup import uncollected

    with uncollected():
        load()
    serve(Connection(int(sys.argv[1])))
