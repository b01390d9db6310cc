"""A step for many clients at once: their parameters stacked, a batch for each, and SGD by element."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.optim.sgd import sgd

from protosphere.client_app.cohort_views import (
    PhaseInStack,
    StateInStack,
    UnstackableError,
    generator_states,
    layers_named_again,
    plain_tensors,
)
from protosphere.client_app.evaluate import DivergenceError, autocast
from protosphere.client_app.tensor_trees import filled, structure, tensors_in
from protosphere.client_app.train import Job, batches, optimiser_of, stop_if_not_finite, stop_if_spoilt
from protosphere.core.devices import exact
from protosphere.core.seeds import generator
from protosphere.models.optimiser import EagerSGD, optimiser_tensors, project
from protosphere.strategies.contract import Batch, ClientState, Objective, Phase
from protosphere.strategies.user_method import checked_loss

# of a client's state, what a loss may read; the rest is left out of the stack, and so is what differs in shape
READ = ("prototypes", "targets", "table", "received", "kept")
BUFFER = "momentum_buffer"  # what torch's SGD calls it
Span = tuple[int, int]  # of clients, from and to
Tensors = dict[str, Tensor]
Bounds = tuple[float, float] | None


@dataclass(eq=False)
class Member:
    """A client of a cohort.

    Attributes:
        sizes: of an epoch's batches of training rows.
        error: why it is out of the round.
    """

    job: Job
    phases: list[Phase]
    sizes: list[int]
    sums: dict[str, float] = field(default_factory=dict)
    steps: Counter[str] = field(default_factory=Counter)
    taken: int = 0
    ratio: Tensor | None = None
    error: DivergenceError | None = None

    @property
    def size(self) -> int:
        """B."""
        return self.job.objective.settings.batch_size

    @property
    def place(self) -> tuple[int, int]:
        """The more whole batches the earlier in the stack, then by the size of the last: so a batch takes few steps."""
        whole_batches = self.sizes.count(self.size)
        return -whole_batches, -sum(self.sizes[whole_batches:])

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Keeps the reason for which a client is out of the round."""
        try:
            yield
        except DivergenceError as error:
            self.error = error


