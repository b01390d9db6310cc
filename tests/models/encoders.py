"""Small random text encoders on disk, with their tokenizer."""

from pathlib import Path

import pytest
import torch
from torch import nn

from protosphere import models
from protosphere.models.split import SplitModel

transformers = pytest.importorskip("transformers", reason="text needs the extra `text`")
tokenizers = pytest.importorskip("tokenizers", reason="text needs the extra `text`")

D = 6
K = 3
L = 12  # max-tokens
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["patient", "was", "seen", "for", "pain", "fever", "and", "the", "knee", "##s", "##ed", "heart", ".", ","]
TEXTS = ["the patient was seen .", "knees", "fever and pain , fever and pain , fever and pain", "", "unheard of pain"]

KINDS: dict[str, dict[str, object]] = {
    "Bert": {},
    "Roberta": {"pad_token_id": 1, "max_position_embeddings": 22},
    "Electra": {"embedding_size": 16},
    "Albert": {"embedding_size": 16},
    "DistilBert": {"dim": 32, "n_layers": 4, "n_heads": 2, "hidden_dim": 64},
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
    "GPT2": {"pad_token_id": None, "bos_token_id": 2, "eos_token_id": 3},
}
OWN = {"extractor.projection.weight", "extractor.projection.bias", "classifier.weight", "classifier.bias"}


def save_tokenizer(folder: Path, words: list[str] = WORDS) -> None:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def save_encoder(folder: Path, kind: str = "Bert", seed: int = 0, **changes: object) -> nn.Module:
    """Save a small random encoder; weights far enough from 0 that layers matter."""
    widths = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}
    settings = widths | {"vocab_size": len(SPECIAL) + len(WORDS), "max_position_embeddings": 20, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**settings | changes)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        encoder = getattr(transformers, f"{kind}Model")(config)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    encoder.save_pretrained(folder)
    return encoder.eval()


def build(name: str, max_tokens: int = L, seed: int = 0) -> SplitModel:
    return models.build(name, (max_tokens,), D, K, seed)


def learning(model: nn.Module) -> set[str]:
    return {key for key, parameter in model.named_parameters() if parameter.requires_grad}
