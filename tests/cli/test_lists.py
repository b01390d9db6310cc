"""What there is to choose from, and what a machine has."""

import socket

import pytest
from flwr.cli.constant import LOCAL_SUPERLINK_HTTP_API_PORT
from flwr.common.constant import FLEETAPI_GRPC_RERE_PORT
from flwr.supercore.constant import SUPERLINK_UVICORN_DEFAULT_PORT, SUPERNODE_UVICORN_DEFAULT_PORT
from typer.testing import CliRunner

from protosphere.cli import doctor, listing
from protosphere.cli.main import app
from protosphere.core.settings import Settings
from protosphere.plans.run_config import read_preset
from protosphere.strategies import METHODS, known_settings


def listed(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "400"})


def test_all_methods_are_listed_with_what_crosses():
    rows = {name: rest for name, *rest in listing.methods()}
    assert list(rows) == list(METHODS)
    assert rows["local"][1:] == ["-", "-", "any"]
    assert rows["fedgh"][1:] == ["prototypes", "head", "any"]
    assert rows["fedavg"][1:] == ["extractor, head", "extractor, head", "any, grouped"]
    assert rows["fesem"][3] == "one per run"
    assert all((words and words[0].isupper()) or words[0] == "`" for words, *_ in rows.values())


def test_every_setting_is_listed_with_its_default_and_a_meaning():
    rows = {name: rest for name, *rest in listing.settings()}
    assert rows.keys() == known_settings().keys()
    assert rows["rounds"][0] == str(Settings.model_fields["rounds"].default)
    assert not [name for name, (_, allowed, meaning) in rows.items() if not allowed or not meaning]


def test_settings_are_listed_without_markdown_and_with_their_ranges():
    rows = {name: rest for name, *rest in listing.settings()}
    assert not [row for row in rows.values() if "](" in " ".join(row) or "`" in " ".join(row)]
    assert rows["strategy"][2].startswith("the method: a name, or your own as ./file.py or package")
    assert rows["tinyproto.mu"][1] == "[0, 1]"


def test_every_preset_is_listed_by_a_whole_sentence():
    rows = list(listing.presets())
    for command, name, words in rows:
        assert words.count("(") == words.count(")")
        assert len(words) > 10
        assert command == "compare" or read_preset(name)
    assert ("compare", "tinyproto-table1") in {row[:2] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "there", "absent"),
    [
        (("methods", "--search", "GENERATOR"), "fedgen", "protonorm"),
        (("models",), "tiny_resnet", None),
        (("presets", "--search", "femnist"), "gfpl-femnist", "spiral"),
        (("settings", "--search", "privacy-eps"), "privacy-epsilon", "rounds"),
    ],
)
def test_lists_are_searched(arguments, there, absent):
    found = listed(*arguments)
    assert found.exit_code == 0
    assert there in found.stdout
    assert absent is None or absent not in found.stdout


def test_what_is_nowhere_is_said():
    found = listed("settings", "--search", "xyzzy")
    assert (found.exit_code, found.stdout) == (1, "")
    assert "'xyzzy'" in found.stderr


def test_the_doctor_asks_at_the_ports_that_flower_takes():
    taken = {
        int(FLEETAPI_GRPC_RERE_PORT),
        SUPERLINK_UVICORN_DEFAULT_PORT,
        SUPERNODE_UVICORN_DEFAULT_PORT,
        int(LOCAL_SUPERLINK_HTTP_API_PORT),
    }
    assert set(doctor.PORTS) == taken


def test_the_doctor_tells_versions_a_port_that_is_taken_and_a_disk_that_is_full(home, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(doctor, "PORTS", {taken.getsockname()[1]: "somebody's"})
        monkeypatch.setattr(doctor, "LEAST_DISK", 0)
        well = listed("doctor")
    assert well.exit_code == 0, well.stdout
    assert ": in use" in well.stdout
    assert "torch" in well.stdout
    monkeypatch.setattr(doctor, "LEAST_DISK", 10**9)
    ill = listed("doctor")
    assert ill.exit_code == 1
    assert next(line for line in ill.stdout.splitlines() if line.startswith("!! ")).split()[1] == "home"
