"""Trainable prototypes: the server's module, the losses of FedTGP and FedORGP, its training."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot

PrototypeLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


class TrainablePrototypes(nn.Module):
    """K learnable embeddings, each sent through one network of two layers; its output for class j is P_j.

    Torch's default initialisations, drawn from `seed` alone; torch's global random state stays as it was. The
    network is shared: training some classes moves the outputs of the others as well.
    """

    def __init__(self, num_classes: int, dim: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also reseed the GPUs
            torch.default_generator.manual_seed(seed)
            self.embedding = nn.Embedding(num_classes, dim)
            self.network = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self) -> Tensor:
        """The prototypes (K, d) of all classes."""
        return self.network(self.embedding.weight)


def adaptive_margin(class_means: Tensor, limit: float) -> float:
    """The margin of this round, in units of Euclidean distance: min(max_j gap_j, limit).

    gap_j is the distance of class j's mean to its nearest other. class_means: C, (k, d), k of any number; with one
    class alone or none the margin is the limit.
    """
    if len(class_means) < 2:
        return float(limit)
    means = class_means.detach()
    distances = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
    gaps = distances.fill_diagonal_(math.inf).amin(dim=1)
    return min(float(gaps.max()), float(limit))


def contrastive_loss(vectors: Tensor, labels: Tensor, prototypes: Tensor, margin: float, present: Tensor) -> Tensor:
    """The mean cross-entropy of -(D + margin·onehot(label)), D the distances to the prototypes; a scalar.

    vectors: (n, d), n >= 1. labels: (n,) int64. prototypes: (K, d) of the vectors' dtype; rows of absent classes
    hold anything. present: (K,) bool, the classes that the softmax runs over; the others get neither probability
    nor gradient. The gradient of a distance of 0 is 0. Raises ValueError for no vectors, shapes that
    do not fit, and a label that is out of range or not present.
    """
    targets = _check_labels(vectors, labels, present)
    return margin_contrast(vectors, targets, prototypes[present], margin)


def collapsed_loss(num_classes: int, margin: float) -> float:
    """The loss where all prototypes coincide, wherever that is: ln(1 + (K-1)·e^margin).

    num_classes: K, the classes that the softmax runs over; 0 for one class. A loss that is not well below this has
    taught the prototypes nothing.
    """
    if num_classes < 2:
        return 0.0
    exponent = math.log(num_classes - 1) + margin
    return max(exponent, 0.0) + math.log1p(math.exp(-abs(exponent)))


def train_prototypes(
    module: TrainablePrototypes,
    optimiser: torch.optim.Optimizer,
    vectors: Tensor,
    labels: Tensor,
    present: Tensor,
    loss_of: PrototypeLoss,
    *,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
) -> float:
    """Trains the module on the uploaded prototypes, in place; returns the last epoch's mean loss.

    vectors: (n, d), n >= 1, all uploads of a round, of the module's dtype and device; labels: (n,) int64;
    present: (K,) bool; loss_of: of vectors, their classes' places among the present ones, and the prototypes of these.
    Each epoch takes all rows in a new order from `generator` (a CPU generator), in batches of
    which the last may be smaller. The loss returned is the mean over rows, each taken as its batch came by, before
    the step of that batch; it is not finite when training diverged, which the caller must check.

    The optimiser belongs to the caller and keeps its state: the same generator passed on, two calls do what one
    of as many epochs does. Raises ValueError as `contrastive_loss`, and for less than one epoch or row a batch.
    """
    if epochs < 1 or batch_size < 1:
        raise ValueError(
            f"Prototypes cannot be trained for {epochs} epochs in batches of {batch_size}; both must be at least 1."
        )
    targets = _check_labels(vectors, labels, present)
    classes = present.nonzero().flatten()
    total = vectors.new_zeros((), dtype=torch.float64)
    for _ in range(epochs):
        total.zero_()
        order = torch.randperm(len(vectors), generator=generator).to(vectors.device)
        for rows in order.split(batch_size):
            optimiser.zero_grad()
            loss = loss_of(vectors[rows], targets[rows], module()[classes])
            loss.backward()
            optimiser.step()
            total += loss.detach() * len(rows)
    return float(total) / len(vectors)


def margin_contrast(vectors: Tensor, targets: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """FedTGP's loss over present classes alone: targets (n,) index the rows of prototypes (k, d)."""
    # distances from a matrix product lose precision far from the origin, and their gradient at 0 may be NaN
    distances = torch.cdist(vectors, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    target_mask = one_hot(targets, len(prototypes)).to(distances.dtype)
    return cross_entropy(-(distances + margin * target_mask), targets)


def orthogonality_loss(
    vectors: Tensor, targets: Tensor, prototypes: Tensor, intra_weight: float, inter_weight: float
) -> Tensor:
    """L_OR of FedORGP (Eq. 3 to 5): intra_weight (1 - s) + inter_weight d, a scalar.

    s is the mean cosine of a vector and its class's prototype, d that of a vector and the prototypes of other classes,
    in absolute value; 0 where there is one class. vectors: (n, d). targets: (n,) index the rows of prototypes (k, d). A
    vector or prototype of zeros has the cosine 0 with all.
    """
    cosines = normalize(vectors, dim=1) @ normalize(prototypes, dim=1).T
    is_own = one_hot(targets, len(prototypes)).bool()
    intra = cosines[is_own].mean()
    inter = cosines[~is_own].abs().mean() if len(prototypes) > 1 else cosines.new_zeros(())
    return intra_weight * (1 - intra) + inter_weight * inter


def _check_labels(vectors: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Each label's position among the present classes, (n,)."""
    if vectors.dim() != 2 or labels.shape != vectors.shape[:1]:
        raise ValueError(
            f"Vectors of shape {tuple(vectors.shape)} do not go with labels of shape {tuple(labels.shape)}; "
            "they must be (n, d) and (n,)."
        )
    if not len(vectors):
        raise ValueError("There are no vectors to train prototypes on; at least one client must have uploaded its own.")
    if int(labels.min()) < 0 or int(labels.max()) >= len(present):
        raise ValueError(
            f"The labels of the vectors go from {int(labels.min())} to {int(labels.max())}, but there are "
            f"{len(present)} classes, labelled 0 to {len(present) - 1}."
        )
    absent = labels[~present[labels]].unique().tolist()
    if absent:
        raise ValueError(
            f"Vectors of the classes {absent} came, but these are not marked as present; "
            "every uploaded class must take part in the softmax."
        )
    return (present.cumsum(0) - 1)[labels]
