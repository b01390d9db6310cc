"""One forward pass, every prediction rule; and the statistics of the training features that two rules need."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from protosphere.core.devices import exact_on
from protosphere.core.errors import UserError
from protosphere.core.settings import RECEIVED
from protosphere.data.client_data import ClientData, Rows, Transform
from protosphere.prototypes.prediction import discriminant_scores, nearest_scores, pooled_covariance
from protosphere.prototypes.prototype_set import class_means
from protosphere.record.metrics_lines import MAJORITY
from protosphere.strategies.contract import ClientState, Objective
from protosphere.wire.payloads import Evaluation

# Rows at once that were fastest: on a CPU images of a convolution fit in its cache, so of small ones more, at least
# IMAGES_AT_ONCE; a GPU wants many.
IMAGES_AT_ONCE, ROWS_AT_ONCE, ROWS_AT_ONCE_ON_GPU = 64, 256, 1024
PIXELS_AT_ONCE = 2**16
Beside = Callable[[Rows, Tensor], Mapping[str, Tensor]]


class DivergenceError(UserError):
    """The loss, or a feature, is no longer finite; one sentence for a person."""

    public = "its training diverged: lower the learning rates"


@torch.no_grad()
def measure(objective: Objective, state: ClientState, data: ClientData) -> None:
    """Local prototypes p_ij (Eq. 2 of ProtoNorm), counts and covariance over all training rows, in eval mode.

    After training, never as a running mean of features that training still moves.

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
    """Where nothing is measured: a look at the features of as many training rows as are taken at once.

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
    last: bool = False,
    arrived: ClientState | None = None,
    further_scores: Sequence[Beside] = (),
    observe: Callable[[Mapping[str, Tensor]], object] | None = None,
) -> Evaluation:
    """How many test and validation rows each rule gets right; and `last` of a run, where the partition asks for it,
    test rows of all classes.

    Args:
        arrived: the client with what has just come, which the rule `received` judges; None without that rule.
        further_scores: each gives scores by further rules, of rows and their features.
        observe: given the labels that each rule predicts for the test rows.
    """
    began = time.perf_counter()
    # the validation samples first, by which a rule may choose how it judges the others
    splits = [data.validation, data.test]
    if last and data.unheld is not None:
        splits.append(data.unheld.read())
    # of small clients all rows at once, for a pass costs more than they do
    total = sum(len(split.labels) for split in splits)
    in_one_pass = total <= _count_rows_at_once(data.test, data.transform) and _is_row_by_row(state.module)
    arguments = objective, state, data.transform, arrived, further_scores
    passes = [splits] if in_one_pass else [[rows] for rows in splits]
    answers = [labels_by_rule for group in passes for labels_by_rule in _predict_labels(*arguments, group)]
    rules = next((list(labels_by_rule) for labels_by_rule in answers if labels_by_rule), [])
    device = exact_on(data.test.labels.device)
    correct_counts = torch.zeros(len(splits), len(rules), dtype=torch.int64, device=device)
    for index, labels_by_rule in enumerate(answers):
        if labels_by_rule:
            predictions = torch.stack(list(labels_by_rule.values()))
            correct_counts[index] = (predictions == splits[index].labels.to(device)).sum(dim=1)
    # one transfer for all rules: a wait per rule would stall the device
    counts_by_split = correct_counts.tolist()
    numbers = [len(split.labels) for split in splits]
    correct = {rule: _add_unheld([counts[index] for counts in counts_by_split]) for index, rule in enumerate(rules)}
    if observe is not None:
        observe(answers[1])
    return Evaluation(_add_unheld(numbers), correct, time.perf_counter() - began)


def _is_row_by_row(module: nn.Module) -> bool:
    """Whether a row's features are its own: batch normalisation without statistics takes those of all that passes."""
    return not any(isinstance(part, _BatchNorm) and part.running_mean is None for part in module.modules())