def named(module: nn.Module) -> Tensors:
    """A module's parameters and buffers."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class _Within(nn.Module):
    """A client's loss as a module, so that `functional_call` can put its tensors in.

    Gives (total, parts, features).
    """

    def __init__(self, job: Job):
        super().__init__()
        self.module = job.state.module
        self.job = job

    def forward(self, fields: Mapping[str, Any], phase: Phase, batch: Batch) -> tuple[Tensor, Tensors, Tensor]:
        # for the objective it is a ClientState; what a stack lacks is refused, and so is any change
        state = cast(ClientState, StateInStack(self.module, self.job.state.constants, fields))
        phase_view = cast(Phase, PhaseInStack(phase))
        buffers = dict(self.module.named_buffers())
        result = self.job.objective.loss(state, batch, phase_view, self.job.round_number)
        loss = checked_loss(result, self.job.objective, phase, len(batch.labels), graph=False)
        if any(tensor is not buffers[name] for name, tensor in self.module.named_buffers()):
            raise UnstackableError("its model replaces a buffer while it trains, in place of changing it")
        return loss.total, loss.parts, loss.features


class Stack:
    """Clients of one key as they train.

    Attributes:
        tensors: parameters and buffers by name, (N, ...), in the order of the clients.
        tensors_by_member: each client's own parameters and buffers by name.
        fields: what a loss reads of the states, by field: the first client's value, and for all the tensors in it.
        sums: of each part of the loss over the phase's steps, (N,).
    """

    def __init__(self, members: list[Member]):
        first = members[0].job
        if 0 in members[0].sizes:
            raise UnstackableError("it has no samples to train on")
        if first.objective.settings.augment != "none":
            raise UnstackableError("its batches are flipped or cropped (`augment`), each by draws of its own")
        # a client's objective is made for its message, so nothing keeps a method from keeping values in it
        plain_objective = Objective(first.objective.settings, first.objective.options, 0)
        if attributes := vars(first.objective).keys() - vars(plain_objective).keys():
            raise UnstackableError(f"its objective keeps values of its own ({', '.join(sorted(attributes))})")
        if names := [name for module in first.state.module.modules() for name in plain_tensors(module)]:
            raise UnstackableError(f"its model keeps tensors that are no buffers ({', '.join(sorted(set(names)))})")
        if layers := layers_named_again(first.state.module):
            raise UnstackableError(f"its model holds a layer under two names ({', '.join(layers)})")
        self.members = members
        self.objective, self.state = first.objective, first.state
        self.within = _Within(first)
        self.tensors_by_member = [named(member.job.state.module) for member in members]
        self.tensors = {
            name: torch.stack([tensors[name].detach() for tensors in self.tensors_by_member])
            for name in self.tensors_by_member[0]
        }
        self.device = next(iter(self.tensors.values())).device
        self.fields = dict(self._stack_fields())
        self.sums: Tensors = {}

    def _stack_fields(self) -> Iterator[tuple[str, tuple[Any, list[Tensor]]]]:
        """Those fields whose tensors can be stacked."""
        for name in READ:
            values = [getattr(member.job.state, name) for member in self.members]
            tensors_by_member = [list(tensors_in(value)) for value in values]
            layouts = {tuple((tensor.shape, tensor.dtype) for tensor in tensors) for tensors in tensors_by_member}
            if len(layouts) == 1 and all(structure(value) == structure(values[0]) for value in values[1:]):
                yield name, (values[0], [torch.stack(tensors) for tensors in zip(*tensors_by_member, strict=True)])

    def train(self) -> None:
        """All phases; the clients' modules and optimisers get what came of it at the end."""
        optimiser_states: list[list[Tensors]] = []
        versions, draws = self._versions(), generator_states()
        for number in range(len(self.members[0].phases)):
            optimiser_states.append(self._train_phase(number))
        if versions != self._versions():
            raise UnstackableError("its loss changes tensors of a client's state")
        if draws != generator_states():
            raise UnstackableError("its training draws from `random` or NumPy, of which a process has one stream")
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                for tensors, value in zip(self.tensors_by_member, tensor.unbind(), strict=True):
                    tensors[name].copy_(value)
        for place, member in enumerate(self.members):
            for states in optimiser_states:
                member.job.state.optimiser |= states[place]

    def _versions(self) -> list[int]:
        return [tensor._version for _, tensors in self.fields.values() for tensor in tensors]

    def _train_phase(self, number: int) -> list[Tensors]:
        """Train one; each client's optimiser state of it, where it is kept."""
        phases = [member.phases[number] for member in self.members]
        phase, settings = phases[0], self.objective.settings
        update = _Update(self, phases)
        step = _Step(self, phases, update)
        self.sums, step_counts = {}, Counter[int]()
        for epoch in range(phase.epochs):
            self.state.module.train()
            pairs = zip(self.members, phases, strict=True)
            chunks = [self._batches(member, own_phase, epoch) for member, own_phase in pairs]
            plan = list(slices([[len(index) for index in indices] for indices in chunks]))
            flat = [torch.cat([chunks[n][at] + step.starts[n] for n in range(*span)]) for at, span in plan]
            # one transfer an epoch
            indices = torch.cat(flat).to(self.device).split([len(index) for index in flat])
            for (at, span), index in zip(plan, indices, strict=True):
                step(span, index, first=epoch == at == 0 and phase.rows is None)
                step_counts.update(range(*span))
            self._stop_what_diverged(number, epoch)
        self._stop_what_is_spoilt(number)
        for name, sums in self.sums.items():
            for place, (member, total) in enumerate(zip(self.members, sums.tolist(), strict=True)):
                member.sums[name] = member.sums.get(name, 0.0) + total
                member.steps[name] += step_counts[place]
        for place, member in enumerate(self.members):
            member.taken += step_counts[place]
        if settings.optimizer_state != "persistent" or phase.fresh:
            return [{} for _ in self.members]
        return update.optimiser_states(phase.name)

    def _batches(self, member: Member, phase: Phase, epoch: int) -> list[Tensor]:
        """A client's batches of an epoch, in the order of `train`."""
        labels = member.job.data.train.labels if phase.rows is None else phase.rows[1]
        order = generator(*member.job.stream, phase.name, epoch)
        return list(batches(len(labels), member.size, order, torch.device("cpu")))

    def _stop_what_diverged(self, number: int, epoch: int) -> None:
        """One look an epoch, as in `train`; who is out of the round stays in the stack, where it harms nobody."""
        finite = torch.stack(list(self.sums.values())).isfinite().all(dim=0)
        for member, at in self._diverged(finite):
            ran = member.phases[: number + 1]
            with member.stopping():
                stop_if_not_finite({n: sums[at] for n, sums in self.sums.items()}, ran, epoch, member.job.state)

    def _stop_what_is_spoilt(self, number: int) -> None:
        names = [name for name in self.state.module.state_dict() if name in self.tensors]
        finite = [self.tensors[name].isfinite().reshape(len(self.members), -1).all(dim=1) for name in names]
        for member, at in self._diverged(torch.stack(finite).all(dim=0)):
            with member.stopping():
                stop_if_spoilt({name: self.tensors[name][at] for name in names}, member.phases[: number + 1])

    def ratios(self, span: Span, total: Tensor, plain: Tensor, z: Tensor) -> None:
        """`gradient_ratio` of the clients' first batch; of the first phase that adds to the cross-entropy."""
        norm, added_norm = _gradient_norms(plain, z), _gradient_norms(total - plain, z)
        ratios = added_norm / norm.clamp_min(torch.finfo(torch.float32).tiny)
        for member, ratio in zip(self.members[slice(*span)], ratios, strict=True):
            member.ratio = ratio if member.ratio is None else member.ratio

    def _diverged(self, finite: Tensor) -> Iterator[tuple[Member, int]]:
        for at, (member, good) in enumerate(zip(self.members, finite.tolist(), strict=True)):
            if not good and member.error is None:
                yield member, at


