"""Text encoders, named `hf:<hub id or path>?trainable=<n>`: their tokenizers, and their use as backbones.

transformers, the optional extra `text`, is imported only when a tokenizer or an encoder is loaded.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from protosphere.core import objects
from protosphere.core.errors import ModelError, words_of
from protosphere.core.plugins import placeless

PREFIX = "hf:"
PADDING = -1  # no token's id, so a tokenizer needs no padding token
BATCH = 256  # texts tokenised at a time: a long note is tokenised whole before it is cut
# of an encoder's folder
FILES = {
    "tokenizer": ("its tokenizer.json", "AutoTokenizer"),
    "encoder": ("its config.json and its weights", "AutoModel"),
    "image processor": ("its preprocessor_config.json", "AutoImageProcessor"),
}
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class EncoderName:
    """A parsed model name.

    Args:
        place: a hub id, or a path, which starts with /, ./, ../ or ~.
        trainable: how many of the last layers are trained; None for the whole encoder.
    """

    place: str
    trainable: int | None = None

    @property
    def local(self) -> bool:
        """Whether the place is a path."""
        return self.place.startswith(("/", "./", "../", "~"))

    @property
    def source(self) -> str:
        """The place in the form that transformers takes."""
        return str(Path(self.place).expanduser()) if self.local else self.place


def seed_name(name: str) -> str:
    """The name from which a model's seed is derived. For a local encoder or a file, it excludes the folder, because a
    run must not depend on it; for an object, it is its displayed name."""
    if objects.is_object(name):
        return objects.label_of(name)
    return _rename_folder(name, Path(name.partition("?")[0].removeprefix(PREFIX)).name)


def told_name(name: str) -> str:
    """A model's name without the path of a local encoder, which a site keeps to itself."""
    return _rename_folder(name, "local")


def _rename_folder(name: str, folder: str) -> str:
    """A model's name with another name for the folder of a local encoder, and without the folder of a file."""
    place, query, trainable = name.partition("?")
    is_local = reads_text(name) and EncoderName(place.removeprefix(PREFIX)).local
    return f"{PREFIX}{folder}{query}{trainable}" if is_local else placeless(name)


def reads_text(name: str) -> bool:
    """Whether the model with this name takes token ids, as `Tokens` makes them."""
    return name.startswith(PREFIX)


def same_inputs(one: str, other: str) -> bool:
    """Whether two models take the same inputs: numbers, or token ids of the same tokenizer. A local encoder is
    identified by its name, wherever it lies."""
    names = [Path(encoder_name(name).place).name if reads_text(name) else None for name in (one, other)]
    return names[0] == names[1]


def encoder_name(name: str) -> EncoderName:
    """Parse `hf:<hub id or path>` with or without `?trainable=<n>`; nothing is loaded.

    Raises:
        ModelError: another query, an invalid number of layers, no id, or an invalid id.
    """
    place, separator, query = name.removeprefix(PREFIX).partition("?")
    key, _, value = query.partition("=")
    if separator and key != "trainable":
        raise ModelError(
            f"model {name!r} has the query {query!r}; the only one is ?trainable=<number of layers>.",
        )
    if separator and not (value.isascii() and value.isdigit()):
        raise ModelError(
            f"model {name!r} asks for {value!r} trainable layers; it must be a whole number, 0 for a frozen encoder.",
        )
    encoder = EncoderName(place, int(value) if separator else None)
    if not (encoder.local or HUB_ID.fullmatch(place)):
        raise ModelError(
            f"model {name!r} names no encoder; after {PREFIX} comes a hub id, as in {PREFIX}owner/encoder, or a path "
            "that starts with /, ./, ../ or ~.",
        )
    return encoder


