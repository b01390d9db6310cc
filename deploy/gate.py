"""Lets SuperNodes through to a SuperLink of Flower 1.40 or newer, and nobody to the rest of it.

Such a SuperLink has one port for SuperNodes (Fleet), for whoever starts runs (Control) and for the processes of its
apps (Runtime), and the last two ask for no key: whoever reaches it starts apps at all sites, and may take the server's
task away from it. So the SuperLink listens on loopback, and this stands at the address that sites call. A request goes
on only if it is a POST to one of the few paths that a SuperNode needs, written exactly so. It is built anew, with the
headers that a SuperNode sends and no others, so that nothing can hide in it. TLS is spoken on both sides.

Whoever calls has shown no key yet: time, connections and bodies have limits. A SuperNode that meets one is told 503,
and tries again.
"""

import argparse
import http.client
import ipaddress
import os
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h11

from protosphere.core.flower import FLEET_HEADERS, FLEET_PATHS, PATH_OF_OBJECTS, SELF_REGISTRATION

MEGABYTE = 1 << 20
LARGEST_HEAD = 16 << 10
LARGEST_CALL = 4 * MEGABYTE  # of all but the pieces of messages: the names of a message's pieces, 65 bytes each
AT_ONCE = 16  # times the largest body, which all requests together may hold
# seconds, here and below
HEAD = 15.0  # for the handshake, and from a request's first byte to the end of its head
IDLE = 60.0  # between two requests; a SuperNode hangs up earlier
SLOWEST = 16 << 10  # bytes a second, below which a body is given up
SUPERLINK = 120.0  # for the SuperLink's answer
# Its server hangs up on who is silent for five
REUSED = 2.0
LOOK = 0.5
LINGER = 2.0  # after a refusal
QUIET = 60.0  # between two lines on the same address
REFUSED_AT_ONCE = 64  # connections, to which a 503 is told
REMEMBERED = 1000  # addresses, of which lines were written


class RefusalError(Exception):
    """A request that goes no further: the status, and the reason for our log; the caller hears no reason."""

    def __init__(self, status: int, reason: str = ""):
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Gate:
    """The limits that all connections share.

    Args:
        superlink: host and port.
        trust: for TLS with the SuperLink; None without TLS.
        paths: the targets that are let through, exactly.
        connections: how many are served at a time; of one address a quarter of that.
        largest: bytes of a body at most.
    """

    def __init__(
        self,
        superlink: tuple[str, int],
        trust: ssl.SSLContext | None,
        paths: tuple[str, ...],
        connections: int,
        largest: int,
    ):
        self.superlink = superlink
        self.trust = trust
        self.paths = frozenset(path.encode("ascii") for path in paths)
        self.connections = connections
        self.largest = largest
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        self._by_address: Counter[str] = Counter()
        self._held = 0
        self._held_by: Counter[str] = Counter()
        self._said: dict[str, float] = {}

    @contextmanager
    def counted(self, address: str, connection: socket.socket) -> Iterator[bool]:
        """Count a connection as long as it is open, and watch its time: whether it may be served."""
        with self._lock:
            self._open[connection] = time.monotonic() + HEAD
            self._by_address[address] += 1
            alone = self._by_address[address] <= max(self.connections // 4, 1) or _is_loopback(address)
            served = len(self._open) <= self.connections and alone
        try:
            yield served
        finally:
            with self._lock:
                del self._open[connection]
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]

    @property
    def full(self) -> bool:
        """Whether there are more connections than we would even refuse in words."""
        return len(self._open) >= self.connections + REFUSED_AT_ONCE

    def allow(self, connection: socket.socket, seconds: float) -> None:
        """Give a connection so much time from now on, until it is cut."""
        with self._lock:
            self._open[connection] = time.monotonic() + seconds

    def cut_late(self) -> None:
        """Cut the connections whose time is over."""
        now = time.monotonic()
        with self._lock:
            for connection, deadline in self._open.items():
                if deadline < now:
                    with suppress(OSError):
                        # not SSLSocket's, under which another thread would go on without TLS
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)

    @contextmanager
    def body(self, address: str) -> Iterator["_Body"]:
        """A body that is being read; its bytes count until it was passed on."""
        body = _Body(self, address)
        try:
            yield body
        finally:
            with self._lock:
                self._held -= len(body.content)
                self._held_by[address] -= len(body.content)
                if not self._held_by[address]:
                    del self._held_by[address]

    def hold(self, address: str, size: int) -> None:
        """Count bytes of a body.

        Raises:
            RefusalError: all together hold too many, or this address does.
        """
        room = AT_ONCE * self.largest
        with self._lock:
            if self._held + size > room:
                raise RefusalError(503, "sent a body while others filled all the room there is")
            if self._held_by[address] + size > room // 4 and not _is_loopback(address):
                raise RefusalError(503, "sent bodies that together fill an address's room")
            self._held += size
            self._held_by[address] += size

    def say(self, address: str, reason: str) -> None:
        """Write a line on an address, unless there was one a moment ago."""
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(address, -QUIET) < QUIET:
                return
            if len(self._said) >= REMEMBERED:
                self._said.clear()
            self._said[address] = now
        _say(f"{address} {reason}")


