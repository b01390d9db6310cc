"""How prototype vectors are written for the wire: class masks and a number format (TinyProto's compression, for every
method). Both ends derive it from their settings alone; each message carries its fingerprint."""

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from federation.settings import SettingError, Settings
from federation.wire.checks import MessageError, plain
from prototypes.masks import class_masks, compress, expand
from prototypes.prototype_set import PrototypeSet
from prototypes.quantisation import QuantisationError, dequantise, quantise

REMEDY = "both ends need the same classes, feature-dim, sparsity-dim, wire-dtype and seed, and the same version"


class CodecError(ValueError):
    """A prototype that the number format cannot hold; one sentence for a person."""


@dataclass(frozen=True)
class Codec:
    """The agreement on prototype vectors.

    Attributes:
        num_classes: K.
        dim: d, the width of features and prototypes.
        ones: s, the values of a prototype that cross the wire; 0 or d: all of them, and there is no mask.
        wire_dtype: their number format, one of `prototypes.quantisation.FORMATS`.
        seed: from which the masks are derived.
    """

    num_classes: int
    dim: int
    ones: int = 0
    wire_dtype: str = "float32"
    seed: int = 0

    @property
    def masked(self) -> bool:
        """Whether there are masks."""
        return 0 < self.ones != self.dim

    @property
    def width(self) -> int:
        """Values of a prototype on the wire: s, or d without masks."""
        return self.ones if self.masked else self.dim

    def of_width(self, width: int) -> "Codec":
        """The codec of vectors of another width than d, such as class-wise outputs: without masks, which are of d."""
        return self if width == self.dim else replace(self, dim=width, ones=0)

    @property
    def masks(self) -> Tensor:
        """(K, d) bool; only where `masked`."""
        return _masks(self.num_classes, self.dim, self.ones, self.seed)

    @property
    def fingerprint(self) -> str:
        """All that both ends must agree on, in a few words: so a mismatch can be refused by name."""
        words = f"K={self.num_classes} d={self.dim} s={self.width} format={self.wire_dtype}"
        if not self.masked:
            return words
        return f"{words} seed={self.seed} masks={_digest(self.num_classes, self.dim, self.ones, self.seed)}"

    def difference(self, fingerprint: str) -> str:
        """What another fingerprint says otherwise, in words; empty when it is the same."""
        if fingerprint == self.fingerprint:
            return ""
        here, there = _parts(self.fingerprint), _parts(plain(fingerprint))
        differing = [name for name in here | there if here.get(name) != there.get(name)]
        words = [f"{name} is {there.get(name, 'none')} there and {here.get(name, 'none')} here" for name in differing]
        return ", ".join(words) or f"its fingerprint is {plain(fingerprint)!r}"

    def refuse_other(self, fingerprint: str) -> None:
        """Refuse a message that was written with another codec.

        Raises:
            MessageError: names every part that differs, and the remedy.
        """
        if difference := self.difference(fingerprint):
            raise MessageError(f"the message was written with another codec ({difference}); {REMEDY}")

    def write(self, prototypes: PrototypeSet) -> tuple[Tensor, Tensor | None]:
        """Values (k, width) in the stored type, and the scales (k,) of int8, else None.

        Raises:
            CodecError: a value that the format cannot hold; names the class.
        """
        vectors = prototypes.vectors
        if self.masked:
            # no rows of masks say no width
            vectors = compress(vectors, self.masks[prototypes.labels]).reshape(len(prototypes), self.width)
        try:
            return quantise(vectors, self.wire_dtype)
        except QuantisationError as error:
            whose = "" if error.row is None else f" (class {int(prototypes.labels[error.row])})"
            raise CodecError(f"a prototype cannot be sent{whose}: {error}") from None

    def read(self, values: Tensor, scales: Tensor | None) -> Tensor:
        """The values as float32 (k, width), not yet expanded.

        Raises:
            MessageError: a type that was not agreed, a value or scale that is not finite, a negative scale.
        """
        try:
            return dequantise(values, scales, self.wire_dtype)
        except QuantisationError as error:
            raise MessageError(str(error)) from None

    def expand(self, values: Tensor, labels: Tensor) -> Tensor:
        """(k, width) -> (k, d): what no mask lets through is zero (Definition 1 of TinyProto)."""
        return expand(values, self.masks[labels]) if self.masked else values


def codec_of(settings: Settings, num_classes: int, dim: int) -> Codec:
    """The codec of a run.

    Raises:
        SettingError: the clients' prototypes have fewer values than `sparsity-dim` asks for, or no class.
    """
    if settings.sparsity_dim > dim or num_classes < 1:
        raise SettingError(
            f"`sparsity-dim` is {settings.sparsity_dim}, but the clients have {num_classes} classes and features of "
            f"width {dim}; give every client `feature-dim` {settings.feature_dim} and the class list."
        )
    return Codec(num_classes, dim, settings.sparsity_dim, settings.wire_dtype, settings.seed)


# a process meets one codec, or the few of a test
@lru_cache(maxsize=8)
def _masks(num_classes: int, dim: int, ones: int, seed: int) -> Tensor:
    return class_masks(num_classes, dim, ones, seed)


@lru_cache(maxsize=8)
def _digest(num_classes: int, dim: int, ones: int, seed: int) -> str:
    bits = _masks(num_classes, dim, ones, seed).to(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(bits, digest_size=4).hexdigest()


def _parts(fingerprint: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in fingerprint.split() if "=" in word)
