"""Clients of one architecture trained together: each step is one call over stacked parameters, with a batch for each.

What `protosphere.client_app.train.train` does for a client after the other, and the same numbers but for rounding.
Batches are never padded, since batch statistics and means over rows would change: a step stacks the clients whose batch
has the same size, and who has no batch left is out of it. Whatever cannot be stacked is trained by `train`.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from protosphere.client_app.cohort_steps import READ, Member, Stack, named
from protosphere.client_app.cohort_views import UnstackableError
from protosphere.client_app.train import Job, Outcome, batches, measured
from protosphere.core.seeds import seed_process
from protosphere.strategies.user_method import checked_phases

HEAVY = "on a CPU that is faster for a model of its size"
DRAWS = "its training draws random numbers, as dropout does, and each client has its own"
LONGEST_REASON = 160  # characters


class Cohorts:
    """Trains clients together for a run.

    Args:
        say: told once of an architecture that is trained one client after the other, and why.
        most_work: floating-point operations of the features of a batch above which clients of an architecture train one
            after the other on a CPU: what a stacked step saves is the time around the products.
    """

    def __init__(self, say: Callable[[str, str], None], most_work: float = math.inf):
        self.say = say
        self.most_work = most_work
        self._refusals: dict[object, str] = {}
        self._light_keys: set[object] = set()

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Each job with what came of it, at a time when the process is seeded for it."""
        members_by_key: dict[object, list[Member]] = {}
        for job in jobs:
            # phases may draw, as after `receive` in `Client.train`
            seed_process(*job.stream, "process")
            try:
                member = member_of(job)
            except Exception as error:
                yield job, error
                continue
            members_by_key.setdefault(_key(member), []).append(member)
        for key, members in members_by_key.items():
            members.sort(key=lambda member: member.place)
            start = time.perf_counter()
            is_trained = key not in self._refusals and self._train(key, members)
            share = (time.perf_counter() - start) / len(members)
            for member in members:
                seed_process(*member.job.stream, "process")
                yield member.job, _outcome(member, share) if is_trained else member.job.alone()

    def _train(self, key: object, members: list[Member]) -> bool:
        """Whether all were trained; else none was, and nothing of them is changed."""
        try:
            if key not in self._light_keys and work_of(members[0]) > self.most_work:
                raise UnstackableError(HEAVY)
            self._light_keys.add(key)
            with warnings.catch_warnings():
                # what vmap has no rule for it does client by client, and says so
                warnings.filterwarnings("ignore", ".*performance drop")
                if members[0].job.objective.settings.prototypes_from == "training":
                    raise ValueError("their prototypes are of the features that each step meets")
                Stack(members).train()
        # vmap refuses with errors of many kinds; what is no refusal comes again, from the client that it is about
        except Exception as error:
            reason = " ".join(str(error).split()).split(". ")[0][:LONGEST_REASON] or type(error).__name__
            self._refusals[key] = DRAWS if "randomness" in reason else reason
            self.say(members[0].job.model, self._refusals[key])
            return False
        return True


def member_of(job: Job) -> Member:
    """A client as it takes part in a stack."""
    size = job.objective.settings.batch_size
    sizes = [len(index) for index in batches(len(job.data.train), size, torch.Generator(), torch.device("cpu"))]
    phases = checked_phases(job.objective.phases(job.state, job.round_number), job.objective)
    return Member(job, phases, sizes)


@torch.no_grad()
def work_of(member: Member) -> int:
    """Floating-point operations of the products in the features of its largest batch; 0 where they are not a CPU's.

    Counted by hooks, since torch's own counter imports its compiler, which takes longer than many a round: of linear
    and convolutional layers as they are called, of other matrices as if each row met them once.
    """
    job = member.job
    rows = job.data.train
    if rows.inputs.device.type != "cpu" or not len(rows):
        return 0
    # a copy: a pass may change buffers
    state = replace(job.state, module=deepcopy(job.state.module).eval())
    products: list[int] = []

    def count(layer: nn.Linear | _ConvNd, inputs: tuple[object, ...], result: object) -> None:
        value = result
        if isinstance(layer, _ConvNd) and layer.transposed:
            value = inputs[0] if inputs else None
        # what a layer of somebody's own takes and gives may be anything
        if isinstance(value, Tensor):
            products.append(2 * value.numel() * layer.weight[0].numel())

    counted_parameters: set[nn.Parameter] = set()
    for layer in state.module.modules():
        if isinstance(layer, nn.Linear | _ConvNd):
            layer.register_forward_hook(count)
        if isinstance(layer, nn.Linear | _ConvNd | nn.Embedding):
            counted_parameters.update(layer.parameters())
    batch = job.data.transform(rows.inputs[: max(member.sizes)])
    job.objective.features(state, batch)
    matrices = [p for p in state.module.parameters() if p.dim() > 1 and p not in counted_parameters]
    return sum(products) + sum(2 * len(batch) * matrix.numel() for matrix in matrices)


def _outcome(member: Member, share: float) -> Outcome:
    if member.error is not None:
        return member.error
    start, job = time.perf_counter(), member.job
    ratio = 0.0 if member.ratio is None else float(member.ratio)
    parts = {name: total / member.steps[name] for name, total in member.sums.items()}
    try:
        figures = measured(job.objective, job.state, job.data, job.round_number, parts, member.taken, ratio)
    except Exception as error:
        return error
    return replace(figures, seconds=share + time.perf_counter() - start)


def _key(member: Member) -> object:
    """Equal where clients do the same in every step, but for the values of their tensors."""
    job = member.job
    objective, module, state = job.objective, job.state.module, job.state
    layout = tuple((name, tuple(t.shape), t.dtype, t.requires_grad) for name, t in named(module).items())
    phases = []
    for phase in member.phases:
        forms = [(tensor.shape, tensor.dtype) for tensor in phase.rows or ()]
        phases.append((phase.name, phase.epochs, phase.fresh, tuple(forms)))
    types_read = tuple(type(getattr(state, name)) for name in READ)
    rows = job.data.train.inputs
    # who has no rows is left to the loop, whose words for it are known
    data = (job.data.transform.form, len(rows) > 0, tuple(rows.shape[1:]), rows.dtype, rows.device)
    constants = tuple(state.constants.items())
    return job.model, type(objective), type(module), layout, tuple(phases), types_read, data, constants