class _Body:
    def __init__(self, gate: Gate, address: str):
        self._gate = gate
        self._address = address
        self.content = bytearray()

    def add(self, piece: bytes) -> None:
        self._gate.hold(self._address, len(piece))
        self.content += piece


class Caller:
    """One connection, from its first byte to its last."""

    def __init__(self, gate: Gate, connection: socket.socket, address: str, served: bool):
        self._gate = gate
        self._connection = connection
        self._address = address
        self._served = served
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEAD)
        self._superlink: http.client.HTTPConnection | None = None
        self._used = 0.0

    def serve(self) -> None:
        """Answer requests until one of the two hangs up."""
        try:
            if isinstance(self._connection, ssl.SSLSocket):
                self._connection.do_handshake()
            while self._answer():
                self._http.start_next_cycle()
                self._gate.allow(self._connection, IDLE)
        except ssl.SSLError as error:
            self._gate.say(self._address, f"came to no terms over TLS ({error.reason or error})")
        except (OSError, h11.LocalProtocolError, http.client.HTTPException):
            # a SuperNode that was killed, one whose time was over, or half an answer
            pass
        finally:
            self._forget()

    def _answer(self) -> bool:
        """Take one request and answer it; whether another may follow."""
        try:
            request = self._next()
            if not isinstance(request, h11.Request):
                return False
            if not self._served:
                raise RefusalError(503, "has more connections than it may, or there are too many of all")
            limit = self._refuse_strange(request)
            with self._gate.body(self._address) as body:
                self._read(body, limit)
                self._gate.allow(self._connection, SUPERLINK)
                self._forward(request, body.content)
        except h11.RemoteProtocolError as error:
            self._refuse(RefusalError(error.error_status_hint, "does not speak HTTP as it should"))
        except RefusalError as refusal:
            self._refuse(refusal)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def _next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
            # of a head no more at once than it may be long
            received = self._connection.recv(LARGEST_HEAD if self._http.their_state is h11.IDLE else 64 << 10)
            if self._http.their_state is h11.IDLE and not self._http.trailing_data[0]:
                # its first bytes, after which it may not dawdle
                self._gate.allow(self._connection, HEAD)
            self._http.receive_data(received)
        # mypy does not see that the loop leaves NEED_DATA out
        return event  # type: ignore[return-value]

    def _refuse_strange(self, request: h11.Request) -> int:
        """How large the request's body may be; refuse it where it is not a SuperNode's."""
        target = request.target
        if target not in self._gate.paths:
            words = f"{request.method.decode('ascii', 'replace')} {target[:80].decode('ascii', 'replace')}"
            raise RefusalError(404, f"asked for {words!a}, which is not for SuperNodes")
        if request.method != b"POST":
            raise RefusalError(405, "asked otherwise than by POST")
        names = [name for name, _ in request.headers]
        if names.count(b"content-length") != 1 or b"transfer-encoding" in names:
            raise RefusalError(411, "sent a body of no known length")
        limit = self._gate.largest if target == PATH_OF_OBJECTS.encode() else min(LARGEST_CALL, self._gate.largest)
        length = int(dict(request.headers)[b"content-length"])
        if length > limit:
            raise RefusalError(413, f"sent a body of {length} bytes to {target.decode()}, where {limit} are the most")
        self._gate.allow(self._connection, HEAD)
        return limit

    def _read(self, body: _Body, limit: int) -> None:
        timed = 0
        while isinstance(event := self._next(), h11.Data):
            body.add(bytes(event.data))
            # by what has come, not by what was announced: else a large body could be held back for an hour
            if len(body.content) - timed >= HEAD * SLOWEST:
                timed = len(body.content)
                self._gate.allow(self._connection, HEAD)
            if len(body.content) > limit:
                raise RefusalError(413, "sent a longer body than it said")
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError("hung up in the middle of a body")

    def _forward(self, request: h11.Request, body: bytearray) -> None:
        wanted = {name.encode() for name in FLEET_HEADERS}
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers if name in wanted}
        try:
            superlink = self._reach()
            superlink.request("POST", request.target.decode("ascii"), body, headers | {"Accept-Encoding": "identity"})
            answer = superlink.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._forget()
            raise RefusalError(
                503, f"was not served: the SuperLink does not answer ({error or type(error).__name__})"
            ) from None
        self._pass_on(answer)
        self._used = time.monotonic()
        if answer.will_close:
            self._forget()

    def _pass_on(self, answer: http.client.HTTPResponse) -> None:
        hop = {"connection", "keep-alive", "transfer-encoding", "server", "date"}
        headers = [(name.lower(), value) for name, value in answer.getheaders() if name.lower() not in hop]
        self._send(h11.Response(status_code=answer.status, headers=headers))
        while piece := answer.read(64 << 10):
            # its time is over only where it does not take what it asked for
            self._gate.allow(self._connection, SUPERLINK)
            self._send(h11.Data(data=piece))
        self._send(h11.EndOfMessage())

    def _reach(self) -> http.client.HTTPConnection:
        """A connection to the SuperLink, of which it will not have hung up."""
        if self._superlink is not None and time.monotonic() - self._used > REUSED:
            self._forget()
        if self._superlink is None:
            host, port = self._gate.superlink
            if self._gate.trust is None:
                self._superlink = http.client.HTTPConnection(host, port, timeout=SUPERLINK)
            else:
                self._superlink = http.client.HTTPSConnection(host, port, timeout=SUPERLINK, context=self._gate.trust)
        return self._superlink

    def _forget(self) -> None:
        if self._superlink is not None:
            self._superlink.close()
            self._superlink = None

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer with a status and no word more, and hang up."""
        self._gate.say(self._address, refusal.reason)
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [("content-length", "0"), ("connection", "close")]
        headers += [("allow", "POST")] if refusal.status == 405 else []
        self._send(h11.Response(status_code=refusal.status, headers=headers))
        self._send(h11.EndOfMessage())
        # to hang up on what is still coming would take our answer away from it
        self._gate.allow(self._connection, LINGER)
        received = 0
        while received < LARGEST_CALL and (piece := self._connection.recv(64 << 10)):
            received += len(piece)

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._connection.sendall(data)


def listen(gate: Gate, server: socket.socket, context: ssl.SSLContext | None) -> None:
    """Take connections, for ever: each has a thread of its own."""

    def serve(connection: socket.socket, address: str) -> None:
        with suppress(OSError):
            # without its handshake, which takes time
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            with connection, gate.counted(address, connection) as served:
                Caller(gate, connection, address, served).serve()

    while True:
        while gate.full:
            # others wait in the system's queue
            time.sleep(LOOK)
        try:
            connection, (host, *_) = server.accept()
        except OSError as error:
            # no descriptors left, or one that went before it was taken
            gate.say("the system", f"gave no connection ({error})")
            time.sleep(LOOK)
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            threading.Thread(target=serve, args=(connection, group_of(host)), daemon=True).start()
        except RuntimeError as error:
            # a container may have fewer processes and threads than we have connections
            gate.say("the system", f"gave no thread ({error})")
            connection.close()
            time.sleep(LOOK)


def group_of(host: str) -> str:
    """The address that a caller counts as: of IPv6 the network, of which one machine has all addresses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def watch(gate: Gate, parent: int) -> None:
    """Cut who is late; end when the process is gone that started us, for with it the SuperLink is."""
    while os.getppid() == parent:
        gate.cut_late()
        time.sleep(LOOK)
    os._exit(0)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::/64"


