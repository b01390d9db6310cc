"""Tells whether a container's service is well, by its exit code: `healthy.py superlink` or `healthy.py site`."""

import ssl
import sys
import urllib.request
from pathlib import Path

CONTROL = "https://127.0.0.1:8000/health"
RUNTIME = "http://127.0.0.1:9094/health"
FLEET_PORT = 9092
PATIENCE = 4.0  # seconds
ESTABLISHED = "01"  # in /proc/net/tcp


def superlink() -> None:
    """It answers over TLS, with a certificate that the federation's authority signed."""
    _get(CONTROL, ssl.create_default_context(cafile="/keys/ca.crt"))


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


def _get(address: str, context: ssl.SSLContext | None = None) -> None:
    # a proxy that the environment names is not for calls to ourselves
    handlers = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        urllib.request.build_opener(*handlers).open(address, timeout=PATIENCE).close()
    except OSError as error:
        sys.exit(f"{address} does not answer ({error}).")


if __name__ == "__main__":
    {"superlink": superlink, "site": site}[sys.argv[1]]()
