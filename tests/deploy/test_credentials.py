"""Credentials that TLS and Flower accept, private keys that nobody else reads, nothing ever overwritten."""

import re
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

from deploy.credentials import app

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "credentials.py"


def credentials(*arguments):
    """Its exit code, and what it said; no error of its own comes through."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return SimpleNamespace(returncode=done.exit_code, stdout=done.stdout, stderr=done.stderr)


def test_it_is_a_script():
    done = subprocess.run([sys.executable, SCRIPT, "check", "/nowhere"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("/nowhere/superlink.crt cannot be read (No such file or directory)")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with an authority, the SuperLink's certificate and a node's keys."""
    folder = tmp_path_factory.mktemp("credentials") / "new"
    for arguments in (
        ("authority", folder),
        ("superlink", folder, "fl.example.org", "10.0.0.3", "fd00::1"),
        ("node", folder / "clinic"),
    ):
        result = credentials(*arguments)
        assert result.returncode == 0, result.stderr
    return folder


def shaken(server, client, name):
    """Whether a TLS handshake for that name succeeds."""
    ours, theirs = socket.socketpair()

    def answer():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=name).close()
        return True
    except ssl.SSLCertVerificationError:
        return False
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("name", ["fl.example.org", "10.0.0.3", "fd00::1", "localhost", "127.0.0.1"])
def test_the_certificate_holds_for_every_name_that_was_given(made, name):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made / "superlink.crt", made / "superlink.key")
    client = ssl.create_default_context(cafile=str(made / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shaken(server, client, name)
    assert not shaken(server, client, "other.example.org")


def test_nobody_elses_authority_is_trusted(made, tmp_path):
    assert credentials("authority", tmp_path).returncode == 0
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made / "superlink.crt", made / "superlink.key")
    assert not shaken(server, ssl.create_default_context(cafile=str(tmp_path / "ca.crt")), "localhost")


def test_private_keys_are_their_owners_alone(made):
    modes = {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca.key", "superlink.key", "clinic"}
    assert {name for name, mode in modes.items() if mode & 0o044} == {"ca.crt", "superlink.crt", "clinic.pub"}


def test_a_nodes_keys_are_a_pair_in_openssh_form(made):
    private = serialization.load_ssh_private_key((made / "clinic").read_bytes(), password=None)
    public = serialization.load_ssh_public_key((made / "clinic.pub").read_bytes())
    assert private.public_key() == public


def test_how_long_a_certificate_holds(made, tmp_path):
    assert credentials("authority", tmp_path).returncode == 0
    assert credentials("superlink", tmp_path, "a.example", "--days", "30").returncode == 0
    found = x509.load_pem_x509_certificate((tmp_path / "superlink.crt").read_bytes())
    assert abs(found.not_valid_after_utc - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=5)
    for days in ("0", "100000000"):
        refused = credentials("superlink", tmp_path / "x", "a.example", "--days", days)
        assert refused.returncode == 2


@pytest.mark.parametrize("arguments", [("authority", "."), ("superlink", ".", "a.example"), ("node", "clinic")])
def test_nothing_is_overwritten(made, arguments, monkeypatch):
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    monkeypatch.chdir(made)
    result = credentials(*arguments)
    assert result.returncode == 2
    assert "exist already and are kept" in result.stderr
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_a_certificate_is_renewed_with_its_names_and_its_key(certified):
    folder = certified(-10, -1, "fl.example.org")
    over = credentials("check", folder)
    assert (over.returncode, over.stdout) == (2, "")
    assert "superlink.crt has been over since 20" in over.stderr
    key = (folder / "superlink.key").rename(folder / "elsewhere")
    done = credentials("renew", folder, "--days", "90")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"{folder}/superlink\.crt: valid until 20..-..-..\n", done.stdout)
    assert credentials("check", folder).stdout.count("valid until") == 2
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "superlink.crt", key)
    client = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    assert shaken(server, client, "fl.example.org")
    assert not shaken(server, client, "other.example.org")
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "ca.key", "elsewhere", "superlink.crt"]


def test_an_authority_with_a_passphrase_signs_for_whoever_knows_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOSPHERE_CA_PASSPHRASE", "open sesame")
    assert credentials("authority", tmp_path, "--passphrase").returncode == 0
    with pytest.raises(TypeError, match="encrypted"):
        serialization.load_pem_private_key((tmp_path / "ca.key").read_bytes(), password=None)
    monkeypatch.setenv("PROTOSPHERE_CA_PASSPHRASE", "another")
    refused = credentials("superlink", tmp_path, "a.example")
    assert refused.returncode == 2
    assert "or the passphrase is another" in refused.stderr
    monkeypatch.delenv("PROTOSPHERE_CA_PASSPHRASE")
    asked = CliRunner().invoke(app, ["superlink", str(tmp_path), "a.example"], input="open sesame\n")
    assert asked.exit_code == 0, asked.output
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "superlink.crt", tmp_path / "superlink.key")
    assert shaken(server, ssl.create_default_context(cafile=str(tmp_path / "ca.crt")), "a.example")
    monkeypatch.setenv("PROTOSPHERE_CA_PASSPHRASE", "")
    empty = credentials("authority", tmp_path / "other", "--passphrase")
    assert (empty.returncode, empty.stderr.startswith("a passphrase is empty")) == (2, True)


@pytest.fixture
def broken(made, tmp_path):
    """Folders whose authority cannot sign, and one whose certificate is none."""
    assert credentials("authority", tmp_path / "other").returncode == 0
    other = (tmp_path / "other" / "ca.key").read_bytes()
    certificate = (made / "ca.crt").read_bytes()
    for name, files in {
        "torn": {"ca.key": b"no key", "ca.crt": b"no certificate"},
        "foreign": {"ca.key": other, "ca.crt": certificate},
        "keyless": {"superlink.crt": b"no certificate", "ca.crt": certificate},
    }.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("superlink", "{}/none", "a.example"), "make the authority first"),
        (("superlink", "{made}", "https://a.example"), "is no host name or address"),
        (("superlink", "{made}", "a.example:9092"), "is no host name or address"),
        (("node", "/proc/nowhere/key"), "cannot be written"),
        (("superlink", "{}/torn", "a.example"), "holds no authority that can be used"),
        (("superlink", "{}/foreign", "a.example"), "is not the key of"),
        (("check", "{}/keyless"), "superlink.crt holds no certificate"),
        (("check", "{}/none"), "superlink.crt cannot be read"),
        (("renew", "{}/keyless"), "make the authority first"),
    ],
)
def test_what_cannot_be_made_renewed_or_checked_is_a_sentence(made, broken, arguments, words):
    result = credentials(*(word.format(broken, made=made) for word in arguments))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert words in result.stderr
    assert not (broken / "none").exists()
    assert sorted(broken.glob("*/superlink.crt")) == [broken / "keyless" / "superlink.crt"]
