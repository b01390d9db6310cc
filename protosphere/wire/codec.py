"""What both ends derive from their settings alone: how values are written for the wire, which each message's
fingerprint names."""

import re
from dataclasses import dataclass, replace

from torch import Tensor

from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings
from protosphere.core.text import one_line, quoted
from protosphere.prototypes.weights import Layout
from protosphere.wire.checks import MessageError, plain
from protosphere.wire.specs import Exchange, Spec
from protosphere.wire.transforms import Masks, MixtureFormat, NumberFormat, Transform
from protosphere.wire.weights import WeightFormat

REMEDY = (
    "both ends need the same method and settings of it, classes, feature-dim, sparsity-dim, wire-dtype and seed, and "
    "the same version"
)
ENCODER = "encoder"
LONGEST_DIFFERENCE = 300  # characters


@dataclass(frozen=True)
class Codec:
    """The agreement on prototype vectors.

    Attributes:
        num_classes: K.
        dim: d, the width of features and prototypes.
        ones: s, the values of a prototype that cross the wire; 0 or d: all of them, and there is no mask.
        wire_dtype: their number format, one of `protosphere.prototypes.quantisation.FORMATS`.
        seed: from which the masks are derived.
        added: the method's own transforms, in words; its specs have them.
        encoder: fingerprint of the public encoder that releases are made with; "" without one.
    """

    num_classes: int
    dim: int
    ones: int = 0
    wire_dtype: str = "float32"
    seed: int = 0
    added: str = ""
    encoder: str = ""

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
        return self._masks.rows

    @property
    def _masks(self) -> Masks:
        return Masks(self.num_classes, self.dim, self.ones, self.seed)

    def transforms(self, spec: Spec, layout: Layout = ()) -> tuple[Transform, ...]:
        """All that is done to a part's values, in the sender's order: the method's own, masks, the number format.

        Args:
            layout: of weights that were received.
        """
        if spec.kind == "weights":
            return (*spec.transforms, self.weight_format(spec, layout))
        if spec.kind == "mixtures":
            return (*spec.transforms, MixtureFormat())
        masks = (self._masks,) if self.masked and not spec.classwise else ()
        return (*spec.transforms, *masks, NumberFormat(self.wire_dtype))

    def weight_format(self, spec: Spec, layout: Layout = ()) -> WeightFormat:
        """How a part of weights is written: in the run's number format, unless it has its own."""
        return WeightFormat(spec.dtype or self.wire_dtype, layout)

    @property
    def fingerprint(self) -> str:
        """All that both ends must agree on, in a few words: so a mismatch can be refused by name."""
        entries = [f"K={self.num_classes} d={self.dim} s={self.width}", NumberFormat(self.wire_dtype).words]
        encoder = f"{ENCODER}={self.encoder}" if self.encoder else ""
        return " ".join([*entries, *([self._masks.words] if self.masked else []), *filter(None, [self.added, encoder])])

    def difference(self, fingerprint: str) -> str:
        """What another fingerprint says otherwise, in words; empty when it is the same."""
        if fingerprint == self.fingerprint:
            return ""
        our_entries, their_entries = _parse_entries(self.fingerprint), _parse_entries(plain(fingerprint))
        names = [name for name in our_entries | their_entries if our_entries.get(name) != their_entries.get(name)]
        clauses = [
            f"{_quote_word(name)} is {_quote_word(their_entries.get(name, 'none'))} there "
            f"and {our_entries.get(name, 'none')} here"
            for name in names
        ]
        return one_line(", ".join(clauses), LONGEST_DIFFERENCE) or f"its fingerprint is {quoted(fingerprint, 100)}"

    def refuse_other(self, fingerprint: str) -> None:
        """Refuse a message that was written with another codec.

        Raises:
            MessageError: names every part that differs, and the remedy.
        """
        if difference := self.difference(fingerprint):
            raise MessageError(f"the message was written with another codec ({difference}); {REMEDY}")


def codec_of(settings: Settings, num_classes: int, dim: int, exchange: Exchange) -> Codec:
    """The codec of a run, whose method's messages are `exchange`.

    Raises:
        SettingError: the clients' prototypes have fewer values than `sparsity-dim` asks for, or no class.
    """
    if settings.sparsity_dim > dim or num_classes < 1:
        raise SettingError(
            f"`sparsity-dim` is {settings.sparsity_dim}, but the clients have {num_classes} classes and features of "
            f"width {dim}; give every client `feature-dim` {settings.feature_dim} and the class list."
        )
    return Codec(num_classes, dim, settings.sparsity_dim, settings.wire_dtype, settings.seed, exchange.added)


def encoder_in(fingerprint: str) -> str:
    """The encoder of which a codec's fingerprint tells, "" where it tells of none."""
    return _parse_entries(plain(fingerprint)).get(ENCODER, "")


def _quote_word(word: str) -> str:
    """Somebody else's word: a name or a number as it is, anything else as a quotation."""
    return word if re.fullmatch(r"[\w.+-]{1,40}", word) else quoted(word, 40)


def _parse_entries(fingerprint: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in fingerprint.split() if "=" in word)
