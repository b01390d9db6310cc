"""Shared by methods that work in a public encoder's space: directions, and a linear classifier as a message."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, normalize

from protosphere import method as m
from protosphere.prototypes.prediction import linear_discriminant

DISCRIMINANT = "discriminant"
CLASSIFIER = "classifier"
WEIGHTS = tuple(tenths / 10 for tenths in range(11))
PRIOR = 2.0  # strength of the prior against weights far from 1/2, in nats on the validation samples
DOUBT = 0.1  # weight of a uniform guess in each sample's likelihood, so that no single sample decides
TEMPERATURES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
WEIGHT, BIAS = "weight", "bias"  # tensors of a classifier, (K, d) and (K,)
# message part (K,): 0 for a class without samples, else 1 + ln of the factor that restores both tensors
KNOWN = "known"
DISCLOSURES = ("roughly what its samples look like, which follows from these features",)


def directions(features: Tensor, radius: float = 0.0) -> Tensor:
    """z^ (n, d) float64, of length at most 1, from an encoder's features u; 0 if the encoder failed.

    Args:
        radius: `encoder-radius`. 0: z^ = u / ||u||. R > 0: z^ = u / max(R, ||u||), so that lengths below R count.
    """
    finite_features = features.double().nan_to_num(0, 0, 0)
    if not radius:
        return normalize(finite_features, dim=1)
    return finite_features / finite_features.norm(dim=1, keepdim=True).clamp_min(radius)


def opinion_pool(logits: Tensor, class_scores: Tensor, counts: Tensor, weight: float) -> Tensor:
    """Logarithmic opinion pool of a model and a discriminant, (n, K) float64:

        (1 - w) log softmax(g)_j + w log softmax(q + log pi)_j,  pi_j = (n_j + 1/K) / (n + 1)

    Args:
        logits: g, (n, K). class_scores: q, (n, K) float64, minus infinity for an unknown class.
        counts: n_j of the client's training samples, (K,) float64. weight: w, in [0, 1].
    """
    priors = (counts + 1 / len(counts)) / (counts.sum() + 1)
    # the discriminant knows nothing about an unknown class, which must not count against it
    lowest_scores = class_scores.masked_fill(class_scores.isneginf(), torch.inf).amin(dim=1, keepdim=True)
    posterior = log_softmax(class_scores.maximum(lowest_scores) + priors.log(), dim=1)
    # ignore a model that has diverged
    logits = torch.where(logits.isfinite().all(dim=1, keepdim=True), logits, 0.0)
    return (1 - weight) * log_softmax(logits.double(), dim=1) + weight * posterior


def choose_weight(pool: Callable[[float], Tensor], labels: Tensor) -> float:
    """Choose the w of WEIGHTS with the highest posterior on the validation samples.

    The log prior is -PRIOR (2w - 1)^2. Each sample's probability is mixed with a uniform guess,
    (1 - DOUBT) p + DOUBT / K, so that few samples move w little from 1/2.

    Args:
        pool: w -> log probabilities of the samples, up to a constant per sample, (m, K), linear in w.
        labels: (m,) int64.
    """
    # the pool is linear in w, so its two ends determine it
    of_model, of_space = pool(0.0), pool(1.0)

    def log_likelihood(weight: float) -> float:
        log_probabilities = log_softmax((1 - weight) * of_model + weight * of_space, dim=1)
        of_labels = log_probabilities.gather(1, labels.unsqueeze(1)) + math.log(1 - DOUBT)
        guess = of_labels.new_tensor(math.log(DOUBT / log_probabilities.shape[1]))
        return float(torch.logaddexp(of_labels, guess).sum()) - PRIOR * (2 * weight - 1) ** 2

    return max(WEIGHTS, key=log_likelihood)


def choose_temperature(class_scores: Tensor, labels: Tensor, num_classes: int) -> float:
    """Choose the t of TEMPERATURES that maximises the likelihood under softmax(t q + log pi); 1 without samples. A
    discriminant whose covariance comes from few samples is overconfident.

    Args:
        class_scores: q of the client's training samples, (n, K) float64.
        labels: their classes, (n,).
    """
    counts = torch.bincount(labels, minlength=num_classes).double()
    no_model = torch.zeros_like(class_scores)

    def log_likelihood(temperature: float) -> float:
        log_probabilities = opinion_pool(no_model, temperature * class_scores, counts, weight=1.0)
        return -float(cross_entropy(log_probabilities, labels, reduction="sum"))

    return max(TEMPERATURES, key=log_likelihood)


def discriminant_layout(num_classes: int, dim: int) -> m.Layout:
    """Layout of a linear classifier, such as the discriminant, as a part of weights."""
    return (BIAS, (num_classes,)), (KNOWN, (num_classes,)), (WEIGHT, (num_classes, dim))


def discriminant_of(sums: Tensor, counts: Tensor, priors: Tensor, covariance: Tensor, bound: float) -> m.Weights:
    """The discriminant from class sums (K, d) and counts (K,); a count of 0 means that no client holds the class.

    Args:
        priors: of the classes, (K,), up to a factor.
        covariance: Sigma, positive definite.
        bound: the norm bound of a message.
    """
    present = counts > 0
    means = sums[present] / counts[present].unsqueeze(1)
    weights, offsets = linear_discriminant(means, priors[present], covariance)
    # a term that is equal for all classes does not change the decision
    weights, offsets = weights - weights.mean(dim=0), offsets - offsets.mean()
    weight, bias = torch.zeros_like(sums), torch.zeros_like(counts)
    weight[present], bias[present] = weights, offsets
    return linear_classifier(weight, bias, present, bound)


def linear_classifier(weight: Tensor, bias: Tensor, present: Tensor, bound: float) -> m.Weights:
    """w_j (K, d) and b_j (K,) as a part of weights; both are 0 for a class that is not present (K,).

    Args:
        bound: the norm bound of a message. A common factor that keeps both within it is sent in `KNOWN`.
    """
    tensors = within_bound({WEIGHT: weight, BIAS: bias}, present, bound)
    return m.Weights({name: tensor.float() for name, tensor in tensors.items()})


def within_bound(tensors: Mapping[str, Tensor], present: Tensor, bound: float) -> dict[str, Tensor]:
    """Scale tensors by a common factor so that each stays within a message's norm bound, and add `KNOWN`, which encodes
    it.

    Args:
        present: the known classes, (K,) bool.
    """
    largest_norm = max(float(tensor.norm()) for tensor in tensors.values())
    factor = min(1.0, 0.99 * bound / max(largest_norm, 1e-300))
    shrunk = {name: factor * tensor for name, tensor in tensors.items()}
    return shrunk | {KNOWN: present * (1 - math.log(factor))}


def inverse_factor(known: Tensor) -> Tensor:
    """The factor that restores the tensors of `within_bound`, from `KNOWN` (K,)."""
    return (known.max() - 1).clamp_min(0).exp()


def linear_scores(received: m.Payload | None, part: str, features: Tensor) -> Tensor | None:
    """z w_j + b_j of features (n, d): (n, K), minus infinity for a class that no client holds; None before the first
    message and if no class is known."""
    if received is None or part not in received:
        return None
    weights = m.weights_of(received, part)
    weight, bias, presence = (weights.tensors[name].to(features) for name in (WEIGHT, BIAS, KNOWN))
    # an exported program cannot branch on values; a rule without any known class is not exported
    if not torch.compiler.is_compiling() and not bool(presence.any()):
        return None
    return (inverse_factor(presence) * (features @ weight.T + bias)).masked_fill(presence == 0, -torch.inf)
