"""What there is to choose from."""

import pytest
from typer.testing import CliRunner

from protosphere.cli import listing
from protosphere.cli.main import app
from protosphere.core.settings import Settings
from protosphere.strategies import METHODS, known_settings


def listed(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "400"})


def test_all_methods_settings_and_presets_are_listed():
    methods = {name: rest for name, *rest in listing.methods()}
    assert list(methods) == list(METHODS)
    assert methods["fedgh"][1:] == ["prototypes", "head", "any"]
    settings = {name: rest for name, *rest in listing.settings()}
    assert settings.keys() == known_settings().keys()
    assert not [name for name, (_, allowed, meaning) in settings.items() if not allowed or not meaning]
    assert settings["rounds"][0] == str(Settings.model_fields["rounds"].default)
    assert settings["tinyproto.mu"][1] == "[0, 1]"
    assert not [row for row in settings.values() if "](" in " ".join(row) or "`" in " ".join(row)]
    presets = list(listing.presets())
    assert ("compare", "tinyproto-table1") in {row[:2] for row in presets}
    assert not [name for _, name, words in presets if len(words) <= 10 or words.count("(") != words.count(")")]


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
