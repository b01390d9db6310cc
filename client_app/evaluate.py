"""Evaluates all inference rules in one forward pass, and measures the statistics of training features for two of
them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from protosphere.core.devices import exact_on
from protosphere.core.errors import UserError
from protosphere.core.settings import RECEIVED
from protosphere.data.client_data import ClientData, Rows, Transform
from protosphere.prototypes.prediction import discriminant_scores, nearest_scores, pooled_covariance
from protosphere.prototypes.prototype_set import class_means
from protosphere.record.confusion import width
from protosphere.record.metrics_lines import MAJORITY
from protosphere.strategies.consensus import ConsensusObjective
from protosphere.strategies.contract import ClientState, Objective
from protosphere.wire.payloads import Evaluation

# The fastest batch sizes. On a CPU, the images of a convolution should fit in the cache, so small images allow more, at
# least IMAGES_AT_ONCE; a GPU needs many.
IMAGES_AT_ONCE, ROWS_AT_ONCE, ROWS_AT_ONCE_ON_GPU = 64, 256, 1024
PIXELS_AT_ONCE = 2**16
Scores = Callable[[Rows, Tensor], Mapping[str, Tensor]]  # from samples and their features to scores: rule -> (n, K)


@dataclass(frozen=True)
class Measures:
    """What an evaluation reports besides accuracies.

    Attributes:
        rule: the inference rule for these metrics.
        auc, confusion: whether to report them.
    """

    rule: str = ""
    auc: bool = False
    confusion: bool = False


@dataclass
class Answers:
    """The predictions of all rules for the samples of one split.

    Attributes:
        labels: rule -> (n,); empty for a split without samples.
        scores: the scores of the requested rule, (n, K).
    """

    labels: dict[str, Tensor] = field(default_factory=dict)
    scores: Tensor | None = None


class DivergenceError(UserError):
    """The loss or a feature is not finite."""

    public = "its training diverged: lower the learning rates"


@torch.no_grad()
def measure(objective: Objective, state: ClientState, data: ClientData) -> None:
    """Local prototypes p_ij (Eq. 2 of ProtoNorm), counts and covariance over all training samples, in eval mode.

    They are measured after training, and not as running means of features that training still changes.

    Raises:
        DivergenceError: a feature is not finite.
    """
    if not len(data.train):
        return
    device = exact_on(data.train.labels.device)
    features = features_of(objective, state, data.train, data.transform).to(device)
    labels = data.train.labels.to(device)
    _refuse_not_finite(features)
    state.prototypes = class_means(features, labels, objective.num_classes)
    if objective.settings.prototypes_from == "model":
        state.covariance = pooled_covariance(features, labels, state.prototypes)
    state.features = features, labels


@torch.no_grad()
def refuse_spoilt(objective: Objective, state: ClientState, data: ClientData) -> None:
    """Check the features of one batch of training samples, if nothing is measured.

    Raises:
        DivergenceError: a feature is not finite.
    """
    some = slice(_count_rows_at_once(data.train, data.transform))
    rows = Rows(data.train.inputs[some], data.train.labels[some])
    if len(rows):
        _refuse_not_finite(features_of(objective, state, rows, data.transform))


def _refuse_not_finite(features: Tensor) -> None:
    if not bool(features.isfinite().all()):
        raise DivergenceError("the features are not finite after training; lower `learning-rate`")


@torch.no_grad()
def evaluate(
    objective: Objective,
    state: ClientState,
    data: ClientData,
    received: ClientState | None = None,
    further_scores: Scores | None = None,
    measures: Measures = Measures(),
) -> Evaluation:
    """Count the test and validation samples that each rule classifies correctly.

    Args:
        received: the client as it would predict with the new download, for the rule `received`; None without that rule.
        further_scores: the scores of further rules.
    """
    began = time.perf_counter()
    # validation samples come first, since a rule may choose its parameters on them
    splits = [data.validation, data.test]
    # small clients take one pass, since a pass costs more than their samples
    total = sum(len(split.labels) for split in splits)
    in_one_pass = total <= _count_rows_at_once(data.test, data.transform) and _is_row_by_row(state.module)
    arguments = objective, state, data.transform, received, further_scores
    passes = [splits] if in_one_pass else [[rows] for rows in splits]
    scored_rule = measures.rule if measures.auc else ""
    answers_by_split: list[Answers] = []
    for group in passes:
        answers_by_split += _predict(*arguments, group, scored_rule)

    rules = next((list(answers.labels) for answers in answers_by_split if answers.labels), [])
    device = exact_on(data.test.labels.device)
    correct_counts = torch.zeros(len(splits), len(rules), dtype=torch.int64, device=device)
    for index, answers in enumerate(answers_by_split):
        if answers.labels:
            predictions = torch.stack(list(answers.labels.values()))
            correct_counts[index] = (predictions == splits[index].labels.to(device)).sum(dim=1)
    # one transfer for all rules: waiting once per rule would stall the device
    counts_by_split = correct_counts.tolist()
    validation_counts, test_counts = counts_by_split
    correct = {rule: (test_counts[index], validation_counts[index]) for index, rule in enumerate(rules)}
    test_answers = answers_by_split[1]
    auc = None
    if test_answers.scores is not None:
        auc = macro_auc(data.test.labels.cpu(), test_answers.scores.double().softmax(dim=1).cpu())
    confusion: tuple[int, ...] = ()
    if measures.confusion and measures.rule in test_answers.labels:
        confusion = count_confusion(data.test.labels, test_answers.labels[measures.rule], objective.num_classes)
    samples = len(data.test), len(data.validation)
    return Evaluation(samples, correct, time.perf_counter() - began, auc, confusion)


def _is_row_by_row(module: nn.Module) -> bool:
    """Whether a sample's features depend on that sample alone: batch normalisation without running statistics uses the
    batch."""
    return not any(isinstance(part, _BatchNorm) and part.running_mean is None for part in module.modules())


def features_of(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Tensor:
    """z of all samples in eval mode, (n, d) float32."""
    state.module.eval()
    chunks = []
    some = _count_rows_at_once(rows, transform)
    for start in range(0, len(rows.labels), some):
        inputs = transform(rows.inputs[start : start + some])
        with autocast(objective, inputs.device):
            chunks.append(objective.features(state, inputs).float())
    return torch.cat(chunks)


def _count_rows_at_once(rows: Rows, transform: Transform) -> int:
    if rows.inputs.device.type != "cpu":
        return ROWS_AT_ONCE_ON_GPU
    if len(transform.shape) == 1:
        return ROWS_AT_ONCE
    return min(max(IMAGES_AT_ONCE, PIXELS_AT_ONCE // math.prod(transform.shape[1:])), ROWS_AT_ONCE)


def autocast(objective: Objective, device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast on CUDA if `precision` asks for it."""
    in_bf16 = objective.settings.precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, dtype=torch.bfloat16) if in_bf16 else nullcontext()


