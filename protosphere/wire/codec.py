"""A payload <-> one ArrayRecord by the run's codec: how values are written, what a received payload must keep to, its
bytes.

Both ends derive the codec from their settings alone; each message's fingerprint says by which it was written."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from io import BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings
from protosphere.core.text import one_line, quoted
from protosphere.prototypes.prototype_set import Part, PrototypeSet
from protosphere.prototypes.weights import Layout, Weights
from protosphere.wire.checks import MessageError, check_norms, plain
from protosphere.wire.low_rank import RANKS, LowRank, factors_of
from protosphere.wire.mixtures import MIXTURE_VALUES, check_mixture_arrays, checked_mixtures
from protosphere.wire.payloads import Payload, is_flat, weights_of
from protosphere.wire.specs import (
    PROTOTYPES,
    STORED,
    Exchange,
    Fields,
    MixtureFormat,
    NumberFormat,
    Spec,
    Spherical,
    Transform,
    received,
    sent,
)
from protosphere.wire.weights import WeightFormat, check_tensors

REMEDY = (
    "both ends need the same method and settings of it, classes, feature-dim, wire-dtype and seed, and the same version"
)
ENCODER = "encoder"
LONGEST_DIFFERENCE = 300  # characters


@dataclass(frozen=True)
class Codec:
    """The agreement on prototype vectors.

    Attributes:
        num_classes: K.
        dim: d, the width of features and prototypes.
        wire_dtype: their number format, one of `protosphere.prototypes.quantisation.FORMATS`.
        seed: from which both ends derive what does not cross.
        added: the method's own transforms, in words; its specs have them.
        encoder: fingerprint of the public encoder that releases are made with; "" without one.
    """

    num_classes: int
    dim: int
    wire_dtype: str = "float32"
    seed: int = 0
    added: str = ""
    encoder: str = ""

    def of_width(self, width: int) -> "Codec":
        """The codec of vectors of another width than d, such as class-wise outputs."""
        return self if width == self.dim else replace(self, dim=width)

    def transforms(self, spec: Spec, layout: Layout = ()) -> tuple[Transform, ...]:
        """All that is done to a part's values, in the sender's order: the method's own, the number format.

        Args:
            layout: of weights that were received.
        """
        if spec.kind == "weights":
            return (*spec.transforms, self.weight_format(spec, layout))
        if spec.kind == "mixtures":
            return (*spec.transforms, MixtureFormat())
        return (*spec.transforms, NumberFormat(self.wire_dtype))

    def weight_format(self, spec: Spec, layout: Layout = ()) -> WeightFormat:
        """How a part of weights is written: in the run's number format, unless it has its own."""
        return WeightFormat(spec.dtype or self.wire_dtype, layout)

    @cached_property
    def fingerprint(self) -> str:
        """All that both ends must agree on, in a few words: so a mismatch can be refused by name."""
        entries = [f"K={self.num_classes} d={self.dim} seed={self.seed}", NumberFormat(self.wire_dtype).words]
        encoder = f"{ENCODER}={self.encoder}" if self.encoder else ""
        return " ".join([*entries, *filter(None, [self.added, encoder])])

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
        if fingerprint != self.fingerprint:
            difference = self.difference(fingerprint)
            raise MessageError(f"the message was written with another codec ({difference}); {REMEDY}")


def codec_of(settings: Settings, num_classes: int, dim: int, exchange: Exchange) -> Codec:
    """The codec of a run, whose method's messages are `exchange`.

    Raises:
        SettingError: the clients have no class.
    """
    if num_classes < 1:
        raise SettingError("the clients have no class; give every client the class list.")
    return Codec(num_classes, dim, settings.wire_dtype, settings.seed, exchange.added)


def encoder_in(fingerprint: str) -> str:
    """The encoder of which a codec's fingerprint tells, "" where it tells of none."""
    return _parse_entries(plain(fingerprint)).get(ENCODER, "")


