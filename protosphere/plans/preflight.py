"""Checks before a run starts: the data and their partition, the method's requirements, the folder."""

import os
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from protosphere.core import plugins
from protosphere.core.devices import device_of
from protosphere.core.errors import SettingError
from protosphere.core.home import home, results_root
from protosphere.core.settings import Settings
from protosphere.data.augment import refuse_unfit
from protosphere.data.client_data import refuse_other_inputs
from protosphere.data.decode import open_data
from protosphere.data.domains import locate_all
from protosphere.data.forms.texts import Texts
from protosphere.data.partition.assignment import assignment
from protosphere.data.samples import Samples
from protosphere.data.spec import data_spec
from protosphere.models import build, check_model, model_names, reads_text
from protosphere.models.text import Tokens
from protosphere.server_app.ensemble import shared_labels
from protosphere.server_app.live_figures import refuse_missing_packages
from protosphere.strategies import Run, known_settings
from protosphere.strategies.user_method import failing_as


def check(run: Run, clients: int, folder: Path | None = None, here: bool = True) -> None:
    """Refuse what the server or a simulated client would refuse later. Data are decoded into the cache, and downloaded
    from the hub if necessary.

    Args:
        folder: the folder of the run to resume; None for a new run, which creates its own in the results folder.
        here: whether clients train on this machine.
    """
    settings = run.settings
    refuse_missing_packages(settings)
    if here and settings.precision == "bf16" and device_of(settings.device, "setting `device` is").type != "cuda":
        raise SettingError('setting `precision` is "bf16", which needs CUDA, but this machine has none; use "float32".')
    if not plugins.is_plugin(settings.dataset):
        locate_all(settings.dataset)
    names = dict.fromkeys(model_names(settings.models)[:clients])
    for name in names:
        check_model(name)
    folder = folder or results_root(settings.results_dir)
    # results are also stored there, unless another folder is set
    refuse_unwritable(home() / "clients", "stores' folder", "set PROTOSPHERE_HOME to a writable folder")
    refuse_unwritable(folder, "results folder", "set --results to a writable folder")
    cache, spec = home() / "cache", data_spec(settings, clients)
    data = open_data(spec, cache)
    axes = 0 if isinstance(data.inputs, Texts) else data.inputs.ndim - 1
    refuse_unfit(settings.augment, axes)
    assignment(spec, data, cache)
    shared_labels(settings, clients, len(data.class_names))
    with failing_as(SettingError, settings.strategy, run.method, (SettingError,)):
        run.method.server(run.settings, run.options).check(len(data.class_names), settings.feature_dim)
    for name in names:
        refuse_other_inputs(data, reads_text(name))
        _refuse_unfit(name, data, settings)
    if here and run.encodes:
        _refuse_encoder(data, settings)


def _refuse_unfit(name: str, data: Samples, settings: Settings) -> None:
    """Load what a client needs of its model; for a text model only the tokenizer, because the rest is large."""
    if isinstance(data.inputs, Texts):
        Tokens(name, settings.max_tokens)([])
    else:
        shape = tuple(map(int, data.inputs.shape[1:]))
        _built(name, shape, settings.feature_dim, len(data.class_names), settings.feature_activation)


def _refuse_encoder(data: Samples, settings: Settings) -> None:
    """Load the public encoder that clients on this machine will use; its weights are downloaded from the hub if
    necessary."""
    from protosphere.client_app.encoder import loaded

    if not isinstance(data.inputs, Texts):
        loaded(settings.encoder, tuple(map(int, data.inputs.shape[1:])), settings.feature_dim)
    elif reads_text(settings.encoder):
        loaded(settings.encoder, (settings.max_tokens,), settings.feature_dim)


@lru_cache(maxsize=64)
def _built(name: str, shape: tuple[int, ...], dim: int, num_classes: int, activation: str) -> None:
    """Build a model once, however many trials of a comparison use it."""
    build(name, shape, dim, num_classes, 0, activation)


def refuse_unwritable(root: Path, what: str, remedy: str) -> None:
    """Refuse a folder that cannot be written or, if it does not exist, cannot be created. The check leaves nothing
    behind and creates nothing under its name, where another run may start at the same time."""
    existing_folder = next(folder for folder in (root.absolute(), *root.absolute().parents) if os.path.lexists(folder))
    try:
        tempfile.TemporaryDirectory(dir=existing_folder).cleanup()
    except OSError as error:
        raise SettingError(f"the {what} {root} cannot be written ({error.strerror}); {remedy}.") from None


def check_resources(cpus_per_client: int, gpus_per_client: float) -> None:
    """Refuse resources for a client that this machine does not have: Flower would start, and end without a reason."""
    cpus = os.cpu_count() or 1
    if not 1 <= cpus_per_client <= cpus:
        raise SettingError(
            f"--cpus-per-client is {cpus_per_client}, but this machine has {cpus}; give a whole number from 1 to that."
        )
    if gpus_per_client == 0:
        return
    from torch.cuda import device_count

    gpus = device_count()
    if not 0 <= gpus_per_client <= gpus:
        allowed = f"give a number from 0 to {gpus}" if gpus else "leave it at 0 to train on the CPU"
        raise SettingError(
            f"--gpus-per-client is {gpus_per_client:g}, but this machine has {gpus} CUDA GPUs; {allowed}."
        )


def disclosures(run_config: Mapping[str, Any], clients: int) -> tuple[str, ...]:
    """What the server would learn about each client of a simulation, from the first client; nothing is trained."""
    # importing the client's app changes how its process ends, so it must not be loaded with this module
    from protosphere.client_app.app import new_client
    from protosphere.client_app.site import simulate

    config = known_settings(run_config.get("strategy", "")) | dict(run_config)
    simulate()
    node: dict[str, bool | int | float | str] = {"partition-id": 0, "num-partitions": clients}
    return new_client(Context(0, 0, node, RecordDict(), config)).identity().discloses
