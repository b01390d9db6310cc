"""Runs of a comparison without the start of a process each: one process loads all that a run needs, and becomes each
run by a fork, so that every run begins as if it were the first, whatever became of those before.

The template trains nothing and starts no thread. It speaks JSON lines over a socket: a command to run, and which child
ended how.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from protosphere.launch.processes import Family, import_path

ROOMS = ("core", "prototypes", "wire", "record", "data", "models", "strategies", "client_app", "server_app")
COMMANDS = "protosphere.cli.main"
OTHERS = ("protosphere.launch.grid", COMMANDS)
# torchvision brings torch's compiler, whose objects make every process' end long
LATE = "protosphere.models.vision"
# of others, what a run loads late
LIBRARIES = ("pandas", "pyarrow.parquet", "scipy.optimize", "safetensors.torch", "tqdm.rich")


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
        if self.returncode is None:
            self._template.hear(0.0)
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
    """The process that becomes runs, as the one that asks for them sees it.

    Args:
        family: where it and its runs belong. tell: the descriptor to which each run says its id.
    """

    def __init__(self, family: Family, tell: int):
        self._socket, end = socket.socketpair()
        self._family = family
        self._children: dict[int, Child] = {}
        self._heard = b""
        self._lost = False
        command = [sys.executable, "-m", "protosphere.comparison.warm", str(end.fileno()), str(tell)]
        environment = os.environ | {"PYTHONPATH": import_path()}
        self._process = family.start(command, env=environment, cwd="/", pass_fds=(end.fileno(), tell))
        end.close()

    def start(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], output: Path) -> Child | None:
        """`protosphere ARGUMENTS` in a session of its own; None where the template is gone.

        Args:
            output: a file for all that it says.
        """
        order = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "output": str(output)}
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            self._lose()
        pid = None
        while pid is None and not self._lost:
            pid = self._listen(None)
        if pid is None:
            return None
        self._family.adopt(pid)
        self._children[pid] = Child(self, pid)
        return self._children[pid]

    def hear(self, seconds: float, until: Child | None = None) -> None:
        """Take in which runs have ended, for so many seconds or until this one has."""
        deadline = time.monotonic() + seconds
        while until is None or until.returncode is None:
            left = max(0.0, deadline - time.monotonic())
            if not self._is_readable(left):
                return
            self._listen(left)

    def close(self) -> None:
        """End the template, even while it loads; runs that it has become are not its own any more."""
        self._socket.close()
        self._process.terminate()

    def _is_readable(self, seconds: float) -> bool:
        if self._lost:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return b"\n" in self._heard or bool(selector.select(seconds))

    def _listen(self, seconds: float | None) -> int | None:
        """One line of the template; the id of a run that has begun."""
        while b"\n" not in self._heard:
            self._socket.settimeout(seconds or None)
            try:
                chunk = self._socket.recv(4096)
            except OSError:
                chunk = b""
            if not chunk:
                self._lose()
                return None
            self._heard += chunk
        line, self._heard = self._heard.split(b"\n", 1)
        message = json.loads(line)
        if "began" in message:
            return int(message["began"])
        child = self._children.pop(message["ended"], None)
        if child is not None:
            child.returncode = message["code"]
        return None

    def _lose(self) -> None:
        self._lost = True
        # nobody will say how they end
        for child in self._children.values():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            child.returncode = -signal.SIGKILL
        self._children.clear()


def serve(orders: socket.socket, tell: int) -> None:
    """The template's own life: until the other end of the socket closes."""
    # who asked may be killed while it loads, or between an order and its answer
    with suppress(ConnectionError):
        _serve(orders, tell)


def _serve(orders: socket.socket, tell: int) -> None:
    wake, alarm = os.pipe()
    for end in (wake, alarm):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(alarm)
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    selector.register(wake, selectors.EVENT_READ)
    lines = orders.makefile("rwb", buffering=0)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if wake in ready:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
        _report_the_dead(lines)
        if orders not in ready:
            continue
        line = lines.readline()
        if not line:
            return
        order = json.loads(line)
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, whoever's they are
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            selector.close()
            for end in (wake, alarm):
                os.close(end)
            lines.close()
            orders.close()
            _become(order, tell)
        lines.write(json.dumps({"began": pid}).encode() + b"\n")


def _report_the_dead(lines: Any) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        lines.write(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def _become(order: Mapping[str, Any], tell: int) -> None:
    """Be the run, and end with it."""
    os.setsid()
    os.write(tell, f"{os.getpid()}\n".encode())
    os.close(tell)
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
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