def _quote_word(word: str) -> str:
    """Somebody else's word: a name or a number as it is, anything else as a quotation."""
    return word if re.fullmatch(r"[\w.+-]{1,40}", word) else quoted(word, 40)


def _parse_entries(fingerprint: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in fingerprint.split() if "=" in word)


BESIDE = (
    "labels",
    "counts",
    RANKS,
)  # no prototype values: they count as wire, not as payload
FLOAT32_ROUNDING = 1e-5
NUMPY = "numpy.ndarray"  # Flower's word for it
NPY = 10  # bytes of an .npy file before its header: magic, version, the header's length


@dataclass(frozen=True)
class Limits:
    """What a payload from the other side must keep to.

    Attributes:
        codec: K, d and how vectors are written.
        max_norm: largest Euclidean norm of a vector as it comes. Absolute, so that a hostile majority cannot move it.
        specs: the parts that must come; none: nothing may.
        either: whether one of them must come instead of all.
        layouts: asked when weights come, part -> layout.
    """

    codec: Codec
    max_norm: float
    specs: tuple[Spec, ...] = (PROTOTYPES,)
    layouts: Callable[[], Mapping[str, Layout]] = dict
    either: bool = False

    def of_message(self, names: str) -> "Limits":
        """Of the message that says that it holds these parts.

        Raises:
            MessageError: nobody agreed on such a message.
        """
        for specs in [(spec,) for spec in self.specs] if self.either else [self.specs]:
            if names in ("", ",".join(sorted(spec.name for spec in specs))):
                return replace(self, specs=specs, either=False)
        raise MessageError(f"the payload kind {names!r} was not agreed on")


def encode_payload(payload: Payload, codec: Codec, specs: Sequence[Spec] = ()) -> ArrayRecord:
    """A payload as one ArrayRecord: an array `<part>.<field>`, or `<field>` of prototypes or mixtures
    that are all of it, under the name of their kind; never an array a class or a tensor (440 bytes each).

    Args:
        specs: of its parts; one without goes as its kind goes in every method.

    Raises:
        CodecError: a value that the number format cannot hold.
    """
    flat = is_flat([(name, part.kind) for name, part in payload.items()])
    arrays = {
        (field if flat else f"{name}.{field}"): array
        for name, part in payload.items()
        for field, array in _encode_part(part, codec, _find_spec(name, part, specs)).items()
    }
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})


def _find_spec(name: str, part: Part, specs: Sequence[Spec]) -> Spec:
    return next((spec for spec in specs if spec.name == name), Spec(part.kind, name))


def _encode_part(part: Part, codec: Codec, spec: Spec) -> dict[str, np.ndarray]:
    part_codec = codec.of_width(part.vectors.shape[1]) if isinstance(part, PrototypeSet) else codec
    fields = {name: tensor.detach().cpu() for name, tensor in part.fields().items()}
    arrays = {name: tensor.numpy() for name, tensor in sent(fields, part_codec.transforms(spec)).items()}
    if spec.kind != "weights":
        arrays["labels"] = arrays["labels"].astype(_choose_label_dtype(arrays["labels"]))
    return arrays


def as_sent(payload: Payload, specs: Sequence[Spec]) -> Payload:
    """As the other side has it but for the number format: what a figure of an upload may be made of."""
    if not any(spec.transforms for spec in specs):
        return payload
    parts = {}
    for name, part in payload.items():
        transforms = _find_spec(name, part, specs).transforms
        parts[name] = part.from_fields(received(sent(part.fields(), transforms), transforms))
    return parts


def _choose_label_dtype(labels: np.ndarray) -> type[np.signedinteger]:
    return np.int32 if labels.size and labels.max() > np.iinfo(np.int16).max else np.int16


