"""What the gate lets through and what it does not, before an HTTP server that notes all that reaches it. Before a real
SuperLink it stands in tests/integration/test_gate.py."""

import http.client
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.gate import LARGEST_CALL, group_of
from protosphere.core.flower import FLEET_HEADERS, FLEET_PATHS, PATH_OF_OBJECTS, SELF_REGISTRATION
from protosphere.launch.superlink import free_port
from tests.waiting import comes

ROOT = Path(__file__).resolve().parents[2]
GATE = "import sys, deploy.gate as gate; gate.LINGER = gate.LOOK = 0.1; {changed}; sys.exit(gate.main())"
PULL = "/v1/fleet/pull-messages"


class Behind(BaseHTTPRequestHandler):
    """In the SuperLink's place: notes what comes, and answers with what it got."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str], bytes]]
    delay = 0.0

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        time.sleep(self.delay)
        self.send_response(int(self.headers.get("flwr-timestamp", 200)))
        self.send_header("content-type", "application/protobuf")
        self.send_header("flwr-version-incompatibility-message", "none")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def behind():
    """behind(credentials=None): the server, and its port."""
    servers = []

    def start(credentials=None, **attributes):
        handler = type("Handler", (Behind,), {"seen": [], **attributes})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if credentials:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(credentials / "superlink.crt", credentials / "superlink.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return handler, server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def gate(tmp_path):
    """gate(port of the SuperLink, *options, changed="gate.HEAD = 1"): its port, its process and its log."""
    started = []

    def start(superlink, *options, changed="pass"):
        port, log = free_port(), tmp_path / f"gate-{len(started)}.log"
        places = ("--listen", f"127.0.0.1:{port}", "--superlink", f"127.0.0.1:{superlink}")
        with log.open("w") as out:
            command = [sys.executable, "-c", GATE.format(changed=changed), *places, *map(str, options)]
            started.append(subprocess.Popen(command, cwd=ROOT, stderr=out))
        assert comes(lambda: "are let in" in log.read_text()), log.read_text()
        return port, started[-1], log

    yield start
    for process in started:
        process.kill()
        process.wait()


def call(port, target, body=b"", method="POST", headers=None, context=None):
    kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    with closing(
        kind("127.0.0.1", port, timeout=20, **({} if context is None else {"context": context}))
    ) as connection:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def raw(port, text, patience=20.0):
    """All that comes back of bytes that are sent as they are, until the other side hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
        connection.sendall(text)
        received = b""
        while piece := connection.recv(65536):
            received += piece
        return received


def test_what_a_supernode_sends_goes_on_and_its_answer_comes_back(behind, gate):
    server, inside = behind()
    port, *_ = gate(inside, "--insecure")
    own = {"flwr-public-key": "a", "flwr-signature": "b", "flwr-package-version": "1.42.0", "accept": "x/y"}
    strange = {"flwr-task-token": "t", "x-forwarded-for": "1.2.3.4", "cookie": "c", "authorization": "d"}
    for number, path in enumerate(FLEET_PATHS):
        body = bytes([number]) * 100_000
        status, headers, answered = call(port, path, body, headers=own | strange)
        assert (status, answered) == (200, body)
        assert headers["content-type"] == "application/protobuf"
        assert headers["flwr-version-incompatibility-message"] == "none"
        method, seen, heard, received = server.seen[-1]
        assert (method, seen, received) == ("POST", path, body)
        assert own.items() <= heard.items()
        assert not strange.keys() & heard.keys()
    # as the SuperLink refuses a node that it does not know
    assert call(port, PULL, b"x", headers={"flwr-timestamp": "401"})[0] == 401


def test_one_connection_carries_many_calls(behind, gate):
    server, inside = behind()
    port, *_ = gate(inside, "--insecure", changed="gate.REUSED = 0.2")
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        for number in range(4):
            connection.request("POST", PULL, b"%d" % number)
            assert connection.getresponse().read() == b"%d" % number
            if number == 2:
                time.sleep(0.3)
    assert [body for *_, body in server.seen] == [b"0", b"1", b"2", b"3"]


STRANGE = [
    "/",
    "/health",
    "/docs",
    "/openapi.json",
    "/v1/control/list-runs",
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/v1/runtime/get-nodes",
    "/v1/fleet/",
    "/v1/fleet/register-nodes",
    "/v1/control/start-run#/v1/fleet/pull-messages",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/pull-messages/../../control/list-runs",
    "/v1/control/start-run/../../fleet/pull-messages",
    "/v1/fleet/pull-messages/",
    "/v1/fleet/pull-messages?x=1",
    "/v1/fleet/pull-messages;x",
    "/v1/fleet/pull%2dmessages",
    "/v1/fleet/pull-messages%00",
    "//v1/fleet/pull-messages",
    "/V1/FLEET/PULL-MESSAGES",
    "http://127.0.0.1/v1/fleet/pull-messages",
    "*",
]