def _place(text: str) -> tuple[str, int]:
    """Host and port of `host:port`."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _say(words: str) -> None:
    # whoever reads may have gone
    with suppress(OSError):
        print(f"deploy/gate.py: {words}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deploy/gate.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--listen", type=_place, required=True, metavar="HOST:PORT", help="where SuperNodes call")
    parser.add_argument("--superlink", type=_place, required=True, metavar="HOST:PORT", help="where the SuperLink is")
    parser.add_argument("--credentials", type=Path, metavar="FOLDER", help="ca.crt, superlink.crt, superlink.key")
    parser.add_argument("--insecure", action="store_true", help="no TLS on either side, for a trial on one machine")
    parser.add_argument("--connections", type=_number, default=512, help="at a time, of one address a quarter (512)")
    parser.add_argument("--largest-body", type=_number, default=32, metavar="MB", help="of a piece of a message (32)")
    options = parser.parse_args()
    if options.insecure == (options.credentials is not None):
        parser.error("give --credentials FOLDER, or --insecure for a trial on one machine")
    return options


def main() -> int:
    """Serve until a signal; 2 where that cannot begin."""
    parent, options = os.getppid(), _options()
    context = trust = None
    try:
        if not options.insecure:
            folder = options.credentials
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(folder / "superlink.crt", folder / "superlink.key")
            trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        family = socket.AF_INET6 if ":" in options.listen[0] else socket.AF_INET
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        server = socket.create_server(options.listen, family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        _say(f"{error}; the addresses or the credentials are not as they should be")
        return 2
    paths = FLEET_PATHS + (SELF_REGISTRATION if options.insecure else ())
    gate = Gate(options.superlink, trust, paths, options.connections, options.largest_body * MEGABYTE)
    threading.Thread(target=watch, args=(gate, parent), daemon=True).start()
    _say(f"SuperNodes are let in at {options.listen[0]}:{options.listen[1]}")
    with suppress(KeyboardInterrupt):
        listen(gate, server, context)
    return 0


if __name__ == "__main__":
    sys.exit(main())
