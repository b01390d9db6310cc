"""What there is to choose from."""

import pytest
from typer.testing import CliRunner

from protosphere.cli.main import app
from protosphere.cli.settings_tables import all_settings
from protosphere.core.settings import Settings
from protosphere.strategies import METHODS, known_settings


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("methods", ["fedgh", *METHODS]),
        ("models", ["tiny_resnet", "hf:<id or path>"]),
        ("presets", ["gfpl-femnist", "tinyproto-table1"]),
        ("settings", known_settings()),
    ],
)
def test_every_entry_is_listed(command, rows):
    result = CliRunner().invoke(app, [command])
    assert result.exit_code == 0
    assert not [row for row in rows if row not in result.stdout]
    assert "](" not in result.stdout


def test_every_setting_has_a_default_its_values_and_a_meaning():
    settings = {setting.name: setting for entries in all_settings().values() for setting in entries}
    assert settings.keys() == known_settings().keys()
    assert not [setting for setting in settings.values() if not setting.allowed or not setting.meaning]
    assert settings["rounds"].value == str(Settings.model_fields["rounds"].default)
    assert settings["tinyproto.mu"].allowed == "[0, 1]"
