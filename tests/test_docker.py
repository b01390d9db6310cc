"""The image's and the Compose file's promises, as far as they can be told without an engine; `make docker-demo` runs
them."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from protosphere.core.flower import NEWEST, OLDEST

ROOT = Path(__file__).resolve().parents[1]
DOCKER = ROOT / "deploy" / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SITES = sorted(name for name in SERVICES if name.startswith("site-"))
PRIVATE = ("-keys", "-state", "-data")
LASTING = ["gate", "superlink", *SITES]


def instructions() -> list[list[str]]:
    """The Dockerfile's instructions, continuation lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]


def mounts(service: str) -> dict[str, str]:
    """Source -> mode of what a service mounts; of `${X:-default}` the default."""
    found = {}
    for entry in SERVICES[service]["volumes"]:
        source, _, *mode = re.sub(r"\$\{[A-Z0-9_]+:-([^}]*)\}", r"\1", entry).split(":")
        found[source] = mode[0] if mode else "rw"
    return found


FLOWERS = ("1.39", "1.42")


def pins(flower: str) -> dict[str, str]:
    names = ("constraints.txt", f"constraints-flower-{flower}.txt")
    text = "".join((DOCKER / name).read_text() for name in names)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    matches = [re.fullmatch(r"([A-Za-z0-9_.-]+)==(\S+)", line) for line in lines]
    assert all(matches), "every line pins one package exactly"
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in matches if match}


def test_only_what_the_app_needs_can_enter_the_image() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")]
    assert lines[0] == "*"
    allowed = {line.removeprefix("!/") for line in lines if line.startswith("!")}
    assert all(line.startswith("!/") for line in lines if line.startswith("!"))
    packages = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert packages | {"pyproject.toml", "README.md", "LICENSE", "deploy"} <= allowed
    assert not allowed & {".git", ".venv", "results", "credentials", "docker-compose.yml"}
    # Flower refuses a rule of fab-exclude that matches nothing
    for pattern in PROJECT["tool"]["flwr"]["app"]["fab-exclude"]:
        assert pattern.split("/")[0] in allowed
    last_exception = max(number for number, line in enumerate(lines) if line.startswith("!"))
    assert {"**/*.key", "**/*.pem", "**/credentials", "**/results"} <= set(lines[last_exception + 1 :])


def test_no_secret_enters_the_image() -> None:
    copied = [rest for word, rest in instructions() if word in ("COPY", "ADD")]
    assert copied == [
        "pyproject.toml /",
        "--from=requirements /requirements.txt /tmp/",
        "deploy/docker/constraints.txt deploy/docker/constraints-flower-${FLOWER}.txt /tmp/",
        ". ./",
    ]
    named = [rest for word, rest in instructions() if word in ("ARG", "ENV")]
    assert not re.search(r"secret|token|password|private", " ".join(named), flags=re.IGNORECASE)


def test_there_are_pins_for_the_oldest_and_the_newest_flower_and_the_newest_is_the_default() -> None:
    assert sorted(path.name for path in DOCKER.glob("constraints-*")) == [
        f"constraints-flower-{flower}.txt" for flower in FLOWERS
    ]
    assert tuple(tuple(map(int, flower.split("."))) for flower in FLOWERS) == (OLDEST, NEWEST)
    assert f"ARG FLOWER={FLOWERS[-1]}" in DOCKERFILE
    assert SERVICES["credentials"]["build"]["args"]["FLOWER"] == "${FLOWER:-" + FLOWERS[-1] + "}"
    for flower in FLOWERS:
        assert pins(flower)["flwr"].startswith(f"{flower}.")
    older, newer = map(pins, FLOWERS)
    assert older.keys() == newer.keys()