class _Update:
    """SGD over stacked tensors, by element what each client's own does.

    Attributes:
        momenta: buffers by parameter; zeros, which a first step leaves as the gradient, where a client had none.
    """

    def __init__(self, stack: Stack, phases: Sequence[Phase]):
        jobs = [member.job for member in stack.members]
        self.optimisers = [optimiser_of(j.objective, j.state, p) for j, p in zip(jobs, phases, strict=True)]
        self.tensors_by_member = stack.tensors_by_member
        pairs = list(zip(self.optimisers, self.tensors_by_member, strict=True))
        self.groups, *other_groups = [_groups(optimiser, tensors) for optimiser, tensors in pairs]
        if any(groups != self.groups for groups in other_groups):
            raise UnstackableError(f"the optimisers of phase `{phases[0].name}` differ")
        self.momenta = {
            name: torch.stack([_buffer(optimiser, tensors[name]) for optimiser, tensors in pairs])
            for names, rates, _ in self.groups
            for name in names
            if rates["momentum"]
        }
        self._names_with_momentum: set[str] = set()

    @torch.no_grad()
    def __call__(self, leaves: Tensors, gradients: Mapping[str, Tensor | None], span: Span) -> None:
        """One step of some clients, in place."""
        for names, rates, bounds in self.groups:
            # as in SGD: what a loss does not reach stays as it is
            reached = {name: gradient for name in names if (gradient := gradients[name]) is not None}
            buffers: list[Tensor | None] = [None] * len(reached)
            if rates["momentum"]:
                buffers = [self.momenta[name][slice(*span)] for name in reached]
                self._names_with_momentum.update(reached)
            parameters = [leaves[name] for name in reached]
            sgd(parameters, list(reached.values()), buffers, **rates)
            project(parameters, bounds)

    def optimiser_states(self, phase: str) -> list[Tensors]:
        """Each client's optimiser's tensors."""
        for name in self._names_with_momentum:
            buffers = self.momenta[name].unbind()
            for optimiser, tensors, buffer in zip(self.optimisers, self.tensors_by_member, buffers, strict=True):
                optimiser.state[tensors[name]][BUFFER] = buffer.clone()
        return [optimiser_tensors(optimiser, phase) for optimiser in self.optimisers]


