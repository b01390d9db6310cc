"""Answers a SuperNode's messages from a process that has loaded Flower and torch.

    warm_clientapp.py start STATE PROGRAM COMMAND ...

runs the command, a SuperNode, and beside it a server for as long as it lives. Flower's SuperExec starts a program,
`flwr-clientapp`, for each message. The first of that name on the SuperNode's PATH is a stub of ours (warm_stub.py): it
hands its arguments, environment, working directory and standard streams to a fork of the server, waits for it, and ends
as it ended. That process runs Flower's own program, PROGRAM. What a run brings is loaded there alone, from where Flower
has put it. Where anything fails before that program has begun, the stub becomes it, as if there were no server.

The server computes nothing, imports nothing of ours, and never sees what a message's process is told. It needs Linux;
elsewhere the command runs alone.
"""

import atexit
import ctypes
import gc
import glob
import importlib
import io
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from warm_stub import BEGAN, CODE, NAME, user_at, with_short_path

# what a client loads of others
LIBRARIES = ("torch", "safetensors.torch", "scipy.linalg", "httpcore", "filelock", "threadpoolctl", "PIL.Image")
# what Python, the linker and libraries read when they are loaded begins so
READ_AT_LOAD = (b"PYTHON", b"LD_", b"MALLOC_", b"GOMP_", b"OMP_", b"KMP_", b"MKL_", b"OPENBLAS_", b"TORCH", b"PYTORCH_")
GRACE = 2.0  # seconds that messages have to end when their SuperNode is gone
LONGEST_SHEBANG = 127  # bytes, of older kernels
SHEBANG_OPTIONS = " -IS"  # nothing but Python's own library: a stub is to cost nothing
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SIGNAL_WITH_PARENT, SET_NAME = 1, 15  # of prctl
COLD = "each message takes a process from its start"
HERE = os.path.dirname(os.path.abspath(__file__))


# --- at the SuperNode's start -------------------------------------------------------------------------------------


def start(state: str, program: str, command: Sequence[str]) -> None:
    """Start the server, and become the command."""
    environment = dict(os.environ)
    # a SuperNode without it is as good
    try:
        folder = start_server(state, program)
    except OSError as error:
        print(f"deploy/warm_clientapp.py: {COLD}: {error}", file=sys.stderr)
    else:
        environment["PATH"] = os.pathsep.join(filter(None, (folder, environment["PATH"])))
    os.execvpe(command[0], list(command), environment)


def start_server(state: str, program: str) -> str:
    """The folder that is to be the first on the SuperNode's PATH; empty where there can be no server.

    Raises:
        OSError: the folder of state takes no socket, say.
    """
    python = interpreter(program)
    if sys.platform != "linux" or not python:
        return ""
    remove_left_behind(state)
    folder = tempfile.mkdtemp(prefix="warm-", dir=state)
    try:
        stub = os.path.join(folder, NAME)
        with open(stub, "w") as file:
            file.write(f"#!{python}{SHEBANG_OPTIONS}\nimport sys\nsys.path.insert(0, {HERE!r})\n")
            file.write(f"import warm_stub\nwarm_stub.main({program!r})\n")
        os.chmod(stub, 0o700)
        listener = socket.socket(socket.AF_UNIX)
        with_short_path(folder, listener.bind)
        listener.listen()
        # the other end is this process', and the command's that it becomes: it closes with its death
        life, alive = os.pipe()
        subprocess.Popen(
            [python, os.path.abspath(__file__), "serve", folder, str(listener.fileno()), str(life)],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PATH": os.pathsep.join((folder, os.environ["PATH"]))},
            pass_fds=(listener.fileno(), life),
            # what a terminal sends goes to the stubs, which pass it on
            process_group=0,
        )
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    os.set_inheritable(alive, True)
    return folder


def interpreter(program: str) -> str:
    """The Python that runs a console script; empty where there is none, or not as pip writes it."""
    with suppress(OSError), open(program, "rb") as file:
        line = os.fsdecode(file.readline(LONGEST_SHEBANG - len(SHEBANG_OPTIONS)))
        path = line.removeprefix("#!").rstrip("\n")
        if line == f"#!{path}\n" and os.path.basename(path).startswith("python") and os.access(path, os.X_OK):
            return path
    return ""


def remove_left_behind(state: str) -> None:
    """Remove the folders of servers that were killed: nobody listens there."""
    for folder in glob.glob(os.path.join(glob.escape(state), "warm-*")):
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            try:
                with_short_path(folder, probe.connect)
            except ConnectionRefusedError:
                shutil.rmtree(folder, ignore_errors=True)


# --- what is loaded -----------------------------------------------------------------------------------------------


