"""Why a SuperLink cannot be reached, and until when its certificate holds: by a handshake of our own, since Flower has
the same words for all reasons."""

import os
import socket
import ssl
import time
import tomllib
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509

PATIENCE = 5.0  # seconds
SECONDS_A_DAY = 86400
RENEWAL_DAYS = 30  # before its end a certificate is spoken of
RENEWAL = "renew it as docs/deployment.md says"
# OpenSSL's numbers of what is wrong with a certificate
NOT_YET_VALID, EXPIRED, OTHER_NAME = (9,), (10,), (62, 64)


def flower_home() -> Path:
    """The folder of Flower's configuration."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").expanduser()


def connections() -> dict[str, Mapping[str, Any]]:
    """The SuperLinks that Flower's configuration names, each with its settings; none where it cannot be read."""
    try:
        table = tomllib.loads((flower_home() / "config.toml").read_text("utf-8")).get("superlink", {})
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in table.items() if isinstance(entry, dict)}


def obstacle(entry: Mapping[str, Any]) -> str:
    """What keeps a connection from its SuperLink, in words without a full stop; empty where none is found.

    Args:
        entry: of `connections`.
    """
    place = _place(entry)
    if place is None:
        return ""
    roots, address = entry.get("root-certificates"), str(entry["address"])
    insecure = bool(entry.get("insecure", False))
    try:
        # one that speaks TLS where it should not is told by any handshake, whatever its certificate
        context = _trusting_all() if insecure else _context(entry)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        return f"its root-certificates {roots} cannot be used ({reason}); give the federation's ca.crt"
    try:
        with _handshake(place, context):
            return f"{address} speaks TLS: give root-certificates in place of insecure = true" if insecure else ""
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error, place, address)
    except ssl.SSLError as error:
        return (
            ""
            if insecure
            else f"{address} does not speak TLS ({error.reason}), like a SuperLink that was started with --insecure"
        )
    except UnicodeError:
        return f"{address} is no address: its host has an empty part, or one of more than 63 letters"
    except OSError as error:
        # a proxy may come where we do not
        return "" if _uses_proxy(place[0]) else _of_network(error, place[0], address)


def renewal(entry: Mapping[str, Any]) -> str:
    """A sentence in the last days of a SuperLink's certificate; empty before, and where its end cannot be seen."""
    place = _place(entry)
    if place is None or entry.get("insecure"):
        return ""
    try:
        with _handshake(place, _context(entry)) as connection:
            end = ssl.cert_time_to_seconds(str((connection.getpeercert() or {})["notAfter"]))
    except (OSError, KeyError, ValueError):
        return ""
    if end - time.time() > RENEWAL_DAYS * SECONDS_A_DAY:
        return ""
    day = time.strftime("%Y-%m-%d", time.gmtime(end))
    return f"the SuperLink's certificate ends on {day}, and then nobody reaches it; {RENEWAL}."


def _place(entry: Mapping[str, Any]) -> tuple[str, int] | None:
    """Host and port of a connection; None where the address is none, as Flower's `:local:`."""
    host, _, port = str(entry.get("address", "")).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return (host, int(port)) if host and port.isascii() and port.isdigit() else None


def _context(entry: Mapping[str, Any]) -> ssl.SSLContext:
    roots = entry.get("root-certificates")
    return ssl.create_default_context(cafile=str(Path(str(roots)).expanduser()) if roots else None)


def _trusting_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _handshake(place: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    connection = socket.create_connection(place, timeout=PATIENCE)
    try:
        return context.wrap_socket(connection, server_hostname=place[0])
    except BaseException:
        connection.close()
        raise


def _of_certificate(error: ssl.SSLCertVerificationError, place: tuple[str, int], address: str) -> str:
    with _handshake(place, _trusting_all()) as connection:
        cert = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
    begin, end = cert.not_valid_before_utc, cert.not_valid_after_utc
    if error.verify_code in EXPIRED:
        if end.timestamp() > time.time():
            return f"the authority's certificate has expired, with which that of {address} was signed; make all anew"
        return f"the certificate of {address} expired on {end:%Y-%m-%d}; {RENEWAL}"
    if error.verify_code in NOT_YET_VALID:
        day = f"{begin:%Y-%m-%d %H:%M} UTC"
        return f"the certificate of {address} is not valid before {day}; look at the clocks of both machines"
    if error.verify_code in OTHER_NAME:
        return (
            f"the certificate of {address} is not for the name {place[0]!r} but for {', '.join(_names(cert))}; call it "
            "by one of these, or make it anew with this name"
        )
    return (
        f"the certificate of {address} was not signed by the authority in root-certificates ({error.verify_message}); "
        "give the ca.crt of that federation"
    )


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ["no name"]
    return [str(name.value) for name in extension.value]


def _of_network(error: OSError, host: str, address: str) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name {host!r} is not known here ({error.strerror}); look at its spelling"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens at {address}; start the SuperLink, or open the tunnel to it"
    if isinstance(error, TimeoutError):
        return f"{address} does not answer within {PATIENCE:g} s; its machine may be off, or a firewall between"
    return f"{address} cannot be reached ({error.strerror or error})"


def _uses_proxy(host: str) -> bool:
    return bool(urllib.request.getproxies()) and not urllib.request.proxy_bypass(host)
