"""Why a SuperLink is out of reach, told by handshakes with servers that are ill in one way each; then what `protosphere
run` makes of it: exit code 2, one sentence, nothing left."""

import re
import socketserver
import ssl
import threading
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.launch.flower import obstacle


class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@contextmanager
def serving(folder=None):
    """A server on a port of its own, over TLS with the folder's certificate, or plain."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer)
    server.handle_error = lambda *_: None
    if folder:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "superlink.crt", folder / "superlink.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with server:
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize(
    ("validity", "words"),
    [
        ((-10, 100), ""),
        ((-10, -1), r"^the certificate of 127\.0\.0\.1:\d+ is refused \(certificate has expired\)$"),
        ((1, 10), "certificate is not yet valid"),
        ((-10, 100, "other.example"), "certificate is not valid for '127.0.0.1'"),
    ],
)
def test_what_is_wrong_with_a_certificate(certified, validity, words):
    folder = certified(*validity)
    with serving(folder) as port:
        entry = {"address": f"127.0.0.1:{port}", "root-certificates": str(folder / "ca.crt")}
        assert re.search(words or "^$", obstacle(entry))
        others = entry | {"root-certificates": str(certified(-1, 9) / "ca.crt")}
        assert re.search("self-signed certificate|unable to get local issuer certificate", obstacle(others))
        assert "speaks TLS, and the connection is insecure" in obstacle({"address": entry["address"], "insecure": True})


def test_what_is_wrong_before_there_is_a_certificate(certified, tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    roots = {"root-certificates": str(certified(-1, 9) / "ca.crt")}
    (tmp_path / "empty").touch()
    with serving() as port:
        here = {"address": f"127.0.0.1:{port}"}
        for entry, words in (
            (here | roots, "does not speak TLS"),
            (here | {"insecure": True}, ""),
            (here | {"root-certificates": str(tmp_path / "none")}, "none cannot be used (No such file"),
            (here | {"root-certificates": str(tmp_path / "empty")}, "empty cannot be used (NO_CERTIFICATE"),
        ):
            assert words in obstacle(entry)
            assert bool(words) == bool(obstacle(entry))
    assert obstacle(here | roots) == f"127.0.0.1:{port} cannot be reached (Connection refused)"
    assert "nowhere.invalid:1 cannot be reached (" in obstacle({"address": "nowhere.invalid:1"} | roots)
    # Flower's own SuperLink, and what is no address, are left to Flower's words
    assert obstacle({"address": ":local:"}) == obstacle({"address": "nonsense"}) == ""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert obstacle(here | roots) == "", "where a proxy stands between, nobody need listen"


def test_a_superlink_that_cannot_be_used_is_one_sentence_and_nothing_is_left(certified, tmp_path, home, monkeypatch):
    folder = certified(-10, -1)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    with serving(folder) as port:
        (tmp_path / "config.toml").write_text(
            f'[superlink.clinics]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{folder / "ca.crt"}"\n'
        )
        for name, words in (
            ("clinics", f"the certificate of 127.0.0.1:{port} is refused (certificate has expired); docs/"),
            ("clinic", f"no connection `clinic` in {tmp_path}/config.toml (did you mean `clinics`?); it names clinics"),
        ):
            result = CliRunner().invoke(app, ["run", "--on", f"superlink:{name}"])
            assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
            assert words in result.stderr
            assert not list(home.glob("results/*"))
