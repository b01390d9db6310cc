"""How a client's state is made, described and prepared: from settings and a model's name, before any training."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from protosphere.core.seeds import derive
from protosphere.data.client_data import Transform
from protosphere.models import build, seed_name
from protosphere.models.split import channels_last
from protosphere.strategies import Run
from protosphere.strategies.contract import ClientState, Objective
from protosphere.wire.payloads import Payload

FORMAT = 1  # of client.json


def describe(run: Run, partition: int, model: str, class_names: Sequence[str], transform: Transform) -> dict[str, Any]:
    """client.json: all but tensors that a client is rebuilt from."""
    method_settings = {
        f"{prefix}.{name.replace('_', '-')}": value
        for prefix, kind in run.method.settings.items()
        for name, value in asdict(run.options[kind]).items()
    }
    return {
        "format": FORMAT,
        "partition": partition,
        "strategy": run.settings.strategy,
        "model": model,
        "feature_dim": run.settings.feature_dim,
        "class_names": list(class_names),
        "input": transform.to_dict(),
        "rule": run.inference,
        "settings": run.settings.model_dump(by_alias=True) | method_settings,
    }


def new_state(
    objective: Objective, model: str, input_shape: tuple[int, ...], partition: int, device: torch.device
) -> ClientState:
    """The seeded initial model of a client: the same for all of one architecture with `shared-init`.

    Raises:
        ModelError: the model cannot be built.
    """
    settings = objective.settings
    whose = () if settings.shared_init else (partition,)
    seed = derive(settings.seed, "model", seed_name(model), *whose)
    activation = settings.feature_activation
    network = build(model, input_shape, settings.feature_dim, objective.num_classes, seed, activation)
    return ClientState(channels_last(objective.build(network, seed)).to(device))


def lay_out(objective: Objective, state: ClientState, received: Payload | None, device: torch.device) -> None:
    """Make what was received, with the constants that came with it, the state's targets."""
    targets = objective.targets(state, received)
    state.targets = None if targets is None else targets.to(device=device)
    state.table = None if state.targets is None else state.targets.table(objective.num_classes)


def size_of(state: ClientState) -> int:
    """Bytes of its tensors."""
    tensors = [*state.module.state_dict().values(), *state.kept.values(), *state.optimiser.values()]
    tensors += [] if state.prototypes is None else state.prototypes.fields().values()
    tensors += [] if state.covariance is None else [state.covariance]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
