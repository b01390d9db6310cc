"""Makes what TLS and node authentication need: a certificate authority, the SuperLink's certificate, nodes' key pairs.

    python deploy/credentials.py authority credentials                      # once, by whoever runs the federation
    python deploy/credentials.py superlink credentials fl.example.org       # for every name and address it is called by
    python deploy/credentials.py node credentials/clinic-north              # at each site: the private key stays there

Sites need `ca.crt`, the SuperLink's machine `superlink.crt`, `superlink.key` and `ca.crt`, the register each site's
`.pub` file. `ca.key` belongs to neither. Nothing is ever overwritten.
"""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PRIVATE, PUBLIC = 0o600, 0o644
AUTHORITY_DAYS = 3650
# clocks of sites differ a little
SLACK = timedelta(hours=1)

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
Folder = Annotated[Path, typer.Argument(help="Where ca.key and ca.crt lie.", show_default=False)]


@app.command()
def authority(folder: Folder) -> None:
    """Make the certificate authority: ca.key (keep it offline) and ca.crt (every machine needs it)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Protosphere authority")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write({folder / "ca.key": (_pem(key), PRIVATE), folder / "ca.crt": (_pem_of(certificate), PUBLIC)})


@app.command()
def superlink(
    folder: Folder,
    hosts: Annotated[
        list[str], typer.Argument(help="Names and addresses by which nodes call the SuperLink.", show_default=False)
    ],
    days: Annotated[int, typer.Option(min=1, max=AUTHORITY_DAYS, help="How long the certificate is valid.")] = 365,
) -> None:
    """Make the SuperLink's superlink.key and superlink.crt, signed by the authority in the same folder.

    localhost and 127.0.0.1 are always among its names: `flwr run` may come through a tunnel.
    """
    signer, root = _authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_general_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    certificate = (
        _certificate(_name(hosts[0]), root.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    _write({folder / "superlink.key": (_pem(key), PRIVATE), folder / "superlink.crt": (_pem_of(certificate), PUBLIC)})


@app.command()
def node(path: Annotated[Path, typer.Argument(help="The private key; .pub is added for the public one.")]) -> None:
    """Make a SuperNode's key pair in OpenSSH's form, the only one that Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write({path: (private, PRIVATE), path.with_name(path.name + ".pub"): (public + b"\n", PUBLIC)})


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except OSError as error:
        _end(f"{error.filename} cannot be read ({error.strerror}); make the authority first, as `authority {folder}`.")
    except (ValueError, TypeError) as error:
        # a TypeError is a key with a password
        _end(f"{folder} holds no authority that can be used ({error}); make a new one in another folder.")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        _end(f"{folder / 'ca.key'} is no elliptic-curve key; make the authority with this script.")
    if key.public_key() != certificate.public_key():
        _end(f"{folder / 'ca.key'} is not the key of {folder / 'ca.crt'}; bring the two that belong together.")
    return key, certificate


def _certificate(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    # a common name has 64 characters at most; the names that count stand in the certificate's extension
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if ":" in host or "/" in host or not host.isascii() or not host.strip():
        _end(f"{host!r} is no host name or address; give what stands before the port, such as fl.example.org.")
    return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(files: dict[Path, tuple[bytes, int]]) -> None:
    """All of them or, if one is there already, none; a private key is never readable by others, not even for long."""
    there = [str(path) for path in files if path.exists()]
    if there:
        _end(f"{' and '.join(there)} exist already and are kept; remove them first, or give another folder.")
    try:
        for path, (content, mode) in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
    except OSError as error:
        _end(f"{error.filename} cannot be written ({error.strerror}).")
    for path in files:
        typer.echo(str(path))


def _end(sentence: str) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
