"""No network, and a small text encoder."""

import shutil
from collections.abc import Callable
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


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], None]:
    """cached(hub id, folder): the folder's files as the hub's own client keeps what it has fetched, in a cache of this
    test alone."""
    place = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(place))
    # where transformers 4 looks
    monkeypatch.setattr("transformers.utils.hub.TRANSFORMERS_CACHE", str(place), raising=False)

    def keep(name: str, folder: Path) -> None:
        kept = place / f"models--{name.replace('/', '--')}"
        shutil.copytree(folder, kept / "snapshots" / ("0" * 40))
        (kept / "refs").mkdir()
        (kept / "refs" / "main").write_text("0" * 40)

    return keep
