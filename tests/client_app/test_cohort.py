"""Clients trained together against the loop: from equal state, in float64, the same weights, optimisers and figures."""

import json
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from client_app.cohort import DRAWS as RANDOM
from client_app.cohort import Cohorts, filled, tensors_in
from client_app.evaluation import DivergenceError
from client_app.state import lay_out, new_state
from client_app.trainer import Job
from data.client_data import ClientData, InputTransform, Rows
from experiments.runtime.cohorts import CohortGrid
from federation.seeds import seed_process
from models import FAMILIES
from prototypes.prototype_set import PrototypeSet
from strategies import METHODS, known_settings, read_settings
from tests.strategies.golden import CLIENTS, settings_of

CLASSES, DIM = 4, 6
DRAWS = {"fraug": 1, "fedgen": 2, "fedpa": 2}  # the round from which a loss draws, which no stack can as clients do


class Double(InputTransform):
    """To float64."""

    def __call__(self, inputs):
        return super().__call__(inputs).double()


def job_of(client, rows=16, model="tiny_perceptron", shape=(5,), targets=True, **settings):
    """A client in float64 with a model, and rows, of its own."""
    own = {"strategy": "fedproto", "models": model, "feature-dim": DIM, "batch-size": 4, "shared-init": False}
    run = read_settings(own | {"momentum": 0.9, "weight-decay": 0.01, "optimizer-state": "persistent"} | settings)
    objective = run.method.objective(run.settings, run.options, CLASSES)
    random = torch.Generator().manual_seed(client)
    data = Rows(torch.randn(rows, *shape, generator=random), torch.randint(CLASSES, (rows,), generator=random))
    transform = Double(1.0, (0.0,) * shape[0], (1.0,) * shape[0], shape)
    state = new_state(objective, model, shape, client, torch.device("cpu"))
    state.module.double()
    for layer in state.module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    if targets:
        vectors = torch.randn(CLASSES - 1, DIM, generator=random, dtype=torch.float64)
        lay_out(objective, state, PrototypeSet(torch.arange(CLASSES - 1), vectors), torch.device("cpu"))
    stream = (0, "client", client, "round", 2)
    return Job(objective, state, ClientData(data, data, data, tuple("abcd"), transform), stream, 2, model)


def trained(make):
    """Reasons why the jobs that `make` makes were not trained together; how each ended, together and alone; the largest
    difference of any tensor of theirs."""
    jobs, copies, reasons = make(), make(), []
    alone = []
    for job in copies:
        seed_process(*job.stream, "process")
        try:
            alone.append(job.alone())
        except DivergenceError as error:
            alone.append(error)
    found = {id(job): outcome for job, outcome in Cohorts(lambda *reason: reasons.append(reason))(jobs)}
    together = [found[id(job)] for job in jobs]
    apart = 0.0
    for one, other, outcome in zip(jobs, copies, together, strict=True):
        if isinstance(outcome, Exception):
            continue
        ours, theirs = ({**job.state.module.state_dict(), **job.state.optimiser} for job in (one, other))
        assert ours.keys() == theirs.keys()
        assert one.state.module.training == other.state.module.training
        apart = max([apart, *(float((ours[name] - theirs[name]).abs().max()) for name in ours if ours[name].numel())])
    return reasons, together, alone, apart


def assert_same(make):
    """They are trained together, and no figure differs."""
    reasons, together, alone, apart = trained(make)
    assert reasons == []
    assert apart < 1e-9
    for one, other in zip(together, alone, strict=True):
        assert (one.rows, one.steps) == (other.rows, other.steps)
        assert one.parts == pytest.approx(other.parts, rel=1e-6)
        assert list(one.parts) == list(other.parts)
        assert (one.gradient_ratio, one.prototype_norm) == pytest.approx((other.gradient_ratio, other.prototype_norm))
        assert one.target_norm == pytest.approx(other.target_norm)


# --- methods, as they are in real runs ---------------------------------------------------------------------------


class Compared(CohortGrid):
    """Trains the clients of a run by the loop, and copies of them in float64 both ways."""

    def __init__(self, seen, narrow, *arguments):
        super().__init__(*arguments)
        self.cohorts = partial(self._both, seen, deepcopy if narrow else doubled)

    def _both(self, seen, copied, jobs):
        seen.append(trained(lambda: [copied(job) for job in jobs]))
        for job in jobs:
            seed_process(*job.stream, "process")
            yield job, job.alone()


def doubled(job):
    """A copy in float64, with all that the loss reads."""
    transform = job.data.transform
    data = replace(job.data, transform=Double(transform.scale, transform.mean, transform.std, transform.shape))
    state = deepcopy(job.state)
    state.module.double()
    for name in ("table", "received"):
        value = getattr(state, name)
        wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors_in(value)]
        setattr(state, name, filled(value, iter(wide)))
    return replace(job, objective=deepcopy(job.objective), state=state, data=data)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_together_as_it_trains_alone(run, method):
    seen = []
    settings = {name: value for name, value in settings_of(method).items() if name not in ("device", "precision")}
    more = {"momentum": 0.9, "batch-size": 8, "rounds": 2, "fraction-train": 1.0}
    run(settings | more, clients=CLIENTS, grid=partial(Compared, seen, method in DRAWS))
    for number, (reasons, _, _, apart) in enumerate(seen, 1):
        draws = number >= DRAWS.get(method, 3)
        assert [reason for _, reason in reasons] == ([RANDOM] if draws else [])
        assert apart < (1e-6 if method in DRAWS else 1e-9)
    assert len(seen) == 2
