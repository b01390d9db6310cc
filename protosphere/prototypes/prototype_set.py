"""The parts of a message, each a group of tensors of one kind; and PrototypeSet, the kind that most methods send: one
vector per class for some classes, possibly with counts.

A class without a prototype has no row; zeros, NaN or negative labels never mean "absent".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

Kind = Literal["prototypes", "mixtures", "weights"]  # kinds of a part, on the wire and in files


class PartValue:
    """Tensors that are sent together. The kinds are PrototypeSet, MixtureSet and Weights.

    Attributes:
        kind: the name of its type on the wire and in files.
    """

    kind: ClassVar[Kind]

    def fields(self) -> dict[str, Tensor]:
        """The tensors by name, except those that are None."""
        raise NotImplementedError

    @classmethod
    def from_fields(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Inverse of `fields`.

        Raises:
            TypeError, ValueError: the tensors do not form a part of this kind.
        """
        raise NotImplementedError

    def with_scaled_counts(self, share: float) -> Self:
        """The same part with class counts multiplied by `share`, as real numbers; unchanged without counts."""
        return self


class ClassVectors(PartValue):
    """A part with one row per vector of a class: prototypes or mixtures.

    Attributes:
        labels: the class of each row, (r,) int64, ascending.
        counts: the number of samples of each row's class, (r,) int64, or float64 after scaling; None if not disclosed.
    """

    labels: Tensor
    counts: Tensor | None

    @property
    def points(self) -> Tensor:
        """The vector of each row, (r, d)."""
        raise NotImplementedError

    def lengths(self) -> Tensor:
        """The Euclidean norm of each row's vector, (r,) float64; for a Gaussian, the root mean square norm of its
        draws."""
        raise NotImplementedError

    def class_means(self) -> PrototypeSet:
        """The mean of each class."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.labels)

    def count_samples(self) -> int:
        """The number of samples according to the counts; 0 without counts."""
        if self.counts is None:
            return 0
        is_first = torch.ones_like(self.labels, dtype=torch.bool)
        is_first[1:] = self.labels[1:] != self.labels[:-1]
        return int(self.counts[is_first].sum())

    def without_counts(self) -> Self:
        """The same part without counts."""
        return self._replaced(counts=None)

    def with_scaled_counts(self, share: float) -> Self:
        if self.counts is None:
            return self
        return self._replaced(counts=share * self.counts.double())

    def fields(self) -> dict[str, Tensor]:
        # all subclasses are dataclasses, but this base is not
        tensors = {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @classmethod
    def from_fields(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(**tensors)

    def _replaced(self, **changes: Any) -> Self:
        # as in `fields`: only dataclasses call it
        return replace(self, **changes)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class PrototypeSet(ClassVectors):
    """The prototypes of k classes in d dimensions.

    Finite values are not checked here: what comes from outside is checked where it is decoded.

    Attributes:
        labels: (k,) int64, at least 0, unique, ascending.
        vectors: (k, d), floating.
        counts: (k,) int64, at least 1, the samples behind each row, or float64, above 0, where a share of them counts;
            None where they are unknown or not disclosed.

    Raises:
        ValueError: the parts do not fit together.
    """

    kind: ClassVar[Kind] = "prototypes"
    labels: Tensor
    vectors: Tensor
    counts: Tensor | None = None

    def __post_init__(self) -> None:
        labels, vectors, counts = self.labels, self.vectors, self.counts
        if labels.dim() != 1 or labels.dtype != torch.int64:
            raise ValueError(
                f"The labels of a prototype set have shape {tuple(labels.shape)} and dtype {labels.dtype}; "
                "they must be a list (k,) of int64."
            )
        if vectors.dim() != 2 or not vectors.is_floating_point():
            raise ValueError(
                f"The vectors of a prototype set have shape {tuple(vectors.shape)} and dtype "
                f"{vectors.dtype}; they must be floating-point rows (k, d)."
            )
        if len(vectors) != len(labels):
            raise ValueError(
                f"A prototype set has {len(labels)} labels but {len(vectors)} vectors; it needs one vector a label."
            )
        if len(labels) and int(labels[0]) < 0:
            raise ValueError(f"A prototype set has the label {int(labels[0])}; labels must be at least 0.")
        if not bool((labels[1:] > labels[:-1]).all()):
            raise ValueError(
                f"The labels {labels.tolist()} of a prototype set must ascend without repetition; "
                "sort the rows by label and keep one per class."
            )
        if counts is None:
            return
        refuse_odd_counts(counts, labels, "prototype")

    @classmethod
    def empty(cls, dim: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> PrototypeSet:
        """The set without any class, in `dim` dimensions."""
        return cls(torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, dim, dtype=dtype, device=device))

    @property
    def dim(self) -> int:
        """d, the length of a prototype."""
        return self.vectors.shape[1]

    @property
    def points(self) -> Tensor:
        return self.vectors

    def lengths(self) -> Tensor:
        return self.vectors.double().norm(dim=1)

    @property
    def mean_norm(self) -> float:
        """The mean Euclidean norm of the vectors; 0 of no class."""
        # not every accelerator has float64, and squares of large values overflow in float32
        return float(self.vectors.cpu().double().norm(dim=1).mean()) if len(self.labels) else 0.0

    def class_means(self) -> PrototypeSet:
        return self

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> PrototypeSet:
        """The same set on another device; `dtype` applies to the vectors."""
        return PrototypeSet(
            self.labels.to(device=device),
            self.vectors.to(device=device, dtype=dtype),
            None if self.counts is None else self.counts.to(device=device),
        )

    def table(self, num_classes: int) -> tuple[Tensor, Tensor]:
        """One row for each of K classes: vectors (K, d) and `present` (K,), bool.

        The rows of absent classes are zeros and must only be read together with `present`. Raises
        ValueError when a label is K or more.
        """
        if len(self) and int(self.labels[-1]) >= num_classes:
            raise ValueError(
                f"A prototype has the label {int(self.labels[-1])}, but there are {num_classes} classes, "
                f"labelled 0 to {num_classes - 1}; both ends must use the same list of classes."
            )
        vectors = self.vectors.new_zeros(num_classes, self.dim)
        present = torch.zeros(num_classes, dtype=torch.bool, device=self.labels.device)
        vectors[self.labels] = self.vectors
        present[self.labels] = True
        return vectors, present

    def updated_by(self, newer: PrototypeSet) -> PrototypeSet:
        """The union of both sets, where `newer` wins; its dtype and device hold.

        Counts are kept only if both have them. Raises ValueError when the dimensions differ.
        """
        if newer.dim != self.dim:
            raise ValueError(
                f"Prototypes of {self.dim} dimensions cannot be updated by prototypes of {newer.dim}; "
                "every client and the server must use the same feature-dim."
            )
        older = self.to(device=newer.vectors.device, dtype=newer.vectors.dtype)
        mask = ~torch.isin(older.labels, newer.labels)
        labels, order = torch.cat([older.labels[mask], newer.labels]).sort()
        counts = None
        if older.counts is not None and newer.counts is not None:
            counts = torch.cat([older.counts[mask], newer.counts])[order]
        return PrototypeSet(labels, torch.cat([older.vectors[mask], newer.vectors])[order], counts)

    def with_vectors(self, vectors: Tensor) -> PrototypeSet:
        """The same classes and counts with other vectors (k, any d)."""
        return replace(self, vectors=vectors)

    def on_sphere(self) -> PrototypeSet:
        """The same classes and counts with unit vectors; a zero vector stays zero."""
        # in float64, squares do not overflow and short vectors do not underflow
        units = torch.nn.functional.normalize(self.vectors.double(), dim=1, eps=torch.finfo(torch.float64).tiny)
        return replace(self, vectors=units.to(self.vectors.dtype))


def refuse_odd_counts(counts: Tensor, labels: Tensor, kind: str) -> None:
    """Raise ValueError for counts of a set that are no numbers of samples, one for each label (k,).

    kind: "prototype" or "mixture".
    """
    if counts.shape != labels.shape or counts.dtype not in (torch.int64, torch.float64):
        raise ValueError(
            f"The counts of a {kind} set have shape {tuple(counts.shape)} and dtype {counts.dtype}; they must be int64 "
            f"(or float64, for a share of a client's samples), one for each of the {len(labels)} labels."
        )
    least = 1 if counts.dtype == torch.int64 else torch.finfo(torch.float64).tiny
    if len(counts) and not bool((counts >= least).all()):
        raise ValueError(
            f"A {kind} set has a count of {counts.min().item():g}; counts must be at least 1, or above 0 for a share "
            "of a client's samples, and a class without samples has no row."
        )


def refuse_different_kinds(sets: Iterable[PrototypeSet], done: str) -> None:
    """Raise ValueError if sets that are to be `done` something with differ in dimension or dtype."""
    kinds = sorted({(prototypes.dim, str(prototypes.vectors.dtype)) for prototypes in sets})
    if len(kinds) > 1:
        raise ValueError(
            f"Prototype sets of different kinds (dimension, dtype) cannot be {done}: {kinds}; "
            "all clients must use the same feature-dim and number format."
        )


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> PrototypeSet:
    """The local prototypes: each class's mean feature, with its count (Eq. 2 of ProtoNorm).

    features: (n, d), floating; labels: (n,) int64 in 0..num_classes-1. A class without a sample has no row.
    Sums are float64, the means have the features' dtype. Raises ValueError when shapes do not fit or a label
    is out of range.
    """
    if features.dim() != 2 or not features.is_floating_point() or labels.shape != features.shape[:1]:
        raise ValueError(
            f"Features of shape {tuple(features.shape)} and dtype {features.dtype} do not go with labels of "
            f"shape {tuple(labels.shape)}; they must be floating-point (n, d) and (n,)."
        )
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        raise ValueError(
            f"The labels of the samples go from {int(labels.min())} to {int(labels.max())}, but there are "
            f"{num_classes} classes, labelled 0 to {num_classes - 1}."
        )
    sums = torch.zeros(num_classes, features.shape[1], dtype=torch.float64, device=features.device)
    sums.index_add_(0, labels, features.detach().double())
    counts = torch.bincount(labels, minlength=num_classes)
    present = counts.nonzero().flatten()
    means = sums[present] / counts[present].unsqueeze(1)
    return PrototypeSet(present, means.to(features.dtype), counts[present])
