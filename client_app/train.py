"""The training loop of all methods: an Objective defines what to minimise, phase by phase."""

import math
import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from protosphere.client_app.evaluate import DivergenceError, autocast, measure, refuse_spoilt
from protosphere.core.devices import exact_on
from protosphere.core.plugins import is_plugin
from protosphere.core.seeds import generator
from protosphere.core.settings import Settings
from protosphere.data.augment import Augment, augmented
from protosphere.data.client_data import ClientData
from protosphere.models.optimiser import EagerSGD, optimiser_tensors, restore_optimiser
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import Batch, ClientState, Loss, Objective, Phase
from protosphere.strategies.user_method import checked_loss, checked_phases
from protosphere.wire.payloads import TrainingFigures

MADE_READY = 2**20  # values of a client's training samples: 4 MB


def train(
    objective: Objective,
    state: ClientState,
    data: ClientData,
    stream: tuple[int | str, ...],
    round_number: int,
    measures: bool = True,
) -> TrainingFigures:
    """Train in place, then measure the local prototypes, or use those accumulated during training.

    Args:
        stream: the name of the client's random stream in this round (protosphere.core.seeds).
        measures: whether the prototypes are read before the next training.

    Raises:
        DivergenceError: the state is then unusable and must not be stored.
    """
    began = time.perf_counter()
    sums: dict[str, Tensor] = {}
    steps: dict[str, int] = {}  # by term of the loss: a phase may have its own terms
    ratio: Tensor | None = None
    num_steps = 0
    phases: list[Phase] = []
    augment = objective.settings.augment
    own_method = is_plugin(objective.settings.strategy)
    met = _Met(objective, data) if objective.settings.prototypes_from == "training" else None
    ready = _transform_rows(data) if augment == "none" else None
    for phase in checked_phases(objective.phases(state, round_number), objective):
        phases.append(phase)
        optimiser = optimiser_of(objective, state, phase)
        labels = data.train.labels if phase.rows is None else phase.rows[1]
        precision = autocast(objective, labels.device)
        for epoch in range(phase.epochs):
            state.module.train()
            order = generator(*stream, phase.name, epoch)
            draws = generator(*stream, phase.name, epoch, "augment") if augment != "none" else None
            for index in batches(len(labels), objective.settings.batch_size, order, labels.device):
                batch = _make_batch(data, ready, phase, index, augment, draws)
                with precision:
                    loss = objective.loss(state, batch, phase, round_number)
                if own_method:
                    checked_loss(loss, objective, phase, len(index))
                if ratio is None and phase.rows is None:
                    ratio = _gradient_ratio(loss)
                if met is not None and phase.rows is None and phase.of_model:
                    met.add(loss.features, batch.labels)
                optimiser.zero_grad(set_to_none=True)
                loss.total.backward()
                optimiser.step()
                num_steps += 1
                # training on other samples has a metric of its own
                total = "loss" if phase.rows is None else f"{phase.name}-loss"
                for name, part in (loss.parts | {total: loss.total}).items():
                    sums[name] = sums.get(name, 0.0) + part.detach()
                    steps[name] = steps.get(name, 0) + 1
            stop_if_not_finite(sums, phases, epoch, state)
        stop_if_spoilt(state.module.state_dict(), phases)
        if objective.settings.optimizer_state == "persistent" and not phase.fresh:
            state.optimiser |= optimiser_tensors(optimiser, phase.name)
    if met is not None:
        met.leave(state)
    elif measures:
        measure(objective, state, data)
    else:
        # prototypes of an earlier model would be wrong
        state.prototypes = state.covariance = state.features = None
        refuse_spoilt(objective, state, data)
    return TrainingFigures(
        rows=len(data.train),
        steps=num_steps,
        parts={name: float(total) / steps[name] for name, total in sums.items()},
        gradient_ratio=0.0 if ratio is None else float(ratio),
        target_norm=_mean_norm(state.targets),
        prototype_norm=None if state.prototypes is None and len(data.train) else _mean_norm(state.prototypes),
        seconds=time.perf_counter() - began,
    )


def evaluation_follows(settings: Settings, round_number: int) -> bool:
    """Whether clients are evaluated after this round, by the run's settings."""
    return round_number % settings.evaluate_every == 0 or round_number >= settings.rounds


class _Met:
    """The features of a round's batches, summed by class during training: the prototypes of FedProto's own code."""

    def __init__(self, objective: Objective, data: ClientData):
        labels = data.train.labels
        self._counts = torch.bincount(labels, minlength=objective.num_classes)
        self._sums = torch.zeros(objective.num_classes, objective.settings.feature_dim, device=labels.device)
        self._rows = torch.zeros(objective.num_classes, device=labels.device)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """z (b, d) of a batch."""
        # a matrix product instead of a scatter: bit-identical on every device
        hot = one_hot(labels, len(self._rows)).to(self._sums.dtype)
        self._sums += hot.T @ features.detach().to(self._sums.dtype)
        self._rows += hot.sum(dim=0)

    def leave(self, state: ClientState) -> None:
        """Set the prototypes of all classes in the batches, with sample counts. There is no covariance, since the
        features come from many models."""
        labels = self._rows.nonzero().flatten()
        prototypes = PrototypeSet(labels, self._sums[labels] / self._rows[labels].unsqueeze(1), self._counts[labels])
        state.prototypes = prototypes.to(device=exact_on(labels.device))
        state.covariance = state.features = None