class _Step:
    """One step of a phase for some clients of a stack, which lie side by side in it.

    Attributes:
        starts: where in the rows of all a client's begin.
    """

    def __init__(self, stack: Stack, phases: Sequence[Phase], update: _Update):
        self.stack, self.phase, self.update = stack, phases[0], update
        train = [member.job.data.train for member in stack.members]
        transforms = [member.job.data.transform for member in stack.members]
        has_one_transform = all(transform == transforms[0] for transform in transforms)
        inputs = [rows.inputs for rows in train]
        if not has_one_transform:
            # clients with figures of their own: their rows as the model sees them
            inputs = [transform(x) for transform, x in zip(transforms, inputs, strict=True)]
        samples = []
        for values, rows, phase in zip(inputs, train, phases, strict=True):
            samples.append((values, rows.labels) if phase.rows is None else phase.rows)
        self.is_transformed = not has_one_transform and self.phase.rows is None
        self.transform = transforms[0] if has_one_transform and self.phase.rows is None else None
        self.inputs, self.labels = (torch.cat(tensors) for tensors in zip(*samples, strict=True))
        self.starts = [0, *accumulate(len(labels) for _, labels in samples)]
        self.parameter_names = [name for name, p in stack.state.module.named_parameters() if p.requires_grad]

    def __call__(self, span: Span, index: Tensor, first: bool) -> None:
        """Take it. Nothing in it waits for the device, all that stays is changed in place."""
        stack, members = self.stack, slice(*span)
        tensors = {name: tensor[members] for name, tensor in stack.tensors.items()}
        leaves = {name: tensors[name].detach().requires_grad_() for name in self.parameter_names}
        fields = {name: [tensor[members] for tensor in stacked] for name, (_, stacked) in stack.fields.items()}
        inputs = self.inputs[index]
        if self.transform is not None:
            inputs = self.transform(inputs)
        if self.is_transformed and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        batch = (rows.unflatten(0, (span[1] - span[0], -1)) for rows in (inputs, self.labels[index]))
        with autocast(stack.objective, index.device):
            total, parts, z = vmap(self._loss, randomness="error")({**tensors, **leaves}, fields, *batch)
        if first and len(parts) > 1:
            stack.ratios(span, total, parts["cross-entropy"], z)
        gradients = torch.autograd.grad(total.sum(), list(leaves.values()), allow_unused=True)
        self.update(leaves, dict(zip(leaves, gradients, strict=True)), span)
        name_of_total = "loss" if self.phase.rows is None else f"{self.phase.name}-loss"
        for name, part in (parts | {name_of_total: total}).items():
            if name not in stack.sums:
                stack.sums[name] = part.new_zeros(len(stack.members))
            stack.sums[name][members] += part.detach()

    def _loss(self, tensors: Tensors, fields: dict[str, list[Tensor]], inputs: Tensor, labels: Tensor) -> Any:
        """Of one client."""
        values = {name: filled(value, iter(fields[name])) for name, (value, _) in self.stack.fields.items()}
        module_tensors = {f"module.{name}": tensor for name, tensor in tensors.items()}
        return functional_call(self.stack.within, module_tensors, (values, self.phase, Batch(inputs, labels)))


def _gradient_norms(loss: Tensor, z: Tensor) -> Tensor:
    """Of each client's part of a loss the norm of the gradient on its features z (clients, b, d)."""
    (gradient,) = torch.autograd.grad(loss.sum(), z, retain_graph=True)
    return exact(gradient).double().flatten(1).norm(dim=1)


def slices(sizes: Sequence[Sequence[int]]) -> Iterator[tuple[int, Span]]:
    """Of each client's batch sizes: (number of the batch, clients from and to), batch by batch."""
    for at in range(max(map(len, sizes))):
        start = 0
        sizes_of_clients = [0 if at >= len(batch_sizes) else batch_sizes[at] for batch_sizes in sizes]
        for size, neighbours in groupby(sizes_of_clients):
            end = start + len(list(neighbours))
            if size:
                yield at, (start, end)
            start = end


def _groups(optimiser: torch.optim.Optimizer, tensors: Tensors) -> list[tuple[list[str], dict[str, Any], Bounds]]:
    """The parameters of each group by name, what `sgd` takes of it, and its bounds."""
    # one that has a step of its own would lose it
    if type(optimiser) not in (torch.optim.SGD, EagerSGD):
        raise UnstackableError(f"it trains with {type(optimiser).__name__}; steps in common are SGD's")
    rates = ("lr", "momentum", "weight_decay", "dampening", "nesterov", "maximize")
    if any(group["momentum"] and group["dampening"] for group in optimiser.param_groups):
        raise UnstackableError("it trains with dampening, which a first step leaves out")
    names = {id(tensor): name for name, tensor in tensors.items()}
    return [
        ([names[id(p)] for p in group["params"]], {rate: group[rate] for rate in rates}, group.get("bounds"))
        for group in optimiser.param_groups
    ]


def _buffer(optimiser: torch.optim.Optimizer, parameter: Tensor) -> Tensor:
    buffer: Tensor | None = optimiser.state[parameter].get(BUFFER)
    return torch.zeros_like(parameter) if buffer is None else buffer
