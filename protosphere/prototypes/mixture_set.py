"""MixtureSet, the value that GFPL passes on: some classes, a mixture of diagonal Gaussians for each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from protosphere.prototypes.prototype_set import ClassVectors, Kind, PrototypeSet, refuse_odd_counts

# Weights may come through a 16-bit number format, which moves their sum by up to 5e-4.
WEIGHT_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class MixtureSet(ClassVectors):
    """Class-wise mixtures in d dimensions: r components in all, those of a class one after the other.

    labels: (r,) int64, at least 0, ascending; a class has as many rows as components, and an absent one none.
    means, variances: (r, d), floating, of one dtype; variances above 0.
    weights: (r,), of the same dtype, above 0, summing to 1 in each class.
    counts: (r,) int64, at least 1, the samples behind the class of each row, so equal within a class, or float64, above
    0, where a share of them counts; None where they are unknown or not disclosed.

    Raises ValueError when the parts do not fit together. That means are finite is not checked here: what comes
    from outside is checked where it is decoded.
    """

    kind: ClassVar[Kind] = "mixtures"
    labels: Tensor
    means: Tensor
    variances: Tensor
    weights: Tensor
    counts: Tensor | None = None

    def __post_init__(self) -> None:
        self._check_labels()
        self._check_parts()
        self._check_weights()
        if self.counts is not None:
            self._check_counts(self.counts)

    def _check_labels(self) -> None:
        labels = self.labels
        if labels.dim() != 1 or labels.dtype != torch.int64:
            raise ValueError(
                f"The labels of a mixture set have shape {tuple(labels.shape)} and dtype {labels.dtype}; "
                "they must be a list (r,) of int64."
            )
        if len(labels) and int(labels[0]) < 0:
            raise ValueError(f"A mixture set has the label {int(labels[0])}; labels must be at least 0.")
        if not bool((labels[1:] >= labels[:-1]).all()):
            raise ValueError(f"The labels {labels.tolist()} of a mixture set must ascend; sort the rows by label.")

    def _check_parts(self) -> None:
        means, variances = self.means, self.variances
        if means.dim() != 2 or not means.is_floating_point():
            raise ValueError(
                f"The means of a mixture set have shape {tuple(means.shape)} and dtype {means.dtype}; "
                "they must be floating-point rows (r, d)."
            )
        if len(means) != len(self.labels):
            raise ValueError(
                f"A mixture set has {len(self.labels)} labels but {len(means)} means; it needs one mean a label."
            )
        if variances.shape != means.shape or variances.dtype != means.dtype:
            raise ValueError(
                f"The variances of a mixture set have shape {tuple(variances.shape)} and dtype {variances.dtype}, "
                f"its means {tuple(means.shape)} and {means.dtype}; both must be alike."
            )
        if not bool((variances > 0).all()):
            raise ValueError(
                "A mixture set has a variance that is not above 0; the fit adds a floor to every variance, "
                "which a narrow number format may round away."
            )

    def _check_weights(self) -> None:
        weights = self.weights
        if weights.shape != self.labels.shape or weights.dtype != self.means.dtype:
            raise ValueError(
                f"The weights of a mixture set have shape {tuple(weights.shape)} and dtype {weights.dtype}; they must "
                f"be of the means' dtype {self.means.dtype}, one for each of the {len(self.labels)} labels."
            )
        if not bool((weights > 0).all()):
            raise ValueError(
                "A mixture set has a weight that is not above 0; a component without weight must have no row."
            )
        classes, sums = self._sums(weights.double())
        wrong = ((sums - 1).abs() > WEIGHT_SUM_TOLERANCE).nonzero().flatten()
        if len(wrong):
            raise ValueError(
                f"The weights of class {int(classes[wrong[0]])} in a mixture set sum to {float(sums[wrong[0]]):.6g}; "
                "the weights of a class must sum to 1."
            )

    def _check_counts(self, counts: Tensor) -> None:
        refuse_odd_counts(counts, self.labels, "mixture")
        uneven = (self.labels[1:] == self.labels[:-1]) & (counts[1:] != counts[:-1])
        if bool(uneven.any()):
            raise ValueError(
                f"A mixture set has different counts within class {int(self.labels[1:][uneven][0])}; "
                "each row must have the count of its class."
            )

    def _sums(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The classes (k,) and the sum of values (r,) over each class's rows (k,)."""
        classes, owner = self.labels.unique(return_inverse=True)
        return classes, values.new_zeros(len(classes)).index_add_(0, owner, values)

    @classmethod
    def empty(cls, dim: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> MixtureSet:
        """The set without any class, in `dim` dimensions."""
        nothing = torch.empty(0, dim, dtype=dtype, device=device)
        labels = torch.empty(0, dtype=torch.int64, device=device)
        return cls(labels, nothing, nothing.clone(), torch.empty(0, dtype=dtype, device=device))

    @property
    def dim(self) -> int:
        """d, the length of a mean."""
        return self.means.shape[1]

    @property
    def points(self) -> Tensor:
        return self.means

    def lengths(self) -> Tensor:
        return (self.means.double().square().sum(dim=1) + self.variances.double().sum(dim=1)).sqrt()

    def classes(self) -> Tensor:
        """The labels present, each once, ascending, (k,) int64."""
        return self.labels.unique()

    def components(self) -> Tensor:
        """How many components each of `classes()` has, (k,) int64."""
        return self._sums(torch.ones_like(self.labels))[1]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> MixtureSet:
        """The same set on another device; `dtype` applies to means, variances and weights."""
        return MixtureSet(
            self.labels.to(device=device),
            self.means.to(device=device, dtype=dtype),
            self.variances.to(device=device, dtype=dtype),
            self.weights.to(device=device, dtype=dtype),
            None if self.counts is None else self.counts.to(device=device),
        )

    def updated_by(self, newer: MixtureSet) -> MixtureSet:
        """The union of both sets, where `newer` has every class that it holds to itself; its dtype and device hold.

        Counts are kept only if both have them. Raises ValueError when the dimensions differ.
        """
        if newer.dim != self.dim:
            raise ValueError(
                f"Mixtures of {self.dim} dimensions cannot be updated by mixtures of {newer.dim}; "
                "every client and the server must use the same feature-dim."
            )
        older = self.to(device=newer.means.device, dtype=newer.means.dtype)
        mask = ~torch.isin(older.labels, newer.labels)
        labels, order = torch.cat([older.labels[mask], newer.labels]).sort(stable=True)

        def joined(before: Tensor, after: Tensor) -> Tensor:
            return torch.cat([before[mask], after])[order]

        counts = None
        if older.counts is not None and newer.counts is not None:
            counts = joined(older.counts, newer.counts)
        means, variances = joined(older.means, newer.means), joined(older.variances, newer.variances)
        return MixtureSet(labels, means, variances, joined(older.weights, newer.weights), counts)

    def with_rounded_weights(self, steps: int) -> MixtureSet:
        """The same components with weights in whole shares of 1/steps, one at least, that sum to 1 again.

        Of a class with n components no subset weighs more than n/steps more or less than before. Raises ValueError
        for a class with more components than there are steps.
        """
        most = int(self.components().max()) if len(self) else 0
        if most > steps:
            raise ValueError(
                f"{most} components of a class cannot have weights in whole shares of 1/{steps}; take at least as "
                "many steps as components."
            )
        rounded = (self.weights.double() * steps).round().clamp(min=1)
        classes, sums = self._sums(rounded)
        owner = torch.searchsorted(classes, self.labels)
        return replace(self, weights=(rounded / sums[owner]).to(self.weights.dtype))

    def class_means(self) -> PrototypeSet:
        """The mean of each class's mixture, without counts."""
        classes, owner = self.labels.unique(return_inverse=True)
        weighted = self.means * self.weights.unsqueeze(1)
        return PrototypeSet(classes, weighted.new_zeros(len(classes), self.dim).index_add_(0, owner, weighted))
