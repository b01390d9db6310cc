"""Credentials that whoever has ca.crt trusts, private keys that nobody else reads, nothing ever overwritten."""

import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from typer.testing import CliRunner

from deploy.credentials import app


def credentials(*arguments, code=0, **options):
    """What it said, when it has ended with that code."""
    done = CliRunner().invoke(app, list(map(str, arguments)), **options)
    assert done.exit_code == code, done.output
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with an authority, the SuperLink's certificate and a node's keys."""
    folder = tmp_path_factory.mktemp("credentials") / "new"
    credentials("authority", folder)
    credentials("superlink", folder, "fl.example.org", "10.0.0.3", "fd00::1", "--days", "90")
    credentials("node", folder / "clinic")
    return folder


def is_trusted(folder, name, authority=None):
    """Whether who has the authority's ca.crt takes the folder's SuperLink for the one of that name."""
    root, certificate = (
        x509.load_pem_x509_certificate(path.read_bytes())
        for path in ((authority or folder) / "ca.crt", folder / "superlink.crt")
    )
    try:
        subject = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    try:
        PolicyBuilder().store(Store([root])).build_server_verifier(subject).verify(certificate, [])
        return True
    except VerificationError:
        return False


def test_the_certificate_holds_for_every_name_that_was_given_and_for_its_authority_alone(made, tmp_path):
    for name in ("fl.example.org", "10.0.0.3", "fd00::1", "localhost", "127.0.0.1"):
        assert is_trusted(made, name), name
    assert not is_trusted(made, "other.example.org")
    credentials("authority", tmp_path)
    assert not is_trusted(made, "localhost", authority=tmp_path)


def test_private_keys_are_their_owners_alone_and_a_node_s_are_a_pair_in_openssh_form(made):
    modes = {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca.key", "superlink.key", "clinic"}
    assert {name for name, mode in modes.items() if mode & 0o044} == {"ca.crt", "superlink.crt", "clinic.pub"}
    private = serialization.load_ssh_private_key((made / "clinic").read_bytes(), password=None)
    assert private.public_key() == serialization.load_ssh_public_key((made / "clinic.pub").read_bytes())


def test_nothing_is_overwritten(made):
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    for arguments in (("authority", made), ("superlink", made, "a.example"), ("node", made / "clinic")):
        assert "exist already and are kept" in credentials(*arguments, code=2)
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_an_authority_with_a_passphrase_signs_for_whoever_knows_it(tmp_path):
    credentials("authority", tmp_path, "--passphrase", input="open sesame\nopen sesame\n")
    with pytest.raises(TypeError, match="encrypted"):
        serialization.load_pem_private_key((tmp_path / "ca.key").read_bytes(), password=None)
    credentials("superlink", tmp_path, "a.example", input="open sesame\n")
    assert is_trusted(tmp_path, "a.example")


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        (("superlink", "{made}/none", "a.example"), "", "`authority {made}/none` makes them"),
        (("superlink", "{locked}", "a.example"), "another\n", "Incorrect password"),
        (("superlink", "{made}", "https://a.example"), "", "is no host name or address"),
        (("superlink", "{made}", "a.example:9092"), "", "is no host name or address"),
        (("node", "/proc/nowhere/key"), "", "cannot be written"),
    ],
)
def test_what_cannot_be_made_is_a_sentence(made, tmp_path, arguments, given, words):
    credentials("authority", tmp_path, "--passphrase", input="open sesame\nopen sesame\n")
    places = {"made": made, "locked": tmp_path}
    said = credentials(*(word.format(**places) for word in arguments), code=2, input=given)
    assert words.format(**places) in said.splitlines()[-1]
    assert not (tmp_path / "superlink.key").exists()


def test_a_key_of_another_kind_is_a_sentence(made, tmp_path):
    key = ed25519.Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "ca.key").write_bytes(key.private_bytes(*form))
    (tmp_path / "ca.crt").write_bytes((made / "ca.crt").read_bytes())
    assert "ca.key is of another kind" in credentials("superlink", tmp_path, "a.example", code=2)


def test_a_certificate_is_valid_for_the_days_that_were_asked_for(made):
    end = x509.load_pem_x509_certificate((made / "superlink.crt").read_bytes()).not_valid_after_utc
    assert abs(end - datetime.now(UTC) - timedelta(days=90)) < timedelta(minutes=5)