def _mean_norm(prototypes: PrototypeSet | None) -> float:
    return 0.0 if prototypes is None else prototypes.mean_norm


def batches(rows: int, size: int, order: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    """Shuffled index batches of one epoch. A last batch of one sample joins the previous batch, since batch
    normalisation cannot train on one sample; a client's only sample is used twice."""
    permutation = torch.randperm(rows, generator=order).to(device)
    if rows == 1:
        permutation = permutation.repeat(2)
    chunks = list(permutation.split(size))
    if len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [torch.cat(chunks[-2:])]
    yield from chunks


def _transform_rows(data: ClientData) -> Tensor | None:
    """Transform few samples once instead of in every batch; None if there are many."""
    return data.transform(data.train.inputs) if data.train.inputs.numel() <= MADE_READY else None


def _make_batch(
    data: ClientData, ready: Tensor | None, phase: Phase, index: Tensor, augment: Augment, draws: torch.Generator | None
) -> Batch:
    if phase.rows is not None:
        return Batch(phase.rows[0][index], phase.rows[1][index])
    if ready is not None:
        rows = ready[index]
        # indexing images with one channel loses the transform's memory layout
        rows = rows.to(memory_format=torch.channels_last) if rows.dim() == 4 else rows
        return Batch(rows, data.train.labels[index])
    inputs = data.train.inputs[index]
    inputs = inputs if draws is None else augmented(inputs, augment, draws)
    return Batch(data.transform(inputs), data.train.labels[index])


def optimiser_of(objective: Objective, state: ClientState, phase: Phase) -> torch.optim.Optimizer:
    """The optimiser of a phase, with its state from the last round if that is stored."""
    settings = objective.settings
    if phase.optimiser is not None:
        optimiser = phase.optimiser(phase.parameters)
    else:
        optimiser = EagerSGD(
            phase.parameters,
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
    restore_optimiser(optimiser, state.optimiser, phase.name)
    return optimiser


def _gradient_ratio(loss: Loss) -> Tensor | None:
    """Norm of the gradient of the method's own terms on z, relative to that of the cross-entropy; None without such
    terms."""
    if len(loss.parts) == 1:
        return None
    plain = loss.parts["cross-entropy"]
    (plain_gradient,) = torch.autograd.grad(plain, loss.features, retain_graph=True)
    (added_gradient,) = torch.autograd.grad(loss.total - plain, loss.features, retain_graph=True)
    # float64, since the gradient of a cross-entropy may be too small for float32
    device = exact_on(loss.features.device)
    added_norm, plain_norm = (gradient.to(device).double().norm() for gradient in (added_gradient, plain_gradient))
    return added_norm / plain_norm.clamp_min(torch.finfo(torch.float32).tiny)


def stop_if_not_finite(sums: Mapping[str, Tensor], phases: list[Phase], epoch: int, state: ClientState) -> None:
    """Check once per epoch: a check per batch would make the device wait."""
    for name, total in sums.items():
        if not math.isfinite(float(total)):
            # bad targets from other clients would look like a learning rate that is too high
            lengths = (
                f"of length {_mean_norm(state.targets):.3g}, its own prototypes of {_mean_norm(state.prototypes):.3g}"
            )
            pull = f", `prototype-weight` or the scale of the targets (they are {lengths})"
            pull = pull if "prototype-pull" in sums else ""
            raise DivergenceError(
                f"the {name} is not finite in epoch {epoch + 1} of phase `{phases[-1].name}`; lower "
                f"{_list_rates(phases)}{pull}"
            )


def stop_if_spoilt(tensors: Mapping[str, Tensor], phases: list[Phase]) -> None:
    """Check the model after the last step: the loss of that step belongs to the model before it."""
    # a value that is not finite makes the sum not finite; if only the sum overflows, all values are checked
    sums = [t.sum().abs() if t.is_complex() else t.sum(dtype=torch.float32) for t in tensors.values()]
    if bool(torch.stack([total.to(torch.float32) for total in sums]).isfinite().all()):
        return
    finite = torch.stack([tensor.isfinite().all() for tensor in tensors.values()]).tolist()
    for name, good in zip(tensors, finite, strict=True):
        if not good:
            when = f"after training in phase `{phases[-1].name}`; lower {_list_rates(phases)}"
            raise DivergenceError(f"`{name}` is not finite {when}")


def _list_rates(phases: list[Phase]) -> str:
    """The learning rates that may have been too high: a later phase may start from weights that are huge but finite."""
    return " or ".join(f"`{rate}`" for rate in dict.fromkeys(phase.rate for phase in phases))