def _add_unheld(numbers: list[int]) -> tuple[int, ...]:
    """(validation, test[, unheld]) to (test, validation[, test of all classes])."""
    validation, test, *unheld = numbers
    return test, validation, *(test + more for more in unheld)


def features_of(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Tensor:
    """z of all rows in eval mode, (n, d) float32."""
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
    return min(max(IMAGES_AT_ONCE, PIXELS_AT_ONCE // prod(transform.shape[1:])), ROWS_AT_ONCE)


def autocast(objective: Objective, device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast on CUDA where `precision` asks for it."""
    in_bf16 = objective.settings.precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, dtype=torch.bfloat16) if in_bf16 else nullcontext()


def _predict_labels(
    objective: Objective,
    state: ClientState,
    transform: Transform,
    arrived: ClientState | None,
    further_scores: Sequence[Beside],
    splits: Sequence[Rows],
) -> list[dict[str, Tensor]]:
    """For each split rule -> (n,), where there is float64, by one pass over all; nothing for one without rows."""
    sizes = [len(rows.labels) for rows in splits]
    if not any(sizes):
        return [{} for _ in splits]
    all_rows = splits[0]
    if len(splits) > 1:
        all_rows = Rows(torch.cat([rows.inputs for rows in splits]), torch.cat([rows.labels for rows in splits]))
    z = features_of(objective, state, all_rows, transform)
    device = exact_on(z.device)
    labels_by_rule = {rule: scores.argmax(dim=1) for rule, scores in rule_scores(objective, state, z).items()}
    if state.prototypes is not None and state.prototypes.counts is not None:
        labels_by_rule[MAJORITY] = state.prototypes.labels[state.prototypes.counts.argmax()].expand(len(z))
    if arrived is not None:
        features = features_of(objective, arrived, all_rows, transform)
        arrived_scores = received_scores(objective, arrived, features)
        labels_by_rule |= {rule: scores.argmax(dim=1).to(device) for rule, scores in arrived_scores.items()}
    answers_by_split: list[dict[str, Tensor]] = [{} for _ in splits]
    for rule, labels in labels_by_rule.items():
        for answers, part in zip(answers_by_split, labels.split(sizes), strict=True):
            if len(part):
                answers[rule] = part
    for scores_of in further_scores:
        for rows, split_features, answers in zip(splits, z.split(sizes), answers_by_split, strict=True):
            scores_by_rule = scores_of(rows, split_features) if len(rows) else {}
            answers |= {rule: scores.to(device).argmax(dim=1) for rule, scores in scores_by_rule.items()}
    return answers_by_split


def received_scores(objective: Objective, arrived: ClientState, z: Tensor) -> dict[str, Tensor]:
    """Rule -> (n, K) of the client with what has just come, z its features: `received` its classifier, and
    `received-<rule>` each of the method's own rules."""
    method_scores = {f"{RECEIVED}-{rule}": scores for rule, scores in objective.scores(arrived, z).items()}
    return {RECEIVED: objective.logits(arrived, z), **method_scores}


def rule_scores(objective: Objective, state: ClientState, z: Tensor) -> dict[str, Tensor]:
    """Rule -> (n, K), where there is float64. A rule whose ingredients a client lacks is missing."""
    num_classes, device = objective.num_classes, exact_on(z.device)
    points = z.to(device)
    scores = {"classifier": objective.logits(state, z)}
    if state.prototypes is not None:
        scores["local-prototypes"] = nearest_scores(points, *state.prototypes.table(num_classes))
    if state.prototypes is not None and state.covariance is not None:
        scores["discriminant"] = discriminant_scores(points, state.prototypes, state.covariance, num_classes)
    if state.table is not None:
        vectors, present = state.table
        scores["global-prototypes"] = nearest_scores(points, vectors.to(device), present.to(device))
    scores |= objective.scores(state, z)
    return {rule: values.to(device) for rule, values in scores.items()}
