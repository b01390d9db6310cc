"""No network, and a small text encoder."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the network, also where the hub's library was imported before."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **_: pytest.fail(f"a test asks for {args}"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a BERT of four layers and its tokenizer."""
    from tests.models.encoders import save_encoder, save_tokenizer

    save_encoder(tmp_path / "bert")
    save_tokenizer(tmp_path / "bert")
    return tmp_path / "bert"
