"""The file for nginx before a SuperLink: by its words, and by a real nginx before a server that notes what comes."""

import http.server
import re
import shutil
import ssl
import threading
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from protosphere.core.flower import fleet_transport
from protosphere.launch import processes
from protosphere.launch.flower import free_port
from tests.waiting import PATIENCE, comes

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "nginx"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
TEXT = (FOLDER / "protosphere-gate.conf").read_text()
of_nginx = pytest.mark.skipif(NGINX is None, reason="there is no nginx")
MEGABYTE = 1 << 20


def fleet_paths():
    """The paths that the file lets through."""
    (names,) = re.findall(r'"~\^POST /v1/fleet/\(\?:([a-z|-]+)\)\$" 1;', TEXT)
    return [f"/v1/fleet/{name}" for name in names.split("|")]


def start_nginx(place, credentials, fleet, port):
    """nginx with the two files of deploy/nginx, but for their addresses and paths, which are a real machine's."""
    place.mkdir()
    files = {"gate.conf": TEXT, "nginx.conf": (FOLDER / "container.conf").read_text()}
    changes = (
        ("/tmp/", f"{place}/"),
        ("listen [::]:9092", f"listen [::1]:{fleet}"),
        ("listen 9092", f"listen 127.0.0.1:{fleet}"),
        ("127.0.0.1:8000", f"127.0.0.1:{port}"),
        ("/etc/protosphere", str(credentials)),
        ("/etc/nginx/conf.d/protosphere-gate.conf", f"{place}/gate.conf"),
        ("/dev/stderr", f"{place}/error.log"),
        ("/dev/stdout", f"{place}/access.log"),
    )
    for name, text in files.items():
        for before, after in changes:
            text = text.replace(before, after)
        (place / name).write_text(text)
    return processes.start([str(NGINX), "-e", f"{place}/error.log", "-c", f"{place}/nginx.conf"])


@pytest.mark.skipif(fleet_transport() != "http", reason="the Fleet API of this Flower is gRPC")
def test_what_passes_is_what_a_supernode_with_a_registered_key_calls_and_says_of_itself():
    """By Flower's own routes and headers: what it adds or drops is seen here."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore import constant
    from flwr.superlink.routers.fleet.router import router

    served = {route.path: route.methods for route in router.routes}
    own_keys = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert served == {path: {"POST"} for path in own_keys | set(fleet_paths())}
    headers = {getattr(constant, f"FLEET_HTTP_{name}_HEADER") for name in ("PUBLIC_KEY", "SIGNATURE")}
    names = ("PACKAGE_NAME", "PACKAGE_VERSION", "COMPONENT_NAME")
    headers |= {getattr(constant, f"FLWR_{name}_METADATA_KEY") for name in names}
    passed = {name.lower() for name in re.findall(r"proxy_set_header (\S+) \$(?:http_|content_)", TEXT)}
    assert passed == headers | {TIMESTAMP_HEADER, "content-type", "accept"}


class SuperLink(http.server.BaseHTTPRequestHandler):
    """Notes each call, and answers as nobody does who was not asked."""

    calls: ClassVar = []
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.calls.append((self.path, headers, body))
        self.send_response(299)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def gate(tmp_path, certified):
    """nginx before a SuperLink: a client that calls it, the calls that came through, the folder of its logs, and what
    ends the SuperLink."""
    credentials, port, fleet = certified(-1, 100, "localhost"), free_port(), free_port()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials / "superlink.crt", credentials / "superlink.key")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), SuperLink)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    SuperLink.calls = []

    def end():
        server.shutdown()
        server.server_close()

    nginx = start_nginx(tmp_path / "nginx", credentials, fleet, port)
    trust = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
    with httpx.Client(verify=trust, trust_env=False, timeout=PATIENCE, base_url=f"https://localhost:{fleet}") as client:

        def answers():
            try:
                return client.get("/").status_code == 404
            except httpx.HTTPError:
                return False

        try:
            assert comes(answers), (tmp_path / "nginx" / "error.log").read_text()
            yield client, SuperLink.calls, tmp_path / "nginx", end
        finally:
            processes.stop(nginx)
            end()


@of_nginx
def test_only_the_calls_of_supernodes_pass_and_only_their_headers(gate):
    client, calls, *_ = gate
    sent = {"content-type": "application/protobuf", "flwr-signature": "a signature", "x-forwarded-for": "10.0.0.1"}
    for path in fleet_paths():
        assert client.post(path, content=b"a body", headers=sent).status_code == 299
    assert [path for path, *_ in calls] == fleet_paths()
    _, headers, body = calls[0]
    assert body == b"a body"
    assert {name: headers.get(name) for name in sent} == sent | {"x-forwarded-for": None}
    assert "user-agent" not in headers
    calls.clear()
    first = fleet_paths()[0]
    for path in (
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        f"{first}?a=b",
        f"{first}%2f..%2f..%2fcontrol/start-run",
    ):
        assert client.post(client.base_url.copy_with(raw_path=path.encode())).status_code == 404, path
    assert client.get(first).status_code == 404
    assert calls == []


@of_nginx
def test_a_message_is_never_written_to_a_disk_and_has_a_limit(gate):
    client, calls, place, _ = gate
    path = "/v1/fleet/push-object"
    message = bytes(6 * MEGABYTE)
    answer = client.post(path, content=message)
    assert (answer.status_code, answer.content, calls[0][2]) == (299, message, message)
    assert client.post(path, content=bytes(33 * MEGABYTE)).status_code == 413
    assert "temporary file" not in (place / "error.log").read_text()


@of_nginx
def test_an_address_that_calls_too_fast_waits_and_is_served(gate):
    client, calls, place, _ = gate
    assert {client.post(fleet_paths()[0]).status_code for _ in range(300)} == {299}
    assert len(calls) == 300
    assert "delaying request" in (place / "error.log").read_text()


@of_nginx
def test_a_superlink_that_is_not_there_is_an_answer_that_supernodes_try_again(gate):
    client, *_, end = gate
    end()
    assert client.post(fleet_paths()[0]).status_code in (502, 503, 504)
