"""Names, folders and encoders that no text model can be made of: each is named, with what to do."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from protosphere import models
from protosphere.core.errors import ModelError
from protosphere.models.text import Tokens
from tests.models.encoders import (
    KINDS,
    OWN,
    TEXTS,
    WORDS,
    D,
    K,
    L,
    build,
    learning,
    save_encoder,
    save_tokenizer,
    transformers,
)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:a/b?layers=2", r"'hf:a/b\?layers=2' has the query 'layers=2'; the only one is \?trainable="),
        ("hf:a/b?", r"has the query ''"),
        *[(f"hf:a/b?trainable={n}", f"asks for '{n}' trainable") for n in ("", "-1", "1.5", "²", "2&trainable=3")],
        *[(n, r"'hf:.*' names no encoder") for n in ("hf:", "hf:?trainable=2", "hf:a/b/c", "hf:a b", "hf:-a")],
    ],
)
def test_malformed_names_are_refused(name: str, words: str) -> None:
    for refuse in (lambda: models.model_names(f"tiny,{name}"), lambda: build(name)):
        with pytest.raises(ModelError, match=words):
            refuse()


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"transformers, which cannot be imported.*pip install 'protosphere\[text\]'"):
        build(f"hf:{tmp_path}")
    with pytest.raises(ModelError, match=r"pip install 'protosphere\[text\]'"):
        Tokens(f"hf:{tmp_path}", L)(["pain"])


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "GPT2"])
def test_texts_longer_than_the_encoder_are_refused(tmp_path: Path, kind: str) -> None:
    save_encoder(tmp_path, kind, **KINDS[kind])
    save_tokenizer(tmp_path)
    assert build(f"hf:{tmp_path}", 20).eval()(torch.full((1, 20), 5)).isfinite().all()
    with pytest.raises(ModelError, match="max-tokens is 21, but it has 20 positions"):
        build(f"hf:{tmp_path}", 21)


def test_no_room_for_a_text_is_refused(folder: Path) -> None:
    with pytest.raises(
        ModelError, match=r"max-tokens is 2, but the tokenizer of .* adds 2 tokens of its own .*; raise"
    ):
        Tokens(f"hf:{folder}", 2)(TEXTS)
    assert Tokens(f"hf:{folder}", 3)(["knees"]).tolist() == [[2, 13, 3]]


# what spoils the folder of a whole encoder, and the words of the refusal
MENDED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda at: (at / "model.safetensors").unlink(), "the encoder of '{}' cannot be loaded: "),
    "no configuration": (lambda at: (at / "config.json").unlink(), "the encoder of '{}' cannot be loaded: "),
    "a layer too few": (
        lambda at: transformers.AutoConfig.from_pretrained(at, num_hidden_layers=5).save_pretrained(at),
        r"lack 16 of the encoder's tensors, encoder\.layer\.4\..* among them",
    ),
    "other words": (
        lambda at: save_tokenizer(at, [*WORDS, "liver"]),
        "its tokenizer has 20 tokens, but the encoder embeds 19",
    ),
}


@pytest.mark.parametrize("case", MENDED)
def test_a_folder_that_is_not_whole_is_refused(folder: Path, case: str) -> None:
    spoil, words = MENDED[case]
    spoil(folder)
    with pytest.raises(ModelError, match=words.format(folder)):
        build(f"hf:{folder}")


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Albert", "Electra"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, kind: str) -> None:
    save_encoder(tmp_path, kind, **KINDS[kind])
    for refuse in (lambda: Tokens(f"hf:{tmp_path}", L)(TEXTS), lambda: build(f"hf:{tmp_path}")):
        with pytest.raises(ModelError, match=f"the tokenizer of '{tmp_path}' cannot be .*; save its tokenizer.json"):
            refuse()
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=f"the tokenizer of '{tmp_path}' cannot be loaded: "):
        Tokens(f"hf:{tmp_path}", L)(TEXTS)


@pytest.mark.parametrize(
    ("place", "words"),
    [("./gone", "no folder '.*gone' on this machine"), ("no-one/nothing-9", "hf download no-one/nothing-9")],
)
def test_what_is_neither_on_this_machine_nor_in_the_cache_is_named(place: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build(f"hf:{place}?trainable=2")
    with pytest.raises(ModelError, match=words):
        Tokens(f"hf:{place}", L)(["pain"])


OF_EACH = {"layers": 1, "ffn_dim": 32, "attention_heads": 2}
SIZES = {"d_model": 32} | {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in OF_EACH.items()}


@pytest.mark.parametrize(
    ("kind", "settings", "query", "shape", "words"),
    [
        ("Bert", {}, "?trainable=5", (L,), "trainable=5 is more than its 4 layers"),
        ("Albert", KINDS["Albert"], "?trainable=2", (L,), r"share their weights .* use \?trainable=0"),
        ("Bert", {}, "", (3, 32, 32), r"of shape \(3, 32, 32\): it reads text, but this data has images"),
        ("Bart", SIZES, "", (L,), "is an encoder with a decoder"),
        ("ViT", {"image_size": 16, "patch_size": 8}, "", (L,), "use a text encoder"),
    ],
)
def test_an_encoder_that_cannot_do_what_is_asked_is_refused(
    tmp_path: Path, kind: str, settings: dict[str, object], query: str, shape: tuple[int, ...], words: str
) -> None:
    save_encoder(tmp_path, kind, **settings)
    save_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=words):
        models.build(f"hf:{tmp_path}{query}", shape, D, K, 0)
    if kind == "Albert":
        assert learning(build(f"hf:{tmp_path}?trainable=0")) == OWN
