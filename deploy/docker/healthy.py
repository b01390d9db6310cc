"""Tells whether a container's service is well, by its exit code: `healthy.py superlink` or `healthy.py site`."""

import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

from protosphere.core.flower import CONTROL_PORT, FLEET_PATHS, FLEET_PORT, NODE_PORT, fleet_transport

AUTHORITY = "/keys/ca.crt"
CONTROL = f"https://127.0.0.1:{CONTROL_PORT}/health"
FLEET = f"https://127.0.0.1:{FLEET_PORT}{FLEET_PATHS[0]}"
RUNTIME = f"http://127.0.0.1:{NODE_PORT}/health"
PATIENCE = 4.0  # seconds
ESTABLISHED = "01"  # in /proc/net/tcp
NO_KEY = 401


def superlink() -> None:
    """It answers over TLS, with a certificate that the federation's authority signed; and so does it through its gate,
    where it has one."""
    trust = ssl.create_default_context(cafile=AUTHORITY)
    _get(CONTROL, trust)
    if fleet_transport() == "http":
        # to a call without a key it says that there is none: so it was asked
        _get(FLEET, trust, b"", NO_KEY)


def site() -> None:
    """Its SuperNode answers and is connected to the SuperLink."""
    _get(RUNTIME)
    connections = [line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    if not connected(connections):
        sys.exit(
            f"no connection to the SuperLink's fleet port {FLEET_PORT}; is it up, and is this site's key registered?"
        )


def connected(connections: list[str]) -> bool:
    """Whether one of the lines of /proc/net/tcp is a live connection to the fleet port of another machine."""
    fields = [line.split() for line in connections]
    return any(remote.endswith(f":{FLEET_PORT:04X}") and state == ESTABLISHED for _, _, remote, state, *_ in fields)


def _get(address: str, context: ssl.SSLContext | None = None, body: bytes | None = None, status: int = 200) -> None:
    # a proxy that the environment names is not for calls to ourselves
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(
        address, body, {"Content-Type": "application/protobuf"} if body is not None else {}
    )
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=PATIENCE) as answer:
            answered = answer.status
    except urllib.error.HTTPError as error:
        answered = error.code
    except OSError as error:
        sys.exit(f"{address} does not answer ({error}).")
    if answered != status:
        sys.exit(f"{address} answers with {answered} instead of {status}.")


if __name__ == "__main__":
    {"superlink": superlink, "site": site}[sys.argv[1]]()