class Shelf:
    """Libraries that are loaded and not yet imported.

    Where an import would have found the file that one was loaded from, it is given that one; where a run's own code has
    a module of that name, it gets that, as in a process that had loaded nothing. It is first among Python's finders.
    """

    def __init__(self, kept: set[str]):
        """Take all modules but those of these packages from where imports look first."""
        # what is made by no import is found by none
        loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] not in kept}
        roots = {name for name, module in loaded.items() if "." not in name and module.__spec__}
        self._modules = {name: module for name, module in loaded.items() if name.partition(".")[0] in roots}
        self._specs = {name: self._modules[name].__spec__ for name in roots}
        for name in self._modules:
            del sys.modules[name]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the other finders would find, with us as its loader where that is what was loaded."""
        if name not in self._specs or path is not None:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, None)
            if spec is not None:
                loaded_spec = self._specs[name]
                if loaded_spec is not None and spec.origin == loaded_spec.origin:
                    # a loader by its methods, without the module of its base class
                    spec.loader = self  # type: ignore[assignment]
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module as it was loaded, with all of its package."""
        inside = {name: module for name, module in self._modules.items() if name.partition(".")[0] == spec.name}
        sys.modules.update(inside)
        return inside[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It was executed when it was loaded; the import has given it another description, which goes."""
        module.__spec__ = self._specs[module.__name__]


class Loaded(NamedTuple):
    """What the server has loaded.

    Attributes:
        variables: names of those of the environment that this set.
        folders: where installed packages lie, and when they were last changed.
    """

    variables: set[str]
    folders: dict[str, int]

    def is_current(self) -> bool:
        """Whether nothing has been installed or removed since."""
        return self.folders == modification_times(self.folders)


def load() -> Loaded:
    """Import Flower's program, and put on a shelf what a client needs besides.

    Raises:
        ImportError: Flower has no such program here.
    """
    before = dict(os.environ)
    gc.disable()
    programs = entry_points(group="console_scripts", name=NAME)
    if len(programs) != 1:
        raise ImportError(f"Flower is installed {len(programs)} times")
    (program,) = programs
    program.load()
    kept = {name.partition(".")[0] for name in sys.modules}
    for library in LIBRARIES:
        # without what is not installed
        with suppress(ImportError):
            importlib.import_module(library)
    files = {
        sys.modules[name].__file__ for name in (program.module.partition(".")[0], *LIBRARIES) if name in sys.modules
    }
    folders = {os.path.dirname(os.path.dirname(file)) for file in files if file}
    sys.meta_path.insert(0, Shelf(kept))
    # garbage is searched for among each process' own objects alone, and no page of these is copied for it
    gc.freeze()
    gc.enable()
    changed = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
    return Loaded(changed, modification_times(folders))


def modification_times(folders: "Sequence[str] | set[str] | dict[str, int]") -> dict[str, int]:
    """When something was last put into each of these folders, or removed."""
    return {folder: os.stat(folder).st_mtime_ns for folder in sorted(folders)}


# --- the server ---------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """A message, in the process that is forked for it.

    Attributes:
        connection: to the stub. streams: its standard streams. words: a pipe with all that it was told.
    """

    connection: socket.socket
    streams: list[int]
    words: int


class Server:
    """Forks a process for each stub that connects, and passes signals on to it and its exit code back.

    Args:
        life: a pipe that closes when the SuperNode is gone.
        handlers: of signals that end the server, as a new process has them.
    """

    def __init__(self, listener: socket.socket, life: int, handlers: Mapping[int, Any]):
        self._listener = listener
        self._life = life
        self._connections: dict[int, socket.socket] = {}
        self._deadline: float | None = None
        self._is_closing = False
        self._wake, self._alarm = os.pipe()
        for end in (self._wake, self._alarm):
            os.set_blocking(end, False)
        self._handlers = handlers
        # the messages that there are come to an end
        for number in handlers:
            signal.signal(number, self._close)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._alarm)
        self._selector = selectors.DefaultSelector()
        for source in (listener, life, self._wake):
            self._selector.register(source, selectors.EVENT_READ)

    def run(self) -> Request | None:
        """In a message's process its request; None in the server, at its end."""
        while self._connections or not self._is_closing:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if left == 0.0:
                for pid in self._connections:
                    os.kill(pid, signal.SIGKILL)
            for key, _ in self._selector.select(left or None):
                if key.fileobj == self._wake:
                    self._reap()
                elif key.fileobj == self._life:
                    # nothing is written to it
                    self._selector.unregister(self._life)
                    self._deadline = time.monotonic() + GRACE
                    self._close()
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    if key.data:
                        self._pass_on(connection, key.data)
                    elif request := self._fork(connection):
                        return request
        return None

    def _close(self, *_: object) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._selector.unregister(self._listener)
            self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            if user_at(connection) == os.geteuid():
                self._selector.register(connection, selectors.EVENT_READ)
            else:
                connection.close()

    def _fork(self, connection: socket.socket) -> Request | None:
        """The request, in the new process. What it says is read there alone, and so never in another one's memory."""
        self._selector.unregister(connection)
        descriptors: list[int] = []
        pid = None
        with suppress(OSError):
            descriptors = socket.recv_fds(connection, 1, 4)[1]
            if len(descriptors) == 4:
                with warnings.catch_warnings():
                    # Python 3.12 warns of threads, and the pool of a library of mathematics is prepared for it
                    warnings.simplefilter("ignore", DeprecationWarning)
                    server = os.getpid()
                    pid = os.fork()
        if pid == 0:
            self._leave(server)
            *streams, words = descriptors
            return Request(connection, streams, words)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid is None:
            connection.close()
        else:
            self._connections[pid] = connection
            self._selector.register(connection, selectors.EVENT_READ, pid)
        return None

    def _leave(self, server: int) -> None:
        """Be no server any more, and end with it."""
        libc = ctypes.CDLL(None)
        libc.prctl(SIGNAL_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        libc.prctl(SET_NAME, NAME.encode())
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._selector.close()
        for connection in (self._listener, *self._connections.values()):
            connection.close()
        for end in (self._life, self._wake, self._alarm):
            os.close(end)

    def _pass_on(self, connection: socket.socket, pid: int) -> None:
        """Signals that the stub got; its death is the process' death."""
        numbers = b""
        with suppress(OSError):
            numbers = connection.recv(64)
        if not numbers:
            self._selector.unregister(connection)
        for number in numbers or (signal.SIGKILL,):
            os.kill(pid, number)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        while self._connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = self._connections.pop(pid)
            with suppress(KeyError):
                self._selector.unregister(connection)
            with suppress(OSError):
                connection.sendall(CODE.pack(os.waitstatus_to_exitcode(status)))
            connection.close()


def serve(folder: str, listener: socket.socket, life: int) -> list[str]:
    """Be the server; in a message's process, its command line."""

    def end(*_: object) -> NoReturn:
        shutil.rmtree(folder, ignore_errors=True)
        # to take apart what was loaded would take seconds
        os._exit(0)

    # what nohup ignores stays ignored
    handlers: dict[int, Any] = {n: was for n in ENDING if (was := signal.getsignal(n)) is not signal.SIG_IGN}
    for number in handlers:
        signal.signal(number, end)
    # while it loads, nobody looks at the pipe
    ctypes.CDLL(None).prctl(SIGNAL_WITH_PARENT, signal.SIGTERM)
    # what lies beside this file is for no run to find
    if not sys.flags.safe_path:
        del sys.path[0]
    environment = dict(os.environb)
    try:
        loaded = load()
        if threading.active_count() > 1:
            raise ImportError("a library has started a thread")
    except ImportError as error:
        print(f"deploy/warm_clientapp.py: {COLD}: {error}", file=sys.stderr)
        end()
    request = Server(listener, life, handlers).run()
    if request is None:
        end()
    return take_over(request, loaded, environment)


def take_over(request: Request, loaded: Loaded, environment: Mapping[bytes, bytes]) -> list[str]:
    """Be what the stub was started as; its command line. Ends before it has begun where that cannot be.

    Args:
        environment: in which all was loaded. The stub's has to be the same, but for what Flower's programs have added:
            Python and libraries read it when they are loaded.
    """
    with open(request.words, "rb") as pipe:
        count, *words = pipe.read().split(b"\0")
    folder, *command = map(os.fsdecode, words[: int(count)])
    variables = {name: value for name, _, value in (word.partition(b"=") for word in words[int(count) :])}
    set_by_loading = set(map(os.fsencode, loaded.variables))
    added = {name: variables[name] for name in variables.keys() - environment.keys() - set_by_loading}
    differing = {name for name in environment.keys() - set_by_loading if variables.get(name) != environment[name]}
    differing |= {name for name in added if name.startswith(READ_AT_LOAD)}
    refusal = "" if loaded.is_current() else "packages have been installed or removed since the SuperNode's start"
    if differing:
        refusal = f"other variables than the SuperNode's: {', '.join(sorted(map(os.fsdecode, differing)))}"
    if refusal:
        line = f"deploy/warm_clientapp.py: {refusal}; this message takes a process from its start.\n"
        os.write(request.streams[2], line.encode(errors="replace"))
        os._exit(1)
    os.environb.update(added)
    os.chdir(folder)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    request.connection.sendall(BEGAN)
    request.connection.close()
    return command


def run_program(command: list[str]) -> None:
    """Run a console script as Python does."""
    sys.argv = command
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(command[0])))
    # of all generators that seed themselves, the one that a fork repeats
    numbers: Any = sys.modules.get("numpy.random")
    if numbers:
        numbers.seed()
    try:
        runpy.run_path(command[0], run_name="__main__")
        code = 0
    except SystemExit as ending:
        if not isinstance(ending.code, int):
            raise
        code = ending.code
    leave(code)


def leave(code: int) -> None:
    """End with all that is due, but without taking apart what the server has loaded, which costs 0.4 seconds of the
    processor: as multiprocessing ends a fork."""
    # joins what is no daemon; it is not in the types of the library, and multiprocessing calls it so too
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    # what waits in files that are open; by kinds, since an object may answer for its class itself
    for file in [entity for entity in gc.get_objects() if io.IOBase.__base__ in type(entity).__mro__]:
        # closed, or to be read alone
        with suppress(Exception):
            file.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    if mode == "start":
        start(rest[0], rest[1], rest[2:])
    else:
        run_program(serve(rest[0], socket.socket(fileno=int(rest[1])), int(rest[2])))
