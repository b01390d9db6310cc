"""Why a SuperLink cannot be reached, and until when its certificate holds: by a handshake of our own, since Flower has
the same words for all reasons. docs/deployment.md says what to do about each."""

import os
import socket
import ssl
import time
import tomllib
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATIENCE = 5.0  # seconds
SECONDS_A_DAY = 86400
RENEWAL_DAYS = 30  # before its end a certificate is spoken of


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
    address, insecure = entry["address"], bool(entry.get("insecure"))
    try:
        context = _context(entry)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        return f"its root-certificates {entry['root-certificates']} cannot be used ({reason})"
    try:
        with _handshake(place, context):
            return f"{address} speaks TLS, and the connection is insecure" if insecure else ""
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {address} is refused ({error.verify_message.rstrip('.')})"
    except ssl.SSLError as error:
        return "" if insecure else f"{address} does not speak TLS ({error.reason})"
    except (OSError, UnicodeError) as error:
        # a proxy may come where we do not
        if urllib.request.getproxies() and not urllib.request.proxy_bypass(place[0]):
            return ""
        return f"{address} cannot be reached ({getattr(error, 'strerror', None) or error})"


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
    return (
        f"the SuperLink's certificate ends on {day}, and nobody reaches it then; renew it as docs/deployment.md says."
    )


def _place(entry: Mapping[str, Any]) -> tuple[str, int] | None:
    """Host and port of a connection; None where the address is none, as Flower's `:local:`."""
    host, _, port = str(entry.get("address", "")).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return (host, int(port)) if host and port.isascii() and port.isdigit() else None


def _context(entry: Mapping[str, Any]) -> ssl.SSLContext:
    if entry.get("insecure"):
        # one that speaks TLS where it should not is told by any handshake, whatever its certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    roots = entry.get("root-certificates")
    return ssl.create_default_context(cafile=str(Path(str(roots)).expanduser()) if roots else None)


def _handshake(place: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    connection = socket.create_connection(place, timeout=PATIENCE)
    try:
        return context.wrap_socket(connection, server_hostname=place[0])
    except BaseException:
        connection.close()
        raise