def test_no_other_place_is_reached_and_none_otherwise_than_by_post(behind, gate):
    server, inside = behind()
    port, _, log = gate(inside, "--insecure", changed="gate.QUIET = 0")
    for target in STRANGE:
        assert call(port, target, b"x")[::2] == (404, b"")
    for method in ("GET", "PUT", "HEAD", "OPTIONS", "DELETE", "post"):
        assert call(port, PULL, method=method)[0] == 405
    assert raw(port, b"CONNECT 127.0.0.1:8000 HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 404")
    assert server.seen == []
    assert "127.0.0.1 asked for 'POST /v1/control/start-run', which is not for SuperNodes" in log.read_text()


def test_a_node_cannot_register_itself_where_keys_are_asked_for(behind, gate, certified):
    credentials = certified(-1, 100)
    _, open_port = behind()
    _, inside = behind(credentials)
    trust = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
    secure, *_ = gate(inside, "--credentials", credentials)
    insecure, *_ = gate(open_port, "--insecure")
    for path in SELF_REGISTRATION:
        assert call(insecure, path, b"x")[0] == 200
        assert call(secure, path, b"x", context=trust)[0] == 404
    assert call(secure, PULL, b"x", context=trust)[::2] == (200, b"x")


HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n"
SECOND = b"POST /v1/control/list-runs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND, 411),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n" + SECOND, 411),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx" + SECOND, 400),
        (HEAD + b"Content-Length: +1\r\n\r\nx" + SECOND, 400),
        (HEAD + b"Content-Length : 1\r\n\r\nx" + SECOND, 400),
        (HEAD + b"X: a\nContent-Length: 1\x00\r\n\r\nx" + SECOND, 400),
        (HEAD + b"\r\n" + SECOND, 411),
        (HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),
    ],
)
def test_nothing_hides_behind_another_request(text, status, behind, gate):
    server, inside = behind()
    port, *_ = gate(inside, "--insecure")
    answer = raw(port, text)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1") == 1
    assert server.seen == []


def test_a_second_request_in_the_same_breath_is_a_request_of_its_own(behind, gate):
    server, inside = behind()
    port, *_ = gate(inside, "--insecure")
    answer = raw(port, HEAD + b"Content-Length: %d\r\n\r\n" % len(SECOND) + SECOND + SECOND)
    assert answer.count(b"HTTP/1.1 200") == answer.count(b"HTTP/1.1 404") == 1
    assert [(path, body) for _, path, _, body in server.seen] == [(PULL, SECOND)]


def test_bodies_have_a_limit_and_are_refused_before_they_are_sent(behind, gate):
    server, inside = behind()
    port, _, log = gate(inside, "--insecure", "--largest-body", 5, changed="gate.QUIET = 0")
    assert call(port, PATH_OF_OBJECTS, bytes(5 << 20))[0] == 200
    large = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    for path, size in ((PATH_OF_OBJECTS, 5 << 20), (PULL, LARGEST_CALL)):
        assert raw(port, large % (path.encode(), size + 1)).startswith(b"HTTP/1.1 413 ")
    assert len(server.seen) == 1
    assert f"sent a body of {LARGEST_CALL + 1} bytes to {PULL}, where {LARGEST_CALL} are the most" in log.read_text()


def test_all_bodies_together_have_a_limit_and_room_comes_back(behind, gate):
    server, inside = behind()
    port, *_ = gate(inside, "--insecure", "--largest-body", 1, changed="gate.AT_ONCE = 2")
    text = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (PATH_OF_OBJECTS.encode(), 1 << 20)
    holders = []

    def full():
        for holder in holders:
            holder.close()
        holders[:] = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        for holder in holders:
            holder.sendall(text + bytes((1 << 20) - 1))
        # one that comes before they were read may fill the room in their place
        time.sleep(0.5)
        return call(port, PULL, bytes(4096))[0] == 503

    assert comes(full)
    assert all(len(body) == 4096 for *_, body in server.seen)
    for holder in holders:
        holder.close()
    assert comes(lambda: call(port, PULL, b"x")[0] == 200)


def test_connections_have_a_limit_and_those_within_it_go_on(behind, gate):
    _, inside = behind()
    port, *_ = gate(inside, "--insecure", "--connections", 3)
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as first:
        first.request("POST", PULL, b"1")
        assert first.getresponse().read() == b"1"
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        assert comes(lambda: call(port, PULL)[0] == 503)
        first.request("POST", PULL, b"2")
        assert first.getresponse().read() == b"2"
        for each in idle:
            each.close()
        assert comes(lambda: call(port, PULL)[0] == 200)


def test_one_address_has_a_quarter_of_the_connections():
    from deploy.gate import Gate

    gate = Gate(("127.0.0.1", 1), None, FLEET_PATHS, 8, 1)
    sockets = [socket.socket() for _ in range(5)]
    with (
        gate.counted("198.51.100.7", sockets[0]) as first,
        gate.counted("198.51.100.7", sockets[1]) as second,
        gate.counted("198.51.100.7", sockets[2]) as third,
        gate.counted("203.0.113.1", sockets[3]) as other,
    ):
        assert (first, second, third, other) == (True, True, False, True)
    with gate.counted("198.51.100.7", sockets[4]) as again:
        assert again
    for each in sockets:
        each.close()


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_network_of_ipv6_counts_as_one(host, group):
    assert group_of(host) == group