@pytest.mark.parametrize("flower", FLOWERS)
def test_the_pins_agree_with_the_project(flower: str) -> None:
    pinned = pins(flower)
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    for requirement in map(Requirement, wanted):
        assert Version(pinned[requirement.name]) in requirement.specifier
    version = PROJECT["project"]["version"]
    images = {service["image"] for name, service in SERVICES.items() if name != "gate"}
    assert images == {"${PROTOSPHERE_IMAGE:-protosphere:" + version + "}"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_locked_in_and_one_shot_or_tells_its_health(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    # docker-compose 1.29 knows no "missing"
    assert service["pull_policy"] == ("if_not_present" if name == "gate" else "never")
    assert not {"privileged", "ports"} & set(service)
    assert not any("docker.sock" in source for source in mounts(name))
    if name in ("results", "handover"):
        assert (service["user"], service["network_mode"]) == ("0:0", "none")
        assert list(mounts(name)) == ["./results"]
        assert len(service["cap_add"]) <= 3
    else:
        assert service.get("user", "10001:10001") == "10001:10001"
        assert "cap_add" not in service
    lasting = service.get("restart") == "unless-stopped"
    assert lasting == (name in LASTING)
    # the SuperLink's looks at the gate's port, too
    assert ("healthcheck" in service) == (name in LASTING and name != "gate")
    if lasting:
        assert service["stop_signal"] == "SIGTERM"
        assert service["mem_limit"]
        assert service["cpus"]
    if "healthcheck" in service:
        assert service["healthcheck"]["test"][1] == "deploy/docker/healthy.sh"
        assert service["healthcheck"]["start_period"] == "120s"


def test_a_private_volume_is_seen_by_its_owner_and_by_who_fills_it() -> None:
    seen: dict[str, set[str]] = {}
    for name in SERVICES:
        for source in mounts(name):
            seen.setdefault(source, set()).add(name)
    assert sorted(volume for volume in seen if volume.endswith(PRIVATE)) == sorted(COMPOSE["volumes"])
    assert seen["authority-keys"] == {"credentials"}
    assert seen["superlink-keys"] == {"credentials", "superlink", "gate"}
    assert seen["superlink-state"] == {"superlink"}
    for site in SITES:
        assert seen[f"{site}-keys"] == {"credentials", site}
        assert seen[f"{site}-data"] == {"data", site}
        assert seen[f"{site}-state"] == {site}


def test_the_superlink_stays_on_the_loopback_of_the_gate_whose_network_sites_call() -> None:
    assert not {"--host", "--fleet"} & set(SERVICES["superlink"]["command"])
    inside = {name for name, service in SERVICES.items() if service.get("network_mode") == "service:gate"}
    assert inside == {"superlink", "register", "federation"}
    assert {name for name, service in SERVICES.items() if "networks" in service} == {"gate", *SITES}
    # what sites call, and what stands in its certificate (deploy/docker/credentials.sh)
    assert SERVICES["gate"]["networks"]["fleet"]["aliases"] == ["superlink"]
    for site in SITES:
        assert SERVICES[site]["command"][1:3] == ["--superlink", "superlink:9092"]


def test_the_host_s_user_can_read_results_and_nobody_else_the_superlink_s_state() -> None:
    command = SERVICES["superlink"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert (options["--state"], options["--umask"]) == ("/state", "022")
    (layout,) = [text for _, text in instructions() if "useradd" in text]
    (private,) = re.findall(r"mkdir -p -m 700 (/[^&]*)&&", layout)
    assert set(private.split()) >= {"/state", "/keys", "/volumes/authority-keys", "/volumes/superlink-keys"}
    assert 'mkdir -p -m 700 "/volumes/site-$site-keys"' in layout


def test_the_demo_without_an_engine_fails_unless_it_was_to_be_skipped(tmp_path: Path) -> None:
    stand_in = tmp_path / "docker"
    stand_in.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for more, code in (({}, 1), ({"SKIP_WITHOUT_DOCKER": "yes"}, 0)):
        done = subprocess.run([DOCKER / "demo.sh"], env=environment | more, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert "no Docker engine answers here (Cannot connect" in done.stdout + done.stderr


@pytest.mark.parametrize("flower", FLOWERS)
def test_nginx_is_the_gate_of_flower_from_1_40_on(tmp_path: Path, flower: str) -> None:
    """By the words of the service, with stand-ins for the two programs."""
    for name in ("nginx", "sleep"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    words = [word.replace("$$", "$") for word in SERVICES["gate"]["entrypoint"]]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "FLOWER": flower}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    holds, serves = "sleep infinity\n", "nginx -e stderr -c /etc/nginx/container.conf\n"
    assert done.stdout == (holds if flower == "1.39" else serves)
    assert SERVICES["gate"]["environment"] == {"FLOWER": "${FLOWER:-" + FLOWERS[-1] + "}"}


def test_the_scripts_are_of_the_shell_that_every_image_has() -> None:
    found = sorted(DOCKER.glob("*.sh"))
    assert found
    for path in found:
        checked = subprocess.run(["sh", "-n", path], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
    named = {
        word
        for service in SERVICES.values()
        for word in [*service.get("command", []), *service.get("entrypoint", [])]
        if word.startswith("deploy/")
    }
    for word in named:
        assert (ROOT / word).stat().st_mode & 0o111, f"{word} can be run"


LISTENS = "   0: 00000000:{} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 10001 0 1 1\n"
LIVE = "   1: 0500A8C0:8F2A 0200A8C0:2384 01 00000000:00000000 00:00000000 00000000 10001 0 1 1\n"
CONTROL, FLEET, RUNTIME = (LISTENS.format(port) for port in ("1F40", "2384", "2386"))


@pytest.mark.parametrize(
    ("service", "table", "words"),
    [
        ("superlink", CONTROL + FLEET, ""),
        ("superlink", FLEET, "nobody listens on port 8000"),
        ("superlink", CONTROL, "nobody listens on port 9092"),
        ("site", RUNTIME + LIVE, ""),
        ("site", LIVE, "nobody listens on port 9094"),
        ("site", RUNTIME, "no connection to the SuperLink's port 9092"),
        ("site", RUNTIME + LIVE.replace(" 01 ", " 02 "), "no connection"),
        ("site", RUNTIME + LIVE.replace(":2384", ":2385"), "no connection"),
        # its own port of that number is no connection to another one
        ("site", RUNTIME + LIVE.replace("8F2A", "2384").replace("C0:2384 01", "C0:8F2A 01"), "no connection"),
        ("site", "", "nobody listens"),
    ],
)
def test_a_service_is_well_when_it_listens_and_is_connected(
    tmp_path: Path, service: str, table: str, words: str
) -> None:
    for name, lines in (("tcp", ""), ("tcp6", table)):
        (tmp_path / name).write_text("  sl  local_address rem_address   st\n" + lines)
    text = (DOCKER / "healthy.sh").read_text().replace("/proc/net", str(tmp_path))
    done = subprocess.run(["sh", "-c", text, "healthy.sh", service], capture_output=True, text=True, check=False)
    assert (done.returncode, words in done.stderr) == (int(bool(words)), True)
    assert "python" not in text
