"""`protosphere status`: a SuperLink's nodes and newest run, on its machine."""

import json
import shutil
import sqlite3
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from protosphere.cli.options import end, option

GIGABYTE = 1e9
LAST = 5  # rounds over which the duration of a round is averaged


def status(
    state: Annotated[str, option("The SuperLink's folder; default: PROTOSPHERE_HOME.", "FOLDER")] = "",
    credentials: Annotated[
        str, option("The folder of its certificates and of the sites' .pub files, which name the sites.", "FOLDER")
    ] = "",
    results: Annotated[str, option("The folder of runs; default: results/ of the SuperLink.", "DIR")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print a SuperLink's sites and the newest run.

    A site is named after its key's file. Its heartbeat, every 30 s, shows when it was last heard.

    Exits 0, or 2 if the folder is not a SuperLink's.
    """
    from protosphere.core.home import home

    folder = Path(state).expanduser() if state else home()
    database = folder / "superlink.db"
    if not database.exists():
        end(f"{folder} holds no superlink.db; --state names the folder that deploy/superlink.sh was given.")
    keys = Path(credentials).expanduser() if credentials else None
    content = {
        "sites": _sites(database, keys),
        "run": _newest_run(Path(results).expanduser() if results else folder / "results"),
        "certificate_days": _days_left(keys),
        "free_gb": round(shutil.disk_usage(folder).free / GIGABYTE, 1),
    }
    typer.echo(json.dumps(content, indent=2) if as_json else "\n".join(_lines(content)))


def _sites(database: Path, keys: Path | None) -> list[dict[str, Any]]:
    from protosphere.core.flower import registered_nodes

    names = {}
    for file in sorted(keys.glob("*.pub")) if keys else ():
        names[_as_pem(file)] = file.stem
    try:
        nodes = registered_nodes(database)
    except sqlite3.Error as error:
        end(
            f"{database} cannot be read ({error}): a SuperLink that has just started has no tables yet, and other "
            "versions of Flower have other tables; try again, or start it with this version's deploy/superlink.sh."
        )
    sites = []
    for node in nodes:
        heard = None if node.heard is None else max(0, round(time.time() - node.heard))
        sites.append({"name": names.get(node.key), "node": str(node.id), "status": node.status, "heard_seconds": heard})
    return sites


def _as_pem(file: Path) -> bytes:
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        end(f"{file} holds no public key ({error}); deploy/credentials.py makes them.")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _days_left(keys: Path | None) -> dict[str, int]:
    from cryptography import x509

    days = {}
    for name in ("superlink.crt", "ca.crt"):
        if keys is not None and (keys / name).exists():
            try:
                certificate = x509.load_pem_x509_certificate((keys / name).read_bytes())
            except (OSError, ValueError) as error:
                end(f"{keys / name} holds no certificate ({error}); deploy/credentials.py makes it.")
            days[name] = (certificate.not_valid_after_utc - datetime.now(UTC)).days
    return days


def _newest_run(results: Path) -> dict[str, Any] | None:
    from protosphere.core.client_names import client_names
    from protosphere.core.errors import SettingError
    from protosphere.record.folder import RunFolder

    folders = sorted(results.glob("*/status.json"), key=lambda file: file.stat().st_mtime_ns)
    if not folders:
        return None
    record = RunFolder(folders[-1].parent)
    seconds: list[float] = []
    last_rounds: dict[str, int] = {}
    try:
        status, roster = record.status(), record.roster()
        for line in record.each_line():
            if line["round"]:
                seconds.append(line["time"]["round"])
            # including those that withhold their metrics
            for partition in line["time"].get("client", {}):
                last_rounds[str(partition)] = line["round"]
    except SettingError as error:
        end(str(error))
    seconds = seconds[-LAST:]
    names = client_names(roster)
    clients = []
    for entry in roster:
        partition = int(entry["partition"])
        round_number = last_rounds.get(str(partition))
        clients.append({"partition": partition, "name": names.get(partition), "last_round": round_number})
    return {
        "folder": str(record.path),
        "state": status["state"],
        "round": status["round"],
        "rounds": status["rounds"],
        "seconds_per_round": round(sum(seconds) / len(seconds), 1) if seconds else None,
        "clients": clients,
    }


def _lines(content: Mapping[str, Any]) -> list[str]:
    lines = [f"{len(content['sites'])} sites"]
    for site in content["sites"]:
        heard = "never heard" if site["heard_seconds"] is None else f"heard {site['heard_seconds']} s ago"
        lines.append(f"  {site['name'] or '-'}: node {site['node']}, {site['status']}, {heard}")
    run = content["run"]
    if run is None:
        lines.append("no run")
    else:
        pace = "" if run["seconds_per_round"] is None else f", {run['seconds_per_round']} s per round"
        lines.append(f"{run['folder']}: {run['state']}, round {run['round']} of {run['rounds']}{pace}")
        for client in run["clients"]:
            name = f" ({client['name']})" if client["name"] else ""
            replied = "no reply yet" if client["last_round"] is None else f"last reply in round {client['last_round']}"
            lines.append(f"  client {client['partition']}{name}: {replied}")
    for name, days in content["certificate_days"].items():
        lines.append(f"{name}: {days} days left")
    return [*lines, f"free disk: {content['free_gb']} GB"]
