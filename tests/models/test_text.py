"""Text encoders on small random networks: names, tokens, what learns, and the pooling written out."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub.utils import logging as hub_log
from torch import Tensor, nn

from protosphere import models
from protosphere.core.errors import ModelError
from protosphere.models.text import EncoderName, TextEncoder, Tokens, encoder_name, text_backbone
from tests.models.encoders import (
    KINDS,
    OWN,
    SPECIAL,
    TEXTS,
    WORDS,
    K,
    L,
    build,
    learning,
    save_encoder,
    save_tokenizer,
    tokenizers,
    transformers,
)

# --- names --------------------------------------------------------------------------------------------------


def test_a_name_says_place_and_layers() -> None:
    assert encoder_name("hf:owner/encoder") == EncoderName("owner/encoder", None)
    assert encoder_name("hf:encoder?trainable=0") == EncoderName("encoder", 0)
    assert encoder_name("hf:/a b/c.d?trainable=12") == EncoderName("/a b/c.d", 12)
    places = ["/a", "./a", "../a", "~/a", "a/b", "a"]
    assert [encoder_name(f"hf:{place}").local for place in places] == [True] * 4 + [False] * 2


def test_the_clinical_family_is_one_encoder_at_three_depths_and_no_other_model_reads_text() -> None:
    names = models.model_names("papers-clinical")
    assert [encoder_name(name).trainable for name in names] == [0, 2, 4]
    assert {encoder_name(name).place for name in names} == {"emilyalsentzer/Bio_ClinicalBERT"}
    others = [name for family in models.FAMILIES for name in models.model_names(family) if family != "papers-clinical"]
    assert all(models.reads_text(name) for name in names)
    assert not any(models.reads_text(name) for name in [*others, "spiral_mlp", "vit_b_16", "my.networks:make", "hf"])


# --- tokens -------------------------------------------------------------------------------------------------


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
    assert rows[3].tolist() == [2, 3] + [-1] * (L - 2)
    assert rows[1, :4].tolist() == [2, 13, 14, 3]  # knee ##s
    assert torch.equal(tokens(TEXTS[1:3]), rows[1:3])
    assert tokens([]).shape == (0, L)


def test_a_tokenizer_without_padding_and_special_tokens_will_do(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "pain": 1, "fever": 2}, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(tmp_path)
    rows = Tokens(f"hf:{tmp_path}", 3)(["fever pain", "", "pain pain pain pain"])
    assert rows.tolist() == [[2, 1, -1], [-1, -1, -1], [1, 1, 1]]


def test_tokens_are_equal_by_encoder_and_length_alone() -> None:
    tokens = Tokens("hf:a/b?trainable=2", 8)
    same = [Tokens("hf:a/b", 8), Tokens("hf:a/b?trainable=0", 8), Tokens("a/b", 8)]
    assert all(other == tokens and hash(other) == hash(tokens) for other in same)
    assert tokens.encoder == "a/b"
    assert len({tokens, *same, Tokens("hf:a/b", 9), Tokens("hf:a/c", 8)}) == 3


# --- what learns --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [None, 0, 1, 4])
def test_exactly_the_layers_asked_for_learn_and_move(folder: Path, asked: int | None) -> None:
    model = build(f"hf:{folder}" if asked is None else f"hf:{folder}?trainable={asked}")
    prefix = "extractor.backbone.encoder."
    inner = {key.removeprefix(prefix) for key in learning(model) - OWN}
    everything = {key.removeprefix(prefix) for key, _ in model.named_parameters()} - OWN
    assert not [key for key in everything if "pooler" in key]
    layers = tuple(f"encoder.layer.{layer}." for layer in range(4 - (asked or 0), 4))
    assert inner == (everything if asked is None else {key for key in everything if key.startswith(layers)})
    assert len(inner) == (5 + 4 * 16 if asked is None else 16 * asked)
    assert learning(model) >= OWN

    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    nn.functional.cross_entropy(model(Tokens(f"hf:{folder}", L)(TEXTS)), torch.arange(len(TEXTS)) % K).backward()
    assert {key for key, parameter in model.named_parameters() if parameter.grad is not None} == learning(model)
    optimiser.step()
    moved = {key for key, parameter in model.named_parameters() if not torch.equal(parameter, before[key])}
    assert moved == learning(model)
    assert models.num_parameters(model) == sum(before[key].numel() for key in moved)


# --- features -----------------------------------------------------------------------------------------------


def pooled_by_hand(encoder: nn.Module, rows: Tensor) -> Tensor:
    """One text at a time, without padding or mask."""
    return torch.stack([encoder(row[row >= 0].long()[None]).last_hidden_state[0].mean(dim=0) for row in rows])


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_the_mean_over_a_text_s_own_tokens(tmp_path: Path, kind: str) -> None:
    saved = save_encoder(tmp_path, kind, **KINDS[kind])
    save_tokenizer(tmp_path)
    rows = Tokens(f"hf:{tmp_path}", L)(TEXTS)
    network = text_backbone(f"hf:{tmp_path}", (L,))
    assert all(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())
    with torch.no_grad():
        expected = pooled_by_hand(saved, rows)
        assert (expected[0] - expected[1]).abs().max() > 0.01
        network.eval()
        alone = torch.cat([network(row[None]) for row in rows])
        longer = network(nn.functional.pad(rows, (0, 8), value=-1))
        for features in (network(rows), alone, longer, network(rows.float())):
            torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    network.train()(rows).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    # the last layers are found in every kind that has them
    if kind != "Albert":
        inner = learning(text_backbone(f"hf:{tmp_path}?trainable=2", (L,)))
        assert len(inner) >= 2 * 12
        assert {part for key in inner for part in key.split(".") if part.isdigit()} == {"2", "3"}


def test_a_row_without_a_token_gives_zeros_and_no_nan(folder: Path) -> None:
    network = text_backbone(f"hf:{folder}", (L,)).eval()
    rows = Tokens(f"hf:{folder}", L)(TEXTS)
    masks: list[Tensor] = []
    network.encoder.register_forward_pre_hook(lambda _, __, kw: masks.append(kw["attention_mask"]), with_kwargs=True)
    with_empty = torch.cat([rows, torch.full((1, L), -1, dtype=torch.int32)])
    features = network(with_empty)
    assert not features[-1].any()
    torch.testing.assert_close(features[:-1], network(rows), rtol=1e-4, atol=1e-5)
    nothing = network(torch.full((2, L), -1))
    assert all(mask.any(dim=1).all() for mask in masks)  # no attention to nothing, NaN in some implementations
    assert torch.equal(nothing, torch.zeros(2, 32))
    nothing.sum().backward()
    features.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


# --- building -----------------------------------------------------------------------------------------------


def test_building_is_deterministic_silent_and_leaves_no_trace(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = transformers.utils.logging
    before, verbosity, bars = torch.get_rng_state(), log.get_verbosity(), log.is_progress_bar_enabled()
    of_the_hub = hub_log.get_verbosity()
    first = build(f"hf:{folder}?trainable=2")
    torch.rand(3)
    second, other = build(f"hf:{folder}?trainable=2"), build(f"hf:{folder}?trainable=2", seed=1)
    assert capfd.readouterr() == ("", "")
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == (verbosity, bars)
    assert hub_log.get_verbosity() == of_the_hub
    torch.set_rng_state(before)
    state = second.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in first.state_dict().items())
    pairs = other.state_dict().items()
    assert {key for key, value in pairs if not torch.equal(value, state[key])} == OWN
    assert all(module.training for module in first.modules())


def test_the_weights_are_the_saved_ones_in_float32(folder: Path) -> None:
    half = transformers.BertModel.from_pretrained(folder).to(torch.float16)
    half.save_pretrained(folder)
    ours = dict(text_backbone(f"hf:{folder}", (L,)).encoder.named_parameters())
    saved = {key: value.float() for key, value in half.named_parameters() if "pooler" not in key}
    assert ours.keys() == saved.keys()
    assert all(ours[key].dtype == torch.float32 and torch.equal(ours[key], value) for key, value in saved.items())


def test_a_checkpoint_as_the_hub_s_old_ones_are(folder: Path) -> None:
    """vocab.txt alone, weights in pytorch_model.bin under `bert.`, a head beside them and no pooler."""
    expected = text_backbone(f"hf:{folder}", (L,)).state_dict()
    raw = transformers.BertModel.from_pretrained(folder).state_dict()
    weights = {f"bert.{key}": value for key, value in raw.items() if "pooler" not in key}
    torch.save(weights | {"cls.predictions.bias": torch.zeros(19)}, folder / "pytorch_model.bin")
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]))
    old = folder.rename(folder.parent / "old")
    ours = text_backbone(f"hf:{old}", (L,)).state_dict()
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[key], value) for key, value in expected.items())
    assert Tokens(f"hf:{old}", L)(["knees"])[0, :4].tolist() == [2, 13, 14, 3]


def test_a_home_folder_and_a_relative_one_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder)
    for place in ("~/bert", "../bert"):
        assert isinstance(build(f"hf:{place}").extractor.backbone, TextEncoder)
        assert Tokens(f"hf:{place}", L)(["pain"]).shape == (1, L)


def test_what_the_cache_holds_is_had_without_a_word_to_the_hub(
    folder: Path, cached: Callable[[str, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached("owner/kept", folder)
    # online; and without the library's own count of its users
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    model = models.build("hf:owner/kept?trainable=2", (8,), 4, 3, 0)
    ids = Tokens("hf:owner/kept", 8)(["knees"])
    assert ids.tolist() == [[2, 13, 14, 3, -1, -1, -1, -1]]
    assert model.eval()(ids).shape == (1, 3)


@pytest.mark.parametrize("kind", ["AutoModel", "AutoTokenizer"])
def test_the_hub_is_asked_for_what_the_cache_lacks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    save_encoder(tmp_path / "cached")  # without its tokenizer, as a download that was cut leaves it
    real = getattr(transformers, kind).from_pretrained
    asked = []

    def from_pretrained(place: str, local_files_only: bool, **options: object) -> object:
        asked.append((place, local_files_only))
        if local_files_only and kind == "AutoModel":
            raise OSError("not in the cache")
        return real(tmp_path / "cached" if local_files_only else folder, **options)

    monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", from_pretrained)
    name = f"hf:owner/{kind.lower()}"
    if kind == "AutoTokenizer":
        assert Tokens(name, L)(["knees"])[0, :4].tolist() == [2, 13, 14, 3]
    else:
        with pytest.raises(ModelError, match="the tokenizer of 'owner/automodel' cannot be loaded"):
            text_backbone(name, (L,))  # the encoder came, its tokenizer is nowhere
    assert asked == [(name.removeprefix("hf:"), True), (name.removeprefix("hf:"), False)]
