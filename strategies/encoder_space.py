"""What methods share that work in the space of a public encoder: directions, and a linear classifier as a message."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, normalize

from protosphere import method as m
from protosphere.prototypes.prediction import linear_discriminant
from protosphere.strategies.weights import refuse_other_layouts

DISCRIMINANT = "discriminant"
CLASSIFIER = "classifier"
WEIGHTS = tuple(tenths / 10 for tenths in range(11))
PRIOR = 2.0  # in nats: what a weight of 0 or 1 has to gain on the validation samples over 1/2
DOUBT = 0.1  # the share of a uniform guess in a sample's likelihood, so that no single one of few decides the weight
TEMPERATURES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
WEIGHT, BIAS = "weight", "bias"  # of both
KNOWN = "known"  # 0 for a class of which nobody has rows, else 1 + ln of what both are to be multiplied by
SMALLEST_BOUND = 10.0  # times the root of the number of classes: what `KNOWN` needs of a message's bound
DISCLOSURES = ("roughly what its samples look like, which follows from these features",)


def directions(features: Tensor, radius: float = 0.0) -> Tensor:
    """z^ of an encoder's features u, (n, d) float64, of length 1 at most; 0 where the encoder failed.

    Args:
        radius: `encoder-radius`. 0: z^ = u / ||u||. R: z^ = u / max(R, ||u||), so that lengths below R count.
    """
    finite_features = features.double().nan_to_num(0, 0, 0)
    if not radius:
        return normalize(finite_features, dim=1)
    return finite_features / finite_features.norm(dim=1, keepdim=True).clamp_min(radius)


def opinion_pool(logits: Tensor, class_scores: Tensor, counts: Tensor, weight: float) -> Tensor:
    """The logarithmic opinion pool of a model and a discriminant, (n, K) float64:

        (1 - w) log softmax(g)_j + w log softmax(q + log pi)_j,  pi_j = (n_j + 1/K) / (n + 1)

    Args:
        logits: g, (n, K). class_scores: q, (n, K) float64, minus infinity for a class that it does not know.
        counts: n_j of the client's training samples, (K,) float64. weight: w, in [0, 1].
    """
    priors = (counts + 1 / len(counts)) / (counts.sum() + 1)
    # of a class that nobody spoke for the space knows nothing, which is no reason against it
    lowest_scores = class_scores.masked_fill(class_scores.isneginf(), torch.inf).amin(dim=1, keepdim=True)
    posterior = log_softmax(class_scores.maximum(lowest_scores) + priors.log(), dim=1)
    # a model that has diverged has no say
    logits = torch.where(logits.isfinite().all(dim=1, keepdim=True), logits, 0.0)
    return (1 - weight) * log_softmax(logits.double(), dim=1) + weight * posterior


def choose_weight(pool: Callable[[float], Tensor], labels: Tensor) -> float:
    """The w of WEIGHTS by which validation samples are most likely, with the log prior -PRIOR (2w - 1)^2 and the
    probability of each mixed with a uniform guess, (1 - DOUBT) p + DOUBT / K, so that few move it little from 1/2.

    Args:
        pool: w -> log probabilities of the samples up to a constant of each, (m, K), linear in w. labels: (m,) int64.
    """
    # its two ends are all of it, and the model is asked for no more
    of_model, of_space = pool(0.0), pool(1.0)

    def log_likelihood(weight: float) -> float:
        log_probabilities = log_softmax((1 - weight) * of_model + weight * of_space, dim=1)
        of_labels = log_probabilities.gather(1, labels.unsqueeze(1)) + math.log(1 - DOUBT)
        guess = of_labels.new_tensor(math.log(DOUBT / log_probabilities.shape[1]))
        return float(torch.logaddexp(of_labels, guess).sum()) - PRIOR * (2 * weight - 1) ** 2

    return max(WEIGHTS, key=log_likelihood)


def choose_temperature(class_scores: Tensor, labels: Tensor, num_classes: int) -> float:
    """The t of TEMPERATURES by which samples are most likely under softmax(t q + log pi): a covariance of few samples
    makes a discriminant surer than it is right. 1 where there are no samples.

    Args:
        class_scores: q of the client's training samples, (n, K) float64. labels: theirs, (n,).
    """
    counts = torch.bincount(labels, minlength=num_classes).double()
    no_model = torch.zeros_like(class_scores)

    def log_likelihood(temperature: float) -> float:
        log_probabilities = opinion_pool(no_model, temperature * class_scores, counts, weight=1.0)
        return -float(cross_entropy(log_probabilities, labels, reduction="sum"))

    return max(TEMPERATURES, key=log_likelihood)


def unknown(layouts: Mapping[str, m.Layout]) -> dict[str, m.Weights]:
    """Parts of weights of these layouts, as they are before anything is known."""
    return {part: m.Weights({name: torch.zeros(size) for name, size in layout}) for part, layout in layouts.items()}


def check_space(half: m.ServerHalf, num_classes: int, dim: int, layouts: Mapping[str, m.Layout]) -> None:
    """Refuse a bound on norms that a classifier's part `KNOWN` would pass, and clients whose weights differ in layout.

    Raises:
        SettingError: that.
    """
    settings = half.settings
    smallest_bound = SMALLEST_BOUND * num_classes**0.5
    if settings.max_prototype_norm < smallest_bound:
        raise m.SettingError(
            f"setting `max-prototype-norm` is {settings.max_prototype_norm:g}, but the classifier that "
            f"`{settings.strategy}` sends of {num_classes} classes needs {smallest_bound:.3g}; raise it."
        )
    for part, layout in layouts.items():
        refuse_other_layouts(half, part, layout)


def check_unit_vectors(half: m.ServerHalf) -> None:
    """Refuse shorter vectors, for a method whose mathematics needs unit vectors.

    Raises:
        SettingError: `encoder-radius` is not 0.
    """
    settings = half.settings
    if settings.encoder_radius:
        raise m.SettingError(
            f"setting `encoder-radius` is {settings.encoder_radius}, but `{settings.strategy}` works with unit "
            "vectors; remove it (0)."
        )


def discriminant_layout(num_classes: int, dim: int) -> m.Layout:
    """Of a linear classifier, such as the discriminant, as a part of weights."""
    return (BIAS, (num_classes,)), (KNOWN, (num_classes,)), (WEIGHT, (num_classes, dim))


def discriminant_of(sums: Tensor, counts: Tensor, priors: Tensor, covariance: Tensor, bound: float) -> m.Weights:
    """The discriminant of class sums (K, d) over counts (K,), 0 for a class that nobody holds.

    Args:
        priors: of the classes, (K,), up to a factor.
        covariance: Sigma, positive definite. bound: what the norm of a message must stay within.
    """
    present = counts > 0
    means = sums[present] / counts[present].unsqueeze(1)
    weights, offsets = linear_discriminant(means, priors[present], covariance)
    # what is the same for all classes decides nothing
    weights, offsets = weights - weights.mean(dim=0), offsets - offsets.mean()
    weight, bias = torch.zeros_like(sums), torch.zeros_like(counts)
    weight[present], bias[present] = weights, offsets
    return linear_classifier(weight, bias, present, bound)


def linear_classifier(weight: Tensor, bias: Tensor, present: Tensor, bound: float) -> m.Weights:
    """w_j (K, d) and b_j (K,) as a part of weights; of a class that is not present (K,) both are 0.

    Args:
        bound: what the norm of a message must stay within. A common factor that keeps both within it crosses beside.
    """
    tensors = within_bound({WEIGHT: weight, BIAS: bias}, present, bound)
    return m.Weights({name: tensor.float() for name, tensor in tensors.items()})


def within_bound(tensors: Mapping[str, Tensor], present: Tensor, bound: float) -> dict[str, Tensor]:
    """Tensors times a common factor that keeps the norm of each within a message's bound, and `KNOWN`, which tells it.

    Args:
        present: the classes of which anything is known, (K,) bool.
    """
    largest_norm = max(float(tensor.norm()) for tensor in tensors.values())
    factor = min(1.0, 0.99 * bound / max(largest_norm, 1e-300))
    shrunk = {name: factor * tensor for name, tensor in tensors.items()}
    return shrunk | {KNOWN: present * (1 - math.log(factor))}


def inverse_factor(known: Tensor) -> Tensor:
    """What tensors of `within_bound` are to be multiplied by to be as they were, of `KNOWN` (K,)."""
    return (known.max() - 1).clamp_min(0).exp()


def discriminant_scores(received: m.Payload | None, directions: Tensor) -> Tensor | None:
    """`linear_scores` of the discriminant."""
    return linear_scores(received, DISCRIMINANT, directions)


def linear_scores(received: m.Payload | None, part: str, features: Tensor) -> Tensor | None:
    """z w_j + b_j of features (n, d): (n, K), minus infinity for a class that nobody holds; None before it came, and
    where it knows no class at all."""
    if received is None or part not in received:
        return None
    weights = m.weights_of(received, part)
    weight, bias, presence = (weights.tensors[name].to(features) for name in (WEIGHT, BIAS, KNOWN))
    # a program that is being exported cannot branch on values; a rule that knows nothing is not exported
    if not torch.compiler.is_compiling() and not bool(presence.any()):
        return None
    return (inverse_factor(presence) * (features @ weight.T + bias)).masked_fill(presence == 0, -torch.inf)