@dataclass(frozen=True)
class Tokens:
    """Texts -> token ids, by an encoder's tokenizer.

    Args:
        encoder: a model name; `?trainable=` does not change the tokens and is ignored.
        max_tokens: L, the number of tokens after which a text is cut, including the tokenizer's own (as [CLS], [SEP]).
    """

    encoder: str
    max_tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder", encoder_name(self.encoder).place)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """n texts -> (n, L) int32 on the CPU; shorter texts are padded with -1.

        Raises:
            ModelError: transformers or the tokenizer is missing, or L leaves no room for text.
        """
        tokenizer = _tokenizer(self.encoder)
        special_tokens = tokenizer.num_special_tokens_to_add()
        if self.max_tokens <= special_tokens:
            raise ModelError(
                f"max-tokens is {self.max_tokens}, but the tokenizer of {self.encoder!r} adds {special_tokens} "
                "tokens of its own to every text; raise max-tokens.",
            )
        rows = torch.full((len(texts), self.max_tokens), PADDING, dtype=torch.int32)
        for start in range(0, len(texts), BATCH):
            ids = tokenizer(list(texts[start : start + BATCH]), truncation=True, max_length=self.max_tokens).input_ids
            lengths = torch.tensor([len(row) for row in ids])
            flat = np.fromiter(chain.from_iterable(ids), dtype=np.int32)
            rows[start : start + BATCH][torch.arange(self.max_tokens) < lengths[:, None]] = torch.from_numpy(flat)
        return rows


class TextEncoder(nn.Module):
    """Token ids -> the mean of an encoder's last hidden states over a text's tokens.

    Args:
        encoder: a transformers model that takes ids and a mask and returns `last_hidden_state`; its pooler, which would
            never be trained, is removed.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        if isinstance(getattr(encoder, "pooler", None), nn.Module):
            encoder.pooler = None
        config = encoder.config
        config.use_cache = False  # decoders would otherwise store keys and values for a next token
        config.return_dict = True
        self.encoder = encoder
        self.train()  # transformers loads models in eval mode

    def forward(self, ids: Tensor) -> Tensor:
        """(n, L) ids of any number type that holds them, -1 after each text's end -> (n, hidden).

        A text without tokens gives zeros. On the CPU, padding beyond the longest text is cut off; on CUDA, the host
        would have to wait for its length.
        """
        ids = ids.long()
        real = ids >= 0
        if ids.device.type == "cpu":
            longest = max(1, int(real.any(dim=0).sum()))
            ids, real = ids[:, :longest], real[:, :longest]
        attended = real.clone()
        attended[:, 0] = True  # a softmax over no token would be NaN
        output = self.encoder(input_ids=ids.clamp(min=0), attention_mask=attended.long())
        hidden: Tensor = output.last_hidden_state
        return hidden.masked_fill(~real[..., None], 0).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


def text_backbone(name: str, input_shape: tuple[int, ...]) -> TextEncoder:
    """An encoder with its pretrained weights, in float32 and training mode: (n, L) ids -> (n, hidden).

    With `?trainable=n`, the last n layers are trained; embeddings, earlier layers and whatever follows the layers are
    frozen. An encoder whose layers share their weights (ALBERT) can only be trained or frozen as a whole. torch's
    random state is unchanged.

    Args:
        name: as `encoder_name` reads it.
        input_shape: (L,), L = max-tokens.

    Raises:
        ModelError: transformers is missing; the encoder or tokenizer is unavailable, incomplete, or they do not belong
            together; more layers or positions than it has; an input that is no row of tokens.
    """
    reference = encoder_name(name)
    if len(input_shape) != 1:
        raise ModelError(
            "it reads text, but this data has images; use an image model, or a data set of texts.",
        )
    # transformers initialises weights before loading, differently in each version
    with torch.random.fork_rng(devices=[]):
        encoder = pretrained(reference)
    _check_positions(encoder, input_shape[0])
    _check_vocabulary(encoder, reference)
    _freeze(encoder, reference.trainable)
    return TextEncoder(encoder)


def _freeze(encoder: nn.Module, trainable: int | None) -> None:
    """Freeze all but the last `trainable` layers, in place; None freezes nothing."""
    if trainable is None:
        return
    encoder.requires_grad_(False)
    if trainable == 0:
        return
    config: Any = encoder.config
    depth = getattr(config, "num_hidden_layers", 0)
    layers = next((m for m in encoder.modules() if isinstance(m, nn.ModuleList) and len(m) == depth), None)
    if layers is None:
        raise ModelError(
            f"trainable={trainable} asks for its last layers, but they share their weights or cannot be distinguished; "
            "use ?trainable=0, or leave it out to train all.",
        )
    if trainable > depth:
        raise ModelError(
            f"trainable={trainable} is more than its {depth} layers; use at most {depth}.",
        )
    for layer in layers[depth - trainable :]:
        layer.requires_grad_(True)


def _check_positions(encoder: nn.Module, max_tokens: int) -> None:
    """Raise ModelError if texts of `max_tokens` are longer than the encoder allows."""
    config: Any = encoder.config
    tables = [m for key, m in encoder.named_modules() if key.split(".")[-1] == "position_embeddings"]
    # RoBERTa counts positions from after its padding id; an encoder without a table has the limit that it was trained
    # with
    limits = [
        m.num_embeddings - (0 if m.padding_idx is None else m.padding_idx + 1)
        for m in tables
        if isinstance(m, nn.Embedding)
    ] or [getattr(config, "max_position_embeddings", None) or 0]
    if 0 < min(limits) < max_tokens:
        raise ModelError(
            f"max-tokens is {max_tokens}, but it has {min(limits)} positions; set max-tokens to {min(limits)} or less.",
        )


