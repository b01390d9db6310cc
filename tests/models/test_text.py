"""Text encoders on small random networks: names, tokens, what learns, the pooling written out, what is refused."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from protosphere import models
from protosphere.core.errors import ModelError
from protosphere.models.text import EncoderName, Tokens, encoder_name, text_backbone
from tests.models.encoders import (
    KINDS,
    OWN,
    SPECIAL,
    TEXTS,
    WORDS,
    D,
    K,
    L,
    build,
    learning,
    save_encoder,
    save_tokenizer,
    tokenizers,
    transformers,
)

KNEES = [2, 13, 14, 3]  # knee ##s between [CLS] and [SEP]


def test_a_name_says_place_and_layers() -> None:
    assert encoder_name("hf:owner/encoder") == EncoderName("owner/encoder", None)
    assert encoder_name("hf:/a b/c.d?trainable=12") == EncoderName("/a b/c.d", 12)
    places = ["/a", "./a", "../a", "~/a", "a/b", "a"]
    assert [encoder_name(f"hf:{place}").local for place in places] == [True] * 4 + [False] * 2
    clinical = models.model_names("papers-clinical")
    assert [encoder_name(name).trainable for name in clinical] == [0, 2, 4]


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_are_the_tokenizer_s_one_text_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protosphere.models.text.BATCH", 2)  # five texts in three batches, the last not full
    tokens = Tokens(f"hf:{folder}", L)
    rows = tokens(TEXTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (rows.dtype, rows.shape) == (torch.int32, (len(TEXTS), L))
    for row, text in zip(rows.tolist(), TEXTS, strict=True):
        ids = tokenizer(text, truncation=True, max_length=L)["input_ids"]
        assert row == ids + [-1] * (L - len(ids))
    assert rows[2, -1] == 3  # a text that is cut off keeps its [SEP]
    assert torch.equal(tokens(TEXTS[1:3]), rows[1:3])
    assert tokens([]).shape == (0, L)


def test_a_tokenizer_without_padding_and_special_tokens_will_do(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "pain": 1, "fever": 2}, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(tmp_path)
    rows = Tokens(f"hf:{tmp_path}", 3)(["fever pain", "", "pain pain pain pain"])
    assert rows.tolist() == [[2, 1, -1], [-1, -1, -1], [1, 1, 1]]


# --- what learns, and features ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [None, 0, 1, 4])
def test_exactly_the_layers_asked_for_learn_and_move(folder: Path, asked: int | None) -> None:
    model = build(f"hf:{folder}" if asked is None else f"hf:{folder}?trainable={asked}")
    prefix = "extractor.backbone.encoder."
    inner = {key.removeprefix(prefix) for key in learning(model) - OWN}
    everything = {key.removeprefix(prefix) for key, _ in model.named_parameters()} - OWN
    layers = tuple(f"encoder.layer.{layer}." for layer in range(4 - (asked or 0), 4))
    assert inner == (everything if asked is None else {key for key in everything if key.startswith(layers)})
    assert learning(model) >= OWN

    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    nn.functional.cross_entropy(model(Tokens(f"hf:{folder}", L)(TEXTS)), torch.arange(len(TEXTS)) % K).backward()
    optimiser.step()
    moved = {key for key, parameter in model.named_parameters() if not torch.equal(parameter, before[key])}
    assert moved == learning(model)


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_the_mean_over_a_text_s_own_tokens(tmp_path: Path, kind: str) -> None:
    saved = save_encoder(tmp_path, kind, **KINDS[kind])
    save_tokenizer(tmp_path)
    rows = Tokens(f"hf:{tmp_path}", L)(TEXTS)
    network = text_backbone(f"hf:{tmp_path}", (L,))
    assert all(module.training for module in network.modules())
    with torch.no_grad():
        # one text at a time, without padding or mask
        alone = [saved(row[row >= 0].long()[None]).last_hidden_state[0].mean(dim=0) for row in rows]
        network.eval()
        longer = network(nn.functional.pad(rows, (0, 8), value=-1))
        for features in (network(rows), longer, network(rows.float())):
            torch.testing.assert_close(features, torch.stack(alone), rtol=1e-4, atol=1e-5)
    network.train()(rows).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    # the last layers are found in every kind that has them
    if kind != "Albert":
        inner = learning(text_backbone(f"hf:{tmp_path}?trainable=2", (L,)))
        assert {part for key in inner for part in key.split(".") if part.isdigit()} == {"2", "3"}


def test_a_row_without_a_token_gives_zeros_and_no_nan(folder: Path) -> None:
    network = text_backbone(f"hf:{folder}", (L,)).eval()
    rows = Tokens(f"hf:{folder}", L)(TEXTS)
    masks: list[Tensor] = []
    network.encoder.register_forward_pre_hook(lambda _, __, kw: masks.append(kw["attention_mask"]), with_kwargs=True)
    features = network(torch.cat([rows, torch.full((1, L), -1, dtype=torch.int32)]))
    torch.testing.assert_close(features[:-1], network(rows), rtol=1e-4, atol=1e-5)
    nothing = network(torch.full((2, L), -1))
    assert not features[-1].any()
    assert not nothing.any()
    # no attention to nothing, NaN in some implementations
    assert all(mask.any(dim=1).all() for mask in masks)
    (features.sum() + nothing.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


# --- where it comes from ----------------------------------------------------------------------------------------------


def test_building_is_deterministic_silent_and_leaves_no_trace(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = transformers.utils.logging
    before, verbosity, bars = torch.get_rng_state(), log.get_verbosity(), log.is_progress_bar_enabled()
    first = build(f"hf:{folder}?trainable=2").state_dict()
    torch.rand(3)
    second, other = (build(f"hf:{folder}?trainable=2", seed=seed).state_dict() for seed in (0, 1))
    assert capfd.readouterr() == ("", "")
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == (verbosity, bars)
    torch.set_rng_state(before)
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert {key for key, value in other.items() if not torch.equal(value, second[key])} == OWN


def test_a_checkpoint_as_the_hub_s_old_ones_are_and_in_half_precision(folder: Path) -> None:
    """vocab.txt alone, weights in pytorch_model.bin under `bert.`, a head beside them and no pooler."""
    half = transformers.BertModel.from_pretrained(folder).half().state_dict()
    weights = {f"bert.{key}": value for key, value in half.items() if "pooler" not in key}
    torch.save(weights | {"cls.predictions.bias": torch.zeros(19)}, folder / "pytorch_model.bin")
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]))
    ours = dict(text_backbone(f"hf:{folder}", (L,)).encoder.named_parameters())
    assert all(torch.equal(value, weights[f"bert.{key}"].float()) for key, value in ours.items())
    assert Tokens(f"hf:{folder}", L)(["knees"])[0, :4].tolist() == KNEES


def test_a_home_folder_and_a_relative_one_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder)
    for place in ("~/bert", "../bert"):
        assert build(f"hf:{place}").eval()(Tokens(f"hf:{place}", L)(["pain"])).shape == (1, K)


def test_what_the_cache_holds_is_had_without_a_word_to_the_hub(
    folder: Path, cached: Callable[[str, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached("owner/kept", folder)
    # online; and without the library's own count of its users
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    assert models.build("hf:owner/kept?trainable=2", (8,), 4, 3, 0)
    assert Tokens("hf:owner/kept", 8)(["knees"])[0, :4].tolist() == KNEES


def test_the_hub_is_asked_for_what_the_cache_lacks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = transformers.AutoTokenizer.from_pretrained
    asked = []

    def from_pretrained(place: str, local_files_only: bool, trust_remote_code: bool, **options: object) -> object:
        asked.append((place, local_files_only, trust_remote_code))
        if local_files_only:
            raise OSError("not in the cache")
        return real(folder, **options)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    assert Tokens("hf:owner/tokenizer", L)(["knees"])[0, :4].tolist() == KNEES
    assert asked == [("owner/tokenizer", True, False), ("owner/tokenizer", False, False)]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("hf:a/b?layers=2", "query 'layers=2'"),
        ("hf:a/b?", "query ''"),
        *[(f"hf:a/b?trainable={n}", f"'{n}' trainable") for n in ("", "-1", "1.5", "²", "2&trainable=3")],
        *[(n, "names no encoder") for n in ("hf:", "hf:?trainable=2", "hf:a/b/c", "hf:a b", "hf:-a")],
    ],
)
def test_malformed_names_are_refused(name: str, word: str) -> None:
    with pytest.raises(ModelError, match=word):
        models.model_names(f"tiny,{name}")


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for refuse in (lambda: build(f"hf:{tmp_path}"), lambda: Tokens(f"hf:{tmp_path}", L)(["pain"])):
        with pytest.raises(ModelError, match=r"pip install 'protosphere\[text\]'"):
            refuse()


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "GPT2"])
def test_texts_longer_than_the_encoder_or_without_room_are_refused(tmp_path: Path, kind: str) -> None:
    save_encoder(tmp_path, kind, **KINDS[kind])
    save_tokenizer(tmp_path)
    assert build(f"hf:{tmp_path}", 20).eval()(torch.full((1, 20), 5)).isfinite().all()
    with pytest.raises(ModelError, match="max-tokens is 21, but it has 20"):
        build(f"hf:{tmp_path}", 21)
    with pytest.raises(ModelError, match="max-tokens is 2"):
        Tokens(f"hf:{tmp_path}", 2)(TEXTS)


# what spoils the folder of a whole encoder, and a word of the refusal
SPOILT: dict[str, Callable[[Path], object]] = {
    "encoder of .* cannot be loaded": lambda at: (at / "model.safetensors").unlink(),
    r"lack 16 .*layer\.4\.": lambda at: transformers.AutoConfig.from_pretrained(
        at, num_hidden_layers=5
    ).save_pretrained(at),
    "20 tokens, but the encoder embeds 19": lambda at: save_tokenizer(at, [*WORDS, "liver"]),
    "tokenizer of .* save its tokenizer.json": lambda at: (at / "tokenizer.json").unlink(),
}


@pytest.mark.parametrize("word", SPOILT)
def test_a_folder_that_is_not_whole_is_refused(folder: Path, word: str) -> None:
    SPOILT[word](folder)
    with pytest.raises(ModelError, match=word):
        build(f"hf:{folder}")


@pytest.mark.parametrize(("place", "word"), [("./gone", "no folder"), ("no-one/nothing-9", "hf download no-one")])
def test_what_is_neither_on_this_machine_nor_in_the_cache_is_named(place: str, word: str) -> None:
    for refuse in (lambda: build(f"hf:{place}?trainable=2"), lambda: Tokens(f"hf:{place}", L)(["pain"])):
        with pytest.raises(ModelError, match=word):
            refuse()


OF_EACH = {"layers": 1, "ffn_dim": 32, "attention_heads": 2}
SIZES = {"d_model": 32} | {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in OF_EACH.items()}


@pytest.mark.parametrize(
    ("kind", "settings", "query", "shape", "word"),
    [
        ("Bert", {}, "?trainable=5", (L,), "more than its 4 layers"),
        ("Albert", KINDS["Albert"], "?trainable=2", (L,), "share their weights"),
        ("Bert", {}, "", (3, 32, 32), "this data has images"),
        ("Bart", SIZES, "", (L,), "an encoder-decoder model"),
        ("ViT", {"image_size": 16, "patch_size": 8}, "", (L,), "use a text encoder"),
    ],
)
def test_an_encoder_that_cannot_do_what_is_asked_is_refused(
    tmp_path: Path, kind: str, settings: dict[str, object], query: str, shape: tuple[int, ...], word: str
) -> None:
    save_encoder(tmp_path, kind, **settings)
    save_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=word):
        models.build(f"hf:{tmp_path}{query}", shape, D, K, 0)
    if kind == "Albert":
        assert learning(build(f"hf:{tmp_path}?trainable=0")) == OWN