def _predict(
    objective: Objective,
    state: ClientState,
    transform: Transform,
    received: ClientState | None,
    further_scores: Scores | None,
    splits: Sequence[Rows],
    scored_rule: str,
) -> list[Answers]:
    """The predictions of all rules for each split, from one pass over all samples; float64 where the device has it.

    Args:
        scored_rule: the rule whose scores are returned; "" for none.
    """
    answers_by_split = [Answers() for _ in splits]
    sizes = [len(rows.labels) for rows in splits]
    if not any(sizes):
        return answers_by_split
    all_rows = splits[0]
    if len(splits) > 1:
        all_rows = Rows(torch.cat([rows.inputs for rows in splits]), torch.cat([rows.labels for rows in splits]))
    z = features_of(objective, state, all_rows, transform)
    device = exact_on(z.device)
    own_scores = rule_scores(objective, state, z)
    labels_by_rule = {rule: scores.argmax(dim=1) for rule, scores in own_scores.items()}
    if state.prototypes is not None and state.prototypes.counts is not None:
        labels_by_rule[MAJORITY] = state.prototypes.labels[state.prototypes.counts.argmax()].expand(len(z))
    if received is not None:
        features = features_of(objective, received, all_rows, transform)
        scores_of_received = received_scores(objective, received, features)
        labels_by_rule |= {rule: scores.argmax(dim=1).to(device) for rule, scores in scores_of_received.items()}
        own_scores |= scores_of_received

    for rule, labels in labels_by_rule.items():
        for answers, part in zip(answers_by_split, labels.split(sizes), strict=True):
            if len(part):
                answers.labels[rule] = part
    if scored_rule in own_scores:
        for answers, scores in zip(answers_by_split, own_scores[scored_rule].split(sizes), strict=True):
            answers.scores = scores if len(scores) else None

    if further_scores is None:
        return answers_by_split
    for rows, split_features, answers in zip(splits, z.split(sizes), answers_by_split, strict=True):
        scores_by_rule = further_scores(rows, split_features) if len(rows) else {}
        for rule, scores in scores_by_rule.items():
            answers.labels[rule] = scores.to(device).argmax(dim=1)
            if rule == scored_rule:
                answers.scores = scores
    return answers_by_split