def _check_vocabulary(encoder: nn.Module, reference: EncoderName) -> None:
    """Raise ModelError if the tokenizer gives ids without an embedding in the encoder."""
    get_embeddings: Any = encoder.get_input_embeddings
    num_embeddings = getattr(get_embeddings(), "num_embeddings", None)
    needed = max(_tokenizer(reference.place).get_vocab().values()) + 1
    if num_embeddings is not None and needed > num_embeddings:
        raise ModelError(
            f"its tokenizer has {needed} tokens, but the encoder embeds {num_embeddings}; save the two that belong "
            "together, or call resize_token_embeddings on the encoder and train it first.",
        )


def pretrained(reference: EncoderName) -> nn.Module:
    """The encoder in float32, as transformers loads it."""
    with loading("encoder", reference) as transformers:
        encoder, report = nearest(
            reference, partial(transformers.AutoModel.from_pretrained, reference.source, output_loading_info=True)
        )
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise ModelError(
            f"the weights at {reference.place!r} lack {len(missing)} of the encoder's tensors, {missing[0]} among "
            "them; save it whole with its save_pretrained.",
        )
    if getattr(encoder.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{reference.place!r} is an encoder-decoder model; use an encoder such as BERT.",
        )
    network: nn.Module = encoder.float()
    return network


@lru_cache(maxsize=4)
def _tokenizer(place: str) -> Any:
    """The tokenizer of a hub id or path, loaded once per process.

    Raises:
        ModelError: there is none.
    """
    reference = EncoderName(place)
    with loading("tokenizer", reference) as transformers:

        def load(**where: bool) -> Any:
            tokenizer = transformers.AutoTokenizer.from_pretrained(reference.source, **where)
            # without a vocabulary, transformers 5 creates a tokenizer of the special tokens alone
            if not tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens) - set(tokenizer.get_added_vocab()):
                files = dict.fromkeys(["tokenizer.json", *tokenizer.vocab_files_names.values()])
                raise ModelError(f"{' or '.join(files)} is missing")
            return tokenizer

        return nearest(reference, load)


def nearest(reference: EncoderName, load: Callable[..., Any]) -> Any:
    """The result of `load` from this machine, else from the hub.

    A deployment starts a process per message. These must not ask the hub for files that the machine has, each with
    retries if it is unreachable, nor get another revision in the middle of a run.
    """
    try:
        return load(local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        if reference.local:
            raise
        return load(local_files_only=False, trust_remote_code=False)


@contextmanager
def loading(what: str, reference: EncoderName) -> Iterator[Any]:
    """transformers, with its and the hub's messages silenced; its errors become one sentence.

    Raises:
        ModelError: it is not installed, the folder does not exist, or it raised an error.
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ModelError(
            f"hf: names need transformers, which cannot be imported ({words_of(error)}); "
            "pip install 'protosphere[text]'."
        ) from error
    if reference.local and not Path(reference.source).is_dir():
        raise ModelError(f"there is no folder {reference.source!r} on this machine; {_remedy(what, reference)}")
    log, hub_log = transformers.utils.logging, importlib.import_module("huggingface_hub.utils").logging
    verbosity, bars, hub_verbosity = log.get_verbosity(), log.is_progress_bar_enabled(), hub_log.get_verbosity()
    log.set_verbosity_error()
    # messages of failed attempts; the error has the last reason
    hub_log.set_verbosity_error()
    if bars:
        log.disable_progress_bar()
    try:
        yield transformers
    except Exception as error:
        problem = f"the {what} of {reference.place!r} cannot be loaded: {words_of(error)}"
        raise ModelError(f"{problem}; {_remedy(what, reference)}") from error
    finally:
        log.set_verbosity(verbosity)
        hub_log.set_verbosity(hub_verbosity)
        if bars:
            log.enable_progress_bar()


def _remedy(what: str, reference: EncoderName) -> str:
    """How to get a missing tokenizer or encoder."""
    if reference.local:
        files, kind = FILES[what]
        return f"save {files} there by {kind}.from_pretrained(<hub id>).save_pretrained({reference.source!r})."
    return (
        f"bring it into this machine's cache while it can reach the hub (hf download {reference.place}), or name a "
        f"folder that holds encoder and {'tokenizer' if what == 'encoder' else what}, as in {PREFIX}/path/to/encoder."
    )
