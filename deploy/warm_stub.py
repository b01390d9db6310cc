"""What stands on a SuperNode's PATH as `flwr-clientapp`: see warm_clientapp.py, whose server it asks for a process."""

import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

NAME = "flwr-clientapp"  # as Flower's SuperExec calls it
SOCKET = "socket"  # beside the stub, in a folder of this user's alone
# the process says that Flower's program has begun; then signals go there, and an exit code comes back
BEGAN = b"+"
CODE = struct.Struct("i")
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(program: str) -> None:
    """Be Flower's program: by a process of the server's, or in earnest."""
    code = None
    try:
        code = run_warm(program)
    except OSError as error:
        print(f"deploy/warm_stub.py: no warm process: {error}; this message takes one from its start.", file=sys.stderr)
    if code is None:
        os.execv(program, [program, *sys.argv[1:]])
    if code >= 0:
        os._exit(code)
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def run_warm(program: str) -> int | None:
    """The process' exit code, negative for a signal; None where it has not begun.

    Raises:
        OSError: nobody answers.
    """
    connection = socket.socket(socket.AF_UNIX)
    with_short_path(os.path.dirname(os.path.abspath(sys.argv[0])), connection.connect)
    if user_at(connection) != os.geteuid():
        return None
    # the rest goes through a pipe, which the process reads and the server does not
    words, end = os.pipe()
    socket.send_fds(connection, [b"!"], [0, 1, 2, words])
    os.close(words)
    command = [os.fsencode(word) for word in (os.getcwd(), program, *sys.argv[1:])]
    variables = [name + b"=" + value for name, value in os.environb.items()]
    with open(end, "wb") as pipe:
        pipe.write(b"\0".join([b"%d" % len(command), *command, *variables]))
    has_begun = False
    early_signals: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if not has_begun:
            early_signals.append(number)
            return
        with suppress(OSError):
            connection.send(bytes([number]))

    # what nohup ignores stays ignored
    handlers = {n: was for n in PASSED_ON if (was := signal.getsignal(n)) is not signal.SIG_IGN}
    for number in handlers:
        signal.signal(number, pass_on)
    has_begun = connection.recv(1) == BEGAN
    if not has_begun:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    # those that came while the process began
    for early_signal in early_signals:
        if has_begun:
            pass_on(early_signal, None)
        else:
            os.kill(os.getpid(), early_signal)
    if not has_begun:
        return None
    code = b""
    while len(code) < CODE.size:
        piece = connection.recv(CODE.size - len(code))
        if not piece:
            # the server is gone, and the process with it
            return -signal.SIGKILL
        code += piece
    return int(CODE.unpack(code)[0])


def with_short_path(folder: str, use: Callable[[str], None]) -> None:
    """Bind, or connect, to a folder's socket, whose own path may be longer than the system takes."""
    number = os.open(folder, os.O_DIRECTORY | os.O_RDONLY)
    try:
        use(f"/proc/self/fd/{number}/{SOCKET}")
    finally:
        os.close(number)


def user_at(connection: socket.socket) -> int:
    """The id of the user at the other end."""
    form = struct.Struct("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return int(form.unpack(credentials)[1])