def decode_payload(record: ArrayRecord, limits: Limits) -> Payload:
    """Check a received payload and give it as tensors on the CPU, in R^d.

    Raises:
        MessageError: names what is wrong: fields, dtype, rank, size, label, a value that is not finite, a
            norm; of mixtures also a variance, a weight, too many components.
    """
    flat = is_flat([(spec.name, spec.kind) for spec in limits.specs])
    name_by_field = {
        (spec.name, field): field if flat else f"{spec.name}.{field}"
        for spec in limits.specs
        for field in _list_fields(spec, limits.codec)
    }
    expected = set(name_by_field.values())
    if set(record) != expected:
        raise MessageError(f"the payload holds the arrays {sorted(record)} where {sorted(expected)} belong")
    parts: dict[str, Part] = {}
    for spec in limits.specs:
        names = {field: name_by_field[spec.name, field] for field in _list_fields(spec, limits.codec)}
        arrays = {field: read_array(name, record[name]) for field, name in names.items()}
        parts[spec.name] = _decode_part(arrays, spec, limits)
    return parts


def _list_fields(spec: Spec, codec: Codec) -> list[str]:
    """The arrays of a part, in the order of their names."""
    if spec.kind == "weights":
        ranks = {RANKS} if _is_ranked(spec) else set()
        return sorted(codec.weight_format(spec).fields | ranks)
    mixtures = spec.kind == "mixtures"
    fields = {"labels", *(["counts"] if spec.counts else [])}
    return sorted(fields | (set(MIXTURE_VALUES) if mixtures else {"vectors"}))


def _decode_part(arrays: dict[str, np.ndarray], spec: Spec, limits: Limits) -> Part:
    """Types and shapes are checked as they came; norms when all is undone."""
    width = limits.codec.num_classes if spec.classwise else spec.width or limits.codec.dim
    codec = limits.codec.of_width(width)
    if spec.kind == "weights":
        return Weights(_decode_weights(arrays, spec, limits))
    mixtures = spec.kind == "mixtures"
    most = spec.components if mixtures else 1
    rows = arrays["labels"].size if mixtures else _check_vectors(arrays, codec)
    _check_labels(arrays["labels"], rows, codec.num_classes, most)
    if spec.counts:
        _check_counts(arrays["counts"], rows)
    if mixtures:
        is_spherical = any(isinstance(transform, Spherical) for transform in spec.transforms)
        check_mixture_arrays(arrays, rows, codec.dim, 1 if is_spherical else codec.dim)
    arrays["labels"] = arrays["labels"].astype(np.int64)
    fields = received(_to_tensors(arrays), codec.transforms(spec))
    if mixtures:
        # of a download, whose components have no agreed number: the server has rounded it to float32
        return checked_mixtures(fields, limits.max_norm * (1 + FLOAT32_ROUNDING if most is None else 1))
    check_norms(fields["vectors"], limits.max_norm)
    return PrototypeSet(**fields)


def _decode_weights(arrays: dict[str, np.ndarray], spec: Spec, limits: Limits) -> Fields:
    layout = limits.layouts().get(spec.name)
    if layout is None:
        raise MessageError(f"weights of `{spec.name}` came without an agreed layout")
    written = factors_of(layout, arrays[RANKS]) if _is_ranked(spec) else layout
    limits.codec.weight_format(spec, written).check_lengths(arrays)
    tensors = received(_to_tensors(arrays), limits.codec.transforms(spec, written))
    tensors = {name: tensors[name].reshape(shape) for name, shape in layout}
    check_tensors(tensors, limits.max_norm, spec.change)
    return tensors


def _is_ranked(spec: Spec) -> bool:
    return any(isinstance(transform, LowRank) for transform in spec.transforms)


def as_arrived(part: Weights, spec: Spec, codec: Codec, layout: Layout) -> Weights:
    """Weights of this layout as the other side has them.

    Raises:
        CodecError: a value that the number format cannot hold.
    """
    record = encode_payload({spec.name: part}, codec, (spec,))
    arrived = decode_payload(record, Limits(codec, math.inf, (spec,), lambda: {spec.name: layout}))
    return weights_of(arrived, spec.name)


