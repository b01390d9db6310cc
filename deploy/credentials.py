"""Create the certificate authority, the SuperLink's certificate and the key pairs of nodes.

Sites need `ca.crt`. The SuperLink's machine needs `superlink.crt`, `superlink.key` and `ca.crt`, and each site's
`.pub` file to register it. Keep `ca.key` on neither. Existing files are never overwritten.
"""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protosphere.cli.help import Command, Group
from protosphere.cli.options import end

AUTHORITY_DAYS = 3650
SLACK = timedelta(hours=1)  # clocks of sites differ a little
LOCAL = ("localhost", "127.0.0.1")
PROMPT = "passphrase of ca.key"

app = typer.Typer(
    cls=Group,
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Folder = Annotated[Path, typer.Argument(help="Folder with ca.key and ca.crt.", show_default=False)]
Days = Annotated[int, typer.Option(min=1, max=AUTHORITY_DAYS, help="Validity of the certificate, in days.")]


@app.command(cls=Command)
def authority(
    folder: Folder,
    passphrase: Annotated[bool, typer.Option("--passphrase", help="Encrypt ca.key with a passphrase.")] = False,
) -> None:
    """Create the certificate authority.

    Keep ca.key offline; every machine needs ca.crt. With --passphrase, whoever uses ca.key is asked for the passphrase.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Protosphere authority")
    other_usages = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    usage = x509.KeyUsage(
        True, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False, **other_usages
    )
    certificate = (
        _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = typer.prompt(PROMPT, hide_input=True, confirmation_prompt=True) if passphrase else ""
    _write({folder / "ca.key": _pem(key, secret), folder / "ca.crt": certificate.public_bytes(Encoding.PEM)})


@app.command(cls=Command)
def superlink(
    folder: Folder,
    hosts: Annotated[
        list[str], typer.Argument(help="Names and addresses that nodes use for the SuperLink.", show_default=False)
    ],
    days: Days = 365,
) -> None:
    """Create the SuperLink's key and certificate.

    This writes superlink.key and superlink.crt, signed by the authority in the same folder. The certificate is also
    valid for localhost and 127.0.0.1, because `flwr run` may come through a tunnel. To renew it, remove both files and
    run the same command again.
    """
    try:
        root = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        pem = (folder / "ca.key").read_bytes()
        secret = typer.prompt(PROMPT, hide_input=True).encode() if b"ENCRYPTED" in pem else None
        signer: Any = load_pem_private_key(pem, secret)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise ValueError("ca.key is of another kind than `authority` makes")
    except (OSError, ValueError) as error:
        end(f"ca.key and ca.crt in {folder} cannot be used ({error}); `authority {folder}` makes them where none are.")
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys([*hosts, *LOCAL])])
    certificate = (
        _certificate(_name(hosts[0]), root.subject, key.public_key(), days)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    _write({folder / "superlink.key": _pem(key), folder / "superlink.crt": certificate.public_bytes(Encoding.PEM)})


@app.command(cls=Command)
def node(path: Annotated[Path, typer.Argument(help="The private key; .pub is added for the public one.")]) -> None:
    """Create a SuperNode's key pair, in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write({path: private, path.with_name(path.name + ".pub"): public + b"\n"})


def _certificate(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer, subject, public_key, x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    # a common name has at most 64 characters; the names that matter are in the certificate's extension
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if ":" in host or "/" in host or not host.isascii() or not host.strip():
            end(f"{host!r} is no host name or address; give what stands before the port, such as fl.example.org.")
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey, secret: str = "") -> bytes:
    encryption = BestAvailableEncryption(secret.encode()) if secret else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def _write(files: dict[Path, bytes]) -> None:
    """Write all files, or none if one exists already. A private key is never readable by others, not even briefly."""
    existing_files = [str(path) for path in files if path.exists()]
    if existing_files:
        end(f"{' and '.join(existing_files)} exist already and are kept; remove them first, or give another folder.")
    try:
        for path, content in files.items():
            mode = 0o644 if path.suffix in (".crt", ".pub") else 0o600
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
            typer.echo(str(path))
    except OSError as error:
        end(f"{error.filename} cannot be written ({error.strerror}).")


if __name__ == "__main__":
    app()
