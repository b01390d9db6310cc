"""What a stack cannot do as a client alone would is refused, and trained one client after the other."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from protosphere.client_app.cohort import DRAWS as RANDOM
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import PullObjective
from tests.client_app.stacked import CLASSES, DIM, job_of, trained


class ByAdam(PullObjective):
    def phases(self, state, round_number):
        (phase,) = super().phases(state, round_number)
        return [replace(phase, optimiser=torch.optim.Adam)]


class ByShape(PullObjective):
    def loss(self, state, batch, phase, round_number):
        plain = super().loss(state, batch, phase, round_number)
        return replace(plain, total=plain.total * len(state.prototypes.labels))


class ByNumbers(PullObjective):
    def receive(self, state, received, round_number):
        self.own = float(next(state.module.parameters()).detach().sum())


class Changing(PullObjective):
    def loss(self, state, batch, phase, round_number):
        state.kept["seen"].add_(1)
        return super().loss(state, batch, phase, round_number)


class Clipping(torch.optim.SGD):
    def step(self, closure=None):
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1e-3)
        super().step(closure)


class ByOwnStep(PullObjective):
    def phases(self, state, round_number):
        (phase,) = super().phases(state, round_number)
        return [replace(phase, optimiser=partial(Clipping, lr=0.1))]


class ByDampening(PullObjective):
    def phases(self, state, round_number):
        (phase,) = super().phases(state, round_number)
        return [replace(phase, optimiser=partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5))]


class ByParameters(PullObjective):
    def loss(self, state, batch, phase, round_number):
        plain = super().loss(state, batch, phase, round_number)
        return replace(plain, total=plain.total + sum((p**2).sum() for p in phase.parameters))


class ByDraws(PullObjective):
    def loss(self, state, batch, phase, round_number):
        plain = super().loss(state, batch, phase, round_number)
        return replace(plain, total=plain.total * (1 + random.random() + np.random.rand()))


class Averaging(nn.Module):
    """Its buffer is another tensor after each pass."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, inputs):
        z = self.layers(inputs)
        self.mean = 0.9 * self.mean + 0.1 * z.mean().detach()
        return z + self.mean


class Shifted(Averaging):
    """It keeps a tensor that is no buffer."""

    def __init__(self, layers):
        super().__init__(layers)
        self.shift = next(layers.parameters()).detach().sum()

    def forward(self, inputs):
        return self.layers(inputs) + self.shift


class Twice(Averaging):
    """It holds a layer under two names."""

    def __init__(self, layers):
        super().__init__(layers)
        self.again = layers[1]

    def forward(self, inputs):
        return self.layers(inputs)


class Setting(PullObjective):
    def loss(self, state, batch, phase, round_number):
        state.kept = {"seen": batch.labels}
        return super().loss(state, batch, phase, round_number)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (ByAdam, "it trains with Adam"),
        (ByShape, "its loss reads `prototypes`"),
        (ByNumbers, "its objective keeps values of its own (own)"),
        (Changing, "its loss changes tensors of a client's state"),
        (Setting, "its loss changes `kept`"),
        (ByOwnStep, "it trains with Clipping"),
        (ByDampening, "it trains with dampening"),
        (ByParameters, "its loss reads `parameters` of a phase"),
        (ByDraws, "its training draws from `random` or NumPy"),
        (Averaging, "its model replaces a buffer"),
        (Shifted, "its model keeps tensors that are no buffers (shift)"),
        (Twice, "its model holds a layer under two names (extractor.again)"),
        (None, RANDOM),
    ],
)
def test_what_cannot_be_stacked_trains_alone_to_the_bit_and_it_is_said(objective, words):
    def make():
        jobs = [job_of(client) for client in range(3)]
        for number, job in enumerate(jobs):
            job.state.kept = {"seen": torch.zeros(1)}
            job.state.prototypes = PrototypeSet(torch.arange(number + 1), torch.zeros(number + 1, DIM))
            if objective is None:
                job.state.module.extractor.append(nn.Dropout(0.1))
            if objective in (Averaging, Shifted, Twice):
                job.state.module.extractor = objective(job.state.module.extractor)
        if objective in (None, Averaging, Shifted, Twice):
            return jobs
        own = [objective(job.objective.settings, job.objective.options, CLASSES) for job in jobs]
        for job, each in zip(jobs, own, strict=True):
            each.receive(job.state, None, 1)
        return [replace(job, objective=each) for job, each in zip(jobs, own, strict=True)]

    reasons, together, alone, apart = trained(make)
    assert [model for model, _ in reasons] == ["tiny_perceptron"]
    assert reasons[0][1].startswith(words)
    assert apart == 0
    assert [replace(each, seconds=0) for each in together] == [replace(each, seconds=0) for each in alone]


def test_what_clients_keep_meets_its_own_name_and_what_is_no_tensor_must_be_equal():
    class Reading(PullObjective):
        def loss(self, state, batch, phase, round_number):
            plain = super().loss(state, batch, phase, round_number)
            return replace(plain, total=plain.total + state.kept["a"] * plain.features.square().mean())

    def make(unequal=False):
        jobs = [job_of(client) for client in range(3)]
        for number, job in enumerate(jobs):
            kept = {"a": torch.tensor(1.0 + number), "b": torch.tensor(100.0)}
            # as the store gives them back, or not
            job.state.kept = dict(reversed(kept.items())) if number == 1 else kept
            if unequal:
                job.state.kept |= {"c": (torch.zeros(1), number)}
        return [replace(j, objective=Reading(j.objective.settings, j.objective.options, CLASSES)) for j in jobs]

    reasons, _, _, apart = trained(make)
    assert reasons == []
    assert apart < 1e-9
    reasons, _, _, apart = trained(partial(make, True))
    assert reasons[0][1].startswith("its loss reads `kept`")
    assert apart == 0