def _to_tensors(arrays: Mapping[str, np.ndarray]) -> Fields:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def read_array(name: str, array: Array) -> np.ndarray:
    """NumPy allocates whatever a header declares: so hold it against the bytes that came first."""
    try:
        if array.stype != NUMPY:
            raise ValueError(f"it is serialised as {array.stype!r}, {NUMPY!r} was agreed")
        start = NPY + int.from_bytes(array.data[NPY - 2 : NPY], "little")
        shape, by_columns, dtype = _parse_header(array.data[:start])
        declared_bytes, actual_bytes = math.prod(shape) * dtype.itemsize, len(array.data) - start
        if declared_bytes != actual_bytes:
            raise ValueError(f"it declares {declared_bytes} bytes where {actual_bytes} came")
        values = np.frombuffer(array.data, dtype, offset=start)
        return values.reshape(shape, order="F" if by_columns else "C").copy(order="K")
    except Exception as error:
        # NumPy raises a dozen kinds for bytes made to harm, syntax and recursion errors among them
        raise MessageError(f"array `{name}` cannot be read ({error})") from None


# NumPy compiles a header as Python, which takes longer than to read all values of a small array; most are alike.
@lru_cache(maxsize=256)
def _parse_header(start: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, whether it lies by columns, dtype) of what an .npy file begins with."""
    buffer = BytesIO(start)
    version = np.lib.format.read_magic(buffer)
    if version != (1, 0):
        raise ValueError(f"it is of .npy version {version}, (1, 0) was agreed")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(buffer)
    return shape, by_columns, dtype


def _check_vectors(arrays: Mapping[str, np.ndarray], codec: Codec) -> int:
    vectors = arrays["vectors"]
    stored = np.dtype(STORED[codec.wire_dtype])
    if vectors.dtype != stored:
        raise MessageError(f"the vectors are {vectors.dtype}, {stored} was agreed")
    if vectors.ndim != 2 or vectors.shape[1] != codec.dim or len(vectors) > codec.num_classes:
        raise MessageError(
            f"the vectors have shape {vectors.shape}, at most {codec.num_classes} rows of "
            f"{codec.dim} values were agreed"
        )
    return len(vectors)


def _check_labels(labels: np.ndarray, rows: int, num_classes: int, most: int | None) -> None:
    """`most` rows of one class at most; None: any number."""
    if labels.dtype not in (np.int16, np.int32) or labels.shape != (rows,):
        raise MessageError(f"the labels are {labels.dtype} of shape {labels.shape}, {rows} integers were due")
    if rows and (labels.min() < 0 or labels.max() >= num_classes):
        raise MessageError(f"a label lies outside 0 to {num_classes - 1}")
    steps = np.diff(labels)
    if (steps < 0).any() or (most == 1 and (steps == 0).any()):
        raise MessageError("the labels are not unique and ascending" if most == 1 else "the labels do not ascend")
    rows_by_class = np.bincount(labels)
    if rows and most is not None and rows_by_class.max() > most:
        raise MessageError(
            f"class {rows_by_class.argmax()} has {rows_by_class.max()} components, at most {most} were agreed"
        )


def _check_counts(counts: np.ndarray, rows: int) -> None:
    if counts.dtype != np.int64 or counts.shape != (rows,):
        raise MessageError(f"the class counts are not {rows} int64 numbers")
    # so that no sum of counts can overflow and come out as another number
    if rows and (counts.min() < 1 or counts.max() > np.iinfo(np.int32).max):
        raise MessageError(f"a class count lies outside 1 to {np.iinfo(np.int32).max}")


def payload_bytes(records: RecordDict) -> int:
    """Bytes of prototype values alone, as they came: whatever the arrays declare, and whether or not they decode."""
    arrays = records.get("payload")
    if not isinstance(arrays, ArrayRecord):
        return 0
    return sum(
        _count_value_bytes(array.data) for name, array in arrays.items() if name.rpartition(".")[2] not in BESIDE
    )


def _count_value_bytes(data: bytes) -> int:
    """What follows the header of an .npy file."""
    return max(0, len(data) - NPY - int.from_bytes(data[NPY - 2 : NPY], "little"))