def received_scores(objective: Objective, received: ClientState, z: Tensor) -> dict[str, Tensor]:
    """Rule -> scores (n, K) of the client with the new download, from its features z: `received` for its classifier,
    and `received-<rule>` for each of the method's own rules."""
    scores = method_scores(objective, received, z)
    return {RECEIVED if rule == "classifier" else f"{RECEIVED}-{rule}": values for rule, values in scores.items()}


def method_scores(objective: Objective, state: ClientState, z: Tensor) -> dict[str, Tensor]:
    """Rule -> scores (n, K) of the classifier, which is the model's unless the method has its own, and of the method's
    further rules."""
    return {"classifier": state.module.classify(z), **objective.scores(state, z)}


def rule_scores(objective: Objective, state: ClientState, z: Tensor) -> dict[str, Tensor]:
    """Rule -> scores (n, K), in float64 where the device has it. A rule is missing if the client lacks what it needs.
    The method's own scores replace the common ones."""
    num_classes, device = objective.num_classes, exact_on(z.device)
    points = z.to(device)
    scores = {"classifier": state.module.classify(z)}
    if state.prototypes is not None:
        scores["local-prototypes"] = nearest_scores(points, *state.prototypes.table(num_classes))
    if state.prototypes is not None and state.covariance is not None:
        scores["discriminant"] = discriminant_scores(points, state.prototypes, state.covariance, num_classes)
    if state.table is not None:
        vectors, present = state.table
        scores["global-prototypes"] = nearest_scores(points, vectors.to(device), present.to(device))
    scores |= objective.scores(state, z)
    return {rule: values.to(device) for rule, values in scores.items()}


@torch.no_grad()
def ensemble_probabilities(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Tensor | None:
    """A client's part of the ensemble in FedPAGR's tables: its class probabilities for all samples, (n, K); None if the
    method cannot predict any class yet."""
    z = features_of(objective, state, rows, transform)
    if isinstance(objective, ConsensusObjective):
        return objective.ensemble_probabilities(state, z)
    return torch.softmax(method_scores(objective, state, z)["classifier"].float(), dim=1)


# --- metrics besides accuracy, for a client's test samples and the run's own inference rule ---------------------------


def macro_auc(labels: Tensor, probabilities: Tensor) -> float | None:
    """The one-versus-rest area under the ROC curve, averaged over the classes of some but not all samples; None if
    there is no such class or a probability is not finite.

    Args:
        labels: (n,). probabilities: (n, K). Both on the CPU.
    """
    # takes seconds to import, so only runs that need it import it
    from sklearn.metrics import roc_auc_score

    if not bool(probabilities.isfinite().all()):
        return None
    areas = []
    for label in labels.unique().tolist():
        is_of_class = labels == label
        if not is_of_class.all():
            areas.append(float(roc_auc_score(is_of_class.numpy(), probabilities[:, label].numpy())))
    return math.fsum(areas) / len(areas) if areas else None


def count_confusion(labels: Tensor, predictions: Tensor, num_classes: int) -> tuple[int, ...]:
    """Counts of (true class, predicted class), row by row; with more than `MOST_CLASSES` classes, of (true class, right
    or wrong).

    Args:
        labels, predictions: (n,).
    """
    true, predicted, columns = labels.cpu(), predictions.cpu(), width(num_classes)
    column = predicted if columns == num_classes else (predicted != true).to(true.dtype)
    return tuple(torch.bincount(true * columns + column, minlength=num_classes * columns).tolist())
