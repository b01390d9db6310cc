"""What a message may hold: parts, each some tensors of one kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from protosphere.prototypes.prototype_set import PrototypeSet


class Part:
    """Some tensors that cross together. The kinds are PrototypeSet, MixtureSet and Weights.

    Attributes:
        kind: its name on the wire and in files.
    """

    kind: ClassVar[str]

    def fields(self) -> dict[str, Tensor]:
        """The tensors by name, without those that are None."""
        raise NotImplementedError

    @classmethod
    def from_fields(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Inverse of `fields`.

        Raises:
            TypeError, ValueError: the tensors do not make a part of this kind.
        """
        raise NotImplementedError

    def with_scaled_counts(self, share: float) -> Self:
        """The same with class counts times `share`, 1 at least; of a part without counts the part itself."""
        return self


class ClassVectors(Part):
    """A part whose rows are vectors of classes: prototypes or mixtures.

    Attributes:
        labels: the class of each row, (r,) int64, ascending.
        counts: the samples behind the class of each row, (r,) int64; None where they are not disclosed.
    """

    labels: Tensor
    counts: Tensor | None

    @property
    def points(self) -> Tensor:
        """The vector of each row, (r, d)."""
        raise NotImplementedError

    def lengths(self) -> Tensor:
        """The Euclidean norm of each row's vector, (r,) float64; of a Gaussian that of a draw, in the mean square."""
        raise NotImplementedError

    def class_means(self) -> PrototypeSet:
        """The mean of each class."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.labels)

    def count_samples(self) -> int:
        """The samples that the counts speak of; 0 without counts."""
        if self.counts is None:
            return 0
        is_first = torch.ones_like(self.labels, dtype=torch.bool)
        is_first[1:] = self.labels[1:] != self.labels[:-1]
        return int(self.counts[is_first].sum())

    def without_counts(self) -> Self:
        """The same, with the counts left out."""
        return self._replaced(counts=None)

    def with_scaled_counts(self, share: float) -> Self:
        if self.counts is None:
            return self
        return self._replaced(counts=(share * self.counts.double()).round().clamp(min=1).to(self.counts.dtype))

    def fields(self) -> dict[str, Tensor]:
        tensors = {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @classmethod
    def from_fields(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(**tensors)

    def _replaced(self, **changes: Any) -> Self:
        return replace(self, **changes)  # type: ignore[type-var]