LATE = {
    "silent": b"",
    "a head that does not end": b"POST ",
    "a body that does not come": HEAD + b"Content-Length: 1000\r\n\r\nx",
}


@pytest.mark.parametrize("kind", LATE)
@pytest.mark.parametrize("secure", [False, True])
def test_who_is_late_is_cut(kind, secure, behind, gate, certified):
    credentials = certified(-1, 100) if secure else None
    server, inside = behind(credentials)
    how = ("--credentials", credentials) if secure else ("--insecure",)
    port, *_ = gate(inside, *how, changed="gate.HEAD = 1.0")
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        if secure:
            context = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
            connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
            # a server's cut is no end of TLS
            connection.suppress_ragged_eofs = True
        connection.sendall(LATE[kind])
        # a byte now and then does not help
        for _ in range(30):
            time.sleep(0.2)
            try:
                connection.sendall(b"a" if LATE[kind] else b"")
                connection.settimeout(0.01)
                if not connection.recv(10):
                    break
            except TimeoutError:
                connection.settimeout(20)
            except OSError:
                break
        else:
            pytest.fail("it is still there")
        connection.close()
    assert 0.8 < time.monotonic() - began < 5
    assert server.seen == []


def test_a_superlink_that_is_not_there_is_a_503_which_supernodes_try_again(behind, gate):
    port, _, log = gate(free_port(), "--insecure")
    assert call(port, PULL, b"x")[0] == 503
    assert "was not served: the SuperLink does not answer" in log.read_text()


def test_tls_on_both_sides(behind, gate, certified):
    credentials, other = certified(-1, 100), certified(-1, 100)
    server, inside = behind(credentials)
    port, _, log = gate(inside, "--credentials", credentials, changed="gate.QUIET = 0")
    trust = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
    assert call(port, PULL, b"x", context=trust)[0] == 200
    assert len(server.seen) == 1
    with pytest.raises(ssl.SSLCertVerificationError):
        call(port, PULL, b"x", context=ssl.create_default_context(cafile=str(other / "ca.crt")))
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        call(port, PULL, b"x")
    assert comes(lambda: "came to no terms over TLS" in log.read_text())
    old = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        call(port, PULL, b"x", context=old)
    # one that only pretends to be the SuperLink, and one that has no TLS
    _, pretender = behind(other)
    _, bare = behind()
    for wrong in (pretender, bare):
        port, *_ = gate(wrong, "--credentials", credentials)
        assert call(port, PULL, b"x", context=trust)[0] == 503
    assert len(server.seen) == 1


def test_it_ends_with_whoever_started_it(behind, gate, tmp_path):
    _, inside = behind()
    port, pid = free_port(), tmp_path / "pid"
    parent = (
        "import pathlib, subprocess, sys, time; child = subprocess.Popen(sys.argv[2:]); "
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); time.sleep(60)"
    )
    command = [sys.executable, "-m", "deploy.gate", "--listen", f"127.0.0.1:{port}", "--insecure"]
    command += ["--superlink", f"127.0.0.1:{inside}"]
    process = subprocess.Popen([sys.executable, "-c", parent, pid, *command], cwd=ROOT, stderr=subprocess.DEVNULL)
    assert comes(lambda: pid.exists() and pid.read_text() and reached(port))
    process.kill()
    process.wait()
    assert comes(lambda: not reached(port))
    assert comes(lambda: not Path(f"/proc/{pid.read_text()}").exists())


def reached(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--insecure", "--listen", "127.0.0.1"), "'127.0.0.1' is no HOST:PORT"),
        (("--insecure", "--connections", "0"), "'0' is no whole number above 0"),
        ((), "give --credentials FOLDER, or --insecure"),
        (("--credentials", "/nowhere"), "No such file or directory"),
        (("--insecure", "--listen", "127.0.0.1:{taken}"), "Address already in use"),
    ],
)
def test_what_cannot_begin_ends_with_2(options, words):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = [each.format(taken=taken.getsockname()[1]) for each in options]
        command = [sys.executable, "-m", "deploy.gate", "--listen", "127.0.0.1:0", "--superlink", "127.0.0.1:1", *own]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, env=os.environ)
    assert done.returncode == 2
    assert words in done.stderr


def test_nginx_lets_through_what_the_gate_does():
    text = (ROOT / "deploy" / "nginx" / "protosphere-gate.conf").read_text()
    (names,) = re.findall(r'"~\^POST /v1/fleet/\(\?:([a-z|-]+)\)\$" 1;', text)
    assert [f"/v1/fleet/{name}" for name in names.split("|")] == list(FLEET_PATHS)
    passed = {name.lower() for name in re.findall(r"proxy_set_header (\S+) \$(?:http_|content_)", text)}
    assert passed == set(FLEET_HEADERS)
    assert "proxy_pass_request_headers off;" in text
    assert "proxy_ssl_verify on;" in text
