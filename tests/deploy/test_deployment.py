"""The federation on this machine: what is said when a part does not answer. Whole ones are in tests/integration."""

import pytest

from deploy import deployment as module
from deploy.deployment import Deployment, Site
from protosphere.launch.connection import FlowerError


def test_a_command_that_never_ends_is_a_sentence(tmp_path, monkeypatch):
    deaf = tmp_path / "flwr"
    deaf.write_text("#!/bin/sh\nexec sleep 600\n")
    deaf.chmod(0o755)
    monkeypatch.setattr(module, "find_executable", lambda name: str(deaf))
    monkeypatch.setattr(module, "START_PATIENCE", 0.3)
    deployment = Deployment(tmp_path, [Site(0)])
    deployment.config.mkdir()
    deployment.log().write_text("first\nits last words\n")
    with pytest.raises(FlowerError, match=r"^`flwr ls here` has not ended within 0\.3 s; its last line is: its last"):
        deployment.flwr("ls", "here")
    deployment.stop()
    assert deployment.members() == set()
